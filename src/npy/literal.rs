//! The few Python literals an npy header is made of: read, never evaluated.
//!
//! Grammar: what `numpy.lib.format` writes and `ast.literal_eval` reads of it. Strings with Python's
//! escapes, integers (with the `L` of Python 2), booleans, tuples, lists and one dictionary with
//! strings as keys. The text is untrusted: nesting is bounded, and no value is larger than its text.

use std::iter::Peekable;
use std::str::Chars;

/// Nesting of tuples and lists that is followed.
const DEEPEST: usize = 70;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Literal {
    Text(String),
    Int(u64),
    Bool(bool),
    Tuple(Vec<Literal>),
    List(Vec<Literal>),
    /// In the order of the text; keys may repeat.
    Dict(Vec<(String, Literal)>),
}

/// Reads one literal that takes all of `text`, but for white space. The error says what is wrong.
pub fn parse(text: &str) -> Result<Literal, String> {
    let mut reader = Reader {
        rest: text.chars().peekable(),
    };
    let value = reader.value(0)?;
    reader.space();
    match reader.rest.peek() {
        None => Ok(value),
        Some(c) => Err(format!("{c:?} after the end")),
    }
}

struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
}

type Parsed<T> = Result<T, String>;

impl Reader<'_> {
    fn space(&mut self) {
        while self.rest.next_if(|c| c.is_ascii_whitespace()).is_some() {}
    }

    fn next(&mut self) -> Parsed<char> {
        self.rest.next().ok_or_else(|| "it ends early".into())
    }

    /// The next character that is no white space; it is not taken.
    fn peek(&mut self) -> Parsed<char> {
        self.space();
        let c = self.rest.peek().copied();
        c.ok_or_else(|| "it ends early".into())
    }

    /// Takes `wanted` if it comes next.
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
            '0'..='9' => self.int(),
            'T' | 'F' => self.bool(),
            '(' => {
                let (mut items, comma) = self.items('(', ')', depth)?;
                // Brackets round one value do not make a tuple.
                if items.len() == 1 && !comma {
                    return items.pop().ok_or_else(String::new);
                }
                Ok(Literal::Tuple(items))
            }
            '[' => Ok(Literal::List(self.items('[', ']', depth)?.0)),
            '{' if depth == 0 => self.dict(),
            c => Err(format!("unexpected {c:?}")),
        }
    }

    /// Values between brackets, and whether a comma follows the last.
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

    fn dict(&mut self) -> Parsed<Literal> {
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
            entries.push((key, self.value(1)?));
            comma = self.takes(',')?;
        }
        Ok(Literal::Dict(entries))
    }

    fn int(&mut self) -> Parsed<Literal> {
        let mut value = 0_u64;
        while let Some(digit) = self.rest.peek().and_then(|c| c.to_digit(10)) {
            self.next()?;
            value = value
                .checked_mul(10)
                .and_then(|v| v.checked_add(u64::from(digit)))
                .ok_or("a number past 64 bits")?;
        }
        let _ = self.rest.next_if_eq(&'L');
        Ok(Literal::Int(value))
    }

    fn bool(&mut self) -> Parsed<Literal> {
        let mut word = String::new();
        while let Some(c) = self.rest.next_if(char::is_ascii_alphabetic) {
            word.push(c);
        }
        match word.as_str() {
            "True" => Ok(Literal::Bool(true)),
            "False" => Ok(Literal::Bool(false)),
            _ => Err(format!(
                "the unknown word {:?}",
                super::bounds::quote(&word)
            )),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npy::repr;
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
            "-1",
            "1.5",
            "None",
            "{'a': {'b': 1}}",
            "18446744073709551616",
            "f()",
            "1+1",
            "True1",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&"(".repeat(100_000)).is_err());
    }

    proptest! {
        #[test]
        fn strings_come_back(text in any::<String>()) {
            prop_assert_eq!(parse(&repr::text(&text)), Ok(Literal::Text(text)));
        }

        #[test]
        fn nothing_panics(text in "[\\[\\](){}'\",:0-9TrueFals\\\\xL ]{0,60}") {
            let _ = parse(&text);
        }
    }
}
