"""What was written over a store that is not there any more: made anew with other cells, in another order, or another store
altogether. It is not shown, the commands name it and say why, and with the old store everything is back. Copies of a store, and
stores that their own programs extended, are the same store. Judges: NumPy through mounts, h5py on exported files."""

import json
import os
import re
import shutil

import h5py
import numpy as np
import pytest

from support import arkouda
from support.checkouts import CELLS, SCORE, checkout, commits_of, lines, save, write_daf, write_plain
from support.mount import Mount, until

OBJECT, USAGE = 3, 1


def names(mount):
    return sorted(os.listdir(mount.path))
@pytest.mark.parametrize("made_anew, why", [
    (dict(cells=CELLS[::-1]), "are others now, or in another order"),
    (dict(cells=[b"a", b"b", b"q", b"d"]), "are others now, or in another order"),
    (dict(cells=CELLS + [b"e"]), "with 4 entries, which has 5 now"),
    (dict(cells=CELLS[:3]), "with 4 entries, which has 3 now"),
], ids=["order", "entry", "longer", "shorter"])
@pytest.mark.parametrize("committed", [True, False])
def test_what_lies_along_an_axis_that_is_another_is_not_shown(tmp_path, made_anew, why, committed):
    store, old, out = tmp_path / "x.h5", tmp_path / "old.h5", tmp_path / "out.h5"
    write_daf(store)
    arrays = {"cell#score.npy": SCORE, "gene#known.npy": np.array([True, False, True]), "cell#age.npy": np.arange(4) + 50,
              "cell,gene#norm.npy": np.ones((4, 3)), "batch#.npy": np.array(["one", "two"]), "note.npy": np.array(7)}
    save(store, "work", arrays, committed)
    shutil.copy2(store, old)
    write_daf(store, **made_anew, seed=2)
    with h5py.File(store) as file:
        now = {name: file[name][()] for name in ("cell#age", "cell#", "cell,gene#UMIs")}
    gone = ["cell#age", "cell#score", "cell,gene#norm"]
    with Mount(store, **({} if committed else {"checkout": "work"})) as mount:
        assert not {"cell#score.npy", "cell,gene#norm.npy"} & set(names(mount))
        assert not (mount / "cell#score.npy").exists()
        for name, array in now.items():
            np.testing.assert_array_equal(np.load(mount / f"{name}.npy"), array)
        for name in ("gene#known", "batch#", "note"):
            np.testing.assert_array_equal(np.load(mount / f"{name}.npy"), arrays[f"{name}.npy"])
        log = (mount / ".npyfs/errors.log").read_text()
        for name in gone:
            assert re.search(rf"{re.escape(name)}: not shown, though it is in work: .*{why}", log), log
        assert "gene#known" not in log
        if not committed:
            assert mount.status()["checkout"]["not_shown"] == 3
    listed = checkout("ls", store)
    assert all(re.search(rf"{re.escape(name)}: .*{why}", listed.stderr) for name in gone), listed.stderr
    assert "discard" in listed.stderr and "gene#known" not in listed.stderr
    if not committed:
        told = checkout("diff", store, "work")
        assert "cell#score" not in told.stdout and "A gene#known.npy  |b1 (3,)\n" in told.stdout
        assert re.search(rf"cell#score: .*{why}", told.stderr)
        refused = checkout("commit", store, "work", code=OBJECT).stderr
        assert re.search(rf"cell#score: .*{why}", refused) and "nothing was committed: 3 objects" in refused
    name = [] if committed else ["work"]
    refused = checkout("export", store, *name, out, code=OBJECT).stderr
    assert re.search(rf"cell#score: .*{why}", refused) and "--leave-out" in refused and not out.exists()
    checkout("export", "--leave-out", store, *name, out)
    with h5py.File(out) as file:
        assert "cell#score" not in file and "cell,gene#norm" not in file and "gene#known" in file
        np.testing.assert_array_equal(file["cell#age"][()], now["cell#age"])
        np.testing.assert_array_equal(file["cell#"][()], now["cell#"])
    # With the store as it was, all is back, in place and as a copy.
    for put_back in (shutil.copyfile, shutil.copy2, os.replace):
        put_back(old, store)
        with Mount(store, **({} if committed else {"checkout": "work"})) as mount:
            for path, array in arrays.items():
                np.testing.assert_array_equal(np.load(mount / path), array)
            assert "not shown" not in (mount / ".npyfs/errors.log").read_text()
    assert not checkout("ls", store).stderr


