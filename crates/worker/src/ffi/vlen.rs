//! Strings of variable length, elements with such strings inside, and sequences of variable length, as libhdf5 reads
//! them: with a pointer for each, and a length for each sequence.

use super::attribute::write_attribute;
use super::dataset::simple;
use super::*;

/// Elements as libhdf5 read them; the strings are in its memory, which is given back when this is dropped.
pub(crate) struct VlenElements {
    buf: Vec<u8>,
    mem_type: Id,
    /// Bytes of an element.
    size: usize,
    /// The offsets of the strings of an element, in order.
    places: Vec<usize>,
}

/// Reads a block of a dataset, as `read_block` does. An element may hold `most` strings.
pub(crate) fn read_vlen(
    dataset: &Id,
    mem_type: &Id,
    start: &[u64],
    shape: &[u64],
    most: usize,
) -> Result<VlenElements> {
    let mut records = VlenElements::empty(mem_type, most)?;
    records.buf = read_block(dataset, mem_type, start, shape, records.size)?;
    Ok(records)
}

/// Reads a whole attribute of `elements` elements; the caller has bounded their number.
pub(crate) fn read_attribute_vlen(
    attr: &Id,
    mem_type: &Id,
    elements: usize,
    most: usize,
) -> Result<VlenElements> {
    let mut records = VlenElements::empty(mem_type, most)?;
    records.buf = read_attribute(attr, mem_type, elements)?;
    Ok(records)
}

/// Reads variable-length strings of a block; a null pointer reads as an empty string.
pub(crate) fn read_strings(
    dataset: &Id,
    mem_type: &Id,
    start: &[u64],
    shape: &[u64],
) -> Result<Vec<Vec<u8>>> {
    Ok(read_vlen(dataset, mem_type, start, shape, 1)?.firsts())
}

/// Reads a whole attribute of variable-length strings.
pub(crate) fn read_attribute_strings(
    attr: &Id,
    mem_type: &Id,
    elements: usize,
) -> Result<Vec<Vec<u8>>> {
    Ok(read_attribute_vlen(attr, mem_type, elements, 1)?.firsts())
}

impl VlenElements {
    fn empty(mem_type: &Id, most: usize) -> Result<Self> {
        let size = size(mem_type);
        let mut places = Vec::new();
        find_strings(mem_type, 0, most, &mut places)?;
        let sane = |place: &usize| {
            place
                .checked_add(size_of::<usize>())
                .is_some_and(|end| end <= size)
        };
        if size == 0 || !places.iter().all(sane) {
            return Err(Failure("impossible places of strings".into()));
        }
        Ok(Self {
            buf: Vec::new(),
            mem_type: copy_type(mem_type)?,
            size,
            places,
        })
    }

    /// Returns how many elements there are.
    pub(crate) fn len(&self) -> usize {
        self.buf.len() / self.size
    }

    /// Returns the bytes of an element; where strings are they mean nothing.
    pub(crate) fn bytes(&self, element: usize) -> Option<&[u8]> {
        self.buf.chunks_exact(self.size).nth(element)
    }

    /// Returns a string of an element, the first is 0; a null pointer is an empty string.
    pub(crate) fn string(&self, element: usize, number: usize) -> Option<&[u8]> {
        let place = *self.places.get(number)?;
        let raw = self.bytes(element)?.get(place..)?.first_chunk()?;
        let text = ptr::with_exposed_provenance::<c_char>(usize::from_ne_bytes(*raw));
        if text.is_null() {
            return Some(&[]);
        }
        // SAFETY: libhdf5 filled the buffer with elements of `mem_type`, which has a string of variable length at
        // each of `places`; the string ends in NUL and lives until `drop` gives it back.
        Some(unsafe { CStr::from_ptr(text) }.to_bytes())
    }

    /// Returns the first string of each element.
    fn firsts(&self) -> Vec<Vec<u8>> {
        let elements = 0..self.len();
        let texts = elements.map(|element| self.string(element, 0).unwrap_or_default());
        texts.map(<[u8]>::to_vec).collect()
    }
}

impl Drop for VlenElements {
    fn drop(&mut self) {
        let len = self.len();
        // SAFETY: type, count and buffer are those of the read.
        unsafe { reclaim(&mut self.buf, len, &self.mem_type) }
    }
}

/// Adds the offsets of the strings of variable length in an element that begins at `base`.
fn find_strings(ty: &Id, base: usize, most: usize, places: &mut Vec<usize>) -> Result<()> {
    match class(ty) {
        Class::H5T_STRING if is_variable_string(ty) => {
            if places.len() >= most {
                return Err(Failure("too many strings in an element".into()));
            }
            places.push(base);
            Ok(())
        }
        Class::H5T_COMPOUND => members(ty)?
            .into_iter()
            .try_for_each(|(_, offset, member)| {
                find_strings(&member, base.saturating_add(offset), most, places)
            }),
        Class::H5T_ARRAY => {
            let inner = super_type(ty)?;
            let mut first = Vec::new();
            find_strings(&inner, 0, most, &mut first)?;
            if first.is_empty() {
                return Ok(());
            }
            let count = array_dims(ty)?
                .into_iter()
                .try_fold(1_u64, |n, d| n.checked_mul(d));
            for i in 0..count.unwrap_or(u64::MAX) {
                if places.len().saturating_add(first.len()) > most {
                    return Err(Failure("too many strings in an element".into()));
                }
                let at = usize::try_from(i)
                    .unwrap_or(usize::MAX)
                    .saturating_mul(size(&inner));
                places.extend(
                    (first.iter()).map(|place| base.saturating_add(at).saturating_add(*place)),
                );
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

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

/// Gives back the memory that the pointers in a buffer lead to. What cannot be given back is lost memory of this
/// process, nothing else.
///
/// # Safety
/// The buffer holds `len` elements of the type, as libhdf5 has read them.
unsafe fn reclaim(buf: &mut [u8], len: usize, mem_type: &Id) {
    if len == 0 {
        return;
    }
    if let Ok(space) = simple(&[len as hsize_t]) {
        // SAFETY: the caller's promise; the dataspace has as many elements as the buffer.
        unsafe {
            h5t::H5Treclaim(
                mem_type.0,
                space.0,
                h5p::H5P_DEFAULT,
                buf.as_mut_ptr().cast(),
            )
        };
    }
}
