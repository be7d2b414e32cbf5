//! The result of a pass over all text of a dataset: lengths, and the form in which the text is shown.

use npyfs_base::error::{Error, Result};
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::{TextForm, TextMeasure};

/// Elements with text inside, as shown.
pub struct ShownRecord {
    /// The element type, with text at a fixed width.
    pub dtype: DType,
    pub(super) forms: Vec<TextForm>,
    /// The element at all positions, if the dataset was never written.
    pub(super) constant: Option<Vec<u8>>,
}

/// The result of a pass over a dataset with text.
#[derive(Default)]
pub struct Measured {
    /// Lengths and encodings of the text, as a worker measured them.
    pub measure: TextMeasure,
    /// The form in which elements with text inside are shown.
    pub(super) record: Option<ShownRecord>,
    /// The width in characters recorded by the writer.
    pub chars: Option<usize>,
    /// The element at all positions, if the dataset was never written.
    pub constant: Option<Vec<u8>>,
}

impl Measured {
    /// Creates the result for elements with text inside.
    pub fn of_record(shown: ShownRecord) -> Self {
        Self {
            record: Some(shown),
            ..Self::default()
        }
    }

    /// Returns the form in which elements with text inside are shown; fails for other datasets.
    pub fn record(&self) -> Result<&ShownRecord> {
        let none = || Error::damaged("no text inside its elements");
        self.record.as_ref().ok_or_else(none)
    }
}
