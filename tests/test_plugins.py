"""Filters that libhdf5 has only as plug-ins and npyfs decodes itself: lz4, zstd, bitshuffle.
Judge: h5py with hdf5plugin, which wrote and reads them, and np.save of that."""

import struct

import h5py
import hdf5plugin
import numpy as np
import pytest

from support.mount import Mount
from support.process import run
from support.truth import assert_all, visible_array

pytestmark = pytest.mark.fast

FILTERS = {
    "lz4": hdf5plugin.LZ4(),
    "lz4_small_blocks": hdf5plugin.LZ4(nbytes=1024),
    "zstd": hdf5plugin.Zstd(),
    "zstd_19": hdf5plugin.Zstd(clevel=19),
    "bitshuffle_none": hdf5plugin.Bitshuffle(cname="none"),
    "bitshuffle_lz4": hdf5plugin.Bitshuffle(cname="lz4"),
    "bitshuffle_lz4_block": hdf5plugin.Bitshuffle(nelems=64, cname="lz4"),
    "bitshuffle_zstd": hdf5plugin.Bitshuffle(cname="zstd"),
}
DTYPES = ("u1", "<i2", ">i2", "<i4", "<f4", ">f8", "<i8", "<c16", "S3", "S5")
SHAPES = {(1000,): (1000,), (1003,): (250,), (61, 47): (16, 47), (60, 50): (17, 13), (5, 4, 33): (2, 4, 33)}


def values(dtype, shape):
    random = np.random.default_rng(3)
    numbers = np.cumsum(random.integers(-3, 9, int(np.prod(shape)))).reshape(shape)
    if dtype.startswith("S"):
        return numbers.astype(dtype)
    return (numbers * 1.5).astype(dtype)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("plugins") / "plugins.h5"
    with h5py.File(path, "w", libver="latest") as file:
        for name, plugin in FILTERS.items():
            for dtype in DTYPES:
                for number, (shape, chunks) in enumerate(SHAPES.items()):
                    data = values(dtype, shape)
                    label = dtype.replace("<", "le_").replace(">", "be_")
                    file.create_dataset(f"{name}/{label}_{number}", data=data, chunks=chunks, **plugin)
                    if dtype == "<i4":
                        # noise does not shrink: blocks are stored as they are
                        noise = np.random.default_rng(number).integers(-2**31, 2**31, shape, dtype="<i8").astype("<i4")
                        file.create_dataset(f"{name}/noise_{number}", data=noise, chunks=chunks, **plugin)
                        file.create_dataset(f"{name}/checked_{number}", data=data, chunks=chunks, fletcher32=True, **plugin)
    return path


def test_every_cell_is_what_h5py_reads(store):
    with h5py.File(store, "r") as file:
        truths = {}
        file.visititems(lambda name, item: truths.update({f"{name}.npy": visible_array(item)}) if isinstance(item, h5py.Dataset) else None)
    with Mount(store, limit=200) as mount:
        assert_all(mount.path, truths, at_least=len(FILTERS) * len(SHAPES) * (len(DTYPES) + 2))
        for name in FILTERS:
            assert [step["available"] for step in mount.info(f"{name}/checked_0.npy")["filters"]] == [True, True]


def test_a_damaged_chunk_is_an_error(store, tmp_path):
    damaged = tmp_path / "damaged.h5"
    damaged.write_bytes(store.read_bytes())
    names = [f"{name}/noise_0" for name in FILTERS if name != "bitshuffle_none"]
    with h5py.File(store, "r") as file:
        places = {name: file[name].id.get_chunk_info(0) for name in names}
    with open(damaged, "r+b") as stream:
        for chunk in places.values():
            stream.seek(chunk.byte_offset)
            stream.write(b"\xff" * 16)
    with Mount(damaged) as mount:
        for name in names:
            with pytest.raises(OSError, match="Input/output error"):
                (mount / f"{name}.npy").read_bytes()
        with h5py.File(store, "r") as file:
            assert np.array_equal(np.load(mount / "zstd/le_i4_1.npy"), file["zstd/le_i4_1"][()])


def test_a_name_that_looks_like_an_errno_is_no_answer_to_the_kernel(tmp_path):
    """libhdf5 tells errnos in words, and names of a file stand among them. The kernel takes no errno from 512 on, and would
    leave the reader waiting. The filter is missing in the source of a virtual dataset, where libhdf5 says it in its words."""
    path, data = tmp_path / "forged.h5", np.arange(64, dtype="<i4").reshape(8, 8)
    with h5py.File(path, "w", libver=("earliest", "v110")) as file:
        file.create_dataset("source", data=data, chunks=(4, 4), **FILTERS["bitshuffle_none"])
        layout = h5py.VirtualLayout((8, 8), "<i4")
        layout[:] = h5py.VirtualSource(".", "source", (8, 8))
        file.create_virtual_dataset("virtual", layout)
    stored = bytearray(path.read_bytes())
    name = stored.index(b"bitshuffle; see")
    end = stored.index(b"\0", name)
    stored[name:end] = b"x, errno = 4000, error message = 'y".ljust(end - name, b"\0")
    number = stored.rindex(struct.pack("<H", hdf5plugin.BSHUF_ID), 0, name)
    stored[number : number + 2] = struct.pack("<H", 40000)
    path.write_bytes(stored)
    with Mount(path) as mount:
        done = run(["cat", mount / "virtual.npy"], timeout=30)
        assert done.returncode == 1 and "Input/output error" in done.stderr
        assert any("errno = 4000" in line for line in mount.errors())
