//! The connections to servers: to web servers, and to the services of buckets, for which `object_store` makes the
//! requests.
//!
//! Headers other than the range, signatures and tokens above all, go only to the host that a request names, never to a
//! host it redirects to.
//!
//! Neither the announced length of a body nor its end is trusted. Bodies other than parts of an object (listings,
//! errors, credentials) also share a common limit.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use http_body::{Body, Frame, SizeHint};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use parking_lot::Mutex;
use reqwest::header::{
    AUTHORIZATION, CONTENT_LENGTH, HeaderMap, HeaderValue, IF_MATCH, LOCATION, RANGE,
};
use reqwest::{Client, ClientBuilder, Error, Method, StatusCode, Url, redirect};

use super::super::address::{Address, reveal};
use super::patience::retry_after;
use super::sieve::LeftOut;

/// The most redirects that are followed in a row.
pub(super) const MOST_REDIRECTS: usize = 10;

/// The most bytes of a response that is not part of an object. The longest listings have some 10 MiB.
const LARGEST: u64 = 32 << 20;

/// The most bytes of an error response.
const LARGEST_ERROR: u64 = 1 << 20;

/// The most bytes of such responses that arrive at the same time.
const LARGEST_TOGETHER: u64 = 128 << 20;

/// Bytes of such responses that have arrived and whose bodies are still being read.
static TOGETHER: AtomicU64 = AtomicU64::new(0);

/// The longest wait for a connection.
pub(super) const CONNECT: Duration = Duration::from_secs(10);

/// Begins a client that follows no redirect, and whose waits leave time for one more attempt within `timeout`.
pub(super) fn client(timeout: Duration, connect: Duration) -> ClientBuilder {
    Client::builder()
        .redirect(redirect::Policy::none())
        .connect_timeout(connect.min(timeout / 2))
        .read_timeout(Duration::from_secs(20).min(timeout))
}

/// The open connections to a server, which are given up together. A server that restarts, or a network that changes,
/// breaks all idle connections at once, and this is noticed only when a request is sent on one of them. If each of them
/// failed one retry, the time limit could be over before a new connection is tried.
pub(super) struct Pool {
    make: Box<dyn Fn() -> Result<Client, Error> + Send + Sync>,
    current: Mutex<CurrentClient>,
}

/// The client that new requests use.
struct CurrentClient {
    client: Client,
    /// The number of clients before it.
    number: u64,
    /// Whether it got a response, so that it may have idle connections.
    is_used: bool,
}

/// A request that has got no response yet. Dropped without one, it counts as broken: the caller has given up.
struct PendingRequest<'a> {
    pool: &'a Pool,
    number: u64,
    is_broken: bool,
}

impl Pool {
    /// Makes a pool; connects to no server yet.
    pub(super) fn new(
        make: impl Fn() -> Result<Client, Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let client = make()?;
        Ok(Self {
            make: Box::new(make),
            current: Mutex::new(CurrentClient {
                client,
                number: 0,
                is_used: false,
            }),
        })
    }

    /// Sends a request and waits for the head of the response.
    pub(super) async fn send<T, E, F>(&self, request: impl FnOnce(Client) -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let (client, number) = {
            let current = self.current.lock();
            (current.client.clone(), current.number)
        };
        let mut sent = PendingRequest {
            pool: self,
            number,
            is_broken: true,
        };
        let outcome = request(client).await;
        sent.is_broken = outcome.is_err();
        outcome
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        let mut current = self.pool.current.lock();
        if current.number != self.number {
            return;
        }
        if !self.is_broken {
            current.is_used = true;
        } else if current.is_used
            && let Ok(client) = (self.pool.make)()
        {
            *current = CurrentClient {
                client,
                number: self.number + 1,
                is_used: false,
            };
        }
    }
}

/// Returns the target of a redirect, unless it leads from an encrypted connection to an unencrypted one.
pub(super) fn referred(from: &Url, headers: &HeaderMap) -> Option<Url> {
    let to = from.join(headers.get(LOCATION)?.to_str().ok()?).ok()?;
    let is_web = matches!(to.scheme(), "http" | "https");
    let is_as_safe = from.scheme() == "http" || to.scheme() == "https";
    (is_web && is_as_safe).then_some(to)
}

/// Parts of a response that its failure does not report.
#[derive(Clone, Debug, Default)]
pub(super) struct Head {
    /// The host and port that was asked.
    pub(super) host: Option<String>,
    pub(super) status: Option<StatusCode>,
    /// The time after which the server accepts another request.
    pub(super) after: Option<Duration>,
    /// The length of the body.
    pub(super) length: Option<u64>,
    /// The region of the bucket.
    pub(super) region: Option<String>,
}

/// The head of the last response to a request. It travels with the request.
#[derive(Clone, Debug, Default)]
pub(super) struct LastHead(Arc<Mutex<Head>>);

