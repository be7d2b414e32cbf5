"""Blosc chunks, which npyfs decodes itself: every codec, shuffle, level, element size and size of the last block.
Judge: h5py with hdf5plugin, which wrote and reads them, and np.save of that."""

import errno
import itertools
import os

import h5py
import hdf5plugin
import numpy as np
import pytest

from support.mount import Mount
from support.truth import assert_all, walk

CODECS = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
SHUFFLES = (0, 1, 2)
LEVELS = range(10)
DTYPES = ("u1", "<i2", "S3", ">f4", "<f8", "<c16", "S20")
# Elements of a chunk: too few to compress or to split, one block and a rest, several blocks and a rest.
SIZES = (5, 130, 1000, 1027, 9001, 70003)


def values(dtype, size, noisy):
    random = np.random.default_rng(size)
    if noisy:  # halves that shrink, and halves that do not: some streams are stored as they are
        item = np.dtype(dtype).itemsize
        return np.frombuffer(random.bytes(size // 2 * item) + bytes((size - size // 2) * item), dtype)
    numbers = np.cumsum(random.integers(-3, 9, size))
    return numbers.astype(dtype) if dtype.startswith("S") else (numbers * 1.5).astype(dtype)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("blosc") / "blosc.h5"
    with h5py.File(path, "w", libver="latest") as file:
        for number, (codec, shuffle, level) in enumerate(itertools.product(CODECS, SHUFFLES, LEVELS)):
            plugin = hdf5plugin.Blosc(cname=codec, shuffle=shuffle, clevel=level)
            for size in SIZES[: 6 if level in (1, 5, 9) else 5]:
                dtype = DTYPES[(number + size) % len(DTYPES)]
                data = values(dtype, size, noisy=number % 4 == 0)
                name = f"{codec}/{shuffle}/{level}_{size}"
                file.create_dataset(name, data=data, chunks=(size,), fletcher32=number % 7 == 0, **plugin)
            for dtype in DTYPES:
                name = f"{codec}/{shuffle}/{level}_{dtype.replace('<', 'le_').replace('>', 'be_')}"
                file.create_dataset(name, data=values(dtype, 1500, noisy=False), chunks=(1000,), **plugin)
    return path


@pytest.mark.parametrize("codec", CODECS)
def test_every_cell_is_what_h5py_reads(store, codec):
    truths = {name: array for name, array in walk(store).items() if name.startswith(f"{codec}/")}
    with Mount(store) as mount:
        assert_all(mount.path, truths, at_least=len(SHUFFLES) * (len(LEVELS) * (5 + len(DTYPES)) + 3))
        assert mount.errors() == []


def test_masked_and_shuffled_twice(tmp_path):
    """A chunk stored without the filter, and Blosc behind HDF5's own shuffle."""
    path = tmp_path / "masked.h5"
    data = np.arange(4000, dtype="<i4").reshape(4, 1000)
    with h5py.File(path, "w") as file:
        file.create_dataset("shuffled", data=data, chunks=(1, 1000), shuffle=True, **hdf5plugin.Blosc(cname="zstd"))
        masked = file.create_dataset("masked", data=data, chunks=(1, 1000), **hdf5plugin.Blosc(cname="lz4"))
        masked.id.write_direct_chunk((2, 0), data[2].tobytes(), filter_mask=1)
        file.flush()
        assert masked.id.get_chunk_info(2).filter_mask == 1
    with Mount(path) as mount:
        assert_all(mount.path, {"shuffled.npy": data, "masked.npy": data}, at_least=2)


def test_a_damaged_frame_is_an_error_of_its_own_chunk(tmp_path):
    """The message is that of npyfs's decoder, so it is the one that decodes."""
    path = tmp_path / "damaged.h5"
    data = np.arange(40_000, dtype="<i4").reshape(4, 10_000)
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("x", data=data, chunks=(1, 10_000), **hdf5plugin.Blosc(cname="lz4"))
        file.flush()
        chunk = dataset.id.get_chunk_info(1)
        assert chunk.filter_mask == 0
    with open(path, "r+b") as stream:
        stream.seek(chunk.byte_offset)
        stream.write(b"\x05")  # the frame's version: one of Blosc 2
    with Mount(path) as mount:
        with open(mount / "x.npy", "rb", buffering=0) as stream:
            stream.seek(128 + 3 * 40_000)
            assert stream.readall() == data[3].tobytes()
            stream.seek(128 + 40_000)
            with pytest.raises(OSError, match="Input/output error"):
                stream.read(4096)
        assert any("blosc: not a frame of Blosc 1" in line for line in mount.errors())


def test_samples_of_chunks_with_many_blocks(tmp_path):
    """Threads share the blocks of such a chunk when it is wanted alone; a damaged block costs its own chunk."""
    path, count = tmp_path / "blocks.h5", 300_001
    data = np.cumsum(np.random.default_rng(5).integers(-3, 9, 6 * count)).astype("<i4")
    for codec in ("zstd", "zlib"):
        with h5py.File(path, "w") as file:
            plugin = hdf5plugin.Blosc(cname=codec, shuffle=1, clevel=3)
            chunks = file.create_dataset("x", data=data, chunks=(count,), **plugin).id
            damaged = chunks.get_chunk_info(4)
            frame = chunks.read_direct_chunk((0,))[1]
            size, block = (int.from_bytes(frame[at : at + 4], "little") for at in (4, 8))
            assert size > 2 * block
        with open(path, "r+b") as file:
            file.seek(damaged.byte_offset + 16 + 4 * 2)
            file.write(b"\xff\xff\xff\x7f")  # where the third block begins
        with Mount(path) as mount:
            # The first sample comes through the page cache, with what lies around it.
            for chunk in (1, 0, 4, 2, 1, 4, 5):
                handle = os.open(mount / "x.npy", os.O_RDONLY)
                try:
                    want = data[chunk * count : (chunk + 1) * count].tobytes()
                    got = os.pread(handle, len(want), 128 + chunk * len(want))
                    assert chunk != 4 and got == want
                except OSError as problem:
                    assert chunk == 4 and problem.errno == errno.EIO
                finally:
                    os.close(handle)
