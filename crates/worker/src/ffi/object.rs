//! Objects of a file: opened by address or by path, their headers, groups, and copies of whole objects.
//!
//! What another program made is opened by address, so that no soft or external link is followed. Paths are for files
//! that this program made, and for callers that have looked at every link of a path.

use super::link::new_links;
use super::*;

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    Group,
    Dataset,
    Other,
}

/// Basic facts of an object header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectInfo {
    pub addr: u64,
    /// Hard links that the header claims.
    pub links: u32,
}

/// Opens the object at an address.
pub(crate) fn open_object(file: &Id, addr: u64) -> Result<Id> {
    // SAFETY: libhdf5 checks the address against the file.
    id(
        unsafe { h5o::H5Oopen_by_token(file.0, token(addr)) },
        "H5Oopen_by_token",
    )
}

/// Opens the object at a path.
pub(crate) fn open_by_name(file: &Id, name: &[u8]) -> Result<Id> {
    let name = cstring(name)?;
    // SAFETY: the identifiers are open as long as they are borrowed, and the name is a C string that outlives the
    // call.
    id(
        unsafe { h5o::H5Oopen(file.0, name.as_ptr(), h5p::H5P_DEFAULT) },
        "H5Oopen",
    )
}

/// Opens the object that names lead to; the root without names.
pub(crate) fn open_at(file: &Id, names: &[Vec<u8>]) -> Result<Id> {
    open_by_name(file, &path_of(names))
}

/// Returns the address of the root group.
pub(crate) fn root_addr(file: &Id) -> Result<u64> {
    Ok(object_info(&open_at(file, &[])?)?.addr)
}

/// Returns the kind of an open object, without reading the file.
pub(crate) fn kind(object: &Id) -> ObjectKind {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    match unsafe { h5i::H5Iget_type(object.0) } {
        h5i::H5I_type_t::H5I_GROUP => ObjectKind::Group,
        h5i::H5I_type_t::H5I_DATASET => ObjectKind::Dataset,
        _ => ObjectKind::Other,
    }
}

/// Returns true if a group is at an address.
pub(crate) fn is_group(file: &Id, addr: u64) -> bool {
    open_object(file, addr).is_ok_and(|object| kind(&object) == ObjectKind::Group)
}

/// Returns the address of an object and the number of its links.
pub(crate) fn object_info(object: &Id) -> Result<ObjectInfo> {
    let info = header(object, h5o::H5O_INFO_BASIC)?;
    Ok(ObjectInfo {
        addr: token_addr(info.token),
        links: info.rc,
    })
}

/// Opens a group, or makes it if it is not there.
pub(crate) fn require_group(file: &Id, name: &[u8]) -> Result<Id> {
    if let Ok(group) = open_by_name(file, name) {
        return Ok(group);
    }
    let name = cstring(name)?;
    let links = new_links()?;
    // SAFETY: the identifiers are open as long as they are borrowed, and the name is a C string that outlives the
    // call.
    id(
        unsafe {
            hdf5_sys::h5g::H5Gcreate2(
                file.0,
                name.as_ptr(),
                links.id(),
                h5p::H5P_DEFAULT,
                h5p::H5P_DEFAULT,
            )
        },
        "H5Gcreate2",
    )
}

/// Makes a group with the creation properties of another; `room`: for attributes larger than 64 KiB, too.
pub(crate) fn group_like(file: &Id, path: &[Vec<u8>], like: Option<&Id>, room: bool) -> Result<Id> {
    let name = cstring(&path.join(&b'/'))?;
    let links = new_links()?;
    // SAFETY: the identifiers are made here and open until they are dropped; the string outlives the calls.
    unsafe {
        let plist = match like {
            Some(like) => hdf5_sys::h5g::H5Gget_create_plist(like.0),
            None => h5p::H5Pcreate(*h5p::H5P_CLS_GROUP_CREATE),
        };
        let plist = id(plist, "H5Gget_create_plist")?;
        if room {
            done(
                h5p::H5Pset_attr_creation_order(plist.0, h5p::H5P_CRT_ORDER_TRACKED),
                "H5Pset_attr_creation_order",
            )?;
        }
        id(
            hdf5_sys::h5g::H5Gcreate2(file.0, name.as_ptr(), links.id(), plist.0, h5p::H5P_DEFAULT),
            "H5Gcreate2",
        )
    }
}

/// Copies an object with all that is below it from one file to another: data as they are stored, and attributes.
pub(crate) fn copy_object(
    from: &Id,
    source: &[Vec<u8>],
    to: &Id,
    target: &[Vec<u8>],
) -> Result<()> {
    let (source, target) = (cstring(&path_of(source))?, cstring(&target.join(&b'/'))?);
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

/// Returns an object header with these fields filled.
pub(super) fn header(object: &Id, fields: c_uint) -> Result<h5o::H5O_info2_t> {
    let mut info = std::mem::MaybeUninit::<h5o::H5O_info2_t>::zeroed();
    // SAFETY: zero is a valid bit pattern of every field (kind 0 is a group); libhdf5 fills what is asked.
    unsafe {
        done(
            h5o::H5Oget_info3(object.0, info.as_mut_ptr(), fields),
            "H5Oget_info3",
        )?;
        Ok(info.assume_init())
    }
}
