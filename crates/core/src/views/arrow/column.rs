//! A column: its type in Arrow, the buffers that hold its values, and what has to be read of it before its file has a
//! size.
//!
//! A column asks a [`Survey`] for its findings in the same order each time it is opened. The first time the findings
//! are made by reading; later, for the same version of the table, they are given again.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use arrow_schema::{DataType, Field, TimeUnit};

use super::batches::Batches;
use super::elements::Elements;
use super::message::Body;
use super::text::{Encoding, Lengths, Slots, Texts};
use crate::views::unfit::{Unfit, left_out};
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_io::content::{Concat, Content, InMemory};

/// The most elements of one column in a row.
const MOST_IN_ROW: usize = 1 << 16;

/// The most bytes of a column that are read before its table has a size.
const MOST_READ: u64 = 1 << 34;

/// The most bytes of the values of a dictionary.
const LARGEST_DICTIONARY: u64 = 1 << 30;

/// Arrow's array of all rows of a table.
pub(super) struct Column {
    pub(super) dtype: DataType,
    /// Which values are there; `None`: all of them.
    validity: Option<Validity>,
    values: Buffers,
    /// Elements in a row.
    in_row: u64,
    children: Vec<Column>,
    /// The values that codes stand for.
    dictionary: Option<Dictionary>,
}

/// Which values are there.
struct Validity {
    of: Elements,
    test: Test,
    /// The number of missing values of each batch.
    missing: Arc<Finding>,
}

/// When a value is there, by an element.
#[derive(Clone)]
enum Test {
    /// A byte is 0.
    Zero,
    /// A number is not negative.
    NotNegative(Number),
    /// A time is not NumPy's NaT.
    Time(Number),
    /// A text is another one than this.
    Text(Encoding, Arc<[u8]>),
}

impl Test {
    fn holds(&self, element: &[u8]) -> bool {
        match self {
            Self::Zero => element.iter().all(|&byte| byte == 0),
            Self::NotNegative(number) => number.read(element) >= 0,
            Self::Time(number) => number.read(element) != i64::MIN,
            Self::Text(encoding, other) => !encoding.is(element, other),
        }
    }
}

/// An integer of up to 8 bytes.
#[derive(Clone, Copy)]
struct Number {
    order: Order,
    is_signed: bool,
}

impl Number {
    /// Returns the value of an element; one beyond 63 bits is the largest value.
    fn read(self, element: &[u8]) -> i64 {
        let is_negative = |byte: u8| self.is_signed && byte & 0x80 != 0;
        let mut bytes = [0; 8];
        let size = element.len().min(8);
        match self.order {
            Order::Big => bytes[..size]
                .iter_mut()
                .zip(element.iter().rev())
                .for_each(|(to, from)| *to = *from),
            Order::Little | Order::None => bytes[..size].copy_from_slice(&element[..size]),
        }
        if size > 0 && is_negative(bytes[size - 1]) {
            bytes[size..].fill(0xff);
        }
        match self.is_signed {
            true => i64::from_le_bytes(bytes),
            false => i64::try_from(u64::from_le_bytes(bytes)).unwrap_or(i64::MAX),
        }
    }
}

/// The values of a dictionary: all of them are one batch.
pub(super) struct Dictionary {
    pub(super) values: Box<Column>,
    pub(super) length: u64,
    pub(super) is_ordered: bool,
}

/// The buffers of an array besides that of validity.
enum Buffers {
    /// None: all is in the children.
    None,
    /// One buffer of little-endian numbers, or bytes as they are.
    Numbers { of: Elements, turned: Option<usize> },
    /// One buffer of codes, in which a missing value is 0.
    Codes { of: Elements, number: Number },
    /// One buffer of a bit for each byte.
    Bits(Elements),
    /// Views, and the data that they lead to.
    Slots(Slots),
    /// Offsets, and the data.
    Texts { of: Texts, lengths: Arc<Finding> },
    /// Offsets into the child.
    Lists {
        starts: Elements,
        number: Number,
        batches: Arc<Finding>,
    },
}

/// Rows of bytes in which the elements of a column lie.
#[derive(Clone)]
pub(super) struct Rows {
    pub(super) bytes: Arc<dyn Content>,
    /// Bytes of a row.
    pub(super) stride: usize,
}

/// How text is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TextForm {
    /// In slots, without reading it ahead.
    Slots,
    /// Measured, and without gaps.
    Measured,
}

