//! The statistics of an array: one column for plain elements, one for each member of a structured type. `npyfs show`
//! prints a column as one list of facts, as JSON and as lines for people.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use half::f16;
use serde::{Serialize, Serializer};
use serde_json::{Value as Json, json};

use super::float::{Width, alone};
use super::pass::Visitor;
use super::printed::{Form, NOT_A_TIME, Surroundings, TimeUnit, float, integer, trimmed, width};
use super::tally::{self, Distinct, FloatTally, IntegerTally, Sum, power};
use crate::cli::figures::Table;
use npyfs_base::npy::dtype::{DType, Field, Kind, Order};

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
    pub(super) fn new(column: &Column) -> Self {
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
            histogram: Histogram::new(&column.tally),
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
    fn new(tally: &Tally) -> Option<Self> {
        let histogram: &tally::Histogram = match tally {
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
    Form::new(&dtype, &[bytes], Surroundings::Array).print(bytes)
}

/// Returns a value of text with its characters, for JSON.
fn text(bytes: &[u8], kind: Kind, order: Order) -> String {
    match kind {
        Kind::Text => {
            let codes = super::printed::characters(bytes, order).into_iter();
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

/// Members of a structured type that are looked at.
const MOST: usize = 64;

/// The statistics of a column.
pub(super) enum Tally {
    /// The number of those that are true, and of all.
    Bools { trues: u64, count: u64 },
    /// Integers.
    Integers(IntegerTally),
    /// Times and spans, in the unit of the type.
    Times(IntegerTally, Option<TimeUnit>),
    /// Floats.
    Floats(FloatTally, Width),
    /// Complex numbers: their sizes, and the sums of both parts of those that are numbers.
    Complex(FloatTally, [Sum; 2]),
    /// Text or bytes, of the kind and in the order that is given.
    Texts(Box<Distinct>, Kind, Order),
}

/// The elements of an array, or one member of all of them.
pub(super) struct Column {
    /// The name of the member, with dots between those of nested types; empty for plain elements.
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) tally: Tally,
    kind: Kind,
    order: Order,
    /// Bytes of an element of the array, and where in it those of the column begin.
    step: usize,
    offset: usize,
    /// Bytes of one element of the column, and how many there are in one of the array.
    size: usize,
    count: usize,
    floats: Vec<f64>,
    integers: Vec<i64>,
}

/// Returns the columns that have statistics, and whether there are more.
pub(super) fn columns(dtype: &DType) -> (Vec<Column>, bool) {
    let mut columns = Vec::new();
    let has_more = !add("", dtype, (0, 1), dtype.size(), &mut columns);
    (columns, has_more)
}

/// Adds the columns of a type that stands `count` times at `offset` of elements of `step` bytes. False if there are too
/// many.
fn add(
    name: &str,
    dtype: &DType,
    place: (usize, usize),
    step: usize,
    to: &mut Vec<Column>,
) -> bool {
    let (offset, count) = place;
    match dtype {
        DType::Scalar { .. } => {
            if let Some(column) = Column::new(name, dtype, place, step) {
                if to.len() == MOST {
                    return false;
                }
                to.push(column);
            }
            true
        }
        // Structures in arrays have no columns: their members do not follow each other.
        DType::Struct { .. } if count != 1 => true,
        DType::Struct { fields, .. } => fields.iter().all(|field: &Field| {
            let name = match name {
                "" => field.name.clone(),
                above => format!("{above}.{}", field.name),
            };
            let dims = field.shape.iter().map(|&n| usize::try_from(n).ok());
            let inner = dims
                .into_iter()
                .try_fold(1_usize, |count, n| count.checked_mul(n?));
            let place = offset.checked_add(field.offset).zip(inner);
            place.is_none_or(|place| add(&name, &field.dtype, place, step, to))
        }),
    }
}

impl Column {
    fn new(name: &str, dtype: &DType, place: (usize, usize), step: usize) -> Option<Self> {
        let DType::Scalar {
            kind,
            size,
            order,
            unit,
        } = dtype
        else {
            return None;
        };
        let tally = match kind {
            _ if *size == 0 => return None,
            Kind::Bool => Tally::Bools { trues: 0, count: 0 },
            Kind::Uint if *size == 8 => Tally::Integers(IntegerTally::new(1 << 63)),
            Kind::Int | Kind::Uint if *size <= 8 => Tally::Integers(IntegerTally::new(0)),
            Kind::Datetime if *size == 8 => {
                Tally::Times(IntegerTally::new(0), TimeUnit::parse(unit))
            }
            Kind::Timedelta if *size == 8 => Tally::Times(IntegerTally::new(0), None),
            Kind::Float => Tally::Floats(FloatTally::default(), width(*size)),
            Kind::Complex => Tally::Complex(FloatTally::default(), Default::default()),
            Kind::Bytes | Kind::Text => Tally::Texts(Box::default(), *kind, *order),
            _ => return None,
        };
        Some(Self {
            name: name.to_owned(),
            dtype: dtype.clone(),
            tally,
            kind: *kind,
            order: *order,
            step,
            offset: place.0,
            size: *size,
            count: place.1,
            floats: Vec::new(),
            integers: Vec::new(),
        })
    }

    /// Returns the bytes of the column's elements in some of the array's.
    fn parts<'b>(&self, bytes: &'b [u8]) -> impl Iterator<Item = &'b [u8]> + use<'b> {
        let own = self.offset
            ..self
                .offset
                .saturating_add(self.size.saturating_mul(self.count));
        let records = bytes.chunks_exact(self.step.max(1));
        records.map(move |record| record.get(own.clone()).unwrap_or_default())
    }

    /// Returns whether all bytes are those of the column.
    fn is_alone(&self) -> bool {
        self.offset == 0 && self.step == self.size.saturating_mul(self.count)
    }

    fn add(&mut self, bytes: &[u8]) {
        match self.is_alone() {
            true => self.add_part(bytes),
            false => {
                let own: Vec<u8> = self.parts(bytes).flatten().copied().collect();
                self.add_part(&own);
            }
        }
    }

    /// Adds elements of the column that follow each other.
    fn add_part(&mut self, bytes: &[u8]) {
        let (kind, order, size) = (self.kind, self.order, self.size);
        match &mut self.tally {
            Tally::Bools { trues, count } => {
                *count += bytes.len() as u64;
                *trues += bytes.iter().map(|&byte| u64::from(byte != 0)).sum::<u64>();
            }
            Tally::Integers(tally) => {
                self.integers.clear();
                integers(bytes, kind, size, order, &mut self.integers);
                tally.add(&self.integers);
            }
            Tally::Times(tally, _) => {
                self.integers.clear();
                integers(bytes, Kind::Int, size, order, &mut self.integers);
                let all = self.integers.len();
                self.integers.retain(|&time| time != NOT_A_TIME);
                tally.add_nothing((all - self.integers.len()) as u64);
                tally.add(&self.integers);
            }
            Tally::Floats(tally, _) => {
                self.floats.clear();
                floats(bytes, size, order, &mut self.floats);
                tally.add(&self.floats);
            }
            Tally::Complex(sizes, sums) => {
                self.floats.clear();
                floats(bytes, size / 2, order, &mut self.floats);
                let (pairs, _) = self.floats.as_chunks::<2>();
                let own: Vec<f64> = pairs
                    .iter()
                    .map(|[re, im]| complex_size(*re, *im))
                    .collect();
                for [re, im] in pairs
                    .iter()
                    .filter(|[re, im]| re.is_finite() && im.is_finite())
                {
                    sums[0].add(*re);
                    sums[1].add(*im);
                }
                sizes.add(&own);
            }
            Tally::Texts(distinct, ..) => {
                for text in bytes.chunks_exact(size) {
                    distinct.add(trimmed(text, unit(kind)), 1);
                }
            }
        }
    }

    /// Adds one element of the column several times.
    fn add_many(&mut self, bytes: &[u8], times: u64) {
        match &mut self.tally {
            Tally::Bools { trues, count } => {
                *count = count.saturating_add(times);
                if bytes.first() != Some(&0) {
                    *trues = trues.saturating_add(times);
                }
            }
            Tally::Integers(tally) => {
                let number = integer(bytes, self.kind, self.order) - tally.offset;
                tally.add_many(i64::try_from(number).unwrap_or_default(), times);
            }
            Tally::Times(tally, _) => match i64::try_from(integer(bytes, Kind::Int, self.order)) {
                Ok(NOT_A_TIME) | Err(_) => tally.add_nothing(times),
                Ok(time) => tally.add_many(time, times),
            },
            Tally::Floats(tally, _) => tally.add_many(float(bytes, self.order), times),
            Tally::Complex(sizes, sums) => {
                let (re, im) = bytes.split_at(bytes.len() / 2);
                let (re, im) = (float(re, self.order), float(im, self.order));
                if re.is_finite() && im.is_finite() {
                    sums[0].add(re * times as f64);
                    sums[1].add(im * times as f64);
                }
                sizes.add_many(complex_size(re, im), times);
            }
            Tally::Texts(distinct, kind, _) => distinct.add(trimmed(bytes, unit(*kind)), times),
        }
    }
}

impl Visitor for Vec<Column> {
    fn elements(&mut self, _: u64, bytes: &[u8]) {
        self.iter_mut().for_each(|column| column.add(bytes));
    }

    fn repeated(&mut self, places: Range<u64>, pattern: &[u8]) {
        for column in self {
            let records = pattern.chunks_exact(column.step.max(1));
            let (all, period) = (places.end - places.start, records.len().max(1) as u64);
            let parts: Vec<&[u8]> = column.parts(pattern).collect();
            for (part, number) in parts.into_iter().zip(0..) {
                let times = all / period + u64::from(number < all % period);
                for element in part.chunks_exact(column.size).filter(|_| times > 0) {
                    column.add_many(element, times);
                }
            }
        }
    }
}

/// Returns the number of bytes of a character.
fn unit(kind: Kind) -> usize {
    match kind {
        Kind::Text => 4,
        _ => 1,
    }
}

/// Returns the absolute value of a complex number; NaN if a part is NaN, unlike `hypot`.
fn complex_size(re: f64, im: f64) -> f64 {
    match re.is_nan() || im.is_nan() {
        true => f64::NAN,
        false => re.hypot(im),
    }
}

/// Adds the numbers that elements of `N` bytes are.
fn each<const N: usize, T>(
    bytes: &[u8],
    order: Order,
    to: &mut Vec<T>,
    read: impl Fn([u8; N]) -> T,
) {
    let (elements, _) = bytes.as_chunks::<N>();
    match order {
        Order::Big => to.extend(elements.iter().map(|element| {
            let mut own = *element;
            own.reverse();
            read(own)
        })),
        _ => to.extend(elements.iter().map(|element| read(*element))),
    }
}

/// Adds floats of 2, 4, 8 or 16 bytes.
pub(super) fn floats(bytes: &[u8], size: usize, order: Order, to: &mut Vec<f64>) {
    match size {
        2 => each(bytes, order, to, |bytes| f16::from_le_bytes(bytes).to_f64()),
        4 => each(bytes, order, to, |bytes| {
            f64::from(f32::from_le_bytes(bytes))
        }),
        8 => each(bytes, order, to, f64::from_le_bytes),
        _ => to.extend(
            bytes
                .chunks_exact(size.max(1))
                .map(|bytes| float(bytes, order)),
        ),
    }
}

/// Adds the numbers that stand for integers of at most eight bytes: of unsigned ones of 64 bits those that are 2^63
/// less.
pub(super) fn integers(bytes: &[u8], kind: Kind, size: usize, order: Order, to: &mut Vec<i64>) {
    match (kind, size) {
        (Kind::Int, 1) => each(bytes, order, to, |bytes| i8::from_le_bytes(bytes).into()),
        (Kind::Int, 2) => each(bytes, order, to, |bytes| i16::from_le_bytes(bytes).into()),
        (Kind::Int, 4) => each(bytes, order, to, |bytes| i32::from_le_bytes(bytes).into()),
        (Kind::Int, 8) => each(bytes, order, to, i64::from_le_bytes),
        (_, 1) => each(bytes, order, to, |bytes| u8::from_le_bytes(bytes).into()),
        (_, 2) => each(bytes, order, to, |bytes| u16::from_le_bytes(bytes).into()),
        (_, 4) => each(bytes, order, to, |bytes| u32::from_le_bytes(bytes).into()),
        (_, 8) => each(bytes, order, to, |bytes| {
            (u64::from_le_bytes(bytes) ^ 1 << 63).cast_signed()
        }),
        _ => {
            let read = |bytes| i64::try_from(integer(bytes, kind, order)).unwrap_or_default();
            to.extend(bytes.chunks_exact(size.max(1)).map(read));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the statistics of elements, as text and as JSON.
    fn told(dtype: &DType, data: &[u8]) -> (String, Json) {
        let (mut columns, _) = columns(dtype);
        columns.elements(0, data);
        let statistics = Statistics::new(&columns[0]);
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

    fn field(name: &str, offset: usize, dtype: DType, shape: &[u64]) -> Field {
        Field {
            name: name.into(),
            offset,
            dtype,
            shape: shape.to_vec(),
        }
    }

    fn record() -> DType {
        let inner = DType::Struct {
            fields: vec![field("n", 1, DType::int(2), &[])],
            size: 3,
        };
        DType::Struct {
            fields: vec![
                field("flags", 0, DType::scalar(Kind::Bool, 1, Order::None), &[2]),
                field("deep", 2, inner, &[]),
                field("raw", 5, DType::scalar(Kind::Void, 1, Order::None), &[]),
                field("text", 6, DType::bytes(2), &[]),
            ],
            size: 8,
        }
    }

    #[test]
    fn members_have_columns_of_their_own() {
        let (mut all, has_more) = columns(&record());
        assert!(!has_more);
        assert_eq!(
            Vec::from_iter(all.iter().map(|c| &c.name[..])),
            ["flags", "deep.n", "text"]
        );
        all.elements(0, &[1, 0, 9, 5, 0, 9, b'a', 0, 1, 1, 9, 7, 0, 9, b'a', 0]);
        all.repeated(2..12, &[0, 1, 9, 1, 0, 9, b'b', b'c']);
        let [
            Tally::Bools { trues, count },
            Tally::Integers(numbers),
            Tally::Texts(texts, ..),
        ] = [0, 1, 2]
            .map(|at| std::mem::replace(&mut all[at].tally, Tally::Bools { trues: 0, count: 0 }))
        else {
            panic!("other kinds");
        };
        assert_eq!((trues, count), (13, 24));
        assert_eq!((numbers.count, numbers.range()), (12, Some((1, 7))));
        assert_eq!(texts.most_frequent(9), [(&b"bc"[..], 10), (b"a", 2)]);
    }

    #[test]
    fn there_is_an_end_of_members() {
        let fields = (0..MOST + 1).map(|at| field(&at.to_string(), at, DType::int(1), &[]));
        let dtype = DType::Struct {
            fields: fields.collect(),
            size: MOST + 1,
        };
        let (all, has_more) = columns(&dtype);
        assert!(has_more && all.len() == MOST);
    }

    proptest! {
        #[test]
        fn what_repeats_is_counted_as_if_it_were_there(
            pattern in proptest::collection::vec(any::<u8>(), 1..5),
            kind in 0..4_usize,
            count in 1..100_u64,
        ) {
            let dtype = [
                DType::int(2),
                DType::scalar(Kind::Uint, 8, Order::Big),
                DType::scalar(Kind::Float, 4, Order::Little),
                DType::scalar(Kind::Datetime, 8, Order::Little),
            ][kind].clone();
            let pattern: Vec<u8> = pattern.iter().flat_map(|&byte| vec![byte; dtype.size()]).collect();
            let all: Vec<u8> = pattern.iter().copied().cycle().take(dtype.size() * count as usize).collect();
            let (mut one, _) = columns(&dtype);
            let (mut other, _) = columns(&dtype);
            one.elements(0, &all);
            other.repeated(0..count, &pattern);
            match (&one[0].tally, &other[0].tally) {
                (Tally::Integers(a), Tally::Integers(b)) | (Tally::Times(a, _), Tally::Times(b, _)) => {
                    prop_assert_eq!((a.count, a.nothing, a.zeros, a.range()), (b.count, b.nothing, b.zeros, b.range()));
                    prop_assert!(a.mean() == b.mean() || a.mean().is_nan());
                    prop_assert_eq!(a.histogram.counts(), b.histogram.counts());
                }
                (Tally::Floats(a, _), Tally::Floats(b, _)) => {
                    prop_assert_eq!((a.count, a.nan, a.zeros, a.range()), (b.count, b.nan, b.zeros, b.range()));
                }
                _ => prop_assert!(false),
            }
        }
    }
}
