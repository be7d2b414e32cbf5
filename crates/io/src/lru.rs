//! A map with weighted values and a bound on the sum of their weights.
//!
//! The map evicts nothing by itself: the owner removes excess values one at a time, least recently used first, and may
//! count them or stop early. The weight of a value is given on insertion and does not change. No locks.

use std::borrow::Borrow;
use std::hash::Hash;

use lru::LruCache;

/// A weighted LRU map.
pub struct WeightedLru<K: Hash + Eq, V> {
    entries: LruCache<K, (V, u64)>,
    /// The sum of the weights in `entries`.
    weight: u64,
    bound: u64,
}

impl<K: Hash + Eq, V> WeightedLru<K, V> {
    /// Creates an empty map; the sum of weights should not exceed `bound`.
    pub fn new(bound: u64) -> Self {
        Self {
            entries: LruCache::unbounded(),
            weight: 0,
            bound,
        }
    }

    /// Returns the sum of the weights.
    pub fn weight(&self) -> u64 {
        self.weight
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if the key has a value; does not count as a use.
    pub fn contains<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.entries.contains(key)
    }

    /// Returns the value of a key and marks it as the most recently used one.
    pub fn get<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.entries.get_mut(key).map(|(value, _)| value)
    }

    /// Inserts a value as the most recently used one, and returns the key's previous value.
    pub fn put(&mut self, key: K, value: V, weight: u64) -> Option<V> {
        let old = self.entries.put(key, (value, weight));
        let old = old.map(|entry| self.lighter(entry));
        // Weights measure objects in memory: their sum is far below 2^64.
        self.weight += weight;
        old
    }

    /// Removes the value of a key.
    pub fn pop<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let entry = self.entries.pop(key)?;
        Some(self.lighter(entry))
    }

    /// Removes the least recently used value.
    pub fn pop_oldest(&mut self) -> Option<V> {
        let (_, entry) = self.entries.pop_lru()?;
        Some(self.lighter(entry))
    }

    /// Removes the least recently used value if the weights and `beside`, which the owner needs for something else,
    /// exceed the bound.
    pub fn pop_excess(&mut self, beside: u64) -> Option<V> {
        if self.weight.saturating_add(beside) <= self.bound {
            return None;
        }
        self.pop_oldest()
    }

    /// Iterates over the values, the most recently used one first; does not count as a use.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.iter().map(|(_, (value, _))| value)
    }

    fn lighter(&mut self, (value, weight): (V, u64)) -> V {
        self.weight -= weight;
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut map = WeightedLru::new(30);
        for key in 0..3 {
            assert_eq!(map.put(key, key * 10, 10), None);
        }
        assert_eq!(map.pop_excess(0), None);
        assert_eq!(map.get(&0).copied(), Some(0));
        assert!(map.contains(&1), "looking without use");
        assert_eq!(map.pop_excess(1), Some(10));
        map.put(3, 30, 11);
        assert_eq!(map.pop_excess(0), Some(20));
        assert_eq!(map.values().copied().collect::<Vec<_>>(), [30, 0]);
    }

    #[test]
    fn a_value_heavier_than_the_bound_goes_when_its_owner_says_so() {
        let mut map = WeightedLru::new(10);
        map.put("small", 1, 5);
        map.put("large", 2, 50);
        assert_eq!((map.len(), map.weight()), (2, 55));
        assert_eq!(map.pop_excess(0), Some(1));
        assert_eq!(map.pop_excess(0), Some(2));
        assert_eq!(map.pop_excess(0), None);
        assert_eq!(map.pop_excess(u64::MAX), None);
        assert_eq!((map.len(), map.weight()), (0, 0));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Put(u8, u64),
        Get(u8),
        Pop(u8),
        Shrink(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = 0..8_u8;
        prop_oneof![
            (key.clone(), 0..40_u64).prop_map(|(key, weight)| Step::Put(key, weight)),
            key.clone().prop_map(Step::Get),
            key.prop_map(Step::Pop),
            (0..120_u64).prop_map(Step::Shrink),
        ]
    }

    proptest! {
        /// The model is a list, least recently used first.
        #[test]
        fn it_does_what_a_list_does(steps in vec(step(), 0..60)) {
            const BOUND: u64 = 100;
            let mut map = WeightedLru::new(BOUND);
            let mut list: Vec<(u8, u64)> = Vec::new();
            let take = |list: &mut Vec<(u8, u64)>, key: u8| {
                let at = list.iter().position(|(k, _)| *k == key)?;
                Some(list.remove(at))
            };
            for step in steps {
                match step {
                    Step::Put(key, weight) => {
                        let old = take(&mut list, key);
                        list.push((key, weight));
                        prop_assert_eq!(map.put(key, (key, weight), weight), old);
                    }
                    Step::Get(key) => {
                        let found = take(&mut list, key);
                        list.extend(found);
                        prop_assert_eq!(map.get(&key).copied(), found);
                    }
                    Step::Pop(key) => prop_assert_eq!(map.pop(&key), take(&mut list, key)),
                    Step::Shrink(beside) => {
                        while let Some(gone) = map.pop_excess(beside) {
                            prop_assert_eq!(gone, list.remove(0));
                        }
                        let sum: u64 = list.iter().map(|(_, weight)| weight).sum();
                        prop_assert!(list.is_empty() || sum + beside <= BOUND);
                    }
                }
                let sum: u64 = list.iter().map(|(_, weight)| weight).sum();
                prop_assert_eq!((map.weight(), map.len()), (sum, list.len()));
                prop_assert!(map.values().eq(list.iter().rev()));
            }
        }
    }
}
