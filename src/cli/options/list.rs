//! Lists of options as text: `a,b=c`.
//!
//! A comma inside a value is written `\\,`, or the value stands in double quotes, as mount(8) has it.

/// Returns the options of a list, as they are written.
pub(super) fn items(list: &str) -> Vec<&str> {
    let mut items = Vec::new();
    let mut rest = list;
    while !rest.is_empty() {
        let end = end_of_first(rest);
        items.push(&rest[..end]);
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    items.retain(|item| !item.is_empty());
    items
}

/// Returns where the first option of a list ends.
fn end_of_first(list: &str) -> usize {
    let quoted = list.find([',', '"', '\\']).and_then(|at| {
        let inside = list[..at]
            .ends_with('=')
            .then(|| list[at..].strip_prefix('"'))??;
        let close = at + 1 + inside.find('"')?;
        let ends = matches!(list.as_bytes().get(close + 1), None | Some(b','));
        ends.then_some(close + 1)
    });
    if let Some(end) = quoted {
        return end;
    }
    let mut bytes = list.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b',' => return at,
            // The escaped character does not end the option.
            b'\\' => _ = bytes.next(),
            _ => {}
        }
    }
    list.len()
}

/// Splits an option into its name and its value, without quotes and escapes.
pub(super) fn name_and_value(item: &str) -> (&str, Option<String>) {
    match item.split_once('=') {
        Some((name, value)) => (name, Some(meaning(value))),
        None => (item, None),
    }
}

/// Returns an option as it is written.
pub fn written(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace(',', "\\,");
    format!("{name}={value}")
}

/// Removes the quotes around a value, or the backslashes in front of commas and backslashes.
fn meaning(value: &str) -> String {
    let inside = value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    if let Some(inside) = inside.filter(|inside| !inside.contains('"')) {
        return inside.to_owned();
    }
    let mut meaning = String::new();
    let mut characters = value.chars().peekable();
    while let Some(character) = characters.next() {
        let escaped = if character == '\\' {
            characters.next_if(|next| matches!(next, ',' | '\\'))
        } else {
            None
        };
        meaning.push(escaped.unwrap_or(character));
    }
    meaning
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(list: &str) -> Vec<String> {
        let value = |item| name_and_value(item).1.unwrap_or_default();
        items(list).into_iter().map(value).collect()
    }

    #[test]
    fn commas_inside_values() {
        assert_eq!(values(r"a=b\,c,d=\\,e=\x"), ["b,c", "\\", "\\x"]);
        assert_eq!(values(r#"a="b,c",d="e""#), ["b,c", "e"]);
        assert_eq!(values(r#"a="b,c=d\,e"#), ["\"b", "d,e"]);
        assert_eq!(values(r#"a="b"c,d=x"y,z"#), ["\"b\"c", "x\"y", ""]);
        assert_eq!(items(r",,a,,b\,c,"), ["a", r"b\,c"]);
        assert_eq!(items(r"a\"), [r"a\"]);
        assert!(items("").is_empty());
    }

    #[test]
    fn what_is_written_is_read_again() {
        for value in ["a", "a,b", r"\", r"a\,b", r"\x"] {
            assert_eq!(values(&written("a", value)), [value]);
        }
    }
}
