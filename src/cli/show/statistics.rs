//! The statistics of a column as `npyfs show` prints them: one list of facts, as JSON and as lines for people.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::{Value as Json, json};

use super::column::{Column, Tally};
use super::histogram::{self, power};
use super::printed::float::{Width, alone};
use super::printed::time::TimeUnit;
use super::printed::{Around, Form};
use super::tally::{FloatTally, IntegerTally};
use crate::cli::figures::Table;
use npyfs_base::npy::dtype::{DType, Kind, Order};

/// Values of text that are listed, the most frequent first.
const MOST_FREQUENT: usize = 10;

/// Characters of a value that are shown in a list.
const LONGEST_VALUE: usize = 40;

/// The length of the longest bar, in characters.
const BAR: f64 = 40.0;

/// A number of a column. It displays as NumPy prints it.
#[derive(Clone, Copy, Debug)]
enum Number {
    /// In JSON an integer. The end of a histogram of unsigned integers may be 2^64, which is a float in JSON.
    Whole(i128),
    /// In JSON a number, or text where JSON has no number: `NaN`, `inf`.
    Float(f64, Width),
    /// A time or span, in JSON the text that is displayed.
    Time(i128, Option<TimeUnit>),
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Whole(number) => number.fmt(f),
            Self::Float(number, width) => f.write_str(&alone(number, width)),
            Self::Time(number, unit) => match (unit, i64::try_from(number)) {
                (Some(unit), Ok(number)) => f.write_str(&unit.print(number)),
                _ => number.fmt(f),
            },
        }
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Whole(number) => match (i64::try_from(number), u64::try_from(number)) {
                (Ok(number), _) => to.serialize_i64(number),
                (_, Ok(number)) => to.serialize_u64(number),
                _ => to.serialize_f64(number as f64),
            },
            Self::Float(number, _) if number.is_finite() => to.serialize_f64(number),
            Self::Float(number, _) => to.collect_str(&number),
            Self::Time(..) => to.collect_str(self),
        }
    }
}

/// The bins of a histogram.
#[derive(Debug, Serialize)]
struct Histogram {
    counts: Vec<u64>,
    /// One more than there are counts.
    edges: Vec<Number>,
    /// The edges for people: times as such, floats with few digits.
    #[serde(skip)]
    labels: Vec<String>,
}

/// A value of text, and how often it occurs.
#[derive(Debug, Serialize)]
struct Frequent {
    count: u64,
    /// The characters.
    value: String,
    /// The value as NumPy prints it, cut off if it is long.
    #[serde(skip)]
    printed: String,
}

/// The value of a fact.
#[derive(Debug)]
enum Value {
    Number(Option<Number>),
    /// The real and the imaginary part.
    Complex([Number; 2]),
    Count(u64),
    /// The elements that the fact counts, and all elements.
    Share(u64, u64),
    /// Values that were told apart, and whether there are more.
    Distinct(usize, bool),
    Flag(bool),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.iter().try_for_each(|number| number.fmt(f)),
            Self::Complex([re, im]) => {
                let is_negative = matches!(im, Number::Float(im, _) if im.is_sign_negative());
                let plus = if is_negative { "" } else { "+" };
                write!(f, "{re}{plus}{im}j")
            }
            Self::Count(count) => count.fmt(f),
            Self::Share(part, all) => write!(f, "{part}{}", per_cent(*part, *all)),
            Self::Distinct(count, false) => count.fmt(f),
            Self::Distinct(count, true) => write!(f, "more than {count}"),
            Self::Flag(flag) => flag.fmt(f),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => number.serialize(to),
            Self::Complex(parts) => parts.serialize(to),
            Self::Count(count) | Self::Share(count, _) => count.serialize(to),
            Self::Distinct(count, _) => count.serialize(to),
            Self::Flag(flag) => flag.serialize(to),
        }
    }
}

/// A fact about the elements of a column.
#[derive(Debug)]
struct Fact {
    /// The key in JSON.
    key: &'static str,
    /// The name for people; `None` for a fact that is in JSON alone.
    name: Option<&'static str>,
    value: Value,
}

impl Fact {
    fn new(key: &'static str, name: &'static str, value: Value) -> Self {
        let name = Some(name);
        Self { key, name, value }
    }

