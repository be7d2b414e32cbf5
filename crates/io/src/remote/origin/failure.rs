//! The meaning of network failures and of response statuses, and whether to retry.

use std::time::{Duration, SystemTime};

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};

use super::super::error::{Cause, RemoteError, without_secrets};
use super::patience::{Again, Refusal};

/// Makes an error without the name of the object.
pub(super) fn error(cause: Cause, why: impl std::fmt::Display) -> RemoteError {
    RemoteError {
        cause,
        message: without_secrets(&why.to_string()),
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
        () if is_distrusted || failure.is_builder() => Again::Never,
        () if failure.is_connect() => Again::IfKnown,
        () => Again::Always,
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
pub(super) fn again_after(status: StatusCode) -> Again {
    match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::REQUEST_TIMEOUT
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Again::Always,
        StatusCode::NOT_IMPLEMENTED => Again::Never,
        _ if status.is_server_error() => Again::IfKnown,
        _ => Again::Never,
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
