//! `npyfs info`: everything known of an object, as JSON or as a description for people.
//!
//! The description is short and aligned, the usual facts first and in words. It is made of the JSON, which is
//! untrusted: all text goes through `printable`, and every list has an end.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::{Map, Value as Json};

use crate::cli::figures::{self, Table};
use crate::cli::output::{Report, print, print_json};
use crate::cli::overview::Facts;
use crate::cli::place::{Place, places};
use crate::cli::store::StoreArgs;
use crate::cli::{CliError, hash, status};
use npyfs_base::journal::utc;
use npyfs_base::printable::line;
use npyfs_core::tree::Node;

/// Entries of a list of values that are shown.
const VALUES: usize = 8;

/// Lines of a section that are shown.
const LINES: usize = 20;

/// Characters of a value that are shown.
const LONGEST: usize = 160;

/// The depth to which sections lie in sections.
const DEEPEST: usize = 6;

/// The fact behind which those about a store as a whole stand.
const KIND: &str = "kind";

/// The facts that come first, in this order.
const FIRST: [&str; 5] = [KIND, "type", "file", "path", "layout"];

/// The key of the costs, and that of how many times its size a row costs.
const COSTS: [&str; 2] = ["reads", "row_costs"];

/// Describe a store or an object in it, without mounting.
///
/// In the place of STORE and PATH also a mount or something in it, STORE:/PATH, STORE/PATH, or an .npy file. The JSON
/// of several paths is a list.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The JSON that a mount shows below .npyfs/info
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,

    /// Files or directories in the store; by default its root
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// All that is known of an object, as its format says it.
struct Info {
    json: Json,
    /// The facts that stand above, for a directory.
    facts: Option<Facts>,
    /// The facts on the mount, if it is described as a whole.
    mounted: Option<String>,
    /// The path, where there are several.
    title: Option<String>,
}

impl Serialize for Info {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.json.serialize(to)
    }
}

