//! The labels of a Categorical: the category of each code, at the width of the longest one.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::array::{ArraySource, Origin};
use super::numbers::datasets;
use super::object::{JoinedObject, is_integers, total};
use super::set::LocaleSet;
use super::strings::Strings;
use crate::formats::plain::array::ArrayFile;
use crate::formats::plain::integers::int64;
use crate::formats::plain::lookup::LookedUpCodes;
use npyfs_base::error::{Error, Result};
use npyfs_base::npy::dtype::DType;
use npyfs_io::content::{Concat, Content};

/// The labels of all parts.
pub(super) struct Labels {
    set: Arc<LocaleSet>,
    codes: Vec<Option<ArrayFile>>,
    categories: Arc<Strings>,
}

impl Labels {
    pub(super) fn new(
        origin: &Origin,
        codes: &JoinedObject,
        categories: Arc<Strings>,
    ) -> Result<Self> {
        let parts = datasets(origin, codes)?;
        for (number, part) in parts.iter().enumerate() {
            if part
                .as_ref()
                .is_some_and(|part| !is_integers(&part.dataset))
            {
                let name = origin.set.name(number);
                return Err(Error::damaged(format!(
                    "codes are no 1-D integers in {name}"
                )));
            }
        }
        Ok(Self {
            set: origin.set.clone(),
            codes: parts,
            categories,
        })
    }

    fn rows(&self, part: usize) -> u64 {
        let part = self.codes.get(part).and_then(Option::as_ref);
        part.map_or(0, |codes| codes.dataset.shape[0])
    }

    fn all_rows(&self) -> u64 {
        total((0..self.codes.len()).map(|part| self.rows(part)))
    }

    /// Returns why the labels are not shown; `None` if they are.
    pub(super) fn too_wide(&self) -> Result<Option<String>> {
        let rows = self.all_rows();
        let stored = total([rows.saturating_mul(8), self.categories.stored()]);
        let limit = self.set.context.options.strings_limit(stored);
        // No category is longer than the bytes of its part: most need no measurement.
        let longest = self.categories.bytes().into_iter().max().unwrap_or(0);
        if rows.saturating_mul(longest) <= limit {
            return Ok(None);
        }
        let width = self.categories.measure()?.width;
        let expanded = rows.saturating_mul(width);
        Ok((expanded > limit).then(|| {
            format!(
                "{rows} labels take {expanded} bytes at the width of the longest category, {width}: more than text_limit allows ({limit} bytes)"
            )
        }))
    }
}

impl ArraySource for Labels {
    fn form(&self) -> Result<(DType, Vec<u64>)> {
        let (dtype, _) = self.categories.fixed_width().form()?;
        Ok((dtype, vec![self.all_rows()]))
    }

    fn payload(&self) -> Result<Arc<dyn Content>> {
        let parts = self.codes.iter().flatten();
        let codes = parts
            .filter(|part| part.dataset.shape != [0])
            .map(int64)
            .collect::<Result<Vec<_>>>()?;
        let first = self.codes.iter().flatten().next();
        let measure = self.categories.measure()?;
        Ok(Arc::new(LookedUpCodes {
            context: self.set.context.clone(),
            key: first.map_or((0, 0), |part| (part.store.file.serial, part.dataset.addr)),
            codes: Arc::new(Concat::new(codes)),
            categories: self.categories.fixed_width().payload()?,
            count: total(measure.rows.iter().copied()),
            width: measure.width,
            missing: None,
        }))
    }

    fn part(&self, number: usize) -> Json {
        json!({ "codes": self.rows(number), "categories": self.categories.rows().ok().map(|rows| rows[number]) })
    }
}
