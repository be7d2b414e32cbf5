//! The effect on an object when one of its members is deleted.

use super::ObjectKey;
use crate::checkout::encode::Base;
use crate::checkout::target::Deletion;
use crate::error::{Error, ErrorKind, Result};
use crate::tree::Node;

/// An object goes with any member that it cannot be without. A DataFrame loses a column; a Categorical what is known of
/// the grouping of its codes; a bigint its number of bits. What is in a group that is no object cannot be deleted.
pub fn deletion(base: &dyn Base, key: &ObjectKey, member: &str) -> Result<Deletion> {
    let mut path = vec![key.name().to_owned()];
    // The member of a DataFrame that goes where an object in it would.
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

/// Returns what Arkouda calls the object that is shown as a directory at a path; `None` if none is.
fn kind(base: &dyn Base, path: &[String]) -> Result<Option<String>> {
    let Some(Node::Directory(dir)) = base.node(path, "")? else {
        return Ok(None);
    };
    let info = dir.info()?;
    let name = info.get("type").and_then(|name| name.as_str());
    Ok(name.map(str::to_owned))
}
