//! Bare Blosc frames. Input: the frame.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use npyfs_fuzz::codec::{Means, PartsError, blosc};

/// Longest data asked for.
const LONGEST: usize = 1 << 18;

fuzz_target!(|frame: &[u8]| {
    match blosc::frame_len(frame) {
        Ok(len) if len <= LONGEST => {
            let mut out = vec![0xff; len];
            let means = Means {
                pool: &Arc::default(),
                helpers: None,
            };
            let into = blosc::into(frame, &mut out, means);
            match blosc::decode(frame, len) {
                Ok(data) => assert!(into.is_ok() && data == out),
                Err(error) => assert_eq!(into, Err(error)),
            }
            assert!(blosc::decode(frame, len + 1).is_err());
            // The same while it is read, if it is of the kind that this is for.
            let get = |at: usize, bytes: &mut [u8]| {
                bytes.copy_from_slice(&frame[at..at + bytes.len()]);
                Ok::<(), ()>(())
            };
            let mut parts = vec![0xee; len];
            match blosc::read(frame.len(), get, &mut parts, means) {
                Ok(true) => assert!(into.is_ok() && parts == out),
                Ok(false) => {}
                Err(error) => assert!(into.is_err() && matches!(error, PartsError::Filter(_))),
            }
        }
        Ok(_) => {}
        Err(error) => assert_eq!(blosc::decode(frame, 1), Err(error)),
    }
});
