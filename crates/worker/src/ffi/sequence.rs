//! Sequences of variable length, as libhdf5 reads them: with a length and a pointer for each.

use super::create::write_attribute;
use super::dataset::read_block;
use super::vlen::reclaim;
use super::*;

/// Sequences as libhdf5 read them; their elements are in its memory, which is given back when this is dropped.
pub(crate) struct Sequences {
    buf: Vec<u8>,
    mem_type: Id,
    /// Bytes of an element of a sequence.
    element: usize,
}

/// Bytes of a sequence in memory: a length and a pointer.
pub(crate) const SEQUENCE: usize = 2 * size_of::<usize>();

/// Makes the type of sequences with elements of a type.
fn sequence_type(base: &Id) -> Result<Id> {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    id(unsafe { h5t::H5Tvlen_create(base.0) }, "H5Tvlen_create")
}

/// Reads a whole attribute of `elements` sequences; the caller has bounded their number. `base` is the type to read the
/// elements of the sequences with.
pub(crate) fn read_attribute_sequences(attr: &Id, base: &Id, elements: usize) -> Result<Sequences> {
    let mut sequences = Sequences::empty(base)?;
    sequences.buf = read_attribute(attr, &sequences.mem_type, elements)?;
    Ok(sequences)
}

/// Gives an object an attribute of sequences, whose elements are of type `base`.
pub(crate) fn add_sequences(
    object: &Id,
    name: &[u8],
    base: &Id,
    sequences: &[Vec<u8>],
) -> Result<()> {
    let element = size(base).max(1);
    let pair = |bytes: &Vec<u8>| {
        let pointer = bytes.as_ptr().expose_provenance();
        [(bytes.len() / element).to_ne_bytes(), pointer.to_ne_bytes()]
    };
    let buf: Vec<u8> = sequences.iter().flat_map(pair).flatten().collect();
    let (ty, shape) = (sequence_type(base)?, [sequences.len() as u64]);
    // SAFETY: a length and a pointer for each element; what they lead to outlives the call.
    unsafe { write_attribute(object, name, &ty, &shape, buf.as_ptr().cast()) }
}

/// Reads a block of sequences, as `read_block` does.
pub(crate) fn read_sequences(
    dataset: &Id,
    base: &Id,
    start: &[u64],
    shape: &[u64],
) -> Result<Sequences> {
    let mut sequences = Sequences::empty(base)?;
    sequences.buf = read_block(dataset, &sequences.mem_type, start, shape, SEQUENCE)?;
    Ok(sequences)
}

impl Sequences {
    fn empty(base: &Id) -> Result<Self> {
        let mem_type = sequence_type(base)?;
        let element = size(base);
        if size(&mem_type) != SEQUENCE || element == 0 {
            return Err(Failure("impossible sequences".into()));
        }
        Ok(Self {
            buf: Vec::new(),
            mem_type,
            element,
        })
    }

    /// Returns the bytes of each sequence, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.buf.chunks_exact(SEQUENCE).map(|pair| {
            let (len, at) = pair.split_at(size_of::<usize>());
            let word = |bytes: &[u8]| {
                bytes
                    .first_chunk()
                    .map_or(0, |raw| usize::from_ne_bytes(*raw))
            };
            let bytes = word(len).saturating_mul(self.element);
            let at = ptr::with_exposed_provenance::<u8>(word(at));
            if at.is_null() || bytes == 0 {
                return &[][..];
            }
            // SAFETY: libhdf5 filled the buffer with pairs of `mem_type`: that many elements are at the pointer,
            // until
            // `drop` gives them back.
            unsafe { std::slice::from_raw_parts(at, bytes) }
        })
    }
}

impl Drop for Sequences {
    fn drop(&mut self) {
        let len = self.buf.len() / SEQUENCE;
        // SAFETY: type, count and buffer are those of the read.
        unsafe { reclaim(&mut self.buf, len, &self.mem_type) }
    }
}
