//! The statistics of an array: one column for plain elements, one for each member of a structured type.

use std::ops::Range;

use half::f16;

use super::pass::Visitor;
use super::printed::float::Width;
use super::printed::time::{NOT_A_TIME, TimeUnit};
use super::tally::{Distinct, FloatTally, IntegerTally, Sum};
use super::value::{float, integer, trimmed, width};
use npyfs_base::npy::dtype::{DType, Field, Kind, Order};

/// Members of a structured type that are looked at.
const MOST: usize = 64;

/// The statistics of a column.
pub(super) enum Tally {
    /// The number of those that are true, and of all.
    Bools { trues: u64, count: u64 },
    /// Integers.
    Integers(IntegerTally),
    /// Times and spans, in the unit of the type.
    Times(IntegerTally, Option<TimeUnit>),
    /// Floats.
    Floats(FloatTally, Width),
    /// Complex numbers: their sizes, and the sums of both parts of those that are numbers.
    Complex(FloatTally, [Sum; 2]),
    /// Text or bytes, of the kind and in the order that is given.
    Texts(Box<Distinct>, Kind, Order),
}

/// The elements of an array, or one member of all of them.
pub(super) struct Column {
    /// The name of the member, with dots between those of nested types; empty for plain elements.
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) tally: Tally,
    kind: Kind,
    order: Order,
    /// Bytes of an element of the array, and where in it those of the column begin.
    step: usize,
    offset: usize,
    /// Bytes of one element of the column, and how many there are in one of the array.
    size: usize,
    count: usize,
    floats: Vec<f64>,
    integers: Vec<i64>,
}

/// Returns the columns that have statistics, and whether there are more.
pub(super) fn columns(dtype: &DType) -> (Vec<Column>, bool) {
    let mut columns = Vec::new();
    let has_more = !add("", dtype, (0, 1), dtype.size(), &mut columns);
    (columns, has_more)
}

/// Adds the columns of a type that stands `count` times at `offset` of elements of `step` bytes. False if there are too
/// many.
fn add(
    name: &str,
    dtype: &DType,
    place: (usize, usize),
    step: usize,
    to: &mut Vec<Column>,
) -> bool {
    let (offset, count) = place;
    match dtype {
        DType::Scalar { .. } => {
            if let Some(column) = Column::new(name, dtype, place, step) {
                if to.len() == MOST {
                    return false;
                }
                to.push(column);
            }
            true
        }
        // Structures in arrays have no columns: their members do not follow each other.
        DType::Struct { .. } if count != 1 => true,
        DType::Struct { fields, .. } => fields.iter().all(|field: &Field| {
            let name = match name {
                "" => field.name.clone(),
                above => format!("{above}.{}", field.name),
            };
            let dims = field.shape.iter().map(|&n| usize::try_from(n).ok());
            let inner = dims
                .into_iter()
                .try_fold(1_usize, |count, n| count.checked_mul(n?));
            let place = offset.checked_add(field.offset).zip(inner);
            place.is_none_or(|place| add(&name, &field.dtype, place, step, to))
        }),
    }
}

impl Column {
    fn new(name: &str, dtype: &DType, place: (usize, usize), step: usize) -> Option<Self> {
        let DType::Scalar {
            kind,
            size,
            order,
            unit,
        } = dtype
        else {
            return None;
        };
        let tally = match kind {
            _ if *size == 0 => return None,
            Kind::Bool => Tally::Bools { trues: 0, count: 0 },
            Kind::Uint if *size == 8 => Tally::Integers(IntegerTally::new(1 << 63)),
            Kind::Int | Kind::Uint if *size <= 8 => Tally::Integers(IntegerTally::new(0)),
            Kind::Datetime if *size == 8 => Tally::Times(IntegerTally::new(0), TimeUnit::of(unit)),
            Kind::Timedelta if *size == 8 => Tally::Times(IntegerTally::new(0), None),
            Kind::Float => Tally::Floats(FloatTally::default(), width(*size)),
            Kind::Complex => Tally::Complex(FloatTally::default(), Default::default()),
            Kind::Bytes | Kind::Text => Tally::Texts(Box::default(), *kind, *order),
            _ => return None,
        };
        Some(Self {
            name: name.to_owned(),
            dtype: dtype.clone(),
            tally,
            kind: *kind,
            order: *order,
            step,
            offset: place.0,
            size: *size,
            count: place.1,
            floats: Vec::new(),
            integers: Vec::new(),
        })
    }

