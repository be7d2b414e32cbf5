//! Tables: columns of one length, as formats know them.
//!
//! Nothing here is read: a table names the files that its columns are in. What can be said of the elements, such as
//! their types, is said by the files.

use std::sync::Arc;

use crate::tree::name::own_name;
use crate::tree::{Directory, Node, VirtualFile};
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::Attribute;

/// The most columns of a group whose arrays are looked at.
const MOST_COLUMNS: usize = 4096;

/// A table, or the reason why an object that should be one is not.
pub type Found = std::result::Result<Table, String>;

/// Columns of one length.
#[derive(Default)]
pub struct Table {
    /// The columns in their order.
    pub columns: Vec<Column>,
    /// What the table as a whole is described by.
    pub attributes: Vec<Attribute>,
    /// Columns that the table should have, with the reasons why they are not there.
    pub left_out: Vec<(String, String)>,
}

/// A column: its name, and where its values are.
pub struct Column {
    /// The name.
    pub name: String,
    /// The values.
    pub values: Values,
}

/// The values of a column.
#[derive(Clone)]
pub enum Values {
    /// The elements of a one-dimensional array.
    Array(Arc<dyn VirtualFile>),
    /// A part of each row of an array.
    Part {
        /// The array.
        file: Arc<dyn VirtualFile>,
        /// The member, if the elements are compounds.
        member: Option<String>,
        /// The position among the values of a row; `None`: all of them.
        at: Option<u64>,
        /// What the bytes of a value mean, if that is not said by the array.
        dtype: Option<DType>,
    },
    /// Positions in a list of values, of which -1 is a missing value.
    Coded {
        /// The positions.
        codes: Box<Values>,
        /// The values.
        values: Box<Values>,
        /// Whether the list of values says which is smaller.
        ordered: bool,
    },
    /// Values of which some are missing.
    Masked {
        /// The values.
        values: Box<Values>,
        /// Whether each is missing.
        mask: Box<Values>,
    },
    /// Texts of which one stands for a missing value.
    Marked {
        /// The values.
        values: Box<Values>,
        /// What stands for a missing one.
        missing: String,
    },
    /// Times in a time zone, as they are in UTC.
    Zoned {
        /// The values.
        values: Box<Values>,
        /// The name of the zone.
        zone: String,
    },
    /// Runs of the elements of an array, which follow each other.
    Lists {
        /// The position at which each run begins.
        starts: Box<Values>,
        /// The elements.
        values: Box<Values>,
    },
}

impl Values {
    /// Returns the files that the values are in.
    pub fn files(&self) -> Vec<&Arc<dyn VirtualFile>> {
        match self {
            Self::Array(file) | Self::Part { file, .. } => vec![file],
            Self::Marked { values, .. } | Self::Zoned { values, .. } => values.files(),
            Self::Coded {
                codes: one,
                values: other,
                ..
            }
            | Self::Masked {
                values: one,
                mask: other,
            }
            | Self::Lists {
                starts: one,
                values: other,
            } => {
                let mut files = one.files();
                files.extend(other.files());
                files
            }
        }
    }
}

impl Values {
    /// Returns what the values are beside what their files say, as one text.
    pub fn meaning(&self) -> String {
        match self {
            Self::Array(_) => "array".to_owned(),
            Self::Part {
                member, at, dtype, ..
            } => {
                let dtype = dtype.as_ref().map(DType::name);
                format!("part {member:?} {at:?} {dtype:?}")
            }
            Self::Coded {
                codes,
                values,
                ordered,
            } => format!(
                "coded {ordered} ({}) ({})",
                codes.meaning(),
                values.meaning()
            ),
            Self::Masked { values, mask } => {
                format!("masked ({}) ({})", values.meaning(), mask.meaning())
            }
            Self::Marked { values, missing } => {
                format!("marked {missing:?} ({})", values.meaning())
            }
            Self::Zoned { values, zone } => format!("zoned {zone:?} ({})", values.meaning()),
            Self::Lists { starts, values } => {
                format!("lists ({}) ({})", starts.meaning(), values.meaning())
            }
        }
    }
}

impl Table {
    /// Returns the files that the columns are in.
    pub fn files(&self) -> impl Iterator<Item = &Arc<dyn VirtualFile>> {
        self.columns.iter().flat_map(|column| column.values.files())
    }
}

/// What a file of the tree is known to be without reading it; `None`: it is no array of a dataset, or not readable.
pub fn known_shape(file: &Arc<dyn VirtualFile>) -> Option<Vec<u64>> {
    let array = file.clone().array().ok()??;
    Some(array.shape().to_vec())
}

/// Returns whether a file of the tree is known to have compounds as elements.
pub fn has_members(file: &Arc<dyn VirtualFile>) -> bool {
    matches!(file.clone().array(), Ok(Some(array)) if array.has_members())
}

/// Returns the table of a directory in which all arrays of one dimension have one length. Compounds are left to tables
/// of their own. `None`: there are no such arrays, or arrays of several lengths.
pub fn of_arrays(dir: &Arc<dyn Directory>, sep: u8) -> Result<Option<Found>> {
    let listing = dir.list()?;
    if listing.len() > MOST_COLUMNS {
        return Ok(None);
    }
    let mut rows = None;
    let mut columns = Vec::new();
    for (shown, node) in listing.objects() {
        let (Some(stem), Node::File(file)) = (shown.strip_suffix(b".npy"), &*node) else {
            continue;
        };
        let Some(&[length]) = known_shape(file).as_deref() else {
            continue;
        };
        if has_members(file) {
            continue;
        }
        if *rows.get_or_insert(length) != length {
            return Ok(None);
        }
        columns.push(Column {
            name: String::from_utf8_lossy(&own_name(stem, sep)).into_owned(),
            values: Values::Array(file.clone()),
        });
    }
    if columns.is_empty() {
        return Ok(None);
    }
    Ok(Some(Ok(Table {
        columns,
        attributes: dir.attributes()?,
        left_out: Vec::new(),
    })))
}
