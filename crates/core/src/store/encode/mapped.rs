//! Contents whose elements are checked or made into others while they are copied.

use std::sync::Arc;

use npyfs_base::error::Result;
use npyfs_io::content::Content;
use npyfs_io::rows::in_rows;

/// Elements of another content, each made into one of another size, or refused.
pub(crate) struct Mapped<F> {
    inner: Arc<dyn Content>,
    /// Bytes of an element before and after.
    from: usize,
    to: usize,
    /// Makes a window of elements; the number of the first is given.
    make: F,
}

impl<F> Mapped<F>
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

impl<F> Content for Mapped<F>
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
