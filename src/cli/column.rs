//! `npyfs column`: stages columns of a Hangar repository.

use std::path::{Path, PathBuf};

use super::{CliError, EXIT_OBJECT};
use crate::error::Error;
use crate::formats::hangar::stage::Stage;
use crate::formats::hangar::stage::schema::{
    ColumnCompression, NewColumn, NewSamples, dtype_named,
};

/// Work with the columns of a Hangar repository.
#[derive(clap::Args, Debug)]
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
enum Kind {
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
    kind: Kind,

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

    /// Hangar's backend for new samples: 00, 01 or 10
    #[arg(long)]
    backend: Option<String>,

    // As a doc comment the brackets would be links.
    #[arg(
        long,
        help = "blosc:CODEC[:LEVEL[:SHUFFLE]], lzf[:shuffle] or gzip[:LEVEL[:shuffle]]; needs a backend"
    )]
    compress: Option<String>,

    /// A Hangar repository
    store: PathBuf,

    /// The column's name
    name: String,
}

/// Runs the command.
pub fn run(args: Args) -> Result<(), CliError> {
    match args.command {
        Command::Create(create) => run_create(&create),
    }
}

fn refused(e: Error) -> CliError {
    CliError {
        code: EXIT_OBJECT,
        message: e.message,
    }
}

fn run_create(args: &Create) -> Result<(), CliError> {
    let new = NewColumn {
        nested: args.nested,
        samples: samples(args)?,
    };
    let stage = Stage::at(Path::new(&args.store)).map_err(|e| CliError::store(e.message))?;
    stage.create_column(&args.name, &new).map_err(refused)
}

/// Returns the samples of the new column, as the arguments describe them.
fn samples(args: &Create) -> Result<NewSamples, CliError> {
    let only = |kind| {
        let unused = args.dtype.is_none()
            && args.shape.is_none()
            && !args.variable
            && args.backend.is_none()
            && args.compress.is_none();
        match unused {
            true => Ok(kind),
            false => Err(CliError::usage(
                "--dtype, --shape, --variable, --backend and --compress are for arrays",
            )),
        }
    };
    match args.kind {
        Kind::Str => return only(NewSamples::Text),
        Kind::Bytes => return only(NewSamples::Bytes),
        Kind::Ndarray => {}
    }
    let (Some(dtype), Some(shape)) = (&args.dtype, &args.shape) else {
        return Err(CliError::usage(
            "a column of arrays needs --dtype and --shape",
        ));
    };
    let dims = shape
        .split(',')
        .map(str::trim)
        .filter(|dim| !dim.is_empty());
    let dims: Option<Vec<u64>> = dims.map(|dim| dim.parse().ok()).collect();
    Ok(NewSamples::Arrays {
        dtype: dtype_named(dtype)
            .ok_or_else(|| CliError::usage(format!("{dtype}: no dtype that Hangar takes")))?,
        shape: dims.ok_or_else(|| CliError::usage(format!("{shape}: not a shape")))?,
        fixed: !args.variable,
        backend: args.backend.clone(),
        compression: match &args.compress {
            Some(text) => {
                Some(ColumnCompression::parse(text).map_err(|e| CliError::usage(e.message))?)
            }
            None => None,
        },
    })
}
