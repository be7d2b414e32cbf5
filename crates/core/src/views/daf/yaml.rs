//! The YAML that daf reads: items, and descriptions of arrays.
//!
//! Format: YAML 1.1 as accepted by PyYAML's `safe_load`, in flow style. Text is always quoted: bare words such as `yes`
//! or `12:30:00` would be parsed as other types.

use std::fmt::Write;

use super::array;
use crate::store::encode::{NpyArray, text};
use crate::views::unfit::{Unfit, left_out};
use npyfs_base::npy::dtype::{Kind, Order};

/// The most bytes of an item that is shown.
const LARGEST: u64 = 64 << 20;

/// The most lists in one item: lists without elements take no bytes in a store.
const MOST_LISTS: u64 = 1 << 20;

/// Returns the text of an item.
pub(super) fn item(array: &NpyArray) -> Result<Vec<u8>, Unfit> {
    let bytes = array.data.len();
    if bytes > LARGEST {
        return left_out(format!(
            "an item of {bytes} bytes: at most {LARGEST} are shown"
        ));
    }
    let (_, outer) = array.shape.split_last().unwrap_or((&0, &[]));
    let lists = outer.iter().try_fold(1_u64, |n, &d| n.checked_mul(d));
    if lists.is_none_or(|lists| lists > MOST_LISTS) {
        return left_out(format!("an item of shape {:?}", array.shape));
    }
    let mut values = scalars(array)?.into_iter();
    let mut out = String::new();
    list(&array.shape, &mut values, &mut out);
    out.push('\n');
    Ok(out.into_bytes())
}

/// Appends the values of an array, with brackets around each dimension.
fn list(shape: &[u64], values: &mut impl Iterator<Item = String>, out: &mut String) {
    let Some((&len, inner)) = shape.split_first() else {
        out.push_str(&values.next().unwrap_or_default());
        return;
    };
    out.push('[');
    for number in 0..len {
        if number > 0 {
            out.push_str(", ");
        }
        list(inner, values, out);
    }
    out.push(']');
}

fn scalars(array: &NpyArray) -> Result<Vec<String>, Unfit> {
    let mut values = Vec::new();
    if text::is_text(array) {
        text::each(array, |number, element| {
            let element = std::str::from_utf8(element).map_err(|_| {
                npyfs_base::error::Error::damaged(format!("element {number} is not UTF-8"))
            })?;
            values.push(quoted(element));
            Ok(())
        })?;
        return Ok(values);
    }
    array::name(&array.dtype)?;
    let Some((kind, size @ 1.., order)) = array.scalar() else {
        return left_out("elements without bytes");
    };
    text::windows(array, size, |block| {
        values.extend(block.chunks_exact(size).map(|element| {
            let mut little = [0; 8];
            let bytes = little.iter_mut().zip(element);
            bytes.for_each(|(to, from)| *to = *from);
            if order == Order::Big
                && let Some(bytes) = little.get_mut(..size)
            {
                bytes.reverse();
            }
            number(kind, size, little)
        }));
        Ok(())
    })?;
    Ok(values)
}

/// Returns a little-endian number of `size` bytes as text.
fn number(kind: Kind, size: usize, little: [u8; 8]) -> String {
    let wide = u64::from_le_bytes(little);
    let [a, b, c, d, ..] = little;
    match (kind, size) {
        (Kind::Bool, _) => (wide != 0).to_string(),
        (Kind::Int, _) => {
            let shift = 64 - 8 * size.clamp(1, 8);
            ((wide << shift).cast_signed() >> shift).to_string()
        }
        (Kind::Float, 2) => float(half::f16::from_le_bytes([a, b]).to_f64()),
        (Kind::Float, 4) => float(f64::from(f32::from_le_bytes([a, b, c, d]))),
        (Kind::Float, _) => float(f64::from_bits(wide)),
        _ => wide.to_string(),
    }
}

/// Returns the shortest decimal of a float, with a dot, and with a sign in the exponent if it has one: otherwise it
/// would be parsed as text.
fn float(value: f64) -> String {
    if value.is_nan() {
        return ".nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    let shortest = format!("{value:?}");
    let Some((digits, exponent)) = shortest.split_once('e') else {
        return shortest;
    };
    let dot = if digits.contains('.') { "" } else { ".0" };
    let sign = if exponent.starts_with('-') { "" } else { "+" };
    format!("{digits}{dot}e{sign}{exponent}")
}

/// Returns quoted text.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for letter in text.chars() {
        let code = u32::from(letter);
        // Writing to a string cannot fail.
        let _ = match letter {
            '"' => out.write_str("\\\""),
            '\\' => out.write_str("\\\\"),
            '\n' => out.write_str("\\n"),
            '\t' => out.write_str("\\t"),
            '\0'..='\x1f' | '\x7f'..='\u{9f}' => write!(out, "\\x{code:02x}"),
            '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                write!(out, "\\u{code:04x}")
            }
            _ => out.write_char(letter),
        };
    }
    out.push('"');
    out
}

