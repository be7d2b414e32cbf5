//! Characters as text: a single row is one text, an array of rows is one text per row.
//!
//! MATLAB stores UTF-16, other programs single bytes or UTF-32. The width of a text is its number of code units; a
//! character of two units is followed by a NUL, which NumPy ignores.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::NAME;
use super::array::reversed;
use crate::formats::plain::array::ArrayFile;
use crate::tree::VirtualFile;
use npyfs_base::error::{Error, Result};
use npyfs_base::npy;
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::Attribute;
use npyfs_io::content::{Concat, Content, InMemory, Lazy};
use npyfs_io::file::Ownership;

/// Returns the type and shape of the texts for an array of characters with these dimensions, in MATLAB's order.
pub(super) fn texts(shape: &[u64]) -> (DType, Vec<u64>) {
    let (rows, width) = match shape {
        [] => (None, 1),
        [width] => (None, *width),
        // MATLAB's '' has no rows.
        [0, 0] => (None, 0),
        [1, width] => (None, *width),
        [rows, width, ..] => (Some(*rows), *width),
    };
    let width = usize::try_from(width).unwrap_or(usize::MAX).max(1);
    (DType::text(width), rows.into_iter().collect())
}

/// An array of characters.
pub(super) struct Characters {
    stored: Arc<ArrayFile>,
    /// Bytes of a code unit.
    unit: usize,
    dtype: DType,
    shape: Vec<u64>,
}

impl Characters {
    /// Makes the file of a dataset of code units, of one or two dimensions.
    pub(super) fn new(stored: ArrayFile, unit: usize) -> Self {
        let (dtype, shape) = texts(&reversed(&stored.dataset.shape));
        Self {
            stored: Arc::new(stored),
            unit,
            dtype,
            shape,
        }
    }

    fn header(&self) -> Vec<u8> {
        npy::header(&self.dtype, &self.shape)
    }

    fn len(&self) -> Result<u64> {
        let len = npy::payload_len(&self.dtype, &self.shape);
        len.ok_or_else(|| Error::damaged("more text than a file can hold"))
    }
}

impl VirtualFile for Characters {
    fn ownership(&self) -> Ownership {
        self.stored.ownership()
    }

    fn size(&self) -> Result<u64> {
        Ok(self.header().len() as u64 + self.len()?)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        let (len, unit, stored) = (self.len()?, self.unit, self.stored.clone());
        let rows = self.shape.first().copied();
        let width = self.dtype.size();
        let make = move || {
            let units = stored.payload()?;
            let room = |len: u64| {
                usize::try_from(len).map_err(|_| Error::damaged("more text than memory holds"))
            };
            let mut bytes = vec![0; room(units.len())?];
            units.read_at(0, &mut bytes)?;
            let mut text = vec![0; room(len)?];
            let rows = room(rows.unwrap_or(1))?;
            for (row, text) in text.chunks_exact_mut(width).enumerate() {
                let units = bytes.chunks_exact(unit).skip(row).step_by(rows);
                decode(units.map(little), unit, text);
            }
            Ok(text)
        };
        Ok(Arc::new(Concat::new([
            Arc::new(InMemory(self.header())) as Arc<dyn Content>,
            Arc::new(Lazy::new(len, make)),
        ])))
    }

    fn version(&self) -> u64 {
        self.stored.version()
    }

    fn is_current(&self) -> bool {
        self.stored.is_current()
    }

    fn info(&self) -> Result<Json> {
        let stored = self.stored.info()?;
        let kept = [
            "file",
            "path",
            "layout",
            "filters",
            "stored_size",
            "attributes",
        ];
        let kept = kept
            .into_iter()
            .filter_map(|key| Some((key.to_owned(), stored.get(key)?.clone())));
        let mut info: serde_json::Map<String, Json> = kept.collect();
        info.insert("kind".into(), json!(NAME));
        info.insert("class".into(), json!("char"));
        info.insert("dtype".into(), self.dtype.json());
        info.insert("shape".into(), json!(self.shape));
        Ok(info.into())
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        self.stored.attributes()
    }
}

fn little(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |n, &b| n << 8 | u32::from(b))
}

/// Writes code units as little-endian UTF-32; the rest of `text` is unchanged.
fn decode(units: impl Iterator<Item = u32>, unit: usize, text: &mut [u8]) {
    let mut places = text.chunks_exact_mut(4);
    let mut put = |code: u32| {
        if let Some(place) = places.next() {
            place.copy_from_slice(&code.to_le_bytes());
        }
    };
    let mut units = units.peekable();
    while let Some(code) = units.next() {
        let low = units.peek().filter(|low| (0xdc00..0xe000).contains(*low));
        match (unit, code, low) {
            (2, 0xd800..0xdc00, Some(&low)) => {
                units.next();
                put(0x1_0000 + ((code - 0xd800) << 10) + (low - 0xdc00));
            }
            // NumPy cannot represent a value that is not a code point.
            (_, 0x11_0000.., _) => put(u32::from(char::REPLACEMENT_CHARACTER)),
            (_, code, _) => put(code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_one_character() {
        let decoded = |units: &[u32], unit| {
            let mut text = vec![0; units.len() * 4];
            decode(units.iter().copied(), unit, &mut text);
            let (codes, _) = text.as_chunks::<4>();
            codes
                .iter()
                .map(|code| u32::from_le_bytes(*code))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            decoded(&[0x61, 0xd83d, 0xde00, 0x62], 2),
            [0x61, 0x1_f600, 0x62, 0]
        );
        assert_eq!(decoded(&[0xd83d, 0x62], 2), [0xd83d, 0x62]);
        assert_eq!(decoded(&[0xde00, 0xd83d], 2), [0xde00, 0xd83d]);
        assert_eq!(
            decoded(&[0x1_f600, 0x11_0000, u32::MAX], 4),
            [0x1_f600, 0xfffd, 0xfffd]
        );
    }

    #[test]
    fn rows_are_texts() {
        let texts = |shape: &[u64]| {
            let (dtype, shape) = texts(shape);
            (dtype.name(), shape)
        };
        assert_eq!(texts(&[1, 6]), ("<U6".to_owned(), vec![]));
        assert_eq!(texts(&[2, 6]), ("<U6".to_owned(), vec![2]));
        assert_eq!(texts(&[3, 1]), ("<U1".to_owned(), vec![3]));
        assert_eq!(texts(&[0, 0]), ("<U1".to_owned(), vec![]));
        assert_eq!(texts(&[1, 0]), ("<U1".to_owned(), vec![]));
        assert_eq!(texts(&[0, 4]), ("<U4".to_owned(), vec![0]));
        assert_eq!(texts(&[2, 0]), ("<U1".to_owned(), vec![2]));
    }
}
