//! Arrays whose elements contain text of variable length: the width of each text, and the bytes.
//!
//! The elements are measured once per version of the file, like those of text datasets.

use std::sync::Arc;

use super::opened::{Measured, OpenStore, ShownRecord};
use super::text::{self, MeasuredBlocks};
use crate::dataset::backing::RECORD;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::{DataSource, Dataset, ElementType, RecordPart, Request, Sink};
use npyfs_io::content::Content;
use npyfs_io::provenance::Provenance;

/// Bytes of a block that is read at once, and its elements.
const BLOCK_BYTES: u64 = 1 << 20;
const BLOCK_ELEMENTS: u64 = 8192;

/// Measures the texts in all elements of a dataset, once.
pub(crate) fn measure(store: &Arc<OpenStore>, dataset: &Dataset) -> Result<Arc<Measured>> {
    let (part, inner) = parts(dataset)?;
    store.measured(dataset.addr, || {
        let (h5, rank) = (&store.context.h5, dataset.shape.len() - inner.len());
        let map = h5.map(&store.file, dataset.addr)?;
        text::stays_inside(store, &map.source)?;
        let never = matches!(map.source, DataSource::Fill(_));
        let own = &dataset.shape[..rank];
        // If the dataset was never written, one element represents all.
        let seen = match never && !own.contains(&0) {
            true => vec![1; rank],
            false => own.to_vec(),
        };
        let rows = rows(own, part.memory().unwrap_or(usize::MAX) as u64, inner);
        let measures = h5.measure_record(&store.file, dataset.addr, &seen, rows)?;
        let (dtypes, forms): (Vec<_>, Vec<_>) = npyfs_hdf5::record_shown_as(part, &measures)
            .into_iter()
            .unzip();
        let too_large = || Error::new(ErrorKind::TooLarge, "elements with too much text in them");
        let dtype = part.dtype(&dtypes).ok_or_else(too_large)?;
        let constant = if never {
            let request = Request::Record {
                dataset: dataset.addr,
                start: vec![0; rank],
                shape: seen,
                forms: forms.clone(),
            };
            Some(h5.bytes(&store.file, request)?)
        } else {
            None
        };
        Ok(Measured::of_record(ShownRecord {
            dtype,
            forms,
            constant,
        }))
    })
}

fn parts(dataset: &Dataset) -> Result<(&RecordPart, &[u64])> {
    match &dataset.element {
        ElementType::Record { part, inner } => Ok((part, inner)),
        _ => Err(Error::damaged("no text inside its elements")),
    }
}

/// Returns the element type; fails if the elements take more than `text_limit` at a fixed width.
pub(crate) fn dtype(store: &Arc<OpenStore>, dataset: &Dataset) -> Result<DType> {
    let measured = measure(store, dataset)?;
    let shown = measured.record()?;
    let bytes = dataset
        .shape
        .iter()
        .try_fold(shown.dtype.size() as u64, |n, &d| n.checked_mul(d));
    if shown.constant.is_none() && bytes.is_none_or(|n| n > store.context.options.text_limit()) {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!(
                "compounds with text of {} bytes each at a fixed width are larger than text_limit",
                shown.dtype.size()
            ),
        ));
    }
    Ok(shown.dtype.clone())
}

/// Returns the rows along the first dimension that make a block of elements of `size` bytes.
fn rows(own: &[u64], size: u64, inner: &[u64]) -> u64 {
    let elements = own.iter().skip(1).fold(1_u64, |n, &d| n.saturating_mul(d));
    let bytes = inner
        .iter()
        .fold(elements.saturating_mul(size), |n, &d| n.saturating_mul(d));
    (BLOCK_BYTES / bytes.max(1))
        .min(BLOCK_ELEMENTS / elements.max(1))
        .max(1)
}

/// The elements, in blocks of rows.
pub(crate) struct RecordBytes {
    store: Arc<OpenStore>,
    object: u64,
    /// The dimensions of the dataset itself.
    own: Vec<u64>,
    measured: Arc<Measured>,
    /// Rows of a block, and bytes of a row.
    rows: u64,
    row: u64,
    len: u64,
    blocks: MeasuredBlocks,
}

impl RecordBytes {
    /// Creates the elements of a dataset, `len` bytes in all.
    pub(crate) fn new(store: &Arc<OpenStore>, dataset: &Dataset, len: u64) -> Result<Self> {
        let (_, inner) = parts(dataset)?;
        let measured = measure(store, dataset)?;
        let size = measured.record()?.dtype.size() as u64;
        let own = dataset.shape[..dataset.shape.len() - inner.len()].to_vec();
        let row = (own.iter().skip(1).chain(inner)).fold(size, |n, &d| n.saturating_mul(d));
        let (rows, row) = (rows(&own, size, inner), row.max(1));
        let largest = rows.saturating_mul(row).min(len);
        Ok(Self {
            blocks: MeasuredBlocks::new(store, dataset.addr, RECORD, largest),
            store: store.clone(),
            object: dataset.addr,
            rows,
            own,
            measured,
            row,
            len,
        })
    }

    /// Produces a block.
    fn make(&self, number: u64, sink: &mut Sink<'_>) -> Result<()> {
        let (mut start, mut shape) = (vec![0; self.own.len()], self.own.clone());
        if let (Some(first), Some(count)) = (start.first_mut(), shape.first_mut()) {
            *first = number.saturating_mul(self.rows);
            *count = self.rows.min(count.saturating_sub(*first));
        }
        let request = Request::Record {
            dataset: self.object,
            start,
            shape,
            forms: self.measured.record()?.forms.clone(),
        };
        let h5 = &self.store.context.h5;
        Ok(h5.stream(&self.store.file, request, sink)?)
    }
}

impl Content for RecordBytes {
    fn len(&self) -> u64 {
        self.len
    }

    fn tell_provenance(&self, to: &mut Provenance) -> bool {
        to.file(&self.store.file.path, &self.store.file.identity);
        to.numbers("record", &[self.object, self.len]);
        true
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if let Some(constant) = &self.measured.record()?.constant {
            crate::dataset::elements::repeat(constant, offset, buf);
            return Ok(());
        }
        let block_len = self.rows.saturating_mul(self.row);
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let (number, inside) = (at / block_len, at % block_len);
            // The last block is shorter.
            let len = block_len.min(self.len.saturating_sub(at - inside));
            let left = len.saturating_sub(inside);
            if left == 0 {
                return Err(Error::damaged("behind the end of the elements"));
            }
            let n = usize::try_from(left).map_or(buf.len() - done, |n| n.min(buf.len() - done));
            let part = &mut buf[done..done + n];
            self.blocks
                .read(number, len, inside, part, |sink| self.make(number, sink))?;
            done += n;
        }
        Ok(())
    }
}
