//! Contents that are made on the way to a new HDF5 file.
//!
//! Elements are checked or made into others while they are copied. Bytes that have to be made before they can be copied
//! lie in a scratch file on the disk of the layer. Zeros need not be written.

use std::ops::Range;
use std::sync::Arc;

use crate::store::base::Base;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::content::Content;
use npyfs_io::content::scratch::Scratch;
use npyfs_io::rows::in_rows;

/// Elements of another content, each made into one of another size, or refused.
pub(crate) struct MappedElements<F> {
    inner: Arc<dyn Content>,
    /// Bytes of an element before and after.
    from: usize,
    to: usize,
    /// Makes a window of elements; the number of the first is given.
    make: F,
}

impl<F> MappedElements<F>
where
    F: Fn(u64, &[u8], &mut [u8]) -> Result<()> + Send + Sync + 'static,
{
    /// Sizes below 1 count as 1.
    pub(crate) fn content(
        inner: Arc<dyn Content>,
        from: usize,
        to: usize,
        make: F,
    ) -> Arc<dyn Content> {
        Arc::new(Self {
            inner,
            from: from.max(1),
            to: to.max(1),
            make,
        })
    }
}

impl<F> Content for MappedElements<F>
where
    F: Fn(u64, &[u8], &mut [u8]) -> Result<()> + Send + Sync,
{
    fn len(&self) -> u64 {
        self.inner.len() / self.from as u64 * self.to as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut source = Vec::new();
        in_rows(self.to, offset, buf, |first, rows| {
            source.resize(rows.len() / self.to * self.from, 0);
            self.inner.read_at(first * self.from as u64, &mut source)?;
            (self.make)(first, &source, rows)
        })
    }

    fn is_costly(&self) -> bool {
        true
    }
}

/// Bytes that are written at a time.
const BLOCK: usize = 1 << 20;

/// A scratch file that is written from its start on, then read.
pub(crate) struct SpooledFile {
    scratch: Scratch,
    waiting: Vec<u8>,
    written: u64,
}

impl SpooledFile {
    pub(crate) fn new(base: &dyn Base) -> Self {
        Self {
            scratch: base.scratch(),
            waiting: Vec::new(),
            written: 0,
        }
    }

    /// Bytes so far.
    pub(crate) fn len(&self) -> u64 {
        self.written + self.waiting.len() as u64
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() >= BLOCK {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.scratch.write_at(&self.waiting, self.written)?;
        self.written += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<Arc<dyn Content>> {
        self.flush()?;
        let len = self.written;
        Ok(Arc::new(ScratchContent::new(self.scratch, len)))
    }
}

/// A scratch file that is not written any more.
pub struct ScratchContent {
    scratch: Scratch,
    len: u64,
}

impl ScratchContent {
    /// Makes the content of a scratch file of `len` bytes.
    pub fn new(scratch: Scratch, len: u64) -> Self {
        Self { scratch, len }
    }
}

impl Content for ScratchContent {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.scratch.read_at(buf, offset)? < buf.len() {
            return Err(Error::new(ErrorKind::Stale, "it was cut off meanwhile"));
        }
        Ok(())
    }

    fn written(&self, from: u64) -> Result<Option<Range<u64>>> {
        let found = self.scratch.written(from)?;
        Ok(found.map(|range| range.start..range.end.min(self.len)))
    }

    fn scratch(&self) -> Option<(&Scratch, u64)> {
        Some((&self.scratch, 0))
    }
}

/// Zeros, which need not be written.
pub(crate) struct Zeros(pub u64);

impl Content for Zeros {
    fn len(&self) -> u64 {
        self.0
    }

    fn read_at(&self, _offset: u64, buf: &mut [u8]) -> Result<()> {
        buf.fill(0);
        Ok(())
    }

    fn written(&self, _from: u64) -> Result<Option<Range<u64>>> {
        Ok(None)
    }
}
