//! Measures codecs on an array's own bytes: their compression, and their read speed on this machine.
//!
//! Memory and time are bounded by the sample, whatever the array. Reading a chunk means fetching its stored bytes and
//! decoding them, one after the other, as a reader of single samples waits for both.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::store::compression::Compression;
use npyfs_base::error::{Error, Result};
use npyfs_codec::Pipeline;
use npyfs_io::content::Content;
use npyfs_io::file::StoreFile;

/// Bytes of a sample.
const SAMPLE: u64 = 8 << 20;

/// Bytes of one read of the disk, and the number of reads.
const READ: u64 = 256 << 10;
const READS: u64 = 32;

/// Passes over the sample for each codec, interleaved; the fastest counts.
const PASSES: usize = 3;

/// A pass repeats the sample for at least this time.
const PASS: Duration = Duration::from_millis(10);

/// Chunks of an array, from positions spread over it.
pub struct Sample {
    chunks: Vec<Vec<u8>>,
    element: usize,
}

/// The measurement of a codec on a sample.
pub struct Measured {
    /// The compression; `None` for none.
    pub method: Option<Compression>,
    /// Bytes of the sample.
    pub bytes: u64,
    /// Stored bytes.
    pub stored: u64,
    /// Seconds to decode the whole sample.
    pub decoding: f64,
}

impl Measured {
    /// Returns the seconds to read the sample from a disk with this speed in bytes per second, or from memory.
    pub fn reading(&self, disk: Option<f64>) -> f64 {
        let fetching = disk.map_or(0.0, |speed| self.stored as f64 / speed);
        fetching + self.decoding
    }

    /// Returns the bytes that are read and decoded per second.
    pub fn speed(&self, disk: Option<f64>) -> f64 {
        self.bytes as f64 / self.reading(disk).max(1e-9)
    }
}

/// Returns the methods to measure: without `plugins`, only those that every HDF5 program reads.
pub fn methods(plugins: bool) -> Vec<Option<Compression>> {
    const LZ4: u32 = 1;
    const ZSTD: u32 = 5;
    let blosc = |codec, level| Some(Compression::Blosc { codec, level });
    let mut all = vec![None];
    all.extend([1, 4, 9].map(|level| Some(Compression::Gzip(level))));
    if plugins {
        all.push(Some(Compression::Lzf));
        all.extend([5, 9].map(|level| blosc(LZ4, level)));
        all.extend([1, 5, 9].map(|level| blosc(ZSTD, level)));
    }
    all
}

impl Sample {
    /// Samples `content`, whose elements have `element` bytes, in chunks of at most `chunk` bytes; `None` if it is
    /// empty.
    pub fn take(content: &dyn Content, element: u64, chunk: u64) -> Result<Option<Self>> {
        let element = element.max(1);
        let whole = |bytes: u64| bytes / element * element;
        let len = whole(content.len());
        let chunk = whole(chunk.min(len).min(SAMPLE)).max(element.min(len));
        if len == 0 || chunk > SAMPLE {
            return Ok(None);
        }
        let count = (SAMPLE / chunk).min(len / chunk).max(1);
        let mut chunks = Vec::new();
        for number in 0..count {
            let gap = (len - chunk) / count.saturating_sub(1).max(1);
            let at = whole(gap.saturating_mul(number));
            let size = usize::try_from(chunk).map_err(|_| Error::damaged("a chunk too large"))?;
            let mut bytes = vec![0; size];
            content.read_at(at, &mut bytes)?;
            chunks.push(bytes);
        }
        Ok(Some(Self {
            chunks,
            element: usize::try_from(element).unwrap_or(usize::MAX),
        }))
    }

    /// Measures methods.
    pub fn measure(&self, methods: &[Option<Compression>]) -> Result<Vec<Measured>> {
        let mut encoded = Vec::new();
        for method in methods {
            // Codecs that only a library can write are not measured.
            if let Some(method) = method
                && method.encoding().is_none()
            {
                continue;
            }
            encoded.push((*method, self.encode(*method)?, f64::MAX));
        }
        for _ in 0..PASSES {
            for (_, chunks, best) in &mut encoded {
                *best = best.min(chunks.decode()?);
            }
        }
        let bytes = self.chunks.iter().map(|chunk| chunk.len() as u64).sum();
        let measured = |(method, chunks, decoding): (_, EncodedSample, _)| Measured {
            method,
            bytes,
            stored: chunks
                .stored
                .iter()
                .map(|(bytes, _)| bytes.len() as u64)
                .sum(),
            decoding,
        };
        Ok(encoded.into_iter().map(measured).collect())
    }

