//! `.npyfs/`: reports on the mount and on all objects in it.
//!
//! The directory is not listed in the root, so that `cp -r`, `rsync` and `find` see the data only. Its files are
//! generated on access, and the kernel never caches them.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use serde_json::{Value as Json, json};

use crate::dataset::context::Context;
use crate::tree::name::visible_with;
use crate::tree::{Directory, Listing, Node, VirtualFile};
use npyfs_base::error::Result;
use npyfs_io::content::{Content, InMemory};
use npyfs_io::file::Ownership;
use npyfs_io::remote::describe_open;

/// The name of the directory in the root.
pub const NAME: &[u8] = b".npyfs";

/// A file whose text is generated on access.
struct ReportFile<F> {
    make: F,
    ownership: Ownership,
    /// The text, if it is generated once per node; `None` if it is generated on each access.
    made: Option<OnceLock<Vec<u8>>>,
}

impl<F: Fn() -> Vec<u8> + Send + Sync> ReportFile<F> {
    fn text(&self) -> Vec<u8> {
        match &self.made {
            Some(made) => made.get_or_init(&self.make).clone(),
            None => (self.make)(),
        }
    }
}

impl<F: Fn() -> Vec<u8> + Send + Sync> VirtualFile for ReportFile<F> {
    fn ownership(&self) -> Ownership {
        self.ownership
    }

    fn size(&self) -> Result<u64> {
        Ok(self.text().len() as u64)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        Ok(Arc::new(InMemory(self.text())))
    }

    fn version(&self) -> u64 {
        0
    }

    fn is_current(&self) -> bool {
        true
    }

    fn info(&self) -> Result<Json> {
        Ok(json!({ "kind": "report" }))
    }

    fn volatile(&self) -> bool {
        true
    }
}

