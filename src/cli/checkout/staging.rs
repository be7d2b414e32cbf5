//! The commands on a store that has a staging area: those of `npyfs checkout`, and `npyfs column`, which stages
//! columns.

use std::path::{Path, PathBuf};

use super::diff::{ChangeKind, Changes};
use super::mounted;
use crate::cli::output::{OutputFormat, print};
use crate::cli::progress::Progress;
use crate::cli::{CliError, umount};
use npyfs_base::error::Error;
use npyfs_core::formats;
use npyfs_core::store::staging::{
    ColumnError, ColumnRequest, Expected, SamplesKind, StagedKind, Staging,
};
use npyfs_io::remote::Address;

fn refused(e: Error) -> CliError {
    CliError::object(e.message)
}

/// Returns the names of formats that have a staging area.
pub(super) fn stores() -> String {
    formats::registry().staged_names()
}

/// Opens the staging area of a store.
fn open(store: &Path) -> Result<Box<dyn Staging>, CliError> {
    let fail = |e: &dyn std::fmt::Display| CliError::store(format!("{}: {e}", store.display()));
    if let Some(Ok(address)) = Address::parse(store) {
        let message = format!(
            "{address}: only a {} on this machine has a staging area",
            stores()
        );
        return Err(CliError::usage(message));
    }
    let store = store.canonicalize().map_err(|e| fail(&e))?;
    let formats = formats::registry();
    let Some(staged) = formats.staged(&store) else {
        return Err(fail(&format!("no {}", stores())));
    };
    staged
        .staging(&store)
        .map_err(|e| CliError::store(e.message))
}

/// Returns the store with a staging area of which this is a mount point.
pub(super) fn mounted_at(mount_point: &Path) -> Option<PathBuf> {
    let store = mounted::store_at(mount_point)?;
    let is_staged = formats::registry().staged(&store).is_some();
    is_staged.then_some(store)
}

/// Runs `status`.
pub(super) fn status(store: &Path) -> Result<(), CliError> {
    print(open(store)?.status().map_err(refused)?.as_bytes())
}

/// Runs `diff`.
pub(super) fn diff(store: &Path, format: OutputFormat) -> Result<(), CliError> {
    let mut changes = Changes::default();
    let mut see = |kind, name: &[u8]| {
        let kind = match kind {
            StagedKind::Added => ChangeKind::Added,
            StagedKind::Modified => ChangeKind::Modified,
            StagedKind::Deleted => ChangeKind::Deleted,
        };
        changes.add(kind, name, None);
    };
    open(store)?.each(&mut see).map_err(refused)?;
    format.print(&changes)
}

/// Runs `commit`. What was written through mounts of this machine is staged first.
pub(super) fn commit(store: &Path, message: &str, expected: &Expected) -> Result<(), CliError> {
    for mount_point in mounted::writing_to(store) {
        umount::sync(&mount_point)?;
    }
    let progress = Progress::waiting("committing");
    let name = open(store)?.commit(message, expected).map_err(refused)?;
    drop(progress);
    print(format!("{name}\n").as_bytes())
}

/// Runs `reset`.
pub(super) fn reset(store: &Path) -> Result<(), CliError> {
    print(open(store)?.reset().map_err(refused)?.as_bytes())
}

/// The arguments of `npyfs column`. The help names the stores as their formats do.
#[derive(clap::Args, Debug)]
#[command(about = format!("Work with the columns of a {}", stores()))]
pub struct ColumnArgs {
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

/// Runs `npyfs column`.
pub fn column(args: ColumnArgs) -> Result<(), CliError> {
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
