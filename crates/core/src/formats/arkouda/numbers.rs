//! Joined arrays of numbers: pdarrays, times, addresses, codes; and segments, whose parts have separate bases.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::array::{ArraySource, Origin};
use super::kind::{ArkoudaKind, kind};
use super::limbs;
use super::object::{JoinedObject, elements, is_integers, total};
use super::segments::OnceResult;
use super::segments::{Rule, check, rebased};
use super::set::LocaleSet;
use super::strings::Strings;
use crate::formats::plain::array::ArrayFile;
use crate::formats::plain::integers::int64;
use npyfs_base::error::{Error, Result};
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_hdf5::ElementType;
use npyfs_io::content::{Concat, Content};
use npyfs_io::rows::Converted;

/// The meaning of the numbers of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumberKind {
    AsStored,
    /// Booleans: zero is false, all other values are true.
    Bool,
    /// Nanoseconds since 1970.
    Datetime,
    /// Nanoseconds.
    Timedelta,
}

/// A joined array.
pub(super) struct Numbers {
    /// The arrays by part; `None` for a locale without any.
    parts: Vec<Option<ArrayFile>>,
    stored: DType,
    shown: DType,
    shape: Vec<u64>,
    note: Option<String>,
}

impl Numbers {
    /// Joins the datasets of an object. The first part with data determines the type.
    pub(super) fn new(origin: &Origin, joined: &JoinedObject, meaning: NumberKind) -> Result<Self> {
        let set = &origin.set;
        let parts = datasets(origin, joined)?;
        let typed = parts
            .iter()
            .enumerate()
            .filter_map(|(i, p)| Some((i, p.as_ref()?)));
        let has_data = |part: &ArrayFile| !part.dataset.shape.contains(&0);
        let leader = typed
            .clone()
            .find(|(_, part)| has_data(part))
            .or_else(|| typed.clone().next())
            .ok_or_else(|| Error::damaged("no file has a dataset of it"))?;
        let stored = dtype(leader.1)?;
        let mut count = 0_u64;
        let alone = set.parts.len() == 1;
        for (number, part) in typed.clone() {
            let shape = &part.dataset.shape;
            if shape.len() != 1 && !alone {
                let why = format!("shape {shape:?} in {}: not 1-D", set.name(number));
                return Err(Error::damaged(why));
            }
            let here = dtype(part)?;
            if has_data(part) && here != stored {
                return Err(Error::damaged(format!(
                    "parts of different type: {} in {}, {} in {}",
                    stored.name(),
                    set.name(leader.0),
                    here.name(),
                    set.name(number)
                )));
            }
            count = count.saturating_add(elements(&part.dataset));
        }
        let shown = shown_as(&stored, meaning)?;
        let (shape, note) = shape(joined, &leader.1.dataset.shape, count, alone)?;
        Ok(Self {
            stored,
            shown,
            shape,
            note,
            parts,
        })
    }
}

/// Returns the dataset of each part; fails if a part holds another kind of object.
pub(super) fn datasets(origin: &Origin, joined: &JoinedObject) -> Result<Vec<Option<ArrayFile>>> {
    let parts = joined.parts.iter().enumerate();
    parts
        .map(|(number, part)| {
            let Some(object) = part else { return Ok(None) };
            let array = origin.dataset(number, object, joined).ok_or_else(|| {
                Error::damaged(format!("not a dataset in {}", origin.set.name(number)))
            })?;
            Ok(Some(array))
        })
        .collect()
}

fn dtype(part: &ArrayFile) -> Result<DType> {
    match &part.dataset.element {
        ElementType::Fixed { dtype, .. } => Ok(dtype.clone()),
        ElementType::Text { .. } | ElementType::Record { .. } => {
            Err(Error::damaged("text where numbers should be"))
        }
    }
}

