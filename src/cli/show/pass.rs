//! One pass over elements of an array, a few at a time; those that were never written are not read one by one.

use std::ops::Range;
use std::sync::Arc;

use crate::cli::progress::Progress;
use npyfs_base::error::Result;
use npyfs_base::npy::parse::Header;
use npyfs_io::content::{Content, read};

/// Bytes that are read at a time, of elements that are not larger.
const STEP: usize = 4 << 20;

/// Bytes of elements that visitors get at a time: intermediate results stay in the processor's cache.
const BLOCK: usize = 256 << 10;

/// The fewest bytes of a repetition that are not read one by one, and the longest pattern of a repetition.
const WORTH: u64 = 1 << 20;

/// The largest elements that are looked at.
pub(super) const LARGEST: usize = 16 << 20;

/// A part of the work that is done in a pass.
pub(super) trait Visitor {
    /// Takes elements that follow each other; the first stands at the place `first` of the array.
    fn elements(&mut self, first: u64, bytes: &[u8]);

    /// Takes elements at these places, which repeat those of `pattern`.
    fn repeated(&mut self, places: Range<u64>, pattern: &[u8]);
}

/// Reads the elements at `places`, and shows them to the visitors in order.
pub(super) fn run(
    content: &dyn Content,
    header: &Header,
    places: Range<u64>,
    visitors: &mut [&mut dyn Visitor],
    progress: &Progress,
) -> Result<()> {
    let size = header.dtype.size() as u64;
    if size == 0 || places.is_empty() {
        return Ok(());
    }
    let pool = Arc::default();
    let step = (STEP as u64 / size).max(1);
    let block = (BLOCK as u64 / size).max(1) as usize * size as usize;
    let offset = |place: u64| header.start.saturating_add(place.saturating_mul(size));
    let mut at = places.start;
    while at < places.end {
        if let Some((end, period)) = repeating(content, offset(at), size) {
            let end = at.saturating_add(end / size).min(places.end);
            let pattern = read(content, offset(at), period, &pool)?;
            for visitor in &mut *visitors {
                visitor.repeated(at..end, pattern.as_ref());
            }
            at = end;
        } else {
            let end = at.saturating_add(step).min(places.end);
            let bytes = usize::try_from((end - at) * size).unwrap_or(usize::MAX);
            let data = read(content, offset(at), bytes, &pool)?;
            let mut first = at;
            for some in data.as_ref().chunks(block) {
                for visitor in &mut *visitors {
                    visitor.elements(first, some);
                }
                first += some.len() as u64 / size;
            }
            at = end;
        }
        progress.set((at - places.start).saturating_mul(size));
    }
    Ok(())
}

/// Returns for how many bytes from an offset on the elements repeat, and after how many; `None` where they do not for
/// long.
fn repeating(content: &dyn Content, offset: u64, size: u64) -> Option<(u64, usize)> {
    let (end, period) = content.repeats(offset)?;
    let len = end.saturating_sub(offset);
    let is_whole = period > 0 && period.is_multiple_of(size);
    let is_worth = len >= WORTH && period <= WORTH && len >= period;
    (is_whole && is_worth).then_some((len, usize::try_from(period).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_base::npy::dtype::DType;
    use npyfs_io::content::{Concat, InMemory};

    /// Numbers of which some repeat for long.
    struct Repeats(u64);

    impl Content for Repeats {
        fn len(&self) -> u64 {
            self.0
        }

        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
            for (byte, at) in buf.iter_mut().zip(offset..) {
                *byte = (at % 4) as u8;
            }
            Ok(())
        }

        fn repeats(&self, _: u64) -> Option<(u64, u64)> {
            Some((self.0, 4))
        }
    }

    #[derive(Default)]
    struct ShownFile(Vec<(u64, usize)>, Vec<(Range<u64>, Vec<u8>)>);

    impl Visitor for ShownFile {
        fn elements(&mut self, first: u64, bytes: &[u8]) {
            self.0.push((first, bytes.len()));
        }

        fn repeated(&mut self, places: Range<u64>, pattern: &[u8]) {
            self.1.push((places, pattern.to_vec()));
        }
    }

    #[test]
    fn what_repeats_is_read_once() {
        let all: Vec<Arc<dyn Content>> = vec![
            Arc::new(InMemory(vec![9; 20])),
            Arc::new(Repeats(1 << 62)),
            Arc::new(InMemory(vec![7; 6])),
        ];
        let header = Header {
            dtype: DType::int(2),
            shape: vec![],
            fortran_order: false,
            start: 10,
            len: 0,
        };
        let content = Concat::new(all);
        let mut seen = ShownFile::default();
        let progress = Progress::waiting("");
        run(
            &content,
            &header,
            2..(1 << 61) + 8,
            &mut [&mut seen],
            &progress,
        )
        .unwrap();
        let one_by_one: usize = seen.0.iter().map(|(_, len)| len / 2).sum();
        assert!(one_by_one <= STEP);
        let ((places, pattern), []) = seen.1.split_first().unwrap() else {
            panic!("{:?}", seen.1);
        };
        assert_eq!(places.end, (1 << 61) + 5);
        assert_eq!(places.end - places.start + one_by_one as u64, (1 << 61) + 6);
        assert_eq!(pattern.len(), 4);
        assert_eq!(seen.0.last(), Some(&((1 << 61) + 5, 6)));
    }
}
