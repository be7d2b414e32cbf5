//! The names of an array's dimensions, which xarray cannot do without.

use crate::hdf5::Attribute;
use crate::views::zarr::metadata::attributes;

/// The attribute of version 2 that holds them.
pub(super) const ATTRIBUTE: &str = "_ARRAY_DIMENSIONS";

/// Returns a name for each dimension.
///
/// One without a name is called after its length: equal lengths then share a dimension everywhere in the store, different ones never do, and no
/// name depends on what else is there. Lengths that an array has twice are counted.
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
    use crate::hdf5::Value;
    use crate::npy::dtype::DType;

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
        let attribute = Attribute {
            name: ATTRIBUTE.into(),
            value: Ok(Value {
                dtype: DType::bytes(2),
                shape: vec![2],
                data: b"y\0xx".to_vec(),
            }),
            references: None,
        };
        let attributes = [attribute];
        assert_eq!(names(&[3, 4], &[], &attributes), ["y", "xx"]);
        assert_eq!(
            names(&[3, 4], &[Some("a".into()), None], &attributes),
            ["a", "phony_dim_4"]
        );
        assert_eq!(names(&[3], &[], &attributes), ["phony_dim_3"]);
    }
}
