//! Text datasets: the width of their elements, and the elements in a requested form. Sequences of variable length are
//! treated as bytes.

use super::dataset::{OpenDataset, bounded, shape_bytes};
use super::ffi::{self, Class, Failure, Id};
use npyfs_base::npy::dtype::{DType, Kind};
use npyfs_hdf5::protocol::{CHARS, ElementType, H5Error, TextForm, TextMeasure, encode_text};

/// The largest number of elements of a text dataset that are measured; the measurement holds the library for its whole
/// time.
const MAX_ELEMENTS: u64 = 1 << 32;

/// Measures all elements, in blocks of `rows` along the first dimension.
pub(super) fn measure(dataset: &OpenDataset, rows: u64) -> Result<TextMeasure, H5Error> {
    let space = ffi::dataset_space(&dataset.id)?;
    let (shape, _) = ffi::extent(&space)?.unwrap_or_default();
    let mut found = TextMeasure::none();
    let mut total = 0_u64;
    in_blocks(&shape, rows, |start, count| {
        for text in read(dataset, start, count)? {
            total += text.len() as u64;
            found.add(&text);
        }
        found.ends.push(total);
        Ok(())
    })?;
    Ok(found)
}

/// Calls `look` with start and shape of each block of `rows` along the first dimension. Refuses too many elements.
pub(super) fn in_blocks(
    shape: &[u64],
    rows: u64,
    mut look: impl FnMut(&[u64], &[u64]) -> Result<(), H5Error>,
) -> Result<(), H5Error> {
    let elements = shape_bytes(shape, 1);
    if elements.is_none_or(|n| n > MAX_ELEMENTS) && !shape.contains(&0) {
        return Err(H5Error::TooLarge(format!(
            "text dataset of shape {shape:?}: more than {MAX_ELEMENTS} elements"
        )));
    }
    let Some(&first) = shape.first() else {
        return look(&[], &[]);
    };
    if shape.contains(&0) {
        return Ok(());
    }
    let (mut start, mut count) = (vec![0; shape.len()], shape.to_vec());
    while start[0] < first {
        count[0] = rows.max(1).min(first - start[0]);
        look(&start, &count)?;
        start[0] += count[0];
    }
    Ok(())
}

/// Returns the form of a dataset's elements: bytes of fixed width with the mark of text are text.
pub(super) fn of_dataset(dataset: &Id, element: ElementType) -> Result<ElementType, Failure> {
    match &element {
        ElementType::Fixed { dtype, inner, .. }
            if inner.is_empty()
                && matches!(
                    dtype,
                    DType::Scalar {
                        kind: Kind::Bytes,
                        ..
                    }
                )
                && ffi::class(&ffi::dataset_type(dataset)?) == Class::H5T_STRING
                && ffi::has_attribute(dataset, CHARS.as_bytes())? =>
        {
            Ok(ElementType::Text {
                fixed: Some(dtype.size()),
                utf8: false,
            })
        }
        _ => Ok(element),
    }
}

/// Returns the texts of an attribute of `count` elements of type `stored`, which is a type of text, without padding.
pub(super) fn of_attribute(
    attribute: &Id,
    stored: &Id,
    count: usize,
) -> Result<Vec<Vec<u8>>, Failure> {
    if ffi::is_variable_string(stored) {
        let mem_type = ffi::variable_string(ffi::is_utf8(stored))?;
        return ffi::read_attribute_strings(attribute, &mem_type, count);
    }
    let bytes = ffi::read_attribute(attribute, &ffi::null_padded(stored)?, count)?;
    Ok(split(&bytes, ffi::size(stored)))
}

/// Reads a block in the requested form.
pub(super) fn render(
    dataset: &OpenDataset,
    start: &[u64],
    shape: &[u64],
    form: TextForm,
) -> Result<Vec<u8>, H5Error> {
    let width = match form {
        TextForm::Bytes(width) => width,
        TextForm::Ucs4(width) => width.saturating_mul(4),
        TextForm::Values => 0,
        TextForm::Lengths => 8,
    };
    bounded(shape, width)?;
    let texts = read(dataset, start, shape)?;
    let mut out = Vec::with_capacity(texts.len().saturating_mul(width));
    for text in &texts {
        encode_text(text, form, &mut out)?;
    }
    Ok(out)
}

/// Reads the elements of a block, without padding.
fn read(dataset: &OpenDataset, start: &[u64], shape: &[u64]) -> Result<Vec<Vec<u8>>, H5Error> {
    if let Some(base) = &dataset.sequence {
        bounded(shape, ffi::SEQUENCE)?;
        let sequences = ffi::read_sequences(&dataset.id, base, start, shape);
        let sequences = sequences.map_err(|e| dataset.failed(e))?;
        return Ok(sequences.iter().map(<[u8]>::to_vec).collect());
    }
    match dataset.element {
        ElementType::Text {
            fixed: Some(size), ..
        } => {
            bounded(shape, size)?;
            Ok(split(&dataset.read(start, shape)?, size))
        }
        ElementType::Text { fixed: None, .. } => {
            bounded(shape, size_of::<usize>())?;
            ffi::read_strings(&dataset.id, &dataset.mem_type, start, shape)
                .map_err(|e| dataset.failed(e))
        }
        ElementType::Fixed { .. } | ElementType::Record { .. } => {
            Err(H5Error::Unsupported("not a text dataset".into()))
        }
    }
}

/// Returns the text of one element of `<U`, up to its padding; a code that is no character becomes U+FFFD.
pub(super) fn of_ucs4(element: &[u8]) -> String {
    let codes = element
        .as_chunks::<4>()
        .0
        .iter()
        .copied()
        .map(u32::from_le_bytes);
    let text = codes.map(|code| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
    let text: String = text.collect();
    text.trim_end_matches('\0').to_owned()
}

/// Splits null-padded elements of `size` bytes and removes their padding.
fn split(bytes: &[u8], size: usize) -> Vec<Vec<u8>> {
    bytes
        .chunks_exact(size.max(1))
        .map(|text| {
            let end = text.iter().rposition(|&b| b != 0).map_or(0, |i| i + 1);
            text[..end].to_vec()
        })
        .collect()
}
