"""The snapshot that every hundredth commit leaves: with it and without it a store is the same, whatever is committed, taken back or damaged, and
whatever becomes of the store below. Judges: NumPy through mounts, and the same program on the same commits without the snapshot."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from support import checkout_reader
from support.checkouts import SCORE, CELLS, as_lines, attr, checkout, commits_of, lines, save, top, write_daf, write_plain
from support.commits import content, log, revert, write
from support.mount import Mount, until
from support.process import npyfs

CONFLICT = 3


def snapshot(store):
    return top(store) / "commits/snapshot"


def fill(store, count):
    """Commits until there are so many: five arrays again and again."""
    with Mount(store, checkout="fill") as mount:
        for number in range(count - len(log(store))):
            np.save(mount / f"f{number % 5}.npy", np.array(number))
            checkout("commit", store, "fill")


def without(store, look):
    """What a look at the store gives while it has no snapshot."""
    aside = snapshot(store).rename(top(store) / "aside")
    try:
        return look(store)
    finally:
        aside.rename(snapshot(store))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store with a hundred commits, the last by a mount, and what it shows."""
    store = tmp_path_factory.mktemp("made") / "x.h5"
    write_plain(store, names=("a", "b", "g/c", "g/d", "gone"))
    write(store, "one", {"a.npy": np.full(3, 1), "g/c.npy": np.full(2, 1), "new/x.npy": np.arange(4), "back.npy": np.full(2, 1), "late/z.npy": np.full(1, 2)})
    write(store, "two", {"a.npy": np.full(3, 2), "again.npy": np.full(1, 2), "back.npy": np.full(2, 2)}, ["gone.npy", "g/d.npy"])
    revert(store, log(store)[-2]["id"])
    attr("set", "--checkout", "units", store, "a.npy", "unit=kg")
    checkout("commit", store, "units")
    write(store, "three", {"new/y.npy": np.full(5, 3)}, ["new/x.npy"])
    fill(store, 97)
    # An older array in the place of a newer one, as by cp -p: its directory does not become older.
    with Mount(store, checkout="old") as mount:
        np.save(mount / "late/z.npy", np.full(5, 4))
        os.utime(mount / "late/z.npy", (10**9, 10**9))
        checkout("commit", store, "old")
    write(store, "four", {"again.npy": np.full(2, 4), "g/c.npy": np.full(2, 4)})
    assert not snapshot(store).exists()
    with Mount(store, checkout="last") as mount:
        np.save(mount / "a.npy", np.full(3, 5))
        np.save(mount / "last.npy", np.full(3, 5))
        checkout("commit", store, "last")
        np.save(mount / "on.npy", np.full(3, 6))
    assert len(commits_of(top(store))) == 100 and snapshot(store).exists()
    return store


@pytest.fixture
def store(made, tmp_path):
    shutil.copytree(made.parent, tmp_path, dirs_exist_ok=True)
    # The copy is another file than the one that was written over, and the same store.
    return tmp_path / made.name


def times(store):
    """The times of all directories."""
    with Mount(store) as mount:
        return {str(Path(path).relative_to(mount.path)): os.stat(path).st_mtime_ns for path, _, _ in os.walk(mount.path) if ".npyfs" not in path}


def everything(store):
    return content(store), times(store), attr("ls", store, "a.npy"), checkout("ls", store).stdout, log(store)


def test_it_has_what_is_there_and_not_what_was(store):
    first, [folded, *records] = lines(snapshot(store))
    assert first == "npyfs snapshot 1" and folded["records"] == len(records)
    commits = commits_of(top(store))
    assert folded["ids"] == "".join(commit["id"] for commit in commits)
    assert folded["layers"] == [commit["layer"] for commit in commits]
    # The second reader makes the same of the layers.
    stores, wanted, directories = checkout_reader.snapshot(top(store))
    assert [record for record in records if "directory" in record] == directories
    assert {record["directory"] for record in directories} >= {"new", "late"}
    own = [{name: value for name, value in record.items() if name != "needs"} for record in records if "path" in record]
    assert own == wanted and any("of" in record for record in own) and any("since" in record for record in own)
    said = {record["from"]: record["stores"] for record in records if "from" in record}
    assert stores == [said[max(at for at in said if at <= number)] for number in range(len(commits))]
    keys = [record["path"] for record in own]
    assert len(keys) == len(set(keys)), "an array of an earlier layer"
    assert {"f0", "f1", "f2", "f3", "f4", "a", "again", "gone", "g/d", "last"} <= set(keys)
    assert everything(store) == without(store, everything)
    shown = content(store).keys()
    assert {"back.npy", "gone.npy", "g/d.npy", "new/y.npy", "last.npy"} <= shown and not {"on.npy", "new/x.npy"} & shown


