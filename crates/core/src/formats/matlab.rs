//! MATLAB's files of version 7.3: HDF5 with attributes that record the MATLAB class of each object.
//!
//! Source: files written by MATLAB, and their interpretation by `mat73` and `hdf5storage`. A file has a user block of
//! 512 bytes that begins with `MATLAB 7.3 MAT-file`. `MATLAB_class` names the class of a variable; arrays are stored
//! with their dimensions reversed, so that the stored bytes are the array in Fortran order. An empty array
//! (`MATLAB_empty`) is stored as its dimensions. A struct is a group; a cell array, and each field of an array of
//! structs, is a dataset of references into the group `#refs#`. A sparse matrix (`MATLAB_sparse`: its number of rows)
//! is a group of `data`, `ir` and `jc`, compressed by columns. Objects of other classes are opaque: only MATLAB knows
//! their content.
//!
//! `recognition` decides whether a file is MATLAB's, and `value` classifies an object by its HDF5 type and four
//! attributes. A struct is scanned as a group. A cell array asks a worker once, in parts, for the targets of its
//! references, and stores an address and the number of a form for each cell; nodes are created on demand. `position`
//! records the values around a value: none is shown inside of itself, or more than 64 levels deep. The elements of a
//! matrix are read like those of plain HDF5, under a header in Fortran order. MATLAB's files are read-only.

mod array;
mod characters;
mod demo;
mod directory;
mod empty;
pub mod format;
mod position;
mod recognition;
mod sparse;
mod value;

/// Name of the format.
pub const NAME: &str = "matlab";
