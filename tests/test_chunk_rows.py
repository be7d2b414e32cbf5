"""Chunks that cut across rows, and chunks larger than the cache: read in order each is decoded once, whatever the cache
holds, and memory stays within the promise. Judges: NumPy's bytes, the decoded bytes in status.json, the kernel's account
of the daemon's memory."""

import io
import subprocess

import h5py
import numpy as np
import pytest

from support.mount import Mount
from support.pages import counted, counting
from support.process import run
from support.truth import np_save, sha256

MIB = 1 << 20
RNG = np.random.default_rng(12)

# name: shape, chunk. With 8 MiB of cache a chunk row of more than 2 MiB does not stay in memory.
ACROSS = {
    "columns": ((40_000, 100), (40_000, 5)),
    "tiles": ((3000, 1500), (1000, 100)),
    "cubes": ((3, 500, 60, 40), (1, 250, 7, 11)),
    "edges": ((2501, 803), (1250, 100)),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("chunk_rows") / "store.h5"
    with h5py.File(path, "w") as file:
        for name, (shape, chunk) in ACROSS.items():
            values = RNG.integers(0, 99, shape).astype("<i4")
            file.create_dataset(name, data=values, chunks=chunk, compression="gzip", compression_opts=1)
        # One chunk of 24 MiB; the same behind a filter that only libhdf5 knows.
        values = RNG.integers(0, 99, 9 * MIB).astype("<i4")
        file.create_dataset("large", data=values, chunks=(6 * MIB,), compression="gzip", compression_opts=1)
        file.create_dataset("packed", data=values, chunks=(6 * MIB,), scaleoffset=0)
        truth = {name: np_save(dataset[()]) for name, dataset in file.items()}
    return path, truth


@pytest.mark.parametrize("name", ACROSS)
@pytest.mark.alone
@counting
def test_each_chunk_is_decoded_once(store, name):
    """By the counters: the bytes are right either way."""
    path, truth = store
    shape, _ = ACROSS[name]
    # Which of the requests under way comes first is different each time.
    for _ in range(8):
        with Mount(path, "cache_size=8m") as mount:
            assert sha256(run(["cat", mount / f"{name}.npy"], text=False, check=True).stdout) == sha256(truth[name])
            decoded = mount.status()["cache"]["decoded_bytes"]
            assert mount.peak_memory() < (8 + 64) * MIB
            counted(decoded == 4 * np.prod(shape), decoded, shape)


@pytest.mark.parametrize("name", ["large", "packed"])
def test_a_chunk_that_the_cache_cannot_hold(store, name):
    path, truth = store
    with Mount(path, "cache_size=8m") as mount:
        assert sha256(run(["cat", mount / f"{name}.npy"], text=False, check=True).stdout) == sha256(truth[name])
        assert mount.peak_memory() < (8 + 64) * MIB


def test_many_readers_at_many_places(store):
    path, truth = store
    arrays = {name: np.load(io.BytesIO(data)) for name, data in truth.items()}
    with Mount(path, "cache_size=8m") as mount:
        cats = {
            name: [subprocess.Popen(["sha256sum", mount / f"{name}.npy"], stdout=subprocess.PIPE, text=True) for _ in "ab"]
            for name in truth
        }
        maps = {name: np.load(mount / f"{name}.npy", mmap_mode="r") for name in ACROSS}
        for _ in range(300):
            name = RNG.choice(list(ACROSS))
            at = tuple(RNG.integers(0, n) for n in ACROSS[name][0])
            assert maps[name][at] == arrays[name][at], (name, at)
        for name, readers in cats.items():
            for reader in readers:
                assert reader.communicate(timeout=120)[0].split()[0] == sha256(truth[name]), name
        assert mount.errors() == []
        assert mount.peak_memory() < (8 + 64) * MIB
        del maps


def test_without_room_for_a_temporary_file(store, tmp_path):
    """What fits into the cache alone is still read, if slowly; what does not is refused with the reason."""
    path, truth = store
    with Mount(path, "cache_size=8m", env={"TMPDIR": str(tmp_path / "nowhere")}) as mount:
        done = run(["cat", mount / "tiles.npy"], text=False, check=True)
        assert sha256(done.stdout) == sha256(truth["tiles"])
        assert "no temporary file" in "".join(mount.errors())
        assert run(["cat", mount / "large.npy"], text=False).returncode == 1
        assert "cache_size" in "".join(mount.errors())
