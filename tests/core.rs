//! The core without a kernel: lookups, listings, reads and opens on the demonstration stores. Only what is stored
//! needs a worker process. That the bytes are NumPy's is proved in the Python tests.

use std::ffi::OsStr;

use npyfs::mount::fs::{FileKind, Flags, Fs, Maker, ROOT_INO, Replace};
use npyfs_base::options::FsOptions;
use npyfs_core::checkout::history::checkouts::Checkouts;
use npyfs_core::store::format::Registry;

fn stores() -> (tempfile::TempDir, Registry) {
    let dir = tempfile::tempdir().unwrap();
    let formats = npyfs_core::formats::registry();
    for name in ["plain", "daf", "arkouda"] {
        formats.named(name).demonstrate(dir.path(), None).unwrap();
    }
    (dir, formats)
}

fn demo() -> (tempfile::TempDir, Fs) {
    let (dir, formats) = stores();
    let fs = Fs::open(
        dir.path(),
        npyfs_worker::h5_here(),
        FsOptions::default(),
        &formats,
        &Checkouts::of_store(dir.path(), None, &formats),
    )
    .unwrap();
    (dir, fs)
}

/// The demonstration of plain HDF5, in a checkout.
fn writable() -> (tempfile::TempDir, Fs) {
    let (dir, formats) = stores();
    let store = dir.path().join("plain.h5");
    npyfs_hdf5::program::choose(env!("CARGO_BIN_EXE_npyfs").into());
    let fs = Fs::open_checkout(
        &store,
        npyfs_worker::h5_here(),
        FsOptions::default(),
        &formats,
        &Checkouts::of_store(&store, None, &formats),
        "work",
    )
    .unwrap();
    (dir, fs)
}

fn walk(fs: &Fs, path: &str) -> npyfs::mount::fs::Attr {
    path.split('/')
        .fold(fs.getattr(ROOT_INO).unwrap(), |at, name| {
            fs.lookup(at.ino, OsStr::new(name), 0).unwrap()
        })
}

#[test]
fn a_file_is_found_and_read_to_its_exact_end() {
    let (_dir, fs) = demo();
    let attr = walk(&fs, "plain.h5/images/stack.npy");
    assert_eq!(
        (attr.kind, attr.size),
        (FileKind::File, 128 + 64 * 128 * 128)
    );
    let handle = fs.open_file(attr.ino, false, 0).unwrap().handle;
    let head = fs.read(handle, 0, 128).unwrap();
    assert!(head.as_ref().starts_with(b"\x93NUMPY\x01\x00"));
    assert_eq!(
        fs.read(handle, attr.size - 10, 100).unwrap().as_ref().len(),
        10
    );
    assert!(fs.read(handle, attr.size, 100).unwrap().as_ref().is_empty());
    // Row 2 of image 1 begins with 2 + 1.
    let at = 128 + 128 * 128 + 2 * 128;
    assert_eq!(fs.read(handle, at, 2).unwrap().as_ref(), [3, 4]);
    fs.release(handle);
    assert_eq!(fs.read(handle, 0, 1).unwrap_err().errno, libc::EBADF);
}

#[test]
fn a_listing_continues_where_it_was_full() {
    let (_dir, fs) = demo();
    let root = walk(&fs, "cells.h5df").ino;
    let handle = fs.open_dir(root).unwrap();
    let (mut names, mut offset) = (Vec::new(), 0);
    loop {
        let before = names.len();
        fs.read_dir_plus(handle, offset, &mut |entry, _| {
            let room = names.len() < before + 3;
            if room {
                offset = entry.next;
                names.push(String::from_utf8(entry.name.clone()).unwrap());
            }
            room
        })
        .unwrap();
        if names.len() == before {
            break;
        }
    }
    assert_eq!(names[..2], [".", ".."]);
    assert!(names.contains(&"cell,gene#UMIs.npz".to_owned()));
    // By name, the axes last: a program that deletes in this order deletes what lies along them first.
    let mut sorted = names[2..].to_vec();
    sorted.sort_by_key(|name| (name.ends_with("#.npy"), name.clone()));
    sorted.dedup();
    assert_eq!(sorted, names[2..]);
}

#[test]
fn what_is_not_there_is_not_found() {
    let (dir, fs) = demo();
    let errno = |path: &str| fs.lookup(ROOT_INO, OsStr::new(path), 0).unwrap_err().errno;
    assert_eq!(errno("nothing"), libc::ENOENT);
    std::fs::write(dir.path().join("notes.txt"), "no store").unwrap();
    assert_eq!(errno("notes.txt"), libc::ENOENT);
}

/// The kernel looks a name up, opens what it found, and does both once more if the open is answered with ESTALE. The
/// file is renamed and replaced between the two, both times.
#[test]
fn a_name_that_changes_twice_while_it_is_opened_can_be_written() {
    let (_dir, fs) = writable();
    let images = walk(&fs, "images").ino;
    let [name, other, new] = ["a.npy", "moved.npy", "new.npy"].map(OsStr::new);
    let flags = |thread| Flags {
        thread,
        truncate: true,
        ..Flags::default()
    };
    let maker = Maker {
        uid: 0,
        gid: 0,
        mode: 0o644,
    };
    let rename = |from, to| {
        fs.rename((images, from), (images, to), Replace::Yes)
            .unwrap();
    };
    let (opener, another) = (1, 2);
    fs.create(images, name, maker, flags(another)).unwrap();
    let first = fs.lookup(images, name, opener).unwrap().ino;
    rename(name, other);
    fs.unlink(images, other).unwrap();
    fs.create(images, name, maker, flags(another)).unwrap();
    let stale = fs.open_to_write(first, flags(opener)).unwrap_err();
    assert_eq!(stale.errno, libc::ESTALE);
    // The kernel looks up twice, as the name may have to be created: first it is gone, then there is a new file.
    fs.unlink(images, name).unwrap();
    let gone = fs.lookup(images, name, opener).unwrap_err();
    assert_eq!(gone.errno, libc::ENOENT);
    fs.create(images, name, maker, flags(another)).unwrap();
    let second = fs.lookup(images, name, opener).unwrap().ino;
    fs.create(images, new, maker, flags(another)).unwrap();
    rename(new, name);
    // Another thread was told nothing, and looks up by itself.
    let stale = fs.open_to_write(second, flags(another)).unwrap_err();
    assert_eq!(stale.errno, libc::ESTALE);
    fs.open_to_write(second, flags(opener)).unwrap();
}
