//! The metadata documents of Zarr: their text, made from the HDF5 descriptions of groups and datasets, and the files
//! that show it.
//!
//! The documents contain only what zarr-python 3.1 and xarray can read. A type or value that they refuse is left out
//! with the reason, since one such array would keep a whole store with consolidated metadata from being opened.

mod attributes;
mod dtype;
mod fill;

use std::sync::Arc;

use serde_json::{Map, Value as Json, json};
use xxhash_rust::xxh3::xxh3_64;

use super::Version;
use crate::tree::{Node, VirtualFile};
use npyfs_base::error;
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::Attribute;
use npyfs_io::content::{Content, InMemory};
use npyfs_io::file::Ownership;

/// The name of an entry that is not shown, with the reason.
pub type LeftOut = (String, String);

/// The form of an array's elements in its chunk files.
#[derive(Clone, Copy, Debug)]
pub enum Element<'a> {
    /// Elements of one size.
    Fixed(&'a DType),
    /// UTF-8 of variable length, in the encoding `vlen-utf8`.
    Text,
}

/// The description of an array for its metadata.
#[derive(Clone, Copy, Debug)]
pub struct ArrayMeta<'a> {
    /// The shape of the array.
    pub shape: &'a [u64],
    /// The shape of a chunk, as long as the shape, without zeros.
    pub chunks: &'a [u64],
    /// The form of the elements.
    pub element: Element<'a>,
    /// The element, or its UTF-8 text, that is shown for unwritten places; `None` stands for zeros or empty text.
    pub fill: Option<&'a [u8]>,
    /// The attributes of the dataset.
    pub attributes: &'a [Attribute],
    /// The known names of the dimensions; missing ones are made up.
    pub dimensions: &'a [Option<String>],
}