def test_a_commit_does_without_what_does_not_fit(tmp_path):
    store = tmp_path / "x.h5"
    write_daf(store)
    save(store, "work", {"cell#score.npy": SCORE, "gene#n.npy": np.arange(3)}, commit=False)
    write_daf(store, cells=CELLS[::-1])
    done = checkout("commit", "--leave-out", store, "work").stdout
    assert done.splitlines()[0].startswith("left out: cell#score: ") and re.search(r"\ncommit 1: 1 changes, [0-9a-f]{12}\n$", done)
    assert commits_of(tmp_path / "x.h5.checkouts")[0]["without"] == ["cell#score"]
    with Mount(store) as mount:
        assert (mount / "gene#n.npy").exists() and not (mount / "cell#score.npy").exists()
    assert not checkout("ls", store).stderr


def test_what_does_not_fit_is_written_again_along_the_new_axis(tmp_path):
    store = tmp_path / "x.h5"
    write_daf(store)
    save(store, "one", {"cell#score.npy": SCORE})
    write_daf(store, cells=CELLS + [b"e"])
    save(store, "two", {"cell#score.npy": np.arange(5.0)}, commit=False)
    assert checkout("diff", store, "two").stdout == "A cell#score.npy  <f8 (5,)\n"
    checkout("commit", store, "two")
    with Mount(store) as mount:
        np.testing.assert_array_equal(np.load(mount / "cell#score.npy"), np.arange(5.0))
    # The first is hidden by the second, which fits.
    assert not checkout("ls", store).stderr
    checkout("export", store, tmp_path / "out.h5")


def test_a_living_mount_follows(tmp_path):
    store, old, new = tmp_path / "x.h5", tmp_path / "old.h5", tmp_path / "new.h5"
    write_daf(store)
    write_daf(new, cells=CELLS[::-1], seed=3)
    save(store, "work", {"cell#score.npy": SCORE})
    shutil.copyfile(store, old)
    with Mount(store) as plain, Mount(store, checkout="next") as writable:
        for mount in (plain, writable):
            np.testing.assert_array_equal(np.load(mount / "cell#score.npy"), SCORE)
        for source, is_there in ((new, False), (old, True), (new, False)):
            shutil.copyfile(source, tmp_path / "temporary")
            os.replace(tmp_path / "temporary", store)
            for mount in (plain, writable):
                until(lambda: (mount / "cell#score.npy").exists() == is_there, "what is shown")
                assert ("cell#score.npy" in names(mount)) == is_there
                with h5py.File(store) as file:
                    np.testing.assert_array_equal(np.load(mount / "cell#.npy"), file["cell#"][()])
        np.save(writable / "cell#score.npy", np.arange(4))
        np.testing.assert_array_equal(np.load(writable / "cell#score.npy"), np.arange(4))


