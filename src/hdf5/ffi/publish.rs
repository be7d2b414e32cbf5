//! Calls that make a file of links into others: groups like those of another file, hard and external links.

use hdf5::file::LibraryVersion;
use hdf5::plist::FileAccess;

use super::create::new_links;
use super::*;

/// Makes the file at `path` anew, for programs with a library of any age. Its root group lists its links as `like` does, in
/// order of their creation or by name.
pub(crate) fn create_like(path: &[u8], like: &Id) -> Result<Id> {
    let path = cstring(path)?;
    let access = FileAccess::build()
        .libver_bounds(LibraryVersion::Earliest, LibraryVersion::latest())
        .file_locking(false)
        .finish()?;
    let mut order = 0;
    // SAFETY: plain calls on identifiers made here, a live integer, and a live C string.
    unsafe {
        let group = id(
            hdf5_sys::h5g::H5Gget_create_plist(like.0),
            "H5Gget_create_plist",
        )?;
        done(
            h5p::H5Pget_link_creation_order(group.0, &raw mut order),
            "H5Pget_link_creation_order",
        )?;
        let file = id(h5p::H5Pcreate(*h5p::H5P_CLS_FILE_CREATE), "H5Pcreate")?;
        done(
            h5p::H5Pset_link_creation_order(file.0, order),
            "H5Pset_link_creation_order",
        )?;
        let flags = h5f::H5F_ACC_TRUNC;
        id(
            h5f::H5Fcreate(path.as_ptr(), flags, file.0, access.id()),
            "H5Fcreate",
        )
    }
}

/// Makes a group with the creation properties of another; `room`: for attributes larger than 64 KiB, too.
pub(crate) fn group_like(file: &Id, path: &[Vec<u8>], like: Option<&Id>, room: bool) -> Result<Id> {
    let name = cstring(&path.join(&b'/'))?;
    let links = new_links()?;
    // SAFETY: plain calls on identifiers made here, and a live C string.
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

/// Makes a link to an object of another file, which is not looked at. `target` is relative to the directory of this file.
pub(crate) fn external_link(
    file: &Id,
    path: &[Vec<u8>],
    target: &[u8],
    object: &[Vec<u8>],
) -> Result<()> {
    let name = cstring(&path.join(&b'/'))?;
    let (target, object) = (
        cstring(target)?,
        cstring(&[b"/", &*object.join(&b'/')].concat())?,
    );
    let links = new_links()?;
    // SAFETY: plain call; all names are live C strings.
    let made = unsafe {
        h5l::H5Lcreate_external(
            target.as_ptr(),
            object.as_ptr(),
            file.0,
            name.as_ptr(),
            links.id(),
            h5p::H5P_DEFAULT,
        )
    };
    done(made, "H5Lcreate_external")
}

/// Gives an object another path in its file.
pub(crate) fn hard_link(file: &Id, from: &[Vec<u8>], to: &[Vec<u8>]) -> Result<()> {
    let from = match from {
        [] => cstring(b"/")?,
        names => cstring(&names.join(&b'/'))?,
    };
    let to = cstring(&to.join(&b'/'))?;
    let links = new_links()?;
    // SAFETY: plain call; both paths are live C strings.
    let made = unsafe {
        h5l::H5Lcreate_hard(
            file.0,
            from.as_ptr(),
            file.0,
            to.as_ptr(),
            links.id(),
            h5p::H5P_DEFAULT,
        )
    };
    done(made, "H5Lcreate_hard")
}
