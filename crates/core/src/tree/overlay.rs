//! A directory with changes laid over it: those of layers, of a staging area, and of a mount that has not stored them
//! yet.
//!
//! The directory below and the changes may both change while it is listed or looked into: a name moves from one to the
//! other when a file is stored, or opened for writing. So what changes add is looked at in front of the directory
//! below, and again where they hide an entry. No node is kept.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use serde_json::Value as Json;

use super::array::StoredArray;
use super::{Directory, Listing, Node, Scales, Seer, StoreHandle};
use npyfs_base::error::{Result, retry_stale};
use npyfs_hdf5::Attribute;
use npyfs_io::file::Ownership;

/// What changes show in a directory by themselves.
#[derive(Default)]
pub struct AddedEntries {
    /// The entries, whatever the directory below has at their names.
    pub entries: Vec<(Vec<u8>, Node)>,
    /// The names of directories that are shown where nothing else is.
    pub implied: HashSet<Vec<u8>>,
    /// Objects that are not shown, with the reasons.
    pub left_out: Vec<(Vec<u8>, String)>,
}

/// The changes of one directory. All of them are a [`Directory`], which shows what `added` has of a name, else what is
/// `kept` of the directory below, else what is `implied`.
pub trait Overlay: Send + Sync + Sized + 'static {
    /// Looks for newer changes, before entries are looked at.
    fn refresh(&self) {}

    /// Returns the directory without the changes; `None` if there is none.
    fn below(&self) -> Result<Option<Arc<dyn Directory>>>;

    /// Returns whether nothing in the directory is changed: then what `kept` returns of a file is that file.
    fn is_unchanged(&self) -> bool;

    /// Returns what changes show at a name, whatever the directory below has there.
    fn added(&self, name: &[u8]) -> Result<Option<Node>>;

    /// Returns what is shown of an entry of the directory below; `None` if a change hides it.
    fn kept(&self, name: &[u8], node: Node) -> Result<Option<Node>>;

    /// Returns the directory that is shown at a name where nothing else is.
    fn implied(&self, _name: &[u8]) -> Option<Node> {
        None
    }

    /// Returns all that changes show by themselves.
    fn all_added(&self) -> Result<AddedEntries>;

    /// As [`Directory::ownership`].
    fn ownership(&self) -> Ownership;

    /// As [`Directory::is_current`].
    fn is_current(&self) -> bool;

    /// As [`Directory::at_present`].
    fn at_present(&self) -> Result<Option<Self>> {
        Ok(None)
    }

    /// As [`Directory::info`].
    fn info(&self) -> Result<Json>;

    /// Changes what the directory below says of its attributes.
    fn attributes(&self, below: Vec<Attribute>) -> Result<Vec<Attribute>> {
        Ok(below)
    }

    /// Changes the dimensions that the directory below defines.
    fn scales(&self, below: Scales) -> Result<Scales> {
        Ok(below)
    }

    /// Changes the dataset whose elements the directory below shows.
    fn array(&self, below: Arc<dyn StoredArray>) -> Arc<dyn StoredArray> {
        below
    }
}

impl<T: Overlay> Directory for T {
    fn ownership(&self) -> Ownership {
        Overlay::ownership(self)
    }

    fn list(&self) -> Result<Arc<Listing>> {
        self.refresh();
        let is_unchanged = self.is_unchanged();
        let mut added = match is_unchanged {
            true => AddedEntries::default(),
            false => self.all_added()?,
        };
        let listing = match self.below()? {
            Some(below) => below.list()?,
            None => Arc::default(),
        };
        let many = listing.files_on_demand().filter(|_| is_unchanged);
        let names = added.entries.iter().map(|(name, _)| name.clone());
        let names: HashSet<Vec<u8>> = names.collect();
        let mut entries = added.entries;
        for (name, node) in listing.remaining(many.as_deref()) {
            if names.contains(&*name) {
                continue;
            }
            if let Some(node) = over(self, &name, node.into_owned())? {
                added.implied.remove(&*name);
                entries.push((name.into_owned(), node));
            }
        }
        for name in added.implied.difference(&names) {
            // It may have been stored meanwhile.
            if let Some(node) = self.lookup(name)? {
                entries.push((name.clone(), node));
            }
        }
        added.left_out.extend_from_slice(&listing.left_out);
        let mut shown = Listing::new(entries, added.left_out, listing.notes.clone())
            .with_damage(listing.damage.clone());
        shown.many = many;
        Ok(Arc::new(shown))
    }

