//! Output of lists of names: for people, for programs that read names, and as JSON.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::CliError;
use crate::io::hex;
use crate::printable;

/// The format that a list is printed in.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct OutputFormat {
    /// Names as they are, each with a NUL behind it: for xargs -0 and programs
    #[arg(short = '0', long = "null", conflicts_with = "json")]
    pub null: bool,

    /// JSON
    #[arg(long)]
    pub json: bool,
}

/// A name or path in JSON.
#[derive(Debug, Serialize)]
pub struct Name {
    /// The name; bytes that are no UTF-8 are replaced.
    pub name: String,
    /// The bytes in hexadecimal digits, if they are no UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_hex: Option<String>,
}

impl Name {
    /// Creates the JSON form of a name.
    pub fn new(bytes: &[u8]) -> Self {
        let is_text = std::str::from_utf8(bytes).is_ok();
        Self {
            name: String::from_utf8_lossy(bytes).into_owned(),
            name_hex: (!is_text).then(|| hex::encode(bytes)),
        }
    }
}

impl OutputFormat {
    /// Adds a name that ends an entry: raw and with NUL, or escaped and with a line break. `head` stands in front.
    pub fn push(self, head: &str, name: &[u8], out: &mut Vec<u8>) {
        out.extend(head.as_bytes());
        if self.null {
            out.extend(name);
            out.push(0);
        } else {
            out.extend(printable::name(name).as_bytes());
            out.push(b'\n');
        }
    }
}

/// Returns whether output has colours: on a terminal that can, unless NO_COLOR says no.
pub fn has_colour() -> bool {
    let says_no = std::env::var_os("NO_COLOR").is_some_and(|no| !no.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    io::stdout().is_terminal() && !says_no && !is_dumb
}

/// Prints a list as JSON.
pub fn print_json(list: &impl Serialize) -> Result<(), CliError> {
    let mut text = serde_json::to_vec_pretty(list)
        .map_err(|e| CliError::object(format!("standard output: {e}")))?;
    text.push(b'\n');
    print(&text)
}

/// Writes to the standard output; a reader that went away is no error.
pub fn print(text: &[u8]) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::object(format!("standard output: {e}")))
        }
        _ => Ok(()),
    }
}
