//! Directory operations: lookup, listing, and attributes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::{
    Errno, FileHandle, FopenFlags, INodeNo, ReplyAttr, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEntry, ReplyOpen, ReplyXattr,
};

use super::adapter::Adapter;
use super::reply::{NO_ENTRY, file_attr, file_type, shown_attr, sized, ttl};
use super::{GENERATION, TTL};

impl Adapter {
    pub(super) fn look_up(&self, thread: u32, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.ask(|fs| fs.lookup(parent.0, name, thread));
        self.answer(|| match found {
            Ok(attr) => reply.entry(&ttl(&attr), &file_attr(&attr), GENERATION),
            Err(errno) if errno.code() == libc::ENOENT && !self.fs.is_writable() => {
                reply.entry(&TTL, &NO_ENTRY, GENERATION);
            }
            Err(errno) => reply.error(errno),
        });
        self.look_out();
    }

    pub(super) fn tell_attributes(&self, ino: INodeNo, reply: ReplyAttr) {
        let attr = self.ask(|fs| fs.getattr(ino.0));
        self.answer(|| match attr {
            Ok(attr) => reply.attr(&ttl(&attr), &shown_attr(&attr)),
            Err(errno) => reply.error(errno),
        });
        self.look_out();
    }

    pub(super) fn open_directory(&self, ino: INodeNo, reply: ReplyOpen) {
        match self.ask(|fs| fs.open_dir(ino.0)) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
    }

    pub(super) fn list(&self, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let answer = self.ask(|fs| {
            fs.read_dir(handle.0, offset, &mut |entry| {
                !reply.add(
                    INodeNo(entry.ino),
                    entry.next,
                    file_type(entry.kind),
                    OsStr::from_bytes(&entry.name),
                )
            })
        });
        match answer {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    pub(super) fn list_with_attributes(
        &self,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let answer = self.ask(|fs| {
            fs.read_dir_plus(handle.0, offset, &mut |entry, attr| {
                let name = OsStr::from_bytes(&entry.name);
                !reply.add(
                    INodeNo(entry.ino),
                    entry.next,
                    name,
                    &ttl(attr),
                    &file_attr(attr),
                    GENERATION,
                )
            })
        });
        match answer {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    pub(super) fn attribute(&self, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if !self.fs.xattrs_enabled() {
            return reply.error(Errno::ENOSYS);
        }
        match self.ask(|fs| fs.get_xattr(ino.0, name)) {
            Ok(Some(value)) => sized(&value, size, reply),
            Ok(None) => reply.error(Errno::ENODATA),
            Err(errno) => reply.error(errno),
        }
    }

    pub(super) fn attributes(&self, ino: INodeNo, size: u32, reply: ReplyXattr) {
        if !self.fs.xattrs_enabled() {
            return reply.error(Errno::ENOSYS);
        }
        match self.ask(|fs| fs.list_xattr(ino.0)) {
            Ok(names) => {
                let list: Vec<u8> = names
                    .into_iter()
                    .flat_map(|name| name.into_iter().chain([0]))
                    .collect();
                sized(&list, size, reply);
            }
            Err(errno) => reply.error(errno),
        }
    }
}
