//! Strings that are padded to a common width while they are read.

use std::sync::Arc;

use npyfs_base::error::{Error, Result};
use npyfs_io::content::Content;
use npyfs_io::provenance::Provenance;
use npyfs_io::rows::words;

/// Strings in rows of `width` bytes, padded with zeros.
pub(super) struct Padded {
    /// One 64-bit integer per row.
    pub starts: Arc<dyn Content>,
    pub values: Arc<dyn Content>,
    pub width: u64,
    pub rows: u64,
}

/// The number of rows whose starts are read together.
const ROWS: u64 = 16 << 10;

/// Bytes of values that are read together.
const SPAN: u64 = 1 << 20;

impl Padded {
    /// Returns the start of each row from `first` on, and the end of the last one.
    fn starts(&self, first: u64, count: u64) -> Result<Vec<u64>> {
        let with_end = (count + 1).min(self.rows - first);
        let mut bytes = vec![0; usize::try_from(8 * with_end).unwrap_or(0)];
        self.starts.read_at(8 * first, &mut bytes)?;
        let mut starts: Vec<u64> = words(&bytes).map(i64::cast_unsigned).collect();
        if with_end == count {
            starts.push(self.values.len());
        }
        // They were checked by the measuring pass, but the file may have changed since.
        let in_order = starts.windows(2).all(|pair| pair[0] < pair[1])
            && starts.last().is_none_or(|&end| end <= self.values.len())
            && starts
                .windows(2)
                .all(|pair| pair[1] - pair[0] - 1 <= self.width);
        if !in_order {
            return Err(Error::damaged(
                "segments are not what they were when they were measured",
            ));
        }
        Ok(starts)
    }
}

impl Content for Padded {
    fn len(&self) -> u64 {
        self.rows.saturating_mul(self.width)
    }

    fn is_costly(&self) -> bool {
        self.starts.is_costly() || self.values.is_costly()
    }

    fn tell_provenance(&self, to: &mut Provenance) -> bool {
        to.numbers("padded", &[self.rows, self.width]);
        self.starts.tell_provenance(to) && self.values.tell_provenance(to)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut values = Vec::new();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let row = at / self.width;
            let end = (offset + buf.len() as u64)
                .div_ceil(self.width)
                .min(self.rows);
            let starts = self.starts(row, (end - row).min(ROWS))?;
            let mut skip = at % self.width;
            let mut i = 0;
            while i + 1 < starts.len() && done < buf.len() {
                // As many rows as fit into one window of values; of a longer row only the requested part.
                let from = starts[i];
                let n = starts[i + 1..]
                    .partition_point(|&end| end - from <= SPAN)
                    .max(1);
                let last = starts[i + n];
                if last - from > SPAN {
                    let len = last - 1 - from;
                    let room = usize::try_from(self.width - skip).unwrap_or(usize::MAX);
                    let out = &mut buf[done..];
                    let room = room.min(out.len());
                    let out = &mut out[..room];
                    let there = usize::try_from(len.saturating_sub(skip)).unwrap_or(usize::MAX);
                    let (text, rest) = out.split_at_mut(there.min(room));
                    if !text.is_empty() {
                        self.values.read_at(from + skip, text)?;
                    }
                    rest.fill(0);
                    done += room;
                } else {
                    // At most SPAN.
                    values.resize((last - from) as usize, 0);
                    self.values.read_at(from, &mut values)?;
                    done += pad(
                        &values,
                        &starts[i..=i + n],
                        self.width,
                        skip,
                        &mut buf[done..],
                        row + i as u64,
                    )?;
                }
                skip = 0;
                i += n;
            }
        }
        Ok(())
    }
}