/// Returns a report that is generated on each access.
fn live(ownership: Ownership, make: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Node {
    Node::File(Arc::new(ReportFile {
        make,
        ownership,
        made: None,
    }))
}

/// Returns a report on one version of an object.
fn fixed(ownership: Ownership, make: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Node {
    Node::File(Arc::new(ReportFile {
        make,
        ownership,
        made: Some(OnceLock::new()),
    }))
}

/// Formats JSON, with a newline at its end; a failure becomes the member `error`.
pub fn render(info: &Result<Json>) -> Vec<u8> {
    let json = match info {
        Ok(json) => json.clone(),
        Err(e) => json!({ "error": e.message }),
    };
    format!("{json:#}\n").into_bytes()
}

/// The directory `.npyfs`.
pub struct Control {
    /// The root of the mount.
    pub root: Arc<dyn Directory>,
    /// The state that the parts of the mount share.
    pub context: Arc<Context>,
    /// The views of the store: names and roots.
    pub views: Vec<(&'static str, Arc<dyn Directory>)>,
    /// The path of the store, for people.
    pub store: String,
    /// The time of the mount, shown as the time of the directory.
    pub started: SystemTime,
    /// The directory of the checkouts.
    pub checkouts: String,
    /// The commit that the store is shown as of.
    pub at: Option<String>,
    /// Returns the part of `status.json` about the mounted checkout.
    pub checkout: Option<Arc<dyn Fn() -> Json + Send + Sync>>,
}

/// Returns the version of the libhdf5 that workers run.
fn library_version() -> String {
    let (major, minor, release) = hdf5::library_version();
    format!("{major}.{minor}.{release}")
}

/// The report of a mount on itself, as long as it lives.
struct FixedStatus {
    store: String,
    checkouts: String,
    at: Option<String>,
}

/// Returns the content of `status.json`.
fn status(context: &Context, fixed: &FixedStatus, checkout: Json) -> Json {
    let options = &context.options;
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "hdf5": library_version(),
        "pid": std::process::id(),
        "store": fixed.store,
        "checkouts": fixed.checkouts,
        "at": fixed.at,
        "subpath": options.subpath,
        "view": options.view.map(npyfs_base::options::View::name),
        "join": options.join,
        "strict": options.strict,
        "checkout": checkout,
        "options": {
            "cache_size": options.cache_size,
            "external": options.external,
            "sep": char::from(options.sep).to_string(),
            "kind": options.kind,
            "locales": options.locales,
            "text_limit": options.text_limit(),
            "xattrs": options.xattrs,
            "aligned": options.aligned,
        },
        "cache": context.cache.status(),
        "kernel_read_ahead": match context.read_ahead.get() {
            Some(Ok(kib)) => json!({ "kib": kib }),
            Some(Err(why)) => json!({ "not_raised": why }),
            None => Json::Null,
        },
        "same_processor": context.serving.get().map_or(Json::Null, |report| report()),
        "kept": context.keeping.get().map_or(Json::Null, |report| report()),
        "follow": context.following.get().map_or(Json::Null, |report| report()),
        "stores_opened": context.stores_opened.load(std::sync::atomic::Ordering::Relaxed),
        "remote": describe_open(),
        "worker_restarts": context.h5.restarts(),
        "worker_sandbox": context.h5.sandbox(),
        "errors": context.journal.total(),
        "logs": context.journal.kept().into_iter()
            .map(|(place, failed)| json!({ "place": place, "failed": failed }))
            .collect::<Vec<_>>(),
    })
}

impl Directory for Control {
    fn ownership(&self) -> Ownership {
        Ownership {
            mtime: self.started,
            ..self.root.ownership()
        }
    }

    fn list(&self) -> Result<Arc<Listing>> {
        let mut own = self.ownership();
        // Users who may read the store may read its reports; its owner may in any case.
        own.mode = own.mode & 0o444 | 0o400;
        // The log and the status name objects of all stores, even of those whose names others may not see.
        let private = Ownership {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mode: 0o600,
            ..own
        };
        let context = self.context.clone();
        let fixed_status = FixedStatus {
            store: self.store.clone(),
            checkouts: self.checkouts.clone(),
            at: self.at.clone(),
        };
        let checkout = self.checkout.clone();
        let checkout = move || checkout.as_ref().map_or(Json::Null, |checkout| checkout());
        let (log, lines) = (self.context.clone(), self.context.clone());
        let root = self.root.clone();
        let options = &self.context.options;
        let info = InfoDirectory {
            of: self.root.clone(),
            sep: options.view.map_or(options.sep, |_| b'#'),
        };
        let mut entries = Vec::new();
        for (name, view) in &self.views {
            let reports = InfoDirectory {
                of: view.clone(),
                sep: b'#',
            };
            let reports = Node::Directory(Arc::new(reports));
            let root = view.clone();
            let on_root = live(own, move || render(&root.info()));
            entries.push((format!("info.{name}.json").into_bytes(), on_root));
            entries.push((name.as_bytes().to_vec(), Node::Directory(view.clone())));
            entries.push((format!("info.{name}").into_bytes(), reports));
        }
        entries.extend([
            (
                b"errors.log".to_vec(),
                live(private, move || log.journal.text().into_bytes()),
            ),
            (
                b"errors.jsonl".to_vec(),
                live(private, move || lines.journal.json().into_bytes()),
            ),
            (b"info".to_vec(), Node::Directory(Arc::new(info))),
            (
                b"info.json".to_vec(),
                live(own, move || render(&root.info())),
            ),
            (
                b"status.json".to_vec(),
                live(private, move || {
                    render(&Ok(status(&context, &fixed_status, checkout())))
                }),
            ),
        ]);
        Ok(Arc::new(Listing::new(entries, Vec::new(), Vec::new())))
    }

    fn is_current(&self) -> bool {
        true
    }

    fn info(&self) -> Result<Json> {
        Ok(json!({ "kind": "control" }))
    }
}

/// `info/`: a `.json` for every entry of a directory, and for every object that is left out.
struct InfoDirectory {
    of: Arc<dyn Directory>,
    /// The character shown in place of `#` in names.
    sep: u8,
}

/// The suffix of a report on an object.
const SUFFIX: &[u8] = b".json";

impl InfoDirectory {
    fn entry_ownership(&self) -> Ownership {
        let own = self.of.ownership();
        Ownership {
            mode: own.mode & 0o444,
            ..own
        }
    }

    /// Returns the report on a node: programs that may read the node may read its report.
    fn on(&self, node: Node) -> Node {
        let own = match &node {
            Node::File(file) => file.ownership(),
            Node::Directory(of) => of.ownership(),
            // The report on a link contains only its target.
            Node::Symlink(_) => self.of.ownership(),
        };
        let own = Ownership {
            mode: own.mode & 0o444,
            ..own
        };
        match node {
            Node::File(file) => fixed(own, move || render(&file.info())),
            Node::Directory(of) => fixed(own, move || render(&of.info())),
            Node::Symlink(link) => fixed(own, move || {
                render(&Ok(
                    json!({ "link": String::from_utf8_lossy(&link.target) }),
                ))
            }),
        }
    }

    /// Returns the directory of reports on the entries of a directory.
    fn below(&self, of: Arc<dyn Directory>) -> Node {
        Node::Directory(Arc::new(InfoDirectory { of, sep: self.sep }))
    }

    /// Returns the names and reports of objects that are left out.
    fn left_out(&self, listing: &Listing) -> Vec<(Vec<u8>, Node)> {
        let own = self.entry_ownership();
        listing
            .left_out
            .iter()
            .map(|(name, reason)| {
                let made = render(&Ok(json!({
                    "name": String::from_utf8_lossy(name),
                    "left_out": reason,
                })));
                let name = visible_with(name, "", self.sep);
                ([&name, SUFFIX].concat(), fixed(own, move || made.clone()))
            })
            .collect()
    }
}

impl Directory for InfoDirectory {
    fn ownership(&self) -> Ownership {
        self.of.ownership()
    }

    fn list(&self) -> Result<Arc<Listing>> {
        let listing = self.of.list()?;
        let mut entries = Vec::new();
        for (name, node) in listing.iter() {
            if let Node::Directory(of) = &*node {
                entries.push((name.to_vec(), self.below(of.clone())));
            }
            entries.push(([&name, SUFFIX].concat(), self.on(node.into_owned())));
        }
        entries.extend(self.left_out(&listing));
        Ok(Arc::new(Listing::new(entries, Vec::new(), Vec::new())))
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        if let Some(Node::Directory(of)) = self.of.lookup(name)? {
            return Ok(Some(self.below(of)));
        }
        let Some(object) = name.strip_suffix(SUFFIX) else {
            return Ok(None);
        };
        if let Some(node) = self.of.lookup(object)? {
            return Ok(Some(self.on(node)));
        }
        let listing = self.of.list()?;
        let left_out = self.left_out(&listing).into_iter();
        // A file that is withheld is known by the name it would have.
        let known = left_out.zip(&listing.left_out);
        Ok(known
            .into_iter()
            .find(|((shown, _), (own, _))| shown == name || own == object)
            .map(|((_, node), _)| node))
    }

    fn is_current(&self) -> bool {
        self.of.is_current()
    }

    fn info(&self) -> Result<Json> {
        self.of.info()
    }
}
