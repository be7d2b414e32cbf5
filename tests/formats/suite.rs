//! What holds for stores of any format: reading, writing, names, conflicts, deletion and damage, without a kernel.
//!
//! That the bytes are right is judged elsewhere, by NumPy and by the libraries whose formats these are.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use npyfs::mount::fs::{Attr, Flags, Fs, FsError, Maker, ROOT_INO};
use npyfs_base::options::{External, FsOptions};
use npyfs_core::checkout::history::checkouts::Checkouts;
use npyfs_core::checkout::records::fit::Misfit;
use npyfs_core::checkout::verbs::commit::{Candidate, CommitOptions, CommitRefusal, Outcome};
use npyfs_core::store::format::{Depth, Inspection, Registry};
use npyfs_core::tree::{Directory, Node};
use npyfs_hdf5::{H5, Reach};
use npyfs_io::storage::Disk;

/// A format, and a store of it.
pub struct Sample {
    pub formats: Registry,
    /// Makes the store in a directory.
    pub make: fn(&Path) -> PathBuf,
    /// Arrays of the store, and under which new names they can be stored, too; or cannot, if stores of the format are
    /// only read.
    pub copies: &'static [(&'static str, &'static str)],
    /// What is written goes into layers, which are committed and may conflict; else the store keeps it itself.
    pub has_layers: bool,
}

/// Files that are deleted in turn, at most.
const MOST_DELETED: usize = 32;

type Errno<T> = Result<T, FsError>;

