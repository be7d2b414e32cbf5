//! Byte operations that the compiler vectorizes for the widest registers of the CPU.
//!
//! The code is plain Rust, compiled twice on x86-64: for the baseline CPU, and for AVX2. There are no intrinsics; on
//! other machines there is one version.

#![allow(unsafe_code)]

/// A computation worth compiling twice. `run` and the functions it calls must be `#[inline(always)]`; otherwise they
/// are compiled once.
pub(super) trait Work {
    fn run(self);
}

/// Runs `work` as compiled for AVX2, if the CPU has it.
pub(super) fn wide(work: impl Work) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has AVX2, the only requirement of the function.
        return unsafe { with_avx2(work) };
    }
    work.run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2(work: impl Work) {
    work.run();
}

/// Planes of equal length, interleaved into `out`, which is as long as all of them.
pub(super) struct Weave<'a, const N: usize> {
    /// The planes: plane `i` holds byte `i` of each element.
    pub planes: [&'a [u8]; N],
    /// The elements.
    pub out: &'a mut [u8],
}

impl<const N: usize> Work for Weave<'_, N> {
    #[inline(always)]
    fn run(self) {
        // A single length known to the compiler avoids bounds checks for each byte.
        let count = self.out.len() / N;
        weave::<N>(self.planes.map(|plane| &plane[..count]), self.out);
    }
}

/// Interleaves planes of equal length: the first bytes of all, then the second ones, and so on.
#[inline(always)]
pub(super) fn weave<const N: usize>(planes: [&[u8]; N], out: &mut [u8]) {
    /// A number of elements that fills vector registers.
    const BLOCK: usize = 32;
    let mut at = 0;
    let mut blocks = out.chunks_exact_mut(BLOCK * N);
    for block in &mut blocks {
        let rows = planes.map(|plane| &plane[at..at + BLOCK]);
        for i in 0..BLOCK {
            for (byte, row) in rows.iter().enumerate() {
                block[i * N + byte] = row[i];
            }
        }
        at += BLOCK;
    }
    for (i, element) in blocks.into_remainder().chunks_exact_mut(N).enumerate() {
        for (value, plane) in element.iter_mut().zip(&planes) {
            *value = plane[at + i];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn both<const N: usize>(bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let count = bytes.len() / N;
        let planes: [&[u8]; N] = std::array::from_fn(|plane| &bytes[plane * count..][..count]);
        let mut woven = vec![0; count * N];
        wide(Weave::<N> {
            planes,
            out: &mut woven,
        });
        let plain = (0..count)
            .flat_map(|i| planes.map(|plane| plane[i]))
            .collect();
        (woven, plain)
    }

    proptest! {
        #[test]
        fn planes_are_woven_as_byte_by_byte(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            for (woven, plain) in [both::<1>(&bytes), both::<2>(&bytes), both::<4>(&bytes), both::<8>(&bytes), both::<16>(&bytes)] {
                prop_assert_eq!(woven, plain);
            }
        }
    }
}
