"""npyfs checkout publish: a file of links in which h5py sees the merged store. Judges: h5py on the publication, on the store and on
an export; what the mount with the checkout shows. A file that is missing is an error, and never zeros."""

import errno
import json
import os
import shutil
import stat
import subprocess
import sys

import h5py
import numpy as np
import pytest

from support import daf
from support.checkouts import lines
from support.faults import Faults, build
from support.mount import Mount
from support.process import npyfs, one_line, run
from support.publications import assert_same, assert_shows, attributes, publish, tree

pytestmark = pytest.mark.fast


def make_store(path):
    """A store with every kind of object, attribute and link."""
    with h5py.File(path.parent / "other.h5", "w") as file:
        file["far"] = np.arange(4)
    with h5py.File(path, "w") as file:
        file.attrs["title"] = "a store"
        file.attrs["matrix"] = np.eye(3)
        file["a"] = np.arange(15.0).reshape(5, 3)
        file["a"].attrs["unit"] = "m"
        file["words"] = np.array(["one", "zwei", "drei ü"], dtype=h5py.string_dtype())
        file["fixed"] = np.array([b"ab", b"c"])
        file["pairs"] = np.array([(1, 2.5, b"x"), (3, 4.5, b"y")], dtype=[("n", "<i4"), ("v", ">f8"), ("t", "S3")])
        file["scalar"] = 3.5
        file["flags"] = np.array([True, False])
        group = file.create_group("g", track_order=True)
        group.attrs["about"] = np.array(["x", "y"], dtype=h5py.string_dtype())
        for name in ("z", "y", "c"):
            group[name] = np.full(4, ord(name))
        group.create_dataset("deep/packed", data=np.arange(1000), chunks=(100,), compression="gzip").attrs["k"] = 1
        quiet = file.create_group("quiet")
        quiet["x"] = np.arange(6, dtype=">i2")
        quiet["near"] = h5py.SoftLink("x")
        quiet.attrs["large"] = np.arange(4)
        file.create_group("empty").attrs["is"] = "empty"
        file.create_group("points")["at"] = h5py.SoftLink("/a")
        file["latest"] = h5py.SoftLink("/a")
        file["h"] = file["g"]
        file["elsewhere"] = h5py.ExternalLink("other.h5", "/far")


def change(mount):
    np.save(mount / "a.npy", np.arange(6.0).reshape(2, 3) + 100)
    os.unlink(mount / "scalar.npy")
    np.save(mount / "new.npy", np.arange(9, dtype="<u2"))
    np.save(mount / "g/deep/more.npy", np.array([b"ein", b"zwei"]))
    np.save(mount / "g/y.npy", np.array([1 + 2j]))
    os.unlink(mount / "g/c.npy")
    os.makedirs(mount / "fresh/er")
    np.save(mount / "fresh/er/x.npy", np.arange(3))


def without_far(path):
    """Mounts show no objects of other files."""
    with h5py.File(path, "r+") as file:
        del file["elsewhere"]


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "home" / "store.h5"
    path.parent.mkdir()
    make_store(path)
    return path


@pytest.fixture
def changed(store):
    """A store, and a checkout that is not committed."""
    with Mount(store, checkout="work") as mount:
        change(mount)
    return store


def test_h5py_reads_every_object_as_the_mount_shows_it(store, tmp_path):
    without_far(store)
    with Mount(store, checkout="work") as mount:
        change(mount)
    before = store.read_bytes()
    out = store.parent / "out.h5"
    printed = publish(store, "work", out).splitlines()
    # Small arrays may share files.
    assert f"links into {len(printed) - 1} files:" in printed[0] and len(printed) > 3, printed
    assert printed[1] == "store.h5" and all(name.startswith("store.h5.checkouts/work/") for name in printed[2:])
    with Mount(store, "ro", checkout="work") as mount:
        assert_shows(out, mount)
    assert store.read_bytes() == before
    assert out.stat().st_size < 100_000
    export = tmp_path / "whole.h5"
    assert npyfs("checkout", "export", store, "work", export).returncode == 0
    with h5py.File(out, "r") as one, h5py.File(export, "r") as other:
        assert set(tree(one)) == set(tree(other))
        assert list(one["g"]) == ["z", "deep", "y"] or set(one["g"]) == {"z", "deep", "y"}
        # One group under two names, as in the store.
        assert one["g"] == one["h"] and attributes(one["g"]) == attributes(other["g"])