/// Writes rows: `starts` has one more element than there are rows, and `values` begins at the first row. The first
/// `skip` bytes of the first row are left out. Returns the number of bytes written.
fn pad(
    values: &[u8],
    starts: &[u64],
    width: u64,
    skip: u64,
    out: &mut [u8],
    row: u64,
) -> Result<usize> {
    let base = starts.first().copied().unwrap_or(0);
    // Rows are in a buffer of at most SPAN bytes, but padding may be wide.
    let width = usize::try_from(width).unwrap_or(usize::MAX);
    let mut skip = usize::try_from(skip).unwrap_or(0);
    let mut done = 0;
    for (pair, row) in starts.windows(2).zip(row..) {
        if done == out.len() {
            break;
        }
        let (from, end) = ((pair[0] - base) as usize, (pair[1] - base) as usize);
        let text = values.get(from..end).unwrap_or_default();
        let Some((0, text)) = text.split_last() else {
            return Err(Error::damaged(format!(
                "no zero byte behind string {row} of its part"
            )));
        };
        let room = (width - skip).min(out.len() - done);
        let (place, text) = (
            &mut out[done..done + room],
            text.get(skip..).unwrap_or_default(),
        );
        let n = text.len().min(room);
        place[..n].copy_from_slice(&text[..n]);
        place[n..].fill(0);
        done += room;
        skip = 0;
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_io::content::{InMemory, read};
    use proptest::prelude::*;

    fn padded(strings: &[Vec<u8>], width: u64) -> (Padded, Vec<u8>) {
        let (mut values, mut starts, mut want) = (Vec::new(), Vec::new(), Vec::new());
        for string in strings {
            starts.extend_from_slice(&(values.len() as i64).to_le_bytes());
            values.extend_from_slice(string);
            values.push(0);
            want.extend_from_slice(string);
            want.resize(want.len() + width as usize - string.len(), 0);
        }
        let padded = Padded {
            starts: Arc::new(InMemory(starts)),
            values: Arc::new(InMemory(values)),
            width,
            rows: strings.len() as u64,
        };
        (padded, want)
    }

    proptest! {
        #[test]
        fn any_range_of_bytes_is_that_of_the_padded_strings(
            strings in proptest::collection::vec(proptest::collection::vec(1_u8..255, 0..9), 0..300),
            spare in 0_u64..3,
            at in 0_u64..3000,
            len in 0_usize..3000,
        ) {
            let longest = strings.iter().map(Vec::len).max().unwrap_or(0) as u64;
            let (padded, want) = padded(&strings, longest.max(1) + spare);
            prop_assert_eq!(padded.len(), want.len() as u64);
            let got = read(&padded, at, len, &Arc::default()).unwrap();
            let from = (at as usize).min(want.len());
            prop_assert_eq!(got.as_ref(), &want[from..(from + len).min(want.len())]);
        }
    }

    #[test]
    fn strings_longer_than_a_window_are_read_in_part() {
        let long: Vec<u8> = (0..3 << 20).map(|i| (i % 255) as u8 + 1).collect();
        let strings = [b"ab".to_vec(), long, b"c".to_vec(), vec![b'x'; 2 << 20]];
        let (padded, want) = padded(&strings, 3 << 20);
        for (at, len) in [
            (0, 10),
            (3 << 20, 100),
            ((3 << 20) - 7, 5 << 20),
            ((6 << 20) - 3, 9),
            ((11 << 20) - 9, 1 << 20),
        ] {
            let got = read(&padded, at, len, &Arc::default()).unwrap();
            assert_eq!(got.as_ref(), &want[at as usize..at as usize + len]);
        }
    }

    #[test]
    fn a_string_without_its_end_is_refused() {
        let (mut padded, _) = padded(&[b"ab".to_vec(), b"c".to_vec()], 2);
        padded.values = Arc::new(InMemory(b"abxc\0".to_vec()));
        let error = read(&padded, 0, 4, &Arc::default()).unwrap_err();
        assert_eq!(error.message, "no zero byte behind string 0 of its part");
        assert!(read(&padded, 2, 2, &Arc::default()).is_ok());
    }
}
