//! `npyfs verify`: reads all of a store, or of something in it, and prints what is damaged.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::cli::output::Report;
use crate::cli::place::{Place, places_in_stores};
use crate::cli::progress::{self, Progress};
use crate::cli::store::StoreArgs;
use crate::cli::{CliError, say};
use npyfs_base::error::{Error, ErrorKind};
use npyfs_base::npy::dtype::DType;
use npyfs_base::options::External;
use npyfs_core::checkout::export::publish::PublicationNote;
use npyfs_core::formats;
use npyfs_core::store::format::{Depth, Format, Inspection, Registry, Verified, VerifyReport};
use npyfs_core::tree::{Directory, Node, VirtualFile};
use npyfs_hdf5::PUBLISHED;
use npyfs_hdf5::{Attribute, Value};
use npyfs_io::content::read;

/// The number of bytes that are read at a time.
const STEP: usize = 1 << 20;

/// Read everything in a store, or what is named in it; check digests and checksums, too, where its format has them.
///
/// In the place of STORE and PATH also a mount or something in it, STORE:/PATH, STORE/PATH, or an .npy file. JSON is
/// {"bytes", "checked": numbers of what a format checks itself, "absent": numbers by reason, "damaged", "failed": not
/// readable just now, "files", "findings": the lines on standard error, "left_out": not shown, "no_filter" and
/// "not_allowed": not checked}.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,

    /// Files or directories in the store; by default all of it; * and ? are wildcards
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// The progress on a terminal, and the findings as lines.
struct VerifyProgress {
    /// Begins with the first object.
    bar: OnceLock<Progress>,
    make: fn() -> Progress,
    wrong: Mutex<Vec<String>>,
}

impl VerifyProgress {
    fn new(make: fn() -> Progress) -> Self {
        Self {
            bar: OnceLock::new(),
            make,
            wrong: Mutex::default(),
        }
    }

    fn bar(&self) -> &Progress {
        self.bar.get_or_init(self.make)
    }

    /// Prints a line above the bar.
    fn line(&self, what: &str) {
        progress::suspend(|| say(what));
    }

    /// Returns the lines about what is wrong.
    fn into_wrong(self) -> Vec<String> {
        self.wrong.into_inner()
    }
}

impl VerifyReport for VerifyProgress {
    fn found(&self, count: u64) {
        self.bar().found(count);
    }

    fn checked(&self) {
        self.bar().advance(1);
    }

    fn wrong(&self, why: &str) {
        let mut wrong = self.wrong.lock();
        wrong.push(why.to_owned());
        self.line(why);
    }
}

/// The outcome. The fields of the JSON stand in the order of their names.
#[derive(Default, Serialize)]
struct Outcome {
    /// The checks of the format itself.
    #[serde(flatten, serialize_with = "by_kind")]
    verified: Verified,
    bytes: u64,
    damaged: u64,
    /// Not read: the machine was short of something.
    failed: u64,
    files: u64,
    findings: Vec<String>,
    /// Objects that have no form as a file.
    left_out: u64,
    /// Not read: this build lacks the filters.
    no_filter: u64,
    /// Not read: the options do not allow the files that hold the data.
    not_allowed: u64,
}

/// Serialises what a format checked as {"absent": {reason: number}, "checked": {kind: number}}.
fn by_kind<S: Serializer>(verified: &Verified, to: S) -> Result<S::Ok, S::Error> {
    let counts: BTreeMap<&str, u64> = verified.counts.iter().copied().collect();
    let mut fields = to.serialize_map(Some(2))?;
    fields.serialize_entry("absent", &verified.absent)?;
    fields.serialize_entry("checked", &counts)?;
    fields.end()
}

impl Outcome {
    fn add_wrong(&mut self, lines: Vec<String>) {
        self.damaged += lines.len() as u64;
        self.findings.extend(lines);
    }
}