def test_what_was_not_changed_is_as_in_the_store(changed):
    out = changed.parent / "out.h5"
    publish(changed, "work", out)
    same = ["words", "fixed", "pairs", "flags", "quiet", "quiet/x", "quiet/near", "empty", "g/z", "g/deep/packed", "elsewhere"]
    assert_same(out, changed, same)
    with h5py.File(out, "r") as file:
        for name in ("latest", "points/at"):
            assert np.array_equal(file[name], np.arange(6.0).reshape(2, 3) + 100), name
            assert isinstance(file.get(name, getlink=True), h5py.SoftLink)
        link = file.get("quiet", getlink=True)
        assert isinstance(link, h5py.ExternalLink) and (link.filename, link.path) == ("store.h5", "/quiet")
        assert "scalar" not in file and "c" not in file["g"]
        assert file.attrs["matrix"].tolist() == np.eye(3).tolist()


def test_without_a_checkout_what_is_committed_is_published(changed):
    first, second, third = (changed.parent / f"{n}.h5" for n in range(3))
    assert publish(changed, first).splitlines()[1:] == ["store.h5"]
    assert_same(first, changed)
    assert not (changed.parent / "store.h5.checkouts/.published").exists(), "it depends on no layer"
    publish(changed, "work", second)
    assert npyfs("checkout", "commit", changed, "work").returncode == 0
    publish(changed, third)
    assert_same(second, third)
    note = json.loads(h5py.File(third, "r").attrs["npyfs_published"])
    assert note["files"][0] == {"path": "store.h5", "size": changed.stat().st_size, "modified": changed.stat().st_mtime_ns}
    assert note["commit"] and note["checkout"] is None


READ = """
import sys, h5py
with h5py.File(sys.argv[1], "r") as file:
    print(file["a"].shape, file["words"][1], file["g/y"][0], file["latest"][0, 0], file["elsewhere"][3])
"""


def test_it_is_read_from_anywhere_and_moves_with_its_directory(changed, tmp_path):
    (changed.parent / "below").mkdir()
    out = changed.parent / "below" / "out.h5"
    publish(changed, "work", os.path.relpath(out, tmp_path), cwd=tmp_path)
    moved = tmp_path / "another"

    def read(path, cwd):
        return run([sys.executable, "-c", READ, path], cwd=cwd, check=True).stdout

    want = "(2, 3) b'zwei' (1+2j) 100.0 3\n"
    for path, cwd in [(out, "/"), ("out.h5", out.parent), ("home/below/out.h5", tmp_path)]:
        assert read(path, cwd) == want
    changed.parent.rename(moved)
    for path, cwd in [(moved / "below/out.h5", "/"), ("below/out.h5", moved)]:
        assert read(path, cwd) == want
    # Its record moved, too.
    done = npyfs("checkout", "discard", moved / "store.h5", "work")
    assert done.returncode == 3 and f"{moved}/below/out.h5" in one_line(done.stderr)


def test_a_missing_file_is_an_error_and_never_zeros(changed):
    out = changed.parent / "out.h5"
    files = publish(changed, "work", out).splitlines()[1:]
    (changed.parent / files[1]).unlink()
    with h5py.File(out, "r") as file:
        with pytest.raises((KeyError, OSError)):
            file["a"]
        assert file["words"][0] == b"one"
    changed.unlink()
    with h5py.File(out, "r") as file:
        for name in ("words", "quiet", "g/z"):
            with pytest.raises((KeyError, OSError)):
                file[name]


