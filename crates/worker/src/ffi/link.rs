//! Links: read as they are stored, made, moved and removed. None is followed.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use hdf5::plist::{CharEncoding, LinkCreate};

use super::*;

/// A link as it is stored; nothing is followed.
#[derive(Clone, Debug)]
pub(crate) enum RawLink {
    Hard(u64),
    Soft(Vec<u8>),
    /// File name and object path.
    External(Vec<u8>, Vec<u8>),
    Damaged(String),
}

/// Bytes of names beyond those that were asked for.
const NAMES_AHEAD: usize = 4 << 20;

/// The number of links of a group from which on more metadata is kept while they are listed.
const MANY_LINKS: usize = 20_000;

/// Bytes of metadata that are kept for each link while many are listed, and at most. The links of a large group lie in
/// a heap, in the order in which they were made, and libhdf5 walks them in the order of hashes: where the heap does not
/// fit, it reads and checks a block of up to 64 KiB for each link.
const BYTES_OF_LINK: usize = 24;
const LINKS_CACHE: usize = 16 << 20;

/// The links of a group; of a damaged one those that can be read, and the error.
pub(crate) type Links = (Vec<(Vec<u8>, RawLink)>, Option<Failure>);

/// Returns the links of a group in order of name.
pub(crate) fn links(group: &Id) -> Links {
    links_by(group, H5_index_t::H5_INDEX_NAME, 0..usize::MAX).0
}

/// Returns a part of the links of a group in order of name, and the number of all.
pub(crate) fn some_links(group: &Id, part: Range<usize>) -> (Links, usize) {
    links_by(group, H5_index_t::H5_INDEX_NAME, part)
}

/// The links of a group that come next in order of name.
pub(crate) struct NextLinks {
    pub links: VecDeque<(Vec<u8>, RawLink)>,
    /// No others come behind them.
    pub are_last: bool,
    /// The number of all links of the group.
    pub total: usize,
    pub damage: Option<Failure>,
}

/// Returns the first links of a group in order of name whose names lie behind `after`: at least `least`, if there are
/// so many, and at most `most`. Only these are held: libhdf5 hands out links in the order in which they are stored,
/// without a table of all.
pub(crate) fn links_after(group: &Id, after: &[u8], least: usize, most: usize) -> NextLinks {
    let mut first: BTreeMap<Vec<u8>, (h5l::H5L_type_t, u64)> = BTreeMap::new();
    let (mut total, mut bytes) = (0, 0);
    // The first name that was dropped.
    let mut end: Option<Vec<u8>> = None;
    let see = |name: &[u8], kind, value| {
        total += 1;
        if name <= after || end.as_deref().is_some_and(|end| name >= end) {
            return;
        }
        bytes += name.len();
        first.insert(name.to_vec(), (kind, value));
        while first.len() > least && (first.len() > most || bytes > NAMES_AHEAD) {
            if let Some((last, _)) = first.pop_last() {
                bytes -= last.len();
                end = Some(last);
            }
        }
    };
    let damage = each_link(
        group,
        H5_index_t::H5_INDEX_NAME,
        H5_iter_order_t::H5_ITER_NATIVE,
        see,
    )
    .err();
    let links = first.into_iter();
    let links = links.map(|(name, (kind, value))| with_value(group, name, kind, value));
    NextLinks {
        links: links.collect(),
        are_last: end.is_none(),
        total,
        damage,
    }
}

/// Returns the links of a group in the order in which they were made, if it knows that, or in order of name.
pub(crate) fn links_as_listed(group: &Id) -> Links {
    let mut order = 0;
    // SAFETY: the identifiers are made here and open until they are dropped; the integer outlives the calls.
    let known = unsafe {
        id(
            hdf5_sys::h5g::H5Gget_create_plist(group.0),
            "H5Gget_create_plist",
        )
        .is_ok_and(|plist| h5p::H5Pget_link_creation_order(plist.0, &raw mut order) >= 0)
    };
    match known && order & h5p::H5P_CRT_ORDER_TRACKED != 0 {
        true => links_by(group, H5_index_t::H5_INDEX_CRT_ORDER, 0..usize::MAX).0,
        false => links(group),
    }
}

