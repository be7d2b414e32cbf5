"""npyfs checkout revert: a commit is taken back by another one. Judges: NumPy through later mounts, h5py on exported files, make on
times, what every commit showed before."""

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import time

import h5py
import numpy as np
import pytest
import scipy.sparse

from support import arkouda, daf
from support.faults import Faults, build
from support.mount import Mount
from support.process import NPYFS, npyfs, one_line, run
from support.truth import read

OBJECT, USAGE = 3, 1
OLD = 1_600_000_000
ROUNDS = int(os.environ.get("NPYFS_CRASH_ROUNDS", "40"))


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(10.0)
        file["a"].attrs["unit"] = "mm"
        file["g/b"] = np.arange(6)
        file["g/c"] = np.arange(4)
        file["g/h/d"] = np.arange(2)
        file["g"].attrs["note"] = "a group"
        file["link"] = h5py.SoftLink("/g/h")
        file["z"] = np.arange(3)
    os.utime(path, (OLD, OLD))
    before = path.read_bytes()
    yield path
    assert path.read_bytes() == before, "the store was written to"


def write(store, name, arrays, deleted=(), message=None):
    """Writes arrays in a checkout, deletes others, and commits. Returns the id of the commit."""
    with Mount(store, checkout=name) as m:
        for path in deleted:
            (shutil.rmtree if os.path.isdir(m / path) else os.unlink)(m / path)
        for path, array in arrays.items():
            (m / path).parent.mkdir(exist_ok=True, parents=True)
            np.save(m / path, array)
    npyfs("checkout", "commit", *(["-m", message] if message else []), store, name, check=True)
    return log(store)[0]["id"]


def log(store):
    return json.loads(npyfs("checkout", "log", "--json", store, check=True).stdout)


def revert(store, commit, *arguments):
    """Takes a commit back. Returns the id of the new commit."""
    done = npyfs("checkout", "revert", *arguments, store, commit, check=True)
    commits = log(store)
    assert done.stdout.startswith(f"commit {len(commits)}: ") and done.stderr == "", done
    assert commits[0]["reverts"] == commit
    return commits[0]["id"]


def refused(store, commit):
    before = log(store)
    done = npyfs("checkout", "revert", store, commit)
    assert done.returncode == OBJECT and log(store) == before, done
    dry = npyfs("checkout", "revert", "--dry-run", store, commit)
    assert (dry.returncode, dry.stdout, dry.stderr) == (done.returncode, "", done.stderr)
    return done.stderr


def content(store, **keywords):
    """Every file that a mount shows, with its bytes."""
    with Mount(store, **keywords) as m:
        return {name: read(m / name) for name in m.files()}


def times(store, **keywords):
    with Mount(store, **keywords) as m:
        return {name: os.stat(m / name).st_mtime_ns for name in m.files()}


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
    npyfs("checkout", "export", store, out, check=True)
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
    assert sorted(os.listdir(index.parent)) == ["index"]


CELLS, GENES = [b"a", b"b", b"c"], [b"x", b"y"]


@pytest.fixture
def cells(tmp_path):
    path = tmp_path / "cells.h5df"
    with h5py.File(path, "w") as file:
        items = daf.start(file)
        items["title"] = "a title"
        file["cell#"], file["gene#"] = np.array(CELLS), np.array(GENES)
        file["cell#age"] = np.array([4, 5, 6])
        daf.put_sparse(file, "cell,gene#UMIs", scipy.sparse.csr_matrix([[1, 0], [0, 2], [0, 0]]))
    before = path.read_bytes()
    yield path
    assert path.read_bytes() == before, "the store was written to"


@pytest.mark.fast
def test_objects_of_daf(cells, tmp_path):
    base = content(cells)
    commit = write(cells, "work", {"title.npy": np.array("another"), "count.npy": np.array(3), "cell#age.npy": np.zeros(3),
                                   "batch#.npy": np.array(["one", "two"]), "batch#size.npy": np.arange(2)}, ["cell,gene#UMIs"])
    changed = content(cells)
    back = revert(cells, commit)
    assert content(cells) == base
    npyfs("checkout", "export", cells, tmp_path / "base.h5df", check=True)
    with h5py.File(tmp_path / "base.h5df") as file:
        assert daf.faults(file) == []
        assert sorted(file) == ["__daf__", "cell#", "cell#age", "cell,gene#UMIs", "gene#"]
        assert file["__daf__"].attrs["title"] == "a title" and "count" not in file["__daf__"].attrs
        assert daf.read_sparse(file["cell,gene#UMIs"]).toarray().tolist() == [[1, 0], [0, 2], [0, 0]]
    revert(cells, back)
    assert content(cells) == changed
    npyfs("checkout", "export", cells, tmp_path / "changed.h5df", check=True)
    with h5py.File(tmp_path / "changed.h5df") as file:
        assert daf.faults(file) == [] and file["__daf__"].attrs["count"] == 3 and list(file["batch#size"]) == [0, 1]


