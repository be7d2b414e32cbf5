use std::collections::HashSet;
use std::path::Path;

use hdf5::{Extent, SimpleExtents};

use npyfs_hdf5::LookUps;
use npyfs_hdf5::protocol::{Bounds, MIN_SUPERBLOCK};
use npyfs_hdf5::walk::index::lookup3;
use npyfs_io::file::StoreFile;

use super::*;

#[test]
fn numbers_of_extensible_arrays_are_turned_back() {
    // Maximum grid 3 × unlimited: number 0, 1, 2 is the first column, 3 the top of the second.
    let max = [30, u64::MAX];
    let chunk = [10, 10];
    let turned = |n| true_place(&[0, n], 1, &max, &chunk).unwrap();
    assert_eq!(turned(0), [0, 0]);
    assert_eq!(turned(2), [2, 0]);
    assert_eq!(turned(3), [0, 1]);
    // 2 × unlimited × 4: libhdf5 counts the last dimension and carries into the middle one.
    let max = [2, u64::MAX, 4];
    let chunk = [1, 1, 1];
    let turned = |m, n| true_place(&[0, m, n], 1, &max, &chunk).unwrap();
    assert_eq!(turned(0, 3), [0, 0, 3]);
    assert_eq!(turned(1, 0), [1, 0, 0]);
    assert_eq!(turned(2, 1), [0, 1, 1]);
    assert!(true_place(&[1, 0, 0], 1, &max, &chunk).is_err());
}

const DEFLATE: i32 = 1;
const SHUFFLE: i32 = 2;
const FLETCHER32: i32 = 3;

fn chunk(start: u64, addr: u64, size: u64, mask: u32) -> StoredChunk {
    StoredChunk {
        start: vec![start],
        addr,
        size,
        mask,
    }
}

/// Chunks of 1000 bytes in a file of 10 000.
fn bounds(filters: &[i32]) -> Bounds {
    Bounds {
        chunk: 1000,
        filters: filters.to_vec(),
        file: MIN_SUPERBLOCK..10_000,
    }
}

fn refusal(stored: &[StoredChunk], filters: &[i32]) -> Option<String> {
    let stored = stored.iter().map(entry).collect();
    let refused = check(stored, &bounds(filters)).err()?.to_string();
    refused.strip_prefix("chunk table: ").map(str::to_owned)
}

#[test]
fn overlapping_chunks_are_refused() {
    let deflated = |chunks: &[(u64, u64)]| {
        let stored: Vec<_> = chunks.iter().map(|&(a, n)| chunk(0, a, n, 0)).collect();
        refusal(&stored, &[DEFLATE])
    };
    assert_eq!(deflated(&[(110, 5), (100, 10)]), None);
    let refused = Some("two chunks overlap".into());
    assert_eq!(deflated(&[(110, 5), (100, 11)]), refused);
    assert_eq!(deflated(&[(110, 5), (110, 5)]), refused);
    assert_eq!(deflated(&[(100, 100), (300, 5), (150, 10)]), refused);
}

#[test]
fn chunks_outside_the_file_are_refused() {
    let at = |addr| refusal(&[chunk(0, addr, 1000, 0)], &[]);
    assert_eq!((at(MIN_SUPERBLOCK), at(9000)), (None, None));
    for addr in [
        0,
        MIN_SUPERBLOCK - 1,
        9001,
        10_000,
        u64::MAX - 1000,
        u64::MAX,
    ] {
        assert_eq!(at(addr), Some("a chunk lies outside the file".into()));
    }
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let refused = |size, mask, filters: &[i32]| {
        let mut bounds = bounds(filters);
        bounds.file.end = u64::MAX;
        check(vec![entry(&chunk(0, 100, size, mask))], &bounds).is_err()
    };
    // Unfiltered, shuffled and checked chunks have one size; the mask counts.
    for (filters, mask, exact) in [
        (&[][..], 0, 1000),
        (&[SHUFFLE], 0, 1000),
        (&[SHUFFLE, FLETCHER32], 0, 1004),
        (&[SHUFFLE, FLETCHER32], 2, 1000),
        (&[SHUFFLE, DEFLATE, FLETCHER32], 2, 1004),
        (&[DEFLATE], 1, 1000),
    ] {
        for size in [0, exact - 1, exact, exact + 1, u64::MAX] {
            assert_eq!(
                refused(size, mask, filters),
                size != exact,
                "{filters:?} {size}"
            );
        }
    }
    for (size, so) in [
        (0, true),
        (1, false),
        (2000 + (64 << 10), false),
        (2001 + (64 << 10), true),
    ] {
        assert_eq!(refused(size, 0, &[SHUFFLE, DEFLATE]), so);
    }
}

