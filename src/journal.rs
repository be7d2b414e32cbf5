//! `errors.log`: what went wrong, one line each, the latest last.
//!
//! Bounded in lines; a line that says the same as an earlier one is not repeated while that one is kept.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use xxhash_rust::xxh3::xxh3_64;

use crate::printable;

/// Lines that are kept.
const LINES: usize = 4096;

/// Most characters of a line: names and types of files can be long, and so can what is said of them.
const LONGEST: usize = 2000;

#[derive(Default)]
struct Lines {
    lines: VecDeque<(u64, String)>,
    seen: HashSet<u64>,
    total: u64,
}

/// The log of one mount.
#[derive(Default)]
pub struct Journal {
    lines: Mutex<Lines>,
}

impl Journal {
    /// Adds a line, unless it says nothing new; with the time of the day in front.
    pub fn add(&self, message: &str) {
        let message: String = printable::line(message).chars().take(LONGEST).collect();
        let hash = xxh3_64(message.as_bytes());
        let mut log = self.lines.lock().unwrap_or_else(|e| e.into_inner());
        log.total += 1;
        if !log.seen.insert(hash) {
            return;
        }
        log.lines
            .push_back((hash, format!("{} {message}\n", now())));
        if log.lines.len() > LINES
            && let Some((old, _)) = log.lines.pop_front()
        {
            log.seen.remove(&old);
        }
    }

    /// The whole log.
    pub fn text(&self) -> String {
        let log = self.lines.lock().unwrap_or_else(|e| e.into_inner());
        log.lines.iter().map(|(_, line)| line.as_str()).collect()
    }

    /// Failures since the start, repeated ones included.
    pub fn total(&self) -> u64 {
        self.lines.lock().unwrap_or_else(|e| e.into_inner()).total
    }
}

fn now() -> String {
    utc(SystemTime::now())
}

/// A time in UTC, to the second, as ISO 8601 writes it.
pub fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days since 1970 to a date: Hinnant's civil-from-days, with eras of 400 years from 0000-03-01.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 {
        month_index + 3
    } else {
        month_index - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_single_bounded_and_not_repeated() {
        let journal = Journal::default();
        journal.add("a\nb");
        journal.add("a\nb");
        assert_eq!(journal.text().lines().count(), 1);
        assert!(journal.text().ends_with(" a b\n"));
        assert_eq!(journal.total(), 2);
        journal.add(&"long ".repeat(LONGEST));
        assert!(journal.text().len() < 2 * LONGEST);
        for i in 0..2 * LINES {
            journal.add(&format!("line {i}"));
        }
        assert_eq!(journal.text().lines().count(), LINES);
    }
}
