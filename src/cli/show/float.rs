//! Floats as NumPy prints them: the fewest digits that tell a number from its neighbours, at most eight behind the
//! point, and all numbers of an array alike.

use half::f16;

/// Digits behind the point that are printed at most, as NumPy's `precision`.
const PRECISION: usize = 8;

/// The type of a float, of which the digits that tell it from its neighbours depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// 16 bits.
    Half,
    /// 32 bits.
    Single,
    /// 64 bits, and long doubles, which are rounded to them.
    Double,
}

impl Width {
    /// Returns the number from which on one that stands alone is printed in scientific notation.
    fn large(self) -> f64 {
        match self {
            Self::Half => 1e3,
            Self::Single => 1e6,
            Self::Double => 1e16,
        }
    }
}

/// A finite number as decimal digits.
struct Decimal {
    is_negative: bool,
    /// At least one digit; the point is behind the first.
    digits: String,
    exponent: i32,
}

impl Decimal {
    /// Takes apart what Rust writes in scientific notation.
    fn parse(scientific: &str) -> Self {
        let (mantissa, exponent) = scientific.split_once('e').unwrap_or((scientific, "0"));
        let is_negative = mantissa.starts_with('-');
        let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
        Self {
            is_negative,
            digits,
            exponent: exponent.parse().unwrap_or(0),
        }
    }

    /// Returns the fewest digits that tell a finite number from all others of its type.
    fn shortest(number: f64, width: Width) -> Self {
        match width {
            Width::Double => Self::parse(&format!("{number:e}")),
            // The number is one of the type.
            Width::Single => Self::parse(&format!("{:e}", number as f32)),
            Width::Half => {
                let all = (0..8).flat_map(|digits| near(&format!("{number:.digits$e}")));
                let is_same = |text: &String| {
                    let read: f64 = text.parse().unwrap_or(f64::NAN);
                    f64::from(f16::from_f64(read)) == number
                };
                let found = all.into_iter().find(is_same);
                Self::parse(&found.unwrap_or_else(|| format!("{number:e}")))
            }
        }
    }

    fn sign(&self) -> &'static str {
        match self.is_negative {
            true => "-",
            false => "",
        }
    }

    /// Returns the digits before the point, with the sign, and those behind it.
    fn positional(&self) -> (String, String) {
        let sign = self.sign();
        let digits = &self.digits;
        let (before, behind) = match usize::try_from(self.exponent) {
            Ok(exponent) => {
                let padded = format!("{digits:0<width$}", width = exponent + 1);
                let (before, behind) = padded.split_at(exponent + 1);
                (before.to_owned(), behind.to_owned())
            }
            Err(_) => {
                let zeros = usize::try_from(-1 - self.exponent).unwrap_or(0);
                ("0".to_owned(), format!("{}{digits}", "0".repeat(zeros)))
            }
        };
        (format!("{sign}{before}"), behind)
    }

    /// Returns the digit before the point, with the sign, those behind it, and the exponent.
    fn scientific(&self) -> (String, String, String) {
        let (first, rest) = self.digits.split_at(1.min(self.digits.len()));
        let mark = if self.exponent < 0 { '-' } else { '+' };
        let exponent = format!("{mark}{:02}", self.exponent.unsigned_abs());
        (format!("{}{first}", self.sign()), rest.to_owned(), exponent)
    }
}

/// Returns a number of some digits and the next ones with as many. The nearest is not always the one that is read back:
/// below a power of two, numbers lie closer than above.
fn near(scientific: &str) -> Vec<String> {
    let decimal = Decimal::parse(scientific);
    let whole: i64 = decimal.digits.parse().unwrap_or(0);
    let behind = i32::try_from(decimal.digits.len()).unwrap_or(0) - 1;
    let next = [whole, whole + 1, whole - 1].map(|whole| {
        let exact = format!("{}{whole}e{}", decimal.sign(), decimal.exponent - behind);
        // One digit before the point, as all have.
        let read: f64 = exact.parse().unwrap_or(f64::NAN);
        format!("{read:e}")
    });
    next.to_vec()
}

/// Takes zeros from the end.
fn trimmed(digits: &str) -> String {
    digits.trim_end_matches('0').to_owned()
}

