//! The keys of a GroupBy as a number for each row: which rows Arkouda may consider equal, and which it may not.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::below;
use crate::store::base::invalid;
use crate::store::encode::NpyArray;
use crate::store::encode::integers::Integers;
use crate::store::encode::text::windows;
use crate::store::object::NewFile;
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_hdf5::NewElement;

/// The most rows that are compared: all are in memory.
const MOST: u64 = 8 << 20;

/// The longest string of a key, which is in memory.
const LONGEST: u64 = 64 << 20;

/// All keys together, row by row.
pub(super) struct RowKeys {
    /// Rows with equal keys have equal numbers. Zeros of both signs are equal, and so are all NaNs.
    equal: Vec<u64>,
    /// Rows with different keys have different numbers. Every NaN is different.
    different: Vec<u64>,
}

impl RowKeys {
    /// Returns the keys of an object that were just added, with this many rows; `None` if there are too many.
    pub(super) fn of(new: &NewFile, path: &[String], keys: u64, rows: u64) -> Result<Option<Self>> {
        let Some(count) = usize::try_from(rows).ok().filter(|_| rows <= MOST) else {
            return Ok(None);
        };
        let mut all = Self {
            equal: vec![0; count],
            different: vec![0; count],
        };
        for number in 0..keys {
            let path = below(path, &format!("KEY_{number}"));
            if let Some(codes) = find(new, &path).or_else(|| find(new, &below(&path, "codes"))) {
                all.numbers(&codes)?;
            } else if let Some(segments) = find(new, &below(&path, "segments")) {
                let Some(values) = find(new, &below(&path, "values")) else {
                    return Ok(None);
                };
                all.strings(&values, &Integers::new("segments", segments)?)?;
            } else {
                for limb in 0.. {
                    match find(new, &below(&path, &format!("Limb_{limb}"))) {
                        Some(limb) => all.numbers(&limb)?,
                        None => break,
                    }
                }
            }
        }
        Ok(Some(all))
    }

    fn add(&mut self, row: usize, equal: u64, different: u64) {
        if let (Some(of), Some(not)) = (self.equal.get_mut(row), self.different.get_mut(row)) {
            *of = xxh3_64_with_seed(&equal.to_le_bytes(), *of);
            *not = xxh3_64_with_seed(&different.to_le_bytes(), *not);
        }
    }

    fn numbers(&mut self, array: &NpyArray) -> Result<()> {
        let Some((kind, size, order)) = array.scalar().filter(|(_, size, _)| *size > 0) else {
            return Ok(());
        };
        let mut row = 0;
        windows(array, size, |block| {
            for bytes in block.chunks_exact(size) {
                let own = xxh3_64(bytes);
                match float(bytes, kind, order) {
                    Some(value) if value.is_nan() => self.add(row, u64::MAX, row as u64),
                    Some(0.0) => self.add(row, 0, own),
                    _ => self.add(row, own, own),
                }
                row += 1;
            }
            Ok(())
        })
    }

    fn strings(&mut self, values: &NpyArray, segments: &Integers) -> Result<()> {
        let mut bytes = Vec::new();
        let mut before: Option<(usize, u64)> = None;
        let mut add = |row: usize, from: u64, to: u64| -> Result<()> {
            let len = to.saturating_sub(from);
            if len > LONGEST {
                return Err(invalid(format!("a key of more than {LONGEST} bytes")));
            }
            bytes.resize(usize::try_from(len).unwrap_or(0), 0);
            values.data.read_at(from, &mut bytes)?;
            let own = xxh3_64(&bytes);
            self.add(row, own, own);
            Ok(())
        };
        segments.each(|row, start| {
            let start = u64::try_from(start).unwrap_or(0);
            if let Some((row, from)) = before {
                add(row, from, start)?;
            }
            before = Some((usize::try_from(row).unwrap_or(usize::MAX), start));
            Ok(())
        })?;
        match before {
            Some((row, from)) => add(row, from, values.data.len()),
            None => Ok(()),
        }
    }

