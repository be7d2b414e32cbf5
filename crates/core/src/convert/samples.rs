//! Samples as the rows of one array.

use std::sync::Arc;

use super::Watched;
use super::walk::{Place, Walk, own_name, part};
use crate::store::base::invalid;
use crate::store::encode::{NpyArray, ObjectKey, text};
use crate::tree::{Node, VirtualFile};
use npyfs_base::error::{Error, Result};
use npyfs_base::npy;
use npyfs_base::npy::dtype::{DType, Kind, integer};
use npyfs_base::npy::parse::LONGEST_HEADER;
use npyfs_io::content::{Concat, Content, InMemory, Slice};

/// The suffix that the name of an array gets for the array of its rows' keys, and the spelling of other names that end
/// in it.
const KEYS: &str = ".keys";
const SPELLED: [&[u8]; 2] = [b".keys.npy", b"%2Ekeys.npy"];

/// The most bytes of the keys, which are in memory.
const LARGEST: u64 = 1 << 30;

impl Walk<'_> {
    /// Adds the rows of an array as the samples of a column with its name. Their keys are in an array beside it;
    /// without one, they are numbers.
    pub(super) fn rows(
        &mut self,
        place: &Place<'_>,
        key: &ObjectKey,
        stem: &[u8],
        file: &Arc<dyn VirtualFile>,
        full: &str,
    ) -> Result<()> {
        if let Some(of) = key.name().strip_suffix(KEYS)
            && place
                .listing
                .find(&[of.as_bytes(), b".npy"].concat())
                .is_some()
        {
            // The keys are added together with the rows.
            return Ok(());
        }
        let listener = self.conversion.listener.clone();
        let found = SPELLED
            .iter()
            .find_map(|end| place.listing.find(&[stem, end].concat()));
        let opened = file.open().and_then(|content| {
            let watched = Watched::new(content, &listener);
            let keys = match found {
                Some(Node::File(keys)) => Some(keys.open()?),
                _ => None,
            };
            Ok((Rows::new(watched.clone(), keys)?, watched))
        });
        let (rows, watched) = match opened {
            Ok(opened) => opened,
            Err(e) => return self.unreadable(full, e),
        };
        self.keep_seen(file);
        let column = ObjectKey::of_names(Vec::new(), key.name().to_owned());
        for number in 0..rows.len {
            let (sample, name) = rows.key(number)?;
            let group = column.path().iter().cloned().chain(sample);
            let key = ObjectKey::of_names(group.collect(), name);
            let row = rows.row(number);
            let before = self.converted.without.len();
            self.put(&key, &[part(&key, "", ".npy", row)], &[], full)?;
            if let Some(e) = watched.failure() {
                return self.unreadable(full, e);
            }
            if self.converted.without.len() > before {
                // The others would be refused for the same reason.
                return Ok(());
            }
        }
        watched.finish();
        Ok(())
    }
}

/// The rows of an array, each as an array.
struct Rows {
    array: NpyArray,
    head: Vec<u8>,
    len: u64,
    /// Bytes of a row.
    bytes: u64,
    keys: Option<RowKeys>,
}

/// The keys of rows: one per row, or a sample's key and the row's own.
struct RowKeys {
    are_pairs: bool,
    values: KeyValues,
}

enum KeyValues {
    Numbers(Vec<i64>),
    Texts(Vec<String>),
}

impl Rows {
    fn new(content: Arc<dyn Content>, keys: Option<Arc<dyn Content>>) -> Result<Self> {
        let array = NpyArray::shown(&content)?;
        let Some((&len, shape)) = array.shape.split_first() else {
            return Err(invalid("an array without rows"));
        };
        if npy::parse::parse(&head_of(&*content)?)?.fortran_order && array.shape.len() > 1 {
            return Err(invalid(
                "its rows do not lie together: it is in Fortran order",
            ));
        }
        let bytes = npy::payload_len(&array.dtype, shape);
        let keys = keys.map(|keys| RowKeys::read(&keys, len)).transpose()?;
        Ok(Self {
            head: npy::header(&array.dtype, shape),
            bytes: bytes.unwrap_or(0),
            len,
            array,
            keys,
        })
    }

    fn row(&self, number: u64) -> Arc<dyn Content> {
        let at = number.saturating_mul(self.bytes);
        let row = Slice::new(self.array.data.clone(), at, self.bytes);
        let parts: [Arc<dyn Content>; 2] = [Arc::new(InMemory(self.head.clone())), Arc::new(row)];
        Arc::new(Concat::new(parts))
    }

    /// Returns the key of a row, preceded by that of its sample if it is a subsample.
    fn key(&self, number: u64) -> Result<(Option<String>, String)> {
        let Some(keys) = &self.keys else {
            return Ok((None, number.to_string()));
        };
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        let key = match keys.are_pairs {
            false => keys.get(at).map(|key| (None, key)),
            true => {
                let first = at.saturating_mul(2);
                let pair = keys.get(first).zip(keys.get(first.saturating_add(1)));
                pair.map(|(sample, key)| (Some(sample), key))
            }
        };
        key.ok_or_else(|| Error::damaged("fewer keys than rows"))
    }
}

fn head_of(content: &dyn Content) -> Result<Vec<u8>> {
    let most = usize::try_from(content.len()).unwrap_or(usize::MAX);
    let mut head = vec![0; most.min(LONGEST_HEADER)];
    content.read_at(0, &mut head)?;
    Ok(head)
}

impl RowKeys {
    fn get(&self, at: usize) -> Option<String> {
        match &self.values {
            KeyValues::Numbers(keys) => keys.get(at).map(i64::to_string),
            KeyValues::Texts(keys) => keys.get(at).cloned(),
        }
    }

    fn read(file: &Arc<dyn Content>, rows: u64) -> Result<Self> {
        let array = NpyArray::shown(file)?;
        let are_pairs = array.shape == [rows, 2];
        if !(are_pairs || array.shape == [rows]) || array.data.len() > LARGEST {
            let shape = npy::repr::tuple(&array.shape);
            return Err(invalid(format!("keys of shape {shape} for {rows} rows")));
        }
        let values = match &array.dtype {
            DType::Scalar {
                kind: kind @ (Kind::Int | Kind::Uint),
                size,
                order,
                ..
            } => {
                let mut bytes = vec![0; usize::try_from(array.data.len()).unwrap_or(0)];
                array.data.read_at(0, &mut bytes)?;
                let numbers = bytes
                    .chunks_exact((*size).max(1))
                    .map(|bytes| integer(bytes, *kind, *order).unwrap_or(-1));
                KeyValues::Numbers(numbers.collect())
            }
            _ => {
                let mut texts = Vec::new();
                text::each(&array, |_, element| {
                    let text = std::str::from_utf8(element);
                    let text = text.map_err(|_| invalid("a key that is not UTF-8"))?;
                    // Keys are spelled like file names.
                    let own = own_name(text.as_bytes(), b'#');
                    texts.push(String::from_utf8_lossy(&own).into_owned());
                    Ok(())
                })?;
                KeyValues::Texts(texts)
            }
        };
        Ok(Self { are_pairs, values })
    }
}
