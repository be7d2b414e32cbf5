//! Changes to a new file: a copy of a store file to which objects of a checkout are added, and from which others are
//! removed.
//!
//! Objects are copied in their stored form: chunks are not decoded, types and attributes stay unchanged. The file that
//! is changed has no reader yet; the source files are only read. Elements that are put together from pieces pass
//! through a bounded window.
//!
//! An object of a checkout may be an attribute of another object, its holder. A group may list its members by name in
//! attributes, such as the columns of a table; these lists follow the changes.

mod scales;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use super::dataset::shape_bytes;
use super::ffi::{self, Failure, Id, RawLink, Recoding};
use super::text;
use npyfs_hdf5::protocol::{
    EditStep, H5Error, Holders, MAX_SMALL_ATTRIBUTE, NewForm, ObjectPath, Piece, SourceFile,
    SourceObject, TIME, TIMES, WORKPLACE,
};
use npyfs_io::file::StoreFile;

/// The outcome of a step: refused, or a failure of the whole file.
type Done = Result<Result<(), String>, Failure>;

/// Opens the source file, and refuses another file at its path.
pub(super) fn open(source: &SourceFile) -> Result<Id, Failure> {
    let path = source.path();
    let failed = |e: std::io::Error| Failure(format!("{}: {e}", path.display()));
    let plain = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(plain).open(path);
    let file = file.map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if (meta.dev(), meta.ino()) != source.identity() || !meta.is_file() {
        let other = std::io::Error::other("it was replaced by another file");
        return Err(failed(other));
    }
    ffi::open_source(format!("/proc/self/fd/{}", file.as_raw_fd()).as_bytes())
}

/// Opens an object of a source file.
pub(super) fn open_object(source: &SourceObject) -> Result<Id, Failure> {
    ffi::open_object(&open(&source.file)?, source.addr)
}

/// Changes `file` in this process; returns for each step the reason why it was refused, if it was.
pub(super) fn edit(
    file: &StoreFile,
    steps: &[EditStep],
    holders: &Holders,
) -> Result<Vec<Result<(), String>>, H5Error> {
    ffi::locked(|| {
        let held = file.file().map_err(H5Error::from)?;
        let path = held.path();
        let target = open_target(path.as_bytes(), file.identity.size == 0, steps)?;
        let mut done = Vec::with_capacity(steps.len());
        for step in steps {
            done.push(
                apply(&target, step, holders).map_err(|e| H5Error::Damaged(about(step, &e)))?,
            );
        }
        ffi::finish(target)?;
        Ok(done)
    })
}

/// Opens the new file for a group of steps; creates it if it is empty.
fn open_target(path: &[u8], is_empty: bool, steps: &[EditStep]) -> Result<Id, Failure> {
    if is_empty {
        let form = steps.iter().find_map(|step| match step {
            EditStep::Gather { form, .. } => Some(*form),
            _ => None,
        });
        return ffi::create_empty(path, &form.unwrap_or_default());
    }
    let is_recent = |step: &EditStep| match step {
        EditStep::Recode { form, .. } | EditStep::Declare { form, .. } => form.recent,
        _ => false,
    };
    ffi::open_to_edit(path, steps.iter().any(is_recent))
}

/// Notes the time of an object, if the file is one that has times.
fn note_time(target: &Id, object: &Id, time: i64) -> Result<(), Failure> {
    match ffi::has_attribute(&ffi::open_at(target, &[])?, TIMES)? {
        true => ffi::set_int_attribute(object, TIME, time),
        false => Ok(()),
    }
}

/// Formats a failure with a prefix that names the object of the step.
fn about(step: &EditStep, failure: &Failure) -> String {
    match step.path() {
        Some(path) => format!("{}: {failure}", shown(path)),
        None => failure.to_string(),
    }
}

/// Returns a path for messages.
pub(super) fn shown(path: &ObjectPath) -> String {
    String::from_utf8_lossy(&path.join(&b'/')).into_owned()
}

