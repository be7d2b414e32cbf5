//! Arkouda: arrays and objects that consist of several of them.

pub mod check;
pub mod rules;
