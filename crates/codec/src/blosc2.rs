//! Filter 32026, Blosc2: a contiguous frame with Blosc2 chunks, of data with one or more dimensions.
//!
//! Format: c-blosc2's descriptions of its chunks, contiguous frames and the metalayer `b2nd`. Frame and metalayer are
//! msgpack at fixed offsets, big-endian; chunks have little-endian numbers. A frame is a header, the chunks, a chunk
//! with the offset of each, and a trailer, which is ignored.

mod chunk;
mod frame;
mod grid;

use std::sync::Arc;

use super::blosc::FrameCodec;
use super::{FilterError, bitshuffle, blosc, same_size, shuffle};
use frame::Frame;
use npyfs_base::buffer::Pool;

const fn damaged(why: &'static str) -> FilterError {
    FilterError::Blosc2(why)
}

/// Returns the number of bytes that a frame claims to decode to.
pub(super) fn frame_len(stored: &[u8]) -> Result<usize, FilterError> {
    Ok(Frame::read(stored)?.len())
}

/// Decodes a frame into a buffer, which it must fill.
pub(super) fn into(stored: &[u8], out: &mut [u8], pool: &Arc<Pool>) -> Result<(), FilterError> {
    let frame = Frame::read(stored)?;
    same_size(frame.len(), out.len())?;
    frame.decode(out, pool)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames of [`truth`], made with c-blosc2 2.23: one chunk in several blocks; an array of 20 by 15 in chunks of 12
    /// by 10 and blocks of 5 by 4; and the same array in one block.
    const FRAMES: [(&str, &str); 3] = [
        (
            "lz4 delta",
            "9ea862326672616d6500d200000061cf00000000000001d4a412005102d300000000000004b0d3000000 \
             0000000128d200000004d200000200d2000004b0d10000d10001c2d80603010000000001000000000000 \
             00000093cd0007de0000dc000005012d04b0040000000200002801000003010000000001000000000000 \
             0000002c00000071000000e8000000350000001500010015030a0015050a00150f0a0006140006280015 \
             1d1e0015070a00150d0a00062800063c00153f1e00800500000000000000000000000000000000000000 \
             67000000f42524242727272727272727242429292929292929292c2c2b2b2b2b2b2b2b2b242439393939 \
             393939393c3c3f3f3f3f3f3f3f3f3c3c14002424242800242c2c3c0008500013590100f00d5c5c5b5b5b \
             5b5b5b5b5b646469696969696969696c6c6f6f6f6f6f6f0000000000000000000000003c000000ff224b \
             4b4b4b4e4e4e4e4e4e4d4d4d4d525252525252575757575252525252525d5d5d5d5e5e5e5e5e5e5b5b5b \
             5b0000000000050067500000000000050107080800000008000000280000000000000000010000000000 \
             00000000000000000000000000940193cd0006de0000dc0000ce00000023d80000000000000000000000 \
             000000000000",
        ),
        (
            "zstd boxes",
            "9ea862326672616d6500d2000000a5cf0000000000000587a412005502d30000000000000b40d3000000 \
             000000047fd200000004d200000050d2000002d0d10000d10001c2d80602000000000005000000000000 \
             00000093cd0011de0001a462326e64d20000006bdc0001c60000003597000292d30000000000000014d3 \
             000000000000000f92d20000000cd20000000a92d200000005d20000000400db000000033c6934050195 \
             04d0020000500000006e01000002000000000005000000000000000000440000006300000082000000a3 \
             000000c6000000ed00000011010000300100004f0100001b00000028b52ffd205095000050f00ff00000 \
             f000ff00120200bb4ef004471b00000028b52ffd20509500005010eff0e0e0f000ff00120200bb4ef004 \
             471d00000028b52ffd2050a500005000333030303000330012030080c02ebb3cc1111f00000028b52ffd \
             2050b5000070ff00f00f0ffff00fff0f00f000270200bb4ec009be2300000028b52ffd2050d5000090f1 \
             0ef00101f1fe01ff0100fe00270000002a02003b43c309be2000000028b52ffd2050bd00005830033000 \
             0030330033002a040080c02ebb41042d87041b00000028b52ffd2050950000600f0000000f000f00f000 \
             ff0001008182241b00000028b52ffd205095000060ef00e0000f000f00f000ff0001008182241b000000 \
             28b52ffd205095000060330030000300030030003300010081822405019504d0020000500000000d0100 \
             000200000000000500000000000000000044000000630000008300000087000000a9000000cb000000cf \
             000000ec000000090100001b00000028b52ffd2050950000500ff0fff0f0ff00ff00150200bb4ef00447 \
             1c00000028b52ffd20509d0000580110111010110011001500020040c63cc111000000001e00000028b5 \
             2ffd2050ad00005800fff0f0f0f0ff00ff002a0300bb4e0601b41c121e00000028b52ffd2050ad000058 \
             001110101010110011002a0300333b1904d07248000000001900000028b52ffd205085000040f000f000 \
             ff00ff0002000190ac80081900000028b52ffd205085000040100010001100110002000190ac80080000 \
             000005019504d00200005000000024010000020000000000050000000000000000004400000069000000 \
             8e000000b5000000d7000000f9000000180100001c010000200100002100000028b52ffd2050c5000080 \
             f00f0fff0f0ff00fff0fff0f00f000480200bb4e3002752100000028b52ffd2050c500008010ef0f1fef \
             eff00fff0fff0f00f000480200bb4e3002752300000028b52ffd2050d500008000330303333330033303 \
             330300300048030080c02ebb8c401d1e00000028b52ffd2050ad000078ff000f00000f0f00f00f0000ff \
             0f00010096401d1e00000028b52ffd2050ad000078f10e0f0e0e0f0f00f00f0000ff0f00010096401d1b \
             00000028b52ffd20509500005030030030030000330300020006c25b8005000000000000000000000000 \
             05019504d002000050000000e00000000200000000000500000000000000000044000000660000008800 \
             00008c000000ae000000d0000000d4000000d8000000dc0000001e00000028b52ffd2050ad0000480ff0 \
             000ff0f0ff004b0400bb4e02013a03598e0b1e00000028b52ffd2050ad00004801100001101011004b04 \
             00333b0904e80c64392e000000001e00000028b52ffd2050ad000078000f0f0fff0f0f00f00f0000ff0f \
             00010096401d1e00000028b52ffd2050ad000078000101011101010010010000110100010096401d0000 \
             000000000000000000000000000005011708200000002000000040000000000000000001000000000000 \
             0000000000000000000000006e010000000000007b020000000000009f03000000000000940193cd0006 \
             de0000dc0000ce00000023d80000000000000000000000000000000000",
        ),
        (
            "blosclz",
            "9ea862326672616d6500d2000000a5cf00000000000001c5a412005002d300000000000004b0d3000000 \
             00000000d5d200000004d2000004b0d2000004b0d10000d10001c2d80601000000000000000000000000 \
             00000093cd0011de0001a462326e64d20000006bdc0001c60000003597000292d30000000000000014d3 \
             000000000000000f92d200000014d20000000f92d200000014d20000000f00db000000033c6934050105 \
             04b0040000b0040000d50000000100000000000000000000000000000024000000a10000002a00000000 \
             00000000000003c000010306c000010609c00001090cc000010c0fc000010f12c000011215c000011518 \
             c00001181bc000011b1ec000011e21c000012124c000012427c00001272ac000012a2dc000012d30c000 \
             013033c000013336c000013639c00001393cc000013c3fc000013f42c000014245c000014548c0000148 \
             4bc000014b4ec000014e51c000015154c0000a5457575757575757575757000000000000000000000000 \
             050107080800000008000000280000000000000000010000000000000000000000000000000000009401 \
             93cd0006de0000dc0000ce00000023d80000000000000000000000000000000000",
        ),
    ];

    const LEN: usize = 1200;

    /// Little-endian numbers 0, 3, 6 … ten times each.
    fn truth() -> Vec<u8> {
        let numbers = (0..300_u32).map(|i| i / 10 * 3);
        numbers.flat_map(u32::to_le_bytes).collect()
    }

    fn frame(hex: &str) -> Vec<u8> {
        let digits: String = hex.chars().filter(|c| !c.is_whitespace()).collect();
        let byte = |i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap();
        (0..digits.len()).step_by(2).map(byte).collect()
    }

    /// Decodes a frame; the buffer's old content must not show.
    fn decoded(frame: &[u8], len: usize) -> Result<Vec<u8>, FilterError> {
        let [first, second] = [0, 0xee].map(|held| {
            let (pool, mut out) = (&std::sync::Arc::default(), vec![held; len]);
            into(frame, &mut out, pool).map(|()| out)
        });
        assert!(first == second, "a gap");
        first
    }

    #[test]
    fn frames_of_every_shape() {
        for (name, hex) in FRAMES {
            let mut frame = frame(hex);
            assert_eq!(frame_len(&frame), Ok(LEN), "{name}");
            assert!(decoded(&frame, LEN).unwrap() == truth(), "{name}");
            assert!(decoded(&frame, LEN - 4).is_err(), "{name}");
            // Bytes after a frame do not matter; missing bytes do.
            frame.push(1);
            assert!(decoded(&frame, LEN).unwrap() == truth(), "{name}");
            frame.truncate(frame.len() - 2);
            assert!(decoded(&frame, LEN).is_err(), "{name}");
        }
    }

    #[test]
    fn every_changed_byte_ends_in_an_error_or_in_the_right_length() {
        for (_, hex) in FRAMES {
            let good = frame(hex);
            for at in 0..good.len() {
                for change in [1, 0x10, 0x80, 0xff] {
                    let mut frame = good.clone();
                    frame[at] ^= change;
                    if let Ok(len) = frame_len(&frame)
                        && len <= 1 << 20
                        && let Ok(data) = decoded(&frame, len)
                    {
                        assert_eq!(data.len(), len, "{at} {change}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_value_that_stands_for_a_chunk_is_repeated() {
        // A header without blocks in place of the first chunk: a run of zeros, of NaN, of a value, of uninitialized
        // bytes.
        let run = |special: u8, size: u8, value: &[u8]| {
            let mut chunk = vec![
                5,
                1,
                5,
                size,
                16,
                0,
                0,
                0,
                16,
                0,
                0,
                0,
                32 + value.len() as u8,
                0,
                0,
                0,
            ];
            chunk.extend([0; 15]);
            chunk.push(special << 4);
            chunk.extend(value);
            let (pool, mut out) = (&std::sync::Arc::default(), vec![0xee; 16]);
            let decoded = chunk::Chunk::read(&chunk);
            decoded.and_then(|chunk| chunk.decode_all(&mut out, pool))?;
            Ok::<_, FilterError>(out)
        };
        assert_eq!(run(1, 4, &[]).unwrap(), [0; 16]);
        assert_eq!(run(4, 3, &[]).unwrap(), [0; 16]);
        assert_eq!(run(2, 4, &[]).unwrap(), f32::NAN.to_le_bytes().repeat(4));
        assert_eq!(run(2, 8, &[]).unwrap(), f64::NAN.to_le_bytes().repeat(2));
        assert_eq!(run(3, 2, &[7, 8]).unwrap(), [7, 8].repeat(8));
        assert!(run(2, 2, &[]).is_err() && run(3, 2, &[7]).is_err() && run(5, 4, &[]).is_err());
        assert!(run(3, 3, b"abc").is_err(), "blocks of broken elements");
    }
}
