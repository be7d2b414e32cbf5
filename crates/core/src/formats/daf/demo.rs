//! A daf store of cells and genes, as daf itself would write it.

use hdf5::types::{FixedAscii, VarLenUnicode};
use hdf5::{File, Result};
use ndarray::Array2;

use crate::formats::demo::{noise, vector};

const CELLS: usize = 1000;
const GENES: usize = 200;

fn text<const N: usize>(value: &str) -> FixedAscii<N> {
    // All texts here are short ASCII; others would be cut.
    FixedAscii::from_ascii(value).unwrap_or_default()
}

/// Returns a matrix of numbers from 0 to 1, cells by genes.
fn matrix(seed: usize) -> Array2<f64> {
    Array2::from_shape_fn((CELLS, GENES), |(cell, gene)| {
        noise(cell * GENES + gene + seed)
    })
}

/// Fills a file.
pub(super) fn fill(file: &File) -> Result<()> {
    let mark = file.new_dataset::<i8>().shape(2).create("__daf__")?;
    mark.write_raw(&[1_i8, 0])?;
    let title: VarLenUnicode = "A demonstration of npyfs".parse().unwrap_or_default();
    mark.new_attr::<VarLenUnicode>()
        .create("title")?
        .write_scalar(&title)?;
    mark.new_attr::<i64>()
        .create("seed")?
        .write_scalar(&1_i64)?;
    mark.new_attr::<bool>()
        .create("is_real")?
        .write_scalar(&false)?;

    let cells: Vec<_> = (0..CELLS)
        .map(|i| text::<7>(&format!("cell{i:03}")))
        .collect();
    let genes: Vec<_> = (0..GENES)
        .map(|i| text::<7>(&format!("gene{i:03}")))
        .collect();
    vector(file, "cell#", &cells)?;
    vector(file, "gene#", &genes)?;
    let age: Vec<i32> = (0..CELLS)
        .map(|i| (20.0 + 60.0 * noise(i)) as i32)
        .collect();
    vector(file, "cell#age", &age)?;
    let batch: Vec<_> = (0..CELLS)
        .map(|i| text::<6>(["first", "second"][i % 2]))
        .collect();
    vector(file, "cell#batch", &batch)?;
    let marked: Vec<bool> = (0..GENES).map(|i| i % 7 == 0).collect();
    vector(file, "gene#is_marker", &marked)?;
    let score = matrix(0).mapv(|value| value as f32);
    file.new_dataset_builder()
        .with_data(&score)
        .create("cell,gene#score")?;

    let (mut data, mut indices, mut indptr) = (Vec::new(), Vec::new(), vec![0_i32]);
    for row in matrix(7_777_777).rows() {
        for (gene, &value) in row.iter().enumerate() {
            if value > 0.9 {
                data.push((1.0 + 100.0 * (value - 0.9)) as u16);
                indices.push(gene as i32);
            }
        }
        indptr.push(data.len() as i32);
    }
    let sparse = file.create_group("cell,gene#UMIs")?;
    vector(&sparse, "data", &data)?;
    vector(&sparse, "indices", &indices)?;
    vector(&sparse, "indptr", &indptr)?;
    let shape = sparse.new_attr::<i64>().shape(2).create("shape")?;
    shape.write_raw(&[CELLS as i64, GENES as i64])
}
