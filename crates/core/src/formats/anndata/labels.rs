//! The labels of a categorical: the category of each code. The code -1 marks a missing value. Its label is the empty
//! text, NaN or NaT; integers and booleans with missing values become floats, as in pandas.

use std::sync::{Arc, OnceLock};

use serde_json::{Value as Json, json};

use super::NAME;
use crate::dataset::text;
use crate::formats::plain::array::ArrayFile;
use crate::formats::plain::integers::{int64, integers};
use crate::formats::plain::lookup::LookedUpCodes;
use crate::tree::VirtualFile;
use npyfs_base::error::{Error, Result};
use npyfs_base::npy;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_hdf5::ElementType;
use npyfs_io::content::{Concat, Content, InMemory};
use npyfs_io::file::Ownership;
use npyfs_io::rows::{Converted, STEP, read_window, words};

/// The labels as one array.
pub(super) struct LabelsFile {
    codes: Arc<ArrayFile>,
    categories: Arc<ArrayFile>,
    /// Path of the group.
    path: String,
    /// Whether any value is missing.
    is_missing: OnceLock<bool>,
}

/// The representation of labels.
struct Form {
    dtype: DType,
    /// The label of the code -1; `None` if the type has none.
    missing: Option<Vec<u8>>,
    /// Whether categories are numbers that become floats.
    widened: Option<(Kind, usize, Order)>,
}

impl LabelsFile {
    /// Makes the labels, or returns the reason why there are none.
    pub(super) fn new(
        codes: ArrayFile,
        categories: ArrayFile,
        path: String,
    ) -> std::result::Result<Self, String> {
        if integers(&codes.dataset.element).is_none() || codes.dataset.shape.len() != 1 {
            return Err("the codes of a categorical are no vector of integers".into());
        }
        let is_plain = match &categories.dataset.element {
            ElementType::Text { .. } => true,
            ElementType::Fixed { dtype, inner, .. } => {
                inner.is_empty() && matches!(dtype, DType::Scalar { size: 1.., .. })
            }
            ElementType::Record { .. } => false,
        };
        if !is_plain || categories.dataset.shape.len() != 1 {
            return Err("the categories of a categorical are no vector".into());
        }
        let labels = Self {
            codes: Arc::new(codes),
            categories: Arc::new(categories),
            path,
            is_missing: OnceLock::new(),
        };
        match labels.too_wide() {
            // A dataset that cannot be measured reports this when it is opened.
            Ok(None) | Err(_) => Ok(labels),
            Ok(Some(why)) => Err(why),
        }
    }

    /// Returns the number of labels.
    pub(super) fn rows(&self) -> u64 {
        self.codes.dataset.shape.first().copied().unwrap_or(0)
    }

    fn too_wide(&self) -> Result<Option<String>> {
        let (rows, store) = (self.rows(), &self.categories.store);
        let limit = store.context.options.text_limit();
        let ElementType::Text { fixed, .. } = self.categories.dataset.element else {
            return Ok(None);
        };
        // No category is longer than its file: most need no measurement.
        let longest = fixed.map_or(store.file.identity.size, |n| n as u64);
        if rows.saturating_mul(longest.saturating_mul(4)) <= limit {
            return Ok(None);
        }
        if text::is_over_limit(store, &self.categories.dataset)? {
            return Ok(Some("the categories are too long for an array".into()));
        }
        let width = self.categories.dtype()?.0.size();
        let expanded = rows.saturating_mul(width as u64);
        Ok((expanded > limit).then(|| {
            format!(
                "{rows} labels take {expanded} bytes at the width of the longest category, {width}: more than text_limit allows ({limit} bytes)"
            )
        }))
    }

    /// Determines, once, whether any value is missing.
    fn is_missing(&self) -> Result<bool> {
        if let Some(&known) = self.is_missing.get() {
            return Ok(known);
        }
        let codes = int64(&self.codes)?;
        let mut buf = vec![0; STEP];
        let (mut at, mut found) = (0, false);
        while at < codes.len() && !found {
            let window = read_window(&*codes, at, &mut buf)?;
            found = words(window).any(|code| code == -1);
            at += window.len() as u64;
        }
        Ok(*self.is_missing.get_or_init(|| found))
    }

    fn form(&self) -> Result<Form> {
        let (dtype, _) = self.categories.dtype()?;
        let DType::Scalar {
            kind, size, order, ..
        } = &dtype
        else {
            return Err(Error::damaged("categories of a type without labels"));
        };
        let (kind, size, order) = (*kind, *size, *order);
        let missing = match kind {
            Kind::Bytes | Kind::Text => Some(vec![0; size]),
            Kind::Float => nan(size, order),
            Kind::Complex => nan(size / 2, order).map(|nan| nan.repeat(2)),
            Kind::Datetime | Kind::Timedelta => Some(ordered(&i64::MIN.to_le_bytes(), order)),
            Kind::Bool | Kind::Int | Kind::Uint if self.is_missing()? => {
                return Ok(Form {
                    dtype: DType::scalar(Kind::Float, 8, Order::Little),
                    missing: nan(8, Order::Little),
                    widened: Some((kind, size, order)),
                });
            }
            _ => None,
        };
        Ok(Form {
            dtype,
            missing,
            widened: None,
        })
    }

