//! The address of an object, or of a prefix of a bucket.

use std::fmt;
use std::path::{Path, PathBuf};

use object_store::client::{HttpRequest, HttpRequestBody};
use parking_lot::Mutex;
use url::Url;

/// A protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Amazon's S3, and services that speak its protocol.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure,
    /// A web server.
    Web,
}

/// The address of an object, or of a prefix of object names. An address of a web server is shown without its query,
/// user name and password. Names in a bucket are literal: nothing in them is percent-encoded, as in the addresses of
/// `aws`, `gsutil` and `az`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Address {
    scheme: Scheme,
    /// The full URL on a web server; otherwise the bucket.
    url: Url,
    /// The object's name in its bucket.
    key: String,
}

impl Address {
    /// Parses a text as an address; `None` if it is a path. `file://` is an address, too: see [`Address::local`].
    ///
    /// # Errors
    ///
    /// The reason why the address cannot be that of an object.
    pub fn parse(text: &Path) -> Option<Result<Self, String>> {
        let text = text.to_str()?;
        let (name, rest) = text.split_once("://")?;
        let scheme = match name.to_ascii_lowercase().as_str() {
            "s3" | "s3a" => Scheme::S3,
            "gs" => Scheme::Google,
            "az" | "azure" | "abfs" | "abfss" => Scheme::Azure,
            "http" | "https" => Scheme::Web,
            _ => return None,
        };
        // An invalid address may contain a password anywhere: its end is not known.
        let shown = match rest.contains('@') && Url::parse(text).is_err() {
            true => format!("{name}://..."),
            false => super::error::without_secrets(text),
        };
        let refuse = |why: String| Err(format!("{shown}: {why}"));
        if rest.is_empty() || rest.starts_with('/') {
            return Some(refuse("no host or bucket".into()));
        }
        if scheme == Scheme::Web {
            return Some(match Url::parse(text) {
                Ok(url) => Ok(Self {
                    scheme,
                    url: with_secret(url),
                    key: String::new(),
                }),
                Err(e) => refuse(e.to_string()),
            });
        }
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let has_user = bucket.contains('@') && scheme != Scheme::Azure;
        if has_user || bucket.contains(':') {
            let why = "a bucket has neither port nor user: -o endpoint= and a profile or the environment say them";
            return Some(refuse(why.into()));
        }
        let url = Url::parse(&format!("{name}://{bucket}/"));
        Some(match url {
            Ok(url) => Ok(Self {
                scheme,
                url,
                key: key.to_owned(),
            }),
            Err(e) => refuse(e.to_string()),
        })
    }

    /// Returns the path of a `file://` address; `None` for all other texts.
    pub fn local(text: &Path) -> Option<PathBuf> {
        let text = text.to_str()?;
        let rest = text.strip_prefix("file://")?;
        let decoded = Url::parse(text).ok()?.to_file_path().ok();
        decoded.or_else(|| Some(rest.into()))
    }

    /// Returns the `file://` address of a local file.
    pub fn of_file(path: &Path) -> Option<Self> {
        Some(Self {
            scheme: Scheme::Web,
            url: Url::from_file_path(path).ok()?,
            key: String::new(),
        })
    }

    /// Returns the address without its secret parts, which this process remembers; returns a path unchanged.
    pub fn hide_secret(text: &Path) -> PathBuf {
        let Some(Ok(address)) = Self::parse(text) else {
            return text.to_owned();
        };
        let shown = address.to_string();
        if address.scheme == Scheme::Web
            && address.url.as_str() != shown
            && Url::parse(&shown).is_ok_and(|url| url != address.url)
        {
            let mut secrets = SECRETS.lock();
            secrets.push(address.url);
        }
        shown.into()
    }

    /// Returns the address of a service without its user and password, which this process remembers; `None` if the end
    /// of the user and password cannot be found.
    pub fn hide_user(endpoint: &str) -> Option<String> {
        if !endpoint.contains('@') {
            return Some(endpoint.to_owned());
        }
        let mut url = Url::parse(endpoint).ok()?;
        if !matches!(url.scheme(), "http" | "https") {
            return None;
        }
        let whole = url.clone();
        url.set_username("").ok()?;
        url.set_password(None).ok()?;
        let mut secrets = SECRETS.lock();
        if url != whole && !secrets.contains(&whole) {
            secrets.push(whole);
        }
        Some(url.as_str().trim_end_matches('/').to_owned())
    }

