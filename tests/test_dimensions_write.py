"""Dimensions of variables that are written into a checkout of a netCDF-4 store. Judges: netCDF4, h5netcdf and xarray on what export
writes, xarray on the Zarr view."""

import json
import os

import h5netcdf
import h5py
import netCDF4
import numpy as np
import pytest
import xarray

from support.checkouts import attr, checkout
from support.mount import Mount
from support.process import npyfs

pytestmark = pytest.mark.fast


def make(path):
    """Dimensions with a variable and without, unlimited ones, two of one length, one in a group."""
    with netCDF4.Dataset(path, "w") as file:
        for name, length in [("time", None), ("lat", 3), ("lon", 4), ("bare", 7), ("other", 7), ("record", None), ("pair", 2)]:
            file.createDimension(name, length)
        file.createVariable("lat", "f8", ("lat",))[:] = [10, 20, 30]
        file.createVariable("lon", "f8", ("lon",))[:] = np.arange(4)
        file.createVariable("time", "i8", ("time",))[:] = np.arange(5)
        file.createVariable("t", "f4", ("time", "lat", "lon"))[:] = np.arange(60).reshape(5, 3, 4)
        file.createVariable("r", "f4", ("record", "lat"))[:] = np.zeros((6, 3))
        file.createVariable("square", "f4", ("lat", "pair"))[:] = np.zeros((3, 2))
        group = file.createGroup("g")
        group.createDimension("z", 9)
        group.createVariable("v", "f4", ("z", "lat"))[:] = np.zeros((9, 3))


@pytest.fixture
def store(tmp_path):
    make(tmp_path / "s.nc")
    return tmp_path / "s.nc"


def export(store, out, *arguments):
    done = npyfs("checkout", "export", store, *arguments, out)
    assert done.returncode == 0, done.stderr
    return out


def variables(group, path=""):
    found = {f"{path}{name}": variable.dimensions for name, variable in group.variables.items()}
    for name, below in group.groups.items():
        found |= variables(below, f"{path}{name}/")
    return found


def without_names(path):
    """The variables with dimensions that have no names."""
    found = set()
    with h5py.File(path) as file:
        def see(name, item):
            is_variable = isinstance(item, h5py.Dataset) and item.shape and "CLASS" not in item.attrs
            if is_variable and "DIMENSION_LIST" not in item.attrs:
                found.add(name)
        file.visititems(see)
    return found


def dimensions(path):
    """{variable: dimensions} as both libraries see them; the lists of both directions agree."""
    with netCDF4.Dataset(path) as file:
        found = variables(file)
    # Where some have no names, h5netcdf takes numbers of dimensions for theirs, and netCDF4 any dimension that is as long.
    if not without_names(path):
        with h5netcdf.File(path) as other:
            assert found == variables(other)
    with h5py.File(path) as file:
        def see(_, item):
            lists = item.attrs.get("DIMENSION_LIST", [])
            for k, scales in enumerate(lists):
                for scale in scales:
                    assert any(file[to] == item and at == k for to, at in file[scale].attrs["REFERENCE_LIST"])
            for to, k in item.attrs.get("REFERENCE_LIST", []):
                assert any(file[scale] == item for scale in file[to].attrs["DIMENSION_LIST"][k]), item
        file.visititems(see)
    return found


BEFORE = {"lat": ("lat",), "lon": ("lon",), "time": ("time",), "t": ("time", "lat", "lon"), "r": ("record", "lat"),
          "square": ("lat", "pair"), "g/v": ("z", "lat")}