/// Executes a step. The step is refused, with the reason, if its object is not available; a failure, such as a full
/// disk, concerns the whole file.
pub(super) fn apply(target: &Id, step: &EditStep, holders: &Holders) -> Done {
    match step {
        EditStep::Remove { path } => {
            let scale = scales::scale(target, path)?;
            remove_object(target, path, holders)?;
            if let Some(old) = &scale {
                scales::keep_dimension(target, old, path)?;
            }
            unlist(target, path, holders).map(Ok)
        }
        EditStep::Copy { from, path, time } => {
            let source = match open(from) {
                Ok(source) => source,
                Err(e) => return Ok(Err(e.0)),
            };
            if ffi::exists(&source, path)? {
                let is_new = !ffi::exists(target, path)?;
                let scale = scales::scale(target, path)?;
                remove_object(target, path, holders)?;
                ffi::copy_object(&source, path, target, path)?;
                if let Some(old) = &scale {
                    scales::take_over(target, old, path)?;
                }
                if is_new {
                    list(target, path, holders)?;
                }
                // The attributes of a holder are objects, and this attribute would become one.
                let is_holder = path
                    .last()
                    .is_some_and(|name| holders.datasets.contains(name));
                return match time {
                    Some(time) if !is_holder => {
                        note_time(target, &ffi::open_at(target, path)?, *time).map(Ok)
                    }
                    _ => Ok(Ok(())),
                };
            }
            let Some(held) = held_object(&source, path, holders)? else {
                return Ok(Err("the file of the checkout does not have it".into()));
            };
            if !ffi::exists(target, &held.at)? {
                let missing = shown(&held.at);
                return Ok(Err(format!("there is no {missing} that would hold it")));
            }
            remove_object(target, path, holders)?;
            if ffi::attribute_bytes(&held.holder, held.name)? > MAX_SMALL_ATTRIBUTE {
                make_room(target, &held.at)?;
            }
            let holder = ffi::open_at(target, &held.at)?;
            // A time of the object that the holder was copied from is no item of the new one.
            if ffi::int_attribute(&holder, TIME)?.is_some() {
                ffi::remove_attribute(&holder, TIME)?;
            }
            ffi::copy_attribute(&held.holder, &holder, held.name).map(Ok)
        }
        EditStep::Attribute { from, path, name } => {
            let source = match from.as_ref().map(open).transpose() {
                Ok(source) => source,
                Err(e) => return Ok(Err(e.0)),
            };
            let Some(object) = own_object(target, path)? else {
                // An attribute is gone with its object.
                if source.is_none() && !ffi::exists(target, path)? {
                    return Ok(Ok(()));
                }
                let why = "the object with this attribute is not in the file, or only a link to it";
                return Ok(Err(why.into()));
            };
            match source {
                None if ffi::has_attribute(&object, name)? => {
                    ffi::remove_attribute(&object, name).map(Ok)
                }
                None => Ok(Ok(())),
                Some(source) => {
                    let root = ffi::open_at(&source, &[])?;
                    if !ffi::has_attribute(&root, name)? {
                        return Ok(Err("the file of the checkout does not have it".into()));
                    }
                    ffi::copy_attribute(&root, &object, name).map(Ok)
                }
            }
        }
        EditStep::Dimensions { path, scales } => scales::set(target, path, scales),
        EditStep::Group { like, path, marks } => make_group(target, like.as_ref(), path, marks),
        EditStep::Join { like, path, pieces } => join(target, like, path, pieces),
        EditStep::Time { path, time } => {
            // The attributes of a holder are objects, and this attribute would become one.
            if path
                .last()
                .is_some_and(|name| holders.datasets.contains(name))
            {
                return Ok(Ok(()));
            }
            match own_object(target, path)? {
                Some(object) => note_time(target, &object, *time).map(Ok),
                None => Ok(Ok(())),
            }
        }
        EditStep::Times(time) => {
            let root = ffi::open_at(target, &[])?;
            match ffi::has_attribute(&root, TIMES)? {
                true => Ok(Ok(())),
                false => ffi::set_int_attribute(&root, TIMES, *time).map(Ok),
            }
        }
        EditStep::Recode { path, form, block } => recode(target, path, form, block).map(Ok),
        EditStep::Declare { path, form } => declare(target, path, form).map(Ok),
        EditStep::Replace { path } => replace(target, path).map(Ok),
        EditStep::Gather { from, members, .. } => {
            let source = match members {
                Some(layout) => ffi::open_members(layout)?,
                None => ffi::open_source(from)?,
            };
            gather(target, &source).map(Ok)
        }
    }
}

/// Makes a group with the attributes of another group, and sets some of them.
fn make_group(
    target: &Id,
    like: Option<&SourceObject>,
    path: &ObjectPath,
    marks: &[(String, i64)],
) -> Done {
    let old = match like.map(open_object).transpose() {
        Ok(old) => old,
        Err(e) => return Ok(Err(e.0)),
    };
    let new = match path.is_empty() {
        true => ffi::open_at(target, &[])?,
        false => ffi::require_group(target, &path.join(&b'/'))?,
    };
    if let Some(old) = old {
        copy_attributes(&old, &new)?;
    }
    for (name, value) in marks {
        ffi::set_int_attribute(&new, name.as_bytes(), *value)?;
    }
    Ok(Ok(()))
}

