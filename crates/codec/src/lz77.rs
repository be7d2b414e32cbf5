//! Literals, and copies from the output so far: common code for the streams of lzf and BloscLZ.
//!
//! Where there is room, both are moved in steps of a fixed size. The excess bytes are overwritten by the next step;
//! near the end of a buffer exact copies are made, so no wrong bytes remain.

/// Bytes of a step.
const STEP: usize = 16;

/// Moves `n` literals from the front of `stream` to `at`; returns the rest of the stream. `None` if there are fewer
/// literals, or no room for them.
#[inline(always)]
pub(super) fn literals<'a>(
    stream: &'a [u8],
    out: &mut [u8],
    at: usize,
    n: usize,
) -> Option<&'a [u8]> {
    const LONGEST: usize = 32;
    let place = out.get_mut(at..)?;
    if n <= LONGEST
        && let Some(literals) = stream.first_chunk::<LONGEST>()
        && let Some(place) = place.first_chunk_mut::<LONGEST>()
    {
        *place = *literals;
        return stream.get(n..);
    }
    let (literals, rest) = stream.split_at_checked(n)?;
    place.get_mut(..n)?.copy_from_slice(literals);
    Some(rest)
}

/// Copies `n` bytes to `at` from `distance` bytes before it; `None` if they begin before `out` or do not fit. A copy
/// may overlap itself: then it repeats.
#[inline(always)]
pub(super) fn copy(out: &mut [u8], at: usize, distance: usize, n: usize) -> Option<()> {
    let from = at.checked_sub(distance)?;
    let end = at.checked_add(n).filter(|&end| end <= out.len())?;
    let room = end.checked_add(STEP).is_some_and(|end| end <= out.len());
    if distance >= STEP && room {
        let mut done = 0;
        while done < n {
            let step: [u8; STEP] = *out.get(from + done..)?.first_chunk()?;
            *out.get_mut(at + done..)?.first_chunk_mut()? = step;
            done += STEP;
        }
    } else if distance == 1 {
        let value = *out.get(from)?;
        if n <= STEP && room {
            *out.get_mut(at..)?.first_chunk_mut()? = [value; STEP];
        } else {
            out[at..end].fill(value);
        }
    } else if distance >= n {
        out.copy_within(from..from + n, at);
    } else {
        for i in at..end {
            out[i] = out[i - distance];
        }
    }
    (distance > 0).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compared with a copy byte by byte; bytes after the copy are ignored.
        #[test]
        fn copies_repeat_what_was_decoded(
            start in proptest::collection::vec(any::<u8>(), 1..60),
            distance in 0_usize..70,
            n in 0_usize..90,
            room in 0_usize..120,
        ) {
            let at = start.len();
            let mut out = start.clone();
            out.resize(at + room, 0);
            let fits = (1..=at).contains(&distance) && n <= room;
            prop_assert_eq!(copy(&mut out, at, distance, n).is_some(), fits);
            if fits {
                let mut want = start;
                for i in at..at + n {
                    want.push(want[i - distance]);
                }
                prop_assert_eq!(&out[..at + n], want);
            }
        }

        #[test]
        fn literals_are_taken_if_there_are_so_many(
            stream in proptest::collection::vec(any::<u8>(), 0..80),
            n in 0_usize..60,
            room in 0_usize..80,
        ) {
            let mut out = vec![0; 3 + room];
            let rest = literals(&stream, &mut out, 3, n);
            prop_assert_eq!(rest.is_some(), n <= stream.len() && n <= room);
            if let Some(rest) = rest {
                prop_assert_eq!(rest, &stream[n..]);
                prop_assert_eq!(&out[3..3 + n], &stream[..n]);
            }
        }
    }
}
