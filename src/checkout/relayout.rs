//! The datasets of a new file written again in the layout that is asked for, and then the file without its unused space.
//!
//! Elements pass through here as they are stored. Those of a chunked dataset are decoded into a temporary file first, each
//! chunk once: new chunks may lie across any number of old ones.

mod work;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::compression::Compression;
use super::export::Progress;
use super::layout::{Coding, Layout, Purpose, StoredForm, Wish, sample_bytes};
use super::measure::{self, Sample};
use crate::dataset::grid::row_block;
use crate::error::{Error, Result};
use crate::hdf5::Details;
use crate::hdf5::edit::{
    EditStep, Editor, Elements, FileForm, NewForm, ObjectPath, Recodable, source,
};
use crate::io::content::Content;
use crate::io::file::{StoreFile, user_block};
use work::{Found, Work};

/// Arrays begin at a multiple of this many bytes if they are to be mapped.
const MAPPED: u64 = 4096;

/// Bytes of a page of a file that is read over a network: at least, and at most.
const PAGE: (u64, u64) = (64 << 10, 4 << 20);

/// Bytes of metadata of an object, about, and of an entry of a chunk index.
const OBJECT: u64 = 1024;
const CHUNK_ENTRY: u64 = 24;

/// Bytes of the blocks that libhdf5 reads and writes at a time.
const BLOCK: u64 = 4 << 20;

/// A file that is to be laid out anew.
pub(super) struct Relayout<'a> {
    pub(super) editor: &'a mut Editor,
    /// The file, which ends with it.
    pub(super) part: &'a Path,
    /// The store that it was copied from, whose disk is measured.
    pub(super) base: &'a StoreFile,
    pub(super) layout: Layout,
    /// Codecs that need a plug-in may be chosen.
    pub(super) plugins: bool,
    pub(super) progress: &'a dyn Progress,
}

/// What became of it.
pub(super) struct Relaid {
    /// The file that has the result.
    pub(super) file: PathBuf,
    /// What could not be laid out as it was asked for, and why.
    pub(super) kept: Vec<(String, String)>,
    /// What was decided here, for people.
    pub(super) chosen: Vec<String>,
}

impl Relaid {
    /// Returns the result for a file that stays as it is.
    pub(super) fn unchanged(part: &Path) -> Self {
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
    /// Lays the file out.
    pub(super) fn run(mut self) -> Result<Relaid> {
        let (mut found, others) = self.editor.datasets(&self.file()?)?;
        let mut times: HashMap<u64, u32> = HashMap::new();
        for dataset in &found {
            *times.entry(dataset.addr()).or_default() += 1;
        }
        // The largest array of a type decides for all.
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
                Wish::Keep => {}
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
        // libhdf5 leaves it alone.
        head.copy(&new, 0)?;
        Ok(Relaid {
            file: gathered,
            kept,
            chosen: choice.said,
        })
    }

    fn file(&self) -> Result<StoreFile> {
        Ok(StoreFile::open(self.part)?)
    }

    /// Returns the properties of the new file, which has about so many bytes of metadata, and in front of all a user block.
    fn form(&self, metadata: u64, user_block: u64) -> FileForm {
        let (least, most) = PAGE;
        match self.layout.purpose {
            // libhdf5 wants a user block of whole pages, and arrays that are aligned behind one of their alignment.
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

    /// Writes a dataset as it is wished, or says why that cannot be.
    fn write(
        &mut self,
        dataset: &Recodable,
        details: &Details,
        wish: &Wish,
        choice: &mut Choice,
    ) -> Result<std::result::Result<(), &'static str>> {
        let file = self.file()?;
        let found = self.editor.elements(&file, dataset)?;
        let recent = self.layout.purpose == Some(Purpose::Cloud);
        let (mut chunk, coding) = match wish {
            Wish::Keep => return Ok(Ok(())),
            Wish::Contiguous if matches!(found, Elements::Unwritten) => {
                return Ok(Err("nothing was ever written to it"));
            }
            Wish::Contiguous => (None, Coding::Plain),
            Wish::Chunked(chunk, coding) => (Some(chunk.clone()), *coding),
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
                choice.of(dataset, elements, self.base, self.plugins)?
            }
            (Coding::Fastest, _) => choice.known(dataset),
        };
        // Samples lie together without chunks, too.
        if coding == Coding::Fastest
            && method.is_none()
            && stored(dataset, details).fits_contiguous()
        {
            chunk = None;
        }
        let encoding = method.and_then(Compression::encoding);
        let filters = match (method, encoding, usize::try_from(dataset.element)) {
            (Some(_), Some(encoding), Ok(element)) => {
                let len = super::chunked::size(element, chunk.as_deref().unwrap_or_default());
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
                // Of a contiguous dataset in chunks that only libhdf5 decodes, each chunk is read once.
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

/// Returns a dataset as its header says that it is stored.
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

/// Returns about how many bytes of metadata a dataset has in the new file.
fn metadata_of(dataset: &Recodable, details: &Details, wish: &Wish) -> u64 {
    let chunk = match wish {
        Wish::Keep => details.chunks.as_deref(),
        Wish::Contiguous => None,
        Wish::Chunked(chunk, _) => Some(chunk.as_slice()),
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

/// The codec for each type of elements, found on the largest array of the type.
#[derive(Default)]
struct Choice {
    of: HashMap<String, Option<Compression>>,
    /// Bytes per second of the disk, once it was measured.
    disk: Option<Option<f64>>,
    said: Vec<String>,
}

impl Choice {
    fn known(&self, dataset: &Recodable) -> Option<Compression> {
        self.of.get(&dataset.kind).copied().flatten()
    }

    fn of(
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
        let sample = Sample::of(content, dataset.element, chunk)?;
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

/// Does a step that may not fail.
fn done(editor: &mut Editor, file: &Path, step: EditStep, about: &ObjectPath) -> Result<()> {
    let done = editor.edit(&StoreFile::open(file)?, vec![step])?;
    match done.into_iter().find_map(std::result::Result::err) {
        None => Ok(()),
        Some(why) => Err(Error::damaged(why).about(name(about))),
    }
}

/// The elements of a dataset where they lie in a file.
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
