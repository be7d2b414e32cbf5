//! Rewrites the datasets of a new file in the requested layout, and then the file itself without its unused space.
//!
//! Elements are copied as they are stored. A chunked dataset is first decoded into a temporary file, each chunk once: a
//! new chunk may overlap any number of old ones. All of this happens in this process; libhdf5 only receives encoded
//! chunks.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::Progress;
use super::layout::{Coding, Layout, Purpose, StoredForm, WantedLayout, sample_bytes};
use super::measure::{self, Sample};
use crate::dataset::grid::row_block;
use crate::store::chunked::{self, ChunkedDataset, ChunkedElements};
use crate::store::compression::Compression;
use npyfs_base::error::{Error, Result};
use npyfs_codec::Encoding;
use npyfs_hdf5::{
    Details, EditStep, Editor, Elements, FileForm, NewForm, ObjectPath, Recodable, source,
};
use npyfs_io::content::Content;
use npyfs_io::file::{StoreFile, user_block};

/// The alignment of arrays that programs map into memory, in bytes.
const MAPPED: u64 = 4096;

/// The least and the most bytes of a page of a file that is read over a network.
const PAGE: (u64, u64) = (64 << 10, 4 << 20);

/// Approximate bytes of metadata for an object, and for an entry of a chunk index.
const OBJECT: u64 = 1024;
const CHUNK_ENTRY: u64 = 24;

/// Bytes of the blocks that libhdf5 reads and writes at once.
const BLOCK: u64 = 4 << 20;

/// A file to be rewritten in another layout.
pub(in crate::checkout) struct Relayout<'a> {
    pub(in crate::checkout) editor: &'a mut Editor,
    /// The old file, which is removed.
    pub(in crate::checkout) part: &'a Path,
    /// The store that it was copied from, whose disk is measured.
    pub(in crate::checkout) base: &'a StoreFile,
    pub(in crate::checkout) layout: Layout,
    /// Whether codecs that need a plug-in may be chosen.
    pub(in crate::checkout) plugins: bool,
    pub(in crate::checkout) progress: &'a dyn Progress,
}

/// The result of rewriting a file.
pub(in crate::checkout) struct RelayoutResult {
    /// The file with the result.
    pub(in crate::checkout) file: PathBuf,
    /// Datasets whose layout differs from the requested one, with the reasons.
    pub(in crate::checkout) kept: Vec<(String, String)>,
    /// Decisions that were made here, for people.
    pub(in crate::checkout) chosen: Vec<String>,
}

impl RelayoutResult {
    /// Returns the result for a file that is not rewritten.
    pub(in crate::checkout) fn unchanged(part: &Path) -> Self {
        Self {
            file: part.to_owned(),
            kept: Vec::new(),
            chosen: Vec::new(),
        }
    }
}

/// The size of a dataset in bytes.
fn size(dataset: &Recodable) -> u64 {
    let mut dims = dataset.shape.iter();
    let elements = dims.try_fold(1_u64, |n, &d| n.checked_mul(d));
    elements
        .and_then(|n| n.checked_mul(dataset.element))
        .unwrap_or(0)
}

fn name(path: &ObjectPath) -> String {
    String::from_utf8_lossy(&path.join(&b'/')).into_owned()
}