impl Report for Info {
    fn text(&self) -> String {
        let title = self.title.as_ref();
        let title = title.map_or_else(String::new, |title| format!("{}:\n", line(title)));
        let mounted = self.mounted.as_ref();
        let mounted = mounted.map_or_else(String::new, |text| format!("{text}\n"));
        let described = describe(&self.json, self.facts.as_ref());
        format!("{title}{mounted}{described}")
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    let places = places(&args.store, &args.paths)?;
    if let [place] = &places[..] {
        return info(place, false)?.print(args.json);
    }
    let infos = places.iter().map(|place| info(place, true));
    let infos = infos.collect::<Result<Vec<Info>, CliError>>()?;
    if args.json {
        return print_json(&infos);
    }
    let texts: Vec<String> = infos.iter().map(Info::text).collect();
    print(texts.join("\n").as_bytes())
}

/// Finds out all about a place.
fn info(place: &Place, has_title: bool) -> Result<Info, CliError> {
    let mut facts = None;
    let json = match place.node(false)? {
        Node::Directory(dir) => {
            let found = Facts::find(&*dir).map_err(|e| place.failed(&e))?;
            let json = found.info.clone();
            facts = Some(found);
            Ok(json)
        }
        Node::File(file) => file.info().map(|mut info| {
            let content = file.open().ok();
            if let Some(hash) = content.and_then(|content| hash::known_hash(&*content)) {
                info["hash"] = hash.into();
            }
            info
        }),
        Node::Symlink(link) => Ok(serde_json::json!({
            "link": String::from_utf8_lossy(&link.target),
        })),
    };
    Ok(Info {
        json: json.map_err(|e| place.failed(&e))?,
        facts,
        mounted: place.mount_point().and_then(about_mount),
        title: has_title.then(|| place.shown.to_string_lossy().into_owned()),
    })
}

/// Returns what is said of a mount as a whole.
fn about_mount(at: &Path) -> Option<String> {
    let mut text = status::text_of(at)?;
    let view = std::fs::read(at.join(".npyfs/info.zarr.json"));
    let view: Option<Json> = view
        .ok()
        .and_then(|view| serde_json::from_slice(&view).ok());
    let joined = view.and_then(|view| match view["error"].as_str() {
        Some(why) => is_join(at).then(|| format!("nothing: {}", line(why))),
        None => joined(&view["joined"]).map(|joined| short(&joined)),
    });
    if let Some(joined) = joined {
        text.push_str(&format!("  joined   {joined}\n"));
    }
    Some(text)
}

/// Returns whether a mount was made with `-o join=`.
fn is_join(at: &Path) -> bool {
    let status = std::fs::read(at.join(".npyfs/status.json"));
    let status: Option<Json> = status
        .ok()
        .and_then(|status| serde_json::from_slice(&status).ok());
    status.is_some_and(|status| status["join"].is_string())
}

/// Describes an object.
fn describe(json: &Json, facts: Option<&Facts>) -> String {
    let mut text = String::new();
    if let Json::Object(map) = json {
        section(map, 0, facts, &mut text);
    }
    text
}

/// Adds the lines of an object, and those of what is in it.
fn section(map: &Map<String, Json>, depth: usize, facts: Option<&Facts>, out: &mut String) {
    let mut table = Table::default();
    let mut known = vec!["dtype", "shape"];
    array(map, &mut table);
    for key in FIRST {
        known.push(key);
        // The shape of the chunks says that the layout is chunked.
        if key != "layout" || map.get("chunks").is_none_or(Json::is_null) {
            fact(key, map.get(key), &mut table);
        }
        if key == KIND {
            fact(
                "joined",
                map.get("joined").and_then(joined).as_ref(),
                &mut table,
            );
        }
        if let (KIND, Some(facts)) = (key, facts) {
            facts.add_to(&mut table);
        }
    }
    known.extend([
        "chunks",
        "max_shape",
        "filters",
        "stored_size",
        "fill_value",
    ]);
    known.extend(COSTS);
    known.push("joined");
    storage(map, &mut table);
    let others = || map.iter().filter(|(key, _)| !known.contains(&key.as_str()));
    for (key, value) in others().filter(|(_, value)| !is_section(value)) {
        fact(key, Some(value), &mut table);
    }
    let indent = 2 * depth;
    out.push_str(&table.lines(indent));
    if depth == 0 {
        out.push_str(&reading_costs(map));
    }
    if let Some(members @ Json::Array(_)) = map.get("dtype") {
        add_section("members of an element", members, depth, out);
    }
    for (key, value) in others().filter(|(_, value)| is_section(value)) {
        add_section(&words(key), value, depth, out);
    }
}

/// Returns what is said of stores that are shown as one.
fn joined(joined: &Json) -> Option<Json> {
    let stores = figures::count(joined["stores"].as_u64()?, "store");
    let along = joined["along"].as_str()?;
    let left_out = joined["left_out"].as_u64();
    let left_out = left_out.map_or_else(String::new, |count| format!(", {count} left out"));
    Some(Json::String(format!("{stores} along {along}{left_out}")))
}

/// Returns whether a value has lines of its own.
fn is_section(value: &Json) -> bool {
    match value {
        Json::Object(map) => !map.is_empty() && many(value).is_none(),
        Json::Array(list) => list.iter().any(Json::is_object),
        _ => false,
    }
}

/// Adds a section with its title.
fn add_section(title: &str, value: &Json, depth: usize, out: &mut String) {
    if depth >= DEEPEST {
        return;
    }
    let indent = "  ".repeat(depth);
    if depth == 0 {
        out.push('\n');
    }
    out.push_str(&format!("{indent}{}\n", line(title)));
    let inner = depth + 1;
    let cut = |all: usize, out: &mut String| {
        if all > LINES {
            let more = all - LINES;
            out.push_str(&format!("{indent}  ... and {more} more; --json has all\n"));
        }
    };
    match value {
        // A description in a description.
        Json::Object(map) if map.contains_key("kind") && map.contains_key("dtype") => {
            section(map, inner, None, out)
        }
        Json::Object(map) if map.values().any(is_section) => {
            for (key, value) in map.iter().take(LINES) {
                match is_section(value) {
                    true => add_section(key, value, inner, out),
                    false => {
                        let mut table = Table::default();
                        fact(key, Some(value), &mut table);
                        out.push_str(&table.lines(2 * inner));
                    }
                }
            }
            cut(map.len(), out);
        }
        Json::Object(map) => {
            let mut table = Table::default();
            for (key, value) in map.iter().take(LINES) {
                table.push(line(key), short(value));
            }
            out.push_str(&table.lines(2 * inner));
            cut(map.len(), out);
        }
        Json::Array(list) => {
            let mut table = Table::default();
            for item in list.iter().take(LINES) {
                let (name, text) = item_line(item);
                table.push(name, text);
            }
            out.push_str(&table.lines(2 * inner));
            cut(list.len(), out);
        }
        _ => {}
    }
}

/// Returns an entry of a list on one line: its name, and everything else.
fn item_line(item: &Json) -> (String, String) {
    let map = match item {
        // The name and the type of a member, and perhaps its shape.
        Json::Array(parts) => {
            let name = parts.first().map_or_else(String::new, short);
            let rest: Vec<String> = parts.iter().skip(1).map(type_or_shape).collect();
            return (name, rest.join(" "));
        }
        Json::Object(map) => map,
        other => return (short(other), String::new()),
    };
    let named = ["name", "path", "file"]
        .into_iter()
        .find(|key| map.contains_key(*key));
    let name = named
        .and_then(|key| map.get(key))
        .map_or_else(String::new, short);
    let has_line = |value: &Json| !(value.is_null() || is_section(value) || is_empty(value));
    let rest = map.iter().filter(|(key, _)| Some(key.as_str()) != named);
    let rest = rest.filter(|(_, value)| has_line(value));
    let rest = rest.map(|(key, value)| match key.as_str() {
        "reason" => short(value),
        _ => format!("{} {}", line(&words(key)), short(value)),
    });
    (name, rest.collect::<Vec<_>>().join(", "))
}

/// Returns a key as words.
fn words(key: &str) -> String {
    key.replace('_', " ")
}

/// Returns whether a value is a list or an object with nothing in it.
fn is_empty(value: &Json) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
}

