//! Times of any of NumPy's units in nanoseconds, as Arkouda counts them.

use std::sync::Arc;

use super::array::Array;
use super::invalid;
use super::mapped::Mapped;
use crate::error::Result;
use crate::io::content::Content;
use crate::npy::dtype::{DType, Kind, Order};

/// NumPy's mark of no time.
const NAT: i64 = i64::MIN;

/// One unit.
#[derive(Clone, Copy)]
enum Unit {
    Years,
    Months,
    /// So many nanoseconds.
    Fixed(i64),
}

/// The elements as nanoseconds, little end first. What does not fit is refused while they are copied.
pub fn nanoseconds(array: &Array) -> Result<Arc<dyn Content>> {
    let DType::Scalar {
        kind, order, unit, ..
    } = &array.dtype
    else {
        return Err(invalid("no time"));
    };
    let name = array.dtype.name();
    let (count, letters) = split(unit);
    let unit = match letters {
        "Y" => Unit::Years,
        "M" => Unit::Months,
        "W" => Unit::Fixed(604_800_000_000_000),
        "D" => Unit::Fixed(86_400_000_000_000),
        "h" => Unit::Fixed(3_600_000_000_000),
        "m" => Unit::Fixed(60_000_000_000),
        "s" => Unit::Fixed(1_000_000_000),
        "ms" => Unit::Fixed(1_000_000),
        "us" => Unit::Fixed(1000),
        "ns" => Unit::Fixed(1),
        _ => return Err(invalid(format!("{name} cannot be said in nanoseconds"))),
    };
    if *kind == Kind::Timedelta && !matches!(unit, Unit::Fixed(_)) {
        return Err(invalid(format!("{name} cannot be said in nanoseconds")));
    }
    let order = *order;
    let convert = move |number: u64, bytes: &[u8], place: &mut [u8]| {
        for (i, (bytes, place)) in bytes
            .as_chunks()
            .0
            .iter()
            .zip(place.as_chunks_mut().0)
            .enumerate()
        {
            let value = match order {
                Order::Big => i64::from_be_bytes(*bytes),
                Order::Little | Order::None => i64::from_le_bytes(*bytes),
            };
            let converted = if value == NAT {
                Some(NAT)
            } else {
                value
                    .checked_mul(count)
                    .and_then(|n| in_nanoseconds(n, unit))
            };
            let converted = converted.ok_or_else(|| {
                let number = number + i as u64;
                invalid(format!(
                    "element {number} of {name} is out of the range of nanoseconds"
                ))
            })?;
            *place = converted.to_le_bytes();
        }
        Ok(())
    };
    Ok(Mapped::content(array.data.clone(), 8, 8, convert))
}

/// `[25us]`: the number and the letters.
fn split(unit: &str) -> (i64, &str) {
    let inner = unit.trim_start_matches('[').trim_end_matches(']');
    let letters = inner.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = inner.strip_suffix(letters).unwrap_or_default();
    (digits.parse().unwrap_or(1), letters)
}

fn in_nanoseconds(n: i64, unit: Unit) -> Option<i64> {
    const DAY: i64 = 86_400_000_000_000;
    let months = match unit {
        Unit::Fixed(size) => return n.checked_mul(size),
        Unit::Years => n.checked_mul(12)?,
        Unit::Months => n,
    };
    let year = months.div_euclid(12).checked_add(1970)?;
    let month = months.rem_euclid(12);
    first_of_month(year, month)?
        .checked_mul(DAY)
        .filter(|&n| n != NAT)
}

/// Days from 1970-01-01 to the first of a month (0 to 11) in the Gregorian calendar.
fn first_of_month(year: i64, month: i64) -> Option<i64> {
    if !(0..4000).contains(&year) {
        return None;
    }
    // Years from March on, so that the leap day is the last.
    let year = if month < 2 { year - 1 } else { year };
    let month = (month + 10) % 12;
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // From March on, months have 31, 30, 31, 30, 31 days, and again.
    Some(days + (153 * month + 2) / 5 - 719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_begin_where_the_calendar_says() {
        assert_eq!(first_of_month(1970, 0), Some(0));
        assert_eq!(first_of_month(1970, 2), Some(59));
        assert_eq!(first_of_month(2000, 2), Some(11_017));
        assert_eq!(first_of_month(1969, 11), Some(-31));
        assert_eq!(in_nanoseconds(300, Unit::Years), None);
        assert_eq!(split("[25us]"), (25, "us"));
        assert_eq!(split("[ns]"), (1, "ns"));
    }
}