impl Relayout<'_> {
    /// Rewrites the file.
    pub(in crate::checkout) fn run(mut self) -> Result<RelayoutResult> {
        let (mut found, others) = self.editor.datasets(&self.file()?)?;
        let mut times: HashMap<u64, u32> = HashMap::new();
        for dataset in &found {
            *times.entry(dataset.addr()).or_default() += 1;
        }
        // The largest array of each type decides for all.
        found.sort_by_key(|dataset| std::cmp::Reverse(size(dataset)));
        let mut kept = Vec::new();
        let mut choice = Choice::default();
        let mut metadata = OBJECT * others.len() as u64;
        let mut planned = Vec::new();
        for dataset in found {
            let details = self.editor.details(&self.file()?, &dataset)?;
            let wish = self.layout.wish(&stored(&dataset, &details));
            metadata = metadata.saturating_add(metadata_of(&dataset, &details, &wish));
            match wish {
                WantedLayout::Keep => {}
                _ if times.get(&dataset.addr()).is_some_and(|&n| n > 1) => {
                    kept.push((name(&dataset.path), "several names lead to it".to_owned()));
                }
                wish => planned.push((dataset, details, wish)),
            }
        }
        let bytes = planned.iter().map(|(dataset, ..)| size(dataset));
        self.progress.begin(bytes.fold(0, u64::saturating_add));
        for (dataset, details, wish) in planned {
            if let Err(why) = self.write(&dataset, &details, &wish, &mut choice)? {
                kept.push((name(&dataset.path), why.to_owned()));
            }
            self.progress.advance(size(&dataset));
        }
        if self.layout.purpose == Some(Purpose::Mmap) {
            let others = others.into_iter();
            kept.extend(others.map(|(path, why)| (name(&path), why.to_owned())));
        }
        kept.sort();
        let gathered = self.part.with_file_name("gathered.h5");
        let (new, old) = (File::create_new(&gathered)?, File::open(self.part)?);
        let own = user_block(&old)?;
        let form = self.form(metadata, own);
        let head = StoredElements {
            len: own,
            file: old,
            start: 0,
        };
        let step = EditStep::Gather {
            from: source(self.part),
            members: None,
            form,
        };
        done(self.editor, &gathered, step, &Vec::new())?;
        // libhdf5 does not copy the user block.
        head.copy(&new, 0)?;
        Ok(RelayoutResult {
            file: gathered,
            kept,
            chosen: choice.said,
        })
    }

    fn file(&self) -> Result<StoreFile> {
        Ok(StoreFile::open(self.part)?)
    }

    /// Returns the properties of the new file, for an estimated number of metadata bytes and a user block.
    fn form(&self, metadata: u64, user_block: u64) -> FileForm {
        let (least, most) = PAGE;
        match self.layout.purpose {
            // libhdf5 requires that the user block is a multiple of the page size and of the alignment of arrays.
            Some(Purpose::Cloud) => {
                let page = metadata.clamp(least, most).next_power_of_two();
                FileForm {
                    page: Some(page),
                    user_block: match user_block {
                        0 => 0,
                        own => own.max(page),
                    },
                    ..FileForm::default()
                }
            }
            Some(Purpose::Mmap | Purpose::Samples) if user_block == 0 => FileForm {
                alignment: Some(MAPPED),
                ..FileForm::default()
            },
            _ => FileForm {
                user_block,
                ..FileForm::default()
            },
        }
    }

    /// Writes a dataset in the desired form, or returns the reason why that is not possible.
    fn write(
        &mut self,
        dataset: &Recodable,
        details: &Details,
        wish: &WantedLayout,
        choice: &mut Choice,
    ) -> Result<std::result::Result<(), &'static str>> {
        let file = self.file()?;
        let found = self.editor.elements(&file, dataset)?;
        let recent = self.layout.purpose == Some(Purpose::Cloud);
        let (mut chunk, coding) = match wish {
            WantedLayout::Keep => return Ok(Ok(())),
            WantedLayout::Contiguous if matches!(found, Elements::Unwritten) => {
                return Ok(Err("nothing was ever written to it"));
            }
            WantedLayout::Contiguous => (None, Coding::Plain),
            WantedLayout::Chunked(chunk, coding) => (Some(chunk.clone()), *coding),
        };
        let work = Work {
            part: self.part,
            dataset,
            bytes: size(dataset),
        };
        let elements = work.elements(&file, found)?;
        let method = match (coding, &elements) {
            (Coding::Plain, _) => None,
            (Coding::With(method), _) => Some(method),
            (Coding::Fastest, Some(Found::Stored(elements))) => {
                choice.choose(dataset, elements, self.base, self.plugins)?
            }
            (Coding::Fastest, _) => choice.known(dataset),
        };
        // Samples are contiguous without chunks, too.
        if coding == Coding::Fastest
            && method.is_none()
            && stored(dataset, details).fits_contiguous()
        {
            chunk = None;
        }
        let encoding = method.and_then(Compression::encoding);
        let filters = match (method, encoding, usize::try_from(dataset.element)) {
            (Some(_), Some(encoding), Ok(element)) => {
                let len = chunked::size(element, chunk.as_deref().unwrap_or_default());
                encoding.filters(element, len)
            }
            (Some(method), ..) => method.filters(),
            (None, ..) => Vec::new(),
        };
        let form = NewForm {
            chunk,
            filters,
            recent,
        };
        let is_library_work = method.is_some() && encoding.is_none();
        match elements {
            Some(elements) if !is_library_work => {
                work.write(self.editor, &elements, form, encoding)?;
            }
            _ => {
                // If only libhdf5 can decode the chunks of a dataset that becomes contiguous, each chunk is read once.
                let block = form.chunk.clone().or_else(|| details.chunks.clone());
                let block =
                    block.unwrap_or_else(|| row_block(&dataset.shape, dataset.element, BLOCK));
                let path = dataset.path.clone();
                let step = EditStep::Recode { path, form, block };
                done(self.editor, self.part, step, &dataset.path)?;
            }
        }
        Ok(Ok(()))
    }
}

