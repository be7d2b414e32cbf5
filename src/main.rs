//! The binary `npyfs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    npyfs::main()
}
