//! `npyfs demo`: small stores to try things on.

use std::path::{Path, PathBuf};

use crate::cli::CliError;
use crate::formats::{demo, hangar};
use crate::printable;

/// Write demonstration stores into a directory; files that are there already are left alone.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The directory; made if it does not exist
    dir: PathBuf,
}

pub fn run(args: &Args) -> Result<(), CliError> {
    let written = demo::write(&args.dir)
        .map_err(|e| CliError::store(format!("{}: {e}", args.dir.display())))?;
    let digits = args.dir.join("digits");
    let made = hangar::demo::write(&digits, Path::new("/proc/self/exe"))
        .map_err(|e| CliError::store(format!("{}: {e}", digits.display())))?;
    for (path, made) in written.into_iter().chain([(digits, made)]) {
        let what = if made { "written" } else { "left as it is" };
        println!(
            "{} {what}",
            printable::name(path.as_os_str().as_encoded_bytes())
        );
    }
    Ok(())
}
