"""npyfs checkout restore: objects of a checkout are again what they are below it, or what they were after a commit. Judges: NumPy through
later mounts, h5py on exported files, what mounts showed before; faults injected into every call that changes the disk."""

import errno
import json
import os
import shutil

import h5py
import numpy as np
import pytest
import scipy.sparse

from support import daf
from support.commits import content, log, make_store, revert, times, write
from support.faults import Faults, build
from support.mount import Mount
from support.process import npyfs, one_line

OBJECT, USAGE = 3, 1


def change(store, arrays, deleted=(), name="work"):
    """Writes in a checkout, which stays open."""
    with Mount(store, checkout=name) as m:
        for path in deleted:
            (shutil.rmtree if os.path.isdir(m / path) else os.unlink)(m / path)
        for path, array in arrays.items():
            (m / path).parent.mkdir(exist_ok=True, parents=True)
            np.save(m / path, array)


def restore(store, *arguments, changes, name="work"):
    done = npyfs("checkout", "restore", store, *arguments, check=True)
    want = f"restored in {name}: {changes} changes\n" if changes else "nothing to restore\n"
    assert (done.stdout, done.stderr) == (want, "")


def refused(store, *arguments, code=OBJECT):
    layers = sorted(store.parent.glob("*.checkouts/*"))
    done = npyfs("checkout", "restore", store, *arguments)
    assert done.returncode == code and done.stdout == "", done
    assert sorted(store.parent.glob("*.checkouts/*")) == layers, "a checkout was begun"
    return done.stderr


def diff(store, name="work"):
    return npyfs("checkout", "diff", store, name, check=True).stdout


def shown(store, name="work"):
    return content(store, checkout=name)


def exported(store, out, name="work"):
    npyfs("checkout", "export", store, name, out, check=True)
    found = {}
    with h5py.File(out) as file:
        file.visititems(lambda name, item: found.update({name: item[()].tolist() if isinstance(item, h5py.Dataset) else None}))
    return found


@pytest.mark.fast
@pytest.mark.parametrize("path", ["a.npy", "a", "./a.npy", "/a"])
def test_one_object_is_as_it_is_below(store, path):
    base, then = content(store), times(store)
    change(store, {"a.npy": np.zeros(3), "z.npy": np.zeros(4)}, ["g/c.npy"])
    changed = shown(store)
    restore(store, path, changes=1)
    assert shown(store) == {**changed, "a.npy": base["a.npy"]}
    assert diff(store) == "D g/c.npy\nM z.npy  <f8 (4,)\n"
    restore(store, "g/c", "z.npy", changes=2)
    assert shown(store) == base and diff(store) == "" and times(store, checkout="work") == then
    # The files of what was written are gone, and the checkout goes on.
    assert sorted(os.listdir(store.with_name("x.h5.checkouts") / "work")) == ["holder", "index"]
    change(store, {"a.npy": np.ones(2)})
    assert shown(store)["a.npy"] != base["a.npy"]


@pytest.mark.fast
def test_what_was_written_anew_goes(store, tmp_path):
    base = content(store)
    change(store, {"new.npy": np.zeros(3), "n/x.npy": np.zeros(4), "a.npy": np.zeros(2)})
    restore(store, "new.npy", "n", changes=3)
    assert shown(store) == {**base, "a.npy": shown(store)["a.npy"]}
    assert "n" not in exported(store, tmp_path / "out.h5")


@pytest.mark.fast
def test_a_group_with_all_that_is_in_it(store, tmp_path):
    base = content(store)
    change(store, {"g/b.npy": np.zeros(3), "g/new.npy": np.zeros(3), "z.npy": np.zeros(1)}, ["g/h"])
    restore(store, "g/", changes=4)
    assert shown(store) == {**base, "z.npy": shown(store)["z.npy"]}
    change(store, {}, ["g"])
    # Nothing of a group that was deleted can come back alone.
    said = one_line(refused(store, "g/b.npy"))
    assert said == "npyfs: nothing was restored: g/b.npy: it lies in g, which was written or deleted later: restore g"
    restore(store, "z", "g", changes=6)
    assert shown(store) == base
    with h5py.File(store) as file:
        assert exported(store, tmp_path / "out.h5").keys() == {*_names(file)}