/// What columns are made with.
pub(super) struct Making<'a> {
    pub(super) batches: Batches,
    pub(super) text: TextForm,
    pub(super) survey: &'a mut Survey,
}

impl Making<'_> {
    /// Returns the column of the elements of a type at some places in each row; `dims` are those of an array at each
    /// place.
    pub(super) fn column(
        &mut self,
        dtype: &DType,
        dims: &[u64],
        rows: &Rows,
        places: &[usize],
    ) -> Result<Column, Unfit> {
        let Some((&count, inner)) = dims.split_first() else {
            return match dtype {
                DType::Struct { .. } => self.members(dtype, rows, places),
                DType::Scalar { .. } => self.scalars(dtype, rows, places),
            };
        };
        let step = inner.iter().try_fold(dtype.size(), |size, &n| {
            size.checked_mul(usize::try_from(n).ok()?)
        });
        let length = i32::try_from(count).ok().filter(|&n| n > 0);
        let (Some(step), Some(length)) = (step, length) else {
            return left_out("arrays without elements, or too long");
        };
        let count = length as usize;
        if places.len().saturating_mul(count) > MOST_IN_ROW {
            return left_out(format!("more than {MOST_IN_ROW} values in a row"));
        }
        let all = places
            .iter()
            .flat_map(|place| (0..count).map(move |at| place.saturating_add(at * step)));
        let all: Vec<usize> = all.collect();
        let child = self.column(dtype, inner, rows, &all)?;
        let item = Field::new("item", child.dtype.clone(), true);
        let dtype = DataType::FixedSizeList(Arc::new(item), length);
        Ok(Column::parent(dtype, places.len(), vec![child]))
    }

    fn members(&mut self, dtype: &DType, rows: &Rows, places: &[usize]) -> Result<Column, Unfit> {
        let DType::Struct { fields, .. } = dtype else {
            return left_out("no compound");
        };
        let (mut names, mut members, mut children) = (HashSet::new(), Vec::new(), Vec::new());
        for field in fields {
            if !names.insert(&field.name) {
                return left_out(format!("it has two members called {}", field.name));
            }
            let places: Vec<usize> = places
                .iter()
                .map(|place| place.saturating_add(field.offset))
                .collect();
            let child = self.column(&field.dtype, &field.shape, rows, &places)?;
            members.push(Field::new(&field.name, child.dtype.clone(), true));
            children.push(child);
        }
        if children.is_empty() {
            return left_out("a compound without members");
        }
        Ok(Column::parent(
            DataType::Struct(members.into()),
            places.len(),
            children,
        ))
    }

    fn scalars(&mut self, dtype: &DType, rows: &Rows, places: &[usize]) -> Result<Column, Unfit> {
        let DType::Scalar {
            kind,
            size,
            order,
            unit,
        } = dtype
        else {
            return left_out("no scalar");
        };
        let (size, order) = (*size, *order);
        let Some(of) = Elements::new(rows.bytes.clone(), rows.stride, places.to_vec(), size) else {
            return left_out("elements without bytes");
        };
        if *kind == Kind::Complex {
            return self.complex(size, order, rows, places);
        }
        if let Some(encoding) = Encoding::for_dtype(dtype) {
            return self.texts(of, encoding);
        }
        let arrow = match (kind, size) {
            (Kind::Bool, 1) => DataType::Boolean,
            (Kind::Int, 1) => DataType::Int8,
            (Kind::Int, 2) => DataType::Int16,
            (Kind::Int, 4) => DataType::Int32,
            (Kind::Int, 8) => DataType::Int64,
            (Kind::Uint, 1) => DataType::UInt8,
            (Kind::Uint, 2) => DataType::UInt16,
            (Kind::Uint, 4) => DataType::UInt32,
            (Kind::Uint, 8) => DataType::UInt64,
            (Kind::Float, 2) => DataType::Float16,
            (Kind::Float, 4) => DataType::Float32,
            (Kind::Float, 8) => DataType::Float64,
            (Kind::Datetime, 8) => DataType::Timestamp(time_unit(unit)?, None),
            (Kind::Timedelta, 8) => DataType::Duration(time_unit(unit)?),
            (Kind::Void, _) => match i32::try_from(size) {
                Ok(size) => DataType::FixedSizeBinary(size),
                Err(_) => return left_out("elements of more than 2 GiB"),
            },
            _ => {
                let why = format!("Arrow has no elements of type {}", dtype.name());
                return left_out(why);
            }
        };
        let is_time = matches!(kind, Kind::Datetime | Kind::Timedelta);
        let number = Number {
            order,
            is_signed: true,
        };
        let test = is_time.then_some(Test::Time(number));
        let validity = test.map(|test| self.validity(of.clone(), test));
        Ok(Column {
            dtype: arrow,
            validity: validity.transpose()?.flatten(),
            in_row: of.in_row(),
            values: match kind {
                Kind::Bool => Buffers::Bits(of),
                _ => Buffers::Numbers {
                    of,
                    turned: (order == Order::Big).then_some(size),
                },
            },
            children: Vec::new(),
            dictionary: None,
        })
    }

    /// Complex numbers are what they are in HDF5: compounds of two floats.
    fn complex(
        &mut self,
        size: usize,
        order: Order,
        rows: &Rows,
        places: &[usize],
    ) -> Result<Column, Unfit> {
        let part = DType::scalar(Kind::Float, size / 2, order);
        let (mut fields, mut children) = (Vec::new(), Vec::new());
        for (name, offset) in [("r", 0), ("i", size / 2)] {
            let places: Vec<usize> = places.iter().map(|p| p.saturating_add(offset)).collect();
            let child = self.scalars(&part, rows, &places)?;
            fields.push(Field::new(name, child.dtype.clone(), true));
            children.push(child);
        }
        let dtype = DataType::Struct(fields.into());
        Ok(Column::parent(dtype, places.len(), children))
    }

    fn texts(&mut self, of: Elements, encoding: Encoding) -> Result<Column, Unfit> {
        let in_row = of.in_row();
        let (dtype, values) = match self.text {
            TextForm::Slots => {
                if i32::try_from(of.size()).is_err() {
                    return left_out("text of more than 2 GiB");
                }
                let slots = Slots {
                    elements: of,
                    encoding,
                };
                (DataType::Utf8View, Buffers::Slots(slots))
            }
            TextForm::Measured => {
                let of = Texts {
                    elements: of,
                    encoding,
                };
                let batches = self.batches;
                let lengths = self.survey.find(|| {
                    readable(&of.elements, batches)?;
                    let (mut lengths, mut is_utf8) = (Vec::new(), true);
                    for rows in batches.iter() {
                        let range = of.elements.of_rows(&rows);
                        let (measured, all) = of.measure(range)?;
                        lengths.push(measured);
                        is_utf8 = is_utf8 && all;
                    }
                    Ok(Finding::Texts(lengths, is_utf8))
                })?;
                let dtype = match &*lengths {
                    Finding::Texts(_, false) => DataType::LargeBinary,
                    _ => DataType::LargeUtf8,
                };
                (dtype, Buffers::Texts { of, lengths })
            }
        };
        Ok(Column {
            dtype,
            validity: None,
            values,
            in_row,
            children: Vec::new(),
            dictionary: None,
        })
    }

    /// Returns which elements are there; `None` if all are.
    fn validity(&mut self, of: Elements, test: Test) -> Result<Option<Validity>, Unfit> {
        let missing = self.missing(&of, |element| Ok(!test.holds(element)))?;
        Ok(missing.map(|missing| Validity { of, test, missing }))
    }

    /// Returns how many elements of each batch are missing; `None` if none are.
    fn missing(
        &mut self,
        of: &Elements,
        is_missing: impl Fn(&[u8]) -> Result<bool, Unfit>,
    ) -> Result<Option<Arc<Finding>>, Unfit> {
        let batches = self.batches;
        let missing = self.survey.find(|| {
            readable(of, batches)?;
            let mut counts = Vec::new();
            for rows in batches.iter() {
                let mut count = 0;
                of.scan(of.of_rows(&rows), |_, bytes| {
                    for element in bytes.chunks_exact(of.size()) {
                        count += u64::from(is_missing(element)?);
                    }
                    Ok::<_, Unfit>(())
                })?;
                counts.push(count);
            }
            Ok(Finding::Missing(counts))
        })?;
        let is_any = matches!(&*missing, Finding::Missing(counts) if counts.iter().any(|&n| n > 0));
        Ok(is_any.then_some(missing))
    }

    /// Returns a column whose values are missing where a mask says so.
    pub(super) fn masked(&mut self, values: Column, mask: &Column) -> Result<Column, Unfit> {
        let Buffers::Bits(of) = &mask.values else {
            return left_out("its mask is not of booleans");
        };
        if values.validity.is_some() || values.in_row != 1 || of.in_row() != 1 {
            return left_out("a mask over values that have missing ones");
        }
        Ok(Column {
            validity: self.validity(of.clone(), Test::Zero)?,
            ..values
        })
    }

    /// Returns a column of texts, of which one stands for a missing value.
    pub(super) fn marked(&mut self, values: Column, missing: &str) -> Result<Column, Unfit> {
        let (of, encoding) = match &values.values {
            Buffers::Slots(slots) => (slots.elements.clone(), slots.encoding),
            Buffers::Texts { of, .. } => (of.elements.clone(), of.encoding),
            _ => return Ok(values),
        };
        if values.validity.is_some() {
            return left_out("a mask over values that have missing ones");
        }
        let test = Test::Text(encoding, missing.as_bytes().into());
        Ok(Column {
            validity: self.validity(of, test)?,
            ..values
        })
    }

    /// Returns a column of values that are given by their positions in a dictionary.
    pub(super) fn coded(&mut self, codes: Column, dictionary: Dictionary) -> Result<Column, Unfit> {
        let is_signed = match codes.dtype {
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => true,
            DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => false,
            _ => return left_out("its codes are not integers"),
        };
        let Buffers::Numbers { of, turned } = codes.values else {
            return left_out("its codes are not integers");
        };
        if codes.in_row != 1 || dictionary.values.validity.is_some() {
            return left_out("codes of values some of which are missing");
        }
        let number = Number {
            order: turned.map_or(Order::Little, |_| Order::Big),
            is_signed,
        };
        let length = dictionary.length;
        // The program that reads the table uses a code as an index of the values: a larger one would lead out of them.
        let missing = self.missing(&of, |element| match number.read(element) {
            -1 => Ok(true),
            code if u64::try_from(code).is_ok_and(|code| code < length) => Ok(false),
            code => left_out(format!("a code {code}, of {length} categories")),
        })?;
        let (key, value) = (codes.dtype, dictionary.values.dtype.clone());
        Ok(Column {
            dtype: DataType::Dictionary(Box::new(key), Box::new(value)),
            values: match missing {
                Some(_) => Buffers::Codes {
                    of: of.clone(),
                    number,
                },
                None => Buffers::Numbers {
                    of: of.clone(),
                    turned,
                },
            },
            validity: missing.map(|missing| Validity {
                of,
                test: Test::NotNegative(number),
                missing,
            }),
            in_row: 1,
            children: Vec::new(),
            dictionary: Some(dictionary),
        })
    }

    /// Returns a column of lists: each begins where `starts` says and ends where the next begins, the last of them at
    /// the end of the `length` values.
    pub(super) fn lists(
        &mut self,
        starts: Column,
        values: Column,
        length: u64,
    ) -> Result<Column, Unfit> {
        let Buffers::Numbers { of, turned } = starts.values else {
            return left_out("its segments are not integers");
        };
        if !matches!(starts.dtype, DataType::Int64 | DataType::UInt64) || of.in_row() != 1 {
            return left_out("its segments are not integers of 64 bits");
        }
        if values.is_surveyed() || values.in_row != 1 {
            return left_out("lists of text, or of values some of which are missing");
        }
        let number = Number {
            order: turned.map_or(Order::Little, |_| Order::Big),
            is_signed: starts.dtype == DataType::Int64,
        };
        let batches = self.batches;
        let starts = self.survey.find(|| {
            readable(&of, batches)?;
            let (mut firsts, mut last) = (Vec::new(), 0);
            for rows in batches.iter() {
                of.scan(rows.clone(), |at, bytes| {
                    for (element, row) in bytes.chunks_exact(of.size()).zip(at..) {
                        let start = number.read(element);
                        let is_first = row == 0;
                        if start < last || is_first && start != 0 || start as u64 > length {
                            let why = format!("segment {row} begins at {start}, behind {last}");
                            return left_out(why);
                        }
                        if row == rows.start {
                            firsts.push(start as u64);
                        }
                        last = start;
                    }
                    Ok(())
                })?;
            }
            firsts.push(length);
            Ok(Finding::Starts(firsts))
        })?;
        let item = Field::new("item", values.dtype.clone(), true);
        Ok(Column {
            dtype: DataType::LargeList(Arc::new(item)),
            validity: None,
            values: Buffers::Lists {
                starts: of,
                number,
                batches: starts,
            },
            in_row: 1,
            children: vec![values],
            dictionary: None,
        })
    }
}

