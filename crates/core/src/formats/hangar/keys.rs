//! The keys of a stacked column as an array.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::column::{Layout, parts};
use super::key;
use super::stack::Stack;
use crate::tree::VirtualFile;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy;
use npyfs_base::npy::dtype::{DType, Kind};
use npyfs_io::content::{Concat, Content, InMemory, Lazy};
use npyfs_io::file::Ownership;

/// The keys of a stacked column, row by row: `<i8` if all are numbers, otherwise text in the form of the file names.
/// The keys of a nested column are pairs.
pub(super) struct StackKeys(pub Arc<Stack>);

impl StackKeys {
    /// Returns the type and shape.
    fn whole(&self) -> (DType, Vec<u64>) {
        let column = &self.0.view.column;
        let mut numbers = true;
        let mut width = 1;
        let mut only_text = true;
        let each = |each: &mut dyn FnMut(&[u8])| {
            for at in 0..column.len() {
                for_parts(column.layout, column.key(at), each);
            }
        };
        each(&mut |part| match number(part) {
            Some(_) => only_text = false,
            None => numbers = false,
        });
        if !numbers {
            each(&mut |part| width = width.max(text(part, only_text).chars().count()));
        }
        let dtype = match numbers {
            true => DType::int(8),
            false => DType::text(width),
        };
        let mut shape = vec![column.len() as u64];
        if column.layout == Layout::Nested {
            shape.push(2);
        }
        (dtype, shape)
    }
}

fn for_parts(layout: Layout, stored: &[u8], each: &mut dyn FnMut(&[u8])) {
    match layout {
        Layout::Flat => each(stored),
        Layout::Nested => {
            let (sample, sub) = parts(stored);
            each(sample);
            each(sub);
        }
    }
}

fn number(stored: &[u8]) -> Option<i64> {
    std::str::from_utf8(key::digits(stored)?).ok()?.parse().ok()
}

/// Returns a key as text. If a column mixes numbers and texts, the text is that of the file name, so that `5` and `'5'`
/// differ.
fn text(stored: &[u8], only_text: bool) -> String {
    if only_text && key::digits(stored).is_none() {
        return String::from_utf8_lossy(stored).into_owned();
    }
    String::from_utf8_lossy(&key::shown(stored, "")).into_owned()
}

impl VirtualFile for StackKeys {
    fn ownership(&self) -> Ownership {
        self.0.ownership()
    }

    fn size(&self) -> Result<u64> {
        let (dtype, shape) = self.whole();
        super::schema::npy_size(&dtype, &shape)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        let (dtype, shape) = self.whole();
        let header = npy::header(&dtype, &shape);
        let len = npy::payload_len(&dtype, &shape);
        let large = || Error::new(ErrorKind::TooLarge, "larger than a file can be");
        let view = self.0.view.clone();
        let make = move || {
            let column = &view.column;
            let all = |each: &mut dyn FnMut(&[u8])| {
                for at in 0..column.len() {
                    for_parts(column.layout, column.key(at), each);
                }
            };
            let mut out = Vec::new();
            if matches!(
                dtype,
                DType::Scalar {
                    kind: Kind::Int,
                    ..
                }
            ) {
                all(&mut |part| {
                    out.extend_from_slice(&number(part).unwrap_or(-1).to_le_bytes());
                });
                return Ok(out);
            }
            let mut only_text = true;
            all(&mut |part| only_text &= number(part).is_none());
            all(&mut |part| {
                let end = out.len() + dtype.size();
                for c in text(part, only_text).chars() {
                    out.extend_from_slice(&u32::from(c).to_le_bytes());
                }
                out.resize(end, 0);
            });
            Ok(out)
        };
        Ok(Arc::new(Concat::new([
            Arc::new(InMemory(header)) as Arc<dyn Content>,
            Arc::new(Lazy::new(len.ok_or_else(large)?, make)),
        ])))
    }

    fn version(&self) -> u64 {
        self.0.version()
    }

    fn is_current(&self) -> bool {
        self.0.is_current()
    }

    fn is_lasting(&self) -> bool {
        self.0.is_lasting()
    }

    fn info(&self) -> Result<Json> {
        let mut info = self.0.info()?;
        let (dtype, shape) = self.whole();
        info["keys"] = json!(true);
        info["dtype"] = dtype.json();
        info["shape"] = json!(shape);
        Ok(info)
    }
}
