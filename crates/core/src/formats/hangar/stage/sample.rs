//! A sample to be stored: its bytes, checked and with their digest.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::formats::hangar::digest;
use crate::formats::hangar::digest::Hash;
use crate::formats::hangar::record::Record;
use crate::formats::hangar::schema::{SampleKind, Schema};
use crate::store::base::invalid;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy;
use npyfs_base::npy::dtype::DType;
use npyfs_base::npy::order::to_c_order;
use npyfs_base::npy::parse::{self, LONGEST_HEADER};
use npyfs_io::content::Content;

/// The largest size in bytes of a sample, which is also the limit for reading one.
const LARGEST: u64 = 1 << 30;

/// The largest size in bytes of a text or bytes sample: a file of them holds 300 MB (`backends/lmdb_30.py`).
const LARGEST_VALUE: u64 = 256 << 20;

/// The location of the bytes of a sample.
#[derive(Clone, Debug)]
pub enum SamplePlace {
    /// In memory only.
    Held(Arc<Vec<u8>>),
    /// In a data file of this checkout.
    Written(Record),
    /// The repository had a sample with this digest already.
    Known,
}

/// The kind and the hash of a sample, which its digest consists of.
pub type SampleId = (u8, Hash);

/// A sample. Its content never changes; its location does.
#[derive(Debug)]
pub struct NewSample {
    /// The type of an array; `None` for text or bytes.
    pub dtype: Option<DType>,
    /// The shape of an array; empty for text and bytes.
    pub shape: Vec<u64>,
    /// The letter in front of the digest.
    pub kind: u8,
    /// The hash of the content.
    pub hash: Hash,
    /// The size in bytes without a header.
    pub len: u64,
    place: Mutex<SamplePlace>,
}

impl NewSample {
    /// Makes an array sample from its bytes in C order.
    pub fn array(dtype: DType, shape: Vec<u64>, bytes: Vec<u8>) -> Result<Self> {
        let hash = digest::of_array(&bytes, &shape, &dtype)
            .ok_or_else(|| invalid(format!("Hangar cannot hold dtype {}", dtype.name())))?;
        Ok(Self::new(Some(dtype), shape, b'0', hash, bytes))
    }

    fn new(dtype: Option<DType>, shape: Vec<u64>, kind: u8, hash: Hash, bytes: Vec<u8>) -> Self {
        Self {
            dtype,
            shape,
            kind,
            hash,
            len: bytes.len() as u64,
            place: Mutex::new(SamplePlace::Held(Arc::new(bytes))),
        }
    }

    /// Makes a sample that the repository has, of a column with this schema; `length` is that of text and bytes.
    pub fn known(
        schema: &Schema,
        kind: u8,
        hash: Hash,
        shape: Option<&[u64]>,
        length: Option<u64>,
    ) -> Result<Self> {
        let unknown = || Error::damaged("the size of the sample is not known");
        let dtype = match &schema.samples {
            SampleKind::Arrays { dtype, .. } => Some(dtype.clone()),
            SampleKind::Text | SampleKind::Bytes => None,
        };
        let shape = shape.unwrap_or_default().to_vec();
        let len = match &dtype {
            Some(dtype) => npy::payload_len(dtype, &shape).ok_or_else(unknown)?,
            None => length.ok_or_else(unknown)?,
        };
        Ok(Self {
            dtype,
            shape,
            kind,
            hash,
            len,
            place: Mutex::new(SamplePlace::Known),
        })
    }

    /// Returns the sample for use at another key; `None` while it is in memory only.
    pub fn reusable(&self) -> Option<Self> {
        let place = self.place();
        if matches!(place, SamplePlace::Held(_)) {
            return None;
        }
        Some(Self {
            dtype: self.dtype.clone(),
            shape: self.shape.clone(),
            kind: self.kind,
            hash: self.hash,
            len: self.len,
            place: Mutex::new(place),
        })
    }

    /// Makes a sample from the content of a file with this suffix.
    pub fn read(suffix: &str, content: &dyn Content) -> Result<Self> {
        let len = content.len();
        let most = match suffix {
            ".npy" => LARGEST + LONGEST_HEADER as u64,
            _ => LARGEST_VALUE,
        };
        if len > most {
            let why = format!("a sample of more than {most} bytes");
            return Err(Error::new(ErrorKind::TooLarge, why));
        }
        let read = |from: u64, len: u64| {
            let len = usize::try_from(len).map_err(|_| invalid("too large"))?;
            let mut bytes = vec![0; len];
            content.read_at(from, &mut bytes)?;
            Ok::<_, Error>(bytes)
        };
        match suffix {
            ".npy" => {
                let head = read(0, len.min(LONGEST_HEADER as u64))?;
                let header = parse::parse(&head)?;
                header.check_len(len)?;
                let payload = match head.len() as u64 == len {
                    // The whole content was read.
                    true => {
                        let start =
                            usize::try_from(header.start).map_err(|_| invalid("too large"))?;
                        let mut whole = head;
                        whole.drain(..start.min(whole.len()));
                        whole
                    }
                    false => read(header.start, header.len)?,
                };
                let payload =
                    if header.fortran_order && header.shape.len() > 1 && !payload.is_empty() {
                        let mut turned = vec![0; payload.len()];
                        to_c_order(&header.shape, header.dtype.size(), &payload, &mut turned)
                            .ok_or_else(|| invalid("its length is not that of its shape"))?;
                        turned
                    } else {
                        payload
                    };
                Self::array(header.dtype, header.shape, payload)
            }
            ".txt" => {
                let bytes = read(0, len)?;
                if std::str::from_utf8(&bytes).is_err() {
                    return Err(invalid("not UTF-8: a str sample is text"));
                }
                let hash = digest::of_bytes(&bytes);
                Ok(Self::new(None, Vec::new(), b'2', hash, bytes))
            }
            ".bin" => {
                let bytes = read(0, len)?;
                let hash = digest::of_bytes(&bytes);
                Ok(Self::new(None, Vec::new(), b'3', hash, bytes))
            }
            other => Err(invalid(format!("no sample ends in {other}"))),
        }
    }

