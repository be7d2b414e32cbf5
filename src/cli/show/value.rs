//! Elements as numbers: how the bytes of an element of each type are read.

use half::f16;

use super::printed::float::Width;
use npyfs_base::npy::dtype::{Kind, Order};

/// Returns the integer that at most eight bytes are.
pub(super) fn integer(bytes: &[u8], kind: Kind, order: Order) -> i128 {
    let push = |n: u64, &b: &u8| n << 8 | u64::from(b);
    let wide = match order {
        Order::Big => bytes.iter().fold(0, push),
        Order::Little | Order::None => bytes.iter().rev().fold(0, push),
    };
    match kind {
        Kind::Uint | Kind::Bool => i128::from(wide),
        _ => {
            let shift = 64 - 8 * bytes.len().clamp(1, 8);
            i128::from((wide << shift).cast_signed() >> shift)
        }
    }
}

/// Returns the type of a float of this many bytes.
pub(super) fn width(size: usize) -> Width {
    match size {
        2 => Width::Half,
        4 => Width::Single,
        _ => Width::Double,
    }
}

/// Returns the float that 2, 4, 8 or 16 bytes are; a long double is rounded.
pub(super) fn float(bytes: &[u8], order: Order) -> f64 {
    let mut own = [0; 16];
    let Some(place) = own.get_mut(..bytes.len()) else {
        return f64::NAN;
    };
    place.copy_from_slice(bytes);
    if order == Order::Big {
        place.reverse();
    }
    let [a, b, c, d, e, f, g, h, ..] = own;
    match bytes.len() {
        2 => f16::from_le_bytes([a, b]).to_f64(),
        4 => f64::from(f32::from_le_bytes([a, b, c, d])),
        8 => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
        16 => long_double(u128::from_le_bytes(own)),
        _ => f64::NAN,
    }
}

/// Returns x86's long double of 80 bits, rounded.
fn long_double(bits: u128) -> f64 {
    let mantissa = (bits & u128::from(u64::MAX)) as u64;
    let exponent = (bits >> 64 & 0x7fff) as i32;
    let size = match exponent {
        0x7fff if mantissa << 1 == 0 => f64::INFINITY,
        0x7fff => f64::NAN,
        _ => {
            // In two steps: a power of two may be beyond the range that its product with the mantissa is in.
            let power = exponent - 16_383 - 63;
            let half = power / 2;
            mantissa as f64 * 2_f64.powi(half) * 2_f64.powi(power - half)
        }
    };
    match bits >> 79 & 1 {
        1 => -size,
        _ => size,
    }
}

/// Returns the characters of text in four bytes each, without the NULs at its end.
pub(super) fn characters(bytes: &[u8], order: Order) -> Vec<u32> {
    let (codes, _) = bytes.as_chunks::<4>();
    let read = |code: &[u8; 4]| match order {
        Order::Big => u32::from_be_bytes(*code),
        _ => u32::from_le_bytes(*code),
    };
    let end = codes.iter().rposition(|code| *code != [0; 4]);
    codes
        .iter()
        .take(end.map_or(0, |at| at + 1))
        .map(read)
        .collect()
}

/// Returns text of `unit` bytes a character without the NULs at its end.
pub(super) fn trimmed(bytes: &[u8], unit: usize) -> &[u8] {
    let last = bytes.iter().rposition(|&byte| byte != 0);
    let end = last.map_or(0, |at| (at / unit + 1) * unit);
    bytes.get(..end).unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_all_types_are_read() {
        assert_eq!(integer(&[0xff, 0xfe], Kind::Int, Order::Big), -2);
        assert_eq!(
            integer(&[0xff; 8], Kind::Uint, Order::Little),
            u64::MAX.into()
        );
        assert_eq!(float(&[0, 0x3c], Order::Little), 1.0);
        assert_eq!(float(&1.5_f32.to_be_bytes(), Order::Big), 1.5);
        assert!(float(&[0; 17], Order::Little).is_nan());
        let long = |exponent: u128, mantissa: u64| {
            let bits = exponent << 64 | u128::from(mantissa);
            float(&bits.to_le_bytes(), Order::Little)
        };
        assert_eq!(long(16_383, 1 << 63), 1.0);
        assert_eq!(long(1 << 15 | 16_384, 3 << 62), -3.0);
        assert_eq!(long(0, 0), 0.0);
        assert_eq!(long(0x7fff, 1 << 63), f64::INFINITY);
        assert!(long(0x7fff, 3 << 62).is_nan());
        assert_eq!(long(0x7ffe, u64::MAX), f64::INFINITY);
        assert_eq!(long(16_383 - 1074, 1 << 63), 5e-324);
    }

    #[test]
    fn text_ends_before_its_nuls() {
        let text = [0, 0, 0, 97, 0, 0, 0, 0, 0, 0, 0, 98, 0, 0, 0, 0];
        assert_eq!(characters(&text, Order::Big), [97, 0, 98]);
        assert_eq!(trimmed(b"a\0b\0\0", 1), b"a\0b");
        assert_eq!(trimmed(b"\0", 1), b"");
        assert_eq!(trimmed(b"a\0\0\0\0\0\0\0", 4), b"a\0\0\0");
    }
}
