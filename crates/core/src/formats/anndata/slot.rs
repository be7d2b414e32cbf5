//! The meaning of an object's path in AnnData: its slot, and its axes.

use std::sync::Arc;

use super::NAME;
use super::marks::{INDEX, Marks};
use crate::store::base::{Base, invalid};
use crate::tree::{Directory, Node};
use npyfs_base::error::{Error, Result};
use npyfs_hdf5::Attribute;
use npyfs_io::content::complete_npy_header;

/// The names that anndata and mudata read at the top of a file; they open none that has others.
const AT_THE_TOP: [&str; 10] = [
    "X", "layers", "obs", "obsm", "obsp", "raw", "uns", "var", "varm", "varp",
];

/// The names at the top of MuData besides.
const OF_MUDATA: [&str; 3] = ["mod", "obsmap", "varmap"];

/// The required lengths of an array's dimensions; `None` for any.
pub(super) type Lengths = Vec<Option<u64>>;

/// The role of an object, according to its path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The index of a table.
    Index,
    /// A column of a table.
    Column,
    /// Anything else.
    Array,
}

/// An object of AnnData.
#[derive(Debug)]
pub(super) struct Place {
    pub role: Role,
    /// The required lengths of its first dimensions.
    pub lengths: Lengths,
    /// Whether it has exactly these dimensions.
    pub is_exact: bool,
}

/// Returns the names after the AnnData that is a part of MuData.
pub(super) fn behind_modality(names: &[String]) -> &[String] {
    match names {
        [first, _, rest @ ..] if first == "mod" => rest,
        _ => names,
    }
}

/// Returns whether a directory with these names, relative to the AnnData, contains the members of one object, or a file
/// with this suffix is one. `is_there` has the attributes of the directory, if it exists.
pub(super) fn is_object(names: &[String], suffix: &str, is_there: Option<&[Attribute]>) -> bool {
    let names: Vec<&str> = behind_modality(names).iter().map(String::as_str).collect();
    if let Some(attributes) = is_there {
        let encoding = Marks(attributes).encoding();
        return match encoding.as_deref() {
            Some(encoding) => is_encoding_of_object(encoding),
            None => Marks(attributes).sparse_order().is_some(),
        };
    }
    match names.as_slice() {
        ["X"] | ["raw", "X"] => true,
        [
            "obs" | "var" | "layers" | "obsm" | "varm" | "obsp" | "varp",
            _,
        ] => true,
        ["raw", "var" | "varm", _] | ["obsm" | "varm", _, _] => true,
        ["uns", _, ..] => suffix == ".npz",
        _ => false,
    }
}

fn is_encoding_of_object(encoding: &str) -> bool {
    encoding.ends_with("_matrix") || encoding == "categorical" || encoding.starts_with("nullable-")
}

impl Place {
    /// Finds the place of the object at a path of own names from the root of the store.
    pub(super) fn find(base: &dyn Base, path: &[String]) -> Result<Self> {
        let any = Self {
            role: Role::Array,
            lengths: Vec::new(),
            is_exact: false,
        };
        let Some((top, rest)) = split(base, path)? else {
            return Ok(any);
        };
        let table = |names: &[&str]| {
            [
                top,
                &names.iter().map(|&n| n.to_owned()).collect::<Vec<_>>(),
            ]
            .concat()
        };
        let rows = || length(base, &table(&["obs"]));
        let columns = || length(base, &table(&["var"]));
        let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
        let (lengths, is_exact) = match rest.as_slice() {
            ["X"] | ["layers", _] => (vec![rows()?, columns()?], true),
            ["obs", name] | ["var", name] | ["obsm" | "varm", _, name] => {
                let table = table(&rest[..rest.len() - 1]);
                return Self::in_table(base, &table, name);
            }
            ["raw", "var", name] => return Self::in_table(base, &table(&["raw", "var"]), name),
            ["raw", "X"] => (vec![rows()?, length(base, &table(&["raw", "var"]))?], true),
            ["raw", "varm", _] => (vec![length(base, &table(&["raw", "var"]))?], false),
            ["obsm", _] => (vec![rows()?], false),
            ["varm", _] => (vec![columns()?], false),
            ["obsp", _] => (vec![rows()?; 2], true),
            ["varp", _] => (vec![columns()?; 2], true),
            _ => (Vec::new(), false),
        };
        Ok(Self {
            lengths,
            is_exact,
            ..any
        })
    }

    fn in_table(base: &dyn Base, table: &[String], name: &str) -> Result<Self> {
        let index = index(base, table)?;
        let role = match index.as_deref() == Some(name) {
            true => Role::Index,
            false => Role::Column,
        };
        Ok(Self {
            role,
            lengths: vec![length(base, table)?],
            is_exact: true,
        })
    }

