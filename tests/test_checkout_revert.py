"""npyfs checkout revert: a commit is taken back by another one. Judges: NumPy through later mounts, h5py on exported files, make on
times, what every commit showed before."""

import json
import os
import time

import h5py
import numpy as np
import pytest

from support.commits import OLD, content, log, refused, revert, times, write
from support.mount import Mount
from support.process import npyfs, one_line, run

OBJECT, USAGE = 3, 1


def described(path):
    """Everything h5py finds in a file, by path, but for what npyfs notes."""
    with h5py.File(path) as file:
        found = {"": dict(file.attrs)}

        def see(name, item):
            attributes = {key: str(value) for key, value in item.attrs.items() if not key.startswith("npyfs")}
            found[name] = (attributes, item[()].tolist() if isinstance(item, h5py.Dataset) else None)

        file.visititems(see)
        del found[""]
        return found, [name for name in file if isinstance(file.get(name, getlink=True), h5py.SoftLink)]


def exported(store, out):
    npyfs("checkout", "export", "--times", store, out, check=True)
    return described(out)


@pytest.mark.fast
def test_a_commit_is_taken_back_and_brought_back(store, tmp_path):
    base, first_times = content(store), times(store)
    start = time.time_ns()
    first = write(store, "work", {"a.npy": np.zeros(3), "new.npy": np.ones(2)}, ["g/c.npy"], message="why\nand more")
    committed = content(store)
    middle = time.time_ns()
    second = revert(store, first)
    assert content(store) == base
    # What came back is as new as the commit; all else is as old as it was.
    now = times(store)
    assert now.keys() == first_times.keys()
    for name, then in now.items():
        assert (middle < then < time.time_ns()) if name in ("a.npy", "g/c.npy") else then == first_times[name], name
    newest = log(store)[0]
    assert (newest["message"], newest["checkout"]) == (f"revert {first[:12]}: why", "revert")
    assert "revert: 3 taken back" in npyfs("checkout", "log", store, check=True).stdout
    assert "revert" in npyfs("checkout", "ls", store, check=True).stdout
    assert exported(store, tmp_path / "base.h5") == described(store)
    with Mount(tmp_path / "base.h5") as m:
        assert {name: os.stat(m / name).st_mtime_ns for name in m.files()} == now
    # What was there after each commit is shown still.
    for commit, want in ((first, committed), (second, base)):
        assert content(store, flags=["--at", commit]) == want
    third = revert(store, second, "-m", "after all")
    assert content(store) == committed and log(store)[0]["message"] == "after all"
    assert all(then > start for name, then in times(store).items() if name in ("a.npy", "new.npy"))
    found, _ = exported(store, tmp_path / "again.h5")
    assert found["new"][1] == [1, 1] and found["a"][1] == [0, 0, 0] and "g/c" not in found
    revert(store, third)
    assert content(store) == base


@pytest.mark.fast
def test_what_an_earlier_commit_wrote_comes_back(store, tmp_path):
    first = write(store, "one", {"a.npy": np.full(3, 1), "own.npy": np.full(1, 1)})
    want = content(store)
    second = write(store, "two", {"a.npy": np.full(3, 2)}, ["own.npy"])
    revert(store, second)
    assert content(store) == want
    found, _ = exported(store, tmp_path / "out.h5")
    assert found["a"][1] == [1, 1, 1] and found["own"][1] == [1]
    # And a checkout goes on from there.
    with Mount(store, checkout="more") as m:
        np.testing.assert_array_equal(np.load(m / "a.npy"), np.full(3, 1))
        np.save(m / "a.npy", np.full(3, 4))
        os.unlink(m / "own.npy")
    assert npyfs("checkout", "diff", store, "more", check=True).stdout == "M a.npy  <i8 (3,)\nD own.npy\n"
    npyfs("checkout", "commit", store, "more", check=True)
    assert "a was changed since, by commit 4 (more, " in refused(store, second)
    assert "a was changed since, by commit 4 (more, " in refused(store, first)


