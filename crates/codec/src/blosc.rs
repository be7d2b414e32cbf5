//! Filter 32001, Blosc: the data in blocks, whose bytes or bits are shuffled and then compressed by one of five codecs.
//!
//! Format: c-blosc's description of its chunks, header version 2 (every release from 1.0 on). A frame is a header of 16
//! bytes, followed by the raw data, or by the offset of each block's streams in the frame. Each stream follows its
//! stored length; it is raw where that equals its decoded length. A block has one stream, or one for each byte of the
//! element. All numbers have four bytes, little-endian.
//!
//! Frames of Blosc 2 are refused. Bytes after a frame are ignored.

mod blosclz;

use std::sync::Arc;

use super::{FilterError, bitshuffle, deflate, lz4, same_size, shuffle, zstd};
use npyfs_base::buffer::Pool;

/// Bytes of the header.
const HEADER: usize = 16;
/// The header version that is supported, and the version of every codec's stream.
const VERSION: u8 = 2;
const CODEC_VERSION: u8 = 1;

const BYTES_SORTED: u8 = 1 << 0;
const AS_IT_IS: u8 = 1 << 1;
const BITS_SORTED: u8 = 1 << 2;
const RESERVED: u8 = 1 << 3;
const NOT_SPLIT: u8 = 1 << 4;

/// A block is split into streams only if its elements have at most this many bytes, and it has at least this many
/// elements: c-blosc's rule from before `NOT_SPLIT`, still in force.
const LARGEST_SPLIT: usize = 16;
const FEWEST_SPLIT: usize = 128;

const fn damaged(why: &'static str) -> FilterError {
    FilterError::Blosc(why)
}

/// The codec of the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameCodec {
    Blosclz,
    /// Also written by LZ4 HC.
    Lz4,
    Snappy,
    Zlib,
    Zstd,
}

impl FrameCodec {
    /// Reads the codec from the high three bits of the flags.
    pub(super) fn new(flags: u8) -> Result<Self, FilterError> {
        Ok(match flags >> 5 {
            0 => Self::Blosclz,
            1 => Self::Lz4,
            2 => Self::Snappy,
            3 => Self::Zlib,
            4 => Self::Zstd,
            _ => return Err(damaged("unknown codec")),
        })
    }

    /// Decodes a stream, which must fill `out`.
    pub(super) fn decode(self, stream: &[u8], out: &mut [u8]) -> Result<(), FilterError> {
        match self {
            Self::Blosclz => blosclz::into(stream, out).ok_or(damaged("damaged blosclz data")),
            Self::Lz4 => lz4::decode_block(stream, out),
            Self::Snappy => {
                // The decoder accepts any buffer that is large enough.
                let fits = snap::raw::decompress_len(stream).ok() == Some(out.len());
                let got = fits.then(|| snap::raw::Decoder::new().decompress(stream, out));
                match got {
                    Some(Ok(n)) if n == out.len() => Ok(()),
                    _ => Err(damaged("damaged snappy data")),
                }
            }
            Self::Zlib => deflate::into(stream, out),
            Self::Zstd => zstd::into(stream, out),
        }
    }
}

/// How the bytes of a block are shuffled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sorted {
    No,
    Bytes,
    Bits,
}

/// The header of a frame, checked.
struct FrameHeader {
    codec: FrameCodec,
    sorted: Sorted,
    as_it_is: bool,
    split: bool,
    /// Bytes of an element, at least one.
    size: usize,
    /// Bytes of the data, of a block (at least one if there is data), and of the frame.
    len: usize,
    block: usize,
    stored: usize,
}

impl FrameHeader {
    /// Reads the header at the beginning of a stored chunk of `available` bytes.
    fn read(stored: &[u8], available: usize) -> Result<Self, FilterError> {
        let short = damaged("shorter than its header");
        let (head, _) = stored.split_first_chunk::<HEADER>().ok_or(short)?;
        let [version, codec_version, flags, size, ..] = *head;
        if version != VERSION {
            return Err(damaged("not a frame of Blosc 1"));
        }
        if flags & RESERVED != 0 || (flags & BYTES_SORTED != 0 && flags & BITS_SORTED != 0) {
            return Err(damaged("unknown flags"));
        }
        let as_it_is = flags & AS_IT_IS != 0;
        let codec = FrameCodec::new(flags)?;
        if codec_version != CODEC_VERSION && !as_it_is {
            return Err(damaged("unknown version of the codec"));
        }
        let header = Self {
            codec,
            sorted: match flags & (BYTES_SORTED | BITS_SORTED) {
                BYTES_SORTED if size > 1 => Sorted::Bytes,
                BITS_SORTED => Sorted::Bits,
                _ => Sorted::No,
            },
            as_it_is,
            split: flags & NOT_SPLIT == 0,
            size: usize::from(size),
            len: number(stored, 4)?,
            block: number(stored, 8)?,
            stored: number(stored, 12)?,
        };
        let lengths = header.stored >= HEADER
            && header.stored <= available
            && header.len <= i32::MAX as usize
            && (header.block > 0 || header.len == 0);
        if header.size == 0 || !lengths {
            return Err(damaged("lengths that cannot be"));
        }
        Ok(header)
    }

