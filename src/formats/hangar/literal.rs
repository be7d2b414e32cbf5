//! The subset of Python literals that Hangar's schema records and `.npy` headers are written in.
//!
//! Text, whole numbers, `None`, `True`, `False`, tuples and dictionaries; spaces may be missing, as Hangar
//! takes them out. Nesting and length are bounded by the caller's input.

/// A literal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Literal {
    None,
    Bool(bool),
    Int(i64),
    Text(String),
    Tuple(Vec<Literal>),
    /// In order of writing.
    Dict(Vec<(Literal, Literal)>),
}

/// Literals inside each other that are followed.
const DEEPEST: usize = 16;

impl Literal {
    /// Parses a text that is one literal; `None` if it is anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parser = Parser { left: text };
        let value = parser.value(0)?;
        parser.space();
        parser.left.is_empty().then_some(value)
    }

    /// The entry of a dictionary with a text key.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Self::Dict(entries) = self else {
            return None;
        };
        let found = entries
            .iter()
            .find(|(k, _)| matches!(k, Self::Text(text) if text == key));
        found.map(|(_, value)| value)
    }

    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A tuple of whole numbers that are not negative.
    pub fn dims(&self) -> Option<Vec<u64>> {
        let Self::Tuple(items) = self else {
            return None;
        };
        items
            .iter()
            .map(|item| match item {
                Self::Int(n) => u64::try_from(*n).ok(),
                _ => None,
            })
            .collect()
    }

    /// As Python's `repr` prints it, dictionaries as sorted tuples of pairs at every depth.
    pub fn sorted_repr(&self) -> String {
        let join = |items: Vec<String>| match items.as_slice() {
            [one] => format!("({one},)"),
            _ => format!("({})", items.join(", ")),
        };
        match self {
            Self::None => "None".into(),
            Self::Bool(true) => "True".into(),
            Self::Bool(false) => "False".into(),
            Self::Int(n) => n.to_string(),
            Self::Text(text) => crate::npy::repr::text(text),
            Self::Tuple(items) => join(items.iter().map(Self::sorted_repr).collect()),
            Self::Dict(entries) => {
                let mut entries: Vec<_> = entries.iter().collect();
                entries.sort_by(|a, b| a.0.text().cmp(&b.0.text()));
                let pair =
                    |(k, v): &&(Self, Self)| format!("({}, {})", k.sorted_repr(), v.sorted_repr());
                join(entries.iter().map(pair).collect())
            }
        }
    }

    /// As Python's `repr` prints it.
    pub fn repr(&self) -> String {
        match self {
            Self::Tuple(items) => match items.as_slice() {
                [one] => format!("({},)", one.repr()),
                _ => {
                    let items: Vec<String> = items.iter().map(Self::repr).collect();
                    format!("({})", items.join(", "))
                }
            },
            Self::Dict(entries) => {
                let pair = |(k, v): &(Self, Self)| format!("{}: {}", k.repr(), v.repr());
                let entries: Vec<String> = entries.iter().map(pair).collect();
                format!("{{{}}}", entries.join(", "))
            }
            plain => plain.sorted_repr(),
        }
    }

    /// As JSON shows it.
    pub fn json(&self) -> serde_json::Value {
        match self {
            Self::None => serde_json::Value::Null,
            Self::Bool(b) => (*b).into(),
            Self::Int(n) => (*n).into(),
            Self::Text(text) => text.as_str().into(),
            Self::Tuple(items) => items.iter().map(Self::json).collect(),
            Self::Dict(entries) => entries
                .iter()
                .map(|(k, v)| {
                    let key = k.text().map_or_else(|| k.sorted_repr(), str::to_owned);
                    (key, v.json())
                })
                .collect::<serde_json::Map<_, _>>()
                .into(),
        }
    }
}

struct Parser<'a> {
    left: &'a str,
}

impl Parser<'_> {
    fn space(&mut self) {
        self.left = self.left.trim_start();
    }

    fn eat(&mut self, token: &str) -> bool {
        self.space();
        match self.left.strip_prefix(token) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }

    fn value(&mut self, depth: usize) -> Option<Literal> {
        if depth > DEEPEST {
            return None;
        }
        self.space();
        match self.left.chars().next()? {
            quote @ ('\'' | '"') => self.text(quote).map(Literal::Text),
            '(' => {
                self.eat("(");
                self.items(")", |p| p.value(depth + 1)).map(Literal::Tuple)
            }
            '{' => {
                self.eat("{");
                let entry = |p: &mut Self| {
                    let key = p.value(depth + 1)?;
                    p.eat(":").then_some(())?;
                    Some((key, p.value(depth + 1)?))
                };
                self.items("}", entry).map(Literal::Dict)
            }
            '-' | '0'..='9' => {
                let end = self.left[1..]
                    .find(|c: char| !c.is_ascii_digit())
                    .map_or(self.left.len(), |n| n + 1);
                let (number, left) = self.left.split_at(end);
                self.left = left;
                number.parse().ok().map(Literal::Int)
            }
            _ if self.eat("None") => Some(Literal::None),
            _ if self.eat("True") => Some(Literal::Bool(true)),
            _ if self.eat("False") => Some(Literal::Bool(false)),
            _ => None,
        }
    }

    fn items<T>(
        &mut self,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let mut items = Vec::new();
        loop {
            if self.eat(close) {
                return Some(items);
            }
            items.push(item(self)?);
            if !self.eat(",") {
                return self.eat(close).then_some(items);
            }
        }
    }

    /// The rest of a text; of escapes only those of quotes and the backslash.
    fn text(&mut self, quote: char) -> Option<String> {
        let mut text = String::new();
        let mut chars = self.left[1..].char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => match chars.next()?.1 {
                    c @ ('\\' | '\'' | '"') => text.push(c),
                    _ => return None,
                },
                c if c == quote => {
                    self.left = &self.left[1 + at + 1..];
                    return Some(text);
                }
                c => text.push(c),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_schema_record_of_hangar() {
        let text = "{'shape':(12,),'dtype':\"<class'str'>\",'o':{'complevel':None,'x':()},'n':-5,'b':True}";
        let value = Literal::parse(text).unwrap();
        assert_eq!(value.get("shape").unwrap().dims(), Some(vec![12]));
        assert_eq!(value.get("dtype").unwrap().text(), Some("<class'str'>"));
        let options = value.get("o").unwrap();
        assert_eq!(options.get("complevel"), Some(&Literal::None));
        assert_eq!(options.get("x").unwrap().dims(), Some(vec![]));
        assert_eq!(
            value.sorted_repr(),
            "(('b', True), ('dtype', \"<class'str'>\"), ('n', -5), \
             ('o', (('complevel', None), ('x', ()))), ('shape', (12,)))"
        );
    }

    #[test]
    fn what_is_no_literal_is_refused() {
        for text in [
            "",
            "(",
            "{'a'}",
            "'a",
            "1 2",
            "x",
            "('a' 'b')",
            "{'a':1",
            "-",
            "f()",
        ] {
            assert_eq!(Literal::parse(text), None, "{text}");
        }
        assert_eq!(Literal::parse(&"(".repeat(1000)), None);
    }

    proptest! {
        #[test]
        fn any_text_ends_in_an_answer(text in ".{0,60}", literal in "[(){}',:0-9aN ]{0,40}") {
            let _ = Literal::parse(&text);
            let _ = Literal::parse(&literal);
        }
    }
}
