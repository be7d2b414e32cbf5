//! Credentials from a service: of the machine, of an identity provider, or of the host of a container.
//!
//! The host of a container: AWS SDKs and Tools Reference Guide, "Container credential provider". `object_store` 0.14
//! knows two of its cases: an address in two variables, a token in a file. It does not ask a full address without a
//! token or with one in a variable, and it sends tokens to any host.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use object_store::aws::AwsCredential;
use object_store::{BackoffConfig, CredentialProvider, RetryConfig};
use parking_lot::Mutex;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Client, Url, redirect};
use serde_json::Value as Json;

use super::super::error::without_secrets;
use super::patience::broken;
use super::web::body;
use crate::small_file;

/// The beginning of the error message when there are no credentials.
pub(super) const NOBODY: &str = "no credentials: ";

/// How long a failed service is not asked again.
const QUIET: Duration = Duration::from_secs(10);

/// The host of a container's credentials, for addresses that are given as a path.
const HOST: &str = "169.254.170.2";

/// Other hosts that may be asked for them on unencrypted connections: both of Amazon's Kubernetes.
const OTHERS: [&str; 2] = ["169.254.170.23", "fd00:ec2::23"];

/// How long before credentials expire they are replaced.
const BEFORE_END: Duration = Duration::from_secs(300);

/// The most bytes of a response, and of a file with a token.
const LARGEST: u64 = 1 << 20;

/// The number of attempts to ask the host of a container.
const TRIES: u32 = 3;

/// Credentials that a service may reject as no longer valid.
pub(super) trait Renew: Send + Sync {
    /// Requests new credentials. Returns false if that was done recently, but before the rejected request was sent.
    fn renew(&self, sent: Instant) -> bool;
}

/// The renewable credentials of the requests; `None` if the credentials are fixed or there are none.
pub(super) type Renewable = Option<Arc<dyn Renew>>;

/// The time of the last renewal, so that a server which rejects everything does not cause a renewal for each request.
#[derive(Debug, Default)]
pub(super) struct Renewals(Mutex<Option<Instant>>);

impl Renewals {
    /// Returns whether a request that was sent at `sent` and rejected may be retried with other credentials; calls
    /// `begin` if they must be requested first.
    pub(super) fn may(&self, sent: Instant, begin: impl FnOnce()) -> bool {
        let mut last = self.0.lock();
        match *last {
            // Another thread has renewed them in the meantime.
            Some(at) if at >= sent => true,
            Some(at) if at.elapsed() < QUIET => false,
            _ => {
                begin();
                *last = Some(Instant::now());
                true
            }
        }
    }
}

type Service<T> = Arc<dyn CredentialProvider<Credential = T>>;

/// Creates a client of the service.
type Make<T> = Box<dyn Fn() -> Result<Service<T>, String> + Send + Sync>;

/// Credentials of a service. If there are none, the error names the other ways to configure them. If the service fails
/// later, the last credentials are used: the server decides whether they are still valid.
pub(super) struct CachedCredentials<T> {
    make: Make<T>,
    known: Mutex<LastCredentials<T>>,
    renewals: Renewals,
    /// One request at a time, so that others share its outcome.
    turn: tokio::sync::Mutex<()>,
    hint: &'static str,
}

struct LastCredentials<T> {
    service: Service<T>,
    last: Option<Arc<T>>,
    /// When and why the service failed.
    failed: Option<(Instant, String)>,
}

impl<T> std::fmt::Debug for CachedCredentials<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asked").finish_non_exhaustive()
    }
}

