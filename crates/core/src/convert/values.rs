//! Text and bytes that are files in one format and arrays in another.

use std::sync::Arc;

use crate::store::base::{invalid, unsupported};
use crate::store::encode::{NpyArray, text};
use npyfs_base::error::Result;
use npyfs_base::npy;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_io::content::{Concat, Content, InMemory};
use npyfs_io::npy_file::header;

/// The longest text that is converted to or from an array, in bytes: it is held in memory.
const LONGEST: u64 = 64 << 20;

/// Returns whether an `.npy` file is a single text.
pub(super) fn is_single_text(file: &dyn Content) -> Result<bool> {
    // An incomplete file is refused later.
    let Ok(head) = header(file) else {
        return Ok(false);
    };
    let is_text = matches!(
        &head.dtype,
        DType::Scalar {
            kind: Kind::Text | Kind::Bytes,
            ..
        }
    );
    Ok(is_text && head.shape.is_empty())
}

/// Returns the text of an `.npy` file that is a single text.
pub(super) fn as_text(file: Arc<dyn Content>) -> Result<Arc<dyn Content>> {
    check_length(file.len())?;
    let array = NpyArray::shown(&file)?;
    let mut bytes = Vec::new();
    text::each(&array, |_, element| {
        bytes.extend_from_slice(element);
        Ok(())
    })?;
    Ok(Arc::new(InMemory(bytes)))
}

/// Returns a text as an array without dimensions.
pub(super) fn text_as_array(file: &dyn Content) -> Result<Arc<dyn Content>> {
    check_length(file.len())?;
    let mut bytes = vec![0; usize::try_from(file.len()).unwrap_or(0)];
    file.read_at(0, &mut bytes)?;
    let text = String::from_utf8(bytes).map_err(|_| invalid("text that is not UTF-8"))?;
    if text.ends_with('\0') {
        return Err(unsupported("a text that ends in NUL, which an array loses"));
    }
    let letters: Vec<u8> = text
        .chars()
        .flat_map(|letter| u32::from(letter).to_le_bytes())
        .collect();
    let mut npy = npy::header(&DType::text(letters.len() / 4), &[]);
    npy.extend(letters);
    Ok(Arc::new(InMemory(npy)))
}

/// Returns bytes as a vector of numbers.
pub(super) fn bytes_as_array(file: Arc<dyn Content>) -> Arc<dyn Content> {
    let byte = DType::scalar(Kind::Uint, 1, Order::None);
    let head = InMemory(npy::header(&byte, &[file.len()]));
    Arc::new(Concat::new(vec![Arc::new(head), file]))
}

fn check_length(len: u64) -> Result<()> {
    match len <= LONGEST {
        true => Ok(()),
        false => Err(unsupported(format!(
            "a text of {len} bytes; at most {LONGEST} are converted"
        ))),
    }
}
