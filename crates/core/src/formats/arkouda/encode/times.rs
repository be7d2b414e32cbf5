//! Converts times in any of NumPy's units to nanoseconds, Arkouda's unit.

use std::sync::Arc;

use jiff::civil::Date;
use jiff::tz::Offset;

use crate::store::base::invalid;
use crate::store::encode::array::NpyArray;
use crate::store::encode::mapped::Mapped;
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_io::content::Content;

/// NumPy's NaT (not a time).
const NAT: i64 = i64::MIN;

/// One unit.
#[derive(Clone, Copy)]
enum Unit {
    Years,
    Months,
    /// This many nanoseconds.
    Fixed(i64),
}

/// Converts the elements to little-endian nanoseconds. Out-of-range values fail while they are copied.
pub(super) fn nanoseconds(array: &NpyArray) -> Result<Arc<dyn Content>> {
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

/// Splits `[25us]` into the number and the letters.
fn split(unit: &str) -> (i64, &str) {
    let inner = unit.trim_start_matches('[').trim_end_matches(']');
    let letters = inner.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = inner.strip_suffix(letters).unwrap_or_default();
    (digits.parse().unwrap_or(1), letters)
}

fn in_nanoseconds(n: i64, unit: Unit) -> Option<i64> {
    let months = match unit {
        Unit::Fixed(size) => return n.checked_mul(size),
        Unit::Years => n.checked_mul(12)?,
        Unit::Months => n,
    };
    let year = i16::try_from(months.div_euclid(12).checked_add(1970)?).ok()?;
    let month = i8::try_from(months.rem_euclid(12) + 1).ok()?;
    let first = Date::new(year, month, 1).ok()?.at(0, 0, 0, 0);
    let first = Offset::UTC.to_timestamp(first).ok()?.as_nanosecond();
    i64::try_from(first).ok().filter(|&n| n != NAT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_begin_where_the_calendar_says() {
        const DAY: i64 = 86_400_000_000_000;
        // As NumPy computes: `np.datetime64("2000-03").astype("M8[D]").astype(int)`.
        for (month, days) in [(0, 0), (2, 59), (30 * 12 + 2, 11_017), (-1, -31)] {
            assert_eq!(in_nanoseconds(month, Unit::Months), Some(days * DAY));
        }
        // The first and the last year and month that 64-bit nanoseconds can represent.
        assert_eq!(in_nanoseconds(-292, Unit::Years), Some(-106_650 * DAY));
        assert_eq!(in_nanoseconds(292, Unit::Years), Some(106_651 * DAY));
        assert_eq!(in_nanoseconds(-293, Unit::Years), None);
        assert_eq!(in_nanoseconds(293, Unit::Years), None);
        assert_eq!(
            in_nanoseconds(292 * 12 + 3, Unit::Months),
            Some(106_741 * DAY)
        );
        assert_eq!(in_nanoseconds(292 * 12 + 4, Unit::Months), None);
        assert_eq!(in_nanoseconds(i64::MAX, Unit::Months), None);
        assert_eq!(split("[25us]"), (25, "us"));
        assert_eq!(split("[ns]"), (1, "ns"));
    }
}