    /// Returns the bytes of the column's elements in some of the array's.
    fn parts<'b>(&self, bytes: &'b [u8]) -> impl Iterator<Item = &'b [u8]> + use<'b> {
        let own = self.offset
            ..self
                .offset
                .saturating_add(self.size.saturating_mul(self.count));
        let records = bytes.chunks_exact(self.step.max(1));
        records.map(move |record| record.get(own.clone()).unwrap_or_default())
    }

    /// Returns whether all bytes are those of the column.
    fn is_alone(&self) -> bool {
        self.offset == 0 && self.step == self.size.saturating_mul(self.count)
    }

    fn add(&mut self, bytes: &[u8]) {
        match self.is_alone() {
            true => self.add_part(bytes),
            false => {
                let own: Vec<u8> = self.parts(bytes).flatten().copied().collect();
                self.add_part(&own);
            }
        }
    }

    /// Adds elements of the column that follow each other.
    fn add_part(&mut self, bytes: &[u8]) {
        let (kind, order, size) = (self.kind, self.order, self.size);
        match &mut self.tally {
            Tally::Bools { trues, count } => {
                *count += bytes.len() as u64;
                *trues += bytes.iter().map(|&byte| u64::from(byte != 0)).sum::<u64>();
            }
            Tally::Integers(tally) => {
                self.integers.clear();
                integers(bytes, kind, size, order, &mut self.integers);
                tally.add(&self.integers);
            }
            Tally::Times(tally, _) => {
                self.integers.clear();
                integers(bytes, Kind::Int, size, order, &mut self.integers);
                let all = self.integers.len();
                self.integers.retain(|&time| time != NOT_A_TIME);
                tally.add_nothing((all - self.integers.len()) as u64);
                tally.add(&self.integers);
            }
            Tally::Floats(tally, _) => {
                self.floats.clear();
                floats(bytes, size, order, &mut self.floats);
                tally.add(&self.floats);
            }
            Tally::Complex(sizes, sums) => {
                self.floats.clear();
                floats(bytes, size / 2, order, &mut self.floats);
                let (pairs, _) = self.floats.as_chunks::<2>();
                let own: Vec<f64> = pairs
                    .iter()
                    .map(|[re, im]| complex_size(*re, *im))
                    .collect();
                for [re, im] in pairs
                    .iter()
                    .filter(|[re, im]| re.is_finite() && im.is_finite())
                {
                    sums[0].add(*re);
                    sums[1].add(*im);
                }
                sizes.add(&own);
            }
            Tally::Texts(distinct, ..) => {
                for text in bytes.chunks_exact(size) {
                    distinct.add(trimmed(text, unit(kind)), 1);
                }
            }
        }
    }

    /// Adds one element of the column several times.
    fn add_many(&mut self, bytes: &[u8], times: u64) {
        match &mut self.tally {
            Tally::Bools { trues, count } => {
                *count = count.saturating_add(times);
                if bytes.first() != Some(&0) {
                    *trues = trues.saturating_add(times);
                }
            }
            Tally::Integers(tally) => {
                let number = integer(bytes, self.kind, self.order) - tally.offset;
                tally.add_many(i64::try_from(number).unwrap_or_default(), times);
            }
            Tally::Times(tally, _) => match i64::try_from(integer(bytes, Kind::Int, self.order)) {
                Ok(NOT_A_TIME) | Err(_) => tally.add_nothing(times),
                Ok(time) => tally.add_many(time, times),
            },
            Tally::Floats(tally, _) => tally.add_many(float(bytes, self.order), times),
            Tally::Complex(sizes, sums) => {
                let (re, im) = bytes.split_at(bytes.len() / 2);
                let (re, im) = (float(re, self.order), float(im, self.order));
                if re.is_finite() && im.is_finite() {
                    sums[0].add(re * times as f64);
                    sums[1].add(im * times as f64);
                }
                sizes.add_many(complex_size(re, im), times);
            }
            Tally::Texts(distinct, kind, _) => distinct.add(trimmed(bytes, unit(*kind)), times),
        }
    }
}

