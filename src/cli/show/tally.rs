//! The statistics of numbers and text in one pass and little memory: counts, least, greatest, mean and a histogram of
//! numbers; the distinct values of text.
//!
//! The range of the numbers is not known beforehand. So the bins of a histogram are a power of two wide and begin at
//! multiples of that. Where a number lies outside all bins, they become twice as wide, two of them one, until it has a
//! place: the counts stay exact, and the end is the same in whatever order the numbers come.

use std::collections::HashMap;
use std::ops::Range;

/// Numbers that are added up before their sum joins that of all.
const BLOCK: usize = 1024;

/// Sums that are kept side by side.
const LANES: usize = 8;

/// Values that are counted apart at most.
const MOST_DISTINCT: usize = 10_000;

/// Bytes of all values together at most.
const ROOM: usize = 16 << 20;

/// A sum of floats that keeps what rounding loses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    total: f64,
    lost: f64,
}

impl Sum {
    /// Adds a finite number.
    pub(super) fn add(&mut self, number: f64) {
        let total = self.total + number;
        self.lost += match self.total.abs() >= number.abs() {
            true => (self.total - total) + number,
            false => (number - total) + self.total,
        };
        self.total = total;
    }

    /// Adds numbers; those that are not finite do not count.
    fn add_all(&mut self, numbers: &[f64]) {
        for block in numbers.chunks(BLOCK) {
            let mut lanes = [0.0; LANES];
            let (rows, rest) = block.as_chunks::<LANES>();
            for row in rows {
                for (lane, &number) in lanes.iter_mut().zip(row) {
                    *lane += if number.is_finite() { number } else { 0.0 };
                }
            }
            for &number in lanes.iter().chain(rest) {
                if number.is_finite() {
                    self.add(number);
                }
            }
        }
    }

    /// Returns the sum.
    pub(super) fn value(self) -> f64 {
        let value = self.total + self.lost;
        // The rounding error of an infinite sum is NaN.
        if value.is_nan() { self.total } else { value }
    }
}

/// The statistics of floats.
#[derive(Clone, Debug, Default)]
pub(super) struct FloatTally {
    /// All of them.
    pub(super) count: u64,
    pub(super) nan: u64,
    pub(super) plus_infinity: u64,
    pub(super) minus_infinity: u64,
    pub(super) zeros: u64,
    /// The least and the greatest finite one.
    pub(super) ends: Option<(f64, f64)>,
    sum: Sum,
    pub(super) histogram: Histogram,
}

impl FloatTally {
    /// Adds numbers.
    pub(super) fn add(&mut self, numbers: &[f64]) {
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        let (mut nan, mut zeros, mut plus, mut minus) = (0_u64, 0_u64, 0_u64, 0_u64);
        for &number in numbers {
            nan += u64::from(number.is_nan());
            zeros += u64::from(number == 0.0);
            plus += u64::from(number == f64::INFINITY);
            minus += u64::from(number == f64::NEG_INFINITY);
            if number.is_finite() {
                least = least.min(number);
                most = most.max(number);
            }
        }
        self.count += numbers.len() as u64;
        self.nan += nan;
        self.zeros += zeros;
        self.plus_infinity += plus;
        self.minus_infinity += minus;
        if least <= most {
            self.extend(least, most);
            self.sum.add_all(numbers);
            let finite = numbers.iter().copied().filter(|n| n.is_finite());
            self.histogram.add(finite, least, most);
        }
    }

    /// Adds a number several times.
    pub(super) fn add_many(&mut self, number: f64, count: u64) {
        self.count = self.count.saturating_add(count);
        let counted = match number {
            n if n.is_nan() => &mut self.nan,
            f64::INFINITY => &mut self.plus_infinity,
            f64::NEG_INFINITY => &mut self.minus_infinity,
            finite => {
                self.extend(finite, finite);
                self.sum.add(finite * count as f64);
                self.histogram.add_many(finite, count);
                &mut self.zeros
            }
        };
        if number == 0.0 || !number.is_finite() {
            *counted = counted.saturating_add(count);
        }
    }

    fn extend(&mut self, least: f64, most: f64) {
        let (low, high) = self.ends.unwrap_or((least, most));
        self.ends = Some((low.min(least), high.max(most)));
    }

    /// Returns the least and the greatest number, infinite ones included; `None` if there is none.
    pub(super) fn range(&self) -> Option<(f64, f64)> {
        if self.count == self.nan {
            return None;
        }
        let least = match (self.minus_infinity, self.ends) {
            (1.., _) => f64::NEG_INFINITY,
            (0, Some((least, _))) => least,
            (0, None) => f64::INFINITY,
        };
        let most = match (self.plus_infinity, self.ends) {
            (1.., _) => f64::INFINITY,
            (0, Some((_, most))) => most,
            (0, None) => f64::NEG_INFINITY,
        };
        Some((least, most))
    }

