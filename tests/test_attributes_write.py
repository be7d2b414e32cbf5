"""Attributes that are written into a checkout: by setfattr in a mount, and by npyfs attr. Judges: h5py on what export writes,
os.getxattr on what a mount shows, xarray on what its users read."""

import errno
import json
import os
import signal
import subprocess
import sys

import anndata
import h5py
import numpy as np
import pytest
import xarray

from support.checkouts import attr, checkout
from support.mount import Mount, until
from support.process import npyfs, one_line, signal_all, workers

pytestmark = pytest.mark.fast


def make(path):
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(5.0)
        file["x"].attrs["units"] = "V"
        file["x"].attrs["gain"] = np.float32(0.5)
        file["x"].attrs["count"] = np.int16(3)
        file["x"].attrs["old"] = "goes"
        file["g/y"] = np.arange(6).reshape(2, 3)
        file["g"].attrs["about"] = "a group"
        file.attrs["title"] = "all"


def export(store, out, *arguments):
    done = npyfs("checkout", "export", store, *arguments, out)
    assert done.returncode == 0, done.stderr
    return out


def attributes(path):
    """{object: {name: value}} of a file, without what npyfs notes."""
    found = {}
    with h5py.File(path) as file:
        def see(name, item):
            own = {key: value for key, value in item.attrs.items() if not key.startswith("npyfs_")}
            found[name] = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in own.items()}
        see("/", file)
        file.visititems(see)
    return found


def get(path, name):
    return os.getxattr(path, f"user.{name}").decode()


def put(path, **values):
    for name, value in values.items():
        os.setxattr(path, f"user.{name}", value.encode())


def refused(code, act, *arguments):
    with pytest.raises(OSError) as failure:
        act(*arguments)
    assert failure.value.errno == code, failure.value


def test_set_attributes_are_there_after_a_remount_and_in_an_export(tmp_path):
    store = tmp_path / "s.h5"
    make(store)
    before = store.read_bytes()
    with Mount(store, "xattrs", checkout="work") as mount:
        put(mount / "x.npy", units="mV", gain="0.25", count="70000", range="[0, 10]", names='["a", "ä"]', quoted='"2.5"')
        os.removexattr(mount / "x.npy", "user.old")
        put(mount / "g", about="the group", n="3")
        put(mount / "g/y.npy", ok="true", ratio="2.5", empty="", grid="[[1, 2], [3, 4]]")
        put(mount.path, title="everything", version="7")
        assert get(mount / "x.npy", "units") == "mV"
        assert "user.old" not in os.listxattr(mount / "x.npy")
        assert mount.info("x.npy")["attributes"]["units"] == "mV"
    with Mount(store, "xattrs", checkout="work") as mount:
        x, root = mount / "x.npy", mount.path
        shown = {name: get(x, name) for name in ("units", "gain", "count", "range", "names", "quoted")}
        assert shown == {"units": "mV", "gain": "0.25", "count": "70000", "range": "[0,10]", "names": '["a","ä"]', "quoted": "2.5"}
        assert "user.old" not in os.listxattr(x)
        assert (get(mount / "g", "about"), get(mount / "g", "n"), get(root, "title")) == ("the group", "3", "everything")
        np.testing.assert_array_equal(np.load(x), np.arange(5.0))
        # What is read can be set again, and is the same.
        for path in (x, mount / "g", mount / "g/y.npy", root):
            for name in os.listxattr(path):
                os.setxattr(path, name, os.getxattr(path, name))
    out = export(store, tmp_path / "out.h5", "work")
    assert attributes(out) == {
        "/": {"title": "everything", "version": 7},
        "x": {"units": "mV", "gain": 0.25, "count": 70000, "range": [0, 10], "names": ["a", "ä"], "quoted": "2.5"},
        "g": {"about": "the group", "n": 3},
        "g/y": {"ok": True, "ratio": 2.5, "empty": "", "grid": [[1, 2], [3, 4]]},
    }
    with h5py.File(out) as file:
        types = {name: file["x"].attrs.get_id(name).dtype for name in ("gain", "count", "range")}
        assert types == {"gain": np.dtype("f4"), "count": np.dtype("i8"), "range": np.dtype("i8")}
        text = h5py.check_string_dtype(file["x"].attrs.get_id("units").dtype)
        assert (text.encoding, text.length) == ("utf-8", None)
        np.testing.assert_array_equal(file["x"], np.arange(5.0))
    assert store.read_bytes() == before