@pytest.mark.parametrize("write", [write_daf, write_plain])
def test_another_store_hides_all_of_it(tmp_path, write):
    store = tmp_path / "x.h5"
    write(store)
    save(store, "work", {"note.npy": np.arange(3), "a.npy": np.arange(4)})
    shutil.move(store, tmp_path / "old.h5")
    if write is write_daf:
        write_daf(store, cells=[b"k", b"l"], genes=[b"x"], seed=9)
    else:
        write_plain(store, seed=9)
    before = store.read_bytes()
    with Mount(store) as mount:
        assert not (mount / "note.npy").exists() and "note.npy" not in names(mount)
        if write is write_plain:
            with h5py.File(store) as file:
                np.testing.assert_array_equal(np.load(mount / "a.npy"), file["a"][()])
        log = (mount / ".npyfs/errors.log").read_text()
        assert "note: not shown, though it is in work: the store is not the one that it was written over" in log
    assert "note: not shown" in checkout("ls", store).stderr
    assert "note: the store is not the one" in checkout("export", store, tmp_path / "out.h5", code=OBJECT).stderr
    assert store.read_bytes() == before
    os.replace(tmp_path / "old.h5", store)
    with Mount(store) as mount:
        assert len(np.load(mount / "note.npy")) == 3 and len(np.load(mount / "a.npy")) == 4


def test_deletions_alone_are_of_the_store_they_were_made_in(tmp_path):
    store = tmp_path / "x.h5"
    write_plain(store)
    with Mount(store, checkout="work") as mount:
        os.unlink(mount / "a.npy")
    checkout("commit", store, "work")
    with Mount(store) as mount:
        assert not (mount / "a.npy").exists()
    write_plain(tmp_path / "new.h5", seed=9)
    os.replace(tmp_path / "new.h5", store)
    with Mount(store) as mount, h5py.File(store) as file:
        np.testing.assert_array_equal(np.load(mount / "a.npy"), file["a"][()])
        log = (mount / ".npyfs/errors.log").read_text()
        assert "a: not deleted, though work deletes it: the store is not the one that it was written over" in log


def test_another_store_in_a_directory_of_stores(tmp_path):
    folder = tmp_path / "stores"
    (folder / "sub").mkdir(parents=True)
    for number, name in enumerate(["one.h5", "sub/two.h5"]):
        write_plain(folder / name, seed=number)
    save(folder, "work", {"one.h5/note.npy": np.arange(3), "sub/two.h5/note.npy": np.arange(3)})
    write_plain(folder / "sub/two.h5", seed=9)
    with Mount(folder) as mount:
        assert (mount / "one.h5/note.npy").exists() and not (mount / "sub/two.h5/note.npy").exists()
        log = (mount / ".npyfs/errors.log").read_text()
        assert "sub/two.h5/note: not shown, though it is in work: sub/two.h5 is not the one" in log and "one.h5/note" not in log


def test_a_store_that_its_own_programs_change_is_the_same(tmp_path):
    plain, cells = tmp_path / "plain.h5", tmp_path / "cells.h5"
    write_plain(plain)
    with h5py.File(plain, "a") as file:
        file.create_dataset("grows", data=np.arange(2000.0), maxshape=(None,), chunks=(500,))
    write_daf(cells)
    save(plain, "work", {"note.npy": np.arange(3), "a.npy": np.arange(4)})
    save(cells, "work", {"cell#score.npy": SCORE, "note.npy": np.array(1)})
    with h5py.File(plain, "a") as file:
        file["new"] = np.arange(9)
        file["b"][...] = 0
        del file["g"]
        file["grows"].resize((3000,))
    with h5py.File(cells, "a") as file:
        file["cell#new"] = np.arange(4)
        file["cell#age"][...] = 0
        del file["cell,gene#UMIs"]
        # The same entries, stored wider.
        del file["cell#"]
        file["cell#"] = np.array(CELLS, "S9")
    for store, there in ((plain, {"note", "a", "new", "grows"}), (cells, {"cell#score", "note", "cell#new"})):
        with Mount(store) as mount:
            assert {f"{name}.npy" for name in there} <= set(names(mount))
            assert "not shown" not in (mount / ".npyfs/errors.log").read_text()
        assert not checkout("ls", store).stderr
    with Mount(plain) as mount:
        assert len(np.load(mount / "a.npy")) == 4


