"""Sequences of variable length: a directory of what all of them hold, and of where each begins. Judges: h5py, and what was
written with it."""

import os

import h5py
import hdf5plugin
import numpy as np
import pytest

from support.mount import Mount
from support.process import npyfs

pytestmark = pytest.mark.fast

DTYPES = ("i1", "<u2", ">i4", "<i8", "<f4", ">f8", "<c16", "S5", [("a", "<i4"), ("b", ">f8")])
SHAPES = {"none": (0,), "one": (1,), "row": (7,), "blocks": (5000,), "matrix": (30, 40), "cube": (2, 3, 4), "flat": (3, 0)}


def sequences(dtype, shape, seed=1):
    random = np.random.default_rng(seed)
    rows = np.empty(shape, object)
    for number, at in enumerate(np.ndindex(shape)):
        count = 0 if number % 5 == 3 else int(random.integers(0, 9))
        values = random.integers(0, 120, count)
        if isinstance(dtype, list):
            row = np.zeros(count, dtype)
            row["a"], row["b"] = values, values / 2
        else:
            row = values.astype(dtype)
        rows[at] = row
    return rows


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("sequences") / "sequences.h5"
    with h5py.File(path, "w", libver="latest") as file:
        for number, dtype in enumerate(DTYPES):
            for name, shape in SHAPES.items():
                dataset = file.create_dataset(f"{number}/{name}", shape, h5py.vlen_dtype(np.dtype(dtype)))
                rows = sequences(dtype, shape, number)
                for at in np.ndindex(shape):
                    dataset[at] = rows[at]
        file.create_dataset("never", (10,), h5py.vlen_dtype("<i4"))
        part = file.create_dataset("part", (1000,), h5py.vlen_dtype("<f8"), chunks=(100,), compression="gzip")
        for at in range(250, 260):
            part[at] = np.arange(at)
        scalar = file.create_dataset("scalar", (), h5py.vlen_dtype("<i4"))
        scalar[()] = np.arange(3, dtype="<i4")
        long = file.create_dataset("long", (3,), h5py.vlen_dtype("<i8"), chunks=(2,), maxshape=(None,), **hdf5plugin.Zstd())
        for at in range(3):
            long[at] = np.arange(100_000 * at, dtype="<i8")
        file["g/soft"] = h5py.SoftLink("/long")
        file["long"].attrs["units"] = "mV"
        flags = file.create_dataset("booleans", (4,), h5py.vlen_dtype(np.dtype("?")))
        for at in range(4):
            flags[at] = np.arange(at) % 2 == 0
        # No form: sequences of references.
        file.create_dataset("references", (2,), h5py.vlen_dtype(h5py.ref_dtype))
    return path


def datasets(file):
    found = {}
    file.visititems(lambda name, item: found.update({name: item}) if isinstance(item, h5py.Dataset) and name != "references" else None)
    return found


def test_values_and_offsets_are_what_h5py_reads(store):
    with h5py.File(store) as file, Mount(store, limit=150) as mount:
        found = datasets(file)
        assert len(found) > len(DTYPES) * len(SHAPES)
        for name, dataset in found.items():
            base = h5py.check_vlen_dtype(dataset.dtype)
            rows = dataset[()]
            number, _, shape = name.partition("/")
            if shape in SHAPES:  # h5py 3.16 reads many elements of the other byte order without turning them: what was written counts
                rows = sequences(DTYPES[int(number)], SHAPES[shape], int(number))
            rows = [np.asarray(row, base) for row in rows.ravel()] if dataset.shape else [np.asarray(rows, base)]
            assert sorted(os.listdir(mount / name)) == ["offsets.npy", "values.npy"]
            offsets, values = np.load(mount / name / "offsets.npy"), np.load(mount / name / "values.npy")
            assert offsets.dtype == np.int64 and offsets.shape == (len(rows) + 1,) and values.dtype == base, name
            np.testing.assert_array_equal(offsets, np.cumsum([0] + [len(row) for row in rows]), name)
            assert values.tobytes() == b"".join(row.tobytes() for row in rows), name
            for member in ("offsets", "values"):
                path = mount / name / f"{member}.npy"
                assert len(path.read_bytes()) == path.stat().st_size
        assert mount.status()["worker_restarts"] == 0


def test_parts_of_them(store):
    with h5py.File(store) as file, Mount(store) as mount:
        rows = file["3/blocks"][()]
        values = np.load(mount / "3/blocks/values.npy", mmap_mode="r")
        offsets = np.load(mount / "3/blocks/offsets.npy", mmap_mode="r")
        for at in (4999, 0, 2048, 2047, 4096, 3000):
            np.testing.assert_array_equal(values[offsets[at]:offsets[at + 1]], rows[at])
        del values, offsets
        assert os.readlink(mount / "g/soft") == "../long"
        np.testing.assert_array_equal(np.load(mount / "g/soft/offsets.npy"), [0, 0, 100_000, 300_000])


def test_what_info_says(store):
    with Mount(store) as mount:
        for path in ("4/matrix", "4/matrix/values.npy"):
            info = mount.info(path)
            assert info["dtype"] == "<f4" and info["shape"] == [30, 40] and "sequences" in info["shown_as"] and info["path"] == "/4/matrix"
        long = mount.info("long")
        assert long["attributes"] == {"units": "mV"} and long["chunks"] == [2] and long["filters"][0]["id"] == 32015
        left_out = {entry["name"]: entry["reason"] for entry in mount.info()["left_out"]}
        assert left_out == {"references": "variable-length sequences"}
    assert npyfs("verify", store).returncode == 0
    assert "values.npy" in npyfs("ls", store, "long", check=True).stdout


def test_lengths_and_addresses_that_cannot_be(tmp_path):
    """Each sequence is a length, and a place in a heap: a file may claim anything there."""
    store = tmp_path / "store.h5"
    with h5py.File(store, "w") as file:
        for name in "abcd":
            dataset = file.create_dataset(name, (4,), h5py.vlen_dtype("<i4"))
            for at in range(4):
                dataset[at] = np.arange(5) + at
        places = {name: file[name].id.get_offset() for name in "abcd"}
        file["fine"] = np.arange(3)
    content = bytearray(store.read_bytes())
    content[places["a"]:places["a"] + 4] = b"\xff\xff\xff\xff"
    content[places["b"] + 4:places["b"] + 12] = (2**40).to_bytes(8, "little")
    content[places["c"] + 12:places["c"] + 16] = (77).to_bytes(4, "little")
    store.write_bytes(content)
    with Mount(store) as mount:
        np.testing.assert_array_equal(np.load(mount / "d/values.npy"), np.concatenate([np.arange(5) + at for at in range(4)]))
        np.testing.assert_array_equal(np.load(mount / "fine.npy"), np.arange(3))
        for name in "abc":
            for member in ("values", "offsets"):
                with pytest.raises(OSError, match="Input/output error"):
                    (mount / name / f"{member}.npy").read_bytes()
        np.testing.assert_array_equal(np.load(mount / "d/offsets.npy"), [0, 5, 10, 15, 20])