fn shown_as(stored: &DType, meaning: NumberKind) -> Result<DType> {
    let DType::Scalar {
        kind, size, order, ..
    } = stored
    else {
        return match meaning {
            NumberKind::AsStored => Ok(stored.clone()),
            _ => Err(Error::damaged(format!(
                "{} where numbers should be",
                stored.name()
            ))),
        };
    };
    let is_integer = matches!(kind, Kind::Int | Kind::Uint | Kind::Bool);
    let time = |kind| {
        if (*size, is_integer) != (8, true) {
            let why = format!("{} where <i8 should be", stored.name());
            return Err(Error::damaged(why));
        }
        Ok(DType::Scalar {
            kind,
            size: 8,
            order: *order,
            unit: "[ns]".into(),
        })
    };
    match meaning {
        NumberKind::AsStored => Ok(stored.clone()),
        NumberKind::Bool if is_integer => Ok(DType::scalar(Kind::Bool, 1, Order::None)),
        NumberKind::Bool => Err(Error::damaged(format!("isBool on {}", stored.name()))),
        NumberKind::Datetime => time(Kind::Datetime),
        NumberKind::Timedelta => time(Kind::Timedelta),
    }
}

/// Returns the shape given by `Rank` and `Shape`, or the stored one and the reason.
fn shape(
    joined: &JoinedObject,
    stored: &[u64],
    elements: u64,
    alone: bool,
) -> Result<(Vec<u64>, Option<String>)> {
    let mut claimed = joined
        .objects()
        .filter_map(|object| object.marks.shape.as_ref());
    let flat = || {
        if alone {
            stored.to_vec()
        } else {
            vec![elements]
        }
    };
    let Some(first) = claimed.next() else {
        return Ok((flat(), None));
    };
    if let Some(other) = claimed.find(|other| *other != first) {
        let why = format!("attribute Shape is {first:?} in one part, {other:?} in another");
        return Err(Error::damaged(why));
    }
    let product = first.iter().try_fold(1_u64, |n, &d| n.checked_mul(d));
    if product == Some(elements) {
        return Ok((first.clone(), None));
    }
    let note =
        format!("attribute Shape says {first:?}, but there are {elements} elements: shown flat");
    Ok((flat(), Some(note)))
}

impl ArraySource for Numbers {
    fn form(&self) -> Result<(DType, Vec<u64>)> {
        Ok((self.shown.clone(), self.shape.clone()))
    }

    fn payload(&self) -> Result<Arc<dyn Content>> {
        let size = self.stored.size();
        let is_bool = matches!(
            self.shown,
            DType::Scalar {
                kind: Kind::Bool,
                ..
            }
        ) && self.shown != self.stored;
        let mut contents: Vec<Arc<dyn Content>> = Vec::new();
        for part in self.parts.iter().flatten() {
            if part.dataset.shape.contains(&0) {
                continue;
            }
            let payload: Arc<dyn Content> = Arc::new(part.payload()?);
            contents.push(if is_bool {
                Arc::new(Converted::new(payload, size, 1, move |from, to| {
                    for (from, to) in from.chunks_exact(size).zip(to) {
                        *to = u8::from(from.iter().any(|&b| b != 0));
                    }
                }))
            } else {
                payload
            });
        }
        Ok(Arc::new(Concat::new(contents)))
    }

    fn part(&self, number: usize) -> Json {
        let part = self.parts.get(number).and_then(Option::as_ref);
        json!({ "elements": part.map_or(0, |part| elements(&part.dataset)) })
    }

    fn note(&self) -> Option<String> {
        self.note.clone()
    }
}

/// The numbers of an object, joined on each access: a file may contain very many objects.
pub(super) struct NumbersOf(pub Arc<Origin>, pub NumberKind);

impl NumbersOf {
    fn joined(&self) -> Result<Numbers> {
        Numbers::new(&self.0, &self.0.joined, self.1)
    }
}

impl ArraySource for NumbersOf {
    fn form(&self) -> Result<(DType, Vec<u64>)> {
        self.joined()?.form()
    }

    fn payload(&self) -> Result<Arc<dyn Content>> {
        self.joined()?.payload()
    }

    fn part(&self, number: usize) -> Json {
        self.joined()
            .map_or(Json::Null, |numbers| numbers.part(number))
    }

    fn note(&self) -> Option<String> {
        self.joined().ok()?.note()
    }
}

/// The values to which the segments of each part refer.
pub(super) enum Values {
    /// Values that are counted from 0 in each part; their number in each part is known or can be determined.
    ByPart(Counts),
    /// This many values, counted over all parts.
    Together(u64),
}

