//! Calls that make a file of links into others: groups like those of another file, hard and external links.

use hdf5::file::LibraryVersion;
use hdf5::plist::FileAccess;

use super::create::{dataset_in, new_links};
use super::space::{select_block, simple};
use super::*;

/// A piece of a virtual dataset: all elements of a 1-D dataset of another file.
pub(crate) struct VirtualPiece<'a> {
    /// The path of the file, from the directory of this one.
    pub file: &'a [u8],
    /// The path of the dataset.
    pub object: &'a [Vec<u8>],
    /// The place of its first element.
    pub start: u64,
    /// The length.
    pub len: u64,
}

/// Makes a 1-D virtual dataset. Where the file of a piece is missing it shows NaN, or a number far from zero.
pub(crate) fn virtual_dataset(
    file: &Id,
    path: &[Vec<u8>],
    ty: &Id,
    len: u64,
    pieces: &[VirtualPiece<'_>],
) -> Result<Id> {
    // Names of sources have patterns in them.
    let plain = |name: &[u8]| {
        let escaped = name.iter().flat_map(|&byte| match byte {
            b'%' => vec![b'%', b'%'],
            byte => vec![byte],
        });
        cstring(&escaped.collect::<Vec<u8>>())
    };
    let links = new_links()?;
    // SAFETY: the identifiers are made here and open until they are dropped; the strings outlive the calls, and so
    // does a fill value of the size of the type.
    unsafe {
        let plist = id(h5p::H5Pcreate(*h5p::H5P_CLS_DATASET_CREATE), "H5Pcreate")?;
        let fill = conspicuous(ty);
        done(
            h5p::H5Pset_fill_value(plist.0, ty.0, fill.as_ptr().cast()),
            "H5Pset_fill_value",
        )?;
        for piece in pieces {
            let (place, all) = (simple(&[len])?, simple(&[piece.len])?);
            select_block(&place, &[piece.start], &[piece.len])?;
            let name = plain(piece.file)?;
            let source = plain(&[b"/", &*piece.object.join(&b'/')].concat())?;
            done(
                h5p::H5Pset_virtual(plist.0, place.0, name.as_ptr(), source.as_ptr(), all.0),
                "H5Pset_virtual",
            )?;
        }
        let space = simple(&[len])?;
        dataset_in(file, &path.join(&b'/'), ty, (&space, links.id(), plist.0))
    }
}

/// Returns an element that no program writes: NaN, the least signed or the largest unsigned integer.
fn conspicuous(ty: &Id) -> Vec<u8> {
    let mut element = vec![0xFF; size(ty)];
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    let is_signed = unsafe {
        h5t::H5Tget_class(ty.0) == h5t::H5T_class_t::H5T_INTEGER
            && h5t::H5Tget_sign(ty.0) == h5t::H5T_sign_t::H5T_SGN_2
    };
    if is_signed {
        element.fill(0);
        let highest = match order(ty) {
            h5t::H5T_order_t::H5T_ORDER_BE => element.first_mut(),
            _ => element.last_mut(),
        };
        if let Some(highest) = highest {
            *highest = 0x80;
        }
    }
    element
}

/// Makes the file at `path` anew, for programs with a library of any age. Its root group lists its links as `like`
/// does, in order of their creation or by name.
pub(crate) fn create_like(path: &[u8], like: &Id) -> Result<Id> {
    let path = cstring(path)?;
    let access = FileAccess::build()
        .libver_bounds(LibraryVersion::Earliest, LibraryVersion::latest())
        .file_locking(false)
        .finish()?;
    let mut order = 0;
    // SAFETY: the identifiers are made here and open until they are dropped; the integer and the string outlive the
    // calls.
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

/// Makes a link to an object of another file, which is not looked at. `target` is relative to the directory of this
/// file.
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
    // SAFETY: the identifiers are open as long as they are borrowed, and the strings outlive the call.
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
    // SAFETY: the identifiers are open as long as they are borrowed, and the strings outlive the call.
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
