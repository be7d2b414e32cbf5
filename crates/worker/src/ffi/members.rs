//! Files that are stored as several members, opened by the drivers of libhdf5 that put them together.

use super::*;
use npyfs_io::file::members::{Driver, Layout};

/// Kinds of bytes that libhdf5 counts, with the default in front.
const TYPES: usize = 7;

/// Opens the members of a file to read; no lock is taken.
pub(crate) fn open_members(layout: &Layout) -> Result<Id> {
    let each = hdf5::plist::FileAccess::build()
        .file_locking(false)
        .finish()?;
    let all = hdf5::plist::FileAccess::build()
        .file_locking(false)
        .finish()?;
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
            [&literal(prefix), number.as_bytes(), &literal(suffix)].concat()
        }
        Driver::Multi { map, stem } => {
            set_multi(&all, &each, map, layout)?;
            stem.clone()
        }
    };
    let name = cstring(&name)?;
    // SAFETY: the property list is open as long as it is borrowed, and the name is a C string that outlives the call.
    id(
        unsafe { h5f::H5Fopen(name.as_ptr(), h5f::H5F_ACC_RDONLY, all.id()) },
        "H5Fopen",
    )
}

/// Returns text that a format prints as it is.
fn literal(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for &byte in text {
        out.push(byte);
        if byte == b'%' {
            out.push(byte);
        }
    }
    out
}

fn set_multi(
    all: &hdf5::plist::FileAccess,
    each: &hdf5::plist::FileAccess,
    map: &[u8],
    layout: &Layout,
) -> Result<()> {
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
fn memory_type(kind: u8) -> hdf5_sys::h5f::H5F_mem_t {
    use hdf5_sys::h5f::H5F_mem_t::*;
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
