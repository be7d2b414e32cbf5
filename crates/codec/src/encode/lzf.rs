//! LibLZF's stream; the decoder describes its format.

/// Bits of the hash of three bytes.
const BITS: u32 = 14;

/// The largest distance and the greatest length of a copy.
const FARTHEST: usize = 1 << 13;
const LONGEST: usize = 7 + 255 + 2;

/// The most literals after one control byte.
const LITERALS: usize = 32;

/// Encodes a stream that is smaller than `bytes`; `None` if that is not possible.
pub(super) fn encode(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len());
    // The last position of three bytes with a hash, plus one.
    let mut seen = vec![0_usize; 1 << BITS];
    let (mut at, mut plain) = (0, 0);
    while let Some(&[a, b, c]) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        let key = u32::from_le_bytes([a, b, c, 0]).wrapping_mul(0x9e37_79b1) >> (32 - BITS);
        let place = seen.get_mut(key as usize)?;
        let before = std::mem::replace(place, at + 1).checked_sub(1);
        let length = before
            .filter(|&from| at - from <= FARTHEST)
            .map_or(0, |from| common(bytes, from, at));
        if length < 3 {
            at += 1;
            continue;
        }
        literals(bytes.get(plain..at)?, &mut out);
        let distance = at - before? - 1;
        // Both are below 32 and 256 by the limits above.
        let (high, low) = ((distance >> 8) as u8, distance as u8);
        match length - 2 {
            short @ ..7 => out.push((short as u8) << 5 | high),
            long => out.extend([7 << 5 | high, (long - 7) as u8]),
        }
        out.push(low);
        at += length;
        plain = at;
        if out.len() >= bytes.len() {
            return None;
        }
    }
    literals(bytes.get(plain..)?, &mut out);
    (out.len() < bytes.len()).then_some(out)
}

/// Returns the length of the common run at two positions.
fn common(bytes: &[u8], from: usize, at: usize) -> usize {
    let here = bytes.iter().skip(at).take(LONGEST);
    let there = bytes.iter().skip(from);
    here.zip(there).take_while(|(a, b)| a == b).count()
}

fn literals(bytes: &[u8], out: &mut Vec<u8>) {
    for part in bytes.chunks(LITERALS) {
        // At most 32 of them.
        out.push((part.len() - 1) as u8);
        out.extend_from_slice(part);
    }
}
