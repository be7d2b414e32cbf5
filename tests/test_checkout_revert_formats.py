"""npyfs checkout revert on stores of daf and Arkouda, and on directories of stores: what comes back follows the rules of its format.
Judges: NumPy through later mounts, and h5py on exported files by the rules of the formats' own readers."""

import os

import h5py
import numpy as np
import pytest
import scipy.sparse

from support import arkouda, daf
from support.commits import content, log, refused, revert, write
from support.mount import Mount
from support.process import npyfs

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
    assert "batch#: batch#size was changed since, by commit 2 (vector, " in refused(cells, axis)
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