fn links_by(group: &Id, index: H5_index_t, part: Range<usize>) -> (Links, usize) {
    let mut found = Vec::new();
    let mut total = 0;
    let see = |name: &[u8], kind, value| {
        if part.contains(&total) {
            found.push((name.to_vec(), kind, value));
        }
        total += 1;
    };
    let damage = each_link(group, index, H5_iter_order_t::H5_ITER_INC, see).err();
    let links = found.into_iter();
    let links = links.map(|(name, kind, value)| with_value(group, name, kind, value));
    ((links.collect(), damage), total)
}

/// Returns the number of links of a group, as its header claims it.
pub(crate) fn link_count(group: &Id) -> Result<usize> {
    let mut info = std::mem::MaybeUninit::<hdf5_sys::h5g::H5G_info_t>::zeroed();
    // SAFETY: the group is open; zero is a valid bit pattern of every field.
    let links = unsafe {
        done(
            hdf5_sys::h5g::H5Gget_info(group.0, info.as_mut_ptr()),
            "H5Gget_info",
        )?;
        info.assume_init().nlinks
    };
    Ok(usize::try_from(links).unwrap_or(usize::MAX))
}

/// A larger cache of the metadata of a group's file, as long as this lives.
struct LinksCache {
    file: Id,
    before: hdf5_sys::h5ac::H5AC_cache_config_t,
}

impl LinksCache {
    /// Enlarges the cache for a group of many links. `None` if there are few, or if the cache is that large anyway.
    fn enlarge(group: &Id) -> Option<Self> {
        let links = link_count(group)
            .ok()
            .filter(|&links| links >= MANY_LINKS)?;
        let mut before = std::mem::MaybeUninit::<hdf5_sys::h5ac::H5AC_cache_config_t>::zeroed();
        // SAFETY: the identifiers are open; zero is a valid bit pattern of every field, and the version of the
        // configuration is set before libhdf5 looks at it.
        let (file, before) = unsafe {
            let file = id(h5i::H5Iget_file_id(group.0), "H5Iget_file_id").ok()?;
            (*before.as_mut_ptr()).version = hdf5_sys::h5ac::H5AC__CURR_CACHE_CONFIG_VERSION;
            if h5f::H5Fget_mdc_config(file.0, before.as_mut_ptr()) < 0 {
                return None;
            }
            (file, before.assume_init())
        };
        let bytes = links.saturating_mul(BYTES_OF_LINK).min(LINKS_CACHE);
        let cache = Self { file, before };
        (before.max_size < bytes && cache.set(bytes)).then_some(cache)
    }

    /// Returns whether the cache has this size now.
    fn set(&self, bytes: usize) -> bool {
        let config = hdf5_sys::h5ac::H5AC_cache_config_t {
            set_initial_size: 1,
            initial_size: bytes,
            min_size: bytes,
            max_size: bytes,
            ..self.before
        };
        // SAFETY: the file is open, and the configuration is one that libhdf5 gave, with another size.
        unsafe { h5f::H5Fset_mdc_config(self.file.0, &raw const config) >= 0 }
    }
}

impl Drop for LinksCache {
    fn drop(&mut self) {
        self.set(self.before.max_size);
    }
}

/// Shows all links of a group: name, kind, and the address of a hard link or the size of the value of another one.
fn each_link<F: FnMut(&[u8], h5l::H5L_type_t, u64)>(
    group: &Id,
    index: H5_index_t,
    order: H5_iter_order_t,
    mut see: F,
) -> Result<()> {
    unsafe extern "C" fn visit<F: FnMut(&[u8], h5l::H5L_type_t, u64)>(
        _group: hid_t,
        name: *const c_char,
        info: *const h5l::H5L_info2_t,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: libhdf5 passes a C string and a valid record; `data` is the function below, which nothing else uses
        // during the call.
        unsafe {
            let see = &mut *data.cast::<F>();
            let mut info = *info;
            let value = if info.type_ == h5l::H5L_TYPE_HARD {
                token_addr(*info.u.token())
            } else {
                *info.u.val_size() as u64
            };
            see(CStr::from_ptr(name).to_bytes(), info.type_, value);
        }
        0
    }
    let mut at: hsize_t = 0;
    let _cache = LinksCache::enlarge(group);
    // SAFETY: callback and data match; both outlive the call.
    let status = unsafe {
        h5l::H5Literate2(
            group.0,
            index,
            order,
            &raw mut at,
            Some(visit::<F>),
            (&raw mut see).cast(),
        )
    };
    done(status, "H5Literate2")
}

