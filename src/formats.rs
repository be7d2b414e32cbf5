//! What the file formats themselves demand of a store, whoever reads or writes it.

pub mod arkouda;
pub mod daf;

/// What is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Names, types and shapes, and what opening finds out.
    Outline,
    /// Elements, too.
    Elements,
}
