//! Elements with text of variable length inside: their type, the width of their texts, and their bytes.
//!
//! In memory text is a pointer. Structures with text in them are packed, there and as they are shown: how wide a
//! member is follows from the data, so the places that the file gives them mean nothing.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::ffi::{self, Failure, Id, VlenElements};
use super::service::{OpenDataset, bounded};
use super::types::{self, ElementType};
use super::{H5Error, TextForm, TextMeasure, text};
use crate::npy::dtype::{DType, Field};

/// Texts that one element may hold.
pub(super) const MAX_TEXTS: usize = 1 << 16;

/// The type of an element, or of a member of one, that may have text inside.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RecordPart {
    /// Bytes that are served as they are read.
    Plain(DType),
    /// A text of variable length.
    Text {
        /// It is declared UTF-8.
        utf8: bool,
    },
    /// Members that follow one another without gaps; there is text in some.
    Struct(Vec<RecordMember>),
}

/// A member of a structure with text in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RecordMember {
    /// Its name.
    pub name: String,
    /// Shape of a subarray member; empty for a plain one.
    pub shape: Vec<u64>,
    /// Its type, without the dimensions of the subarray.
    pub part: RecordPart,
}

/// A step of making the bytes of an element.
#[derive(Debug, PartialEq, Eq)]
enum PlanStep {
    /// Bytes of the element in memory, as they are.
    Copy(Range<usize>),
    /// A text, by its number in `RecordPart::texts`.
    Text(usize),
}

fn too_large() -> H5Error {
    H5Error::TooLarge("elements with too much text in them".into())
}

fn count(shape: &[u64]) -> Option<usize> {
    let n = shape.iter().try_fold(1_u64, |n, &d| n.checked_mul(d))?;
    usize::try_from(n).ok()
}

impl RecordPart {
    /// Returns whether there is text in it.
    pub fn has_text(&self) -> bool {
        !matches!(self, Self::Plain(_))
    }

    /// Returns for each text, in order, whether it is declared UTF-8. The texts of a subarray are as wide as its widest, and
    /// count once.
    pub fn texts(&self) -> Vec<bool> {
        match self {
            Self::Plain(_) => Vec::new(),
            Self::Text { utf8 } => vec![*utf8],
            Self::Struct(members) => members.iter().flat_map(|m| m.part.texts()).collect(),
        }
    }

    /// Returns the element type with these types in the place of the texts; `None` if it is too large, or they are too few.
    pub fn dtype(&self, texts: &[DType]) -> Option<DType> {
        self.with(&mut texts.iter())
    }

    fn with<'a>(&self, texts: &mut impl Iterator<Item = &'a DType>) -> Option<DType> {
        let members = match self {
            Self::Plain(dtype) => return Some(dtype.clone()),
            Self::Text { .. } => return texts.next().cloned(),
            Self::Struct(members) => members,
        };
        let mut size = 0_usize;
        let mut fields = Vec::with_capacity(members.len());
        for member in members {
            let field = Field {
                name: member.name.clone(),
                offset: size,
                dtype: member.part.with(texts)?,
                shape: member.shape.clone(),
            };
            size = size.checked_add(field.size()?)?;
            fields.push(field);
        }
        Some(DType::Struct { fields, size })
    }

    /// Returns the bytes of the part in memory; `None` if they are too many.
    pub fn memory(&self) -> Option<usize> {
        match self {
            Self::Plain(dtype) => Some(dtype.size()),
            Self::Text { .. } => Some(size_of::<usize>()),
            Self::Struct(members) => members.iter().try_fold(0_usize, |size, m| {
                size.checked_add(m.part.memory()?.checked_mul(count(&m.shape)?)?)
            }),
        }
    }

    /// Returns the steps that make the bytes of an array of `shape` of such parts; `None` if they are too many.
    fn steps(&self, shape: &[u64]) -> Option<Vec<PlanStep>> {
        let mut steps = Vec::new();
        self.add_steps(shape, &mut 0, &mut 0, &mut steps)?;
        Some(steps)
    }

    fn add_steps(
        &self,
        shape: &[u64],
        at: &mut usize,
        text: &mut usize,
        steps: &mut Vec<PlanStep>,
    ) -> Option<()> {
        let count = count(shape)?;
        if let Self::Plain(dtype) = self {
            let end = at.checked_add(dtype.size().checked_mul(count)?)?;
            match steps.last_mut() {
                Some(PlanStep::Copy(range)) if range.end == *at => range.end = end,
                _ => steps.push(PlanStep::Copy(*at..end)),
            }
            *at = end;
            return Some(());
        }
        if count > MAX_TEXTS {
            return None;
        }
        let first = *text;
        for _ in 0..count {
            *text = first;
            match self {
                Self::Plain(_) => {}
                Self::Text { .. } => {
                    steps.push(PlanStep::Text(*text));
                    *text += 1;
                    *at = at.checked_add(size_of::<usize>())?;
                }
                Self::Struct(members) => {
                    for member in members {
                        member.part.add_steps(&member.shape, at, text, steps)?;
                    }
                }
            }
            if steps.len() > 2 * MAX_TEXTS {
                return None;
            }
        }
        *text = first + self.texts().len();
        Some(())
    }
}