/// Adds a fact, unless there is nothing to say.
fn fact(key: &str, value: Option<&Json>, table: &mut Table) {
    match value {
        None | Some(Json::Null) => {}
        Some(value) if is_empty(value) => {}
        Some(value) => {
            let time = value.as_f64().filter(|_| key == "changed").and_then(time);
            table.push(line(&words(key)), time.unwrap_or_else(|| short(value)));
        }
    }
}

/// Returns a time by its seconds since 1970.
fn time(seconds: f64) -> Option<String> {
    let since = Duration::try_from_secs_f64(seconds).ok()?;
    Some(utc(SystemTime::UNIX_EPOCH.checked_add(since)?))
}

/// Adds what the array is: its type, its shape and its size.
fn array(map: &Map<String, Json>, table: &mut Table) {
    let dtype = map.get("dtype").map(type_or_shape);
    let shape = map.get("shape").and_then(shape);
    let size = bytes(map).map(figures::bytes);
    let shape = shape.map(|shape| figures::shape(&shape));
    let array = [dtype, shape]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" ");
    match (array.is_empty(), size) {
        (true, _) => {}
        (false, Some(size)) => table.push("array", format!("{array}, {size}")),
        (false, None) => table.push("array", array),
    }
}

fn shape(value: &Json) -> Option<Vec<u64>> {
    value.as_array()?.iter().map(Json::as_u64).collect()
}

/// Returns the number of bytes of an array.
fn bytes(map: &Map<String, Json>) -> Option<u64> {
    let dims = shape(map.get("shape")?)?;
    let element = size(map.get("dtype")?)?;
    dims.iter()
        .try_fold(element, |bytes, &dim| bytes.checked_mul(dim))
}

