//! Blocks whose streams are planes: the first bytes of all elements, then the second ones, and so on.
//!
//! Planes that did not shrink are stored as they are and go straight to where elements are put together. A plane
//! takes as long to decode as all others to be copied, so both are done at the same time where several threads may.

use super::{
    FilterError, FrameHeader, HEADER, LARGEST_SPLIT, Means, PartsError, Sorted, WORTH_HELP,
    damaged, number, shuffle,
};

/// Stored bytes that one of several threads copies at a time.
const PART: usize = 128 << 10;

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

/// Decodes a block of planes, which must fill `out`. Those that are not stored as they are have `buffer`, which is as long
/// as `out`.
pub(super) fn decode(
    header: &FrameHeader,
    block: &[u8],
    buffer: &mut [u8],
    out: &mut [u8],
    means: Means<'_>,
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
    if out.len() >= WORTH_HELP {
        means.each(packed.iter_mut(), decode)?;
    } else {
        packed.iter_mut().try_for_each(decode)?;
    }
    for (i, _, room) in &packed {
        planes[*i] = room;
    }
    shuffle::planes_into(&planes[..count], out, means);
    Ok(())
}

/// Something to be done for one plane: at `at` in the frame stand the bytes that are to be read.
enum Task<'a> {
    Copy {
        at: usize,
        stored: &'a mut [u8],
    },
    Decode {
        at: usize,
        stored: &'a mut [u8],
        plane: &'a mut [u8],
    },
}