def test_nobody_writes_through_it(changed):
    """libhdf5 refuses to open it to write, even to root; so neither store nor layers can be changed through it."""
    out = changed.parent / "out.h5"
    publish(changed, "work", out)
    assert stat.S_IMODE(out.stat().st_mode) & 0o222 == 0
    os.chmod(out, 0o666)
    before = {path: path.read_bytes() for path in changed.parent.rglob("*.h5")}
    for mode in ("r+", "a"):
        with pytest.raises(OSError):
            h5py.File(out, mode)
    with h5py.File(out, "r") as file:
        with pytest.raises((OSError, ValueError)):
            file["words"][0] = "other"
    assert {path: path.read_bytes() for path in changed.parent.rglob("*.h5")} == before


def test_permissions_are_no_wider_than_the_stores(store):
    os.chmod(store, 0o600)
    publish(store, store.parent / "out.h5")
    assert stat.S_IMODE((store.parent / "out.h5").stat().st_mode) == 0o400


def test_a_checkout_that_was_published_is_not_discarded_unless_it_is_said(changed):
    out = changed.parent / "out.h5"
    publish(changed, "work", out)
    first, records = lines(changed.parent / "store.h5.checkouts/.published")
    assert first == "npyfs published 1" and [record["out"] for record in records] == ["../out.h5"]
    done = npyfs("checkout", "discard", changed, "work")
    assert done.returncode == 3 and str(out) in one_line(done.stderr) and "--force" in done.stderr
    with h5py.File(out, "r") as file:
        assert file["new"].shape == (9,)
    done = npyfs("checkout", "discard", "--force", changed, "work")
    assert done.returncode == 0 and f"{out}: cannot be read any more" in done.stderr


def test_a_publication_that_is_gone_holds_nothing(changed):
    out = changed.parent / "out.h5"
    publish(changed, "work", out)
    out.unlink()
    assert npyfs("checkout", "discard", changed, "work").returncode == 0


def test_it_goes_on_showing_what_it_showed_while_the_checkout_is_written(changed):
    out, later = changed.parent / "out.h5", changed.parent / "later.h5"
    publish(changed, "work", out)
    for value in (1.0, 2.0):
        with Mount(changed, checkout="work") as mount:
            np.save(mount / "a.npy", np.array([value]))
            os.rename(mount / "new.npy", mount / "renamed.npy") if value == 1.0 else np.save(mount / "renamed.npy", np.arange(2))
    with h5py.File(out, "r") as file:
        assert file["a"].shape == (2, 3) and file["new"].shape == (9,)
    publish(changed, "work", later)
    with h5py.File(later, "r") as file:
        assert file["a"][()] == [2.0] and file["renamed"].shape == (2,) and "new" not in file
    # Once it is gone its files go.
    layer = changed.parent / "store.h5.checkouts/work"
    held = len(list(layer.glob("*.h5")))
    out.unlink()
    with Mount(changed, checkout="work"):
        pass
    assert len(list(layer.glob("*.h5"))) < held
    with h5py.File(later, "r") as file:
        assert file["a"][()] == [2.0]


def test_a_checkout_that_is_written_is_not_published(changed):
    out = changed.parent / "out.h5"
    with Mount(changed, checkout="work") as mount:
        refused = publish(changed, "work", out, code=3)
        assert "writes in this checkout" in one_line(refused)
        # What is committed is no concern of that mount.
        publish(changed, out)
        np.save(mount / "still.npy", np.arange(2))
    assert not (set(os.listdir(out.parent)) - {"out.h5", "store.h5", "store.h5.checkouts", "other.h5"})


