//! Elements that contain text of variable length: their type, the width of their texts, and their bytes.
//!
//! Text is a pointer in memory. Structures with text in them are packed, both in memory and as shown: the width of a
//! member follows from the data, so the offsets in the file mean nothing.

use std::ops::Range;

use super::dataset::{OpenDataset, bounded, shape_bytes};
use super::ffi::{self, Failure, Id, VlenElements};
use super::text;
use super::types;
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::protocol::{
    ElementType, H5Error, RecordPart, TextForm, TextMeasure, encode_text, record_shown_as,
};

/// The largest number of texts in one element.
pub(super) const MAX_TEXTS: usize = 1 << 16;

/// A step that makes a part of the bytes of an element.
#[derive(Debug, PartialEq, Eq)]
enum PlanStep {
    /// Copies bytes of the element in memory.
    Copy(Range<usize>),
    /// Adds a text, by its number in `RecordPart::texts`.
    Text(usize),
}

fn too_large() -> H5Error {
    H5Error::TooLarge("elements with too much text in them".into())
}

fn count(shape: &[u64]) -> Option<usize> {
    usize::try_from(shape_bytes(shape, 1)?).ok()
}

/// Returns the steps that make the bytes of an array of `shape` of such parts; `None` if they are too many.
fn steps(part: &RecordPart, shape: &[u64]) -> Option<Vec<PlanStep>> {
    let mut steps = Vec::new();
    add_steps(part, shape, &mut 0, &mut 0, &mut steps)?;
    Some(steps)
}

fn add_steps(
    part: &RecordPart,
    shape: &[u64],
    at: &mut usize,
    text: &mut usize,
    steps: &mut Vec<PlanStep>,
) -> Option<()> {
    let count = count(shape)?;
    if let RecordPart::Plain(dtype) = part {
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
        match part {
            RecordPart::Plain(_) => {}
            RecordPart::Text { .. } => {
                steps.push(PlanStep::Text(*text));
                *text += 1;
                *at = at.checked_add(size_of::<usize>())?;
            }
            RecordPart::Struct(members) => {
                for member in members {
                    add_steps(&member.part, &member.shape, at, text, steps)?;
                }
            }
        }
        if steps.len() > 2 * MAX_TEXTS {
            return None;
        }
    }
    *text = first + part.texts().len();
    Some(())
}

/// Returns the type for reading elements of type `stored`: packed, with pointers for text.
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

/// The steps that make the bytes of an element that contains text.
struct RecordPlan<'a> {
    part: &'a RecordPart,
    steps: Vec<PlanStep>,
}

impl<'a> RecordPlan<'a> {
    fn new(part: &'a RecordPart, inner: &[u64]) -> Result<Self, H5Error> {
        let steps = steps(part, inner).ok_or_else(too_large)?;
        Ok(Self { part, steps })
    }

    fn for_dataset(dataset: &'a OpenDataset) -> Result<Self, H5Error> {
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
                measure.add(text);
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
                        encode_text(text, form, &mut out)?;
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
    let element = RecordPlan::for_dataset(dataset)?;
    let mut found = element.empty();
    text::in_blocks(shape, rows, |start, count| {
        element.see(&read(dataset, start, count)?, &mut found)
    })?;
    Ok(found)
}

/// Reads a block, with each text in its fixed-width form.
pub(super) fn render(
    dataset: &OpenDataset,
    start: &[u64],
    shape: &[u64],
    forms: &[TextForm],
) -> Result<Vec<u8>, H5Error> {
    let element = RecordPlan::for_dataset(dataset)?;
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
    let shown = record_shown_as(part, &found);
    let forms: Vec<_> = shown.iter().map(|(_, form)| *form).collect();
    let dtypes: Vec<_> = shown.into_iter().map(|(dtype, _)| dtype).collect();
    let dtype = part.dtype(&dtypes).ok_or_else(too_large)?;
    let all: Vec<u64> = inner.iter().copied().chain([elements as u64]).collect();
    bounded(&all, dtype.size())?;
    Ok((dtype, element.bytes(&records, &forms)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_hdf5::protocol::RecordMember;

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
        let made = steps(&part, &[]).unwrap();
        let texts = [0, 0, 1, 1].map(PlanStep::Text);
        assert_eq!(made[0], PlanStep::Copy(0..16));
        assert_eq!(made[1..], texts);
        let dtype = part.dtype(&[DType::text(2), DType::bytes(3)]).unwrap();
        assert_eq!(dtype.size(), 16 + 2 * 8 + 2 * 3);
        assert!(part.dtype(&[DType::text(2)]).is_none());
        assert_eq!(steps(&part, &[2]).unwrap().len(), 10);
        assert!(steps(&part, &[1 << 40]).is_none());
    }
}
