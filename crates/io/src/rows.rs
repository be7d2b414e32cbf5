//! Contents that are computed from other contents, one window of rows at a time.

use std::sync::Arc;

use crate::content::Content;
use npyfs_base::error::Result;

/// The most bytes of a window.
const WINDOW: usize = 256 << 10;

/// Bytes that a pass over a whole content reads at once.
pub const STEP: usize = 1 << 20;

/// Fills `buf` with the bytes at `offset` of rows of `size` bytes each. `make` is called with the number of the first
/// row and a buffer for whole rows.
pub fn in_rows(
    size: usize,
    offset: u64,
    buf: &mut [u8],
    mut make: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let size64 = size.max(1) as u64;
    let most = (WINDOW / size.max(1)).max(1) * size;
    let mut edge = Vec::new();
    let mut done = 0;
    while done < buf.len() {
        let at = offset + done as u64;
        // Smaller than a row, whose size is a usize.
        let skip = (at % size64) as usize;
        let left = &mut buf[done..];
        let whole = left.len().min(most) / size * size;
        if skip == 0 && whole > 0 {
            make(at / size64, &mut left[..whole])?;
            done += whole;
        } else {
            edge.resize(size, 0);
            make(at / size64, &mut edge)?;
            let n = left.len().min(size - skip);
            left[..n].copy_from_slice(&edge[skip..skip + n]);
            done += n;
        }
    }
    Ok(())
}

/// The elements of another content, each converted.
pub struct Converted<F> {
    inner: Arc<dyn Content>,
    /// Bytes of an element before and after the conversion.
    from: usize,
    to: usize,
    /// Converts a window of elements.
    convert: F,
}

impl<F: Fn(&[u8], &mut [u8]) + Send + Sync> Converted<F> {
    /// Creates a content that converts elements of `from` bytes in `inner` to elements of `to` bytes with `convert`.
    pub fn new(inner: Arc<dyn Content>, from: usize, to: usize, convert: F) -> Self {
        Self {
            inner,
            from: from.max(1),
            to: to.max(1),
            convert,
        }
    }
}

impl<F: Fn(&[u8], &mut [u8]) + Send + Sync> Content for Converted<F> {
    fn len(&self) -> u64 {
        self.inner.len() / self.from as u64 * self.to as u64
    }

    fn is_costly(&self) -> bool {
        self.inner.is_costly()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut source = Vec::new();
        in_rows(self.to, offset, buf, |first, rows| {
            source.resize(rows.len() / self.to * self.from, 0);
            self.inner.read_at(first * self.from as u64, &mut source)?;
            (self.convert)(&source, rows);
            Ok(())
        })
    }
}

/// Reads the next bytes of a content: as many as `buf` holds or remain.
pub fn read_window<'a>(content: &dyn Content, at: u64, buf: &'a mut [u8]) -> Result<&'a [u8]> {
    let left = usize::try_from(content.len().saturating_sub(at)).unwrap_or(usize::MAX);
    let len = left.min(buf.len());
    let window = &mut buf[..len];
    content.read_at(at, window)?;
    Ok(window)
}

/// Splits bytes into little-endian 64-bit integers.
pub fn words(bytes: &[u8]) -> impl DoubleEndedIterator<Item = i64> + '_ {
    // Chunks are exactly 8 bytes long.
    bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|bytes| i64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::{InMemory, read};
    use proptest::prelude::*;

    #[test]
    fn every_offset_gives_the_converted_bytes() {
        let source: Vec<u8> = (0..40).collect();
        let wide = Converted::new(Arc::new(InMemory(source)), 1, 3, |from, to| {
            for (byte, three) in from.iter().zip(to.chunks_exact_mut(3)) {
                three.fill(*byte);
            }
        });
        let want: Vec<u8> = (0..120).map(|i| i / 3).collect();
        assert_eq!(wide.len(), 120);
        for start in 0..120 {
            for len in [1, 2, 3, 7, 50] {
                let got = read(&wide, start as u64, len, &Arc::default()).unwrap();
                assert_eq!(got.as_ref(), &want[start..(start + len).min(120)]);
            }
        }
    }

    proptest! {
        #[test]
        fn windows_join(size in 1_usize..400_000, offset in 0_u64..1_000_000, len in 0_usize..1_000_000) {
            let mut buf = vec![0; len];
            in_rows(size, offset, &mut buf, |first, rows| {
                for (i, byte) in rows.iter_mut().enumerate() {
                    *byte = ((first * size as u64 + i as u64) % 251) as u8;
                }
                Ok(())
            }).unwrap();
            prop_assert!(buf.iter().zip(offset..).all(|(&byte, at)| u64::from(byte) == at % 251));
        }
    }
}
