//! The targets of a group's soft and external links, as far as the policy allows.

use std::sync::Arc;

use super::{GroupDirectory, GroupListing};
use crate::dataset::opened::OpenStore;
use crate::dataset::{external, text};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_hdf5::{GroupMember, GroupPath, Resolved};

/// The most external links in a chain.
const MOST_EXTERNAL: usize = 8;

impl GroupDirectory {
    pub(super) fn add_soft(&self, name: &[u8], target: &[u8], to: &mut GroupListing) {
        let h5 = &self.store.context.h5;
        let resolved = match h5.resolve(&self.store.file, self.addr, target) {
            Ok(resolved) => resolved,
            Err(e) => return self.add_broken(name, e.into(), to),
        };
        let suffix = match resolved {
            Resolved::Member(GroupMember::Group { .. }) => "",
            Resolved::Member(GroupMember::Dataset(dataset)) => {
                match text::is_over_limit(&self.store, &dataset) {
                    Ok(true) => "",
                    _ => ".npy",
                }
            }
            Resolved::Member(GroupMember::Unsupported {
                sequences: Some(_), ..
            }) => "",
            Resolved::Member(GroupMember::Unsupported { reason, .. }) => {
                let reason = format!("soft link to what is not shown: {reason}");
                to.left_out.push((name.to_vec(), reason));
                return;
            }
            Resolved::External { file, path } => return self.add_external(name, &file, &path, to),
            Resolved::Member(_) | Resolved::Missing => "",
        };
        let parts: GroupPath = target
            .split(|&b| b == b'/')
            .filter(|part| !part.is_empty() && *part != b".")
            .map(<[u8]>::to_vec)
            .collect();
        let mut shown = if target.starts_with(b"/") && self.at_home {
            self.path_from_top(&parts)
        } else {
            let parts: Vec<_> = parts.iter().map(|p| self.visible(p, "")).collect();
            parts.join(&b'/')
        };
        if shown.is_empty() {
            shown = b".".to_vec();
        }
        shown.extend_from_slice(suffix.as_bytes());
        to.entries
            .push((self.visible(name, suffix), self.symlink(shown)));
    }

    pub(super) fn add_external(
        &self,
        name: &[u8],
        file: &[u8],
        path: &[u8],
        to: &mut GroupListing,
    ) {
        match follow(&self.store, file, path, MOST_EXTERNAL) {
            Err(e) if e.kind == ErrorKind::NotFound => {
                let why = format!("dangling external link: {}", e.message);
                to.left_out.push((name.to_vec(), why));
            }
            Err(e) => self.add_broken(name, e, to),
            Ok((other, member)) => {
                to.others.push(other.clone());
                match member {
                    GroupMember::Group { addr, links } => {
                        self.add_group(&other, name, addr, links, None, to);
                    }
                    GroupMember::Dataset(dataset) => {
                        if dataset.outside
                            && let Err(e) = external::check(&other, dataset.addr)
                        {
                            to.left_out.push((name.to_vec(), e.message));
                        }
                        self.add_dataset(&other, name, dataset, to);
                    }
                    GroupMember::Unsupported {
                        addr,
                        sequences: Some(sequences),
                        ..
                    } => self.add_sequences(&other, name, addr, *sequences, to),
                    GroupMember::Unsupported { reason, .. } => {
                        to.left_out.push((name.to_vec(), reason))
                    }
                    _ => self.add_broken(name, Error::damaged("external link to nothing"), to),
                }
            }
        }
    }
}

/// Follows a chain of external links, as far as the policy allows.
fn follow(
    store: &Arc<OpenStore>,
    file: &[u8],
    path: &[u8],
    left: usize,
) -> Result<(Arc<OpenStore>, GroupMember)> {
    if left == 0 {
        return Err(Error::damaged("external links that lead on for too long"));
    }
    let other = external::open_store(store, file)?;
    let path = if path.is_empty() { &b"/"[..] } else { path };
    match other.context.h5.resolve(&other.file, other.root, path)? {
        Resolved::Member(member) => Ok((other, member)),
        Resolved::External { file, path } => follow(&other, &file, &path, left - 1),
        Resolved::Missing => Err(Error::new(
            ErrorKind::NotFound,
            format!("no such object in {}", other.file.path.display()),
        )),
    }
}
