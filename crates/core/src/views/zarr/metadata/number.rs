//! A number of an array or attribute, parsed from its bytes.

use serde_json::Value as Json;

use npyfs_base::npy::dtype::{DType, Kind, Order};

/// A number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    /// A boolean.
    Bool(bool),
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    Uint(u64),
    /// A float of at most 8 bytes.
    Float(f64),
    /// A complex number.
    Complex(f64, f64),
}

impl Number {
    /// Parses the first element in `bytes`; returns `None` for a long double or a type that is no number.
    pub(super) fn of(dtype: &DType, bytes: &[u8]) -> Option<Self> {
        let DType::Scalar {
            kind, size, order, ..
        } = dtype
        else {
            return None;
        };
        let bytes = bytes.get(..*size)?;
        Some(match kind {
            Kind::Bool => Self::Bool(bytes.iter().any(|&b| b != 0)),
            Kind::Int => Self::Int(sign_extended(unsigned(bytes, *order)?, bytes.len())),
            Kind::Uint => Self::Uint(unsigned(bytes, *order)?),
            Kind::Float => Self::Float(float(bytes, *order)?),
            Kind::Complex => {
                let (re, im) = bytes.split_at_checked(size / 2)?;
                Self::Complex(float(re, *order)?, float(im, *order)?)
            }
            _ => return None,
        })
    }

    /// Returns the number in JSON, which has no NaN, no infinity and no complex numbers.
    pub(super) fn json(self) -> Option<Json> {
        match self {
            Self::Bool(flag) => Some(flag.into()),
            Self::Int(n) => Some(n.into()),
            Self::Uint(n) => Some(n.into()),
            Self::Float(n) => serde_json::Number::from_f64(n).map(Json::Number),
            Self::Complex(..) => None,
        }
    }

    /// Returns the number as a float, unless it is complex.
    pub(super) fn float(self) -> Option<f64> {
        #[expect(
            clippy::cast_precision_loss,
            reason = "the nearest float is what is asked for"
        )]
        match self {
            Self::Bool(flag) => Some(f64::from(flag)),
            Self::Int(n) => Some(n as f64),
            Self::Uint(n) => Some(n as f64),
            Self::Float(n) => Some(n),
            Self::Complex(..) => None,
        }
    }
}

fn unsigned(bytes: &[u8], order: Order) -> Option<u64> {
    if !(1..=8).contains(&bytes.len()) {
        return None;
    }
    let push = |n: u64, &b: &u8| n << 8 | u64::from(b);
    Some(match order {
        Order::Big => bytes.iter().fold(0, push),
        Order::Little | Order::None => bytes.iter().rev().fold(0, push),
    })
}

/// Sign-extends an integer of `len` bytes, 1 to 8.
fn sign_extended(wide: u64, len: usize) -> i64 {
    let shift = 64 - 8 * len.clamp(1, 8);
    (wide << shift).cast_signed() >> shift
}

fn float(bytes: &[u8], order: Order) -> Option<f64> {
    let bits = unsigned(bytes, order)?;
    match bytes.len() {
        2 => Some(half(u16::try_from(bits).ok()?)),
        4 => Some(f32::from_bits(u32::try_from(bits).ok()?).into()),
        8 => Some(f64::from_bits(bits)),
        _ => None,
    }
}

/// Returns the value of an IEEE float of 16 bits.
fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> 10 & 0x1f);
    let mantissa = f64::from(bits & 0x3ff);
    sign * match (exponent, bits & 0x3ff) {
        (0x1f, 0) => f64::INFINITY,
        (0x1f, _) => f64::NAN,
        (0, _) => mantissa * 2f64.powi(-24),
        _ => (mantissa + 1024.0) * 2f64.powi(exponent - 25),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_what_their_bytes_say() {
        let of = |kind, order, bytes: &[u8]| {
            Number::of(&DType::scalar(kind, bytes.len(), order), bytes).unwrap()
        };
        assert_eq!(of(Kind::Int, Order::Big, &[0xff, 0xfe]), Number::Int(-2));
        assert_eq!(of(Kind::Int, Order::None, &[0x80]), Number::Int(-128));
        assert_eq!(
            of(Kind::Uint, Order::Little, &[255; 8]),
            Number::Uint(u64::MAX)
        );
        assert_eq!(
            of(Kind::Float, Order::Big, &1.5f64.to_be_bytes()),
            Number::Float(1.5)
        );
        assert!(Number::of(&DType::int(4), &[0; 2]).is_none());
        assert!(Number::of(&DType::scalar(Kind::Float, 16, Order::Little), &[0; 16]).is_none());
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "halves are floats exactly")]
    fn halves_are_exact() {
        assert_eq!(half(0x3c00), 1.0);
        assert_eq!(half(0xc000), -2.0);
        assert_eq!(half(0x7bff), 65504.0);
        assert_eq!(half(1), 2f64.powi(-24));
        assert_eq!(half(0xfc00), f64::NEG_INFINITY);
        assert!(half(0x7e00).is_nan());
    }

    #[test]
    fn json_has_no_nan() {
        assert_eq!(Number::Float(f64::NAN).json(), None);
        assert_eq!(Number::Complex(1.0, 0.0).json(), None);
        assert_eq!(Number::Int(-1).json(), Some((-1).into()));
    }
}
