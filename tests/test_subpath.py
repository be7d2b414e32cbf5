"""STORE:/path and -o subpath=: a directory inside a store as the root of a mount, in commands and in the checkout of the whole store."""

import json
import os
import shutil

import h5py
import numpy as np
import pytest

from support.checkouts import checkout, write_daf
from support.mount import Mount, clear, make_point, mounts
from support.process import NPYFS, npyfs, one_line, run

STORE, OBJECT, USAGE = 2, 3, 1


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "x.h5fs"
    with h5py.File(path, "w") as file:
        file["top"] = np.arange(3)
        file["foo/bar/a"] = np.arange(6.0).reshape(2, 3)
        file["foo/bar/deep/b"] = np.arange(4)
        file["foo/other"] = np.arange(5)
        file["foo/bar/inside"] = h5py.SoftLink("/foo/bar/deep/b")
        file["foo/bar/deep/up"] = h5py.SoftLink("/foo/bar/a")
        file["foo/bar/away"] = h5py.SoftLink("/foo/other")
        file["foo/bar/deep/away"] = h5py.SoftLink("/top")
        file["link"] = h5py.SoftLink("/foo/bar")
    return path


def part(store, path):
    return f"{store}:{path}"


def listed(place, *arguments):
    return npyfs("ls", "-0", *arguments, place, check=True).stdout.split("\0")[:-1]


@pytest.mark.fast
def test_a_mount_shows_the_group_and_nothing_above_it(store):
    with Mount(part(store, "/foo/bar")) as mount:
        assert sorted(os.listdir(mount.path)) == ["a.npy", "deep", "inside.npy"]
        assert sorted(os.listdir(mount / "deep")) == ["b.npy", "up.npy"]
        np.testing.assert_array_equal(np.load(mount / "a.npy"), np.arange(6.0).reshape(2, 3))
        np.testing.assert_array_equal(np.load(mount / "inside.npy"), np.arange(4))
        np.testing.assert_array_equal(np.load(mount / "deep/up.npy"), np.arange(6.0).reshape(2, 3))
        status = mount.status()
        assert (status["store"], status["subpath"]) == (str(store), "/foo/bar")
        assert mount.info("a.npy")["shape"] == [2, 3]
        # What leads out is left out, and named.
        for name in ("away.npy", "deep/away.npy"):
            assert not os.path.lexists(mount / name)
        assert {entry["name"] for entry in mount.info("")["left_out"]} == {"away.npy"}


@pytest.mark.fast
@pytest.mark.parametrize("spelled", ["/foo/bar", "/foo//bar/", "/foo/./bar", "/link", "/foo/../foo/bar"])
def test_spellings_of_a_path(store, spelled):
    assert listed(part(store, spelled)) == ["a.npy", "deep", "inside.npy"]
    assert listed(store, "-o", f"subpath={spelled}") == ["a.npy", "deep", "inside.npy"]
    with Mount(store, f"subpath={spelled}") as mount:
        assert sorted(os.listdir(mount.path)) == ["a.npy", "deep", "inside.npy"]


@pytest.mark.fast
def test_commands_take_it(store, tmp_path):
    place = part(store, "/foo/bar")
    assert listed(place, "-R") == ["a.npy", "deep", "deep/b.npy", "deep/up.npy", "inside.npy"]
    assert npyfs("cat", place, "a.npy", check=True, text=False).stdout == npyfs("cat", store, "foo/bar/a.npy", check=True, text=False).stdout
    assert json.loads(npyfs("info", "--json", place, "a.npy", check=True).stdout)["shape"] == [2, 3]
    assert "0 1 2" in npyfs("show", place, "a.npy", check=True).stdout.replace(".", "").replace("  ", " ")
    assert npyfs("verify", place, check=True).stdout.startswith("2 files")
    assert listed(part(store, "/")) == listed(store)
    slip = npyfs("cat", place, "A.npy")
    assert slip.returncode == OBJECT and "did you mean a.npy?" in slip.stderr


