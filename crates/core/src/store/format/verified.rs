//! Results of checking a store by the means of its format.

use std::collections::BTreeMap;

/// Hears what goes on while a store is checked.
pub trait VerifyReport: Send + Sync {
    /// Says that this many more objects are to be checked.
    fn found(&self, count: u64);

    /// Says that one was checked.
    fn checked(&self);

    /// Says of one that it is not what it should be.
    fn wrong(&self, why: &str);
}

/// Counts of what was checked, and of what could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// The number of objects of each kind, by its plural.
    pub counts: Vec<(&'static str, u64)>,
    /// Bytes of all of them.
    pub bytes: u64,
    /// The number of objects that were not here, by what is said of them behind the number.
    pub absent: BTreeMap<&'static str, u64>,
}

impl std::ops::AddAssign for Verified {
    fn add_assign(&mut self, other: Self) {
        for (kind, count) in other.counts {
            match self.counts.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, sum)) => *sum += count,
                None => self.counts.push((kind, count)),
            }
        }
        self.bytes += other.bytes;
        for (why, count) in other.absent {
            *self.absent.entry(why).or_default() += count;
        }
    }
}
