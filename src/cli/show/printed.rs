//! Elements as NumPy prints them in an array, where all have one form.

pub(super) mod float;
pub(super) mod time;

use float::{FloatForm, Width, complex_alone};
use time::{NOT_A_TIME, TimeUnit};

use super::value::{characters, float, integer, trimmed, width};
use npyfs_base::npy::dtype::{DType, Field, Kind, Order};
use npyfs_base::npy::repr;
use npyfs_base::printable;

/// Elements of a subarray from which on its ends are printed, and how many of each.
const THRESHOLD: usize = 100;
const EDGE: usize = 3;

/// The surroundings of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Around {
    /// An array with axes, or a record in one.
    Array,
    /// Nothing: an array without axes.
    Nothing,
    /// A record that stands alone.
    Record,
    /// A subarray in such a record.
    Subarray,
}

/// The form that the elements of an array have.
pub(super) enum Form {
    Bool {
        is_alone: bool,
    },
    Integer {
        kind: Kind,
        order: Order,
        width: usize,
    },
    Float {
        order: Order,
        width: Width,
        form: Option<FloatForm>,
    },
    Complex {
        order: Order,
        width: Width,
        parts: Option<[FloatForm; 2]>,
    },
    Time {
        order: Order,
        unit: Option<TimeUnit>,
        width: usize,
    },
    Span {
        order: Order,
        width: usize,
    },
    Text {
        kind: Kind,
        order: Order,
        size: usize,
        is_alone: bool,
    },
    Record(Vec<Member>),
}

/// The form of a member of a structured type.
pub(super) struct Member {
    offset: usize,
    /// The bytes of one element of the member.
    size: usize,
    /// The shape of a subarray.
    shape: Vec<usize>,
    form: Form,
}

/// Returns the parts of a complex number.
fn parts(bytes: &[u8], order: Order) -> [f64; 2] {
    let (re, im) = bytes.split_at(bytes.len() / 2);
    [float(re, order), float(im, order)]
}

impl Form {
    /// Finds the form of these elements.
    pub(super) fn new(dtype: &DType, elements: &[&[u8]], around: Around) -> Self {
        let is_alone = around == Around::Nothing;
        let (kind, size, order, unit) = match dtype {
            DType::Scalar {
                kind,
                size,
                order,
                unit,
            } => (*kind, *size, *order, unit),
            DType::Struct { fields, .. } => {
                let member = |field: &Field| Member::new(field, elements, around);
                return Self::Record(fields.iter().map(member).collect());
            }
        };
        let integers = || elements.iter().map(|bytes| integer(bytes, kind, order));
        let longest = |texts: &mut dyn Iterator<Item = String>| texts.map(|text| text.len()).max();
        match kind {
            Kind::Bool => Self::Bool {
                is_alone: matches!(around, Around::Nothing | Around::Record),
            },
            Kind::Int | Kind::Uint => {
                let ends = [integers().min(), integers().max()];
                let mut ends = ends.into_iter().flatten().map(|n| n.to_string());
                let width = longest(&mut ends).unwrap_or(0);
                Self::Integer { kind, order, width }
            }
            Kind::Float => {
                let width = width(size);
                let numbers = || Vec::from_iter(elements.iter().map(|bytes| float(bytes, order)));
                let in_array = around == Around::Array;
                let form = in_array.then(|| FloatForm::new(&numbers(), width, false));
                Self::Float { order, width, form }
            }
            Kind::Complex => {
                let width = width(size / 2);
                let part = |part: usize| {
                    let numbers = elements.iter().map(|bytes| parts(bytes, order)[part]);
                    FloatForm::new(&Vec::from_iter(numbers), width, part == 1)
                };
                let parts = (!is_alone).then(|| [part(0), part(1)]);
                Self::Complex {
                    order,
                    width,
                    parts,
                }
            }
            Kind::Datetime | Kind::Timedelta => {
                let is_time = |n: &i128| *n != i128::from(NOT_A_TIME);
                let unit = TimeUnit::of(unit).filter(|_| kind == Kind::Datetime);
                let times = || integers().filter(is_time);
                let ends = [times().min(), times().max()].into_iter().flatten();
                let mut ends = ends.map(|n| time_text(n, unit));
                let nothing = integers().any(|n| !is_time(&n)).then(|| "'NaT'".to_owned());
                let width = longest(&mut ends).max(nothing.map(|text| text.len()));
                let width = if is_alone { 0 } else { width.unwrap_or(0) };
                match kind {
                    Kind::Datetime => Self::Time { order, unit, width },
                    _ => Self::Span { order, width },
                }
            }
            Kind::Bytes | Kind::Text | Kind::Void => Self::Text {
                kind,
                order,
                size,
                is_alone,
            },
        }
    }

