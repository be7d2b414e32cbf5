//! Reads the entries of an axis from its `.npy` file.

use std::sync::Arc;

use crate::store::against::AxisEntries;
use crate::store::base::invalid;
use crate::store::encode::array::NpyArray;
use crate::store::encode::text;
use npyfs_base::error::Result;
use npyfs_io::content::{Content, Slice};
use npyfs_io::npy_file::header;

/// Reads the entries in the `.npy` file of an axis.
pub fn read_entries(file: &Arc<dyn Content>) -> Result<AxisEntries> {
    let header = header(&**file)?;
    if header.shape.len() != 1 {
        return Err(invalid("an axis is a vector"));
    }
    let array = NpyArray {
        dtype: header.dtype,
        shape: header.shape,
        data: Arc::new(Slice::new(file.clone(), header.start, header.len)),
    };
    AxisEntries::of(|see| {
        text::each(&array, |_, entry| {
            see(entry);
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::encode::store::saved;
    use npyfs_base::npy::dtype::DType;
    use npyfs_io::content::InMemory;

    fn content(bytes: Vec<u8>) -> Arc<dyn Content> {
        Arc::new(InMemory(bytes))
    }

    #[test]
    fn entries_are_the_same_however_they_are_stored() {
        let letters = |text: &str, width: usize| -> Vec<u8> {
            let mut codes: Vec<u32> = text.chars().map(u32::from).collect();
            codes.resize(width, 0);
            codes.into_iter().flat_map(u32::to_le_bytes).collect()
        };
        let narrow = read_entries(&content(saved(&DType::bytes(2), &[2], b"a\0bc"))).unwrap();
        let wide = read_entries(&content(saved(&DType::bytes(4), &[2], b"a\0\0\0bc\0\0"))).unwrap();
        let payload = [letters("a", 3), letters("bc", 3)].concat();
        let text = read_entries(&content(saved(&DType::text(3), &[2], &payload))).unwrap();
        assert_eq!((&narrow, &narrow), (&wide, &text));
        let other = read_entries(&content(saved(&DType::bytes(2), &[2], b"bca\0"))).unwrap();
        assert_ne!(narrow, other);
        assert!(read_entries(&content(saved(&DType::int(1), &[2], b"ab"))).is_err());
    }
}
