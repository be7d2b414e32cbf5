use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const COUNT: u64 = 50_000;
const COST: u64 = 128;

/// An index of chunks of ten bytes, one behind the other; every third is not there.
#[derive(Default)]
struct Index {
    looked_up: Arc<AtomicUsize>,
    read: Arc<AtomicUsize>,
    /// A chunk about which look-ups lie, and what they say.
    lie: Option<(u64, Slot)>,
    /// Look-ups fail.
    fails: Option<ErrorKind>,
    refused: bool,
    missing: bool,
}

fn slot(place: u64) -> Slot {
    match place % 3 {
        2 => Slot::default(),
        _ => Slot {
            addr: 100 + 10 * place,
            size: 10,
            mask: 0,
        },
    }
}

impl LookUp for Index {
    fn find(&self, places: Vec<u64>) -> Result<Vec<ChunkRun>> {
        self.looked_up.fetch_add(1, Ordering::Relaxed);
        if let Some(kind) = self.fails {
            return Err(Error::new(kind, "failed"));
        }
        let said = |place| match self.lie {
            Some((at, slot)) if at == place => slot,
            _ => slot(place),
        };
        // Another chunk is found beside each.
        let run = |place: u64| ChunkRun {
            first: place,
            slots: (place..(place + 2).min(COUNT)).map(said).collect(),
        };
        Ok(places.into_iter().map(run).collect())
    }

    fn is_quick(&self) -> bool {
        true
    }

    fn cost(&self) -> u64 {
        COST
    }

    fn whole(&self) -> Result<WholeTable> {
        self.read.fetch_add(1, Ordering::Relaxed);
        if self.refused {
            return Ok(WholeTable::Refused);
        }
        if self.missing {
            return Ok(WholeTable::Missing);
        }
        Ok(WholeTable::Table(ChunkTable {
            slots: (0..COUNT).map(slot).collect(),
            ..ChunkTable::default()
        }))
    }
}

fn places(index: Index) -> ChunkPlaces {
    ChunkPlaces::looked_up(ChunkTable::default(), COUNT, Box::new(index))
}

#[test]
fn a_few_chunks_are_looked_up_and_many_read_the_table() {
    let index = Index::default();
    let (looked_up, read) = (index.looked_up.clone(), index.read.clone());
    let counts = || {
        (
            looked_up.load(Ordering::Relaxed),
            read.load(Ordering::Relaxed),
        )
    };
    let places = places(index);
    assert_eq!(places.get(7).unwrap(), slot(7));
    assert_eq!(places.get(8).unwrap(), Slot::default());
    assert_eq!(counts(), (1, 0));
    places.prepare(1000..1500).unwrap();
    assert!((1000..1500).all(|place| places.get(place).unwrap() == slot(place)));
    assert_eq!(counts(), (2, 0));
    assert!(places.get(COUNT).is_err() && places.table().is_none());
    assert_eq!(places.weight(), 16 * COUNT as usize);
    for start in (10_000..20_000).step_by(1000) {
        places.prepare(start..start + 1000).unwrap();
    }
    assert_eq!(counts().1, 1);
    assert!((0..COUNT).all(|place| places.get(place).unwrap() == slot(place)));
    assert!(places.get(COUNT).is_err());
    assert_eq!(counts().1, 1);
}

#[test]
fn threads_that_want_one_chunk_look_it_up_once() {
    let index = Index::default();
    let looked_up = index.looked_up.clone();
    let places = places(index);
    let together = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                together.wait();
                assert_eq!(places.get(7).unwrap(), slot(7));
                places.prepare(500..510).unwrap();
            });
        }
    });
    assert_eq!(looked_up.load(Ordering::Relaxed), 2);
}

