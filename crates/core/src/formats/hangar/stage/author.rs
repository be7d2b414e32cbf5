//! The author of commits: `config_user.ini` of a repository, which Hangar reads with Python's `configparser`.

use std::path::Path;

use npyfs_base::error::{Error, ErrorKind, Result};

const NAME: &str = "config_user.ini";

/// The longest configuration in bytes that is read.
const LONGEST: u64 = 1 << 16;

/// The name and address in a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Author {
    /// The name.
    pub name: String,
    /// The address.
    pub email: String,
}

impl Author {
    /// Makes the author of a new repository, which becomes two lines of its configuration.
    pub fn new(name: String, email: String) -> Result<Self> {
        let is_line = |text: &str| {
            !text.is_empty() && text.trim() == text && !text.chars().any(char::is_control)
        };
        if !is_line(&name) || !is_line(&email) {
            let why = "the author's name and address are one line of text each";
            return Err(Error::new(ErrorKind::Os(libc::EINVAL), why));
        }
        Ok(Self { name, email })
    }

    /// Reads the author from the directory of the tables.
    pub fn of(folder: &Path) -> Result<Self> {
        let path = folder.join(NAME);
        let about = |e: Error| e.about(path.display());
        let meta = std::fs::metadata(&path).map_err(|e| about(e.into()))?;
        if meta.len() > LONGEST {
            return Err(about(Error::damaged("too large for a configuration")));
        }
        let text = std::fs::read_to_string(&path).map_err(|e| about(e.into()))?;
        Self::parse(&text).ok_or_else(|| {
            let why = "names no user with name and email in a section [USER]";
            about(Error::new(ErrorKind::Os(libc::EINVAL), why))
        })
    }

    /// Parses `name` and `email` of the section `USER`. Values that continue on further lines are not supported.
    fn parse(text: &str) -> Option<Self> {
        let mut inside = false;
        let (mut name, mut email) = (None, None);
        for line in text.lines().map(str::trim) {
            if line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(section) = line.strip_prefix('[') {
                inside = section.strip_suffix(']') == Some("USER");
                continue;
            }
            let Some((key, value)) = line.split_once(['=', ':']).filter(|_| inside) else {
                continue;
            };
            // `configparser` doubles a percent sign.
            let value = value.trim().replace("%%", "%");
            match key.trim().to_lowercase().as_str() {
                "name" => name = Some(value),
                "email" => email = Some(value),
                _ => {}
            }
        }
        Some(Self {
            name: name?,
            email: email?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangar_writes_is_read() {
        let text = "[OTHER]\nname = no\n[USER]\nname = Ann = B: 50%% # c\nEmail: a@b.c\n\n";
        let author = Author::parse(text).unwrap();
        assert_eq!(author.name, "Ann = B: 50% # c");
        assert_eq!(author.email, "a@b.c");
        for text in [
            "",
            "name = x\nemail = y",
            "[USER]\nname = x",
            "[USER\nname=x\nemail=y",
        ] {
            assert_eq!(Author::parse(text), None, "{text}");
        }
    }
}