/// Returns the number of bytes of an element of a plain type; padding of a structured one is not known here.
fn size(dtype: &Json) -> Option<u64> {
    let name = dtype.as_str()?;
    let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    let count: u64 = digits.get(..end)?.parse().ok()?;
    match name.contains('U') {
        true => count.checked_mul(4),
        false => Some(count),
    }
}

/// Returns a type or a shape on one line.
fn type_or_shape(value: &Json) -> String {
    match (value, shape(value)) {
        (Json::String(name), _) => cut(&line(name)),
        (_, Some(shape)) => figures::shape(&shape),
        (Json::Array(members), _) => figures::count(members.len() as u64, "member"),
        (other, _) => short(other),
    }
}

/// Adds how the array is stored.
fn storage(map: &Map<String, Json>, table: &mut Table) {
    if let Some(chunks) = map.get("chunks").and_then(shape) {
        table.push("chunks", figures::shape(&chunks));
    }
    if let Some(Json::Array(most)) = map.get("max_shape")
        && map.get("max_shape") != map.get("shape")
    {
        let dims = most
            .iter()
            .map(|dim| dim.as_u64().map_or("any".to_owned(), |dim| dim.to_string()));
        table.push(
            "grows to",
            format!("({})", dims.collect::<Vec<_>>().join(",")),
        );
    }
    if let Some(Json::Array(filters)) = map.get("filters")
        && !filters.is_empty()
    {
        let filters: Vec<String> = filters.iter().take(VALUES).map(filter).collect();
        table.push("filters", filters.join(", "));
    }
    if let Some(stored) = map.get("stored_size").and_then(Json::as_u64) {
        let share = bytes(map).filter(|&all| all > 0 && all != stored);
        let share = share.map_or_else(String::new, |all| ratio(stored, all));
        table.push("stored", format!("{}{share}", figures::bytes(stored)));
    }
    // A value of many elements, or zero, tells nothing.
    let fill = map.get("fill_value").filter(|fill| !is_zero(fill));
    fact("fill value", fill, table);
}

fn is_zero(fill: &Json) -> bool {
    fill.as_f64() == Some(0.0) || fill == false || fill == ""
}

/// Returns what the stored bytes are of all.
fn ratio(stored: u64, all: u64) -> String {
    match (stored, all as f64 / stored as f64) {
        (0, _) => ", nothing was written".to_owned(),
        (_, ratio) if ratio >= 1.05 => format!(", {ratio:.1} times smaller"),
        _ => format!(", {:.0}% of the array", stored as f64 / all as f64 * 100.0),
    }
}

/// Returns a filter in words.
fn filter(filter: &Json) -> String {
    let name = filter["name"].as_str().unwrap_or_default();
    let parameters: Vec<u64> = filter["parameters"]
        .as_array()
        .map_or_else(Vec::new, |all| {
            all.iter().filter_map(Json::as_u64).collect()
        });
    let words = match (filter["id"].as_i64(), &parameters[..]) {
        (Some(1), [level]) => format!("gzip level {level}"),
        (Some(2), _) => "shuffle".to_owned(),
        (Some(3), _) => "checksum (fletcher32)".to_owned(),
        (Some(4), _) => "szip".to_owned(),
        (Some(5), _) => "nbit".to_owned(),
        (Some(6), _) => "scaleoffset".to_owned(),
        (Some(307), [size, ..]) => format!("bzip2 level {size}"),
        (Some(32_000), _) => "lzf".to_owned(),
        (Some(32_001), [_, _, _, _, level, shuffle, codec, ..]) => {
            format!("blosc {}", blosc(*level, *shuffle, *codec))
        }
        (Some(32_026), [_, _, _, _, level, shuffle, codec, ..]) => {
            format!("blosc2 {}", blosc(*level, *shuffle, *codec))
        }
        (Some(32_004), _) => "lz4".to_owned(),
        (Some(32_008), _) => "bitshuffle".to_owned(),
        (Some(32_015), [level, ..]) => format!("zstd level {level}"),
        (id, _) => {
            let name = cut(&line(name));
            let id = id.map_or_else(String::new, |id| format!(" ({id})"));
            format!("{name}{id}").trim().to_owned()
        }
    };
    match filter["available"] == false {
        true => format!("{words}, which this build lacks"),
        false => words,
    }
}