#[test]
fn masks_name_filters_that_there_are() {
    let skips = |mask, filters: &[i32]| refusal(&[chunk(0, 100, 1000, mask)], filters);
    assert_eq!(skips(0b11, &[SHUFFLE, DEFLATE]), None);
    let refused = Some("a chunk skips a filter that there is not".into());
    assert_eq!(skips(0b100, &[SHUFFLE, DEFLATE]), refused);
    assert_eq!(skips(1, &[]), refused);
    assert_eq!(skips(u32::MAX, &[SHUFFLE; 32]), None);
}

#[test]
fn two_chunks_in_one_place_are_refused_and_those_beyond_left_out() {
    let place = |start: &[u64]| Ok(start.iter().map(|s| s / 10).collect());
    let table = |stored: &[StoredChunk]| fill(stored, &[3], place);
    let (a, b, beyond) = (
        chunk(0, 100, 7, 0),
        chunk(20, 200, 8, 0),
        chunk(30, 300, 9, 0),
    );
    let slots = table(&[b.clone(), a.clone(), beyond]).unwrap().slots;
    assert_eq!(slots.iter().map(|s| s.size).collect::<Vec<_>>(), [7, 0, 8]);
    assert!(table(&[a.clone(), b, a]).is_err());
    let huge = chunk(0, 100, 1 << 32, 0);
    assert!(table(&[huge]).is_err());
}

/// A dataset: its shape, its maximum shape (`None`: unlimited) and its chunks.
type Form<'a> = (&'a [usize], &'a [Option<usize>], &'a [usize]);

/// Writes a dataset `x` of which every chunk is written, and gives it another shape then.
fn write(path: &Path, latest: bool, deflate: bool, form: Form<'_>, resized: Option<&[usize]>) {
    let (shape, max, chunk) = form;
    let mut options = hdf5::File::with_options();
    let options = options.with_fapl(|access| match latest {
        true => access.libver_v110(),
        false => access.libver_earliest(),
    });
    let file = options.create(path).unwrap();
    let dims = shape.iter().zip(max);
    let extents = SimpleExtents::from_vec(dims.map(|(&n, &max)| Extent::new(n, max)).collect());
    let mut builder = file.new_dataset::<i32>().chunk(chunk.to_vec());
    if deflate {
        builder = builder.deflate(1);
    }
    let dataset = builder.shape(extents).create("x").unwrap();
    let values: Vec<i32> = (0..shape.iter().product::<usize>() as i32).collect();
    dataset.write_raw(&values).unwrap();
    if let Some(shape) = resized {
        dataset.resize(shape.to_vec()).unwrap();
    }
}

/// The whole table by libhdf5, and look-ups of the same file.
fn both(path: &Path) -> (Vec<Slot>, LookUps, StoreFile) {
    let file = StoreFile::open(path).unwrap();
    let (slots, look_ups) = ffi::locked(|| {
        let (id, _) = ffi::open_file(path.as_os_str().as_encoded_bytes()).unwrap();
        let root = ffi::open_object(&id, ffi::root_addr(&id).unwrap()).unwrap();
        let Some(ffi::RawLink::Hard(addr)) = ffi::link(&root, b"x").unwrap() else {
            panic!("no dataset");
        };
        let dataset = ffi::open_object(&id, addr).unwrap();
        let plist = ffi::dataset_plist(&dataset).unwrap();
        let space = ffi::dataset_space(&dataset).unwrap();
        let (shape, max) = ffi::extent(&space).unwrap().unwrap();
        let chunk = ffi::chunk_shape(&plist, shape.len()).unwrap();
        let filters = ffi::filters(&plist).unwrap();
        let bounds = Bounds {
            chunk: chunk.iter().product::<u64>() * 4,
            filters: filters.into_iter().map(|(id, ..)| id).collect(),
            file: MIN_SUPERBLOCK..file.identity.size,
        };
        let chunks = IndexedChunks {
            dataset: addr,
            shape,
            max,
            chunk,
            bounds,
        };
        let table = table(&dataset, &chunks, &|addr, _| Ok(addr));
        let look_ups = LookUps::open(&file, &chunks, 0).unwrap();
        let look_ups = look_ups.expect("a known index");
        (table.unwrap().unwrap().slots, look_ups)
    });
    (slots, look_ups, file)
}

