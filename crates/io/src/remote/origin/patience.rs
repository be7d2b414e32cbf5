//! Requests that fail: the meaning of a network failure and of a response status, and whether and when a request is
//! sent again.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use tokio::time::Instant;

use super::super::error::{Cause, RemoteError, without_secrets};

/// The number of retries of a request that may never succeed: a mistyped host name is not worth a wait.
const FEW: u32 = 3;

/// The first pause before a retry, and the longest.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(8);

/// Which requests are worth retrying after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    Never,
    /// Requests to a server that has responded before; others a few times.
    IfKnown,
    Always,
}

/// A failure, and whether the same request may succeed later.
pub(super) struct Refusal {
    pub(super) error: RemoteError,
    pub(super) again: Retry,
    /// The time after which the server accepts another request.
    pub(super) after: Option<Duration>,
    /// The request may succeed with other credentials.
    pub(super) is_of_credentials: bool,
}

impl From<RemoteError> for Refusal {
    fn from(error: RemoteError) -> Self {
        Self {
            error,
            again: Retry::Never,
            after: None,
            is_of_credentials: false,
        }
    }
}

impl Refusal {
    /// Makes a failure that may be temporary.
    pub(super) fn again(error: RemoteError) -> Self {
        Self {
            again: Retry::Always,
            ..Self::from(error)
        }
    }

    /// Returns whether a request with another HTTP method may succeed.
    pub(super) fn is_of_method(&self) -> bool {
        matches!(self.error.cause, Cause::Denied | Cause::Unsupported)
    }
}

/// The pauses between retries of a request, and its deadline.
struct Patience {
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
    fn new(limit: Duration, is_known: bool) -> Self {
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
    async fn within<T>(
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

    /// Waits until the request is worth retrying; fails if it is not.
    async fn pause(&mut self, refusal: Refusal) -> Result<(), RemoteError> {
        let is_worth = match refusal.again {
            Retry::Never => false,
            Retry::IfKnown => self.is_known || self.asked <= FEW,
            Retry::Always => true,
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

/// Sends a request again until it succeeds, is not worth a retry, or has taken the time limit. `is_known` says that the
/// server has responded before. `renews` is given the time of a request that was refused because of its credentials; if
/// it returns true, the request is sent again at once.
pub(super) async fn persist<T, F>(
    limit: Duration,
    is_known: bool,
    renews: impl Fn(std::time::Instant) -> bool,
    request: impl Fn() -> F,
) -> Result<T, RemoteError>
where
    F: Future<Output = Result<T, Refusal>>,
{
    let mut patience = Patience::new(limit, is_known);
    loop {
        match patience.within(request()).await {
            Ok(outcome) => return Ok(outcome),
            Err(refusal) if refusal.is_of_credentials && renews(patience.sent.into_std()) => {}
            Err(refusal) => patience.pause(refusal).await?,
        }
    }
}

/// Returns a random time between half of `time` and all of it.
fn jitter(time: Duration) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let noise = now.map_or(0, |now| now.subsec_nanos()) % 512;
    time / 2 + time * noise / 1024
}

/// Makes an error without the name of the object.
pub(super) fn error(cause: Cause, why: impl std::fmt::Display) -> RemoteError {
    RemoteError {
        cause,
        message: without_secrets(&why.to_string()),
    }
}

/// Returns the error for an object that another version has replaced.
pub(super) fn changed() -> RemoteError {
    RemoteError {
        cause: Cause::Changed,
        message: "another version is there now".into(),
    }
}

/// Returns the meaning of a network failure.
pub(super) fn broken(failure: &reqwest::Error) -> Refusal {
    let mut reasons: Vec<String> = Vec::new();
    let mut is_distrusted = false;
    let mut inner: Option<&dyn std::error::Error> = Some(failure);
    while let Some(cause) = inner {
        is_distrusted |= is_of_certificate(cause);
        let reason = cause.to_string();
        // These messages say where the failure happened, not what it was.
        let says_nothing = [
            "error sending request",
            "client error (",
            "request or response body",
        ];
        if !says_nothing.iter().any(|start| reason.starts_with(start))
            && !reasons.iter().any(|known| known.contains(&reason))
        {
            reasons.push(reason);
        }
        inner = cause.source();
    }
    let why = match reasons.is_empty() {
        true => failure.to_string(),
        false => reasons.join(": "),
    };
    let (cause, why) = match failure.is_timeout() {
        true => (Cause::Late, "no answer came".to_owned()),
        false if is_distrusted => {
            let why = format!("the server's certificate is not trusted: {why}");
            (Cause::Failed, why)
        }
        false => (Cause::Failed, why),
    };
    let again = match () {
        () if is_distrusted || failure.is_builder() => Retry::Never,
        () if failure.is_connect() => Retry::IfKnown,
        () => Retry::Always,
    };
    Refusal {
        again,
        ..error(cause, why).into()
    }
}

/// Returns whether the server's certificate is not trusted, which a retry cannot change.
fn is_of_certificate(failure: &(dyn std::error::Error + 'static)) -> bool {
    let is = |failure: &(dyn std::error::Error + 'static)| {
        matches!(
            failure.downcast_ref::<rustls::Error>(),
            Some(rustls::Error::InvalidCertificate(_))
        )
    };
    let inner = failure.downcast_ref::<std::io::Error>();
    let inner = inner.and_then(std::io::Error::get_ref);
    is(failure) || inner.is_some_and(|inner| is_of_certificate(inner))
}

/// Returns which requests are worth retrying after a response.
pub(super) fn again_after(status: StatusCode) -> Retry {
    match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::REQUEST_TIMEOUT
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Retry::Always,
        StatusCode::NOT_IMPLEMENTED => Retry::Never,
        _ if status.is_server_error() => Retry::IfKnown,
        _ => Retry::Never,
    }
}

/// Returns the time after which the server accepts another request.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let after = headers.get(RETRY_AFTER)?.to_str().ok()?;
    if let Ok(seconds) = after.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let time = jiff::fmt::rfc2822::parse(after).ok()?;
    let time = SystemTime::from(time.timestamp());
    // A time in the past means now.
    Some(time.duration_since(SystemTime::now()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_times_after_which_to_ask_again() {
        let after = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            retry_after(&headers)
        };
        assert_eq!(after("7"), Some(Duration::from_secs(7)));
        assert_eq!(after("-7"), None);
        assert_eq!(after("soon"), None);
        assert_eq!(after("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        let later = after("Sun, 21 Oct 2485 07:28:00 GMT").unwrap();
        assert!(later > Duration::from_secs(1 << 32));
    }
}