@pytest.mark.fast
def test_later_changes_are_never_lost(store):
    first = write(store, "one", {"a.npy": np.full(3, 1), "b.npy": np.full(3, 1)})
    between = content(store)
    second = write(store, "two", {"a.npy": np.full(3, 2), "other.npy": np.full(3, 2)})
    said = refused(store, first).splitlines()
    assert said == [f"npyfs: a was changed since, by commit 2 (two, {second[:12]})",
                    "npyfs: nothing was committed: take the later commits back first"]
    third = revert(store, second)
    assert content(store) == between
    # Now there is nothing in the way.
    revert(store, first)
    assert "a was changed since, by commit 4 (revert, " in refused(store, third)
    assert sorted(content(store)) == ["a.npy", "g/b.npy", "g/c.npy", "g/h/d.npy", "z.npy"]


@pytest.mark.fast
def test_a_checkout_that_is_open_meanwhile_meets_the_new_commit(store):
    first = write(store, "one", {"a.npy": np.full(3, 1)})
    with Mount(store, checkout="open") as m, Mount(store) as reader:
        np.save(m / "a.npy", np.full(3, 3))
        revert(store, first)
        # Mounts that exist already go on as they are.
        np.testing.assert_array_equal(np.load(reader / "a.npy"), np.full(3, 1))
    done = npyfs("checkout", "commit", store, "open")
    assert done.returncode == OBJECT and "a is changed here, a was changed by commit 2 (revert)" in done.stderr
    npyfs("checkout", "commit", "--ours", store, "open", check=True)
    with Mount(store) as m:
        np.testing.assert_array_equal(np.load(m / "a.npy"), np.full(3, 3))


@pytest.mark.fast
def test_groups_come_and_go_with_all_that_is_in_them(store, tmp_path):
    base = content(store)
    filled = write(store, "fill", {"g/own.npy": np.arange(7), "n/x.npy": np.arange(8)})
    before = content(store)
    gone = write(store, "empty", {}, ["g"])
    assert sorted(content(store)) == ["a.npy", "n/x.npy", "z.npy"]
    again = write(store, "again", {"g/b.npy": np.zeros(1)})
    assert "g was changed since, by commit 3" in refused(store, gone)
    assert "by commit 2" in refused(store, filled)
    revert(store, again)
    back = revert(store, gone)
    assert content(store) == before
    assert exported(store, tmp_path / "back.h5")[0]["g"] == described(store)[0]["g"]
    now = times(store)
    assert all((now[name] > OLD * 10**9) == name.startswith(("g/", "n/")) for name in now), now
    revert(store, filled)
    assert content(store) == base
    assert exported(store, tmp_path / "base.h5")[0].keys() == described(store)[0].keys() | {"n"} - {"n"}
    assert content(store, flags=["--at", back]) == before
    # A group that a commit made, and into which another wrote.
    made = write(store, "made", {"m/x.npy": np.arange(8)})
    write(store, "more", {"m/y.npy": np.arange(8)})
    assert "m/y was changed since" in refused(store, made)


@pytest.mark.fast
def test_links_and_names_that_were_changed(store, tmp_path):
    base = content(store)
    with Mount(store, checkout="work") as m:
        os.rename(m / "a.npy", m / "renamed.npy")
        os.unlink(m / "link")
    npyfs("checkout", "commit", store, "work", check=True)
    revert(store, log(store)[0]["id"])
    assert content(store) == base
    with Mount(store) as m:
        assert os.readlink(m / "link") == "g/h"
    assert exported(store, tmp_path / "out.h5") == described(store)


