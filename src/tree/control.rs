//! `.npyfs/`: reports on the mount and on any object in it.
//!
//! Not listed in the root, so that `cp -r`, `rsync` and `find` see the data only. Its files are made when they
//! are looked at and never cached by the kernel.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use serde_json::{Value as Json, json};

use crate::dataset::context::Context;
use crate::error::Result;
use crate::io::content::{Content, InMemory};
use crate::io::file::Ownership;
use crate::io::remote::describe_open;
use crate::tree::name::visible_with;
use crate::tree::{Directory, Listing, Node, VirtualFile};

/// Name of the directory in the root.
pub const NAME: &[u8] = b".npyfs";

/// A file whose text is made when it is looked at.
struct ReportFile<F> {
    make: F,
    ownership: Ownership,
    /// The text, if it is made once for as long as the node lives; `None` if it is made anew each time.
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

/// Returns a report that is made anew each time it is looked at.
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
    /// The views of the store: their names, and their roots.
    pub views: Vec<(&'static str, Arc<dyn Directory>)>,
    /// The path of the store, for people.
    pub store: String,
    /// The time of the mount, which the directory shows as its own.
    pub started: SystemTime,
    /// Makes what `status.json` shows of the checkout that a mount shows.
    pub checkout: Option<Arc<dyn Fn() -> Json + Send + Sync>>,
}

/// Makes the content of `status.json`.
fn status(context: &Context, store: &str, checkout: Json) -> Json {
    let options = &context.options;
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "hdf5": crate::hdf5::library_version(),
        "pid": std::process::id(),
        "store": store,
        "subpath": options.subpath,
        "view": options.view.map(crate::options::View::name),
        "join": options.join,
        "checkout": checkout,
        "options": {
            "cache_size": options.cache_size,
            "external": options.external,
            "sep": char::from(options.sep).to_string(),
            "kind": options.kind,
            "locales": options.locales,
            "text_limit": options.text_limit(),
            "xattrs": options.xattrs,
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
        // Readers of the store may read the reports on it; its owner may in any case.
        own.mode = own.mode & 0o444 | 0o400;
        let (context, store) = (self.context.clone(), self.store.clone());
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
                live(own, move || log.journal.text().into_bytes()),
            ),
            (
                b"errors.jsonl".to_vec(),
                live(own, move || lines.journal.json().into_bytes()),
            ),
            (b"info".to_vec(), Node::Directory(Arc::new(info))),
            (
                b"info.json".to_vec(),
                live(own, move || render(&root.info())),
            ),
            (
                b"status.json".to_vec(),
                live(own, move || {
                    render(&Ok(status(&context, &store, checkout())))
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

/// `info/`: a `.json` for every entry of a directory, and for what is left out.
struct InfoDirectory {
    of: Arc<dyn Directory>,
    /// Stands in the place of `#` in names; views have it as it is.
    sep: u8,
}

/// Suffix of a report on an object.
const SUFFIX: &[u8] = b".json";

impl InfoDirectory {
    fn entry_ownership(&self) -> Ownership {
        let own = self.of.ownership();
        Ownership {
            mode: own.mode & 0o444,
            ..own
        }
    }

    /// Returns the report on a node.
    fn on(&self, node: Node) -> Node {
        let own = self.entry_ownership();
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

    /// Returns the directory of reports on what is in a directory.
    fn below(&self, of: Arc<dyn Directory>) -> Node {
        Node::Directory(Arc::new(InfoDirectory { of, sep: self.sep }))
    }

    /// Returns names and reports of what is left out.
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
        // A file that is withheld goes by the name it would have.
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
