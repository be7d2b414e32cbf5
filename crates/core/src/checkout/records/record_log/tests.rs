//! Tests of record logs.

use std::path::Path;

use super::*;
use npyfs_io::storage::Disk;

const FORM: Form = Form {
    name: "a test",
    version: 2,
};

#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Text {
    text: String,
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        let text = text.to_owned();
        Self { text }
    }
}

impl LogRecord for Text {
    fn parse(json: &str) -> serde_json::Result<Self> {
        serde_json::from_str(json)
    }

    fn print(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

fn open(path: &Path) -> Result<(RecordLog<Text>, Vec<Text>)> {
    let dir = Dir::own(path.parent().unwrap());
    RecordLog::open((&dir, "file"), FORM, Arc::new(Disk), || Ok(()))
}

fn read(path: &Path) -> Result<Vec<Text>> {
    super::read(&Dir::own(path.parent().unwrap()), "file", FORM).map(Option::unwrap_or_default)
}

fn line(json: &str) -> String {
    format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()))
}

#[test]
fn what_another_program_wrote_is_refused_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let needs = line(r#"{"text":"a","needs":["wings"]}"#);
    let strange = line(r#"{"feather":1}"#);
    for (content, why) in [
        ("a test 3\n".to_owned(), "a newer npyfs: form 3"),
        ("a test 1\n".to_owned(), "an older npyfs: form 1"),
        (format!("a test 2\n{needs}"), "needs wings"),
        (format!("a test 2\n{strange}"), "line 2"),
    ] {
        std::fs::write(&path, &content).unwrap();
        for error in [open(&path).err(), read(&path).err()] {
            let error = error.unwrap();
            assert_eq!(error.errno(), libc::EOPNOTSUPP, "{error}");
            assert!(error.message.contains(why), "{error}");
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
    }
    let more = line(r#"{"text":"a","colour":"red"}"#);
    std::fs::write(&path, format!("a test 2\n{more}")).unwrap();
    assert_eq!(read(&path).unwrap(), [Text::from("a")]);
}

#[test]
fn wherever_it_is_cut_off_whole_lines_count_and_more_can_be_added() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let mut lines = open(&path).unwrap().0;
    lines.add(&"a\nb".into()).unwrap();
    let one = std::fs::metadata(&path).unwrap().len();
    lines.add(&"c".into()).unwrap();
    drop(lines);
    let whole = std::fs::read(&path).unwrap();
    for end in 0..=whole.len() {
        std::fs::write(&path, &whole[..end]).unwrap();
        let seen: Vec<Text> = read(&path).unwrap();
        assert_eq!(
            seen.len() as u64,
            u64::from(end as u64 >= one) + u64::from(end == whole.len())
        );
        let (mut lines, mut records) = open(&path).unwrap();
        assert_eq!(records, seen, "{end}");
        lines.add(&"d".into()).unwrap();
        records.push("d".into());
        assert_eq!(read(&path).unwrap(), records, "{end}");
    }
}

#[test]
fn damage_in_the_middle_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let mut lines = open(&path).unwrap().0;
    lines.add(&"a".into()).unwrap();
    lines.add(&"b".into()).unwrap();
    drop(lines);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    for error in [open(&path).err(), read(&path).err()] {
        let error = error.unwrap();
        assert!(error.message.contains("line 2 is damaged"), "{error}");
    }
    std::fs::write(&path, "something else\n").unwrap();
    assert!(open(&path).is_err());
}

#[test]
fn records_are_replaced_or_not_whatever_fails() {
    use npyfs_io::storage::faulty::Faulty;
    let words = |words: &[&str]| {
        words
            .iter()
            .map(|&word| Text::from(word))
            .collect::<Vec<_>>()
    };
    for (at, dead) in (0..8).flat_map(|at| [(at, false), (at, true)]) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let own = Dir::own(dir.path());
        open(&path)
            .unwrap()
            .0
            .add_all(&words(&["a", "b", "c"]))
            .unwrap();
        let faulty = Arc::new(Faulty::new(at, libc::EIO, dead));
        let (mut lines, _) =
            RecordLog::<Text>::open((&own, "file"), FORM, faulty, || Ok(())).unwrap();
        let replaced = lines.rewrite(&words(&["c"])).is_ok();
        let now = read(&path).unwrap();
        assert!(
            now == words(&["c"]) || (!replaced && now == words(&["a", "b", "c"])),
            "{at} {dead}: {now:?}"
        );
        // A later append continues the existing lines.
        if lines.add(&"d".into()).is_ok() {
            let after = read(&path).unwrap();
            assert_eq!(after, [now, words(&["d"])].concat(), "{at} {dead}");
        }
        assert!(lines.is_lost() || replaced || !dead || at > 0);
        drop(lines);
        let mut lines = open(&path).unwrap().0;
        lines.rewrite(&words(&["e"])).unwrap();
        assert_eq!(read(&path).unwrap(), words(&["e"]));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

#[test]
fn the_file_of_a_writer_is_locked_and_a_new_one_too() {
    let top = tempfile::tempdir().unwrap();
    let path = top.path().join("file");
    let left = top.path().join(format!("file{REWRITTEN}"));
    std::fs::write(&left, "of a host that was cut off").unwrap();
    let (mut log, _) = open(&path).unwrap();
    assert!(!left.exists());
    let refused = open(&path).err().unwrap();
    assert_eq!(refused.errno(), libc::EBUSY);
    log.rewrite(&["a".into()]).unwrap();
    assert!(open(&path).is_err());
    drop(log);
    assert_eq!(open(&path).unwrap().1, ["a".into()]);
}

#[test]
fn none_is_made_against_the_will_of_the_caller() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let own = Dir::own(dir.path());
    let refused = RecordLog::<Text>::open((&own, "file"), FORM, Arc::new(Disk), || {
        Err(Error::damaged("no"))
    });
    assert!(refused.is_err());
    assert!(read(&path).unwrap().is_empty());
}
