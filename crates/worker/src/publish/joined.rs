//! Joined objects of a store of several files: virtual datasets over the datasets of the files, one after the other.
//! Elements that no file stores in that form, such as starts that begin anew in each file, are written.
//!
//! If a file is missing, a virtual dataset shows its fill value without an error. The fill value is one that no program
//! writes, so that it is never taken for data and is never zero: NaN, the least signed integer, or the largest unsigned
//! integer.

use super::{Changes, Maker};
use crate::edit::{apply, copy_attributes, open_object};
use crate::ffi::{self, Failure, ObjectKind, RawLink, VirtualPiece};
use npyfs_hdf5::protocol::{EditStep, Holders, ObjectPath, Piece, SourceObject};

/// A whole dataset that is a piece of another: the number of its file, its path, its length.
type WholePiece = (usize, ObjectPath, u64);

impl Maker<'_> {
    /// Makes the joined objects without changes in the layers.
    pub(super) fn join(
        &mut self,
        steps: &[EditStep],
        changes: &Changes<'_>,
    ) -> Result<(), Failure> {
        for step in steps {
            let path = match step {
                EditStep::Group { path, .. } | EditStep::Join { path, .. } => path,
                _ => return Err(Failure("not a step that joins".into())),
            };
            if changes.hide(path) {
                continue;
            }
            let about = |e: Failure| Failure(format!("{}: {e}", shown(path)));
            if let EditStep::Join { like, path, pieces } = step
                && let Some(pieces) = self.whole_pieces(path, pieces).map_err(about)?
            {
                self.virtual_dataset(like, path, &pieces).map_err(about)?;
                continue;
            }
            let done = apply(&self.target, step, &Holders::default());
            if let Err(why) = done.map_err(about)? {
                self.links.lost.push((path.clone(), why));
            }
        }
        Ok(())
    }

    fn virtual_dataset(
        &mut self,
        like: &SourceObject,
        path: &ObjectPath,
        pieces: &[WholePiece],
    ) -> Result<(), Failure> {
        let old = open_object(like)?;
        let ty = ffi::copy_type(&ffi::dataset_type(&old)?)?;
        let (mut named, mut start) = (Vec::with_capacity(pieces.len()), 0_u64);
        for (file, object, len) in pieces {
            let Some(linked) = self.new.files.get(*file) else {
                return Err(Failure("no such file".into()));
            };
            self.links.used.insert(*file);
            named.push(VirtualPiece {
                file: &linked.name,
                object,
                start,
                len: *len,
            });
            start = start
                .checked_add(*len)
                .ok_or_else(|| Failure("too many elements".into()))?;
        }
        let new = ffi::virtual_dataset(&self.target, path, &ty, start, &named)?;
        copy_attributes(&old, &new)
    }

    /// Returns the datasets that the pieces consist of; `None` if a piece is not a stored dataset, or if there are no
    /// pieces.
    fn whole_pieces(
        &mut self,
        path: &ObjectPath,
        pieces: &[Piece],
    ) -> Result<Option<Vec<WholePiece>>, Failure> {
        let mut whole = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let Some(from) = piece.from.as_ref().filter(|_| piece.add == 0) else {
                return Ok(None);
            };
            let mut files = self.new.files.iter();
            let Some(file) = files.position(|linked| linked.from == from.file) else {
                return Ok(None);
            };
            let source = self.open(file)?;
            let dataset = ffi::open_object(source, from.addr)?;
            let Some((shape, _)) = ffi::extent(&ffi::dataset_space(&dataset)?)? else {
                return Ok(None);
            };
            if piece.start != 0 || shape != [piece.count] {
                return Ok(None);
            }
            match path_of(source, path, from.addr)? {
                Some(object) => whole.push((file, object, piece.count)),
                None => return Ok(None),
            }
        }
        Ok((!whole.is_empty()).then_some(whole))
    }
}

/// Returns the path of the object at an address: the given path, or one beside the group that contains it.
fn path_of(file: &ffi::Id, path: &ObjectPath, addr: u64) -> Result<Option<ObjectPath>, Failure> {
    if ffi::exists(file, path)? && ffi::object_info(&ffi::open_at(file, path)?)?.addr == addr {
        return Ok(Some(path.clone()));
    }
    let above = &path[..path.len().saturating_sub(2)];
    if !ffi::exists(file, above)? {
        return Ok(None);
    }
    let group = ffi::open_at(file, above)?;
    if ffi::kind(&group) != ObjectKind::Group {
        return Ok(None);
    }
    let links = ffi::links(&group).0.into_iter();
    let mut names = links.filter(|(_, link)| matches!(link, RawLink::Hard(at) if *at == addr));
    Ok(names.next().map(|(name, _)| [above, &[name]].concat()))
}

fn shown(path: &ObjectPath) -> String {
    String::from_utf8_lossy(&path.join(&b'/')).into_owned()
}