/// Returns the description of a dense array.
pub(super) fn dense(dtype: &str, shape: &[u64]) -> Vec<u8> {
    format!("dtype: {dtype}\nshape: {shape:?}\nversion: [1, 0]\n").into_bytes()
}

/// The types of the parts of a sparse matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SparseTypes {
    pub data: &'static str,
    pub indices: &'static str,
    pub indptr: &'static str,
}

/// Returns the description of a sparse matrix with `nnz` stored elements.
pub(super) fn sparse(types: SparseTypes, nnz: u64, shape: &[u64]) -> Vec<u8> {
    let SparseTypes {
        data,
        indices,
        indptr,
    } = types;
    format!(
        "data_dtype: {data}\nindices_dtype: {indices}\nindptr_dtype: {indptr}\nnnz: {nnz}\nshape: {shape:?}\nversion: [1, 0]\n"
    )
    .into_bytes()
}

/// The content of the file that marks a store.
pub(super) const MARK: &[u8] = b"version: [1, 0]\n";

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use npyfs_base::npy::dtype::DType;
    use npyfs_io::content::InMemory;

    fn shown(dtype: DType, shape: &[u64], data: &[u8]) -> String {
        let array = NpyArray {
            dtype,
            shape: shape.to_vec(),
            data: Arc::new(InMemory(data.to_vec())),
        };
        match item(&array) {
            Ok(text) => String::from_utf8(text).unwrap(),
            Err(why) => format!("{why:?}"),
        }
    }

    #[test]
    fn floats_have_a_dot_and_a_signed_exponent() {
        for (value, text) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e22, "1.0e+22"),
            (1.5e300, "1.5e+300"),
            (1e-7, "1.0e-7"),
            (5e-324, "5.0e-324"),
            (f64::NAN, ".nan"),
            (f64::INFINITY, ".inf"),
            (f64::NEG_INFINITY, "-.inf"),
        ] {
            assert_eq!(float(value), text);
        }
        let single = shown(
            DType::scalar(Kind::Float, 4, Order::Little),
            &[],
            &0.1_f32.to_le_bytes(),
        );
        assert_eq!(single, "0.10000000149011612\n");
        let half = shown(
            DType::scalar(Kind::Float, 2, Order::Big),
            &[],
            &[0x3e, 0x00],
        );
        assert_eq!(half, "1.5\n");
    }

    #[test]
    fn integers_and_booleans_are_whole() {
        let big = DType::scalar(Kind::Uint, 8, Order::Little);
        assert_eq!(
            shown(big, &[], &u64::MAX.to_le_bytes()),
            "18446744073709551615\n"
        );
        let order = DType::scalar(Kind::Int, 2, Order::Big);
        assert_eq!(shown(order, &[2], &[0xff, 0xfe, 0, 3]), "[-2, 3]\n");
        let flag = DType::scalar(Kind::Bool, 1, Order::None);
        assert_eq!(shown(flag, &[], &[1]), "true\n");
    }

    #[test]
    fn text_is_quoted_and_controls_are_escaped() {
        assert_eq!(quoted("yes"), "\"yes\"");
        assert_eq!(quoted("a\"b\\c\n\t\r"), r#""a\"b\\c\n\t\x0d""#);
        assert_eq!(
            quoted("\u{85}\u{2028}\u{feff}\u{ffff}"),
            r#""\x85\u2028\ufeff\uffff""#
        );
        assert_eq!(quoted("Gr\u{f6}\u{1f600}"), "\"Gr\u{f6}\u{1f600}\"");
        assert_eq!(
            shown(DType::bytes(3), &[2], b"ab\0\0\0\0"),
            "[\"ab\", \"\"]\n"
        );
        assert!(shown(DType::bytes(1), &[], b"\xff").contains("UTF-8"));
    }

    #[test]
    fn lists_follow_the_shape() {
        let byte = DType::scalar(Kind::Uint, 1, Order::None);
        let of = |shape: &[u64], data: &[u8]| shown(byte.clone(), shape, data);
        assert_eq!(of(&[2, 2], &[1, 2, 3, 4]), "[[1, 2], [3, 4]]\n");
        assert_eq!(of(&[0], &[]), "[]\n");
        assert_eq!(of(&[2, 0], &[]), "[[], []]\n");
        assert!(of(&[1 << 40, 0], &[]).contains("shape"));
    }

    #[test]
    fn arrays_say_what_they_are() {
        assert_eq!(
            dense("float32", &[7, 5]),
            b"dtype: float32\nshape: [7, 5]\nversion: [1, 0]\n"
        );
    }
}
