//! The statistics of an array as `npyfs show` tells them: for people, and as JSON.

use serde_json::{Map, Value as Json, json};

use super::column::{Column, Tally};
use super::histogram::{Histogram, power};
use super::printed::float::{Width, alone};
use super::printed::time::TimeUnit;
use super::printed::{Around, Form};
use super::tally::{FloatTally, IntegerTally};
use crate::cli::figures::Table;
use crate::npy::dtype::{DType, Kind, Order};
use crate::printable;

/// Values of text that are listed, the most frequent first.
const MOST_FREQUENT: usize = 10;

/// Characters of a value that are shown in a list.
const LONGEST_VALUE: usize = 40;

/// The length of the longest bar, in characters.
const BAR: f64 = 40.0;

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

/// Returns a number as JSON; what JSON has no form for is text.
fn number(number: f64) -> Json {
    serde_json::Number::from_f64(number).map_or_else(|| json!(number.to_string()), Json::Number)
}

/// Returns an integer of at most 64 bits as JSON.
fn whole(number: i128) -> Json {
    match (i64::try_from(number), u64::try_from(number)) {
        (Ok(number), _) => json!(number),
        (_, Ok(number)) => json!(number),
        // The end of unsigned integers of 64 bits, which a float has.
        _ => json!(number as f64),
    }
}

