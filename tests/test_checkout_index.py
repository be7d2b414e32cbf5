"""The lists of commits and the indexes of checkouts, as docs/checkout-format.md says, and as older and newer versions write them.
Judges: hashlib on identifiers, NumPy through mounts, h5py on exported files."""

import hashlib
import json
import os
import re
import shutil

import h5py
import numpy as np
import pytest

from support.checkouts import (CELLS, GENES, SCORE, as_list, checkout, commits_of, entries, lines, old_lines, save, write_daf,
                               write_plain)
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
    assert hint == {"number": 2, "id": two["id"]}
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


def as_of_the_first_form(directory):
    """Writes lists and indexes as the first form had them: what came later is left out."""
    commits = commits_of(directory)
    old = [{key: commit[key] for key in ("layer", "time", "without")} for commit in commits]
    as_list(directory, old_lines("npyfs commits 1", *old))
    for index in directory.glob("*/index"):
        _, records = lines(index)
        kept = []
        for record in records:
            if "path" in record:
                stored = record["stored"] and {key: record["stored"][key] for key in ("file", "time", "size") if key in record["stored"]}
                kept.append({"path": record["path"], "stored": stored})
            elif "commits" in record:
                kept.append({key: record[key] for key in ("commits", "time", "base")})
        index.write_text(old_lines("npyfs checkout 1", *kept))


def test_lists_of_the_first_form_go_on_to_work(tmp_path):
    store = tmp_path / "x.h5"
    directory = tmp_path / "x.h5.checkouts"
    write_daf(store)
    save(store, "one", {"cell#score.npy": SCORE, "note.npy": np.arange(3)})
    save(store, "two", {"gene#n.npy": np.arange(3)}, commit=False)
    as_of_the_first_form(directory)
    before = {path: path.read_bytes() for path in [directory / "commits", *directory.glob("*/index")]}
    with Mount(store) as mount:
        np.testing.assert_array_equal(np.load(mount / "cell#score.npy"), SCORE)
    assert re.search(r"^one .* commit 1, .*Z  [0-9a-f]{12}$", checkout("ls", store).stdout, re.M)
    assert before == {path: path.read_bytes() for path in before}, "who only reads changes nothing"
    # Files of layers hold the axes: what does not fit is found without a record, too.
    shutil.copyfile(store, tmp_path / "old.h5")
    write_daf(store, cells=CELLS[::-1])
    with Mount(store) as mount:
        assert not (mount / "cell#score.npy").exists() and (mount / "note.npy").exists()
        assert "cell#score: not shown" in (mount / ".npyfs/errors.log").read_text()
    os.replace(tmp_path / "old.h5", store)
    save(store, "two", {"cell#late.npy": SCORE})
    # Older versions refuse the list by its first line, and nothing is added to it.
    first, [listed] = lines(directory / "commits")
    assert first == "npyfs commits 3" and list(listed) == ["layer", "time", "without"]
    assert (directory / "commits").read_bytes()[16:] == before[directory / "commits"][16:]
    text = (directory / "commits").read_text().splitlines()[1][9:]
    [commit] = commits_of(directory)
    assert (directory / ".commits/00000000000000000002.json").is_file()
    assert commit["parents"] == [hashlib.blake2b(text.encode(), digest_size=16).hexdigest()]
    assert lines(directory / "two/index")[0] == "npyfs checkout 2"
    with Mount(store) as mount:
        for name in ("cell#score", "note", "gene#n", "cell#late"):
            assert (mount / f"{name}.npy").exists()


def test_what_a_newer_version_wrote_is_refused_by_name(tmp_path):
    store = tmp_path / "x.h5"
    directory = tmp_path / "x.h5.checkouts"
    write_plain(store)
    save(store, "one", {"note.npy": np.arange(3)})
    commits = directory / "commits"
    good = old_lines("npyfs commits 2", {"layer": "one", "time": 1, "without": []})
    as_list(directory, good)
    newer = old_lines("npyfs commits 2", {"layer": "one", "time": 1, "without": [], "needs": ["shadows"]})
    for content, why in ((good.replace("commits 2", "commits 4", 1), "form 4"), (newer, "needs shadows")):
        commits.write_text(content)
        refused = checkout("ls", store, code=OBJECT).stderr
        assert "commits" in refused and "newer npyfs" in refused and why in refused
        one_line(refused)
        mounted = npyfs("mount", store, tmp_path)
        assert mounted.returncode and why in mounted.stderr
        assert commits.read_text() == content
    commits.write_text(good)
    with Mount(store) as mount:
        assert (mount / "note.npy").exists()


def test_commit_times_never_run_backwards(tmp_path):
    store = tmp_path / "x.h5"
    write_plain(store)
    save(store, "one", {"note.npy": np.arange(3)})
    directory = tmp_path / "x.h5.checkouts"
    future = 4_000_000_000_000_000_000
    as_list(directory, old_lines("npyfs commits 1", {"layer": "one", "time": future, "without": []}))
    save(store, "two", {"more.npy": np.arange(3)})
    save(store, "three", {"more.npy": np.arange(4)})
    assert [commit["time"] for commit in commits_of(directory)] == [future + 1, future + 2]


def rename_in_index(directory, old, new):
    """A key as version 0.1 stored some."""
    [index] = directory.glob("*/index")
    first, records = lines(index)
    for record in records:
        if record.get("path") == old:
            record["path"] = new
    index.write_text(old_lines(first, *records))


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