fn agree(path: &Path) {
    let (slots, look_ups, file) = both(path);
    let all: Vec<u64> = (0..slots.len() as u64).collect();
    let check = |wanted: &[u64]| {
        let runs = look_ups.find(&file, wanted).unwrap();
        let mut found = HashSet::new();
        for run in runs {
            for (place, slot) in (run.first..).zip(run.slots) {
                assert_eq!(slots[place as usize], slot, "{path:?} {place}");
                found.insert(place);
            }
        }
        assert!(wanted.iter().all(|place| found.contains(place)), "{path:?}");
    };
    for &place in all.iter().step_by(1 + all.len() / 300) {
        check(&[place]);
    }
    check(&all);
    let is_tree1 = std::fs::read(path)
        .unwrap()
        .windows(4)
        .any(|part| part == b"TREE");
    let whole = look_ups.whole(&file).unwrap();
    assert_eq!(
        whole.map(|table| table.slots),
        is_tree1.then_some(slots),
        "{path:?}"
    );
}

#[test]
fn look_ups_find_what_the_whole_table_has() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.h5");
    let some = Some;
    let line = (&[3000][..], &[some(3000)][..], &[1][..]);
    let long = (&[3000][..], &[None][..], &[1][..]);
    let wide = (&[50, 60][..], &[some(50), some(60)][..], &[1, 1][..]);
    let room = (&[50, 60][..], &[some(70), some(90)][..], &[3, 1][..]);
    let first = (&[50, 60][..], &[None, some(61)][..], &[2, 1][..]);
    let second = (&[50, 60][..], &[some(53), None][..], &[2, 1][..]);
    let plane = (&[50, 60][..], &[None, None][..], &[1, 1][..]);
    let cube = (
        &[9, 10, 11][..],
        &[some(9), None, some(13)][..],
        &[1, 2, 1][..],
    );
    for latest in [false, true] {
        for deflate in [false, true] {
            for form in [line, long, wide, room, first, second, plane, cube] {
                write(&path, latest, deflate, form, None);
                agree(&path);
            }
            // Chunks that were never written, and chunks beyond the shape.
            for (form, shape) in [
                (room, &[70, 80][..]),
                (room, &[7, 11]),
                (second, &[53, 500]),
                (first, &[400, 7]),
                (plane, &[45, 80]),
                (plane, &[80, 45]),
                (long, &[9000]),
            ] {
                write(&path, latest, deflate, form, Some(shape));
                agree(&path);
            }
        }
    }
}

/// An extensible array whose last data blocks have pages.
const PAGED: Form<'_> = (&[140_000], &[None], &[1]);

#[test]
fn look_ups_find_chunks_in_pages() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.h5");
    for deflate in [false, true] {
        write(&path, true, deflate, PAGED, None);
        agree(&path);
    }
}

