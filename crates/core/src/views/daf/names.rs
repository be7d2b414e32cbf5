//! The names of daf's files, and their meaning in daf.
//!
//! Source: tanaylab daf 0.2.0-dev.1, `storage/files.py`. Names are literal: nothing is escaped, and `#` and `,` appear
//! as such whatever character a mount shows in their place.

/// The name of the file that marks a store.
pub(super) const MARK: &[u8] = b"__daf__.yaml";

/// Bytes of the longest file name.
const NAME_MAX: usize = 255;

/// The suffix of a file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suffix {
    /// Text.
    Csv,
    /// An item, or the description of an array.
    Yaml,
    /// The elements of a dense array.
    Array,
    /// The stored elements of a sparse matrix.
    Data,
    /// The column indices of these.
    Indices,
    /// The row ends of these.
    Indptr,
}

impl Suffix {
    const ALL: [Self; 6] = [
        Self::Csv,
        Self::Yaml,
        Self::Array,
        Self::Data,
        Self::Indices,
        Self::Indptr,
    ];

    /// Returns the suffix with its dot.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Csv => ".csv",
            Self::Yaml => ".yaml",
            Self::Array => ".array",
            Self::Data => ".data",
            Self::Indices => ".indices",
            Self::Indptr => ".indptr",
        }
    }

    /// Returns whether an object can have a file with this suffix.
    pub(super) fn fits(self, own: &str) -> bool {
        own.len() + self.text().len() <= NAME_MAX
    }
}

/// Splits the name of a file into that of its property and its suffix.
pub(super) fn split(file: &[u8]) -> Option<(&str, Suffix)> {
    let file = std::str::from_utf8(file).ok()?;
    Suffix::ALL
        .into_iter()
        .find_map(|suffix| Some((file.strip_suffix(suffix.text())?, suffix)))
}

/// Returns whether daf may take a directory of this name for a file of an object.
pub(super) fn is_taken_for_file(name: &[u8]) -> bool {
    let ends_in = |suffix: Suffix| name.ends_with(suffix.text().as_bytes());
    Suffix::ALL.into_iter().any(ends_in)
}

/// The meaning of the name of an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meaning<'a> {
    /// A value without an axis.
    Item,
    /// The entries of an axis.
    Axis(&'a str),
    /// A property along an axis.
    Vector { axis: &'a str, property: &'a str },
    /// A property along two axes.
    Matrix {
        rows: &'a str,
        columns: &'a str,
        property: &'a str,
    },
    /// A name under which daf could not read anything, with the reason.
    Nothing(&'static str),
}

/// Returns the meaning of a name in daf.
pub(super) fn meaning(own: &str) -> Meaning<'_> {
    match own {
        "" => return Meaning::Nothing("it has no name"),
        "__daf__" => return Meaning::Nothing("daf's own mark has this name"),
        _ if own.contains('/') => return Meaning::Nothing("/ cannot be in the name of a file"),
        _ if own.contains('\0') => return Meaning::Nothing("NUL cannot be in the name of a file"),
        _ => {}
    }
    let Some((left, property)) = own.split_once('#') else {
        return Meaning::Item;
    };
    if let Some(axis) = own.strip_suffix('#') {
        return match axis {
            "" => Meaning::Nothing("an axis without a name has no column in a CSV file"),
            // A byte order mark at the beginning of a file would be dropped.
            _ if axis.starts_with('\u{feff}') => {
                Meaning::Nothing("its name begins with a byte order mark")
            }
            axis => Meaning::Axis(axis),
        };
    }
    match left.split_once(',') {
        None => Meaning::Vector {
            axis: left,
            property,
        },
        Some((rows, columns)) if !columns.contains(',') => Meaning::Matrix {
            rows,
            columns,
            property,
        },
        Some(_) => Meaning::Nothing("daf has nothing along more than two axes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_what_daf_takes_them_for() {
        let vector = |axis, property| Meaning::Vector { axis, property };
        for (own, means) in [
            ("title", Meaning::Item),
            ("a,b", Meaning::Item),
            (".", Meaning::Item),
            ("cell#", Meaning::Axis("cell")),
            ("a,b#", Meaning::Axis("a,b")),
            ("a#b#", Meaning::Axis("a#b")),
            ("cell#age", vector("cell", "age")),
            ("cell#a#b,c.d", vector("cell", "a#b,c.d")),
            ("#x", vector("", "x")),
            (
                "cell,gene#a#b,c",
                Meaning::Matrix {
                    rows: "cell",
                    columns: "gene",
                    property: "a#b,c",
                },
            ),
        ] {
            assert_eq!(meaning(own), means, "{own}");
        }
        for own in ["", "#", "a,b,c#x", "__daf__", "a/b", "a\0b", "\u{feff}x#"] {
            assert!(matches!(meaning(own), Meaning::Nothing(_)), "{own}");
        }
    }

    #[test]
    fn files_belong_to_one_datum() {
        assert_eq!(split(b"cell#age.yaml"), Some(("cell#age", Suffix::Yaml)));
        assert_eq!(split(b"x.csv.indptr"), Some(("x.csv", Suffix::Indptr)));
        assert_eq!(split(b"x.npy"), None);
        assert_eq!(split(b"\xff.yaml"), None);
        assert!(Suffix::Indices.fits(&"x".repeat(247)));
        assert!(!Suffix::Indices.fits(&"x".repeat(248)));
        assert!(is_taken_for_file(b"x.csv") && !is_taken_for_file(b"csv"));
    }
}