def test_new_objects_replaced_ones_and_renamed_ones(tmp_path):
    store = tmp_path / "s.h5"
    make(store)
    with Mount(store, "xattrs", checkout="work") as mount:
        np.save(mount / "new.npy", np.arange(3))
        put(mount / "new.npy", units="s")
        # A new array in the place of another has none of its attributes.
        put(mount / "g/y.npy", units="lost")
        np.save(mount / "g/y.npy", np.arange(4))
        assert os.listxattr(mount / "g/y.npy") == []
        put(mount / "g/y.npy", scale="2")
        # A renamed one takes them along, those of the store as well.
        put(mount / "x.npy", range="[1, 2]")
        os.removexattr(mount / "x.npy", "user.old")
        os.rename(mount / "x.npy", mount / "z.npy")
        assert get(mount / "z.npy", "units") == "V"
        os.mkdir(mount / "made")
        put(mount / "made", about="made")
        put(mount / "g", gone="1")
        os.removexattr(mount / "g", "user.gone")
        np.save(mount / "deleted.npy", np.arange(2))
        put(mount / "deleted.npy", units="none")
        os.unlink(mount / "deleted.npy")
        np.save(mount / "deleted.npy", np.arange(3))
    with Mount(store, "xattrs", checkout="work") as mount:
        assert os.listxattr(mount / "deleted.npy") == []
        assert os.listxattr(mount / "g/y.npy") == ["user.scale"]
        assert get(mount / "z.npy", "range") == "[1,2]"
    shown = attributes(export(store, tmp_path / "out.h5", "work"))
    assert shown == {
        "/": {"title": "all"}, "new": {"units": "s"}, "g": {"about": "a group"}, "g/y": {"scale": 2},
        "z": {"units": "V", "gain": 0.5, "count": 3, "range": [1, 2]}, "made": {"about": "made"}, "deleted": {},
    }


def test_commits_conflicts_and_reverts(tmp_path):
    store = tmp_path / "s.h5"
    make(store)

    def change(name, **values):
        with Mount(store, checkout=name) as mount:
            put(mount / "x.npy", **values)

    change("one", units="mV")
    change("two", gain="2.0")
    change("three", units="kV")
    diff = checkout("diff", store, "one").stdout
    assert diff == 'M x.npy  attributes: units="mV"\n'
    checkout("commit", store, "one")
    # Another attribute of the same object is no conflict, the same one is.
    checkout("commit", store, "two")
    line = one_line(checkout("commit", store, "three", code=3).stderr.splitlines(keepends=True)[0])
    assert "attribute \"units\" of x" in line.replace("\\", ""), line
    checkout("commit", "--theirs", store, "three")
    out = export(store, tmp_path / "two.h5")
    assert attributes(out)["x"] == {"units": "mV", "gain": 2.0, "count": 3, "old": "goes"}
    log = npyfs("checkout", "log", "-0", store).stdout.split("\0")
    ids = [line.strip() for line in log if line.strip()]
    # The oldest commit set the units.
    listed = checkout("revert", "--dry-run", store, ids[-1]).stdout
    assert listed == 'M x.npy  attributes: units="V"\n'
    checkout("revert", store, ids[-1])
    assert attributes(export(store, tmp_path / "three.h5"))["x"]["units"] == "V"
    assert attributes(export(store, tmp_path / "four.h5"))["x"]["gain"] == 2.0
    with Mount(store, "xattrs", checkout="four") as mount:
        assert (get(mount / "x.npy", "units"), get(mount / "x.npy", "gain")) == ("V", "2.0")
    # A Zarr view has them, and so has a copy of it.
    with Mount(store, "view=zarr") as mount:
        shown = json.loads((mount / "x/.zattrs").read_text())
        assert (shown["units"], shown["gain"]) == ("V", 2.0)
    # Who replaces the object meets who set an attribute of it.
    change("five", units="nV")
    with Mount(store, checkout="six") as mount:
        np.save(mount / "x.npy", np.arange(2.0))
    checkout("commit", store, "five")
    checkout("commit", store, "six", code=3)
    checkout("commit", "--ours", store, "six")
    assert attributes(export(store, tmp_path / "five.h5"))["x"] == {}


