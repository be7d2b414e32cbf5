"""The daemon stays under cache_size + 64 MiB while several readers take text, compounds with text and labels, and refuses a chunk of
more than 1 GiB. Judges: the kernel's account of its peak (VmHWM), and the bytes that were handed to h5py."""

import errno
import os
import threading
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

from support import arkouda as ak
from support.mount import Mount
from support.process import npyfs
from support.truth import np_save
from test_memory_chunks import MIB, held

CACHE = 8 * MIB
PART = MIB

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]


def together(mount, jobs):
    """Reads files at the same time: (name, all its bytes, where to begin). Every reader goes on to the end, then to where it began."""
    problems = []

    def read(name, expected, first):
        try:
            with open(mount / name, "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
                for at in [*range(first, len(expected), PART), *range(0, first, PART)]:
                    n = min(PART, len(expected) - at)
                    assert os.pread(file.fileno(), n, at) == expected[at:at + n], f"at {at}"
        except (AssertionError, OSError) as problem:
            problems.append(f"{name}: {problem}")
    readers = [threading.Thread(target=read, args=job) for job in jobs]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert not problems, problems
    assert mount.errors() == []


def test_values_and_offsets_of_long_text(tmp_path):
    """A block of 8192 texts has up to 32 MiB, four times what the cache may hold."""
    path, jobs = tmp_path / "x.h5", []
    with h5py.File(path, "w") as file:
        for name, count, repeats in [("long", 24_000, 500), ("other", 24_000, 400), ("short", 100_000, 30)]:
            texts = [b"%08d" % i * (repeats - i % 7) for i in range(count)]
            file.create_dataset(name, data=np.array(texts, object), dtype=h5py.string_dtype())
            values = np_save(np.frombuffer(b"".join(texts), "u1"))
            offsets = np_save(np.array([0, *np.cumsum([len(text) for text in texts])], "<i8"))
            jobs += [(f"{name}/values.npy", values, first) for first in (0, 20 * MIB)]
            jobs += [(f"{name}/offsets.npy", offsets, 0)]
    with Mount(path, f"cache_size={CACHE},text_limit=1M", limit=500) as mount:
        together(mount, jobs)
        held(mount, CACHE)


def test_rows_of_compounds_with_text(tmp_path):
    """A row has 23 MiB at the width of the longest text."""
    path, jobs = tmp_path / "x.h5", []
    with h5py.File(path, "w") as file:
        for number in range(3):
            array = np.zeros((4, 6000), [("text", h5py.string_dtype()), ("n", "<i4")])
            array["n"] = np.arange(24_000).reshape(4, 6000) + number
            array["text"] = np.array([str(i) for i in range(24_000)], object).reshape(4, 6000)
            array["text"][2, 7] = "ü" * 1000
            file[f"x{number}"] = array
            shown = array.astype([("text", "<U1000"), ("n", "<i4")])
            jobs += [(f"x{number}.npy", np_save(shown), first) for first in (0, 50 * MIB)]
    with Mount(path, f"cache_size={CACHE}", limit=500) as mount:
        together(mount, jobs)
        held(mount, CACHE)


def test_labels_of_wide_categories(tmp_path):
    """Codes in any order look up 64 MiB of categories, eight times what the cache may hold."""
    categories = [b"c%d" % (i * i) for i in range(65_536)]
    categories[9] = b"x" * 1024
    codes = np.random.default_rng(3).integers(0, len(categories), 40_000)
    with ak.Store(tmp_path, "x.h5", [1]) as store:
        shown = ak.put_categorical(store, "c", codes, categories, grouped=False)
    name, expected = f"{store.visible}/c.npy", np_save(shown["c.npy"])
    with Mount(tmp_path, f"cache_size={CACHE}", limit=500) as mount:
        together(mount, [(name, expected, first * MIB) for first in range(0, 32, 4)])
        held(mount, CACHE)


@pytest.fixture
def huge(tmp_path):
    """1200 MiB of zeros in one chunk, some megabytes on the disk."""
    size, deflate = 1200 * MIB, zlib.compressobj(1)
    stored = b"".join([*(deflate.compress(bytes(MIB)) for _ in range(1200)), deflate.flush()])
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", (size,), "u1", chunks=(size,), compression="gzip")
        dataset.id.write_direct_chunk((0,), stored)
        dataset = file.create_dataset("part", (5 * MIB,), "u1", maxshape=(None,), chunks=(size,), compression="gzip")
        dataset.id.write_direct_chunk((0,), stored)
        file["small"] = np.arange(10)
    return path


def test_a_chunk_of_more_than_one_gib_is_refused_by_its_size(huge):
    with Mount(huge, f"cache_size={CACHE}", limit=500) as mount:
        assert (mount / "x.npy").stat().st_size == 1200 * MIB + 128
        for at in (200, 1100 * MIB):
            with open(mount / "x.npy", "rb", buffering=0) as file, pytest.raises(OSError) as caught:
                os.pread(file.fileno(), 1000, at)
            assert caught.value.errno == errno.EFBIG
        assert any("x.npy" in line and "1 GiB" in line for line in mount.errors()), mount.errors()
        np.testing.assert_array_equal(np.load(mount / "small.npy"), np.arange(10))
        held(mount, CACHE)
    done = npyfs("verify", huge, timeout=300)
    assert done.returncode != 0 and "1 GiB" in done.stdout + done.stderr


def test_a_chunk_of_more_than_one_gib_of_which_the_array_has_a_part(huge):
    """libhdf5 decodes all of it, in a worker."""
    [available] = [int(line.split()[1]) << 10 for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:")]
    if available < 5 << 30:
        pytest.skip(f"needs 5 GiB of memory, {available >> 20} MiB are free: chunks of more than 1 GiB are NOT decoded here")
    with Mount(huge, f"cache_size={CACHE}", limit=500) as mount:
        np.testing.assert_array_equal(np.load(mount / "part.npy"), np.zeros(5 * MIB, "u1"))
        held(mount, CACHE)
