//! The connections on which the services of buckets are asked.
//!
//! What goes with a request beside the range, signatures and tokens above all, goes to the host that is asked, and to no other that
//! it may refer to.

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

use super::failure::retry_after;
use super::sieve::LeftOut;
use super::web::{MOST_REDIRECTS, referred};
use crate::io::remote::address::reveal;

/// What an answer says that its failure does not say.
#[derive(Clone, Debug, Default)]
pub(super) struct Head {
    /// The host that was asked, with its port.
    pub(super) host: Option<String>,
    pub(super) status: Option<StatusCode>,
    /// The time after which the server wants to be asked again.
    pub(super) after: Option<Duration>,
    /// The bytes of its body.
    pub(super) length: Option<u64>,
    /// The region of the bucket.
    pub(super) region: Option<String>,
}

/// The head of the last answer to a request. Goes with it.
#[derive(Clone, Debug, Default)]
pub(super) struct Heard(Arc<Mutex<Head>>);

impl Heard {
    fn head(&self) -> MutexGuard<'_, Head> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the head; that of nothing if no answer came.
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

/// Makes the connections to a service.
#[derive(Clone)]
pub(super) struct Connections {
    /// The user and password of the service's address as they go with a request, and what they go to.
    user: Option<(url::Origin, HeaderValue)>,
    timeout: Duration,
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}

impl Connections {
    /// Connections to the service of an address, which is returned without user and password.
    pub(super) fn to(endpoint: Option<String>, timeout: Duration) -> (Option<String>, Self) {
        let whole = endpoint.as_deref().map(reveal);
        let url = whole.and_then(|whole| Url::parse(&whole).ok());
        let is_user = |url: &Url| !url.username().is_empty() || url.password().is_some();
        let Some(mut url) = url.filter(is_user) else {
            let user = None;
            return (endpoint, Self { user, timeout });
        };
        let client = Client::builder().build();
        let request = client.and_then(|client| client.get(url.clone()).build());
        let header = request.map(|mut request| request.headers_mut().remove(AUTHORIZATION));
        let user = header.ok().flatten().map(|mut header| {
            header.set_sensitive(true);
            (url.origin(), header)
        });
        // Addresses of web servers may have both.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        let endpoint = url.as_str().trim_end_matches('/').to_owned();
        (Some(endpoint), Self { user, timeout })
    }
}

impl HttpConnector for Connections {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let said = |key| options.get_config_value(&key);
        let is_plain = said(ClientConfigKey::AllowHttp).as_deref() == Some("true");
        // Most machines have no service of their own for credentials.
        let connect = match said(ClientConfigKey::ConnectTimeout).as_deref() {
            Some("1s") => Duration::from_secs(1),
            _ => Duration::from_secs(10),
        };
        let client = Client::builder()
            .user_agent(concat!("npyfs/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            .https_only(!is_plain)
            .http1_only()
            // So that there is time left to ask once more.
            .connect_timeout(connect.min(self.timeout / 2))
            .read_timeout(Duration::from_secs(20).min(self.timeout))
            .build();
        let client = client.map_err(|e| object_store::Error::Generic {
            store: "network",
            source: Box::new(e),
        })?;
        Ok(HttpClient::new(Connected {
            client: HttpClient::new(client),
            user: self.user.clone(),
        }))
    }
}

/// A connected service.
#[derive(Debug)]
struct Connected {
    client: HttpClient,
    user: Option<(url::Origin, HeaderValue)>,
}

impl Connected {
    /// Sends a request, and another one to where the answer refers to.
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
        let mut answer = self.client.execute(request).await?;
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
            answer = self.client.execute(next).await?;
            url = to;
        }
        Ok(answer)
    }

    /// Adds the user and password of the service's address to a request that goes there and is not signed.
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
            let answer = self.ask(request).await?;
            if let Some(heard) = heard {
                heard.note(&answer);
            }
            match left_out.filter(|_| answer.status().is_success()) {
                Some(left_out) => left_out.sifted(answer).await,
                None => Ok(answer),
            }
        })
    }
}