/// Returns the parts of a finite number in positional notation.
fn positional(number: f64, width: Width) -> (String, String) {
    let (before, behind) = Decimal::shortest(number, width).positional();
    if behind.len() <= PRECISION {
        return (before, trimmed(&behind));
    }
    // Not the shortest digits are rounded, but the number.
    let rounded = format!("{number:.PRECISION$}");
    let (before, behind) = rounded.split_once('.').unwrap_or((&rounded, ""));
    (before.to_owned(), trimmed(behind))
}

/// Returns the parts of a finite number in scientific notation: the digits that tell it from others, if these are at
/// most eight behind the point.
fn scientific(number: f64, width: Width) -> (String, String, String) {
    let mut decimal = Decimal::shortest(number, width);
    if decimal.digits.len() > PRECISION + 1 {
        decimal = Decimal::parse(&format!("{number:.PRECISION$e}"));
    }
    let (before, behind, exponent) = decimal.scientific();
    (before, trimmed(&behind), exponent)
}

/// The form that all floats of an array have.
#[derive(Debug, Default)]
pub(super) struct FloatForm {
    width: Option<Width>,
    has_plus: bool,
    /// Digits of the exponent, with its sign; `None`: positional notation.
    exponent: Option<usize>,
    /// Digits behind the point of scientific notation.
    precision: usize,
    before: usize,
    behind: usize,
}

/// Returns the number as the type has it; NumPy compares in the type of the array.
fn rounded(number: f64, width: Width) -> f64 {
    match width {
        Width::Half => f16::from_f64(number).to_f64(),
        Width::Single => f64::from(number as f32),
        Width::Double => number,
    }
}

/// Returns whether numbers of these sizes are printed in scientific notation.
fn needs_exponent(numbers: &[f64], width: Width) -> bool {
    let sizes = numbers.iter().map(|n| n.abs());
    let sizes = sizes.filter(|n| n.is_finite() && *n != 0.0);
    let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
    for size in sizes {
        least = least.min(size);
        most = most.max(size);
    }
    if most == 0.0 {
        return false;
    }
    let large = width.large().min(1e8);
    most >= large || least < rounded(0.0001, width) || rounded(most / least, width) > 1000.0
}

impl FloatForm {
    /// Finds the form of these numbers; `has_plus`: all have a sign, as imaginary parts do.
    pub(super) fn new(numbers: &[f64], width: Width, has_plus: bool) -> Self {
        let finite = || numbers.iter().copied().filter(|n| n.is_finite());
        let mut form = Self {
            width: Some(width),
            has_plus,
            ..Self::default()
        };
        // Whether a number is behind the point even if there is no finite one.
        let signed =
            |before: &str| before.len() + usize::from(has_plus && !before.starts_with('-'));
        if finite().next().is_none() {
        } else if needs_exponent(numbers, width) {
            let mut exponent = 0;
            for number in finite() {
                let (before, behind, power) = scientific(number, width);
                exponent = exponent.max(power.len());
                form.precision = form.precision.max(behind.len());
                form.before = form.before.max(signed(&before));
            }
            form.exponent = Some(exponent);
            form.behind = exponent + 1 + form.precision;
        } else {
            for number in finite() {
                let (before, behind) = positional(number, width);
                form.before = form.before.max(signed(&before));
                form.behind = form.behind.max(behind.len());
            }
        }
        if numbers.iter().any(|n| !n.is_finite()) {
            let has_sign = has_plus || numbers.contains(&f64::NEG_INFINITY);
            let offset = form.behind + 1;
            form.before = form
                .before
                .max(3_usize.saturating_sub(offset))
                .max((3 + usize::from(has_sign)).saturating_sub(offset));
        }
        form
    }

    /// Returns one of the numbers.
    pub(super) fn print(&self, number: f64) -> String {
        let width = self.width.unwrap_or(Width::Double);
        let plus = |is_negative: bool| match self.has_plus && !is_negative {
            true => "+",
            false => "",
        };
        if !number.is_finite() {
            let text = match number {
                n if n.is_nan() => format!("{}nan", plus(false)),
                n => format!("{}{n}", plus(n < 0.0)),
            };
            return format!("{text:>all$}", all = self.before + self.behind + 1);
        }
        let plus = plus(number.is_sign_negative());
        match self.exponent {
            Some(digits) => {
                // All have as many digits, also those that fewer tell from others.
                let decimal = Decimal::parse(&format!("{number:.most$e}", most = self.precision));
                let (before, behind, exponent) = decimal.scientific();
                let (mark, power) = exponent.split_at(1.min(exponent.len()));
                format!(
                    "{:>before_width$}.{behind:0<precision$}e{mark}{power:0>digits$}",
                    format!("{plus}{before}"),
                    before_width = self.before,
                    precision = self.precision,
                    digits = digits.saturating_sub(1),
                )
            }
            None => {
                let (before, behind) = positional(number, width);
                format!(
                    "{:>before_width$}.{behind:<behind_width$}",
                    format!("{plus}{before}"),
                    before_width = self.before,
                    behind_width = self.behind,
                )
            }
        }
    }
}

