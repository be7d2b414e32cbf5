//! Files: opened to read or to change, made anew, and closed. None of these calls takes a lock.

use hdf5::file::LibraryVersion;
use hdf5::plist::file_access::MetadataCacheConfig;
use hdf5::plist::file_create::FileSpaceStrategy;
use hdf5::plist::{FileAccess, FileCreate};

use super::*;
use npyfs_hdf5::protocol::FileForm;
use npyfs_io::file::members::{Driver, Layout};

/// Bytes of metadata that are kept of a file on disk. libhdf5 counts what a header takes in the file, some 300 bytes,
/// and needs 15 times as much for it: with the 32 MiB that it takes by itself, a listing of 100 000 datasets takes 250
/// MB.
const METADATA_CACHE: usize = 2 << 20;

/// The number of kinds of bytes that libhdf5 knows, with the default in front.
const TYPES: usize = 7;

/// Opens a file to read, and returns whether it had to be opened with SWMR.
///
/// A file whose writer is at work or was killed opens with SWMR only. Every other is opened without: with
/// SWMR libhdf5 reads zeros behind the end of the file instead of failing.
pub(crate) fn open_file(path: &[u8]) -> Result<(Id, bool)> {
    // With SWMR, metadata with a wrong checksum is read again, each time after a pause twice as long
    // (from a nanosecond on): a hundred times by default, which is for ever.
    let access = FileAccess::build()
        .file_locking(false)
        .metadata_read_attempts(20)
        .mdc_config(&metadata_cache(METADATA_CACHE))
        .finish()?;
    let plain = opened(path, h5f::H5F_ACC_RDONLY, &access).map(|file| (file, false));
    plain.or_else(|failure| {
        opened(path, h5f::H5F_ACC_RDONLY | h5f::H5F_ACC_SWMR_READ, &access)
            .map(|file| (file, true))
            .map_err(|_| failure)
    })
}

/// Opens the file at `path` to read it.
pub(crate) fn open_source(path: &[u8]) -> Result<Id> {
    opened(path, h5f::H5F_ACC_RDONLY, &without_lock()?)
}

/// Opens the members of a file that is stored as several, by the driver of libhdf5 that puts them together.
pub(crate) fn open_members(layout: &Layout) -> Result<Id> {
    let (each, all) = (without_lock()?, without_lock()?);
    let name = match &layout.driver {
        Driver::Family {
            size,
            prefix,
            width,
            suffix,
        } => {
            // SAFETY: the property lists are open as long as they are borrowed, and no pointer is passed.
            let set = unsafe { h5p::H5Pset_fapl_family(all.id(), *size, each.id()) };
            done(set, "H5Pset_fapl_family")?;
            let number = format!("%0{width}d");
            // libhdf5 takes the name for a format.
            [&escaped(prefix), number.as_bytes(), &escaped(suffix)].concat()
        }
        Driver::Multi { map, stem } => {
            set_multi(&all, &each, map, layout)?;
            stem.clone()
        }
    };
    opened(&name, h5f::H5F_ACC_RDONLY, &all)
}

/// Opens a file that this program made, to write chunks.
pub(crate) fn open_to_write(path: &[u8]) -> Result<Id> {
    opened(path, h5f::H5F_ACC_RDWR, &without_lock()?)
}

/// Opens a file that this program made, to change it. New objects may be in a form that libhdf5 has since 1.10, if it
/// is `recent`.
pub(crate) fn open_to_edit(path: &[u8], recent: bool) -> Result<Id> {
    let form = FileForm {
        page: recent.then_some(0),
        ..FileForm::default()
    };
    opened(path, h5f::H5F_ACC_RDWR, &access(&form)?)
}

/// Makes the file at `path` anew. What takes `from` bytes or more begins at a multiple of `alignment`.
pub(crate) fn create_file(path: &[u8], from: u64, alignment: u64) -> Result<Id> {
    let access = FileAccess::build()
        .file_locking(false)
        .alignment(from, alignment)
        .finish()?;
    truncated(path, FileCreate::build().finish()?.id(), &access)
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
    truncated(path, creation.finish()?.id(), &access(form)?)
}

/// Makes the file at `path` anew and leaves it open. Its format is that of HDF5 1.10, for programs with an older
/// library.
pub(crate) fn create_collection(path: &[u8]) -> Result<Id> {
    let version = LibraryVersion::V110;
    // Nobody else writes it; readers come with SWMR.
    let access = FileAccess::build()
        .libver_bounds(version, version)
        .file_locking(false)
        .finish()?;
    truncated(path, FileCreate::build().finish()?.id(), &access)
}

/// Makes the file at `path` anew, for programs with a library of any age. Its root group lists its links as `like`
/// does, in order of their creation or by name.
pub(crate) fn create_like(path: &[u8], like: &Id) -> Result<Id> {
    let access = FileAccess::build()
        .libver_bounds(LibraryVersion::Earliest, LibraryVersion::latest())
        .file_locking(false)
        .finish()?;
    let mut order = 0;
    // SAFETY: the identifiers are made here and open until they are dropped; the integer outlives the calls.
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
        truncated(path, file.0, &access)
    }
}

