//! Blosc frames, in which `ref.lmdb` keeps the descriptions and record lists of commits.
//!
//! Format: see `filter::blosc`, which reads them. A block is one zstd stream without shuffle; digests cover the plain
//! text, so codec and level are free. A block that does not become smaller is stored uncompressed.

use npyfs_base::error::{Error, ErrorKind, Result};

/// The size of a block in bytes.
const BLOCK: usize = 1 << 20;

/// The largest frame in bytes that c-blosc supports: a signed 32-bit length that includes the header.
const LARGEST: usize = i32::MAX as usize - HEADER;

const HEADER: usize = 16;

/// Version 2 of the frame, version 1 of the codec's stream.
const VERSIONS: [u8; 2] = [2, 1];
const ZSTD_NOT_SPLIT: u8 = 0x90;
const AS_IT_IS: u8 = 0x92;

const LEVEL: i32 = 5;

fn number(n: usize) -> Result<[u8; 4]> {
    match u32::try_from(n) {
        Ok(n) if n as usize <= LARGEST => Ok(n.to_le_bytes()),
        _ => Err(Error::new(
            ErrorKind::TooLarge,
            "more than 2 GiB in a Blosc frame",
        )),
    }
}

fn header(flags: u8, len: usize, block: usize, stored: usize) -> Result<Vec<u8>> {
    let mut header = VERSIONS.to_vec();
    // Elements have one byte.
    header.extend([flags, 1]);
    for n in [len, block, stored] {
        header.extend(number(n)?);
    }
    Ok(header)
}

/// Returns a frame that holds `text`.
pub fn pack(text: &[u8]) -> Result<Vec<u8>> {
    let mut streams = Vec::new();
    let mut starts = Vec::new();
    let blocks = text.len().div_ceil(BLOCK);
    for block in text.chunks(BLOCK) {
        starts.extend(number(HEADER + 4 * blocks + streams.len())?);
        let packed = zstd::bulk::compress(block, LEVEL)?;
        let stream = if packed.len() < block.len() {
            &packed[..]
        } else {
            block
        };
        streams.extend(number(stream.len())?);
        streams.extend_from_slice(stream);
    }
    let stored = HEADER + starts.len() + streams.len();
    let block = text.len().min(BLOCK);
    if stored >= HEADER + text.len() {
        let mut frame = header(AS_IT_IS, text.len(), block, HEADER + text.len())?;
        frame.extend_from_slice(text);
        return Ok(frame);
    }
    let mut frame = header(ZSTD_NOT_SPLIT, text.len(), block, stored)?;
    frame.extend(starts);
    frame.extend(streams);
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::hangar::commit::unpack;
    use proptest::prelude::*;

    #[test]
    fn frames_of_many_blocks_and_of_none() {
        let long: Vec<u8> = (0..5 << 20).map(|i: u32| (i / 1000) as u8).collect();
        for text in [&long[..], &long[..BLOCK], &long[..=BLOCK], b"", b"$"] {
            let frame = pack(text).unwrap();
            assert!(frame.len() <= HEADER + text.len());
            assert_eq!(unpack(&frame).unwrap(), text);
        }
        assert!(pack(&long).unwrap().len() < long.len() / 50);
    }

    proptest! {
        #[test]
        fn any_text_comes_back(text: Vec<u8>, times in 1_usize..50) {
            let text = text.repeat(times);
            prop_assert_eq!(unpack(&pack(&text).unwrap()).unwrap(), text);
        }
    }
}
