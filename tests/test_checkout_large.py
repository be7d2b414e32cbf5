"""Arrays larger than memory through a checkout: what the daemon uses (VmHWM, as the kernel counts) does not depend on the size of
what is written, and what was never written takes no room, neither while it is being written nor in the file that is stored."""

import os
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.mount import Mount

MIB = 1 << 20
GB = 10**9
CACHE, EXTRA = 32 * MIB, 64 * MIB

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(300)]


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "store.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)
    return path


def used(folder):
    """Bytes on the disk of all files below a directory."""
    return sum(path.stat().st_blocks * 512 for path in Path(folder).rglob("*") if path.is_file())


def layer_files(store):
    return sorted(Path(f"{store}.checkouts").rglob("*.h5"))


def check_memory(mount):
    peak = mount.peak_memory()
    assert peak <= CACHE + EXTRA, f"peak {peak / MIB:.1f} MiB"


def test_a_sparse_array_of_20_gb_takes_the_room_of_what_is_in_it(store, tmp_path):
    rows, columns = 2500, 1_000_000  # 20 GB of float64
    source = tmp_path / "source.npy"
    # NumPy's own way to make a file that is larger than memory.
    array = np.lib.format.open_memmap(source, "w+", "<f8", (rows, columns))
    some = [0, 1, 1234, rows - 1]
    for row in some:
        array[row, row:row + 1000] = np.arange(1000) + row
    array.flush()
    del array
    assert source.stat().st_size > 20 * GB > 1000 * used(tmp_path), "the file system knows no holes: nothing to test here"
    with Mount(store, f"cache_size={CACHE >> 20}M", checkout="work", limit=280) as m:
        # cp finds the holes of the source, and makes them by seeking over them.
        subprocess.run(["cp", "--sparse=always", source, m / "large.npy"], check=True, timeout=250)
        assert (m / "large.npy").stat().st_size == source.stat().st_size
        shown = np.load(m / "large.npy", mmap_mode="r")
        assert shown.shape == (rows, columns)
        for row in some:
            np.testing.assert_array_equal(shown[row, row:row + 1000], np.arange(1000) + row)
        assert not shown[7, ::50_000].any()
        check_memory(m)
        del shown
    (file,) = layer_files(store)
    assert file.stat().st_size >= 20 * GB
    assert used(file.parent) < 4 * MIB, "holes were filled"
    with h5py.File(file) as stored:
        dataset = stored["large"]
        assert (dataset.shape, dataset.dtype.str) == ((rows, columns), "<f8")
        for row in some:
            np.testing.assert_array_equal(dataset[row, row:row + 1000], np.arange(1000) + row)
        assert np.count_nonzero(dataset[some]) == 1000 * len(some) - 1  # the first number is 0


def test_memory_does_not_grow_with_what_is_written(store, tmp_path):
    """512 MiB by cp, and once more in Fortran order, which has to be turned round on the way."""
    array = np.arange(64 * MIB, dtype="<u8").reshape(8192, 8192)
    np.save(tmp_path / "c.npy", array)
    np.save(tmp_path / "f.npy", np.asfortranarray(array))
    with Mount(store, f"cache_size={CACHE >> 20}M", checkout="work", limit=280) as m:
        for name in ("c.npy", "f.npy"):
            subprocess.run(["cp", tmp_path / name, m / name], check=True, timeout=250)
            check_memory(m)
    for file in layer_files(store):
        with h5py.File(file) as stored:
            (name,) = stored
            dataset = stored[name]
            for row in range(0, 8192, 1000):
                np.testing.assert_array_equal(dataset[row], array[row], err_msg=name)


def test_memory_does_not_grow_with_the_number_of_files(store, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    for k in range(3000):
        np.save(small / f"{k:04}.npy", np.full((28, 28), k % 256, np.uint8))
    with Mount(store, f"cache_size={CACHE >> 20}M", checkout="work", limit=280) as m:
        subprocess.run(["cp", "-r", small, m / "small"], check=True, timeout=250)
        assert subprocess.run(["diff", "-r", small, m / "small"], capture_output=True, timeout=120).stdout == b""
        check_memory(m)
    names = {}
    for file in layer_files(store):
        with h5py.File(file) as stored:
            names.update((name, int(dataset[0, 0])) for name, dataset in stored["small"].items())
    assert names == {f"{k:04}": k % 256 for k in range(3000)}
    with Mount(store, checkout="work") as m:
        assert len(os.listdir(m / "small")) == 3000
