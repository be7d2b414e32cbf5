//! Checks a daf store, as shown, by daf's rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::encode;
use super::rules::{Meaning, check_entries, check_shape, check_text_vector, meaning, numbers};
use crate::formats::sparse::{MEMBERS, check_dims};
use crate::store::base::invalid;
use crate::store::encode::{NpyArray, text};
use crate::store::format::{Depth, Inspection};
use crate::tree::{Directory, Node, VirtualFile};
use npyfs_base::error::Result;

/// The objects of a store, by their own names.
struct DafObjects {
    objects: BTreeMap<String, Node>,
    depth: Depth,
}

/// Returns the violations of daf's rules in a store, one line for each object that is `concerned` or lies along a
/// concerned axis. `sep` is the character in place of `#` in the names of the directory.
pub fn broken(dir: &dyn Directory, inspection: &Inspection<'_>) -> Result<Vec<String>> {
    let store = DafObjects {
        objects: inspection.objects(dir)?.into_iter().collect(),
        depth: inspection.depth,
    };
    let mut broken = Vec::new();
    for (own, node) in &store.objects {
        let is_concerned = inspection.concerns(own)
            || matches!(meaning(own), Meaning::Property(axes)
                if axes.iter().any(|axis| inspection.concerns(&format!("{axis}#"))));
        if is_concerned {
            inspection.note(own, store.check(own, node), &mut broken)?;
        }
    }
    Ok(broken)
}

impl DafObjects {
    fn check(&self, own: &str, node: &Node) -> Result<()> {
        match (meaning(own), node) {
            (Meaning::Axis, Node::File(file)) => self.check_axis(&opened(file)?),
            (Meaning::Property(axes), node) => self.check_property(&axes, node),
            _ => Ok(()),
        }
    }

    fn check_axis(&self, array: &NpyArray) -> Result<()> {
        check_text_vector(array)?;
        if self.depth == Depth::Outline {
            return Ok(());
        }
        check_letters(array)?;
        check_entries(array)
    }

    fn check_property(&self, axes: &[&str], node: &Node) -> Result<()> {
        let mut lengths = Vec::new();
        for axis in axes {
            match self.objects.get(&format!("{axis}#")) {
                Some(Node::File(file)) => match opened(file)?.shape.as_slice() {
                    &[length] => lengths.push(length),
                    shape => return Err(invalid(format!("its axis {axis} has shape {shape:?}"))),
                },
                // A link to an axis counts as an axis; its target is not checked.
                Some(Node::Symlink(_)) => return Ok(()),
                _ => return Err(invalid(format!("there is no axis {axis}"))),
            }
        }
        match node {
            Node::File(file) => {
                let array = opened(file)?;
                check_shape(&array, &lengths)?;
                match text::is_text(&array) {
                    true if self.depth == Depth::Elements => check_letters(&array),
                    true => Ok(()),
                    false => numbers(&array).map(drop),
                }
            }
            Node::Directory(dir) => match lengths.as_slice() {
                &[rows, columns] => self.check_sparse(&**dir, (rows, columns)),
                // daf ignores it.
                _ => Ok(()),
            },
            Node::Symlink(_) => Ok(()),
        }
    }

    fn check_sparse(&self, dir: &dyn Directory, lengths: (u64, u64)) -> Result<()> {
        if self.depth == Depth::Outline {
            return match dir.lookup(b"shape.npy")? {
                Some(Node::File(file)) => check_dims(opened(&file)?, lengths),
                // It is shown as plain HDF5, and the log has the reason.
                _ => Ok(()),
            };
        }
        let mut members = Vec::with_capacity(MEMBERS.len());
        for name in MEMBERS {
            match dir.lookup(format!("{name}.npy").as_bytes())? {
                Some(Node::File(file)) => members.push(opened(&file)?),
                _ if name == "shape" => {
                    return Err(invalid("a sparse matrix whose parts do not fit its axes"));
                }
                // daf does not recognize such a group as a matrix.
                _ => return Ok(()),
            }
        }
        let Ok(members) = members.try_into() else {
            return Ok(());
        };
        let checked = encode::check_sparse(members, lengths)?;
        if !checked.sorted {
            let why = "rows whose columns are not sorted, or twice there";
            return Err(invalid(why));
        }
        Ok(())
    }
}

fn opened(file: &Arc<dyn VirtualFile>) -> Result<NpyArray> {
    NpyArray::shown(&file.open()?)
}

/// Checks for ASCII, the only text that daf reads.
fn check_letters(array: &NpyArray) -> Result<()> {
    text::each(array, |number, element| {
        if element.is_ascii() {
            return Ok(());
        }
        Err(invalid(format!(
            "element {number} is no ASCII, which daf cannot read"
        )))
    })
}
