//! A check of a whole repository: checksums and digests of the data, digests of schemas and commits.
//!
//! Each sample is read once, without the cache, however many commits have it.

use std::collections::HashSet;
use std::sync::Arc;

use super::commit::{records, unpack};
use super::digest::{self, CommitHash};
use super::record::Record;
use super::repository::Repository;
use super::schema::Schema;
use crate::store::format::{Verified, VerifyReport};
use npyfs_base::error::{Error, Result};
use npyfs_base::thread;

/// The longest record or schema.
const LONGEST: usize = 1 << 16;

/// The number of samples that are read at a time if each read has to wait.
const WAITING: usize = 16;

/// The message for samples whose data are still at the remote.
const NOT_FETCHED: &str = "samples are not here: they were not fetched from the remote yet";

/// The counts of a check of some samples.
#[derive(Default)]
struct CheckedSamples {
    bytes: u64,
    not_fetched: u64,
}

/// Checks everything; returns an error only if a table cannot be read at all.
pub(super) fn verify(repository: &Arc<Repository>, report: &dyn VerifyReport) -> Result<Verified> {
    let mut samples: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut schemas: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    repository.hashes.rows(b"", LONGEST, |rows| {
        for (key, value) in rows {
            let to = match key.get(..2) {
                Some(b"h:") => &mut samples,
                Some(b"s:") => &mut schemas,
                _ => continue,
            };
            to.push((key[2..].to_vec(), value.into_vec()));
        }
        Ok(())
    })?;
    let commits = repository.commits()?;
    report.found((samples.len() + schemas.len() + commits.len()) as u64);
    let judge = |what: &str, outcome: Result<()>| {
        report.checked();
        if let Err(e) = outcome {
            report.wrong(&format!("{what}: {}", e.message));
        }
    };
    for (digest, text) in &schemas {
        let shown = String::from_utf8_lossy(digest);
        judge(&format!("schema {shown}"), schema(&shown, text));
    }
    let mut known: HashSet<&[u8]> = samples.iter().map(|(digest, _)| &digest[..]).collect();
    known.extend(schemas.iter().map(|(digest, _)| &digest[..]));
    for digest in commits.keys() {
        judge(
            &format!("commit {digest}"),
            commit(repository, digest, &known),
        );
    }
    drop(known);
    let counts = vec![
        ("commits", commits.len() as u64),
        ("schemas", schemas.len() as u64),
        ("samples", samples.len() as u64),
    ];
    let CheckedSamples { bytes, not_fetched } = all_samples(repository, samples, report);
    let absent = (not_fetched > 0).then_some((NOT_FETCHED, not_fetched));
    Ok(Verified {
        counts,
        bytes,
        absent: absent.into_iter().collect(),
    })
}

fn mismatch(found: &str) -> Error {
    Error::damaged(format!("its content has the digest {found}"))
}

fn schema(digest: &str, text: &[u8]) -> Result<()> {
    let found = Schema::parse(text)?.digest();
    if found == digest {
        Ok(())
    } else {
        Err(mismatch(&found))
    }
}

/// Checks the digest of a commit, and that all records that it names exist.
fn commit(repository: &Repository, digest: &str, known: &HashSet<&[u8]>) -> Result<()> {
    let parts = ["", ":spec", ":ref"].map(|tail| format!("{digest}{tail}").into_bytes());
    let values = repository.refs.values(parts.into())?;
    let [Some(parents), Some(spec), Some(refs)] = &values[..] else {
        return Err(Error::damaged(
            "parents, description or records are missing",
        ));
    };
    let (spec, refs) = (unpack(spec)?, unpack(refs)?);
    let mut hash = CommitHash::default();
    hash.add(records(&refs));
    let found = hash.finish(parents, &spec);
    if found != digest {
        return Err(mismatch(&found));
    }
    let dangling = records(&refs)
        .filter_map(|line| line.split(|&b| b == b' ').nth(1))
        .filter(|digest| !known.contains(digest))
        .count();
    if dangling > 0 {
        let why = format!("{dangling} of its records name digests that are not in hash.lmdb");
        return Err(Error::damaged(why));
    }
    Ok(())
}

/// Checks all samples, file by file, on all cores.
fn all_samples(
    repository: &Arc<Repository>,
    rows: Vec<(Vec<u8>, Vec<u8>)>,
    report: &dyn VerifyReport,
) -> CheckedSamples {
    // Rows of a file are in order of their place.
    let mut rows: Vec<_> = rows
        .into_iter()
        .map(|(digest, value)| (place(&value), digest, value))
        .collect();
    rows.sort();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = match repository.folder.far() {
        Some(_) => cores.max(WAITING),
        None => cores,
    };
    let next = std::sync::atomic::AtomicUsize::new(0);
    let work = || {
        let mut done = CheckedSamples::default();
        loop {
            let from = next.fetch_add(64, std::sync::atomic::Ordering::Relaxed);
            let Some(part) = rows
                .get(from..(from + 64).min(rows.len()))
                .filter(|p| !p.is_empty())
            else {
                return done;
            };
            for (_, digest, value) in part {
                match sample(repository, digest, value) {
                    Ok(Some(bytes)) => done.bytes += bytes,
                    Ok(None) => done.not_fetched += 1,
                    Err(e) => {
                        let shown = String::from_utf8_lossy(digest);
                        report.wrong(&format!("sample {shown}: {}", e.message));
                    }
                }
                report.checked();
            }
        }
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut all = CheckedSamples::default();
        for thread in running {
            match thread.join() {
                Ok(done) => {
                    all.bytes += done.bytes;
                    all.not_fetched += done.not_fetched;
                }
                Err(_) => report.wrong("not all samples could be checked"),
            }
        }
        all
    })
}

/// Returns the file, dataset and row; an invalid record comes first.
fn place(value: &[u8]) -> (String, u32, u64) {
    match Record::parse(&String::from_utf8_lossy(value)) {
        Ok(Record::Hdf5(row)) => (format!("{}{}", row.backend, row.uid), row.dataset, row.row),
        Ok(Record::Numpy { uid, row, .. }) => (format!("10{uid}"), 0, row),
        Ok(Record::Lmdb { backend, uid, .. }) => (format!("{backend}{uid}"), 0, 0),
        Ok(Record::Remote { .. }) | Err(_) => (String::new(), 0, 0),
    }
}

/// Returns the size in bytes of a sample that matches its digest; `None` if the sample was not fetched.
fn sample(repository: &Repository, digest: &[u8], value: &[u8]) -> Result<Option<u64>> {
    let text = String::from_utf8_lossy(value);
    let record = Record::parse(&text).map_err(|e| Error::damaged(e.to_string()))?;
    let (kind, hash) = digest::parse(digest).ok_or_else(|| Error::damaged("not a digest"))?;
    if matches!(record, Record::Remote { .. }) {
        return Ok(None);
    }
    let bytes = repository.fetch(&record, None)?;
    let found = match record.shape() {
        Some(shape) => {
            let dtype = repository.stored_type(&record)?;
            let unknown = || Error::damaged("a type that Hangar does not have");
            digest::of_array(&bytes, shape, &dtype).ok_or_else(unknown)?
        }
        None => digest::of_bytes(&bytes),
    };
    if found != hash {
        return Err(mismatch(&digest::print(kind, &found)).about(&record));
    }
    Ok(Some(bytes.len() as u64))
}