/// Returns the stored form of a dataset according to its header.
fn stored<'a>(dataset: &'a Recodable, details: &'a Details) -> StoredForm<'a> {
    let max = details.max_shape.as_deref().unwrap_or_default();
    let mut dims = max.iter().zip(&dataset.shape);
    StoredForm {
        shape: &dataset.shape,
        element: dataset.element,
        chunk: details.chunks.as_deref(),
        filtered: !details.filters.is_empty(),
        growing: dims.any(|(max, own)| *max != Some(*own)),
        contiguous: details.layout.as_deref() == Some("contiguous"),
        unwritten: details.stored_size == Some(0),
    }
}

/// Returns the approximate bytes of metadata of a dataset in the new file.
fn metadata_of(dataset: &Recodable, details: &Details, wish: &WantedLayout) -> u64 {
    let chunk = match wish {
        WantedLayout::Keep => details.chunks.as_deref(),
        WantedLayout::Contiguous => None,
        WantedLayout::Chunked(chunk, _) => Some(chunk.as_slice()),
    };
    let along = chunk.into_iter().flat_map(|chunk| {
        let dims = dataset.shape.iter().zip(chunk);
        dims.map(|(n, chunk)| n.div_ceil((*chunk).max(1)))
    });
    let chunks = match chunk {
        Some(_) => along.fold(1, u64::saturating_mul),
        None => 0,
    };
    let attributes = details.attributes.iter().map(|attribute| {
        let value = attribute.value.as_ref();
        value.map_or(0, |value| value.data.len() as u64) + 64
    });
    let entries = chunks.saturating_mul(CHUNK_ENTRY);
    entries.saturating_add(OBJECT + attributes.sum::<u64>())
}

/// The codec for each element type, chosen on the largest array of the type.
#[derive(Default)]
struct Choice {
    of: HashMap<String, Option<Compression>>,
    /// The speed of the disk in bytes per second, once it was measured.
    disk: Option<Option<f64>>,
    said: Vec<String>,
}

impl Choice {
    fn known(&self, dataset: &Recodable) -> Option<Compression> {
        self.of.get(&dataset.kind).copied().flatten()
    }

    fn choose(
        &mut self,
        dataset: &Recodable,
        content: &dyn Content,
        base: &StoreFile,
        plugins: bool,
    ) -> Result<Option<Compression>> {
        if let Some(known) = self.of.get(&dataset.kind) {
            return Ok(*known);
        }
        let disk = *self.disk.get_or_insert_with(|| measure::disk(base));
        let chunk = sample_bytes(&dataset.shape, dataset.element);
        let sample = Sample::take(content, dataset.element, chunk)?;
        let measured = match sample {
            Some(sample) => sample.measure(&measure::methods(plugins))?,
            None => Vec::new(),
        };
        let method = measure::fastest(&measured, disk).and_then(|best| best.method);
        let (kind, path) = (&dataset.kind, name(&dataset.path));
        let word = method.map_or("no compression".to_owned(), |method| method.to_string());
        self.said
            .push(format!("{kind}: {word}, fastest to read of {path}"));
        self.of.insert(dataset.kind.clone(), method);
        Ok(method)
    }
}