    /// Checks the shape of an array against the axes.
    pub(super) fn check(&self, shape: &[u64]) -> Result<()> {
        let fits = self.lengths.len() <= shape.len()
            && (!self.is_exact || self.lengths.len() == shape.len())
            && (self.lengths.iter().zip(shape)).all(|(axis, n)| axis.is_none_or(|axis| axis == *n));
        if fits {
            return Ok(());
        }
        let lengths = self.lengths.iter().map(|axis| match axis {
            Some(n) => n.to_string(),
            None => "any".to_owned(),
        });
        let lengths: Vec<_> = lengths.collect();
        Err(invalid(format!(
            "shape {shape:?} does not fit axes of length [{}]",
            lengths.join(", ")
        )))
    }
}

/// Refuses an object that would keep anndata from opening the file. What is there already can be written over.
pub(super) fn check_name(base: &dyn Base, path: &[String]) -> Result<()> {
    let Some((top, rest)) = split(base, path)? else {
        return Ok(());
    };
    let Some(name) = rest.first() else {
        return Ok(());
    };
    let is_there = |name: &str, suffix: &str| {
        let place = [top, &[name.to_owned()][..]].concat();
        Ok::<_, Error>(base.in_store(&place, suffix)?.is_some())
    };
    let is_known = AT_THE_TOP.contains(&name.as_str())
        || (OF_MUDATA.contains(&name.as_str()) && is_there("mod", "")?);
    if is_known || is_there(name, "")? || is_there(name, ".npy")? {
        return Ok(());
    }
    Err(invalid(format!(
        "anndata opens no file that has {name:?} beside {}: an array of your own goes into uns",
        AT_THE_TOP.join(", ")
    )))
}

/// Splits off the path inside of AnnData; `None` if the path is outside.
fn split<'a>(base: &dyn Base, path: &'a [String]) -> Result<Option<(&'a [String], &'a [String])>> {
    for at in 0..path.len() {
        let (top, rest) = path.split_at(at);
        let Some(dir) = directory(base, top)? else {
            return Ok(None);
        };
        if dir.format()? != NAME {
            continue;
        }
        let inside = behind_modality(rest).len();
        return Ok(Some(path.split_at(path.len() - inside)));
    }
    Ok(None)
}

/// Returns the directory at a path from the root of the store.
pub(super) fn directory(base: &dyn Base, path: &[String]) -> Result<Option<Arc<dyn Directory>>> {
    Ok(base.in_store(path, "")?.and_then(Node::directory))
}

/// Returns the name of the index of a table.
fn index(base: &dyn Base, table: &[String]) -> Result<Option<String>> {
    let Some(dir) = directory(base, table)? else {
        return Ok(None);
    };
    Ok(Marks(&dir.attributes()?).text(INDEX))
}

/// Returns the length of a table's index; `None` if it has none, or is a record array.
fn length(base: &dyn Base, table: &[String]) -> Result<Option<u64>> {
    let file = match index(base, table)? {
        Some(index) => base.in_store(&[table, &[index]].concat(), ".npy")?,
        None => base.in_store(table, ".npy")?,
    };
    let Some(Node::File(file)) = file else {
        return Ok(None);
    };
    Ok(complete_npy_header(&*file.open()?)?.shape.first().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_objects_where_elements_stand() {
        let names = |path: &str| path.split('/').map(str::to_owned).collect::<Vec<_>>();
        for path in [
            "X",
            "obs/a",
            "layers/a",
            "mod/rna/obs/a",
            "obsm/frame/a",
            "raw/X",
        ] {
            assert!(is_object(&names(path), "", None), "{path}");
        }
        for path in [
            "obs",
            "uns",
            "uns/a",
            "mod",
            "mod/rna",
            "mod/rna/obs",
            "layers",
        ] {
            assert!(!is_object(&names(path), "", None), "{path}");
        }
        assert!(is_object(&names("uns/a/b"), ".npz", None));
    }

    #[test]
    fn shapes_are_held_against_the_axes() {
        let place = |lengths: &[Option<u64>], is_exact| Place {
            role: Role::Array,
            lengths: lengths.to_vec(),
            is_exact,
        };
        assert!(place(&[Some(2)], false).check(&[2, 9]).is_ok());
        assert!(place(&[Some(2)], true).check(&[2, 9]).is_err());
        assert!(place(&[Some(2), None], true).check(&[2, 9]).is_ok());
        assert!(place(&[Some(2)], false).check(&[]).is_err());
    }
}
