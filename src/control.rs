//! `.npyfs/`: what the mount says about itself and about any object.
//!
//! Not listed in the root, so that `cp -r`, `rsync` and `find` see the data only. Its files are made when they
//! are looked at and never cached by the kernel.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value as Json, json};

use crate::content::{Content, Literal};
use crate::error::Result;
use crate::raw::Ownership;
use crate::store::Context;
use crate::tree::name::visible_with;
use crate::tree::{Directory, Listing, Node, VirtualFile};

/// Name of the directory in the root.
pub const NAME: &[u8] = b".npyfs";

/// Text that is made anew for whoever looks.
struct Report<F> {
    make: F,
    ownership: Ownership,
}

impl<F: Fn() -> Vec<u8> + Send + Sync> VirtualFile for Report<F> {
    fn ownership(&self) -> Ownership {
        self.ownership
    }

    fn size(&self) -> Result<u64> {
        Ok((self.make)().len() as u64)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        Ok(Arc::new(Literal((self.make)())))
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

fn report(ownership: Ownership, make: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Node {
    Node::File(Arc::new(Report { make, ownership }))
}

/// JSON with a newline at its end; a failure is reported in it.
pub fn render(info: &Result<Json>) -> Vec<u8> {
    let json = match info {
        Ok(json) => json.clone(),
        Err(e) => json!({ "error": e.message }),
    };
    format!("{json:#}\n").into_bytes()
}

/// The directory `.npyfs`.
pub struct Control {
    pub root: Arc<dyn Directory>,
    pub context: Arc<Context>,
    pub store: String,
    pub started: SystemTime,
}

/// The content of `status.json`.
pub fn status(context: &Context, store: &str) -> Json {
    let options = &context.options;
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "hdf5": crate::h5::library_version(),
        "pid": std::process::id(),
        "store": store,
        "options": {
            "cache_size": options.cache_size,
            "external": options.external,
            "sep": char::from(options.sep).to_string(),
            "text_limit": options.text_limit,
            "xattrs": options.xattrs,
        },
        "cache": context.cache.status(),
        "stores_opened": context.stores_opened.load(std::sync::atomic::Ordering::Relaxed),
        "worker_restarts": context.h5.restarts(),
        "errors": context.journal.total(),
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
        own.mode = 0o444;
        let (context, store) = (self.context.clone(), self.store.clone());
        let log = self.context.clone();
        let root = self.root.clone();
        let info = InfoDirectory {
            of: self.root.clone(),
            context: self.context.clone(),
        };
        Ok(Arc::new(Listing::new(
            vec![
                (
                    b"errors.log".to_vec(),
                    report(own, move || log.journal.text().into_bytes()),
                ),
                (b"info".to_vec(), Node::Directory(Arc::new(info))),
                (
                    b"info.json".to_vec(),
                    report(own, move || render(&root.info())),
                ),
                (
                    b"status.json".to_vec(),
                    report(own, move || render(&Ok(status(&context, &store)))),
                ),
            ],
            Vec::new(),
            Vec::new(),
        )))
    }

    fn is_current(&self) -> bool {
        true
    }

    fn info(&self) -> Result<Json> {
        Ok(json!({ "kind": "control" }))
    }
}

/// `info/`: for every entry of a directory a `.json` beside it, for what is left out too.
struct InfoDirectory {
    of: Arc<dyn Directory>,
    context: Arc<Context>,
}

impl Directory for InfoDirectory {
    fn ownership(&self) -> Ownership {
        self.of.ownership()
    }

    fn list(&self) -> Result<Arc<Listing>> {
        let own = Ownership {
            mode: self.of.ownership().mode & 0o444,
            ..self.of.ownership()
        };
        let json_name = |name: &[u8]| [name, b".json"].concat();
        let mut entries = Vec::new();
        let listing = self.of.list()?;
        for (name, node) in &listing.entries {
            let made = match node.clone() {
                Node::File(file) => report(own, move || render(&file.info())),
                Node::Symlink(link) => report(own, move || {
                    render(&Ok(
                        json!({ "link": String::from_utf8_lossy(&link.target) }),
                    ))
                }),
                Node::Directory(of) => {
                    let below = InfoDirectory {
                        of: of.clone(),
                        context: self.context.clone(),
                    };
                    entries.push((name.clone(), Node::Directory(Arc::new(below))));
                    report(own, move || render(&of.info()))
                }
            };
            entries.push((json_name(name), made));
        }
        for (name, reason) in &listing.left_out {
            let made = render(&Ok(json!({
                "name": String::from_utf8_lossy(name),
                "left_out": reason,
            })));
            let name = visible_with(name, "", self.context.options.sep);
            entries.push((json_name(&name), report(own, move || made.clone())));
        }
        Ok(Arc::new(Listing::new(entries, Vec::new(), Vec::new())))
    }

    fn is_current(&self) -> bool {
        self.of.is_current()
    }

    fn info(&self) -> Result<Json> {
        self.of.info()
    }
}
