//! Undoes one filter whose decoded length is unknown to the caller: the stored bytes tell it.
//!
//! libhdf5 calls this for filters that it lacks, in pipelines that are left to libhdf5.

use std::io::Read;
use std::sync::Arc;

use super::{
    BITSHUFFLE, BLOSC2, BZIP2, Bitshuffle, FilterError, LZ4, SZIP, ZSTD, blosc2, lz4, szip,
};

/// The most bytes that one byte of LZ4 can stand for, apart from block lengths.
const LZ4_EXPANSION: usize = 256;

/// Decodes a chunk of lz4, bitshuffle, zstd, bzip2, szip or Blosc2 to at most `most` bytes.
pub fn alone(
    id: i32,
    parameters: &[u32],
    stored: &[u8],
    most: usize,
) -> Result<Vec<u8>, FilterError> {
    let room = |have: usize, sane: bool| {
        if have > most || !sane {
            return Err(FilterError::Size { have, want: most });
        }
        Ok(vec![0; have])
    };
    match id {
        LZ4 => {
            let len = lz4::long_number(&mut &*stored)?;
            let mut out = room(len, len / LZ4_EXPANSION <= stored.len())?;
            lz4::into(stored, &mut out)?;
            Ok(out)
        }
        BITSHUFFLE => {
            let step = Bitshuffle::new(parameters).ok_or(FilterError::Bitshuffle)?;
            let len = if step.compresses() {
                lz4::long_number(&mut &*stored)?
            } else {
                stored.len()
            };
            let mut out = room(len, true)?;
            step.into(stored, &mut out, &Arc::default())?;
            Ok(out)
        }
        ZSTD => {
            let failed = |e: std::io::Error| FilterError::Zstd(e.to_string());
            let frame = zstd::Decoder::with_buffer(stored).map_err(failed)?;
            all(frame.single_frame(), most, failed)
        }
        BZIP2 => {
            let failed = |e: std::io::Error| FilterError::Bzip2(e.to_string());
            all(bzip2::bufread::BzDecoder::new(stored), most, failed)
        }
        BLOSC2 => {
            let mut out = room(blosc2::frame_len(stored)?, true)?;
            let pool = &Arc::default();
            blosc2::into(stored, &mut out, pool)?;
            Ok(out)
        }
        SZIP => {
            let chunk = parameters
                .get(..4)
                .and_then(|p| szip::chunk(stored, p, most));
            chunk.ok_or(FilterError::Szip)
        }
        _ => Err(FilterError::Unknown(id)),
    }
}

/// Reads a stream to its end; more than `most` bytes are an error.
fn all(
    stream: impl Read,
    most: usize,
    failed: impl Fn(std::io::Error) -> FilterError,
) -> Result<Vec<u8>, FilterError> {
    let mut out = Vec::new();
    // One more byte, to detect a stream that is too long.
    let limit = (most as u64).saturating_add(1);
    stream.take(limit).read_to_end(&mut out).map_err(failed)?;
    if out.len() > most {
        return Err(FilterError::Size {
            have: out.len(),
            want: most,
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BITS: [u32; 5] = [0, 4, 2, 8, 2];

    #[test]
    fn the_stored_bytes_say_how_many_there_were() {
        let data: Vec<u8> = (0..5000).map(|i| (i / 7) as u8).collect();
        let stored = zstd::bulk::compress(&data, 3).unwrap();
        assert_eq!(alone(ZSTD, &[], &stored, 5000).unwrap(), data);
        assert!(alone(ZSTD, &[], &stored, 4999).is_err());
        let block = lz4_flex::block::compress(&data);
        let mut stored = 5000_u64.to_be_bytes().to_vec();
        stored.extend(5000_u32.to_be_bytes());
        stored.extend(u32::try_from(block.len()).unwrap().to_be_bytes());
        stored.extend(block);
        assert_eq!(alone(LZ4, &[], &stored, 5000).unwrap(), data);
        assert!(alone(LZ4, &[], &stored, 4999).is_err());
        assert_eq!(
            alone(BITSHUFFLE, &[0, 4, 2, 8, 0], &[1; 16], 16)
                .unwrap()
                .len(),
            16
        );
        assert!(alone(7, &[], &stored, 5000).is_err());
    }

    proptest! {
        #[test]
        fn damage_asks_for_no_more_than_it_may(stored in proptest::collection::vec(any::<u8>(), 0..200)) {
            for id in [LZ4, BITSHUFFLE, ZSTD, BZIP2, BLOSC2] {
                if let Ok(out) = alone(id, &BITS, &stored, 3000) {
                    prop_assert!(out.len() <= 3000);
                }
            }
        }
    }
}
