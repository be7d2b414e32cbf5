//! The conformance suite of formats, on the stores of the demonstration and on a format that is made up here.

mod suite;
mod toy;

use std::path::Path;
use std::sync::Arc;

use npyfs::internals::formats;
use suite::Sample;

/// Checks the store `name` of the demonstration.
fn check(make: fn(&Path) -> std::path::PathBuf, copies: &'static [(&'static str, &'static str)]) {
    npyfs::internals::hdf5::program::choose(env!("CARGO_BIN_EXE_npyfs").into());
    let sample = Sample {
        formats: formats::registry(),
        make,
        copies,
    };
    sample.check();
}

fn demo(dir: &Path, name: &str) -> std::path::PathBuf {
    formats::demo::write(dir).unwrap();
    dir.join(name)
}

#[test]
fn plain() {
    check(
        |dir| demo(dir, "plain.h5"),
        &[("images/stack.npy", "images/again.npy")],
    );
}

#[test]
fn daf() {
    check(
        |dir| demo(dir, "cells.h5df"),
        &[
            ("cell#age.npy", "cell#years.npy"),
            ("cell,gene#UMIs.npz", "cell,gene#counts.npz"),
        ],
    );
}

#[test]
fn arkouda() {
    check(
        |dir| demo(dir, "flights.h5"),
        &[
            ("distance.npy", "miles.npy"),
            ("departure.npy", "arrival.npy"),
            ("flight.npy", "name.npy"),
        ],
    );
}

#[test]
fn a_format_that_is_made_up() {
    npyfs::internals::hdf5::program::choose(env!("CARGO_BIN_EXE_npyfs").into());
    let sample = Sample {
        formats: formats::registry().with(Arc::new(toy::UpsideDown)),
        make: |dir| {
            let path = dir.join("toy.h5");
            let file = hdf5::File::create(&path).unwrap();
            file.new_attr::<i64>().create("upside_down").unwrap();
            let rows = ndarray::arr2(&[[1, 2, 3], [4, 5, 6], [7, 8, 9]]);
            file.new_dataset_builder()
                .with_data(&rows)
                .create("rows")
                .unwrap();
            path
        },
        copies: &[("rows.npy", "again.npy")],
    };
    sample.check();
}
