//! The effect of deleting a member of an object.

use super::ObjectKey;
use crate::store::base::Base;
use crate::store::target::Deletion;
use crate::tree::Node;
use npyfs_base::error::{Error, ErrorKind, Result};

/// Deleting a required member deletes the object. A DataFrame loses a column; a Categorical its grouping of codes; a
/// bigint its number of bits. Members of a group that is not an object cannot be deleted.
pub fn deletion(base: &dyn Base, key: &ObjectKey, member: &str) -> Result<Deletion> {
    let mut path = vec![key.name().to_owned()];
    // The member of a DataFrame that is deleted in place of an object inside of it.
    let mut column = None;
    let names: Vec<&str> = member.split('/').filter(|name| !name.is_empty()).collect();
    for (depth, name) in names.iter().enumerate() {
        let is_last = depth + 1 == names.len();
        let whole = || names[..=depth].join("/");
        match kind(base, &path)?.as_deref() {
            Some("group") => {
                let why = "a group that is no Arkouda object: nothing in it can be deleted";
                return Err(Error::new(ErrorKind::Os(libc::EPERM), why));
            }
            Some("DataFrame") if *name != "Index" => column = Some(whole()),
            Some("DataFrame") => return Ok(Deletion::Object),
            Some("Categorical") if is_last && matches!(*name, "permutation" | "segments") => {
                return Ok(Deletion::Member(whole()));
            }
            Some("bigint") if is_last && *name == "MaxBits" => {
                return Ok(Deletion::Member(whole()));
            }
            _ => {}
        }
        path.push((*name).to_owned());
    }
    Ok(column.map_or(Deletion::Object, Deletion::Member))
}

/// Returns Arkouda's name for the object shown as the directory at a path; `None` if there is none.
fn kind(base: &dyn Base, path: &[String]) -> Result<Option<String>> {
    let Some(Node::Directory(dir)) = base.node(path, "")? else {
        return Ok(None);
    };
    let info = dir.info()?;
    let name = info.get("type").and_then(|name| name.as_str());
    Ok(name.map(str::to_owned))
}