    /// Returns the number of streams of a block of `len` bytes.
    fn streams(&self, len: usize) -> usize {
        let split = self.split
            && len == self.block
            && self.size <= LARGEST_SPLIT
            && len / self.size >= FEWEST_SPLIT;
        if split { self.size } else { 1 }
    }
}

/// Reads the number at `at`.
fn number(frame: &[u8], at: usize) -> Result<usize, FilterError> {
    frame
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .and_then(|bytes| usize::try_from(u32::from_le_bytes(*bytes)).ok())
        .ok_or(damaged("ends too early"))
}

/// Returns the number of bytes that a frame claims to decode to: up to 2 GiB.
pub fn frame_len(stored: &[u8]) -> Result<usize, FilterError> {
    Ok(FrameHeader::read(stored, stored.len())?.len)
}

/// Decodes a frame to exactly `len` bytes.
pub fn decode(stored: &[u8], len: usize) -> Result<Vec<u8>, FilterError> {
    same_size(frame_len(stored)?, len)?;
    let mut out = vec![0; len];
    let pool = &Arc::default();
    into(stored, &mut out, pool)?;
    Ok(out)
}

/// Decodes a frame into a buffer, which it must fill.
pub fn into(stored: &[u8], out: &mut [u8], pool: &Arc<Pool>) -> Result<(), FilterError> {
    let header = FrameHeader::read(stored, stored.len())?;
    same_size(header.len, out.len())?;
    // Within the slice: the header was checked.
    let frame = &stored[..header.stored];
    if header.as_it_is {
        if frame.len() - HEADER != out.len() {
            return Err(damaged("lengths that cannot be"));
        }
        out.copy_from_slice(&frame[HEADER..]);
        return Ok(());
    }
    let block = header.block.max(1);
    let places = out.chunks_mut(block).enumerate();
    let decode = |(i, place): (usize, &mut [u8])| decode_block(&header, frame, i, place, pool);
    { places }.try_for_each(decode)
}

/// Returns an iterator over the blocks of a frame, for large frames: it holds one block at a time.
pub fn blocks(
    stored: &[u8],
) -> Result<impl Iterator<Item = Result<Vec<u8>, FilterError>>, FilterError> {
    let header = FrameHeader::read(stored, stored.len())?;
    let frame = &stored[..header.stored];
    if header.as_it_is && frame.len() - HEADER != header.len {
        return Err(damaged("lengths that cannot be"));
    }
    let size = header.block.max(1);
    let pool = Arc::default();
    Ok((0..header.len.div_ceil(size)).map(move |i| {
        let (start, end) = (i * size, header.len.min((i + 1) * size));
        if header.as_it_is {
            return Ok(frame[HEADER + start..HEADER + end].to_vec());
        }
        let mut block = vec![0; end - start];
        let alone = &pool;
        decode_block(&header, frame, i, &mut block, alone)?;
        Ok(block)
    }))
}

/// Decodes block `i`, which must fill `place`.
fn decode_block(
    header: &FrameHeader,
    frame: &[u8],
    i: usize,
    place: &mut [u8],
    pool: &Arc<Pool>,
) -> Result<(), FilterError> {
    let at = number(frame, HEADER + 4 * i)?;
    let streams = frame
        .get(at..)
        .ok_or(damaged("a block outside the frame"))?;
    let count = place.len() / header.size;
    // Blosc shuffles the bits of a block only if all its elements take part.
    let plain = match header.sorted {
        Sorted::No => true,
        Sorted::Bytes => count <= 1,
        Sorted::Bits => count == 0 || !count.is_multiple_of(bitshuffle::MULTIPLE),
    };
    if plain {
        return decode_streams(header, streams, place);
    }
    // A block before it is unshuffled.
    let mut buffer = pool.take(place.len());
    let sorted = &mut *buffer;
    if header.sorted == Sorted::Bytes && header.streams(place.len()) == header.size {
        return decode_planes(header, streams, sorted, place);
    }
    decode_streams(header, streams, sorted)?;
    if header.sorted == Sorted::Bytes {
        shuffle::into(sorted, place, header.size)?;
    } else {
        let (bits, rest) = sorted.split_at(count * header.size);
        let (elements, tail) = place.split_at_mut(bits.len());
        bitshuffle::unsort(bits, elements, header.size);
        tail.copy_from_slice(rest);
    }
    Ok(())
}