impl<T> CachedCredentials<T> {
    /// Makes the credentials of a service.
    pub(super) fn new(
        hint: &'static str,
        make: impl Fn() -> Result<Service<T>, String> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, String> {
        let known = LastCredentials {
            service: make()?,
            last: None,
            failed: None,
        };
        Ok(Arc::new(Self {
            make: Box::new(make),
            known: Mutex::new(known),
            renewals: Renewals::default(),
            turn: tokio::sync::Mutex::default(),
            hint,
        }))
    }

    /// Returns the last credentials, or the reason why there are none.
    fn last(&self, known: &LastCredentials<T>) -> object_store::Result<Arc<T>> {
        known.last.clone().ok_or_else(|| {
            let why = known.failed.as_ref().map_or("", |(_, why)| why);
            no_credentials(format!("{NOBODY}{} ({why})", self.hint))
        })
    }
}

impl<T: Send + Sync> Renew for CachedCredentials<T> {
    fn renew(&self, sent: Instant) -> bool {
        self.renewals.may(sent, || {
            // The configuration has not changed. If a new client cannot be made, the present one is used.
            if let Ok(service) = (self.make)() {
                let mut known = self.known.lock();
                known.service = service;
                known.failed = None;
            }
        })
    }
}

#[async_trait]
impl<T: Send + Sync> CredentialProvider for CachedCredentials<T> {
    type Credential = T;

    async fn get_credential(&self) -> object_store::Result<Arc<T>> {
        let _turn = self.turn.lock().await;
        let service = {
            let known = self.known.lock();
            match &known.failed {
                Some((at, _)) if at.elapsed() < QUIET => return self.last(&known),
                _ => known.service.clone(),
            }
        };
        let given = service.get_credential().await;
        let mut known = self.known.lock();
        match given {
            Ok(given) => {
                known.last = Some(given.clone());
                known.failed = None;
                Ok(given)
            }
            Err(e) => {
                known.failed = Some((Instant::now(), e.to_string()));
                self.last(&known)
            }
        }
    }
}

/// The credentials of a container, and when to replace them.
type Given = Option<(Arc<AwsCredential>, Instant)>;

/// The credentials service of a container's host.
#[derive(Debug)]
pub(super) struct Container {
    client: Client,
    url: Url,
    known: tokio::sync::Mutex<Given>,
}

impl Container {
    /// Returns the service that the environment names; `None` outside of a container. Sends no request yet.
    pub(super) fn of_environment() -> Option<Result<Arc<Self>, String>> {
        let made = address()?.and_then(|url| {
            let client = Client::builder()
                .redirect(redirect::Policy::none())
                .connect_timeout(Duration::from_secs(2))
                .timeout(Duration::from_secs(5))
                .build();
            Ok(Arc::new(Self {
                client: client.map_err(|e| e.to_string())?,
                url,
                known: tokio::sync::Mutex::default(),
            }))
        });
        Some(made)
    }

    /// Returns the token that the host requires. The token file is read each time, as its content is replaced.
    fn token() -> Result<Option<HeaderValue>, String> {
        let token = match variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE") {
            Some(path) => {
                let read = small_file::read_text(path.as_ref(), LARGEST);
                Some(read.map_err(|e| format!("{path}: {e}"))?)
            }
            None => variable("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
        };
        let Some(token) = token else {
            return Ok(None);
        };
        let header = HeaderValue::try_from(token.trim_end_matches(['\r', '\n']));
        let mut header = header.map_err(|_| "the token of the container is not text")?;
        header.set_sensitive(true);
        Ok(Some(header))
    }

    async fn ask(&self) -> Result<(Arc<AwsCredential>, Instant), String> {
        let mut request = self.client.get(self.url.clone());
        if let Some(token) = Self::token()? {
            request = request.header(AUTHORIZATION, token);
        }
        let failed = |e: reqwest::Error| broken(&e).error.message;
        let answer = request.send().await.map_err(failed)?;
        if !answer.status().is_success() {
            return Err(format!("the container's host answers {}", answer.status()));
        }
        let body = body(answer, LARGEST).await.map_err(|e| e.error.message)?;
        understood(&body).ok_or_else(|| "the container's host answers something else".to_owned())
    }

    async fn current(&self) -> Result<Arc<AwsCredential>, String> {
        let mut known = self.known.lock().await;
        if let Some((credential, until)) = &*known
            && Instant::now() < *until
        {
            return Ok(credential.clone());
        }
        let mut outcome = self.ask().await;
        for tried in 1..TRIES {
            if outcome.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100) * tried).await;
            outcome = self.ask().await;
        }
        let (credential, until) = outcome.map_err(|why| without_secrets(&why))?;
        *known = Some((credential.clone(), until));
        Ok(credential)
    }
}

