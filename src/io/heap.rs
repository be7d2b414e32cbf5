//! What the C library's allocator keeps of memory that was freed.

#![allow(unsafe_code)]

/// Blocks from this size on are mappings of their own.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 512 << 10;

/// Has memory go back to the system as soon as a large block is freed. By itself glibc learns from the first that is freed
/// to keep blocks of its size, for each thread that frees some: answers of workers, 4 MiB each, then took 100 MiB.
pub fn return_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no conditions; what is allocated stays as it is. It cannot fail: any size up to 32 MiB will do.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// Gives memory back to the system that was freed and lies between blocks in use.
pub fn return_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no conditions; what is allocated stays as it is.
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
        // From this one glibc would learn.
        drop(std::hint::black_box(vec![1u8; BLOCK]));
        // A small block behind each: free blocks in between are what would be kept.
        let blocks: Vec<_> = (0..64)
            .map(|_| (vec![1u8; BLOCK], vec![1u8; 100 << 10]))
            .collect();
        let before = resident();
        let small: Vec<_> = blocks.into_iter().map(|(_, small)| small).collect();
        // Half of it, for other tests run at the same time.
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
        // Half of it, for other tests run at the same time.
        assert!(resident() + (32 << 20) < before);
        drop(last);
    }
}
