//! A directory tree that npyfs is installed in: compares it with what belongs there, puts files into it, and takes them
//! away again.
//!
//! Every file is complete before it gets its name, so that running programs go on and a reader never sees half a file.
//! Links are replaced, never followed, but those of directories.
//!
//! A record says what `npyfs setup` put on a machine, so that it takes away nothing else. The record is a text file
//! beside the installed files, written before they are. An item that is missing, or that differs from the record, was
//! not put there by `setup`, or was changed since.

use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use tempfile::Builder;
use xxhash_rust::xxh3::xxh3_128;

use super::{Content, Item, Part, shown};

/// The state of the place where an item belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing.
    Missing,
    /// The item.
    Same,
    /// Something else of the same name, such as another version.
    Differs,
    /// Something that may be of use to others.
    Foreign,
}

impl State {
    /// Returns the state of several items as one.
    pub fn of_all(states: impl Iterator<Item = Self>) -> Self {
        states
            .reduce(|a, b| match (a, b) {
                (a, b) if a == b => a,
                (Self::Foreign, _) | (_, Self::Foreign) => Self::Foreign,
                _ => Self::Differs,
            })
            .unwrap_or(Self::Missing)
    }

    /// Returns the word for it in a listing.
    pub fn mark(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Same => "there",
            Self::Differs => "differs",
            Self::Foreign => "foreign",
        }
    }
}

/// The destination of an installation.
pub struct Place<'a> {
    root: Option<&'a Path>,
    record_path: PathBuf,
}

impl<'a> Place<'a> {
    /// Creates the place of a prefix, below another root directory if there is one.
    pub fn new(root: Option<&'a Path>, prefix: &Path) -> Self {
        Self {
            root,
            record_path: prefix.join("share/npyfs/installed"),
        }
    }

    /// Returns where a path of the machine lies for this process.
    pub fn real(&self, path: &Path) -> PathBuf {
        match self.root {
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_owned(),
        }
    }

    /// Returns what stands where an item belongs.
    pub fn state(&self, item: &Item) -> io::Result<State> {
        let path = self.real(&item.path);
        let there = match path.symlink_metadata() {
            Ok(there) => there,
            Err(e) if is_absent(&e) => return Ok(State::Missing),
            Err(e) => return Err(e),
        };
        let is_same = match &item.content {
            Content::File(bytes, mode) => {
                there.is_file()
                    && there.len() == bytes.len() as u64
                    && there.permissions().mode() & 0o7777 == *mode
                    && fs::read(&path)? == *bytes
            }
            Content::Link(target) => {
                if !(there.is_symlink() && fs::read_link(&path)? == *target) {
                    return Ok(State::Foreign);
                }
                true
            }
            // A text file that an administrator made a link is left alone.
            Content::Line(_) if there.is_symlink() => return Ok(State::Foreign),
            Content::Line(line) => {
                return Ok(match lines(&path)?.iter().any(|it| it.trim() == *line) {
                    true => State::Same,
                    false => State::Missing,
                });
            }
        };
        Ok(if is_same { State::Same } else { State::Differs })
    }

    /// Returns whether a package has installed what the items are, in whatever version.
    pub fn is_packaged(&self, items: &[Item], part: Part) -> bool {
        part != Part::AllowOther
            && items_of(items, part).all(|item| match &item.content {
                Content::Link(_) => self.state(item).is_ok_and(|it| it == State::Same),
                _ => self.real(&item.path).is_file(),
            })
    }

