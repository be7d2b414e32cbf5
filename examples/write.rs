//! Writes the sums of the rows of a matrix into a checkout of its store, and commits it:
//! `cargo run --release --example write STORE MATRIX NAME`

use std::error::Error;

use ndarray::{Array2, Axis};

fn main() -> Result<(), Box<dyn Error>> {
    npyfs::worker_hook();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, matrix, name] = &arguments[..] else {
        return Err("usage: write STORE MATRIX NAME".into());
    };
    let matrix: Array2<f32> = npyfs::Store::open(path)?.array(matrix)?.read()?;
    let checkout = npyfs::Store::options().write(path, "sums")?;
    checkout.write(name, &matrix.sum_axis(Axis(1)))?;
    match checkout.commit("sums of rows")? {
        Some(id) => println!("{id}"),
        None => println!("nothing to commit"),
    }
    Ok(())
}
