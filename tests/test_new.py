"""npyfs new: empty stores of every kind. Judges: h5py, real Hangar, npyfs verify, and what is written into them through a mount."""

import os

import h5py
import numpy as np
import pytest

from support import hangar
from support.checkouts import checkout
from support.mount import Mount
from support.process import npyfs, one_line

USAGE, STORE = 1, 2


def refused(*arguments, code=STORE):
    done = npyfs("new", *arguments)
    assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
    one_line(done.stderr)
    return done.stderr


@pytest.mark.fast
@pytest.mark.parametrize("kind, name, array", [
    ("plain", "deep/values", np.arange(6.0).reshape(2, 3)),
    ("arkouda", "distance", np.arange(5)),
    ("daf", "cell#", np.array(["a", "b"])),
])
def test_an_empty_store_is_written_into(tmp_path, kind, name, array):
    store = tmp_path / "new.h5"
    assert "empty" in npyfs("new", kind, store, check=True).stdout
    assert os.listdir(tmp_path) == ["new.h5"]
    with h5py.File(store) as file:
        assert list(file) == (["__daf__"] if kind == "daf" else [])
    assert "all is well" in npyfs("verify", store, check=True).stdout
    before = store.read_bytes()
    with Mount(store, checkout="work") as mount:
        assert mount.info("")["kind"] == kind
        os.makedirs((mount / name).parent, exist_ok=True)
        np.save(mount / f"{name}.npy", array)
    checkout("commit", store, "work")
    assert store.read_bytes() == before
    checkout("export", store, tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        np.testing.assert_array_equal(file[name][()], array.astype("S") if kind == "daf" else array)
    assert "all is well" in npyfs("verify", tmp_path / "out.h5", check=True).stdout


def test_a_daf_store_begins_with_axes(tmp_path):
    np.save(tmp_path / "cells.npy", np.array(["a", "bcd", ""]))
    np.save(tmp_path / "genes.npy", np.array([b"x", b"y"]))
    store = tmp_path / "cells.h5df"
    npyfs("new", "daf", "--axis", f"cell={tmp_path}/cells.npy", store, "--axis", f"gene={tmp_path}/genes.npy", check=True)
    with h5py.File(store) as file:
        assert sorted(file) == ["__daf__", "cell#", "gene#"]
        np.testing.assert_array_equal(file["__daf__"][()], [1, 0])
        np.testing.assert_array_equal(file["cell#"].asstr()[()], ["a", "bcd", ""])
        np.testing.assert_array_equal(file["gene#"][()], [b"x", b"y"])
    with Mount(store, checkout="work") as mount:
        np.save(mount / "cell,gene#score.npy", np.ones((3, 2), "f4"))
    checkout("commit", store, "work")
    assert "all is well" in npyfs("verify", store, check=True).stdout


@pytest.mark.skipif(not hangar.PYTHON, reason="NPYFS_HANGAR_PYTHON names no Python with Hangar: a new repository is NOT judged")
def test_hangar_goes_on_with_a_new_repository(tmp_path):
    path = tmp_path / "repo"
    npyfs("new", "hangar", path, "--name", "Ann 50%", "--email", "ann@example.com", check=True)
    assert os.listdir(tmp_path) == ["repo"] and os.listdir(path) == [".hangar"]
    hangar.script('''
repo = Repository(sys.argv[1], exists=True)
co = repo.checkout(write=True)
column = co.add_ndarray_column("x", prototype=np.zeros((2, 2), "u1"))
column["a"] = np.full((2, 2), 7, "u1")
co.commit("by hangar")
co.close()
assert "Ann 50%" in str(repo.log(return_contents=True)), repo.log(return_contents=True)
''', path)
    with Mount(path) as mount:
        np.testing.assert_array_equal(np.load(mount / "branches/master/x/a.npy"), np.full((2, 2), 7))
    assert "all is well" in npyfs("verify", path, check=True).stdout


def test_what_cannot_be_made_is_refused_and_leaves_nothing(tmp_path):
    np.save(tmp_path / "numbers.npy", np.arange(3))
    np.save(tmp_path / "twice.npy", np.array(["a", "a"]))
    np.save(tmp_path / "good.npy", np.array(["a", "b"]))
    (tmp_path / "none.npy").write_bytes(b"\x93NUMPY")
    (tmp_path / "taken.h5").write_text("mine")
    (tmp_path / "dir").mkdir()
    before = sorted(os.listdir(tmp_path))
    axis = lambda name, file: ["--axis", f"{name}={tmp_path / file}"]  # noqa: E731
    new = tmp_path / "new.h5df"
    assert "there already" in refused("plain", tmp_path / "taken.h5")
    assert "there already" in refused("hangar", tmp_path / "dir", "--name", "a", "--email", "b")
    assert "cell#" in refused("daf", new, *axis("cell", "numbers.npy"))
    assert "twice" in refused("daf", new, *axis("cell", "twice.npy"))
    assert "twice" in refused("daf", new, *axis("cell", "good.npy"), *axis("cell", "good.npy"))
    assert "header" in refused("daf", new, *axis("cell", "none.npy"))
    assert "missing.npy" in refused("daf", new, *axis("cell", "missing.npy"))
    for name in ("a#b", "a,b", "a/b"):
        assert "axis" in refused("daf", new, *axis(name, "good.npy"))
    assert "axes" in refused("plain", tmp_path / "x.h5", *axis("cell", "good.npy"))
    assert "NAME=FILE" in refused("daf", new, "--axis", "cell", code=USAGE)
    assert "plain, daf, arkouda, hangar" in refused("zarr", new, code=USAGE)
    assert "author" in refused("hangar", tmp_path / "repo")
    assert "author" in refused("hangar", tmp_path / "repo", "--name", "a\nb", "--email", "c")
    assert "author" in refused("plain", new, "--name", "a", "--email", "c")
    assert str(tmp_path / "nowhere") in refused("plain", tmp_path / "nowhere/x.h5")
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "taken.h5").read_text() == "mine"


def test_a_mount_of_what_is_not_there_says_how_to_begin(tmp_path):
    (tmp_path / "mnt").mkdir()
    done = npyfs("mount", "--checkout", "work", tmp_path / "cells.h5df", tmp_path / "mnt")
    assert done.returncode and "npyfs new" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["mnt"]


def test_a_new_store_has_the_rights_of_any_new_file(tmp_path):
    store = tmp_path / "x.h5"
    mask = os.umask(0o027)
    try:
        npyfs("new", "plain", store, check=True)
    finally:
        os.umask(mask)
    assert store.stat().st_mode & 0o777 == 0o640