    /// Fails with EINVAL and the reason if a column of this schema cannot have the sample.
    pub fn check(&self, schema: &Schema) -> Result<()> {
        match (&schema.samples, &self.dtype) {
            (SampleKind::Text, None) if self.kind == b'2' => Ok(()),
            (SampleKind::Bytes, None) if self.kind == b'3' => Ok(()),
            (
                SampleKind::Arrays {
                    dtype,
                    shape,
                    fixed,
                },
                Some(own),
            ) => {
                if dtype != own {
                    let (own, dtype) = (own.name(), dtype.name());
                    return Err(invalid(format!("dtype {own}, the column has {dtype}")));
                }
                if self.shape.contains(&0) {
                    return Err(invalid("Hangar cannot hold arrays of no elements"));
                }
                let own = &self.shape;
                if *fixed && own != shape {
                    return Err(invalid(format!("shape {own:?}, the column has {shape:?}")));
                }
                let fits = own.len() == shape.len() && own.iter().zip(shape).all(|(a, b)| a <= b);
                if !fits {
                    let why = format!("shape {own:?}, the column has at most {shape:?}");
                    return Err(invalid(why));
                }
                Ok(())
            }
            _ => Err(invalid(format!(
                "samples of this column end in {}",
                schema.suffix()
            ))),
        }
    }

    /// Returns the id of the sample.
    pub fn id(&self) -> SampleId {
        (self.kind, self.hash)
    }

    /// Returns the key of its record.
    pub fn key(&self) -> Vec<u8> {
        digest::key(self.kind, &self.hash)
    }

    /// Returns the digest as Hangar prints it.
    pub fn digest(&self) -> String {
        digest::print(self.kind, &self.hash)
    }

    /// Returns the bytes of the sample, as long as they are in memory.
    pub fn held(&self) -> Option<Arc<Vec<u8>>> {
        match &*self.place.lock() {
            SamplePlace::Held(bytes) => Some(bytes.clone()),
            SamplePlace::Written(_) | SamplePlace::Known => None,
        }
    }

    /// Returns true as long as the bytes of the sample are in memory.
    pub fn is_held(&self) -> bool {
        matches!(*self.place.lock(), SamplePlace::Held(_))
    }

    /// Notes a new location of the sample.
    pub fn moved(&self, place: SamplePlace) {
        *self.place.lock() = place;
    }

    /// Returns the present location of the bytes.
    pub fn place(&self) -> SamplePlace {
        self.place.lock().clone()
    }
}

/// Bytes in memory with several owners.
pub struct SharedBytes(pub Arc<Vec<u8>>);

impl Content for SharedBytes {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        match at
            .checked_add(buf.len())
            .and_then(|end| self.0.get(at..end))
        {
            Some(bytes) => buf.copy_from_slice(bytes),
            None => return Err(Error::damaged("read behind the end")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_base::npy;
    use npyfs_io::content::InMemory;

    fn schema(kind: &str) -> Schema {
        let text = format!(
            "{{'column_type':'ndarray','schema_type':'{kind}','shape':(2,3),'dtype':'int16'}}"
        );
        Schema::parse(text.as_bytes()).unwrap()
    }

    fn sample(dtype: &DType, shape: &[u64]) -> Result<NewSample> {
        let mut file = npy::header(dtype, shape);
        file.resize(
            file.len() + usize::try_from(npy::payload_len(dtype, shape).unwrap()).unwrap(),
            7,
        );
        NewSample::read(".npy", &InMemory(file))
    }

    #[test]
    fn what_does_not_fit_the_schema_is_refused() {
        let (fixed, variable) = (schema("fixed_shape"), schema("variable_shape"));
        let int = DType::int(2);
        let good = sample(&int, &[2, 3]).unwrap();
        assert!(good.check(&fixed).is_ok() && good.check(&variable).is_ok());
        let small = sample(&int, &[1, 3]).unwrap();
        assert!(small.check(&fixed).is_err() && small.check(&variable).is_ok());
        for shape in [&[3, 3][..], &[2, 4], &[6], &[2, 3, 1], &[0, 3], &[]] {
            let sample = sample(&int, shape).unwrap();
            assert!(sample.check(&fixed).is_err() && sample.check(&variable).is_err());
        }
        let other = sample(&DType::int(4), &[2, 3]).unwrap();
        assert!(other.check(&fixed).unwrap_err().message.contains("dtype"));
        assert!(sample(&DType::text(3), &[2, 3]).is_err());
        let text = NewSample::read(".txt", &InMemory(b"text".to_vec())).unwrap();
        assert!(text.check(&fixed).is_err());
        assert!(NewSample::read(".txt", &InMemory(vec![0xff])).is_err());
        assert!(NewSample::read(".bin", &InMemory(vec![0xff])).is_ok());
        assert!(NewSample::read(".npy", &InMemory(b"text".to_vec())).is_err());
    }
}
