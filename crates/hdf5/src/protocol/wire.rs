//! The protocol between the daemon and a worker process: frames on a Unix socket.
//!
//! A frame is a length (little-endian, 64 bits) and that many bytes of postcard; a request may carry one
//! descriptor, an answer may be followed by raw bytes whose number it states. Neither side trusts a length.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::answer::{
    Answer, Budget, ChunkTable, DataSource, DatasetMap, LOOKUP_ROOM, MAX_SLOTS, SLOT_BYTES, Slot,
};
use super::error::H5Error;
use super::request::Request;
use super::rights::{Inode, Permit, Sandbox};
use npyfs_base::error::{Error, ErrorKind};
use npyfs_io::file::members::{Layout, Members};
use npyfs_io::file::{Far, Identity, Ownership, StoreFile};

/// Longest frame of plain data: the index of a group with millions of members fits.
const MAX_FRAME: u64 = 2 << 30;

/// Most bytes that one answer may hold.
pub const MAX_BLOCK: u64 = 1 << 30;

/// A function that is handed bytes with their offset.
pub type Sink<'a> = dyn FnMut(u64, &[u8]) -> io::Result<()> + 'a;

/// Raw bytes are handled in parts of this many.
const PART: usize = 1 << 20;

impl DatasetMap {
    fn table_mut(&mut self) -> Option<&mut ChunkTable> {
        match &mut self.source {
            DataSource::Chunked {
                direct: Some(direct),
                ..
            } => Some(&mut direct.table),
            _ => None,
        }
    }

    /// Drops the chunk table, for want of memory: chunks are read through libhdf5 then.
    fn leave_to_library(&mut self) {
        if let DataSource::Chunked {
            direct, crowded, ..
        } = &mut self.source
        {
            *direct = None;
            *crowded = true;
        }
    }
}

/// A request with the file that it is about.
#[derive(Debug, Serialize, Deserialize)]
pub struct Envelope<'a> {
    /// The daemon's number of the file.
    pub serial: u64,
    /// The path, for messages and for virtual sources beside it.
    pub path: Vec<u8>,
    /// The members of a file that is stored as several; with its descriptor only.
    pub members: Option<Layout>,
    /// The identity of a file that lies elsewhere: what is read of it is asked of the daemon.
    pub far: Option<Identity>,
    /// The time that the answer may take, in whole seconds.
    pub seconds: u64,
    /// The request, which may hold much.
    pub request: Cow<'a, Request>,
}

impl Envelope<'_> {
    /// Takes the descriptor of the file over.
    pub fn store_file(&self, file: File) -> Result<StoreFile, H5Error> {
        let path = Path::new(OsStr::from_bytes(&self.path));
        let mut file = StoreFile::from_file(path, file)?;
        if let Some(layout) = &self.members {
            let members = Members::reopen(layout)?.ok_or(H5Error::Stale)?;
            file = file.with_members(members);
        }
        file.serial = self.serial;
        Ok(file)
    }

    /// Returns the file of the request, which lies elsewhere.
    pub fn far_file(&self, identity: Identity, far: Arc<dyn Far>) -> StoreFile {
        let path = Path::new(OsStr::from_bytes(&self.path));
        let mut file = StoreFile::from_far(path, identity, Ownership::UNKNOWN, far);
        file.serial = self.serial;
        file
    }
}

/// A message of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The first message, unasked: the sandbox, and the inodes that a reading worker may open.
    Hello(Sandbox, Vec<Inode>),
    /// The file of this number is not known (any more): send the request again with a descriptor.
    NeedFile,
    /// The answer.
    Done(Result<Answer, H5Error>),
    /// `Answer::Bytes`, and this many bytes follow.
    Bytes(u64),
    /// Ranges of a file that lies elsewhere are wanted before the answer.
    Fetch(Vec<Range<u64>>),
    /// `Answer::Map`, and this many slots of its chunk table follow.
    Map(DatasetMap, u64),
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the other side is gone")
}

