"""The stores of a directory as one in the Zarr view: `-o join=DIMENSION`. The judge is xarray's `open_mfdataset`."""

import errno
import json
import os
import shutil

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr

from support.mount import Mount, make_point, reason_of, until
from support.process import npyfs, one_line

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
    "units": ("time", {"units": "days since 2021-01-01"}, 'units "days since 2021-01-01", not "days since 2020-01-01"'),
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
        assert wrong == "missing" or reason.startswith("c.nc differs from a.nc: "), reason
        assert any(f"{name}" in line and "left out of the join along time" in line and "c.nc" in line and why in line for line in mount.errors()), mount.errors()
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


@pytest.mark.parametrize("view", ["zarr", "zarr3"])
@pytest.mark.parametrize("below", ["", "2020"])
def test_a_file_that_is_replaced_is_seen(tmp_path, view, below):
    """By a rename over it, with other values and another length; in the view below .npyfs and in one that is mounted."""
    stores = tmp_path / "stores"
    (stores / below).mkdir(parents=True)
    paths = [stores / below / f"{number}.nc" for number in range(3)]
    for number, path in enumerate(paths):
        write(path, 2 * number, 2)
    with Mount(stores, "join=time") as mount, Mount(stores, f"view={view},join=time") as viewed:
        tops = [mount / f".npyfs/{view}" / below, viewed.path / below]

        def values():
            found = []
            for top in tops:
                with xr.open_zarr(top) as ours:
                    found.append(ours.load())
            return found

        for found in values():
            xr.testing.assert_identical(found.drop_attrs(), expected(paths).drop_attrs())
        for first, steps in [(20, 2), (30, 5), (40, 1)]:
            write(tmp_path / "new.nc", first, steps)
            shutil.move(tmp_path / "new.nc", paths[1])
            whole = expected(paths).drop_attrs()

            def is_seen():
                try:
                    return all(found.drop_attrs().identical(whole) for found in values())
                except ValueError:  # Metadata of one version, chunks of the next: Zarr has no way to tell.
                    return False

            until(is_seen, f"the file of {steps} steps", 10)
            assert is_seen()
        assert not any("tale" in line for line in [*mount.errors(), *viewed.errors()]), mount.errors()


def test_a_file_that_is_changed_in_place_is_seen(tmp_path):
    stores = tmp_path / "stores"
    stores.mkdir()
    paths = [stores / f"{number}.nc" for number in range(3)]
    for number, path in enumerate(paths):
        write(path, number, 1)
    with Mount(stores, "join=time") as mount:
        zarr = mount / ".npyfs/zarr"
        with xr.open_zarr(zarr) as ours:
            assert ours["t"].sizes["time"] == 3
        for shift in (1, 2):
            with netCDF4.Dataset(paths[1], "a") as file:
                file["t"].set_auto_maskandscale(False)
                file["t"][:] = np.full((1, 3, 40), shift)
            whole = expected(paths)["t"]

            def is_seen():
                try:
                    with xr.open_zarr(zarr) as ours:
                        return ours["t"].load().drop_attrs().identical(whole.drop_attrs())
                except OSError as problem:
                    assert problem.errno == errno.ESTALE
                    return False

            until(is_seen, "the new values", 10)


def test_what_a_checkout_commits_is_seen(tmp_path):
    """`-o follow=`: the stores of a join are those with all commits."""
    stores = tmp_path / "stores"
    stores.mkdir()
    paths = [stores / f"{number}.h5" for number in range(2)]
    for number, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            file.create_dataset("v", data=np.full((2, 3), number, "f8"), chunks=(2, 3)).dims[0].label = "t"
            file.create_dataset("w", data=np.arange(3.0))
    with Mount(stores, "join=t,follow=1") as mount:
        zarr = mount / ".npyfs/zarr"
        np.testing.assert_array_equal(np.frombuffer((zarr / "w/0").read_bytes()), np.arange(3))
        for number in range(2):
            with Mount(stores, checkout=f"new{number}") as writable:
                for path in paths:
                    np.save(writable / path.name / "w.npy", np.arange(3.0) + 10 + number)
            assert npyfs("checkout", "commit", stores, f"new{number}").returncode == 0
            until(lambda: (zarr / "w/0").read_bytes() == (np.arange(3.0) + 10 + number).tobytes(), "the commit")


NO_STORES = {
    "empty": b"",
    "page": b"<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n",
    "classic": b"CDF\x01" + bytes(60),
    "zeros": bytes(4096),
    "short": b"\x89HD",
}