    /// Installs items that are not there as they should be, and returns those that stand in the way. Adds the paths to
    /// the report.
    pub fn install<'i>(
        &self,
        items: &[&'i Item],
        report: &mut String,
    ) -> Result<Vec<&'i Path>, String> {
        let mut record = self.record()?.unwrap_or_default();
        let (mut wanted, mut in_the_way) = (Vec::new(), Vec::new());
        for item in items {
            let at = |e: io::Error| format!("{}: {e}", shown(&item.path));
            match self.state(item).map_err(at)? {
                State::Same => {}
                State::Foreign => in_the_way.push(item.path.as_path()),
                State::Missing | State::Differs => wanted.push(item),
            }
        }
        if wanted.is_empty() {
            return Ok(in_the_way);
        }
        // The record names a file before the file is there.
        let mut dirs = Vec::new();
        self.add_missing_dirs(&self.record_path, &mut dirs);
        for item in &wanted {
            self.add_missing_dirs(&item.path, &mut dirs);
        }
        for dir in &dirs {
            record.add(dir, PlacedItem::Dir);
        }
        for item in &wanted {
            let put = match &item.content {
                Content::File(bytes, _) => PlacedItem::file(bytes),
                Content::Link(target) => PlacedItem::Link(target.clone()),
                Content::Line(line) => PlacedItem::Line((*line).to_owned()),
            };
            record.add(&item.path, put);
        }
        let at = |path: &Path| {
            let shown = shown(path);
            move |e: io::Error| format!("{shown}: {e}")
        };
        if let Some(root) = self.root {
            fs::create_dir_all(root).map_err(at(root))?;
        }
        for dir in &dirs {
            make_dir(&self.real(dir)).map_err(at(dir))?;
        }
        let text = record.to_text();
        write(&self.real(&self.record_path), text.as_bytes(), 0o644)
            .map_err(at(&self.record_path))?;
        for item in wanted {
            self.put(item).map_err(at(&item.path))?;
            report.push_str(&format!("installed {}\n", shown(&item.path)));
        }
        Ok(in_the_way)
    }

    /// Removes the recorded items that are unchanged. Adds the paths to the report.
    pub fn remove(&self, report: &mut String) -> Result<(), String> {
        let Some(record) = self.record()? else {
            let dir = self.record_path.ancestors().nth(3);
            let dir = dir.unwrap_or(&self.record_path);
            report.push_str(&format!("setup has installed nothing in {}\n", shown(dir)));
            return Ok(());
        };
        for (path, put) in record.backwards() {
            let at = |e: io::Error| format!("{}: {e}", shown(path));
            match self.take_away(path, put).map_err(at)? {
                Some(true) => report.push_str(&format!("removed {}\n", shown(path))),
                Some(false) => {
                    report.push_str(&format!("left {}, which was changed\n", shown(path)));
                }
                None => {}
            }
        }
        let path = self.real(&self.record_path);
        fs::remove_file(path).map_err(|e| format!("{}: {e}", shown(&self.record_path)))?;
        for (path, put) in record.backwards() {
            if *put == PlacedItem::Dir {
                // Another program may have put something into the directory, or removed it.
                let _ = fs::remove_dir(self.real(path));
            }
        }
        Ok(())
    }

    /// Removes a file, a link or a line. Returns whether it was as it was put there; nothing if it is gone, or a
    /// directory.
    fn take_away(&self, path: &Path, put: &PlacedItem) -> io::Result<Option<bool>> {
        let path = self.real(path);
        let there = match path.symlink_metadata() {
            Ok(there) => there,
            Err(e) if is_absent(&e) => return Ok(None),
            Err(e) => return Err(e),
        };
        let is_same = match put {
            PlacedItem::Dir => return Ok(None),
            PlacedItem::File(_) => there.is_file() && PlacedItem::file(&fs::read(&path)?) == *put,
            PlacedItem::Link(target) => there.is_symlink() && fs::read_link(&path)? == *target,
            PlacedItem::Line(line) => {
                let mut lines = lines(&path)?;
                let Some(at) = lines.iter().rposition(|it| it == line) else {
                    return Ok(None);
                };
                lines.remove(at);
                let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
                if !text.is_empty() {
                    let mode = there.permissions().mode() & 0o7777;
                    write(&path, text.as_bytes(), mode)?;
                    return Ok(Some(true));
                }
                true
            }
        };
        if is_same {
            fs::remove_file(&path)?;
        }
        Ok(Some(is_same))
    }

    fn put(&self, item: &Item) -> io::Result<()> {
        let path = self.real(&item.path);
        match &item.content {
            Content::File(bytes, mode) => write(&path, bytes, *mode),
            Content::Link(target) => {
                let new = Builder::new()
                    .prefix(".npyfs-")
                    .make_in(parent(&path), |path| symlink(target, path))?;
                new.into_temp_path().persist(&path).map_err(|e| e.error)
            }
            Content::Line(line) => {
                let mut lines = lines(&path)?;
                lines.push((*line).to_owned());
                let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
                let mode = match path.metadata() {
                    Ok(there) => there.permissions().mode() & 0o7777,
                    Err(_) => 0o644,
                };
                write(&path, text.as_bytes(), mode)
            }
        }
    }

    fn record(&self) -> Result<Option<Record>, String> {
        let path = self.real(&self.record_path);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if is_absent(&e) => return Ok(None),
            Err(e) => return Err(format!("{}: {e}", shown(&path))),
        };
        Record::from_text(&text)
            .map(Some)
            .map_err(|line| format!("{}: not understood: {line}", shown(&path)))
    }

    /// Adds the directories above a path that are not there, the outermost first.
    fn add_missing_dirs(&self, path: &Path, dirs: &mut Vec<PathBuf>) {
        let above: Vec<&Path> = path.ancestors().skip(1).collect();
        for dir in above.into_iter().rev().filter(|dir| dir.parent().is_some()) {
            if !self.real(dir).exists() && !dirs.iter().any(|it| it == dir) {
                dirs.push(dir.to_owned());
            }
        }
    }
}

