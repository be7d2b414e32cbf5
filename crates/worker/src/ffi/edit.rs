//! Changes to a new file: objects copied into it and links taken out of it. No data passes through here.

use hdf5::plist::file_create::FileSpaceStrategy;
use hdf5::plist::{FileAccess, FileCreate};

use super::create::{access_to_write, new_links, opened_to_write, truncated_as};
use super::*;
use npyfs_hdf5::protocol::FileForm;

/// Opens the file at `path` to read it; no lock is taken.
pub(crate) fn open_source(path: &[u8]) -> Result<Id> {
    let path = cstring(path)?;
    let access = access_to_write()?;
    // SAFETY: the identifiers are open as long as they are borrowed, and the path is a C string that outlives the
    // call.
    id(
        unsafe { h5f::H5Fopen(path.as_ptr(), h5f::H5F_ACC_RDONLY, access.id()) },
        "H5Fopen",
    )
}

fn access(form: &FileForm) -> Result<FileAccess> {
    let mut access = FileAccess::build();
    access.file_locking(false);
    if let Some(bytes) = form.alignment {
        access.alignment(bytes, bytes);
    }
    if form.page.is_some() {
        access.libver_v110();
    }
    Ok(access.finish()?)
}

/// Makes the file at `path` anew, with nothing in it; its data will lie close together.
pub(crate) fn create_empty(path: &[u8], form: &FileForm) -> Result<Id> {
    let mut creation = FileCreate::build();
    creation.userblock(form.user_block);
    if let Some(bytes) = form.page {
        let paged = FileSpaceStrategy::FreeSpaceManager {
            paged: true,
            persist: false,
            threshold: 1,
        };
        creation
            .file_space_strategy(paged)
            .file_space_page_size(bytes);
    }
    truncated_as(path, &creation.finish()?, &access(form)?)
}

/// Opens a file that this program made, to change it. New objects may be in a form that libhdf5 has since 1.10, if it
/// is `recent`.
pub(crate) fn open_to_edit(path: &[u8], recent: bool) -> Result<Id> {
    let form = FileForm {
        page: recent.then_some(0),
        ..FileForm::default()
    };
    opened_to_write(path, &access(&form)?)
}

/// Returns whether every link of a path is there and leads on.
pub(crate) fn exists(file: &Id, names: &[Vec<u8>]) -> Result<bool> {
    for depth in 1..=names.len() {
        let path = cstring(&names[..depth].join(&b'/'))?;
        // SAFETY: the file is open as long as it is borrowed. The path is a C string that outlives the call, whose
        // links but the last are known to exist.
        match unsafe { h5l::H5Lexists(file.0, path.as_ptr(), h5p::H5P_DEFAULT) } {
            0 => return Ok(false),
            found => done(found, "H5Lexists")?,
        }
    }
    Ok(true)
}

/// Takes a link away; its object goes with the last one.
pub(crate) fn unlink(file: &Id, names: &[Vec<u8>]) -> Result<()> {
    let path = cstring(&names.join(&b'/'))?;
    // SAFETY: the identifiers are open as long as they are borrowed, and the path is a C string that outlives the
    // call.
    done(
        unsafe { h5l::H5Ldelete(file.0, path.as_ptr(), h5p::H5P_DEFAULT) },
        "H5Ldelete",
    )
}

/// Gives the object of a link another path.
pub(crate) fn rename(file: &Id, from: &[Vec<u8>], to: &[Vec<u8>]) -> Result<()> {
    let (from, to) = (cstring(&from.join(&b'/'))?, cstring(&to.join(&b'/'))?);
    let links = new_links()?;
    // SAFETY: the identifiers are open as long as they are borrowed, and the strings outlive the call.
    done(
        unsafe {
            h5l::H5Lmove(
                file.0,
                from.as_ptr(),
                file.0,
                to.as_ptr(),
                links.id(),
                h5p::H5P_DEFAULT,
            )
        },
        "H5Lmove",
    )
}

/// Copies an object with all that is below it from one file to another: data as they are stored, and attributes.
pub(crate) fn copy_object(
    from: &Id,
    source: &[Vec<u8>],
    to: &Id,
    target: &[Vec<u8>],
) -> Result<()> {
    let source = match source {
        [] => cstring(b"/")?,
        names => cstring(&names.join(&b'/'))?,
    };
    let target = cstring(&target.join(&b'/'))?;
    let links = new_links()?;
    // SAFETY: the identifiers are open as long as they are borrowed, and the strings outlive the call.
    done(
        unsafe {
            h5o::H5Ocopy(
                from.0,
                source.as_ptr(),
                to.0,
                target.as_ptr(),
                h5p::H5P_DEFAULT,
                links.id(),
            )
        },
        "H5Ocopy",
    )
}

/// Opens the object at a path; the root without names.
pub(crate) fn open_at(file: &Id, names: &[Vec<u8>]) -> Result<Id> {
    match names {
        [] => open_by_name(file, b"/"),
        names => open_by_name(file, &names.join(&b'/')),
    }
}

/// Returns whether an object has an attribute.
pub(crate) fn has_attribute(object: &Id, name: &[u8]) -> Result<bool> {
    let name = cstring(name)?;
    // SAFETY: the identifiers are open as long as they are borrowed, and the name is a C string that outlives the
    // call.
    let found = unsafe { h5a::H5Aexists(object.0, name.as_ptr()) };
    done(found, "H5Aexists").map(|()| found > 0)
}

