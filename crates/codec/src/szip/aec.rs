//! Adaptive entropy coding as szip uses it: unsigned samples of up to 32 bits, decoding only.
//!
//! Specification: CCSDS 121.0-B-3, sections 3 (entropy coder) and 4 (preprocessor). A stream is a row of
//! intervals of `interval` blocks of `block` samples; with the preprocessor the first sample of an interval
//! is stored as it is, the others as mapped differences. Output is bounded by the count that is asked for.

/// The parameters of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Coding {
    /// Bits of a sample, 1 to 32.
    pub bits: u32,
    /// Samples of a block.
    pub block: usize,
    /// Blocks between two reference samples.
    pub interval: usize,
    /// Samples are stored as differences to the one before.
    pub differences: bool,
}

/// The error of a stream that ends early or is invalid.
#[derive(Debug)]
pub struct Damaged;

/// The bits of a stream, most significant first.
struct Bits<'a> {
    bytes: &'a [u8],
    /// The next bits, most significant first.
    window: u64,
    held: u32,
}

impl Bits<'_> {
    fn refill(&mut self) {
        while self.held <= 56
            && let Some((&byte, rest)) = self.bytes.split_first()
        {
            self.window |= u64::from(byte) << (56 - self.held);
            self.held += 8;
            self.bytes = rest;
        }
    }

    fn take(&mut self, n: u32) -> Result<u32, Damaged> {
        if n == 0 {
            return Ok(0);
        }
        self.refill();
        if self.held < n {
            return Err(Damaged);
        }
        // At most 32 bits are asked for.
        let value = (self.window >> (64 - n)) as u32;
        self.window <<= n;
        self.held -= n;
        Ok(value)
    }

    /// Returns the number of zeros before the next one.
    fn zeros(&mut self) -> Result<u32, Damaged> {
        let mut count = 0_u32;
        loop {
            self.refill();
            if self.held == 0 {
                return Err(Damaged);
            }
            let run = self.window.leading_zeros();
            if run < self.held {
                self.window = self.window << run << 1;
                self.held -= run + 1;
                return count.checked_add(run).ok_or(Damaged);
            }
            count = count.checked_add(self.held).ok_or(Damaged)?;
            self.window = 0;
            self.held = 0;
        }
    }
}

/// Zero blocks that stand for "to the end of the segment".
const REST_OF_SEGMENT: u32 = 5;
/// Blocks of a segment.
const SEGMENT: usize = 64;

/// Decodes `count` samples.
pub fn decode(stream: &[u8], coding: Coding, count: usize) -> Result<Vec<u32>, Damaged> {
    let mut bits = Bits {
        bytes: stream,
        window: 0,
        held: 0,
    };
    let id_bits = match coding.bits {
        0..=8 => 3,
        9..=16 => 4,
        _ => 5,
    };
    let mut out = Vec::with_capacity(count);
    while out.len() < count {
        let start = out.len();
        let mut at = 0;
        while at < coding.interval && out.len() < count {
            at += blocks(&mut bits, coding, id_bits, at, &mut out)?;
        }
        if coding.differences {
            undo_differences(&mut out[start..], coding.bits);
        }
    }
    out.truncate(count);
    Ok(out)
}

/// Decodes the block number `at` of an interval, or a run of empty ones; returns how many blocks it was.
fn blocks(
    bits: &mut Bits<'_>,
    coding: Coding,
    id_bits: u32,
    at: usize,
    out: &mut Vec<u32>,
) -> Result<usize, Damaged> {
    let end = out.len() + coding.block;
    let reference = coding.differences && at == 0;
    let id = bits.take(id_bits)?;
    if id == (1 << id_bits) - 1 {
        while out.len() < end {
            out.push(bits.take(coding.bits)?);
        }
        return Ok(1);
    }
    let extension = if id == 0 { Some(bits.take(1)?) } else { None };
    if reference {
        out.push(bits.take(coding.bits)?);
    }
    match extension {
        None => {
            let low = id - 1;
            let first = out.len();
            while out.len() < end {
                let high = bits.zeros()?;
                out.push(high.checked_shl(low).ok_or(Damaged)?);
            }
            for sample in &mut out[first..] {
                *sample |= bits.take(low)?;
            }
            Ok(1)
        }
        Some(0) => {
            let run = match bits.zeros()?.saturating_add(1) {
                REST_OF_SEGMENT => (coding.interval - at).min(SEGMENT - at % SEGMENT),
                n if n > REST_OF_SEGMENT => n as usize - 1,
                n => n as usize,
            };
            if run > coding.interval - at {
                return Err(Damaged);
            }
            out.resize(end + (run - 1) * coding.block, 0);
            Ok(run)
        }
        Some(_) => {
            // Pairs, as their sum and the second of them; behind a reference the first pair is half.
            let mut odd = reference;
            while out.len() < end {
                let code = bits.zeros()?;
                let (sum, second) = pair(code)?;
                if !odd {
                    out.push(sum - second);
                }
                odd = false;
                if out.len() < end {
                    out.push(second);
                }
            }
            Ok(1)
        }
    }
}

/// Returns sum and second value of a pair from its number in order of sums.
fn pair(code: u32) -> Result<(u32, u32), Damaged> {
    const LARGEST_SUM: u32 = 12;
    let mut first = 0;
    for sum in 0..=LARGEST_SUM {
        if code <= first + sum {
            return Ok((sum, code - first));
        }
        first += sum + 1;
    }
    Err(Damaged)
}

/// Turns a reference and mapped differences into samples.
fn undo_differences(samples: &mut [u32], bits: u32) {
    let max = u32::MAX >> (32 - bits);
    let middle = 1_u32 << (bits - 1);
    let Some((first, rest)) = samples.split_first_mut() else {
        return;
    };
    let mut before = *first & max;
    for sample in rest {
        let mapped = *sample;
        let half = (mapped >> 1) + (mapped & 1);
        let mask = if before & middle == 0 { 0 } else { max };
        before = if half <= mask ^ before {
            if mapped & 1 == 0 {
                before.wrapping_add(half)
            } else {
                before.wrapping_sub(half)
            }
        } else {
            mask ^ mapped
        } & max;
        *sample = before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pairs_are_numbered_by_their_sum() {
        let all: Vec<_> = (0..6).map(|code| pair(code).unwrap()).collect();
        assert_eq!(all, [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]);
        assert!(pair(91).is_err());
    }

    proptest! {
        #[test]
        fn any_stream_ends_within_bounds(
            stream in proptest::collection::vec(any::<u8>(), 0..200),
            bits in 1_u32..=32,
            block in 1_usize..33,
            interval in 1_usize..130,
            differences in any::<bool>(),
            count in 0_usize..5000,
        ) {
            let coding = Coding { bits, block, interval, differences };
            if let Ok(samples) = decode(&stream, coding, count) {
                prop_assert_eq!(samples.len(), count);
            }
        }
    }
}
