//! How fast each filter pipeline is undone, on one thread: MB/s of decoded data, median and best of 25 passes.
//!
//! `python benches/chunks.py DIR` writes the chunks, `cargo bench --bench decode -- DIR [NAME]` decodes them.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use npyfs_base::buffer::Pool;
use npyfs_codec::Pipeline;

const PASSES: usize = 25;

/// Number and parameters of each filter.
type Filters = Vec<(i32, Vec<u32>)>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).filter(|a| a != "--bench");
    let Some(folder) = arguments.next() else {
        println!(
            "no chunks named: python benches/chunks.py DIR; cargo bench --bench decode -- DIR [NAME]"
        );
        return Ok(());
    };
    let only = arguments.next().unwrap_or_default();
    for line in std::fs::read_to_string(Path::new(&folder).join("index"))?.lines() {
        let [name, len, filters] = line.split('|').collect::<Vec<_>>()[..] else {
            return Err("index: a line of other than three fields".into());
        };
        if name.contains(&only) {
            measure(Path::new(&folder), name, len.parse()?, &parse(filters)?)?;
        }
    }
    Ok(())
}

/// Filters as `number:parameter,parameter;number:…`.
fn parse(filters: &str) -> Result<Filters, Box<dyn Error>> {
    let mut parsed = Filters::new();
    for filter in filters.split(';') {
        let (id, parameters) = filter
            .split_once(':')
            .ok_or("a filter without parameters")?;
        let parameters = parameters.split(',').filter(|p| !p.is_empty());
        parsed.push((
            id.parse()?,
            parameters.map(str::parse).collect::<Result<_, _>>()?,
        ));
    }
    Ok(parsed)
}

fn measure(
    folder: &Path,
    name: &str,
    len: usize,
    filters: &[(i32, Vec<u32>)],
) -> Result<(), Box<dyn Error>> {
    let pipeline = Pipeline::new(filters).ok_or("a pipeline that npyfs does not undo")?;
    let file = std::fs::read(folder.join(format!("{name}.chunks")))?;
    let raw = std::fs::read(folder.join(format!("{name}.raw")))?;
    let mut chunks = Vec::new();
    let mut left = &file[..];
    while let Some((head, rest)) = left.split_first_chunk::<8>() {
        let [a, b, c, d, e, f, g, h] = *head;
        let mask = u32::from_le_bytes([a, b, c, d]);
        let size = u32::from_le_bytes([e, f, g, h]) as usize;
        let (stored, rest) = rest.split_at_checked(size).ok_or("a chunk is cut off")?;
        chunks.push((mask, stored));
        left = rest;
    }
    let (mut out, pool) = (vec![0; len], Arc::<Pool>::default());
    let means = &pool;
    for ((mask, stored), want) in chunks.iter().zip(raw.chunks(len)) {
        pipeline.decode(means, stored, *mask, &mut out)?;
        if out != want {
            return Err(format!("{name}: wrong bytes").into());
        }
    }
    let mut seconds = Vec::new();
    for _ in 0..PASSES {
        let start = Instant::now();
        for (mask, stored) in &chunks {
            pipeline.decode(means, stored, *mask, &mut out)?;
        }
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    let speed = |seconds: f64| (chunks.len() * len) as f64 / 1e6 / seconds;
    println!(
        "{name:16} {:6.0} {:6.0}",
        speed(seconds[PASSES / 2]),
        speed(seconds[0])
    );
    Ok(())
}
