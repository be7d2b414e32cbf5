//! `npyfs checkout`: what was written over a store, and what becomes of it.

mod hangar;

use std::path::PathBuf;

use super::CliError;

/// Show what was written, and commit it or take it back.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Say what is staged in a Hangar repository, and who writes in it
    Status {
        /// A Hangar repository
        store: PathBuf,
    },
    /// List what is staged in a Hangar repository: A added, M modified, D deleted
    Diff {
        /// A Hangar repository
        store: PathBuf,
    },
    /// Commit what is staged in a Hangar repository
    Commit {
        /// Why
        #[arg(short, long)]
        message: String,

        /// Refuse unless the staging area belongs to this branch
        #[arg(long)]
        branch: Option<String>,

        /// A Hangar repository
        store: PathBuf,
    },
    /// Take back all that is staged in a Hangar repository
    Reset {
        /// A Hangar repository
        store: PathBuf,
    },
}

pub fn run(args: Args) -> Result<(), CliError> {
    match args.command {
        Command::Status { store } => hangar::status(&store),
        Command::Diff { store } => hangar::diff(&store),
        Command::Commit {
            message,
            branch,
            store,
        } => hangar::commit(&store, &message, branch),
        Command::Reset { store } => hangar::reset(&store),
    }
}