#[async_trait]
impl CredentialProvider for Container {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.current().await.map_err(no_credentials)
    }
}

/// Returns the retries for a service of credentials: most machines have none.
pub(super) fn few() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 2,
        retry_timeout: Duration::from_secs(10),
    }
}

/// Returns the error of a request for which there are no credentials.
pub(super) fn no_credentials(why: String) -> object_store::Error {
    object_store::Error::Unauthenticated {
        path: String::new(),
        source: why.into(),
    }
}

/// Returns an environment variable that is not empty.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the address that the environment names; `None` outside of a container.
fn address() -> Option<Result<Url, String>> {
    let path = variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    let own = path.map(|path| format!("http://{HOST}{path}"));
    let text = own.or_else(|| variable("AWS_CONTAINER_CREDENTIALS_FULL_URI"))?;
    Some(checked(&text))
}

/// Returns an address if a token may be sent there.
fn checked(text: &str) -> Result<Url, String> {
    let url = Url::parse(text);
    let url = url.map_err(|e| format!("the credentials of the container: no address: {e}"))?;
    let host = url.host_str().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_own = host == "localhost"
        || host == HOST
        || OTHERS.contains(&host)
        || host.parse().is_ok_and(|host: IpAddr| host.is_loopback());
    match url.scheme() {
        "https" => Ok(url),
        "http" if is_own => Ok(url),
        _ => Err(format!(
            "the credentials of the container: {host} is asked with https alone"
        )),
    }
}

/// Parses a response into credentials and the time to replace them.
fn understood(body: &[u8]) -> Option<(Arc<AwsCredential>, Instant)> {
    let answer: Json = serde_json::from_slice(body).ok()?;
    let text = |name: &str| answer[name].as_str().map(str::to_owned);
    let end: jiff::Timestamp = answer["Expiration"].as_str()?.parse().ok()?;
    let left = SystemTime::from(end).duration_since(SystemTime::now());
    let left = left.unwrap_or_default();
    let good = left.saturating_sub(BEFORE_END).max(left / 2);
    let credential = AwsCredential {
        key_id: text("AccessKeyId")?,
        secret_key: text("SecretAccessKey")?,
        token: text("Token"),
    };
    // Bounded, so that adding the duration to a clock cannot overflow.
    let good = good.min(Duration::from_secs(86_400));
    Some((Arc::new(credential), Instant::now() + good))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_given_up_once_for_all_who_were_refused() {
        let renewals = Renewals::default();
        let mut count = 0;
        let sent = Instant::now();
        assert!(renewals.may(sent, || count += 1));
        assert!(renewals.may(sent, || count += 1), "sent before that");
        let later = Instant::now();
        assert!(
            !renewals.may(later, || count += 1),
            "sent with the new ones"
        );
        assert_eq!(count, 1);
    }

    #[test]
    fn tokens_go_to_hosts_that_give_credentials_out() {
        for good in [
            "http://169.254.170.2/v2/x",
            "http://169.254.170.23/v1/credentials",
            "http://[fd00:ec2::23]/v1/credentials",
            "http://127.0.0.1:8080/",
            "http://localhost/",
            "https://example.org/x",
        ] {
            assert!(checked(good).is_ok(), "{good}");
        }
        for bad in ["http://example.org/x", "http://2/", "ftp://localhost/", "x"] {
            assert!(checked(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_ends_soon_is_asked_for_again_before_that() {
        let answer = |end: &str| {
            let answer = format!(
                r#"{{"AccessKeyId": "A", "SecretAccessKey": "s", "Token": "t", "Expiration": "{end}"}}"#
            );
            understood(answer.as_bytes()).map(|(key, until)| (key.key_id.clone(), until))
        };
        let (key, until) = answer("2485-01-01T00:00:00Z").unwrap();
        assert_eq!(key, "A");
        assert!(until > Instant::now() + Duration::from_secs(3600));
        assert!(answer("2015-01-01T00:00:00Z").unwrap().1 <= Instant::now());
        assert!(answer("soon").is_none() && understood(b"{}").is_none());
    }
}
