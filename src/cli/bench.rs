//! `npyfs bench`: measures which compression of an array is the fastest to read on this machine, and which the smallest.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::CliError;
use super::figures::rounded;
use super::output::{print, print_json};
use super::progress::Progress;
use super::store::{StoreArgs, find};
use crate::checkout::layout::sample_bytes;
use crate::checkout::measure::{Measured, Sample, disk, fastest, methods};
use crate::error::Error;
use crate::io::content::{Slice, npy_header};
use crate::io::file::StoreFile;
use crate::tree::Node;

/// Measure which codec makes an array the fastest to read on this machine, and which the smallest.
///
/// Up to 8 MiB of the array, from all over it, are encoded with every codec that `npyfs checkout export` writes, and decoded by
/// npyfs. READ is the speed of fetching a chunk from the store's disk and decoding it; DECODE is that from memory. JSON is {"bytes",
/// "chunk", "disk", "codecs": [{"codec", "stored", "decode", "read", "plugin"}], "fastest", "smallest"}; speeds are bytes of the array per
/// second, "disk" is null where the store is small or in memory, and "plugin" says that h5py needs hdf5plugin.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,

    /// The array, as a mount would name it
    path: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    let shown = args.path.display();
    let failed = |e: Error| CliError::object(format!("{shown}: {e}"));
    let refused = |why: &str| CliError::object(format!("{shown}: {why}"));
    let fs = args.store.open()?;
    let Node::File(file) = find(&fs, &args.path, true)? else {
        return Err(refused("is a directory; npyfs ls lists it"));
    };
    let content = file.open().map_err(failed)?;
    let header = npy_header(&*content).map_err(failed)?;
    let header = header.map_err(|_| refused("is no array"))?;
    if header.check_len(content.len()).is_err() {
        return Err(refused("is no array"));
    }
    let element = header.dtype.size() as u64;
    let chunk = sample_bytes(&header.shape, element);
    let elements = Slice::new(content, header.start, header.len);
    let waiting = Progress::waiting("measuring codecs");
    let sample = Sample::of(&elements, element, chunk).map_err(failed)?;
    let sample = sample
        .ok_or_else(|| refused("there are no elements to measure, or one is larger than 8 MiB"))?;
    let measured = sample.measure(&methods(true)).map_err(failed)?;
    let info = file.info().map_err(failed)?;
    let store = info["file"].as_str().map(Path::new);
    let store = store.and_then(|path| StoreFile::open(path).ok());
    let disk = store.and_then(|file| disk(&file));
    drop(waiting);
    report(args, &measured, chunk, disk)
}

/// Returns a codec as `--compress` takes it.
fn word(one: &Measured) -> String {
    one.method
        .map_or_else(|| "off".to_owned(), |method| method.to_string())
}

fn needs_plugin(one: &Measured) -> bool {
    word(one).starts_with("blosc")
}

fn report(
    args: &Args,
    measured: &[Measured],
    chunk: u64,
    disk: Option<f64>,
) -> Result<(), CliError> {
    let fastest = fastest(measured, disk).map(word).unwrap_or_default();
    let smallest = measured.iter().min_by_key(|one| one.stored).map(word);
    let smallest = smallest.unwrap_or_default();
    if args.json {
        let codecs: Vec<_> = measured
            .iter()
            .map(|one| {
                json!({
                    "codec": word(one), "stored": one.stored, "decode": one.speed(None).round(),
                    "read": one.speed(disk).round(), "plugin": needs_plugin(one),
                })
            })
            .collect();
        return print_json(&json!({
            "bytes": measured.first().map(|one| one.bytes), "chunk": chunk, "disk": disk.map(f64::round),
            "codecs": codecs, "fastest": fastest, "smallest": smallest,
        }));
    }
    let mut text = format!(
        "{:<14}{:>8}{:>8}{:>12}{:>12}\n",
        "CODEC", "STORED", "TIMES", "DECODE", "READ"
    );
    let speed = |bytes: f64| format!("{:.0} MB/s", bytes / 1e6);
    for one in measured {
        let times = one.bytes as f64 / one.stored.max(1) as f64;
        text.push_str(&format!(
            "{:<14}{:>8}{:>8}{:>12}{:>12}{}\n",
            word(one),
            rounded(one.stored),
            format!("{times:.1}"),
            speed(one.speed(None)),
            speed(one.speed(disk)),
            match needs_plugin(one) {
                true => "  h5py needs hdf5plugin",
                false => "",
            },
        ));
    }
    text.push_str(&format!(
        "fastest to read  {fastest}\nsmallest         {smallest}\n"
    ));
    print(text.as_bytes())
}
