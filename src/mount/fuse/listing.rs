//! Listing directories and extended attributes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::{Errno, FileHandle, INodeNo, ReplyDirectory, ReplyDirectoryPlus, ReplyXattr, Request};

use super::GENERATION;
use super::adapter::Adapter;
use super::reply::{file_attr, file_type, sized, ttl};

impl Adapter {
    pub(super) fn list(
        &self,
        request: &Request,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let _work = self.long_work(request);
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
        request: &Request,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let _work = self.long_work(request);
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

    pub(super) fn attribute(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let _work = self.work(request);
        if !self.fs.xattrs_enabled() {
            return reply.error(Errno::ENOSYS);
        }
        match self.ask(|fs| fs.get_xattr(ino.0, name)) {
            Ok(Some(value)) => sized(&value, size, reply),
            Ok(None) => reply.error(Errno::ENODATA),
            Err(errno) => reply.error(errno),
        }
    }

    pub(super) fn attributes(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let _work = self.work(request);
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
