"""The Zarr view in xarray: what `open_zarr` shows of the view is what `open_dataset` shows of the netCDF file.
The judge is xarray, through netCDF4 and h5netcdf."""

import datetime
import json

import h5netcdf
import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr

from support.mount import Mount

pytestmark = pytest.mark.fast

VIEWS = ["zarr", "zarr3"]
DAYS = datetime.datetime(2020, 1, 1)


def write_climate(path):
    """Packed values, missing ones, times, unlimited dimensions, bounds, coordinates, and what a netCDF file has besides."""
    random = np.random.default_rng(3)
    with netCDF4.Dataset(path, "w") as file:
        file.title, file.history = "climate", "made ünd measured"
        file.version, file.levels, file.none = 3, np.array([1.5, 2.5], "f4"), ""
        file.setncattr_string("authors", ["a", "b"])
        file.setncattr_string("author", ["only"])
        for name, length in [("time", None), ("y", 3), ("x", 4), ("nv", 2), ("zero", 0), ("width", 6)]:
            file.createDimension(name, length)
        time = file.createVariable("time", "f8", ("time",))
        time.units, time.calendar, time.bounds = "days since 2020-01-01", "standard", "time_bnds"
        time[:] = np.arange(7)
        file.createVariable("time_bnds", "f8", ("time", "nv"))[:] = np.arange(14).reshape(7, 2) / 2
        for name in "yx":
            at = file.createVariable(name, "f4", (name,))
            at.units, at[:] = "m", np.arange(len(file.dimensions[name])) / 2
        lat = file.createVariable("lat", "f8", ("y", "x"))
        lat[:] = random.normal(size=(3, 4))
        packed = file.createVariable("packed", "i2", ("time", "y", "x"), fill_value=-999, zlib=True, chunksizes=(2, 3, 4))
        packed.scale_factor, packed.add_offset, packed.coordinates = 0.01, 273.15, "lat"
        packed.set_auto_maskandscale(False)
        values = random.integers(-100, 100, (7, 3, 4)).astype("i2")
        values[values > 80] = -999
        packed[:] = values
        scaled = file.createVariable("scaled", "u1", ("x",))
        scaled.scale_factor = 0.5
        scaled.set_auto_maskandscale(False)
        scaled[:] = [0, 1, 254, 255]
        nan = file.createVariable("nan", "f4", ("time", "y"), fill_value=np.nan, zlib=True, chunksizes=(1, 3))
        nan[0:7:2] = 1
        plain = file.createVariable("plain", "f8", ("y", "x"), zlib=True, chunksizes=(2, 3))
        plain[:] = 0
        plain.valid_range, plain.missing_value = np.array([-1.0, 1.0]), -5.0
        unset = file.createVariable("unset", "i4", ("time", "x"), zlib=True, chunksizes=(2, 2))
        unset[6, 1] = 4
        # 0 is an element like any other unless `_FillValue` says something else.
        for name in ["seconds", "seconds_or_none"]:
            fill = {"fill_value": -1} if name == "seconds_or_none" else {}
            seconds = file.createVariable(name, "i8", ("x",), **fill)
            seconds.units = "seconds since 1970-01-01"
            seconds[:] = [0, 1, 2, -1 if fill else 3]
        span = file.createVariable("span", "i4", ("x",))
        span.units, span[:] = "hours", [0, 1, 2, 3]
        noleap = file.createVariable("noleap", "i4", ("x",))
        noleap.units, noleap.calendar, noleap[:] = "days since 2001-02-27", "noleap", [0, 1, 2, 3]
        flags = file.createVariable("flags", "i1", ("x",))
        flags.flag_values, flags.flag_meanings, flags[:] = np.array([0, 1], "i1"), "off on", [0, 1, 1, 0]
        unsigned = file.createVariable("unsigned", "i1", ("x",), fill_value=-1)
        unsigned.setncattr("_Unsigned", "true")
        unsigned.set_auto_maskandscale(False)
        unsigned[:] = [0, -2, -1, 5]
        file.createVariable("scalar", "f8", ())[...] = 2.5
        crs = file.createVariable("crs", "i4", ())
        crs.grid_mapping_name = "latitude_longitude"
        file.createVariable("empty", "f4", ("zero", "y"))
        texts = file.createVariable("texts", str, ("y",))
        texts[:] = np.array(["a", "", "längér"], dtype=object)
        file.createVariable("one_text", str, ())[...] = "alone"
        chars = file.createVariable("chars", "S1", ("y", "width"))
        chars[:] = netCDF4.stringtochar(np.array(["ab", "", "sixsix"], "S6"))
        utf8 = file.createVariable("utf8", "S1", ("y", "width"))
        utf8._Encoding = "utf-8"
        utf8[:] = np.array(["é", "x", ""])
        # A variable with the name of a dimension that is no coordinate of it.
        file.createDimension("label", 2)
        file.createVariable("label", "f4", ("label", "x"))[:] = 1