    fn header(&self, form: &Form) -> Vec<u8> {
        npy::header(&form.dtype, &[self.rows()])
    }
}

/// Returns the bytes of a little-endian number in another byte order.
fn ordered(little: &[u8], order: Order) -> Vec<u8> {
    let mut bytes = little.to_vec();
    if order == Order::Big {
        bytes.reverse();
    }
    bytes
}

/// Returns the NaN of a float of this size.
fn nan(size: usize, order: Order) -> Option<Vec<u8>> {
    let little = match size {
        2 => 0x7e00_u16.to_le_bytes().to_vec(),
        4 => f32::NAN.to_le_bytes().to_vec(),
        8 => f64::NAN.to_le_bytes().to_vec(),
        _ => return None,
    };
    Some(ordered(&little, order))
}

/// Returns integers or booleans as floats of 64 bits.
fn widened(
    payload: Arc<dyn Content>,
    (kind, size, order): (Kind, usize, Order),
) -> Arc<dyn Content> {
    let convert = move |from: &[u8], to: &mut [u8]| {
        for (from, to) in from.chunks_exact(size).zip(to.as_chunks_mut::<8>().0) {
            let mut wide = [0; 8];
            let little = ordered(from, order);
            for (byte, from) in wide.iter_mut().zip(little) {
                *byte = from;
            }
            let unused = 64 - 8 * size.clamp(1, 8);
            let number = match kind {
                Kind::Int => ((i64::from_le_bytes(wide) << unused) >> unused) as f64,
                _ => u64::from_le_bytes(wide) as f64,
            };
            *to = number.to_le_bytes();
        }
    };
    Arc::new(Converted::new(payload, size, 8, convert))
}

impl VirtualFile for LabelsFile {
    fn ownership(&self) -> Ownership {
        self.codes.ownership()
    }

    fn size(&self) -> Result<u64> {
        let form = self.form()?;
        let payload = npy::payload_len(&form.dtype, &[self.rows()]);
        payload
            .and_then(|len| len.checked_add(self.header(&form).len() as u64))
            .ok_or_else(|| Error::damaged("larger than a file can be"))
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        let form = self.form()?;
        let mut categories: Arc<dyn Content> = Arc::new(self.categories.payload()?);
        if let Some(from) = form.widened {
            categories = widened(categories, from);
        }
        let store = &self.categories.store;
        let labels = LookedUpCodes {
            context: store.context.clone(),
            key: (store.file.serial, self.codes.dataset.addr),
            codes: int64(&self.codes)?,
            categories,
            count: self.categories.dataset.shape.first().copied().unwrap_or(0),
            width: form.dtype.size() as u64,
            missing: form.missing.clone(),
        };
        let header = Arc::new(InMemory(self.header(&form)));
        Ok(Arc::new(Concat::new([
            header as Arc<dyn Content>,
            Arc::new(labels),
        ])))
    }

    fn version(&self) -> u64 {
        self.codes.version()
    }

    fn is_current(&self) -> bool {
        self.codes.is_current()
    }

    fn info(&self) -> Result<Json> {
        let mut info = json!({
            "kind": NAME,
            "file": self.codes.store.file.path.to_string_lossy(),
            "path": self.path,
            "shown_as": "the labels of a categorical",
            "shape": [self.rows()],
            "categories": self.categories.dataset.shape,
        });
        match self.form() {
            Ok(form) => info["dtype"] = form.dtype.json(),
            Err(e) => info["error"] = json!(e.message),
        }
        Ok(info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_io::content::read;

    #[test]
    fn numbers_become_floats() {
        let wide = |bytes: &[u8], kind, size, order| {
            let content = widened(Arc::new(InMemory(bytes.to_vec())), (kind, size, order));
            let read = read(&*content, 0, 1 << 10, &Arc::default()).unwrap();
            let floats = read.as_ref().as_chunks::<8>().0.iter();
            floats.map(|b| f64::from_le_bytes(*b)).collect::<Vec<_>>()
        };
        assert_eq!(wide(&[255, 3], Kind::Int, 1, Order::None), [-1.0, 3.0]);
        assert_eq!(wide(&[1, 0], Kind::Uint, 2, Order::Big), [256.0]);
        assert_eq!(wide(&[1, 0], Kind::Bool, 1, Order::None), [1.0, 0.0]);
    }
}