def test_objects_in_the_place_of_groups_and_groups_in_the_place_of_objects(store):
    with Mount(store, checkout="work") as mount:
        shutil.rmtree(mount / "quiet")
        np.save(mount / "quiet.npy", np.arange(2))
        os.unlink(mount / "fixed.npy")
        os.mkdir(mount / "fixed")
        np.save(mount / "fixed/x.npy", np.arange(3))
        os.mkdir(mount / "bare")
    out = store.parent / "out.h5"
    publish(store, "work", out)
    with h5py.File(out, "r") as file:
        assert file["quiet"].shape == (2,) and list(file["fixed"]) == ["x"] and list(file["bare"]) == []


def test_what_was_taken_back_is_as_it_was(changed):
    assert npyfs("checkout", "commit", changed, "work").returncode == 0
    commit = npyfs("checkout", "log", "-0", changed).stdout.split("\0")[0]
    assert npyfs("checkout", "revert", changed, commit).returncode == 0
    out = changed.parent / "out.h5"
    publish(changed, out)
    assert_same(out, changed, ["a", "scalar", "g/c", "g/y", "words"])
    with h5py.File(out, "r") as file, h5py.File(changed, "r") as base:
        assert set(tree(file)) == set(tree(base))


def test_json_and_null(changed):
    out, other = changed.parent / "out.h5", changed.parent / "other-out.h5"
    made = json.loads(publish("--json", changed, "work", out))
    names = publish("-0", changed, "work", other).split("\0")[:-1]
    assert [file["name"] for file in made["files"]] == names and made["bytes"] == out.stat().st_size
    assert made["name"] == str(out)


def test_references_do_not_come_along_unless_it_is_said(store):
    with h5py.File(store, "r+") as file:
        file["g"].attrs["best"] = file["a"].ref
    with Mount(store, checkout="work") as mount:
        np.save(mount / "g/y.npy", np.arange(2))
    out = store.parent / "out.h5"
    refused = publish(store, "work", out, code=3)
    assert "g@best: a reference" in refused and not out.exists()
    publish("--leave-out", store, "work", out)
    with h5py.File(out, "r") as file:
        assert "best" not in file["g"].attrs and file["g/y"].shape == (2,)


def test_attributes_of_groups_of_every_type_and_size(tmp_path):
    store, out = tmp_path / "store.h5", tmp_path / "out.h5"
    with h5py.File(store, "w", track_order=True) as file:
        file["kind"] = np.dtype([("a", "<i4"), ("b", ">f8")])
        for group in (file, file.create_group("g", track_order=True)):
            group.attrs.create("named", np.zeros(2, file["kind"].dtype), dtype=file["kind"])
            group.attrs["text"] = "ü"
            group.attrs["texts"] = np.array(["a", "bc"], dtype=h5py.string_dtype())
            group.attrs["lists"] = np.array([np.arange(2), np.arange(3)], dtype=h5py.vlen_dtype("i4"))
            group.attrs["nothing"] = h5py.Empty("f4")
            group.attrs["flag"] = True
        file["g"].attrs["large"] = np.arange(30_000)
        for name in ("z", "a", "m"):
            file[f"g/{name}"] = np.arange(3)
    with Mount(store, checkout="work") as mount:
        np.save(mount / "g/new.npy", np.arange(2))
    publish(store, "work", out)
    with h5py.File(out, "r") as one, h5py.File(store, "r") as other:
        for path in ("/", "g"):
            assert set(other[path].attrs) == {name for name in one[path].attrs if not name.startswith("npyfs_")}
            for name, value in other[path].attrs.items():
                if name != "lists":
                    assert np.array_equal(one[path].attrs[name], value) or one[path].attrs[name] == value, (path, name)
            assert [part.tolist() for part in one[path].attrs["lists"]] == [[0, 1], [0, 1, 2]]
        assert list(one["g"]) == ["z", "a", "m", "new"] and list(one) == list(other)
        assert one["g"].attrs["large"].shape == (30_000,)
    with h5py.File(store, "r+") as file:
        file.attrs["large"] = np.arange(30_000)
    out.unlink()
    assert "@large: an attribute of this size" in publish(store, "work", out, code=3)


