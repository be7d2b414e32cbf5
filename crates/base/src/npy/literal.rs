//! A Python literal, as in `.npy` headers and Hangar's schema records. It is parsed, never evaluated.
//!
//! Grammar: the subset of `ast.literal_eval` that `numpy.lib.format` and `repr` write. Strings with Python's escapes,
//! integers (with Python 2's `L`), booleans, `None`, tuples, lists and dictionaries with strings as keys. The text is
//! untrusted: nesting is bounded, and no value is larger than its text.

use std::iter::Peekable;
use std::str::Chars;

use serde_json::{Number, Value as Json};

use crate::npy::repr;

/// The most characters of foreign text that an error message quotes.
const LONGEST_QUOTE: usize = 80;

/// The deepest nesting of tuples, lists and dictionaries.
const DEEPEST: usize = 70;

/// A Python literal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Literal {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer. The parser accepts those that fit 64 bits, signed or unsigned.
    Int(i128),
    /// A string.
    Text(String),
    /// A tuple.
    Tuple(Vec<Literal>),
    /// A list.
    List(Vec<Literal>),
    /// A dictionary, in textual order; keys may repeat.
    Dict(Vec<(String, Literal)>),
}

impl Literal {
    /// Returns the first entry of a dictionary with this key.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Self::Dict(entries) = self else {
            return None;
        };
        let found = entries.iter().find(|(k, _)| k == key);
        found.map(|(_, value)| value)
    }

    /// Returns the content of a string.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the dimensions, if this is a tuple of integers from 0 to 2^64 - 1.
    pub fn dims(&self) -> Option<Vec<u64>> {
        let Self::Tuple(items) = self else {
            return None;
        };
        let dims = items.iter().map(|item| match item {
            Self::Int(n) => u64::try_from(*n).ok(),
            _ => None,
        });
        dims.collect()
    }

    /// Returns Python's `repr` of the value.
    pub fn repr(&self) -> String {
        let all = |items: &[Self]| items.iter().map(Self::repr).collect::<Vec<_>>().join(", ");
        match self {
            Self::None => "None".into(),
            Self::Bool(true) => "True".into(),
            Self::Bool(false) => "False".into(),
            Self::Int(n) => n.to_string(),
            Self::Text(text) => repr::text(text),
            Self::Tuple(items) if items.len() == 1 => format!("({},)", all(items)),
            Self::Tuple(items) => format!("({})", all(items)),
            Self::List(items) => format!("[{}]", all(items)),
            Self::Dict(entries) => {
                let pair = |(k, v): &(String, Self)| format!("{}: {}", repr::text(k), v.repr());
                let entries: Vec<_> = entries.iter().map(pair).collect();
                format!("{{{}}}", entries.join(", "))
            }
        }
    }

    /// Returns the value in JSON; tuples become arrays.
    pub fn json(&self) -> Json {
        match self {
            Self::None => Json::Null,
            Self::Bool(b) => (*b).into(),
            Self::Int(n) => Number::from_i128(*n).map_or(Json::Null, Json::Number),
            Self::Text(text) => text.as_str().into(),
            Self::Tuple(items) | Self::List(items) => items.iter().map(Self::json).collect(),
            Self::Dict(entries) => {
                let entries = entries.iter().map(|(k, v)| (k.clone(), v.json()));
                Json::Object(entries.collect())
            }
        }
    }
}

/// Parses a literal that makes up all of `text` except for white space. The error says what is wrong.
pub fn parse(text: &str) -> Result<Literal, String> {
    let mut reader = LiteralReader {
        rest: text.chars().peekable(),
    };
    let value = reader.value(0)?;
    reader.space();
    match reader.rest.peek() {
        None => Ok(value),
        Some(c) => Err(format!("{c:?} after the end")),
    }
}

struct LiteralReader<'a> {
    rest: Peekable<Chars<'a>>,
}

type Parsed<T> = Result<T, String>;

