"""Chunks and filters as h5py and hdf5plugin read them."""

import hdf5plugin
import numpy as np
from cases import Cases, same, shown

cases = Cases()
rng = np.random.default_rng(6)
SHUFFLE = 2
NUMBERS = {"gzip": [SHUFFLE, 1], "lzf": [SHUFFLE, 32000], "blosc": [hdf5plugin.Blosc.filter_id]}
HOW = [None, "gzip", "gzip:9", "lzf"]
HOW += [f"blosc:{codec}{rest}" for codec in ("lz4", "zstd", "zlib") for rest in ("", ":9", ":1")]


def check(want, chunk, how):
    def judge(file):
        dataset = file["x"]
        assert dataset.chunks == chunk
        plist = dataset.id.get_create_plist()
        filters = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
        wanted = NUMBERS[how.split(":")[0]] if how else []
        if want.dtype.itemsize == 1:
            wanted = [number for number in wanted if number != SHUFFLE]
        assert filters == wanted, filters
        same(dataset[()], want)
        same(shown(file, "x.npy"), want)
        if how and want.size > 100_000 and want.dtype.kind in "if":
            assert dataset.id.get_storage_size() < want.nbytes * 0.9, dataset.id.get_storage_size()

    return judge


smooth = (np.arange(300 * 1000) // 7).astype("<i4").reshape(300, 1000)
noise = rng.integers(0, 2**63, (200, 100), "<i8")
arrays = [
    (smooth, (64, 1000)),
    (smooth.astype("<f8"), (7, 333)),
    (noise, (50, 100)),
    (smooth.astype("u1").ravel(), (4096,)),
    (np.zeros((3, 5, 7), "<c16"), (2, 2, 2)),
    (rng.integers(0, 9, (4, 3)).astype("S20"), (3, 3)),
]
for array, chunk in arrays:
    for how in HOW:
        cases.add("x", array, check(array, chunk, how), chunk=chunk, compress=how)
# More than one batch.
large = np.repeat(rng.integers(0, 2**31, (3000, 10), "<i4"), 500, 1)
for how in (None, "blosc:zstd:1", "gzip:1"):
    cases.add("x", large, check(large, (60, 5000), how), chunk=(60, 5000), compress=how)
cases.run()