fn blosc(level: u64, shuffle: u64, codec: u64) -> String {
    let codecs = ["blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"];
    let codec = usize::try_from(codec)
        .ok()
        .and_then(|codec| codecs.get(codec));
    let shuffle = match shuffle {
        1 => ", shuffle",
        2 => ", bitshuffle",
        3 => ", delta",
        _ => "",
    };
    format!(
        "{} level {level}{shuffle}",
        codec.unwrap_or(&"of another codec")
    )
}

/// Returns the lines about the cost of reading an array: for a row, a column, an element and everything.
fn reading_costs(map: &Map<String, Json>) -> String {
    let Some(reads) = map.get("reads").and_then(Json::as_object) else {
        return String::new();
    };
    let parts = [
        ("row", "one row"),
        ("column", "one column"),
        ("element", "one element"),
        ("all", "everything"),
    ];
    let mut table = Table::default();
    for (key, name) in parts {
        let number = |what: &str| reads.get(key)?.get(what)?.as_u64().map(figures::bytes);
        if let (Some(bytes), Some(read), Some(decoded)) =
            (number("bytes"), number("read"), number("decoded"))
        {
            table.push(name, format!("{read} read, {decoded} decoded, of {bytes}"));
        }
    }
    let mut text = format!("\nreading\n{}", table.lines(2));
    if let Some(times) = map.get("row_costs").and_then(Json::as_u64) {
        text.push_str(&format!(
            "  a row costs {times} times its size: npyfs checkout export --for samples STORE OUT makes it cheap\n"
        ));
    }
    text
}

/// Returns the elements at hand and the number of all, if a value is many elements of which not all are there.
fn many(value: &Json) -> Option<(&Vec<Json>, u64)> {
    let first = value.get("first")?.as_array()?;
    Some((first, value.get("elements")?.as_u64()?))
}

/// Returns a value on one line; of many the first, and how many there are.
fn short(value: &Json) -> String {
    if let Some((first, all)) = many(value) {
        return list(first, all);
    }
    match value {
        Json::String(text) => cut(&line(text)),
        Json::Array(all) => list(all, all.len() as u64),
        Json::Object(map) => {
            let parts = map.iter().take(VALUES);
            let parts: Vec<String> = parts
                .map(|(key, value)| format!("{} {}", line(key), short(value)))
                .collect();
            let more = if map.len() > VALUES { ", ..." } else { "" };
            cut(&format!("{}{more}", parts.join(", ")))
        }
        other => cut(&line(&other.to_string())),
    }
}

