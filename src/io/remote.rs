//! Objects that lie elsewhere: in a bucket, or on a web server.
//!
//! What is read of them goes through a file on this machine's disk, with holes where nothing was read so far. An object
//! is one version: its entity tag (or the time of its last change) and its size. Bytes of two versions are never mixed, and
//! nothing is ever written to where it lies, but what checkouts consist of (`prefix`). Addresses are shown without their query, which may hold a secret.

mod address;
mod blocks;
mod cache_dir;
mod copy;
mod disk;
mod error;
mod flight;
mod freshness;
mod listing;
mod object;
mod open_objects;
mod origin;
mod pack;
mod prefix;
mod runtime;
mod store_file;

pub use address::{Address, Scheme};
pub use cache_dir::{CacheDir, KeptVersion, cache_path};
pub use copy::copy;
pub use listing::{Entries, Listing};
pub use object::RemoteObject;
pub use open_objects::describe_open;
pub use origin::Version;
pub use pack::PACK_SUFFIX;
pub use prefix::{Created, ListedObject, Prefix};
pub use store_file::{open_file, store_file};
