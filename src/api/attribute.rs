//! The attributes of objects: small arrays with names.

use ndarray::{Dimension, IxDyn};

use super::element::Element;
use super::error::Error;
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::Value;

/// An attribute of an array, a directory or a store, from [`Store::attributes`](super::Store::attributes).
#[derive(Clone, Debug)]
pub struct Attribute {
    /// The object that has it.
    path: String,
    name: String,
    /// Its value, or why it has none here.
    value: Result<Value, String>,
}

impl Attribute {
    pub(super) fn of(path: &str, found: npyfs_hdf5::Attribute) -> Self {
        Self {
            path: path.to_owned(),
            name: String::from_utf8_lossy(&found.name).into_owned(),
            value: found.value,
        }
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the type of its elements; `None` if it cannot be read, as references cannot.
    pub fn dtype(&self) -> Option<&DType> {
        self.value.as_ref().ok().map(|value| &value.dtype)
    }

    /// Returns the number of entries along each axis: empty for a single value; `None` if it cannot be read.
    pub fn shape(&self) -> Option<Vec<usize>> {
        let shape = &self.value.as_ref().ok()?.shape;
        shape.iter().map(|&n| usize::try_from(n).ok()).collect()
    }

    /// Returns the value of an attribute with one element, such as a text or a number.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read), and [`Error::WrongRank`] if there are several elements, or none.
    pub fn value<T: Element>(&self) -> Result<T, Error> {
        let mut elements = self.read::<T, IxDyn>()?.into_iter();
        match (elements.next(), elements.next()) {
            (Some(only), None) => Ok(only),
            _ => Err(Error::WrongRank {
                path: self.shown(),
                found: self.shape().map_or(0, |shape| shape.len()),
                wanted: 0,
            }),
        }
    }

    /// Returns all elements, as [`Array::read`](super::Array::read) does.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] and [`Error::WrongRank`] if it is none of `T` with `D` axes, [`Error::Store`] if it has
    /// no form here.
    pub fn read<T: Element, D: Dimension>(&self) -> Result<ndarray::Array<T, D>, Error> {
        let value = self.value.as_ref().map_err(|reason| Error::Store {
            message: format!("{}: {reason}", self.shown()),
            errno: libc::EOPNOTSUPP,
        })?;
        if !T::fits(&value.dtype) {
            return Err(Error::WrongType {
                path: self.shown(),
                found: value.dtype.to_string(),
                wanted: T::NAME,
            });
        }
        let shape = self.shape().unwrap_or_default();
        let rank = || Error::WrongRank {
            path: self.shown(),
            found: shape.len(),
            wanted: D::NDIM.unwrap_or(shape.len()),
        };
        let size = value.dtype.size();
        let count = shape.iter().product();
        let elements = (0..count).map(|index| {
            let bytes = value.data.get(index * size..(index + 1) * size);
            let decoded = T::decode(bytes.unwrap_or_default(), &value.dtype);
            decoded.map_err(|reason| Error::Element {
                path: self.shown(),
                index,
                reason,
            })
        });
        let elements = elements.collect::<Result<Vec<T>, Error>>()?;
        ndarray::Array::from_shape_vec(IxDyn(&shape), elements)
            .and_then(|array| array.into_dimensionality::<D>())
            .map_err(|_| rank())
    }

    /// Returns what errors call it.
    fn shown(&self) -> String {
        format!("{}: attribute {}", self.path, self.name)
    }
}
