"""The daemon stays under cache_size + 64 MiB whatever is read. Judges: the kernel's account of its peak (VmHWM; the workers are
processes of their own), and the digest of what h5py reads, so that what was measured was a right read.

Each kind of read has a store and a mount of its own, with more to read than the daemon may use."""

import os
import random
import subprocess

import h5py
import hdf5plugin
import numpy as np
import pytest
import scipy.sparse

from support import daf
from support.mount import Mount
from support.sweep_layouts import EARLY, properties
from support.truth import np_save, sha256

MIB = 1 << 20
CACHE, EXTRA = 32 * MIB, 64 * MIB

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]


def numbers(count):
    """Compresses to a quarter or so, fast."""
    return (np.arange(count, dtype="<u4") * np.uint32(2654435761) >> np.uint32(20)).astype("<i4")


def contiguous(file):
    file["x"] = numbers(32 * MIB)


def small_chunks(file):
    file.create_dataset("x", data=numbers(32 * MIB), chunks=(1024,), compression="lzf")


def whole_rows(file):
    file.create_dataset("x", data=numbers(32 * MIB).reshape(32, 1024, 1024), chunks=(1, 1024, 1024), compression="lzf", shuffle=True)


def across_rows(file):
    file.create_dataset("x", data=numbers(32 * MIB).reshape(4096, 8192), chunks=(512, 256), compression="lzf")


def libhdf5_chunks(file):
    file.create_dataset("x", data=numbers(32 * MIB), chunks=(256 << 10,), scaleoffset=0)


def blosc(file):
    file.create_dataset("x", data=numbers(32 * MIB), chunks=(256 << 10,), **hdf5plugin.Blosc(cname="lz4"))


def larger_than_the_cache(file):
    file.create_dataset("x", data=numbers(50 * MIB), chunks=(10 * MIB,), compression="lzf")


def variable_text(file):
    words = [b"%d" % i * (1 + i % 5) for i in range(40_000)]
    file["x"] = np.array(words * 20, object)


def fixed_text(file):
    file.create_dataset("x", data=np.char.mod("%0100d", np.arange(1_000_000)).astype("S100"), chunks=(10_000,), compression="lzf")


def unicode_text(file):
    words = np.array([f"größe{i:095}".encode() for i in range(1000)], dtype=h5py.string_dtype("utf-8", 110))
    file.create_dataset("x", data=np.resize(words, 300_000), chunks=(10_000,), compression="lzf")


def virtual(file):
    file["parts"] = numbers(32 * MIB).reshape(32, -1)
    layout = h5py.VirtualLayout((16, 2, MIB), "<i4")
    for i in range(16):
        layout[i] = h5py.VirtualSource(".", "parts", (32, MIB), "<i4")[2 * i:2 * i + 2]
    file.create_virtual_dataset("x", layout)


def compound(file):
    kind = np.dtype([("a", "<i4"), ("b", "<f8", (12,)), ("c", "S28")])
    values = np.zeros(1_000_000, kind)
    values["a"] = numbers(len(values))
    file.create_dataset("x", data=values, chunks=(8192,), compression="lzf")


def padded_compound(file):
    """libhdf5 packs the records: their padding must not show."""
    kind = np.dtype({"names": ["a", "b"], "formats": ["<i4", "<f8"], "offsets": [0, 56], "itemsize": 128})
    values = np.zeros(1_000_000, kind)
    values["a"] = numbers(len(values))
    file.create_dataset("x", data=values, chunks=(8192,), compression="lzf")


def wide_compact(file):
    for i in range(64):
        file.create_dataset(f"x{i}", data=numbers(16_000) + np.int32(i), dcpl=properties(layout=[h5py.h5d.COMPACT]))


def many_chunks(file):
    """Three tables of a million chunks each."""
    for i in range(3):
        dataset = file.create_dataset(f"x{i}", (4_000_000,), "<i4", chunks=(4,), maxshape=(None,), dcpl=properties(alloc_time=[EARLY]))
        dataset[:1000] = numbers(1000)


def many_chunks_truth():
    array = np.zeros(4_000_000, "<i4")
    array[:1000] = numbers(1000)
    return array


def never_written(file):
    file.create_dataset("x", (32 * MIB,), "<i4", chunks=(1000,), fillvalue=7)


READS = [contiguous, small_chunks, whole_rows, across_rows, libhdf5_chunks, blosc, larger_than_the_cache, variable_text, fixed_text,
         unicode_text, virtual, compound, padded_compound, wide_compact, never_written]


