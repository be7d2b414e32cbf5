//! MATLAB's files of version 7.3: HDF5 with attributes that say what each object means to MATLAB.
//!
//! Source: files that MATLAB wrote, and what `mat73` and `hdf5storage` make of them. A file has a user block of 512 bytes
//! that begins with `MATLAB 7.3 MAT-file`. `MATLAB_class` names the class of a variable; arrays are stored with their
//! dimensions reversed, so that the stored bytes are the array in Fortran order. An empty array (`MATLAB_empty`) is stored as
//! its dimensions. A struct is a group; a cell array, and each field of an array of structs, is a dataset of references into
//! the group `#refs#`. A sparse matrix (`MATLAB_sparse`: its rows) is a group of `data`, `ir` and `jc`, its columns compressed.
//! Objects of other classes are opaque: what they hold is known to MATLAB alone.

mod array;
mod cells;
mod characters;
mod demo;
mod directory;
mod empty;
pub mod format;
mod place;
mod recognition;
mod sparse;
mod value;