def test_cycles_and_groups_of_any_depth(tmp_path):
    store = tmp_path / "store.h5"
    with h5py.File(store, "w") as file:
        file["loop/x"] = np.arange(3)
        file["loop/self"] = file["loop"]
        file["loop/root"] = file["/"]
        group = file.create_group("/".join(["d"] * 60))
        group["x"] = np.arange(3)
    deep = "/".join(["d"] * 60)
    with Mount(store, checkout="work") as mount:
        np.save(mount / "loop/y.npy", np.arange(2))
        np.save(mount / deep / "y.npy", np.arange(4))
    out = tmp_path / "out.h5"
    publish(store, "work", out)
    with h5py.File(out, "r") as file:
        assert file["loop/self/self/y"].shape == (2,) and file["loop/root/loop/x"].shape == (3,)
        assert file[deep]["x"].shape == (3,) and file[deep]["y"].shape == (4,)


def test_names_of_all_kinds(tmp_path):
    store = tmp_path / "st ore%b.h5"
    names = ["ü", "a b", "100%", "%b", "x.npy", "a#b"]
    with h5py.File(store, "w") as file:
        for name in names:
            file[name] = np.arange(3)
            file[f"g/{name}"] = np.arange(4)
    with Mount(store, checkout="work") as mount:
        np.save(mount / "g/n ü%.npy", np.arange(2))
    out = tmp_path / "out.h5"
    publish(store, "work", out)
    with h5py.File(out, "r") as file, Mount(store, checkout="work") as mount:
        assert len(os.listdir(mount / "g")) == len(file["g"]) == len(names) + 1
        for name in names:
            assert file[name].shape == (3,) and file["g"][name].shape == (4,)


def test_what_cannot_be_published_is_refused(changed, tmp_path):
    out = tmp_path / "out.h5"
    with h5py.File(tmp_path / "cells.h5df", "w") as file:
        daf.start(file)
        file["cell#"] = np.array([b"a", b"b"])
    refused = one_line(publish(tmp_path / "cells.h5df", out, code=3))
    assert "daf" in refused and "npyfs checkout export" in refused
    assert "one by one" in one_line(publish(tmp_path, out, code=3))
    assert npyfs("checkout", "publish", tmp_path / "nothing.h5", out).returncode != 0
    out.write_text("mine")
    assert "it is there already" in one_line(publish(changed, "work", out, code=3))
    assert out.read_text() == "mine"
    out.unlink()
    os.symlink("nowhere", out)
    assert "it is there already" in one_line(publish(changed, "work", out, code=3))
    out.unlink()
    assert "no checkout nobody" in one_line(publish(changed, "nobody", out, code=3))
    assert "No such file" in one_line(publish(changed, "work", tmp_path / "no/out.h5", code=3))
    inside = changed.parent / "store.h5.checkouts/out.h5"
    assert "among the checkouts" in one_line(publish(changed, "work", inside, code=3))
    for options in ({"checkout": "other"}, {}):
        with Mount(changed, **options) as mount:
            assert "mount of npyfs" in one_line(publish(changed, "work", mount / "g/out.h5", code=3))
            assert not os.path.exists(mount / "g/out")
    assert sorted(os.listdir(tmp_path)) == ["cells.h5df", "home"]


def test_a_daf_group_in_a_plain_store_stays_what_it_is(tmp_path):
    store, out = tmp_path / "store.h5", tmp_path / "out.h5"
    with h5py.File(store, "w") as file:
        file["x"] = np.arange(3)
        cells = file.create_group("cells")
        daf.start(cells)
        cells["cell#"] = np.array([b"a", b"b"])
    with Mount(store, checkout="work") as mount:
        np.save(mount / "x.npy", np.arange(4))
        np.save(mount / "cells/cell#age.npy", np.arange(2))
    refused = publish(store, "work", out, code=3)
    assert "cells/cell#age: daf" in refused and not out.exists()
    publish("--leave-out", store, "work", out)
    with h5py.File(out, "r") as file:
        assert file["x"].shape == (4,) and list(file["cells/cell#"]) == [b"a", b"b"]


