//! Integers of more than 64 bits: a group of limbs, lowest first.

use super::composite::{CompositeWriter, below};
use super::members::{Complete, WrittenMembers, numbered};
use super::{Type, marks, numbers, vector};
use crate::store::base::invalid;
use crate::store::encode::array::NpyArray;
use crate::store::encode::integers::Integers;
use crate::store::encode::mapped::Mapped;
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_hdf5::NewAttribute;

/// The most limbs of a number.
const MOST: usize = 1024;

/// The member with the number of bits of each number.
pub(super) const MAX_BITS: &str = "MaxBits";

/// The type of a limb.
pub(super) fn limb() -> DType {
    DType::scalar(Kind::Uint, 8, Order::Little)
}

impl CompositeWriter<'_> {
    /// Adds limbs of equal length, lowest first, and the number of bits of the numbers, if given.
    pub(super) fn bigint(
        &mut self,
        path: &[String],
        members: &WrittenMembers<'_>,
    ) -> Result<Complete> {
        let limbs = match numbered(members, "Limb_") {
            Ok(limbs) => limbs,
            Err(missing) => return Ok(Err(missing)),
        };
        self.only(members, &[MAX_BITS], "Limb_")?;
        let max_bits = match members.get(MAX_BITS) {
            Some(_) => self.max_bits(members)?,
            None => -1,
        };
        let mut length = None;
        for number in 0..limbs {
            let name = format!("Limb_{number}");
            let array = self.array(members, &name)?;
            if array.dtype != limb() {
                let dtype = array.dtype.name();
                return Err(invalid(format!("{name} is {dtype}, and must be <u8")));
            }
            let here = vector(&name, &array)?;
            if *length.get_or_insert(here) != here {
                return Err(invalid(format!("{name} has another length than Limb_0")));
            }
            let data = array.data.clone();
            numbers(self.new, &below(path, &name), &array, Type::Pdarray, data)?;
        }
        self.mark_bigint(path, limbs, max_bits);
        Ok(Ok(()))
    }

    fn max_bits(&self, members: &WrittenMembers<'_>) -> Result<i64> {
        let mut array = self.array(members, MAX_BITS)?;
        let wrong = || invalid("MaxBits is one integer: -1, or more than 0");
        if array.elements() != 1 {
            return Err(wrong());
        }
        array.shape = vec![1];
        let mut found = [0];
        Integers::new(MAX_BITS, array)?.read(0, &mut found)?;
        match found {
            [bits @ (-1 | 1..)] => Ok(bits),
            _ => Err(wrong()),
        }
    }

    /// Adds limbs in columns, lowest first. Each number has at most `max_bits`, unless that is -1.
    pub(super) fn columns(
        &mut self,
        path: &[String],
        array: &NpyArray,
        (len, limbs): (u64, u64),
        max_bits: i64,
    ) -> Result<()> {
        let count = usize::try_from(limbs)
            .ok()
            .filter(|n| (1..=MOST).contains(n));
        let count = count.ok_or_else(|| invalid(format!("big integers of {limbs} limbs")))?;
        let array = array.little();
        for number in 0..count {
            let unused = unused(number, max_bits);
            let take = move |first: u64, from: &[u8], to: &mut [u8]| {
                let rows = from.chunks_exact(8 * count).zip(to.chunks_exact_mut(8));
                for ((row, place), at) in rows.zip(first..) {
                    let limb = row.get(8 * number..8 * number + 8).unwrap_or(&[0; 8]);
                    place.copy_from_slice(limb);
                    let value = u64::from_le_bytes(limb.try_into().unwrap_or_default());
                    if value & unused != 0 {
                        let why = format!("number {at} has more than {max_bits} bits");
                        return Err(invalid(why));
                    }
                }
                Ok(())
            };
            let column = NpyArray {
                dtype: limb(),
                shape: vec![len],
                data: Mapped::content(array.data.clone(), 8 * count, 8, take),
            };
            let path = below(path, &format!("Limb_{number}"));
            let data = column.data.clone();
            numbers(self.new, &path, &column, Type::Pdarray, data)?;
        }
        self.mark_bigint(path, limbs, max_bits);
        Ok(())
    }

    fn mark_bigint(&mut self, path: &[String], limbs: u64, max_bits: i64) {
        let mut attributes = marks(Type::Pdarray);
        attributes.push(NewAttribute::int("isBigInt", 1));
        attributes.push(NewAttribute::int("MaxBits", max_bits));
        attributes.push(NewAttribute::int("NumLimbs", limbs as i64));
        self.new.mark(path, attributes);
    }
}

/// Returns the bits of a limb that no number has.
fn unused(limb: usize, max_bits: i64) -> u64 {
    let Ok(bits) = u64::try_from(max_bits) else {
        return 0;
    };
    match bits.saturating_sub(64 * limb as u64) {
        left @ 0..64 => u64::MAX << left,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::unused;

    #[test]
    fn bits_beyond_the_last_are_not_used() {
        assert_eq!(unused(0, -1), 0);
        assert_eq!((unused(0, 70), unused(1, 70)), (0, u64::MAX << 6));
        assert_eq!((unused(0, 64), unused(1, 64)), (0, u64::MAX));
        assert_eq!(unused(0, 1), u64::MAX << 1);
    }
}