    /// Hides the fact from people, unless `is_shown`.
    fn shown_if(mut self, is_shown: bool) -> Self {
        self.name = self.name.filter(|_| is_shown);
        self
    }
}

/// The statistics of a column. The JSON is a map in the order of its keys.
#[derive(Debug)]
pub(super) struct Statistics {
    /// In the order in which people read them.
    facts: Vec<Fact>,
    histogram: Option<Histogram>,
    /// Of text the most frequent values.
    frequent: Option<Vec<Frequent>>,
}

impl Serialize for Statistics {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let facts = self.facts.iter();
        let mut map: BTreeMap<&str, Json> =
            facts.map(|fact| (fact.key, json!(fact.value))).collect();
        if let Some(histogram) = &self.histogram {
            map.insert("histogram", json!(histogram));
        }
        if let Some(frequent) = &self.frequent {
            map.insert("most_frequent", json!(frequent));
        }
        map.serialize(to)
    }
}

impl Statistics {
    /// Returns the statistics of a column that has seen all elements.
    pub(super) fn of(column: &Column) -> Self {
        let frequent = match &column.tally {
            Tally::Texts(distinct, kind, order) => {
                let entry = |(bytes, count)| Frequent {
                    count,
                    value: text(bytes, *kind, *order),
                    printed: cut(&value(bytes, *kind, *order)),
                };
                let frequent = distinct.most_frequent(MOST_FREQUENT).into_iter();
                Some(frequent.map(entry).collect())
            }
            _ => None,
        };
        Self {
            facts: facts(&column.tally),
            histogram: Histogram::of(&column.tally),
            frequent,
        }
    }

    /// Returns the facts for people.
    fn table(&self) -> Table {
        let mut table = Table::default();
        for fact in &self.facts {
            if let Some(name) = fact.name {
                table.push(name, fact.value.to_string());
            }
        }
        if let Some(Frequent { count, printed, .. }) = self.frequent.iter().flatten().next() {
            table.push("most often", format!("{printed}, {count} times"));
        }
        table
    }

    /// Returns the lines for people: the facts, then a histogram or the most frequent values.
    pub(super) fn text(&self) -> String {
        let mut table = self.table();
        if let Some(frequent) = self.frequent.as_ref().filter(|all| all.len() > 1) {
            table.0.truncate(1);
            let row = |one: &Frequent| (one.printed.clone(), one.count);
            let rows: Vec<(String, u64)> = frequent.iter().map(row).collect();
            let has_others = self.facts.iter().any(|fact| match fact.value {
                Value::Distinct(count, has_more) => has_more || count > frequent.len(),
                _ => false,
            });
            let dots = if has_others { "...\n" } else { "" };
            return format!("{}\n{}{dots}", table.lines(0), bars(&rows));
        }
        let mut text = table.lines(0);
        if let Some(Histogram { counts, labels, .. }) = &self.histogram {
            let width = labels.iter().map(|label| label.chars().count()).max();
            let width = width.unwrap_or(0);
            let right = |label: &String| format!("{label:>width$}");
            let rows: Vec<(String, u64)> = labels
                .iter()
                .map(right)
                .zip(counts.iter().copied())
                .collect();
            let last = labels.last().cloned().unwrap_or_default();
            text.push_str(&format!("\n{}{last:>width$}\n", bars(&rows)));
        }
        text
    }

    /// Returns the facts on one line.
    pub(super) fn line(&self) -> String {
        let facts = self.table().0;
        let facts = facts.iter().map(|(name, value)| format!("{name} {value}"));
        facts.collect::<Vec<_>>().join(", ")
    }
}