/// The metadata of a group or an array.
#[derive(Clone, Debug)]
pub struct Documents {
    /// The files: names and contents.
    pub files: Vec<(&'static str, Json)>,
    /// A missing chunk file means the same as the elements that HDF5 shows for unwritten places.
    pub chunks_may_be_absent: bool,
    /// The attributes that are not shown.
    pub left_out: Vec<LeftOut>,
}

impl Documents {
    /// Returns the names and texts of the files.
    pub fn texts(&self) -> impl Iterator<Item = (&'static str, Vec<u8>)> {
        self.files.iter().map(|(name, json)| (*name, text(json)))
    }
}

/// Returns the text of a document.
fn text(json: &Json) -> Vec<u8> {
    format!("{json:#}\n").into_bytes()
}

/// Returns the metadata of a group with these attributes.
pub fn group(version: Version, attributes: &[Attribute]) -> Documents {
    let (shown, left_out) = attributes::json(attributes);
    let files = match version {
        Version::V2 => vec![
            (".zgroup", json!({ "zarr_format": 2 })),
            (".zattrs", shown.into()),
        ],
        Version::V3 => vec![(
            "zarr.json",
            json!({ "zarr_format": 3, "node_type": "group", "attributes": shown }),
        )],
    };
    Documents {
        files,
        chunks_may_be_absent: true,
        left_out,
    }
}

/// Returns the metadata of an array, or the reason why Zarr cannot hold its elements.
pub fn array(version: Version, array: &ArrayMeta) -> Result<Documents, String> {
    match version {
        Version::V2 => array_v2(array),
        Version::V3 => array_v3(array),
    }
}

/// Returns `.zarray` and `.zattrs`.
///
/// xarray takes the fill value of version 2 for the mark of missing elements, and masks it. The fill value is therefore
/// present only if `_FillValue` has the same value, and all chunks are present unless HDF5 shows this value in their
/// place.
fn array_v2(array: &ArrayMeta) -> Result<Documents, String> {
    let (dtype, filters) = match array.element {
        Element::Fixed(dtype) => (dtype::v2(dtype)?, Json::Null),
        Element::Text => ("|O".into(), json!([{ "id": "vlen-utf8" }])),
    };
    let (mut shown, left_out) = attributes::json_besides(array.attributes, &[FILL_VALUE]);
    let mut missing = fill::Missing::find(array.attributes, &array.element, Version::V2);
    missing.left_out.extend(left_out);
    if let Some(value) = missing.attribute {
        shown.insert(FILL_VALUE.into(), value);
    }
    let names = dimension_names(array.shape, array.dimensions, array.attributes);
    shown.insert(ARRAY_DIMENSIONS.into(), names.into());
    let chunks_may_be_absent = missing.element.is_some()
        && missing.element == fill::shown(&array.element, array.fill, Version::V2);
    Ok(Documents {
        files: vec![
            (
                ".zarray",
                json!({
                    "zarr_format": 2,
                    "shape": array.shape,
                    "chunks": array.chunks,
                    "dtype": dtype,
                    "compressor": null,
                    "fill_value": missing.element,
                    "order": "C",
                    "filters": filters,
                    "dimension_separator": ".",
                }),
            ),
            (".zattrs", shown.into()),
        ],
        chunks_may_be_absent,
        left_out: missing.left_out,
    })
}

/// Returns `zarr.json`. Its fill value is that of HDF5; the mark of missing elements is the attribute `_FillValue`.
fn array_v3(array: &ArrayMeta) -> Result<Documents, String> {
    let (data_type, codec) = match array.element {
        Element::Fixed(dtype) => dtype::v3(dtype)?,
        Element::Text => ("string".into(), json!({ "name": "vlen-utf8" })),
    };
    let (mut shown, left_out) =
        attributes::json_besides(array.attributes, &[FILL_VALUE, ARRAY_DIMENSIONS]);
    let mut missing = fill::Missing::find(array.attributes, &array.element, Version::V3);
    missing.left_out.extend(left_out);
    if let Some(value) = missing.attribute {
        shown.insert(FILL_VALUE.into(), value);
    }
    let fill = fill::shown(&array.element, array.fill, Version::V3);
    let document = json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": array.shape,
        "data_type": data_type,
        "chunk_grid": { "name": "regular", "configuration": { "chunk_shape": array.chunks } },
        "chunk_key_encoding": { "name": "v2", "configuration": { "separator": "." } },
        "fill_value": match &fill {
            Some(fill) => fill.clone(),
            None => fill::shown(&array.element, None, Version::V3).unwrap_or_else(|| "".into()),
        },
        "codecs": [codec],
        "attributes": shown,
        "dimension_names": dimension_names(array.shape, array.dimensions, array.attributes),
    });
    Ok(Documents {
        files: vec![("zarr.json", document)],
        chunks_may_be_absent: fill.is_some(),
        left_out: missing.left_out,
    })
}

/// The attribute with the value that marks missing elements.
const FILL_VALUE: &str = "_FillValue";

/// Returns the name and the text of the file with the metadata of a whole store: `root` has the metadata of the root,
/// `members` those of everything below it, by path.
pub fn consolidated<'a>(
    version: Version,
    root: &'a Documents,
    members: impl IntoIterator<Item = (&'a str, &'a Documents)>,
) -> (&'static str, Vec<u8>) {
    match version {
        Version::V2 => {
            let mut metadata = Map::new();
            for (path, documents) in std::iter::once(("", root)).chain(members) {
                for (name, json) in &documents.files {
                    metadata.insert(below(path, name), json.clone());
                }
            }
            let whole = json!({ "zarr_consolidated_format": 1, "metadata": metadata });
            (".zmetadata", text(&whole))
        }
        Version::V3 => {
            let metadata: Map<String, Json> = members
                .into_iter()
                .filter_map(|(path, documents)| {
                    let (_, json) = documents.files.first()?;
                    Some((path.to_owned(), json.clone()))
                })
                .collect();
            let mut whole = match root.files.first() {
                Some((_, Json::Object(map))) => map.clone(),
                _ => Map::new(),
            };
            whole.insert(
                "consolidated_metadata".into(),
                json!({ "kind": "inline", "must_understand": false, "metadata": metadata }),
            );
            ("zarr.json", text(&whole.into()))
        }
    }
}