    fn encode(&self, method: Option<Compression>) -> Result<EncodedSample> {
        let encoding = method.and_then(Compression::encoding);
        let len = self.chunks.first().map_or(0, Vec::len);
        let filters = encoding.map_or_else(Vec::new, |how| how.filters(self.element, len));
        let pipeline = Pipeline::new(&filters);
        let stored = self.chunks.iter().map(|chunk| match encoding {
            None => (chunk.clone(), 0),
            Some(how) => {
                let encoded = how.encode(chunk, self.element);
                (encoded.bytes, encoded.mask)
            }
        });
        Ok(EncodedSample {
            stored: stored.collect(),
            len,
            pipeline: pipeline.ok_or_else(|| Error::damaged("a codec that is not known"))?,
        })
    }
}

/// The chunks of a sample, encoded by a codec.
struct EncodedSample {
    /// The bytes and the filter mask of each chunk.
    stored: Vec<(Vec<u8>, u32)>,
    /// Bytes of a chunk.
    len: usize,
    pipeline: Pipeline,
}

impl EncodedSample {
    /// Returns the seconds to decode all chunks.
    fn decode(&self) -> Result<f64> {
        let (pool, mut out) = (Arc::default(), vec![0; self.len]);
        let means = &pool;
        let begun = Instant::now();
        let mut rounds = 0;
        while rounds == 0 || begun.elapsed() < PASS {
            for (bytes, mask) in &self.stored {
                let done = self.pipeline.decode(means, bytes, *mask, &mut out);
                done.map_err(|e| Error::damaged(e.to_string()))?;
            }
            rounds += 1;
        }
        Ok(begun.elapsed().as_secs_f64() / f64::from(rounds))
    }
}

/// Returns the speed of a file's disk in bytes per second, for reads of 256 KiB like those of samples; `None` if the
/// file is small, or its file system reads from memory only.
pub fn disk(file: &StoreFile) -> Option<f64> {
    let parts = file.identity.size / READ;
    let count = parts.min(READS);
    if count < READS / 2 {
        return None;
    }
    let pool = Arc::<npyfs_base::buffer::Pool>::default();
    let size = usize::try_from(READ).ok()?;
    let mut buffer = pool.take(size);
    let begun = Instant::now();
    for number in 0..count {
        // Not in sequential order, so that the disk cannot read ahead.
        let part = number * 7 % count * (parts / count);
        let got = file.read_direct(&mut buffer, part * READ).ok()?;
        if got < size {
            return None;
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    (seconds > 0.0).then(|| (count * READ) as f64 / seconds)
}

/// Returns the method that is fastest to read; of those within a twentieth of its speed, the smallest.
pub fn fastest(measured: &[Measured], disk: Option<f64>) -> Option<&Measured> {
    let seconds = measured.iter().map(|one| one.reading(disk));
    let best = seconds.fold(f64::MAX, f64::min);
    let near = |one: &&Measured| one.reading(disk) <= best * 1.05;
    measured.iter().filter(near).min_by_key(|one| one.stored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_io::content::InMemory;

    #[test]
    fn every_codec_is_measured_on_what_the_array_holds() {
        let ramp: Vec<u8> = (0..1_u32 << 20).flat_map(u32::to_le_bytes).collect();
        let sample = Sample::take(&InMemory(ramp), 4, 1 << 18).unwrap().unwrap();
        assert_eq!((sample.chunks.len(), sample.chunks[0].len()), (16, 1 << 18));
        let measured = sample.measure(&methods(true)).unwrap();
        assert!(measured.len() >= 8);
        for one in &measured {
            assert_eq!(one.bytes, 4 << 20);
            assert!(one.decoding > 0.0 && one.stored <= one.bytes);
            assert_eq!(one.stored == one.bytes, one.method.is_none());
        }
        assert!(Sample::take(&InMemory(Vec::new()), 4, 1).unwrap().is_none());
    }

    #[test]
    fn a_slow_disk_makes_small_chunks_fast() {
        let of = |method, stored, decoding| Measured {
            method,
            bytes: 1000,
            stored,
            decoding,
        };
        let all = [of(None, 1000, 1.0), of(Some(Compression::Lzf), 500, 2.0)];
        assert_eq!(fastest(&all, None).unwrap().method, None);
        assert_eq!(
            fastest(&all, Some(100.0)).unwrap().method,
            Some(Compression::Lzf)
        );
        let even = [of(None, 1000, 1.0), of(Some(Compression::Lzf), 500, 1.02)];
        assert_eq!(fastest(&even, None).unwrap().stored, 500);
    }
}