/// Makes a dataset of pieces.
fn join(target: &Id, like: &SourceObject, path: &ObjectPath, pieces: &[Piece]) -> Done {
    let old = match open_object(like) {
        Ok(old) if matches!(ffi::kind(&old), ffi::ObjectKind::Dataset) => old,
        Ok(_) => return Ok(Err("not a dataset".into())),
        Err(e) => return Ok(Err(e.0)),
    };
    let rows = pieces
        .iter()
        .try_fold(0_u64, |rows, piece| rows.checked_add(piece.count));
    let Some(rows) = rows else {
        return Ok(Err("too many elements".into()));
    };
    let ty = ffi::dataset_type(&old)?;
    let new = ffi::contiguous_dataset(target, &path.join(&b'/'), &ty, &[rows])?;
    copy_attributes(&old, &new)?;
    let mut at = 0;
    for piece in pieces {
        let source = match piece.from.as_ref().map(open_object).transpose() {
            Ok(source) => source,
            Err(e) => return Ok(Err(e.0)),
        };
        let rows = ffi::Rows {
            start: piece.start,
            at,
            count: piece.count,
        };
        ffi::copy_rows(source.as_ref(), &new, rows, piece.add)?;
        at += piece.count;
    }
    Ok(Ok(()))
}

fn recoding<'a>(form: &'a NewForm, from: &'a ObjectPath, to: &'a ObjectPath) -> Recoding<'a> {
    Recoding {
        from,
        to,
        chunk: form.chunk.as_deref(),
        filters: &form.filters,
    }
}

/// Rewrites a dataset, which is read in blocks.
fn recode(target: &Id, path: &ObjectPath, form: &NewForm, block: &[u64]) -> Result<(), Failure> {
    // The other links of the dataset would keep the old one.
    if ffi::object_info(&ffi::open_at(target, path)?)?.links > 1 {
        return Ok(());
    }
    let place = free_workplace(target)?;
    let (old, new) = recoding(form, path, &place).recode(target, block)?;
    copy_attributes(&old, &new)?;
    drop((old, new));
    ffi::unlink(target, path)?;
    ffi::rename(target, &place, path)
}

/// Makes a dataset in the workplace that will replace another one.
fn declare(target: &Id, path: &ObjectPath, form: &NewForm) -> Result<(), Failure> {
    let place = free_workplace(target)?;
    let (old, new) = recoding(form, path, &place).declare(target)?;
    copy_attributes(&old, &new)
}

/// Moves the object in the workplace to a path, and replaces the object there.
fn replace(target: &Id, path: &ObjectPath) -> Result<(), Failure> {
    ffi::unlink(target, path)?;
    ffi::rename(target, &[WORKPLACE.to_vec()], path)
}

/// Copies all objects of another file.
fn gather(target: &Id, source: &Id) -> Result<(), Failure> {
    let place = free_workplace(source)?;
    // A single call copies all objects, so that an object with several links is copied once.
    ffi::copy_object(source, &[], target, &place)?;
    let all = ffi::open_at(target, &place)?;
    let root = ffi::open_at(target, &[])?;
    copy_attributes(&all, &root)?;
    for (name, _) in ffi::links(&all).0 {
        let from = [place.clone(), vec![name.clone()]].concat();
        ffi::rename(target, &from, &[name])?;
    }
    drop(all);
    ffi::unlink(target, &place)
}

/// Returns the path of the workplace, if no object has that name.
fn free_workplace(file: &Id) -> Result<ObjectPath, Failure> {
    let place = vec![WORKPLACE.to_vec()];
    match ffi::exists(file, &place)? {
        false => Ok(place),
        true => Err(Failure("an object has the name npyfs_export".into())),
    }
}

/// Makes the small dataset at a path anew, so that it has room for large attributes.
fn make_room(target: &Id, path: &ObjectPath) -> Result<(), Failure> {
    /// The largest size in bytes of the dataset.
    const MAX_BYTES: usize = 1 << 16;
    let old = ffi::open_at(target, path)?;
    let place = free_workplace(target)?;
    let ty = ffi::dataset_type(&old)?;
    let Some((shape, _)) = ffi::extent(&ffi::dataset_space(&old)?)? else {
        return Err(Failure("a dataset without elements".into()));
    };
    let start = vec![0; shape.len()];
    if shape_bytes(&shape, ffi::size(&ty)).is_none_or(|bytes| bytes > MAX_BYTES as u64) {
        return Err(Failure("it is too large to be made anew".into()));
    }
    let data = ffi::read_block(&old, &ty, &start, &shape, ffi::size(&ty))?;
    let new = ffi::dataset_for_attributes(target, &place.join(&b'/'), &ty, &shape)?;
    ffi::write_all(&new, &ty, &shape, &data)?;
    copy_attributes(&old, &new)?;
    drop((old, new));
    ffi::unlink(target, path)?;
    ffi::rename(target, &place, path)
}

/// Copies all attributes of an object to another.
pub(super) fn copy_attributes(from: &Id, to: &Id) -> Result<(), Failure> {
    for (name, _) in ffi::attributes(from)? {
        ffi::copy_attribute(from, to, &name)?;
    }
    Ok(())
}

