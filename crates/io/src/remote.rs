//! Remote objects: objects in a bucket, or documents on a web server.
//!
//! Bytes of an object are read through a sparse file on the local disk, whose holes are the bytes not read so far. An
//! object is one version, known by its entity tag (or the time of its last change) and its size. Bytes of two versions
//! are never mixed. Nothing is written to remote storage except what checkouts consist of (`prefix`). Addresses are
//! shown without their query, which may hold a secret.
//!
//! `disk` is one file for each version of an object: bytes with holes, a checksum for each block, and a page with the
//! file's generation. Several processes write to it, and any of them may punch holes. A process that does so sets the
//! generation to an odd number before and to the next even one afterwards; a reader looks at the generation before and
//! after a read, and compares checksums unless the blocks were checked under the same even generation. So no lock is
//! held between processes for a read, and a wrong order costs a request. `cache_dir` is the directory of these files,
//! which are blobs.
//!
//! `origin` sends the requests: to web servers directly, to buckets through `object_store`. Only `patience` retries;
//! `object_store` sends each request once. `connections` sits between `object_store` and the network: it records what
//! `object_store` does not report of a response, and follows redirects without forwarding secrets. `sieve` removes
//! names from listings for which `object_store` would refuse the whole listing. A prefix of a bucket is a `Listing`,
//! which is refreshed after `check=`.

mod address;
mod cache_dir;
mod disk;
mod error;
mod freshness;
mod listing;
mod object;
mod origin;
mod prefix;
mod runtime;
mod store_file;

pub use address::{Address, Scheme};
pub use cache_dir::{CacheDir, KeptVersion, cache_path};
pub use listing::{Entries, Listing, Look};
pub use object::{PACK_SUFFIX, RemoteObject, describe_open, opened};
pub use origin::Version;
pub use prefix::{CreationOutcome, ListedObject, Prefix};
pub use store_file::{copy, open_file, store_file};
