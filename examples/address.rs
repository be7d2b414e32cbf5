//! Reads a row of an array on a web server or in a public bucket: `cargo run --release --example address URL ARRAY ROW`

use std::error::Error;

use ndarray::{Ix1, s};

fn main() -> Result<(), Box<dyn Error>> {
    npyfs::worker_hook();
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: address URL ARRAY ROW";
    // Only what holds the row is fetched. By default it is also cached on disk.
    let store = npyfs::Store::options()
        .anonymous()
        .disk_cache(0)
        .open(arguments.next().ok_or(usage)?)?;
    let array = store.array(&arguments.next().ok_or(usage)?)?;
    let row: isize = arguments.next().ok_or(usage)?.parse()?;
    let row = array.slice::<f32, Ix1>(s![row, ..])?;
    println!("{} elements, mean {:?}", row.len(), row.mean());
    Ok(())
}
