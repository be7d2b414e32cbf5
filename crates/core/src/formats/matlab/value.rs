//! The MATLAB class and form of a value, determined from its HDF5 object and its untrusted attributes.

use npyfs_base::npy::dtype::{DType, Kind, Order, integer};
use npyfs_hdf5::{Attribute, Dataset, ElementType, GroupMember, REFERENCES, ScannedMember, Value};

/// The attribute that names the class.
pub(super) const CLASS: &str = "MATLAB_class";
const EMPTY: &str = "MATLAB_empty";
const SPARSE: &str = "MATLAB_sparse";
const OBJECT: &str = "MATLAB_object_decode";

/// The attributes that determine the class of a value.
pub(super) const NAMES: [&str; 4] = [CLASS, EMPTY, SPARSE, OBJECT];

/// The most characters of text that is converted in memory; for longer text the code units are shown.
pub(super) const MAX_TEXT: u64 = 1 << 20;

/// A class of values that npyfs shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Class {
    Double,
    Single,
    Int(usize),
    Uint(usize),
    Logical,
    Char,
    Cell,
    Struct,
}

impl Class {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "double" | "canonical empty" => Self::Double,
            "single" => Self::Single,
            "int8" => Self::Int(1),
            "int16" => Self::Int(2),
            "int32" => Self::Int(4),
            "int64" => Self::Int(8),
            "uint8" => Self::Uint(1),
            "uint16" => Self::Uint(2),
            "uint32" => Self::Uint(4),
            "uint64" => Self::Uint(8),
            "logical" => Self::Logical,
            "char" => Self::Char,
            "cell" => Self::Cell,
            "struct" => Self::Struct,
            _ => return None,
        })
    }

    /// Returns MATLAB's name of the class.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Double => "double",
            Self::Single => "single",
            Self::Int(1) => "int8",
            Self::Int(2) => "int16",
            Self::Int(4) => "int32",
            Self::Int(_) => "int64",
            Self::Uint(1) => "uint8",
            Self::Uint(2) => "uint16",
            Self::Uint(4) => "uint32",
            Self::Uint(_) => "uint64",
            Self::Logical => "logical",
            Self::Char => "char",
            Self::Cell => "cell",
            Self::Struct => "struct",
        }
    }

    /// Returns the type of its elements; `None` if it has no elements of its own.
    pub(super) fn dtype(self) -> Option<DType> {
        let (kind, size) = match self {
            Self::Double => (Kind::Float, 8),
            Self::Single => (Kind::Float, 4),
            Self::Int(size) => (Kind::Int, size),
            Self::Uint(size) => (Kind::Uint, size),
            Self::Logical => (Kind::Bool, 1),
            Self::Char | Self::Cell | Self::Struct => return None,
        };
        Some(DType::scalar(kind, size, Order::Little))
    }
}

/// The form in which a value is shown, apart from its address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Form {
    /// Elements of a fixed size.
    Array {
        class: Option<Class>,
        element: ElementType,
        /// As stored: reversed.
        shape: Vec<u64>,
    },
    /// Characters, with this many bytes per code unit.
    Characters {
        unit: usize,
        element: ElementType,
        shape: Vec<u64>,
    },
    /// An array without elements: a dataset of its dimensions.
    Empty {
        class: Class,
        /// The type of the dimensions.
        element: ElementType,
        rank: u64,
    },
    /// A dataset of references: a cell array.
    Cells {
        /// Whether it is a field of an array of structs, with a reference to its value in each struct.
        is_field: bool,
    },
    /// A group of fields.
    Struct,
    /// A sparse matrix with this many rows.
    Sparse { class: Class, rows: u64 },
}

impl Form {
    /// Returns the suffixes of the files and directories that it is shown as.
    pub(super) fn suffixes(&self) -> &'static [&'static str] {
        match self {
            Self::Array { .. } | Self::Characters { .. } => &[".npy"],
            Self::Empty {
                class: Class::Cell | Class::Struct,
                ..
            } => &[""],
            Self::Empty { .. } => &[".npy"],
            Self::Cells { .. } | Self::Struct => &[""],
            Self::Sparse { .. } => &["", ".npz"],
        }
    }

    /// Returns whether it contains other values.
    pub(super) fn is_container(&self) -> bool {
        matches!(self, Self::Cells { .. } | Self::Struct)
    }
}

/// The reason why a value is not shown.
pub(super) enum NotShown {
    /// Files cannot represent it, or its representation is not known.
    LeftOut(String),
    /// The value cannot be read.
    Damaged(String),
}

/// Returns the class in an object's attributes.
pub(super) fn class(attributes: &[Attribute]) -> Option<String> {
    text(find(attributes, CLASS)?)
}

