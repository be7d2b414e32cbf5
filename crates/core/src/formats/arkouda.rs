//! Arkouda's objects: an HDF5 file, or one file per locale, shown as arrays.
//!
//! One object has one name: its datasets are joined over the files, its text is shown at a fixed width, its attributes
//! determine the meaning of numbers. Nothing is assembled in memory: a joined array is read from the chunks of the
//! parts. An error in one object affects that object only.
//!
//! `recognition` decides whether a file, or the files of a set, are Arkouda's. A `LocaleSet` is one version of the
//! files of a set; a worker scans each file once. An object is joined from its parts: `kind` determines what the object
//! is, `directory` how it is shown. Every array is a `Content` over the payloads of the parts: `numbers` are
//! concatenated, `limbs` are interleaved, `strings` are padded, `labels` looked up, `segments` rebased. The offsets of
//! strings are never held in memory: one pass checks them and finds the longest string, and each window of text is read
//! with its own window of offsets.

mod array;
pub mod check;
mod demo;
mod directory;
mod divide;
pub mod encode;
pub mod format;
pub mod kind;
mod labels;
mod limbs;
pub mod marks;
mod numbers;
mod object;
mod once;
mod padded;
mod recognition;
mod scan;
mod segments;
mod set;
mod strings;
mod table;

/// Name of the format.
pub const NAME: &str = "arkouda";
