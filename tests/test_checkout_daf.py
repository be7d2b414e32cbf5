"""daf objects written into a checkout through the mount, as directories of parts and as single files. Judges: the mount after it was
made anew, and h5py on the files of the layer by the rules of daf's own reader (an object's file holds the axes that it uses)."""

import errno
import os
import shutil

import h5py
import numpy as np
import pytest
import scipy.sparse

from support import daf
from support.mount import Mount, until
from support.process import run

CELLS, GENES = [b"a", b"b", b"c"], [b"x", b"y", b"z", b"w"]


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "cells.h5df"
    with h5py.File(path, "w") as file:
        daf.start(file)
        file["cell#"] = np.array(CELLS)
        file["gene#"] = np.array(GENES)
        file["cell#age"] = np.array([4, 5, 6])
    before = path.read_bytes()
    yield path
    assert path.read_bytes() == before, "the store was written to"


def open_checkout(store, **keywords):
    return Mount(store, checkout="c", **keywords)


def newest(store, name):
    for path in sorted((store.parent / "cells.h5df.checkouts/c").glob("*.h5"), reverse=True):
        with h5py.File(path) as file:
            if name in file:
                return path
    raise AssertionError(f"{name} is in no file")


def parts(matrix, folder):
    folder.mkdir()
    np.save(folder / "data.npy", matrix.data)
    np.save(folder / "indices.npy", matrix.indices)
    np.save(folder / "indptr.npy", matrix.indptr)
    np.save(folder / "shape.npy", np.array(matrix.shape))
    return folder


def loaded(mount, name):
    return scipy.sparse.load_npz(mount / f"{name}.npz").toarray()


def test_vectors_and_dense_matrices(store):
    with open_checkout(store) as m:
        np.save(m / "cell#score.npy", np.array([0.5, 1, 2]))
        np.save(m / "cell,gene#dense.npy", np.arange(12.0).reshape(3, 4))
        np.save(m / "batch#.npy", np.array(["one", "two"]))
        np.save(m / "batch#size.npy", np.array([10, 20]))
        assert m.info("cell#score.npy")["kind"] == "daf"
    with open_checkout(store) as m:
        np.testing.assert_array_equal(np.load(m / "cell#score.npy"), [0.5, 1, 2])
        np.testing.assert_array_equal(np.load(m / "cell,gene#dense.npy"), np.arange(12.0).reshape(3, 4))
        np.testing.assert_array_equal(np.load(m / "batch#size.npy"), [10, 20])
        os.unlink(m / "cell#age.npy")
        assert not os.path.exists(m / "cell#age.npy")
    with h5py.File(newest(store, "cell,gene#dense")) as file:
        assert "__daf__" in file and list(file["cell#"][()]) == CELLS and list(file["gene#"][()]) == GENES


def test_a_sparse_matrix_as_a_directory_and_as_one_file(store, tmp_path):
    first = scipy.sparse.csr_matrix(np.array([[1, 0, 2, 0], [0, 0, 0, 0], [0, 3, 0, 4.5]]))
    second = scipy.sparse.csr_matrix(np.array([[0, 9, 0, 0], [0, 0, 8, 0], [7, 0, 0, 6.5]]))
    third = scipy.sparse.csr_matrix(np.array([[0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0.0]]))
    folder = parts(first, tmp_path / "cell,gene#UMIs")
    with open_checkout(store) as m:
        run(["cp", "-r", folder, m.path], check=True)
        run(["diff", "-r", folder, m / "cell,gene#UMIs"], check=True)
        np.testing.assert_array_equal(loaded(m, "cell,gene#UMIs"), first.toarray())
        # over what is there: other numbers, and another number of them
        for matrix in (second, third):
            shutil.rmtree(folder)
            parts(matrix, folder)
            run(["cp", "-r", folder, m.path], check=True)
            np.testing.assert_array_equal(loaded(m, "cell,gene#UMIs"), matrix.toarray())
        scipy.sparse.save_npz(tmp_path / "n.npz", second)
        shutil.copyfile(tmp_path / "n.npz", m / "cell,gene#npz.npz")
        np.testing.assert_array_equal(np.load(m / "cell,gene#npz/data.npy"), second.data)
        assert m.errors() == []
    with open_checkout(store) as m:
        np.testing.assert_array_equal(loaded(m, "cell,gene#UMIs"), third.toarray())
        np.testing.assert_array_equal(loaded(m, "cell,gene#npz"), second.toarray())
        run(["rm", "-r", m / "cell,gene#UMIs"], check=True)
        assert not os.path.exists(m / "cell,gene#UMIs.npz")
    with open_checkout(store) as m:
        assert sorted(os.listdir(m.path)) == ["cell#.npy", "cell#age.npy", "cell,gene#npz", "cell,gene#npz.npz", "gene#.npy"]
    with h5py.File(newest(store, "cell,gene#npz")) as file:
        assert list(file["cell,gene#npz"].attrs["shape"]) == [3, 4]


def test_parts_wait_for_each_other(store, tmp_path):
    folder = parts(scipy.sparse.csr_matrix(np.eye(3, 4)), tmp_path / "cell,gene#w")
    with open_checkout(store) as m:
        os.mkdir(m / "cell,gene#w")
        for name in ("data.npy", "indices.npy"):
            shutil.copyfile(folder / name, m / "cell,gene#w" / name)
        assert sorted(os.listdir(m / "cell,gene#w")) == ["data.npy", "indices.npy"]
        assert not os.path.exists(m / "cell,gene#w.npz")
        assert m.status()["checkout"]["scratch_files"] == 2 and m.errors() == []
        [line] = m.status()["checkout"]["waiting"]
        assert line.startswith("cell,gene#w: ") and "indptr" in line and "data" not in line
        for name in ("indptr.npy", "shape.npy"):
            shutil.copyfile(folder / name, m / "cell,gene#w" / name)
        np.testing.assert_array_equal(loaded(m, "cell,gene#w"), np.eye(3, 4))
        until(lambda: m.status()["checkout"]["scratch_files"] == 0, "the end of writing")
        assert m.status()["checkout"]["waiting"] == []


@pytest.mark.parametrize("name, array", [("cell#wrong", np.arange(4)), ("none#property", np.arange(3)), ("cell,gene#wrong", np.zeros((4, 3)))])
def test_what_does_not_fit_the_axes_is_refused(store, name, array):
    with open_checkout(store) as m:
        with pytest.raises(OSError) as refused:
            np.save(m / f"{name}.npy", array)
        assert refused.value.errno == errno.EINVAL
        until(lambda: not os.path.exists(m / f"{name}.npy"), "the end of what was refused")
        assert any(name in line for line in m.errors())
