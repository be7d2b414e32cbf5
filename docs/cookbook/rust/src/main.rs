//! Prints means of a mounted store: npyfs-cookbook MOUNTPOINT

use std::error::Error;
use std::fs::File;
use std::path::PathBuf;

use memmap2::Mmap;
use ndarray::{Array1, ArrayView2, Axis};
use ndarray_npy::{ViewNpyExt, read_npy};

fn main() -> Result<(), Box<dyn Error>> {
    let mount = PathBuf::from(std::env::args_os().nth(1).ok_or("usage: MOUNTPOINT")?);

    // Read whole.
    let ages: Array1<i32> = read_npy(mount.join("cell#age.npy"))?;
    println!(
        "{} cells, mean age {:.3}",
        ages.len(),
        ages.mapv(f64::from).mean().unwrap_or(0.0)
    );

    // Mapped: what is touched is decoded.
    let file = File::open(mount.join("cell,gene#score.npy"))?;
    // SAFETY: an open file of a mount never changes: it stays as it was when it was opened.
    let map = unsafe { Mmap::map(&file)? };
    let score = ArrayView2::<f32>::view_npy(&map)?;
    println!(
        "{:?}, mean of gene 7: {:.6}",
        score.dim(),
        score.index_axis(Axis(1), 7).mean().unwrap_or(0.0)
    );
    Ok(())
}
