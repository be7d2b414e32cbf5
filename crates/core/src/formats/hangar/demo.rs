//! A demo repository of Hangar with small pictures.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::stage;
use super::stage::commit::Author;
use crate::dataset::context::Context;
use crate::formats::hangar::repository::Repository;
use crate::formats::hangar::stage::checkout::Checkout;
use crate::formats::hangar::stage::sample::NewSample;
use crate::store::staging::Expected;
use npyfs_base::error::Result;
use npyfs_base::npy;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_base::options::FsOptions;
use npyfs_hdf5::{H5, Reach};
use npyfs_io::content::InMemory;
use npyfs_io::dir::Dir;

/// The number of pictures, and their width and height.
const COUNT: u64 = 100;
const SIDE: u64 = 28;

/// Makes the repository `digits` in a directory, unless it exists. Workers are started from `program`.
pub(super) fn write(dir: &Path, program: &Path) -> Result<(PathBuf, bool)> {
    let path = dir.join("digits");
    if path.exists() {
        return Ok((path, false));
    }
    make(&path, program).map_err(|e| e.about("digits"))?;
    Ok((path, true))
}

fn make(top: &Path, program: &Path) -> Result<()> {
    // Workers have their own working directory.
    let top = &std::path::absolute(top)?;
    std::fs::create_dir(top)?;
    if let Err(e) = fill(top, program) {
        // Half a repository would be taken for a complete one at the next call.
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
    let folder = stage::create(top, &author, program)?;
    let options = FsOptions::default();
    let h5 = H5::workers(Reach::of_store(top, options.external));
    let context = Arc::new(Context::new(h5, options));
    let repository = Repository::open(&folder, &context)?;
    let scratch = tempfile::tempdir()?;
    let dir = Dir::alone(scratch.path())?;
    let checkout = Checkout::open(&repository, Box::new(dir), "demo", program)?;
    for number in 0..COUNT {
        // The picture is stored in the way in which a program would copy it into a writable mount.
        let byte = DType::scalar(Kind::Uint, 1, Order::None);
        let mut file = npy::header(&byte, &[SIDE, SIDE]);
        file.extend(picture(number));
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

/// Returns the pixels of a ring that grows with the number, row by row.
fn picture(number: u64) -> impl Iterator<Item = u8> {
    let middle = (SIDE as f64 - 1.0) / 2.0;
    let radius = 2.0 + 11.0 * number as f64 / COUNT as f64;
    (0..SIDE * SIDE).map(move |pixel| {
        let (y, x) = ((pixel / SIDE) as f64, (pixel % SIDE) as f64);
        let away = ((y - middle).hypot(x - middle) - radius).abs();
        // A cast from a float saturates.
        (255.0 * (1.0 - away / 2.0)) as u8
    })
}
