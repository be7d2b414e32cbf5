//! The layout of the HDF5 files of backends `00` and `01` (`hdf5_00.py`, `hdf5_01.py`, `chunk.py`).

use super::schema::ColumnCompression;
use crate::formats::hangar::digest::type_number;
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::{AttributeValue, NewCollection};

/// The number of datasets of a file. The last is never used.
const DATASETS: u32 = 100;

/// The version of Hangar that writes such files.
const VERSION: &str = "0.5.2";

/// The shapes and the type of the contents of a collection file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    backend: &'static str,
    dtype: DType,
    schema_shape: Vec<u64>,
    /// The shape of a row of a dataset.
    row: Vec<u64>,
    /// The shape of a chunk inside a row.
    chunk: Vec<u64>,
    compression: ColumnCompression,
}

impl Geometry {
    /// Makes the layout. `shape` is that of the schema; it has elements, and its bytes fit into 64 bits.
    pub fn new(
        backend: &'static str,
        dtype: &DType,
        shape: &[u64],
        compression: ColumnCompression,
    ) -> Self {
        let size = dtype.size() as u64;
        let (row, chunk) = if backend == "00" {
            let elements: u64 = shape.iter().product();
            (vec![elements], vec![elements.min(FLAT_CHUNK / size)])
        } else {
            let chunk = chunk_shape(shape, size);
            let whole = if shape.is_empty() { &[1][..] } else { shape };
            let padded = whole.iter().zip(&chunk);
            let row = padded.map(|(d, c)| d.div_ceil(*c) * c).collect();
            (row, chunk)
        };
        Self {
            backend,
            dtype: dtype.clone(),
            schema_shape: shape.to_vec(),
            row,
            chunk,
            compression,
        }
    }

    /// Returns the number of rows of a dataset.
    pub fn rows(&self) -> u64 {
        if self.backend == "00" { 250 } else { 100 }
    }

    /// Returns the number of datasets that are used.
    pub fn used(&self) -> u32 {
        DATASETS - 1
    }

    /// Returns the part of a row that a sample of `shape` takes.
    pub fn extent(&self, shape: &[u64]) -> Vec<u64> {
        match (self.backend, shape) {
            ("00", _) => vec![shape.iter().product()],
            (_, []) => vec![1],
            (_, shape) => shape.to_vec(),
        }
    }

    /// Returns the description of the file as Hangar creates it.
    pub fn file(&self) -> NewCollection {
        let rows_of = |row: &[u64], first: u64| [&[first], row].concat();
        let ints = |dims: &[u64]| match dims {
            [] => AttributeValue::Nothing,
            dims => AttributeValue::Ints(dims.iter().map(|&d| clamp(d)).collect()),
        };
        let notes = [
            ("HANGAR_VERSION", AttributeValue::Text(VERSION.into())),
            ("schema_shape", ints(&self.schema_shape)),
            (
                "schema_dtype_num",
                AttributeValue::Int(type_number(&self.dtype).map_or(-1, i64::from)),
            ),
            (
                "collection_max_size",
                AttributeValue::Int(clamp(self.rows())),
            ),
            ("collection_total", AttributeValue::Int(i64::from(DATASETS))),
            ("rdcc_w0", AttributeValue::Float(0.75_f64.to_bits())),
            ("chunk_shape", ints(&self.chunk)),
            ("compression_opts", self.options()),
        ];
        let (bytes, slots) = self.chunk_cache();
        let cache = [
            ("rdcc_nbytes", AttributeValue::Int(clamp(bytes))),
            ("rdcc_nslots", AttributeValue::Int(clamp(slots))),
        ];
        let notes = notes.into_iter().chain(cache);
        NewCollection {
            datasets: DATASETS,
            dtype: self.dtype.clone(),
            shape: rows_of(&self.row, self.rows()),
            chunk: rows_of(&self.chunk, 1),
            filters: self.compression.filters(),
            attributes: notes
                .map(|(name, note)| (name.to_owned(), note))
                .chain(self.progress(0, 0))
                .collect(),
        }
    }

    /// Returns the attributes that say how far a file is filled.
    pub fn progress(&self, dataset: u32, row: u64) -> Vec<(String, AttributeValue)> {
        let at = AttributeValue::Ints(vec![i64::from(dataset), clamp(row)]);
        let left = AttributeValue::Int(i64::from(DATASETS.saturating_sub(dataset)));
        vec![
            ("next_location".into(), at),
            ("collections_remaining".into(), left),
        ]
    }

    fn options(&self) -> AttributeValue {
        match (&self.compression, self.compression.filters().last()) {
            (ColumnCompression::Lzf { .. }, _) | (_, None) => AttributeValue::Bool(false),
            (ColumnCompression::Gzip { level, .. }, _) => AttributeValue::Int(i64::from(*level)),
            (_, Some((_, values))) => {
                AttributeValue::Ints(values.iter().map(|&value| i64::from(value)).collect())
            }
        }
    }

