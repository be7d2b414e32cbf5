//! The Rust types that elements of an array can be read as.

use half::f16;
use num_complex::Complex;

use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_core::store::encode::ucs4;

/// A type that elements of a store can be read as, without loss and without guessing:
///
/// | Rust | NumPy |
/// |---|---|
/// | `bool` | `\|b1` |
/// | `i8` … `i64`, `u8` … `u64` | the integer of that width; `i64` also `M8` and `m8`, in the units of the dtype |
/// | `f16` (crate `half`), `f32`, `f64` | the float of that width |
/// | `Complex<f32>`, `Complex<f64>` (crate `num-complex`) | `c8`, `c16` |
/// | `String` | `U`, and `S` that holds UTF-8; without the NULs at its end |
/// | `Vec<u8>` | `S` without the NULs at its end; the bytes of an element of any other type as they are |
///
/// Either byte order is read. The trait is sealed.
pub trait Element: Sized + Send + sealed::Decode {}

impl<T: sealed::Decode + Sized + Send> Element for T {}

/// A type whose arrays can be written: `bool`, integers, floats, complex numbers, and `String`, which becomes `U` as
/// wide as the longest text. The trait is sealed.
pub trait WriteElement: sealed::Encode {}

impl<T: sealed::Encode> WriteElement for T {}

pub(super) mod sealed {
    use npyfs_base::npy::dtype::DType;

    /// A type of elements that are encoded as `.npy` has them.
    pub trait Encode: Sized {
        /// Returns the type and the bytes of elements.
        fn encode<'a>(elements: impl Iterator<Item = &'a Self>) -> (DType, Vec<u8>)
        where
            Self: 'a;
    }

    /// A type that elements are decoded to from their bytes.
    pub trait Decode: Clone {
        /// The name of the type in messages.
        const NAME: &'static str;

        /// Returns whether elements of `dtype` are read as this type.
        fn fits(dtype: &DType) -> bool;

        /// Returns the memory of a vector as bytes; `None` for a type that does not lie in memory as it is served.
        fn memory(_vector: &mut [Self]) -> Option<&mut [u8]> {
            None
        }

        /// Returns an element to fill memory with before it is read.
        fn blank() -> Self;

        /// Decodes one element from its `dtype.size()` bytes.
        fn decode(bytes: &[u8], dtype: &DType) -> Result<Self, String>;
    }
}

/// Returns whether elements of `dtype` lie in memory as they are served.
pub(super) fn lies_as_served(dtype: &DType) -> bool {
    match dtype {
        DType::Scalar { order, .. } => match order {
            Order::Little => cfg!(target_endian = "little"),
            Order::Big => cfg!(target_endian = "big"),
            Order::None => true,
        },
        DType::Struct { .. } => true,
    }
}

/// Returns the bytes of an element in the order of this machine. `unit` bytes are turned round at a time: of a
/// complex number each half.
fn native<const N: usize>(bytes: &[u8], dtype: &DType, unit: usize) -> Result<[u8; N], String> {
    let mut own: [u8; N] = bytes
        .try_into()
        .map_err(|_| format!("{} bytes instead of {N}", bytes.len()))?;
    if !lies_as_served(dtype) {
        own.chunks_exact_mut(unit).for_each(<[u8]>::reverse);
    }
    Ok(own)
}

macro_rules! number {
    ($type:ty, $name:literal, $unit:expr, $($kind:pat_param)|+) => {
        impl sealed::Decode for $type {
            const NAME: &'static str = $name;

            fn fits(dtype: &DType) -> bool {
                matches!(dtype, DType::Scalar { kind: $($kind)|+, size, .. } if *size == size_of::<$type>())
            }

            fn memory(vector: &mut [Self]) -> Option<&mut [u8]> {
                Some(bytemuck::cast_slice_mut(vector))
            }

            fn blank() -> Self {
                <$type>::default()
            }

            fn decode(bytes: &[u8], dtype: &DType) -> Result<Self, String> {
                let bytes = native::<{ size_of::<$type>() }>(bytes, dtype, $unit)?;
                Ok(bytemuck::cast(bytes))
            }
        }
    };
}

number!(i8, "i8", 1, Kind::Int);
number!(i16, "i16", 2, Kind::Int);
number!(i32, "i32", 4, Kind::Int);
number!(i64, "i64", 8, Kind::Int | Kind::Datetime | Kind::Timedelta);
number!(u8, "u8", 1, Kind::Uint);
number!(u16, "u16", 2, Kind::Uint);
number!(u32, "u32", 4, Kind::Uint);
number!(u64, "u64", 8, Kind::Uint);
number!(f16, "f16", 2, Kind::Float);
number!(f32, "f32", 4, Kind::Float);
number!(f64, "f64", 8, Kind::Float);
macro_rules! complex {
    ($part:ty, $name:literal) => {
        impl sealed::Decode for Complex<$part> {
            const NAME: &'static str = $name;

            fn fits(dtype: &DType) -> bool {
                matches!(dtype, DType::Scalar { kind: Kind::Complex, size, .. } if *size == size_of::<Self>())
            }

            fn blank() -> Self {
                Self::default()
            }

            fn decode(bytes: &[u8], dtype: &DType) -> Result<Self, String> {
                let unit = size_of::<$part>();
                let bytes = native::<{ size_of::<Self>() }>(bytes, dtype, unit)?;
                let [re, im]: [$part; 2] = bytemuck::cast(bytes);
                Ok(Self { re, im })
            }
        }
    };
}

complex!(f32, "Complex<f32>");
complex!(f64, "Complex<f64>");