@pytest.mark.fast
@pytest.mark.parametrize("path, says", [
    ("/foo/baz", "did you mean /foo/bar?"),
    ("/fooo/bar", "did you mean"),
    ("/nothing/at/all", "/nothing/at/all: no such path in the store"),
    ("/top.npy", "no directory of the store"),
])
def test_a_path_that_is_not_there_is_named(store, tmp_path, path, says):
    (tmp_path / "mnt").mkdir()
    commands = [npyfs("mount", part(store, path), tmp_path / "mnt"), npyfs("info", "-o", f"subpath={path}", store)]
    if path != "/top.npy":  # which commands that read take: test_cli_look
        commands.append(npyfs("ls", part(store, path)))
    for done in commands:
        assert done.returncode == STORE
        one_line(done.stderr)
        assert says in done.stderr and "x.h5fs" in done.stderr and path in done.stderr
    assert os.listdir(tmp_path / "mnt") == []


@pytest.mark.fast
def test_what_exists_as_a_path_wins(store, tmp_path):
    folder = tmp_path / "x.h5fs:"
    folder.mkdir()
    with h5py.File(folder / "foo", "w") as file:
        file["other"] = np.arange(2)
        file["g/y"] = np.arange(3)
    assert listed(part(store, "/foo")) == ["g", "other.npy"]
    assert listed(part(store, "/foo:/g")) == ["y.npy"]
    assert listed(part(store, "/foo/bar")) == ["a.npy", "deep", "inside.npy"]
    colon = tmp_path / "a:b.h5"
    shutil.copy(store, colon)
    assert listed(colon) == listed(store)
    assert listed(part(colon, "/foo/bar")) == ["a.npy", "deep", "inside.npy"]


@pytest.mark.fast
def test_two_paths_must_be_the_same(store):
    same = npyfs("ls", "-o", "subpath=/foo", part(store, "/foo"), check=True)
    assert same.stdout.split() == ["bar", "other.npy"]
    done = npyfs("ls", "-o", "subpath=/foo", part(store, "/foo/bar"))
    assert done.returncode == USAGE
    one_line(done.stderr)


def test_directories_and_repositories(store, tmp_path):
    (tmp_path / "all/sub").mkdir(parents=True)
    shutil.move(store, tmp_path / "all/sub/x.h5fs")
    assert listed(f"{tmp_path}/all:/sub/x.h5fs/foo/bar") == ["a.npy", "deep", "inside.npy"]
    with Mount(f"{tmp_path}/all:/sub/x.h5fs", checkout="work") as mount:
        np.save(mount / "foo/new.npy", np.arange(7))
        assert "new.npy" in os.listdir(mount / "foo")
    assert "A sub/x.h5fs/foo/new.npy" in checkout("diff", tmp_path / "all", "work").stdout


