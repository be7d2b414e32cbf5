//! Copies from what was decoded before: what the streams of lzf and BloscLZ have in common.

/// Copies `n` bytes to `at` from `distance` bytes before it; `None` if they begin before `out`, or do not fit.
/// A copy may run into itself: then it repeats.
pub fn copy(out: &mut [u8], at: usize, distance: usize, n: usize) -> Option<()> {
    let from = at.checked_sub(distance)?;
    let end = at.checked_add(n).filter(|&end| end <= out.len())?;
    match distance {
        0 => return None,
        1 => {
            let value = *out.get(from)?;
            out[at..end].fill(value);
        }
        _ if distance >= n => out.copy_within(from..from + n, at),
        _ => {
            for i in at..end {
                out[i] = out[i - distance];
            }
        }
    }
    Some(())
}