/// Returns a time as it is printed, or its number.
fn time(number: i128, unit: Option<TimeUnit>) -> String {
    match (unit, i64::try_from(number)) {
        (Some(unit), Ok(number)) => unit.print(number),
        _ => number.to_string(),
    }
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

/// The names and values that are told of a column.
fn facts(tally: &Tally) -> Table {
    let mut table = Table::default();
    match tally {
        Tally::Bools { trues, count } => {
            table.push("True", format!("{trues}{}", per_cent(*trues, *count)));
            table.push(
                "False",
                format!("{}{}", count - trues, per_cent(count - trues, *count)),
            );
        }
        Tally::Integers(tally) => {
            if let Some((least, most)) = tally.range() {
                table.push("min", least.to_string());
                table.push("max", most.to_string());
                table.push("mean", alone(tally.mean(), Width::Double));
            }
            zeros(tally.zeros, tally.count, &mut table);
        }
        Tally::Times(tally, unit) => {
            if let Some((least, most)) = tally.range() {
                table.push("min", time(least, *unit));
                table.push("max", time(most, *unit));
            }
            table.push("NaT", tally.nothing.to_string());
        }
        Tally::Floats(tally, width) => floats(tally, *width, "", &mut table),
        Tally::Complex(sizes, sums) => {
            floats(sizes, Width::Double, "|z|", &mut table);
            let count = (sizes.count - sizes.nan - sizes.plus_infinity) as f64;
            let [re, im] = sums.map(|sum| sum.value() / count);
            let plus = if im.is_sign_negative() { "" } else { "+" };
            let mean = format!(
                "{}{plus}{}j",
                alone(re, Width::Double),
                alone(im, Width::Double)
            );
            table.push("mean", mean);
        }
        Tally::Texts(distinct, kind, order) => {
            let more = if distinct.has_more { "more than " } else { "" };
            table.push("distinct", format!("{more}{}", distinct.len()));
            if let [(most, count)] = distinct.most_frequent(1)[..] {
                let value = cut(&value(most, *kind, *order));
                table.push("most often", format!("{value}, {count} times"));
            }
        }
    }
    table
}

fn zeros(zeros: u64, all: u64, table: &mut Table) {
    if zeros > 0 {
        table.push("zeros", format!("{zeros}{}", per_cent(zeros, all)));
    }
}

/// Adds what is told of floats; of complex numbers what is told of their sizes.
fn floats(tally: &FloatTally, width: Width, of: &str, table: &mut Table) {
    let name = |what: &str| format!("{what} {of}").trim_end().to_owned();
    if let Some((least, most)) = tally.range() {
        table.push(name("min"), alone(least, width));
        table.push(name("max"), alone(most, width));
        if of.is_empty() {
            table.push("mean", alone(tally.mean(), Width::Double));
        }
    }
    table.push(
        "NaN",
        format!("{}{}", tally.nan, per_cent(tally.nan, tally.count)),
    );
    let infinite = tally.plus_infinity.saturating_add(tally.minus_infinity);
    if infinite > 0 {
        table.push("inf", infinite.to_string());
    }
    zeros(tally.zeros, tally.count, table);
}

/// Returns the labels of a histogram's edges.
fn labels(histogram: &Histogram, tally: &Tally) -> Vec<String> {
    let (edges, exponent) = histogram.edges();
    let whole = |edge: i128| edge << exponent.clamp(0, 63);
    let label = |edge: i128| match tally {
        Tally::Integers(tally) => (whole(edge) + tally.offset).to_string(),
        Tally::Times(_, unit) => time(whole(edge), *unit),
        _ => short(edge as f64 * power(exponent)),
    };
    edges.into_iter().map(label).collect()
}

/// Returns the histogram of a column, if it has one of more than one bin.
fn histogram(tally: &Tally) -> Option<&Histogram> {
    let histogram = match tally {
        Tally::Integers(IntegerTally { histogram, .. })
        | Tally::Times(IntegerTally { histogram, .. }, _) => histogram,
        Tally::Floats(FloatTally { histogram, .. }, _)
        | Tally::Complex(FloatTally { histogram, .. }, _) => histogram,
        Tally::Bools { .. } | Tally::Texts(..) => return None,
    };
    (histogram.counts().len() > 1).then_some(histogram)
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

/// Returns the statistics of plain elements for people.
pub(super) fn one(column: &Column) -> String {
    let mut text = facts(&column.tally).lines(0);
    if let Some(histogram) = histogram(&column.tally) {
        let labels = labels(histogram, &column.tally);
        let counts = histogram.counts().iter().copied();
        let rows: Vec<(String, u64)> = labels.iter().cloned().zip(counts).collect();
        let width = labels
            .iter()
            .map(|label| label.chars().count())
            .max()
            .unwrap_or(0);
        let last = labels.last().cloned().unwrap_or_default();
        let blanks = " ".repeat(width - last.chars().count());
        text.push_str(&format!("\n{}{blanks}{last}\n", aligned(&rows, width)));
    }
    if let Tally::Texts(distinct, kind, order) = &column.tally {
        let frequent = distinct.most_frequent(MOST_FREQUENT);
        if frequent.len() > 1 {
            let row = |(bytes, count): &(&[u8], u64)| (cut(&value(bytes, *kind, *order)), *count);
            let rows: Vec<(String, u64)> = frequent.iter().map(row).collect();
            text = format!(
                "{}\n{}",
                Table(facts(&column.tally).0.drain(..1).collect()).lines(0),
                bars(&rows)
            );
            let others = distinct.len() - frequent.len();
            if others > 0 || distinct.has_more {
                text.push_str("...\n");
            }
        }
    }
    text
}

/// Returns bars whose labels are at least `width` characters wide.
fn aligned(rows: &[(String, u64)], width: usize) -> String {
    let pad = |label: &String| format!("{}{label}", " ".repeat(width - label.chars().count()));
    let rows: Vec<(String, u64)> = rows
        .iter()
        .map(|(label, count)| (pad(label), *count))
        .collect();
    bars(&rows)
}

/// Returns the statistics of the members of a structured type for people, one line each.
pub(super) fn members(columns: &[Column]) -> String {
    let mut table = Table::default();
    for column in columns {
        let facts = facts(&column.tally).0;
        let facts: Vec<String> = facts
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        let name = printable::line(&column.name);
        table.push(
            name,
            format!("{:<5}  {}", column.dtype.to_string(), facts.join(", ")),
        );
    }
    table.lines(0)
}

/// Returns the statistics of a column as JSON.
pub(super) fn json(column: &Column) -> Json {
    let mut map = Map::new();
    let mut add = |name: &str, value: Json| drop(map.insert(name.to_owned(), value));
    match &column.tally {
        Tally::Bools { trues, count } => {
            add("true", json!(trues));
            add("false", json!(count - trues));
        }
        Tally::Integers(tally) => {
            add(
                "min",
                tally.range().map_or(Json::Null, |(least, _)| whole(least)),
            );
            add(
                "max",
                tally.range().map_or(Json::Null, |(_, most)| whole(most)),
            );
            add("mean", number(tally.mean()));
            add("zeros", json!(tally.zeros));
        }
        Tally::Times(tally, unit) => {
            add(
                "min",
                json!(tally.range().map(|(least, _)| time(least, *unit))),
            );
            add(
                "max",
                json!(tally.range().map(|(_, most)| time(most, *unit))),
            );
            add("nat", json!(tally.nothing));
        }
        Tally::Floats(tally, _) => {
            add(
                "min",
                tally.range().map_or(Json::Null, |(least, _)| number(least)),
            );
            add(
                "max",
                tally.range().map_or(Json::Null, |(_, most)| number(most)),
            );
            add("mean", number(tally.mean()));
            add("nan", json!(tally.nan));
            add(
                "inf",
                json!(tally.plus_infinity.saturating_add(tally.minus_infinity)),
            );
            add("zeros", json!(tally.zeros));
        }
        Tally::Complex(sizes, sums) => {
            let count = (sizes.count - sizes.nan - sizes.plus_infinity) as f64;
            add(
                "min_abs",
                sizes.range().map_or(Json::Null, |(least, _)| number(least)),
            );
            add(
                "max_abs",
                sizes.range().map_or(Json::Null, |(_, most)| number(most)),
            );
            add(
                "mean",
                sums.iter().map(|sum| number(sum.value() / count)).collect(),
            );
            add("nan", json!(sizes.nan));
            add("inf", json!(sizes.plus_infinity));
            add("zeros", json!(sizes.zeros));
        }
        Tally::Texts(distinct, kind, order) => {
            let frequent = distinct.most_frequent(MOST_FREQUENT).into_iter();
            let entry =
                |(bytes, count)| json!({ "value": text(bytes, *kind, *order), "count": count });
            add("distinct", json!(distinct.len()));
            add("more", json!(distinct.has_more));
            add("most_frequent", frequent.map(entry).collect());
        }
    }
    if let Some(histogram) = histogram(&column.tally) {
        let (edges, exponent) = histogram.edges();
        let edge = |edge: &i128| match &column.tally {
            Tally::Integers(IntegerTally { offset, .. })
            | Tally::Times(IntegerTally { offset, .. }, _) => {
                whole((edge << exponent.clamp(0, 63)) + offset)
            }
            _ => number(*edge as f64 * power(exponent)),
        };
        let edges: Json = edges.iter().map(edge).collect();
        map.insert(
            "histogram".into(),
            json!({ "edges": edges, "counts": histogram.counts() }),
        );
    }
    map.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::show::column::columns;
    use crate::cli::show::pass::Visitor;

    fn of(dtype: &DType, data: &[u8]) -> Column {
        let (mut columns, _) = columns(dtype);
        columns.elements(0, data);
        columns.remove(0)
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
        let column = of(&DType::int(1), &[0, 1, 1, 3]);
        let text = one(&column);
        assert!(text.starts_with("min    0\nmax    3\nmean   1.25\nzeros  1 (25%)\n\n0  1  ██"));
        assert!(text.ends_with("\n3  1  ████████████████████\n4\n"));
        let json = json(&column);
        assert_eq!(json["histogram"]["edges"], json!([0, 1, 2, 3, 4]));
        assert_eq!(json["histogram"]["counts"], json!([1, 2, 0, 1]));
    }

    #[test]
    fn text_is_made_printable() {
        let column = of(&DType::bytes(2), b"a\x1ba\x1bb\0");
        assert_eq!(
            one(&column),
            "distinct  2\n\nb'a\\x1b'  2  ████████████████████████████████████████\n    b'b'  1  ████████████████████\n"
        );
        assert_eq!(
            json(&column)["most_frequent"][0],
            json!({ "value": "a\u{1b}", "count": 2 })
        );
    }

    #[test]
    fn what_is_no_number_is_text_in_json() {
        let column = of(
            &DType::scalar(Kind::Float, 8, Order::Little),
            &f64::NAN.to_le_bytes(),
        );
        assert_eq!(
            json(&column),
            json!({ "min": null, "max": null, "mean": "NaN", "nan": 1, "inf": 0, "zeros": 0 })
        );
        assert_eq!(one(&column), "NaN  1 (100%)\n");
    }
}
