//! `errors.log`: the failures of a mount, one line each, the latest last.
//!
//! Bounded in lines and in their length; a message is not repeated while the line with it is kept.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;
use std::time::SystemTime;

use jiff::Timestamp;
use xxhash_rust::xxh3::xxh3_64;

use crate::printable;

/// Lines that are kept.
const MAX_LINES: usize = 4096;

/// Most characters of a line: names and types of files can be long, and so can what is said of them.
const MAX_LINE: usize = 2000;

/// The lines that are kept, and the hashes of their messages.
#[derive(Default)]
struct Log {
    lines: VecDeque<(u64, String)>,
    seen: HashSet<u64>,
    total: u64,
}

/// The log of one mount.
#[derive(Default)]
pub struct Journal {
    lines: Mutex<Log>,
}

impl Journal {
    /// Adds a line, with the time in front, unless one with this message is kept.
    pub fn add(&self, message: &str) {
        let message: String = printable::line(message).chars().take(MAX_LINE).collect();
        let hash = xxh3_64(message.as_bytes());
        let mut log = self.lines.lock().unwrap_or_else(|e| e.into_inner());
        log.total += 1;
        if !log.seen.insert(hash) {
            return;
        }
        log.lines
            .push_back((hash, format!("{} {message}\n", now())));
        if log.lines.len() > MAX_LINES
            && let Some((old, _)) = log.lines.pop_front()
        {
            log.seen.remove(&old);
        }
    }

    /// Returns the whole log, one line after the other.
    pub fn text(&self) -> String {
        let log = self.lines.lock().unwrap_or_else(|e| e.into_inner());
        log.lines.iter().map(|(_, line)| line.as_str()).collect()
    }

    /// Returns the number of failures since the start, repeated ones included.
    pub fn total(&self) -> u64 {
        self.lines.lock().unwrap_or_else(|e| e.into_inner()).total
    }
}

fn now() -> String {
    utc(SystemTime::now())
}

/// Formats a time in UTC, to the second, by ISO 8601; one out of the years -9999 to 9999 as the nearest in them.
pub fn utc(time: SystemTime) -> String {
    let nearest = match time < SystemTime::UNIX_EPOCH {
        true => Timestamp::MIN,
        false => Timestamp::MAX,
    };
    let time = Timestamp::try_from(time).unwrap_or(nearest);
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
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
        journal.add(&"long ".repeat(MAX_LINE));
        assert!(journal.text().len() < 2 * MAX_LINE);
        for i in 0..2 * MAX_LINES {
            journal.add(&format!("line {i}"));
        }
        assert_eq!(journal.text().lines().count(), MAX_LINES);
    }
    #[test]
    fn times_are_told_in_utc() {
        use std::time::{Duration, UNIX_EPOCH};
        let after = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        // As `date -u -d @N +%FT%TZ` prints them.
        assert_eq!(utc(UNIX_EPOCH), "1970-01-01T00:00:00Z");
        assert_eq!(utc(after(951_827_696)), "2000-02-29T12:34:56Z");
        let between = after(4_102_444_799) + Duration::from_nanos(999_999_999);
        assert_eq!(utc(between), "2099-12-31T23:59:59Z");
        let before = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(utc(before), "1969-12-31T23:59:59Z");
        assert!(utc(after(1 << 40)).starts_with("9999-12-30T"));
    }
}
