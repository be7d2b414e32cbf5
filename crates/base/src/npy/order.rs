//! Conversion between the two element orders of `.npy`, in memory.

use ndarray::{ArrayView, ArrayViewMut, Axis, IxDyn, ShapeBuilder};

/// The number of elements copied at once: few enough for both sides to stay in the processor's cache.
const BLOCK: usize = 4096;

/// Copies elements of `size` bytes from an array in Fortran order to one in C order.
///
/// Returns `None` and copies nothing unless both buffers hold exactly the elements of `shape`.
pub fn to_c_order(shape: &[u64], size: usize, fortran: &[u8], c: &mut [u8]) -> Option<()> {
    let shape = shape.iter().map(|&n| usize::try_from(n).ok());
    let mut shape = shape.collect::<Option<Vec<_>>>()?;
    match size {
        1 => transpose::<1>(&shape, fortran, c),
        2 => transpose::<2>(&shape, fortran, c),
        4 => transpose::<4>(&shape, fortran, c),
        8 => transpose::<8>(&shape, fortran, c),
        16 => transpose::<16>(&shape, fortran, c),
        _ => {
            // The bytes of an element are one more axis, which stays the last.
            let mut axes: Vec<usize> = (1..=shape.len()).collect();
            axes.push(0);
            shape.insert(0, size);
            let from = ArrayView::from_shape(IxDyn(&shape).f(), fortran).ok()?;
            let from = from.permuted_axes(axes);
            let to = ArrayViewMut::from_shape(from.raw_dim(), c).ok()?;
            copy(to, from);
            Some(())
        }
    }
}

/// Copies elements of `N` bytes.
fn transpose<const N: usize>(shape: &[usize], fortran: &[u8], c: &mut [u8]) -> Option<()> {
    let (from, []) = fortran.as_chunks::<N>() else {
        return None;
    };
    let (to, []) = c.as_chunks_mut::<N>() else {
        return None;
    };
    let from = ArrayView::from_shape(IxDyn(shape).f(), from).ok()?;
    let to = ArrayViewMut::from_shape(IxDyn(shape), to).ok()?;
    copy(to, from);
    Some(())
}

/// Copies between views of one shape, in blocks.
fn copy<T: Copy>(mut to: ArrayViewMut<'_, T, IxDyn>, from: ArrayView<'_, T, IxDyn>) {
    let longest = (0..to.ndim()).map(Axis).max_by_key(|&axis| to.len_of(axis));
    match longest {
        Some(axis) if to.len() > BLOCK => {
            let half = to.len_of(axis) / 2;
            let (to, to_behind) = to.split_at(axis, half);
            let (from, from_behind) = from.split_at(axis, half);
            copy(to, from);
            copy(to_behind, from_behind);
        }
        _ => to.assign(&from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npy::parse::parse;
    use ndarray::Array;
    use ndarray_npy::WriteNpyExt;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Returns the position in Fortran order of the element at position `place` in C order.
    fn fortran_place(shape: &[u64], mut place: usize) -> usize {
        let mut index = Vec::new();
        for &n in shape.iter().rev() {
            index.push(place % n as usize);
            place /= n as usize;
        }
        let axes = index.iter().zip(shape.iter().rev());
        axes.fold(0, |at, (&i, &n)| at * n as usize + i)
    }

    proptest! {
        #[test]
        fn every_element_gets_to_its_place(shape in vec(1_u64..30, 0..4), size in 1_usize..18) {
            let count = shape.iter().product::<u64>() as usize;
            let fortran: Vec<u8> = (0..count * size).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut c = vec![0; fortran.len()];
            prop_assert_eq!(to_c_order(&shape, size, &fortran, &mut c), Some(()));
            for (place, element) in c.chunks_exact(size).enumerate() {
                let at = fortran_place(&shape, place) * size;
                prop_assert_eq!(element, &fortran[at..at + size]);
            }
        }

        /// Files that ndarray-npy writes in Fortran order are converted correctly.
        #[test]
        fn files_of_others_are_turned(shape in vec(2_usize..12, 2..4)) {
            let count = shape.iter().product::<usize>();
            let numbers: Vec<i32> = (0..count as i32).collect();
            let array = Array::from_shape_vec(IxDyn(&shape).f(), numbers).unwrap();
            let mut file = Vec::new();
            array.write_npy(&mut file).unwrap();
            let header = parse(&file).unwrap();
            prop_assert!(header.fortran_order);
            let payload = &file[header.start as usize..];
            let mut c = vec![0; payload.len()];
            to_c_order(&header.shape, header.dtype.size(), payload, &mut c).unwrap();
            let want: Vec<u8> = array.iter().flat_map(|n| n.to_le_bytes()).collect();
            prop_assert_eq!(c, want);
        }
    }

    #[test]
    fn what_does_not_fit_the_shape_is_refused() {
        for size in [1, 2, 3, 4, 8, 16, 60] {
            let fortran = vec![0; 6 * size];
            let short = 6 * size - 1;
            assert!(to_c_order(&[2, 3], size, &fortran, &mut vec![0; short]).is_none());
            assert!(to_c_order(&[2, 3], size, &fortran[..short], &mut vec![0; 6 * size]).is_none());
            assert!(to_c_order(&[2, 4], size, &fortran, &mut vec![0; 6 * size]).is_none());
            assert!(to_c_order(&[u64::MAX, 3], size, &fortran, &mut vec![0; 6 * size]).is_none());
            assert!(to_c_order(&[0, 3], size, &[], &mut []).is_some());
        }
    }
}
