//! Bytes of elements in memory: a repeated value, a part of a block, and a hyperslab copied from one array into
//! another.
//!
//! A hyperslab is a box of an N-dimensional array. Pure arithmetic on bytes: no I/O.

use npyfs_base::error::{Error, ErrorKind, Result};

/// Fills `buf` with the endless repetition of `pattern`, from `offset` on.
pub(super) fn repeat(pattern: &[u8], offset: u64, buf: &mut [u8]) {
    if pattern.iter().all(|&b| b == 0) {
        buf.fill(0);
        return;
    }
    let len = pattern.len();
    // A remainder is smaller than the length, which is a usize.
    let skip = (offset % len as u64) as usize;
    for (i, byte) in buf.iter_mut().enumerate() {
        *byte = pattern[(skip + i % len) % len];
    }
}

/// Returns `len` bytes of a block from `at` on; fails if the block is too short.
pub(super) fn slice(block: &[u8], at: u64, len: usize) -> Result<&[u8]> {
    let at = usize::try_from(at).map_err(|_| short())?;
    at.checked_add(len)
        .and_then(|end| block.get(at..end))
        .ok_or_else(short)
}

/// Returns the error for a block that is shorter than its dataset's shape requires.
pub(super) fn short() -> Error {
    Error::new(ErrorKind::Damaged, "fewer bytes than the shape needs")
}

/// An array in C order, without its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlabPlace<'a> {
    /// The dimensions of the array.
    pub(super) shape: &'a [u64],
    /// The coordinates of the hyperslab's first element.
    pub(super) start: &'a [u64],
}

/// Copies a hyperslab of `count` elements of `element` bytes from one array to another.
///
/// The hyperslab must lie inside both; otherwise returns `None`, and copies nothing outside of it.
pub(super) fn copy_hyperslab(
    source: &[u8],
    from: SlabPlace<'_>,
    target: &mut [u8],
    to: SlabPlace<'_>,
    count: &[u64],
    element: u64,
) -> Option<()> {
    // Dimensions that the hyperslab spans in both arrays are merged into the run.
    let mut run = element;
    let mut outer = count.len();
    while let Some(k) = outer.checked_sub(1) {
        run = run.checked_mul(count[k])?;
        outer = k;
        if count[k] != from.shape[k] || count[k] != to.shape[k] {
            break;
        }
    }
    if count.contains(&0) {
        return Some(());
    }
    let len = usize::try_from(run).ok()?;
    let offset = |place: SlabPlace<'_>, index: &[u64]| {
        (0..place.shape.len())
            .try_fold(0_u64, |at, k| {
                let i = place.start[k] + index.get(k).copied().unwrap_or(0);
                at.checked_mul(place.shape[k])?.checked_add(i)
            })
            .and_then(|at| usize::try_from(at.checked_mul(element)?).ok())
    };
    let mut index = vec![0_u64; outer];
    loop {
        let (a, b) = (offset(from, &index)?, offset(to, &index)?);
        let bytes = source.get(a..a.checked_add(len)?)?;
        target
            .get_mut(b..b.checked_add(len)?)?
            .copy_from_slice(bytes);
        let mut k = outer;
        loop {
            let Some(next) = k.checked_sub(1) else {
                return Some(());
            };
            k = next;
            index[k] += 1;
            if index[k] < count[k] {
                break;
            }
            index[k] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fill_values_repeat_from_any_offset() {
        let mut buf = [0; 7];
        repeat(b"abc", 2, &mut buf);
        assert_eq!(&buf, b"cabcabc");
        repeat(&[0, 0], 5, &mut buf);
        assert_eq!(buf, [0; 7]);
    }

    proptest! {
        #[test]
        fn every_element_arrives(
            dims in proptest::collection::vec((1_u64..5, 0_u64..3, 0_u64..3, 0_u64..3, 0_u64..3), 0..4),
            element in 1_u64..4,
        ) {
            let count: Vec<_> = dims.iter().map(|d| d.0).collect();
            let (a0, a): (Vec<_>, Vec<_>) = dims.iter().map(|d| (d.1, d.0 + d.1 + d.2)).unzip();
            let (b0, b): (Vec<_>, Vec<_>) = dims.iter().map(|d| (d.3, d.0 + d.3 + d.4)).unzip();
            let size = |shape: &[u64]| (shape.iter().product::<u64>() * element) as usize;
            let source: Vec<u8> = (0..size(&a)).map(|i| (i % 251) as u8 + 1).collect();
            let mut target = vec![0; size(&b)];
            let (from, to) = (SlabPlace { shape: &a, start: &a0 }, SlabPlace { shape: &b, start: &b0 });
            copy_hyperslab(&source, from, &mut target, to, &count, element).unwrap();
            let mut copied = 0;
            let mut index = vec![0; count.len()];
            'all: loop {
                let at = |place: SlabPlace<'_>| {
                    (0..count.len()).fold(0, |n, k| n * place.shape[k] + place.start[k] + index[k])
                };
                let (i, j) = ((at(from) * element) as usize, (at(to) * element) as usize);
                prop_assert_eq!(&source[i..i + element as usize], &target[j..j + element as usize]);
                copied += element as usize;
                for k in (0..count.len()).rev() {
                    index[k] += 1;
                    if index[k] < count[k] { continue 'all; }
                    index[k] = 0;
                }
                break;
            }
            prop_assert_eq!(target.iter().filter(|&&byte| byte != 0).count(), copied);
        }
    }
}
