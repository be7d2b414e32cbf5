"""One sequential read decodes each chunk once, a small read does not decode the dataset, the cache keeps to its limit, and
many readers of one chunk share its decoding. Judge: the counters in status.json against chunk counts known from h5py,
and the kernel's own account of the daemon's memory."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest

from support.mount import Mount
from support.pages import counted, counting
from support.process import run, stopped
from support.truth import np_save, sha256

CHUNK = 1 << 20
CHUNKS = 32


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("cache") / "store.h5"
    values = (np.random.default_rng(6).integers(0, 9, CHUNKS * CHUNK // 8)).astype("<i8")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=(CHUNK // 8,), compression="gzip", compression_opts=1)
    return path, sha256(np_save(values))


def cat(mount):
    done = run(["cat", mount / "x.npy"], text=False, check=True)
    return sha256(done.stdout)


@pytest.mark.alone
@counting
def test_a_sequential_read_decodes_each_chunk_once(store):
    """Nothing but the counters tells whether a chunk was decoded twice: the bytes are right either way."""
    path, digest = store
    for _ in range(4):  # which of the requests under way comes first is different each time
        read_twice(path, digest)


def read_twice(path, digest):
    with Mount(path, "cache_size=8m") as mount:
        before = mount.status()["cache"]
        assert (before["decoded_bytes"], before["misses"], before["bytes"], before["limit"]) == (0, 0, 0, 8 << 20)
        assert cat(mount) == digest
        after = mount.status()["cache"]
        counted((after["decoded_bytes"], after["misses"]) == (CHUNKS * CHUNK, CHUNKS), after)
        gone = after["evictions"] + after["consumed"]
        assert after["bytes"] <= 8 << 20 and gone >= CHUNKS - 8
        assert gone * CHUNK + after["bytes"] == CHUNKS * CHUNK
        # in order, with room for what is read ahead: nothing is thrown away before it was read
        assert after["consumed"] > CHUNKS // 2 and after["ahead_wasted"] == 0
        # no second reading: the kernel keeps the pages between opens, unless it needs the memory just then
        for _ in range(5):
            before = mount.status()["cache"]["decoded_bytes"]
            assert cat(mount) == digest
            if mount.status()["cache"]["decoded_bytes"] == before:
                break
        else:
            pytest.fail("the kernel asked for pages again each time")
        assert mount.peak_memory() < (8 + 64) << 20


@pytest.mark.alone
@counting
def test_one_small_read_does_not_decode_the_dataset(store):
    """By the counters: the bytes are right either way."""
    path, _ = store
    with Mount(path, "cache_size=64m") as mount:
        handle = os.open(mount / "x.npy", os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
            assert len(os.pread(handle, 4096, 128 + 15 * CHUNK + 5000)) == 4096
        finally:
            os.close(handle)
        decoded = mount.status()["cache"]["decoded_bytes"]
        counted(CHUNK <= decoded <= 4 * CHUNK, decoded)


@pytest.mark.alone
@counting
def test_readers_of_the_same_chunk_share_its_decoding(store):
    """By the counters: the bytes are right either way."""
    path, digest = store
    with Mount(path, "cache_size=64m") as mount:
        readers = [subprocess.Popen(["sha256sum", mount / "x.npy"], stdout=subprocess.PIPE, text=True) for _ in range(8)]
        assert {reader.communicate(timeout=60)[0].split()[0] for reader in readers} == {digest}
        decoded = mount.status()["cache"]["decoded_bytes"]
        counted(decoded == CHUNKS * CHUNK, decoded)


@pytest.mark.alone
def test_who_goes_on_where_another_has_read_takes_no_sample(store):
    """His part looks like one; the next reader's small reads are still answered from the kernel's page cache. By the
    counters, which alone tell what npyfs was asked."""
    path, _ = store
    with Mount(path, "cache_size=64m") as mount:
        first, second = (os.open(mount / "x.npy", os.O_RDONLY) for _ in "ab")
        third = None
        try:
            for _ in range(4):
                assert len(os.read(first, CHUNK)) == CHUNK
            assert len(os.pread(second, CHUNK, 10 * CHUNK)) == CHUNK
            third = os.open(mount / "x.npy", os.O_RDONLY)
            before = mount.status()["cache"]
            for at in range(25 * CHUNK, 26 * CHUNK, 4096):
                assert len(os.pread(third, 4096, at)) == 4096
            after = mount.status()["cache"]
        finally:
            for handle in (first, second, third):
                if handle is not None:
                    os.close(handle)
        # past the page cache each of the 256 would have been asked for
        asked = sum(after[how] - before[how] for how in ("hits", "misses"))
        assert asked < 64, (before, after)


def test_a_chunk_larger_than_the_cache(store, tmp_path):
    path, values = tmp_path / "large.h5", np.arange(500_000)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=(400_000,), compression="gzip", compression_opts=1)
    with Mount(path, "cache_size=1m") as mount:
        assert np.array_equal(np.load(mount / "x.npy"), values)
        assert mount.status()["cache"]["bytes"] <= 1 << 20


@pytest.mark.alone
@counting
def test_a_file_that_samples_were_taken_from_can_still_be_mapped(store):
    """After a sample the next handle reads past the kernel's page cache; np.load(mmap_mode="r") works on it all the same,
    and a sample costs its own chunk only."""
    path, digest = store
    with Mount(path, "cache_size=64m") as mount:
        def sample(chunk):
            handle = os.open(mount / "x.npy", os.O_RDONLY)
            try:
                return os.pread(handle, CHUNK, 128 + chunk * CHUNK)
            finally:
                os.close(handle)

        first, decoded = sample(20), []
        assert len(first) == CHUNK
        for chunk in range(1, 16, 3):
            before = mount.status()["cache"]["decoded_bytes"]
            assert len(sample(chunk)) == CHUNK
            decoded.append(mount.status()["cache"]["decoded_bytes"] - before)
        # the kernel tells of a close late: one more handle may have gone through the page cache
        counted(decoded[-1] == CHUNK, decoded)
        mapped = np.load(mount / "x.npy", mmap_mode="r")
        assert isinstance(mapped, np.memmap) and sha256(np_save(np.array(mapped))) == digest
        assert mapped[20 * CHUNK // 8 : 21 * CHUNK // 8].tobytes() == first
        del mapped
        assert cat(mount) == digest


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """Datasets whose files are shorter than what the kernel reads ahead, at the edges of pages and of that length."""
    path = tmp_path_factory.mktemp("short") / "short.h5"
    random = np.random.default_rng(3)
    truths = {}
    with h5py.File(path, "w") as file:
        for size in (1, 4096 - 128, 4096 - 127, 50_000, (128 << 10) - 128, (128 << 10) - 127, 200_000):
            for form, how in (("plain", {}), ("gzip", {"chunks": (size,), "compression": "gzip"})):
                values = random.integers(0, 9, size).astype("u1")
                file.create_dataset(f"{form}{size}", data=values, **how)
                truths[f"{form}{size}.npy"] = np_save(values)
    return path, truths


def test_a_short_file_is_in_memory_once_it_is_open(short):
    """Its bytes come with the answer to open: they can be read while the daemon is stopped."""
    path, truths = short
    with Mount(path) as mount:
        names = [name for name, truth in truths.items() if len(truth) <= 128 << 10]
        assert len(names) == 10
        handles = {name: os.open(mount / name, os.O_RDONLY) for name in names}
        try:
            with stopped(mount.pid):
                read = {name: os.pread(handle, len(truths[name]), 0) for name, handle in handles.items()}
        finally:
            for handle in handles.values():
                os.close(handle)
        assert read == {name: truths[name] for name in names}


def test_short_files_read_by_many_at_once(short):
    """More readers than the daemon has threads open the same files first, each in his own order."""
    path, truths = short
    with Mount(path) as mount:
        def reader(seed):
            names = list(truths)
            np.random.default_rng(seed % 4).shuffle(names)
            return all((mount / name).read_bytes() == truths[name] for name in names)

        with ThreadPoolExecutor(32) as pool:
            assert all(pool.map(reader, range(64)))
        assert mount.errors() == []
