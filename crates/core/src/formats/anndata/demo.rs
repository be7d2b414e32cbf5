//! A small AnnData file: cells and genes.

use hdf5::types::VarLenUnicode;
use hdf5::{File, Group, Result};

use crate::formats::demo::vector;

fn text(place: &hdf5::Location, name: &str, value: &str) -> Result<()> {
    let value: VarLenUnicode = value.parse().unwrap_or_default();
    let attribute = place.new_attr::<VarLenUnicode>().create(name)?;
    attribute.write_scalar(&value)
}

fn encode(place: &hdf5::Location, encoding: &str, version: &str) -> Result<()> {
    text(place, "encoding-type", encoding)?;
    text(place, "encoding-version", version)
}

fn names(group: &Group, name: &str, values: impl Iterator<Item = String>) -> Result<()> {
    let values: Vec<VarLenUnicode> = values
        .map(|value| value.parse().unwrap_or_default())
        .collect();
    vector(group, name, &values)?;
    let dataset = group.dataset(name)?;
    encode(&dataset, "string-array", "0.2.0")
}

fn table(file: &File, name: &str, rows: usize, columns: &[&str]) -> Result<Group> {
    let group = file.create_group(name)?;
    encode(&group, "dataframe", "0.2.0")?;
    text(&group, "_index", "_index")?;
    let columns: Vec<VarLenUnicode> = columns
        .iter()
        .map(|column| column.parse().unwrap_or_default())
        .collect();
    let list = group.new_attr::<VarLenUnicode>().shape(columns.len());
    list.create("column-order")?.write(&columns)?;
    names(&group, "_index", (0..rows).map(|i| format!("{name}-{i}")))?;
    Ok(group)
}

/// Fills a file.
pub(super) fn fill(file: &File) -> Result<()> {
    const CELLS: usize = 200;
    const GENES: usize = 50;
    encode(file, "anndata", "0.1.0")?;
    let obs = table(file, "obs", CELLS, &["cell_type", "n_genes"])?;
    let kind = obs.create_group("cell_type")?;
    encode(&kind, "categorical", "0.2.0")?;
    kind.new_attr::<bool>()
        .create("ordered")?
        .write_scalar(&false)?;
    let codes: Vec<i8> = (0..CELLS).map(|cell| [0, 1, 1, 2][cell % 4]).collect();
    vector(&kind, "codes", &codes)?;
    let dataset = kind.dataset("codes")?;
    encode(&dataset, "array", "0.2.0")?;
    let kinds = ["B", "T", "NK"].into_iter().map(str::to_owned);
    names(&kind, "categories", kinds)?;
    let (mut data, mut indices, mut indptr) = (Vec::new(), Vec::new(), vec![0_i32]);
    for cell in 0..CELLS {
        for gene in (cell % 7..GENES).step_by(5 + cell % 3) {
            data.push((1 + (cell * gene) % 9) as f32);
            indices.push(gene as i32);
        }
        indptr.push(data.len() as i32);
    }
    let genes: Vec<i64> = indptr
        .windows(2)
        .map(|row| i64::from(row[1] - row[0]))
        .collect();
    vector(&obs, "n_genes", &genes)?;
    let dataset = obs.dataset("n_genes")?;
    encode(&dataset, "array", "0.2.0")?;
    table(file, "var", GENES, &[])?;
    let matrix = file.create_group("X")?;
    encode(&matrix, "csr_matrix", "0.1.0")?;
    let shape = matrix.new_attr::<i64>().shape(2).create("shape")?;
    shape.write(&[CELLS as i64, GENES as i64])?;
    vector(&matrix, "data", &data)?;
    vector(&matrix, "indices", &indices)?;
    vector(&matrix, "indptr", &indptr)?;
    for slot in ["layers", "obsm", "obsp", "uns", "varm", "varp"] {
        let group = file.create_group(slot)?;
        encode(&group, "dict", "0.1.0")?;
    }
    let umap: Vec<f32> = (0..2 * CELLS).map(|i| (i as f32 / 10.0).sin()).collect();
    let umap = ndarray::Array2::from_shape_vec((CELLS, 2), umap).unwrap_or_default();
    let place = file
        .group("obsm")?
        .new_dataset_builder()
        .with_data(&umap)
        .create("X_umap")?;
    encode(&place, "array", "0.2.0")
}