def test_the_command(tmp_path):
    store = tmp_path / "s.h5"
    make(store)

    attr("set", "--checkout", "work", store, "x.npy", "units=mV", "range=[0, 10]", "note=a=b")
    attr("rm", "--checkout", "work", store, "x.npy", "old")
    attr("set", store, ".", "title=every thing")
    assert attr("ls", "--checkout", "work", store, "x.npy") == "count=3\ngain=0.5\nnote=a=b\nrange=[0,10]\nunits=mV\n"
    assert attr("get", "--checkout", "work", store, ".", "title") == "every thing\n"
    # Without --checkout, the only one that is open.
    assert attr("get", store, "x.npy", "units") == "mV\n"
    assert "no such attribute" in attr("rm", store, "x.npy", "old", code=3)
    assert "no such object" in attr("set", store, "none.npy", "a=1", code=3)
    assert "DIMENSION_LIST" in attr("set", store, "x.npy", "DIMENSION_LIST=1", code=3)
    assert "NAME=VALUE" in attr("set", store, "x.npy", "a", code=1)
    assert attr("get", store, "x.npy", "none", code=3)
    out = export(store, tmp_path / "out.h5", "work")
    assert attributes(out)["x"] == {"units": "mV", "gain": 0.5, "count": 3, "range": [0, 10], "note": "a=b"}


def test_the_command_takes_every_spelling_and_a_mount(tmp_path):
    store = tmp_path / "s.h5"
    make(store)

    before = attr("ls", store, "x.npy")
    for words in ([f"{store}/x.npy"], [f"{store}:/x.npy"]):
        assert attr("ls", *words) == before and attr("get", *words, "units") == "V\n"
    assert attr("ls", store) == attr("ls", store, ".")
    assert "--checkout NAME" in attr("set", store, "x.npy", "a=1", code=1)
    for words in (["get", store], ["get", store, "x.npy"], ["set", store, "x.npy"], ["rm", store, "x.npy"], ["ls", f"{store}/x.npy", "g"]):
        attr(*words, code=1)
    with Mount(store, checkout="work") as mount:
        attr("set", mount / "x.npy", "units=mV", "range=[0, 10]")
        attr("set", mount.path, "g", "about=the group")
        attr("set", mount.path, ".", "title=everything")
        attr("rm", mount / "x.npy", "old")
        for words in ([mount / "x.npy"], [mount.path, "x.npy"]):
            assert attr("ls", *words) == "count=3\ngain=0.5\nrange=[0,10]\nunits=mV\n"
        assert attr("get", mount / "g", "about") == "the group\n" and attr("get", mount.path, ".", "title") == "everything\n"
        assert "DIMENSION_LIST" in attr("set", mount / "x.npy", "DIMENSION_LIST=1", code=3)
        assert "x.npy" in attr("rm", mount / "x.npy", "old", code=3) and "none.npy" in attr("set", mount / "none.npy", "a=1", code=3)
        # The store does not say which mount is meant.
        assert "the mount point in the place of the store" in attr("set", "--checkout", "work", store, "x.npy", "a=1", code=3)
    with Mount(store) as mount:
        assert attr("ls", mount / "x.npy") == before
    out = export(store, tmp_path / "out.h5", "work")
    assert attributes(out)["x"] == {"units": "mV", "gain": 0.5, "count": 3, "range": [0, 10]}
    assert (attributes(out)["g"]["about"], attributes(out)["/"]["title"]) == ("the group", "everything")


def test_what_is_shown_is_what_a_user_means(tmp_path):
    store = tmp_path / "s.h5"
    make(store)

    def units(place, *arguments):
        return npyfs("attr", "get", *arguments, place, "x.npy", "units", check=True).stdout.strip()

    assert units(store) == "V"
    with Mount(store, checkout="one") as mount, Mount(store) as plain:
        put(mount / "x.npy", units="mV")
        assert (units(store), units(mount.path), units(plain.path)) == ("mV", "mV", "V")
        with Mount(store, checkout="two") as other:
            put(other / "x.npy", units="kV")
            # With several open ones, what is committed.
            assert (units(store), units(mount.path), units(other.path), units(store, "--checkout", "two")) == ("V", "mV", "kV", "kV")
    checkout("commit", store, "one")
    assert units(store) == "kV"