def test_a_checkout_is_that_of_the_whole_store(store, tmp_path):
    place = part(store, "/foo/bar")
    with Mount(place, checkout="work") as mount:
        np.save(mount / "new.npy", np.arange(7))
        np.save(mount / "a.npy", np.arange(8))
        os.mkdir(mount / "group")
        np.save(mount / "group/c.npy", np.arange(9))
        os.rename(mount / "group/c.npy", mount / "deep/c.npy")
        os.remove(mount / "deep/b.npy")
        assert sorted(os.listdir(mount.path)) == ["a.npy", "deep", "group", "inside.npy", "new.npy"] or \
            sorted(os.listdir(mount.path)) == ["a.npy", "deep", "group", "new.npy"]
        np.testing.assert_array_equal(np.load(mount / "a.npy"), np.arange(8))
        with pytest.raises(OSError):
            (mount / ".npyfs/x.npy").write_bytes(b"")
        assert "new.npy" in npyfs("checkout", "diff", mount.path, check=True).stdout
    changes = checkout("diff", store, "work").stdout.splitlines()
    assert [line.split()[:2] for line in changes] == [
        ["M", "foo/bar/a.npy"], ["D", "foo/bar/deep/b.npy"], ["A", "foo/bar/deep/c.npy"], ["A", "foo/bar/group/"], ["A", "foo/bar/new.npy"]]
    # Only what concerns the part.
    assert checkout("diff", part(store, "/foo/bar/deep"), "work").stdout.split()[1::4][:1] == ["foo/bar/deep/b.npy"]
    assert checkout("diff", part(store, "/top"), "work").stdout == ""
    with Mount(store, checkout="work") as mount:
        np.save(mount / "top.npy", np.arange(10))
        np.testing.assert_array_equal(np.load(mount / "foo/bar/new.npy"), np.arange(7))
    with Mount(place, "ro", checkout="work") as mount:
        np.testing.assert_array_equal(np.load(mount / "deep/c.npy"), np.arange(9))
    done = checkout("commit", place, "work", code=USAGE)
    assert "whole store" in done.stderr and str(store) in done.stderr
    checkout("commit", store, "work")
    with Mount(place) as mount:
        np.testing.assert_array_equal(np.load(mount / "new.npy"), np.arange(7))
    assert listed(part(store, "/foo/bar/group")) == []
    checkout("export", store, tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        np.testing.assert_array_equal(file["foo/bar/a"][()], np.arange(8))
        assert sorted(file["foo/bar/deep"]) == ["away", "c", "up"]
        np.testing.assert_array_equal(file["top"][()], np.arange(10))


def test_a_part_of_a_daf_file_is_written_by_its_rules(tmp_path):
    store = tmp_path / "x.h5fs"
    write_daf(tmp_path / "part.h5df")
    with h5py.File(tmp_path / "part.h5df") as part_file, h5py.File(store, "w") as file:
        part_file.copy(part_file["/"], file, "run/one")
    with Mount(f"{store}:/run/one", checkout="work") as mount:
        assert mount.info("")["kind"] == "daf"
        np.save(mount / "cell#score.npy", np.arange(4.0))
        with pytest.raises(OSError):
            np.save(mount / "cell#short.npy", np.arange(3.0))
        os.makedirs(mount / "cell,gene#sparse")
        np.save(mount / "cell,gene#sparse/data.npy", np.arange(1.0, 3.0))
    # What is not complete waits where it is, whatever part is mounted.
    with Mount(store, checkout="work") as mount:
        assert os.listdir(mount / "run/one/cell,gene#sparse") == ["data.npy"]
    with Mount(f"{store}:/run", checkout="work") as mount:
        for name, array in {"indices": np.array([0, 2], "i4"), "indptr": np.array([0, 1, 2, 2, 2], "i4"), "shape": np.array([4, 3])}.items():
            np.save(mount / f"one/cell,gene#sparse/{name}.npy", array)
    checkout("commit", store, "work")
    checkout("export", store, tmp_path / "out.h5fs")
    with h5py.File(tmp_path / "out.h5fs") as file:
        np.testing.assert_array_equal(file["run/one/cell#score"][()], np.arange(4.0))
        np.testing.assert_array_equal(file["run/one/cell,gene#sparse/data"][()], [1.0, 2.0])
    assert "all is well" in npyfs("verify", f"{tmp_path}/out.h5fs:/run/one", check=True).stdout


def test_a_part_of_a_store_that_is_replaced(store):
    with Mount(part(store, "/foo/bar")) as mount:
        np.testing.assert_array_equal(np.load(mount / "a.npy"), np.arange(6.0).reshape(2, 3))
        other = store.with_name("other")
        with h5py.File(other, "w") as file:
            file["foo/bar/a"] = np.arange(11)
        os.rename(other, store)
        np.testing.assert_array_equal(np.load(mount / "a.npy"), np.arange(11))
        assert os.listdir(mount.path) == ["a.npy"]
        with h5py.File(other, "w") as file:
            file["foo/b"] = np.arange(11)
        os.rename(other, store)
        with pytest.raises(OSError):
            np.load(mount / "a.npy")


def test_mount_8_and_fstab_take_it(store, tmp_path):
    """The helper that mount(8) runs, with the place of the store as a line of fstab has it."""
    helper, point = tmp_path / "mount.npyfs", make_point()
    os.symlink(NPYFS, helper)
    try:
        for place, options in ((part(store, "/foo/bar"), "ro"), (store, "ro,subpath=/foo/bar")):
            run([helper, place, point, "-o", options], check=True)
            assert sorted(os.listdir(point)) == ["a.npy", "deep", "inside.npy"]
            assert mounts()[os.fspath(point)][1] == part(store, "/foo/bar")
            npyfs("umount", point, check=True)
    finally:
        clear(point)
        os.rmdir(point)


def test_convert_takes_it(store, tmp_path):
    for number, arguments in enumerate([[part(store, "/foo/bar/deep")], ["-o", "subpath=/foo/bar/deep", store]]):
        out = tmp_path / f"out{number}.h5"
        npyfs("convert", "--leave-out", *arguments, out)
        with h5py.File(out) as file:
            np.testing.assert_array_equal(file["b"][()], np.arange(4))
            assert "top" not in file and "foo" not in file