def write_groups(path):
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("x", 4)
        file.createVariable("x", "f4", ("x",))[:] = np.arange(4)
        file.createVariable("top", "i4", ("x",))[:] = np.arange(4)
        below = file.createGroup("below")
        below.note = "of the group"
        below.createDimension("y", 2)
        below.createVariable("inherits", "f8", ("y", "x"))[:] = np.ones((2, 4))
        deeper = below.createGroup("deeper")
        deeper.createDimension("z", 3)
        deeper.createVariable("own", "f8", ("y", "z"))[:] = np.zeros((2, 3))
        file.createGroup("empty")


def write_h5netcdf(path):
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"x": 3, "y": 4, "only": 2}
        file.attrs["title"] = "written by h5netcdf"
        file.create_variable("x", ("x",), "f4", data=np.arange(3, dtype="f4"))
        made = file.create_variable("a", ("x", "y"), "i4", data=np.arange(12, dtype="i4").reshape(3, 4), fillvalue=5, chunks=(2, 2), compression="gzip")
        made.attrs["units"] = "1"
        file.create_variable("sparse", ("only", "y"), "f8", fillvalue=2.5, chunks=(1, 2))
        file.create_variable("word", ("only",), h5py.string_dtype(), data=np.array(["é", "b"], dtype=object))


def write_xarray(path):
    random = np.random.default_rng(5)
    times = np.array("2021-03-01", "M8[ns]") + np.arange(6) * np.timedelta64(6, "h")
    field = random.normal(280, 10, (6, 5, 4))
    field[field > 295] = np.nan
    xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), field, {"units": "K"}),
            "count": (("lat",), np.arange(5)),
            "name": (("lat",), np.array(list("abcde"), dtype=object)),
            "flag": (("lat",), np.array([True, False, True, False, True])),
        },
        {"time": times, "lat": np.linspace(-1, 1, 5), "lon": np.arange(4.0), "height": 2.0},
        {"Conventions": "CF-1.8"},
    ).to_netcdf(
        path,
        engine="h5netcdf",
        unlimited_dims=["time"],
        encoding={"t2m": {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768, "zlib": True, "chunksizes": (2, 5, 4)}},
    )


def assert_same(got, want):
    """Identical, with text as objects: each engine has another type for it."""
    got, want = (side.load().map(lambda array: array.astype(object) if array.dtype.kind in "UT" else array, keep_attrs=True) for side in (got, want))
    assert set(got.variables) == set(want.variables)
    for name in want.variables:
        assert got[name].dims == want[name].dims, name
        assert got[name].dtype == want[name].dtype, name
        assert got[name].attrs.keys() == want[name].attrs.keys(), name
    xr.testing.assert_identical(got, want)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("write", [write_climate, write_h5netcdf, write_xarray])
def test_a_dataset_is_what_open_dataset_shows(tmp_path, write, view):
    store = tmp_path / "store.nc"
    write(store)
    with Mount(store) as m:
        for engine in ["netcdf4", "h5netcdf"]:
            with xr.open_dataset(store, engine=engine) as want, xr.open_zarr(m / ".npyfs" / view) as got:
                assert_same(got, want)
        # As they are stored, nothing decoded.
        with xr.open_dataset(store, decode_cf=False) as want, xr.open_zarr(m / ".npyfs" / view, decode_cf=False) as got:
            for name in want.variables:
                assert np.array_equal(got[name].values, want[name].values, equal_nan=want[name].dtype.kind == "f"), name


