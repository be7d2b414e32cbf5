//! `npyfs column`: stages columns of a store that has a staging area.

use std::path::PathBuf;

use super::CliError;
use super::checkout::staging::{open, refused, stores};
use npyfs_core::store::staging::{ColumnError, ColumnRequest, SamplesKind};

/// The arguments of `npyfs column`. The help names the stores as their formats do.
#[derive(clap::Args, Debug)]
#[command(about = format!("Work with the columns of a {}", stores()))]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Create(Create),
}

/// The type of the samples of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum SampleType {
    /// Arrays of one dtype (.npy)
    Ndarray,
    /// Text (.txt)
    Str,
    /// Bytes (.bin)
    Bytes,
}

/// Stage a new column.
///
/// A directory made in stage/ becomes a column by its first sample; this is for columns that need more said.
#[derive(clap::Args, Debug)]
struct Create {
    /// Type of its samples
    #[arg(long = "type", value_enum, default_value = "ndarray")]
    kind: SampleType,

    /// NumPy's name of the dtype: bool, uint8, float32, …
    #[arg(long)]
    dtype: Option<String>,

    /// Dimensions of a sample: 28,28; nothing between the quotes of '' for single values
    #[arg(long)]
    shape: Option<String>,

    /// Samples may be smaller than the shape, in every dimension
    #[arg(long)]
    variable: bool,

    /// Samples have subsamples
    #[arg(long)]
    nested: bool,

    /// The store's backend for new samples: 00, 01 or 10 in Hangar
    #[arg(long)]
    backend: Option<String>,

    // As a doc comment the brackets would be links.
    #[arg(
        long,
        help = "blosc:CODEC[:LEVEL[:SHUFFLE]], lzf[:shuffle] or gzip[:LEVEL[:shuffle]]; needs a backend"
    )]
    compress: Option<String>,

    #[arg(help = format!("A {}", stores()))]
    store: PathBuf,

    /// The column's name
    name: String,
}

/// Runs the command.
pub fn run(args: Args) -> Result<(), CliError> {
    match args.command {
        Command::Create(create) => run_create(create),
    }
}

fn run_create(args: Create) -> Result<(), CliError> {
    let not_a_shape =
        |shape: &String| CliError::usage(format!("{shape}: not a shape, such as 28,28"));
    let shape = args
        .shape
        .as_ref()
        .map(|shape| dims(shape).ok_or_else(|| not_a_shape(shape)))
        .transpose()?;
    let new = ColumnRequest {
        name: args.name,
        kind: match args.kind {
            SampleType::Ndarray => SamplesKind::Arrays,
            SampleType::Str => SamplesKind::Text,
            SampleType::Bytes => SamplesKind::Bytes,
        },
        nested: args.nested,
        dtype: args.dtype,
        shape,
        variable: args.variable,
        backend: args.backend,
        compression: args.compress,
    };
    let is_described = new.dtype.is_some()
        || new.shape.is_some()
        || new.variable
        || new.backend.is_some()
        || new.compression.is_some();
    match (new.kind, &new.dtype, &new.shape) {
        (SamplesKind::Text | SamplesKind::Bytes, ..) if is_described => {
            return Err(CliError::usage(
                "--dtype, --shape, --variable, --backend and --compress are for arrays",
            ));
        }
        (SamplesKind::Arrays, None, _) | (SamplesKind::Arrays, _, None) => {
            return Err(CliError::usage(
                "a column of arrays needs --dtype and --shape",
            ));
        }
        _ => {}
    }
    open(&args.store)?.create_column(&new).map_err(|e| match e {
        ColumnError::Usage(why) => CliError::usage(why),
        ColumnError::Refused(e) => refused(e),
    })
}

/// Parses dimensions with commas between them; none for an empty text.
fn dims(shape: &str) -> Option<Vec<u64>> {
    let dims = shape.split(',').map(str::trim);
    dims.filter(|dim| !dim.is_empty())
        .map(|dim| dim.parse().ok())
        .collect()
}
