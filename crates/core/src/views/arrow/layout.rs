//! The layout of a file: the messages, and where each buffer is.

use std::sync::Arc;

use arrow_schema::Schema;

use super::batches::Batches;
use super::body::Body;
use super::column::Column;
use super::message::{self, Arrays, Place};
use npyfs_io::content::{Concat, Content, InMemory};

/// A file under construction.
struct Building {
    parts: Vec<Arc<dyn Content>>,
    end: u64,
}

impl Building {
    fn push(&mut self, bytes: Vec<u8>) {
        self.end = self.end.saturating_add(bytes.len() as u64);
        self.parts.push(Arc::new(InMemory(bytes)));
    }

    /// Adds a message, which `make` makes for its offset, and its body.
    fn message(&mut self, body: Body, make: impl FnOnce(&Arrays, u64) -> Vec<u8>) -> Place {
        let at = self.end;
        let message = make(&body.arrays, at);
        let metadata = message.len() as u64;
        self.push(message);
        self.end = self.end.saturating_add(body.arrays.body);
        self.parts.extend(body.parts);
        Place {
            at,
            metadata,
            body: body.arrays.body,
        }
    }
}

/// Returns the file of a table; `None` if it is larger than a file can be.
pub(super) fn file(schema: &Schema, columns: &[Column], batches: Batches) -> Option<Concat> {
    let mut file = Building {
        parts: Vec::new(),
        end: 0,
    };
    file.push(message::head());
    file.push(message::schema(schema, file.end));
    let mut dictionaries = Vec::new();
    for dictionary in columns.iter().filter_map(Column::dictionary) {
        let mut body = Body::default();
        dictionary.values.add(0, &(0..dictionary.length), &mut body);
        let id = dictionaries.len() as u64;
        let make = |arrays: &Arrays, at| message::dictionary(id, dictionary.length, arrays, at);
        dictionaries.push(file.message(body, make));
        i64::try_from(file.end).ok()?;
    }
    let mut places = Vec::new();
    for (number, rows) in batches.iter().enumerate() {
        let mut body = Body::default();
        columns
            .iter()
            .for_each(|column| column.add(number, &rows, &mut body));
        let length = rows.end - rows.start;
        places.push(file.message(body, |arrays, at| message::batch(length, arrays, at)));
        i64::try_from(file.end).ok()?;
    }
    file.push(message::tail(schema, &dictionaries, &places));
    i64::try_from(file.end).ok()?;
    Some(Concat::of_extents(file.parts))
}
