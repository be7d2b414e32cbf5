//! A histogram that is made in one pass, of numbers whose range is not known beforehand.
//!
//! Bins are a power of two wide and begin at multiples of that. Where a number lies outside all bins, they become twice as
//! wide, two of them one, until it has a place: the counts stay exact, and the end is the same in whatever order the
//! numbers come.

use std::ops::Range;

/// Bins at most. All numbers in fewer than half as many could have narrower ones.
const MOST: usize = 24;

/// Numbers that can be counted in bins.
pub(super) trait Binned: Copy {
    /// The smallest exponent of a width.
    const FINEST: i32;

    /// Returns the bin of a width of `2^exponent`; `None` if its number is out of range.
    fn bin(self, exponent: i32) -> Option<i64>;

    /// Returns the smallest exponent worth trying for numbers of this size.
    fn finest(self) -> i32;
}

impl Binned for i64 {
    const FINEST: i32 = 0;

    fn bin(self, exponent: i32) -> Option<i64> {
        Some(self >> exponent.clamp(0, 63))
    }

    fn finest(self) -> i32 {
        Self::FINEST
    }
}

impl Binned for f64 {
    const FINEST: i32 = -1022;

    fn bin(self, exponent: i32) -> Option<i64> {
        let scaled = self * power(-exponent);
        // Bins of greater numbers hold one number each. Cut off and not rounded down, which is a call.
        let cut = scaled as i64;
        let bin = cut - i64::from(cut as f64 > scaled);
        (scaled.abs() <= 9_007_199_254_740_992.0).then_some(bin)
    }

    fn finest(self) -> i32 {
        let exponent = (self.to_bits() >> 52 & 0x7ff) as i32 - 1023;
        (exponent - 52).max(Self::FINEST)
    }
}

/// Returns a power of two; exactly, as long as a float has it.
pub(super) fn power(exponent: i32) -> f64 {
    match exponent {
        1024.. => f64::INFINITY,
        -1022..=1023 => f64::from_bits(((exponent + 1023) as u64) << 52),
        -1074..=-1023 => f64::from_bits(1 << (exponent + 1074)),
        _ => 0.0,
    }
}

/// Counts of numbers by bins.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    counts: [u64; MOST],
    /// The number of the first bin.
    first: i64,
    /// The bins are `2^exponent` wide; `None`: no number came yet.
    exponent: Option<i32>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: [0; MOST],
            first: 0,
            exponent: None,
        }
    }
}

impl Histogram {
    /// Counts finite numbers between `least` and `most`.
    pub(super) fn add<T: Binned>(&mut self, numbers: impl Iterator<Item = T>, least: T, most: T) {
        let exponent = self.cover(least, most);
        for number in numbers {
            self.count(number, exponent, 1);
        }
    }

    /// Counts one finite number several times.
    pub(super) fn add_many<T: Binned>(&mut self, number: T, count: u64) {
        let exponent = self.cover(number, number);
        self.count(number, exponent, count);
    }

    fn count<T: Binned>(&mut self, number: T, exponent: i32, count: u64) {
        let place = number
            .bin(exponent)
            .and_then(|bin| bin.checked_sub(self.first));
        let place = place.and_then(|place| usize::try_from(place).ok());
        if let Some(counted) = place.and_then(|place| self.counts.get_mut(place)) {
            *counted = counted.saturating_add(count);
        }
    }

    /// Makes room for the numbers from `least` to `most`. Returns the exponent of the width.
    fn cover<T: Binned>(&mut self, least: T, most: T) -> i32 {
        let known = self.exponent;
        let mut exponent = known.unwrap_or_else(|| least.finest().max(most.finest()));
        loop {
            // A wider bin of numbers that are counted has a number as they have.
            let shift = known.map_or(0, |known| exponent.abs_diff(known)).min(63);
            let own = known.map(|_| (self.first >> shift, self.last() >> shift));
            if let (Some(low), Some(high)) = (least.bin(exponent), most.bin(exponent)) {
                let (low, high) = match own {
                    Some((first, last)) => (low.min(first), high.max(last)),
                    None => (low, high),
                };
                if high.checked_sub(low).is_some_and(|wide| wide < MOST as i64) {
                    self.widen(low, shift);
                    self.exponent = Some(exponent);
                    return exponent;
                }
            }
            exponent += 1;
        }
    }