/// Decodes the streams of one block, which must fill `out`.
fn decode_streams(header: &FrameHeader, block: &[u8], out: &mut [u8]) -> Result<(), FilterError> {
    let streams = streams(header, block, out.len())?;
    let each = out.len() / streams.len();
    for (stream, place) in streams.zip(out.chunks_mut(each)) {
        if stream.len() == each {
            place.copy_from_slice(stream);
        } else {
            header.codec.decode(stream, place)?;
        }
    }
    Ok(())
}

/// Decodes a block whose streams are planes (the first bytes of all elements, then the second ones, and so on), which
/// must fill `out`. Planes that did not shrink are stored raw and are interleaved directly from there; compressed ones
/// are decoded into `buffer`, which is as long as `out`.
fn decode_planes(
    header: &FrameHeader,
    block: &[u8],
    buffer: &mut [u8],
    out: &mut [u8],
) -> Result<(), FilterError> {
    let streams = streams(header, block, out.len())?;
    let (count, each) = (streams.len(), out.len() / streams.len());
    let mut planes = [&[][..]; LARGEST_SPLIT];
    let mut packed = Vec::with_capacity(count);
    for ((i, stream), room) in streams.enumerate().zip(buffer.chunks_mut(each)) {
        match stream.len() == each {
            true => planes[i] = stream,
            false => packed.push((i, stream, room)),
        }
    }
    let decode =
        |(_, stream, room): &mut (usize, &[u8], &mut [u8])| header.codec.decode(stream, room);
    packed.iter_mut().try_for_each(decode)?;
    for (i, _, room) in &packed {
        planes[*i] = room;
    }
    shuffle::planes_into(&planes[..count], out);
    Ok(())
}

