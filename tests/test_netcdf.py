"""netCDF-4 and HDF5's dimension scales: names of dimensions, references in attributes, dimensions without a variable.
Judges: netCDF4 and h5netcdf for the names of dimensions, h5py for what references lead to."""

import os

import h5netcdf
import h5py
import netCDF4
import numpy as np
import pytest

from support.mount import Mount
from support.process import npyfs

pytestmark = pytest.mark.fast


def write_netcdf4(path):
    with netCDF4.Dataset(path, "w") as file:
        for name, length in [("time", None), ("y", 3), ("x", 4), ("only", 7), ("unused", 2)]:
            file.createDimension(name, length)
        file.createVariable("time", "f8", ("time",))[:] = np.arange(5)
        file.createVariable("y", "f4", ("y",))[:] = np.arange(3)
        file.createVariable("t", "f4", ("time", "y", "x"), zlib=True)[:] = np.arange(60).reshape(5, 3, 4)
        file.createVariable("of_only", "i2", ("only", "y"))[:] = 1
        file.createVariable("zero", "i4", ())[...] = 3
        # A coordinate variable of two dimensions: it has the name of its first.
        file.createDimension("label", 2)
        file.createVariable("label", "S1", ("label", "x"))[:] = np.full((2, 4), b"a")
        # Made in the order that makes the library write _Netcdf4Coordinates.
        below = file.createGroup("deep").createGroup("er")
        below.createDimension("z", 6)
        below.createVariable("v", "i8", ("z", "x", "z"))[:] = 2
        below.createVariable("z", "i8", ("z",))[:] = np.arange(6)


def write_h5netcdf(path):
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"x": 3, "y": 4, "none": 2}
        file.create_variable("x", ("x",), "f4", data=np.arange(3, dtype="f4"))
        file.create_variable("a", ("x", "y"), "i4", data=np.arange(12, dtype="i4").reshape(3, 4))
        file.create_group("g").create_variable("b", ("y", "x"), "i4", data=np.zeros((4, 3), "i4"))


def variables(group, path=""):
    for name, variable in group.variables.items():
        yield f"{path}{name}", variable
    for name, below in group.groups.items():
        yield from variables(below, f"{path}{name}/")


def dimensions(group, path=""):
    for name, dimension in group.dimensions.items():
        yield f"{path}{name}", dimension
    for name, below in group.groups.items():
        yield from dimensions(below, f"{path}{name}/")


@pytest.mark.parametrize("write", [write_netcdf4, write_h5netcdf])
def test_axes_and_dimensions_are_those_of_the_libraries(tmp_path, write):
    store = tmp_path / "store.nc"
    write(store)
    with Mount(store) as mount, netCDF4.Dataset(store) as file:
        shown = {str(path.relative_to(mount.path)) for path in mount.path.rglob("*.npy")}
        assert shown == {f"{name}.npy" for name, _ in variables(file)}
        for name, variable in variables(file):
            axes = mount.info(f"{name}.npy").get("axes", [])
            assert tuple(axes) == variable.dimensions, name
        named = {path: d for path, d in dimensions(file) if path not in dict(variables(file))}
        assert named
        for path, dimension in named.items():
            folder, _, name = path.rpartition("/")
            left_out = {entry["name"]: entry["reason"] for entry in mount.info(folder)["left_out"]}
            assert left_out[name] == f"a netCDF dimension without a variable, of length {dimension.size}"
    with h5netcdf.File(store) as file, Mount(store) as mount:
        for name, variable in file.variables.items():
            assert mount.info(f"{name}.npy").get("axes", []) == list(variable.dimensions)


def test_scales_that_hold_values_stay(tmp_path):
    store = tmp_path / "store.h5"
    with h5py.File(store, "w", userblock_size=512) as file:
        file["height"] = np.arange(3, dtype="f4")
        file["height"].make_scale("height in metres")
        file["g/second"] = np.zeros(4, "f4")
        file["g/second"].make_scale()
        file["empty"] = np.zeros(2, ">f4")
        file["empty"].make_scale("This is a netCDF dimension")  # not netCDF's words
        data = file.create_dataset("g/data", data=np.arange(24).reshape(3, 4, 2))
        data.dims[0].attach_scale(file["height"])
        data.dims[1].attach_scale(file["g/second"])
        data.dims[1].label = "second"
        data.dims[2].label = "two"
        file["labels"] = np.zeros((2, 3))
        file["labels"].dims[1].label = "größe"
        file["nothing"] = np.zeros((2, 3))
    with Mount(store) as mount:
        assert sorted(path.name for path in mount.path.iterdir()) == ["empty.npy", "g", "height.npy", "labels.npy", "nothing.npy"]
        np.testing.assert_array_equal(np.load(mount / "height.npy"), np.arange(3, dtype="f4"))
        assert mount.info("g/data.npy")["axes"] == ["height", "second", "two"]
        assert mount.info("labels.npy")["axes"] == [None, "größe"]
        assert mount.info("height.npy")["axes"] == ["height"]
        assert "axes" not in mount.info("nothing.npy")
        done = npyfs("info", mount.store, "g/data.npy", check=True)
        assert [line.split(maxsplit=1)[1] for line in done.stdout.splitlines() if line.startswith("axes ")] == ["height, second, two"], done.stdout


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    store = tmp_path_factory.mktemp("references") / "store.h5"
    with h5py.File(store, "w") as file:
        file["a"] = np.arange(3)
        file["g/b"] = np.arange(4)
        file.create_group("g/h")
        attrs = file["a"].attrs
        attrs["text"] = "/g/b"
        attrs["one"] = file["g/b"].ref
        attrs["root"] = file.ref
        attrs.create("null", h5py.Reference(), dtype=h5py.ref_dtype)
        attrs.create("grid", np.array([[file["a"].ref, file["g"].ref], [file["g/h"].ref, h5py.Reference()]], h5py.ref_dtype), dtype=h5py.ref_dtype)
        lists = np.empty(3, object)
        lists[:] = [np.array([file["a"].ref], h5py.ref_dtype), np.array([], h5py.ref_dtype), np.array([file["g/b"].ref, file["g/h"].ref], h5py.ref_dtype)]
        attrs.create("lists", lists, dtype=h5py.vlen_dtype(h5py.ref_dtype))
        attrs["region"] = file["g/b"].regionref[1:3]
        file["gone"] = 1
        attrs["dangling"] = file["gone"].ref
        del file["gone"]
        file["g"].attrs["up"] = file["a"].ref
    return store