/// Returns the facts about the elements of a column.
fn facts(tally: &Tally) -> Vec<Fact> {
    let double = |number: f64| Number::Float(number, Width::Double);
    let ends = |names: [&'static str; 2], range: Option<(Number, Number)>, min, max| {
        let (least, most) = range.unzip();
        let is_known = least.is_some();
        [(min, names[0], least), (max, names[1], most)]
            .map(|(key, name, end)| Fact::new(key, name, Value::Number(end)).shown_if(is_known))
    };
    let zeros = |zeros: u64, count: u64| {
        Fact::new("zeros", "zeros", Value::Share(zeros, count)).shown_if(zeros > 0)
    };
    let not_finite = |tally: &FloatTally| {
        let infinite = tally.plus_infinity.saturating_add(tally.minus_infinity);
        [
            Fact::new("nan", "NaN", Value::Share(tally.nan, tally.count)),
            Fact::new("inf", "inf", Value::Count(infinite)).shown_if(infinite > 0),
            zeros(tally.zeros, tally.count),
        ]
    };
    let mean = |mean: f64, is_known: bool| {
        let mean = Value::Number(Some(double(mean)));
        Fact::new("mean", "mean", mean).shown_if(is_known)
    };
    let mut facts = Vec::new();
    match tally {
        Tally::Bools { trues, count } => {
            let share = |part: u64| Value::Share(part, *count);
            facts.push(Fact::new("true", "True", share(*trues)));
            facts.push(Fact::new("false", "False", share(count - trues)));
        }
        Tally::Integers(tally) => {
            let range = tally.range();
            let whole = |(least, most)| (Number::Whole(least), Number::Whole(most));
            facts.extend(ends(["min", "max"], range.map(whole), "min", "max"));
            facts.push(mean(tally.mean(), range.is_some()));
            facts.push(zeros(tally.zeros, tally.count));
        }
        Tally::Times(tally, unit) => {
            let time = |(least, most)| (Number::Time(least, *unit), Number::Time(most, *unit));
            facts.extend(ends(["min", "max"], tally.range().map(time), "min", "max"));
            facts.push(Fact::new("nat", "NaT", Value::Count(tally.nothing)));
        }
        Tally::Floats(tally, width) => {
            let range = tally.range();
            let float = |(least, most)| (Number::Float(least, *width), Number::Float(most, *width));
            facts.extend(ends(["min", "max"], range.map(float), "min", "max"));
            facts.push(mean(tally.mean(), range.is_some()));
            facts.extend(not_finite(tally));
        }
        Tally::Complex(sizes, sums) => {
            let float = |(least, most)| (double(least), double(most));
            let names = ["min |z|", "max |z|"];
            facts.extend(ends(names, sizes.range().map(float), "min_abs", "max_abs"));
            facts.extend(not_finite(sizes));
            let count = (sizes.count - sizes.nan - sizes.plus_infinity) as f64;
            let mean = sums.map(|sum| double(sum.value() / count));
            facts.push(Fact::new("mean", "mean", Value::Complex(mean)));
        }
        Tally::Texts(distinct, ..) => {
            let count = Value::Distinct(distinct.len(), distinct.has_more);
            facts.push(Fact::new("distinct", "distinct", count));
            facts.push(Fact::new("more", "", Value::Flag(distinct.has_more)).shown_if(false));
        }
    }
    facts
}

impl Histogram {
    /// Returns the histogram of a column, if it has one of more than one bin.
    fn of(tally: &Tally) -> Option<Self> {
        let histogram: &histogram::Histogram = match tally {
            Tally::Integers(IntegerTally { histogram, .. })
            | Tally::Times(IntegerTally { histogram, .. }, _) => histogram,
            Tally::Floats(FloatTally { histogram, .. }, _)
            | Tally::Complex(FloatTally { histogram, .. }, _) => histogram,
            Tally::Bools { .. } | Tally::Texts(..) => return None,
        };
        let (edges, exponent) = histogram.edges();
        let edge = |edge: i128| {
            let whole = |offset: i128| (edge << exponent.clamp(0, 63)) + offset;
            match tally {
                Tally::Integers(tally) => {
                    let whole = whole(tally.offset);
                    (Number::Whole(whole), whole.to_string())
                }
                Tally::Times(tally, unit) => {
                    let whole = whole(tally.offset);
                    (Number::Whole(whole), Number::Time(whole, *unit).to_string())
                }
                _ => {
                    let float = edge as f64 * power(exponent);
                    (Number::Float(float, Width::Double), short(float))
                }
            }
        };
        let (edges, labels) = edges.into_iter().map(edge).unzip();
        let counts = histogram.counts().to_vec();
        (counts.len() > 1).then_some(Self {
            counts,
            edges,
            labels,
        })
    }
}

