//! Bytes as lower-case hexadecimal digits.

/// Appends two digits for each byte.
pub fn push_hex(bytes: &[u8], out: &mut Vec<u8>) {
    for &b in bytes {
        out.extend(PAIRS[usize::from(b)]);
    }
}

/// Returns two digits for each byte.
pub fn encode(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(2 * bytes.len());
    push_hex(bytes, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// Bytes as two hexadecimal digits.
const PAIRS: [[u8; 2]; 256] = {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut n = 0;
    while n < 256 {
        pairs[n] = [DIGITS[n >> 4], DIGITS[n & 15]];
        n += 1;
    }
    pairs
};
