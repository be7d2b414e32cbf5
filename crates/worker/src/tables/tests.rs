//! The tables, against liblmdb itself.

use super::*;

const BRANCHES: &str = "branch.lmdb";
const LOCK: &[u8] = b"writerlock:";
const FREE: &[u8] = b"LOCK_AVAILABLE";

fn take() -> TablesRequest {
    TablesRequest::Take(LockRow {
        table: BRANCHES.into(),
        key: ByteBuf::from(LOCK),
        free: ByteBuf::from(FREE),
    })
}

/// Tables as Hangar makes them: large maps, no lock files.
#[allow(unsafe_code)]
fn repository() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in [
        BRANCHES,
        "ref.lmdb",
        "hash.lmdb",
        "stage_ref.lmdb",
        "stage_hash.lmdb",
    ] {
        let mut options = EnvOpenOptions::new();
        options.map_size(1 << 30);
        // SAFETY: a test's own file.
        let env = unsafe {
            options.flags(EnvFlags::NO_LOCK | EnvFlags::NO_SUB_DIR);
            options.open(dir.path().join(name)).unwrap()
        };
        let mut txn = env.write_txn().unwrap();
        let table: Database<Bytes, Bytes> = env.create_database(&mut txn, None).unwrap();
        table.put(&mut txn, b"first", b"1").unwrap();
        txn.commit().unwrap();
    }
    dir
}

fn get(dir: &Path, table: &str, key: &[u8]) -> Option<Vec<u8>> {
    let env = open(&dir.join(table), MAP_ROOM, true).unwrap();
    let txn = env.read_txn().unwrap();
    let table = env.open_database::<Bytes, Bytes>(&txn, None).unwrap()?;
    table.get(&txn, key).unwrap().map(<[u8]>::to_vec)
}

fn set_lock(dir: &Path, value: &str) {
    let env = open(&dir.join(BRANCHES), MAP_ROOM, true).unwrap();
    change(&env, &[TableOp::put(LOCK, value)]).unwrap();
}

#[test]
fn the_lock_is_taken_given_back_and_never_stolen() {
    let dir = repository();
    let (mut one, mut two) = (Tables::new(dir.path()), Tables::new(dir.path()));
    let write = TablesRequest::Write(vec![TableTransaction::new(
        "ref.lmdb",
        vec![TableOp::put("a", "b")],
    )]);
    assert!(one.answer(&write).is_err(), "not without the lock");
    assert_eq!(one.answer(&take()).unwrap(), TablesOutcome::Done);
    let held = get(dir.path(), BRANCHES, LOCK).unwrap();
    assert_eq!(held, one.holder);
    let refused = two.answer(&take()).unwrap();
    assert_eq!(refused, TablesOutcome::Held(text(&held)));
    assert_eq!(one.answer(&write).unwrap(), TablesOutcome::Done);
    assert_eq!(
        one.answer(&TablesRequest::Release).unwrap(),
        TablesOutcome::Done
    );
    assert_eq!(get(dir.path(), BRANCHES, LOCK).unwrap(), FREE);
    assert_eq!(get(dir.path(), "ref.lmdb", b"a").unwrap(), b"b");
    // Locks of Hangar, and of npyfs on another host, are respected.
    for other in [
        "3b9e7a36-4f0c-4a8f-9a3e-6b1f6a3c2d11",
        "npyfs:elsewhere-x:1:00",
    ] {
        set_lock(dir.path(), other);
        let refused = two.answer(&take()).unwrap();
        assert_eq!(refused, TablesOutcome::Held(other.into()));
        assert_eq!(two.release().unwrap(), TablesOutcome::Done);
        assert_eq!(get(dir.path(), BRANCHES, LOCK).unwrap(), other.as_bytes());
    }
    // This is a lock of a dead process of npyfs, whose file lock is gone.
    set_lock(dir.path(), &format!("npyfs:{}:1:00", host()));
    assert_eq!(two.answer(&take()).unwrap(), TablesOutcome::Done);
    // Another process forced the lock and keeps it.
    set_lock(dir.path(), "other");
    assert!(matches!(two.release().unwrap(), TablesOutcome::Differs(_)));
    assert_eq!(get(dir.path(), BRANCHES, LOCK).unwrap(), b"other");
}

#[test]
fn a_step_happens_or_does_not() {
    let dir = repository();
    let mut tables = Tables::new(dir.path());
    tables.answer(&take()).unwrap();
    let expect =
        |key: &str, value: &str| TableOp::Expect(ByteBuf::from(key), Some(ByteBuf::from(value)));
    let steps = vec![
        TableTransaction::new(
            "hash.lmdb",
            vec![TableOp::add("first", "2"), TableOp::add("k", "v")],
        ),
        TableTransaction::new(
            "stage_ref.lmdb",
            vec![TableOp::Clear, TableOp::put("new", "x"), expect("new", "y")],
        ),
        TableTransaction::new("stage_hash.lmdb", vec![TableOp::Clear]),
    ];
    let outcome = tables.answer(&TablesRequest::Write(steps)).unwrap();
    assert_eq!(outcome, TablesOutcome::Differs("new".into()));
    let dir = dir.path();
    assert_eq!(get(dir, "hash.lmdb", b"first").unwrap(), b"1");
    assert_eq!(get(dir, "hash.lmdb", b"k").unwrap(), b"v");
    assert_eq!(get(dir, "stage_ref.lmdb", b"first").unwrap(), b"1");
    assert_eq!(get(dir, "stage_hash.lmdb", b"first").unwrap(), b"1");
    let mut write = |table: &str, ops| {
        tables.answer(&TablesRequest::Write(vec![TableTransaction::new(
            table, ops,
        )]))
    };
    assert!(write("../ref.lmdb", vec![]).is_err());
    let mut write = |path: &str, ops| {
        let step = TableTransaction::of_one_writer(path, 300_000_000, ops);
        tables.answer(&TablesRequest::Write(vec![step]))
    };
    assert!(write("data/30/../../x", vec![]).is_err());
    std::fs::create_dir_all(dir.join("data/30/abc")).unwrap();
    let put = vec![TableOp::put("0123", "text")];
    assert_eq!(write("data/30/abc", put).unwrap(), TablesOutcome::Done);
    let names = std::fs::read_dir(dir.join("data/30/abc")).unwrap().count();
    assert_eq!(names, 2, "data.mdb and lock.mdb");
    let large = vec![
        TableOp::put("0124", vec![0; 290_000_000]),
        TableOp::put("0125", vec![0; 20_000_000]),
    ];
    assert_eq!(write("data/30/abc", large).unwrap(), TablesOutcome::Full);
}

#[test]
fn a_table_outgrows_its_map() {
    let dir = repository();
    let mut tables = Tables::new(dir.path());
    tables.answer(&take()).unwrap();
    let value = usize::try_from(MAP_ROOM).unwrap() + (1 << 20);
    let step = TableTransaction::new("ref.lmdb", vec![TableOp::put("large", vec![7; value])]);
    let outcome = tables.answer(&TablesRequest::Write(vec![step])).unwrap();
    assert_eq!(outcome, TablesOutcome::Done);
    assert_eq!(get(dir.path(), "ref.lmdb", b"large").unwrap().len(), value);
}