impl Report for Outcome {
    fn text(&self) -> String {
        let mut lines = Vec::new();
        let Verified {
            counts,
            bytes,
            absent,
        } = &self.verified;
        if counts.iter().any(|(_, count)| *count > 0) {
            let counts = counts.iter().map(|(kind, count)| format!("{count} {kind}"));
            let counts = counts.collect::<Vec<_>>().join(", ");
            lines.push(format!("{counts} ({bytes} bytes)"));
        }
        for (why, count) in absent {
            lines.push(format!("{count} {why}"));
        }
        if self.files > 0 {
            lines.push(format!("{} files ({} bytes)", self.files, self.bytes));
        }
        let noted = [
            (
                self.not_allowed,
                "not checked: their data lies in files that external= does not allow",
            ),
            (
                self.no_filter,
                "not checked: this build has not got their filters",
            ),
            (self.left_out, "not shown: .npy has no form for them"),
            (self.failed, "could not be read just now"),
        ];
        let noted = noted.iter().filter(|(count, _)| *count > 0);
        lines.extend(noted.map(|(count, what)| format!("{count} {what}")));
        lines.push(match self.damaged {
            0 if self.not_allowed + self.no_filter + self.failed > 0 => "nothing is damaged".into(),
            0 => "all is well".to_owned(),
            n => format!("{n} damaged"),
        });
        lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// A walk through a store.
struct Walk {
    /// Counts bytes of files.
    bar: VerifyProgress,
    formats: Registry,
    outcome: Outcome,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    let places = places_in_stores(&args.store, &args.paths)?;
    let mut walk = Walk {
        bar: VerifyProgress::new(|| Progress::bytes("reading", 0)),
        formats: formats::registry(),
        outcome: Outcome::default(),
    };
    for place in &places {
        walk.place(place)?;
    }
    let Walk {
        bar, mut outcome, ..
    } = walk;
    outcome.add_wrong(bar.into_wrong());
    outcome.print(args.json)?;
    match (outcome.damaged, outcome.failed) {
        (0, 0) => Ok(()),
        (0, n) => Err(CliError::object(format!("{n} could not be read"))),
        (n, _) => Err(CliError::object(format!("{n} damaged"))),
    }
}

impl Walk {
    fn place(&mut self, place: &Place) -> Result<(), CliError> {
        let path = match place.path.as_os_str().is_empty() {
            true => String::new(),
            false => format!("/{}", place.path.display()),
        };
        let dir = match place.node(true)? {
            Node::Directory(dir) => dir,
            Node::File(file) => {
                let named = place.named().to_string_lossy();
                let shown = if path.is_empty() { named } else { path.into() };
                self.bar.found(file.size().unwrap_or(0));
                self.checked_file(&shown, &file);
                return Ok(());
            }
            Node::Symlink(_) => return Ok(()),
        };
        self.directory(&dir, &path);
        let Some(fs) = place.fs() else {
            return Ok(());
        };
        rules(&dir, &path, fs.sep(), &self.formats, &self.bar);
        if path.is_empty() {
            let found = publication(&*dir, fs.store_path(), fs.external());
            found.changed.iter().for_each(|line| self.bar.wrong(line));
            self.outcome.not_allowed += found.refused;
        }
        Ok(())
    }

    /// Reads everything in a directory.
    fn directory(&mut self, dir: &Arc<dyn Directory>, path: &str) {
        let objects = VerifyProgress::new(|| Progress::count("checking", 0));
        let format = self.formats.format_of(&**dir);
        let own = |format: &Arc<dyn Format>| format.rules().verify(&**dir, &objects);
        if let Some(done) = format.ok().and_then(own) {
            match done {
                Ok(verified) => self.outcome.verified += verified,
                Err(e) => objects.wrong(&format!("{path}: {e}")),
            }
            self.outcome.add_wrong(objects.into_wrong());
            return;
        }
        let listing = match dir.list() {
            Ok(listing) => listing,
            Err(e) => return self.record(path, &e, None),
        };
        for why in &listing.damage {
            self.record(path, &Error::damaged(why), None);
        }
        if let Err(e) = dir.attributes() {
            self.record(path, &e.about("its attributes"), None);
        }
        for (name, why) in &listing.left_out {
            let shown = String::from_utf8_lossy(name);
            let is_damage = listing.damage.contains(&format!("{shown}: {why}"));
            // A file that the options refuse is listed all the same.
            if !is_damage && listing.find(&[name, &b".npy"[..]].concat()).is_none() {
                self.outcome.left_out += 1;
                self.note(format!("{path}/{shown}: not shown: {why}"));
            }
        }
        let size = |node: &Node| match node {
            Node::File(file) => file.size().unwrap_or(0),
            _ => 0,
        };
        let sizes = listing.iter().map(|(_, node)| size(&node));
        self.bar.found(sizes.sum());
        for (name, node) in listing.iter() {
            let path = format!("{path}/{}", String::from_utf8_lossy(&name));
            match &*node {
                Node::Directory(below) => self.directory(below, &path),
                Node::File(file) => self.checked_file(&path, file),
                Node::Symlink(_) => {}
            }
        }
    }

    /// Reads a file and its attributes.
    fn checked_file(&mut self, path: &str, file: &Arc<dyn VirtualFile>) {
        let size = file.size().unwrap_or(0);
        let end = self.bar.bar().position().saturating_add(size);
        match self.file(file) {
            Ok(bytes) => {
                self.outcome.files += 1;
                self.outcome.bytes += bytes;
            }
            Err(e) => self.record(path, &e, Some(file)),
        }
        if let Err(e) = file.attributes() {
            self.record(path, &e.about("its attributes"), None);
        }
        self.bar.bar().set(end);
    }

    /// Prints a line that is not about damage.
    fn note(&mut self, line: String) {
        self.bar.line(&line);
        self.outcome.findings.push(line);
    }

    /// Reads all that is stored of a file, and returns its size.
    fn file(&self, file: &Arc<dyn VirtualFile>) -> npyfs_base::error::Result<u64> {
        let content = file.open()?;
        let pool = Arc::default();
        let (start, mut at) = (self.bar.bar().position(), 0);
        while let Some(range) = content.stored(at) {
            at = range.start;
            while at < range.end {
                let most = usize::try_from(range.end - at).unwrap_or(STEP).min(STEP);
                at += read(&*content, at, most, &pool)?.as_ref().len() as u64;
                self.bar.bar().set(start.saturating_add(at));
            }
        }
        Ok(content.len())
    }

    /// Prints a failure, and counts it by its kind.
    fn record(&mut self, path: &str, error: &Error, file: Option<&Arc<dyn VirtualFile>>) {
        let missing = file.filter(|_| error.kind == ErrorKind::Damaged);
        let missing = missing.map(missing_filters).unwrap_or_default();
        let (count, why) = match error.kind {
            _ if !missing.is_empty() => {
                let why = format!("not checked, no filter {}", missing.join(", "));
                (&mut self.outcome.no_filter, why)
            }
            ErrorKind::Denied => (
                &mut self.outcome.not_allowed,
                format!("not checked, {error}"),
            ),
            ErrorKind::Os(_) | ErrorKind::Unreached(_) => {
                (&mut self.outcome.failed, error.to_string())
            }
            _ => (&mut self.outcome.damaged, error.to_string()),
        };
        *count += 1;
        self.note(match path {
            "" => why,
            path => format!("{path}: {why}"),
        });
    }
}

/// Checks the rules of the formats of stores.
fn rules(
    dir: &Arc<dyn Directory>,
    path: &str,
    sep: u8,
    formats: &Registry,
    report: &VerifyProgress,
) {
    let Ok(listing) = dir.list() else { return };
    if dir.handle().is_some() {
        // A store with a handle keeps its rules itself.
        return;
    }
    let format = formats.format_of(&**dir);
    let inspection = Inspection {
        sep,
        changed: None,
        depth: Depth::Elements,
    };
    let broken = match &format {
        Ok(format) => format.rules().broken(&**dir, &inspection),
        Err(_) => Ok(Vec::new()),
    };
    match broken {
        Ok(broken) => broken
            .iter()
            .for_each(|line| report.wrong(&format!("{path}/{line}"))),
        Err(e) => report.wrong(&format!("{path}: {e}")),
    }
    if format.is_ok_and(|format| format.objects().has_groups()) {
        // The format has checked all groups below.
        return;
    }
    for (name, node) in listing.iter() {
        if let Node::Directory(below) = &*node {
            rules(
                below,
                &format!("{path}/{}", String::from_utf8_lossy(&name)),
                sep,
                formats,
                report,
            );
        }
    }
}

/// Returns the filters of an array that this build lacks.
fn missing_filters(file: &Arc<dyn VirtualFile>) -> Vec<String> {
    let info = file.info().unwrap_or_default();
    let filters = info["filters"].as_array().map_or(&[][..], Vec::as_slice);
    filters
        .iter()
        .filter(|filter| filter["available"] == false)
        .map(|filter| format!("{} ({})", filter["id"], filter["name"]))
        .collect()
}

/// The result for each file that a publication says it depends on.
#[derive(Default)]
struct PublishedFiles {
    /// Lines about files that are not as they were.
    changed: Vec<String>,
    /// The number of files that the options forbid to look at.
    refused: u64,
}

/// Checks the files that a publication leads to: they are as they were when the publication was made. A root that is no
/// publication passes.
fn publication(root: &dyn Directory, path: &Path, external: External) -> PublishedFiles {
    let mut checked = PublishedFiles::default();
    let attributes = root.attributes().unwrap_or_default();
    let note = match attributes.iter().find_map(note_of) {
        Some(Ok(note)) => note,
        Some(Err(e)) if e.errno() == libc::EOPNOTSUPP => {
            checked.changed.push(format!("{PUBLISHED}: {e}"));
            return checked;
        }
        _ => return checked,
    };
    let home = path.parent().unwrap_or(Path::new("/"));
    for file in &note.files {
        let mut parts = Path::new(&file.path).components();
        let is_below = parts.all(|part| matches!(part, Component::Normal(_)));
        let may = match external {
            External::Deny => false,
            External::SameDir => is_below,
            External::Allow => true,
        };
        if !may {
            checked.refused += 1;
        } else if let Some(what) = file.changed(home) {
            checked.changed.push(format!("{} {what}", file.path));
        }
    }
    checked
}

/// Returns the note of a publication about itself, if the attribute has that name.
fn note_of(attribute: &Attribute) -> Option<npyfs_base::error::Result<PublicationNote>> {
    if attribute.name != PUBLISHED.as_bytes() {
        return None;
    }
    Some(PublicationNote::parse(&text_of(
        attribute.value.as_ref().ok()?,
    )?))
}

/// Returns a scalar value of text.
fn text_of(value: &Value) -> Option<String> {
    if value.dtype.name() != DType::text(value.data.len() / 4).name() || !value.shape.is_empty() {
        return None;
    }
    let chars = value.data.as_chunks::<4>().0.iter();
    let text: Option<String> = chars
        .map(|four| char::from_u32(u32::from_le_bytes(*four)))
        .collect();
    text.map(|text| text.trim_end_matches('\0').to_owned())
}