impl Visitor for Vec<Column> {
    fn elements(&mut self, _: u64, bytes: &[u8]) {
        self.iter_mut().for_each(|column| column.add(bytes));
    }

    fn repeated(&mut self, places: Range<u64>, pattern: &[u8]) {
        for column in self {
            let records = pattern.chunks_exact(column.step.max(1));
            let (all, period) = (places.end - places.start, records.len().max(1) as u64);
            let parts: Vec<&[u8]> = column.parts(pattern).collect();
            for (part, number) in parts.into_iter().zip(0..) {
                let times = all / period + u64::from(number < all % period);
                for element in part.chunks_exact(column.size).filter(|_| times > 0) {
                    column.add_many(element, times);
                }
            }
        }
    }
}

/// Returns the number of bytes of a character.
fn unit(kind: Kind) -> usize {
    match kind {
        Kind::Text => 4,
        _ => 1,
    }
}

/// Returns the absolute value of a complex number; NaN if a part is NaN, unlike `hypot`.
fn complex_size(re: f64, im: f64) -> f64 {
    match re.is_nan() || im.is_nan() {
        true => f64::NAN,
        false => re.hypot(im),
    }
}

/// Adds the numbers that elements of `N` bytes are.
fn each<const N: usize, T>(
    bytes: &[u8],
    order: Order,
    to: &mut Vec<T>,
    read: impl Fn([u8; N]) -> T,
) {
    let (elements, _) = bytes.as_chunks::<N>();
    match order {
        Order::Big => to.extend(elements.iter().map(|element| {
            let mut own = *element;
            own.reverse();
            read(own)
        })),
        _ => to.extend(elements.iter().map(|element| read(*element))),
    }
}

/// Adds floats of 2, 4, 8 or 16 bytes.
pub(super) fn floats(bytes: &[u8], size: usize, order: Order, to: &mut Vec<f64>) {
    match size {
        2 => each(bytes, order, to, |bytes| f16::from_le_bytes(bytes).to_f64()),
        4 => each(bytes, order, to, |bytes| {
            f64::from(f32::from_le_bytes(bytes))
        }),
        8 => each(bytes, order, to, f64::from_le_bytes),
        _ => to.extend(
            bytes
                .chunks_exact(size.max(1))
                .map(|bytes| float(bytes, order)),
        ),
    }
}

