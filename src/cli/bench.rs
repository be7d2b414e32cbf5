//! `npyfs bench`: measures which compression of an array is the fastest to read on this machine, and which the
//! smallest.

use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use super::CliError;
use super::figures::rounded;
use super::output::Report;
use super::place::places;
use super::progress::Progress;
use super::store::StoreArgs;
use npyfs_base::error::Error;
use npyfs_core::checkout::export::layout::sample_bytes;
use npyfs_core::checkout::export::measure::{Measured, Sample, disk, fastest, methods};
use npyfs_core::tree::Node;
use npyfs_io::content::{Slice, npy_header};
use npyfs_io::file::StoreFile;

/// Measure which codec makes an array the fastest to read on this machine, and which the smallest.
///
/// Up to 8 MiB of the array, from all over it, are encoded with every codec that `npyfs checkout export` writes, and
/// decoded by npyfs. READ is the speed of fetching a chunk from the store's disk and decoding it; DECODE is that from
/// memory. JSON is {"bytes", "chunk", "disk", "codecs": [{"codec", "stored", "decode", "read", "plugin"}], "fastest",
/// "smallest"}; speeds are bytes of the array per second, "disk" is null where the store is small or in memory, and
/// "plugin" says that h5py needs hdf5plugin.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,

    /// The array, as a mount would name it
    path: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    let places = places(&args.store, args.path.as_slice())?;
    let [place] = &places[..] else {
        return Err(CliError::usage("bench measures one array"));
    };
    let failed = |e: Error| place.failed(&e);
    let refused = |why: &str| place.failed(&why);
    let Node::File(file) = place.node(true)? else {
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
    let sample = Sample::take(&elements, element, chunk).map_err(failed)?;
    let sample = sample
        .ok_or_else(|| refused("there are no elements to measure, or one is larger than 8 MiB"))?;
    let measured = sample.measure(&methods(true)).map_err(failed)?;
    let info = file.info().map_err(failed)?;
    let store = info["file"].as_str().map(Path::new);
    let store = store.and_then(|path| StoreFile::open(path).ok());
    let disk = store.and_then(|file| disk(&file));
    drop(waiting);
    BenchReport::new(&measured, chunk, disk).print(args.json)
}

/// The speed and the size of a codec. The fields of the JSON stand in the order of their names.
#[derive(Serialize)]
struct CodecReport {
    codec: String,
    /// Bytes of the array that are decoded in a second.
    #[serde(serialize_with = "rounded_speed")]
    decode: f64,
    plugin: bool,
    /// Bytes of the array that are fetched and decoded in a second.
    #[serde(serialize_with = "rounded_speed")]
    read: f64,
    stored: u64,
    /// How many times smaller the array is.
    #[serde(skip)]
    times: f64,
}

/// The measurements.
#[derive(Serialize)]
struct BenchReport {
    bytes: Option<u64>,
    chunk: u64,
    codecs: Vec<CodecReport>,
    disk: Option<f64>,
    fastest: String,
    smallest: String,
}

fn rounded_speed<S: Serializer>(speed: &f64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(speed.round())
}

/// Returns a codec as `--compress` takes it.
fn word(one: &Measured) -> String {
    one.method
        .map_or_else(|| "off".to_owned(), |method| method.to_string())
}

impl CodecReport {
    fn new(one: &Measured, disk: Option<f64>) -> Self {
        let codec = word(one);
        Self {
            plugin: codec.starts_with("blosc"),
            codec,
            decode: one.speed(None),
            read: one.speed(disk),
            stored: one.stored,
            times: one.bytes as f64 / one.stored.max(1) as f64,
        }
    }
}

impl BenchReport {
    /// `chunk`: bytes of a chunk; `disk`: bytes that the disk reads in a second, if that was measured.
    fn new(measured: &[Measured], chunk: u64, disk: Option<f64>) -> Self {
        let smallest = measured.iter().min_by_key(|one| one.stored);
        let codecs = measured.iter().map(|one| CodecReport::new(one, disk));
        Self {
            bytes: measured.first().map(|one| one.bytes),
            chunk,
            codecs: codecs.collect(),
            disk: disk.map(f64::round),
            fastest: fastest(measured, disk).map(word).unwrap_or_default(),
            smallest: smallest.map(word).unwrap_or_default(),
        }
    }
}

impl Report for BenchReport {
    fn text(&self) -> String {
        let mut text = format!(
            "{:<14}{:>8}{:>8}{:>12}{:>12}\n",
            "CODEC", "STORED", "TIMES", "DECODE", "READ"
        );
        let speed = |bytes: f64| format!("{:.0} MB/s", bytes / 1e6);
        for one in &self.codecs {
            let plugin = match one.plugin {
                true => "  h5py needs hdf5plugin",
                false => "",
            };
            text += &format!(
                "{:<14}{:>8}{:>8}{:>12}{:>12}{plugin}\n",
                one.codec,
                rounded(one.stored),
                format!("{:.1}", one.times),
                speed(one.decode),
                speed(one.read),
            );
        }
        let Self {
            fastest, smallest, ..
        } = self;
        text + &format!("fastest to read  {fastest}\nsmallest         {smallest}\n")
    }
}