def test_a_shape_names_its_dimensions(store, tmp_path):
    before = store.read_bytes()
    with Mount(store, checkout="work") as mount:
        np.save(mount / "mean.npy", np.arange(12.0).reshape(3, 4))
        np.save(mount / "all.npy", np.arange(60.0).reshape(4, 5, 3))
        np.save(mount / "records.npy", np.arange(6))
        np.save(mount / "g/inner.npy", np.ones((9, 4)))
        np.save(mount / "zs.npy", np.ones(9))
        np.save(mount / "seven.npy", np.ones(7))
        np.save(mount / "both.npy", np.ones((3, 3)))
        np.save(mount / "none.npy", np.ones((3, 11)))
        np.save(mount / "scalar.npy", np.float64(3))
        assert mount.info("mean.npy")["axes"] == ["lat", "lon"]
        assert mount.info("g/inner.npy")["axes"] == ["z", "lon"]
        assert "axes" not in mount.info("seven.npy")
    out = export(store, tmp_path / "out.nc", "work")
    shown = dimensions(out)
    assert BEFORE.items() <= shown.items()
    wanted = {"mean": ("lat", "lon"), "all": ("lon", "time", "lat"), "records": ("record",), "g/inner": ("z", "lon"), "scalar": ()}
    assert wanted.items() <= shown.items()
    assert without_names(out) == {"zs", "seven", "both", "none"}
    with Mount(store, checkout="work") as mount:
        for name in ("zs", "seven", "both", "none"):
            os.unlink(mount / f"{name}.npy")
    out = export(store, tmp_path / "whole.nc", "work")
    assert dimensions(out) == BEFORE | wanted
    for engine in ("netcdf4", "h5netcdf"):
        with xarray.open_dataset(out, engine=engine) as read:
            assert read["all"].dims == ("lon", "time", "lat")
            np.testing.assert_array_equal(read["mean"].sel(lat=20), [4, 5, 6, 7])
    assert store.read_bytes() == before


def test_dimensions_that_are_given(store, tmp_path):
    with Mount(store, checkout="work") as mount:
        np.save(mount / "seven.npy", np.ones(7))
        np.save(mount / "both.npy", np.ones((3, 3)))
        np.save(mount / "mean.npy", np.ones((3, 4)))
        np.save(mount / "moved.npy", np.ones((7, 3)))
    attr("dims", store, "seven.npy", "other")
    attr("dims", "--checkout", "work", store, "both.npy", "lat,lat")
    attr("dims", store, "moved.npy", "bare,lat")
    attr("dims", "--none", store, "mean.npy")
    attr("dims", store, "t.npy", "time,lat,lon")
    assert attr("dims", store, "seven.npy", "--checkout", "work") == "other\n"
    assert attr("dims", store, "mean.npy", "--checkout", "work") == "\n"
    assert attr("dims", store, "t.npy", "--checkout", "work") == "time,lat,lon\n"
    assert "no dimension depth; there are lat, lon" in attr("dims", store, "both.npy", "lat,depth", code=3).replace("bare, ", "")
    assert "the dimension lon has the length 4, not 3" in attr("dims", store, "both.npy", "lat,lon", code=3)
    assert "1 dimensions are named, and it has 2" in attr("dims", store, "both.npy", "lat", code=3)
    assert "no such object" in attr("dims", store, "nowhere.npy", "lat", code=3)
    assert "directory" in attr("dims", store, "g", "lat", code=3)
    assert 'DIMENSION_LIST' in checkout("diff", store).stdout
    with Mount(store, "xattrs", checkout="work") as mount:
        os.rename(mount / "moved.npy", mount / "g/renamed.npy")
        assert mount.info("g/renamed.npy")["axes"] == ["bare", "lat"]
        assert mount.info("both.npy")["axes"] == ["lat", "lat"]
        # What is written over a variable is another one.
        np.save(mount / "both.npy", np.ones((4, 4)))
        assert "axes" not in mount.info("both.npy")
    wanted = {"seven": ("other",), "t": ("time", "lat", "lon"), "g/renamed": ("bare", "lat")}
    out = export(store, tmp_path / "out.nc", "work")
    assert (BEFORE | wanted).items() <= dimensions(out).items() and without_names(out) == {"mean", "both"}
    checkout("commit", store, "work", "-m", "all")
    assert (BEFORE | wanted).items() <= dimensions(export(store, tmp_path / "committed.nc")).items()
    with Mount(store, "view=zarr") as mount:
        read = xarray.open_zarr(mount.path, consolidated=False)
        assert read["seven"].dims == ("other",) and read["t"].dims == ("time", "lat", "lon")
        assert json.loads((mount / "g/renamed/.zattrs").read_text())["_ARRAY_DIMENSIONS"] == ["bare", "lat"]
    # Another checkout changes them, and takes that back.
    attr("dims", "--checkout", "second", store, "seven.npy", "bare")
    checkout("commit", store, "second")
    assert dimensions(export(store, tmp_path / "second.nc"))["seven"] == ("bare",)
    checkout("revert", store, "HEAD")
    assert dimensions(export(store, tmp_path / "third.nc"))["seven"] == ("other",)
    attr("dims", "--checkout", "third", store, "seven.npy", "bare")
    checkout("restore", "--checkout", "third", store, "seven.npy")
    assert dimensions(export(store, tmp_path / "fourth.nc", "third"))["seven"] == ("other",)


