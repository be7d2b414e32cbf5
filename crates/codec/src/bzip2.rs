//! Filter 307, bzip2: one stream of the whole chunk.

use bzip2::{Decompress, Status};

use super::{FilterError, same_size};

/// Decodes into a buffer, which the stream must fill.
pub(super) fn into(stored: &[u8], out: &mut [u8]) -> Result<(), FilterError> {
    same_size(decode(stored, out)?, out.len())
}

/// Decodes to the beginning of a buffer that is large enough; returns the number of bytes.
fn decode(stored: &[u8], out: &mut [u8]) -> Result<usize, FilterError> {
    let mut stream = Decompress::new(false);
    let done = |total: u64| usize::try_from(total).unwrap_or(usize::MAX);
    loop {
        let (read, written) = (done(stream.total_in()), done(stream.total_out()));
        let left = stored.get(read..).unwrap_or_default();
        let place = out.get_mut(written..).unwrap_or_default();
        let status = stream.decompress(left, place);
        let status = status.map_err(|e| FilterError::Bzip2(e.to_string()))?;
        if status == Status::StreamEnd {
            return Ok(done(stream.total_out()));
        }
        let moved = (done(stream.total_in()), done(stream.total_out())) != (read, written);
        if !moved {
            return Err(FilterError::Bzip2(
                "cut off, or longer than it should be".into(),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn packed(data: &[u8]) -> Vec<u8> {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::new(9));
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_stream_is_decoded_to_its_length_and_to_no_other() {
        let data: Vec<u8> = (0..20_000_u32)
            .flat_map(|i| (i / 7).to_le_bytes())
            .collect();
        let stored = packed(&data);
        let mut out = vec![0; data.len()];
        into(&stored, &mut out).unwrap();
        assert!(out == data);
        assert!(into(&stored, &mut vec![0; data.len() - 1]).is_err());
        let (have, want) = (data.len(), data.len() + 1);
        assert_eq!(
            into(&stored, &mut vec![0; want]),
            Err(FilterError::Size { have, want })
        );
        for cut in [0, 3, 10, stored.len() / 2, stored.len() - 1] {
            assert!(into(&stored[..cut], &mut out).is_err(), "{cut}");
        }
        assert_eq!(into(&packed(b""), &mut []), Ok(()));
    }

    #[test]
    fn a_changed_byte_is_an_error_or_changes_nothing() {
        let data: Vec<u8> = (0..3000_u32).map(|i| (i * i / 50) as u8).collect();
        let good = packed(&data);
        for at in 0..good.len() {
            let mut stored = good.clone();
            stored[at] ^= 0x21;
            let mut out = vec![0; data.len()];
            if into(&stored, &mut out).is_ok() {
                assert!(out == data, "{at}");
            }
        }
    }
}
