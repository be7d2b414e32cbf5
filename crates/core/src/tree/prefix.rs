//! Entries of sorted maps by the beginning of their keys: what lies below a path.

use std::collections::BTreeMap;
use std::ops::Bound;

/// Returns the entries whose keys begin with a prefix, in order.
pub fn entries<K: Ord + AsRef<[u8]>, V>(
    of: &BTreeMap<K, V>,
    prefix: K,
) -> impl Iterator<Item = (&K, &V)> {
    of.range((Bound::Included(&prefix), Bound::Unbounded))
        .take_while(move |(key, _)| key.as_ref().starts_with(prefix.as_ref()))
}

/// Removes the entries whose keys begin with a prefix.
pub fn remove<K: Ord + Clone + AsRef<[u8]>, V>(from: &mut BTreeMap<K, V>, prefix: K) {
    let gone: Vec<K> = entries(from, prefix).map(|(key, _)| key.clone()).collect();
    for key in gone {
        from.remove(&key);
    }
}
