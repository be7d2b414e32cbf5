//! Reads arrays of a store: `cargo run --release --example read STORE [ARRAY]`
//!
//! Without ARRAY it lists the top of the store: groups, then arrays. With it, it prints the mean of a numeric one.

use std::error::Error;

use ndarray::{ArrayD, IxDyn};

fn main() -> Result<(), Box<dyn Error>> {
    // The program is its own worker program: libhdf5 runs in sandboxed processes that are started of it.
    npyfs::worker_hook();
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: read STORE [ARRAY]")?;
    let store = npyfs::Store::open(path)?;
    let Some(name) = arguments.next() else {
        let entries = store.entries("/")?;
        for (path, reason) in entries.left_out() {
            eprintln!("{path}: {reason}");
        }
        for group in entries.directories() {
            println!("{group}/");
        }
        for entry in entries {
            println!("{} {} {:?}", entry.path, entry.dtype, entry.shape);
        }
        return Ok(());
    };
    let array = store.array(&name)?;
    let numbers: ArrayD<f64> = match array.read::<f32, IxDyn>() {
        Ok(narrow) => narrow.mapv(f64::from),
        Err(npyfs::Error::WrongType { .. }) => array.read()?,
        Err(e) => return Err(e.into()),
    };
    println!(
        "{} {:?}: mean {:?}",
        array.dtype(),
        array.shape(),
        numbers.mean()
    );
    Ok(())
}
