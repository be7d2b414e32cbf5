//! Tests of `rows`.

use super::*;
use npyfs_base::npy::dtype::{Kind, Order};
use npyfs_codec::Pipeline;
use npyfs_hdf5::{ChunkTable, DirectChunks};
use proptest::prelude::*;

/// A dataset of bytes in a file, cut into chunks one after the other; each byte is its index modulo 251.
fn dataset(shape: &[u64], chunk: &[u64]) -> (tempfile::TempDir, StoreFile, Rows) {
    let rank = shape.len();
    let grid: Vec<u64> = (0..rank).map(|k| shape[k].div_ceil(chunk[k])).collect();
    let len: u64 = chunk.iter().product();
    let unravel = |mut n: u64, dims: &[u64]| {
        let mut index = vec![0; rank];
        for k in (0..rank).rev() {
            index[k] = n % dims[k];
            n /= dims[k];
        }
        index
    };
    let (mut bytes, mut slots) = (Vec::new(), Vec::new());
    for place in 0..grid.iter().product() {
        let corner = unravel(place, &grid);
        slots.push(Slot {
            addr: bytes.len() as u64,
            size: u32::try_from(len).unwrap(),
            mask: 0,
        });
        for i in 0..len {
            let inside = unravel(i, chunk);
            let index: Vec<u64> = (0..rank)
                .map(|k| corner[k] * chunk[k] + inside[k])
                .collect();
            bytes.push(value(shape, &index));
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows");
    std::fs::write(&path, &bytes).unwrap();
    let file = StoreFile::open(&path).unwrap();
    let map = DatasetMap {
        addr: 1,
        element: ElementType::Fixed {
            dtype: DType::scalar(Kind::Uint, 1, Order::None),
            inner: Vec::new(),
            convert: false,
        },
        shape: shape.to_vec(),
        rank,
        source: DataSource::Chunked {
            chunk: chunk.to_vec(),
            direct: Some(DirectChunks {
                pipeline: Pipeline::new(&[]).unwrap(),
                table: ChunkTable {
                    slots,
                    ..ChunkTable::default()
                },
                fill: vec![0],
            }),
            refused: None,
            crowded: false,
        },
    };
    let rows = Rows::new(map, file.identity).unwrap();
    (dir, file, rows)
}

fn value(shape: &[u64], index: &[u64]) -> u8 {
    let at = shape.iter().zip(index).fold(0, |at, (d, i)| at * d + i);
    (at % 251) as u8
}

fn read(rows: &Rows, file: &StoreFile, row: u64, part: &[u64]) -> Vec<u8> {
    let mut bytes = vec![0; part.iter().product::<u64>() as usize];
    let with = (&npyfs_worker::h5_here(), &Arc::default());
    rows.read(with, file, (row, part), || false, &mut bytes)
        .unwrap();
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn samples_are_put_together_from_any_chunks(
        rows in 1_u64..5,
        chunk_row in 1_u64..3,
        dims in proptest::collection::vec((1_u64..7, 1_u64..7, 1_u64..7), 1..4),
        row in 0_u64..5,
    ) {
        let shape: Vec<u64> = std::iter::once(rows).chain(dims.iter().map(|d| d.0)).collect();
        let chunk: Vec<u64> = std::iter::once(chunk_row).chain(dims.iter().map(|d| d.1.min(d.0))).collect();
        let count: Vec<u64> = dims.iter().map(|d| d.2.min(d.0)).collect();
        let (_dir, file, dataset) = dataset(&shape, &chunk);
        let Ok(part) = dataset.part(row, &count) else {
            prop_assert!(row >= rows);
            return Ok(());
        };
        prop_assert!(row < rows);
        let bytes = read(&dataset, &file, row, &part);
        let mut expected = Vec::new();
        for n in 0..count.iter().product() {
            let mut left = n;
            let mut index = vec![row; shape.len()];
            for k in (1..shape.len()).rev() {
                index[k] = left % count[k - 1];
                left /= count[k - 1];
            }
            expected.push(value(&shape, &index));
        }
        prop_assert_eq!(bytes, expected);
    }
}

#[test]
fn flattened_samples_are_the_start_of_a_row() {
    let (_dir, file, rows) = dataset(&[3, 10], &[1, 4]);
    let part = rows.part(2, &[2, 3]).unwrap();
    assert_eq!(read(&rows, &file, 2, &part), [20, 21, 22, 23, 24, 25]);
    assert!(rows.part(0, &[11]).is_err() && rows.part(0, &[3, 4]).is_err());
    assert_eq!(rows.part(0, &[]).unwrap(), [1]);
    assert!(rows.part(3, &[1]).is_err());
    assert!(rows.part(0, &[u64::MAX, u64::MAX]).is_err());
    assert_eq!(rows.written(), [0, 1, 2]);
}
