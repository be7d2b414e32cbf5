//! Bare Blosc frames. Input: the frame.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use npyfs_fuzz::codec::blosc;

/// Longest data asked for.
const LONGEST: usize = 1 << 18;

fuzz_target!(|frame: &[u8]| {
    match blosc::frame_len(frame) {
        Ok(len) if len <= LONGEST => {
            let mut out = vec![0xff; len];
            let into = blosc::into(frame, &mut out, &Arc::default());
            match blosc::decode(frame, len) {
                Ok(data) => assert!(into.is_ok() && data == out),
                Err(error) => assert_eq!(into, Err(error)),
            }
            assert!(blosc::decode(frame, len + 1).is_err());
        }
        Ok(_) => {}
        Err(error) => assert_eq!(blosc::decode(frame, 1), Err(error)),
    }
});