/// Opens the object at a path, if all its links are hard ones.
fn own_object(file: &Id, path: &ObjectPath) -> Result<Option<Id>, Failure> {
    let mut object = ffi::open_at(file, &[])?;
    for name in path {
        if !matches!(ffi::kind(&object), ffi::ObjectKind::Group) {
            return Ok(None);
        }
        match ffi::link(&object, name)? {
            Some(RawLink::Hard(addr)) => object = ffi::open_object(file, addr)?,
            _ => return Ok(None),
        }
    }
    Ok(Some(object))
}

fn remove_object(target: &Id, path: &ObjectPath, holders: &Holders) -> Result<(), Failure> {
    if ffi::exists(target, path)? {
        return ffi::unlink(target, path);
    }
    match held_object(target, path, holders)? {
        Some(held) => ffi::remove_attribute(&held.holder, held.name),
        None => Ok(()),
    }
}

/// An object that is an attribute.
struct HeldObject<'a> {
    /// The dataset that has the attribute, and its path.
    holder: Id,
    at: ObjectPath,
    /// The name of the object, and of the attribute.
    name: &'a [u8],
}

/// Returns the attribute that a path stands for; `None` if the path is no attribute.
fn held_object<'a>(
    file: &Id,
    path: &'a ObjectPath,
    holders: &Holders,
) -> Result<Option<HeldObject<'a>>, Failure> {
    let Some((name, group)) = path.split_last() else {
        return Ok(None);
    };
    for own in &holders.datasets {
        let at = [group, std::slice::from_ref(own)].concat();
        if !ffi::exists(file, &at)? {
            continue;
        }
        let holder = ffi::open_at(file, &at)?;
        if ffi::has_attribute(&holder, name)? {
            return Ok(Some(HeldObject { holder, at, name }));
        }
    }
    Ok(None)
}

/// Appends a new object to the list of its group.
fn list(target: &Id, path: &ObjectPath, holders: &Holders) -> Result<(), Failure> {
    change_lists(target, path, holders, |list, name| {
        if !list.contains(&name) {
            list.push(name);
        }
    })
}

/// Removes a deleted object from the list of its group.
fn unlist(target: &Id, path: &ObjectPath, holders: &Holders) -> Result<(), Failure> {
    change_lists(target, path, holders, |list, name| {
        list.retain(|known| *known != name)
    })
}

/// Changes the lists of the group that an object is in.
fn change_lists(
    target: &Id,
    path: &ObjectPath,
    holders: &Holders,
    edit: impl Fn(&mut Vec<String>, String),
) -> Result<(), Failure> {
    let Some((name, above)) = path.split_last() else {
        return Ok(());
    };
    let above = above.to_vec();
    if holders.lists.is_empty() || !(above.is_empty() || ffi::exists(target, &above)?) {
        return Ok(());
    }
    let group = ffi::open_at(target, &above)?;
    for attribute in &holders.lists {
        change_list(&group, attribute, name, &edit)?;
    }
    Ok(())
}

/// Changes a list of a group, if it has one of that name.
pub(super) fn change_list(
    group: &Id,
    attribute: &[u8],
    name: &[u8],
    edit: &impl Fn(&mut Vec<String>, String),
) -> Result<(), Failure> {
    let (Some(mut list), Ok(name)) = (listed(group, attribute)?, std::str::from_utf8(name)) else {
        return Ok(());
    };
    let before = list.clone();
    edit(&mut list, name.to_owned());
    if list == before {
        return Ok(());
    }
    ffi::remove_attribute(group, attribute)?;
    ffi::add_strings(group, attribute, &[list.len() as u64], &list)
}

/// Returns the texts of an attribute that is a list; `None` if there is none, or if it is no list.
fn listed(group: &Id, name: &[u8]) -> Result<Option<Vec<String>>, Failure> {
    /// The longest list that is changed: the list lies in an object header.
    const MOST: u64 = 1 << 16;
    let Some(attribute) = ffi::attribute(group, name)? else {
        return Ok(None);
    };
    let count = match ffi::extent(&ffi::attribute_space(&attribute)?)? {
        Some((shape, _)) => match shape.as_slice() {
            [0] => return Ok(Some(Vec::new())),
            &[count] if count <= MOST => count,
            _ => return Ok(None),
        },
        None => return Ok(None),
    };
    let ty = ffi::attribute_type(&attribute)?;
    if ffi::class(&ty) != ffi::Class::H5T_STRING {
        return Ok(None);
    }
    let count = usize::try_from(count).unwrap_or(0);
    let texts = text::of_attribute(&attribute, &ty, count)?;
    let texts = texts.into_iter().map(String::from_utf8);
    Ok(texts.collect::<Result<_, _>>().ok())
}
