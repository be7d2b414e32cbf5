"""The data that is measured: arrays in several storages, and a group of very many small datasets.

Everything exists twice: as HDF5, and as the `.npy` files that the mount shows, written by NumPy."""

import io
import os

import h5py
import hdf5plugin
import numpy as np

SIDE = 512  # a sample is SIDE x SIDE float32: 1 MiB, and one chunk

STORAGE = {
    "gzip+shuffle": dict(compression="gzip", compression_opts=4, shuffle=True),
    "lzf+shuffle": dict(compression="lzf", shuffle=True),
    "blosc-lz4hc": dict(hdf5plugin.Blosc(cname="lz4hc", clevel=5, shuffle=hdf5plugin.Blosc.SHUFFLE)),
    "blosc-zstd": dict(hdf5plugin.Blosc(cname="zstd", clevel=5, shuffle=hdf5plugin.Blosc.SHUFFLE)),
    "contiguous": None,
}
HEADER = 128


def sample(k):
    """A smooth field with noise, quantised to 0.001: compresses like measured data, to about 0.7 by gzip."""
    y, x = np.mgrid[0:SIDE, 0:SIDE].astype("f4") / SIDE
    field = np.sin(6 * x + k / 9) * np.cos(5 * y - k / 13) + 0.2 * np.sin(20 * (x + y))
    noise = np.random.default_rng(k).normal(0, 0.02, field.shape)
    return (np.round((field + noise) * 1000) / 1000).astype("<f4")


KINDS = 64


def repeated(file, name, mib, how, real=None):
    """A dataset of `mib` samples, of which 64 are different: compressing all of them would take long. With `real`, an open file, it becomes the
    .npy of it."""
    some = [sample(k) for k in range(min(KINDS, mib))]
    more = {} if how is None else {"chunks": (1, SIDE, SIDE), **how}
    data = file.create_dataset(name, (mib, SIDE, SIDE), "<f4", **more)
    if real is not None:
        np.lib.format.write_array_header_1_0(real, {"descr": "<f4", "fortran_order": False, "shape": data.shape})
        assert real.tell() == HEADER
    stored = []
    for k in range(mib):
        block = some[k % KINDS]
        if real is not None:
            real.write(block.tobytes())
        if how is None or k < KINDS:
            data[k] = block
            continue
        if not stored:
            file.flush()
            stored = [data.id.read_direct_chunk((j, 0, 0)) for j in range(KINDS)]
        mask, chunk = stored[k % KINDS]
        data.id.write_direct_chunk((k, 0, 0), chunk, mask)


class Arrays:
    """One HDF5 file with the same array in every storage, a real .npy of it, and a directory of small ones."""

    def __init__(self, folder, mib):
        folder.mkdir()
        self.store, self.npy = folder / "arrays.h5", folder / "array.npy"
        self.shape = (mib, SIDE, SIDE)
        self.payload = mib << 20
        self.chunks = mib
        with h5py.File(self.store, "w") as f, open(self.npy, "wb") as npy:
            np.lib.format.write_array_header_1_0(npy, {"descr": "<f4", "fortran_order": False, "shape": self.shape})
            assert npy.tell() == HEADER
            sets = {}
            for name, how in STORAGE.items():
                if how is None:
                    sets[name] = f.create_dataset(name, self.shape, "<f4")
                else:
                    sets[name] = f.create_dataset(name, self.shape, "<f4", chunks=(1, SIDE, SIDE), **how)
            for k in range(mib):
                block = sample(k)
                npy.write(block.tobytes())
                for dataset in sets.values():
                    dataset[k] = block
            self.stored = {name: dataset.id.get_storage_size() for name, dataset in sets.items()}


class Long:
    """A contiguous array of its own, twice as long, and the real .npy of it."""

    def __init__(self, folder, mib):
        folder.mkdir()
        self.store, self.npy = folder / "long.h5", folder / "long.npy"
        self.payload = 2 * mib << 20
        with h5py.File(self.store, "w") as f, open(self.npy, "wb") as npy:
            repeated(f, "long", 2 * mib, None, npy)


class Many:
    """`count` datasets of four float64 in the group `g` of one file, and the same as real files in a directory."""

    def __init__(self, folder, count):
        folder.mkdir()
        self.count = count
        self.store, self.real = folder / "many.h5", folder / "g"
        self.real.mkdir()
        values = np.zeros(4, "<f8")
        out = io.BytesIO()
        np.save(out, values)
        header = out.getvalue()[:-values.nbytes]
        width = len(str(count - 1))
        with h5py.File(self.store, "w") as f:
            group = f.create_group("g").id
            space, kind = h5py.h5s.create_simple((4,)), h5py.h5t.IEEE_F64LE
            for k in range(count):
                values[:] = k
                name = f"d{k:0{width}}"
                h5py.h5d.create(group, name.encode(), kind, space).write(h5py.h5s.ALL, h5py.h5s.ALL, values)
                fd = os.open(self.real / f"{name}.npy", os.O_CREAT | os.O_WRONLY, 0o644)
                os.write(fd, header + values.tobytes())
                os.close(fd)
        self.total = count * values.nbytes


def difference(shown, real):
    """None, or how two directories of files differ in names or sizes."""
    def sizes(folder):
        with os.scandir(folder) as entries:
            return {entry.name: entry.stat().st_size for entry in entries}
    a, b = sizes(shown), sizes(real)
    if a == b:
        return None
    wrong = sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))
    return f"{len(wrong)} entries differ, first {wrong[0]}: {a.get(wrong[0])} against {b.get(wrong[0])}"
