//! Points in time as NumPy prints them: ISO 8601, as exact as the unit of the type.

/// The number that stands for no time.
pub(in crate::cli::show) const NOT_A_TIME: i64 = i64::MIN;

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
pub(in crate::cli::show) struct TimeUnit {
    count: i128,
    unit: Unit,
}

impl TimeUnit {
    /// Parses the unit behind the name of a type; `None` of one without, or unknown.
    pub(in crate::cli::show) fn of(text: &str) -> Option<Self> {
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
    pub(in crate::cli::show) fn print(self, number: i64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_printed_as_numpy_prints_them() {
        let print = |unit: &str, number| TimeUnit::of(unit).unwrap().print(number);
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
        assert_eq!(TimeUnit::of(""), None);
        assert_eq!(TimeUnit::of("[99999999999s]"), None);
    }
}
