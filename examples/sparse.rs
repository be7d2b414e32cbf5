//! Sums up a sparse matrix: `cargo run --release --example sparse STORE MATRIX`

use std::error::Error;

use npyfs::{Sparse, Store};

fn main() -> Result<(), Box<dyn Error>> {
    npyfs::worker_hook();
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: sparse STORE MATRIX";
    let store = Store::open(arguments.next().ok_or(usage)?)?;
    let path = arguments.next().ok_or(usage)?;
    match store.sparse::<f32>(&path) {
        Err(npyfs::Error::WrongType { .. }) => print(&store.sparse::<u16>(&path)?),
        read => print(&read?),
    }
    Ok(())
}

fn print<T: Copy + Into<f64>>(matrix: &Sparse<T>) {
    let sum: f64 = matrix.data.iter().map(|&element| element.into()).sum();
    let (rows, columns) = matrix.shape;
    let stored = matrix.data.len();
    println!(
        "{:?} {rows} x {columns}, {stored} stored, sum {sum}",
        matrix.order
    );
}