@pytest.mark.parametrize("view", VIEWS)
def test_groups_and_trees_are_those_of_the_file(tmp_path, view):
    store = tmp_path / "groups.nc"
    write_groups(store)
    with Mount(store) as m:
        for group in ["/", "below", "below/deeper", "empty"]:
            with xr.open_dataset(store, group=group) as want, xr.open_zarr(m / ".npyfs" / view, group=group) as got:
                assert_same(got, want)
        with xr.open_datatree(store) as want, xr.open_datatree(m / ".npyfs" / view, engine="zarr") as got:
            xr.testing.assert_identical(got.load(), want.load())
    with Mount(store, f"view={view},subpath=below") as m:
        with xr.open_dataset(store, group="below") as want, xr.open_zarr(m.path) as got:
            assert_same(got, want)


@pytest.mark.parametrize("view", VIEWS)
def test_arrays_without_dimension_scales_open_too(tmp_path, view):
    store = tmp_path / "plain.h5"
    with h5py.File(store, "w") as file:
        for name, shape in [("a", (4, 4)), ("b", (4, 5)), ("below/c", (5, 3))]:
            file[name] = np.arange(np.prod(shape)).reshape(shape)
        for name, lost in {"not_json": np.float32(np.nan), "infinite": np.inf, "no_value": h5py.Empty("f8"), "pair": 1j,
                           "record": np.zeros((), [("a", "i4")]), "bytes": np.bytes_(b"\xff"), "raw": np.void(b"ab")}.items():
            file["below/c"].attrs[name] = lost
        file["below/c"].attrs["unit"] = "m"
    with Mount(store) as m:
        tree = xr.open_datatree(m / ".npyfs" / view, engine="zarr").load()
        with h5py.File(store) as file:
            assert np.array_equal(tree["a"].values, file["a"][...])
            assert np.array_equal(tree["below/c"].values, file["below/c"][...])
        assert tree["a"].dims[0] == tree["b"].dims[0] != tree["a"].dims[1]
        assert tree["b"].dims[1] == tree["below/c"].dims[0]
        assert tree["below/c"].attrs == {"unit": "m"}
        said = (m / f".npyfs/info.{view}/below/c.json").read_text()
        assert all(f'"{name}"' in said for name in ("not_json", "infinite", "no_value", "pair", "record", "bytes", "raw")), said


@pytest.mark.parametrize("view", VIEWS)
def test_a_packed_variable_of_short_factors_has_the_same_values(tmp_path, view):
    """JSON has no 32-bit floats: values then come with 64 bits, of which the first 32 are those of the file."""
    store = tmp_path / "short.nc"
    with netCDF4.Dataset(store, "w") as file:
        file.createDimension("x", 5)
        short = file.createVariable("short", "i2", ("x",))
        short.scale_factor = np.float32(0.1)
        short.set_auto_maskandscale(False)
        short[:] = [0, 1, 2, 3, 32767]
    with Mount(store) as m, xr.open_dataset(store) as want, xr.open_zarr(m / ".npyfs" / view) as got:
        assert want["short"].dtype == np.float32
        assert np.array_equal(got["short"].values.astype("f4"), want["short"].values)


