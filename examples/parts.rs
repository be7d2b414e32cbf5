//! Sums up an array of floats that may be larger than memory, part by part: `cargo run --release --example parts STORE
//! ARRAY`

use std::error::Error;

use ndarray::IxDyn;

fn main() -> Result<(), Box<dyn Error>> {
    npyfs::worker_hook();
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: parts STORE ARRAY";
    let store = npyfs::Store::open(arguments.next().ok_or(usage)?)?;
    let array = store.array(&arguments.next().ok_or(usage)?)?;
    // Whole chunks: none is decoded twice.
    let rows = array.part_rows()?;
    let mut sum = 0.0;
    for part in array.parts::<f32, IxDyn>(rows) {
        sum += part?.iter().copied().map(f64::from).sum::<f64>();
    }
    println!(
        "{} parts, sum {sum:.6}",
        array.parts::<f32, IxDyn>(rows).len()
    );
    Ok(())
}