@pytest.mark.parametrize("what", NO_STORES)
@pytest.mark.parametrize("ending", [".nc", ".h5", ".h5ad", ".mat"])
def test_what_is_called_as_a_store_and_is_none_is_damage(tmp_path, what, ending):
    """The join fails by name, the directory says it, and `verify` counts it: steps that are missing are never passed over."""
    stores = tmp_path / "stores"
    stores.mkdir()
    for number in (0, 2):
        write(stores / f"day{number}.nc", number, 1)
    (stores / "notes.txt").write_bytes(b"")
    bad = stores / f"day1{ending}"
    bad.write_bytes(NO_STORES[what])
    with Mount(stores, "join=time") as mount:
        with pytest.raises(OSError) as failed:
            list((mount / ".npyfs/zarr").iterdir())
        assert failed.value.errno == errno.EIO
        assert sorted(os.listdir(mount.path)) == ["day0.nc", "day2.nc"]
        assert reason_of(mount.info(), bad.name)
        assert len(mount.info()["left_out"]) == 1
        assert any(bad.name in line for line in mount.errors())
        done = npyfs("verify", stores)
        assert done.returncode == 3 and "1 damaged" in done.stdout and done.stderr.count(bad.name) == 1, done
        write(tmp_path / "good.nc", 1, 1)
        shutil.move(tmp_path / "good.nc", stores / "day1.nc")
        if ending != ".nc":
            bad.unlink()

        def is_whole():
            with xr.open_zarr(mount / ".npyfs/zarr") as ours:
                return ours["t"].sizes["time"] == 3

        def is_there():
            try:
                return is_whole()
            except OSError:
                return False

        until(is_there, "the join")
    assert npyfs("verify", stores).returncode == 0


def test_what_cannot_be_read_is_no_gap(tmp_path):
    """A link that leads nowhere, and one that leads out."""
    stores = tmp_path / "stores"
    stores.mkdir()
    for number in (0, 2):
        write(stores / f"day{number}.nc", number, 1)
    write(tmp_path / "day1.nc", 1, 1)
    for target in (tmp_path / "nothing.nc", tmp_path / "day1.nc"):
        (stores / "day1.nc").unlink(missing_ok=True)
        (stores / "day1.nc").symlink_to(target)
        with Mount(stores, "join=time") as mount:
            with pytest.raises(OSError):
                list((mount / ".npyfs/zarr").iterdir())
            assert any("day1.nc" in line for line in mount.errors()), target
    with Mount(stores, "join=time,external=allow") as mount:
        with xr.open_zarr(mount / ".npyfs/zarr") as ours:
            assert ours["t"].sizes["time"] == 3


def test_info_of_a_mount_says_that_nothing_is_joined(tmp_path):
    stores = tmp_path / "stores"
    stores.mkdir()
    write(stores / "a.nc", 0, 2)
    netCDF4.Dataset(stores / "b.nc", "w", format="NETCDF3_CLASSIC").close()
    with Mount(stores, "join=time") as mount:
        [line] = [line for line in npyfs("info", mount.path, check=True).stdout.split("\n\n")[0].splitlines() if line.startswith("  joined")]
        assert "nothing: b.nc: a file of netCDF's classic format" in line
    with Mount(stores) as mount:
        assert "joined" not in npyfs("info", mount.path, check=True).stdout
    said = npyfs("verify", stores)
    assert said.returncode == 3 and said.stderr.startswith("npyfs: b.nc: a file of netCDF's classic format"), said.stderr


def test_a_dimension_that_there_is_not_is_refused(tmp_path):
    stores = tmp_path / "stores"
    stores.mkdir()
    for number in range(2):
        write(stores / f"{number}.nc", number, 1)
    for command in (["mount", "-o", "join=tme", stores, make_point()], ["ls", "-o", "view=zarr,join=tme", stores], ["mount", "-o", "join=tme", stores / "0.nc", make_point()]):
        done = npyfs(*command)
        assert done.returncode == 2 and "join=tme: no array has a dimension of this name; there are time, x, y" in one_line(done.stderr), done
    assert npyfs("ls", "-o", "strict", stores).returncode == 1
    # Subdirectories are looked into, too.
    (tmp_path / "above").mkdir()
    shutil.move(stores, tmp_path / "above/below")
    assert npyfs("ls", "-o", "view=zarr,join=tme", tmp_path / "above").returncode == 2
    with Mount(tmp_path / "above", "join=time") as mount:
        with xr.open_zarr(mount / ".npyfs/zarr/below") as ours:
            assert ours["t"].sizes["time"] == 2


@pytest.mark.parametrize("wrong", WRONG)
def test_a_strict_join_leaves_nothing_out(tmp_path, wrong):
    name, how, why = WRONG[wrong]
    stores = tmp_path / "stores"
    stores.mkdir()
    write(stores / "a.nc", 0, 2)
    write(stores / "b.nc", 2, 2)
    with Mount(stores, "join=time,strict") as mount:
        with xr.open_zarr(mount / ".npyfs/zarr") as ours:
            assert ours["t"].sizes["time"] == 4
        # What comes later and does not fit is not left out, either.
        write(tmp_path / "c.nc", 4, 2, **how)
        shutil.move(tmp_path / "c.nc", stores / "c.nc")

        def fails():
            try:
                os.listdir(mount / ".npyfs/zarr")
            except OSError as problem:
                return problem.errno == errno.EIO
            return False

        until(fails, "the new file")
        assert any(why in line for line in mount.errors())
    done = npyfs("mount", "-o", "join=time,strict", stores, make_point())
    assert done.returncode == 2 and why in one_line(done.stderr) and name in done.stderr and "c.nc" in done.stderr
    with Mount(stores, "join=time") as mount:
        said = npyfs("info", mount.path, check=True).stdout.split("\n\n")[0]
        assert "3 stores along time, 1 left out" in said
    with Mount(stores, "join=time,view=zarr") as mount:
        assert "3 stores along time, 1 left out" in npyfs("info", mount.path, check=True).stdout
