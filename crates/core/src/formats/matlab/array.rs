//! Arrays as files: numbers, characters, and arrays without elements.
//!
//! Numbers are in MATLAB's order: the stored bytes under a header with the dimensions reversed.
//!
//! Characters are text: a single row is one text, an array of rows is one text per row. MATLAB stores UTF-16, other
//! programs single bytes or UTF-32. The width of a text is its number of code units; a character of two units is
//! followed by a NUL, which NumPy ignores.
//!
//! Of an array without elements, the dimensions are stored. It is a file, or an empty directory.

use std::sync::{Arc, OnceLock};

use serde_json::{Value as Json, json};

use super::NAME;
use super::value::{Class, shown_as};
use crate::dataset::opened::OpenStore;
use crate::formats::plain::array::{ArrayFile, KnownSize};
use crate::tree::{Directory, Listing, VirtualFile, info};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy;
use npyfs_base::npy::dtype::{DType, Kind, integer};
use npyfs_hdf5::{Attribute, Dataset, ElementType};
use npyfs_io::content::{Concat, Content, InMemory, Lazy};
use npyfs_io::file::Ownership;
use npyfs_io::provenance::Provenance;

/// Returns the file of a dataset as in HDF5.
pub(super) fn as_stored(
    store: &Arc<OpenStore>,
    path: &str,
    addr: u64,
    element: ElementType,
    shape: Vec<u64>,
) -> ArrayFile {
    let (group, name) = path.rsplit_once('/').unwrap_or(("", path));
    ArrayFile {
        store: store.clone(),
        dataset: Dataset {
            addr,
            element,
            shape,
            outside: false,
        },
        group: group.into(),
        name: name.as_bytes().into(),
        kind: NAME,
        size: KnownSize::default(),
        is_remade: false,
    }
}

/// Returns dimensions in MATLAB's order.
pub(super) fn reversed(shape: &[u64]) -> Vec<u64> {
    shape.iter().rev().copied().collect()
}

/// An array.
pub(super) struct MatlabArray {
    stored: ArrayFile,
    dtype: DType,
    shape: Vec<u64>,
    class: Option<Class>,
}

impl MatlabArray {
    /// Makes the file of a dataset with elements of a fixed size.
    pub(super) fn new(stored: ArrayFile, class: Option<Class>) -> Result<Self> {
        let ElementType::Fixed { dtype, .. } = &stored.dataset.element else {
            return Err(Error::damaged("elements of no fixed size"));
        };
        Ok(Self {
            dtype: shown_as(dtype, class),
            shape: reversed(&stored.dataset.shape),
            class,
            stored,
        })
    }

    /// Reinterprets the elements as another type of the same size.
    pub(super) fn with_dtype(self, dtype: DType) -> Self {
        Self { dtype, ..self }
    }

    fn header(&self) -> Vec<u8> {
        npy::fortran_header(&self.dtype, &self.shape)
    }
}

impl VirtualFile for MatlabArray {
    fn ownership(&self) -> Ownership {
        self.stored.ownership()
    }

    fn size(&self) -> Result<u64> {
        let too_large = || Error::new(ErrorKind::TooLarge, "larger than a file can be");
        npy::payload_len(&self.dtype, &self.shape)
            .and_then(|len| len.checked_add(self.header().len() as u64))
            .filter(|&size| i64::try_from(size).is_ok())
            .ok_or_else(too_large)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        let elements = self.stored.payload()?;
        let is_logical = matches!(
            self.dtype,
            DType::Scalar {
                kind: Kind::Bool,
                ..
            }
        );
        let elements: Arc<dyn Content> = match is_logical {
            true => Arc::new(Booleans(elements)),
            false => Arc::new(elements),
        };
        Ok(Arc::new(Concat::new([
            Arc::new(InMemory(self.header())) as Arc<dyn Content>,
            elements,
        ])))
    }

    fn version(&self) -> u64 {
        self.stored.version()
    }

    fn is_current(&self) -> bool {
        self.stored.is_current()
    }

    fn info(&self) -> Result<Json> {
        let mut info = self.stored.info()?;
        info["dtype"] = self.dtype.json();
        info["shape"] = json!(self.shape);
        info["fortran_order"] = json!(!npy::is_in_c_order(&self.shape));
        if let Some(class) = self.class {
            info["class"] = json!(class.name());
        }
        for key in ["chunks", "max_shape", "axes"] {
            if let Some(Json::Array(dims)) = info.get_mut(key) {
                dims.reverse();
            }
        }
        if let Json::Object(map) = &mut info {
            // It was counted in rows of the stored array.
            map.remove("row_costs");
            if let Some(Json::Object(reads)) = map.get_mut("reads") {
                let (row, column) = (reads.remove("row"), reads.remove("column"));
                if let ([_, _], Some(row), Some(column)) = (self.shape.as_slice(), row, column) {
                    reads.insert("row".to_owned(), column);
                    reads.insert("column".to_owned(), row);
                }
            }
        }
        Ok(info)
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        self.stored.attributes()
    }
}

/// Bytes that are shown as 0 or 1, as NumPy requires of booleans.
struct Booleans<C>(C);

