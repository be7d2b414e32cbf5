//! Streams of szip. Input: bits of a sample less one with the preprocessor's bit (32) above, samples of a block less
//! one, blocks of an interval less one, samples in all (2 bytes, little end first), then the stream.

#![no_main]

use libfuzzer_sys::fuzz_target;
use npyfs_fuzz::codec::szip::aec::{Coding, decode};

fuzz_target!(|input: &[u8]| {
    let &[bits, block, interval, low, high, ref stream @ ..] = input else {
        return;
    };
    let coding = Coding {
        bits: u32::from(bits % 32) + 1,
        block: usize::from(block % 32) + 1,
        interval: usize::from(interval) + 1,
        differences: bits & 32 != 0,
    };
    let count = usize::from(u16::from_le_bytes([low, high]));
    if let Ok(samples) = decode(stream, coding, count) {
        assert_eq!(samples.len(), count);
    }
});