/// Reads and decodes a frame of `available` bytes at most, which must fill `out`, if all of it is one block of planes;
/// otherwise nothing is done, and the answer is `false`. `read` reads bytes of the frame, in several threads.
pub fn read<E: Send>(
    available: usize,
    read: impl Fn(usize, &mut [u8]) -> Result<(), E> + Sync,
    out: &mut [u8],
    means: Means<'_>,
) -> Result<bool, PartsError<E>> {
    let mut head = [0; HEADER + 4];
    if available < head.len() {
        return Ok(false);
    }
    let get = |at: usize, bytes: &mut [u8]| read(at, bytes).map_err(PartsError::Read);
    get(0, &mut head)?;
    let header = FrameHeader::read(&head, available)?;
    let count = header.size;
    let is_planes = !header.as_it_is
        && header.len == out.len()
        && header.sorted == Sorted::Bytes
        && header.streams(out.len()) == count
        && out.len().is_multiple_of(count);
    if !is_planes {
        return Ok(false);
    }
    let each = out.len() / count;

    // Where each stream stands; all of them are within the frame, so they are not more than was stored.
    let mut streams = [(0, 0); LARGEST_SPLIT];
    let streams = &mut streams[..count];
    let mut end = number(&head, HEADER)?;
    let behind = |at: usize, len| {
        let end = at.checked_add(len).filter(|&end| end <= header.stored);
        end.ok_or(damaged("a stream outside the frame"))
    };
    for stream in &mut *streams {
        let (at, mut len) = (behind(end, 4)?, [0; 4]);
        get(end, &mut len)?;
        let len = number(&len, 0)?;
        end = behind(at, len)?;
        *stream = (at, len);
    }

    let mut stored = means.pool.take(streams.iter().map(|(_, len)| len).sum());
    let mut decoded = means.pool.take(out.len());
    let (mut tasks, mut copies) = (Vec::with_capacity(count), Vec::new());
    let mut left = &mut *stored;
    for (&(at, len), plane) in streams.iter().zip(decoded.chunks_mut(each)) {
        let (stored, rest) = left.split_at_mut(len);
        left = rest;
        if len == each {
            let parts = (at..).step_by(PART).zip(stored.chunks_mut(PART));
            copies.extend(parts.map(|(at, stored)| Task::Copy { at, stored }));
        } else {
            tasks.push(Task::Decode { at, stored, plane });
        }
    }
    // What takes longest comes first.
    tasks.append(&mut copies);
    let work = |task: Task<'_>| match task {
        Task::Copy { at, stored } => get(at, stored),
        Task::Decode { at, stored, plane } => {
            get(at, stored)?;
            Ok(header.codec.decode(stored, plane)?)
        }
    };
    means.each(tasks.into_iter(), work)?;

    let mut planes = [&[][..]; LARGEST_SPLIT];
    let mut left = &*stored;
    for ((plane, (_, len)), decoded) in planes.iter_mut().zip(&*streams).zip(decoded.chunks(each)) {
        let (stored, rest) = left.split_at(*len);
        left = rest;
        *plane = if *len == each { stored } else { decoded };
    }
    shuffle::planes_into(&planes[..count], out, means);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::{AS_IT_IS, BITS_SORTED, BYTES_SORTED, into};
    use super::*;
    use crate::codec::pool::DecodePool;
    use crate::io::buffer::Pool;
    use std::sync::Arc;

    const LEN: usize = WORTH_HELP;

    /// Elements of four bytes whose first bytes do not shrink; the second ones a little, the others a lot.
    fn truth() -> Vec<u8> {
        let random = |i: u32| {
            let x = i.wrapping_mul(0x9e37_79b1);
            let x = (x ^ x >> 15).wrapping_mul(0x85eb_ca77);
            x ^ x >> 13
        };
        let element = |i: u32| {
            let often = random(i / 64).to_le_bytes()[0];
            [random(i).to_le_bytes()[0], often, (i >> 9) as u8, 7]
        };
        (0..LEN as u32 / 4).flat_map(element).collect()
    }

    /// A frame of one block, split into planes, of LZ4.
    fn frame(data: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 1, BYTES_SORTED | 1 << 5, 4];
        for n in [data.len(), data.len(), 0, HEADER + 4] {
            frame.extend((n as u32).to_le_bytes());
        }
        for byte in 0..4 {
            let plane: Vec<u8> = data.iter().skip(byte).step_by(4).copied().collect();
            let packed = lz4_flex::block::compress(&plane);
            let stream = if packed.len() < plane.len() {
                packed
            } else {
                plane
            };
            frame.extend((stream.len() as u32).to_le_bytes());
            frame.extend(stream);
        }
        let stored = (frame.len() as u32).to_le_bytes();
        frame[12..16].copy_from_slice(&stored);
        frame
    }

    /// As from a file that holds the frame.
    fn read_from(frame: &[u8], out: &mut [u8], means: Means<'_>) -> Result<bool, PartsError<()>> {
        let get = |at: usize, bytes: &mut [u8]| {
            let from = frame.get(at..at + bytes.len()).ok_or(())?;
            bytes.copy_from_slice(from);
            Ok(())
        };
        read(frame.len(), get, out, means)
    }

    #[test]
    fn read_and_decoded_at_the_same_time_it_is_the_same() {
        let (pool, helpers, truth) = (Arc::<Pool>::default(), DecodePool::default(), truth());
        let frame = frame(&truth);
        // Some stored as they are, some not.
        assert!(frame.len() > LEN / 4 && frame.len() < LEN / 4 * 3);
        for helpers in [None, Some(&helpers)] {
            let means = Means {
                pool: &pool,
                helpers,
            };
            let (mut at_once, mut in_parts) = (vec![0; LEN], vec![0; LEN]);
            into(&frame, &mut at_once, means).unwrap();
            assert_eq!(read_from(&frame, &mut in_parts, means), Ok(true));
            assert!(at_once == truth && in_parts == truth);
        }
    }

    #[test]
    fn other_frames_are_left_alone() {
        let pool = &Arc::default();
        let means = Means {
            pool,
            helpers: None,
        };
        let good = frame(&truth());
        let other = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut frame = good.clone();
            change(&mut frame);
            read_from(&frame, &mut vec![0; LEN], means)
        };
        assert_eq!(other(&|_| ()), Ok(true));
        assert_eq!(other(&|frame| frame[2] |= AS_IT_IS), Ok(false));
        assert_eq!(
            other(&|frame| frame[2] ^= BITS_SORTED | BYTES_SORTED),
            Ok(false)
        );
        // Two blocks, and elements of another size than the data are cut for.
        assert_eq!(other(&|frame| frame[10] = 1), Ok(false));
        assert_eq!(other(&|frame| frame[3] = 3), Ok(false));
        let small = read_from(&good, &mut vec![0; LEN - 4], means);
        assert_eq!(small, Ok(false));
    }

    #[test]
    fn damage_is_found_and_what_reading_says_is_handed_on() {
        let pool = &Arc::default();
        let means = Means {
            pool,
            helpers: None,
        };
        let good = frame(&truth());
        let mut out = vec![0; LEN];
        assert_eq!(
            read(good.len(), |_, _| Err("gone"), &mut out, means),
            Err(PartsError::Read("gone"))
        );
        let first = HEADER + 4;
        let len = number(&good, first).unwrap();
        let second = first + 4 + len;
        // The version, the place of the block, and the lengths of its streams.
        for at in [0, HEADER + 1, HEADER + 3, first + 3, second + 3, second] {
            let mut frame = good.clone();
            frame[at] ^= 0x40;
            let got = read_from(&frame, &mut out, means);
            assert!(matches!(got, Err(PartsError::Filter(_))), "{at}: {got:?}");
        }
        let cut = read_from(&good[..good.len() - 1], &mut out, means);
        assert!(matches!(cut, Err(PartsError::Filter(_))));
    }
}