    /// Returns whether requests can be sent to the address of a service, from which user and password were removed.
    pub fn is_service(endpoint: &str) -> bool {
        // The address goes into requests unchanged.
        let is_plain = endpoint.len() <= LONGEST_SERVICE
            && endpoint.bytes().all(|byte| byte.is_ascii_graphic());
        let is_web = endpoint.starts_with("http://") || endpoint.starts_with("https://");
        let url = Url::parse(endpoint).ok().filter(|_| is_plain && is_web);
        let is_place =
            |url: &Url| url.has_host() && url.query().is_none() && url.fragment().is_none();
        // Two libraries parse addresses differently; both must accept this one.
        let is_asked = |text: &str| {
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            let uri = text.parse().map(|uri| *request.uri_mut() = uri);
            uri.is_ok() && request.uri().host().is_some_and(|host| !host.is_empty())
        };
        url.is_some_and(|url| is_place(&url) && is_asked(url.as_str()) && is_asked(endpoint))
    }

    /// Returns whether a text can be the name of a region, which becomes part of addresses.
    pub fn is_region(text: &str) -> bool {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let edges = [text.bytes().next(), text.bytes().last()];
        let is_whole = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        text.len() <= LONGEST_REGION && text.bytes().all(is_part) && edges.into_iter().all(is_whole)
    }

    /// Returns the addresses with secrets that this process was given, to be passed to a child process.
    pub fn secrets() -> Vec<String> {
        let secrets = SECRETS.lock();
        secrets.iter().map(|url| url.to_string()).collect()
    }

    /// Returns the protocol.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns the full address as given; for an object in a bucket, the address of the bucket.
    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// Returns true if the address is a prefix of object names, as a directory is.
    pub fn is_prefix(&self) -> bool {
        match self.scheme {
            Scheme::Web => self.url.path().ends_with('/'),
            _ => self.key.is_empty() || self.key.ends_with('/'),
        }
    }

    /// Returns the address of a name below a prefix of a bucket; with `is_prefix`, the address of a prefix.
    pub fn below(&self, name: &str, is_prefix: bool) -> Self {
        let end = if is_prefix { "/" } else { "" };
        Self {
            key: format!("{}{name}{end}", self.key),
            ..self.clone()
        }
    }

    /// Returns the bucket, container or host.
    pub(super) fn bucket(&self) -> &str {
        match self.url.username() {
            container if self.scheme == Scheme::Azure && !container.is_empty() => container,
            _ => self.url.host_str().unwrap_or_default(),
        }
    }

    /// Returns the account of `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/`.
    pub(super) fn account(&self) -> Option<&str> {
        let is_named = self.scheme == Scheme::Azure && !self.url.username().is_empty();
        let host = self.url.host_str().filter(|_| is_named)?;
        host.split('.').next()
    }

    /// Returns the name of the object in its bucket.
    pub(super) fn key(&self) -> &str {
        &self.key
    }
}

/// Characters of the longest address of a service and of the longest region, which is one label of a host name.
const LONGEST_SERVICE: usize = 1024;
const LONGEST_REGION: usize = 63;

/// Addresses that were given with a secret. The same address without the secret stands for the one with it.
static SECRETS: Mutex<Vec<Url>> = Mutex::new(Vec::new());

/// Returns the remembered address with a secret that equals `url` without one; otherwise `url`.
fn with_secret(url: Url) -> Url {
    let secrets = SECRETS.lock();
    let own = url.as_str();
    let given = secrets.iter().rev();
    let mut same = given.filter(|given| super::error::without_secrets(given.as_str()) == own);
    same.next().cloned().unwrap_or(url)
}

