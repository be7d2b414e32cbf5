//! Tests of `layer`.

use std::path::Path;

use std::time::UNIX_EPOCH;

use super::*;
use crate::store::encode::store::{dataset, saved};
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::{DataSource, GroupMember, Resolved};
use npyfs_io::file::StoreFile;
use npyfs_io::storage::Disk;
use npyfs_io::storage::faulty::Faulty;

fn open(dir: &Path, storage: impl Storage + 'static) -> Result<Layer> {
    Layer::open(
        &Dir::own(dir),
        Arc::new(storage),
        npyfs_worker::creator_here(),
    )
}

/// Stores an `.npy` file as the object `group/data`.
fn put_file(layer: &Layer, path: &str, inside: &str, file: &[u8]) -> Result<Arc<StoredObject>> {
    let new = dataset(inside, file)?;
    layer.put(path, &new, UNIX_EPOCH)
}

/// Stores an array of 4-byte integers.
fn put(layer: &Layer, path: &str, values: &[i32]) -> Result<Arc<StoredObject>> {
    let payload: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let file = saved(&DType::int(4), &[values.len() as u64], &payload);
    put_file(layer, path, "group/data", &file)
}

/// Returns the integers that libhdf5 reads from the file of an object.
fn values(layer: &Layer, stored: &StoredObject) -> Vec<i32> {
    let file = StoreFile::open(&layer.path(stored)).unwrap();
    let h5 = npyfs_worker::h5_here();
    let root = h5.root(&file).unwrap();
    let found = h5.resolve(&file, root, b"group/data").unwrap();
    let Resolved::Member(GroupMember::Dataset(dataset)) = found else {
        panic!("{found:?}");
    };
    let map = h5.map(&file, dataset.addr).unwrap();
    if map.shape == [0] {
        return Vec::new();
    }
    let DataSource::Contiguous { addr } = map.source else {
        panic!("{:?}", map.source);
    };
    let mut bytes = vec![0; 4 * usize::try_from(map.shape[0]).unwrap()];
    file.read_exact_at(&mut bytes, addr).unwrap();
    bytes
        .chunks(4)
        .map(|b| i32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

/// Returns the content of the layer; each object is read back.
fn content(layer: &Layer) -> BTreeMap<String, Option<Vec<i32>>> {
    let read = |stored: Arc<StoredObject>| values(layer, &stored);
    let entries = layer.entries().into_iter();
    entries.map(|(path, s)| (path, s.map(read))).collect()
}

#[test]
fn what_is_stored_is_there_again_and_remains_are_swept() {
    let dir = tempfile::tempdir().unwrap();
    let layer = open(dir.path(), Disk).unwrap();
    put(&layer, "a.npy", &[1, 2, 3]).unwrap();
    put(&layer, "b.npy", &[4]).unwrap();
    put(&layer, "a.npy", &[5, 6]).unwrap();
    layer.remove("b.npy").unwrap();
    let time = UNIX_EPOCH - std::time::Duration::from_nanos(7);
    layer.set_time("a.npy", time).unwrap();
    assert!(layer.set_time("b.npy", time).is_err());
    let before = content(&layer);
    assert_eq!(before["a.npy"], Some(vec![5, 6]));
    assert_eq!(before["b.npy"], None);
    assert_eq!(open(dir.path(), Disk).err().unwrap().errno(), libc::EBUSY);
    drop(layer);
    for name in ["0000000000000099.h5", "0000000000000098.part", "notes.h5"] {
        std::fs::write(dir.path().join(name), "x").unwrap();
    }
    let layer = open(dir.path(), Disk).unwrap();
    assert_eq!(content(&layer), before);
    assert_eq!(layer.entries()["a.npy"].as_ref().unwrap().time, -7);
    let mut names: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let want = ["0000000000000003.h5", "holder", "index", "notes.h5"];
    assert_eq!(names, want);
    assert_eq!(put(&layer, "c.npy", &[]).unwrap().file, 100);
    assert_eq!(content(&layer)["c.npy"], Some(vec![]));
}

#[test]
fn a_refused_array_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let layer = open(dir.path(), Disk).unwrap();
    put(&layer, "a.npy", &[1]).unwrap();
    let try_put = |file: &[u8], inside: &str| {
        let refused = put_file(&layer, "a.npy", inside, file);
        refused.unwrap_err().errno()
    };
    let inside = "group/data";
    let whole = saved(&DType::int(4), &[1], &[0; 4]);
    assert_eq!(try_put(b"text", inside), libc::EINVAL);
    assert_eq!(try_put(&whole[..131], inside), libc::EINVAL);
    assert_eq!(try_put(&whole, "a%2Fb"), libc::EOPNOTSUPP);
    let none = DType::Struct {
        fields: vec![npyfs_base::npy::dtype::Field {
            name: "none".into(),
            offset: 0,
            dtype: DType::int(4),
            shape: vec![0],
        }],
        size: 0,
    };
    assert_eq!(try_put(&saved(&none, &[2], &[]), inside), libc::EOPNOTSUPP);
    let wide = saved(&DType::int(1), &[0; 33], &[]);
    assert_eq!(try_put(&wide, inside), libc::EOPNOTSUPP);
    assert_eq!(content(&layer)["a.npy"], Some(vec![1]));
    assert_eq!(files(&Dir::own(dir.path())).unwrap().len(), 1);
}

type LayerStep = fn(&Layer) -> Result<()>;

const STEPS: [LayerStep; 5] = [
    |layer| put(layer, "a.npy", &[1, 2]).map(drop),
    |layer| put(layer, "b.npy", &[3]).map(drop),
    |layer| put(layer, "a.npy", &[4, 5, 6]).map(drop),
    |layer| layer.remove("b.npy"),
    |layer| put(layer, "b.npy", &[7]).map(drop),
];

/// Every call that changes the disk fails once; the process continues or dies.
#[test]
fn whatever_fails_each_step_happens_or_does_not() {
    let mut after = vec![BTreeMap::new()];
    let dir = tempfile::tempdir().unwrap();
    let all = {
        let faulty = Arc::new(Faulty::new(u64::MAX, 0, false));
        let layer = Layer::open(
            &Dir::own(dir.path()),
            faulty.clone(),
            npyfs_worker::creator_here(),
        )
        .unwrap();
        for step in STEPS {
            step(&layer).unwrap();
            after.push(content(&layer));
        }
        faulty.calls()
    };
    assert!(all > 30, "{all}");
    for (at, dead) in (0..all).flat_map(|at| [(at, false), (at, true)]) {
        let errno = if at % 2 == 0 { libc::ENOSPC } else { libc::EIO };
        let dir = tempfile::tempdir().unwrap();
        let mut done = 0;
        let mut failed = false;
        if let Ok(layer) = open(dir.path(), Faulty::new(at, errno, dead)) {
            for step in STEPS {
                let Err(e) = step(&layer) else {
                    done += 1;
                    continue;
                };
                assert_eq!(e.errno(), errno, "{at}: {e}");
                failed = true;
                break;
            }
            // Every object that the layer lists is readable.
            assert_eq!(content(&layer), after[done], "{at} {dead}");
        }
        let layer = open(dir.path(), Disk).unwrap();
        let now = content(&layer);
        let half = dead && failed && now == after[done + 1];
        assert!(now == after[done] || half, "{at} {dead}: {now:?}");
        // The layer can be used further.
        put(&layer, "c.npy", &[8]).unwrap();
        assert_eq!(content(&layer)["c.npy"], Some(vec![8]));
    }
}
