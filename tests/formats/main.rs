//! The conformance suite of formats, on the stores of the demonstration and on a format that is made up here.

mod suite;
mod toy;

use std::path::Path;
use std::sync::Arc;

use npyfs_core::formats;
use npyfs_core::store::format::Format;
use npyfs_hdf5::program::program;
use suite::Sample;

/// Checks a store that `make` makes from a demonstration.
fn check(make: fn(&Path) -> std::path::PathBuf, copies: &'static [(&'static str, &'static str)]) {
    npyfs_hdf5::program::choose(env!("CARGO_BIN_EXE_npyfs").into());
    let sample = Sample {
        formats: formats::registry(),
        make,
        copies,
        has_layers: true,
    };
    sample.check();
}

/// Makes the demonstration of a format, and returns its first store.
fn demo(dir: &Path, format: &str) -> std::path::PathBuf {
    let formats = formats::registry();
    let made = formats
        .named(format)
        .demonstrate(dir, Some(program()))
        .unwrap();
    let (path, is_new) = made.into_iter().next().unwrap();
    assert!(is_new);
    path
}

#[test]
fn plain() {
    check(
        |dir| demo(dir, "plain"),
        &[("images/stack.npy", "images/again.npy")],
    );
}

#[test]
fn daf() {
    check(
        |dir| demo(dir, "daf"),
        &[
            ("cell#age.npy", "cell#years.npy"),
            ("cell,gene#UMIs.npz", "cell,gene#counts.npz"),
        ],
    );
}

#[test]
fn anndata() {
    check(
        |dir| demo(dir, "anndata"),
        &[
            ("obs/n_genes.npy", "obs/genes.npy"),
            ("X.npz", "layers/counts.npz"),
            ("obsm/X_umap.npy", "obsm/X_again.npy"),
        ],
    );
}

#[test]
fn arkouda() {
    check(
        |dir| demo(dir, "arkouda"),
        &[
            ("distance.npy", "miles.npy"),
            ("departure.npy", "arrival.npy"),
            ("flight.npy", "name.npy"),
        ],
    );
}

#[test]
fn matlab() {
    check(
        |dir| demo(dir, "matlab"),
        &[
            ("trials.npy", "again.npy"),
            ("subject/age.npy", "subject/years.npy"),
            ("notes/2.npy", "notes/3.npy"),
        ],
    );
}

#[test]
fn hangar() {
    npyfs_hdf5::program::choose(env!("CARGO_BIN_EXE_npyfs").into());
    let sample = Sample {
        formats: formats::registry(),
        make: |dir| demo(dir, "hangar"),
        copies: &[
            ("branches/master/digits/5.npy", "stage/digits/100.npy"),
            ("branches/master/digits/7.npy", "stage/digits/101.npy"),
        ],
        has_layers: false,
    };
    sample.check();
}

/// Checks a store of a format that is made up.
fn check_toy(format: Arc<dyn Format>) {
    npyfs_hdf5::program::choose(env!("CARGO_BIN_EXE_npyfs").into());
    let sample = Sample {
        formats: formats::registry().with(format),
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
        has_layers: true,
    };
    sample.check();
}

#[test]
fn a_format_that_is_made_up() {
    check_toy(Arc::new(toy::UpsideDown));
}

#[test]
fn a_format_that_is_only_read() {
    check_toy(Arc::new(toy::OnlyRead));
}