/// Returns a number that stands alone, as Python prints it. `tail` is what stands behind a whole number: `.0`.
fn alone_with(number: f64, width: Width, tail: &str) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return number.to_string();
    }
    let decimal = Decimal::shortest(number, width);
    let size = number.abs();
    if size != 0.0 && !(1e-4..width.large()).contains(&size) {
        let (before, behind, exponent) = decimal.scientific();
        let point = if trimmed(&behind).is_empty() { "" } else { "." };
        return format!("{before}{point}{}e{exponent}", trimmed(&behind));
    }
    let (before, behind) = decimal.positional();
    match trimmed(&behind).as_str() {
        "" => format!("{before}{tail}"),
        behind => format!("{before}.{behind}"),
    }
}

/// Returns a number that stands alone, as Python prints it.
pub(super) fn alone(number: f64, width: Width) -> String {
    alone_with(number, width, ".0")
}

/// Returns a complex number that stands alone, as Python prints it.
pub(super) fn complex_alone(re: f64, im: f64, width: Width) -> String {
    let imaginary = alone_with(im, width, "");
    if re == 0.0 && re.is_sign_positive() {
        return format!("{imaginary}j");
    }
    let plus = if imaginary.starts_with('-') { "" } else { "+" };
    format!("({}{plus}{imaginary}j)", alone_with(re, width, ""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(numbers: &[f64]) -> Vec<String> {
        let form = FloatForm::new(numbers, Width::Double, false);
        numbers.iter().map(|&n| form.print(n)).collect()
    }

    #[test]
    fn numbers_of_an_array_look_alike() {
        assert_eq!(all(&[1.0, 2.25, -3.5]), [" 1.  ", " 2.25", "-3.5 "]);
        assert_eq!(all(&[1e10, 1.5]), ["1.0e+10", "1.5e+00"]);
        assert_eq!(all(&[1e100, 1.0]), ["1.e+100", "1.e+000"]);
        assert_eq!(all(&[f64::NAN, 1.0]), ["nan", " 1."]);
        assert_eq!(all(&[f64::NEG_INFINITY, f64::NAN]), ["-inf", " nan"]);
        assert_eq!(all(&[1.0 / 3.0]), ["0.33333333"]);
        assert_eq!(all(&[0.0, -0.0]), [" 0.", "-0."]);
    }

    #[test]
    fn numbers_alone_are_pythons() {
        let double = |n| alone(n, Width::Double);
        for (number, text) in [
            (3.0, "3.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (1e-5, "1e-05"),
            (-0.0, "-0.0"),
            (123456789.123, "123456789.123"),
        ] {
            assert_eq!(double(number), text);
        }
        assert_eq!(alone(f64::from(0.1_f32), Width::Single), "0.1");
        assert_eq!(alone(65504.0, Width::Half), "6.55e+04");
        assert_eq!(alone(0.015625, Width::Half), "0.01563");
        assert_eq!(alone(1e6, Width::Single), "1e+06");
        assert_eq!(complex_alone(1.0, -2.5, Width::Double), "(1-2.5j)");
        assert_eq!(complex_alone(0.0, 2.0, Width::Double), "2j");
    }

    proptest! {
        #[test]
        fn what_stands_alone_is_read_back(bits in any::<u64>()) {
            let number = f64::from_bits(bits);
            prop_assume!(number.is_finite());
            prop_assert_eq!(alone(number, Width::Double).parse::<f64>().unwrap().to_bits(), bits);
        }

        #[test]
        fn all_have_one_width(numbers in proptest::collection::vec(any::<f64>(), 1..6)) {
            let printed = all(&numbers);
            prop_assert!(printed.iter().all(|text| text.len() == printed[0].len()));
        }
    }
}
