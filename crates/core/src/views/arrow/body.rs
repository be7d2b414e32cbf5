//! The body of a message: the buffers of its arrays, each aligned, and what the message says of them.

use std::sync::Arc;

use super::message::{Arrays, alignment};
use npyfs_io::content::{Content, InMemory};

/// The arrays of one batch, and the contents of their buffers.
#[derive(Default)]
pub(super) struct Body {
    pub(super) arrays: Arrays,
    pub(super) parts: Vec<Arc<dyn Content>>,
}

impl Body {
    /// Adds an array, whose buffers follow.
    pub(super) fn node(&mut self, length: u64, missing: u64) {
        self.arrays.nodes.push((length, missing));
    }

    /// Adds a buffer without bytes.
    pub(super) fn no_buffer(&mut self) {
        self.arrays.buffers.push((self.arrays.body, 0));
    }

    /// Adds a buffer.
    pub(super) fn buffer(&mut self, content: Arc<dyn Content>) {
        let length = content.len();
        self.pad(alignment(length));
        self.arrays.buffers.push((self.arrays.body, length));
        self.arrays.body = self.arrays.body.saturating_add(length);
        self.parts.push(content);
        self.pad(alignment(length));
    }

    /// Adds zeros up to a multiple.
    fn pad(&mut self, multiple: u64) {
        let end = self.arrays.body;
        let padding = end.checked_next_multiple_of(multiple).unwrap_or(end) - end;
        self.arrays.body = end.saturating_add(padding);
        // Less than a page.
        self.parts
            .push(Arc::new(InMemory(vec![0; padding as usize])));
    }

    /// Adds the buffers of data of an array of views.
    pub(super) fn buffers(&mut self, contents: Vec<Arc<dyn Content>>) {
        self.arrays.variadic.push(contents.len() as u64);
        contents
            .into_iter()
            .for_each(|content| self.buffer(content));
    }
}
