//! The address of an object, or of a prefix of a bucket.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use url::Url;

/// A protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Amazon's S3, and whatever speaks its protocol.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure,
    /// A web server.
    Web,
}

/// The address of an object, or of what its name begins with. That of a web server is shown without its query and a user's name
/// and password. In a bucket names are as they are: nothing in them is encoded, as in the addresses of `aws`, `gsutil` and `az`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Address {
    scheme: Scheme,
    /// All of it on a web server; else the bucket.
    url: Url,
    /// The object's name in its bucket.
    key: String,
}

impl Address {
    /// Returns the address that a text is; `None`: it is a path. `file://` is one, too: see [`Address::local`].
    ///
    /// # Errors
    ///
    /// The reason why it is no address that objects can have.
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
        // What is no address may be anything: of a password, too, it is not known where it ends.
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

    /// Returns the path that a `file://` address means; `None` for all else.
    pub fn local(text: &Path) -> Option<PathBuf> {
        let text = text.to_str()?;
        let rest = text.strip_prefix("file://")?;
        let decoded = Url::parse(text).ok()?.to_file_path().ok();
        decoded.or_else(|| Some(rest.into()))
    }

    /// Returns the address of a file of this machine.
    pub fn of_file(path: &Path) -> Option<Self> {
        Some(Self {
            scheme: Scheme::Web,
            url: Url::from_file_path(path).ok()?,
            key: String::new(),
        })
    }

    /// Returns the address without what may be secret, which this process remembers; a path as it is.
    pub fn hide_secret(text: &Path) -> PathBuf {
        let Some(Ok(address)) = Self::parse(text) else {
            return text.to_owned();
        };
        let shown = address.to_string();
        if address.scheme == Scheme::Web
            && address.url.as_str() != shown
            && Url::parse(&shown).is_ok_and(|url| url != address.url)
        {
            let mut secrets = SECRETS.lock().unwrap_or_else(|e| e.into_inner());
            secrets.push(address.url);
        }
        shown.into()
    }

    /// Returns the address of a service without its user and password, which this process remembers; `None` if it cannot be told where
    /// these end.
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
        let mut secrets = SECRETS.lock().unwrap_or_else(|e| e.into_inner());
        if url != whole && !secrets.contains(&whole) {
            secrets.push(whole);
        }
        Some(url.as_str().trim_end_matches('/').to_owned())
    }

    /// Returns the addresses with secrets that this process was given, for one that it starts.
    pub fn secrets() -> Vec<String> {
        let secrets = SECRETS.lock().unwrap_or_else(|e| e.into_inner());
        secrets.iter().map(|url| url.to_string()).collect()
    }

    /// Returns the protocol.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns the address with everything that it was given with; of an object in a bucket, that of the bucket.
    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// Returns true if it names what objects' names begin with, as a directory does.
    pub fn is_prefix(&self) -> bool {
        match self.scheme {
            Scheme::Web => self.url.path().ends_with('/'),
            _ => self.key.is_empty() || self.key.ends_with('/'),
        }
    }

    /// Returns the address of a name below a prefix of a bucket; `is_prefix`: that of a prefix.
    pub fn below(&self, name: &str, is_prefix: bool) -> Self {
        let end = if is_prefix { "/" } else { "" };
        Self {
            key: format!("{}{name}{end}", self.key),
            ..self.clone()
        }
    }

    /// Returns the bucket or container, or the host.
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

/// Addresses that were given with a secret. Whoever names one of them without it means it.
static SECRETS: Mutex<Vec<Url>> = Mutex::new(Vec::new());

/// Returns the address that was given with a secret, if one was and this is that one.
fn with_secret(url: Url) -> Url {
    let secrets = SECRETS.lock().unwrap_or_else(|e| e.into_inner());
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
    fn the_query_is_kept_and_not_shown() {
        let web = address("https://me:word@host/a.h5?sig=secret");
        assert_eq!(web.to_string(), "https://host/a.h5");
        assert_eq!(format!("{web:?}"), "https://host/a.h5");
        assert!(web.url().as_str().contains("secret"));
    }
}