    /// Prints one of the elements. Of text that is longer than what is at hand of it, dots follow.
    pub(super) fn print(&self, bytes: &[u8]) -> String {
        match self {
            Self::Bool { is_alone } => match (bytes.first() != Some(&0), is_alone) {
                (true, false) => " True".to_owned(),
                (true, true) => "True".to_owned(),
                (false, _) => "False".to_owned(),
            },
            Self::Integer { kind, order, width } => {
                format!("{:>width$}", integer(bytes, *kind, *order))
            }
            Self::Float { order, width, form } => {
                let number = float(bytes, *order);
                match form {
                    Some(form) => form.print(number),
                    None => float::alone(number, *width),
                }
            }
            Self::Complex {
                order,
                width,
                parts: forms,
            } => {
                let [re, im] = parts(bytes, *order);
                let Some([re_form, im_form]) = forms else {
                    return complex_alone(re, im, *width);
                };
                let im = im_form.print(im);
                let digits = im.trim_end();
                let blanks = &im[digits.len()..];
                format!("{}{digits}j{blanks}", re_form.print(re))
            }
            Self::Time { order, unit, width } => {
                let text = time_text(integer(bytes, Kind::Datetime, *order), *unit);
                match width {
                    0 => text.trim_matches('\'').to_owned(),
                    width => format!("{text:>width$}"),
                }
            }
            Self::Span { order, width } => {
                let number = integer(bytes, Kind::Timedelta, *order);
                let text = match (number == i128::from(NOT_A_TIME), width) {
                    (true, 0) => "NaT".to_owned(),
                    (true, _) => "'NaT'".to_owned(),
                    (false, _) => number.to_string(),
                };
                format!("{text:>width$}")
            }
            Self::Text {
                kind,
                order,
                size,
                is_alone,
            } => {
                let text = text(bytes, *kind, *order, *is_alone);
                let is_cut = bytes.len() < *size && bytes.last() != Some(&0);
                let dots = if is_cut { "..." } else { "" };
                format!("{}{dots}", printable::line(&text))
            }
            Self::Record(members) => {
                let members: Vec<String> =
                    members.iter().map(|member| member.print(bytes)).collect();
                match &members[..] {
                    [one] => format!("({one},)"),
                    all => format!("({})", all.join(", ")),
                }
            }
        }
    }
}

/// Prints a time in quotes, or the number of one without a unit.
fn time_text(number: i128, unit: Option<TimeUnit>) -> String {
    match (unit, i64::try_from(number)) {
        (_, Ok(NOT_A_TIME)) => "'NaT'".to_owned(),
        (Some(unit), Ok(number)) => format!("'{}'", unit.print(number)),
        _ => number.to_string(),
    }
}

/// Prints text or bytes; alone, text has no quotes.
fn text(bytes: &[u8], kind: Kind, order: Order, is_alone: bool) -> String {
    match kind {
        Kind::Text => {
            let codes = characters(bytes, order);
            if is_alone {
                let shown =
                    |&code: &u32| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
                return codes.iter().map(shown).collect();
            }
            repr::characters(codes.into_iter())
        }
        Kind::Bytes => repr::bytes(trimmed(bytes, 1)),
        _ => {
            let digits: String = bytes.iter().map(|byte| format!("\\x{byte:02X}")).collect();
            format!("b'{digits}'")
        }
    }
}