impl LiteralReader<'_> {
    fn space(&mut self) {
        while self.rest.next_if(|c| c.is_ascii_whitespace()).is_some() {}
    }

    fn next(&mut self) -> Parsed<char> {
        self.rest.next().ok_or_else(|| "it ends early".into())
    }

    /// Returns the next character that is not white space, without consuming it.
    fn peek(&mut self) -> Parsed<char> {
        self.space();
        let c = self.rest.peek().copied();
        c.ok_or_else(|| "it ends early".into())
    }

    /// Consumes `wanted` if it comes next.
    fn takes(&mut self, wanted: char) -> Parsed<bool> {
        let there = self.peek()? == wanted;
        if there {
            self.next()?;
        }
        Ok(there)
    }

    fn expect(&mut self, wanted: char) -> Parsed<()> {
        if self.takes(wanted)? {
            return Ok(());
        }
        Err(format!("{:?} where {wanted:?} belongs", self.peek()?))
    }

    fn value(&mut self, depth: usize) -> Parsed<Literal> {
        if depth > DEEPEST {
            return Err("nested too deeply".into());
        }
        match self.peek()? {
            '\'' | '"' => self.text().map(Literal::Text),
            '-' | '0'..='9' => self.int(),
            'T' | 'F' | 'N' => self.word(),
            '(' => {
                let (mut items, comma) = self.items('(', ')', depth)?;
                // Parentheses around one value do not make a tuple.
                if items.len() == 1 && !comma {
                    return items.pop().ok_or_else(String::new);
                }
                Ok(Literal::Tuple(items))
            }
            '[' => Ok(Literal::List(self.items('[', ']', depth)?.0)),
            '{' => self.dict(depth),
            c => Err(format!("unexpected {c:?}")),
        }
    }

    /// Parses values between brackets; the flag says whether a comma follows the last one.
    fn items(&mut self, open: char, close: char, depth: usize) -> Parsed<(Vec<Literal>, bool)> {
        self.expect(open)?;
        let mut items = Vec::new();
        let mut comma = false;
        while !self.takes(close)? {
            if !items.is_empty() && !comma {
                return Err(format!("{:?} where a comma belongs", self.peek()?));
            }
            items.push(self.value(depth + 1)?);
            comma = self.takes(',')?;
        }
        Ok((items, comma))
    }

    fn dict(&mut self, depth: usize) -> Parsed<Literal> {
        self.expect('{')?;
        let mut entries = Vec::new();
        let mut comma = true;
        while !self.takes('}')? {
            if !comma {
                return Err(format!("{:?} where a comma belongs", self.peek()?));
            }
            if !matches!(self.peek()?, '\'' | '"') {
                return Err("a key that is no string".into());
            }
            let key = self.text()?;
            self.expect(':')?;
            entries.push((key, self.value(depth + 1)?));
            comma = self.takes(',')?;
        }
        Ok(Literal::Dict(entries))
    }

    fn int(&mut self) -> Parsed<Literal> {
        let negative = self.takes('-')?;
        if !self.rest.peek().is_some_and(char::is_ascii_digit) {
            return Err("a sign without a number".into());
        }
        let mut value = 0_i128;
        while let Some(digit) = self.rest.peek().and_then(|c| c.to_digit(10)) {
            self.next()?;
            // Below 2^64 before, so far below 2^127 after.
            value = value * 10 + i128::from(digit);
            if value > i128::from(u64::MAX) {
                return Err("a number past 64 bits".into());
            }
        }
        if negative {
            value = -value;
        }
        if value < i128::from(i64::MIN) {
            return Err("a number past 64 bits".into());
        }
        let _ = self.rest.next_if_eq(&'L');
        Ok(Literal::Int(value))
    }

    fn word(&mut self) -> Parsed<Literal> {
        let mut word = String::new();
        while let Some(c) = self.rest.next_if(char::is_ascii_alphabetic) {
            word.push(c);
        }
        match word.as_str() {
            "True" => Ok(Literal::Bool(true)),
            "False" => Ok(Literal::Bool(false)),
            "None" => Ok(Literal::None),
            _ => Err(format!("the unknown word {:?}", quote(&word))),
        }
    }

    fn text(&mut self) -> Parsed<String> {
        let quote = self.next()?;
        let mut out = String::new();
        loop {
            match self.next()? {
                c if c == quote => return Ok(out),
                '\\' => out.push(self.escape()?),
                '\n' | '\r' => return Err("a line break in a string".into()),
                c => out.push(c),
            }
        }
    }

    fn escape(&mut self) -> Parsed<char> {
        let digits = match self.next()? {
            c @ ('\\' | '\'' | '"') => return Ok(c),
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            c => return Err(format!("the unknown escape \\{c}")),
        };
        let mut code = 0_u32;
        for _ in 0..digits {
            let digit = self.next()?.to_digit(16).ok_or("a bad escape")?;
            // Eight hexadecimal digits fit 32 bits.
            code = code << 4 | digit;
        }
        char::from_u32(code).ok_or_else(|| "an escape that is no character".into())
    }
}

