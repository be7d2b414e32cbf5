"""Writes chunks for `cargo bench --bench decode -- DIR`: python benches/chunks.py DIR.

24 chunks of 1 MiB of float32 (a smooth field and noise, rounded to 0.001) under each pipeline, as the real encoders
write them. DIR/index has a line per pipeline: name|bytes of a chunk|filter:parameters;filter:parameters. NAME.chunks
has filter mask and size (4 bytes each, little end first) before each chunk, NAME.raw what they decode to."""

import sys
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np

CHUNKS, SIDE = 24, 512
PIPELINES = {
    "shuffle": dict(shuffle=True),
    "gzip4+shuffle": dict(compression="gzip", compression_opts=4, shuffle=True),
    "lzf+shuffle": dict(compression="lzf", shuffle=True),
    "lz4": hdf5plugin.LZ4(),
    "zstd": hdf5plugin.Zstd(clevel=3),
    "bitshuffle-none": hdf5plugin.Bitshuffle(cname="none"),
    "bitshuffle-lz4": hdf5plugin.Bitshuffle(cname="lz4"),
    "bitshuffle-zstd": hdf5plugin.Bitshuffle(cname="zstd"),
    **{f"blosc-{name}": hdf5plugin.Blosc(cname=name, clevel=5, shuffle=hdf5plugin.Blosc.SHUFFLE)
       for name in ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")},
    "blosc-lz4-bits": hdf5plugin.Blosc(cname="lz4", clevel=5, shuffle=hdf5plugin.Blosc.BITSHUFFLE),
}


def field():
    random = np.random.default_rng(1)
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    smooth = [np.sin(x / (40 + i)) + np.cos(y / (50 - i)) for i in range(CHUNKS)]
    return np.round(np.stack(smooth) + random.normal(0, 0.05, (CHUNKS, SIDE, SIDE)), 3).astype("<f4")


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    data = field()
    with h5py.File(folder / "chunks.h5", "w") as file, open(folder / "index", "w") as index:
        for name, options in PIPELINES.items():
            dataset = file.create_dataset(name, data=data, chunks=(1, SIDE, SIDE), **options)
            file.flush()
            plist = dataset.id.get_create_plist()
            steps = [plist.get_filter(i) for i in range(plist.get_nfilters())]
            listed = ";".join(f"{step[0]}:{','.join(map(str, step[2]))}" for step in steps)
            index.write(f"{name}|{data[0].nbytes}|{listed}\n")
            with open(folder / f"{name}.chunks", "wb") as stream:
                for i in range(CHUNKS):
                    mask, stored = dataset.id.read_direct_chunk((i, 0, 0))
                    stream.write(np.array([mask, len(stored)], "<u4").tobytes() + stored)
            data.tofile(folder / f"{name}.raw")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