    /// Returns the mean of all that are numbers; NaN if none is.
    pub(super) fn mean(&self) -> f64 {
        match (self.plus_infinity, self.minus_infinity) {
            (1.., 1..) => f64::NAN,
            (1.., 0) => f64::INFINITY,
            (0, 1..) => f64::NEG_INFINITY,
            (0, 0) => self.sum.value() / (self.count - self.nan) as f64,
        }
    }
}

/// The statistics of integers, and of times.
#[derive(Clone, Debug, Default)]
pub(super) struct IntegerTally {
    /// The difference of an integer and the number that stands for it: unsigned ones of 64 bits begin at the least
    /// number.
    pub(super) offset: i128,
    /// All of them.
    pub(super) count: u64,
    /// Times that are none.
    pub(super) nothing: u64,
    pub(super) zeros: u64,
    ends: Option<(i64, i64)>,
    sum: i128,
    pub(super) histogram: Histogram,
}

impl IntegerTally {
    /// Creates an empty one.
    pub(super) fn new(offset: i128) -> Self {
        Self {
            offset,
            ..Self::default()
        }
    }

    fn is_zero(&self, number: i64) -> bool {
        i128::from(number) == -self.offset
    }

    /// Adds integers by the numbers that stand for them.
    pub(super) fn add(&mut self, numbers: &[i64]) {
        let (mut least, mut most) = (i64::MAX, i64::MIN);
        let (mut sum, mut zeros) = (0_i128, 0_u64);
        for &number in numbers {
            least = least.min(number);
            most = most.max(number);
            sum += i128::from(number);
            zeros += u64::from(self.is_zero(number));
        }
        self.count += numbers.len() as u64;
        self.zeros += zeros;
        self.sum = self.sum.saturating_add(sum);
        if least <= most {
            self.extend(least, most);
            self.histogram.add(numbers.iter().copied(), least, most);
        }
    }

    /// Adds an integer several times.
    pub(super) fn add_many(&mut self, number: i64, count: u64) {
        self.count = self.count.saturating_add(count);
        if self.is_zero(number) {
            self.zeros = self.zeros.saturating_add(count);
        }
        let sum = i128::from(number).saturating_mul(i128::from(count));
        self.sum = self.sum.saturating_add(sum);
        self.extend(number, number);
        self.histogram.add_many(number, count);
    }

    /// Adds times that are none.
    pub(super) fn add_nothing(&mut self, count: u64) {
        self.count = self.count.saturating_add(count);
        self.nothing = self.nothing.saturating_add(count);
    }

    fn extend(&mut self, least: i64, most: i64) {
        let (low, high) = self.ends.unwrap_or((least, most));
        self.ends = Some((low.min(least), high.max(most)));
    }

    /// Returns the least and the greatest integer; `None` if there is none.
    pub(super) fn range(&self) -> Option<(i128, i128)> {
        let (least, most) = self.ends?;
        Some((
            i128::from(least) + self.offset,
            i128::from(most) + self.offset,
        ))
    }

    /// Returns the mean; NaN if there is no integer.
    pub(super) fn mean(&self) -> f64 {
        let count = i128::from(self.count - self.nothing);
        let sum = self.sum.saturating_add(self.offset.saturating_mul(count));
        sum as f64 / count as f64
    }
}

/// The distinct values of text and how often each occurs, as far as they fit into a little memory.
#[derive(Debug, Default)]
pub(super) struct Distinct {
    counts: HashMap<Box<[u8]>, u64>,
    bytes: usize,
    /// There are more values than are told apart.
    pub(super) has_more: bool,
}

impl Distinct {
    /// Counts a value, without the NULs at its end.
    pub(super) fn add(&mut self, value: &[u8], count: u64) {
        if let Some(counted) = self.counts.get_mut(value) {
            *counted = counted.saturating_add(count);
        } else if self.counts.len() < MOST_DISTINCT && self.bytes + value.len() <= ROOM {
            self.bytes += value.len();
            self.counts.insert(value.into(), count);
        } else {
            self.has_more = true;
        }
    }

