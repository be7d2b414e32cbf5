"""A chunk index that cannot be true is not believed: npyfs says so in errors.log and leaves the dataset to libhdf5, so
that no byte is invented. Judge: h5py, reading the same damaged file. The entries of B-trees (format specification,
section III.A.1: version 1) are changed in files that h5py wrote."""

import errno
import os
import struct
import sys

import h5py
import numpy as np
import pytest

from support.mount import Mount
from support.process import run
from support.truth import np_save, read

CHUNKS, SIDE, PAGE = 6, 4096, 4096


class Entries:
    """The chunks of a one-dimensional dataset as its B-tree names them, in order; one leaf holds them all."""

    def __init__(self, data):
        self.data = bytearray(data)
        nodes = [at for at in range(len(data) - 24) if data[at:at + 6] == b"TREE\1\0"]
        assert len(nodes) == 1, f"{len(nodes)} leaves of chunks"
        assert struct.unpack_from("<H", data, nodes[0] + 6) == (CHUNKS,)
        self.keys = [nodes[0] + 24 + i * 32 for i in range(CHUNKS)]  # size, mask, two offsets, address

    def change(self, number, size=None, mask=None, address=None):
        key = self.keys[number]
        for form, at, value in (("<I", key, size), ("<I", key + 4, mask), ("<Q", key + 24, address)):
            if value is not None:
                struct.pack_into(form, self.data, at, value)

    def address(self, number):
        return struct.unpack_from("<Q", self.data, self.keys[number] + 24)[0]

    def size(self, number):
        return struct.unpack_from("<I", self.data, self.keys[number])[0]


DAMAGE = {
    "beyond the end": (lambda e: e.change(2, address=len(e.data) - 10), "outside the file"),
    "far away": (lambda e: e.change(2, address=1 << 60), "outside the file"),
    "in the superblock": (lambda e: e.change(2, address=8), "outside the file"),
    "the same twice": (lambda e: e.change(2, address=e.address(4)), "overlap"),
    "overlapping": (lambda e: e.change(2, address=e.address(3) - e.size(2) + 1), "overlap"),
    "too small": (lambda e: e.change(2, size=7), None),
    "too large": (lambda e: e.change(CHUNKS - 1, size=1 << 20), None),
    "a filter too many": (lambda e: e.change(2, mask=1 << 9), "skips a filter"),
}
FILTERS = {"raw": {}, "shuffle": {"shuffle": True}, "gzip": {"compression": "gzip"}}


@pytest.fixture
def store(tmp_path):
    def write(filtered, damage):
        path = tmp_path / "tables.h5"
        with h5py.File(path, "w") as file:
            values = np.random.default_rng(3).integers(0, 1 << 40, CHUNKS * SIDE)
            file.create_dataset("x", data=values, chunks=(SIDE,), **FILTERS[filtered])
            file["y"] = np.arange(10)
        entries = Entries(path.read_bytes())
        damage(entries)
        path.write_bytes(entries.data)
        return path
    return write


def truth(path):
    """What h5py reads chunk by chunk; None where it fails."""
    with h5py.File(path, "r") as file:
        def chunk(number):
            try:
                return file["x"][number * SIDE:(number + 1) * SIDE].tobytes()
            except OSError:
                return None
        return [chunk(number) for number in range(CHUNKS)]


@pytest.mark.parametrize("filtered", FILTERS)
@pytest.mark.parametrize("label", DAMAGE)
def test_a_false_table_is_refused(store, filtered, label):
    damage, reason = DAMAGE[label]
    path = store(filtered, damage)
    expected = truth(path)
    if label == "too small" and filtered != "gzip":
        expected[2] = None  # h5py shows 7 bytes, and behind them whatever its memory held
    with Mount(path) as mount:
        for number, wanted in enumerate(expected):
            # Whole pages: what the kernel reads must not reach into the next chunk.
            start = 128 + number * SIDE * 8
            at, length = start + PAGE - start % PAGE, SIDE * 8 - 2 * PAGE
            handle = os.open(mount / "x.npy", os.O_RDONLY)
            try:
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
                found = os.pread(handle, length, at)
            except OSError:
                found = None
            finally:
                os.close(handle)
            assert found == (wanted and wanted[at - start:at - start + length]), f"chunk {number}"
        lines = [line for line in mount.errors() if "chunk table" in line]
        if reason or filtered != "gzip":  # 7 bytes may be a deflated chunk; one of 1 MiB ends outside the file
            assert lines and "/x" in lines[0] and "tables.h5" in lines[0]
        assert not reason or reason in lines[0]
        assert read(mount / "y.npy") == np_save(np.arange(10))


def test_a_true_table_is_believed(store):
    path = store("gzip", lambda entries: None)
    with Mount(path) as mount:
        with h5py.File(path, "r") as file:
            assert read(mount / "x.npy") == np_save(file["x"][()])
        assert mount.errors() == []


KILLED = """
import os, sys, h5py, numpy as np, hdf5plugin
file = h5py.File(sys.argv[1], "w", libver="latest")
values = np.arange(1, 40_001)
for name, what in {"gzip": {"compression": "gzip"}, "blosc": hdf5plugin.Blosc(), "raw": {}}.items():
    file.create_dataset(name, data=values, chunks=(1000,), maxshape=(None,), **what)
file.create_dataset("contiguous", data=values)
file.swmr_mode = True
file.flush()
os._exit(0)
"""


@pytest.mark.parametrize("keep", [1, 0.9, 0.5])
def test_a_file_whose_swmr_writer_was_killed(tmp_path, keep):
    """It opens with SWMR only, where libhdf5 reads zeros behind the end of the file: those must not be shown."""
    path = tmp_path / "killed.h5"
    run([sys.executable, "-c", KILLED, path], check=True)
    with pytest.raises(OSError), h5py.File(path, "r", locking=False):
        pass  # a plain open is refused
    os.truncate(path, int(path.stat().st_size * keep))
    truth, failed = np_save(np.arange(1, 40_001)), []
    with Mount(path) as mount:
        for name in ("gzip", "blosc", "raw", "contiguous"):
            try:
                assert read(mount / f"{name}.npy") == truth, name
            except OSError as problem:
                assert problem.errno == errno.EIO
                failed.append(name)
        assert bool(failed) == (keep < 1)
        assert all(any(name in line for line in mount.errors()) for name in failed)
