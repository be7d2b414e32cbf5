//! Retries of requests that may succeed later.

use std::future::Future;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::super::error::{Cause, RemoteError};

/// The number of retries of a request that may never succeed: a mistyped host name is not worth a wait.
const FEW: u32 = 3;

/// The first pause before a retry, and the longest.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(8);

/// Which requests are worth retrying after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    Never,
    /// Requests to a server that has responded before; others a few times.
    IfKnown,
    Always,
}

/// A failure, and whether the same request may succeed later.
pub(super) struct Refusal {
    pub(super) error: RemoteError,
    pub(super) again: Again,
    /// The time after which the server accepts another request.
    pub(super) after: Option<Duration>,
    /// The request may succeed with other credentials.
    pub(super) is_of_credentials: bool,
}

impl From<RemoteError> for Refusal {
    fn from(error: RemoteError) -> Self {
        Self {
            error,
            again: Again::Never,
            after: None,
            is_of_credentials: false,
        }
    }
}

impl Refusal {
    /// Makes a failure that may be temporary.
    pub(super) fn again(error: RemoteError) -> Self {
        Self {
            again: Again::Always,
            ..Self::from(error)
        }
    }

    /// Returns whether a request with another HTTP method may succeed.
    pub(super) fn is_of_method(&self) -> bool {
        matches!(self.error.cause, Cause::Denied | Cause::Unsupported)
    }
}

/// The pauses between retries of a request, and its deadline.
pub(super) struct Patience {
    begun: Instant,
    deadline: Instant,
    limit: Duration,
    next: Duration,
    asked: u32,
    /// The time of the last request.
    sent: Instant,
    is_known: bool,
    /// The reason for the last retry.
    last: Option<RemoteError>,
}

impl Patience {
    /// Begins a request to a server that has responded before (`is_known`) or not.
    pub(super) fn new(limit: Duration, is_known: bool) -> Self {
        let begun = Instant::now();
        Self {
            begun,
            // Before the waiting threads give up without a reason.
            deadline: begun + limit - limit / 20,
            limit,
            next: FIRST,
            asked: 0,
            sent: begun,
            is_known,
            last: None,
        }
    }

    /// Waits for a request until the deadline.
    pub(super) async fn within<T>(
        &mut self,
        request: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<T, Refusal> {
        self.asked += 1;
        self.sent = Instant::now();
        match tokio::time::timeout_at(self.deadline, request).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let mut late = RemoteError::late(self.limit);
                // If a retry is too slow, the earlier failure is reported: it says more.
                if let Some(last) = &self.last {
                    late.cause = last.cause;
                    late.message += &format!(", asked {} times (before that: {last})", self.asked);
                }
                Err(late.into())
            }
        }
    }

    /// Returns the time of the last request.
    pub(super) fn sent(&self) -> std::time::Instant {
        self.sent.into_std()
    }

    /// Waits until the request is worth retrying; fails if it is not.
    pub(super) async fn pause(&mut self, refusal: Refusal) -> Result<(), RemoteError> {
        let is_worth = match refusal.again {
            Again::Never => false,
            Again::IfKnown => self.is_known || self.asked <= FEW,
            Again::Always => true,
        };
        if !is_worth {
            return Err(refusal.error);
        }
        let wait = match refusal.after {
            Some(after) => after.min(LONGEST) + jitter(FIRST),
            None => jitter(self.next),
        };
        self.next = (self.next * 2).min(LONGEST);
        if Instant::now() + wait >= self.deadline {
            let RemoteError { cause, message } = refusal.error;
            let seconds = self.begun.elapsed().as_secs_f32();
            let message = format!("{message}; asked {} times in {seconds:.1} s", self.asked);
            return Err(RemoteError { cause, message });
        }
        self.last = Some(refusal.error);
        tokio::time::sleep(wait).await;
        Ok(())
    }
}

/// Returns a random time between half of `time` and all of it.
fn jitter(time: Duration) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let noise = now.map_or(0, |now| now.subsec_nanos()) % 512;
    time / 2 + time * noise / 1024
}
