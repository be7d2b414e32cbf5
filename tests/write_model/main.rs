//! The way of a write without a kernel: random operations of programs on a checkout of a plain store, against a model
//! of files. `ndarray-npy` says which bytes are a whole `.npy`. After each operation every name shows what the model
//! says; after the mount is dropped without a word, as in a crash, what was synced is there, and nothing that never
//! was.

mod model;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use npyfs::Store;
use npyfs::mount::fs::{AttrChange, Flags, Fs, Maker, ROOT_INO, Replace};
use npyfs_base::options::FsOptions;
use npyfs_core::checkout::history::checkouts::Checkouts;
use npyfs_core::store::format::Registry;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use model::{Model, State, is_whole};

/// Names that objects have, one of them in a group of the store, and names that none has.
const NAMES: [&str; 5] = ["a.npy", "b.npy", "g/e.npy", "s.tmp", "t.tmp"];

/// Elements of the arrays: none, few, and more than a scratch file keeps in memory.
const ELEMENTS: [usize; 4] = [0, 3, 500, 150_000];

const CASES: u32 = 64;

/// What programs do. Handles are counted round those that are open.
#[derive(Clone, Debug)]
enum Op {
    Open {
        name: usize,
        truncate: bool,
    },
    /// A part of an array's file, at its place: the header, either half of the payload, or all.
    Write {
        handle: usize,
        array: usize,
        part: usize,
    },
    /// To no byte, to half a header, or to the length of an array's file.
    SetLen {
        handle: usize,
        to: usize,
    },
    Close {
        handle: usize,
    },
    Sync {
        handle: usize,
    },
    SyncAll,
    Rename {
        from: usize,
        to: usize,
    },
    Unlink {
        name: usize,
    },
    Crash,
}

fn op() -> impl Strategy<Value = Op> {
    let name = || 0..NAMES.len();
    let handle = || 0_usize..4;
    prop_oneof![
        4 => (name(), any::<bool>()).prop_map(|(name, truncate)| Op::Open { name, truncate }),
        6 => (handle(), 0_usize..12, 0_usize..4)
            .prop_map(|(handle, array, part)| Op::Write { handle, array, part }),
        4 => (handle(), 0_usize..12).prop_map(|(handle, array)| Op::Write { handle, array, part: 3 }),
        1 => (handle(), 0_usize..6).prop_map(|(handle, to)| Op::SetLen { handle, to }),
        4 => handle().prop_map(|handle| Op::Close { handle }),
        2 => handle().prop_map(|handle| Op::Sync { handle }),
        1 => Just(Op::SyncAll),
        // Objects that become scratch files are tried through mounts.
        3 => (name(), name()).prop_map(|(from, to)| match (is_stored(from), is_stored(to)) {
            (true, false) => Op::Rename { from: to, to: from },
            _ => Op::Rename { from, to },
        }),
        1 => name().prop_map(|name| Op::Unlink { name }),
        1 => Just(Op::Crash),
    ]
}

fn is_stored(name: usize) -> bool {
    NAMES[name].ends_with(".npy")
}

/// The file that `np.save` writes for an array of one value.
fn npy(array: usize) -> Vec<u8> {
    let count = ELEMENTS[array % ELEMENTS.len()];
    let dict = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({count},), }}");
    let mut file = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    file.extend(format!("{dict:<117}\n").as_bytes());
    assert_eq!(file.len(), 128);
    file.extend((0..count).flat_map(|_| (array as f64 + 1.0).to_le_bytes()));
    file
}

/// A checkout that is written to, and the model beside it.
struct Pair {
    _dir: tempfile::TempDir,
    path: PathBuf,
    fs: Option<Fs>,
    model: Model,
    /// Open handles: the number of each, and its file in the model.
    handles: Vec<(u64, usize)>,
    thread: u32,
}