def test_a_store_that_becomes_its_own_export_goes_on(tmp_path):
    store, out = tmp_path / "x.h5", tmp_path / "out.h5"
    write_daf(store)
    arrays = {"cell#.npy": np.array([b"a", b"b", b"c", b"D"]), "cell#score.npy": SCORE, "cell#age.npy": np.arange(4)}
    save(store, "work", arrays)
    checkout("export", store, out)
    os.replace(out, store)
    with Mount(store) as mount:
        for path, array in arrays.items():
            np.testing.assert_array_equal(np.load(mount / path), array)
    assert not checkout("ls", store).stderr


def test_an_axis_that_is_written_anew_takes_along_what_its_writer_saw(tmp_path):
    store = tmp_path / "x.h5"
    write_daf(store)
    other = np.array([b"a", b"b", b"c", b"Dd"])
    save(store, "one", {"cell#score.npy": SCORE})
    save(store, "two", {"cell#own.npy": SCORE + 1, "cell#.npy": other})
    save(store, "three", {"cell#late.npy": SCORE + 2})
    with Mount(store) as mount:
        np.testing.assert_array_equal(np.load(mount / "cell#.npy"), other)
        for number, name in enumerate(["score", "own", "late"]):
            np.testing.assert_array_equal(np.load(mount / f"cell#{name}.npy"), SCORE + number)
    assert not checkout("ls", store).stderr
    # The store's own axis is another: the new one was never its.
    write_daf(store, cells=CELLS[::-1])
    with Mount(store) as mount:
        np.testing.assert_array_equal(np.load(mount / "cell#.npy"), np.array(CELLS[::-1]))
        assert [name for name in names(mount) if name.startswith("cell#")] == ["cell#.npy", "cell#age.npy"]
    told = checkout("ls", store).stderr
    assert "cell#: not shown, though it is in two: it was written in the place of an axis with 4 entries" in told
    assert all(f"cell#{name}: not shown" in told for name in ("score", "own", "late"))


def test_an_axis_does_not_take_along_what_its_writer_did_not_see(tmp_path):
    store = tmp_path / "x.h5"
    write_daf(store)
    save(store, "order", {"cell#.npy": np.array(CELLS[::-1])}, commit=False)
    save(store, "one", {"cell#score.npy": SCORE})
    refused = checkout("commit", store, "order", code=OBJECT).stderr
    assert "cell#score was changed by commit 1" in refused
    checkout("commit", "--ours", store, "order")
    with Mount(store) as mount:
        np.testing.assert_array_equal(np.load(mount / "cell#.npy"), np.array(CELLS[::-1]))
        assert not (mount / "cell#score.npy").exists()
    assert "cell#score: not shown, though it is in one: it was written along cell#" in checkout("ls", store).stderr


def write_frame(path, rows):
    """A DataFrame of so many rows, with arrays by which the store is known again."""
    with arkouda.Store(path.parent, path.name, None) as store:
        arkouda.put_array(store, "first", np.arange(9))
        arkouda.put_array(store, "other", np.arange(rows) * 0.5)
        arkouda.put_dataframe(store, "frame", {
            "a": lambda s, p: arkouda.put_array(s, p, np.arange(rows) + 100),
            "words": lambda s, p: arkouda.put_strings(s, p, [b"w"] * rows),
        }, np.arange(rows))
        arkouda.put_categorical(store, "colour", np.arange(rows) % 2, [b"red", b"N/A"])