    /// Returns bytes and slots of the chunk cache of Hangar's own writer, which the file states as hints for readers.
    fn chunk_cache(&self) -> (u64, u64) {
        let size = self.dtype.size() as u64;
        let bytes = |dims: &[u64]| dims.iter().fold(size, |n, d| n.saturating_mul(*d));
        if self.backend == "00" {
            let wanted = bytes(&self.row).saturating_mul(self.rows());
            let wanted = wanted.clamp(FLAT_CHUNK, 100_000_000);
            let slots = wanted.div_ceil(bytes(&self.chunk).max(1));
            return (wanted, next_prime(slots.saturating_mul(100)));
        }
        let chunks = (bytes(&self.row) / bytes(&self.chunk).max(1)).max(1);
        let wanted = bytes(&self.row).saturating_mul(self.rows());
        let slots = chunks.saturating_mul(self.rows() * u64::from(DATASETS) * 100);
        (wanted.min(250_000_000), next_prime(slots))
    }
}

/// The largest size in bytes of a chunk of backend `00`.
const FLAT_CHUNK: u64 = 255_000;

fn clamp(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Returns the smallest odd prime from `n` on; above a limit `n` itself, as the search would take too long.
fn next_prime(n: u64) -> u64 {
    if n < 3 {
        return 2;
    }
    if n > 1 << 40 {
        return n;
    }
    let is_prime = |n: u64| {
        (3..)
            .step_by(2)
            .take_while(|i: &u64| i * i <= n)
            .all(|i| !n.is_multiple_of(i))
    };
    ((n | 1)..).step_by(2).find(|&n| is_prime(n)).unwrap_or(n)
}

/// Returns the chunk inside a row of backend `01`: a whole sample of less than 1 MiB, otherwise about as much as
/// PyTables would put into a chunk of an array of 10 000 samples.
fn chunk_shape(shape: &[u64], size: u64) -> Vec<u64> {
    const MIB: u64 = 1 << 20;
    const EXPECTED: u64 = 10_000;
    let Some((&first, rest)) = shape.split_first() else {
        return vec![1];
    };
    let product = |dims: &[u64]| dims.iter().fold(1_u64, |n, d| n.saturating_mul(*d));
    if product(shape).saturating_mul(size) < MIB {
        return shape.to_vec();
    }
    let expected = EXPECTED.saturating_mul(product(rest).saturating_mul(size)) / MIB;
    // The zone is the power of ten, from 1 MiB to 10 TiB of rows; the chunk has 2 to that power times 8 KiB, times 24.
    let zone = expected.clamp(1, 10_000_000).ilog10();
    let elements = ((8192 << zone) * 24 / size).max(1);
    let mut chunk = shape.to_vec();
    chunk[0] = 1;
    if product(&chunk) <= elements {
        chunk[0] = elements / product(&chunk);
    } else {
        let mut trimmed = false;
        for at in 0..chunk.len() {
            chunk[at] = 1;
            let others = product(&chunk);
            if others <= elements {
                chunk[at] = elements / others;
                trimmed = true;
                break;
            }
        }
        if let (false, Some(last)) = (trimmed, chunk.last_mut()) {
            *last = elements;
        }
    }
    chunk[0] = chunk[0].min(first);
    chunk
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_base::npy::dtype::Order;

    fn geometry(backend: &'static str, size: usize, shape: &[u64]) -> Geometry {
        let dtype = DType::scalar(npyfs_base::npy::dtype::Kind::Float, size, Order::Little);
        let compression = ColumnCompression::parse("blosc:lz4hc").unwrap();
        Geometry::new(backend, &dtype, shape, compression)
    }

    #[test]
    fn chunks_are_those_of_real_files() {
        for (size, shape, chunk, row) in [
            (4, &[512, 700, 3][..], &[46, 700, 3][..], &[552, 700, 3][..]),
            (8, &[1025, 1023], &[48, 1023], &[1056, 1023]),
            (4, &[64, 64, 3], &[64, 64, 3], &[64, 64, 3]),
            (8, &[], &[1], &[1]),
        ] {
            let file = geometry("01", size, shape).file();
            assert_eq!(file.chunk, [&[1], chunk].concat());
            assert_eq!(file.shape, [&[100], row].concat());
        }
        let file = geometry("00", 4, &[600, 600]).file();
        assert_eq!(file.chunk, [1, 63750]);
        assert_eq!(file.shape, [250, 360_000]);
        assert_eq!(geometry("00", 4, &[9, 7]).extent(&[2, 3]), [6]);
        assert_eq!(geometry("01", 4, &[]).extent(&[]), [1]);
    }

    #[test]
    fn primes() {
        assert_eq!(next_prime(1_000_000), 1_000_003);
        assert_eq!((next_prime(0), next_prime(4), next_prime(7)), (2, 5, 7));
    }
}
