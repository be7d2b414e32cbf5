//! `npyfs verify`: reads all of a store and prints what is damaged.

mod published;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::checkout::format::{Depth, Format, Registry, Verified, VerifyReport};
use crate::cli::progress::{self, Progress};
use crate::cli::store::StoreArgs;
use crate::cli::{CliError, output, say};
use crate::error::{Error, ErrorKind};
use crate::formats;
use crate::io::content::read;
use crate::tree::{Directory, Node, VirtualFile};

/// The number of bytes that are read at a time.
const STEP: usize = 1 << 20;

/// Read everything in a store; check digests and checksums, too, where its format has them.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
}

/// The progress on a terminal, and the findings as lines.
struct VerifyProgress {
    /// Begins with the first thing that is found.
    bar: OnceLock<Progress>,
    make: fn() -> Progress,
    wrong: AtomicU64,
}

impl VerifyProgress {
    fn new(make: fn() -> Progress) -> Self {
        Self {
            bar: OnceLock::new(),
            make,
            wrong: AtomicU64::new(0),
        }
    }

    fn bar(&self) -> &Progress {
        self.bar.get_or_init(self.make)
    }

    /// Prints a line above the bar.
    fn line(&self, what: &str) {
        progress::suspend(|| say(what));
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
        self.wrong.fetch_add(1, Ordering::Relaxed);
        self.line(why);
    }
}

/// Counts of what was found besides repositories.
#[derive(Default)]
struct FileCounts {
    count: u64,
    bytes: u64,
    damaged: u64,
    /// Not read: their data is elsewhere, and the options do not allow that.
    refused: u64,
    /// Not read: their filters are not in this build.
    filters: u64,
    /// Objects that have no form as a file.
    left_out: u64,
    /// Not read: the machine was short of something.
    failed: u64,
}

/// A walk through a store.
struct Walk {
    /// Counts bytes of files.
    bar: VerifyProgress,
    verified: Verified,
    formats: Registry,
    files: FileCounts,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    let fs = args.store.open()?;
    let mut walk = Walk {
        bar: VerifyProgress::new(|| Progress::bytes("reading", 0)),
        verified: Verified::default(),
        formats: formats::registry(),
        files: FileCounts::default(),
    };
    walk.directory(fs.root(), "");
    rules(fs.root(), "", fs.sep(), &walk.formats, &walk.bar);
    let found = published::check(&**fs.root(), &args.store.path()?, args.store.external()?);
    found.changed.iter().for_each(|line| walk.bar.wrong(line));
    walk.files.refused += found.refused;
    walk.files.damaged += walk.bar.wrong.load(Ordering::Relaxed);
    let Walk {
        bar,
        verified,
        files,
        ..
    } = walk;
    drop(bar);
    let mut lines = Vec::new();
    let Verified {
        counts,
        bytes,
        absent,
    } = verified;
    if counts.iter().any(|(_, count)| *count > 0) {
        let counts = counts.iter().map(|(kind, count)| format!("{count} {kind}"));
        lines.push(format!(
            "{} ({bytes} bytes)",
            counts.collect::<Vec<_>>().join(", ")
        ));
    }
    for (why, count) in absent {
        lines.push(format!("{count} {why}"));
    }
    if files.count > 0 {
        lines.push(format!("{} files ({} bytes)", files.count, files.bytes));
    }
    if files.refused > 0 {
        let n = files.refused;
        lines.push(format!(
            "{n} not checked: their data lies in files that external= does not allow"
        ));
    }
    if files.filters > 0 {
        let n = files.filters;
        lines.push(format!(
            "{n} not checked: this build has not got their filters"
        ));
    }
    if files.left_out > 0 {
        lines.push(format!(
            "{} not shown: .npy has no form for them",
            files.left_out
        ));
    }
    if files.failed > 0 {
        lines.push(format!("{} could not be read just now", files.failed));
    }
    lines.push(match files.damaged {
        0 if files.refused + files.filters + files.failed > 0 => "nothing is damaged".into(),
        0 => "all is well".to_owned(),
        n => format!("{n} damaged"),
    });
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    output::print(text.as_bytes())?;
    match (files.damaged, files.failed) {
        (0, 0) => Ok(()),
        (0, n) => Err(CliError::object(format!("{n} could not be read"))),
        (n, _) => Err(CliError::object(format!("{n} damaged"))),
    }
}

impl Walk {
    /// Reads everything in a directory.
    fn directory(&mut self, dir: &Arc<dyn Directory>, path: &str) {
        let objects = VerifyProgress::new(|| Progress::count("checking", 0));
        let format = self.formats.of(&**dir);
        let own = |format: &Arc<dyn Format>| format.verify(&**dir, &objects);
        if let Some(done) = format.ok().and_then(own) {
            match done {
                Ok(verified) => self.verified += verified,
                Err(e) => objects.wrong(&format!("{path}: {e}")),
            }
            self.files.damaged += objects.wrong.into_inner();
            return;
        }
        let listing = match dir.list() {
            Ok(listing) => listing,
            Err(e) => return self.record(path, &e, None),
        };
        for why in &listing.damage {
            self.record(path, &Error::damaged(why), None);
        }
        for (name, why) in &listing.left_out {
            // What the options refuse has a name all the same.
            if listing.find(&[name, &b".npy"[..]].concat()).is_none() {
                self.files.left_out += 1;
                let name = String::from_utf8_lossy(name);
                self.bar.line(&format!("{path}/{name}: not shown: {why}"));
            }
        }
        let size = |node: &Node| match node {
            Node::File(file) => file.size().unwrap_or(0),
            _ => 0,
        };
        self.bar
            .found(listing.iter().map(|(_, node)| size(&node)).sum());
        for (name, node) in listing.iter() {
            let path = format!("{path}/{}", String::from_utf8_lossy(&name));
            match &*node {
                Node::Directory(below) => self.directory(below, &path),
                Node::File(file) => {
                    let end = self.bar.bar().position().saturating_add(size(&node));
                    match self.file(file) {
                        Ok(bytes) => {
                            self.files.count += 1;
                            self.files.bytes += bytes;
                        }
                        Err(e) => self.record(&path, &e, Some(file)),
                    }
                    self.bar.bar().set(end);
                }
                Node::Symlink(_) => {}
            }
        }
    }

    /// Reads all that is stored of a file, and returns its size.
    fn file(&self, file: &Arc<dyn VirtualFile>) -> crate::error::Result<u64> {
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
                (&mut self.files.filters, why)
            }
            ErrorKind::Denied => (&mut self.files.refused, format!("not checked, {error}")),
            ErrorKind::Os(_) | ErrorKind::Unreached(_) => {
                (&mut self.files.failed, error.to_string())
            }
            _ => (&mut self.files.damaged, error.to_string()),
        };
        *count += 1;
        self.bar.line(&format!("{path}: {why}"));
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
        // Such a store keeps its rules itself.
        return;
    }
    let format = formats.of(&**dir);
    let broken = match &format {
        Ok(format) => format.broken(&**dir, sep, None, Depth::Elements),
        Err(_) => Ok(Vec::new()),
    };
    match broken {
        Ok(broken) => broken
            .iter()
            .for_each(|line| report.wrong(&format!("{path}/{line}"))),
        Err(e) => report.wrong(&format!("{path}: {e}")),
    }
    if format.is_ok_and(|format| format.has_groups()) {
        // With all groups below.
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
