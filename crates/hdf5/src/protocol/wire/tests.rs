//! Tests of `wire`.

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
