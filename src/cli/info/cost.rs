//! The cost of reading an array, for people: a line for a row, a column, an element and everything.

use serde_json::{Map, Value as Json};

use crate::cli::figures::{self, Table};

/// The key of the costs, and that of how many times its size a row costs.
pub(super) const KEYS: [&str; 2] = ["reads", "row_costs"];

/// Returns the lines.
pub(super) fn lines(map: &Map<String, Json>) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn costs_stand_below_each_other() {
        let cost = |n: u64| json!({ "bytes": n, "read": 1024, "decoded": 4096 });
        let mut map = Map::new();
        assert_eq!(lines(&map), "");
        map.insert("reads".into(), json!({ "row": cost(1), "all": cost(2048) }));
        let all = "\nreading\n  one row     1.0K read, 4.0K decoded, of 1 byte\n  everything  1.0K read, 4.0K decoded, of 2.0K\n";
        assert_eq!(lines(&map), all);
        map.insert("row_costs".into(), json!(512));
        assert!(
            lines(&map)
                .contains("a row costs 512 times its size: npyfs checkout export --for samples")
        );
    }
}
