//! `npyfs hash`: a hash of what an array is: type, shape, and elements in C order.
//!
//! It is the same for a copy, another layout, another order in memory, a mount, an export, and the `.npy` file that
//! NumPy saves, and another one as soon as an element, the shape or the type differs. What is hashed is written down in
//! the help, so that any program can compute it. Reads an array once where it lies in C order, in memory that does not
//! depend on its size.
//!
//! The newest hashes are kept for this user. Each is kept with the hash of what the bytes depend on, so that it is
//! found for that version of the array alone.

use std::ffi::OsStr;
use std::io::{IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blake2b_simd::{Params, State};
use rustix::fs::OFlags;
use serde::Serialize;

use crate::cli::output::{Name, print, print_json};
use crate::cli::place::{Place, places};
use crate::cli::progress::Progress;
use crate::cli::store::StoreArgs;
use crate::cli::{CliError, say};
use npyfs_base::error::Result;
use npyfs_base::npy::parse::Header;
use npyfs_base::printable;
use npyfs_core::tree::{Directory, Node, VirtualFile};
use npyfs_io::content::{Content, npy_header};
use npyfs_io::hex;
use npyfs_io::own_dir::{OwnDir, cache_home};
use npyfs_io::provenance::Provenance;

/// Bytes of the hash.
const BYTES: usize = 32;

/// Bytes that are read at a time.
const STEP: u64 = 1 << 20;

/// Bytes of an array in Fortran order that are brought into C order at a time.
const BLOCK: u64 = 64 << 20;

/// Print a hash of what arrays are, whatever file they lie in.
///
/// A line for each array: the hash, two blanks, the path, as sha256sum prints it. A directory, or a store without a
/// PATH, stands for all arrays in it. Copies, other layouts and compressions, mounts, exports and the .npy file that
/// NumPy saves have the same hash; it differs if the type, the shape or an element does.
///
/// The hash is BLAKE2b of 32 bytes over the type as NumPy's header of .npy files spells it (descr), a newline, the
/// lengths of the axes in decimal with commas between them, a newline, and the elements in C order. JSON is a list of
/// {"hash", "name"}.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,

    /// Arrays, or directories of such; * and ? are wildcards
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// The hash of an array. The fields of its JSON stand in the order of their names.
#[derive(Serialize)]
struct ArrayHash {
    hash: String,
    #[serde(flatten)]
    path: Name,
}

/// The hashes so far.
struct Hashes {
    json: bool,
    all: Vec<ArrayHash>,
    failures: Vec<CliError>,
}

/// Runs the command.
pub fn run(args: &Args) -> std::result::Result<(), CliError> {
    let mut hashes = Hashes {
        json: args.json,
        all: Vec::new(),
        failures: Vec::new(),
    };
    for place in places(&args.store, &args.paths)? {
        let top = place.on_disk().unwrap_or(&place.shown).to_owned();
        match place.node(true)? {
            Node::Directory(dir) => hashes.directory(&dir, &top)?,
            Node::File(file) => hashes.named(&place, &*file, &top)?,
            Node::Symlink(_) => {}
        }
    }
    if args.json {
        print_json(&hashes.all)?;
    }
    let last = hashes.failures.pop();
    hashes
        .failures
        .iter()
        .for_each(|failure| say(&failure.message));
    last.map_or(Ok(()), Err)
}

impl Hashes {
    /// Adds an array that was asked for.
    fn named(
        &mut self,
        place: &Place,
        file: &dyn VirtualFile,
        path: &Path,
    ) -> std::result::Result<(), CliError> {
        match of_file(file) {
            Ok(Some(hash)) => self.add(hash, path),
            Ok(None) => {
                self.failures
                    .push(place.failed(&"is no array: its bytes are what npyfs cat gives"));
                Ok(())
            }
            Err(e) => {
                self.failures.push(place.failed(&e));
                Ok(())
            }
        }
    }

    /// Adds all arrays in a directory.
    fn directory(
        &mut self,
        dir: &Arc<dyn Directory>,
        path: &Path,
    ) -> std::result::Result<(), CliError> {
        let failed = |path: &Path, e: &dyn std::fmt::Display| {
            CliError::object(format!("{}: {e}", path.display()))
        };
        let listing = match dir.list() {
            Ok(listing) => listing,
            Err(e) => {
                self.failures.push(failed(path, &e));
                return Ok(());
            }
        };
        for (name, node) in listing.iter() {
            let path = path.join(OsStr::from_bytes(&name));
            match &*node {
                Node::Directory(below) => self.directory(below, &path)?,
                Node::File(file) => match of_file(&**file) {
                    Ok(Some(hash)) => self.add(hash, &path)?,
                    // Archives are hashed by their members, which lie beside them.
                    Ok(None) => {}
                    Err(e) => self.failures.push(failed(&path, &e)),
                },
                Node::Symlink(_) => {}
            }
        }
        Ok(())
    }

    fn add(&mut self, hash: String, path: &Path) -> std::result::Result<(), CliError> {
        let path = path.as_os_str().as_bytes();
        if self.json {
            let path = Name::new(path);
            self.all.push(ArrayHash { hash, path });
            return Ok(());
        }
        print(format!("{hash}  {}\n", printable::name(path)).as_bytes())
    }
}

/// Returns the hash of an array; `None` if the file is none.
fn of_file(file: &dyn VirtualFile) -> Result<Option<String>> {
    let content = file.open()?;
    let Ok(header) = npy_header(&*content)? else {
        return Ok(None);
    };
    if header.check_len(content.len()).is_err() {
        return Ok(None);
    }
    let bar = (!std::io::stdout().is_terminal()).then(|| Progress::bytes("hashing", header.len));
    let advance = |bytes: u64| bar.iter().for_each(|bar| bar.advance(bytes));
    let hash = hash(&*content, &header, &advance)?;
    note_hash(&*content, &hash);
    Ok(Some(hash))
}

/// Returns the hash of an array.
fn hash(content: &dyn Content, header: &Header, advance: &dyn Fn(u64)) -> Result<String> {
    let mut state = Params::new().hash_length(BYTES).to_state();
    let shape: Vec<String> = header.shape.iter().map(u64::to_string).collect();
    state.update(format!("{}\n{}\n", header.dtype.descr(), shape.join(",")).as_bytes());
    // In one axis the two orders are one.
    let long = header.shape.iter().filter(|&&len| len > 1).count();
    match header.fortran_order && long > 1 && header.len > 0 {
        true => by_columns(content, header, &mut state, advance, BLOCK)?,
        false => in_turn(content, header.start, header.len, &mut |bytes| {
            state.update(bytes);
            advance(bytes.len() as u64);
        })?,
    }
    Ok(hex::encode(state.finalize().as_bytes()))
}

/// Reads bytes in turn, a part at a time.
fn in_turn(content: &dyn Content, start: u64, len: u64, take: &mut dyn FnMut(&[u8])) -> Result<()> {
    let mut buffer = vec![0; len.min(STEP) as usize];
    let mut done = 0;
    while done < len {
        let part = &mut buffer[..(len - done).min(STEP) as usize];
        content.read_at(start + done, part)?;
        take(part);
        done += part.len() as u64;
    }
    Ok(())
}

/// Hashes the elements of an array in Fortran order in C order: blocks of at most `most` bytes that follow each other
/// in C order, or of one element. In the file a block is a run of elements, one of several, for each entry of its last
/// axes.
fn by_columns(
    content: &dyn Content,
    header: &Header,
    state: &mut State,
    advance: &dyn Fn(u64),
    most: u64,
) -> Result<()> {
    let size = header.dtype.size() as u64;
    let shape = &header.shape;
    // The first axis whose entries are small enough to be taken together.
    let inner = |axis: usize| shape[axis + 1..].iter().product::<u64>() * size;
    let axis = (0..shape.len())
        .find(|&axis| inner(axis) <= most)
        .unwrap_or(shape.len() - 1);
    let entry = inner(axis);
    let step = (most / entry.max(1)).clamp(1, shape[axis]);
    let stride: u64 = shape[..axis].iter().product();
    let outer = shape[..axis].iter().product::<u64>();
    let below = &shape[axis + 1..];
    let columns = entry / size;
    // How far the runs of a block lie from each other. Where that is little, several are read at once.
    let period = stride * shape[axis];
    let mut buffer = vec![0; STEP as usize];
    for number in 0..outer {
        // The place of these entries of the outer axes, which are counted in C order, in Fortran order.
        let (mut left, mut offset) = (number, 0);
        let mut above = stride;
        for &len in shape[..axis].iter().rev() {
            above /= len;
            offset += left % len * above;
            left /= len;
        }
        let mut from = 0;
        while from < shape[axis] {
            let rows = step.min(shape[axis] - from);
            let mut block = vec![0; (rows * entry) as usize];
            let first = offset + stride * from;
            let together = (STEP / (period * size)).clamp(1, columns);
            for column in (0..columns).step_by(together as usize) {
                let last = together.min(columns - column) - 1;
                let span = (last * period + stride * (rows - 1) + 1) * size;
                let start = header.start + (first + period * column) * size;
                if last == 0 {
                    let place = c_place(column, below) * size;
                    let mut at = 0;
                    in_turn(content, start, span, &mut |bytes| {
                        pick(bytes, &mut at, (stride, size), |row, byte, part| {
                            put(&mut block, row * entry + place + byte, part);
                        });
                    })?;
                    continue;
                }
                let read = &mut buffer[..span as usize];
                content.read_at(start, read)?;
                for next in 0..=last {
                    let place = c_place(column + next, below) * size;
                    for row in 0..rows {
                        let at = ((next * period + row * stride) * size) as usize;
                        let element = &read[at..at + size as usize];
                        put(&mut block, row * entry + place, element);
                    }
                }
            }
            state.update(&block);
            advance(block.len() as u64);
            from += rows;
        }
    }
    Ok(())
}

fn put(block: &mut [u8], at: u64, part: &[u8]) {
    let at = at as usize;
    block[at..at + part.len()].copy_from_slice(part);
}

/// Returns the place in C order of an entry of these axes that is counted in Fortran order.
fn c_place(number: u64, shape: &[u64]) -> u64 {
    let (mut left, mut place) = (number, 0);
    let mut stride: u64 = shape.iter().product();
    for &len in shape {
        stride /= len;
        place += left % len * stride;
        left /= len;
    }
    place
}

/// Takes one element of every `stride` out of bytes that follow those before `at`: gives its number, the byte of it
/// that a part begins with, and the part.
fn pick(
    bytes: &[u8],
    at: &mut u64,
    (stride, size): (u64, u64),
    mut take: impl FnMut(u64, u64, &[u8]),
) {
    let all = stride * size;
    let mut done = 0;
    while done < bytes.len() {
        let within = *at % all;
        let left = bytes.len() - done;
        let len = match within < size {
            true => {
                let len = left.min((size - within) as usize);
                take(*at / all, within, &bytes[done..done + len]);
                len
            }
            false => left.min((all - within) as usize),
        };
        done += len;
        *at += len as u64;
    }
}

/// The file of the newest hashes that were computed, a line each, and the file of older ones.
const KNOWN: &str = "known";
const KNOWN_OLD: &str = "known.old";

/// The size in bytes at which a file is full.
const FULL: u64 = 1 << 20;

/// Returns the hash of what the bytes of a content depend on; `None` if they may change without it.
fn key(content: &dyn Content) -> Option<String> {
    let mut provenance = Provenance::new();
    let is_told = content.tell_provenance(&mut provenance) && provenance.is_settled();
    is_told.then(|| provenance.key())
}

/// Notes the hash of a content. What cannot be noted is computed again.
fn note_hash(content: &dyn Content, hash: &str) {
    let Some((key, home)) = key(content).zip(cache_home()) else {
        return;
    };
    let written = || -> std::io::Result<()> {
        let dir = OwnDir::make(&home.join("hashes"))?;
        let open = || dir.file(KNOWN, OFlags::CREATE | OFlags::APPEND);
        let mut file = open()?;
        if file.metadata()?.len() >= FULL {
            dir.rename(KNOWN, KNOWN_OLD)?;
            file = open()?;
        }
        file.write_all(format!("{key} {hash}\n").as_bytes())
    };
    let _ = written();
}

/// Returns the hash of a content, if it is known.
pub fn known_hash(content: &dyn Content) -> Option<String> {
    let dir = OwnDir::existing(&cache_home()?.join("hashes")).ok()?;
    let key = key(content)?;
    let found = |name: &str| {
        let mut text = String::new();
        let file = dir.file(name, OFlags::empty()).ok()?;
        file.take(2 * FULL).read_to_string(&mut text).ok()?;
        let mut hashes = text.lines().filter_map(|line| line.split_once(' '));
        let (_, hash) = hashes.find(|(known, _)| *known == key)?;
        let is_hash = hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit());
        is_hash.then(|| hash.to_owned())
    };
    found(KNOWN).or_else(|| found(KNOWN_OLD))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use npyfs_base::npy::dtype::DType;
    use npyfs_io::content::InMemory;

    /// Returns the places in C order of the elements of an array in Fortran order.
    fn places(shape: &[u64]) -> Vec<u64> {
        let count: u64 = shape.iter().product();
        (0..count).map(|number| c_place(number, shape)).collect()
    }

    proptest! {
        #[test]
        fn the_order_in_the_file_makes_no_difference(
            shape in proptest::collection::vec(1..6_u64, 1..5),
            most in 1..200_u64,
        ) {
            let elements: Vec<u8> = places(&shape).iter().flat_map(|&place| (place as u32).to_le_bytes()).collect();
            let len = elements.len() as u64;
            let header = Header { dtype: DType::int(4), shape, fortran_order: true, start: 0, len };
            let mut state = Params::new().hash_length(BYTES).to_state();
            by_columns(&InMemory(elements), &header, &mut state, &|_| {}, most).unwrap();
            let in_c: Vec<u8> = (0..(len / 4) as u32).flat_map(u32::to_le_bytes).collect();
            let wanted = Params::new().hash_length(BYTES).hash(&in_c);
            prop_assert_eq!(state.finalize(), wanted);
        }
    }
}
