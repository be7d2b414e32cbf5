"""The lists of commits and the indexes of checkouts, as docs/checkout-format.md says, and those of older and newer versions.
Judges: hashlib on identifiers, NumPy through mounts, h5py on exported files."""

import json
import re
import shutil

import h5py
import numpy as np
import pytest

from support.checkouts import CELLS, GENES, SCORE, amend_last, checkout, commits_of, entries, lines, as_lines, save, write_daf, write_plain
from support.mount import Mount
from support.process import npyfs, one_line

OBJECT = 3


def test_what_a_list_and_an_index_say(tmp_path):
    store = tmp_path / "x.h5"
    write_daf(store)
    save(store, "one", {"cell#score.npy": SCORE}, message="a score\nfor each cell")
    save(store, "two", {"note.npy": np.arange(3)}, message="\x1b[31mred\u202e")
    directory = tmp_path / "x.h5.checkouts"
    one, two = commits_of(directory)
    hint = json.loads((directory / "commits/newest").read_text())
    assert hint == {"form": "npyfs newest 1", "number": 2, "id": two["id"]}
    assert one["parents"] == [] and two["parents"] == [one["id"]] and one["write"] != two["write"]
    assert one["message"] == "a score\nfor each cell" and one["time"] < two["time"]
    assert re.fullmatch(r"npyfs \d.*", one["tool"]) and "@" in one["author"]
    assert one["axes"] == {"cell#": [entries(CELLS)]}
    assert one["base"][""]["axes"] == [{"path": "cell#", "entries": entries(CELLS)}, {"path": "gene#", "entries": entries(GENES)}]
    first, records = lines(directory / "one/index")
    assert first == "npyfs checkout 2"
    stored = [record for record in records if "path" in record]
    assert stored[0]["stored"]["against"]["along"] == {"cell#": entries(CELLS)}
    listed = checkout("ls", store).stdout.splitlines()
    assert listed[0].split()[-2:] == ["COMMIT", "MESSAGE"]
    assert listed[1].endswith(f"{one['id'][:12]}  a score") and two["id"][:12] in listed[2]
    assert "red" in listed[2] and "\x1b" not in listed[2] and "\u202e" not in listed[2]


def test_what_other_versions_wrote_is_refused_by_name(tmp_path):
    store = tmp_path / "x.h5"
    directory = tmp_path / "x.h5.checkouts"
    write_plain(store)
    save(store, "one", {"note.npy": np.arange(3)})
    amend_last(directory, changes=None)
    commits, index = directory / "commits", directory / "one/index"
    shutil.move(commits, tmp_path / "commits")
    good = index.read_text()
    newer = good + as_lines("", {"path": "x", "stored": None, "needs": ["shadows"]})[1:]
    old = as_lines("npyfs commits 2", {"layer": "one", "time": 1, "without": []})
    for path, content, words in ((commits, old, ("a list of commits", "older versions")),
                                 (index, good.replace("checkout 2", "checkout 1", 1), ("older npyfs", "form 1")),
                                 (index, good.replace("checkout 2", "checkout 4", 1), ("newer npyfs", "form 4")),
                                 (index, newer, ("newer npyfs", "needs shadows"))):
        path.write_text(content)
        refused = checkout("ls", store, code=OBJECT).stderr
        mounted = npyfs("mount", store, tmp_path)
        assert mounted.returncode
        for said in (refused, mounted.stderr):
            assert path.name in said and all(word in said for word in words), said
        one_line(mounted.stderr)
        assert path.read_text() == content
        if path == commits:
            path.unlink()
            shutil.move(tmp_path / "commits", commits)
    index.write_text(good)
    with Mount(store) as mount:
        assert (mount / "note.npy").exists()


def test_commit_times_never_run_backwards(tmp_path):
    store = tmp_path / "x.h5"
    write_plain(store)
    save(store, "one", {"note.npy": np.arange(3)})
    directory = tmp_path / "x.h5.checkouts"
    future = 4_000_000_000_000_000_000
    amend_last(directory, time=future)
    save(store, "two", {"more.npy": np.arange(3)})
    save(store, "three", {"more.npy": np.arange(4)})
    assert [commit["time"] for commit in commits_of(directory)] == [future, future + 1, future + 2]


def rename_in_index(directory, old, new):
    """A key as version 0.1 stored some."""
    [index] = directory.glob("*/index")
    first, records = lines(index)
    for record in records:
        if record.get("path") == old:
            record["path"] = new
    index.write_text(as_lines(first, *records))


@pytest.mark.parametrize("command", ["commit", "export"])
def test_a_key_that_no_mount_would_write_is_refused_by_commit_and_export(tmp_path, command):
    store, out = tmp_path / "x.h5", tmp_path / "out.h5"
    write_plain(store)
    save(store, "work", {"note.npy": np.arange(3), "fine.npy": np.arange(4)}, commit=False)
    rename_in_index(tmp_path / "x.h5.checkouts", "note", "%61")
    arguments = [store, "work"] + [out] * (command == "export")
    refused = checkout(command, *arguments, code=OBJECT).stderr
    assert re.search(r'^(npyfs: )?%61: .*would show this object as "a"', refused, re.M), refused
    assert "%61: " in checkout("ls", store).stderr
    checkout(command, "--leave-out", *arguments)
    if command == "commit":
        checkout("export", store, out)
    with h5py.File(store) as base, h5py.File(out) as file:
        assert sorted(file) == ["a", "b", "fine", "g"]
        np.testing.assert_array_equal(file["a"][()], base["a"][()])
