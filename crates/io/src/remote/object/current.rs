//! Checks whether an object is still the newest version.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::address::Address;
use super::super::error::{Cause, RemoteError};
use super::super::freshness::{PATIENCE, Question};
use super::super::origin::{Origin, Version};
use super::super::runtime;
use super::{RemoteObject, ask};
use npyfs_base::options::RemoteSettings;

fn silent(limit: Duration) -> RemoteError {
    let message = format!("no answer within {} s", limit.as_secs());
    let cause = Cause::Late;
    RemoteError { cause, message }
}

impl RemoteObject {
    /// Asks the server for the current version of an object.
    ///
    /// # Errors
    ///
    /// The errors of [`RemoteObject::open`].
    pub fn newest(
        address: &Address,
        settings: &Arc<RemoteSettings>,
    ) -> Result<Version, RemoteError> {
        let origin = Origin::new(address, settings)?;
        let asked = async move { origin.head().await };
        ask(&address.to_string(), settings, asked)
    }

    /// Returns true if this is the newest version; asks the server unless that was done recently. Without a response,
    /// returns true.
    pub fn is_current(self: &Arc<Self>) -> bool {
        if !self.is_unchanged() {
            return false;
        }
        let origin = self.origin.clone();
        let limit = PATIENCE.min(self.settings.timeout);
        let asked = async move { tokio::time::timeout(limit, origin.head()).await };
        match self.freshness.question(self.settings.check) {
            Question::None => return true,
            Question::Wait => {
                self.traffic.requests.fetch_add(1, Ordering::Relaxed);
                match runtime::wait(asked) {
                    Ok(outcome) => self.judge(outcome.unwrap_or_else(|_| Err(silent(limit)))),
                    Err(e) => self.judge(Err(self.failed(e))),
                }
            }
            Question::Behind => {
                self.traffic.requests.fetch_add(1, Ordering::Relaxed);
                let object = self.clone();
                let started = runtime::spawn(async move {
                    let outcome = asked.await;
                    object.judge(outcome.unwrap_or_else(|_| Err(silent(limit))));
                });
                if let Err(e) = started {
                    self.judge(Err(self.failed(e)));
                }
            }
        }
        self.is_unchanged()
    }

    /// Records the newest version.
    fn judge(&self, outcome: Result<Version, RemoteError>) {
        let lost = match outcome {
            Ok(version) => {
                if !version.is(&self.version) {
                    self.replaced("another version is there now");
                }
                None
            }
            Err(e) if e.cause == Cause::Missing => {
                self.replaced(&e.message);
                None
            }
            Err(e) => Some(e.message),
        };
        self.freshness.answered(lost);
    }

    /// Returns the reason why the last check got no response, if so.
    pub fn lost(&self) -> Option<String> {
        let why = self.freshness.lost()?;
        Some(format!("the last known version is shown: {why}"))
    }
}