/// Returns the number of values in each part.
pub(super) type Counts = Box<dyn Fn() -> Result<Vec<u64>> + Send + Sync>;

/// Returns the number of values of a SegArray in each part.
pub(super) fn counts(set: &Arc<LocaleSet>, group: &JoinedObject) -> Result<Counts> {
    let values = group
        .member("values")
        .ok_or_else(|| Error::damaged("a SegArray without values"))?;
    if kind(set, &values).map_err(|e| e.about("values"))? == ArkoudaKind::Strings {
        let origin = Origin {
            set: set.clone(),
            joined: values.clone(),
            object_type: ArkoudaKind::Strings.name(),
        };
        let strings = Strings::new(&origin, &values).map_err(|e| e.about("values"))?;
        return Ok(Box::new(move || strings.rows()));
    }
    let counts = values.parts.iter().map(|object| {
        let object = object.as_ref();
        object.map_or(0, |object| match object.dataset() {
            Some(dataset) => elements(dataset),
            None => limbs::rows(object),
        })
    });
    let counts: Vec<u64> = counts.collect();
    Ok(Box::new(move || Ok(counts.clone())))
}

/// Segments, joined and rebased; they are checked when they are first opened.
pub(super) struct Segments {
    set: Arc<LocaleSet>,
    parts: Vec<Option<ArrayFile>>,
    values: Values,
    rows: u64,
    checked: OnceResult<()>,
}

impl Segments {
    pub(super) fn new(origin: &Origin, joined: &JoinedObject, values: Values) -> Result<Self> {
        let parts = datasets(origin, joined)?;
        let mut rows = 0_u64;
        for (number, part) in parts.iter().enumerate() {
            let Some(part) = part else { continue };
            if !is_integers(&part.dataset) {
                let why = format!(
                    "segments that are no 1-D integers in {}",
                    origin.set.name(number)
                );
                return Err(Error::damaged(why));
            }
            rows = rows.saturating_add(part.dataset.shape[0]);
        }
        Ok(Self {
            set: origin.set.clone(),
            parts,
            values,
            rows,
            checked: OnceResult::default(),
        })
    }

    fn joined(&self) -> Result<Vec<(usize, Arc<dyn Content>)>> {
        let parts = self.parts.iter().enumerate();
        parts
            .filter_map(|(number, part)| Some((number, part.as_ref()?)))
            .filter(|(_, part)| !part.dataset.shape.contains(&0))
            .map(|(number, part)| Ok((number, int64(part)?)))
            .collect()
    }

    fn check(&self) -> Result<()> {
        let parts = self.joined()?;
        match &self.values {
            Values::ByPart(counts) => {
                let counts = counts()?;
                for (number, starts) in parts {
                    let values = counts.get(number).copied().unwrap_or(0);
                    let rule = Rule {
                        values,
                        strict: false,
                    };
                    check(&*starts, rule).map_err(|e| e.about(self.set.name(number)))?;
                }
            }
            Values::Together(values) => {
                let rule = Rule {
                    values: *values,
                    strict: false,
                };
                check(
                    &Concat::new(parts.into_iter().map(|(_, starts)| starts)),
                    rule,
                )?;
            }
        }
        Ok(())
    }
}

impl ArraySource for Segments {
    fn form(&self) -> Result<(DType, Vec<u64>)> {
        Ok((DType::int(8), vec![self.rows]))
    }

    fn payload(&self) -> Result<Arc<dyn Content>> {
        self.checked.get(|| self.check())?;
        let parts = self.joined()?;
        let Values::ByPart(counts) = &self.values else {
            return Ok(Arc::new(Concat::new(parts.into_iter().map(|(_, c)| c))));
        };
        let counts = counts()?;
        Ok(Arc::new(Concat::new(parts.into_iter().map(
            |(number, starts)| rebased(starts, total(counts.iter().take(number).copied())),
        ))))
    }

    fn part(&self, number: usize) -> Json {
        let part = self.parts.get(number).and_then(Option::as_ref);
        json!({ "elements": part.map_or(0, |part| elements(&part.dataset)) })
    }
}
