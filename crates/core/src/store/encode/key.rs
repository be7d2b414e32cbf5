//! Keys of objects: the own names that lead to one in its HDF5 file.

use crate::store::base::invalid;
use crate::tree::name::unescape;
use npyfs_base::error::Result;

/// Own names from the root group of the store to an object; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectKey(Vec<String>);

impl ObjectKey {
    /// Makes the key of shown names behind the store's own path, with `#` in the place of another separator.
    pub fn of_shown<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> Result<Self> {
        let names = names.into_iter().map(|name| {
            String::from_utf8(unescape(name)).map_err(|_| invalid("a name that is not UTF-8"))
        });
        let names = names.collect::<Result<Vec<_>>>()?;
        if names.is_empty() {
            return Err(invalid("no name"));
        }
        Ok(Self(names))
    }

    /// Makes the key of a path.
    pub fn of_path(path: &str) -> Result<Self> {
        Self::of_shown(path.split('/').map(str::as_bytes))
    }

    /// Makes the key of an object in a group, both by own names.
    pub fn of_names(group: Vec<String>, name: String) -> Self {
        let mut names = group;
        names.push(name);
        Self(names)
    }

    /// Returns the names, from the root group on.
    pub fn path(&self) -> &[String] {
        &self.0
    }

    /// The object's own name.
    pub fn name(&self) -> &str {
        self.0.last().map_or("", String::as_str)
    }

    /// The path of another object in the same group.
    pub fn beside(&self, name: &str) -> Vec<String> {
        let mut path = self.group().to_vec();
        path.push(name.to_owned());
        path
    }

    /// The path of a member of the object.
    pub fn below(&self, member: &str) -> Vec<String> {
        let members = member.split('/').map(str::to_owned);
        self.0.iter().cloned().chain(members).collect()
    }

    /// The path of the group it is in.
    pub fn group(&self) -> &[String] {
        self.0.split_last().map_or(&[], |(_, group)| group)
    }
}