impl Pair {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.h5");
        let mut pair = Self {
            _dir: dir,
            path,
            fs: None,
            model: Model::default(),
            handles: Vec::new(),
            thread: u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap(),
        };
        let file = hdf5::File::create(&pair.path).unwrap();
        let group = file.create_group("g").unwrap();
        for (group, name, value) in [(file.as_group().unwrap(), "a", 1.0), (group, "e", 3.0)] {
            let data = [value; 3];
            group
                .new_dataset_builder()
                .with_data(&data)
                .create(name)
                .unwrap();
        }
        file.close().unwrap();
        // The program that writing workers are started from.
        let program = Path::new(env!("CARGO_BIN_EXE_npyfs"));
        Store::options().worker(program).open(&pair.path).unwrap();
        pair.model.stored = BTreeMap::from([(0, three(1.0)), (2, three(3.0))]);
        pair.model.confirm();
        pair.mount();
        pair
    }

    fn mount(&mut self) {
        self.fs = Some(opened(&self.path, |path, formats, checkouts| {
            Fs::open_checkout(
                path,
                npyfs_worker::h5_here(),
                FsOptions::default(),
                formats,
                checkouts,
                "c",
            )
        }));
    }

    fn fs(&self) -> &Fs {
        self.fs.as_ref().unwrap()
    }

    /// The directory of a name, and the name in it.
    fn place(&self, name: usize) -> (u64, &'static OsStr) {
        match NAMES[name].split_once('/') {
            None => (ROOT_INO, OsStr::new(NAMES[name])),
            Some((group, name)) => {
                let group = self.fs().lookup(ROOT_INO, OsStr::new(group), self.thread);
                (group.unwrap().ino, OsStr::new(name))
            }
        }
    }

    fn flags(&self, truncate: bool) -> Flags {
        Flags {
            thread: self.thread,
            truncate,
            ..Flags::default()
        }
    }

    fn apply(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let chosen = |handle: usize| match self.handles.len() {
            0 => None,
            open => Some((handle % open, self.handles[handle % open])),
        };
        match *op {
            Op::Open { name, truncate } if self.handles.len() < 4 => {
                let (parent, own) = self.place(name);
                let maker = Maker {
                    uid: 0,
                    gid: 0,
                    mode: 0o644,
                };
                let (_, opened) = self
                    .fs()
                    .create(parent, own, maker, self.flags(truncate))
                    .unwrap();
                let file = self.model.open(name, truncate);
                self.handles.push((opened.handle, file));
            }
            Op::Write {
                handle,
                array,
                part,
            } => {
                let Some((_, (handle, file))) = chosen(handle) else {
                    return Ok(());
                };
                let whole = npy(array);
                let middle = 128 + (whole.len() - 128) / 2;
                let range =
                    [0..128, 128..middle, middle..whole.len(), 0..whole.len()][part].clone();
                if range.is_empty() {
                    return Ok(());
                }
                let bytes = &whole[range.clone()];
                self.fs().write(handle, range.start as u64, bytes).unwrap();
                let file = &mut self.model.files[file];
                file.bytes.resize(file.bytes.len().max(range.end), 0);
                file.bytes[range].copy_from_slice(bytes);
                file.changed = true;
            }
            Op::SetLen { handle, to } => {
                let Some((_, (handle, file))) = chosen(handle) else {
                    return Ok(());
                };
                let len = [0, 60]
                    .get(to)
                    .copied()
                    .unwrap_or_else(|| npy(to - 2).len());
                let Some(name) = self.model.files[file].name else {
                    return Ok(());
                };
                let (parent, own) = self.place(name);
                let ino = self.fs().lookup(parent, own, self.thread).unwrap().ino;
                let size = Some(len as u64);
                let change = AttrChange {
                    size,
                    ..AttrChange::default()
                };
                self.fs()
                    .setattr(ino, Some(handle), change, self.thread)
                    .unwrap();
                let file = &mut self.model.files[file];
                file.bytes.resize(len, 0);
                file.changed = true;
            }
            Op::Close { handle } => {
                let Some((at, (handle, file))) = chosen(handle) else {
                    return Ok(());
                };
                let done = self.fs().flush(handle, self.thread);
                agrees(&done, self.model.flush(file))?;
                self.fs().release(handle);
                self.model.release(file);
                self.handles.swap_remove(at);
            }
            Op::Sync { handle } => {
                let Some((_, (handle, file))) = chosen(handle) else {
                    return Ok(());
                };
                let done = self.fs().fsync(handle);
                let state = self.model.commit(file);
                agrees(&done, state == State::Done)?;
                if state == State::Done {
                    self.model.confirm();
                }
            }
            Op::SyncAll => {
                self.fs().sync_dir().unwrap();
                self.model.confirm();
            }
            Op::Rename { from, to } if from != to => {
                let done = self
                    .fs()
                    .rename(self.place(from), self.place(to), Replace::Yes);
                if self.model.shown(from).is_none() {
                    prop_assert_eq!(done.unwrap_err().errno, libc::ENOENT);
                } else {
                    agrees(&done, self.model.rename(from, to))?;
                }
            }
            Op::Unlink { name } => {
                let (parent, own) = self.place(name);
                let done = self.fs().unlink(parent, own);
                if self.model.shown(name).is_none() {
                    prop_assert_eq!(done.unwrap_err().errno, libc::ENOENT);
                } else {
                    prop_assert!(done.is_ok(), "{:?}", done);
                    if let Some(file) = self.model.open.remove(&name) {
                        self.model.files[file].name = None;
                    }
                    if self.model.stored.contains_key(&name) {
                        self.model.store(name, None);
                    }
                }
            }
            Op::Crash => {
                self.fs = None;
                self.mount();
                self.handles.clear();
                let allowed = std::mem::take(&mut self.model).allowed;
                for (name, allowed) in allowed {
                    let shown = self.read(name);
                    let is_allowed = allowed.contains(&shown);
                    prop_assert!(
                        is_allowed,
                        "{} after a crash: {}",
                        NAMES[name],
                        brief(&shown)
                    );
                    if let Some(bytes) = shown {
                        self.model.stored.insert(name, bytes);
                    }
                }
                self.model.confirm();
            }
            _ => {}
        }
        self.compare()
    }

    /// What a program reads at a name.
    fn read(&self, name: usize) -> Option<Vec<u8>> {
        read(self.fs(), self.place(name), self.thread)
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        for (name, path) in NAMES.iter().enumerate() {
            let (shown, wanted) = (self.read(name), self.model.shown(name).cloned());
            let same = shown == wanted;
            prop_assert!(same, "{}: {}, not {}", path, brief(&shown), brief(&wanted));
        }
        Ok(())
    }
}