    /// Returns the number of the last bin that holds something.
    fn last(&self) -> i64 {
        let used = self.counts.iter().rposition(|&count| count > 0);
        self.first + used.unwrap_or(0) as i64
    }

    /// Makes `2^shift` bins one each, and the one of number `first` the first.
    fn widen(&mut self, first: i64, shift: u32) {
        let mut counts = [0_u64; MOST];
        for (place, &count) in self
            .counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
        {
            let new = usize::try_from(((self.first + place as i64) >> shift) - first);
            if let Some(counted) = new.ok().and_then(|new| counts.get_mut(new)) {
                *counted = counted.saturating_add(count);
            }
        }
        self.counts = counts;
        self.first = first;
    }

    /// Returns the counts from the first bin that holds something to the last.
    pub(super) fn counts(&self) -> &[u64] {
        &self.counts[self.used()]
    }

    fn used(&self) -> Range<usize> {
        let is_used = |&count: &u64| count > 0;
        match (
            self.counts.iter().position(is_used),
            self.counts.iter().rposition(is_used),
        ) {
            (Some(first), Some(last)) => first..last + 1,
            _ => 0..0,
        }
    }

    /// Returns the numbers of the bins' edges, one more than there are counts, and the exponent of their width.
    pub(super) fn edges(&self) -> (Vec<i128>, i32) {
        let used = self.used();
        let first = i128::from(self.first) + used.start as i128;
        let edges = (first..).take(used.len() + 1).collect();
        (edges, self.exponent.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn edges_of(histogram: &Histogram) -> Vec<f64> {
        let (edges, exponent) = histogram.edges();
        edges.iter().map(|&n| n as f64 * power(exponent)).collect()
    }

    fn of(numbers: &[f64], step: usize) -> Histogram {
        let mut histogram = Histogram::default();
        for some in numbers.chunks(step) {
            let least = some.iter().copied().fold(f64::INFINITY, f64::min);
            let most = some.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            histogram.add(some.iter().copied(), least, most);
        }
        histogram
    }

    #[test]
    fn numbers_of_any_size_are_counted() {
        let odd = [f64::MAX, -f64::MAX, 5e-324, 0.0, 1.0];
        for step in 1..=5 {
            let histogram = of(&odd, step);
            assert_eq!(histogram.counts().iter().sum::<u64>(), 5);
        }
        let mut integers = Histogram::default();
        integers.add([i64::MIN, 0, i64::MAX].into_iter(), i64::MIN, i64::MAX);
        integers.add_many(3_i64, u64::MAX);
        assert_eq!(integers.counts().len(), 16);
        assert_eq!(integers.edges().1, 60);
    }

    #[test]
    fn few_integers_have_a_bin_each() {
        let mut histogram = Histogram::default();
        histogram.add([3_i64, 5, 5].into_iter(), 3, 5);
        assert_eq!(
            (histogram.counts(), histogram.edges()),
            (&[1, 0, 2][..], (vec![3, 4, 5, 6], 0))
        );
    }

    proptest! {
        #[test]
        fn counts_are_exact_and_do_not_depend_on_steps(
            numbers in proptest::collection::vec(-1e6..1e6_f64, 1..200),
            step in 1..50_usize,
        ) {
            let histogram = of(&numbers, step);
            let edges = edges_of(&histogram);
            for (pair, &count) in edges.windows(2).zip(histogram.counts()) {
                let inside = numbers.iter().filter(|&&n| pair[0] <= n && n < pair[1]);
                prop_assert_eq!(inside.count() as u64, count);
            }
            prop_assert_eq!(histogram.counts().iter().sum::<u64>(), numbers.len() as u64);
            let at_once = of(&numbers, numbers.len());
            prop_assert_eq!(edges_of(&at_once), edges);
            let spread = numbers.iter().any(|n| (n - numbers[0]).abs() > 1e-3);
            prop_assert!(!spread || histogram.counts().len() > MOST / 2 - 1);
        }
    }
}
