//! The grouping of an array's elements: a permutation in which the elements of each group are consecutive, and the
//! position at which each group starts.

use crate::store::base::invalid;
use crate::store::encode::integers::Integers;
use npyfs_base::error::Result;

/// The most elements that are compared with their grouping: they are in memory then.
const MOST: usize = 16 << 20;

/// Checks that a grouping covers `len` elements, those of `of`.
pub fn check(len: u64, of: &str, permutation: &Integers, segments: &Integers) -> Result<()> {
    if permutation.len() != len {
        let all = permutation.len();
        let why = format!("permutation has {all} elements, {of} {len}");
        return Err(invalid(why));
    }
    within("permutation", permutation, len)?;
    check_starts(segments, len)
}

/// Checks that all values are indices of elements.
pub fn within(name: &str, array: &Integers, len: u64) -> Result<()> {
    array.each(|number, value| {
        if u64::try_from(value).is_ok_and(|value| value < len) {
            return Ok(());
        }
        let why = format!("{name}: number {number} is {value}, there are {len} elements");
        Err(invalid(why))
    })
}

/// Checks that starts do not decrease, and stay within the values.
pub(super) fn check_starts(segments: &Integers, len: u64) -> Result<()> {
    let mut before = 0;
    segments.each(|number, start| {
        if start < before || u64::try_from(start).is_ok_and(|start| start > len) {
            return Err(invalid(format!(
                "segment {number} is {start}, the one before {before}, there are {len} values"
            )));
        }
        before = start;
        Ok(())
    })
}

/// Returns whether the elements have this grouping: each occurs once in the permutation, and all elements of a group
/// are equal. `false` if there are too many of them to check.
pub fn fits(elements: &Integers, permutation: &Integers, segments: &Integers) -> Result<bool> {
    let Some(len) = usize::try_from(elements.len())
        .ok()
        .filter(|&len| len <= MOST)
    else {
        return Ok(false);
    };
    if check(len as u64, "", permutation, segments).is_err() {
        return Ok(false);
    }
    let mut values = vec![0; len];
    elements.read(0, &mut values)?;
    let mut starts = vec![0; usize::try_from(segments.len().min(len as u64 + 1)).unwrap_or(0)];
    segments.read(0, &mut starts)?;
    let mut seen = vec![false; len];
    let mut starts = starts.into_iter().peekable();
    let mut of_group = None;
    let mut good = true;
    permutation.each(|place, at| {
        while starts
            .next_if(|&start| u64::try_from(start).is_ok_and(|start| start <= place))
            .is_some()
        {
            of_group = None;
        }
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let (Some(value), Some(seen)) = (values.get(at), seen.get_mut(at)) else {
            good = false;
            return Ok(());
        };
        good &= !*seen && *of_group.get_or_insert(*value) == *value;
        *seen = true;
        Ok(())
    })?;
    Ok(good)
}
