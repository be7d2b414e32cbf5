"""Writes the first inputs of every fuzz target into fuzz/corpus/TARGET: chunks as the real encoders write them.

python fuzz/seed.py; needs h5py and hdf5plugin (tests/requirements.txt). `fuzz/run` keeps what it finds elsewhere."""

import hashlib
import io
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np

CORPUS = Path(__file__).parent / "corpus"
# Number in targets/filter.rs and how h5py writes that pipeline; some of its pipelines have no writer here.
PIPELINES = {
    0: dict(compression="gzip"),
    1: dict(compression="gzip", shuffle=True),
    2: dict(compression="lzf"),
    3: dict(compression="lzf", shuffle=True),
    6: dict(fletcher32=True),
    8: dict(shuffle=True),
    11: hdf5plugin.LZ4(nbytes=512),
    12: dict(shuffle=True, **hdf5plugin.LZ4()),
    13: hdf5plugin.Zstd(),
    14: dict(shuffle=True, **hdf5plugin.Zstd()),
    15: hdf5plugin.Bitshuffle(cname="none"),
    16: hdf5plugin.Bitshuffle(cname="lz4"),
    17: hdf5plugin.Bitshuffle(cname="zstd"),
    19: dict(fletcher32=True, **hdf5plugin.Bitshuffle(cname="lz4")),
    22: hdf5plugin.BZip2(),
}
ITEM = {1: "<i4", 3: "<i4", 8: "<c16", 14: "<i8", 19: "<i8"}


def keep(target, data):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / hashlib.sha1(data).hexdigest()[:16]).write_bytes(data)


def stored(data, **options):
    """The only chunk of a dataset: its filter mask and bytes, and the parameters of its last filter."""
    with h5py.File(io.BytesIO(), "w") as file:
        dataset = file.create_dataset("x", data=data, chunks=data.shape, **options)
        file.flush()
        plist = dataset.id.get_create_plist()
        return *dataset.id.read_direct_chunk((0,) * data.ndim), plist.get_filter(plist.get_nfilters() - 1)[2]


def samples(dtype, size):
    """Runs, a slow ramp and noise."""
    random = np.random.default_rng(size)
    parts = np.array_split(np.arange(size), 3)
    return np.concatenate([parts[0] * 0 + 7, parts[1] // 9, random.integers(0, 200, len(parts[2]))]).astype(dtype)


def main():
    for number, options in PIPELINES.items():
        for size in (40, 300, 1501):
            data = samples(ITEM.get(number, "<i4"), size)
            mask, chunk, _ = stored(data, **options)
            keep("filter", bytes([number, mask]) + data.nbytes.to_bytes(3, "little") + chunk)
    for cname in ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"):
        for shuffle in (0, 1, 2):
            for dtype, size in (("u1", 200), ("<i2", 999), ("<f8", 1200)):
                data = samples(dtype, size)
                mask, chunk, _ = stored(data, **hdf5plugin.Blosc(cname=cname, shuffle=shuffle, clevel=9))
                if mask == 0:
                    keep("blosc", chunk)
                    if shuffle == 1:
                        keep("filter", bytes([9, 0]) + data.nbytes.to_bytes(3, "little") + chunk)
    for cname in ("blosclz", "lz4", "zlib", "zstd"):
        for filters in (0, 1, 2, 3):
            for shape in ((300,), (21, 17), (5, 6, 7)):
                data = samples("<i4", int(np.prod(shape))).reshape(shape)
                mask, chunk, _ = stored(data, **hdf5plugin.Blosc2(cname=cname, filters=filters))
                keep("filter", bytes([23, mask]) + data.nbytes.to_bytes(3, "little") + chunk)
    for dtype, bits in (("u1", 8), ("<u2", 16)):
        for options in ("nn", "ec"):
            for block in (8, 32):
                data = samples(dtype, 2048)
                mask, chunk, parameters = stored(data, compression="szip", compression_opts=(options, block))
                if mask == 0:
                    _, _, _, scanline = parameters
                    head = [bits - 1 | (32 if options == "nn" else 0), block - 1, -(-scanline // block) - 1]
                    keep("szip", bytes(head) + data.size.to_bytes(2, "little") + chunk[4:])


if __name__ == "__main__":
    main()
