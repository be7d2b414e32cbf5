//! Patterns for names, as shells have them: `*`, `?`, `[a-z]` and `[!a-z]`, and `**/` for any directories, or none, in
//! front of what follows. A pattern is matched byte by byte, and a `?` stands for one character of UTF-8. Takes time in
//! proportion to both lengths at the most.

/// Returns whether there is a wildcard in a path.
pub fn has_wildcards(path: &[u8]) -> bool {
    path.iter().any(|byte| b"*?[".contains(byte))
}

/// A part of a pattern.
#[derive(Debug)]
enum Part {
    /// Any bytes.
    Any,
    /// Nothing, or any bytes with a slash at their end. It follows a slash, or stands first.
    Directories,
    /// One character.
    One,
    /// A character in one of the ranges, or in none of them.
    Set(Vec<(char, char)>, bool),
    Byte(u8),
}

/// A pattern for names.
#[derive(Debug)]
pub struct Pattern(Vec<Part>);

impl Pattern {
    /// Reads a pattern. A bracket that is not closed stands for itself, and so does what follows a backslash.
    pub fn new(text: &[u8]) -> Self {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((&first, tail)) = rest.split_first() {
            let is_first = matches!(
                parts.last(),
                None | Some(Part::Directories | Part::Byte(b'/'))
            );
            if let (true, Some(after)) = (is_first, rest.strip_prefix(b"**/")) {
                parts.push(Part::Directories);
                rest = after;
                continue;
            }
            rest = tail;
            parts.push(match first {
                b'*' => Part::Any,
                b'?' => Part::One,
                b'\\' if !tail.is_empty() => {
                    rest = &tail[1..];
                    Part::Byte(tail[0])
                }
                b'[' => match set(tail) {
                    Some((set, after)) => {
                        rest = after;
                        set
                    }
                    None => Part::Byte(b'['),
                },
                byte => Part::Byte(byte),
            });
        }
        Self(parts)
    }

    /// Returns whether all of a name is as the pattern says.
    pub fn matches(&self, name: &[u8]) -> bool {
        let (mut part, mut at) = (0, 0);
        // Where to go on if what follows the latest `*` or `**/` does not fit: one byte later, or behind the next
        // slash. No earlier one can help: whatever it would take, the latest can take, too.
        let mut again: Option<(usize, usize)> = None;
        loop {
            let taken = match self.0.get(part) {
                Some(Part::Any | Part::Directories) => {
                    again = Some((part, at));
                    Some(0)
                }
                None if at == name.len() => return true,
                None => None,
                Some(one) => one.taken(&name[at..]),
            };
            match (taken, again) {
                (Some(taken), _) => {
                    part += 1;
                    at += taken;
                }
                (None, Some((any, from))) if from < name.len() => {
                    let next = match self.0.get(any) {
                        Some(Part::Directories) => {
                            let slash = name[from..].iter().position(|&byte| byte == b'/');
                            let Some(slash) = slash else { return false };
                            from + slash + 1
                        }
                        _ => from + 1,
                    };
                    again = Some((any, next));
                    (part, at) = (any + 1, next);
                }
                (None, _) => return false,
            }
        }
    }
}

impl Part {
    /// Returns how many bytes at the beginning of a name are this one.
    fn taken(&self, name: &[u8]) -> Option<usize> {
        let (first, len) = character(name)?;
        match self {
            Self::Any | Self::Directories => Some(0),
            Self::One => Some(len),
            Self::Set(ranges, is_negated) => {
                let is_in = first.is_some_and(|c| ranges.iter().any(|&(a, b)| a <= c && c <= b));
                (is_in != *is_negated).then_some(len)
            }
            Self::Byte(byte) => (name.first() == Some(byte)).then_some(1),
        }
    }
}

/// Returns the first character and its length; a byte that begins none stands alone.
fn character(bytes: &[u8]) -> Option<(Option<char>, usize)> {
    bytes.first()?;
    let lens = 1..=bytes.len().min(4);
    let text = |len| std::str::from_utf8(&bytes[..len]).ok()?.chars().next();
    let found = lens.into_iter().find_map(|len| Some((text(len)?, len)));
    Some(found.map_or((None, 1), |(c, len)| (Some(c), len)))
}

/// Reads a set behind its bracket, and returns what follows.
fn set(text: &[u8]) -> Option<(Part, &[u8])> {
    let negated = text.strip_prefix(b"!").or_else(|| text.strip_prefix(b"^"));
    let mut rest = negated.unwrap_or(text);
    let mut ranges = Vec::new();
    loop {
        // A bracket that comes first is a member.
        if let (Some(after), false) = (rest.strip_prefix(b"]"), ranges.is_empty()) {
            return Some((Part::Set(ranges, negated.is_some()), after));
        }
        let (from, len) = character(rest)?;
        rest = &rest[len..];
        let from = from?;
        let range = rest.strip_prefix(b"-").filter(|to| !to.starts_with(b"]"));
        let to = match range {
            Some(behind) => {
                let (to, len) = character(behind)?;
                rest = &behind[len..];
                to?
            }
            None => from,
        };
        ranges.push((from, to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, name: &str) -> bool {
        Pattern::new(pattern.as_bytes()).matches(name.as_bytes())
    }

    #[test]
    fn patterns_are_those_of_shells() {
        for (pattern, name) in [
            ("score*", "score.npy"),
            ("*", ""),
            ("*.npy", "a.npy"),
            ("a*b*c", "a1b2b3c"),
            ("?.npy", "ü.npy"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[]]", "]"),
            ("[ä-ü]", "ö"),
            ("[a-]", "-"),
            ("[", "["),
            ("\\*", "*"),
            ("**", "abc"),
            ("**/x", "x"),
            ("**/x", "a/b/x"),
            ("a/**/x", "a/x"),
            ("a*/**/b/**/x*", "aa/c/b/b/d/xy"),
            ("**/**/x", "a/x"),
            ("a**/x", "a/b/x"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("score*", "ascore"),
            ("?", ""),
            ("?", "ab"),
            ("[a-c]", "d"),
            ("[!a-c]", "a"),
            ("\\*", "a"),
            ("a*b", "abc"),
            ("", "a"),
            ("**/x", "ax"),
            ("**/x", "a/bx"),
            ("a/**/x", "b/a/x"),
            ("a/**/x", "a/x/b"),
        ] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
        assert!(Pattern::new(b"?\xff*").matches(b"\xfe\xff"));
    }

    #[test]
    fn a_pattern_of_many_stars_ends_soon() {
        assert!(!fits(&"a*".repeat(50), &"a".repeat(49)));
        assert!(fits(&"*a".repeat(50), &"a".repeat(5000)));
        assert!(!fits(&format!("{}b", "*a".repeat(50)), &"a".repeat(5000)));
    }
}