#[test]
fn many_look_ups_of_single_chunks_read_the_table() {
    let index = Index::default();
    let (looked_up, read) = (index.looked_up.clone(), index.read.clone());
    let places = places(index);
    for place in (0..COUNT).step_by(50) {
        places.prepare(std::iter::once(place)).unwrap();
        assert_eq!(places.get(place).unwrap(), slot(place));
    }
    assert_eq!(read.load(Ordering::Relaxed), 1);
    assert!(looked_up.load(Ordering::Relaxed) as u64 <= COUNT / COST + 1);
}

#[test]
fn a_table_that_says_something_else_is_an_error_from_then_on() {
    let lie = Slot {
        addr: 77,
        size: 10,
        mask: 0,
    };
    let index = Index {
        lie: Some((300, lie)),
        ..Index::default()
    };
    let places = places(index);
    assert_eq!(places.get(300).unwrap(), lie);
    assert_eq!(places.get(303).unwrap(), slot(303));
    assert!(places.prepare_all().is_err() && !places.is_refused());
    for place in [300, 303, 900] {
        assert_eq!(places.get(place).unwrap_err().kind, ErrorKind::Damaged);
        assert!(places.prepare(std::iter::once(place)).is_err());
    }
}

#[test]
fn chunks_that_share_bytes_or_have_two_answers_are_errors() {
    // The table is refused, too: libhdf5 reads.
    let overlapping = Slot {
        addr: slot(7).addr,
        ..slot(7)
    };
    let refused = places(Index {
        lie: Some((4000, overlapping)),
        refused: true,
        ..Index::default()
    });
    refused.get(7).unwrap();
    assert!(refused.get(4000).is_err() && refused.is_refused());
    // The table is a good one: it says something else.
    for addr in [slot(7).addr, slot(7).addr - 9, slot(7).addr + 9] {
        let overlapping = Slot { addr, ..slot(7) };
        let index = Index {
            lie: Some((4000, overlapping)),
            ..Index::default()
        };
        let places = places(index);
        places.get(7).unwrap();
        places.get(6).unwrap();
        assert!(places.get(4000).is_err());
        assert!(places.get(7).is_err(), "it was known before");
    }
    let mut known = Known::default();
    let run = |slot| ChunkRun {
        first: 5,
        slots: vec![slot],
    };
    known.add(&[run(slot(4))], COUNT).unwrap();
    known.add(&[run(slot(4))], COUNT).unwrap();
    assert!(known.add(&[run(slot(7))], COUNT).is_err());
    assert!(
        known
            .add(
                &[ChunkRun {
                    first: COUNT,
                    ..run(slot(1))
                }],
                COUNT
            )
            .is_err()
    );
}

#[test]
fn look_ups_that_fail_read_the_table_and_without_one_libhdf5_reads() {
    let places_of = |fails, refused, missing| {
        places(Index {
            fails: Some(fails),
            refused,
            missing,
            ..Index::default()
        })
    };
    let damaged = places_of(ErrorKind::Damaged, false, false);
    assert_eq!(damaged.get(4).unwrap(), slot(4));
    let refused = places_of(ErrorKind::Damaged, true, false);
    assert!(refused.get(4).is_err() && refused.is_refused());
    let crowded = places_of(ErrorKind::Damaged, false, true);
    assert!(crowded.get(4).is_err() && crowded.is_refused());
    let stale = places_of(ErrorKind::Stale, false, false);
    assert_eq!(stale.get(4).unwrap_err().kind, ErrorKind::Stale);
    assert!(!stale.is_refused() && stale.table().is_none());
}

#[test]
fn without_room_for_the_table_look_ups_go_on_and_forget() {
    let places = places(Index {
        missing: true,
        ..Index::default()
    });
    for start in (0..COUNT - 1000).step_by(1000) {
        places.prepare(start..start + 1000).unwrap();
        assert!((start..start + 1000).all(|place| places.get(place).unwrap() == slot(place)));
        let known = places.looked_up.as_ref().unwrap().known();
        assert!(known.slots.len() <= MOST_KNOWN && known.ranges.len() <= MOST_KNOWN);
    }
    assert!(!places.is_refused() && places.table().is_none());
}
