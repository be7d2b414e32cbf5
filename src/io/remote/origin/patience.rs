//! Asking a server again that may answer later.

use std::future::Future;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::super::error::{Cause, RemoteError};

/// Times that a request is sent again of what may be wrong for good: a wrong name of a host is not waited for.
const FEW: u32 = 3;

/// The first pause before a request is sent again, and the longest.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(8);

/// Which requests are worth sending again after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    Never,
    /// Those to a server that has answered before; others a few times.
    IfKnown,
    Always,
}

/// A failure, and whether the same request may succeed later.
pub(super) struct Refusal {
    pub(super) error: RemoteError,
    pub(super) again: Again,
    /// The time after which the server wants to be asked again.
    pub(super) after: Option<Duration>,
    /// Other credentials may be answered.
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
    /// Makes a failure that may pass.
    pub(super) fn again(error: RemoteError) -> Self {
        Self {
            again: Again::Always,
            ..Self::from(error)
        }
    }

    /// Returns whether the server may answer a request with another method.
    pub(super) fn is_of_method(&self) -> bool {
        matches!(self.error.cause, Cause::Denied | Cause::Unsupported)
    }
}

/// The pauses before a request is sent again, and the time after which it is given up.
pub(super) struct Patience {
    begun: Instant,
    deadline: Instant,
    limit: Duration,
    next: Duration,
    asked: u32,
    /// The time of the last request.
    sent: Instant,
    is_known: bool,
    /// The reason why it was asked again.
    last: Option<RemoteError>,
}

impl Patience {
    /// Begins to ask a server, which has answered before or not.
    pub(super) fn new(limit: Duration, is_known: bool) -> Self {
        let begun = Instant::now();
        Self {
            begun,
            // Before those who wait give up without a reason.
            deadline: begun + limit - limit / 20,
            limit,
            next: FIRST,
            asked: 0,
            sent: begun,
            is_known,
            last: None,
        }
    }

    /// Waits for a request as long as there is time.
    pub(super) async fn within<T>(
        &mut self,
        request: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<T, Refusal> {
        self.asked += 1;
        self.sent = Instant::now();
        match tokio::time::timeout_at(self.deadline, request).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let mut message = format!("no answer within {} s", self.limit.as_secs());
                // What a server says is told, however slowly it says it once more.
                let cause = match &self.last {
                    Some(last) => {
                        message = format!("{message} (before that: {last})");
                        last.cause
                    }
                    None => Cause::Late,
                };
                Err(RemoteError { cause, message }.into())
            }
        }
    }

    /// Returns the time of the last request.
    pub(super) fn sent(&self) -> std::time::Instant {
        self.sent.into_std()
    }

    /// Waits until it is worth asking again; fails if it is not.
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

/// Returns a time between half of it and all of it.
fn jitter(time: Duration) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let noise = now.map_or(0, |now| now.subsec_nanos()) % 512;
    time / 2 + time * noise / 1024
}
