//! Axes of daf stores: which ones the data of an object lie along, and what their entries are.

use std::sync::Arc;

use crate::checkout::encode::array::{Array, header};
use crate::checkout::encode::{invalid, text};
use crate::checkout::fit::Entries;
use crate::error::Result;
use crate::formats::daf::rules::{Meaning, meaning};
use crate::io::content::{Content, Slice};

/// Whether an object of this own name is an axis.
pub fn is_axis(name: &str) -> bool {
    meaning(name) == Meaning::Axis
}

/// Returns the names of the axes that an object lies along, each once: `cell#` and `gene#` for `cell,gene#UMIs`.
pub fn along(name: &str) -> Vec<String> {
    let Meaning::Property(axes) = meaning(name) else {
        return Vec::new();
    };
    let mut names: Vec<String> = axes.into_iter().map(|axis| format!("{axis}#")).collect();
    names.dedup();
    names
}

/// Reads the entries in the `.npy` file of an axis.
pub fn entries(file: &Arc<dyn Content>) -> Result<Entries> {
    let header = header(&**file)?;
    if header.shape.len() != 1 {
        return Err(invalid("an axis is a vector"));
    }
    let array = Array {
        dtype: header.dtype,
        shape: header.shape,
        data: Arc::new(Slice::new(file.clone(), header.start, header.len)),
    };
    Entries::of(|see| {
        text::each(&array, |_, entry| {
            see(entry);
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkout::encode::store::saved;
    use crate::io::content::Literal;
    use crate::npy::dtype::DType;

    fn content(bytes: Vec<u8>) -> Arc<dyn Content> {
        Arc::new(Literal(bytes))
    }

    #[test]
    fn entries_are_the_same_however_they_are_stored() {
        let letters = |text: &str, width: usize| -> Vec<u8> {
            let mut codes: Vec<u32> = text.chars().map(u32::from).collect();
            codes.resize(width, 0);
            codes.into_iter().flat_map(u32::to_le_bytes).collect()
        };
        let narrow = entries(&content(saved(&DType::bytes(2), &[2], b"a\0bc"))).unwrap();
        let wide = entries(&content(saved(&DType::bytes(4), &[2], b"a\0\0\0bc\0\0"))).unwrap();
        let payload = [letters("a", 3), letters("bc", 3)].concat();
        let text = entries(&content(saved(&DType::text(3), &[2], &payload))).unwrap();
        assert_eq!((&narrow, &narrow), (&wide, &text));
        let other = entries(&content(saved(&DType::bytes(2), &[2], b"bca\0"))).unwrap();
        assert_ne!(narrow, other);
        assert!(entries(&content(saved(&DType::int(1), &[2], b"ab"))).is_err());
    }

    #[test]
    fn what_lies_along_what() {
        assert_eq!(along("cell,gene#UMIs"), ["cell#", "gene#"]);
        assert_eq!(along("gene,gene#corr"), ["gene#"]);
        assert_eq!(along("cell#age"), ["cell#"]);
        assert!(along("cell#").is_empty() && along("title").is_empty());
        assert!(is_axis("cell#") && !is_axis("cell#age"));
    }
}
