//! Counts the values of an array of text: `cargo run --release --example text STORE ARRAY`

use std::collections::BTreeMap;
use std::error::Error;

use ndarray::ArrayD;

fn main() -> Result<(), Box<dyn Error>> {
    npyfs::worker_hook();
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: text STORE ARRAY";
    let store = npyfs::Store::open(arguments.next().ok_or(usage)?)?;
    let texts: ArrayD<String> = store.array(&arguments.next().ok_or(usage)?)?.read()?;
    let mut counts = BTreeMap::new();
    for text in &texts {
        *counts.entry(text).or_insert(0_usize) += 1;
    }
    for (text, count) in counts {
        println!("{count} {text}");
    }
    Ok(())
}
