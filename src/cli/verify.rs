//! `npyfs verify`: reads all of a store and says what is damaged.

use std::sync::{Arc, Mutex};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cli::walk::StoreArgs;
use crate::cli::{CliError, say};
use crate::content::read;
use crate::store::hangar::verify::{Report, Summary, verify};
use crate::tree::{Directory, Node, VirtualFile};

/// Bytes that are read at a time.
const STEP: usize = 1 << 20;

/// Read everything in a store; for Hangar repositories check all digests and checksums, too.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
}

/// Shows progress on a terminal, and each finding as a line.
struct Bar {
    bar: ProgressBar,
    wrong: Mutex<u64>,
}

impl Report for Bar {
    fn found(&self, count: u64) {
        self.bar.inc_length(count);
    }

    fn checked(&self) {
        self.bar.inc(1);
    }

    fn wrong(&self, why: &str) {
        *self.wrong.lock().unwrap_or_else(|e| e.into_inner()) += 1;
        self.bar.suspend(|| say(why));
    }
}

/// What was read besides repositories.
#[derive(Default)]
struct Files {
    count: u64,
    bytes: u64,
}

pub fn run(args: &Args) -> Result<(), CliError> {
    let fs = args.store.open()?;
    // Drawn on stderr, and only if that is a terminal.
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} {elapsed}, {eta} left") {
        bar.set_style(style);
    }
    let report = Bar {
        bar,
        wrong: Mutex::new(0),
    };
    let (mut summary, mut files) = (Summary::default(), Files::default());
    directory(fs.root(), "", &report, &mut summary, &mut files);
    report.bar.finish_and_clear();
    let Summary {
        commits,
        schemas,
        samples,
        bytes,
        not_fetched,
        ..
    } = summary;
    if samples + commits + schemas > 0 {
        println!("{commits} commits, {schemas} schemas, {samples} samples ({bytes} bytes)");
    }
    if not_fetched > 0 {
        println!("{not_fetched} samples are not here: they were not fetched from the remote yet");
    }
    if files.count > 0 {
        println!("{} files ({} bytes)", files.count, files.bytes);
    }
    let wrong = *report.wrong.lock().unwrap_or_else(|e| e.into_inner());
    println!(
        "{}",
        match wrong {
            0 => "all is well".to_owned(),
            n => format!("{n} damaged"),
        }
    );
    match wrong {
        0 => Ok(()),
        n => Err(CliError::object(format!("{n} damaged"))),
    }
}

fn directory(
    dir: &Arc<dyn Directory>,
    path: &str,
    report: &Bar,
    summary: &mut Summary,
    files: &mut Files,
) {
    if let Some(repository) = dir.repository() {
        match verify(&repository, report) {
            Ok(found) => *summary += found,
            Err(e) => report.wrong(&format!("{path}: {e}")),
        }
        return;
    }
    let listing = match dir.list() {
        Ok(listing) => listing,
        Err(e) => return report.wrong(&format!("{path}: {e}")),
    };
    report.found(listing.len() as u64);
    for (name, node) in listing.iter() {
        let path = format!("{path}/{}", String::from_utf8_lossy(&name));
        match &*node {
            Node::Directory(below) => directory(below, &path, report, summary, files),
            Node::File(file) => match file_bytes(file) {
                Ok(bytes) => {
                    files.count += 1;
                    files.bytes += bytes;
                }
                Err(e) => report.wrong(&format!("{path}: {e}")),
            },
            Node::Symlink(_) => {}
        }
        report.checked();
    }
}

fn file_bytes(file: &Arc<dyn VirtualFile>) -> crate::error::Result<u64> {
    let content = file.open()?;
    let pool = Arc::default();
    let mut at = 0;
    while at < content.len() {
        at += read(&*content, at, STEP, &pool)?.as_ref().len() as u64;
    }
    Ok(at)
}