def test_objects_of_other_files_are_refused_when_they_are_set(tmp_path):
    make(tmp_path / "other.h5")
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file["own"] = np.arange(3)
        file["g/own"] = np.arange(3)
        file["far"] = h5py.ExternalLink("other.h5", "/x")
        file["group"] = h5py.ExternalLink("other.h5", "/g")
    store = tmp_path / "s.h5"
    with Mount(store, "xattrs,external=same-dir", checkout="work") as mount:
        put(mount / "own.npy", units="V")
        put(mount / "g", about="here")
        for path in ("far.npy", "group", "group/y.npy"):
            refused(errno.EPERM, os.setxattr, mount / path, "user.units", b"V")
        assert any("another file" in line and "other.h5" in line for line in mount.errors())
        assert "user.units" in os.listxattr(mount / "own.npy")
    assert attributes(export(store, tmp_path / "out.h5", "work"))["own"] == {"units": "V"}
    # The objects of a publication that a checkout stored lie in its files.
    checkout("discard", store, "work")
    with Mount(store, checkout="new") as mount:
        np.save(mount / "new.npy", np.arange(4))
    checkout("commit", store, "new")
    checkout("publish", store, tmp_path / "links.h5")
    line = one_line(npyfs("attr", "set", "--checkout", "a", tmp_path / "links.h5", "new.npy", "units=V").stderr)
    assert "external file" in line, line


def test_what_is_refused(tmp_path):
    store = tmp_path / "s.h5"
    make(store)
    with Mount(store, "xattrs") as mount:
        refused(errno.EROFS, os.setxattr, mount / "x.npy", "user.a", b"1")
        refused(errno.EROFS, os.removexattr, mount / "x.npy", "user.units")
    with Mount(store, "xattrs", checkout="work") as mount:
        x = mount / "x.npy"
        for name in ("DIMENSION_LIST", "CLASS", "NAME", "REFERENCE_LIST", "_Netcdf4Dimid", "_FillValue", "encoding-type", "npyfs_time"):
            refused(errno.EPERM, os.setxattr, x, f"user.{name}", b"1")
        assert any("_FillValue" in line for line in mount.errors())
        refused(errno.EINVAL, os.setxattr, x, "user.a", b"\xff")
        refused(errno.EINVAL, os.setxattr, x, b"user.\xff", b"1")
        refused(errno.E2BIG, os.setxattr, x, "user.a", str([1.5] * 8000).encode())
        refused(errno.ENODATA, os.removexattr, x, "user.none")
        refused(errno.EEXIST, os.setxattr, x, "user.units", b"a", os.XATTR_CREATE)
        refused(errno.ENODATA, os.setxattr, x, "user.none", b"a", os.XATTR_REPLACE)
        refused(errno.EPERM, os.setxattr, mount / ".npyfs/status.json", "user.a", b"1")
        put(x, longest="a" * 65536)
        os.setxattr(x, b"user." + b"n" * 250, b"1")
        put(x, numbers=str([1.5] * 7000))
    out = export(store, tmp_path / "out.h5", "work")
    shown = attributes(out)["x"]
    assert shown["longest"] == "a" * 65536 and shown["n" * 250] == 1 and shown["numbers"] == [1.5] * 7000
    # A publication links to objects, and cannot give them attributes.
    done = npyfs("checkout", "publish", store, "work", tmp_path / "links.h5")
    assert done.returncode == 3 and "export" in done.stderr and not (tmp_path / "links.h5").exists()


def test_formats_keep_what_is_theirs(tmp_path):
    table = anndata.AnnData(np.arange(6.0).reshape(3, 2))
    table.obs["age"] = [1, 2, 3]
    store = tmp_path / "a.h5ad"
    table.write_h5ad(store)
    with Mount(store, "xattrs", checkout="work") as mount:
        for name in ("encoding-type", "encoding-version", "column-order", "_index"):
            refused(errno.EPERM, os.setxattr, mount / "obs", f"user.{name}", b"1")
            refused(errno.EPERM, os.setxattr, mount.path, f"user.{name}", b"1")
        put(mount / "X.npy", units="counts")
        put(mount / "obs/age.npy", units="years")
        put(mount.path, study="one")
    out = export(store, tmp_path / "out.h5ad", "work")
    read = anndata.read_h5ad(out)
    assert list(read.obs["age"]) == [1, 2, 3]
    with h5py.File(out) as file:
        assert (file["X"].attrs["units"], file["obs/age"].attrs["units"], file.attrs["study"]) == ("counts", "years", "one")
        assert file["obs/age"].attrs["encoding-type"] == "array"


