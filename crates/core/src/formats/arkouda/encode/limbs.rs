//! Integers of more than 64 bits: a group of limbs, lowest first.

use super::{Type, below, marks, numbers};
use crate::store::base::invalid;
use crate::store::encode::array::NpyArray;
use crate::store::encode::mapped::Mapped;
use crate::store::object::NewFile;
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_hdf5::NewAttribute;

/// The most limbs of a number.
const MOST: usize = 1024;

/// The type of a limb.
pub(super) fn limb() -> DType {
    DType::scalar(Kind::Uint, 8, Order::Little)
}

/// Adds limbs in columns, lowest first. Each number has at most `max_bits`, unless that is -1.
pub(super) fn add_columns(
    new: &mut NewFile,
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
        numbers(new, &path, &column, Type::Pdarray, data)?;
    }
    mark(new, path, limbs, max_bits);
    Ok(())
}

/// Marks a group of limbs as integers.
pub(super) fn mark(new: &mut NewFile, path: &[String], limbs: u64, max_bits: i64) {
    let mut attributes = marks(Type::Pdarray);
    attributes.push(NewAttribute::int("isBigInt", 1));
    attributes.push(NewAttribute::int("MaxBits", max_bits));
    attributes.push(NewAttribute::int("NumLimbs", limbs as i64));
    new.mark(path, attributes);
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
