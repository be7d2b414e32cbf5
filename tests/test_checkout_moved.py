"""Stores that were moved or copied away from their checkouts: what is left behind is noticed, and the command that is named puts it
right. Judges: NumPy through mounts, and the shell that runs the command."""

import os
import re
import shutil

import h5py
import numpy as np
import pytest

from support import arkouda
from support.checkouts import top
from support.mount import Mount, make_point
from support.process import npyfs, one_line, run

pytestmark = pytest.mark.fast


def make(path, value=0.0):
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        file["x"] = np.full(10, value)
        file["y"] = np.arange(5) + value
    return path


def commit(store, **options):
    """Commits an array, and begins a checkout with another."""
    flags = ["--checkouts", options["checkouts"]] if options else []
    for name in ("done", "open"):
        with Mount(store, checkout=name, **options) as m:
            np.save(m / f"{name}.npy", np.ones(3))
    npyfs("checkout", "commit", *flags, store, "done", check=True)


def moved(stderr):
    """The command that a message about a moved store names."""
    line = one_line(stderr)
    found = re.search(r"has the checkouts of this store, which was moved: (?:they are not shown until|before .* directory:) (.*)$", line)
    assert found, line
    return found[1]


@pytest.mark.parametrize("name", ["other.h5", "it's another.h5", "sub"])
def test_a_renamed_store_finds_its_checkouts(tmp_path, name):
    old = make(tmp_path / "old.h5")
    commit(old)
    new = tmp_path / name
    old.rename(new)
    for command in (["checkout", "ls", new], ["checkout", "log", new], ["ls", new], ["info", new], ["verify", new]):
        done = npyfs(*command, check=True)
        said = moved(done.stderr)
    assert npyfs("ls", new, check=True).stdout.split() == ["x.npy", "y.npy"]
    # Reading goes on, writing would mix two stores' checkouts.
    point = make_point()
    try:
        done = npyfs("mount", "--checkout", "open", new, point)
        assert done.returncode == 2 and moved(done.stderr) == said and not top(new).exists()
        assert moved(npyfs("mount", new, point, check=True).stderr) == said
        npyfs("umount", point, check=True)
    finally:
        os.rmdir(point)
    run(["sh", "-c", said], check=True)
    with Mount(new, checkout="open") as m:
        assert sorted(os.listdir(m.path)) == ["done.npy", "open.npy", "x.npy", "y.npy"]
    assert npyfs("checkout", "ls", new, check=True).stderr == ""


def test_what_is_left_behind_may_stay_so_elsewhere(tmp_path):
    old = make(tmp_path / "old.h5")
    commit(old)
    new = old.rename(tmp_path / "new.h5")
    (tmp_path / "away").mkdir()
    top(old).rename(tmp_path / "away/old.h5.checkouts")
    with Mount(new, checkout="fresh") as m:
        assert sorted(os.listdir(m.path)) == ["x.npy", "y.npy"]


def test_a_store_that_is_gone_names_its_checkouts(tmp_path):
    old = make(tmp_path / "old.h5")
    commit(old)
    (tmp_path / "elsewhere").mkdir()
    old.rename(tmp_path / "elsewhere/old.h5")
    for command in (["checkout", "ls", old], ["ls", old], ["mount", old, tmp_path / "elsewhere"], ["log", "--checkout", "open", old]):
        done = npyfs(*command)
        assert done.returncode == 2 and f"its checkouts are still there: move {top(old)} along" in one_line(done.stderr), done
    # Nothing but the store's own directory is looked at.
    assert npyfs("ls", tmp_path / "elsewhere/old.h5", check=True).stderr == ""
    shutil.move(top(old), top(tmp_path / "elsewhere/old.h5"))
    assert "done.npy" in npyfs("ls", tmp_path / "elsewhere/old.h5", check=True).stdout
    assert "its checkouts" not in npyfs("ls", tmp_path / "never.h5").stderr


def test_other_stores_beside_orphaned_checkouts_are_left_alone(tmp_path):
    old = make(tmp_path / "old.h5")
    commit(old)
    other = make(tmp_path / "other.h5", 5.0)
    copy = shutil.copy2(old, tmp_path / "copy.h5")
    # The store is where it was: a copy is another store, which may have checkouts of its own.
    for store in (old, other, copy):
        assert npyfs("checkout", "ls", store, check=True).stderr == ""
    old.unlink()
    assert npyfs("checkout", "ls", other, check=True).stderr == ""
    with Mount(other, checkout="open") as m:
        assert sorted(os.listdir(m.path)) == ["x.npy", "y.npy"]
    # Now the copy is all there is of the store.
    assert "mv " in moved(npyfs("checkout", "ls", copy, check=True).stderr)


def test_a_store_copied_with_its_checkouts_goes_its_own_way(tmp_path):
    old = make(tmp_path / "old.h5")
    commit(old)
    new = tmp_path / "new.h5"
    shutil.copy(old, new)
    shutil.copytree(top(old), top(new))
    with Mount(new, checkout="open") as m:
        np.save(m / "more.npy", np.ones(1))
    npyfs("checkout", "commit", new, "open", check=True)
    assert npyfs("ls", new, check=True).stdout.split() == ["done.npy", "more.npy", "open.npy", "x.npy", "y.npy"]
    assert npyfs("ls", old, check=True).stdout.split() == ["done.npy", "x.npy", "y.npy"]


def test_a_renamed_directory_and_a_renamed_set(tmp_path):
    make(tmp_path / "folder/a.h5")
    with Mount(tmp_path / "folder", checkout="open") as m:
        np.save(m / "a.h5/new.npy", np.ones(3))
    (tmp_path / "folder").rename(tmp_path / "other")
    run(["sh", "-c", moved(npyfs("checkout", "ls", tmp_path / "other", check=True).stderr)], check=True)
    assert "open" in npyfs("checkout", "ls", tmp_path / "other", check=True).stdout
    with arkouda.Store(tmp_path, "set", [4, 5]) as store:
        arkouda.put_array(store, "ints", np.arange(9))
    with Mount(tmp_path / "set_LOCALE0000", checkout="open") as m:
        np.save(m / "new.npy", np.ones(3))
    for path in tmp_path.glob("set_LOCALE000*"):
        path.rename(tmp_path / path.name.replace("set", "moved"))
    done = npyfs("checkout", "ls", tmp_path / "moved_LOCALE0000", check=True)
    run(["sh", "-c", moved(done.stderr)], check=True)
    assert "open" in npyfs("checkout", "ls", tmp_path / "moved_LOCALE0000", check=True).stdout


def test_a_moved_store_with_checkouts_in_a_directory_of_their_own(tmp_path):
    place = tmp_path / "all"
    old = make(tmp_path / "a/x.h5")
    commit(old, checkouts=place)
    (tmp_path / "b").mkdir()
    new = tmp_path / "b/x.h5"
    old.rename(new)
    said = moved(npyfs("checkout", "ls", "--checkouts", place, new, check=True).stderr)
    assert moved(npyfs("mount", "--checkout", "open", "--checkouts", place, new, tmp_path / "a").stderr) == said
    run(["sh", "-c", said], check=True)
    with Mount(new, checkout="open", checkouts=place) as m:
        assert sorted(os.listdir(m.path)) == ["done.npy", "open.npy", "x.npy", "y.npy"]
    assert sorted(os.listdir(place)) == ["x.h5.checkouts"]