fn invalid(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// One end of the connection.
pub struct Wire {
    socket: UnixStream,
    /// The time at which waiting for bytes is given up; `None` waits for ever.
    pub deadline: Option<Instant>,
    /// The memory that received chunk tables may take.
    pub tables: Arc<Budget>,
}

impl Wire {
    /// Makes an end without a deadline.
    pub fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            deadline: None,
            tables: Arc::default(),
        }
    }

    /// Waits until the socket is ready, or fails with `TimedOut` at the deadline.
    fn wait(&self, flags: PollFlags) -> io::Result<()> {
        loop {
            let left = self
                .deadline
                .map(|at| at.saturating_duration_since(Instant::now()));
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut [PollFd::new(&self.socket, flags)], timeout.as_ref()) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn write_all(&self, mut bytes: &[u8], file: Option<&File>) -> io::Result<()> {
        let mut file = file;
        while !bytes.is_empty() {
            self.wait(PollFlags::OUT)?;
            let fds = file.iter().map(|file| file.as_fd()).collect::<Vec<_>>();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
                return Err(invalid("no room for a descriptor"));
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags) {
                Ok(0) => return Err(closed()),
                Ok(n) => {
                    bytes = &bytes[n..];
                    file = None;
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn read_exact(&self, mut bytes: &mut [u8], file: &mut Option<OwnedFd>) -> io::Result<()> {
        while !bytes.is_empty() {
            self.wait(PollFlags::IN)?;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            match recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(bytes)],
                &mut control,
                flags,
            ) {
                Ok(got) if got.bytes == 0 => return Err(closed()),
                Ok(got) => {
                    for message in control.drain() {
                        if let RecvAncillaryMessage::ScmRights(fds) = message {
                            *file = fds.last().or(file.take());
                        }
                    }
                    bytes = bytes.split_at_mut(got.bytes).1;
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn send(&self, message: &impl Serialize, file: Option<&File>) -> io::Result<()> {
        let mut frame = postcard::to_extend(message, vec![0; 8]).map_err(invalid)?;
        let len = (frame.len() - 8) as u64;
        frame[..8].copy_from_slice(&len.to_le_bytes());
        self.write_all(&frame, file)
    }

    fn receive<T: DeserializeOwned>(&self) -> io::Result<(T, Option<OwnedFd>)> {
        let mut file = None;
        let mut len = [0; 8];
        self.read_exact(&mut len, &mut file)?;
        let len = u64::from_le_bytes(len);
        if len > MAX_FRAME {
            return Err(invalid("frame too long"));
        }
        let mut frame = vec![0; usize::try_from(len).map_err(invalid)?];
        self.read_exact(&mut frame, &mut file)?;
        Ok((postcard::from_bytes(&frame).map_err(invalid)?, file))
    }

    /// Sends the first message to a reading worker.
    pub fn send_permit(&self, permit: &Permit, first: Option<&File>) -> io::Result<()> {
        self.send(permit, first)
    }

    /// Receives the first message to a reading worker.
    pub fn receive_permit(&self) -> io::Result<(Permit, Option<File>)> {
        let (permit, first) = self.receive()?;
        Ok((permit, first.map(File::from)))
    }

    /// Sends a request, with a descriptor of its file if the worker needs one.
    pub fn send_request(&self, envelope: &Envelope<'_>, file: Option<&File>) -> io::Result<()> {
        self.send(envelope, file)
    }

    /// Receives a request. Fails with `UnexpectedEof` once the daemon is gone.
    pub fn receive_request(&self) -> io::Result<(Envelope<'static>, Option<File>)> {
        let (envelope, file) = self.receive()?;
        Ok((envelope, file.map(File::from)))
    }

    /// Sends a reply, with bytes or a chunk table behind it.
    pub fn send_reply(&self, reply: Reply) -> io::Result<()> {
        match reply {
            Reply::Done(Ok(Answer::Bytes(bytes))) => {
                self.send(&Reply::Bytes(bytes.len() as u64), None)?;
                self.write_all(&bytes, None)
            }
            Reply::Done(Ok(Answer::Map(mut map))) => {
                let table = map
                    .table_mut()
                    .map(|table| std::mem::take(&mut table.slots));
                let table = table.unwrap_or_default();
                self.send(&Reply::Map(map, table.len() as u64), None)?;
                for slots in table.chunks(PART / SLOT_BYTES) {
                    let bytes: Vec<u8> = slots.iter().flat_map(|slot| slot.to_bytes()).collect();
                    self.write_all(&bytes, None)?;
                }
                Ok(())
            }
            other => self.send(&other, None),
        }
    }

    /// Asks the daemon for ranges of the file that a request is about; their bytes fill `buf`, one behind the other.
    pub fn fetch(&self, ranges: Vec<Range<u64>>, buf: &mut [u8]) -> Result<(), Error> {
        let failed = |e: io::Error| Error::new(ErrorKind::Os(libc::EIO), e.to_string());
        self.send(&Reply::Fetch(ranges), None).map_err(failed)?;
        let (outcome, _): (Result<(), (i32, String)>, _) = self.receive().map_err(failed)?;
        match outcome {
            Ok(()) => self.read_exact(buf, &mut None).map_err(failed),
            Err((libc::ESTALE, why)) => Err(Error::new(ErrorKind::Stale, why)),
            Err((errno, why)) => Err(Error::new(ErrorKind::Os(errno), why)),
        }
    }

    /// Sends a worker the bytes that it asked for, or why there are none.
    pub fn send_fetched(&self, fetched: Result<Vec<u8>, Error>) -> io::Result<()> {
        let (outcome, bytes) = match fetched {
            Ok(bytes) => (Ok(()), bytes),
            Err(e) => (Err((e.errno(), e.message)), Vec::new()),
        };
        self.send(&outcome, None)?;
        self.write_all(&bytes, None)
    }

    /// Receives a reply. Bytes that follow are read too, and go to `sink` if there is one.
    pub fn receive_reply(&self, sink: &mut Option<&mut Sink<'_>>) -> io::Result<Reply> {
        let (reply, _) = self.receive()?;
        let len = match reply {
            Reply::Bytes(len) => len,
            Reply::Map(map, slots) => {
                let map = self.receive_table(map, slots)?;
                return Ok(Reply::Done(Ok(Answer::Map(map))));
            }
            reply => return Ok(reply),
        };
        if len > MAX_BLOCK {
            return Err(invalid("block too long"));
        }
        if let Some(sink) = sink {
            let outcome = self.pass_on(len, *sink)?;
            let refused = |e: io::Error| H5Error::Damaged(e.to_string());
            return Ok(Reply::Done(
                outcome.map(|()| Answer::Bytes(Vec::new())).map_err(refused),
            ));
        }
        let mut bytes = vec![0; usize::try_from(len).map_err(invalid)?];
        self.read_exact(&mut bytes, &mut None)?;
        Ok(Reply::Done(Ok(Answer::Bytes(bytes))))
    }

    /// Completes a map by its chunk table, or drops the table if there is no room for it.
    fn receive_table(&self, mut map: DatasetMap, slots: u64) -> io::Result<DatasetMap> {
        if slots > MAX_SLOTS as u64 {
            return Err(invalid("chunk table too long"));
        }
        let len = slots * SLOT_BYTES as u64;
        let looked_up = map
            .table_mut()
            .is_some_and(|table| table.looked_up.is_some());
        let needed = if looked_up { LOOKUP_ROOM } else { len };
        let room = self.tables.take(needed).map(Arc::new);
        let mut table = Vec::new();
        if room.is_some() {
            table.reserve_exact(usize::try_from(slots).map_err(invalid)?);
        }
        self.pass_on(len, &mut |_, part| {
            if room.is_some() {
                table.extend(part.as_chunks().0.iter().map(Slot::from_bytes));
            }
            Ok(())
        })??;
        match (map.table_mut(), room) {
            (Some(place), Some(room)) => {
                place.slots = table;
                place.room = Some(room);
            }
            (Some(_), None) => map.leave_to_library(),
            (None, _) => {}
        }
        Ok(map)
    }

    /// Hands on bytes in parts. All are taken off the wire, even if the sink fails, whose failure is the
    /// inner result.
    fn pass_on(&self, len: u64, sink: &mut Sink<'_>) -> io::Result<io::Result<()>> {
        let most = PART as u64;
        let mut part = vec![0; usize::try_from(len.min(most)).map_err(invalid)?];
        let mut outcome = Ok(());
        let mut at = 0;
        while at < len {
            let n = usize::try_from((len - at).min(most)).map_err(invalid)?;
            self.read_exact(&mut part[..n], &mut None)?;
            outcome = outcome.and_then(|()| sink(at, &part[..n]));
            at += n as u64;
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{DirectChunks, ElementType, GroupMember, GroupMembers};
    use npyfs_base::npy::dtype::DType;
    use npyfs_codec::Pipeline;
    use proptest::prelude::*;
    use std::time::Duration;

    fn pair() -> (Wire, Wire) {
        let (a, b) = UnixStream::pair().unwrap();
        (Wire::new(a), Wire::new(b))
    }

    #[test]
    fn requests_carry_a_descriptor_and_answers_their_bytes() {
        let (client, server) = pair();
        let file = tempfile::tempfile().unwrap();
        let envelope = Envelope {
            serial: 7,
            members: None,
            far: None,
            path: b"x".to_vec(),
            seconds: 10,
            request: Cow::Owned(Request::Root),
        };
        client.send_request(&envelope, Some(&file)).unwrap();
        let (got, fd) = server.receive_request().unwrap();
        assert_eq!(got.serial, 7);
        assert!(fd.is_some());
        let big = vec![5; 3 << 20];
        let answer = Reply::Done(Ok(Answer::Bytes(big.clone())));
        let sender = std::thread::spawn(move || server.send_reply(answer).unwrap());
        let Reply::Done(Ok(Answer::Bytes(bytes))) = client.receive_reply(&mut None).unwrap() else {
            panic!("another reply");
        };
        assert_eq!(bytes, big);
        sender.join().unwrap();
    }

    fn map_of(slots: Vec<Slot>) -> DatasetMap {
        let table = ChunkTable {
            slots,
            ..ChunkTable::default()
        };
        DatasetMap {
            addr: 5,
            element: ElementType::Text {
                fixed: None,
                utf8: false,
            },
            shape: vec![3],
            rank: 1,
            source: DataSource::Chunked {
                chunk: vec![1],
                direct: Some(DirectChunks {
                    pipeline: Pipeline::new(&[]).unwrap(),
                    table,
                    fill: vec![0],
                }),
                refused: None,
                crowded: false,
            },
        }
    }

    #[test]
    fn chunk_tables_arrive_whole_or_not_at_all() {
        let (client, server) = pair();
        let slot = |n: u32| Slot {
            addr: u64::MAX - u64::from(n),
            size: n,
            mask: !n,
        };
        let slots: Vec<Slot> = (0..200_000).map(slot).collect();
        let sent = slots.clone();
        let sender = std::thread::spawn(move || {
            for _ in 0..3 {
                let map = map_of(sent.clone());
                server
                    .send_reply(Reply::Done(Ok(Answer::Map(map))))
                    .unwrap();
            }
            server
                .send(&Reply::Map(map_of(vec![]), 1 << 60), None)
                .unwrap();
        });
        let receive = || match client.receive_reply(&mut None) {
            Ok(Reply::Done(Ok(Answer::Map(map)))) => Ok(map.source),
            Ok(other) => panic!("{other:?}"),
            Err(e) => Err(e.kind()),
        };
        let Ok(DataSource::Chunked {
            direct: Some(first),
            crowded: false,
            ..
        }) = receive()
        else {
            panic!("no table");
        };
        assert_eq!(first.table.slots, slots);
        let rest = client.tables.take((32 << 20) - 200_000 * 16).unwrap();
        let crowded = receive();
        assert!(matches!(
            crowded,
            Ok(DataSource::Chunked {
                direct: None,
                crowded: true,
                ..
            })
        ));
        drop((first, rest));
        assert!(matches!(
            receive(),
            Ok(DataSource::Chunked {
                direct: Some(_),
                ..
            })
        ));
        assert_eq!(receive().unwrap_err(), io::ErrorKind::InvalidData);
        sender.join().unwrap();
    }

    #[test]
    fn silence_ends_at_the_deadline_and_a_closed_end_at_once() {
        let (mut client, server) = pair();
        client.deadline = Some(Instant::now() + Duration::from_millis(30));
        let error = client.receive_reply(&mut None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(server);
        let error = client.receive_reply(&mut None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_length_that_cannot_be_is_refused() {
        let (client, server) = pair();
        server.write_all(&u64::MAX.to_le_bytes(), None).unwrap();
        let error = client.receive_reply(&mut None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    /// Replies of every size of number, with text, and with a pipeline and a chunk table in them.
    fn replies() -> Vec<Reply> {
        let text = || GroupMember::Soft(b"elsewhere".to_vec());
        let members = GroupMembers {
            members: vec![(b"a".to_vec(), text()), (b"b".to_vec(), text())],
            total: 70_000,
            damage: Some("half of it".into()),
        };
        let filters = [(2, vec![4]), (32008, vec![0, 4, 4, 0, 2])];
        let direct = DirectChunks {
            pipeline: Pipeline::new(&filters).unwrap(),
            table: ChunkTable {
                slots: vec![Slot::default(); 3],
                ..ChunkTable::default()
            },
            fill: vec![0; 4],
        };
        let map = DatasetMap {
            addr: u64::MAX,
            element: ElementType::Fixed {
                dtype: DType::int(4),
                inner: vec![],
                convert: false,
            },
            shape: vec![12],
            rank: 1,
            source: DataSource::Chunked {
                chunk: vec![4],
                direct: Some(direct),
                refused: None,
                crowded: false,
            },
        };
        vec![
            Reply::NeedFile,
            Reply::Done(Err(H5Error::Damaged("no".into()))),
            Reply::Done(Ok(Answer::Members(members))),
            Reply::Map(map, 3),
        ]
    }

    proptest! {
        /// Whatever a worker sends ends in a reply or in an error, if it is not silent.
        #[test]
        fn damaged_frames_end_in_a_reply_or_an_error(
            number in 0_usize..4,
            changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..6),
            cut in proptest::option::of(any::<u16>()),
        ) {
            let mut frame = postcard::to_stdvec(&replies()[number]).unwrap();
            for (at, value) in changes {
                let at = usize::from(at) % frame.len();
                frame[at] = value;
            }
            if let Some(cut) = cut {
                frame.truncate(usize::from(cut) % frame.len());
            }
            let (client, server) = pair();
            server.write_all(&(frame.len() as u64).to_le_bytes(), None).unwrap();
            server.write_all(&frame, None).unwrap();
            drop(server);
            if let Err(error) = client.receive_reply(&mut None) {
                let expected = [io::ErrorKind::InvalidData, io::ErrorKind::UnexpectedEof];
                prop_assert!(expected.contains(&error.kind()), "{error}");
            }
        }
    }
}