/// Refuses to read what is too long to be read ahead.
fn readable(of: &Elements, batches: Batches) -> Result<(), Unfit> {
    let bytes = batches
        .rows
        .saturating_mul(of.in_row())
        .saturating_mul(of.size() as u64);
    match bytes > MOST_READ {
        true => left_out("it would have to be read ahead, and is longer than 16 GiB"),
        false => Ok(()),
    }
}

fn time_unit(unit: &str) -> Result<TimeUnit, Unfit> {
    match unit {
        "[s]" => Ok(TimeUnit::Second),
        "[ms]" => Ok(TimeUnit::Millisecond),
        "[us]" => Ok(TimeUnit::Microsecond),
        "[ns]" => Ok(TimeUnit::Nanosecond),
        _ => left_out(format!("Arrow has no times of the unit {unit}")),
    }
}

impl Dictionary {
    /// Refuses values that would take too much memory.
    pub(super) fn check(&self) -> Result<(), Unfit> {
        let bytes = match &self.values.values {
            Buffers::Numbers { of, .. } | Buffers::Bits(of) => of.size(),
            Buffers::Texts { of, .. } => of.elements.size(),
            _ => return left_out("categories that are no scalars"),
        };
        match self.length.saturating_mul(bytes as u64) > LARGEST_DICTIONARY {
            true => left_out("categories of more than 1 GiB"),
            false => Ok(()),
        }
    }
}

