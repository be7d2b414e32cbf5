//! The connections to the services of buckets.
//!
//! Headers other than the range, signatures and tokens above all, go only to the host that the request names, never to
//! a host it redirects to.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, HeaderMap, HeaderValue, IF_MATCH, RANGE};
use reqwest::{Client, Method, StatusCode, Url, redirect};

use super::bounded::{bounded, length};
use super::failure::retry_after;
use super::pool::Pool;
use super::sieve::LeftOut;
use super::web::{MOST_REDIRECTS, referred};

use crate::remote::address::{Address, reveal};

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
pub(super) struct Heard(Arc<Mutex<Head>>);

impl Heard {
    fn head(&self) -> MutexGuard<'_, Head> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the head and clears it; an empty head if no response came.
    pub(super) fn take(&self) -> Head {
        std::mem::take(&mut self.head())
    }

    fn note(&self, answer: &HttpResponse) {
        let headers = answer.headers();
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let mut head = self.head();
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
            _ => Duration::from_secs(10),
        };
        let timeout = self.timeout;
        let client = move || {
            Client::builder()
                .user_agent(concat!("npyfs/", env!("CARGO_PKG_VERSION")))
                .redirect(redirect::Policy::none())
                .https_only(!is_plain)
                .http1_only()
                // Leaves time for one more attempt.
                .connect_timeout(connect.min(timeout / 2))
                .read_timeout(Duration::from_secs(20).min(timeout))
                .build()
        };
        let pool = Pool::new(client).map_err(|e| object_store::Error::Generic {
            store: "network",
            source: Box::new(e),
        })?;
        Ok(HttpClient::new(Connected {
            pool,
            user: self.user.clone(),
        }))
    }
}

impl std::fmt::Debug for Connected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connected").finish_non_exhaustive()
    }
}

/// A client of a service.
struct Connected {
    pool: Pool,
    user: Option<(url::Origin, HeaderValue)>,
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

impl HttpService for Connected {
    fn call<'life, 'async_trait>(
        &'life self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'async_trait>>
    where
        'life: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(async move {
            let heard = request.extensions().get::<Heard>().cloned();
            let left_out = request.extensions().get::<LeftOut>().cloned();
            if let (Some(heard), Some(host)) = (&heard, request.uri().authority()) {
                heard.head().host = Some(host.to_string());
            }
            let asked = length(request.headers());
            let answer = self.ask(request).await?;
            if let Some(heard) = heard {
                heard.note(&answer);
            }
            let answer = bounded(answer, asked);
            match left_out.filter(|_| answer.status().is_success()) {
                Some(left_out) => left_out.sifted(answer).await,
                None => Ok(answer),
            }
        })
    }
}