/// Returns values with commas between them; of many the first, and how many there are.
fn list(values: &[Json], all: u64) -> String {
    let nested = |value: &Json| match value {
        Json::Array(_) => format!("[{}]", short(value)),
        other => short(other),
    };
    let shown: Vec<String> = values.iter().take(VALUES).map(nested).collect();
    let shown = cut(&shown.join(", "));
    match all > VALUES as u64 {
        true => format!("{shown}, ... ({all} in all)"),
        false => shown,
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}...", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Describes an object of which nothing stands above.
    fn described(json: &Json) -> String {
        describe(json, None)
    }

    #[test]
    fn an_array_is_described_in_words() {
        let json = json!({
            "kind": "plain", "file": "/a/b.h5", "path": "/g/x", "dtype": ">f4", "shape": [600, 10], "layout": "chunked",
            "chunks": [4, 5], "max_shape": [null, 10], "stored_size": 12_000, "fill_value": 2.5,
            "filters": [
                { "id": 2, "name": "shuffle", "parameters": [4], "available": true },
                { "id": 1, "name": "deflate", "parameters": [4], "available": true },
                { "id": 32_999, "name": "odd\u{1b}", "parameters": [], "available": false },
            ],
            "attributes": { "units": "mV", "factors": { "first": vec![0; 1000], "elements": 5000 } },
        });
        assert_eq!(
            described(&json),
            "array       >f4 (600,10), 23.4K\n\
             kind        plain\n\
             file        /a/b.h5\n\
             path        /g/x\n\
             chunks      (4,5)\n\
             grows to    (any,10)\n\
             filters     shuffle, gzip level 4, odd\\u{1b} (32999), which this build lacks\n\
             stored      11.7K, 2.0 times smaller\n\
             fill value  2.5\n\
             \n\
             attributes\n  factors  0, 0, 0, 0, 0, 0, 0, 0, ... (5000 in all)\n  units    mV\n"
        );
    }

    #[test]
    fn long_lists_have_an_end() {
        let list: Vec<Json> = (0..100)
            .map(|n| json!({ "name": n.to_string(), "reason": "odd" }))
            .collect();
        let text = described(
            &json!({ "left_out": list, "notes": [], "error": "x".repeat(1000), "changed": 1.5 }),
        );
        assert!(text.starts_with("changed  1970-01-01T00:00:01Z\n"));
        assert_eq!(text.lines().count(), 2 + 1 + 1 + LINES + 1);
        assert!(
            text.contains("\nleft out\n  0   odd\n")
                && text.ends_with("... and 80 more; --json has all\n")
        );
        assert!(text.lines().all(|line| line.len() < 200));
        // Sections in sections, without end.
        let mut deep = json!({ "x": {} });
        for _ in 0..100 {
            deep = json!({ "x": deep, "shape": [1] });
        }
        assert!(described(&deep).lines().count() < 50);
    }

    #[test]
    fn filters_and_sizes() {
        let filter = |id: i64, parameters: &[u64]| {
            filter(
                &json!({ "id": id, "name": "name", "parameters": parameters, "available": true }),
            )
        };
        assert_eq!(
            filter(32_001, &[2, 2, 4, 16, 5, 1, 5]),
            "blosc zstd level 5, shuffle"
        );
        assert_eq!(
            filter(32_026, &[1, 0, 4, 16, 5, 2, 1, 1, 4]),
            "blosc2 lz4 level 5, bitshuffle"
        );
        assert_eq!(filter(307, &[9]), "bzip2 level 9");
        assert_eq!(filter(7, &[]), "name (7)");
        assert_eq!(ratio(10, 9), ", 111% of the array");
        assert_eq!(ratio(0, 9), ", nothing was written");
        assert_eq!(
            [json!("<M8[ns]"), json!("<U3"), json!("|b1")].map(|dtype| size(&dtype)),
            [Some(8), Some(12), Some(1)]
        );
    }

    #[test]
    fn members_of_elements_have_lines() {
        let dtype = json!([["a", "<i4"], ["b", [["c", "<f8"]], [2, 3]]]);
        let text = described(&json!({ "dtype": dtype, "shape": [7] }));
        assert_eq!(
            text,
            "array  2 members (7,)\n\nmembers of an element\n  a  <i4\n  b  1 member (2,3)\n"
        );
    }

    #[test]
    fn costs_stand_below_each_other() {
        let cost = |n: u64| json!({ "bytes": n, "read": 1024, "decoded": 4096 });
        let mut map = Map::new();
        assert_eq!(reading_costs(&map), "");
        map.insert("reads".into(), json!({ "row": cost(1), "all": cost(2048) }));
        let all = "\nreading\n  one row     1.0K read, 4.0K decoded, of 1 byte\n  everything  1.0K read, 4.0K decoded, of 2.0K\n";
        assert_eq!(reading_costs(&map), all);
        map.insert("row_costs".into(), json!(512));
        assert!(
            reading_costs(&map)
                .contains("a row costs 512 times its size: npyfs checkout export --for samples")
        );
    }
}