/// Adds the numbers that stand for integers of at most eight bytes: of unsigned ones of 64 bits those that are 2^63 less.
pub(super) fn integers(bytes: &[u8], kind: Kind, size: usize, order: Order, to: &mut Vec<i64>) {
    match (kind, size) {
        (Kind::Int, 1) => each(bytes, order, to, |bytes| i8::from_le_bytes(bytes).into()),
        (Kind::Int, 2) => each(bytes, order, to, |bytes| i16::from_le_bytes(bytes).into()),
        (Kind::Int, 4) => each(bytes, order, to, |bytes| i32::from_le_bytes(bytes).into()),
        (Kind::Int, 8) => each(bytes, order, to, i64::from_le_bytes),
        (_, 1) => each(bytes, order, to, |bytes| u8::from_le_bytes(bytes).into()),
        (_, 2) => each(bytes, order, to, |bytes| u16::from_le_bytes(bytes).into()),
        (_, 4) => each(bytes, order, to, |bytes| u32::from_le_bytes(bytes).into()),
        (_, 8) => each(bytes, order, to, |bytes| {
            (u64::from_le_bytes(bytes) ^ 1 << 63).cast_signed()
        }),
        _ => {
            let read = |bytes| i64::try_from(integer(bytes, kind, order)).unwrap_or_default();
            to.extend(bytes.chunks_exact(size.max(1)).map(read));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn field(name: &str, offset: usize, dtype: DType, shape: &[u64]) -> Field {
        Field {
            name: name.into(),
            offset,
            dtype,
            shape: shape.to_vec(),
        }
    }

    fn record() -> DType {
        let inner = DType::Struct {
            fields: vec![field("n", 1, DType::int(2), &[])],
            size: 3,
        };
        DType::Struct {
            fields: vec![
                field("flags", 0, DType::scalar(Kind::Bool, 1, Order::None), &[2]),
                field("deep", 2, inner, &[]),
                field("raw", 5, DType::scalar(Kind::Void, 1, Order::None), &[]),
                field("text", 6, DType::bytes(2), &[]),
            ],
            size: 8,
        }
    }

    #[test]
    fn members_have_columns_of_their_own() {
        let (mut all, has_more) = columns(&record());
        assert!(!has_more);
        assert_eq!(
            Vec::from_iter(all.iter().map(|c| &c.name[..])),
            ["flags", "deep.n", "text"]
        );
        all.elements(0, &[1, 0, 9, 5, 0, 9, b'a', 0, 1, 1, 9, 7, 0, 9, b'a', 0]);
        all.repeated(2..12, &[0, 1, 9, 1, 0, 9, b'b', b'c']);
        let [
            Tally::Bools { trues, count },
            Tally::Integers(numbers),
            Tally::Texts(texts, ..),
        ] = [0, 1, 2]
            .map(|at| std::mem::replace(&mut all[at].tally, Tally::Bools { trues: 0, count: 0 }))
        else {
            panic!("other kinds");
        };
        assert_eq!((trues, count), (13, 24));
        assert_eq!((numbers.count, numbers.range()), (12, Some((1, 7))));
        assert_eq!(texts.most_frequent(9), [(&b"bc"[..], 10), (b"a", 2)]);
    }

    #[test]
    fn there_is_an_end_of_members() {
        let fields = (0..MOST + 1).map(|at| field(&at.to_string(), at, DType::int(1), &[]));
        let dtype = DType::Struct {
            fields: fields.collect(),
            size: MOST + 1,
        };
        let (all, has_more) = columns(&dtype);
        assert!(has_more && all.len() == MOST);
    }

    proptest! {
        #[test]
        fn what_repeats_is_counted_as_if_it_were_there(
            pattern in proptest::collection::vec(any::<u8>(), 1..5),
            kind in 0..4_usize,
            count in 1..100_u64,
        ) {
            let dtype = [
                DType::int(2),
                DType::scalar(Kind::Uint, 8, Order::Big),
                DType::scalar(Kind::Float, 4, Order::Little),
                DType::scalar(Kind::Datetime, 8, Order::Little),
            ][kind].clone();
            let pattern: Vec<u8> = pattern.iter().flat_map(|&byte| vec![byte; dtype.size()]).collect();
            let all: Vec<u8> = pattern.iter().copied().cycle().take(dtype.size() * count as usize).collect();
            let (mut one, _) = columns(&dtype);
            let (mut other, _) = columns(&dtype);
            one.elements(0, &all);
            other.repeated(0..count, &pattern);
            match (&one[0].tally, &other[0].tally) {
                (Tally::Integers(a), Tally::Integers(b)) | (Tally::Times(a, _), Tally::Times(b, _)) => {
                    prop_assert_eq!((a.count, a.nothing, a.zeros, a.range()), (b.count, b.nothing, b.zeros, b.range()));
                    prop_assert!(a.mean() == b.mean() || a.mean().is_nan());
                    prop_assert_eq!(a.histogram.counts(), b.histogram.counts());
                }
                (Tally::Floats(a, _), Tally::Floats(b, _)) => {
                    prop_assert_eq!((a.count, a.nan, a.zeros, a.range()), (b.count, b.nan, b.zeros, b.range()));
                }
                _ => prop_assert!(false),
            }
        }
    }
}