/// Returns the address of a service with the user and password that it was given with.
pub(super) fn reveal(endpoint: &str) -> String {
    match Url::parse(endpoint) {
        Ok(url) => with_secret(url).into(),
        Err(_) => endpoint.to_owned(),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scheme {
            Scheme::Web => f.write_str(&super::error::without_secrets(self.url.as_str())),
            _ => write!(f, "{}{}", self.url, self.key),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        Address::parse(Path::new(text)).unwrap().unwrap()
    }

    #[test]
    fn addresses_and_paths() {
        for path in ["a/b.h5", "/a://b", "x:/y", "file:///a.h5", "ftp://h/a"] {
            assert!(Address::parse(Path::new(path)).is_none(), "{path}");
        }
        for bad in ["s3://", "s3:///key", "https:///x", "s3://me:word@bucket/x"] {
            assert!(Address::parse(Path::new(bad)).unwrap().is_err(), "{bad}");
        }
        let s3 = address("s3://my_bucket/dir/a%20b c?#+ü.h5");
        assert_eq!((s3.scheme(), s3.bucket()), (Scheme::S3, "my_bucket"));
        assert_eq!((s3.key(), s3.is_prefix()), ("dir/a%20b c?#+ü.h5", false));
        assert_eq!(s3.to_string(), "s3://my_bucket/dir/a%20b c?#+ü.h5");
        let above = address("s3://my_bucket/dir/");
        assert_eq!(above.below("a%20b c?#+ü.h5", false), s3);
        assert!(above.is_prefix() && above.below("x", true).is_prefix());
        let azure = address("abfss://data@account.dfs.core.windows.net/x.h5");
        assert_eq!((azure.bucket(), azure.account()), ("data", Some("account")));
        assert!(address("gs://bucket").is_prefix() && address("az://c/d/").is_prefix());
        let local = Address::local(Path::new("file:///a%20b/c.h5"));
        assert_eq!(local.as_deref(), Some(Path::new("/a b/c.h5")));
    }

    #[test]
    fn the_user_of_a_service_is_kept_and_not_shown() {
        let hidden = Address::hide_user("http://me:wo'r)d@service:9000").unwrap();
        assert_eq!(hidden, "http://service:9000");
        assert_eq!(reveal(&hidden), "http://me:wo'r)d@service:9000/");
        assert_eq!(reveal("http://other:9000"), "http://other:9000/");
        assert_eq!(Address::hide_user("host:9000").unwrap(), "host:9000");
        for bad in ["me:word@host", "http://me:w/rd@host", "ftp://me:word@host"] {
            assert_eq!(Address::hide_user(bad), None, "{bad}");
        }
        let refused = Address::parse(Path::new("http://me:w/rd@host/x.h5"));
        assert!(!refused.unwrap().unwrap_err().contains("rd"));
    }

    #[test]
    fn services_and_regions_are_what_requests_can_be_made_of() {
        for good in [
            "http://127.0.0.1:5599",
            "https://s3.example.org/",
            "http://[::1]:9/a/b",
        ] {
            assert!(Address::is_service(good), "{good}");
        }
        for bad in [
            "127.0.0.1:5599",
            "localhost:5599",
            "",
            "http://",
            "http:///x",
            "http:x",
            "HTTP://h",
            "ftp://h",
            " http://h",
            "http://h h",
            "http://h\u{e9}",
            "http://h\"{}",
            "http://h:99999",
            "http://[::1",
            "http://h/?a",
            "http://h#a",
            "http://h/<",
            &format!("http://{}", "h".repeat(2000)),
        ] {
            assert!(!Address::is_service(bad), "{bad}");
        }
        assert!(Address::is_region("eu-central-1") && Address::is_region("default"));
        for bad in [
            "",
            "a b",
            "-a",
            "a/b",
            "a\nb",
            "\u{e9}",
            ".",
            &"a".repeat(64),
        ] {
            assert!(!Address::is_region(bad), "{bad}");
        }
    }

    #[test]
    fn the_query_is_kept_and_not_shown() {
        let web = address("https://me:word@host/a.h5?sig=secret");
        assert_eq!(web.to_string(), "https://host/a.h5");
        assert_eq!(format!("{web:?}"), "https://host/a.h5");
        assert!(web.url().as_str().contains("secret"));
    }
}