/// A store in a directory of its own.
struct Store<'a> {
    sample: &'a Sample,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Sample {
    fn store(&self) -> Store<'_> {
        let dir = tempfile::tempdir().unwrap();
        let path = (self.make)(dir.path());
        Store {
            sample: self,
            path,
            _dir: dir,
        }
    }

    /// Runs everything.
    pub fn check(&self) {
        self.reads_alike();
        if self.is_only_read() {
            self.refuses_what_is_written();
            return self.survives_damage();
        }
        self.keeps_what_is_written();
        self.shows_names_or_refuses_them();
        if self.has_layers {
            self.tells_conflicts();
        }
        self.survives_deletions();
        self.survives_damage();
    }

    fn is_only_read(&self) -> bool {
        let store = self.store();
        let fs = store.open().unwrap();
        self.formats
            .format_of(&**fs.root())
            .unwrap()
            .writing()
            .is_none()
    }

    fn refuses_what_is_written(&self) {
        let store = self.store();
        let all = |fs: &Fs| {
            let mut files = Vec::new();
            walk(fs.root(), "", &mut |path, node| {
                if let Ok(Node::File(_)) = node {
                    files.push((path.to_owned(), read(fs, path).unwrap()));
                }
            });
            files
        };
        let before = all(&store.open().unwrap());
        let fs = store.checkout("c").unwrap();
        for (from, to) in self.copies {
            let bytes = read(&fs, from).unwrap();
            let (above, last) = split(&fs, from);
            let refused = [
                write(&fs, to, &bytes).map_err(|e| (e.errno, e.message)),
                write(&fs, from, &bytes).map_err(|e| (e.errno, e.message)),
                fs.unlink(above.ino, last).map_err(|e| (e.errno, e.message)),
                fs.make_directory(above.ino, OsStr::new("new"))
                    .map(drop)
                    .map_err(|e| (e.errno, e.message)),
            ];
            for done in refused {
                let (errno, why) = done.unwrap_err();
                assert_eq!(errno, libc::EROFS, "{from}: {why}");
                assert!(!why.is_empty(), "{from}");
            }
        }
        let _ = fs.close();
        drop(fs);
        assert_eq!(all(&store.checkout("c").unwrap()), before);
        assert_eq!(all(&store.open().unwrap()), before);
    }

    fn reads_alike(&self) {
        let store = self.store();
        let fs = store.open().unwrap();
        let mut files = Vec::new();
        walk(fs.root(), "", &mut |path, node| {
            if let Ok(Node::File(file)) = node {
                let content = file.open().unwrap();
                assert_eq!(file.size().unwrap(), content.len(), "{path}");
                let mut whole = vec![0; content.len() as usize];
                content.read_at(0, &mut whole).unwrap();
                for (from, len) in [
                    (0, 1),
                    (0, 127),
                    (128, 1),
                    (129, 4000),
                    (whole.len() as u64 / 2, 70_000),
                ] {
                    let to = (from + len).min(whole.len() as u64);
                    if from < to {
                        let mut part = vec![0; (to - from) as usize];
                        content.read_at(from, &mut part).unwrap();
                        assert_eq!(
                            part,
                            whole[from as usize..to as usize],
                            "{path} from {from}"
                        );
                    }
                }
                files.push((path.to_owned(), whole));
            }
        });
        assert!(files.len() >= self.copies.len(), "{} files", files.len());
        for (path, bytes) in &files {
            assert_eq!(&read(&fs, path).unwrap(), bytes, "{path}");
        }
    }

    fn keeps_what_is_written(&self) {
        let store = self.store();
        let before = read_all(
            &store.open().unwrap(),
            self.copies.iter().map(|(from, _)| *from),
        );
        let fs = store.checkout("c").unwrap();
        for ((_, to), bytes) in self.copies.iter().zip(&before) {
            write(&fs, to, bytes).unwrap_or_else(|e| panic!("{to}: {}", e.message));
        }
        fs.close().unwrap();
        drop(fs);
        let again = store.checkout("c").unwrap();
        assert_eq!(
            read_all(&again, self.copies.iter().map(|(_, to)| *to)),
            before
        );
        assert_eq!(
            read_all(&again, self.copies.iter().map(|(from, _)| *from)),
            before
        );
        assert!(
            store.broken(&again).is_empty(),
            "{:?}",
            store.broken(&again)
        );
        drop(again);
        if self.has_layers {
            store.commit("c").unwrap();
        }
        assert_eq!(
            read_all(
                &store.open().unwrap(),
                self.copies.iter().map(|(_, to)| *to)
            ),
            before
        );
    }

    fn shows_names_or_refuses_them(&self) {
        let store = self.store();
        let (from, to) = self.copies[0];
        let bytes = read(&store.open().unwrap(), from).unwrap();
        let fs = store.checkout("c").unwrap();
        let above = to.rsplit_once('/').map_or("", |(above, _)| above);
        let stem = to.rsplit('/').next().unwrap().trim_end_matches(".npy");
        let mut stored = Vec::new();
        for end in [
            ".npy",
            "%41.npy",
            ".npy.npy",
            "\u{e9}.npy",
            "\t.npy",
            "\u{1b}[1m.npy",
            "..npy",
            " .npy",
            "%.npy",
        ] {
            let path = format!("{above}/{stem}{end}");
            match write(&fs, &path, &bytes) {
                Ok(()) => stored.push(path),
                Err(e) => assert_eq!(e.errno, libc::EINVAL, "{path:?}: {}", e.message),
            }
        }
        assert!(!stored.is_empty());
        fs.close().unwrap();
        drop(fs);
        let fs = store.checkout("c").unwrap();
        for path in stored {
            assert_eq!(read(&fs, &path).unwrap(), bytes, "{path:?}");
        }
    }

    fn tells_conflicts(&self) {
        let store = self.store();
        let (from, to) = self.copies[0];
        let bytes = read(&store.open().unwrap(), from).unwrap();
        for name in ["a", "b"] {
            let fs = store.checkout(name).unwrap();
            write(&fs, to, &bytes).unwrap();
            fs.close().unwrap();
        }
        store.commit("a").unwrap();
        assert!(matches!(store.commit("b"), Err(CommitRefusal::Conflicts(all)) if all.len() == 1));
    }

    /// Deletes files in turn, each in a checkout of its own: what was not refused leaves a store that keeps its rules.
    fn survives_deletions(&self) {
        let store = self.store();
        let mut paths = Vec::new();
        walk(store.open().unwrap().root(), "", &mut |path, node| {
            if let Ok(Node::File(_)) = node {
                paths.push(path.to_owned());
            }
        });
        let each = paths.len().div_ceil(MOST_DELETED).max(1);
        for (number, path) in paths.iter().enumerate().step_by(each) {
            let name = format!("c{number}");
            let fs = store.checkout(&name).unwrap();
            let (above, last) = split(&fs, path);
            let done = fs.unlink(above.ino, last);
            let _ = fs.close();
            drop(fs);
            let fs = store.checkout(&name).unwrap();
            assert!(
                store.broken(&fs).is_empty(),
                "{path}: {:?}",
                store.broken(&fs)
            );
            match done {
                Ok(()) => assert_eq!(read(&fs, path).unwrap_err().errno, libc::ENOENT, "{path}"),
                Err(e) => assert!(read(&fs, path).is_ok(), "{path}: {}", e.message),
            }
        }
    }

    /// Whatever bytes of its files are flipped, each answer is an answer or an error.
    fn survives_damage(&self) {
        let store = self.store();
        let mut files = Vec::new();
        files_below(&store.path, &mut files);
        let mut noise = 0x9e37_79b9_7f4a_7c15_u64;
        for file in files.iter().cycle().take(files.len().max(8)) {
            let whole = std::fs::read(file).unwrap();
            let mut bytes = whole.clone();
            // Behind the signature; most of what a file is made of stands near its beginning.
            for within in [4096, 1 << 16, bytes.len()] {
                noise ^= noise << 13;
                noise ^= noise >> 7;
                noise ^= noise << 17;
                let at = 8 + (noise as usize) % (within.min(bytes.len()) - 8);
                bytes[at] ^= 1 << (noise >> 61);
            }
            std::fs::write(file, bytes).unwrap();
            if let Ok(fs) = store.open() {
                look_at_all(&fs);
            }
            std::fs::write(file, whole).unwrap();
        }
    }
}

