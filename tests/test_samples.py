"""Samples of 1 MiB taken at random, each opened, read and closed: by one reader, whose chunk several threads decode, and by
several at once. Judge: h5py, and the kernel's account of what it has of the store in memory."""

import os
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest

from support.mount import Mount

MIB = 1 << 20
ROWS = 24
SHUFFLED = hdf5plugin.Blosc.SHUFFLE

FILTERS = {
    "gzip": dict(compression="gzip", compression_opts=1, shuffle=True),
    "lzf": dict(compression="lzf", shuffle=True),
    "none": {},
    **{name: dict(hdf5plugin.Blosc(cname=name, clevel=5, shuffle=SHUFFLED)) for name in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")},
    "bits": dict(hdf5plugin.Blosc(cname="zstd", clevel=5, shuffle=hdf5plugin.Blosc.BITSHUFFLE)),
    "odd": dict(hdf5plugin.Blosc(cname="lz4", clevel=9, shuffle=SHUFFLED)),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Where the sample begins and how long it is, in elements, is the same for all: only `odd` has chunks of another size."""
    path, truths = tmp_path_factory.mktemp("samples") / "samples.h5", {}
    noise = np.random.default_rng(8)
    smooth = np.sin(np.arange(ROWS * MIB // 4, dtype="f4") / 700)
    values = (np.round((smooth + noise.normal(0, 0.02, smooth.shape)) * 1000) / 1000).astype("<f4").reshape(ROWS, -1)
    with h5py.File(path, "w") as file:
        for name, how in FILTERS.items():
            data = values.astype("<f8")[:, :100_003] if name == "odd" else values
            file.create_dataset(name, data=data, chunks=(1, data.shape[1]), **how)
    with h5py.File(path) as file:
        for name in FILTERS:
            truths[name] = [file[name][row].tobytes() for row in range(ROWS)]
    return path, truths


def take(mount, name, row, size):
    handle = os.open(mount / f"{name}.npy", os.O_RDONLY)
    try:
        return os.pread(handle, size, 128 + row * size)
    finally:
        os.close(handle)


def forget(path):
    with open(path, "rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def in_memory(path):
    """Bytes of a file that the kernel has in memory."""
    done = subprocess.run(["fincore", "--bytes", "--noheadings", "--output", "RES", path], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.parametrize("name", FILTERS)
def test_samples_are_what_h5py_reads(store, name):
    """From the disk, from the disk again, from memory."""
    path, truths = store
    order = list(range(ROWS))
    with Mount(path, "cache_size=16m") as mount:
        for seed in range(3):
            if seed < 2:
                forget(path)
            random.Random(seed).shuffle(order)
            for row in order:
                assert take(mount, name, row, len(truths[name][0])) == truths[name][row], row


def test_samples_for_several_readers(store):
    path, truths = store

    def read(seed):
        places = random.Random(seed)
        for _ in range(60):
            name, row = places.choice(list(FILTERS)), places.randrange(ROWS)
            assert take(mount, name, row, len(truths[name][0])) == truths[name][row], (name, row)

    with Mount(path, "cache_size=16m") as mount:
        with ThreadPoolExecutor(4) as readers:
            list(readers.map(read, range(4)))
        read(5)


@pytest.mark.alone
def test_what_is_read_again_stays_in_memory(store):
    """Once past the kernel's memory, which is faster; who comes back is served from there the third time."""
    path, truths = store
    size = len(truths["zstd"][0])
    with h5py.File(path) as file:
        stored = file["zstd"].id.get_storage_size()
    with Mount(path, "cache_size=1m") as mount:
        take(mount, "zstd", 3, size)
        seen = []
        for _ in range(2):
            forget(path)
            for row in range(0, ROWS, 2):
                assert take(mount, "zstd", row, size) == truths["zstd"][row]
            seen.append(in_memory(path))
    # A file system without direct reads has all of it in memory at once.
    assert seen[0] < stored / 4 or not direct_reads(path)
    assert stored * 0.4 < seen[1] < stored * 0.8


def direct_reads(path):
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def test_a_store_that_changes_under_an_open_sample_is_refused(store, tmp_path):
    """Whoever has the file open gets an error, not bytes of both; who opens it then gets what is there."""
    path, truths = store
    copy = tmp_path / "changing.h5"
    copy.write_bytes(path.read_bytes())
    size = len(truths["lz4hc"][0])
    with h5py.File(copy) as file:
        place = file["lz4hc"].id.get_chunk_info(7)
    with Mount(copy) as mount:
        for row in (3, 4, 5):
            assert take(mount, "lz4hc", row, size) == truths["lz4hc"][row]
        handle = os.open(mount / "lz4hc.npy", os.O_RDONLY)
        try:
            assert os.pread(handle, size, 128 + 6 * size) == truths["lz4hc"][6]
            with open(copy, "r+b") as stream:
                stream.seek(place.byte_offset + 200_000)  # within a plane that is stored as it is
                stream.write(bytes(64))
            with pytest.raises(OSError):
                os.pread(handle, size, 128 + 7 * size)
        finally:
            os.close(handle)
        with h5py.File(copy) as file:
            now = file["lz4hc"][7].tobytes()
        assert now != truths["lz4hc"][7] and take(mount, "lz4hc", 7, size) == now


def test_a_damaged_chunk_costs_one_sample(store, tmp_path):
    path, truths = store
    copy = tmp_path / "damaged.h5"
    copy.write_bytes(path.read_bytes())
    names = ("zstd", "lz4hc")
    for name in names:
        with h5py.File(copy) as file:
            place = file[name].id.get_chunk_info(5)
        with open(copy, "r+b") as stream:
            stream.seek(place.byte_offset + 16)  # behind the header of the frame: where its blocks are
            stream.write(b"\xff" * 2000)
    with Mount(copy) as mount:
        for name in names:
            size = len(truths[name][0])
            assert take(mount, name, 2, size) == truths[name][2]
            for row in (9, 5, 12, 5, 14):
                if row == 5:
                    with pytest.raises(OSError, match="Input/output error"):
                        take(mount, name, row, size)
                else:
                    assert take(mount, name, row, size) == truths[name][row]
        log = (mount / ".npyfs/errors.log").read_text()
        assert all(f"{name}.npy" in log for name in names), log


def test_no_chunk_is_shared_where_scheduling_is_off(store):
    """With it nobody can say whether one is: another program may want the processors."""
    path, truths = store
    with Mount(path, "scheduling=off") as mount:
        for row in range(ROWS):
            assert take(mount, "zstd", row, MIB) == truths["zstd"][row]
        names = [task.joinpath("comm").read_text() for task in Path(f"/proc/{mount.pid}/task").iterdir()]
    assert not any(name.startswith("helper-") for name in names), names