/// Returns text from a header, shortened for an error message.
pub fn quote(text: &str) -> String {
    let mut short: String = text.chars().take(LONGEST_QUOTE).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pythons_spellings_are_read() {
        use Literal::{Bool, Dict, Int, List, Text, Tuple};
        assert_eq!(parse("()"), Ok(Tuple(vec![])));
        assert_eq!(parse(" (5L,) \n"), Ok(Tuple(vec![Int(5)])));
        assert_eq!(parse("(5)"), Ok(Int(5)));
        assert_eq!(parse("[('a', 1, ), ]").unwrap(), {
            List(vec![Tuple(vec![Text("a".into()), Int(1)])])
        });
        let dict = parse("{'a': True, \"b\": (1, 2)}").unwrap();
        let pair = Tuple(vec![Int(1), Int(2)]);
        let want = vec![("a".into(), Bool(true)), ("b".into(), pair)];
        assert_eq!(dict, Dict(want));
        assert_eq!(parse("18446744073709551615"), Ok(Int(u64::MAX.into())));
        assert_eq!(parse("-9223372036854775808"), Ok(Int(i64::MIN.into())));
    }

    #[test]
    fn a_schema_record_of_hangar() {
        let text = "{'shape':(12,),'dtype':\"<class'str'>\",'o':{'complevel':None,'x':()},'n':-5,'b':True}";
        let value = parse(text).unwrap();
        assert_eq!(value.get("shape").unwrap().dims(), Some(vec![12]));
        assert_eq!(value.get("dtype").unwrap().text(), Some("<class'str'>"));
        assert_eq!(value.get("n").unwrap().dims(), None);
        let options = value.get("o").unwrap();
        assert_eq!(options.get("complevel"), Some(&Literal::None));
        assert_eq!(options.get("x").unwrap().dims(), Some(vec![]));
        assert_eq!(value.repr().replace(' ', ""), text);
        let json = serde_json::json!({
            "shape": [12], "dtype": "<class'str'>", "o": {"complevel": null, "x": []}, "n": -5, "b": true,
        });
        assert_eq!(value.json(), json);
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            "(",
            "'a",
            "'\\q'",
            "'\\ud800'",
            "(1 2)",
            "(,)",
            "{1: 2}",
            "{'a': 1 'b': 2}",
            "1 2",
            "-",
            "- 1",
            "1.5",
            "x",
            "('a' 'b')",
            "{'a'}",
            "{'a':1",
            "18446744073709551616",
            "-9223372036854775809",
            "f()",
            "1+1",
            "True1",
            "Nothing",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        for open in ["(", "[", "{'a':"] {
            assert!(parse(&open.repeat(100_000)).is_err());
        }
    }

    proptest! {
        #[test]
        fn strings_come_back(text in any::<String>()) {
            prop_assert_eq!(parse(&repr::text(&text)), Ok(Literal::Text(text)));
        }

        #[test]
        fn nothing_panics(text in "[\\[\\](){}'\",:0-9TrueFalsNon\\\\xL -]{0,60}", any in ".{0,60}") {
            let _ = parse(&text);
            let _ = parse(&any);
        }
    }
}