/// Lets others read the file while it grows, from now on; no object may be open.
pub(crate) fn start_swmr(file: &Id) -> Result<()> {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    done(unsafe { h5f::H5Fstart_swmr_write(file.0) }, "H5Fstart_swmr")
}

/// Writes what is in memory; readers see it from here on.
pub(crate) fn flush(file: &Id) -> Result<()> {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    done(
        unsafe { h5f::H5Fflush(file.0, h5f::H5F_scope_t::H5F_SCOPE_GLOBAL) },
        "H5Fflush",
    )
}

/// Closes a file that was written to; it is complete on success.
pub(crate) fn finish(file: Id) -> Result<()> {
    // SAFETY: the identifier is open until the second call, which takes it; no pointer is passed.
    unsafe {
        done(
            h5f::H5Fflush(file.0, h5f::H5F_scope_t::H5F_SCOPE_GLOBAL),
            "H5Fflush",
        )?;
        // Closing would say nothing if it failed: the file must be complete before.
        done(h5f::H5Fclose(file.into_raw()), "H5Fclose")
    }
}

/// Returns the bytes before the superblock of the file that an object is in.
pub(crate) fn user_block(object: &Id) -> Result<u64> {
    let mut size = 0;
    // SAFETY: the identifiers are made here and open until they are dropped; the integer outlives the calls.
    unsafe {
        let file = id(h5i::H5Iget_file_id(object.0), "H5Iget_file_id")?;
        let plist = id(h5f::H5Fget_create_plist(file.0), "H5Fget_create_plist")?;
        done(
            h5p::H5Pget_userblock(plist.0, &raw mut size),
            "H5Pget_userblock",
        )?;
    }
    Ok(size)
}

fn opened(path: &[u8], flags: c_uint, access: &FileAccess) -> Result<Id> {
    let path = cstring(path)?;
    // SAFETY: the property list is open as long as it is borrowed, and the path is a C string that outlives the call.
    id(
        unsafe { h5f::H5Fopen(path.as_ptr(), flags, access.id()) },
        "H5Fopen",
    )
}

/// Makes the file at `path` anew, empty, with the properties of `creation`.
fn truncated(path: &[u8], creation: hid_t, access: &FileAccess) -> Result<Id> {
    let path = cstring(path)?;
    // SAFETY: the property lists are open, and the path is a C string that outlives the call.
    id(
        unsafe { h5f::H5Fcreate(path.as_ptr(), h5f::H5F_ACC_TRUNC, creation, access.id()) },
        "H5Fcreate",
    )
}

/// Returns the properties with which a file is opened without a lock: a store is only read, and a layer has a lock of
/// its own.
fn without_lock() -> Result<FileAccess> {
    Ok(FileAccess::build().file_locking(false).finish()?)
}

/// Returns the properties with which a file of this form is made and changed.
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

/// Returns a configuration of the metadata cache with a fixed size.
pub(super) fn metadata_cache(bytes: usize) -> MetadataCacheConfig {
    MetadataCacheConfig {
        set_initial_size: true,
        initial_size: bytes,
        max_size: bytes,
        min_size: bytes,
        ..Default::default()
    }
}

/// Sets the driver of a file whose kinds of bytes lie in members of their own.
fn set_multi(all: &FileAccess, each: &FileAccess, map: &[u8], layout: &Layout) -> Result<()> {
    let mut names = vec![c"%s".to_owned(); TYPES];
    let mut starts = [u64::MAX; TYPES];
    for member in &layout.members {
        let Some((kind, ending)) = &member.kind else {
            continue;
        };
        let at = usize::from(*kind);
        if at >= TYPES || ending.contains(&b'%') {
            return Err(Failure("a kind of bytes that is none".into()));
        }
        names[at] = cstring(&[b"%s", ending.as_slice()].concat())?;
        starts[at] = member.start;
    }
    let mut kinds = [0_u8; TYPES];
    for (to, from) in kinds[1..].iter_mut().zip(map) {
        *to = *from;
    }
    let pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let lists = [each.id(); TYPES];
    let kinds = kinds.map(memory_type);
    // SAFETY: four arrays of as many elements as there are kinds, which live as long as the call; libhdf5 copies
    // them.
    done(
        unsafe {
            h5p::H5Pset_fapl_multi(
                all.id(),
                kinds.as_ptr(),
                lists.as_ptr(),
                pointers.as_ptr(),
                starts.as_ptr(),
                1,
            )
        },
        "H5Pset_fapl_multi",
    )
}

/// Returns the kind of bytes of a number.
fn memory_type(kind: u8) -> h5f::H5F_mem_t {
    use h5f::H5F_mem_t::*;
    match kind {
        1 => H5FD_MEM_SUPER,
        2 => H5FD_MEM_BTREE,
        3 => H5FD_MEM_DRAW,
        4 => H5FD_MEM_GHEAP,
        5 => H5FD_MEM_LHEAP,
        6 => H5FD_MEM_OHDR,
        _ => H5FD_MEM_DEFAULT,
    }
}