/// Takes an attribute away.
pub(crate) fn remove_attribute(object: &Id, name: &[u8]) -> Result<()> {
    let name = cstring(name)?;
    // SAFETY: the identifiers are open as long as they are borrowed, and the name is a C string that outlives the
    // call.
    done(
        unsafe { h5a::H5Adelete(object.0, name.as_ptr()) },
        "H5Adelete",
    )
}

/// Returns the value of an attribute that is one integer; `None` if there is none, or if it is something else.
pub(crate) fn int_attribute(object: &Id, name: &[u8]) -> Result<Option<i64>> {
    if !has_attribute(object, name)? {
        return Ok(None);
    }
    let name = cstring(name)?;
    let mut value = 0_i64;
    // SAFETY: the identifiers are made here and open until they are dropped; one element is read into a live
    // integer of the type that
    // is said.
    unsafe {
        let attribute = id(
            h5a::H5Aopen(object.0, name.as_ptr(), h5p::H5P_DEFAULT),
            "H5Aopen",
        )?;
        let ty = id(h5a::H5Aget_type(attribute.0), "H5Aget_type")?;
        let space = id(h5a::H5Aget_space(attribute.0), "H5Aget_space")?;
        let is_number = h5t::H5Tget_class(ty.0) == h5t::H5T_class_t::H5T_INTEGER
            && h5s::H5Sget_simple_extent_npoints(space.0) == 1;
        if !is_number {
            return Ok(None);
        }
        done(
            h5a::H5Aread(attribute.0, *h5t::H5T_NATIVE_INT64, (&raw mut value).cast()),
            "H5Aread",
        )?;
    }
    Ok(Some(value))
}

/// Gives an object a scalar attribute of 64 bits, in the place of one of that name.
pub(crate) fn set_int_attribute(object: &Id, name: &[u8], value: i64) -> Result<()> {
    if has_attribute(object, name)? {
        remove_attribute(object, name)?;
    }
    let name = cstring(name)?;
    // SAFETY: the identifiers are made here and open until they are dropped; the value is a live integer of the
    // type that is said.
    unsafe {
        let space = id(h5s::H5Screate(h5s::H5S_class_t::H5S_SCALAR), "H5Screate")?;
        let attribute = id(
            h5a::H5Acreate2(
                object.0,
                name.as_ptr(),
                *h5t::H5T_STD_I64LE,
                space.0,
                h5p::H5P_DEFAULT,
                h5p::H5P_DEFAULT,
            ),
            "H5Acreate2",
        )?;
        done(
            h5a::H5Awrite(
                attribute.0,
                *h5t::H5T_NATIVE_INT64,
                (&raw const value).cast(),
            ),
            "H5Awrite",
        )
    }
}

/// Returns the bytes that an attribute takes, in an object header or elsewhere.
pub(crate) fn attribute_bytes(object: &Id, name: &[u8]) -> Result<usize> {
    let name = cstring(name)?;
    // SAFETY: the identifiers are made here and open until they are dropped; the name is a live C string.
    unsafe {
        let attribute = id(
            h5a::H5Aopen(object.0, name.as_ptr(), h5p::H5P_DEFAULT),
            "H5Aopen",
        )?;
        let size = h5a::H5Aget_storage_size(attribute.0);
        usize::try_from(size).map_err(|_| Failure("attribute too large".into()))
    }
}

/// Copies an attribute from one object to another, in the place of one of that name.
pub(crate) fn copy_attribute(from: &Id, to: &Id, name: &[u8]) -> Result<()> {
    /// Most lie in object headers of 64 KiB. Larger ones are objects that a format keeps as attributes.
    const MAX_BYTES: usize = 64 << 20;
    if has_attribute(to, name)? {
        remove_attribute(to, name)?;
    }
    let text = cstring(name)?;
    // SAFETY: the identifiers are made here and open until they are dropped; the buffer has room for the elements
    // of the attribute in
    // the type that both calls name. What libhdf5 allocates for text of variable length is not given back: the
    // worker ends soon.
    unsafe {
        let source = id(
            h5a::H5Aopen(from.0, text.as_ptr(), h5p::H5P_DEFAULT),
            "H5Aopen",
        )?;
        let ty = id(h5a::H5Aget_type(source.0), "H5Aget_type")?;
        let space = id(h5a::H5Aget_space(source.0), "H5Aget_space")?;
        let elements = count(
            h5s::H5Sget_simple_extent_npoints(space.0),
            "H5Sget_simple_extent_npoints",
        )?;
        let size = elements.checked_mul(h5t::H5Tget_size(ty.0));
        let Some(size) = size.filter(|&size| size <= MAX_BYTES) else {
            return Err(Failure("attribute too large".into()));
        };
        let mut buf = vec![0_u64; size.div_ceil(8)];
        if size > 0 {
            done(
                h5a::H5Aread(source.0, ty.0, buf.as_mut_ptr().cast()),
                "H5Aread",
            )?;
        }
        let target = id(
            h5a::H5Acreate2(
                to.0,
                text.as_ptr(),
                ty.0,
                space.0,
                h5p::H5P_DEFAULT,
                h5p::H5P_DEFAULT,
            ),
            "H5Acreate2",
        )?;
        if size > 0 {
            done(
                h5a::H5Awrite(target.0, ty.0, buf.as_ptr().cast()),
                "H5Awrite",
            )?;
        }
        Ok(())
    }
}
