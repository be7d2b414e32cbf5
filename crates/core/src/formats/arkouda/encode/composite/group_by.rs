//! GroupBys: keys, and the groups of equal elements.

use super::super::grouping;
use super::super::keys::RowKeys;
use super::super::members::{
    Complete, GROUPED, WrittenMember, WrittenMembers, complete, missing, numbered,
};
use super::super::{Type, marks};
use super::{CompositeWriter, below};
use crate::store::base::invalid;
use npyfs_base::error::Result;
use npyfs_hdf5::NewAttribute;

impl CompositeWriter<'_> {
    pub(super) fn group_by(
        &mut self,
        path: &[String],
        members: &WrittenMembers<'_>,
    ) -> Result<Complete> {
        let parts = GROUPED;
        let mut absent = missing(members, &parts).err().unwrap_or_default();
        let keys = numbered(members, "KEY_");
        absent.extend(keys.as_ref().err().into_iter().flatten().cloned());
        let (Ok(keys), true) = (keys, absent.is_empty()) else {
            return Ok(Err(absent));
        };
        self.only(members, &parts, "KEY_")?;
        for number in 0..keys {
            complete!(self.any(path, members, &format!("KEY_{number}"))?);
        }
        let mut lengths = Vec::new();
        for name in parts {
            let array = self.array(members, name)?;
            lengths.push(self.integers(path, name, array)?);
        }
        if let [segments, permutation, unique] = lengths.as_slice() {
            for number in 0..keys {
                let name = format!("KEY_{number}");
                let rows = self.rows(&below(path, &name)).unwrap_or(0);
                if rows != permutation.len() {
                    let all = permutation.len();
                    let why = format!("{name} has {rows} elements, permutation {all}");
                    return Err(invalid(why));
                }
            }
            grouping::check(permutation.len(), "the keys", permutation, segments)?;
            grouping::within("unique_key_idx", unique, permutation.len())?;
            if segments.len() != unique.len() {
                let (a, b) = (segments.len(), unique.len());
                return Err(invalid(format!("{a} segments and {b} unique keys")));
            }
            let is_stored = |name: &str| members.get(name).is_none_or(WrittenMember::is_stored);
            match RowKeys::of(self.new, path, keys, permutation.len())? {
                Some(keys) => keys.check(permutation, segments, unique)?,
                // It is unknown whether it belongs to the new keys.
                None if parts.iter().any(|name| is_stored(name))
                    && !(0..keys).all(|number| is_stored(&format!("KEY_{number}"))) =>
                {
                    return Err(invalid(
                        "too many keys to compare: segments, permutation and unique_key_idx must be written with them",
                    ));
                }
                None => {}
            }
        }
        let mut attributes = marks(Type::GroupBy);
        attributes.push(NewAttribute::int("NumKeys", keys as i64));
        self.new.mark(path, attributes);
        Ok(Ok(()))
    }
}
