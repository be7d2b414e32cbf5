"""The Zarr view in dask and zarr-python: the chunks are the file's own, and everything can be walked.
Judges: h5py for the values, zarr-python for the names."""

import dask
import dask.array as da
import h5py
import numpy as np
import pytest
import zarr

from support.checkouts import write_daf
from support.mount import Mount

pytestmark = pytest.mark.fast

VIEWS = ["zarr", "zarr3"]


def write_chunked(path):
    random = np.random.default_rng(11)
    with h5py.File(path, "w") as file:
        file.create_dataset("gzip", data=random.normal(size=(200, 70)), chunks=(60, 32), compression="gzip", shuffle=True)
        file.create_dataset("cube", data=random.integers(0, 9, (9, 8, 7), dtype="i2"), chunks=(4, 8, 3), compression="lzf")
        file.create_dataset("grown", data=np.arange(5.0), chunks=(8,), maxshape=(None,))
        file["contiguous"] = random.normal(size=(600, 2000))
        file["small"] = np.arange(12, dtype=">i4").reshape(3, 4)


@pytest.mark.parametrize("view", VIEWS)
def test_dask_has_the_chunks_of_the_file(tmp_path, view):
    store = tmp_path / "chunked.h5"
    write_chunked(store)
    with Mount(store) as m, h5py.File(store) as file, dask.config.set(scheduler="threads"):
        # A list: h5py holds its lock while it iterates, and a thread of dask that frees one of h5py's objects would wait for ever.
        for name, dataset in list(file.items()):
            array = da.from_zarr(m / ".npyfs" / view / name)
            if dataset.chunks:
                assert array.chunks == da.core.normalize_chunks(dataset.chunks, dataset.shape)
            assert array.dtype.newbyteorder("=") == dataset.dtype.newbyteorder("=") and array.shape == dataset.shape
            assert np.array_equal(array.compute(), dataset[...]), name
            assert np.allclose(array.sum(axis=0).compute(), dataset[...].sum(axis=0)), name
        # What is contiguous is cut between rows.
        contiguous = da.from_zarr(m / ".npyfs" / view / "contiguous")
        assert contiguous.numblocks[1] == 1 and contiguous.numblocks[0] > 1


def write_nwb_like(path):
    """The structure of an NWB file: groups with types, references, compounds with text, soft links."""
    with h5py.File(path, "w") as file:
        file.attrs["nwb_version"], file.attrs["neurodata_type"] = "2.5.0", "NWBFile"
        file["identifier"] = "session"
        file["file_create_date"] = np.array(["2020-01-01T00:00:00"], dtype=object)
        series = file.create_group("acquisition/series")
        series.attrs["neurodata_type"] = "TimeSeries"
        data = series.create_dataset("data", data=np.arange(40, dtype="i2").reshape(20, 2), chunks=(5, 2), compression="gzip")
        data.attrs["conversion"], data.attrs["unit"], data.attrs["resolution"] = 1e-3, "V", np.nan
        series["timestamps"] = np.arange(20.0)
        series["timestamps"].attrs["rate"] = np.float32(30)
        table = file.create_group("intervals/trials")
        table.attrs["colnames"] = np.array(["start_time", "tags"], dtype=object)
        table["start_time"] = np.arange(4.0)
        table["tags"] = np.array(["a", "b", "c"], dtype=object)
        table["tags_index"] = np.array([1, 1, 2, 3], "u1")
        table["tags_index"].attrs["target"] = table["tags"].ref
        file["stimulus"] = h5py.SoftLink("/acquisition/series")
        file["refs"] = np.array([series.ref, table.ref], dtype=h5py.ref_dtype)
        file["pairs"] = np.array([(1, 2.5, b"ab", True), (3, 4.5, b"c", False)], dtype=[("n", "i4"), ("v", "f8"), ("s", "S3"), ("b", "?")])
        file["nested"] = np.zeros(3, np.dtype([("p", [("x", "f4"), ("y", "f4")]), ("m", "i2", (2, 2)), ("last", "u1")], align=True))
        file["record"] = np.array([(1, "é")], dtype=[("n", "i4"), ("text", h5py.string_dtype())])
        file["nothing"] = h5py.Empty("f8")
        file["zero"] = np.zeros((0, 4))
        file["scalar"] = np.float32(2.5)
        file["long"] = np.zeros(2, "longdouble")
        file.create_group("empty")