/// Puts a number into an index, and corrects the checksum of the node.
fn put(bytes: &mut [u8], at: usize, number: u64) {
    const PAGE: usize = 8 * 1024;
    let is_sum = |bytes: &[u8], (start, end): (usize, usize)| {
        let sum = bytes.get(end..end + 4).map(|sum| sum.try_into().unwrap());
        sum.map(u32::from_le_bytes) == Some(lookup3(&bytes[start..end]))
    };
    // Blocks and nodes begin with a signature; full pages do not.
    let signatures = [b"FADB", b"EAIB", b"EASB", b"EADB", b"BTIN", b"BTLF"];
    let begins = |start: &usize| signatures.iter().any(|s| bytes[*start..].starts_with(*s));
    let start = (0..=at).rev().take(3 * PAGE).find(begins);
    let blocks = start.into_iter().flat_map(|start| {
        let ends = at + 8..(start + 2 * PAGE).min(bytes.len());
        ends.map(move |end| (start, end))
    });
    let pages = (0..1024).filter_map(|k| at.checked_sub(8 * k));
    let pages = pages.map(|start| (start, start + PAGE));
    let found = pages
        .filter(|page| page.1 + 4 <= bytes.len())
        .chain(blocks)
        .find(|range| is_sum(bytes, *range));
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
    match found {
        Some((start, end)) => {
            let sum = lookup3(&bytes[start..end]);
            bytes[end..end + 4].copy_from_slice(&sum.to_le_bytes());
        }
        // Trees of version 1 have no checksums.
        None => assert!(bytes.windows(4).any(|part| part == b"TREE"), "no checksum"),
    }
}

/// Returns the offsets of all occurrences of some bytes.
fn places_of(bytes: &[u8], wanted: &[u8]) -> Vec<usize> {
    let parts = bytes.windows(wanted.len()).enumerate();
    let found = parts.filter(|(_, part)| *part == wanted);
    found.map(|(at, _)| at).collect()
}

/// Returns datasets with indexes of all kinds. Fixed arrays are without and with pages, and all pages are full.
fn kinds() -> [(bool, Form<'static>); 5] {
    let plane: Form<'_> = (&[50, 60], &[None, None], &[1, 1]);
    [
        (false, plane),
        (true, (&[900], &[Some(900)], &[1])),
        (true, (&[3072], &[Some(3072)], &[1])),
        (true, plane),
        (true, PAGED),
    ]
}

/// Changes an index in several ways, and returns the errors of a look-up of all chunks.
fn lies(lies_of: impl Fn(&[u8], &[Slot]) -> Vec<(usize, u64)>) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let (path, bad) = (dir.path().join("x.h5"), dir.path().join("bad.h5"));
    let mut errors = Vec::new();
    for (latest, form) in kinds() {
        write(&path, latest, false, form, None);
        let (slots, look_ups, _) = both(&path);
        let bytes = std::fs::read(&path).unwrap();
        let all: Vec<u64> = (0..slots.len() as u64).collect();
        for (at, number) in lies_of(&bytes, &slots) {
            let mut bytes = bytes.clone();
            put(&mut bytes, at, number);
            std::fs::write(&bad, bytes).unwrap();
            let file = StoreFile::open(&bad).unwrap();
            assert!(
                look_ups.whole(&file).unwrap().is_none(),
                "{form:?}, byte {at}"
            );
            let found = look_ups.find(&file, &all);
            let error = found.expect_err(&format!("{form:?}, byte {at}"));
            errors.push(error.to_string());
        }
    }
    errors
}

#[test]
fn look_ups_refuse_chunks_outside_the_file() {
    let errors = lies(|bytes, slots| {
        let mut lies = Vec::new();
        for slot in [slots[1], slots[slots.len() / 2], slots[slots.len() - 1]] {
            let entry = places_of(bytes, &slot.addr.to_le_bytes());
            assert_eq!(entry.len(), 1, "{slot:?}");
            let len = bytes.len() as u64;
            lies.extend([8, len - 2, len, u64::MAX - 1].map(|addr| (entry[0], addr)));
        }
        lies
    });
    assert_eq!(errors.len(), 5 * 3 * 4);
    let outside = "chunk table: a chunk lies outside the file";
    assert!(errors.iter().all(|error| error == outside), "{errors:?}");
}

#[test]
fn look_ups_refuse_blocks_of_other_arrays() {
    let errors = lies(|bytes, _| {
        let mut lies = Vec::new();
        for signature in [b"FADB", b"EAIB", b"EASB", b"EADB"] {
            let found = places_of(bytes, signature);
            let some = found
                .iter()
                .step_by(1 + found.len() / 4)
                .chain(found.last());
            lies.extend(some.map(|at| (at + 6, 96)));
        }
        lies
    });
    assert!(errors.len() >= 10, "{errors:?}");
    let other = "chunk table: a block does not belong to the array";
    assert!(errors.iter().all(|error| error == other), "{errors:?}");
}