fn three(value: f64) -> Vec<u8> {
    let mut file = npy(1);
    file.truncate(128);
    file.extend([value; 3].iter().flat_map(|value| value.to_le_bytes()));
    file
}

fn opened<E: std::fmt::Debug>(
    path: &Path,
    open: impl FnOnce(&Path, &Registry, &Checkouts) -> Result<Fs, E>,
) -> Fs {
    let formats = npyfs_core::formats::registry();
    let checkouts = Checkouts::of_store(path, None, &formats);
    open(path, &formats, &checkouts).unwrap()
}

fn read(fs: &Fs, (parent, name): (u64, &OsStr), thread: u32) -> Option<Vec<u8>> {
    let attr = match fs.lookup(parent, name, thread) {
        Ok(attr) => attr,
        Err(e) => {
            assert_eq!(e.errno, libc::ENOENT, "{name:?}: {}", e.message);
            return None;
        }
    };
    let handle = fs.open_file(attr.ino, false, thread).unwrap().handle;
    let mut bytes = Vec::new();
    loop {
        let data = fs.read(handle, bytes.len() as u64, 1 << 20).unwrap();
        if data.as_ref().is_empty() {
            break;
        }
        bytes.extend(data.as_ref());
    }
    fs.release(handle);
    assert_eq!(attr.size, bytes.len() as u64, "{name:?}");
    Some(bytes)
}

/// An operation was done, or refused because the file is not whole.
fn agrees(done: &Result<(), npyfs::mount::fs::FsError>, wanted: bool) -> Result<(), TestCaseError> {
    let errno = done.as_ref().err().map(|e| e.errno);
    prop_assert_eq!(errno, (!wanted).then_some(libc::EINVAL), "{:?}", done);
    Ok(())
}

fn brief(bytes: &Option<Vec<u8>>) -> String {
    match bytes {
        None => "nothing".to_owned(),
        Some(bytes) => {
            let tail = &bytes[bytes.len().saturating_sub(8)..];
            format!("{} bytes that end in {tail:?}", bytes.len())
        }
    }
}

#[test]
fn names_show_what_programs_wrote_and_a_crash_takes_nothing_that_was_synced() {
    for array in 0..ELEMENTS.len() {
        assert!(is_whole(&npy(array)) && !is_whole(&npy(array)[1..]));
    }
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|n| n.parse().ok());
    let config = Config {
        cases: cases.unwrap_or(CASES),
        failure_persistence: None,
        max_shrink_iters: 400,
        ..Config::default()
    };
    let mut runner = TestRunner::new(config);
    let ran = runner.run(&proptest::collection::vec(op(), 1..40), |ops| {
        let mut pair = Pair::new();
        let before = std::fs::read(&pair.path).unwrap();
        pair.compare()?;
        for op in &ops {
            pair.apply(op)?;
        }
        prop_assert!(
            std::fs::read(&pair.path).unwrap() == before,
            "the store was written to"
        );
        Ok(())
    });
    if let Err(e) = ran {
        panic!("{e}");
    }
}
