//! Tests of `lmdb`.

use super::*;

/// Writes a file as Hangar makes it: no subdirectory, no lock file.
#[allow(unsafe_code)]
fn write(path: &Path, rows: &[(&str, &str)]) {
    let mut options = EnvOpenOptions::new();
    options.map_size(1 << 20);
    // SAFETY: a test's own file.
    let env = unsafe {
        options.flags(EnvFlags::NO_LOCK | EnvFlags::NO_SUB_DIR);
        options.open(path).unwrap()
    };
    let mut txn = env.write_txn().unwrap();
    let table: Database<Bytes, Bytes> = env.create_database(&mut txn, None).unwrap();
    for (key, value) in rows {
        table
            .put(&mut txn, key.as_bytes(), value.as_bytes())
            .unwrap();
    }
    txn.commit().unwrap();
}

#[test]
fn rows_are_found_and_the_next_commit_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.lmdb");
    write(
        &path,
        &[
            ("a:1", "one"),
            ("a:2", "two"),
            ("b:1", ""),
            ("h:0c", "twelve"),
            ("h:1a", "twenty-six"),
        ],
    );
    let file = StoreFile::open(&path).unwrap();
    let before = std::fs::read(&path).unwrap();
    let mut environments = Environments::default();
    let mut ask = |request| environments.answer(&file, &request).unwrap();
    let bytes = |text: &str| ByteBuf::from(text.as_bytes());
    let keys: Vec<_> = ["a:2", "no", "", "b:1"].map(bytes).into();
    let Answer::Values(values) = ask(LmdbRequest::Get { keys: keys.clone() }) else {
        panic!("another answer");
    };
    assert_eq!(values, [Some(bytes("two")), None, None, Some(bytes(""))]);
    let hashes = ByteBuf::from([0x1a, 0x0c, 0xff, 0x0c]);
    let hashed = |width, hashes: &ByteBuf| LmdbRequest::Hashed {
        prefix: bytes("h:"),
        width,
        hashes: hashes.clone(),
    };
    let Answer::Packed(packed) = ask(hashed(1, &hashes)) else {
        panic!("another answer");
    };
    assert_eq!(packed.text, bytes("twenty-sixtwelvetwelve"));
    assert_eq!(packed.ends, [10, 16, 16, 22]);
    assert!(packed.is_valid(4) && !packed.is_valid(3));
    let Answer::Lengths(lengths) = ask(LmdbRequest::Lengths { keys }) else {
        panic!("another answer");
    };
    assert_eq!(lengths, [Some(3), None, None, Some(0)]);
    let mut rows = |after: Option<&str>, longest| {
        let request = LmdbRequest::Rows {
            prefix: b"a:".to_vec(),
            after: after.map(|a| a.as_bytes().to_vec()),
            most: 10,
            longest,
        };
        match ask(request) {
            Answer::Rows(rows) => rows,
            _ => panic!("another answer"),
        }
    };
    assert_eq!(
        rows(None, 0),
        [(bytes("a:1"), bytes("")), (bytes("a:2"), bytes(""))]
    );
    assert_eq!(rows(Some("a:1"), 3), [(bytes("a:2"), bytes("two"))]);
    assert_eq!(std::fs::read(&path).unwrap(), before);
    let names = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(names, 1, "no lock file");
}