fn below(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        path => format!("{path}/{name}"),
    }
}

/// The attribute of version 2 with these names.
const ARRAY_DIMENSIONS: &str = "_ARRAY_DIMENSIONS";

/// Returns a name for each dimension of an array: xarray requires one.
///
/// A dimension without a name is named after its length. Equal lengths then share a dimension everywhere in the store,
/// different lengths never do, and no name depends on the other contents of the store. Lengths that occur twice in an
/// array are counted.
fn dimension_names(
    shape: &[u64],
    known: &[Option<String>],
    attributes: &[Attribute],
) -> Vec<String> {
    if known.iter().all(Option::is_none)
        && let Some(own) = attributes::texts(attributes, ARRAY_DIMENSIONS)
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

/// The text of a file, and a check that its subject is still the version that the text was made from.
pub(super) struct DocumentFile {
    text: Arc<Vec<u8>>,
    ownership: Ownership,
    is_current: Box<dyn Fn() -> bool + Send + Sync>,
}

impl DocumentFile {
    /// Returns the file of a text.
    pub(super) fn node(
        text: Arc<Vec<u8>>,
        ownership: Ownership,
        is_current: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Node {
        Node::File(Arc::new(Self {
            text,
            ownership,
            is_current: Box::new(is_current),
        }))
    }
}

impl VirtualFile for DocumentFile {
    fn ownership(&self) -> Ownership {
        self.ownership
    }

    fn size(&self) -> error::Result<u64> {
        Ok(self.text.len() as u64)
    }

    fn open(&self) -> error::Result<Arc<dyn Content>> {
        Ok(Arc::new(InMemory(self.text.to_vec())))
    }

    fn version(&self) -> u64 {
        xxh3_64(&self.text)
    }

    fn is_current(&self) -> bool {
        (self.is_current)()
    }

    fn info(&self) -> error::Result<Json> {
        Ok(json!({ "kind": "zarr", "bytes": self.text.len() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_base::npy::dtype::{Kind, Order};

    fn float32() -> DType {
        DType::scalar(Kind::Float, 4, Order::Little)
    }

    fn meta<'a>(dtype: &'a DType, attributes: &'a [Attribute]) -> ArrayMeta<'a> {
        ArrayMeta {
            shape: &[10, 20],
            chunks: &[5, 20],
            element: Element::Fixed(dtype),
            fill: None,
            attributes,
            dimensions: &[],
        }
    }

    #[test]
    fn a_fill_value_is_only_there_if_the_file_says_that_it_means_missing() {
        let dtype = float32();
        let found = array(Version::V2, &meta(&dtype, &[])).unwrap();
        assert!(!found.chunks_may_be_absent);
        let (name, zarray) = &found.files[0];
        assert_eq!(*name, ".zarray");
        assert_eq!(zarray["fill_value"], Json::Null);
        assert_eq!(zarray["dtype"], "<f4");

        let nan = [Attribute::new(
            "_FillValue",
            float32(),
            &[1],
            &f32::NAN.to_le_bytes(),
        )];
        let found = array(Version::V2, &meta(&dtype, &nan)).unwrap();
        assert_eq!(found.files[0].1["fill_value"], "NaN");
        assert!(found.files[1].1.get("_FillValue").is_none());
        assert!(!found.chunks_may_be_absent);
        let fill = f32::NAN.to_le_bytes();
        let filled = ArrayMeta {
            fill: Some(&fill),
            ..meta(&dtype, &nan)
        };
        assert!(array(Version::V2, &filled).unwrap().chunks_may_be_absent);
    }

    #[test]
    fn version_3_has_the_fill_of_hdf5_and_the_missing_value_as_an_attribute() {
        let dtype = DType::scalar(Kind::Float, 4, Order::Big);
        let missing = [Attribute::new(
            "_FillValue",
            float32(),
            &[],
            &(-1f32).to_le_bytes(),
        )];
        let found = array(Version::V3, &meta(&dtype, &missing)).unwrap();
        let (name, json) = &found.files[0];
        assert_eq!(*name, "zarr.json");
        assert_eq!(json["fill_value"], 0.0);
        assert_eq!(json["codecs"][0]["configuration"]["endian"], "big");
        assert_eq!(json["attributes"]["_FillValue"], "AAAAAAAA8L8=");
        assert_eq!(
            json["dimension_names"],
            json!(["phony_dim_10", "phony_dim_20"])
        );
        assert!(found.chunks_may_be_absent);
    }

    #[test]
    fn text_has_a_filter_and_no_fill_value() {
        let dtype = float32();
        let text = ArrayMeta {
            element: Element::Text,
            ..meta(&dtype, &[])
        };
        let found = array(Version::V2, &text).unwrap();
        assert_eq!(found.files[0].1["dtype"], "|O");
        assert_eq!(found.files[0].1["filters"][0]["id"], "vlen-utf8");
        assert_eq!(found.files[0].1["fill_value"], Json::Null);
        let found = array(Version::V3, &text).unwrap();
        assert_eq!(found.files[0].1["data_type"], "string");
        assert_eq!(found.files[0].1["fill_value"], "");
    }

    #[test]
    fn consolidated_metadata_hold_every_document() {
        let dtype = float32();
        for version in [Version::V2, Version::V3] {
            let root = group(version, &[]);
            let inner = array(version, &meta(&dtype, &[])).unwrap();
            let (name, text) = consolidated(version, &root, [("g", &root), ("g/a", &inner)]);
            let json: Json = serde_json::from_slice(&text).unwrap();
            match version {
                Version::V2 => {
                    assert_eq!(name, ".zmetadata");
                    let keys: Vec<_> = json["metadata"].as_object().unwrap().keys().collect();
                    let files = [".zattrs", ".zgroup"];
                    assert_eq!(keys[..2], files);
                    assert_eq!(keys[2..4], ["g/.zattrs", "g/.zgroup"]);
                    assert_eq!(keys[4..], ["g/a/.zarray", "g/a/.zattrs"]);
                }
                Version::V3 => {
                    assert_eq!(name, "zarr.json");
                    let below = &json["consolidated_metadata"]["metadata"];
                    assert_eq!(below["g/a"]["node_type"], "array");
                    assert_eq!(below["g"]["node_type"], "group");
                }
            }
        }
    }

    #[test]
    fn names_that_are_missing_follow_from_the_length() {
        assert_eq!(
            dimension_names(&[3, 3, 4, 3], &[], &[]),
            [
                "phony_dim_3",
                "phony_dim_3_2",
                "phony_dim_4",
                "phony_dim_3_3"
            ]
        );
        assert_eq!(
            dimension_names(&[3, 4], &[None, Some("x".into())], &[]),
            ["phony_dim_3", "x"]
        );
        assert!(dimension_names(&[], &[], &[]).is_empty());
    }

    #[test]
    fn an_attribute_that_came_from_zarr_counts_without_scales() {
        let attribute = Attribute::new(ARRAY_DIMENSIONS, DType::bytes(2), &[2], b"y\0xx");
        let attributes = [attribute];
        assert_eq!(dimension_names(&[3, 4], &[], &attributes), ["y", "xx"]);
        assert_eq!(
            dimension_names(&[3, 4], &[Some("a".into()), None], &attributes),
            ["a", "phony_dim_4"]
        );
        assert_eq!(dimension_names(&[3], &[], &attributes), ["phony_dim_3"]);
    }
}