#[test]
fn look_ups_refuse_circles() {
    let errors = lies(|bytes, _| {
        let trees = places_of(bytes, b"TREE\x01\x01");
        // The address of the first child follows the header and a key; that of version 2 the records.
        let first = trees.iter().map(|at| (at + 24 + 32, *at as u64));
        let nodes = places_of(bytes, b"BTIN").into_iter();
        let second = nodes.flat_map(|at| {
            let children = places_of(bytes, b"BTLF").into_iter();
            let all = children.chain(places_of(bytes, b"BTIN"));
            let pointer = all.flat_map(move |child| {
                places_of(&bytes[at..at + 2048], &(child as u64).to_le_bytes())
            });
            pointer.map(move |within| (at + within, at as u64)).take(2)
        });
        first.chain(second).collect()
    });
    let expected = [
        "a node is of another level",
        "the records of a node are out of order",
        "not a node of a B-tree of chunks",
    ];
    assert_eq!(errors, expected.map(|why| format!("chunk table: {why}")));
}

#[test]
fn no_byte_of_an_index_can_change_without_a_refusal_or_the_same_answer() {
    let dir = tempfile::tempdir().unwrap();
    let (path, bad) = (dir.path().join("x.h5"), dir.path().join("bad.h5"));
    let fixed = (&[3000][..], &[Some(3000)][..], &[1][..]);
    let extensible = (&[3000][..], &[None][..], &[1][..]);
    let tree = (&[50, 60][..], &[None, None][..], &[1, 1][..]);
    for form in [fixed, extensible, tree] {
        write(&path, true, true, form, None);
        let (slots, look_ups, _) = both(&path);
        let bytes = std::fs::read(&path).unwrap();
        let mut stored = vec![false; bytes.len()];
        for slot in &slots {
            stored[slot.addr as usize..][..slot.size as usize].fill(true);
        }
        let wanted: Vec<u64> = (0..slots.len() as u64).step_by(7).collect();
        let places = (48..bytes.len()).filter(|&at| !stored[at]).step_by(61);
        for at in places {
            let mut bytes = bytes.clone();
            bytes[at] ^= 0xff;
            std::fs::write(&bad, bytes).unwrap();
            let file = StoreFile::open(&bad).unwrap();
            let Ok(runs) = look_ups.find(&file, &wanted) else {
                continue;
            };
            for run in runs {
                for (place, slot) in (run.first..).zip(run.slots) {
                    assert_eq!(slots[place as usize], slot, "byte {at}, chunk {place}");
                }
            }
        }
    }
}

/// Trees of version 1 have no checksums: what another byte means must be the same for look-ups and for the table.
#[test]
fn the_whole_of_a_damaged_tree_is_what_look_ups_find() {
    let dir = tempfile::tempdir().unwrap();
    let (path, bad) = (dir.path().join("x.h5"), dir.path().join("bad.h5"));
    // Chunks beyond the shape are in the tree, too.
    let form: Form<'_> = (&[50, 60], &[None, None], &[1, 1]);
    write(&path, false, true, form, Some(&[45, 50]));
    let (slots, look_ups, _) = both(&path);
    let all: Vec<u64> = (0..slots.len() as u64).collect();
    let bytes = std::fs::read(&path).unwrap();
    let trees = places_of(&bytes, b"TREE\x01");
    let changed = trees.iter().flat_map(|at| (*at..at + 1200).step_by(5));
    let mut same = 0;
    for (number, at) in changed.enumerate() {
        let mut bytes = bytes.clone();
        bytes[at] ^= [1, 0x10, 0xff][number % 3];
        std::fs::write(&bad, bytes).unwrap();
        let file = StoreFile::open(&bad).unwrap();
        let Some(whole) = look_ups.whole(&file).unwrap() else {
            continue;
        };
        same += 1;
        let mut found = 0;
        for run in look_ups
            .find(&file, &all)
            .expect("only one of both refuses")
        {
            for (place, slot) in (run.first..).zip(run.slots) {
                assert_eq!(
                    whole.slots[place as usize], slot,
                    "byte {at}, chunk {place}"
                );
                found += 1;
            }
        }
        assert_eq!(found, slots.len());
    }
    assert!(same > 100, "{same}");
}
