//! `npyfs pack`: the metadata of a store in one small file, so that a mount of it elsewhere needs few requests.

use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cli::progress::Progress;
use crate::cli::{CliError, figures, options, say, store};
use npyfs_core::dataset::context::Context;
use npyfs_core::formats;
use npyfs_core::tree::{Directory, Node};
use npyfs_hdf5::{H5, Reach};
use npyfs_io::remote::{Address, PACK_SUFFIX, RemoteObject};

/// Make a pack of a store: what the first look at it reads, in one small file.
///
/// Put beside the store as STORE.npyfs-pack, in the bucket or on the web server, it saves every mount most of its first
/// requests. Of a file of this machine it can be made before the file is uploaded. It is of one version of the store.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Options for the address as for `npyfs mount`: endpoint, region, profile, header ...
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,

    /// The address of an HDF5 file, or its path
    store: PathBuf,

    /// The file to write; by default STORE.npyfs-pack, in the directory of a path, here for an address
    out: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    if let Some(out) = &args.out {
        store::refuse_to_write_at(out)?;
    }
    let options = args.options.iter().map(String::as_str);
    let mut options = options::parse(options).map_err(CliError::usage)?.fs;
    let settings = Arc::make_mut(&mut options.remote);
    settings.packs = false;
    let refused = |e: &dyn std::fmt::Display| CliError::store(e.to_string());
    let progress = Progress::waiting("looking at the store");
    let (object, out) = match Address::parse(&args.store) {
        Some(address) => {
            let address = address.map_err(CliError::usage)?;
            if address.is_prefix() {
                let why = "a pack is of one file: name one below it";
                return Err(CliError::usage(format!("{address}: {why}")));
            }
            let object = RemoteObject::open(&address, &options.remote).map_err(|e| refused(&e))?;
            let shown = address.to_string();
            let name = shown.rsplit('/').next().unwrap_or_default();
            (object, PathBuf::from(format!("{name}{PACK_SUFFIX}")))
        }
        None => {
            // A local file needs no disk cache.
            settings.disk_cache = 0;
            let given = Address::local(&args.store).unwrap_or_else(|| args.store.clone());
            let about = |e: io::Error| refused(&format!("{}: {e}", given.display()));
            let path = given.canonicalize().map_err(about)?;
            let object = RemoteObject::open_file(&path, &options.remote);
            let mut name = given.clone().into_os_string();
            name.push(PACK_SUFFIX);
            (object.map_err(|e| refused(&e))?, name.into())
        }
    };
    let h5 = H5::workers(Reach::Stores(Vec::new()));
    let context = Arc::new(Context::new(h5, options));
    let root = formats::remote::open_object(&object, &context, &formats::registry());
    visit_all(&root.map_err(|e| refused(&e))?);
    let pack = object.pack().map_err(|e| refused(&e))?;
    drop(progress);
    let out = args.out.as_ref().unwrap_or(&out);
    write(out, &pack).map_err(|e| CliError::object(format!("{}: {e}", out.display())))?;
    let size = figures::bytes(pack.len() as u64);
    say(&match Address::parse(&args.store) {
        Some(_) => format!(
            "{}: {size}; put it beside the store, as {}{PACK_SUFFIX}",
            out.display(),
            object.address()
        ),
        None => format!(
            "{}: {size}; put it beside the store after that was uploaded, under the store's name with {PACK_SUFFIX}",
            out.display()
        ),
    });
    Ok(())
}

/// Looks into every directory.
fn visit_all(dir: &Arc<dyn Directory>) {
    // A directory that cannot be read is not in the pack.
    let Ok(listing) = dir.list() else { return };
    for (_, node) in listing.iter() {
        if let Node::Directory(below) = &*node {
            visit_all(below);
        }
    }
}

/// Writes a file that appears as a whole, or not at all.
fn write(out: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = out.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = dir.unwrap_or(Path::new("."));
    // Said here, the error names no temporary file.
    dir.metadata()?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(bytes)?;
    file.as_file()
        .set_permissions(Permissions::from_mode(0o644))?;
    file.persist(out)?;
    Ok(())
}