def test_what_comes_after_it_is_on_top(store):
    before = content(store)
    write(store, "later", {"a.npy": np.full(7, 7), "f1.npy": np.full(1, 7)}, ["new/y.npy"])
    later = content(store)
    assert later.keys() == before.keys() - {"new/y.npy"} and later["a.npy"] != before["a.npy"]
    assert everything(store) == without(store, everything)
    # What was there before is in the snapshot for the first, and for the second no more.
    revert(store, log(store)[0]["id"])
    assert content(store) == before == without(store, content)
    revert(store, log(store)[2]["id"])
    assert len(log(store)) == 103 and "last.npy" not in content(store)
    assert everything(store) == without(store, everything)
    with Mount(store, checkout="last") as mount:
        np.testing.assert_array_equal(np.load(mount / "on.npy"), np.full(3, 6))
        np.save(mount / "f2.npy", np.full(2, 8))
        checkout("commit", store, "last")
    npyfs("checkout", "restore", store, "--at", "1", "--checkout", "old", "a", check=True)
    with Mount(store, checkout="old") as mount:
        np.testing.assert_array_equal(np.load(mount / "a.npy"), np.full(3, 1))
        checkout("commit", store, "old")
    with Mount(store) as mount:
        np.testing.assert_array_equal(np.load(mount / "a.npy"), np.full(3, 1))
    assert everything(store) == without(store, everything)


@pytest.mark.parametrize("how", ["cut", "cut at a line", "a byte", "empty", "newer", "other commits", "a directory", "an unknown field"])
def test_one_that_cannot_be_used_is_not_used(store, how):
    wanted = without(store, everything)
    path = snapshot(store)
    text = path.read_text()
    first, records = lines(path)
    if how == "cut":
        path.write_text(text[:-20])
    elif how == "cut at a line":
        path.write_text("".join(text.splitlines(keepends=True)[:-3]))
    elif how == "a byte":
        path.write_text(text.replace('"f3"', '"f4"', 1))
    elif how == "empty":
        path.write_text("")
    elif how == "newer":
        path.write_text(text.replace("snapshot 1", "snapshot 2", 1))
    elif how == "other commits":
        records[0]["ids"] = records[0]["ids"][:-32] + "0" * 32
        path.write_text(as_lines(first, *records))
    elif how == "a directory":
        path.unlink()
        path.mkdir()
    else:
        records[-1]["strange"] = 1
        path.write_text(as_lines(first, *records))
    assert everything(store) == wanted
    write(store, "later", {"a.npy": np.full(7, 7)})
    with Mount(store) as mount:
        np.testing.assert_array_equal(np.load(mount / "a.npy"), np.full(7, 7))


def test_a_conflict_names_the_commit_that_changed_what(store, tmp_path):
    early = tmp_path / "early"
    early.mkdir()
    write_plain(early / "x.h5")
    save(early / "x.h5", "early", {"f2.npy": np.zeros(2), "own.npy": np.zeros(2)}, commit=False)
    save(early / "x.h5", "apart", {"own.npy": np.ones(2)}, commit=False)
    for name in ("early", "apart"):
        index = top(early / "x.h5") / name / "index"
        first, records = lines(index)
        # It is of the same store: begun before the first commit.
        shutil.copytree(index.parent, top(store) / name)
        stores = [record for record in lines(top(store) / "one/index")[1] if "store" in record]
        (top(store) / name / "index").write_text(as_lines(first, *[r for r in records if "store" not in r], *stores))

    def refused(store):
        done = npyfs("checkout", "commit", store, "early")
        assert done.returncode == CONFLICT and "f2" in done.stdout + done.stderr and "fill" in done.stdout + done.stderr, done
        return done.stdout, done.stderr

    assert refused(store) == without(store, refused)
    checkout("commit", store, "apart")
    assert "own.npy" in content(store)
    checkout("commit", store, "early", "--theirs")
    assert everything(store) == without(store, everything)


def test_below_what_no_longer_fits_the_earlier_is_shown(tmp_path):
    store, four = tmp_path / "x.h5", tmp_path / "four.h5"
    write_daf(store)
    save(store, "first", {"cell#score.npy": SCORE})
    shutil.copy2(store, four)
    write_daf(store, cells=CELLS + [b"e"])
    save(store, "second", {"cell#score.npy": np.arange(5.0)})
    fill(store, 100)
    [said] = [record for record in lines(snapshot(store))[1] if record.get("path") == "cell#score"]
    assert said["at"] == 1

    def score(store):
        with Mount(store) as mount:
            return np.load(mount / "cell#score.npy").tolist(), (mount / ".npyfs/errors.log").read_text().count("cell#score")

    assert score(store) == ([0, 1, 2, 3, 4], 0) == without(store, score)
    with Mount(store) as mount:
        np.testing.assert_array_equal(np.load(mount / "cell#score.npy"), np.arange(5.0))
        os.replace(four, store)
        # The store is another one while it is mounted.
        until(lambda: np.load(mount / "cell#score.npy").tolist() == SCORE.tolist(), "the earlier one")
    assert score(store)[0] == SCORE.tolist()
    assert score(store) == without(store, score)
    write(store, "after", {"cell#more.npy": SCORE})
    assert len(log(store)) == 101 and score(store)[0] == SCORE.tolist()
