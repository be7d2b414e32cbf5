//! Content digests as Hangar computes them (`hashmachine.pyx`, `parsing.py`): blake2b with a short output.
//!
//! `0=` arrays, `1=` schemas, `2=` text, `3=` bytes, `a=` commits.

use blake2b_simd::many::{HashManyJob, hash_many};
use blake2b_simd::{Params, State};

use npyfs_base::npy::dtype::{DType, Kind};
use npyfs_base::npy::literal::Literal;
use npyfs_io::hex::{self, push_hex};

/// The size in bytes of the hash of a sample or a commit.
pub const LEN: usize = 20;

/// The number of records that are hashed together.
const BATCH: usize = 64;

/// The hash in the digest of a sample.
pub type Hash = [u8; LEN];

/// Parses the kind and hash of a sample's digest, `0=<40 hexadecimal digits>`.
pub fn parse(text: &[u8]) -> Option<(u8, Hash)> {
    let [kind @ (b'0' | b'2' | b'3'), b'=', hex @ ..] = text else {
        return None;
    };
    if hex.len() != 2 * LEN {
        return None;
    }
    let mut hash = [0; LEN];
    let mut wrong = 0;
    for (byte, pair) in hash.iter_mut().zip(hex.chunks_exact(2)) {
        let (high, low) = (VALUES[usize::from(pair[0])], VALUES[usize::from(pair[1])]);
        wrong |= high | low;
        *byte = high << 4 | low & 15;
    }
    (wrong & NO_DIGIT == 0).then_some((*kind, hash))
}

/// The bit that is set in the value of a byte that is no hexadecimal digit.
const NO_DIGIT: u8 = 0x80;

/// The values of bytes as lower-case hexadecimal digits; a table, since commits have millions of digests.
const VALUES: [u8; 256] = {
    let mut values = [NO_DIGIT; 256];
    let mut n = 0;
    while n < 16 {
        values[b"0123456789abcdef"[n] as usize] = n as u8;
        n += 1;
    }
    values
};

/// Returns a digest in its written form.
pub fn print(kind: u8, hash: &[u8]) -> String {
    format!("{}={}", char::from(kind), hex::encode(hash))
}

/// Returns the key of a sample's record in `hash.lmdb`: `h:` and the written digest.
pub fn key(kind: u8, hash: &Hash) -> Vec<u8> {
    let mut key = Vec::with_capacity(4 + 2 * LEN);
    key.extend([b'h', b':', kind, b'=']);
    push_hex(hash, &mut key);
    key
}

