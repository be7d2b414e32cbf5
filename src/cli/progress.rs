//! Progress on the terminal: one line on standard error for what takes longer than a second.
//!
//! Nothing is shown if standard error is no terminal. A signal that ends the process first removes the line and all
//! half-made files.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;

use npyfs_base::thread;
use npyfs_io::workplace::remove_on_signals;

/// The time after which work has a line.
const PATIENCE: Duration = Duration::from_secs(1);

/// The time between two drawings of a line that waits.
const TICK: Duration = Duration::from_millis(200);

const BYTES: &str = "{msg} {bar:20} {bytes}/{total_bytes}, {bytes_per_sec}, {elapsed}, {eta} left";
const COUNT: &str = "{msg} {bar:20} {pos}/{len}, {per_sec}, {elapsed}, {eta} left";
const COUNTED: &str = "{spinner} {msg}, {pos} so far, {elapsed}";
const WAITING: &str = "{spinner} {msg}, {elapsed}";

/// The lines that are on the terminal, one below the other.
static LINES: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Held while a line comes or goes.
static CHANGING: Mutex<()> = Mutex::new(());

/// A line that says how far something is. Dropping it takes it off the terminal.
pub struct Progress {
    bar: ProgressBar,
    /// Ends the thread that shows the line after a while.
    _ends: Option<Sender<()>>,
}

impl Progress {
    /// Creates the line of work on `total` bytes, with their rate.
    pub fn bytes(what: &'static str, total: u64) -> Self {
        Self::new(what, BYTES, total)
    }

    /// Creates the line of work on `total` things.
    pub fn count(what: &'static str, total: u64) -> Self {
        Self::new(what, COUNT, total)
    }

    /// Creates the line of work on an unknown number of things.
    pub fn counted(what: &'static str) -> Self {
        Self::new(what, COUNTED, 0)
    }

    /// Creates the line of work of unknown length.
    pub fn waiting(what: &'static str) -> Self {
        Self::new(what, WAITING, 0)
    }

    fn new(what: &'static str, template: &str, total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what);
        let ends = io::stderr().is_terminal().then(|| show_later(bar.clone()));
        Self {
            bar,
            _ends: ends.flatten(),
        }
    }

    /// Adds to the work that there is.
    pub fn found(&self, more: u64) {
        self.bar.inc_length(more);
    }

    /// Sets the amount of work, none of which is done.
    pub fn begin(&self, total: u64) {
        self.bar.set_position(0);
        self.bar.set_length(total);
    }

    /// Adds to the work that is done.
    pub fn advance(&self, more: u64) {
        self.bar.inc(more);
    }

    /// Sets the work that is done.
    pub fn set(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// Returns the work that is done.
    pub fn position(&self) -> u64 {
        self.bar.position()
    }
}

/// Calls `print`, which writes to the terminal, while no line is on it.
pub fn suspend<T>(print: impl FnOnce() -> T) -> T {
    LINES.suspend(print)
}

impl Drop for Progress {
    fn drop(&mut self) {
        let _changing = CHANGING.lock();
        self.bar.finish_and_clear();
        LINES.remove(&self.bar);
    }
}

/// Starts the thread that puts the line on the terminal, unless what it returns is dropped before.
fn show_later(bar: ProgressBar) -> Option<Sender<()>> {
    let (ends, ended) = channel();
    let work = move || {
        if ended.recv_timeout(PATIENCE) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        // A signal that cannot be waited for ends the process as if there were no line.
        let _ = end_cleanly();
        let _changing = CHANGING.lock();
        if !bar.is_finished() {
            LINES.add(bar).enable_steady_tick(TICK);
        }
    };
    thread::spawn("progress", work).ok()?;
    Some(ends)
}

/// Makes a signal that ends the process take away what is half made and what stands on the terminal first. The process
/// ends by the signal all the same: a shell says 130 of SIGINT.
pub fn end_cleanly() -> io::Result<()> {
    static WAITS: OnceLock<()> = OnceLock::new();
    if WAITS.set(()).is_err() {
        return Ok(());
    }
    remove_on_signals(|| {
        // Nothing is left to do for a terminal that is gone.
        let _ = LINES.clear();
        LINES.set_draw_target(ProgressDrawTarget::hidden());
    })
}