/// Returns a number with six digits at most.
pub(super) fn short(number: f64) -> String {
    let rounded = format!("{number:.5e}").parse().unwrap_or(number);
    let text = alone(rounded, Width::Double);
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// Returns a share of 1 as per cent.
fn per_cent(part: u64, all: u64) -> String {
    match all {
        0 => String::new(),
        _ => format!(
            " ({}%)",
            short((part as f64 / all as f64 * 1000.0).round() / 10.0)
        ),
    }
}

/// Returns a bar for a share of 1, in eighths of a character; none is shorter than one, but for 0.
fn bar(share: f64) -> String {
    let eighths = (share * BAR * 8.0).round() as usize;
    let eighths = eighths.max(usize::from(share > 0.0));
    let part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    format!("{}{part}", "█".repeat(eighths / 8))
}

/// Returns a value of text as NumPy prints it.
fn value(bytes: &[u8], kind: Kind, order: Order) -> String {
    let dtype = DType::scalar(kind, bytes.len(), order);
    Form::new(&dtype, &[bytes], Around::Array).print(bytes)
}

/// Returns a value of text with its characters, for JSON.
fn text(bytes: &[u8], kind: Kind, order: Order) -> String {
    match kind {
        Kind::Text => {
            let codes = super::value::characters(bytes, order).into_iter();
            codes
                .map(|code| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
                .collect()
        }
        _ => String::from_utf8_lossy(bytes).into_owned(),
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST_VALUE) {
        Some((at, _)) => format!("{}...", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Returns lines of a label, a count and a bar.
fn bars(rows: &[(String, u64)]) -> String {
    let most = rows
        .iter()
        .map(|(_, count)| *count)
        .max()
        .unwrap_or(0)
        .max(1);
    let long = |text: &str| text.chars().count();
    let width = rows.iter().map(|(label, _)| long(label)).max().unwrap_or(0);
    let digits = most.to_string().len();
    let line = |(label, count): &(String, u64)| {
        let blanks = " ".repeat(width - long(label));
        let bar = bar(*count as f64 / most as f64);
        let line = format!("{blanks}{label}  {count:>digits$}  {bar}");
        format!("{}\n", line.trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::show::column::columns;
    use crate::cli::show::pass::Visitor;

    /// Returns the statistics of elements, as text and as JSON.
    fn told(dtype: &DType, data: &[u8]) -> (String, Json) {
        let (mut columns, _) = columns(dtype);
        columns.elements(0, data);
        let statistics = Statistics::of(&columns[0]);
        (
            statistics.text(),
            serde_json::to_value(&statistics).unwrap(),
        )
    }

    #[test]
    fn bars_and_numbers_are_short() {
        assert_eq!([0.0, 1e-9, 1.0 / 80.0].map(bar), ["", "▏", "▌"]);
        assert_eq!(bar(1.0).chars().count(), 40);
        assert_eq!(
            [0.0625, 1.0, 1.0 / 3.0, 1e20].map(short),
            ["0.0625", "1", "0.333333", "1e+20"]
        );
        assert_eq!(per_cent(1, 3), " (33.3%)");
    }

    #[test]
    fn integers() {
        let (text, json) = told(&DType::int(1), &[0, 1, 1, 3]);
        assert!(text.starts_with("min    0\nmax    3\nmean   1.25\nzeros  1 (25%)\n\n0  1  ██"));
        assert!(text.ends_with("\n3  1  ████████████████████\n4\n"));
        assert_eq!(json["histogram"]["edges"], json!([0, 1, 2, 3, 4]));
        assert_eq!(json["histogram"]["counts"], json!([1, 2, 0, 1]));
    }

    #[test]
    fn text_is_made_printable() {
        let (text, json) = told(&DType::bytes(2), b"a\x1ba\x1bb\0");
        assert_eq!(
            text,
            "distinct  2\n\nb'a\\x1b'  2  ████████████████████████████████████████\n    b'b'  1  ████████████████████\n"
        );
        assert_eq!(
            json["most_frequent"][0],
            json!({ "value": "a\u{1b}", "count": 2 })
        );
    }

    #[test]
    fn what_is_no_number_is_text_in_json() {
        let (text, json) = told(
            &DType::scalar(Kind::Float, 8, Order::Little),
            &f64::NAN.to_le_bytes(),
        );
        assert_eq!(
            json,
            json!({ "min": null, "max": null, "mean": "NaN", "nan": 1, "inf": 0, "zeros": 0 })
        );
        assert_eq!(text, "NaN  1 (100%)\n");
    }
}
