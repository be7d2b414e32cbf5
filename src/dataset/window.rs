//! The kernel's read-ahead, and what follows from it for those who answer.
//!
//! A reader in order has two windows under way: when he gets to the first byte of one, the kernel asks for the
//! next. For a program that said that it reads in order (`posix_fadvise`, as `cat`, `cp`, and `sha256sum` do) windows are
//! twice as large. All requests of a reader may be served at the same time, in any order.

/// A window on a mount whose cache has room for more than enough of them. Two requests: while the kernel waits for one
/// the reader has the other to copy.
const LARGEST: u64 = 2 << 20;

/// The kernel's own window, in bytes, if nobody tells it otherwise.
const SMALLEST: u64 = 128 << 10;

/// The number of bytes that the kernel reads ahead on a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window(u64);

impl Window {
    /// Returns the window for a cache of `limit` bytes. Four are a quarter of it: what is under way must not push out
    /// what else the requests under way want.
    pub fn of(limit: u64) -> Self {
        let bytes = limit / 16 / SMALLEST * SMALLEST;
        Self(bytes.clamp(SMALLEST, LARGEST))
    }

    /// Returns the window in bytes, a multiple of a KiB.
    pub fn bytes(self) -> u64 {
        self.0
    }

    /// Returns the most bytes of a file that one reader has under way.
    pub fn under_way(self) -> u64 {
        4 * self.0
    }

    /// Returns the number of pieces, of `piece` bytes each, by which requests may be out of order.
    pub fn slack(self, piece: u64) -> u64 {
        (self.under_way() / piece.max(1)).max(2)
    }

    /// Returns the number of steps from piece to piece that a single sample may take: its own, and what the kernel
    /// reads ahead of it. Who takes samples does not say that he reads in order.
    pub fn patience(self, piece: u64) -> u32 {
        let steps = (2 * self.0 / piece.max(1)).max(2);
        u32::try_from(steps).unwrap_or(u32::MAX).saturating_add(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_a_small_cache_is_under_way() {
        let under_way = |limit| Window::of(limit).under_way();
        assert_eq!(under_way(256 << 20), 8 << 20);
        assert_eq!(under_way(32 << 20), 8 << 20);
        assert_eq!(under_way(8 << 20), 2 << 20);
        assert_eq!(under_way(5_000_000), 1 << 20);
        assert_eq!(under_way(1 << 20), 512 << 10);
        assert_eq!(under_way(0), 512 << 10);
    }

    #[test]
    fn small_pieces_may_be_further_out_of_order() {
        let window = Window::of(256 << 20);
        assert_eq!((window.slack(1 << 20), window.patience(1 << 20)), (8, 6));
        assert_eq!(
            (window.slack(64 << 10), window.patience(64 << 10)),
            (128, 66)
        );
        assert_eq!((window.slack(1 << 30), window.patience(1 << 30)), (2, 4));
        assert_eq!(
            (window.slack(0), window.patience(0)),
            (8 << 20, (4 << 20) + 2)
        );
    }
}