def _names(file):
    found = []
    file.visit(found.append)
    return found


@pytest.mark.fast
def test_below_a_checkout_are_the_commits(store):
    write(store, "first", {"a.npy": np.full(3, 1), "own.npy": np.full(2, 1)}, ["z.npy"])
    committed = content(store)
    change(store, {"a.npy": np.full(3, 2), "z.npy": np.full(1, 2)}, ["own.npy"])
    restore(store, "a", "z", "own", changes=3)
    assert shown(store) == committed


@pytest.mark.fast
def test_the_state_after_a_commit_is_a_change(store, tmp_path):
    base = content(store)
    write(store, "one", {"a.npy": np.full(3, 1), "g/new.npy": np.full(2, 1)}, ["z.npy"])
    first = content(store)
    write(store, "two", {"a.npy": np.full(3, 2), "z.npy": np.full(3, 2), "g/b.npy": np.full(1, 2)})
    second = content(store)
    write(store, "three", {"a.npy": np.full(3, 3)}, ["g/new.npy"])
    third = content(store)
    # Nothing is open: a name begins a checkout.
    assert "which checkout?" in refused(store, "--at", "1", "a", code=USAGE)
    restore(store, "--at", "HEAD~2", "--checkout", "work", "a.npy", changes=1)
    assert shown(store) == {**third, "a.npy": first["a.npy"]}
    assert diff(store) == "M a.npy  <i8 (3,)\n"
    assert times(store, checkout="work")["a.npy"] > times(store)["a.npy"]
    assert not list((store.with_name("x.h5.checkouts") / "work").glob("*.h5")), "something was copied"
    restore(store, "--at", "2", "a.npy", changes=1)
    assert shown(store)["a.npy"] == second["a.npy"]
    # A group, in which there are objects of all kinds.
    restore(store, "--at", "1", "g", changes=2)
    assert diff(store) == "M a.npy  <i8 (3,)\nM g/b.npy  <i8 (6,)\nA g/new.npy  <i8 (2,)\n"
    assert shown(store) == {**third, "a.npy": second["a.npy"], "g/b.npy": base["g/b.npy"], "g/new.npy": first["g/new.npy"]}
    # What is so below the checkout is no change of it.
    restore(store, "--at", "HEAD", "g", "a", changes=3)
    assert shown(store) == third and diff(store) == ""
    restore(store, "--at", "HEAD", "g", changes=0)
    # Of the store itself.
    npyfs("checkout", "revert", store, "1")
    restore(store, "--at", "1", "g/b.npy", changes=1)
    assert shown(store)["g/b.npy"] == base["g/b.npy"]
    assert "z: there was no such object after commit 1" in one_line(refused(store, "--at", "1", "g/c", "z"))
    assert exported(store, tmp_path / "out.h5")["g/b"] == list(range(6))
    npyfs("checkout", "discard", store, "work", check=True)
    assert content(store) == third


