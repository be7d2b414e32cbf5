//! Chunks under any pipeline. Input: number of the pipeline, filter mask, decoded length (3 bytes, little end first),
//! then the stored chunk. Pipeline 255 is itself in the input, as a worker would send it, before the chunk.

#![no_main]

use libfuzzer_sys::fuzz_target;
use npyfs_fuzz::{
    Pool,
    codec::{Pipeline, alone},
};
use std::sync::Arc;

/// Longest chunk asked for.
const LONGEST: usize = 1 << 18;

/// The pipelines by number: filters with their parameters. `fuzz/seed.py` writes the same list.
const PIPELINES: [&[(i32, &[u32])]; 25] = [
    &[(1, &[4])],
    &[(2, &[4]), (1, &[4])],
    &[(32000, &[])],
    &[(2, &[4]), (32000, &[])],
    &[(2, &[8]), (1, &[6]), (3, &[])],
    &[(3, &[]), (2, &[2]), (32000, &[])],
    &[(3, &[])],
    &[(2, &[3])],
    &[(2, &[16])],
    &[(32001, &[])],
    &[(2, &[2]), (32001, &[])],
    &[(32004, &[])],
    &[(2, &[4]), (32004, &[])],
    &[(32015, &[3])],
    &[(2, &[8]), (32015, &[3])],
    &[(32008, &[0, 4, 4, 0, 0])],
    &[(32008, &[0, 4, 4, 0, 2])],
    &[(32008, &[0, 4, 4, 0, 3])],
    &[(32008, &[0, 4, 3, 64, 2])],
    &[(32008, &[0, 4, 8, 0, 2]), (3, &[])],
    &[(32008, &[0, 4, 1, 8, 0])],
    &[(2, &[2]), (32008, &[0, 4, 16, 0, 2])],
    &[(307, &[9])],
    &[(32026, &[])],
    &[(32026, &[]), (3, &[])],
];

fuzz_target!(|input: &[u8]| {
    let &[number, mask, a, b, c, ref stored @ ..] = input else {
        return;
    };
    let len = u32::from_le_bytes([a, b, c, 0]) as usize % LONGEST;
    let (pipeline, stored) = match PIPELINES.get(usize::from(number)) {
        Some(filters) => {
            let filters: Vec<_> = filters.iter().map(|(id, p)| (*id, p.to_vec())).collect();
            let pipeline = Pipeline::new(&filters).expect("every filter of the list is known");
            (pipeline, stored)
        }
        None => match postcard::take_from_bytes(stored) {
            Ok(taken) => taken,
            Err(_) => return,
        },
    };
    // Some filters are also undone alone, by the length that the chunk itself claims.
    if let Some([(id @ (307 | 32004 | 32008 | 32015 | 32026), parameters)]) =
        PIPELINES.get(usize::from(number))
        && let Ok(data) = alone(*id, parameters, stored, len)
    {
        assert!(data.len() <= len);
    }
    // What buffers held before must not show.
    let (pool, mut other) = (Arc::<Pool>::default(), vec![0xff; len]);
    let mut used = pool.take(len);
    used.fill(0xff);
    drop(used);
    let means = &pool;
    let first = pipeline.decode(means, stored, mask.into(), &mut other);
    let (pool, mut data) = (Arc::default(), vec![0; len]);
    let means = &pool;
    let again = pipeline.decode(means, stored, mask.into(), &mut data);
    assert_eq!(first, again);
    assert!(again.is_err() || data == other);
});