@pytest.mark.parametrize("committed", [True, False])
def test_what_took_the_place_of_an_object_of_another_length_is_not_shown(tmp_path, committed):
    store, old, out = tmp_path / "x.h5", tmp_path / "old.h5", tmp_path / "out.h5"
    write_frame(store, 5)
    written = {"frame/a.npy": np.arange(5) + 7, "other.npy": np.ones(5), "colour.npy": np.array([b"red", b"blue"] * 2 + [b"red"]),
               "new.npy": np.arange(2), "first.npy": np.arange(9) * 2}
    save(store, "work", written, committed)
    shutil.copy2(store, old)
    write_frame(store, 6)
    name = [] if committed else ["work"]
    whys = {"frame": "a DataFrame with 5 elements, and a DataFrame with 6 elements is there now",
            "colour": "a Categorical with 5 elements, and a Categorical with 6",
            "other": r"an array of shape \[5\], and an array of shape \[6\]"}
    with Mount(store, **({} if committed else {"checkout": "work"})) as mount:
        np.testing.assert_array_equal(np.load(mount / "frame/a.npy"), np.arange(6) + 100)
        np.testing.assert_array_equal(np.load(mount / "frame/Index.npy"), np.arange(6))
        np.testing.assert_array_equal(np.load(mount / "other.npy"), np.arange(6) * 0.5)
        np.testing.assert_array_equal(np.load(mount / "colour/codes.npy"), np.arange(6) % 2)
        np.testing.assert_array_equal(np.load(mount / "new.npy"), np.arange(2))
        np.testing.assert_array_equal(np.load(mount / "first.npy"), np.arange(9) * 2)
        log = (mount / ".npyfs/errors.log").read_text()
    told = [log, checkout("ls", store).stderr, checkout("export", store, *name, out, code=OBJECT).stderr]
    if not committed:
        told += [checkout("diff", store, "work").stderr, checkout("commit", store, "work", code=OBJECT).stderr]
    for text in told:
        for key, why in whys.items():
            assert re.search(rf"\b{key}: .*in the place of {why}", text), text
        assert not re.search(r"\b(new|first): ", text), text
    [listed] = json.loads(checkout("ls", "--json", store).stdout)
    assert sorted(item["object"] for item in listed["not_shown"]) == sorted(whys)
    assert all(re.search(whys[item["object"]], item["why"]) for item in listed["not_shown"])
    checkout("export", "--leave-out", store, *name, out)
    with h5py.File(out) as file:
        np.testing.assert_array_equal(file["frame/a"][()], np.arange(6) + 100)
        np.testing.assert_array_equal(file["new"][()], np.arange(2))
        assert not arkouda.faults(file)
    # A store that is what the layers make of the old one goes on with them, and the old one has all of it.
    shutil.copy2(old, store)
    checkout("export", store, *name, tmp_path / "all.h5")
    for now in (tmp_path / "all.h5", old):
        shutil.copy2(now, store)
        with Mount(store, **({} if committed else {"checkout": "work"})) as mount:
            for path, array in written.items():
                np.testing.assert_array_equal(np.load(mount / path), array)
        assert json.loads(checkout("ls", "--json", store).stdout)[0]["not_shown"] == []


def test_plain_arrays_remember_what_they_replaced(tmp_path):
    store, directory = tmp_path / "x.h5", tmp_path / "x.h5.checkouts"
    write_plain(store)
    save(store, "work", {"a.npy": np.zeros((2, 2)), "new.npy": np.arange(3)})
    [index] = directory.glob("*/index")
    _, records = lines(index)
    of = {record["path"]: record["stored"]["against"] for record in records if "path" in record}
    assert of == {"a": {"over": {"kind": "array", "shape": [5, 3]}}, "new": {}}
    with h5py.File(store, "a") as file:
        del file["a"]
        file["a"] = np.ones((7, 3))
    with Mount(store) as mount:
        np.testing.assert_array_equal(np.load(mount / "a.npy"), np.ones((7, 3)))
        assert re.search(r"a: not shown.*shape \[5, 3\], and an array of shape \[7, 3\]", mount.errors()[0])
    assert "npyfs: a: not shown" in checkout("ls", store).stderr
    # Nothing there any more is nothing that would be hidden.
    with h5py.File(store, "a") as file:
        del file["a"]
    with Mount(store) as mount:
        np.testing.assert_array_equal(np.load(mount / "a.npy"), np.zeros((2, 2)))
