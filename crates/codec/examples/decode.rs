//! Undoes the filters of a chunk: `decode LENGTH FILTER[:PARAMETER,...] ... < chunk > data`, with the filters in the
//! order in which they were applied. `decode 80000 2:8 1:6` undoes deflate, then shuffle of 8-byte elements.

use std::io::{Read, Write};

use npyfs_codec::Pipeline;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let length: usize = arguments.next().ok_or("no length")?.parse()?;
    let filters = arguments.map(|filter| {
        let (id, parameters) = filter.split_once(':').unwrap_or((&filter, ""));
        let parameters = parameters.split(',').filter(|p| !p.is_empty());
        let parameters: Result<Vec<u32>, _> = parameters.map(str::parse).collect();
        Ok((id.parse()?, parameters?))
    });
    let filters: Result<Vec<_>, std::num::ParseIntError> = filters.collect();
    let pipeline = Pipeline::new(&filters?).ok_or("a filter that is not known")?;
    let mut chunk = Vec::new();
    std::io::stdin().read_to_end(&mut chunk)?;
    let mut data = vec![0; length];
    let means = &Default::default();
    pipeline.decode(means, &chunk, 0, &mut data)?;
    std::io::stdout().write_all(&data)?;
    Ok(())
}
