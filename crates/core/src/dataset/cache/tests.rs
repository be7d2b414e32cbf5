//! Tests of the cache.

use super::*;
use npyfs_base::error::Error;
use std::sync::Barrier;
use std::sync::atomic::AtomicUsize;

impl Cache {
    /// A block for which no room is made.
    fn get(&self, key: Key, load: impl FnOnce() -> Result<Vec<u8>>) -> Result<Block> {
        let inner = lock(&self.inner);
        self.reader(inner, key, Need::default(), || load().map(Buffer::from))
    }
}

fn key(block: u64) -> Key {
    Key {
        file: 1,
        object: 2,
        form: 0,
        block,
    }
}

#[test]
fn a_block_is_decoded_once_for_all_who_wait() {
    let cache = Cache::new(1 << 20);
    let loads = AtomicUsize::new(0);
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                start.wait();
                let block = cache.get(key(0), || {
                    loads.fetch_add(1, Relaxed);
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    Ok(vec![7; 10])
                });
                assert_eq!(block.unwrap()[..], [7; 10]);
            });
        }
    });
    assert_eq!(loads.load(Relaxed), 1);
    assert_eq!(cache.status().misses, 1);
}

#[test]
fn who_only_waits_for_the_disk_does_not_decode() {
    let cache = Cache::new(1 << 20);
    for (passes, decoding) in [(true, 0), (false, 1)] {
        let need = Need {
            len: 10,
            passes,
            ..Need::default()
        };
        let fill = |_: &mut [u8]| {
            assert_eq!(cache.decoding(), decoding);
            Ok(())
        };
        cache.read(key(decoding as u64), need, fill).unwrap();
    }
}

#[test]
fn the_budget_holds_and_the_oldest_goes_first() {
    let cache = Cache::new(3 * (1000 + OVERHEAD));
    for block in 0..3 {
        cache.get(key(block), || Ok(vec![0; 1000])).unwrap();
    }
    cache.get(key(0), || panic!("still there")).unwrap();
    cache.get(key(3), || Ok(vec![0; 1000])).unwrap();
    let status = cache.status();
    assert_eq!(status.bytes, 3000);
    assert_eq!(status.evictions, 1);
    cache.get(key(0), || panic!("still there")).unwrap();
    let mut reloaded = false;
    cache
        .get(key(1), || {
            reloaded = true;
            Ok(vec![0; 1000])
        })
        .unwrap();
    assert!(reloaded);
}

#[test]
fn blocks_made_of_others_wait_for_each_other_and_never_for_ever() {
    let cache = Cache::new(10_000);
    let (making, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let gathered = |n: u64| {
        let need = Need {
            len: 1000,
            gathers: true,
            ..Need::default()
        };
        let block = cache.read(key(n), need, |out| {
            most.fetch_max(making.fetch_add(1, Relaxed) + 1, Relaxed);
            let need = Need {
                len: 4000,
                beside: 4000,
                ..Need::default()
            };
            let fill = |buf: &mut [u8]| {
                std::thread::sleep(std::time::Duration::from_millis(1));
                buf.fill(7);
                Ok(())
            };
            for part in 0..2 {
                let part = cache.read(key(1000 + (n + part) % 5), need, fill)?;
                out.copy_from_slice(&part[..1000]);
            }
            making.fetch_sub(1, Relaxed);
            Ok(())
        });
        assert_eq!(block.unwrap()[..], [7; 1000]);
    };
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let gathered = &gathered;
            scope.spawn(move || (0..20).for_each(|n| gathered(thread * 20 + n)));
        }
    });
    // A quarter of the budget has room for two blocks.
    assert!(most.load(Relaxed) <= 2);
    let inner = lock(&cache.inner);
    assert_eq!((inner.reserved, inner.gathering), (0, 0));
}

