//! Integers of more than 64 bits, joined: a matrix with a row per number, lowest limb first.
//!
//! Arkouda stores each limb in a separate dataset, beginning with `Limb_0`, the lowest, and drops limbs that are zero
//! in all numbers of a file: the files of a set may have different numbers of limbs. Missing limbs are zero.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::array::{ArraySource, Origin};
use super::object::{JoinedObject, Object, total};
use crate::formats::plain::array::ArrayFile;
use npyfs_base::error::{Error, Result};
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_io::content::{Concat, Content, InMemory};
use npyfs_io::provenance::Provenance;
use npyfs_io::rows::in_rows;

/// The most limbs of a number.
const MOST: usize = 4096;

/// A joined array of large numbers.
pub(super) struct Limbs {
    /// The limbs, by part and by limb.
    parts: Vec<Vec<ArrayFile>>,
    width: usize,
    /// The mask of the bits of each limb.
    masks: Vec<u64>,
}

/// Returns whether a group represents no numbers: it has an empty limb, which Arkouda calls `values`.
pub(super) fn is_empty(group: &Object) -> bool {
    match group.members() {
        [(name, member)] => name == b"values" && member.is_empty_dataset(),
        _ => false,
    }
}

/// Returns whether an object of one file consists of limbs.
pub(super) fn has_limbs(object: &Object) -> bool {
    object.is_group() && (object.marks.is_bigint || object.member("Limb_0").is_some())
}

impl Limbs {
    pub(super) fn new(origin: &Origin, joined: &JoinedObject) -> Result<Self> {
        let set = &origin.set;
        let mut parts = Vec::new();
        let mut bits: Option<(usize, Option<u64>)> = None;
        for (number, object) in joined.parts.iter().enumerate() {
            let wrong = |why: String| Error::damaged(format!("{why} in {}", set.name(number)));
            let Some(object) = object.as_ref().filter(|object| object.is_group()) else {
                // An empty locale holds an empty dataset in place of the group.
                parts.push(Vec::new());
                continue;
            };
            let limbs = limbs(origin, joined, number).map_err(|e| wrong(e.message))?;
            if limbs.is_empty() && !is_empty(object) {
                return Err(wrong("no Limb_0".into()));
            }
            if object.marks.is_bigint && !limbs.is_empty() {
                match bits {
                    Some((at, known)) if known != object.marks.max_bits => {
                        let other = set.name(at);
                        return Err(wrong(format!("MaxBits is not that of {other}")));
                    }
                    _ => bits = Some((number, object.marks.max_bits)),
                }
            }
            if let Some(claimed) = object.marks.members
                && !limbs.is_empty()
                && claimed != limbs.len() as u64
            {
                return Err(wrong(format!(
                    "NumLimbs is {claimed}, there are {}",
                    limbs.len()
                )));
            }
            parts.push(limbs);
        }
        let width = parts.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let max_bits = bits.and_then(|(_, bits)| bits).filter(|&bits| bits > 0);
        let masks = (0..width as u64)
            .map(
                |limb| match max_bits.map(|bits| bits.saturating_sub(64 * limb)) {
                    Some(left @ 0..64) => (1 << left) - 1,
                    _ => u64::MAX,
                },
            )
            .collect();
        Ok(Self {
            parts,
            width,
            masks,
        })
    }

    /// Returns the number of limbs of each number.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    fn rows(&self, part: usize) -> u64 {
        let first = self.parts.get(part).and_then(|limbs| limbs.first());
        first.map_or(0, |limb| limb.dataset.shape[0])
    }
}

/// Returns the number of elements that an object of limbs has in one part.
pub(super) fn rows(object: &Object) -> u64 {
    let first = object.member("Limb_0").and_then(|limb| limb.dataset());
    first
        .and_then(|limb| limb.shape.first())
        .copied()
        .unwrap_or(0)
}

/// Returns the limbs of one part, lowest first.
fn limbs(origin: &Origin, joined: &JoinedObject, part: usize) -> Result<Vec<ArrayFile>> {
    let uint64 = DType::scalar(Kind::Uint, 8, Order::Little);
    let mut limbs: Vec<ArrayFile> = Vec::new();
    loop {
        let name = format!("Limb_{}", limbs.len());
        let Some(member) = joined.member(&name) else {
            break;
        };
        let Some(object) = member.parts.get(part).and_then(Option::as_ref) else {
            break;
        };
        let limb = origin
            .dataset(part, object, &member)
            .filter(|limb| {
                limb.dataset.shape.len() == 1
                    && limb.dataset.element
                        == npyfs_hdf5::ElementType::Fixed {
                            dtype: uint64.clone(),
                            inner: Vec::new(),
                            convert: false,
                        }
            })
            .ok_or_else(|| Error::damaged(format!("{name} is no 1-D array of <u8")))?;
        if let Some(first) = limbs.first()
            && first.dataset.shape != limb.dataset.shape
        {
            return Err(Error::damaged(format!(
                "{name} has {} elements, Limb_0 {}",
                limb.dataset.shape[0], first.dataset.shape[0]
            )));
        }
        if limbs.len() == MOST {
            return Err(Error::damaged("too many limbs"));
        }
        limbs.push(limb);
    }
    Ok(limbs)
}

impl ArraySource for Limbs {
    fn form(&self) -> Result<(DType, Vec<u64>)> {
        let rows = total((0..self.parts.len()).map(|part| self.rows(part)));
        let dtype = DType::scalar(Kind::Uint, 8, Order::Little);
        Ok((dtype, vec![rows, self.width as u64]))
    }

