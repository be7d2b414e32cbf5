//! Lists the arrays of a store as it was after a commit, or with a checkout on top:
//! `cargo run --release --example commit STORE (at COMMIT | checkout NAME)`

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    npyfs::worker_hook();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let options = npyfs::Store::options();
    let (path, options) = match &arguments[..] {
        // A number, the first digits of an id, HEAD or HEAD~1.
        [path, how, commit] if how == "at" => (path, options.at(commit)),
        [path, how, name] if how == "checkout" => (path, options.checkout(name)),
        _ => return Err("usage: commit STORE (at COMMIT | checkout NAME)".into()),
    };
    for entry in options.open(path)?.entries("/")? {
        println!("{} {} {:?}", entry.path, entry.dtype, entry.shape);
    }
    Ok(())
}
