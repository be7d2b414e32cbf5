"""Commits are listed, and a store is shown as it was after each of them: judged by what was written before each commit."""

import json
import os

import h5py
import numpy as np
import pytest

from support.mount import Mount
from support.process import npyfs

pytestmark = pytest.mark.fast


@pytest.fixture
def store(tmp_path):
    """A store, and its commits: a changed and one added; a deleted."""
    path = tmp_path / "store.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(4)
    with Mount(path, checkout="one") as m:
        np.save(m / "a.npy", np.arange(5))
        np.save(m / "b.npy", np.arange(6))
    npyfs("checkout", "commit", "-m", "five and six\n\nand why", path, "one", check=True)
    with Mount(path, checkout="two") as m:
        os.unlink(m / "a.npy")
    npyfs("checkout", "commit", path, "two", check=True)
    return path


def commits(store):
    return json.loads(npyfs("checkout", "log", "--json", store, check=True).stdout)


def test_commits_are_listed_the_newest_first(store):
    newest, first = commits(store)
    assert (newest["number"], newest["checkout"], newest["objects"], newest["deleted"]) == (2, "two", 0, 1)
    assert (first["number"], first["checkout"], first["objects"], first["deleted"]) == (1, "one", 2, 0)
    assert first["message"] == "five and six\n\nand why" and "@" in first["author"]
    assert first["committed"] <= newest["committed"]
    text = npyfs("checkout", "log", store, check=True).stdout.splitlines()
    assert text[0].startswith(newest["id"][:12]) and "0 written, 1 deleted" in text[0]
    assert text[1].startswith(first["id"][:12]) and text[2] == "    five and six"
    ids = npyfs("checkout", "log", "-0", store, check=True).stdout.split("\0")
    assert ids == [newest["id"], first["id"], ""]


def test_a_store_is_shown_as_it_was_after_a_commit(store):
    newest, first = (commit["id"] for commit in commits(store))
    with Mount(store, flags=["--at", first[:12]]) as m:
        np.testing.assert_array_equal(np.load(m / "a.npy"), np.arange(5))
        np.testing.assert_array_equal(np.load(m / "b.npy"), np.arange(6))
        with pytest.raises(OSError):
            (m / "c.npy").write_bytes(b"")
    assert npyfs("ls", "--at", first, store, check=True).stdout.split() == ["a.npy", "b.npy"]
    for arguments in ([], ["--at", newest]):
        assert npyfs("ls", *arguments, store, check=True).stdout.split() == ["b.npy"]
    assert npyfs("cat", "--at", first, store, "a.npy", text=False, check=True).stdout.endswith(np.arange(5).tobytes())


def test_a_checkout_is_looked_at_without_mounting(store):
    with Mount(store, checkout="three") as m:
        np.save(m / "c.npy", np.arange(7))
    assert npyfs("ls", "--checkout", "three", store, check=True).stdout.split() == ["b.npy", "c.npy"]
    assert npyfs("ls", store, check=True).stdout.split() == ["b.npy"]
    assert npyfs("verify", "--checkout", "three", store).returncode == 0
    assert json.loads(npyfs("info", "--json", "--checkout", "three", store, "c.npy", check=True).stdout)["shape"] == [7]


@pytest.mark.parametrize("id, why", [("0000", "no commit 0000"), ("ab", "4 digits")])
def test_a_commit_that_is_none_is_refused(store, id, why):
    for command in (["ls", "--at", id, store], ["mount", "--at", id, store, store.parent]):
        done = npyfs(*command)
        assert done.returncode == 2 and why in done.stderr and done.stderr.count("\n") == 1, done


def test_a_store_without_commits_has_an_empty_log(tmp_path):
    path = tmp_path / "store.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(4)
    assert npyfs("checkout", "log", path, check=True).stdout == ""
    assert commits(path) == []
    done = npyfs("ls", "--at", "00000000", path)
    assert done.returncode == 2 and "nothing was ever committed" in done.stderr


@pytest.mark.parametrize("path, meant", [("b", "b.npy"), ("B.npy", "b.npy"), ("group/xs.npy", "group/x.npy"), ("group/x", "group/x.npy"), ("group.npy", "group")])
def test_a_path_that_leads_nowhere_is_answered_with_what_was_meant(tmp_path, path, meant):
    store = tmp_path / "store.h5"
    with h5py.File(store, "w") as file:
        file["b"] = np.arange(4)
        file["group/x"] = np.arange(4)
        file["refs"] = np.array([file["b"].ref], h5py.ref_dtype)
    done = npyfs("cat", store, path)
    assert done.returncode == 3 and done.stderr.strip().endswith(f"; did you mean {meant}?"), done.stderr
    done = npyfs("cat", store, "refs.npy")
    assert done.returncode == 3 and "refs is left out: " in done.stderr
    assert "did you mean" not in npyfs("cat", store, "quite/another").stderr


def test_a_link_that_leads_nowhere_is_called_that(tmp_path):
    store = tmp_path / "store.h5"
    with h5py.File(store, "w") as file:
        file["a"] = np.arange(4)
        file["g/b"] = np.arange(4)
        file["g/out"] = h5py.SoftLink("/none/at/all")
    shown = npyfs("ls", store, "g", check=True).stdout.split()
    link = next(name for name in shown if name.startswith("out"))
    for command, path in (("ls", f"/g/{link}"), ("cat", f"g/{link}"), ("cat", f"g/{link}/x.npy")):
        done = npyfs(command, store, path)
        assert done.returncode == 3 and "did you mean" not in done.stderr, done.stderr
        assert "it is a link to " in done.stderr and "which is not there" in done.stderr, done.stderr
    done = npyfs("ls", f"{store}:/g/{link}")
    assert done.returncode and "did you mean" not in done.stderr and "which is not there" in done.stderr, done.stderr