    fn each(&self, see: &mut Seer<'_>) -> Result<Vec<String>> {
        self.refresh();
        if let Some(below) = self.below()?
            && self.is_unchanged()
        {
            let mut failed = None;
            let damage = below.each(&mut |name, node| match over(self, name, node.clone()) {
                Ok(Some(node)) => see(name, &node),
                Ok(None) => ControlFlow::Continue(()),
                Err(e) => {
                    failed = Some(e);
                    ControlFlow::Break(())
                }
            })?;
            return failed.map_or(Ok(damage), Err);
        }
        let listing = self.list()?;
        listing.show(see);
        Ok(listing.damage.clone())
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        self.refresh();
        retry_stale(|| {
            if let Some(node) = self.added(name)? {
                return Ok(Some(node));
            }
            let below = self.below()?;
            match below.map_or(Ok(None), |below| below.lookup(name))? {
                Some(node) => over(self, name, node),
                None => Ok(self.implied(name)),
            }
        })
    }

    fn is_current(&self) -> bool {
        Overlay::is_current(self)
    }

    fn at_present(&self) -> Result<Option<Arc<dyn Directory>>> {
        self.refresh();
        let present = Overlay::at_present(self)?;
        Ok(present.map(|present| Arc::new(present) as Arc<dyn Directory>))
    }

    fn is_store(&self) -> bool {
        let below = self.below();
        below.is_ok_and(|below| below.is_some_and(|below| below.is_store()))
    }

    fn is_object(&self) -> bool {
        let below = self.below();
        below.is_ok_and(|below| below.is_some_and(|below| below.is_object()))
    }

    fn format(&self) -> Result<&'static str> {
        self.below()?.map_or(Ok("plain"), |below| below.format())
    }

    fn info(&self) -> Result<Json> {
        Overlay::info(self)
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        let below = self.below()?;
        let attributes = below.map_or(Ok(Vec::new()), |below| below.attributes())?;
        Overlay::attributes(self, attributes)
    }

    fn scales(&self) -> Result<Scales> {
        let below = self.below()?;
        let scales = below.map_or(Ok(Arc::default()), |below| below.scales())?;
        Overlay::scales(self, scales)
    }

    fn array(self: Arc<Self>) -> Result<Option<Arc<dyn StoredArray>>> {
        let below = self.below()?;
        let array = below.map_or(Ok(None), |below| below.array())?;
        Ok(array.map(|array| Overlay::array(&*self, array)))
    }

    fn handle(&self) -> Option<StoreHandle> {
        self.below().ok()??.handle()
    }
}

/// Returns what is shown at the name of an entry of the directory below.
fn over(overlay: &impl Overlay, name: &[u8], node: Node) -> Result<Option<Node>> {
    if let Some(node) = overlay.kept(name, node)? {
        return Ok(Some(node));
    }
    let added = overlay.added(name)?;
    Ok(added.or_else(|| overlay.implied(name)))
}