/// Returns a link with its value.
fn with_value(group: &Id, name: Vec<u8>, kind: h5l::H5L_type_t, value: u64) -> (Vec<u8>, RawLink) {
    let link = match kind {
        h5l::H5L_TYPE_HARD => RawLink::Hard(value),
        // libhdf5 looks a value up by path: a name with a slash would lead elsewhere.
        _ if name.contains(&b'/') => RawLink::Damaged("link name contains a slash".into()),
        h5l::H5L_TYPE_SOFT | h5l::H5L_TYPE_EXTERNAL => {
            link_value(group, &name, kind, value).unwrap_or_else(|e| RawLink::Damaged(e.0))
        }
        _ => RawLink::Damaged("user-defined link".into()),
    };
    (name, link)
}

/// Returns a link by its name; `None` if there is none.
pub(crate) fn link(group: &Id, name: &[u8]) -> Result<Option<RawLink>> {
    let text = cstring(name)?;
    let mut info = std::mem::MaybeUninit::<h5l::H5L_info2_t>::zeroed();
    // SAFETY: the name holds no slash (callers split at them), so libhdf5 looks at this group only;
    // zero is a valid bit pattern of every field.
    unsafe {
        if h5l::H5Lexists(group.0, text.as_ptr(), h5p::H5P_DEFAULT) <= 0 {
            let _ = failure("H5Lexists");
            return Ok(None);
        }
        done(
            h5l::H5Lget_info2(group.0, text.as_ptr(), info.as_mut_ptr(), h5p::H5P_DEFAULT),
            "H5Lget_info2",
        )?;
        let mut info = info.assume_init();
        Ok(Some(match info.type_ {
            h5l::H5L_TYPE_HARD => RawLink::Hard(token_addr(*info.u.token())),
            h5l::H5L_TYPE_SOFT | h5l::H5L_TYPE_EXTERNAL => {
                let size = *info.u.val_size() as u64;
                link_value(group, name, info.type_, size)?
            }
            _ => RawLink::Damaged("user-defined link".into()),
        }))
    }
}

fn link_value(group: &Id, name: &[u8], kind: h5l::H5L_type_t, size: u64) -> Result<RawLink> {
    const MAX_BYTES: u64 = 1 << 16;
    if size > MAX_BYTES {
        return Err(Failure(format!("link value of {size} bytes")));
    }
    let name = cstring(name)?;
    let mut value = vec![0_u8; count(size, "link value")?.max(1)];
    // SAFETY: the buffer has the length that is passed.
    unsafe {
        done(
            h5l::H5Lget_val(
                group.0,
                name.as_ptr(),
                value.as_mut_ptr().cast(),
                value.len(),
                h5p::H5P_DEFAULT,
            ),
            "H5Lget_val",
        )?;
    }
    let mut parts = if kind == h5l::H5L_TYPE_EXTERNAL {
        // One byte of version and flags, then two C strings.
        value.get(1..).unwrap_or_default()
    } else {
        &value
    }
    .split(|&b| b == 0)
    .map(<[u8]>::to_vec);
    let first = parts.next().unwrap_or_default();
    Ok(if kind == h5l::H5L_TYPE_EXTERNAL {
        RawLink::External(first, parts.next().unwrap_or_default())
    } else {
        RawLink::Soft(first)
    })
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

/// Gives an object another path in its file.
pub(crate) fn hard_link(file: &Id, from: &[Vec<u8>], to: &[Vec<u8>]) -> Result<()> {
    let (from, to) = (cstring(&path_of(from))?, cstring(&to.join(&b'/'))?);
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

/// Makes a soft link to a path that need not exist.
pub(crate) fn soft_link(file: &Id, name: &[u8], target: &[u8]) -> Result<()> {
    let (name, target) = (cstring(name)?, cstring(target)?);
    let links = new_links()?;
    // SAFETY: the identifiers are open as long as they are borrowed, and the strings outlive the call.
    done(
        unsafe {
            h5l::H5Lcreate_soft(
                target.as_ptr(),
                file.0,
                name.as_ptr(),
                links.id(),
                h5p::H5P_DEFAULT,
            )
        },
        "H5Lcreate_soft",
    )
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

/// Returns the properties of new links: their names are UTF-8, and groups on the way are made as well.
pub(super) fn new_links() -> Result<LinkCreate> {
    let mut links = LinkCreate::build();
    links.create_intermediate_group(true);
    Ok(links.char_encoding(CharEncoding::Utf8).finish()?)
}
