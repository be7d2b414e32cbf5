"""What tests of remote stores have in common: a file with every layout, and the judge of what a mount shows of it."""

import h5py
import numpy as np

from .truth import assert_all, walk

NAMES = ["plain.h5", "with space.h5", "100%.h5", "a%20b.h5", "a+b.h5", "größe-日本.h5", "semi;colon&amp<.h5", "tilde~[1]{2}'\"^`|.h5", "query?x=1#f.h5"]


def write(path, seed=0):
    """A file with every layout."""
    random = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        for name, array, options in [
                ("contiguous", random.normal(size=(500, 300)), {}),
                ("gzip", random.integers(0, 1000, (2000, 500)), {"chunks": (100, 500), "compression": "gzip", "shuffle": True}),
                ("group/small", np.arange(12, dtype=">i2").reshape(3, 4), {}),
                ("group/deep/lzf", random.normal(size=100_000).astype("f4"), {"chunks": (4096,), "compression": "lzf"}),
                ("growing", random.normal(size=(300, 70)), {"chunks": (16, 16), "maxshape": (None, None), "fletcher32": True}),
                ("records", np.array([(1, 2.5), (3, 4.5)], [("a", "i4"), ("b", "f8")]), {}),
                ("scalar", np.array(3.5 + seed), {})]:
            file.create_dataset(name, data=array, **options)
            file[name].attrs["about"] = f"this is {name}"
        file.create_dataset("text", data=["a", "some longer text", ""], dtype=h5py.string_dtype())
        file.create_dataset("fixed", data=np.array([b"ab", b"c"]))
        file.create_dataset("never", (1000, 1000), "f8", fillvalue=2.5)
        space, options = h5py.h5s.create_simple((40,)), h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        options.set_layout(h5py.h5d.COMPACT)
        compact = h5py.h5d.create(file.id, b"compact", h5py.h5t.NATIVE_INT32, space, options)
        compact.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(40, dtype="i4"))
    return path


def same(folder, path):
    """Everything that h5py finds in the file at `path` is what `folder` shows."""
    assert_all(folder, walk(path), at_least=10)