def test_npyfs_reads_it_as_far_as_it_may_read_other_files(changed):
    out = changed.parent / "out.h5"
    publish(changed, "work", out)
    done = npyfs("ls", out)
    assert done.returncode == 0, done.stderr
    denied = npyfs("cat", out, "a.npy")
    assert denied.returncode == 3 and "external" in denied.stderr, denied
    done = npyfs("cat", "-o", "external=same-dir", out, "a.npy", text=False)
    assert done.returncode == 0, done.stderr
    with Mount(out, "external=same-dir") as mount:
        assert np.array_equal(np.load(mount / "a.npy"), np.arange(6.0).reshape(2, 3) + 100)
        assert np.array_equal(np.load(mount / "quiet/near.npy"), np.arange(6))
        assert len(np.load(mount / "words.npy")) == 3


def test_verify_says_when_a_file_is_not_what_it_was(changed):
    out = changed.parent / "out.h5"
    files = publish(changed, "work", out).splitlines()[1:]

    def verify(*options):
        return npyfs("verify", *options, out)

    done = verify("-o", "external=allow")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not checked" in verify().stdout
    with h5py.File(changed, "r+") as file:
        file["quiet/x"][0] = 9
    done = verify("-o", "external=same-dir")
    assert done.returncode == 3 and "store.h5 was changed since" in done.stderr, done
    (changed.parent / files[1]).unlink()
    assert f"{files[1]} is not there" in verify("-o", "external=allow").stderr


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("library"))


def test_whatever_fails_it_is_there_as_a_whole_or_not_at_all(changed, library):
    home, out = changed.parent, changed.parent / "out.h5"
    there = {*os.listdir(home), "faults"}
    faults = Faults(library, home)
    before = changed.read_bytes()
    faults.start()
    publish(changed, "work", out, env={**os.environ, **faults.env})
    calls = len(faults.stop())
    assert calls > 5
    out.unlink()
    for at in range(calls):
        for error in (errno.EIO, errno.ENOSPC):
            faults.start(at, error, forever=error == errno.ENOSPC)
            done = npyfs("checkout", "publish", changed, "work", out, env={**os.environ, **faults.env})
            kinds = faults.stop()
            about = f"call {at} ({kinds[at:at + 1]}), {errno.errorcode[error]}: {done.stderr}"
            if out.exists():
                with h5py.File(out, "r") as file:
                    assert file["a"].shape == (2, 3) and file["words"][1] == b"zwei" and file["g/y"].shape == (1,), about
                out.unlink()
            else:
                assert done.returncode == 3, about
                # On a full disk what it says cannot be written, either.
                assert error == errno.ENOSPC or done.stderr.startswith("npyfs: "), about
            left = {name for name in os.listdir(home) if not name.startswith(".npyfs-export-")}
            assert left == there, about
    publish(changed, "work", out)
    assert set(os.listdir(home)) == there | {"out.h5"}, "remains of what failed"
    assert changed.read_bytes() == before


def test_a_kill_leaves_nothing_with_that_name(changed):
    out = changed.parent / "out.h5"
    for delay in (0.0, 0.02, 0.05, 0.1, 0.2):
        process = subprocess.Popen([os.environ["NPYFS_BIN"], "checkout", "publish", changed, "work", out],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)
        if out.exists():
            with h5py.File(out, "r") as file:
                assert file["a"].shape == (2, 3)
            out.unlink()
    publish(changed, "work", out)
    assert not [name for name in os.listdir(changed.parent) if name.startswith(".npyfs-export-")]
