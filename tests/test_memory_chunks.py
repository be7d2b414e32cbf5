"""The daemon stays under cache_size + 64 MiB where one chunk is larger than that. Judges: the kernel's account of its peak
(VmHWM), and the bytes that were handed to h5py."""

import os
import threading
import zlib

import h5py
import hdf5plugin
import numpy as np
import pytest

from support.mount import Mount

MIB = 1 << 20
EXTRA = 64 * MIB
PART = MIB

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]

FILTERS = {
    "gzip": {"compression": "gzip", "compression_opts": 1},
    "gzip_shuffle": {"compression": "gzip", "compression_opts": 1, "shuffle": True, "fletcher32": True},
    "lzf": {"compression": "lzf"},
    "blosc": dict(hdf5plugin.Blosc(cname="lz4")),
    "scaleoffset": {"scaleoffset": 0},
    "unfiltered": {},
}


def numbers(count):
    """Compresses well, fast; no two MiB are the same."""
    values = np.arange(count, dtype="<i4")
    values >>= 6
    return values


def check(path, expected, offsets, step=PART):
    """Reads parts of a file that the kernel has not read ahead, and compares them."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
        for at in offsets:
            n = min(step, len(expected) - at)
            assert os.pread(handle, n, 128 + at) == bytes(expected[at:at + n]), f"at {at}"
    finally:
        os.close(handle)


def held(mount, cache):
    peak = mount.peak_memory()
    print(f"peak {peak / MIB:.0f} MiB of {(cache + EXTRA) / MIB:.0f}")
    assert peak < cache + EXTRA, f"the daemon used {peak / MIB:.1f} MiB of {(cache + EXTRA) / MIB:.0f}"


@pytest.mark.parametrize("cache", [8 * MIB], ids=["8m"])
@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("size", [192])
def test_a_chunk_larger_than_the_cache(tmp_path, size, filters, cache):
    values = numbers(size * MIB // 4)
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=values.shape, **FILTERS[filters])
    expected = memoryview(values).cast("B")
    with Mount(path, f"cache_size={cache}", limit=500) as mount:
        # A small part of the middle first: nothing has been read in order yet.
        check(mount / "x.npy", expected, [len(expected) // 2 + 12345], step=4000)
        check(mount / "x.npy", expected, range(0, len(expected), PART))
        held(mount, cache)


def test_a_chunk_of_512_mib(tmp_path):
    cache, path = 8 * MIB, tmp_path / "x.h5"
    values = numbers(128 * MIB)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=values.shape, compression="lzf")
    expected = memoryview(values).cast("B")
    with Mount(path, f"cache_size={cache}", limit=500) as mount:
        check(mount / "x.npy", expected, range(0, len(expected), PART))
        held(mount, cache)


def test_several_readers_of_large_chunks(tmp_path):
    """Of one array and of two, in chunk rows of one chunk, of several, and cut along two dimensions, all at the same time."""
    cache, path = 8 * MIB, tmp_path / "x.h5"
    values = numbers(48 * MIB)
    shapes = {"row": ((48 * MIB,), (24 * MIB,)), "several": ((4, 12 * MIB), (4, 6 * MIB)), "deep": ((3, 4, 4 * MIB), (3, 2, 3 * MIB))}
    with h5py.File(path, "w") as file:
        for name, (shape, chunk) in shapes.items():
            file.create_dataset(name, data=values.reshape(shape), chunks=chunk, compression="lzf")
    expected = memoryview(values).cast("B")
    problems = []
    with Mount(path, f"cache_size={cache}", limit=500) as mount:
        def read(name, start):
            try:
                check(mount / f"{name}.npy", expected, range(start, len(expected), PART))
            except (AssertionError, OSError) as problem:
                problems.append(f"{name}: {problem}")

        readers = [threading.Thread(target=read, args=(name, start)) for name in shapes for start in (0, 50 * MIB)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert not problems, problems
        held(mount, cache)


def test_a_small_chunk_that_is_stored_in_many_bytes(tmp_path):
    """libhdf5 takes no notice of what lies behind the end of a deflate stream."""
    cache, path = 8 * MIB, tmp_path / "x.h5"
    values = np.arange(3000, dtype="<i4")
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", data=values, chunks=(1000,), compression="gzip")
        dataset.id.write_direct_chunk((1000,), zlib.compress(values[1000:2000].tobytes()) + bytes(200 * MIB))
    with h5py.File(path, "r") as file:
        assert (file["x"][()] == values).all()
    with Mount(path, f"cache_size={cache}", limit=200) as mount:
        assert (np.load(mount / "x.npy") == values).all()
        held(mount, cache)
