"""Blosc2 and bzip2, which npyfs decodes itself: codecs, filters, element sizes, arrays of several dimensions in boxes, runs, checksums,
filters that were not applied. Judge: h5py with hdf5plugin, which wrote and reads them, and np.save of that."""

import bz2
import itertools

import h5py
import hdf5plugin
import numpy as np
import pytest

from support.mount import Mount
from support.truth import assert_all, visible_array

pytestmark = pytest.mark.fast

CODECS = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
SORTS = {"plain": 0, "bytes": 1, "bits": 2, "delta": 3}
DTYPES = ("u1", "<i2", ">i4", "<f8", "<c16", "S3", "S20", "V200")
# Chunks of one block, of many with a rest, and boxes that blocks do not fill.
SHAPES = {(5,): (5,), (1003,): (250,), (20_001,): (20_001,), (61, 47): (16, 47), (60, 50): (17, 13), (100, 230): (100, 230),
          (5, 4, 33): (2, 4, 33), (7, 6, 5, 40): (7, 5, 3, 31), (20, 21, 43): (20, 21, 43), (3, 3, 3, 3, 3): (3, 3, 2, 3, 3)}


def values(dtype, shape):
    random = np.random.default_rng(3)
    size, item = int(np.prod(shape)), np.dtype(dtype).itemsize
    if dtype.startswith(("S", "V")):
        halves = random.bytes(size // 2 * item) + bytes((size - size // 2) * item)
        return np.frombuffer(halves, dtype).reshape(shape)
    numbers = np.cumsum(random.integers(-3, 9, size))
    numbers[size // 3 : size // 2] = 7
    return (numbers * 1.5).astype(dtype).reshape(shape)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("blosc2") / "blosc2.h5"
    with h5py.File(path, "w", libver="latest") as file:
        pipelines = {f"{codec}_{sort}": hdf5plugin.Blosc2(cname=codec, clevel=1 + number % 9, filters=SORTS[sort])
                     for number, (codec, sort) in enumerate(itertools.product(CODECS, SORTS))}
        pipelines["stored"] = hdf5plugin.Blosc2(clevel=0)
        pipelines["bzip2"] = hdf5plugin.BZip2()
        pipelines["bzip2_small_blocks"] = hdf5plugin.BZip2(blocksize=1)
        for number, (name, plugin) in enumerate(pipelines.items()):
            for turn, (shape, chunks) in enumerate(SHAPES.items()):
                dtype = DTYPES[(number + turn) % len(DTYPES)]
                file.create_dataset(f"{name}/{turn}_{dtype.strip('<>')}", data=values(dtype, shape), chunks=chunks, **plugin)
            for checked, order in {"inside": True, "behind": False}.items():
                plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                plist.set_chunk((40, 30))
                options = plugin.filter_options if hasattr(plugin, "filter_options") else ()
                for step in (True, False):
                    if step == order:
                        plist.set_fletcher32()
                    else:
                        plist.set_filter(plugin.filter_id, 0, tuple(options))
                space = h5py.h5s.create_simple((100, 70))
                dataset = h5py.Dataset(h5py.h5d.create(file[name].id, f"checked_{checked}".encode(), h5py.h5t.py_create(np.dtype("<i4")), space, plist))
                dataset[()] = values("<i4", (100, 70))
            noise = np.random.default_rng(number).integers(0, 2**62, 20_000)
            file.create_dataset(f"{name}/noise", data=noise, chunks=(9_000,), **plugin)
            file.create_dataset(f"{name}/zeros", data=np.zeros((90, 110), "<f4"), chunks=(33, 64), **plugin)
            file.create_dataset(f"{name}/nan", data=np.full((90, 110), np.nan, "<f8"), chunks=(33, 64), **plugin)
            file.create_dataset(f"{name}/ones", data=np.full(20_000, 1.0, "<f8"), chunks=(20_000,), **plugin)
            part = file.create_dataset(f"{name}/part", (100, 100), "<i2", chunks=(30, 30), fillvalue=9, shuffle=turn % 2 == 0, **plugin)
            part[35:80, 3:50] = 4
            # Filters that were not applied to a chunk.
            mask = file.create_dataset(f"{name}/mask", (40, 30), "<i4", chunks=(20, 30), **plugin)
            mask[:20] = values("<i4", (20, 30))
            mask.id.write_direct_chunk((20, 0), values("<i4", (20, 30)).tobytes(), 1)
        # Through libhdf5: two filters that compress, and elements to be converted.
        for plugin, name in ((hdf5plugin.Blosc2(), "blosc2"), (hdf5plugin.BZip2(), "bzip2")):
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_chunk((1000,))
            plist.set_filter(plugin.filter_id, 0, tuple(plugin.filter_options))
            plist.set_deflate(4)
            twice = h5py.Dataset(h5py.h5d.create(file.id, f"twice_{name}".encode(), h5py.h5t.py_create(np.dtype("<i4")), h5py.h5s.create_simple((3000,)), plist))
            twice[()] = values("<i4", (3000,))
            text = np.array([f"ä{i % 50}" for i in range(3000)], object)
            if name == "bzip2":  # hdf5plugin's Blosc2 takes no text of variable length
                file.create_dataset(f"text_{name}", data=text, dtype=h5py.string_dtype(), chunks=(500,), **plugin)
            file.create_dataset(f"boolean_{name}", data=np.arange(3000) % 3 == 0, chunks=(500,), **plugin)
    return path


def test_every_array_is_what_h5py_reads(store):
    with h5py.File(store, "r") as file:
        truths = {}
        file.visititems(lambda name, item: truths.update({f"{name}.npy": visible_array(item)}) if isinstance(item, h5py.Dataset) else None)
    with Mount(store, limit=200) as mount:
        assert_all(mount.path, truths, at_least=23 * (len(SHAPES) + 8) + 5)
        assert mount.info("zstd_bytes/checked_inside.npy")["filters"][1]["available"] is True
        assert mount.status()["worker_restarts"] == 0


def test_a_row_of_blocks_is_read_alone(store):
    """Parts of an array, in any order."""
    with h5py.File(store, "r") as file, Mount(store) as mount:
        name = next(name for name in file["zlib_bits"] if name.startswith("5_"))
        truth, shown = file[f"zlib_bits/{name}"][()], np.load(mount / f"zlib_bits/{name}.npy", mmap_mode="r")
        for row in (99, 0, 50, 17):
            assert shown[row].tobytes() == truth[row].tobytes()
        del shown  # which keeps the file open


@pytest.mark.parametrize("name", [f"{codec}_bytes" for codec in CODECS] + ["bzip2"])
def test_a_damaged_chunk_is_an_error(store, tmp_path, name):
    damaged = tmp_path / "damaged.h5"
    damaged.write_bytes(store.read_bytes())
    with h5py.File(store, "r") as file:
        truth = file[f"{name}/checked_inside"][()]
        places = [file[f"{name}/checked_inside"].id.get_chunk_info(i) for i in range(4)]
    with open(damaged, "r+b") as stream:
        for number, chunk in enumerate(places):
            # The beginning, somewhere in the header, and in the data: with a checksum inside nothing passes.
            stream.seek(chunk.byte_offset + (0, 24, chunk.size // 2, chunk.size // 3)[number])
            stream.write(b"\xff" * 12)
    with Mount(damaged) as mount:
        with pytest.raises(OSError, match="Input/output error"):
            (mount / f"{name}/checked_inside.npy").read_bytes()
        assert mount.errors()
        np.testing.assert_array_equal(np.load(mount / f"{name}/noise.npy"), h5py.File(store)[f"{name}/noise"][()])
        assert mount.status()["worker_restarts"] == 0
    assert truth.any()


def test_streams_of_other_lengths(tmp_path):
    """A bzip2 stream that holds less, or more, than a chunk."""
    store = tmp_path / "lengths.h5"
    with h5py.File(store, "w") as file:
        for name, count in {"right": 400, "short": 399, "long": 401}.items():
            dataset = file.create_dataset(name, (100,), "<i4", chunks=(100,), **hdf5plugin.BZip2())
            dataset.id.write_direct_chunk((0,), bz2.compress(bytes(range(200)) * 2 + bytes(count - 400) if count > 400 else (bytes(range(200)) * 2)[:count]))
    with Mount(store) as mount, h5py.File(store) as file:
        np.testing.assert_array_equal(np.load(mount / "right.npy"), file["right"][()])
        for name in ("short", "long"):
            with pytest.raises(OSError, match="Input/output error"):
                (mount / f"{name}.npy").read_bytes()
