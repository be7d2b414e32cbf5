//! Categoricals: codes, their categories, and the grouping of the codes.

use super::super::grouping;
use super::super::members::{
    CATEGORICAL, Complete, WrittenMember, WrittenMembers, complete, missing,
};
use super::super::{Type, marks};
use super::{CompositeWriter, below};
use crate::store::base::invalid;
use npyfs_base::error::Result;

impl CompositeWriter<'_> {
    pub(super) fn categorical(
        &mut self,
        path: &[String],
        members: &WrittenMembers<'_>,
    ) -> Result<Complete> {
        complete!(missing(members, &CATEGORICAL[..3]));
        self.only(members, &CATEGORICAL, "")?;
        let mut grouping = CATEGORICAL[3..].iter().filter_map(|name| members.get(name));
        let stored = grouping.by_ref().all(WrittenMember::is_stored);
        if members.contains_key("permutation") != members.contains_key("segments") && !stored {
            return Ok(missing(members, &CATEGORICAL[3..]));
        }
        complete!(self.any(path, members, "categories")?);
        let (count, _) = self.stored(&below(path, "categories"));
        let codes = self.array(members, "codes")?;
        let codes = self.integers(path, "codes", codes)?;
        codes.each(|number, code| {
            if u64::try_from(code).is_ok_and(|code| code < count) {
                return Ok(());
            }
            Err(invalid(format!(
                "code {number} is {code}, there are {count} categories"
            )))
        })?;
        let na = self.array(members, "NA_Codes")?;
        self.integers(path, "NA_Codes", na)?;
        let new_codes = members.get("codes").is_some_and(|codes| !codes.is_stored());
        match CATEGORICAL[3..]
            .iter()
            .filter(|name| members.contains_key(**name))
            .count()
        {
            2 => {
                let permutation = self.vector(members, "permutation")?;
                let segments = self.vector(members, "segments")?;
                // The stored grouping is that of the old codes.
                let stale =
                    stored && new_codes && !grouping::fits(&codes, &permutation, &segments)?;
                if !stale {
                    grouping::check(codes.len(), "codes", &permutation, &segments)?;
                    self.put_integers(path, "permutation", &permutation);
                    self.put_integers(path, "segments", &segments);
                }
            }
            // The other one was deleted: Arkouda reads neither.
            1 if !new_codes => {
                for name in CATEGORICAL[3..]
                    .iter()
                    .filter(|name| members.contains_key(**name))
                {
                    let left = self.vector(members, name)?;
                    self.put_integers(path, name, &left);
                }
            }
            _ => {}
        }
        self.new.mark(path, marks(Type::Categorical));
        Ok(Ok(()))
    }
}