@pytest.mark.fast
def test_an_axis_that_others_lie_along_stays(cells):
    axis = write(cells, "axis", {"batch#.npy": np.array(["one", "two"])})
    vector = write(cells, "vector", {"batch#size.npy": np.arange(2)})
    assert "batch#size was changed since, by commit 2 (vector, " in refused(cells, axis)
    revert(cells, vector)
    revert(cells, axis)
    assert "batch#.npy" not in content(cells)


@pytest.mark.fast
def test_an_axis_that_was_replaced_comes_back_with_what_lies_along_it(cells):
    base = content(cells)
    vector = write(cells, "vector", {"cell#own.npy": np.arange(3)})
    before = content(cells)
    axis = write(cells, "axis", {"cell#.npy": np.array(["d", "e", "f"])})
    renamed = content(cells)
    assert "cell#own.npy" in renamed
    # What was written along the old entries cannot go while the new ones are there.
    assert "cell# was changed since, by commit 2 (axis, " in refused(cells, vector)
    later = write(cells, "later", {"cell#age.npy": np.zeros(3)})
    assert "cell#age was changed since, by commit 3" in refused(cells, axis)
    revert(cells, later)
    assert content(cells) == renamed
    back = revert(cells, axis)
    assert content(cells) == before
    revert(cells, back)
    assert content(cells) == renamed
    with Mount(cells) as m:
        assert m.errors() == []
    revert(cells, log(cells)[0]["id"])
    revert(cells, vector)
    assert content(cells) == base


@pytest.mark.fast
def test_the_rules_of_daf_hold_afterwards(cells):
    """A vector comes back along an axis that has another length by now: what h5py would find at fault is not committed."""
    gone = write(cells, "gone", {}, ["cell#age.npy", "cell,gene#UMIs"])
    with Mount(cells, checkout="shorter") as m:
        os.unlink(m / "cell#.npy")
        np.save(m / "cell#.npy", np.array(["d", "e"]))
    done = npyfs("checkout", "commit", cells, "shorter")
    if done.returncode == 0:
        assert "cell# was changed since, by commit 2 (shorter, " in refused(cells, gone)


@pytest.mark.fast
def test_a_set_of_arkouda(tmp_path):
    with arkouda.Store(tmp_path, "set", [4, 3, 2]) as made:
        arkouda.put_array(made, "ints", np.arange(9))
        arkouda.put_array(made, "gone", np.arange(9.0))
        arkouda.put_strings(made, "words", [b"a", b"bcd", b""])
        arkouda.put_segarray(made, "rows", [np.arange(3), np.arange(0), np.arange(5)])
    store = tmp_path / "set_LOCALE0000"
    base = content(store)
    commit = write(store, "work", {"ints.npy": np.arange(4), "words.npy": np.array([b"x"])}, ["gone.npy", "rows"])
    revert(store, commit)
    assert content(store) == base
    npyfs("checkout", "export", store, tmp_path / "out", check=True)
    for number in range(3):
        with h5py.File(tmp_path / f"out_LOCALE000{number}") as file, h5py.File(tmp_path / f"set_LOCALE000{number}") as old:
            assert arkouda.faults(file) == []
            for name in ("ints", "gone", "words/values", "rows/segments"):
                np.testing.assert_array_equal(file[name], old[name])


@pytest.mark.fast
def test_a_directory_of_stores(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("one.h5", "two.h5"):
        with h5py.File(folder / name, "w") as file:
            file["x"] = np.arange(3)
    base = content(folder)
    commit = write(folder, "work", {"one.h5/x.npy": np.zeros(1), "two.h5/y.npy": np.zeros(1)})
    revert(folder, commit)
    assert content(folder) == base
    npyfs("checkout", "export", folder, tmp_path / "out", check=True)
    with h5py.File(tmp_path / "out/one.h5") as one, h5py.File(tmp_path / "out/two.h5") as two:
        assert one["x"][()].tolist() == [0, 1, 2] and list(two) == ["x"]


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


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("library"))