impl Member {
    fn new(field: &Field, elements: &[&[u8]], around: Around) -> Self {
        let size = field.dtype.size();
        let all = field.size().unwrap_or(0);
        let own = elements
            .iter()
            .filter_map(|bytes| bytes.get(field.offset..)?.get(..all));
        let own: Vec<&[u8]> = own
            .flat_map(|bytes| bytes.chunks_exact(size.max(1)))
            .collect();
        let around = match (around, field.shape.is_empty()) {
            (Around::Array, _) => Around::Array,
            (Around::Nothing | Around::Record, true) => Around::Record,
            (_, _) => Around::Subarray,
        };
        let dims = field.shape.iter();
        Self {
            offset: field.offset,
            size,
            shape: dims
                .map(|&n| usize::try_from(n).unwrap_or(usize::MAX))
                .collect(),
            form: Form::new(&field.dtype, &own, around),
        }
    }

    fn print(&self, record: &[u8]) -> String {
        let bytes = record.get(self.offset..).unwrap_or_default();
        let count = self
            .shape
            .iter()
            .fold(1, |n: usize, &dim| n.saturating_mul(dim));
        match self.shape.contains(&0) {
            true => "[]".to_owned(),
            false => self.part(bytes, &self.shape, count > THRESHOLD),
        }
    }

    /// Prints a subarray, or an element of it.
    fn part(&self, bytes: &[u8], shape: &[usize], is_cut: bool) -> String {
        let Some((&len, inner)) = shape.split_first() else {
            return self.form.print(bytes.get(..self.size).unwrap_or_default());
        };
        let step = inner.iter().product::<usize>() * self.size;
        let one = |at: usize| self.part(bytes.get(at * step..).unwrap_or_default(), inner, is_cut);
        let items: Vec<String> = match is_cut && len > 2 * EDGE {
            true => {
                let dots = std::iter::once("...".to_owned());
                let (first, last) = ((0..EDGE).map(one), (len - EDGE..len).map(one));
                first.chain(dots).chain(last).collect()
            }
            false => (0..len).map(one).collect(),
        };
        format!("[{}]", items.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(dtype: &DType, data: &[u8]) -> Vec<String> {
        let elements: Vec<&[u8]> = data.chunks_exact(dtype.size()).collect();
        let form = Form::new(dtype, &elements, Around::Array);
        elements.iter().map(|bytes| form.print(bytes)).collect()
    }

    #[test]
    fn elements_of_each_kind() {
        assert_eq!(all(&DType::int(1), &[1, 0xf6, 100]), ["  1", "-10", "100"]);
        let bool = DType::scalar(Kind::Bool, 1, Order::None);
        assert_eq!(all(&bool, &[0, 1]), ["False", " True"]);
        assert_eq!(
            all(&DType::bytes(3), b"a'\0\xff\0\0"),
            ["b\"a'\"", "b'\\xff'"]
        );
        assert_eq!(
            all(
                &DType::text(1),
                &[0x3b1, 0x202e].map(u32::to_le_bytes).concat()
            ),
            ["'α'", "'\\u202e'"]
        );
        let void = DType::scalar(Kind::Void, 2, Order::None);
        assert_eq!(all(&void, &[0, 0xab]), ["b'\\x00\\xAB'"]);
        let complex = DType::scalar(Kind::Complex, 8, Order::Big);
        let number = [1.0_f32, -2.5].map(f32::to_be_bytes).concat();
        assert_eq!(all(&complex, &number), ["1.-2.5j"]);
    }

    #[test]
    fn members_of_records_are_aligned_by_themselves() {
        let field = |name: &str, offset, dtype, shape: &[u64]| Field {
            name: name.into(),
            offset,
            dtype,
            shape: shape.to_vec(),
        };
        let dtype = DType::Struct {
            fields: vec![
                field("a", 0, DType::int(1), &[2, 2]),
                field("b", 5, DType::bytes(1), &[]),
            ],
            size: 6,
        };
        let data = [1, 2, 3, 4, 0, b'x', 10, 20, 30, 40, 0, 0];
        assert_eq!(
            all(&dtype, &data),
            [
                "([[ 1,  2], [ 3,  4]], b'x')",
                "([[10, 20], [30, 40]], b'')"
            ]
        );
    }

    #[test]
    fn what_is_not_at_hand_is_dots() {
        let form = Form::new(&DType::bytes(1000), &[b"abc"], Around::Array);
        assert_eq!(form.print(b"abc"), "b'abc'...");
        assert_eq!(form.print(b"ab\0"), "b'ab'");
    }
}
