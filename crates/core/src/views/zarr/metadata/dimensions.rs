//! The names of an array's dimensions, which xarray requires.

use crate::views::zarr::metadata::attributes;
use npyfs_hdf5::Attribute;

/// The attribute of version 2 with these names.
pub(super) const ATTRIBUTE: &str = "_ARRAY_DIMENSIONS";

/// Returns a name for each dimension.
///
/// A dimension without a name is named after its length. Equal lengths then share a dimension everywhere in the store,
/// different lengths never do, and no name depends on the other contents of the store. Lengths that occur twice in an
/// array are counted.
pub(super) fn names(
    shape: &[u64],
    known: &[Option<String>],
    attributes: &[Attribute],
) -> Vec<String> {
    if known.iter().all(Option::is_none)
        && let Some(own) = attributes::texts(attributes, ATTRIBUTE)
        && own.len() == shape.len()
    {
        return own;
    }
    let mut names = Vec::with_capacity(shape.len());
    for (axis, length) in shape.iter().enumerate() {
        if let Some(Some(name)) = known.get(axis) {
            names.push(name.clone());
            continue;
        }
        let plain = format!("phony_dim_{length}");
        let mut name = plain.clone();
        let mut count = 1;
        while names.contains(&name) {
            count += 1;
            name = format!("{plain}_{count}");
        }
        names.push(name);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_base::npy::dtype::DType;

    #[test]
    fn names_that_are_missing_follow_from_the_length() {
        assert_eq!(
            names(&[3, 3, 4, 3], &[], &[]),
            [
                "phony_dim_3",
                "phony_dim_3_2",
                "phony_dim_4",
                "phony_dim_3_3"
            ]
        );
        assert_eq!(
            names(&[3, 4], &[None, Some("x".into())], &[]),
            ["phony_dim_3", "x"]
        );
        assert!(names(&[], &[], &[]).is_empty());
    }

    #[test]
    fn an_attribute_that_came_from_zarr_counts_without_scales() {
        let attribute = Attribute::new(ATTRIBUTE, DType::bytes(2), &[2], b"y\0xx");
        let attributes = [attribute];
        assert_eq!(names(&[3, 4], &[], &attributes), ["y", "xx"]);
        assert_eq!(
            names(&[3, 4], &[Some("a".into()), None], &attributes),
            ["a", "phony_dim_4"]
        );
        assert_eq!(names(&[3], &[], &attributes), ["phony_dim_3"]);
    }
}
