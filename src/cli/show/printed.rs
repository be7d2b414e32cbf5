//! Elements of an array as NumPy prints them, where all have one form; and how the bytes of an element of each type are
//! read.
//!
//! Points in time are printed as ISO 8601, as exact as the unit of the type. How floats are printed is in `float`.

use half::f16;

use super::float::{FloatForm, Width, alone, complex_alone};
use npyfs_base::npy::dtype::{DType, Field, Kind, Order};
use npyfs_base::npy::repr;
use npyfs_base::printable;
use npyfs_core::store::encode::ucs4;

/// Elements of a subarray from which on its ends are printed, and how many of each.
const THRESHOLD: usize = 100;
const EDGE: usize = 3;

/// The surroundings of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Surroundings {
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
    pub(super) fn new(dtype: &DType, elements: &[&[u8]], around: Surroundings) -> Self {
        let is_alone = around == Surroundings::Nothing;
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
                is_alone: matches!(around, Surroundings::Nothing | Surroundings::Record),
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
                let in_array = around == Surroundings::Array;
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
                let unit = TimeUnit::parse(unit).filter(|_| kind == Kind::Datetime);
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
                    None => alone(number, *width),
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
    fn new(field: &Field, elements: &[&[u8]], around: Surroundings) -> Self {
        let size = field.dtype.size();
        let all = field.size().unwrap_or(0);
        let own = elements
            .iter()
            .filter_map(|bytes| bytes.get(field.offset..)?.get(..all));
        let own: Vec<&[u8]> = own
            .flat_map(|bytes| bytes.chunks_exact(size.max(1)))
            .collect();
        let around = match (around, field.shape.is_empty()) {
            (Surroundings::Array, _) => Surroundings::Array,
            (Surroundings::Nothing | Surroundings::Record, true) => Surroundings::Record,
            (_, _) => Surroundings::Subarray,
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

/// The number that stands for no time.
pub(super) const NOT_A_TIME: i64 = i64::MIN;

/// A unit in which time is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Years,
    Months,
    /// This many days.
    Days(i128),
    /// Hours: as many as there are of these in a day, and what is printed of the time of day.
    Parts(i128, Clock),
}

/// The last part of a time of day that is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clock {
    Hours,
    Minutes,
    Seconds,
    /// Seconds with this many digits behind the point.
    Digits(u32),
}

/// The unit of a type, such as `[ns]` or `[25s]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeUnit {
    count: i128,
    unit: Unit,
}

impl TimeUnit {
    /// Parses the unit behind the name of a type; `None` of one without, or unknown.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let inner = text.strip_prefix('[')?.strip_suffix(']')?;
        let letters = inner.trim_start_matches(|c: char| c.is_ascii_digit());
        let count = match inner.strip_suffix(letters)? {
            "" => 1,
            digits => i128::from(digits.parse::<u32>().ok()?),
        };
        let day = 86_400;
        let parts = |digits: u32| Unit::Parts(day * 10_i128.pow(digits), Clock::Digits(digits));
        let unit = match letters {
            "Y" => Unit::Years,
            "M" => Unit::Months,
            "W" => Unit::Days(7),
            "D" => Unit::Days(1),
            "h" => Unit::Parts(24, Clock::Hours),
            "m" => Unit::Parts(24 * 60, Clock::Minutes),
            "s" => Unit::Parts(day, Clock::Seconds),
            "ms" => parts(3),
            "us" => parts(6),
            "ns" => parts(9),
            "ps" => parts(12),
            "fs" => parts(15),
            "as" => parts(18),
            _ => return None,
        };
        Some(Self { count, unit })
    }

    /// Prints a point in time.
    pub(super) fn print(self, number: i64) -> String {
        if number == NOT_A_TIME {
            return "NaT".to_owned();
        }
        // 64 bits times 32 bits, and what is added below, are far from the end of 128 bits.
        let number = i128::from(number) * self.count;
        match self.unit {
            Unit::Years => year(1970 + number),
            Unit::Months => {
                let month = number.rem_euclid(12) + 1;
                format!("{}-{month:02}", year(1970 + number.div_euclid(12)))
            }
            Unit::Days(days) => date(number * days),
            Unit::Parts(per_day, last) => {
                let day = date(number.div_euclid(per_day));
                format!("{day}T{}", time(number.rem_euclid(per_day), last))
            }
        }
    }
}

fn year(year: i128) -> String {
    format!("{year:04}")
}

/// Prints a date by the number of days since 1970-01-01, in the Gregorian calendar. Of any year: `jiff` ends at 9999.
fn date(days: i128) -> String {
    // Eras of 400 years, each as long as the next, that begin on the first of March.
    const ERA: i128 = 146_097;
    let from_march = days + 719_468;
    let (era, day) = (from_march.div_euclid(ERA), from_march.rem_euclid(ERA));
    let of_era = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * of_era + of_era / 4 - of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    format!("{}-{month:02}-{day:02}", year(era * 400 + of_era + later))
}

fn time(parts: i128, last: Clock) -> String {
    match last {
        Clock::Hours => format!("{parts:02}"),
        Clock::Minutes => format!("{:02}:{:02}", parts / 60, parts % 60),
        Clock::Seconds => {
            let minutes = time(parts / 60, Clock::Minutes);
            format!("{minutes}:{:02}", parts % 60)
        }
        Clock::Digits(digits) => {
            let second = 10_i128.pow(digits);
            let seconds = time(parts / second, Clock::Seconds);
            format!(
                "{seconds}.{:0width$}",
                parts % second,
                width = digits as usize
            )
        }
    }
}

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
    ucs4::characters(bytes, order).collect()
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

    fn all(dtype: &DType, data: &[u8]) -> Vec<String> {
        let elements: Vec<&[u8]> = data.chunks_exact(dtype.size()).collect();
        let form = Form::new(dtype, &elements, Surroundings::Array);
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
        let form = Form::new(&DType::bytes(1000), &[b"abc"], Surroundings::Array);
        assert_eq!(form.print(b"abc"), "b'abc'...");
        assert_eq!(form.print(b"ab\0"), "b'ab'");
    }

    #[test]
    fn units_are_printed_as_numpy_prints_them() {
        let print = |unit: &str, number| TimeUnit::parse(unit).unwrap().print(number);
        assert_eq!(print("[D]", 0), "1970-01-01");
        assert_eq!(print("[D]", -1), "1969-12-31");
        assert_eq!(print("[D]", 11_016), "2000-02-29");
        assert_eq!(print("[Y]", 30), "2000");
        assert_eq!(print("[M]", -1), "1969-12");
        assert_eq!(print("[W]", 1), "1970-01-08");
        assert_eq!(print("[h]", 25), "1970-01-02T01");
        assert_eq!(print("[25s]", 3), "1970-01-01T00:01:15");
        assert_eq!(print("[ns]", -1), "1969-12-31T23:59:59.999999999");
        assert_eq!(print("[as]", 1), "1970-01-01T00:00:00.000000000000000001");
        assert_eq!(print("[s]", NOT_A_TIME), "NaT");
        // Any number has a form.
        for unit in ["[Y]", "[4294967295W]", "[as]"] {
            print(unit, i64::MAX);
            print(unit, i64::MIN + 1);
        }
        assert_eq!(TimeUnit::parse(""), None);
        assert_eq!(TimeUnit::parse("[99999999999s]"), None);
    }

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