    /// Checks that rows are grouped by their keys: every row occurs once in the permutation, all rows of a group are
    /// equal, no two groups are, and the unique key of each group is one of its rows.
    pub(super) fn check(
        &self,
        permutation: &Integers,
        segments: &Integers,
        unique: &Integers,
    ) -> Result<()> {
        let read = |array: &Integers| -> Result<Vec<i64>> {
            let count = usize::try_from(array.len().min(MOST + 1)).unwrap_or(0);
            let mut all = vec![0; count];
            array.read(0, &mut all)?;
            Ok(all)
        };
        let (starts, unique) = (read(segments)?, read(unique)?);
        let mut starts = starts.into_iter().peekable();
        let mut seen = vec![false; self.equal.len()];
        let mut groups: Vec<(u64, u64)> = Vec::new();
        let mut empty = 0;
        permutation.each(|place, row| {
            let mut begun = 0;
            while starts
                .next_if(|&start| u64::try_from(start).is_ok_and(|start| start <= place))
                .is_some()
            {
                begun += 1;
            }
            let at = usize::try_from(row).unwrap_or(usize::MAX);
            let (Some(&equal), Some(&different), Some(seen)) =
                (self.equal.get(at), self.different.get(at), seen.get_mut(at))
            else {
                return Err(invalid(format!("permutation: there is no row {row}")));
            };
            if std::mem::replace(seen, true) {
                return Err(invalid(format!("permutation has row {row} twice")));
            }
            if begun > 0 {
                empty += begun - 1;
                groups.push((equal, different));
            }
            match groups.last() {
                Some((of, _)) if *of == equal => Ok(()),
                Some(_) => Err(invalid(format!(
                    "row {row} has another key than the group that segments and permutation put it into"
                ))),
                None => Err(invalid("segments: the first group does not begin at 0")),
            }
        })?;
        let mut all: Vec<u64> = groups.iter().map(|(_, different)| *different).collect();
        all.sort_unstable();
        if all.windows(2).any(|two| two[0] == two[1]) {
            return Err(invalid("segments: two groups have the same key"));
        }
        // If a group is empty, it is unknown which group each unique key belongs to.
        if empty == 0 && groups.len() == unique.len() {
            for (number, ((of, _), row)) in groups.iter().zip(unique).enumerate() {
                let key = usize::try_from(row)
                    .ok()
                    .and_then(|row| self.equal.get(row));
                if key != Some(of) {
                    let why =
                        format!("unique_key_idx: number {number} is {row}, a row of another group");
                    return Err(invalid(why));
                }
            }
        }
        Ok(())
    }
}

/// Returns the value, if it is a float.
fn float(bytes: &[u8], kind: Kind, order: Order) -> Option<f64> {
    if kind != Kind::Float {
        return None;
    }
    let is_big = matches!(order, Order::Big);
    if let Ok(eight) = <[u8; 8]>::try_from(bytes) {
        return Some(if is_big {
            f64::from_be_bytes(eight)
        } else {
            f64::from_le_bytes(eight)
        });
    }
    let four = <[u8; 4]>::try_from(bytes).ok()?;
    Some(f64::from(if is_big {
        f32::from_be_bytes(four)
    } else {
        f32::from_le_bytes(four)
    }))
}

/// Returns a dataset of the new file.
fn find(new: &NewFile, path: &[String]) -> Option<NpyArray> {
    let mut datasets = new.outline.datasets.iter().zip(&new.data);
    let (dataset, data) = datasets.find(|(dataset, _)| dataset.path == path)?;
    let NewElement::Array(dtype) = &dataset.element else {
        return None;
    };
    let dtype: DType = dtype.clone();
    Some(NpyArray {
        dtype,
        shape: dataset.shape.clone(),
        data: data.clone(),
    })
}
