//! Blocks whose streams are planes: the first bytes of all elements, then the second ones, and so on.
//!
//! Planes that did not shrink are stored raw and are interleaved directly from there.

use super::{FilterError, FrameHeader, LARGEST_SPLIT, damaged, number, shuffle};

/// Returns the streams of one block of `len` bytes.
pub(super) fn streams<'a>(
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

/// Decodes a block of planes, which must fill `out`. Compressed planes are decoded into `buffer`, which is as long as
/// `out`.
pub(super) fn decode(
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