@pytest.mark.slow
@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_whatever_call_fails_it_is_taken_back_or_not(tmp_path, library, error, forever):
    at, done = 0, None
    while done is None or done.returncode or at <= len(calls):
        folder = tmp_path / str(at)
        folder.mkdir()
        store = folder / "x.h5"
        with h5py.File(store, "w") as file:
            file["a"], file["b"] = np.arange(5), np.arange(6)
        base = content(store)
        commit = write(store, "work", {"a.npy": np.zeros(3), "new.npy": np.ones(2)}, ["b.npy"])
        changed = content(store)
        faults = Faults(library, folder)
        faults.start(at, error, forever)
        done = npyfs("checkout", "revert", store, commit, env={**os.environ, **faults.env})
        calls = faults.stop()
        happened = len(log(store)) == 2
        # It happened if only the word of it could not be written. Of a disk that takes nothing back nobody knows what it has.
        assert happened == (done.returncode == 0) or "standard output" in done.stderr or forever, (at, calls, done)
        assert content(store) == (base if happened else changed), (at, calls, done)
        if not happened:
            revert(store, commit)
            assert content(store) == base
        layers = [name for name in os.listdir(store.with_name("x.h5.checkouts")) if name.startswith("revert")]
        assert layers == ["revert+2"], layers
        at += 1
    assert at > 3, at


@pytest.mark.slow
def test_whenever_it_is_killed_it_is_taken_back_or_not(tmp_path):
    store = tmp_path / "x.h5"
    with h5py.File(store, "w") as file:
        for number in range(200):
            file[f"a{number}"] = np.arange(5)
    base = content(store)
    first = write(store, "work", {f"a{number}.npy": np.zeros(3) for number in range(200)})
    states, now, commit = [content(store), base], 0, first
    start = time.monotonic()
    commit, now = revert(store, commit), 1
    whole = time.monotonic() - start
    random_ = random.Random(6)
    for number in range(ROUNDS):
        process = subprocess.Popen([NPYFS, "checkout", "revert", store, commit], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(random_.uniform(0, 1.2 * whole))
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        killed = process.wait(60) != 0
        newest = log(store)[0]["id"]
        if newest != commit:
            commit, now = newest, 1 - now
        else:
            assert killed
        if number % 10 == 9:
            assert content(store) == states[now]
    revert(store, commit)
    assert content(store) == states[1 - now]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_commits_and_what_takes_them_back(store, tmp_path, seed):
    """Whatever is committed and taken back in any order: what a commit changed is what it was before it, and nothing else changes;
    what later commits changed is refused; every commit shows for ever what it showed first."""
    random_ = random.Random(seed)
    places = ["a.npy", "z.npy", "new.npy", "g/b.npy", "g/c.npy", "g/new.npy", "g/h/d.npy", "n/x.npy", "n/m/y.npy"]
    shown, ids, taken, refusals = [content(store)], [], 0, 0
    for step in range(30):
        if ids and random_.random() < 0.5:
            number = random_.choice([random_.randrange(len(ids)), len(ids) - 1])
            done = npyfs("checkout", "revert", store, ids[number])
            before, after, now = shown[number], shown[number + 1], shown[-1]
            changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
            if done.returncode:
                refusals += 1
                assert number + 1 < len(ids) and "changed since" in done.stderr or "deleted since" in done.stderr, done.stderr
                continue
            taken += 1
            assert all(now.get(name) == after.get(name) for name in changed), done
            want = {name: now[name] for name in now.keys() - changed} | {name: before[name] for name in changed & before.keys()}
            assert content(store) == want, (step, number)
            if done.stdout == "nothing to take back\n":
                continue
        else:
            gone = random_.sample(["g", "n", "g/h", *places], random_.choice([0, 0, 1, 2]))
            with Mount(store, checkout="work") as m:
                for name in gone:
                    if os.path.lexists(m / name):
                        (shutil.rmtree if os.path.isdir(m / name) else os.unlink)(m / name)
                for name in random_.sample(places, random_.choice([0, 1, 2])):
                    (m / name).parent.mkdir(exist_ok=True, parents=True)
                    np.save(m / name, np.full(random_.randrange(1, 5), step))
            done = npyfs("checkout", "commit", store, "work", check=True)
            if done.stdout == "nothing to commit\n":
                continue
        ids.append(log(store)[0]["id"])
        shown.append(content(store))
    assert taken > 3 and refusals > 0, (taken, refusals)
    for number in random_.sample(range(len(ids)), 5):
        assert content(store, flags=["--at", ids[number]]) == shown[number + 1]
    npyfs("checkout", "export", store, tmp_path / "out.h5", check=True)
    assert content(tmp_path / "out.h5") == shown[-1]
    assert times(tmp_path / "out.h5") == times(store)
