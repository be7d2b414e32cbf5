//! How what is written lies in HDF5: NumPy and SciPy make what goes in, h5py judges what comes out.
//!
//! Each script of `forms/` makes the cases of one kind of store in a directory and lists them in `cases.json`;
//! the cases go through `form` and a layer; then the script is asked again and checks each file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use npyfs_base::error::Result;
use npyfs_codec::encode::Encoding;
use npyfs_core::checkout::layer::Layer;
use npyfs_core::store::base::Base;
use npyfs_core::store::chunked;
use npyfs_core::store::compression::Compression;
use npyfs_core::store::encode::{ObjectKey, Plan, ScratchContent};
use npyfs_core::store::format;
use npyfs_core::store::format::Format;
use npyfs_core::store::part::{Part, PartPlace};
use npyfs_hdf5::{Creator, NewDataset, NewLayout};
use npyfs_io::content::Content;
use npyfs_io::content::scratch::Scratch;
use npyfs_io::dir::Dir;
use npyfs_io::storage::Disk;
use serde::Deserialize;
use serde_json::json;

/// One object to store.
#[derive(Deserialize)]
struct Case {
    key: String,
    /// Its files: member, suffix, and where it is.
    files: Vec<(String, String, PathBuf)>,
    /// What the store below has in the object's group, by own name.
    #[serde(default)]
    base: BTreeMap<String, PathBuf>,
    /// Shape of chunks, and how they are compressed.
    #[serde(default)]
    chunk: Option<Vec<u64>>,
    #[serde(default)]
    compress: Option<String>,
}

struct Store<'a> {
    format: &'a Arc<dyn Format>,
    layer: &'a Layer,
    case: &'a Case,
}

impl Store<'_> {
    fn content(&self, path: &Path) -> Result<Arc<dyn Content>> {
        let bytes = std::fs::read(path)?;
        let scratch = self.layer.scratch();
        scratch.write_at(&bytes, 0)?;
        Ok(Arc::new(ScratchContent::new(scratch, bytes.len() as u64)))
    }

    fn store(&self) -> Result<std::result::Result<PathBuf, Vec<String>>> {
        let mut parts = Vec::new();
        for (member, suffix, path) in &self.case.files {
            let suffix = [".npy", ".npz"].into_iter().find(|s| s == suffix).unwrap();
            let place = PartPlace {
                object: self.case.key.clone(),
                member: member.clone(),
                suffix,
            };
            let content = self.content(path)?;
            parts.push(Part {
                place,
                content,
                stored: false,
            });
        }
        let key = ObjectKey::of_path(&self.case.key)?;
        match format::plan(&**self.format, self, &key, &parts)? {
            Plan::Incomplete(missing) => Ok(Err(missing)),
            Plan::Complete(mut new) => {
                if let Some(chunk) = &self.case.chunk {
                    let how = self.case.compress.as_ref().map(|how| {
                        let how: Compression = how.parse().unwrap();
                        how.encoding().unwrap()
                    });
                    for dataset in &mut new.outline.datasets {
                        dataset.layout = layout(dataset, chunk, how);
                    }
                }
                let time = UNIX_EPOCH + Duration::from_nanos(1_234_567_890_123_456_789);
                let stored = self.layer.put(&self.case.key, &new, time)?;
                Ok(Ok(self.layer.path(&stored)))
            }
        }
    }
}

/// Returns a layout in chunks of this shape, encoded or as they are; contiguous where there can be no chunks.
fn layout(dataset: &NewDataset, chunk: &[u64], how: Option<Encoding>) -> NewLayout {
    if dataset.shape.is_empty() || dataset.shape.contains(&0) || chunk.len() != dataset.shape.len()
    {
        return NewLayout::Contiguous;
    }
    let size = dataset.element.size();
    NewLayout::Chunked {
        chunk: chunk.to_vec(),
        filters: how.map_or(Vec::new(), |how| {
            how.filters(size, chunked::size(size, chunk))
        }),
        encoding: how,
    }
}

impl Base for Store<'_> {
    fn npy(&self, name: &str) -> Result<Option<Arc<dyn Content>>> {
        let path = self.case.base.get(name);
        path.map(|path| self.content(path)).transpose()
    }

    fn scratch(&self) -> Scratch {
        self.layer.scratch()
    }
}

fn python(script: &str, what: &str, dir: &Path) -> String {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/forms");
    let done = Command::new("python3")
        .arg(place.join(script))
        .arg(what)
        .arg(dir)
        .env("NPYFS_BIN", env!("CARGO_BIN_EXE_npyfs"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    String::from_utf8(done.stdout).unwrap()
}

fn judged_by(script: &str, format: &str, least: usize) {
    let formats = npyfs_core::formats::registry();
    let format = formats.named(format);
    let tried = Command::new("python3")
        .args(["-c", "import numpy, h5py"])
        .output();
    if !tried.is_ok_and(|done| done.status.success()) {
        eprintln!("NOT TESTED: python3 with numpy and h5py is not on PATH");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    python(script, "make", dir.path());
    let cases = std::fs::read(dir.path().join("cases.json")).unwrap();
    let cases: Vec<Case> = serde_json::from_slice(&cases).unwrap();
    let place = dir.path().join("layer");
    let creator = Creator::worker(Path::new(env!("CARGO_BIN_EXE_npyfs")), &place);
    let layer = Layer::open(&Dir::alone(&place).unwrap(), Arc::new(Disk), creator).unwrap();
    let outcomes = cases.iter().enumerate().map(|(number, case)| {
        let store = Store {
            format,
            layer: &layer,
            case,
        };
        match store.store() {
            // The next case may have the same key, and take the file's place.
            Ok(Ok(path)) => {
                let kept = dir.path().join(format!("{number}.h5"));
                std::fs::copy(path, &kept).unwrap();
                json!({ "path": kept })
            }
            Ok(Err(missing)) => json!({ "missing": missing }),
            Err(e) => json!({ "errno": e.errno(), "message": e.message }),
        }
    });
    let outcomes: Vec<_> = outcomes.collect();
    let text = serde_json::to_vec(&outcomes).unwrap();
    std::fs::write(dir.path().join("outcomes.json"), text).unwrap();
    let said = python(script, "check", dir.path());
    assert_eq!(said.trim(), cases.len().to_string());
    assert!(cases.len() >= least, "{}", cases.len());
}

#[test]
fn plain_hdf5_holds_every_array() {
    judged_by("plain.py", "plain", 20);
}

#[test]
fn daf_reads_axes_properties_matrices_and_items() {
    judged_by("daf.py", "daf", 30);
}

#[test]
fn arkouda_reads_every_kind_of_object() {
    judged_by("arkouda.py", "arkouda", 90);
}

#[test]
fn chunks_are_read_by_h5py() {
    judged_by("chunked.py", "plain", 60);
}