@pytest.mark.fast
def test_a_checkout_goes_on_from_what_was_restored(store, tmp_path):
    base = content(store)
    write(store, "one", {"a.npy": np.full(3, 1), "z.npy": np.full(2, 1)}, ["g"])
    first = content(store)
    write(store, "two", {"a.npy": np.full(3, 2)}, ["z.npy"])
    second = content(store)
    restore(store, "--at", "1", "--checkout", "work", "a", "z", changes=2)
    with Mount(store, checkout="work") as m:
        assert json.loads((m / ".npyfs/status.json").read_text())["checkout"]["objects"] == 2
        np.testing.assert_array_equal(np.load(m / "a.npy"), np.full(3, 1))
        np.save(m / "a.npy", np.full(1, 9))
        np.save(m / "more.npy", np.arange(4))
    assert diff(store) == "M a.npy  <i8 (1,)\nA more.npy  <i8 (4,)\nA z.npy  <i8 (2,)\n"
    listed = json.loads(npyfs("checkout", "ls", "--json", store, check=True).stdout)[-1]
    assert (listed["name"], listed["objects"], listed["deleted"]) == ("work", 3, 0)
    want = shown(store)
    found = exported(store, tmp_path / "out.h5")
    assert (found["a"], found["z"], found["more"]) == ([9], [1, 1], [0, 1, 2, 3]) and "g" not in found
    npyfs("checkout", "publish", store, "work", tmp_path / "links.h5", check=True)
    with h5py.File(tmp_path / "links.h5") as file:
        assert (list(file["a"]), list(file["z"])) == ([9], [1, 1])
    npyfs("checkout", "commit", store, "work", check=True)
    assert content(store) == want
    revert(store, log(store)[0]["id"])
    assert content(store) == second
    # What a commit restored can be restored.
    restore(store, "--at", "3", "--checkout", "again", "z", changes=1, name="again")
    npyfs("checkout", "commit", store, "again", check=True)
    assert content(store) == {**second, "z.npy": first["z.npy"]}
    # A group that a commit deleted, as the store has it.
    for commit in ("4", "3", "2", "1"):
        npyfs("checkout", "revert", store, commit)
    assert content(store).keys() == {"a.npy", "z.npy"} and base.keys() > {"g/b.npy"}


@pytest.mark.fast
def test_what_others_commit_meanwhile_is_a_conflict(store):
    write(store, "one", {"a.npy": np.full(3, 1)})
    write(store, "two", {"a.npy": np.full(3, 2)})
    restore(store, "--at", "1", "--checkout", "work", "a", changes=1)
    write(store, "three", {"a.npy": np.full(3, 3)})
    # The checkout is opened and its index is written again on top of the new commit.
    change(store, {"b.npy": np.zeros(1)})
    restore(store, "b", changes=1)
    done = npyfs("checkout", "commit", store, "work")
    assert done.returncode == OBJECT and "a is changed here, a was changed by commit 3 (three)" in done.stderr
    npyfs("checkout", "commit", "--ours", store, "work", check=True)
    with Mount(store) as m:
        np.testing.assert_array_equal(np.load(m / "a.npy"), np.full(3, 1))


@pytest.mark.fast
def test_what_cannot_be_restored_is_one_line(store, tmp_path):
    assert "no checkout work" in one_line(refused(store, "--checkout", "work", "a"))
    change(store, {"a.npy": np.zeros(3)})
    for path in ("b", "b.npy", "g/none", "a/b", "%00", "ü", "g/b.npz", "/"):
        assert "no such object" in one_line(refused(store, "a", path)), path
    assert "no commit 1" in one_line(refused(store, "--at", "1", "a"))
    restore(store, "g", "z.npy", "link", changes=0)
    with Mount(store, checkout="work") as m:
        said = one_line(refused(store, "a"))
        assert "writes in this checkout; unmount it to restore objects in it" in said
        assert "unmount it to restore" in one_line(npyfs("checkout", "restore", m.path, "a").stderr)
        with Mount(store) as other:
            assert "which checkout?" not in npyfs("checkout", "restore", other.path, "a").stderr
    with Mount(store, "ro", checkout="work"):
        assert "is mounted read-only" in one_line(refused(store, "a"))
    change(store, {"a.npy": np.zeros(3)}, name="other")
    assert "which checkout?" in one_line(refused(store, "a", code=USAGE))
    repository = tmp_path / "pictures"
    npyfs("new", "hangar", repository, "--name", "Ann", "--email", "a@b", check=True)
    assert "npyfs checkout reset takes back all that is staged" in one_line(refused(repository, "a", code=USAGE))
    assert diff(store, "work") == "M a.npy  <f8 (3,)\n"


