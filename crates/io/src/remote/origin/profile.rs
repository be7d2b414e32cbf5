//! Profiles in the files that Amazon's programs share: `~/.aws/config` and `~/.aws/credentials`.
//!
//! Source: AWS SDKs and Tools Reference Guide, "Using shared config and credentials files". A profile is named by
//! `[profile NAME]` in the first file and by `[NAME]` in the second. The second takes precedence for settings that both
//! have.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use parking_lot::Mutex;

use super::credentials::{Renew, Renewals, no_credentials};

/// The most bytes that are read of a file.
const LARGEST: u64 = 4 << 20;

/// The settings of one section. Names are in lower case; names in a nested block have the block's name as a prefix, as
/// in `s3.endpoint_url`.
type Settings = BTreeMap<String, String>;

/// The two files.
#[derive(Clone, Debug)]
pub(super) struct Files {
    pub(super) config: PathBuf,
    pub(super) credentials: PathBuf,
}

/// The settings of a profile.
#[derive(Clone, Default)]
pub(super) struct Profile {
    name: String,
    own: Settings,
    /// The section that `services` names.
    services: Settings,
}

/// How a profile authenticates its user.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Authentication {
    /// The profile does not say.
    None,
    /// Keys in the files.
    Keys,
    /// A token in a file, exchanged for a role.
    WebIdentity,
}

impl Files {
    /// Returns the files of this user, at the paths that the environment gives.
    pub(super) fn of_user() -> Self {
        let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".aws");
        let at = |name: &str, usual: &str| {
            std::env::var_os(name)
                .filter(|path| !path.is_empty())
                .map_or_else(|| home.join(usual), PathBuf::from)
        };
        Self {
            config: at("AWS_CONFIG_FILE", "config"),
            credentials: at("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
        }
    }

    /// Reads a profile; `None` if neither file has it.
    ///
    /// # Errors
    ///
    /// A file exists but cannot be read.
    pub(super) fn profile(&self, name: &str) -> Result<Option<Profile>, String> {
        let config = sections(&text(&self.config)?);
        let credentials = sections(&text(&self.credentials)?);
        let long = config.get(&format!("profile {name}"));
        let short = config.get(name).filter(|_| name == "default");
        let secret = credentials.get(name);
        let Some(own) = long.or(short).or(secret) else {
            return Ok(None);
        };
        let mut own = own.clone();
        own.extend(secret.cloned().unwrap_or_default());
        let services = own.get("services");
        let services = services.and_then(|name| config.get(&format!("services {name}")));
        Ok(Some(Profile {
            name: name.to_owned(),
            services: services.cloned().unwrap_or_default(),
            own,
        }))
    }

    /// Returns the modification times and sizes of both files.
    fn stamps(&self) -> [Option<(SystemTime, u64)>; 2] {
        [&self.config, &self.credentials].map(|path| {
            let meta = std::fs::metadata(path).ok()?;
            Some((meta.modified().ok()?, meta.len()))
        })
    }
}

/// Returns the text of a file; empty if there is no file.
fn text(path: &Path) -> Result<String, String> {
    use std::io::Read;
    let mut text = String::new();
    let read =
        std::fs::File::open(path).and_then(|file| file.take(LARGEST).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(text),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(text),
        Err(e) => Err(format!("{}: {e}", path.display())),
    }
}

/// Splits a file into sections. The settings of sections with the same name are merged.
fn sections(text: &str) -> BTreeMap<String, Settings> {
    let mut sections = BTreeMap::<String, Settings>::new();
    let (mut section, mut block) = (None::<String>, String::new());
    for line in text.lines() {
        let content = line.trim();
        if content.is_empty() || content.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = content.strip_prefix('[') {
            let name = name.split(']').next().unwrap_or_default();
            let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
            sections.entry(name.clone()).or_default();
            (section, block) = (Some(name), String::new());
            continue;
        }
        let Some((key, value)) = content.split_once('=') else {
            continue;
        };
        let (mut key, value) = (key.trim().to_ascii_lowercase(), value.trim());
        if line.starts_with([' ', '\t']) && !block.is_empty() {
            key = format!("{block}.{key}");
        } else {
            block = if value.is_empty() {
                key.clone()
            } else {
                String::new()
            };
        }
        if let Some(settings) = section.as_ref().and_then(|name| sections.get_mut(name)) {
            settings.insert(key, value.to_owned());
        }
    }
    sections
}

impl Profile {
    /// Returns a setting that is not empty.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        let value = self.own.get(key).map(String::as_str);
        value.filter(|value| !value.is_empty())
    }

    /// Returns the address of the service, if it is not Amazon's.
    pub(super) fn endpoint(&self) -> Option<&str> {
        let own = self.services.get("s3.endpoint_url").map(String::as_str);
        own.or_else(|| self.get("endpoint_url"))
    }

    /// Returns how the profile authenticates its user.
    ///
    /// # Errors
    ///
    /// The profile uses a method that this program does not support. The error says what to do instead.
    pub(super) fn means(&self) -> Result<Authentication, String> {
        let name = &self.name;
        let refuse = |what: &str| {
            Err(format!(
                "profile {name}: {what} is not supported here; put what it gives into the environment: \
                 eval \"$(aws configure export-credentials --profile {name} --format env)\""
            ))
        };
        if self.get("role_arn").is_some() {
            return match self.get("web_identity_token_file") {
                Some(_) => Ok(Authentication::WebIdentity),
                None => refuse("role_arn with source_profile or credential_source"),
            };
        }
        if self.get("aws_access_key_id").is_some() && self.get("aws_secret_access_key").is_some() {
            return Ok(Authentication::Keys);
        }
        for key in [
            "sso_session",
            "sso_start_url",
            "login_session",
            "credential_process",
        ] {
            if self.get(key).is_some() {
                return refuse(key);
            }
        }
        Ok(Authentication::None)
    }

    fn keys(&self) -> Option<AwsCredential> {
        let own = |key| self.get(key).map(str::to_owned);
        Some(AwsCredential {
            key_id: own("aws_access_key_id")?,
            secret_key: own("aws_secret_access_key")?,
            token: own("aws_session_token"),
        })
    }
}