/// Returns the address of a value, and the form in which it is shown.
pub(super) fn judge(scanned: &ScannedMember) -> Result<(u64, Form), NotShown> {
    let attributes = &scanned.attributes;
    let name = class(attributes);
    let left_out = |why: String| Err(NotShown::LeftOut(why));
    let has_name = |value: &Option<String>, name: &str| value.as_deref() == Some(name);
    if has_name(&name, "function_handle") {
        return left_out("a function handle, which only MATLAB can open".to_owned());
    }
    let known = name.as_deref().map(Class::named);
    let is_object = attributes.iter().any(|a| a.name == OBJECT.as_bytes());
    if is_object || known == Some(None) {
        let name = name.unwrap_or_default();
        return left_out(format!(
            "an object of class {name:?}, which only MATLAB can open"
        ));
    }
    let known = known.flatten();
    match &scanned.member {
        GroupMember::Group { addr, .. } => match (find(attributes, SPARSE), known) {
            (Some(rows), _) => match (number(rows), known) {
                (Some(rows), Some(class)) if class.dtype().is_some() => {
                    Ok((*addr, Form::Sparse { class, rows }))
                }
                _ => left_out("a sparse matrix without class or number of rows".to_owned()),
            },
            (None, None | Some(Class::Struct)) => Ok((*addr, Form::Struct)),
            (None, Some(class)) => left_out(format!("a group of class {}", class.name())),
        },
        GroupMember::Dataset(dataset) => match find(attributes, EMPTY).and_then(number) {
            None | Some(0) => Ok((
                dataset.addr,
                array(dataset, known).map_err(NotShown::LeftOut)?,
            )),
            Some(_) => Ok((
                dataset.addr,
                empty(dataset, known).map_err(NotShown::LeftOut)?,
            )),
        },
        GroupMember::Unsupported { addr, reason, .. } if reason == REFERENCES => match known {
            None | Some(Class::Cell) => {
                let is_field = known.is_none();
                Ok((*addr, Form::Cells { is_field }))
            }
            Some(class) => left_out(format!("references of class {}", class.name())),
        },
        GroupMember::Unsupported { reason, .. } => left_out(reason.clone()),
        GroupMember::Soft(_) | GroupMember::External { .. } => {
            left_out("a link, of which MATLAB makes none".to_owned())
        }
        GroupMember::Damaged(why) => Err(NotShown::Damaged(why.clone())),
    }
}

fn array(dataset: &Dataset, class: Option<Class>) -> Result<Form, String> {
    let (dtype, convert) = match &dataset.element {
        ElementType::Fixed {
            dtype,
            inner,
            convert,
        } if inner.is_empty() => (dtype, *convert),
        _ => return Err("not a value of MATLAB; -o kind=plain shows it".to_owned()),
    };
    let shape = dataset.shape.clone();
    if let (
        Some(Class::Char),
        DType::Scalar {
            kind: Kind::Uint,
            order: Order::Little | Order::None,
            size: unit @ (1 | 2 | 4),
            ..
        },
        false,
    ) = (class, dtype, convert)
    {
        let units = shape.iter().try_fold(1_u64, |n, &d| n.checked_mul(d));
        if shape.len() <= 2 && units.is_some_and(|n| n <= MAX_TEXT) {
            let (unit, element) = (*unit, dataset.element.clone());
            return Ok(Form::Characters {
                unit,
                element,
                shape,
            });
        }
    }
    Ok(Form::Array {
        class,
        element: dataset.element.clone(),
        shape,
    })
}

fn empty(dataset: &Dataset, class: Option<Class>) -> Result<Form, String> {
    /// The most dimensions of an array: NumPy's limit.
    const MAX_RANK: u64 = 64;
    match (&dataset.element, dataset.shape.as_slice(), class) {
        (
            ElementType::Fixed {
                dtype:
                    DType::Scalar {
                        kind: Kind::Int | Kind::Uint,
                        ..
                    },
                inner,
                ..
            },
            &[rank @ ..=MAX_RANK],
            Some(class),
        ) if inner.is_empty() => Ok(Form::Empty {
            class,
            element: dataset.element.clone(),
            rank,
        }),
        _ => Err("an empty array without class or dimensions".to_owned()),
    }
}

/// Returns the type in which elements are shown: logical values as booleans, pairs of real and imaginary part as
/// complex numbers.
pub(super) fn shown_as(stored: &DType, class: Option<Class>) -> DType {
    match stored {
        DType::Scalar {
            kind: Kind::Uint | Kind::Int,
            size: 1,
            ..
        } if class == Some(Class::Logical) => DType::scalar(Kind::Bool, 1, Order::None),
        DType::Struct { fields, size } => {
            let [real, imag] = fields.as_slice() else {
                return stored.clone();
            };
            let is_pair = (real.name.as_str(), imag.name.as_str()) == ("real", "imag")
                && (real.offset, imag.offset) == (0, real.dtype.size())
                && real.dtype == imag.dtype
                && real.shape.is_empty()
                && imag.shape.is_empty();
            match &real.dtype {
                DType::Scalar {
                    kind: Kind::Float,
                    size: half @ (4 | 8),
                    order,
                    ..
                } if is_pair && half.checked_mul(2) == Some(*size) => {
                    DType::scalar(Kind::Complex, *size, *order)
                }
                _ => stored.clone(),
            }
        }
        _ => stored.clone(),
    }
}

fn find<'a>(attributes: &'a [Attribute], name: &str) -> Option<&'a Value> {
    let found = attributes.iter().find(|a| a.name == name.as_bytes())?;
    found.value.as_ref().ok()
}

/// Returns the text of an attribute, if it is one.
fn text(value: &Value) -> Option<String> {
    let DType::Scalar { kind, .. } = &value.dtype else {
        return None;
    };
    let text = match kind {
        Kind::Bytes => String::from_utf8_lossy(&value.data).into_owned(),
        Kind::Text => {
            let (codes, _) = value.data.as_chunks::<4>();
            let chars = codes
                .iter()
                .map(|code| char::from_u32(u32::from_le_bytes(*code)));
            chars.collect::<Option<String>>()?
        }
        _ => return None,
    };
    Some(text.trim_end_matches('\0').to_owned())
}

/// Returns the nonnegative number of an attribute, if it is one.
fn number(value: &Value) -> Option<u64> {
    match &value.dtype {
        DType::Scalar {
            kind: kind @ (Kind::Int | Kind::Uint),
            order,
            size,
            ..
        } if *size <= 8 && value.data.len() == *size => {
            u64::try_from(integer(&value.data, *kind, *order)?).ok()
        }
        _ => None,
    }
}