/// Returns the items of a part.
pub fn items_of(items: &[Item], part: Part) -> impl Iterator<Item = &Item> {
    items.iter().filter(move |item| item.part == part)
}

fn is_absent(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Makes a directory that everybody may look into, whatever the caller's umask.
fn make_dir(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o755)),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e),
    }
}

/// Writes a file under a name of its own, and gives it its name when it is complete.
fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut new = Builder::new().prefix(".npyfs-").tempfile_in(parent(path))?;
    new.write_all(bytes)?;
    let file: &File = new.as_file();
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_data()?;
    new.persist(path).map_err(|e| e.error)?;
    Ok(())
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

/// Returns the lines of a text file; none if it is not there.
fn lines(path: &Path) -> io::Result<Vec<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(e) if is_absent(&e) => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

/// An item that was put at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacedItem {
    /// A directory that was not there.
    Dir,
    /// A file with this checksum.
    File(u128),
    /// A symbolic link to this path.
    Link(PathBuf),
    /// A line of a file.
    Line(String),
}

impl PlacedItem {
    /// A file of these bytes.
    pub fn file(bytes: &[u8]) -> Self {
        Self::File(xxh3_128(bytes))
    }
}

/// The items that were put there, in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Record(Vec<(PathBuf, PlacedItem)>);

impl Record {
    /// Adds an entry in the place of one for the same path.
    pub fn add(&mut self, path: &Path, put: PlacedItem) {
        match self.0.iter_mut().find(|(there, _)| there == path) {
            Some((_, there)) => *there = put,
            None => self.0.push((path.to_owned(), put)),
        }
    }

    /// Returns the entries, the last one first.
    pub fn backwards(&self) -> impl Iterator<Item = (&Path, &PlacedItem)> {
        self.0.iter().rev().map(|(path, put)| (path.as_path(), put))
    }

    /// Returns it as text.
    fn to_text(&self) -> String {
        let mut text = String::new();
        for (path, put) in &self.0 {
            let (kind, what) = match put {
                PlacedItem::Dir => ("dir", String::new()),
                PlacedItem::File(sum) => ("file", format!("{sum:032x}")),
                PlacedItem::Link(target) => ("link", target.display().to_string()),
                PlacedItem::Line(line) => ("line", line.clone()),
            };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{kind}\t{what}\t{}", path.display());
        }
        text
    }

    /// Reads it; an error is the line that is not understood.
    fn from_text(text: &str) -> Result<Self, String> {
        let mut record = Self::default();
        for line in text.lines() {
            let entry = Self::entry(line).ok_or_else(|| line.to_owned())?;
            record.0.push(entry);
        }
        Ok(record)
    }

    fn entry(line: &str) -> Option<(PathBuf, PlacedItem)> {
        let mut fields = line.split('\t');
        let (kind, what, path) = (fields.next()?, fields.next()?, fields.next()?);
        let put = match kind {
            "dir" if what.is_empty() => PlacedItem::Dir,
            "file" => PlacedItem::File(u128::from_str_radix(what, 16).ok()?),
            "link" => PlacedItem::Link(what.into()),
            "line" => PlacedItem::Line(what.to_owned()),
            _ => return None,
        };
        let path = PathBuf::from(path);
        (fields.next().is_none() && is_plain(&path)).then_some((path, put))
    }
}

/// Returns whether a path is absolute, has no `..`, and can stand in a line of the record.
pub fn is_plain(path: &Path) -> bool {
    let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    let is_text = |text: &str| !text.chars().any(char::is_control);
    path.is_absolute() && path.components().all(is_plain) && path.to_str().is_some_and(is_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let mut record = Record::default();
        record.add(Path::new("/usr/local/x y"), PlacedItem::Dir);
        record.add(Path::new("/a"), PlacedItem::file(b"1"));
        record.add(
            Path::new("/sbin/mount.npyfs"),
            PlacedItem::Link("/usr/local/bin/npyfs".into()),
        );
        record.add(
            Path::new("/etc/fuse.conf"),
            PlacedItem::Line("user_allow_other".to_owned()),
        );
        record.add(Path::new("/a"), PlacedItem::file(b"2"));
        assert_eq!(Record::from_text(&record.to_text()), Ok(record));
    }

    #[test]
    fn what_leads_elsewhere_is_refused() {
        for line in [
            "dir\t\t/usr/../etc",
            "dir\t\tetc",
            "dir\tx\t/etc",
            "file\tzz\t/etc/passwd",
            "dir\t\t/a\t/b",
            "tree\t\t/etc",
            "",
        ] {
            assert_eq!(
                Record::from_text(&format!("{line}\n")),
                Err(line.to_owned())
            );
        }
    }
}