@pytest.fixture
def mounted(tmp_path, capsys, request):
    """Writes a store, mounts it with a small cache, and at the end holds the daemon to its limit."""
    opened = []

    def mount(write, libver="earliest"):
        path = tmp_path / "store.h5"
        with h5py.File(path, "w", libver=libver) as file:
            write(file)
        with open(path, "rb") as stream:  # from the disk: direct reads are held to the limit, too
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        opened.append(Mount(path, f"cache_size={CACHE}", limit=500))
        return opened[0].__enter__()

    yield mount
    with_peak = opened[0]
    peak = with_peak.peak_memory() / MIB
    with_peak.__exit__(None, None, None)
    with capsys.disabled():
        print(f"\n{request.node.name}: peak {peak:.0f} MiB of {(CACHE + EXTRA) // MIB}", end=" ")
    assert peak * MIB < CACHE + EXTRA, f"the daemon used {peak:.1f} MiB"


def truth(dataset):
    """The array that is shown, for the types above."""
    text = h5py.check_string_dtype(dataset.dtype)
    if text and text.encoding == "utf-8":
        return np.char.decode(dataset[()].astype("S"), "utf-8")
    return np.array(dataset[()].tolist(), "S") if text and text.length is None else dataset[()]


def digests(paths):
    """What sha256sum says of files that are read at the same time."""
    readers = [subprocess.Popen(["sha256sum", path], stdout=subprocess.PIPE, text=True) for path in paths]
    return [reader.communicate(timeout=400)[0].split()[0] for reader in readers]


@pytest.mark.parametrize("write", READS, ids=lambda write: write.__name__)
def test_reading_all(mounted, write):
    mount = mounted(write)
    with h5py.File(mount.store, "r") as file:
        for name in file:
            if name.startswith("x"):
                assert digests([mount / f"{name}.npy"]) == [sha256(np_save(truth(file[name])))], name


def test_tables_of_a_million_chunks(mounted):
    """One reader after the other, then all together: there is no room for all tables, libhdf5 reads what is left over."""
    mount, wanted = mounted(many_chunks, "v110"), sha256(np_save(many_chunks_truth()))
    for i in range(3):
        assert digests([mount / f"x{i}.npy"]) == [wanted]
    for i in range(3):  # not from the kernel's memory
        with open(mount / f"x{i}.npy", "rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert digests([mount / f"x{i}.npy" for i in range(3)]) == [wanted] * 3


def test_64_readers_of_different_datasets(mounted):
    def write(file):
        for i in range(64):
            file.create_dataset(f"x{i}", data=numbers(MIB) + np.int32(i), chunks=(128 << 10,), compression="lzf")

    mount = mounted(write)
    expected = [sha256(np_save(numbers(MIB) + np.int32(i))) for i in range(64)]
    assert digests([mount / f"x{i}.npy" for i in range(64)]) == expected


@pytest.mark.parametrize("write", [whole_rows, across_rows, libhdf5_chunks, larger_than_the_cache], ids=lambda write: write.__name__)
def test_random_access(mounted, write):
    mount = mounted(write)
    with h5py.File(mount.store, "r") as file:
        payload = np_save(file["x"][()])[128:]
    places = random.Random(5)
    handle = os.open(mount / "x.npy", os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
        for _ in range(12 if write is larger_than_the_cache else 200):
            at = places.randrange(len(payload) - 5000)
            assert os.pread(handle, 5000, 128 + at) == payload[at:at + 5000]
    finally:
        os.close(handle)


def test_a_sparse_matrix_as_npz(mounted):
    matrix = scipy.sparse.csr_matrix((np.ones(8 * MIB, "<f8"), np.tile(np.arange(1024, dtype="<i4"), 8 * 1024),
                                      np.arange(0, 8 * MIB + 1, 1024, dtype="<i4")), shape=(8192, 1024))

    def write(file):
        daf.start(file)
        for axis, size in {"cell": 8192, "gene": 1024}.items():
            file[f"{axis}#"] = np.array([f"{axis}{i}" for i in range(size)], "S")
        daf.put_sparse(file, "cell,gene#m", matrix)

    mount = mounted(write)
    assert daf.equal(scipy.sparse.load_npz(mount / "cell,gene#m.npz"), matrix)


def test_listing_20_000_datasets(mounted):
    def write(file):
        for i in range(20_000):
            file.create_dataset(f"dataset_{i:05}", (3,), "<i4")

    mount = mounted(write)
    assert sorted(os.listdir(mount.path)) == [f"dataset_{i:05}.npy" for i in range(20_000)]
    assert {entry.stat().st_size for entry in os.scandir(mount.path)} == {128 + 12}
    assert len(list((mount / ".npyfs/info").iterdir())) == 20_000
