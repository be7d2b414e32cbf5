"""The stores of a directory as one in the Zarr view: `-o join=DIMENSION`. The judge is xarray's `open_mfdataset`."""

import json
import shutil

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr

from support.mount import Mount, reason_of, until

pytestmark = pytest.mark.fast


def write(path, first, steps, chunk=1, **also):
    """A file of some days: packed values in chunks of `chunk` of them, their times, a grid, and what is not along time."""
    random = np.random.default_rng(first)
    with netCDF4.Dataset(path, "w") as file:
        file.title = "days"
        for name, length in [("time", None), ("y", 3), ("x", 40)]:
            file.createDimension(name, length)
        time = file.createVariable("time", "f8", ("time",))
        time.units = also.get("units", "days since 2020-01-01")
        time[:] = np.arange(first, first + steps)
        x = file.createVariable("x", "f4", ("x",))
        x[:] = np.arange(40) + also.get("shift", 0)
        height = file.createVariable("height", "f4", ("y", "x"))
        height[:] = np.arange(120).reshape(3, 40)
        packed = file.createVariable("t", "i2", ("time", "y", "x"), fill_value=-999, zlib=True, chunksizes=(chunk, 3, 40))
        packed.scale_factor, packed.add_offset = 0.5, 273.0
        packed.set_auto_maskandscale(False)
        packed[:] = random.integers(-1000, 1000, (steps, 3, 40))
        across = file.createVariable("across", "i4", ("x", "time"), chunksizes=(40, 4))
        across[:] = random.integers(0, 100, (40, steps))
        words = file.createVariable("place", str, ("y",))
        words[:] = np.array(["a", "bc", "d"], dtype=object)
        group = file.createGroup("below")
        group.createVariable("u", "f8", ("time", "y"))[:] = random.normal(size=(steps, 3))
        if "extra" in also:
            file.createVariable(also["extra"], "f4", ("time",))[:] = np.arange(steps)


def expected(paths, group=None):
    """Every variable of the files one behind the other, by netCDF4 and xarray alone."""
    parts = [xr.open_dataset(path, group=group, engine="netcdf4") for path in paths]
    along = [part[[name for name in part.variables if "time" in part[name].dims]] for part in parts]
    whole = xr.concat(along, "time")
    return xr.merge([whole, parts[0].drop_dims("time")]).load()


@pytest.mark.parametrize("view", ["zarr", "zarr3"])
@pytest.mark.parametrize("steps, chunk", [([1] * 7, 1), ([3, 3, 3], 3), ([31, 28, 31, 30], 8), ([5, 5, 2], 4), ([4, 1], 512)])
def test_files_of_a_directory_are_one_dataset(tmp_path, view, steps, chunk):
    stores = tmp_path / "stores"
    stores.mkdir()
    paths = [stores / f"day{number}.nc" for number in range(len(steps))]
    for number, path in enumerate(paths):
        write(path, sum(steps[:number]), steps[number], chunk)
    with Mount(stores, f"view={view},join=time") as mount:
        with xr.open_zarr(mount.path) as ours:
            assert ours["t"].encoding["chunks"][1:] == (3, 40)
            xr.testing.assert_identical(ours.load().drop_attrs(), expected(paths).drop_attrs())
            assert ours.attrs["title"] == "days"
        with xr.open_zarr(mount.path, group="below") as ours:
            np.testing.assert_array_equal(ours["u"].values, expected(paths, "below")["u"].values)
        assert mount.info()["joined"] == {"along": "time", "stores": len(paths)}


def test_large_chunks_stay_those_of_the_files(tmp_path):
    stores = tmp_path / "stores"
    stores.mkdir()
    data = np.arange(6 * 200 * 200, dtype="f4").reshape(6, 200, 200)
    for number in range(3):
        with h5py.File(stores / f"{number}.h5", "w") as file:
            part = file.create_dataset("v", data=data[2 * number:2 * number + 2], chunks=(1, 200, 200), compression="gzip")
            part.dims[0].label = "t"
    with Mount(stores, "join=t") as mount:
        zarr = mount / ".npyfs/zarr"
        assert json.loads((zarr / "v/.zarray").read_text())["chunks"] == [1, 200, 200]
        assert (zarr / "v/5.0.0").read_bytes() == data[5].tobytes()
        assert not (zarr / "v/6.0.0").exists()
        with xr.open_zarr(zarr) as ours:
            np.testing.assert_array_equal(ours["v"].values, data)
        # The tree itself is what it is.
        assert sorted(entry.name for entry in mount.path.iterdir()) == ["0.h5", "1.h5", "2.h5"]


WRONG = {
    "units": ("time", {"units": "days since 2021-01-01"}, "units"),
    "coordinate": ("x", {"shift": 1}, "elements"),
    "missing": ("more", {"extra": "more"}, "has it"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_differs_is_left_out_with_the_reason(tmp_path, wrong):
    name, how, why = WRONG[wrong]
    stores = tmp_path / "stores"
    stores.mkdir()
    write(stores / "a.nc", 0, 2)
    write(stores / "b.nc", 2, 2)
    write(stores / "c.nc", 4, 2, **how)
    with Mount(stores, "join=time") as mount:
        names = {entry.name for entry in (mount / ".npyfs/zarr").iterdir()}
        assert name not in names and {"t", "height"} <= names
        reason = reason_of(json.loads((mount / ".npyfs/info.zarr.json").read_text()), name)
        assert why in reason and "c.nc" in reason
        with xr.open_zarr(mount / ".npyfs/zarr") as ours:
            assert ours["t"].sizes["time"] == 6


def test_files_that_come_and_go_are_seen(tmp_path):
    stores = tmp_path / "stores"
    stores.mkdir()
    for number in range(2):
        write(stores / f"{number}.nc", number, 1)
    with Mount(stores, "join=time") as mount:
        zarr = mount / ".npyfs/zarr"

        def times():
            # Metadata alone: a file may go between them and the chunks, and to Zarr what is gone is fill values.
            with xr.open_zarr(zarr, decode_times=False) as ours:
                return ours["t"].sizes["time"]

        assert times() == 2
        write(tmp_path / "2.nc", 2, 3)
        shutil.move(tmp_path / "2.nc", stores / "2.nc")
        until(lambda: times() == 5, "the new file")
        (stores / "0.nc").unlink()
        until(lambda: times() == 4, "the end of a file")
        with xr.open_zarr(zarr) as ours:
            np.testing.assert_array_equal(ours["time"], np.datetime64("2020-01-01", "ns") + np.arange(1, 5) * np.timedelta64(1, "D"))


def test_a_damaged_file_fails_by_name_and_costs_the_others_nothing(tmp_path):
    stores = tmp_path / "stores"
    (stores / "good").mkdir(parents=True)
    (stores / "bad").mkdir()
    for folder in ["good", "bad"]:
        for number in range(2):
            write(stores / folder / f"{number}.nc", number, 1)
    with open(stores / "bad/1.nc", "r+b") as file:
        file.truncate(1000)
    with Mount(stores, "join=time") as mount:
        with xr.open_zarr(mount / ".npyfs/zarr/good") as ours:
            assert ours["t"].sizes["time"] == 2
        with pytest.raises(OSError):
            list((mount / ".npyfs/zarr/bad").iterdir())
        assert any("1.nc" in line for line in mount.errors())