def test_what_takes_the_place_of_a_variable_has_its_dimensions(store, tmp_path):
    with Mount(store, checkout="work") as mount:
        np.save(mount / "square.npy", np.ones((3, 2)))
        np.save(mount / "t.npy", np.ones((5, 3, 4)))
        np.save(mount / "lat.npy", np.array([1.5, 2.5, 3.5]))
        # A coordinate for a dimension that had none, also an unlimited one.
        np.save(mount / "bare.npy", np.arange(7))
        np.save(mount / "record.npy", np.arange(6))
        assert mount.info("lat.npy")["axes"] == ["lat"]
        assert mount.info("bare.npy")["axes"] == ["bare"]
        os.unlink(mount / "lon.npy")
    out = export(store, tmp_path / "out.nc", "work")
    shown = dimensions(out)
    assert shown == {name: dims for name, dims in BEFORE.items() if name != "lon"} | {"bare": ("bare",), "record": ("record",)}
    for engine in ("netcdf4", "h5netcdf"):
        with xarray.open_dataset(out, engine=engine) as read:
            assert read["t"].dims == ("time", "lat", "lon") and set(read.coords) >= {"lat", "time", "bare", "record"}
            assert "lon" not in read.coords
            np.testing.assert_array_equal(read["t"].sel(lat=2.5, time=3), np.ones(4))
            np.testing.assert_array_equal(read["r"].sel(record=5), np.zeros(3))


def test_a_longer_dimension(store, tmp_path):
    """All that lies along it is written anew."""
    with Mount(store, checkout="work") as mount:
        np.save(mount / "time.npy", np.arange(8))
        np.save(mount / "t.npy", np.ones((8, 3, 4)))
        np.save(mount / "new.npy", np.ones(8))
        assert mount.info("t.npy")["axes"] == ["time", "lat", "lon"]
    out = export(store, tmp_path / "out.nc", "work")
    assert dimensions(out) == BEFORE | {"new": ("time",)}
    with xarray.open_dataset(out) as read:
        assert read.sizes["time"] == 8


def test_stores_without_dimensions(tmp_path):
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file["a"] = np.arange(3)
        file["s"] = np.arange(3)
        file["s"].make_scale("s")
    with Mount(tmp_path / "plain.h5", checkout="work") as mount:
        np.save(mount / "b.npy", np.arange(3))
    assert "no netCDF-4 store" in attr("dims", tmp_path / "plain.h5", "b.npy", "s", code=3)
    out = export(tmp_path / "plain.h5", tmp_path / "out.h5", "work")
    with h5py.File(out) as file:
        assert "DIMENSION_LIST" not in file["b"].attrs


def test_a_store_in_a_directory(tmp_path):
    folder = tmp_path / "all"
    folder.mkdir()
    make(folder / "a.nc")
    make(folder / "b.nc")
    with Mount(folder, checkout="work") as mount:
        np.save(mount / "a.nc/mean.npy", np.ones((3, 4)))
        np.save(mount / "b.nc/seven.npy", np.ones(7))
    attr("dims", folder, "b.nc/seven.npy", "bare")
    export(folder, tmp_path / "out")
    export(folder, tmp_path / "out2", "work")
    assert "mean" not in dimensions(tmp_path / "out/a.nc")
    assert dimensions(tmp_path / "out2/a.nc")["mean"] == ("lat", "lon")
    assert dimensions(tmp_path / "out2/b.nc")["seven"] == ("bare",)