/// Runs a step that must not fail.
fn done(editor: &mut Editor, file: &Path, step: EditStep, about: &ObjectPath) -> Result<()> {
    let done = editor.edit(&StoreFile::open(file)?, vec![step])?;
    match done.into_iter().find_map(std::result::Result::err) {
        None => Ok(()),
        Some(why) => Err(Error::damaged(why).about(name(about))),
    }
}

/// The elements of a dataset at their place in a file.
struct StoredElements {
    file: File,
    start: u64,
    len: u64,
}

impl Content for StoredElements {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let at = self.start.saturating_add(offset);
        Ok(self.file.read_exact_at(buf, at)?)
    }
}

impl StoredElements {
    /// Copies all elements to an offset of another file.
    fn copy(&self, to: &File, at: u64) -> io::Result<()> {
        const BUFFER: u64 = 1 << 20;
        let mut buffer = Vec::new();
        let mut done = 0;
        while done < self.len {
            let part = (self.len - done).min(BUFFER);
            buffer.resize(usize::try_from(part).unwrap_or_default(), 0);
            self.file.read_exact_at(&mut buffer, self.start + done)?;
            to.write_all_at(&buffer, at + done)?;
            done += part;
        }
        Ok(())
    }
}

/// A dataset to be rewritten.
struct Work<'a> {
    part: &'a Path,
    dataset: &'a Recodable,
    /// The size in bytes.
    bytes: u64,
}

/// The stored elements of a dataset.
enum Found {
    Stored(StoredElements),
    /// All elements are the fill value.
    Unwritten,
}

impl Work<'_> {
    /// Returns the elements; `None` if only libhdf5 can read them.
    fn elements(&self, file: &StoreFile, found: Elements) -> Result<Option<Found>> {
        let len = self.bytes;
        let stored = |file, start| Ok(Some(Found::Stored(StoredElements { file, start, len })));
        match found {
            Elements::Contiguous(start) => stored(File::open(self.part)?, start),
            Elements::Unwritten => Ok(Some(Found::Unwritten)),
            Elements::Library => Ok(None),
            Elements::Chunked(chunk, direct) => {
                let path = self.part.with_file_name("elements");
                let mut options = File::options();
                let scratch = options
                    .read(true)
                    .write(true)
                    .create_new(true)
                    .open(&path)?;
                std::fs::remove_file(&path)?;
                let dataset = ChunkedDataset {
                    file,
                    shape: &self.dataset.shape,
                    element: self.dataset.element,
                    chunk: &chunk,
                    direct,
                };
                match chunked::decode(dataset, &scratch)? {
                    true => stored(scratch, 0),
                    false => Ok(None),
                }
            }
        }
    }

    /// Writes the elements in another form, replacing the dataset.
    fn write(
        &self,
        editor: &mut Editor,
        elements: &Found,
        form: NewForm,
        encoding: Option<Encoding>,
    ) -> Result<()> {
        let path = &self.dataset.path;
        let chunk = form.chunk.clone();
        let declare = EditStep::Declare {
            path: path.clone(),
            form,
        };
        done(editor, self.part, declare, path)?;
        match (elements, chunk) {
            (Found::Unwritten, _) => {}
            (Found::Stored(elements), None) => {
                let place = editor.declared(&StoreFile::open(self.part)?)?;
                let Elements::Contiguous(start) = place else {
                    return Err(Error::damaged("the new dataset has no place"));
                };
                elements.copy(&File::options().write(true).open(self.part)?, start)?;
            }
            (Found::Stored(elements), Some(chunk)) => {
                let element = usize::try_from(self.dataset.element);
                let chunks = ChunkedElements {
                    shape: &self.dataset.shape,
                    chunk: &chunk,
                    element: element.map_err(|_| Error::damaged("elements too large"))?,
                    encoding,
                    data: elements,
                };
                chunked::encode(&chunks, |chunks| {
                    Ok(editor.write_chunks(&StoreFile::open(self.part)?, chunks)?)
                })?;
            }
        }
        let replace = EditStep::Replace { path: path.clone() };
        done(editor, self.part, replace, path)
    }
}