    fn payload(&self) -> Result<Arc<dyn Content>> {
        let parts = self.parts.iter().enumerate();
        let parts = parts
            .filter(|(number, _)| self.rows(*number) > 0)
            .map(|(number, limbs)| {
                let columns = limbs
                    .iter()
                    .map(|limb| Ok(Arc::new(limb.payload()?) as Arc<dyn Content>))
                    .collect::<Result<_>>()?;
                Ok(Arc::new(Interleaved {
                    columns,
                    rows: self.rows(number),
                    masks: self.masks.clone(),
                }) as Arc<dyn Content>)
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Arc::new(Concat::new(parts)))
    }

    fn part(&self, number: usize) -> Json {
        let limbs = self.parts.get(number).map_or(0, Vec::len);
        json!({ "elements": self.rows(number), "limbs": limbs })
    }
}

/// One limb of all numbers, as stored: it includes bits above `MaxBits`, which are not part of the numbers.
pub(super) struct Limb {
    pub limbs: Arc<Limbs>,
    pub number: usize,
}

impl ArraySource for Limb {
    fn form(&self) -> Result<(DType, Vec<u64>)> {
        let (dtype, shape) = self.limbs.form()?;
        Ok((dtype, shape.into_iter().take(1).collect()))
    }

    fn payload(&self) -> Result<Arc<dyn Content>> {
        let parts = self.limbs.parts.iter().enumerate();
        let parts = parts
            .filter(|(part, _)| self.limbs.rows(*part) > 0)
            .map(|(part, limbs)| match limbs.get(self.number) {
                Some(limb) => Ok(Arc::new(limb.payload()?) as Arc<dyn Content>),
                None => Ok(Arc::new(ZeroLimb(self.limbs.rows(part).saturating_mul(8))) as _),
            });
        Ok(Arc::new(Concat::new(parts.collect::<Result<Vec<_>>>()?)))
    }

    fn part(&self, part: usize) -> Json {
        json!({ "elements": self.limbs.rows(part) })
    }
}

/// A limb that is zero in all numbers of a part, with this many bytes.
struct ZeroLimb(u64);

impl Content for ZeroLimb {
    fn len(&self) -> u64 {
        self.0
    }

    fn read_at(&self, _offset: u64, buf: &mut [u8]) -> Result<()> {
        buf.fill(0);
        Ok(())
    }

    fn tell_provenance(&self, to: &mut Provenance) -> bool {
        to.numbers("zeros", &[self.0]);
        true
    }
}

/// The number of bits of each number, if limited.
pub(super) struct MaxBits(pub i64);

impl ArraySource for MaxBits {
    fn form(&self) -> Result<(DType, Vec<u64>)> {
        Ok((DType::int(8), Vec::new()))
    }

    fn payload(&self) -> Result<Arc<dyn Content>> {
        Ok(Arc::new(InMemory(self.0.to_le_bytes().to_vec())))
    }

    fn part(&self, _number: usize) -> Json {
        json!({})
    }
}

/// Columns of 64-bit numbers as the rows of a matrix; there is one mask for each column.
struct Interleaved {
    columns: Vec<Arc<dyn Content>>,
    rows: u64,
    masks: Vec<u64>,
}

impl Content for Interleaved {
    fn len(&self) -> u64 {
        self.rows.saturating_mul(8 * self.masks.len() as u64)
    }

    fn is_costly(&self) -> bool {
        self.columns.iter().any(|column| column.is_costly())
    }

    fn tell_provenance(&self, to: &mut Provenance) -> bool {
        to.numbers("interleaved", &self.masks);
        to.numbers("rows", &[self.rows, self.columns.len() as u64]);
        let mut columns = self.columns.iter();
        columns.all(|column| column.tell_provenance(to))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let width = self.masks.len();
        let mut source = Vec::new();
        in_rows(8 * width, offset, buf, |first, rows| {
            rows.fill(0);
            source.resize(rows.len() / width, 0);
            for (k, (column, mask)) in self.columns.iter().zip(&self.masks).enumerate() {
                column.read_at(8 * first, &mut source)?;
                let places = rows
                    .as_chunks_mut::<8>()
                    .0
                    .iter_mut()
                    .skip(k)
                    .step_by(width);
                for (limb, place) in source.as_chunks::<8>().0.iter().zip(places) {
                    *place = (u64::from_le_bytes(*limb) & mask).to_le_bytes();
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_io::content::read;

    #[test]
    fn limbs_stand_side_by_side_and_missing_ones_are_zero() {
        let column = |numbers: &[u64]| {
            let bytes = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
            Arc::new(InMemory(bytes)) as Arc<dyn Content>
        };
        let matrix = Interleaved {
            columns: vec![column(&[1, 2, u64::MAX]), column(&[4, 5, 6])],
            rows: 3,
            masks: vec![u64::MAX, 3, u64::MAX],
        };
        let want: Vec<u8> = [1, 0, 0, 2, 1, 0, u64::MAX, 2, 0]
            .iter()
            .flat_map(|n| n.to_le_bytes())
            .collect();
        for start in 0..72 {
            let got = read(&matrix, start as u64, 40, &Arc::default()).unwrap();
            assert_eq!(got.as_ref(), &want[start..(start + 40).min(72)]);
        }
    }
}