impl LastHead {
    /// Returns the head and clears it; an empty head if no response came.
    pub(super) fn take(&self) -> Head {
        std::mem::take(&mut self.0.lock())
    }

    fn note(&self, answer: &HttpResponse) {
        let headers = answer.headers();
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let mut head = self.0.lock();
        *head = Head {
            host: head.host.take(),
            status: Some(answer.status()),
            after: retry_after(headers),
            length: text(CONTENT_LENGTH.as_str()).and_then(|length| length.parse().ok()),
            region: text("x-amz-bucket-region").map(str::to_owned),
        };
    }
}

/// Makes connections to a service.
#[derive(Clone)]
pub(super) struct Connections {
    /// The user and password of the service's address as a header, and the origin it is sent to.
    user: Option<(url::Origin, HeaderValue)>,
    timeout: Duration,
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}

impl Connections {
    /// Makes connections to the service of an address. Also returns the address without user and password.
    pub(super) fn to(
        endpoint: Option<String>,
        timeout: Duration,
    ) -> Result<(Option<String>, Self), String> {
        let whole = endpoint.as_deref().map(reveal);
        let url = whole.and_then(|whole| Url::parse(&whole).ok());
        let is_user = |url: &Url| !url.username().is_empty() || url.password().is_some();
        let Some(mut url) = url.filter(is_user) else {
            let user = None;
            return Ok((checked(endpoint)?, Self { user, timeout }));
        };
        let client = Client::builder().build();
        let request = client.and_then(|client| client.get(url.clone()).build());
        let header = request.map(|mut request| request.headers_mut().remove(AUTHORIZATION));
        let user = header.ok().flatten().map(|mut header| {
            header.set_sensitive(true);
            (url.origin(), header)
        });
        // Addresses of web servers can have both.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        let endpoint = url.as_str().trim_end_matches('/').to_owned();
        Ok((checked(Some(endpoint))?, Self { user, timeout }))
    }
}

/// Returns the address of a service if requests can be sent to it. The address may come from the environment or a
/// profile.
fn checked(endpoint: Option<String>) -> Result<Option<String>, String> {
    let refused = |endpoint: &String| !Address::is_service(endpoint);
    match endpoint.as_ref().filter(|endpoint| refused(endpoint)) {
        // An invalid address may contain a password anywhere.
        Some(endpoint) if endpoint.contains('@') => {
            Err("the endpoint: expected http(s)://HOST".to_owned())
        }
        Some(endpoint) => Err(format!("the endpoint {endpoint}: expected http(s)://HOST")),
        None => Ok(endpoint),
    }
}

impl HttpConnector for Connections {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let said = |key| options.get_config_value(&key);
        let is_plain = said(ClientConfigKey::AllowHttp).as_deref() == Some("true");
        // Most machines have no credentials service of their own.
        let connect = match said(ClientConfigKey::ConnectTimeout).as_deref() {
            Some("1s") => Duration::from_secs(1),
            _ => CONNECT,
        };
        let timeout = self.timeout;
        let make = move || {
            client(timeout, connect)
                .user_agent(concat!("npyfs/", env!("CARGO_PKG_VERSION")))
                .https_only(!is_plain)
                .http1_only()
                .build()
        };
        let pool = Pool::new(make).map_err(|e| object_store::Error::Generic {
            store: "network",
            source: Box::new(e),
        })?;
        Ok(HttpClient::new(Connected {
            pool,
            user: self.user.clone(),
        }))
    }
}

/// A client of a service.
struct Connected {
    pool: Pool,
    user: Option<(url::Origin, HeaderValue)>,
}

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connected").finish_non_exhaustive()
    }
}

impl Connected {
    /// Sends a request and follows redirects.
    async fn ask(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let failed = |e| HttpError::new(HttpErrorKind::Unknown, e);
        let mut url = Url::parse(&request.uri().to_string()).map_err(failed)?;
        let method = request.method().clone();
        let may_follow = matches!(method, Method::GET | Method::HEAD);
        let mut headers = HeaderMap::new();
        for name in [RANGE, IF_MATCH] {
            if let Some(value) = request.headers().get(&name) {
                headers.insert(name, value.clone());
            }
        }
        self.add_user(&url, &mut request);
        let mut answer = self.send(request).await?;
        for _ in 0..MOST_REDIRECTS {
            let is_elsewhere = answer.status().is_redirection() && may_follow;
            let to = is_elsewhere.then(|| referred(&url, answer.headers()));
            let Some(to) = to.flatten() else {
                break;
            };
            let mut next = HttpRequest::new(HttpRequestBody::empty());
            let uri = to.as_str().parse();
            *next.uri_mut() = uri.map_err(|e| HttpError::new(HttpErrorKind::Unknown, e))?;
            *next.method_mut() = method.clone();
            *next.headers_mut() = headers.clone();
            self.add_user(&to, &mut next);
            answer = self.send(next).await?;
            url = to;
        }
        Ok(answer)
    }

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let send = |client| async move { HttpClient::new(client).execute(request).await };
        self.pool.send(send).await
    }

    /// Adds the user and password of the service's address to an unsigned request to that service.
    fn add_user(&self, url: &Url, request: &mut HttpRequest) {
        if let Some((origin, user)) = &self.user
            && *origin == url.origin()
            && !request.headers().contains_key(AUTHORIZATION)
        {
            request.headers_mut().insert(AUTHORIZATION, user.clone());
        }
    }
}

