//! Arkouda's objects: what an HDF5 file, or one file per locale, looks like as arrays.
//!
//! One object, one name: its datasets are joined over the files, its text is laid out at a fixed width, its
//! attributes say how numbers are meant. Nothing is assembled in memory: a joined array is read from the
//! chunks of the parts. What is wrong with one object costs that object.

mod array;
pub mod check;
mod demo;
mod directory;
mod divide;
pub mod encode;
mod extent;
pub mod format;
pub mod kind;
mod labels;
mod limbs;
pub mod marks;
mod numbers;
mod object;
mod once;
mod padded;
mod pairs;
mod recognition;
mod root;
pub mod rules;
mod scan;
mod segments;
mod set;
mod stored;
mod strings;

pub use directory::ObjectDirectory;
pub use recognition::is_arkouda;
pub use set::LocaleSet;