/// Returns the streams of one block of `len` bytes.
fn streams<'a>(
    header: &FrameHeader,
    block: &'a [u8],
    len: usize,
) -> Result<impl ExactSizeIterator<Item = &'a [u8]>, FilterError> {
    let count = header.streams(len);
    if !len.is_multiple_of(count) {
        return Err(damaged("a block of broken elements"));
    }
    let mut found = [&[][..]; LARGEST_SPLIT];
    let mut left = block;
    for stream in &mut found[..count] {
        let len = number(left, 0)?;
        (*stream, left) = left[4..]
            .split_at_checked(len)
            .ok_or(damaged("a stream outside the frame"))?;
    }
    Ok(found.into_iter().take(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames of the first bytes of [`truth`], made with c-blosc 1.21: shuffled bytes, shuffled bits or neither; split
    /// or not; one to three blocks, the last of which ends within an element.
    const FRAMES: [(&str, usize, &str); 6] = [
        (
            "blosclz",
            4602,
            "02010104fa110000f8110000ac00000018000000a60000004e0000002300000000e05603010003e05900 \
             010306e05900010609e0590001090ce05900010c0fe05900010f12e05900011215e05900011518e05900 \
             01181be05900011b1ee05900011e21e0250002212121100000002300000000e0ffffffff720302000000 \
             100000002300000000e0ffffffff720302000000100000002300000000e0ffffffff7203020000000200 \
             00002100",
        ),
        (
            "lz4",
            4602,
            "02012404fa110000f8110000a4000000180000009e000000180000001f000100ff7d1f030400ff7d1f06 \
             0400ff46500000000600200000004f0000060004001b1f090400ff7d1f0c0400ff7d1f0f0400ff145000 \
             0f0000001f0000004f0f00000004004d1f120400ff7d1f150400ff7d1f180400e15000000018001f0000 \
             004f0000180004007f1f1b0400ff7d1f1e0400ff7d1f210400af500021000000020000002100",
        ),
        (
            "lz4hc",
            4602,
            "02012104fa110000f81100009d0000001800000097000000420000001f000100501f030100501f060100 \
             501f090100501f0c0100501f0f0100501f120100501f150100501f180100501f1b0100501f1e0100501f \
             210100195021212121210f0000001f000100ffffffff695000000000000f0000001f000100ffffffff69 \
             5000000000000f0000001f000100ffffffff69500000000000020000002100",
        ),
        (
            "zlib",
            4602,
            "02016004fa110000f81100009a00000018000000940000001700000078da636018058309308fe24185d9 \
             46310d3100f68b033d1d00000078da63606063602009738ee241857946f1a0c2fca398680c0072d50ce2 \
             1c00000078dae3676060e0a731161ac5830a8b8ee2418525462c06002021169c1c00000078da63609060 \
             601874587a140f2a2c378a0715561c2618009fce202f020000002100",
        ),
        (
            "zstd",
            4602,
            "02019104fa11000000080000810000001c00000040000000640000002000000028b52ffd600007b50000 \
             38000306090c0f0007500100fcfd18a420052948411a2000000028b52ffd600007b50000380f1215181b \
             1e0007500100fcfd3548410a5290d2141900000028b52ffd60fa007d0000281e210021000350010076aa \
             11a201",
        ),
        (
            "snappy",
            4096,
            "02014104001000000010000017010000140000005700000080080000fe01008a01000003fe01008a0100 \
             0006fe01008a01000009fe01008a0100000cfe01008a0100000ffe01008a01000012fe01008a01000015 \
             fe01008a01000018fe01008a0100001bfe01008a0100001e5a01003400000080080000fe0100fe0100fe \
             0100fe0100fe0100fe0100fe0100fe0100fe0100fe0100fe0100fe0100fe0100fe0100fe0100fa010034 \
             00000080080000fe0100fe0100fe0100fe0100fe0100fe0100fe0100fe0100fe0100fe0100fe0100fe01 \
             00fe0100fe0100fe0100fa01003400000080080000fe0100fe0100fe0100fe0100fe0100fe0100fe0100 \
             fe0100fe0100fe0100fe0100fe0100fe0100fe0100fe0100fa0100",
        ),
    ];

    /// Little-endian numbers 0, 3, 6 … a hundred times each.
    fn truth(len: usize) -> Vec<u8> {
        let numbers = (0..1200_u32).flat_map(|i| (i / 100 * 3).to_le_bytes());
        numbers.take(len).collect()
    }

    fn frame(name: &str) -> (usize, Vec<u8>) {
        let (_, len, hex) = FRAMES.into_iter().find(|frame| frame.0 == name).unwrap();
        let digits: String = hex.chars().filter(|c| !c.is_whitespace()).collect();
        let byte = |i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap();
        (len, (0..digits.len()).step_by(2).map(byte).collect())
    }

    #[test]
    fn frames_of_every_codec() {
        for (name, ..) in FRAMES {
            let (len, mut frame) = frame(name);
            assert_eq!(frame_len(&frame), Ok(len), "{name}");
            assert_eq!(decode(&frame, len).unwrap(), truth(len), "{name}");
            // Bytes after a frame do not matter; missing bytes do.
            frame.push(1);
            assert_eq!(decode(&frame, len).unwrap(), truth(len), "{name}");
            frame.truncate(frame.len() - 2);
            assert!(decode(&frame, len).is_err(), "{name}");
        }
    }

    #[test]
    fn block_by_block_is_the_same() {
        let all = |frame: &[u8]| blocks(frame)?.collect::<Result<Vec<_>, _>>();
        for (name, ..) in FRAMES {
            let (len, mut frame) = frame(name);
            assert_eq!(all(&frame).unwrap().concat(), truth(len), "{name}");
            frame.pop();
            assert!(all(&frame).is_err(), "{name}");
        }
        let mut plain = vec![2, 1, AS_IT_IS, 4, 3, 0, 0, 0, 2, 0, 0, 0, 19, 0, 0, 0];
        plain.extend(b"abc");
        assert_eq!(all(&plain).unwrap(), [&b"ab"[..], b"c"]);
        plain[4] = 4;
        assert!(all(&plain).is_err());
    }

    #[test]
    fn data_stored_as_they_are() {
        let mut frame = vec![2, 1, AS_IT_IS, 4, 3, 0, 0, 0, 3, 0, 0, 0, 19, 0, 0, 0];
        frame.extend(b"abc");
        assert_eq!(decode(&frame, 3).unwrap(), b"abc");
        frame[4] = 2;
        assert!(decode(&frame, 2).is_err());
        let empty = [2, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0];
        assert_eq!(decode(&empty, 0).unwrap(), b"");
    }

    #[test]
    fn headers_that_cannot_be_are_refused_before_anything_is_decoded() {
        let (len, good) = frame("lz4");
        // Version, codec version, both shuffles, codec, element size, length, block length, frame length.
        for (at, value) in [
            (0, 5),
            (1, 2),
            (2, 5),
            (2, 0xa4),
            (3, 0),
            (7, 0x80),
            (15, 1),
        ] {
            let mut frame = good.clone();
            frame[at] = value;
            assert!(frame_len(&frame).is_err(), "{at}");
        }
        let mut frame = good.clone();
        frame[8..12].fill(0);
        assert!(frame_len(&frame).is_err());
        assert!(frame_len(&good[..15]).is_err());
        let wrong = FilterError::Size { have: len, want: 7 };
        assert_eq!(decode(&good, 7), Err(wrong));
    }

    #[test]
    fn every_changed_byte_ends_in_an_error_or_in_the_right_length() {
        for (name, ..) in FRAMES {
            let (len, good) = frame(name);
            for at in 0..good.len() {
                for change in [1, 0x10, 0x80, 0xff] {
                    let mut frame = good.clone();
                    frame[at] ^= change;
                    if let Ok(data) = decode(&frame, len) {
                        assert_eq!(data.len(), len);
                    }
                }
            }
        }
    }
}