/// Keys from the files. They are read again when the files change: programs renew keys there.
pub(super) struct FileKeys {
    files: Files,
    name: String,
    known: Mutex<Known>,
    renewals: Renewals,
}

type Known = Option<([Option<(SystemTime, u64)>; 2], Arc<AwsCredential>)>;

impl FileKeys {
    /// Uses the keys of a profile.
    pub(super) fn new(files: Files, name: &str) -> Self {
        Self {
            files,
            name: name.to_owned(),
            known: Mutex::default(),
            renewals: Renewals::default(),
        }
    }

    fn current(&self) -> Result<Arc<AwsCredential>, String> {
        let stamps = self.files.stamps();
        let mut known = self.known.lock();
        if let Some((of, keys)) = &*known
            && *of == stamps
        {
            return Ok(keys.clone());
        }
        let keys = self.files.profile(&self.name)?;
        let keys = keys.and_then(|profile| profile.keys());
        let keys = keys.ok_or_else(|| format!("profile {} has no keys any more", self.name))?;
        let keys = Arc::new(keys);
        *known = Some((stamps, keys.clone()));
        Ok(keys)
    }
}

impl std::fmt::Debug for FileKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FileKeys").field(&self.name).finish()
    }
}

impl Renew for FileKeys {
    fn renew(&self, sent: Instant) -> bool {
        // Two writes in quick succession may leave the same time and size.
        let forget = || *self.known.lock() = None;
        self.renewals.may(sent, forget)
    }
}

#[async_trait]
impl CredentialProvider for FileKeys {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.current().map_err(no_credentials)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "
# a comment
[default]
region = eu-west-1
[profile lab]
region=us-west-2
endpoint_url = https://lab.example
services = own
s3 =
  max_concurrent_requests = 20
aws_access_key_id = from-config
[ profile   role ]
role_arn = arn:aws:iam::1:role/x
source_profile = default
[profile web]
role_arn = arn:aws:iam::1:role/x
web_identity_token_file = /token
[profile sso]
sso_session = lab
[profile program]
credential_process = /bin/secret
[services own]
s3 =
  endpoint_url = https://s3.lab.example
dynamodb =
  endpoint_url = https://other.example
";
    const CREDENTIALS: &str = "
[default]
aws_access_key_id = ONE
aws_secret_access_key = a=b#c
[lab]
aws_access_key_id = TWO
aws_secret_access_key = two
AWS_Session_Token = token
";

    fn files(dir: &Path) -> Files {
        let files = Files {
            config: dir.join("config"),
            credentials: dir.join("credentials"),
        };
        std::fs::write(&files.config, CONFIG).unwrap();
        std::fs::write(&files.credentials, CREDENTIALS).unwrap();
        files
    }

    #[test]
    fn both_files_make_a_profile() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let default = files.profile("default").unwrap().unwrap();
        assert_eq!(
            (default.get("region"), default.endpoint()),
            (Some("eu-west-1"), None)
        );
        assert_eq!(default.keys().unwrap().secret_key, "a=b#c");
        assert_eq!(default.means(), Ok(Authentication::Keys));
        let lab = files.profile("lab").unwrap().unwrap();
        assert_eq!(lab.endpoint(), Some("https://s3.lab.example"));
        assert_eq!(
            (lab.get("region"), lab.get("max_concurrent_requests")),
            (Some("us-west-2"), None)
        );
        let keys = lab.keys().unwrap();
        assert_eq!(
            (keys.key_id.as_str(), keys.token.as_deref()),
            ("TWO", Some("token"))
        );
        assert!(files.profile("nobody").unwrap().is_none());
        let nowhere = Files {
            config: dir.path().join("no"),
            credentials: dir.path().join("where"),
        };
        assert!(nowhere.profile("default").unwrap().is_none());
    }

    #[test]
    fn other_ways_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let means = |name| files.profile(name).unwrap().unwrap().means();
        assert_eq!(means("web"), Ok(Authentication::WebIdentity));
        for (name, what) in [
            ("role", "source_profile"),
            ("sso", "sso_session"),
            ("program", "credential_process"),
        ] {
            let why = means(name).unwrap_err();
            assert!(
                why.contains(what) && why.contains("export-credentials"),
                "{why}"
            );
        }
    }

    #[test]
    fn keys_that_change_in_the_files_are_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let keys = FileKeys::new(files.clone(), "default");
        assert_eq!(keys.current().unwrap().key_id, "ONE");
        std::fs::write(&files.credentials, CREDENTIALS.replace("ONE", "THREE")).unwrap();
        assert_eq!(keys.current().unwrap().key_id, "THREE");
        assert!(!format!("{keys:?}").contains("THREE"));
    }
}