/// Returns the type to read elements with that are stored as `stored`: packed, with pointers for text.
pub(super) fn memory_type(part: &RecordPart, stored: &Id) -> Result<Id, Failure> {
    if ffi::class(stored) == ffi::Class::H5T_ARRAY {
        let base = memory_type(part, &ffi::super_type(stored)?)?;
        return ffi::array_type(&base, &ffi::array_dims(stored)?);
    }
    let members = match part {
        RecordPart::Plain(dtype) => {
            return types::memory_type(dtype, true, ffi::copy_type(stored)?);
        }
        RecordPart::Text { utf8 } => return ffi::variable_string(*utf8),
        RecordPart::Struct(members) => members,
    };
    let known = ffi::members(stored)?;
    let mut size = 0;
    let mut placed = Vec::with_capacity(members.len());
    for member in members {
        let found = known
            .iter()
            .find(|(name, ..)| member.name.as_bytes() == name);
        let Some((name, _, stored)) = found else {
            return Err(Failure(format!("no member {}", member.name)));
        };
        let ty = memory_type(&member.part, stored)?;
        let next = ffi::size(&ty).checked_add(size);
        placed.push((name.clone(), size, ty));
        size = next.ok_or_else(|| Failure("compound too large".into()))?;
    }
    ffi::compound_type(size, &placed)
}

/// The steps that make the bytes of an element with text inside.
struct RecordPlan<'a> {
    part: &'a RecordPart,
    steps: Vec<PlanStep>,
}

impl<'a> RecordPlan<'a> {
    fn new(part: &'a RecordPart, inner: &[u64]) -> Result<Self, H5Error> {
        let steps = part.steps(inner).ok_or_else(too_large)?;
        Ok(Self { part, steps })
    }

    fn of(dataset: &'a OpenDataset) -> Result<Self, H5Error> {
        match &dataset.element {
            ElementType::Record { part, inner } => Self::new(part, inner),
            _ => Err(H5Error::Unsupported("no text inside its elements".into())),
        }
    }

    /// Calls `see` with every text and its number.
    fn each(
        &self,
        records: &VlenElements,
        mut see: impl FnMut(usize, &[u8]),
    ) -> Result<(), H5Error> {
        for element in 0..records.len() {
            let mut string = 0;
            for step in &self.steps {
                if let PlanStep::Text(number) = step {
                    see(
                        *number,
                        records.string(element, string).ok_or_else(too_large)?,
                    );
                    string += 1;
                }
            }
        }
        Ok(())
    }

    fn see(&self, records: &VlenElements, found: &mut [TextMeasure]) -> Result<(), H5Error> {
        self.each(records, |number, text| {
            if let Some(measure) = found.get_mut(number) {
                measure.see(text);
            }
        })
    }

    fn empty(&self) -> Vec<TextMeasure> {
        vec![TextMeasure::none(); self.part.texts().len()]
    }

    fn bytes(&self, records: &VlenElements, forms: &[TextForm]) -> Result<Vec<u8>, H5Error> {
        let mut out = Vec::new();
        for element in 0..records.len() {
            let bytes = records.bytes(element).ok_or_else(too_large)?;
            let mut string = 0;
            for step in &self.steps {
                match step {
                    PlanStep::Copy(range) => {
                        out.extend(bytes.get(range.clone()).ok_or_else(too_large)?);
                    }
                    PlanStep::Text(number) => {
                        let form = *forms.get(*number).ok_or_else(too_large)?;
                        let text = records.string(element, string).ok_or_else(too_large)?;
                        text::encode(text, form, &mut out)?;
                        string += 1;
                    }
                }
            }
        }
        Ok(out)
    }
}

/// Measures the texts inside the first `shape` of all elements, in blocks of `rows` along the first dimension.
pub(super) fn measure(
    dataset: &OpenDataset,
    shape: &[u64],
    rows: u64,
) -> Result<Vec<TextMeasure>, H5Error> {
    let element = RecordPlan::of(dataset)?;
    let mut found = element.empty();
    text::in_blocks(shape, rows, |start, count| {
        element.see(&read(dataset, start, count)?, &mut found)
    })?;
    Ok(found)
}

