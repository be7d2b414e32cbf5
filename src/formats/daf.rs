//! daf: matrices over axes.

pub mod check;
pub mod rules;