impl Column {
    /// An array that has only children, of `in_row` elements in each row.
    fn parent(dtype: DataType, in_row: usize, children: Vec<Self>) -> Self {
        Self {
            dtype,
            validity: None,
            values: Buffers::None,
            in_row: in_row as u64,
            children,
            dictionary: None,
        }
    }

    /// Returns times with a time zone.
    pub(super) fn in_zone(self, zone: &str) -> Result<Self, Unfit> {
        let DataType::Timestamp(unit, _) = self.dtype else {
            return left_out("a time zone of values that are no times");
        };
        Ok(Self {
            dtype: DataType::Timestamp(unit, Some(zone.into())),
            ..self
        })
    }

    /// Returns the values that codes stand for.
    pub(super) fn dictionary(&self) -> Option<&Dictionary> {
        self.dictionary.as_ref()
    }

    /// Returns whether something is known of it for each batch, so that it cannot be cut otherwise.
    fn is_surveyed(&self) -> bool {
        let is_measured = matches!(
            self.values,
            Buffers::Texts { .. } | Buffers::Lists { .. } | Buffers::Codes { .. }
        );
        is_measured || self.validity.is_some() || self.children.iter().any(Self::is_surveyed)
    }

    /// Adds the arrays of a batch of rows to a body.
    pub(super) fn add(&self, number: usize, rows: &Range<u64>, body: &mut Body) {
        let count = (rows.end - rows.start).saturating_mul(self.in_row);
        let missing = self
            .validity
            .as_ref()
            .map_or(0, |validity| match &*validity.missing {
                Finding::Missing(counts) => counts.get(number).copied().unwrap_or(0),
                _ => 0,
            });
        body.node(count, missing);
        match &self.validity {
            Some(validity) if missing > 0 => {
                let test = validity.test.clone();
                let range = validity.of.of_rows(rows);
                body.buffer(bits(&validity.of, range, move |element| {
                    test.holds(element)
                }));
            }
            _ => body.no_buffer(),
        }
        let mut inner = rows.clone();
        match &self.values {
            Buffers::None => {}
            Buffers::Numbers { of, turned: None } => body.buffer(of.plain(of.of_rows(rows))),
            Buffers::Numbers {
                of,
                turned: Some(size),
            } => {
                let size = *size;
                body.buffer(of.made(of.of_rows(rows), 1, size, move |_, from, to| {
                    to.copy_from_slice(from);
                    to.chunks_exact_mut(size).for_each(<[u8]>::reverse);
                }));
            }
            Buffers::Codes { of, number } => {
                let (number, size) = (*number, of.size());
                body.buffer(of.made(of.of_rows(rows), 1, size, move |_, from, to| {
                    for (from, to) in from.chunks_exact(size).zip(to.chunks_exact_mut(size)) {
                        // No more bytes than 8: it is an integer.
                        let code = number.read(from).max(0).to_le_bytes();
                        to.copy_from_slice(&code[..size]);
                    }
                }));
            }
            Buffers::Bits(of) => {
                body.buffer(bits(of, of.of_rows(rows), |element| element != [0]));
            }
            Buffers::Slots(slots) => {
                let range = slots.elements.of_rows(rows);
                body.buffer(slots.views(range.clone()));
                body.buffers(slots.data(range));
            }
            Buffers::Texts { of, lengths } => {
                let none = Lengths::default();
                let lengths = match &**lengths {
                    Finding::Texts(lengths, _) => lengths.get(number).unwrap_or(&none),
                    _ => &none,
                };
                let [offsets, bytes] = of.contents(of.elements.of_rows(rows), lengths);
                body.buffer(offsets);
                body.buffer(bytes);
            }
            Buffers::Lists {
                starts,
                number: of,
                batches,
            } => {
                let at = |number| match &**batches {
                    Finding::Starts(starts) => starts.get(number).copied().unwrap_or(0),
                    _ => 0,
                };
                inner = at(number)..at(number + 1);
                let (of, base) = (*of, inner.start);
                // The end of the last list stands at the start of the next batch, or nowhere.
                let own = starts.made(starts.of_rows(rows), 1, 8, move |_, from, to| {
                    let both = from.chunks_exact(8).zip(to.chunks_exact_mut(8));
                    for (from, to) in both {
                        let start = (of.read(from) as u64).saturating_sub(base);
                        to.copy_from_slice(&start.to_le_bytes());
                    }
                });
                let last = (inner.end - inner.start).to_le_bytes().to_vec();
                let last = Arc::new(InMemory(last)) as Arc<dyn Content>;
                body.buffer(Arc::new(Concat::new([own, last])));
            }
        }
        for child in &self.children {
            child.add(number, &inner, body);
        }
    }
}

