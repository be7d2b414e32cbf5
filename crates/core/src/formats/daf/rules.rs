//! The rules of a daf store: the meaning of names, and which objects must match.
//!
//! Source: tanaylab daf 0.2.0-dev.1, `storage/h5fs.py`. A vector or matrix whose axis is missing makes the whole store
//! unreadable.

/// The dataset that marks a store; its attributes are the items.
pub const MARK: &str = "__daf__";

/// Attributes of the mark that are not items: notes of npyfs in exported files. Earlier versions wrote them here, too.
const NOTES: [&str; 2] = ["npyfs_time", "npyfs_times"];

/// Returns whether an attribute of the mark is such a note.
pub fn is_note(name: &[u8]) -> bool {
    NOTES.iter().any(|note| note.as_bytes() == name)
}

/// The meaning of a name.
#[derive(Debug, PartialEq, Eq)]
pub enum Meaning<'a> {
    /// An axis: its entries.
    Axis,
    /// A property along one or two axes.
    Property(Vec<&'a str>),
    /// A 0-D item.
    Item,
    /// An object that daf ignores.
    Other,
}

/// Returns the meaning of a name in daf.
pub fn meaning(name: &str) -> Meaning<'_> {
    let Some((left, property)) = name.split_once('#') else {
        return Meaning::Item;
    };
    let axes: Vec<&str> = left.split(',').collect();
    if axes.contains(&"") || axes.len() > 2 {
        return Meaning::Other;
    }
    match (property.is_empty(), axes.len()) {
        (true, 1) => Meaning::Axis,
        (true, _) => Meaning::Other,
        (false, _) => Meaning::Property(axes),
    }
}

/// Returns whether a directory of this name holds the parts of a sparse matrix.
pub fn is_matrix(name: &str) -> bool {
    matches!(meaning(name), Meaning::Property(axes) if axes.len() == 2)
}

/// Returns the names of an object's axes, each once: `cell#` and `gene#` for `cell,gene#UMIs`.
pub fn along(name: &str) -> Vec<String> {
    let Meaning::Property(axes) = meaning(name) else {
        return Vec::new();
    };
    let mut names: Vec<String> = axes.into_iter().map(|axis| format!("{axis}#")).collect();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_along_what() {
        assert_eq!(along("cell,gene#UMIs"), ["cell#", "gene#"]);
        assert_eq!(along("gene,gene#corr"), ["gene#"]);
        assert_eq!(along("cell#age"), ["cell#"]);
        assert!(along("cell#").is_empty() && along("title").is_empty());
    }

    #[test]
    fn names_mean_what_daf_takes_them_for() {
        assert_eq!(meaning("cell#"), Meaning::Axis);
        assert_eq!(meaning("cell#age"), Meaning::Property(vec!["cell"]));
        assert_eq!(
            meaning("cell,gene#a,b#c"),
            Meaning::Property(vec!["cell", "gene"])
        );
        assert_eq!(meaning("title"), Meaning::Item);
        for name in ["a,b,c#x", "#x", "a,#x", "a,b#", ",#"] {
            assert_eq!(meaning(name), Meaning::Other, "{name}");
        }
    }
}
