//! Scans of groups: members with everything below them, and the attributes that tell the kind of each object.
//!
//! Scans serve stores that keep one object in several datasets: one answer replaces a request per object.

use std::collections::HashSet;
use std::ops::Range;

use super::attributes::attributes_named;
use super::describe;
use super::ffi::{self, Id, ObjectKind, RawLink};
use super::object_paths::Referrer;
use crate::types::TypeCache;
use npyfs_hdf5::protocol::{Attribute, GroupMember, GroupScan, H5Error, ScannedMember};

/// The deepest nesting of groups that one answer covers.
const MAX_DEPTH: usize = 64;

/// The largest number of members of a group that is entered without any of the requested attributes.
const SMALL_GROUP: usize = 16;

/// The number of objects in one answer below the requested members; groups found after that are not entered.
const MAX_BELOW: usize = 100_000;

/// A scan of one group.
struct Scanner<'a> {
    referrer: Referrer<'a>,
    names: &'a [Vec<u8>],
    memo: TypeCache,
    /// The groups entered so far: none is entered twice, so that cycles end.
    entered: HashSet<u64>,
    /// The number of objects below the members that may still be added.
    left: usize,
}

/// Returns a part of the members of a group, with everything below them.
pub(super) fn scan(
    referrer: Referrer<'_>,
    group: u64,
    names: &[Vec<u8>],
    depth: usize,
    part: Range<usize>,
) -> Result<GroupScan<ScannedMember>, H5Error> {
    let id = ffi::open_object(referrer.file, group)?;
    let (links, damage) = ffi::links(&id);
    let mut scanner = Scanner {
        referrer,
        names,
        memo: TypeCache::default(),
        entered: HashSet::from([group]),
        left: MAX_BELOW,
    };
    Ok(GroupScan {
        attributes: scanner.attributes(&id)?,
        total: links.len(),
        members: links
            .into_iter()
            .skip(part.start)
            .take(part.len())
            .map(|(name, link)| scanner.member(name, link, depth.min(MAX_DEPTH)))
            .collect(),
        damage: damage.map(|failure| failure.0),
    })
}

/// Returns objects by their addresses, without names and without the objects below them.
pub(super) fn objects(
    referrer: Referrer<'_>,
    names: &[Vec<u8>],
    addrs: impl Iterator<Item = u64>,
) -> Vec<ScannedMember> {
    let mut scanner = Scanner {
        referrer,
        names,
        memo: TypeCache::default(),
        entered: HashSet::new(),
        left: 0,
    };
    let link = |addr| match addr {
        0 | u64::MAX => RawLink::Damaged("no object".into()),
        addr => RawLink::Hard(addr),
    };
    addrs
        .map(|addr| scanner.member(Vec::new(), link(addr), 0))
        .collect()
}

impl Scanner<'_> {
    fn attributes(&mut self, id: &Id) -> Result<Vec<Attribute>, H5Error> {
        let names = self.names;
        let wanted = |name: &[u8]| names.iter().any(|wanted| wanted == name);
        attributes_named(id, &mut self.referrer, wanted)
    }

    fn member(&mut self, name: Vec<u8>, link: RawLink, depth: usize) -> ScannedMember {
        let addr = match link {
            RawLink::Hard(addr) => addr,
            _ => {
                let member = describe::member(self.referrer.file, link, false, &mut self.memo);
                return ScannedMember::leaf(name, member);
            }
        };
        match self.object(name.clone(), addr, depth) {
            Ok(scanned) => scanned,
            Err(e) => ScannedMember::leaf(name, GroupMember::Damaged(e.to_string())),
        }
    }

    fn object(&mut self, name: Vec<u8>, addr: u64, depth: usize) -> Result<ScannedMember, H5Error> {
        let id = ffi::open_object(self.referrer.file, addr)?;
        let attributes = self.attributes(&id)?;
        let member = describe::open_member(&id, addr, false, &mut self.memo)?;
        let mut members = None;
        if ffi::kind(&id) == ObjectKind::Group && depth > 0 && self.left > 0 {
            let (links, damage) = ffi::links(&id);
            let wanted = !attributes.is_empty() || links.len() <= SMALL_GROUP;
            if damage.is_none() && wanted && links.len() <= self.left && self.entered.insert(addr) {
                self.left -= links.len();
                let below = links.into_iter();
                members = Some(
                    below
                        .map(|(name, link)| self.member(name, link, depth - 1))
                        .collect(),
                );
            }
        }
        Ok(ScannedMember {
            name,
            member,
            attributes,
            members,
        })
    }
}