    /// Returns how many values are told apart.
    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }

    /// Returns the values that occur most, the first `most` of them; of equals the smaller first.
    pub(super) fn most_frequent(&self, most: usize) -> Vec<(&[u8], u64)> {
        let mut all: Vec<(&[u8], u64)> = self
            .counts
            .iter()
            .map(|(value, &count)| (&**value, count))
            .collect();
        all.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
        all.truncate(most);
        all
    }
}

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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_number_is_counted_apart() {
        let mut tally = FloatTally::default();
        assert!(tally.range().is_none() && tally.mean().is_nan());
        tally.add(&[f64::NAN, 1.0, -0.0]);
        assert_eq!((tally.range(), tally.mean()), (Some((0.0, 1.0)), 0.5));
        tally.add_many(f64::INFINITY, 2);
        tally.add(&[f64::INFINITY]);
        assert_eq!(
            (tally.range(), tally.mean()),
            (Some((0.0, f64::INFINITY)), f64::INFINITY)
        );
        tally.add(&[f64::NEG_INFINITY]);
        assert!(tally.mean().is_nan());
        assert_eq!((tally.count, tally.nan, tally.zeros), (7, 1, 1));
        assert_eq!((tally.plus_infinity, tally.minus_infinity), (3, 1));
    }

    #[test]
    fn a_sum_past_all_floats_is_infinite() {
        let mut tally = FloatTally::default();
        tally.add(&[f64::MAX; 3]);
        assert_eq!(tally.mean(), f64::INFINITY);
    }

    #[test]
    fn integers_are_exact() {
        let mut tally = IntegerTally::default();
        tally.add(&[i64::MAX, i64::MAX, i64::MIN, 0]);
        tally.add_many(7, u64::MAX - 10);
        tally.add_nothing(6);
        assert_eq!((tally.count, tally.nothing, tally.zeros), (u64::MAX, 6, 1));
        assert_eq!(tally.range(), Some((i64::MIN.into(), i64::MAX.into())));
        assert_eq!(tally.mean(), 7.5);
        // Small unsigned integers are far from the number that stands for zero.
        let mut unsigned = IntegerTally::new(1 << 63);
        unsigned.add(&[i64::MIN, i64::MIN + 5, i64::MIN + 6]);
        assert_eq!((unsigned.range(), unsigned.zeros), (Some((0, 6)), 1));
        assert_eq!(unsigned.mean(), 11.0 / 3.0);
    }

    proptest! {
        #[test]
        fn numbers_may_come_in_any_portions(numbers in proptest::collection::vec(-1e3..1e3_f64, 1..100), step in 1..40_usize) {
            let mut tally = FloatTally::default();
            for part in numbers.chunks(step) {
                match part {
                    [one] => tally.add_many(*one, 1),
                    all => tally.add(all),
                }
            }
            let exact: f64 = numbers.iter().sum::<f64>() / numbers.len() as f64;
            prop_assert!((tally.mean() - exact).abs() <= 1e-12 * 1e3);
            prop_assert_eq!(tally.histogram.counts().iter().sum::<u64>(), numbers.len() as u64);
        }

        #[test]
        fn small_numbers_are_not_lost_beside_large_ones(count in 1..100_000_u64) {
            let mut sum = Sum::default();
            sum.add(1e16);
            for _ in 0..count % 100 {
                sum.add(1.0);
            }
            sum.add(-1e16);
            prop_assert_eq!(sum.value(), (count % 100) as f64);
        }
    }

    #[test]
    fn values_are_counted_up_to_a_limit() {
        let mut distinct = Distinct::default();
        for value in ["b", "a", "b", ""] {
            distinct.add(value.as_bytes(), 1);
        }
        assert_eq!((distinct.len(), distinct.has_more), (3, false));
        assert_eq!(distinct.most_frequent(2), [(&b"b"[..], 2), (&b""[..], 1)]);
        for number in 0..MOST_DISTINCT {
            distinct.add(number.to_string().as_bytes(), 1);
        }
        distinct.add(b"a", u64::MAX);
        assert_eq!((distinct.len(), distinct.has_more), (MOST_DISTINCT, true));
        assert_eq!(distinct.most_frequent(1), [(&b"a"[..], u64::MAX)]);
    }

    #[test]
    fn long_values_take_no_more_than_their_room() {
        let mut distinct = Distinct::default();
        for start in 0..40_u8 {
            distinct.add(&vec![start; 1 << 20], 1);
        }
        assert!(distinct.bytes <= ROOM && distinct.has_more && distinct.len() == 16);
    }

    fn edges_of(histogram: &Histogram) -> Vec<f64> {
        let (edges, exponent) = histogram.edges();
        edges.iter().map(|&n| n as f64 * power(exponent)).collect()
    }

    fn histogram_of(numbers: &[f64], step: usize) -> Histogram {
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
            let histogram = histogram_of(&odd, step);
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
            let histogram = histogram_of(&numbers, step);
            let edges = edges_of(&histogram);
            for (pair, &count) in edges.windows(2).zip(histogram.counts()) {
                let inside = numbers.iter().filter(|&&n| pair[0] <= n && n < pair[1]);
                prop_assert_eq!(inside.count() as u64, count);
            }
            prop_assert_eq!(histogram.counts().iter().sum::<u64>(), numbers.len() as u64);
            let at_once = histogram_of(&numbers, numbers.len());
            prop_assert_eq!(edges_of(&at_once), edges);
            let spread = numbers.iter().any(|n| (n - numbers[0]).abs() > 1e-3);
            prop_assert!(!spread || histogram.counts().len() > MOST / 2 - 1);
        }
    }
}