/// Returns true if a text has the form of a commit's digest.
pub fn is_commit(text: &str) -> bool {
    text.strip_prefix("a=").is_some_and(|hex| {
        hex.len() == 2 * LEN && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

fn params(len: usize) -> Params {
    let mut params = Params::new();
    params.hash_length(len);
    params
}

fn blake(parts: &[&[u8]]) -> Hash {
    let mut state = params(LEN).to_state();
    for part in parts {
        state.update(part);
    }
    truncated(&state.finalize())
}

fn truncated(hash: &blake2b_simd::Hash) -> Hash {
    let mut out = [0; LEN];
    out.copy_from_slice(&hash.as_bytes()[..LEN]);
    out
}

/// Returns the hash of text or bytes.
pub fn of_bytes(bytes: &[u8]) -> Hash {
    blake(&[bytes])
}

/// Returns the hash of an array: of its bytes in C order, dimensions and type number; `None` for a type that Hangar
/// lacks.
pub fn of_array(payload: &[u8], shape: &[u64], dtype: &DType) -> Option<Hash> {
    let mut tail = Vec::with_capacity(4 * shape.len() + 4);
    for &d in shape {
        tail.extend_from_slice(&i32::try_from(d).ok()?.to_le_bytes());
    }
    tail.extend_from_slice(&type_number(dtype)?.to_le_bytes());
    Some(blake(&[payload, &tail]))
}

/// Returns the digest of a schema record.
pub fn of_schema(record: &Literal) -> String {
    of_sorted(&sorted(record).repr())
}

fn of_sorted(repr: &str) -> String {
    print(b'1', params(6).hash(repr.as_bytes()).as_bytes())
}

/// Returns the value with lists as tuples, and dictionaries as tuples of pairs in order of their keys.
fn sorted(value: &Literal) -> Literal {
    match value {
        Literal::Tuple(items) | Literal::List(items) => {
            Literal::Tuple(items.iter().map(sorted).collect())
        }
        Literal::Dict(entries) => {
            let mut entries: Vec<_> = entries.iter().collect();
            entries.sort_by_key(|(key, _)| key);
            let pair = |(k, v): &(String, Literal)| {
                Literal::Tuple(vec![Literal::Text(k.clone()), sorted(v)])
            };
            Literal::Tuple(entries.into_iter().map(pair).collect())
        }
        plain => plain.clone(),
    }
}

/// Computes the digest of a commit from its records in order, which may come in any number of parts.
pub struct CommitHash {
    params: Params,
    all: State,
    /// The digits of the digests of the records that were added last.
    digits: Vec<u8>,
}

impl Default for CommitHash {
    fn default() -> Self {
        let params = params(LEN);
        Self {
            all: params.to_state(),
            params,
            digits: Vec::with_capacity(2 * LEN * BATCH),
        }
    }
}

impl CommitHash {
    /// Adds records, in order.
    pub fn add<'a>(&mut self, records: impl Iterator<Item = &'a [u8]>) {
        let mut records = records.peekable();
        // Hashing several records at a time takes little longer than hashing one.
        while records.peek().is_some() {
            let batch = records.by_ref().take(BATCH);
            let mut jobs: Vec<_> = batch.map(|r| HashManyJob::new(&self.params, r)).collect();
            hash_many(jobs.iter_mut());
            self.digits.clear();
            for job in &jobs {
                push_hex(&truncated(&job.to_hash()), &mut self.digits);
            }
            self.all.update(&self.digits);
        }
    }

    /// Returns the digest, given the value of the commit's parents and its specification.
    pub fn finish(self, parents: &[u8], spec: &[u8]) -> String {
        let all = truncated(&self.all.finalize());
        let mut parts = [of_bytes(parents), of_bytes(spec), all].map(|hash| hex::encode(&hash));
        parts.sort();
        print(b'a', &of_bytes(parts.concat().as_bytes()))
    }
}

/// Returns NumPy's `dtype.num` on Linux x86-64.
pub fn type_number(dtype: &DType) -> Option<i32> {
    let DType::Scalar { kind, size, .. } = dtype else {
        return None;
    };
    Some(match (kind, size) {
        (Kind::Bool, 1) => 0,
        (Kind::Int, 1) => 1,
        (Kind::Uint, 1) => 2,
        (Kind::Int, 2) => 3,
        (Kind::Uint, 2) => 4,
        (Kind::Int, 4) => 5,
        (Kind::Uint, 4) => 6,
        (Kind::Int, 8) => 7,
        (Kind::Uint, 8) => 8,
        (Kind::Float, 4) => 11,
        (Kind::Float, 8) => 12,
        (Kind::Float, 16) => 13,
        (Kind::Float, 2) => 23,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_digest_of_real_hangar() {
        let text = "(('backend', '01'), ('backend_options', (('complevel', 5), ('complib', 'blosc:lz4hc'), \
                    ('shuffle', 'byte'))), ('column_layout', 'flat'), ('column_type', 'ndarray'), \
                    ('data_hasher_tcode', '0'), ('dtype', 'float64'), ('schema_hasher_tcode', '1'), \
                    ('schema_type', 'fixed_shape'), ('shape', (3, 2)))";
        assert_eq!(of_sorted(text), "1=34c8c18ef9da");
    }

    #[test]
    fn a_schema_record_is_sorted_at_every_depth() {
        let text = "{'shape':(12,),'dtype':\"<class'str'>\",'o':{'complevel':None,'x':()},'n':-5,'b':True}";
        let record = npyfs_base::npy::literal::parse(text).unwrap();
        assert_eq!(
            sorted(&record).repr(),
            "(('b', True), ('dtype', \"<class'str'>\"), ('n', -5), \
             ('o', (('complevel', None), ('x', ()))), ('shape', (12,)))"
        );
    }

    #[test]
    fn digests_are_read_and_printed() {
        let text = "0=019215d7f6e4070613908ba9a0fbbd6fc365c32f";
        let (kind, hash) = parse(text.as_bytes()).unwrap();
        assert_eq!(print(kind, &hash), text);
        for wrong in ["", "1=00", "0=01", &text.replace('f', "F"), &text[..41]] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
