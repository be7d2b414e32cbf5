//! The `npyfs` command: parses, runs, and turns an error into one line and an exit code.

use std::process::ExitCode;

use clap::Parser;
use npyfs::cli::{self, Cli};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(refusal) => {
            // Nothing is left to do when the terminal cannot take the text either.
            let _ = refusal.print();
            return ExitCode::from(if refusal.use_stderr() {
                cli::EXIT_USAGE
            } else {
                0
            });
        }
    };
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}
