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

/// The address of an object, or of what its name begins with. Shown without its query and a user's name and password.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Address {
    scheme: Scheme,
    url: Url,
}

impl Address {
    /// Returns the address that a text is; `None`: it is a path. `file://` is one, too: see [`Address::local`].
    ///
    /// # Errors
    ///
    /// The reason why it is no address that objects can have.
    pub fn parse(text: &Path) -> Option<Result<Self, String>> {
        let text = text.to_str()?;
        let (scheme, rest) = text.split_once("://")?;
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "s3" | "s3a" => Scheme::S3,
            "gs" => Scheme::Google,
            "az" | "azure" | "abfs" | "abfss" => Scheme::Azure,
            "http" | "https" => Scheme::Web,
            _ => return None,
        };
        let shown = super::error::without_secrets(text);
        let refuse = |why: String| Err(format!("{shown}: {why}"));
        if rest.is_empty() || rest.starts_with('/') {
            return Some(refuse("no host or bucket".into()));
        }
        Some(match Url::parse(text) {
            Ok(url) => Ok(Self {
                scheme,
                url: with_secret(url),
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
        })
    }

    /// Returns the address without what may be secret, which this process remembers; a path as it is.
    pub fn hide_secret(text: &Path) -> PathBuf {
        let Some(Ok(address)) = Self::parse(text) else {
            return text.to_owned();
        };
        let shown = address.to_string();
        if address.url.as_str() != shown && Url::parse(&shown).is_ok_and(|url| url != address.url) {
            let mut secrets = SECRETS.lock().unwrap_or_else(|e| e.into_inner());
            secrets.push(address.url);
        }
        shown.into()
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

    /// Returns the address with everything that it was given with.
    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// Returns true if it names what objects' names begin with, as a directory does.
    pub fn is_prefix(&self) -> bool {
        self.url.path().ends_with('/') || self.url.path().is_empty()
    }

    /// Returns the bucket or container, or the host.
    pub(super) fn bucket(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    /// Returns the name of the object in its bucket.
    pub(super) fn key(&self) -> String {
        let path = self.url.path().trim_start_matches('/');
        let bytes = percent_encoding::percent_decode_str(path);
        bytes.decode_utf8_lossy().into_owned()
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

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&super::error::without_secrets(self.url.as_str()))
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
        for bad in ["s3://", "s3:///key", "https:///x"] {
            assert!(Address::parse(Path::new(bad)).unwrap().is_err(), "{bad}");
        }
        let s3 = address("s3://bucket/dir/a%20b.h5");
        assert_eq!((s3.scheme(), s3.bucket()), (Scheme::S3, "bucket"));
        assert_eq!((s3.key().as_str(), s3.is_prefix()), ("dir/a b.h5", false));
        assert!(address("gs://bucket").is_prefix() && address("az://c/d/").is_prefix());
        let local = Address::local(Path::new("file:///a%20b/c.h5"));
        assert_eq!(local.as_deref(), Some(Path::new("/a b/c.h5")));
    }

    #[test]
    fn the_query_is_kept_and_not_shown() {
        let web = address("https://me:word@host/a.h5?sig=secret");
        assert_eq!(web.to_string(), "https://host/a.h5");
        assert_eq!(format!("{web:?}"), "https://host/a.h5");
        assert!(web.url().as_str().contains("secret"));
    }
}
