//! A thread that makes the changes of a layer durable, soon after they were made and many at a time.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::layer::Layer;
use crate::error::{Error, Result};

/// How long changes may wait for others, and how long after a failure it is tried again.
const DELAY: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_secs(5);

/// As long as it lives, changes of the layer wait to be synced. Dropping it syncs them.
pub struct Syncer {
    layer: Arc<Layer>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    /// `tell` hears of failures; whoever calls `Layer::sync` gets them, too.
    pub fn start(layer: &Arc<Layer>, tell: impl Fn(Error) + Send + 'static) -> Result<Self> {
        let own = layer.clone();
        let work = move || {
            let mut delay = DELAY;
            while own.wait_for_changes(delay) {
                delay = own.sync().map_or_else(
                    |e| {
                        tell(e);
                        PAUSE
                    },
                    |()| DELAY,
                );
            }
            if let Err(e) = own.sync() {
                tell(e);
            }
        };
        let thread = thread::Builder::new().name("syncer".into()).spawn(work)?;
        layer.defer(true);
        Ok(Self {
            layer: layer.clone(),
            thread: Some(thread),
        })
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.layer.defer(false);
        if let Some(thread) = self.thread.take() {
            // It ends once everything is synced; if it panicked, there is nothing to add.
            let _ = thread.join();
        }
    }
}