@pytest.mark.fast
def test_a_dry_run_lists_and_writes_nothing(store):
    commit = write(store, "work", {"a.npy": np.zeros(3), "new.npy": np.ones(2)}, ["g/c.npy"])

    def files():
        return {path: path.stat().st_mtime_ns for path in store.parent.rglob("*")}

    before = files()
    done = npyfs("checkout", "revert", "--dry-run", store, commit[:8], check=True)
    assert done.stdout == "M a.npy  <f8 (10,)\nA g/c.npy  <i8 (4,)\nD new.npy\n" and done.stderr == ""
    changes = json.loads(npyfs("checkout", "revert", "--dry-run", "--json", store, commit, check=True).stdout)["changes"]
    assert [(change["change"], change["name"]) for change in changes] == [("modified", "a.npy"), ("added", "g/c.npy"), ("deleted", "new.npy")]
    assert files() == before and len(log(store)) == 1


@pytest.mark.fast
def test_what_cannot_be_taken_back_is_one_line(store, tmp_path):
    done = npyfs("checkout", "revert", store, "00000000")
    assert done.returncode == OBJECT and "nothing was ever committed" in one_line(done.stderr)
    commit = write(store, "work", {"a.npy": np.zeros(3)})
    for arguments, code, why in ((["0000"], OBJECT, "no commit 0000"), (["ab"], OBJECT, "4 digits"),
                                 (["--json", commit], USAGE, "--dry-run"), (["--dry-run", "-m", "why", commit], USAGE, "--dry-run")):
        done = npyfs("checkout", "revert", *arguments[:-1], store, arguments[-1])
        assert done.returncode == code and why in one_line(done.stderr), done
    # A program that does not know such commits must not read the list without them.
    revert(store, commit)
    index = store.with_name("x.h5.checkouts") / "revert+2/index"
    lines = [line for line in index.read_text().splitlines() if '"restored":{' in line]
    assert len(lines) == 1 and lines[0].endswith('"needs":["restored"]}')
    assert sorted(os.listdir(index.parent)) == ["holder", "index"]


@pytest.mark.fast
def test_make_sees_what_came_back(store, tmp_path):
    makefile = tmp_path / "Makefile"

    def make():
        with Mount(store) as m:
            makefile.write_text(f"all: a.sum z.sum\na.sum: {m.path}/a.npy\n\tcksum $< > $@\nz.sum: {m.path}/z.npy\n\tcksum $< > $@\n")
            return [line.split()[-1] for line in run(["make", "-C", tmp_path], check=True).stdout.splitlines() if "cksum" in line]

    assert make() == ["a.sum", "z.sum"] and make() == []
    commit = write(store, "work", {"a.npy": np.zeros(3)})
    assert make() == ["a.sum"] and make() == []
    revert(store, commit)
    assert make() == ["a.sum"] and make() == []


@pytest.mark.fast
def test_a_store_that_goes_on_by_itself_gives_back_what_it_has_now(store):
    commit = write(store, "work", {"a.npy": np.zeros(3)})
    before = store.read_bytes()
    with h5py.File(store, "a") as file:
        file["a"][0] = 77
    try:
        done = npyfs("checkout", "revert", "--dry-run", store, commit, check=True)
        assert "the store was changed since: what comes back out of it is what it has now" in one_line(done.stderr)
        assert one_line(npyfs("checkout", "revert", store, commit, check=True).stderr) == one_line(done.stderr)
        with Mount(store) as m:
            assert np.load(m / "a.npy")[0] == 77
    finally:
        store.write_bytes(before)


@pytest.mark.fast
def test_a_store_that_was_replaced_takes_nothing_back_into_it(store):
    commit = write(store, "work", {"a.npy": np.zeros(3)})
    second = write(store, "work", {"a.npy": np.zeros(4)})
    before = store.read_bytes()
    with h5py.File(store, "w") as file:
        file["a"] = np.full(10, 7.0)
        file["z"] = np.full(3, 7)
    try:
        assert "but another" in refused(store, second)
        revert(store, commit) if "changed since" not in refused(store, commit) else None
        with Mount(store) as m:
            assert (np.load(m / "a.npy") == 7).all()
    finally:
        store.write_bytes(before)
    with Mount(store) as m:
        assert len(np.load(m / "a.npy")) == 4
