//! Links as they are stored; none is followed.

use std::ops::Range;

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

/// The links of a group; of a damaged one those that can be read, and the error.
type Links = (Vec<(Vec<u8>, RawLink)>, Option<Failure>);

/// Returns the links of a group in order of name.
pub(crate) fn links(group: &Id) -> Links {
    links_by(group, H5_index_t::H5_INDEX_NAME, 0..usize::MAX).0
}

/// Returns a part of the links of a group in order of name, and the number of all.
pub(crate) fn some_links(group: &Id, part: Range<usize>) -> (Links, usize) {
    links_by(group, H5_index_t::H5_INDEX_NAME, part)
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
    /// The links of the part, and the number of all so far.
    struct FoundLinks {
        part: Range<usize>,
        links: Vec<(Vec<u8>, h5l::H5L_type_t, u64)>,
        total: usize,
    }
    unsafe extern "C" fn visit(
        _group: hid_t,
        name: *const c_char,
        info: *const h5l::H5L_info2_t,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: libhdf5 passes a C string and a valid record; `data` is what is found below.
        unsafe {
            let found = &mut *data.cast::<FoundLinks>();
            found.total += 1;
            if !found.part.contains(&(found.total - 1)) {
                return 0;
            }
            let mut info = *info;
            let value = if info.type_ == h5l::H5L_TYPE_HARD {
                token_addr(*info.u.token())
            } else {
                *info.u.val_size() as u64
            };
            let name = CStr::from_ptr(name).to_bytes().to_vec();
            found.links.push((name, info.type_, value));
        }
        0
    }
    let mut found = FoundLinks {
        part,
        links: Vec::new(),
        total: 0,
    };
    let mut at: hsize_t = 0;
    // SAFETY: callback and data match; both outlive the call.
    let status = unsafe {
        h5l::H5Literate2(
            group.0,
            index,
            H5_iter_order_t::H5_ITER_INC,
            &raw mut at,
            Some(visit),
            (&raw mut found).cast(),
        )
    };
    let error = done(status, "H5Literate2").err();
    let total = found.total;
    let links = (found.links)
        .into_iter()
        .map(|(name, kind, value)| {
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
        })
        .collect();
    ((links, error), total)
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
