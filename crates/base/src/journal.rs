//! The failures of a mount, one line each, the latest last: `errors.log` and other sinks.
//!
//! The number and length of lines are bounded. A repeated message moves to the end and is counted; sinks receive it at
//! most once a second.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::printable;

/// The most lines.
const MAX_LINES: usize = 4096;

/// The most characters of a line: names and types in files can be long.
const MAX_LINE: usize = 2000;

/// How long repetitions of a message are counted without being passed on.
const QUIET: Duration = Duration::from_secs(1);

/// The parts of a refusal, for machine readers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The path in the mount; bytes that are not UTF-8 are replaced.
    pub path: String,
    /// The operation, such as `open`, `close` or `rename`.
    pub operation: String,
    /// The errno that the program received.
    pub errno: i32,
    /// Whether data waits to be made durable, which is retried until the mount ends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits: bool,
}

/// A failure, and the number of its repetitions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Its number in the mount, from 1. A repetition gets a new number.
    pub number: u64,
    /// The time of the last repetition: UTC, ISO 8601.
    pub time: String,
    /// The failure in words.
    pub message: String,
    /// How often it happened.
    pub count: u64,
    /// The operation that failed, if a program requested one.
    #[serde(flatten)]
    pub refusal: Option<Refusal>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.time, self.message)?;
        match self.count {
            1 => Ok(()),
            times => write!(f, " ({times} times)"),
        }
    }
}

/// A sink that keeps lines beyond the mount.
pub trait LineSink: Send + Sync {
    /// Adds a line. `status` reports a failure to do so.
    fn add(&self, line: &Line);

    /// Returns the location of the sink, and why lines could not be added.
    fn status(&self) -> (String, Option<String>);
}

/// A line, and its state in the journal.
struct KnownLine {
    line: Line,
    hash: u64,
    passed_on: Instant,
}

/// The lines, and their numbers by the hashes of their messages.
#[derive(Default)]
struct Log {
    lines: BTreeMap<u64, KnownLine>,
    numbers: HashMap<u64, u64>,
    total: u64,
    sinks: Vec<Box<dyn LineSink>>,
}

/// The log of one mount.
#[derive(Default)]
pub struct Journal {
    log: Mutex<Log>,
}

impl Journal {
    /// Adds a line with the current time.
    pub fn add(&self, message: &str) {
        self.put(message, None);
    }

    /// Adds a line about an operation that was refused.
    pub fn refuse(&self, message: &str, refusal: Refusal) {
        self.put(message, Some(refusal));
    }

    fn put(&self, message: &str, refusal: Option<Refusal>) {
        let message: String = printable::line(message).chars().take(MAX_LINE).collect();
        let hash = xxh3_64(message.as_bytes());
        let mut log = self.log.lock();
        log.total += 1;
        let number = log.total;
        let again = log.numbers.insert(hash, number);
        let before = again.and_then(|number| log.lines.remove(&number));
        let count = before.as_ref().map_or(1, |known| known.line.count + 1);
        let line = Line {
            number,
            time: utc(SystemTime::now()),
            message,
            count,
            refusal,
        };
        let quiet = before.filter(|known| known.passed_on.elapsed() < QUIET);
        if quiet.is_none() {
            for sink in &log.sinks {
                sink.add(&line);
            }
        }
        let known = KnownLine {
            line,
            hash,
            passed_on: quiet.map_or_else(Instant::now, |known| known.passed_on),
        };
        log.lines.insert(number, known);
        if log.lines.len() > MAX_LINES
            && let Some((_, old)) = log.lines.pop_first()
        {
            log.numbers.remove(&old.hash);
        }
    }

    /// Adds a sink: it receives the existing lines and all later ones.
    pub fn keep(&self, sink: Box<dyn LineSink>) {
        let mut log = self.log.lock();
        for known in log.lines.values() {
            sink.add(&known.line);
        }
        log.sinks.push(sink);
    }

    /// Returns the locations of the sinks, and why lines could not be added there.
    pub fn kept(&self) -> Vec<(String, Option<String>)> {
        self.log
            .lock()
            .sinks
            .iter()
            .map(|sink| sink.status())
            .collect()
    }

    /// Returns the whole log as text, one line per failure.
    pub fn text(&self) -> String {
        let log = self.log.lock();
        let lines = log.lines.values();
        lines.map(|known| format!("{}\n", known.line)).collect()
    }

    /// Returns the whole log as JSON, one object per line.
    pub fn json(&self) -> String {
        let log = self.log.lock();
        let lines = log.lines.values();
        let json = lines.filter_map(|known| serde_json::to_string(&known.line).ok());
        json.map(|line| line + "\n").collect()
    }

    /// Returns the number of failures since the start, including repetitions.
    pub fn total(&self) -> u64 {
        self.log.lock().total
    }
}

/// Formats a time in UTC to the second, as ISO 8601. Times outside of the years -9999 to 9999 are clamped.
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
    fn lines_are_single_bounded_and_counted() {
        let journal = Journal::default();
        journal.add("a\nb");
        assert!(journal.text().ends_with(" a b\n"));
        journal.add("a\nb");
        assert_eq!(journal.text().lines().count(), 1);
        assert!(journal.text().ends_with(" a b (2 times)\n"));
        assert_eq!(journal.total(), 2);
        journal.add(&"long ".repeat(MAX_LINE));
        assert!(journal.text().len() < 2 * MAX_LINE);
        for i in 0..2 * MAX_LINES {
            journal.add(&format!("line {i}"));
        }
        assert_eq!(journal.text().lines().count(), MAX_LINES);
    }

    #[test]
    fn a_line_is_read_back_from_its_json() {
        let journal = Journal::default();
        journal.add("a");
        let refusal = Refusal {
            path: "x.npy".to_owned(),
            operation: "close".to_owned(),
            errno: 22,
            waits: false,
        };
        journal.refuse("b", refusal.clone());
        let lines: Vec<Line> = journal
            .json()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!((lines[0].number, &lines[0].refusal), (1, &None));
        assert_eq!((lines[1].number, &lines[1].refusal), (2, &Some(refusal)));
        assert_eq!(lines[1].message, "b");
    }

    #[test]
    fn a_sink_is_not_flooded_with_one_message() {
        use std::sync::Arc;

        use parking_lot::Mutex;
        struct Sink(Arc<Mutex<Vec<String>>>);
        impl LineSink for Sink {
            fn add(&self, line: &Line) {
                self.0.lock().push(line.message.clone());
            }
            fn status(&self) -> (String, Option<String>) {
                (String::new(), None)
            }
        }
        let (journal, heard) = (Journal::default(), Arc::default());
        journal.add("before");
        journal.keep(Box::new(Sink(Arc::clone(&heard))));
        for _ in 0..100 {
            journal.add("again");
        }
        journal.add("other");
        assert_eq!(*heard.lock(), ["before", "again", "other"]);
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
