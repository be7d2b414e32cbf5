//! Text and bytes that are files in one store and arrays in another.

use std::sync::Arc;

use crate::checkout::encode::{NpyArray, header, invalid, text, unsupported};
use crate::error::Result;
use crate::io::content::{Concat, Content, InMemory};
use crate::npy;
use crate::npy::dtype::{DType, Kind, Order};

/// Bytes of the longest text that becomes an array, or the other way round: it is held in memory.
const LONGEST: u64 = 64 << 20;

/// Returns whether an `.npy` file is a single text.
pub(super) fn is_single_text(file: &dyn Content) -> Result<bool> {
    // What is no whole file is refused by those who take it.
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