/// Returns the directory below an overlay for the caller of [`Directory::at_present`].
pub fn at_present(below: &Option<Arc<dyn Directory>>) -> Result<Option<Arc<dyn Directory>>> {
    let present = |below: &Arc<dyn Directory>| {
        let now = below.at_present()?;
        Ok(now.unwrap_or_else(|| below.clone()))
    };
    below.as_ref().map(present).transpose()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use serde_json::json;

    use super::*;
    use crate::tree::{LazyEntries, Symlink};

    /// Entries are symbolic links, whose targets say where they come from.
    fn from(place: &str) -> Node {
        Node::Symlink(Arc::new(Symlink {
            target: place.into(),
            ownership: Ownership::UNKNOWN,
        }))
    }

    /// The methods that the toys must have and that no test looks at.
    macro_rules! nothing_of_its_own {
        () => {
            fn ownership(&self) -> Ownership {
                Ownership::UNKNOWN
            }

            fn is_current(&self) -> bool {
                true
            }

            fn info(&self) -> Result<Json> {
                Ok(json!({}))
            }
        };
    }

    struct Below;

    impl Directory for Below {
        nothing_of_its_own!();

        fn list(&self) -> Result<Arc<Listing>> {
            let entries = [b"a", b"b", b"c"].map(|name| (name.to_vec(), from("below")));
            let left_out = vec![(b"x".to_vec(), "a reference".to_owned())];
            let listing = Listing::new(entries.into(), left_out, vec!["a note".to_owned()]);
            let mut listing = listing.with_damage(vec!["torn".to_owned()]);
            listing.many = Some(Arc::new(Many));
            Ok(Arc::new(listing))
        }

        fn is_object(&self) -> bool {
            true
        }

        fn format(&self) -> Result<&'static str> {
            Ok("daf")
        }
    }

    struct Many;

    impl LazyEntries for Many {
        fn len(&self) -> usize {
            1
        }

        fn get(&self, _at: usize) -> (Vec<u8>, Node) {
            (b"many".to_vec(), from("below"))
        }

        fn find(&self, name: &[u8]) -> Option<Node> {
            (name == b"many").then(|| from("below"))
        }

        fn are_files(&self) -> bool {
            true
        }
    }

    /// Replaces `a` and hides `b`; `c` and `d` are implied.
    struct Changes(bool);

    impl Overlay for Changes {
        fn below(&self) -> Result<Option<Arc<dyn Directory>>> {
            Ok(Some(Arc::new(Below)))
        }

        fn is_unchanged(&self) -> bool {
            !self.0
        }

        fn added(&self, name: &[u8]) -> Result<Option<Node>> {
            Ok((self.0 && name == b"a").then(|| from("changes")))
        }

        fn kept(&self, name: &[u8], node: Node) -> Result<Option<Node>> {
            let is_hidden = self.0 && (name == b"a" || name == b"b");
            Ok((!is_hidden).then_some(node))
        }

        fn implied(&self, name: &[u8]) -> Option<Node> {
            (self.0 && (name == b"c" || name == b"d")).then(|| from("implied"))
        }

        fn all_added(&self) -> Result<AddedEntries> {
            Ok(AddedEntries {
                entries: vec![(b"a".to_vec(), from("changes"))],
                implied: [b"c".to_vec(), b"d".to_vec()].into(),
                left_out: vec![(b"y".to_vec(), "no rows".to_owned())],
            })
        }

        nothing_of_its_own!();
    }

    fn place(node: &Node) -> String {
        match node {
            Node::Symlink(link) => String::from_utf8_lossy(&link.target).into_owned(),
            _ => "a file or directory".to_owned(),
        }
    }

    #[test]
    fn a_listing_its_parts_and_lookups_show_the_same() {
        let changed = ["a changes", "c below", "d implied", "many below"];
        let unchanged = ["a below", "b below", "c below", "many below"];
        for (dir, wanted) in [(Changes(true), changed), (Changes(false), unchanged)] {
            let listing = dir.list().unwrap();
            let line = |name: &[u8], node: &Node| {
                format!("{} {}", String::from_utf8_lossy(name), place(node))
            };
            let listed: Vec<_> = listing
                .iter()
                .map(|(name, node)| line(&name, &node))
                .collect();
            assert_eq!(listed, wanted);
            let mut seen = Vec::new();
            let damage = dir.each(&mut |name, node| {
                seen.push(line(name, node));
                ControlFlow::Continue(())
            });
            assert_eq!(
                (seen, damage.unwrap()),
                (listed.clone(), vec!["torn".to_owned()])
            );
            let names = ["a", "b", "c", "d", "many", "x"];
            let found = names.iter().filter_map(|name| {
                let node = dir.lookup(name.as_bytes()).unwrap()?;
                Some(line(name.as_bytes(), &node))
            });
            assert_eq!(found.collect::<Vec<_>>(), listed);
        }
    }

    #[test]
    fn what_is_said_of_the_directory_below_is_said_of_it() {
        let listing = Changes(true).list().unwrap();
        assert_eq!(
            (&listing.damage[..], &listing.notes[..]),
            (&["torn".to_owned()][..], &["a note".to_owned()][..])
        );
        let left_out = listing.left_out.iter().map(|(name, _)| &name[..]);
        assert_eq!(left_out.collect::<Vec<_>>(), [b"y", b"x"]);
        assert!(listing.many.is_none());
        assert!(Changes(false).list().unwrap().many.is_some());
        assert!(Changes(true).is_object() && !Changes(true).is_store());
        assert_eq!(Changes(true).format().unwrap(), "daf");
    }

    /// A file below that is opened for writing while it is looked at: then it is no longer kept, but added.
    #[derive(Default)]
    struct Opened(AtomicBool);

    impl Overlay for Opened {
        fn below(&self) -> Result<Option<Arc<dyn Directory>>> {
            Ok(Some(Arc::new(Below)))
        }

        fn is_unchanged(&self) -> bool {
            !self.0.load(Ordering::Relaxed)
        }

        fn added(&self, name: &[u8]) -> Result<Option<Node>> {
            let is_open = name == b"a" && self.0.load(Ordering::Relaxed);
            Ok(is_open.then(|| from("changes")))
        }

        fn kept(&self, name: &[u8], node: Node) -> Result<Option<Node>> {
            self.0.store(true, Ordering::Relaxed);
            Ok((name != b"a").then_some(node))
        }

        fn all_added(&self) -> Result<AddedEntries> {
            Ok(AddedEntries::default())
        }

        nothing_of_its_own!();
    }

    #[test]
    fn a_file_that_is_opened_for_writing_meanwhile_stays_in_sight() {
        let listed = Opened::default().list().unwrap().find(b"a");
        assert_eq!(listed.as_ref().map(place).as_deref(), Some("changes"));
        let found = Opened::default().lookup(b"a").unwrap();
        assert_eq!(found.as_ref().map(place).as_deref(), Some("changes"));
        let mut seen = Vec::new();
        let see = &mut |name: &[u8], _: &Node| {
            seen.push(name.to_vec());
            ControlFlow::Continue(())
        };
        Opened::default().each(see).unwrap();
        assert_eq!(seen, [&b"a"[..], b"b", b"c", b"many"]);
    }
}