def told(file, value):
    """What h5py reads, as paths."""
    if isinstance(value, h5py.Reference):
        return file[value].name if value else None
    return [told(file, one) for one in value]


def test_references_in_attributes_are_paths(references):
    with Mount(references) as mount, h5py.File(references) as file:
        shown = mount.info("a.npy")["attributes"]
        for name in ["one", "root", "null", "grid", "lists"]:
            assert shown[name] == told(file, file["a"].attrs[name]), name
        assert shown["one"] == "/g/b" == shown["text"] and shown["root"] == "/"
        assert mount.info("g")["attributes"]["up"] == "/a"
        assert shown["region"] == {"not_shown": "references to regions"}
        assert shown["dangling"] == {"not_shown": "a reference that leads to no object of the file"}


def test_references_are_no_extended_attributes(references):
    with Mount(references, "xattrs") as mount:
        assert os.listxattr(mount / "a.npy") == ["user.text"]
        assert os.getxattr(mount / "a.npy", "user.text") == b"/g/b"


@pytest.mark.parametrize("address", [1, 48, 2**31, 2**63, 2**64 - 2])
def test_wild_references_cost_their_attribute(tmp_path, address):
    """The addresses in the file are replaced by ones that lead into the middle of something, or outside."""
    store = tmp_path / "store.h5"
    with h5py.File(store, "w") as file:
        file["x"] = np.arange(3)
        file["x"].make_scale("x")
        file["data"] = np.arange(3)
        file["data"].attrs["before"] = "b"
        file["data"].attrs["to"] = file["x"].ref
        file["data"].dims[0].attach_scale(file["x"])
        at = h5py.h5o.get_info(file["x"].id).addr
    bytes_of = store.read_bytes()
    wanted = at.to_bytes(8, "little")
    start = bytes_of.index(b"to\0")
    there = [i for i in range(len(bytes_of) - 8) if bytes_of[i:i + 8] == wanted]
    changed = bytearray(bytes_of)
    # Behind the attribute's name, and in the heap with the list: not the link in the group.
    heap = bytes_of.index(b"GCOL")
    places = [i for i in there if start < i < start + 64 or i > heap]
    assert len(places) == 2, there
    for i in places:
        changed[i:i + 8] = address.to_bytes(8, "little")
    store.write_bytes(changed)
    with Mount(store) as mount:
        np.testing.assert_array_equal(np.load(mount / "data.npy"), np.arange(3))
        info = mount.info("data.npy")
        assert info["attributes"]["before"] == "b"
        for attribute in ["to", "DIMENSION_LIST"]:
            assert "not_shown" in info["attributes"][attribute], info
        assert "not_shown" in info["axes"]
        assert mount.status()["worker_restarts"] == 0


def test_lists_that_make_no_sense(tmp_path):
    store = tmp_path / "store.h5"
    with h5py.File(store, "w") as file:
        for name, value in [("number", 3), ("text", "x"), ("floats", np.zeros(2))]:
            file[name] = np.zeros((2, 3))
            file[name].attrs["DIMENSION_LIST"] = value
            file[name].attrs["CLASS"] = value
            file[name].attrs["NAME"] = value
            file[name].attrs["DIMENSION_LABELS"] = value
            file[name].attrs["_Netcdf4Coordinates"] = value
        lists = np.empty(9, object)
        lists[:] = [np.array([file["number"].ref], h5py.ref_dtype)] * 9
        file["too_many"] = np.zeros((2, 3))
        file["too_many"].attrs.create("DIMENSION_LIST", lists, dtype=h5py.vlen_dtype(h5py.ref_dtype))
        file["line"] = np.zeros(4)
        file["line"].attrs["CLASS"] = np.array([b"DIMENSION_SCALE"] * 2)
        file["coordinates"] = np.zeros((2, 3))
        file["coordinates"].attrs["_Netcdf4Coordinates"] = np.array([5, -1])
    with Mount(store) as mount:
        with h5py.File(store) as file:
            for name in file:
                np.testing.assert_array_equal(np.load(mount / f"{name}.npy"), file[name][()])
                axes = mount.info(f"{name}.npy").get("axes")
                assert axes is None or "not_shown" in axes
        assert mount.status()["worker_restarts"] == 0
