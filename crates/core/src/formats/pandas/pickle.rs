//! Pickles of protocol 0, as PyTables writes attributes: lists, tuples and dictionaries of texts and numbers. Nothing
//! is called; a pickle with anything else in it is not read.

/// The most values of a pickle, and the most bytes.
const MOST: usize = 1 << 20;
const LONGEST: usize = 16 << 20;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    None,
    Number(i64),
    Text(String),
    /// A list or a tuple.
    List(Vec<Value>),
    Dictionary(Vec<(Value, Value)>),
}

impl Value {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn list(&self) -> Option<&[Self]> {
        match self {
            Self::List(values) => Some(values),
            _ => None,
        }
    }

    /// Returns the texts of a list of texts and numbers.
    pub(super) fn texts(&self) -> Option<Vec<String>> {
        let text = |value: &Self| match value {
            Self::Text(text) => Some(text.clone()),
            Self::Number(number) => Some(number.to_string()),
            _ => None,
        };
        self.list()?.iter().map(text).collect()
    }

    /// Returns the value of a key that is a text.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Dictionary(entries) => {
                let found = entries.iter().find(|(name, _)| name.text() == Some(key));
                found.map(|(_, value)| value)
            }
            _ => None,
        }
    }
}

/// Returns the value of a pickle.
pub(super) fn read(bytes: &[u8]) -> Option<Value> {
    let mut stack: Vec<Option<Value>> = Vec::new();
    let mut known: Vec<(&[u8], Value)> = Vec::new();
    let mut left = bytes.get(..bytes.len().min(LONGEST))?;
    let mut count = 0;
    loop {
        count += 1;
        let (&code, rest) = left.split_first().filter(|_| count <= MOST)?;
        left = rest;
        match code {
            b'(' => stack.push(None),
            b'l' | b't' => {
                let values = since_mark(&mut stack)?;
                stack.push(Some(Value::List(values)));
            }
            b'd' => {
                let values = since_mark(&mut stack)?;
                let pairs = values.chunks_exact(2);
                let pairs = pairs.map(|pair| (pair[0].clone(), pair[1].clone()));
                stack.push(Some(Value::Dictionary(pairs.collect())));
            }
            b'N' => stack.push(Some(Value::None)),
            b'V' => {
                // Python writes what is in Latin-1 as it is, and escapes the rest.
                let text: String = line(&mut left)?.iter().copied().map(char::from).collect();
                stack.push(Some(Value::Text(unescaped(&text)?)));
            }
            b'I' | b'L' => {
                let text = std::str::from_utf8(line(&mut left)?).ok()?;
                let number = text.trim_end_matches('L').parse().ok()?;
                stack.push(Some(Value::Number(number)));
            }
            b'p' => {
                let key = line(&mut left)?;
                // A list is filled behind it; it is not asked for again.
                let value = stack.last()?.clone()?;
                if matches!(value, Value::Text(_)) {
                    known.push((key, value));
                }
            }
            b'g' => {
                let key = line(&mut left)?;
                let found = known.iter().rev().find(|(other, _)| *other == key)?;
                stack.push(Some(found.1.clone()));
            }
            b'a' => {
                let value = stack.pop()??;
                match stack.last_mut()? {
                    Some(Value::List(values)) => values.push(value),
                    _ => return None,
                }
            }
            b's' => {
                let (value, key) = (stack.pop()??, stack.pop()??);
                match stack.last_mut()? {
                    Some(Value::Dictionary(entries)) => entries.push((key, value)),
                    _ => return None,
                }
            }
            b'.' => return stack.pop()?,
            _ => return None,
        }
    }
}

fn since_mark(stack: &mut Vec<Option<Value>>) -> Option<Vec<Value>> {
    let mark = stack.iter().rposition(Option::is_none)?;
    let values = stack.split_off(mark);
    values.into_iter().skip(1).collect()
}

fn line<'a>(left: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = left.iter().position(|&byte| byte == b'\n')?;
    let line = &left[..end];
    *left = &left[end + 1..];
    Some(line)
}

/// Undoes Python's raw-unicode-escape.
fn unescaped(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut left = text;
    while let Some(at) = left.find('\\') {
        out.push_str(&left[..at]);
        let digits = match left.get(at + 1..at + 2)? {
            "u" => 4,
            "U" => 8,
            _ => return None,
        };
        let code = left.get(at + 2..at + 2 + digits)?;
        out.push(char::from_u32(u32::from_str_radix(code, 16).ok()?)?);
        left = &left[at + 2 + digits..];
    }
    out.push_str(left);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_dictionaries_are_read() {
        let text = |text: &str| Value::Text(text.to_owned());
        let list = read(b"(lp0\nVa\np1\naVb\\u005c\xe9\\u20ac\np2\nag1\na.").unwrap();
        assert_eq!(list.texts().unwrap(), ["a", "b\\é€", "a"]);
        assert_eq!(
            read(b"(lp0\n(I0\nVindex\np1\ntp2\na."),
            Some(Value::List(vec![Value::List(vec![
                Value::Number(0),
                text("index")
            ])]))
        );
        let info = read(b"(dp0\nVindex\np6\n(dp7\nVindex_name\np8\nVwhen\np9\nssVtz\np1\nNs.");
        let info = info.unwrap();
        let name = info.get("index").and_then(|index| index.get("index_name"));
        assert_eq!(name.and_then(Value::text), Some("when"));
        assert_eq!(info.get("tz"), Some(&Value::None));
        assert_eq!(read(b"N."), Some(Value::None));
    }

    #[test]
    fn everything_else_is_refused() {
        for bad in [
            &b""[..],
            b".",
            b"a.",
            b"(lp0\n",
            b"cos\nsystem\n(S'true'\ntR.",
            b"Va\nb.",
            b"V\\x41\n.",
            b"V\\uD800\n.",
            b"g0\n.",
            b"I99999999999999999999\n.",
            b"\x80\x04N.",
            b"(s.",
        ] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }
}