macro_rules! written {
    ($($type:ty, $kind:ident, $order:ident;)+) => {$(
        impl sealed::Encode for $type {
            fn encode<'a>(elements: impl Iterator<Item = &'a Self>) -> (DType, Vec<u8>) {
                let dtype = DType::scalar(Kind::$kind, size_of::<$type>(), Order::$order);
                (dtype, elements.flat_map(|element| element.to_le_bytes()).collect())
            }
        }
    )+};
}

written! {
    i8, Int, None; i16, Int, Little; i32, Int, Little; i64, Int, Little;
    u8, Uint, None; u16, Uint, Little; u32, Uint, Little; u64, Uint, Little;
    f16, Float, Little; f32, Float, Little; f64, Float, Little;
}

macro_rules! written_complex {
    ($($part:ty),+) => {$(
        impl sealed::Encode for Complex<$part> {
            fn encode<'a>(elements: impl Iterator<Item = &'a Self>) -> (DType, Vec<u8>) {
                let parts = elements.flat_map(|element| [element.re, element.im]);
                let dtype = DType::scalar(Kind::Complex, size_of::<Self>(), Order::Little);
                (dtype, parts.flat_map(<$part>::to_le_bytes).collect())
            }
        }
    )+};
}

written_complex!(f32, f64);

impl sealed::Encode for bool {
    fn encode<'a>(elements: impl Iterator<Item = &'a Self>) -> (DType, Vec<u8>) {
        let dtype = DType::scalar(Kind::Bool, 1, Order::None);
        (dtype, elements.map(|&element| u8::from(element)).collect())
    }
}

impl sealed::Encode for String {
    fn encode<'a>(elements: impl Iterator<Item = &'a Self>) -> (DType, Vec<u8>) {
        let texts: Vec<&Self> = elements.collect();
        ucs4::elements(&texts)
    }
}

impl sealed::Decode for bool {
    const NAME: &'static str = "bool";

    fn fits(dtype: &DType) -> bool {
        matches!(
            dtype,
            DType::Scalar {
                kind: Kind::Bool,
                ..
            }
        )
    }

    fn blank() -> Self {
        false
    }

    fn decode(bytes: &[u8], _: &DType) -> Result<Self, String> {
        Ok(bytes.iter().any(|&b| b != 0))
    }
}

/// Returns the bytes of a text without the NULs at its end.
fn trimmed(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|&b| b != 0).map_or(0, |at| at + 1);
    &bytes[..end]
}

impl sealed::Decode for String {
    const NAME: &'static str = "String";

    fn fits(dtype: &DType) -> bool {
        matches!(
            dtype,
            DType::Scalar {
                kind: Kind::Bytes | Kind::Text,
                ..
            }
        )
    }

    fn blank() -> Self {
        Self::new()
    }

    fn decode(bytes: &[u8], dtype: &DType) -> Result<Self, String> {
        if matches!(
            dtype,
            DType::Scalar {
                kind: Kind::Bytes,
                ..
            }
        ) {
            let text = std::str::from_utf8(trimmed(bytes));
            return text.map(str::to_owned).map_err(|e| e.to_string());
        }
        let mut text = Self::new();
        for unit in bytes.chunks_exact(4) {
            let code = u32::from_ne_bytes(native::<4>(unit, dtype, 4)?);
            let known = char::from_u32(code);
            text.push(known.ok_or_else(|| format!("{code:#x} is no character"))?);
        }
        text.truncate(text.trim_end_matches('\0').len());
        Ok(text)
    }
}

impl sealed::Decode for Vec<u8> {
    const NAME: &'static str = "Vec<u8>";

    fn fits(_: &DType) -> bool {
        true
    }

    fn blank() -> Self {
        Self::new()
    }

    fn decode(bytes: &[u8], dtype: &DType) -> Result<Self, String> {
        Ok(match dtype {
            DType::Scalar {
                kind: Kind::Bytes, ..
            } => trimmed(bytes),
            _ => bytes,
        }
        .to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::sealed::Decode;
    use super::*;

    #[test]
    fn either_byte_order_is_read() {
        let of = |kind, size, order| DType::scalar(kind, size, order);
        let big = of(Kind::Complex, 8, Order::Big);
        let bytes = [1.5_f32.to_be_bytes(), 2.0_f32.to_be_bytes()].concat();
        assert_eq!(
            Complex::<f32>::decode(&bytes, &big),
            Ok(Complex::new(1.5, 2.0))
        );
        assert_eq!(
            i32::decode(&[0, 0, 1, 2], &of(Kind::Int, 4, Order::Big)),
            Ok(258)
        );
        assert_eq!(
            u16::decode(&[2, 1], &of(Kind::Uint, 2, Order::Little)),
            Ok(258)
        );
    }

    #[test]
    fn text_ends_at_its_last_character() {
        assert_eq!(
            String::decode(b"a\0b\0\0", &DType::bytes(5)).unwrap(),
            "a\0b"
        );
        assert!(String::decode(b"\xff", &DType::bytes(1)).is_err());
        let wide: Vec<u8> = "\u{e4}b\0"
            .chars()
            .flat_map(|c| u32::from(c).to_le_bytes())
            .collect();
        assert_eq!(String::decode(&wide, &DType::text(3)).unwrap(), "\u{e4}b");
        assert!(String::decode(&[0xff; 4], &DType::text(1)).is_err());
    }

    #[test]
    fn no_type_takes_what_it_cannot_hold() {
        let wide = DType::int(8);
        assert!(i64::fits(&wide) && !i32::fits(&wide) && !u64::fits(&wide) && !f64::fits(&wide));
        assert!(Vec::<u8>::fits(&wide) && !String::fits(&wide) && !bool::fits(&wide));
    }
}