/// Returns a bit for each element of a range.
fn bits(
    of: &Elements,
    range: Range<u64>,
    test: impl Fn(&[u8]) -> bool + Send + Sync + 'static,
) -> Arc<dyn Content> {
    let size = of.size();
    of.made(range, 8, 1, move |_, from, to| {
        for (eight, byte) in from.chunks(8 * size).zip(to) {
            let bits = eight.chunks_exact(size).enumerate();
            *byte = bits.fold(0, |byte, (at, element)| {
                byte | u8::from(test(element)) << at
            });
        }
    })
}

/// A finding on a part of a column, for each batch of rows.
#[derive(Debug)]
pub(super) enum Finding {
    /// The number of missing values.
    Missing(Vec<u64>),
    /// The lengths of the texts, and whether all of them are UTF-8.
    Texts(Vec<Lengths>, bool),
    /// The position at which the lists of a batch begin; one more than there are batches.
    Starts(Vec<u64>),
}

/// A finding, or the reason why a column is left out.
type Verdict = Result<Arc<Finding>, String>;

/// The findings on a table, in the order in which they are asked for.
#[derive(Default)]
pub(super) struct Survey {
    known: Vec<Verdict>,
    asked: usize,
}

impl Survey {
    /// Returns a survey that gives known findings.
    pub(super) fn known(known: Vec<Verdict>) -> Self {
        Self { known, asked: 0 }
    }

    /// Returns all findings.
    pub(super) fn into_findings(self) -> Vec<Verdict> {
        self.known
    }

    /// Returns the next finding, which `make` makes if it is not known.
    pub(super) fn find(
        &mut self,
        make: impl FnOnce() -> Result<Finding, Unfit>,
    ) -> Result<Arc<Finding>, Unfit> {
        if self.asked == self.known.len() {
            self.known.push(match make() {
                Ok(finding) => Ok(Arc::new(finding)),
                Err(Unfit::LeftOut(why)) => Err(why),
                Err(unknown) => return Err(unknown),
            });
        }
        let verdict = self.known.get(self.asked).cloned();
        self.asked += 1;
        match verdict {
            Some(verdict) => verdict.map_err(Unfit::LeftOut),
            None => Err(Unfit::LeftOut("nothing was found out".to_owned())),
        }
    }
}

impl Finding {
    /// Returns the approximate memory it takes.
    pub(super) fn weight(&self) -> u64 {
        8 * match self {
            Self::Missing(counts) | Self::Starts(counts) => counts.len() as u64,
            Self::Texts(lengths, _) => lengths.iter().map(Lengths::count).sum(),
        }
    }
}