@pytest.mark.fast
def test_members_and_axes_of_daf(tmp_path):
    cells = tmp_path / "cells.h5df"
    with h5py.File(cells, "w") as file:
        daf.start(file)
        file["cell#"], file["gene#"] = np.array([b"a", b"b", b"c"]), np.array([b"x", b"y"])
        file["cell#age"] = np.array([4, 5, 6])
        daf.put_sparse(file, "cell,gene#UMIs", scipy.sparse.csr_matrix([[1, 0], [0, 2], [0, 0]]))
    base = content(cells)
    change(cells, {"cell#age.npy": np.zeros(3), "batch#.npy": np.array(["one", "two"]), "batch#size.npy": np.arange(2)}, ["cell,gene#UMIs"])
    changed = shown(cells)
    said = refused(cells, "batch#.npy").splitlines()
    assert len(said) == 2 and "batch#size" in said[0] and "would not be shown any more" in said[1], said
    assert shown(cells) == changed
    restore(cells, "cell,gene#UMIs", changes=1)
    # The name of a member is as good.
    change(cells, {}, ["cell,gene#UMIs"])
    restore(cells, "cell,gene#UMIs/data.npy", "batch#", "batch#size.npy", "cell#age", changes=4)
    assert shown(cells) == base
    # An object that is not complete is forgotten.
    with Mount(cells, checkout="work") as m:
        os.mkdir(m / "cell,gene#new")
        shutil.copy(m / "cell,gene#UMIs/data.npy", m / "cell,gene#new/data.npy")
        os.sync()
    assert "cell,gene#new" in npyfs("checkout", "diff", cells, "work").stderr
    restore(cells, "cell,gene#new", changes=1)
    assert diff(cells) == "" and npyfs("checkout", "diff", cells, "work").stderr == ""


@pytest.mark.fast
def test_files_that_a_publication_shows_stay(store, tmp_path):
    change(store, {"a.npy": np.full(3, 7)})
    npyfs("checkout", "publish", store, "work", tmp_path / "links.h5", check=True)
    restore(store, "a", changes=1)
    with h5py.File(tmp_path / "links.h5") as file:
        assert list(file["a"]) == [7, 7, 7]


@pytest.mark.slow
@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("at_commit", [False, True])
def test_whatever_call_fails_all_is_restored_or_nothing(tmp_path, at_commit, forever):
    library = build(tmp_path)
    (tmp_path / "first").mkdir()
    store = make_store(tmp_path / "first/x.h5")
    write(store, "one", {"a.npy": np.zeros(3)}, ["z.npy"])
    earlier = content(store)
    write(store, "two", {"a.npy": np.zeros(4), "g/b.npy": np.zeros(3)}, ["g/c.npy"])
    change(store, {"a.npy": np.ones(5), "g/new.npy": np.ones(2)}, ["g/h"])
    before, source = shown(store), earlier if at_commit else content(store)
    others = {name: data for name, data in before.items() if not name.startswith(("a", "g/"))}
    want = {**others, **{name: data for name, data in source.items() if name.startswith(("a", "g/"))}}
    arguments = ["--at", "1"] if at_commit else []
    at, done = 0, None
    while done is None or done.returncode or at <= len(calls):
        store = shutil.copytree(tmp_path / "first", tmp_path / str(at)) / "x.h5"
        faults = Faults(library, store.parent)
        faults.start(at, errno.EIO, forever)
        done = npyfs("checkout", "restore", *arguments, store, "a", "g", env={**os.environ, **faults.env})
        calls = faults.stop()
        now = shown(store)
        assert now in (before, want), (at, calls, done)
        # Only the word of it could not be written, or it is not known what is on the disk.
        assert now == want or done.returncode, (at, calls, done)
        if now == before:
            npyfs("checkout", "restore", *arguments, store, "a", "g", check=True)
        npyfs("checkout", "commit", store, "work")
        assert content(store) == want
        at += 1
    assert at > 3, at
