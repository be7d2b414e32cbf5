//! The szip filter, which the bundled libhdf5 is built without: decoding only.
//!
//! Format: CCSDS 121.0-B, in the framing of HDF5 (four bytes of decoded length, little end first) and with
//! the conventions of szip: samples of 32 and 64 bits are split into byte planes, scanlines are padded to
//! whole blocks.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};

use hdf5_sys::h5::{H5allocate_memory, H5free_memory};
use hdf5_sys::h5z::{H5Z_CLASS_T_VERS, H5Z_FLAG_REVERSE, H5Z_class2_t};

use super::aec::{Coding, decode};

/// The filter's number in HDF5's registry.
const ID: i32 = 4;

/// Option bits of szip.
const MSB: u32 = 16;
const NEAREST_NEIGHBOUR: u32 = 32;

/// Most bytes that a chunk may decode to; HDF5 chunks end at 4 GiB.
const LARGEST: usize = 1 << 30;

const CLASS: H5Z_class2_t = H5Z_class2_t {
    version: H5Z_CLASS_T_VERS as _,
    id: ID,
    encoder_present: 0,
    decoder_present: 1,
    name: c"szip".as_ptr(),
    can_apply: None,
    set_local: None,
    filter: Some(filter),
};

unsafe extern "C" {
    /// The inside of `H5Zregister`, which itself refuses the numbers below 256 that are HDF5's own. It is
    /// there because libhdf5 is linked statically; if it ever is not, linking fails.
    fn H5Z_register(class: *const H5Z_class2_t) -> c_int;
}

/// Makes the filter known to libhdf5. Called once, with its lock held.
pub fn register() {
    let class = CLASS;
    // SAFETY: libhdf5 is initialised, and copies the class, which matches the version it states. If it is
    // refused, chunks with this filter fail to read, with libhdf5's own message.
    unsafe { H5Z_register(&raw const class) };
}

unsafe extern "C" fn filter(
    flags: c_uint,
    parameter_count: usize,
    parameters: *const c_uint,
    len: usize,
    capacity: *mut usize,
    buffer: *mut *mut c_void,
) -> usize {
    if flags & H5Z_FLAG_REVERSE == 0 || parameter_count < 4 {
        return 0;
    }
    // SAFETY: libhdf5 passes `parameter_count` parameters and a buffer of `len` bytes that it allocated.
    let (parameters, input) = unsafe {
        (
            std::slice::from_raw_parts(parameters, 4),
            std::slice::from_raw_parts((*buffer).cast::<u8>(), len),
        )
    };
    let decoded = std::panic::catch_unwind(|| chunk(input, parameters))
        .ok()
        .flatten();
    let Some(decoded) = decoded.filter(|bytes| !bytes.is_empty()) else {
        return 0;
    };
    // SAFETY: the new buffer comes from libhdf5's allocator and has the size that is copied; the old one
    // goes back to where it came from, as the filter interface asks.
    unsafe {
        let new = H5allocate_memory(decoded.len(), 0);
        if new.is_null() {
            return 0;
        }
        std::ptr::copy_nonoverlapping(decoded.as_ptr(), new.cast::<u8>(), decoded.len());
        H5free_memory(*buffer);
        *buffer = new;
        *capacity = decoded.len();
    }
    decoded.len()
}

/// Decodes one chunk. `None` if it is damaged.
fn chunk(input: &[u8], parameters: &[u32]) -> Option<Vec<u8>> {
    let &[options, block, bits, scanline] = parameters else {
        return None;
    };
    let (len, stream) = input.split_first_chunk::<4>()?;
    let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
    // A bit codes a segment of 64 blocks at the most.
    let sane = len <= LARGEST
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
        assert!(chunk(&[], &parameters).is_none());
        assert!(chunk(&[255; 8], &parameters).is_none());
        assert!(chunk(&[16, 0, 0, 0], &[141, 0, 32, 256]).is_none());
        assert!(chunk(&[16, 0, 0, 0, 255], &parameters).is_none());
    }
}
