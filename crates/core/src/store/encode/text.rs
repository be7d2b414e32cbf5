//! Text as it is stored: UTF-8 or ASCII of fixed width.

use std::sync::Arc;

use super::array::NpyArray;
use super::contents::{MappedElements, Zeros};
use super::ucs4;
use crate::store::base::invalid;
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::{Kind, Order};
use npyfs_hdf5::{CHARS, NewAttribute, NewDataset};
use npyfs_io::content::Content;

/// Bytes that are looked at at a time.
const STEP: usize = 1 << 20;

/// Widest text that is looked at, in bytes: an element is in memory as a whole.
const WIDEST: usize = 64 << 20;

/// One element of `<U` in UTF-8, without its padding, appended.
pub(crate) fn encode(element: &[u8], order: Order, out: &mut Vec<u8>) -> Result<()> {
    let mut bytes = [0; 4];
    for code in ucs4::characters(element, order) {
        let letter = char::from_u32(code)
            .ok_or_else(|| invalid(format!("the text holds {code:#x}, which is no character")))?;
        out.extend_from_slice(letter.encode_utf8(&mut bytes).as_bytes());
    }
    Ok(())
}

/// Returns whether elements are `|S` or `<U`.
pub(crate) fn is_text(array: &NpyArray) -> bool {
    matches!(array.kind(), Some(Kind::Bytes | Kind::Text))
}

/// Shows each element of a text array in UTF-8, or its bytes, without padding; the number comes with it.
pub(crate) fn each(array: &NpyArray, mut see: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
    let Some((kind @ (Kind::Bytes | Kind::Text), size, order)) = array.scalar() else {
        return Err(invalid(format!("{} is no text", array.dtype.name())));
    };
    check_width(size)?;
    if size == 0 {
        return (0..array.elements()).try_for_each(|number| see(number, b""));
    }
    let mut element = Vec::new();
    let mut number = 0;
    windows(array, size, |block| {
        for text in block.chunks_exact(size) {
            if kind == Kind::Text {
                element.clear();
                encode(text, order, &mut element)?;
                see(number, &element)?;
            } else {
                let end = text.iter().rposition(|&b| b != 0).map_or(0, |i| i + 1);
                see(number, text.get(..end).unwrap_or_default())?;
            }
            number += 1;
        }
        Ok(())
    })
}

fn check_width(size: usize) -> Result<()> {
    if size <= WIDEST {
        return Ok(());
    }
    Err(invalid(format!(
        "text of {size} bytes an element: at most {WIDEST} can be stored"
    )))
}

/// Hands on an array in windows of whole elements of `size` bytes.
pub(crate) fn windows(
    array: &NpyArray,
    size: usize,
    mut see: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let step = (STEP / size.max(1)).max(1).saturating_mul(size);
    let mut block = vec![0; usize::try_from(array.data.len()).unwrap_or(step).min(step)];
    let mut at = 0;
    while at < array.data.len() {
        let left = usize::try_from(array.data.len() - at).unwrap_or(step);
        let block = block.get_mut(..left.min(step)).unwrap_or_default();
        array.data.read_at(at, block)?;
        see(block)?;
        at += block.len() as u64;
    }
    Ok(())
}

/// Says of a dataset that it was written as `<U`, if it was, so that it reads back as such.
pub(crate) fn mark(dataset: &mut NewDataset, array: &NpyArray) {
    if let Some((Kind::Text, size @ 4.., _)) = array.scalar() {
        let chars = i64::try_from(size / 4).unwrap_or(i64::MAX);
        dataset.attributes.push(NewAttribute::int(CHARS, chars));
    }
}

/// Text as UTF-8 of fixed width, and the elements. The width in bytes is that of the array in characters, or more if
/// a pass over all of it finds such text.
pub(crate) fn utf8(array: &NpyArray) -> Result<(usize, Arc<dyn Content>)> {
    let mut width = match array.scalar() {
        Some((Kind::Text, size, _)) => (size / 4).max(1),
        _ => 1,
    };
    each(array, |_, text| {
        width = width.max(text.len());
        Ok(())
    })?;
    Ok((width, fixed(array, width, |_| Ok(()))))
}

/// Returns text as ASCII of fixed width, which is that of the array, and the width. Other text is refused while it is
/// copied, as `reader` has no form for it.
pub(crate) fn ascii(array: &NpyArray, reader: &'static str) -> Result<(usize, Arc<dyn Content>)> {
    let width = match array.scalar() {
        Some((Kind::Text, size, _)) => size / 4,
        Some((_, size, _)) => size,
        None => 0,
    };
    check_width(width)?;
    let width = width.max(1);
    let check = move |text: &[u8]| {
        if text.is_ascii() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(text);
        Err(invalid(format!(
            "{text:?} is not ASCII: {reader} cannot read it"
        )))
    };
    Ok((width, fixed(array, width, check)))
}

/// Elements that fit, padded with NUL.
fn fixed(
    array: &NpyArray,
    width: usize,
    check: impl Fn(&[u8]) -> Result<()> + Send + Sync + 'static,
) -> Arc<dyn Content> {
    let Some((kind, size @ 1.., order)) = array.scalar() else {
        return Arc::new(Zeros(array.elements().saturating_mul(width as u64)));
    };
    MappedElements::content(array.data.clone(), size, width, move |_, from, to| {
        let mut element = Vec::new();
        for (text, place) in from.chunks_exact(size).zip(to.chunks_exact_mut(width)) {
            element.clear();
            match kind {
                Kind::Text => encode(text, order, &mut element)?,
                _ => element.extend_from_slice(text),
            }
            check(&element)?;
            if element.len() > width {
                return Err(invalid("the text changed while it was stored"));
            }
            element.resize(width, 0);
            place.copy_from_slice(&element);
        }
        Ok(())
    })
}