@pytest.mark.parametrize("view", VIEWS)
def test_variables_that_end_before_their_unlimited_dimension_go_on(tmp_path, view):
    """What another variable made longer holds fill values from there on, along all of a variable's unlimited dimensions."""
    store = tmp_path / "long.nc"
    with netCDF4.Dataset(store, "w") as file:
        file.createDimension("time", None)
        file.createDimension("run", None)
        file.createDimension("x", 3)
        file.createVariable("time", "f8", ("time",))[:] = np.arange(11.0)
        file.createVariable("short", "f4", ("time", "x"), chunksizes=(2, 3), zlib=True)[:3] = np.ones((3, 3))
        file.createVariable("masked", "i2", ("time",), fill_value=-7, chunksizes=(4,))[:5] = np.arange(5)
        file.createVariable("never", "i4", ("time", "x"))
        file.createVariable("both", "f8", ("run", "time"), chunksizes=(2, 2))[:1, :2] = [[5, 6]]
        file.createVariable("runs", "i8", ("run",))[:] = np.arange(5)
        names = file.createVariable("names", str, ("time",), chunksizes=(4,))
        names[0], names[1] = "a", "b"
        group = file.createGroup("below")
        group.createVariable("more", "u1", ("time",))[:1] = 4
    for group in [None, "below"]:
        with (Mount(store) as m, xr.open_dataset(store, group=group) as want,
              xr.open_zarr(m / ".npyfs" / view, group=group) as got):
            # netCDF's C library shows whatever is in memory where a variable is short along two dimensions.
            xr.testing.assert_identical(got.drop_vars("both", errors="ignore").load(), want.drop_vars("both", errors="ignore").load())
            assert got.sizes["time"] == 11
            if group is None:
                both = np.full((5, 11), netCDF4.default_fillvals["f8"])
                both[0, :2] = [5, 6]
                assert np.array_equal(got["both"].values, both)


def test_a_damaged_variable_costs_no_other_its_dimensions(tmp_path):
    """Along one unlimited dimension the lengths of all are asked for."""
    store = tmp_path / "damaged.nc"
    with netCDF4.Dataset(store, "w") as file:
        file.createDimension("time", None)
        for name, length in [("time", 6), ("short", 2), ("broken", 4)]:
            file.createVariable(name, "f8", ("time",))[:length] = np.arange(length)
    with h5py.File(store) as file:
        place = h5py.h5o.get_info(file["broken"].id).addr
    with open(store, "r+b") as raw:
        raw.seek(place)
        raw.write(b"\xff" * 32)
    with Mount(store) as m:
        with open(m / ".npyfs/zarr/short/.zarray") as array, open(m / ".npyfs/zarr/short/.zattrs") as attributes:
            assert json.load(array)["shape"] == [6]
            assert json.load(attributes)["_ARRAY_DIMENSIONS"] == ["time"]


@pytest.mark.parametrize("view", VIEWS)
def test_the_newest_state_of_a_checkout_is_seen_while_it_is_written(tmp_path, view):
    store = tmp_path / "store.nc"
    write_groups(store)
    with Mount(store, checkout="work") as m:
        with xr.open_zarr(m / ".npyfs" / view) as got:
            assert np.array_equal(got["top"].values, np.arange(4))
        np.save(m / "top.npy", np.arange(10, 14, dtype="i4"))
        np.save(m / "new.npy", np.full((2, 3), 7.0))
        for consolidated in [True, False]:
            with xr.open_zarr(m / ".npyfs" / view, consolidated=consolidated) as got:
                assert np.array_equal(got["top"].values, np.arange(10, 14))
                assert np.array_equal(got["new"].values, np.full((2, 3), 7.0))


@pytest.mark.parametrize("view", ["zarr", "zarr3"])
def test_a_variable_that_is_called_as_a_dimension(tmp_path, view):
    """netCDF-4 stores it as `_nc4_non_coord_y`, and every program calls it y."""
    store = tmp_path / "store.nc"
    with netCDF4.Dataset(store, "w") as file:
        for name, length in [("x", 3), ("y", 4)]:
            file.createDimension(name, length)
        file.createVariable("y", "f8", ("x", "y"))[:] = np.arange(12.0).reshape(3, 4)
        file.createVariable("v", "f8", ("y",))[:] = np.arange(4.0)
    with h5py.File(store) as file:
        assert "_nc4_non_coord_y" in file
    with netCDF4.Dataset(store) as file:
        want = {name: (file[name].dimensions, file[name][...].filled()) for name in ("y", "v")}
    with Mount(store) as mount:
        top = mount / ".npyfs" / view
        found = zarr.open_group(top, mode="r")
        assert sorted(found.array_keys()) == ["v", "y"]
        assert not (top / "_nc4_non_coord_y").exists()
        for name, (_, values) in want.items():
            np.testing.assert_array_equal(found[name][...], values)
        assert "y" in {entry.name for entry in top.iterdir()}
