//! Control of the memory that the C allocator retains after it was freed.

#![allow(unsafe_code)]

/// Blocks of at least this size are separate mappings.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 512 << 10;

/// Makes large blocks return to the system as soon as they are freed. By default glibc raises its threshold to the size
/// of the first large block that is freed and then retains blocks of that size in each thread that frees some.
/// Responses of workers, 4 MiB each, took 100 MiB that way.
pub fn return_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no preconditions; allocated memory is not affected. The call cannot fail: it accepts any size up to 32
    // MiB.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// The number of names, or the like, behind which freed memory is worth a look.
const MANY: usize = 4096;

/// Returns freed memory to the system if work on that many names is done. What the work took lies between what is kept
/// of it.
pub fn return_free_memory_of(names: usize) {
    if names >= MANY {
        return_free_memory();
    }
}

/// Returns freed memory that lies between used blocks to the system.
pub fn return_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no preconditions; allocated memory is not affected.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    const BLOCK: usize = 4 << 20;

    /// Bytes of this process in memory.
    fn resident() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1));
        kib.unwrap().parse::<usize>().unwrap() << 10
    }

    #[test]
    fn large_blocks_go_back_when_freed() {
        return_large_blocks();
        // This free would raise glibc's threshold.
        drop(std::hint::black_box(vec![1u8; BLOCK]));
        // A small block after each one: the free blocks in between are what glibc would retain.
        let blocks: Vec<_> = (0..64)
            .map(|_| (vec![1u8; BLOCK], vec![1u8; 100 << 10]))
            .collect();
        let before = resident();
        let small: Vec<_> = blocks.into_iter().map(|(_, small)| small).collect();
        // Half of it, as other tests run at the same time.
        assert!(resident() + 32 * BLOCK < before);
        assert_eq!(small.len(), 64);
    }

    #[test]
    fn small_blocks_go_back_when_asked_for() {
        let mut blocks: Vec<Box<[u8; 1024]>> = (0..64 << 10).map(|_| Box::new([1; 1024])).collect();
        let last = blocks.pop();
        let before = resident();
        drop(std::hint::black_box(blocks));
        return_free_memory();
        // Half of it, as other tests run at the same time.
        assert!(resident() + (32 << 20) < before);
        drop(last);
    }
}
