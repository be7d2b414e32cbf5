//! The `npyfs` command: parses, runs, and turns an error into one line and an exit code.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use crate::cli::mount::helper::{Call, MountArgs, UnmountArgs};
use crate::cli::{self, Cli, complete};
use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use npyfs_base::heap;
use npyfs_core::dataset::chunked;
use npyfs_core::tree::suggestion::nearest;
use npyfs_io::private_dir;

/// Runs the command, or the worker process, that the arguments of this process ask for.
pub fn main() -> ExitCode {
    let first = std::env::args_os().nth(1).unwrap_or_default();
    if let Some(served) = npyfs_worker::serve(&first, chunked::decode) {
        return match served {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    heap::return_large_blocks();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if complete::answered(&arguments) {
        private_dir::remove_all();
        return ExitCode::SUCCESS;
    }
    let done = match Call::parse(&arguments) {
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

/// Returns what was probably meant by a first word that is no command: another one, or one of a group, as in `checkout
/// export`.
fn meant_command<T: Parser>(word: &OsString) -> Option<String> {
    let mut known = Vec::new();
    for command in T::command().get_subcommands() {
        known.push((command.get_name().to_owned(), command.get_name().to_owned()));
        for below in command.get_subcommands() {
            let path = format!("{} {}", command.get_name(), below.get_name());
            known.push((below.get_name().to_owned(), path));
        }
    }
    let names = known.iter().map(|(name, _)| name.clone().into_bytes());
    let meant = nearest(word.as_bytes(), names)?;
    let (_, path) = known
        .into_iter()
        .find(|(name, _)| name.as_bytes() == meant)?;
    Some(format!("; did you mean {path}?"))
}

/// Returns the command that arguments call, and how it is used.
fn called<T: Parser>(arguments: &[OsString]) -> (String, String) {
    let mut all = T::command();
    all.build();
    let mut command = &all;
    for word in arguments.iter().skip(1) {
        match command.find_subcommand(word) {
            Some(below) => command = below,
            None => break,
        }
    }
    let mut command = command.clone();
    let usage = command.render_usage().to_string();
    let usage = usage.trim().trim_start_matches("Usage:");
    let usage = usage.split_whitespace().collect::<Vec<_>>().join(" ");
    let name = command.get_bin_name().unwrap_or("npyfs").to_owned();
    (name, usage)
}

/// Parses arguments; prints why it cannot, or the help that was asked for, and returns the exit code then.
fn parsed<T: Parser>(arguments: Vec<OsString>) -> Result<T, ExitCode> {
    let is_alone = arguments.len() < 2;
    let given = arguments.clone();
    T::try_parse_from(arguments).map_err(|refusal| {
        if refusal.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            let _ = refusal.print();
            let code = if is_alone {
                cli::EXIT_HELP
            } else {
                cli::EXIT_USAGE
            };
            return ExitCode::from(code);
        }
        if refusal.use_stderr() {
            let text = refusal.to_string();
            let reason = text.split("\n\n").next().unwrap_or_default();
            let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
            let reason = reason.strip_prefix("error: ").unwrap_or(&reason);
            let first = given.get(1).filter(|first| {
                let unknown = refusal.get(ContextKind::InvalidSubcommand);
                matches!(unknown, Some(ContextValue::String(word)) if **first == *word.as_str())
            });
            let hint = first.and_then(meant_command::<T>);
            let hint = hint.or_else(|| meant(&refusal)).unwrap_or_default();
            let (command, usage) = called::<T>(&given);
            cli::say(&format!(
                "{reason}{hint}; usage: {usage} (see {command} --help)"
            ));
            return ExitCode::from(cli::EXIT_USAGE);
        }
        // Nothing is left to do when the terminal cannot take the text either.
        let _ = refusal.print();
        ExitCode::SUCCESS
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_is_that_of_the_command_that_was_called() {
        let called = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            called::<Cli>(&words)
        };
        let (name, usage) = called(&["npyfs", "mount", "one"]);
        assert_eq!(name, "npyfs mount");
        assert_eq!(usage, "npyfs mount [OPTIONS] <STORE> <MOUNTPOINT>");
        assert_eq!(
            called(&["npyfs", "checkout", "diff", "x"]).0,
            "npyfs checkout diff"
        );
        assert_eq!(called(&["npyfs", "moun"]).0, "npyfs");
    }
}
