//! Bytes as text in base64, as Zarr's documents hold them.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Returns the text of bytes, padded.
pub(super) fn text(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let byte = |i| u32::from(part.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = (bits >> (18 - 6 * place)) & 63;
            out.push(match place <= part.len() {
                true => char::from(DIGITS[digit as usize]),
                false => '=',
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn the_vectors_of_rfc_4648_hold() {
        let want = [
            "", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy",
        ];
        for (length, want) in want.iter().enumerate() {
            assert_eq!(text(&b"foobar"[..length]), *want);
        }
        assert_eq!(text(&[0xfb, 0xff]), "+/8=");
    }
}
