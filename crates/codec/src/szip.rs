//! The szip filter, which the bundled libhdf5 is built without: decoding only.
//!
//! Format: CCSDS 121.0-B, in the framing of HDF5 (four bytes of decoded length, little end first) and with
//! the conventions of szip: samples of 32 and 64 bits are split into byte planes, scanlines are padded to
//! whole blocks.

pub mod aec;

use aec::{Coding, decode};

/// Option bits of szip.
const MSB: u32 = 16;
const NEAREST_NEIGHBOUR: u32 = 32;

/// Decodes one chunk of at most `most` bytes. `None` if it is damaged.
pub fn chunk(input: &[u8], parameters: &[u32], most: usize) -> Option<Vec<u8>> {
    let &[options, block, bits, scanline] = parameters else {
        return None;
    };
    let (len, stream) = input.split_first_chunk::<4>()?;
    let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
    // A bit codes a segment of 64 blocks at the most.
    let sane = len <= most
        && len / (8 * 64 * 32 * 8) <= stream.len()
        && (2..=32).contains(&block)
        && ((1..=32).contains(&bits) || bits == 64)
        && (1..=1 << 16).contains(&scanline);
    if !sane {
        return None;
    }
    let (block, scanline) = (block as usize, scanline as usize);
    let planes = if bits == 32 || bits == 64 {
        bits as usize / 8
    } else {
        1
    };
    let sample_bits = if planes > 1 { 8 } else { bits };
    let sample = match sample_bits {
        0..=8 => 1,
        9..=16 => 2,
        _ => 4,
    };
    let blocks = scanline.div_ceil(block);
    let padded = blocks * block;
    let samples = len.div_ceil(sample);
    let samples = if padded == scanline {
        samples
    } else {
        samples.div_ceil(scanline).checked_mul(padded)?
    };
    let coding = Coding {
        bits: sample_bits,
        block,
        interval: blocks,
        differences: options & NEAREST_NEIGHBOUR != 0,
    };
    let big = options & MSB != 0;
    let mut out = Vec::with_capacity(samples.checked_mul(sample)?);
    for value in decode(stream, coding, samples).ok()? {
        if big {
            out.extend_from_slice(&value.to_be_bytes()[4 - sample..]);
        } else {
            out.extend_from_slice(&value.to_le_bytes()[..sample]);
        }
    }
    if padded != scanline {
        out = out
            .chunks(padded * sample)
            .flat_map(|line| &line[..line.len().min(scanline * sample)])
            .copied()
            .collect();
    }
    if out.len() < len {
        return None;
    }
    out.truncate(len);
    if planes > 1 {
        let words = len / planes;
        out = (0..words * planes)
            .map(|i| out[i % planes * words + i / planes])
            .collect();
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_chunks_are_refused() {
        let parameters = [141, 8, 32, 256];
        assert!(chunk(&[], &parameters, 1 << 20).is_none());
        assert!(chunk(&[255; 8], &parameters, 1 << 20).is_none());
        assert!(chunk(&[16, 0, 0, 0], &[141, 0, 32, 256], 1 << 20).is_none());
        assert!(chunk(&[16, 0, 0, 0, 255], &parameters, 1 << 20).is_none());
    }
}