impl<C: Content> Content for Booleans<C> {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read_at(offset, buf)?;
        for byte in buf {
            *byte = u8::from(*byte != 0);
        }
        Ok(())
    }

    fn tell_provenance(&self, to: &mut Provenance) -> bool {
        to.add("booleans", &[]);
        self.0.tell_provenance(to)
    }

    fn stored(&self, from: u64) -> Option<std::ops::Range<u64>> {
        self.0.stored(from)
    }

    fn repeats(&self, from: u64) -> Option<(u64, u64)> {
        self.0.repeats(from)
    }

    fn is_costly(&self) -> bool {
        self.0.is_costly()
    }
}

/// Returns the type and shape of the texts for an array of characters with these dimensions, in MATLAB's order.
fn texts(shape: &[u64]) -> (DType, Vec<u64>) {
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

/// An array without elements.
pub(super) struct EmptyArray {
    stored: ArrayFile,
    class: Class,
    /// The content of its file: a header, and for text the empty elements.
    made: OnceLock<Vec<u8>>,
}

impl EmptyArray {
    /// Makes the array whose dimensions are in a dataset.
    pub(super) fn new(stored: ArrayFile, class: Class) -> Self {
        Self {
            stored,
            class,
            made: OnceLock::new(),
        }
    }

    /// Reads the dimensions.
    fn shape(&self) -> Result<Vec<u64>> {
        let (DType::Scalar { kind, order, .. }, _) = self.stored.dtype()? else {
            return Err(Error::damaged("dimensions that are no integers"));
        };
        let dims = self.stored.payload()?;
        let rank = self.stored.dataset.shape.iter().product::<u64>();
        let too_large = || Error::damaged("dimensions that are too large");
        let mut bytes = vec![0; usize::try_from(dims.len()).map_err(|_| too_large())?];
        dims.read_at(0, &mut bytes)?;
        let size = bytes.len() / usize::try_from(rank).unwrap_or(1).max(1);
        let dims = bytes.chunks_exact(size.max(1));
        let dims = dims.map(|dim| u64::try_from(integer(dim, kind, order)?).ok());
        dims.collect::<Option<Vec<_>>>().ok_or_else(too_large)
    }

    fn dtype_and_shape(&self) -> Result<(DType, Vec<u64>)> {
        let shape = self.shape()?;
        if !shape.contains(&0) {
            let why = format!("an empty array of the shape {shape:?}, which is not empty");
            return Err(Error::damaged(why));
        }
        Ok(match self.class.dtype() {
            Some(dtype) => (dtype, shape),
            None => texts(&shape),
        })
    }

    fn empty_texts(&self) -> Result<&[u8]> {
        /// The most bytes of empty texts.
        const MOST: u64 = 1 << 20;
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let (dtype, shape) = self.dtype_and_shape()?;
        let len = npy::payload_len(&dtype, &shape).filter(|&len| len <= MOST);
        let too_many = || Error::damaged("too many texts of nothing");
        let len = len.and_then(|len| usize::try_from(len).ok());
        let mut made = npy::header(&dtype, &shape);
        made.resize(made.len() + len.ok_or_else(too_many)?, 0);
        Ok(self.made.get_or_init(|| made))
    }

    fn describe(&self, shape: Result<(Option<DType>, Vec<u64>)>) -> Json {
        let mut info = json!({
            "kind": NAME,
            "file": self.stored.store.file.path.to_string_lossy(),
            "path": self.stored.path(),
            "class": self.class.name(),
        });
        match shape {
            Ok((dtype, shape)) => {
                info["shape"] = json!(shape);
                if let Some(dtype) = dtype {
                    info["dtype"] = dtype.json();
                }
            }
            Err(e) => info["error"] = json!(e.message),
        }
        match self.stored.attributes() {
            Ok(attributes) => info["attributes"] = info::attributes(&attributes),
            Err(e) => info["error"] = json!(e.message),
        }
        info
    }
}

impl VirtualFile for EmptyArray {
    fn ownership(&self) -> Ownership {
        self.stored.ownership()
    }

    fn size(&self) -> Result<u64> {
        Ok(self.empty_texts()?.len() as u64)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        Ok(Arc::new(InMemory(self.empty_texts()?.to_vec())))
    }

    fn version(&self) -> u64 {
        self.stored.version()
    }

    fn is_current(&self) -> bool {
        self.stored.is_current()
    }

    fn info(&self) -> Result<Json> {
        let shape = self.dtype_and_shape();
        Ok(self.describe(shape.map(|(dtype, shape)| (Some(dtype), shape))))
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        self.stored.attributes()
    }
}

/// A cell array without cells, an array of zero structs, or a struct without fields.
pub(super) struct EmptyDirectory(pub EmptyArray);

impl Directory for EmptyDirectory {
    fn ownership(&self) -> Ownership {
        VirtualFile::ownership(&self.0)
    }

    fn list(&self) -> Result<Arc<Listing>> {
        Ok(Arc::default())
    }

    fn is_current(&self) -> bool {
        VirtualFile::is_current(&self.0)
    }

    fn format(&self) -> Result<&'static str> {
        Ok(NAME)
    }

    fn info(&self) -> Result<Json> {
        Ok(self.0.describe(self.0.shape().map(|shape| (None, shape))))
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        VirtualFile::attributes(&self.0)
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