#[test]
fn failures_and_panics_reach_the_caller_and_are_not_kept() {
    let cache = Cache::new(1 << 20);
    assert!(cache.get(key(0), || Err(Error::damaged("bad"))).is_err());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        cache.get(key(0), || panic!("decoder bug"))
    }));
    assert!(panicked.is_err());
    assert!(cache.get(key(0), || Ok(vec![1])).is_ok());
}

#[test]
fn a_block_beyond_the_budget_is_served_but_not_kept() {
    let cache = Cache::new(100);
    assert_eq!(cache.get(key(0), || Ok(vec![1; 1000])).unwrap().len(), 1000);
    assert_eq!(cache.status().blocks, 0);
}

#[test]
fn what_is_elsewhere_is_not_decoded_unless_it_is_here() {
    let cache = Cache::new(10_000);
    let need = Need {
        len: 10,
        passes: true,
        ..Need::default()
    };
    let read = |elsewhere: bool| {
        let fill = |buf: &mut [u8]| {
            buf.fill(7);
            Ok(())
        };
        let block = cache.read_unless(key(1), need, || elsewhere, fill);
        block.unwrap().map(|block| block.to_vec())
    };
    assert_eq!(read(true), None);
    assert_eq!(read(false), Some(vec![7; 10]));
    assert_eq!(read(true), Some(vec![7; 10]));
    assert_eq!(cache.status().misses, 1);
}

#[test]
fn what_is_being_decoded_counts() {
    let need = Need {
        len: 1000,
        beside: 500,
        ..Need::default()
    };
    let cache = Cache::new(2000);
    let busy = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for block in 0..6 {
            let (cache, busy) = (&cache, &busy);
            scope.spawn(move || {
                let load = |buf: &mut [u8]| {
                    assert_eq!(busy.fetch_add(1, Relaxed), 0, "two in a budget for one");
                    std::thread::sleep(std::time::Duration::from_millis(5));
                    busy.fetch_sub(1, Relaxed);
                    buf.fill(block as u8);
                    Ok(())
                };
                let got = cache.read(key(block), need, load).unwrap();
                assert!(got.iter().all(|&byte| byte == block as u8));
            });
        }
    });
    assert_eq!(cache.status().misses, 6);
    // Larger than the budget: decoded alone, and not cached.
    let large = Need {
        len: 10_000,
        beside: 0,
        ..Need::default()
    };
    let got = cache.read(key(9), large, |buf| {
        buf.fill(1);
        Ok(())
    });
    assert_eq!(got.unwrap().len(), 10_000);
    assert!(!cache.has(&key(9)));
}

#[test]
fn reading_ahead_is_counted_by_what_became_of_it() {
    let need = Need {
        len: 1000,
        beside: 0,
        ..Need::default()
    };
    let cache = Cache::new(3 * (1000 + OVERHEAD));
    let fill = |buf: &mut [u8]| {
        buf.fill(3);
        Ok(())
    };
    cache.ahead(key(0), need, || true, fill);
    cache.ahead(key(0), need, || true, |_| panic!("it is here"));
    cache.ahead(key(9), need, || false, |_| panic!("not wanted"));
    cache.ahead(key(1), need, || true, fill);
    cache.read(key(1), need, |_| panic!("it is here")).unwrap();
    for block in 2..5 {
        cache.read(key(block), need, fill).unwrap();
    }
    let status = cache.status();
    assert_eq!((status.ahead_used, status.ahead_wasted), (1, 1));
    cache.consumed(&key(4));
    cache.consumed(&key(5));
    assert!(!cache.has(&key(4)));
    assert_eq!(cache.status().consumed, 1);
    // The next reader gets its bytes from the kernel; a reader that requests it nevertheless does not follow another
    // one.
    cache.ahead(key(4), need, || true, |_| panic!("read already"));
    cache.read(key(4), need, fill).unwrap();
    cache.ahead(key(5), need, || true, fill);
    assert!(cache.has(&key(5)));
}