/// Reads the beginning of each file.
fn look_at_all(fs: &Fs) {
    walk(fs.root(), "", &mut |path, node| match node {
        Ok(Node::File(file)) => {
            if let Ok(content) = file.open() {
                let mut part = vec![0; content.len().min(1 << 20) as usize];
                let done = content.read_at(0, &mut part);
                assert!(done.is_ok_or_told(), "{path}");
            }
        }
        Ok(_) => {}
        Err(why) => assert!(!why.is_empty(), "{path}"),
    });
}

/// Collects a file, or the files that can be damaged in a directory.
fn files_below(path: &Path, files: &mut Vec<PathBuf>) {
    if path.is_file() {
        // What is shorter than a signature has nothing to damage behind it.
        if path.metadata().unwrap().len() > 8 {
            files.push(path.to_owned());
        }
        return;
    }
    let mut below: Vec<_> = std::fs::read_dir(path)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    below.sort();
    below.iter().for_each(|path| files_below(path, files));
}

trait Told {
    fn is_ok_or_told(&self) -> bool;
}

impl<T> Told for npyfs_base::error::Result<T> {
    fn is_ok_or_told(&self) -> bool {
        self.as_ref().err().is_none_or(|e| !e.message.is_empty())
    }
}

/// The store after a commit, which nothing is said about: what breaks its rules is looked for in a mount.
struct Unchecked;

impl Outcome for Unchecked {
    fn misfits(&self) -> Vec<Misfit> {
        Vec::new()
    }

    fn broken(&self) -> npyfs_base::error::Result<Vec<String>> {
        Ok(Vec::new())
    }
}