def test_xarray_reads_units_that_were_set(tmp_path):
    store = tmp_path / "n.nc"
    xarray.Dataset({"t": (("y", "x"), np.ones((2, 3)))}, {"y": [1, 2], "x": [3, 4, 5]}).to_netcdf(store)
    with Mount(store, checkout="work") as mount:
        put(mount / "t.npy", units="K", long_name="temperature")
        put(mount.path, Conventions="CF-1.8")
    out = export(store, tmp_path / "out.nc", "work")
    with xarray.open_dataset(out) as read:
        assert read["t"].attrs == {"units": "K", "long_name": "temperature"}
        assert read["t"].dims == ("y", "x") and read.attrs["Conventions"] == "CF-1.8"


def test_stores_in_a_directory_and_mounts_that_follow(tmp_path):
    folder = tmp_path / "all"
    folder.mkdir()
    for name in ("a", "b"):
        make(folder / f"{name}.h5")
    with Mount(folder, "xattrs", checkout="work") as mount:
        put(mount / "a.h5", title="first")
        put(mount / "a.h5/x.npy", units="mV")
        refused(errno.EPERM, os.setxattr, mount.path, "user.title", b"none")
    with Mount(folder, "xattrs,follow=1") as mount:
        assert get(mount / "a.h5/x.npy", "units") == "V"
        checkout("commit", folder, "work")
        until(lambda: get(mount / "a.h5/x.npy", "units") == "mV", "the commit is shown")
        assert (get(mount / "a.h5", "title"), get(mount / "b.h5", "title")) == ("first", "all")
    export(folder, tmp_path / "out")
    assert attributes(tmp_path / "out/a.h5")["x"]["units"] == "mV"
    assert attributes(tmp_path / "out/a.h5")["/"] == {"title": "first"}
    assert attributes(tmp_path / "out/b.h5")["x"]["units"] == "V"


def test_groups_that_two_checkouts_make_and_one_marks(tmp_path):
    store = tmp_path / "s.h5"
    make(store)
    for name, about in (("one", None), ("two", "marked")):
        with Mount(store, checkout=name) as mount:
            os.mkdir(mount / "new")
            np.save(mount / f"new/{name}.npy", np.arange(2))
            if about:
                put(mount / "new", about=about)
    checkout("commit", store, "one")
    # Its attribute would be lost with the group.
    checkout("commit", store, "two", code=3)
    checkout("commit", "--ours", store, "two")
    assert attributes(export(store, tmp_path / "out.h5"))["new"] == {"about": "marked"}


# Sets attributes one after the other; says each that was set.
WRITER = r"""
import os, sys
for n in range(10_000):
    try:
        os.setxattr(sys.argv[1], f"user.n{n % 50}", str(n).encode())
    except OSError:
        break
    print(n, flush=True)
"""


def test_an_attribute_that_was_set_outlives_a_killed_daemon(tmp_path):
    store = tmp_path / "s.h5"
    make(store)
    for seed in range(3):
        with Mount(store, checkout="work") as mount:
            mount.expect_dead = True
            writer = subprocess.Popen([sys.executable, "-c", WRITER, mount / "x.npy"], stdout=subprocess.PIPE, text=True)
            told = [int(writer.stdout.readline()) for _ in range(20 + 17 * seed)]
            pid = mount.status()["pid"]
            signal_all([pid, *workers(pid)], signal.SIGKILL)
            told += [int(line) for line in writer.communicate(timeout=60)[0].split()]
        with Mount(store, "xattrs", checkout="work") as mount:
            last = {n % 50: n for n in told}
            for name, n in last.items():
                # One that was being set may be there or not.
                assert int(get(mount / "x.npy", f"n{name}")) in (n, told[-1] + 1)
    checkout("commit", store, "work")
    assert attributes(export(store, tmp_path / "out.h5"))["x"]["units"] == "V"