/// Reads a block, with each text in its form.
pub(super) fn render(
    dataset: &OpenDataset,
    start: &[u64],
    shape: &[u64],
    forms: &[TextForm],
) -> Result<Vec<u8>, H5Error> {
    let element = RecordPlan::of(dataset)?;
    let widths = widths(forms);
    let size = element.part.dtype(&widths).ok_or_else(too_large)?.size();
    let ElementType::Record { inner, .. } = &dataset.element else {
        return Err(too_large());
    };
    let all: Vec<u64> = shape.iter().chain(inner).copied().collect();
    bounded(&all, size)?;
    element.bytes(&read(dataset, start, shape)?, forms)
}

fn widths(forms: &[TextForm]) -> Vec<DType> {
    let width = |form: &TextForm| match *form {
        TextForm::Bytes(width) => DType::bytes(width),
        TextForm::Ucs4(width) => DType::text(width),
        TextForm::Values | TextForm::Lengths => DType::bytes(0),
    };
    forms.iter().map(width).collect()
}

fn read(dataset: &OpenDataset, start: &[u64], shape: &[u64]) -> Result<VlenElements, H5Error> {
    bounded(shape, ffi::size(&dataset.mem_type))?;
    let (id, ty) = (&dataset.id, &dataset.mem_type);
    ffi::read_vlen(id, ty, start, shape, MAX_TEXTS).map_err(|e| dataset.failed(e))
}

/// Reads an attribute; returns the type and the bytes of its elements.
pub(super) fn of_attribute(
    attr: &Id,
    stored: &Id,
    (part, inner): (&RecordPart, &[u64]),
    elements: usize,
) -> Result<(DType, Vec<u8>), H5Error> {
    let element = RecordPlan::new(part, inner)?;
    let ty = memory_type(part, stored)?;
    bounded(&[elements as u64], ffi::size(&ty))?;
    let records = ffi::read_attribute_vlen(attr, &ty, elements, MAX_TEXTS)?;
    let mut found = element.empty();
    element.see(&records, &mut found)?;
    let shown = shown_as(part, &found);
    let forms: Vec<_> = shown.iter().map(|(_, form)| *form).collect();
    let dtypes: Vec<_> = shown.into_iter().map(|(dtype, _)| dtype).collect();
    let dtype = part.dtype(&dtypes).ok_or_else(too_large)?;
    let all: Vec<u64> = inner.iter().copied().chain([elements as u64]).collect();
    bounded(&all, dtype.size())?;
    Ok((dtype, element.bytes(&records, &forms)?))
}

/// Returns the type and form that each text is shown in: `<U` if it is declared UTF-8 and is it, else `|S`.
pub fn shown_as(part: &RecordPart, measures: &[TextMeasure]) -> Vec<(DType, TextForm)> {
    let texts = part.texts();
    let shown = texts.iter().zip(measures).map(|(&utf8, measure)| {
        if utf8 && measure.utf8 {
            let width = measure.chars.max(1);
            (DType::text(width), TextForm::Ucs4(width))
        } else {
            let width = measure.bytes.max(1);
            (DType::bytes(width), TextForm::Bytes(width))
        }
    });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, shape: &[u64], part: RecordPart) -> RecordMember {
        let (name, shape) = (name.to_owned(), shape.to_vec());
        RecordMember { name, shape, part }
    }

    #[test]
    fn texts_count_once_and_are_made_as_often_as_they_are() {
        let number = RecordPart::Plain(DType::int(4));
        let text = |utf8| RecordPart::Text { utf8 };
        let part = RecordPart::Struct(vec![
            member("a", &[], number.clone()),
            member("b", &[3], number),
            member("t", &[2], text(true)),
            member(
                "n",
                &[2],
                RecordPart::Struct(vec![member("u", &[], text(false))]),
            ),
        ]);
        assert_eq!(part.texts(), [true, false]);
        assert_eq!(part.memory(), Some(16 + 4 * 8));
        let steps = part.steps(&[]).unwrap();
        let texts = [0, 0, 1, 1].map(PlanStep::Text);
        assert_eq!(steps[0], PlanStep::Copy(0..16));
        assert_eq!(steps[1..], texts);
        let dtype = part.dtype(&[DType::text(2), DType::bytes(3)]).unwrap();
        assert_eq!(dtype.size(), 16 + 2 * 8 + 2 * 3);
        assert!(part.dtype(&[DType::text(2)]).is_none());
        assert_eq!(part.steps(&[2]).unwrap().len(), 10);
        assert!(part.steps(&[1 << 40]).is_none());
    }
}