impl Store<'_> {
    fn h5(&self, checkouts: &Checkouts) -> H5 {
        H5::workers(Reach::of_store(&self.path, External::Deny).with(checkouts.dir()))
    }

    fn checkouts(&self) -> Checkouts {
        Checkouts::of_store(&self.path, None, &self.sample.formats)
    }

    fn open(&self) -> Result<Fs, npyfs::mount::fs::OpenError> {
        let checkouts = self.checkouts();
        let (h5, options) = (self.h5(&checkouts), FsOptions::default());
        Fs::open(&self.path, h5, options, &self.sample.formats, &checkouts)
    }

    fn checkout(&self, name: &str) -> Result<Fs, npyfs::mount::fs::OpenError> {
        let checkouts = self.checkouts();
        checkouts.make(&Disk).unwrap();
        let (h5, options) = (self.h5(&checkouts), FsOptions::default());
        Fs::open_checkout(
            &self.path,
            h5,
            options,
            &self.sample.formats,
            &checkouts,
            name,
        )
    }

    fn commit(&self, name: &str) -> Result<(), CommitRefusal> {
        let wish = CommitOptions {
            message: "conformance".to_owned(),
            ..CommitOptions::default()
        };
        let lay = |_| Ok(Box::new(Unchecked) as Box<dyn Outcome>);
        let checkouts = self.checkouts();
        let found = Candidate::find(&checkouts, name, Arc::new(Disk))?;
        found.commit(&wish, &|_, _| false, &lay).map(drop)
    }

    /// What breaks the rules of the format in any directory.
    fn broken(&self, fs: &Fs) -> Vec<String> {
        let mut broken = Vec::new();
        let mut look = |dir: &dyn Directory| {
            let format = self.sample.formats.format_of(dir).unwrap();
            let inspection = Inspection {
                sep: b'#',
                changed: None,
                depth: Depth::Elements,
            };
            broken.extend(format.rules().broken(dir, &inspection).unwrap());
        };
        look(&**fs.root());
        walk(fs.root(), "", &mut |path, node| match node {
            Ok(Node::Directory(dir)) if !dir.is_object() => look(&**dir),
            Ok(_) => {}
            Err(why) => panic!("{path}: {why}"),
        });
        broken
    }
}

/// Shows all nodes below a directory, or why there are none.
fn walk(dir: &Arc<dyn Directory>, path: &str, see: &mut dyn FnMut(&str, Result<&Node, &str>)) {
    let listing = match dir.list() {
        Ok(listing) => listing,
        Err(e) => return see(path, Err(&e.message)),
    };
    for (name, node) in listing.iter() {
        let path = format!("{path}/{}", String::from_utf8_lossy(&name));
        see(&path, Ok(&node));
        if let Node::Directory(below) = &*node {
            walk(below, &path, see);
        }
    }
}

/// The directory of a path, and its last name.
fn split<'a>(fs: &Fs, path: &'a str) -> (Attr, &'a OsStr) {
    let (above, last) = path.rsplit_once('/').unwrap_or(("", path));
    (find(fs, above).unwrap(), OsStr::new(last))
}

fn find(fs: &Fs, path: &str) -> Errno<Attr> {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.fold(fs.getattr(ROOT_INO), |at, name| {
        fs.lookup(at?.ino, OsStr::from_bytes(name.as_bytes()), 0)
    })
}

fn read(fs: &Fs, path: &str) -> Errno<Vec<u8>> {
    let attr = find(fs, path)?;
    let handle = fs.open_file(attr.ino, false, 0)?.handle;
    let mut bytes = Vec::new();
    while let part = fs.read(handle, bytes.len() as u64, 1 << 17)?
        && !part.as_ref().is_empty()
    {
        bytes.extend_from_slice(part.as_ref());
    }
    fs.release(handle);
    Ok(bytes)
}

fn read_all<'a>(fs: &Fs, paths: impl Iterator<Item = &'a str>) -> Vec<Vec<u8>> {
    paths
        .map(|path| read(fs, path).unwrap_or_else(|e| panic!("{path}: {}", e.message)))
        .collect()
}

/// Writes a file as `cp` does.
fn write(fs: &Fs, path: &str, bytes: &[u8]) -> Errno<()> {
    let (above, last) = split(fs, path);
    let maker = Maker {
        uid: 0,
        gid: 0,
        mode: 0o644,
    };
    let (_, opened) = fs.create(above.ino, last, maker, Flags::default())?;
    let done = fs
        .write(opened.handle, 0, bytes)
        .and_then(|()| fs.flush(opened.handle, 0));
    fs.release(opened.handle);
    done
}