#[async_trait]
impl HttpService for Connected {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let heard = request.extensions().get::<LastHead>().cloned();
        let left_out = request.extensions().get::<LeftOut>().cloned();
        if let (Some(heard), Some(host)) = (&heard, request.uri().authority()) {
            heard.0.lock().host = Some(host.to_string());
        }
        let asked = asked_length(request.headers());
        let answer = self.ask(request).await?;
        if let Some(heard) = heard {
            heard.note(&answer);
        }
        let answer = bounded(answer, asked);
        match left_out.filter(|_| answer.status().is_success()) {
            Some(left_out) => left_out.sifted(answer).await,
            None => Ok(answer),
        }
    }
}

/// A body and its limit.
struct Bounded {
    body: HttpResponseBody,
    most: u64,
    arrived: u64,
    /// Bytes that count towards the common limit; `None` for a part of an object.
    counted: Option<u64>,
}

impl Bounded {
    /// Counts bytes that arrived; fails if they exceed a limit.
    fn add(&mut self, more: u64) -> Result<(), String> {
        self.arrived = self.arrived.saturating_add(more);
        if self.arrived > self.most {
            return Err(format!("more than {} bytes arrived", self.most));
        }
        if let Some(counted) = &mut self.counted {
            *counted = counted.saturating_add(more);
            let together = TOGETHER.fetch_add(more, Ordering::Relaxed);
            if together.saturating_add(more) > LARGEST_TOGETHER {
                return Err("too many long answers arrive at the same time".to_owned());
            }
        }
        Ok(())
    }
}

impl Body for Bounded {
    type Data = <HttpResponseBody as Body>::Data;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, HttpError>>> {
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)?) else {
            return Poll::Ready(None);
        };
        let more = frame.data_ref().map_or(0, |data| data.len() as u64);
        Poll::Ready(Some(match self.add(more) {
            Ok(()) => Ok(frame),
            Err(why) => {
                let why = std::io::Error::other(why);
                Err(HttpError::new(HttpErrorKind::Decode, why))
            }
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // The length of a part of an object is known; no other length is trusted.
        let mut hint = SizeHint::new();
        if self.counted.is_none() {
            hint.set_upper(self.most);
        }
        hint
    }
}

impl Drop for Bounded {
    fn drop(&mut self) {
        TOGETHER.fetch_sub(self.counted.unwrap_or(0), Ordering::Relaxed);
    }
}

/// Limits the body of a response: to `asked` bytes for a part of an object, otherwise to the limits above.
fn bounded(answer: HttpResponse, asked: Option<u64>) -> HttpResponse {
    let (head, body) = answer.into_parts();
    let (most, counted) = match asked {
        _ if !head.status.is_success() => (LARGEST_ERROR, Some(0)),
        Some(asked) if head.status == StatusCode::PARTIAL_CONTENT => (asked, None),
        _ => (LARGEST, Some(0)),
    };
    let body = Bounded {
        body,
        most,
        arrived: 0,
        counted,
    };
    HttpResponse::from_parts(head, HttpResponseBody::new(body))
}

/// Returns the length of the range that a request asks for.
fn asked_length(asked: &HeaderMap) -> Option<u64> {
    let range = asked.get(RANGE)?.to_str().ok()?;
    let (start, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let (start, last): (u64, u64) = (start.parse().ok()?, last.parse().ok()?);
    last.checked_sub(start)?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_breaks_together_is_given_up_once() {
        super::super::super::runtime::install_crypto();
        let pool = Pool::new(|| Client::builder().build()).unwrap();
        let number = || pool.current.lock().number;
        let send = |outcome: Result<(), ()>| {
            let mut sent = Box::pin(pool.send(move |_| async move {
                tokio::task::yield_now().await;
                outcome
            }));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(sent.as_mut().poll(&mut context).is_pending());
            move || {
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                assert!(sent.as_mut().poll(&mut context).is_ready());
            }
        };
        // Without idle connections there is nothing to give up.
        send(Err(()))();
        assert_eq!(number(), 0);
        send(Ok(()))();
        let (mut first, mut second) = (send(Err(())), send(Err(())));
        first();
        second();
        assert_eq!(number(), 1);
        send(Ok(()))();
        // The caller gives up.
        drop(send(Ok(())));
        assert_eq!(number(), 2);
    }
}
