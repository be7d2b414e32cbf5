//! The meaning of failures of a bucket's service.

use super::super::connections::Head;
use super::super::credentials::NOBODY;
use super::super::failure::{again_after, broken, error};
use super::super::patience::{Again, Refusal};
use super::changed;
use crate::remote::error::Cause;

/// Error codes which say that credentials have expired or are no longer valid.
const EXPIRED: [&str; 7] = [
    "ExpiredToken",
    "ExpiredTokenException",
    "TokenRefreshRequired",
    "InvalidToken",
    "RequestExpired",
    "AuthenticationFailed",
    "InvalidAuthenticationInfo",
];

/// Returns the meaning of a failure and of the response that it is about, without the name of the object.
pub(super) fn failed(failure: &object_store::Error, told: &Head) -> Refusal {
    use object_store::Error as E;
    if let Some(network) = of_network(failure) {
        let mut refusal = broken(network);
        // The address of a bucket does not show the host that was asked.
        if let Some(host) = &told.host {
            refusal.error.message = format!("{host}: {}", refusal.error.message);
        }
        return refusal;
    }
    let text = reasons(failure);
    let status = told.status.map(|status| status.as_u16());
    let code = tag(&text, "Code");
    let is_expired = code.is_some_and(|code| EXPIRED.contains(&code));
    let cause = match failure {
        E::NotFound { .. } => Cause::Missing,
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => Cause::Denied,
        E::Precondition { .. } | E::NotModified { .. } => Cause::Changed,
        E::NotSupported { .. } | E::NotImplemented { .. } | E::InvalidPath { .. } => {
            Cause::Unsupported
        }
        _ if is_expired => Cause::Denied,
        // Failures of listings are told apart by status alone.
        _ => match status {
            Some(401 | 403) => Cause::Denied,
            Some(404 | 410) => Cause::Missing,
            // The object has become shorter.
            Some(416) => Cause::Changed,
            _ => Cause::Failed,
        },
    };
    // Some services answer even if they have no credentials for this machine.
    let nobody = text.find(NOBODY).and_then(|at| text.get(at..));
    let answered = told
        .status
        .map_or("an error".to_owned(), |status| status.to_string());
    let why = match (cause, code) {
        (Cause::Missing, Some("NoSuchBucket" | "ContainerNotFound")) => {
            "there is no such bucket".to_owned()
        }
        (Cause::Missing, _) => match status {
            Some(404) | None => "there is no such object".to_owned(),
            Some(_) => format!("there is no such object: the server answers {answered}"),
        },
        (Cause::Changed, _) => changed().message,
        (_, Some(code)) => {
            let more = tag(&text, "Message").unwrap_or_default();
            let more = more.split("RequestId").next().unwrap_or_default().trim();
            let status = status.map_or(answered, |status| status.to_string());
            format!("the server answers {status}: {code}: {more}")
        }
        _ => match (status, &told.region) {
            (Some(300..=400), Some(region)) => {
                format!(
                    "the server answers {answered}: the bucket is in another region, -o region={region}"
                )
            }
            (Some(_), _) => format!("the server answers {answered}"),
            (None, _) => text.clone(),
        },
    };
    let why: String = nobody.unwrap_or(&why).chars().take(400).collect();
    // Responses to HEAD have no body with an error code.
    let is_of_credentials = match code {
        Some(_) => is_expired,
        None => matches!(status, Some(400 | 401 | 403)),
    };
    Refusal {
        again: match code {
            Some("RequestTimeout" | "SlowDown") => Again::Always,
            _ => told.status.map_or(Again::Never, again_after),
        },
        after: told.after,
        is_of_credentials,
        ..error(cause, why).into()
    }
}

/// Returns the network failure behind a failure, if there is one.
fn of_network(failure: &object_store::Error) -> Option<&reqwest::Error> {
    let mut inner: Option<&(dyn std::error::Error + 'static)> = Some(failure);
    while let Some(cause) = inner {
        if let Some(network) = cause.downcast_ref() {
            return Some(network);
        }
        inner = cause.source();
    }
    None
}

/// Returns a failure in one line, for people: of the network what it was, without the request and its duration.
pub(in crate::remote::origin) fn in_words(failure: &object_store::Error) -> String {
    match of_network(failure) {
        Some(network) => broken(network).error.message,
        None => reasons(failure),
    }
}

/// Returns a failure and its causes in one line.
pub(in crate::remote::origin) fn reasons(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = inner.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the text of an XML element in the response that a failure contains.
fn tag<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, from) = text.split_once(&format!("<{name}>"))?;
    Some(from.split_once("</")?.0)
}

#[cfg(test)]
mod tests {
    use reqwest::StatusCode;

    use super::*;

    #[test]
    fn answers_are_told_without_what_they_repeat() {
        let text = "Error performing GET http://h/b?x - Server returned non-2xx status code: 403 Forbidden: <Error><Code>SignatureDoesNotMatch\
                    </Code><Message>The signature</Message><StringToSign>secret</StringToSign></Error>";
        let error = object_store::Error::Generic {
            store: "S3",
            source: text.into(),
        };
        let forbidden = Head {
            status: Some(StatusCode::FORBIDDEN),
            ..Head::default()
        };
        let told = failed(&error, &forbidden).error;
        assert_eq!(told.cause, Cause::Denied);
        assert_eq!(
            told.message,
            "the server answers 403: SignatureDoesNotMatch: The signature"
        );
        let nobody = object_store::Error::Unauthenticated {
            path: String::new(),
            source: "no credentials: try (status code: 404 Not Found)".into(),
        };
        let told = failed(&nobody, &Head::default());
        assert_eq!(
            (told.error.cause, told.again),
            (Cause::Denied, Again::Never)
        );
        assert!(told.error.message.starts_with("no credentials: try"));
    }

    #[test]
    fn an_expired_token_is_told_from_a_refusal() {
        let refused = |code: &str| {
            let error = object_store::Error::Generic {
                store: "S3",
                source: format!("<Error><Code>{code}</Code></Error>").into(),
            };
            let told = Head {
                status: Some(StatusCode::BAD_REQUEST),
                ..Head::default()
            };
            failed(&error, &told)
        };
        assert!(refused("ExpiredToken").is_of_credentials);
        assert!(!refused("AccessDenied").is_of_credentials);
        assert_eq!(refused("AccessDenied").again, Again::Never);
        assert_eq!(refused("RequestTimeout").again, Again::Always);
    }
}
