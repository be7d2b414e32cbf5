//! Text in the elements of datasets: its forms, its measure, its bytes.

use serde::{Deserialize, Serialize};

use super::element::RecordPart;
use super::error::H5Error;
use npyfs_base::npy::dtype::DType;

/// Attribute of a dataset of fixed width that was written as `<U`: how many characters wide (I64).
pub const CHARS: &str = "npyfs_chars";

/// The form that text is asked for in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TextForm {
    /// `|S<width>`.
    Bytes(usize),
    /// `<U<width>`, width in characters.
    Ucs4(usize),
    /// All bytes one after the other, without padding.
    Values,
    /// The length of each element in bytes, as little-endian 64-bit integers.
    Lengths,
}

/// Widths and encoding of the texts of a dataset, or of one text in its elements.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TextMeasure {
    /// Bytes of the longest text.
    pub bytes: usize,
    /// Characters of the longest text; meaningful if `utf8`.
    pub chars: usize,
    /// Every text is valid UTF-8.
    pub utf8: bool,
    /// Every text is ASCII.
    pub ascii: bool,
    /// Bytes of all texts up to the end of each block, for a text dataset.
    pub ends: Vec<u64>,
}

impl TextMeasure {
    /// Returns the measure of no text.
    pub fn none() -> Self {
        Self {
            utf8: true,
            ascii: true,
            ..Self::default()
        }
    }

    /// Adds a text.
    pub fn add(&mut self, text: &[u8]) {
        self.bytes = self.bytes.max(text.len());
        self.ascii &= text.is_ascii();
        match std::str::from_utf8(text) {
            Ok(text) => self.chars = self.chars.max(text.chars().count()),
            Err(_) => self.utf8 = false,
        }
    }
}

/// Appends one element; text that does not fit means that the file is not what was measured.
pub fn encode_text(text: &[u8], form: TextForm, out: &mut Vec<u8>) -> Result<(), H5Error> {
    let end = out.len();
    let width = match form {
        TextForm::Bytes(width) => {
            out.extend_from_slice(text);
            width
        }
        TextForm::Ucs4(width) => {
            let text = std::str::from_utf8(text)
                .map_err(|_| H5Error::Damaged("text is not UTF-8".into()))?;
            for c in text.chars() {
                out.extend_from_slice(&u32::from(c).to_le_bytes());
            }
            width.saturating_mul(4)
        }
        TextForm::Values => {
            out.extend_from_slice(text);
            return Ok(());
        }
        TextForm::Lengths => {
            out.extend_from_slice(&(text.len() as u64).to_le_bytes());
            return Ok(());
        }
    };
    if out.len() - end > width {
        return Err(H5Error::Damaged(
            "text is longer than it was when measured".into(),
        ));
    }
    out.resize(end + width, 0);
    Ok(())
}

/// Returns the type and form that each text is shown in: `<U` if it is declared UTF-8 and is it, else `|S`.
pub fn record_shown_as(part: &RecordPart, measures: &[TextMeasure]) -> Vec<(DType, TextForm)> {
    let texts = part.texts();
    let shown = texts.iter().zip(measures).map(|(&utf8, measure)| {
        if utf8 && measure.utf8 {
            let width = measure.chars.max(1);
            (DType::text(width), TextForm::Ucs4(width))
        } else {
            let width = measure.bytes.max(1);
            (DType::bytes(width), TextForm::Bytes(width))
        }
    });
    shown.collect()
}
