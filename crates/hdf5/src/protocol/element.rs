//! The elements of datasets and attributes, in NumPy's terms.

use serde::{Deserialize, Serialize};

use npyfs_base::npy::dtype::{DType, Field};

/// The form in which the elements of a dataset or attribute are shown.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ElementType {
    /// Fixed-size elements.
    Fixed {
        /// Their type, without the dimensions of an array datatype.
        dtype: DType,
        /// Dimensions of an array datatype, which join the shape of the dataset.
        inner: Vec<u64>,
        /// The stored bytes are not the served ones: libhdf5 must convert.
        convert: bool,
    },
    /// Text whose width is known only after a look at all of it.
    Text {
        /// Stored bytes per element, or `None` for variable length.
        fixed: Option<usize>,
        /// The datatype is declared UTF-8.
        utf8: bool,
    },
    /// Elements with text of variable length inside, in members of compounds or in arrays.
    Record {
        /// Their type, without the dimensions of an array datatype.
        part: RecordPart,
        /// Dimensions of an array datatype, which join the shape of the dataset.
        inner: Vec<u64>,
    },
}

impl ElementType {
    /// Returns the dimensions of an array datatype.
    pub fn inner(&self) -> &[u64] {
        match self {
            Self::Fixed { inner, .. } | Self::Record { inner, .. } => inner,
            Self::Text { .. } => &[],
        }
    }
}

/// The type of an element, or of a member of one, that may have text inside.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RecordPart {
    /// Bytes that are served as they are read.
    Plain(DType),
    /// A text of variable length.
    Text {
        /// The datatype is declared UTF-8.
        utf8: bool,
    },
    /// Members that follow one another without gaps; there is text in some.
    Struct(Vec<RecordMember>),
}

/// A member of a structure with text in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RecordMember {
    /// The name.
    pub name: String,
    /// Shape of a subarray member; empty for a plain one.
    pub shape: Vec<u64>,
    /// The type, without the dimensions of the subarray.
    pub part: RecordPart,
}

fn count(shape: &[u64]) -> Option<usize> {
    let n = shape.iter().try_fold(1_u64, |n, &d| n.checked_mul(d))?;
    usize::try_from(n).ok()
}

impl RecordPart {
    /// Returns whether there is text in it.
    pub fn has_text(&self) -> bool {
        !matches!(self, Self::Plain(_))
    }

    /// Returns for each text, in order, whether it is declared UTF-8. The texts of a subarray are as wide as its
    /// widest, and count once.
    pub fn texts(&self) -> Vec<bool> {
        match self {
            Self::Plain(_) => Vec::new(),
            Self::Text { utf8 } => vec![*utf8],
            Self::Struct(members) => members.iter().flat_map(|m| m.part.texts()).collect(),
        }
    }

    /// Returns the element type with these types in the place of the texts; `None` if it is too large, or they are too
    /// few.
    pub fn dtype(&self, texts: &[DType]) -> Option<DType> {
        self.with(&mut texts.iter())
    }

    fn with<'a>(&self, texts: &mut impl Iterator<Item = &'a DType>) -> Option<DType> {
        let members = match self {
            Self::Plain(dtype) => return Some(dtype.clone()),
            Self::Text { .. } => return texts.next().cloned(),
            Self::Struct(members) => members,
        };
        let mut size = 0_usize;
        let mut fields = Vec::with_capacity(members.len());
        for member in members {
            let field = Field {
                name: member.name.clone(),
                offset: size,
                dtype: member.part.with(texts)?,
                shape: member.shape.clone(),
            };
            size = size.checked_add(field.size()?)?;
            fields.push(field);
        }
        Some(DType::Struct { fields, size })
    }

    /// Returns the bytes of the part in memory; `None` if they are too many.
    pub fn memory(&self) -> Option<usize> {
        match self {
            Self::Plain(dtype) => Some(dtype.size()),
            Self::Text { .. } => Some(size_of::<usize>()),
            Self::Struct(members) => members.iter().try_fold(0_usize, |size, m| {
                size.checked_add(m.part.memory()?.checked_mul(count(&m.shape)?)?)
            }),
        }
    }
}

/// The reason why `.npy` cannot hold references.
pub const REFERENCES: &str = "references";

/// A small array in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// Type of the elements.
    pub dtype: DType,
    /// Shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// The elements in C order, as the payload of an `.npy` file.
    pub data: Vec<u8>,
}
