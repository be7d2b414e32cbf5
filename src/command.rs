//! The `npyfs` command: parses, runs, and turns an error into one line and an exit code.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::cli::mount::helper::{Call, MountArgs, UnmountArgs};
use crate::cli::{self, Cli};
use crate::dataset::chunked;
use crate::hdf5::lmdb::writer as lmdb_writer;
use crate::hdf5::{editor, probe, reader, writer};
use crate::io::{heap, private_dir};
use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Serves as a worker process that reads.
fn run_reader() -> std::io::Result<()> {
    reader::run(chunked::decode)
}

/// Runs the command, or the worker process, that the arguments of this process ask for.
pub fn main() -> ExitCode {
    let first = std::env::args_os().nth(1).unwrap_or_default();
    for (argument, run) in [
        (reader::ARGUMENT, run_reader as fn() -> std::io::Result<()>),
        (writer::ARGUMENT, writer::run),
        (editor::ARGUMENT, editor::run),
        (lmdb_writer::ARGUMENT, lmdb_writer::run),
        (probe::ARGUMENT, probe::run),
    ] {
        if first == argument {
            return match run() {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            };
        }
    }
    heap::return_large_blocks();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let done = match Call::of(&arguments) {
        Some(Call::Mount(call)) => parsed::<MountArgs>(call).map(MountArgs::run),
        Some(Call::Unmount(call)) => parsed::<UnmountArgs>(call).map(UnmountArgs::run),
        None => parsed::<Cli>(arguments).map(Cli::run),
    };
    private_dir::remove_all();
    match done {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => error.report(),
        Err(code) => code,
    }
}

/// Returns what was probably meant by a word that is not known: `; did you mean mount?`.
fn meant(refusal: &clap::Error) -> Option<String> {
    let kinds = [
        ContextKind::SuggestedSubcommand,
        ContextKind::SuggestedArg,
        ContextKind::SuggestedValue,
    ];
    let word = match kinds.into_iter().find_map(|kind| refusal.get(kind))? {
        ContextValue::String(word) => word,
        // The likeliest is the last.
        ContextValue::Strings(words) => words.last()?,
        _ => return None,
    };
    Some(format!("; did you mean {word}?"))
}

/// Parses arguments; prints why it cannot, or the help that was asked for, and returns the exit code then.
fn parsed<T: Parser>(arguments: Vec<OsString>) -> Result<T, ExitCode> {
    T::try_parse_from(arguments).map_err(|refusal| {
        if refusal.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            let _ = refusal.print();
            return ExitCode::from(cli::EXIT_USAGE);
        }
        if refusal.use_stderr() {
            let text = refusal.to_string();
            let reason = text.split("\n\n").next().unwrap_or_default();
            let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
            let reason = reason.strip_prefix("error: ").unwrap_or(&reason);
            let hint = meant(&refusal).unwrap_or_default();
            cli::say(&format!("{reason}{hint} (see npyfs --help)"));
            return ExitCode::from(cli::EXIT_USAGE);
        }
        // Nothing is left to do when the terminal cannot take the text either.
        let _ = refusal.print();
        ExitCode::SUCCESS
    })
}
