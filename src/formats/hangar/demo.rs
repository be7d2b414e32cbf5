//! A Hangar repository with little pictures.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use ndarray::Array2;
use ndarray_npy::WriteNpyExt;

use crate::checkout::staging::Expected;
use crate::dataset::context::Context;
use crate::error::{Error, Result};
use crate::formats::hangar::repository::Repository;
use crate::formats::hangar::stage::author::Author;
use crate::formats::hangar::stage::checkout::Checkout;
use crate::formats::hangar::stage::create::create;
use crate::formats::hangar::stage::sample::NewSample;
use crate::hdf5::H5;
use crate::hdf5::permit::Reach;
use crate::io::content::InMemory;
use crate::io::dir::Dir;
use crate::options::FsOptions;

/// Pictures, and their width and height.
const COUNT: u64 = 100;
const SIDE: usize = 28;

/// Makes the repository `digits` in a directory, unless that is there. Workers are started from `program`.
pub(super) fn write(dir: &Path, program: &Path) -> Result<(PathBuf, bool)> {
    let path = dir.join("digits");
    if path.exists() {
        return Ok((path, false));
    }
    make(&path, program).map_err(|e| e.about("digits"))?;
    Ok((path, true))
}

fn make(top: &Path, program: &Path) -> Result<()> {
    // Workers have a working directory of their own.
    let top = &std::path::absolute(top)?;
    std::fs::create_dir(top)?;
    if let Err(e) = fill(top, program) {
        // Half a repository would be left as it is the next time.
        let _ = std::fs::remove_dir_all(top);
        return Err(e);
    }
    Ok(())
}

fn fill(top: &Path, program: &Path) -> Result<()> {
    let author = Author {
        name: "npyfs demo".into(),
        email: "demo@example.com".into(),
    };
    let folder = create(top, &author, program)?;
    let options = FsOptions::default();
    let h5 = H5::workers(Reach::of(top, options.external));
    let context = Arc::new(Context::new(h5, options));
    let repository = Repository::open(&folder, &context)?;
    let scratch = tempfile::tempdir()?;
    let dir = Dir::alone(scratch.path())?;
    let checkout = Checkout::open(&repository, &dir, "demo", program)?;
    for number in 0..COUNT {
        // As a program would copy it into a writable mount.
        let mut file = Vec::new();
        let written = picture(number).write_npy(&mut file);
        written.map_err(|e| Error::damaged(e.to_string()))?;
        let sample = NewSample::read(".npy", &InMemory(file))?;
        let key = format!("#{number}");
        checkout.put(b"digits", key.as_bytes(), false, sample, SystemTime::now())?;
    }
    checkout.sync()?;
    checkout
        .stage
        .commit("A hundred rings", &Expected::default())?;
    Ok(())
}

/// A ring that grows with its number.
fn picture(number: u64) -> Array2<u8> {
    let middle = (SIDE as f64 - 1.0) / 2.0;
    let radius = 2.0 + 11.0 * number as f64 / COUNT as f64;
    Array2::from_shape_fn((SIDE, SIDE), |(y, x)| {
        let away = ((y as f64 - middle).hypot(x as f64 - middle) - radius).abs();
        // A cast from a float saturates.
        (255.0 * (1.0 - away / 2.0)) as u8
    })
}