@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize("view", VIEWS)
def test_a_store_of_every_kind_can_be_walked(tmp_path, view, consolidated):
    store = tmp_path / "session.nwb"
    write_nwb_like(store)
    with Mount(store) as m, h5py.File(store) as file:
        group = zarr.open_group(m / ".npyfs" / view, mode="r", use_consolidated=consolidated)
        found = dict(group.members(max_depth=None))
        for name, member in found.items():
            if isinstance(member, zarr.Array):
                member[...]
                assert dict(member.attrs) is not None
        data = found["acquisition/series/data"]
        assert np.array_equal(data[...], file["acquisition/series/data"][...])
        assert data.attrs["conversion"] == 1e-3 and data.attrs["unit"] == "V" and "resolution" not in data.attrs
        assert found["intervals/trials"].attrs["colnames"] == ["start_time", "tags"]
        assert found["intervals/trials/tags_index"].attrs["target"] == "/intervals/trials/tags"
        assert list(found["intervals/trials/tags"][...]) == ["a", "b", "c"]
        assert found["identifier"][...] == "session"
        assert np.array_equal(found["stimulus/data"][...], data[...])
        assert found["scalar"][...] == 2.5 and found["zero"].shape == (0, 4)
        pairs = found["pairs"][...]
        for name in ["n", "v", "s", "b"]:
            assert np.array_equal(pairs[name], file["pairs"][name]), name
        assert isinstance(found["empty"], zarr.Group)
        for left_out in ["long", "refs"]:
            assert left_out not in found


@pytest.mark.parametrize("view", VIEWS)
def test_structures_inside_others_are_flat_and_keep_their_values(tmp_path, view):
    store = tmp_path / "nested.h5"
    dtype = np.dtype([("p", [("x", "f4"), ("y", "f4")]), ("m", "i2", (2, 2)), ("last", "u1")], align=True)
    random = np.random.default_rng(13)
    values = np.zeros(5, dtype)
    values["p"]["x"], values["p"]["y"] = random.normal(size=(2, 5))
    values["m"], values["last"] = random.integers(0, 99, (5, 2, 2)), random.integers(0, 99, 5)
    with h5py.File(store, "w") as file:
        file.create_dataset("nested", data=values, chunks=(2,), compression="gzip")
    with Mount(store) as m:
        got = zarr.open_array(m / ".npyfs" / view / "nested", mode="r")[...]
        assert np.array_equal(got["p.x"], values["p"]["x"]) and np.array_equal(got["p.y"], values["p"]["y"])
        for i in range(2):
            for j in range(2):
                assert np.array_equal(got[f"m.{i}.{j}"], values["m"][:, i, j])
        assert np.array_equal(got["last"], values["last"])
        assert got.dtype.itemsize == dtype.itemsize


@pytest.mark.parametrize("view", VIEWS)
def test_a_daf_store_can_be_walked(tmp_path, view):
    store = tmp_path / "data.h5df"
    write_daf(store)
    with Mount(store) as m, h5py.File(store) as file:
        group = zarr.open_group(m / ".npyfs" / view, mode="r")
        names = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        names.remove("__daf__")  # It says what the file is, and no more.
        assert {name for name, member in group.members(max_depth=None) if isinstance(member, zarr.Array)} == set(names)
        for name in names:
            want = file[name]
            want = want.asstr()[...] if h5py.check_string_dtype(want.dtype) and want.dtype.kind == "O" else want[...]
            assert np.array_equal(group[name][...], want), name
