"""daf objects written into a checkout through the mount, as directories of parts and as single files. Judges: the mount after it was
made anew, and h5py on the files of the layer by the rules of daf's own reader (an object's file holds the axes that it uses)."""

import errno
import io
import os
import shutil

import h5py
import numpy as np
import pytest
import scipy.sparse

from support import daf
from support.checkouts import checkout, save
from support.mount import Mount, until
from support.process import npyfs, run

pytestmark = pytest.mark.fast

OBJECT = 3

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


def test_a_closed_file_reads_as_what_is_stored(store):
    """Even while a copy of its descriptor is open, as after any close for a moment: the kernel tells of the last one later."""
    def written(matrix):
        """An archive whose "format" is not said, and that has a member which is not stored."""
        out = io.BytesIO()
        np.savez(out, data=matrix.data, indices=matrix.indices, indptr=matrix.indptr, shape=matrix.shape, extra=np.arange(5))
        return out.getvalue()

    first = scipy.sparse.csr_matrix(np.array([[1, 0, 2, 0], [0, 0, 0, 0], [0, 3, 0, 4.5]]))
    second = scipy.sparse.csr_matrix(np.array([[0, 9, 0, 0], [0, 0, 8, 0], [7, 0, 0, 6.5]]))
    for flags in (os.O_WRONLY, os.O_RDWR):
        with open_checkout(store) as m:
            path = m / "cell,gene#s.npz"
            handle = os.open(path, flags | os.O_CREAT | os.O_TRUNC)
            copy = os.dup(handle)
            try:
                os.write(handle, written(first))
                os.close(handle)
                np.testing.assert_array_equal(loaded(m, "cell,gene#s"), first.toarray())
                assert "cell,gene#s.npz" in os.listdir(m.path)
                # Whoever goes on with the copy is seen by all until that is closed.
                os.ftruncate(copy, 0)
                os.pwrite(copy, written(second)[:100], 0)
                assert path.read_bytes() == written(second)[:100]
                os.pwrite(copy, written(second)[100:], 100)
            finally:
                os.close(copy)
            np.testing.assert_array_equal(loaded(m, "cell,gene#s"), second.toarray())
            assert m.errors() == []
        with open_checkout(store) as m:
            np.testing.assert_array_equal(loaded(m, "cell,gene#s"), second.toarray())


def test_an_array_that_is_mapped_is_read_as_it_is_written(store):
    """The descriptor of a map is closed long before the map is."""
    with open_checkout(store) as m:
        path = m / "cell#score.npy"
        array = np.lib.format.open_memmap(path, "w+", np.float64, (3,))
        array[:] = [1, 2, 3]
        np.testing.assert_array_equal(np.load(path), [1, 2, 3])
        array[:] = [4, 5, 6]
        np.testing.assert_array_equal(np.load(path), [4, 5, 6])
        array.flush()
        del array
        until(lambda: m.status()["checkout"]["scratch_files"] == 0, "the last close")
        np.testing.assert_array_equal(np.load(path), [4, 5, 6])


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


@pytest.mark.parametrize("name, array", [("cell#wrong", np.arange(4)), ("none#property", np.arange(3).reshape(3, 1)), ("a,b,c#x", np.arange(3)), ("cell,gene#wrong", np.zeros((4, 3)))])
def test_what_does_not_fit_the_axes_is_refused(store, name, array):
    with open_checkout(store) as m:
        with pytest.raises(OSError) as refused:
            np.save(m / f"{name}.npy", array)
        assert refused.value.errno == errno.EINVAL
        until(lambda: not os.path.exists(m / f"{name}.npy"), "the end of what was refused")
        assert any(name in line for line in m.errors())


ITEMS = {
    "text": np.array("x" * 20_000), "long text": np.array("ü" * 300_000), "pair": np.arange(6).reshape(2, 3), "cube": np.arange(24.0).reshape(2, 3, 4),
    "large": np.arange(10_000), "larger": np.random.default_rng(3).random((400, 500)), "words": np.array(["a", "bcd"] * 5_000), "Upper": np.array(True),
}


def test_what_daf_has_as_an_item_is_stored_as_an_item(store, tmp_path):
    """Text counts a byte a character; what does not fit into an object header lies in a heap, which every h5py reads."""
    with open_checkout(store) as m:
        for name, array in ITEMS.items():
            np.save(m / f"{name}.npy", array)
        assert m.errors() == []
    with open_checkout(store) as m:
        for name, array in ITEMS.items():
            np.testing.assert_array_equal(np.load(m / f"{name}.npy"), array)
            assert m.info(f"{name}.npy")["kind"] == "daf"
    npyfs("checkout", "export", store, "c", tmp_path / "out.h5df", check=True)
    for path in (tmp_path / "out.h5df", newest(store, "__daf__")):
        with h5py.File(path) as file:
            assert list(file["__daf__"][()]) == [1, 0] and not any(name in file for name in ITEMS)
    with h5py.File(tmp_path / "out.h5df") as file:
        items = dict(file["__daf__"].attrs)
        assert set(items) == set(ITEMS)
        for name, array in ITEMS.items():
            np.testing.assert_array_equal(items[name], array)
    with Mount(tmp_path / "out.h5df") as m:
        for name, array in ITEMS.items():
            np.testing.assert_array_equal(np.load(m / f"{name}.npy"), array)


def test_what_is_no_item_is_refused(store):
    with open_checkout(store) as m:
        for name, array in {"huge": np.zeros(3 << 20), "complex": np.zeros(2, "c8"), "__daf__": np.array([1, 0], "i1"), "npyfs_time": np.array(1)}.items():
            with pytest.raises(OSError) as refused:
                np.save(m / f"{name}.npy", array)
            assert refused.value.errno in (errno.EINVAL, errno.EOPNOTSUPP), name
            assert any(name in line for line in m.errors()), name
    assert npyfs("checkout", "commit", store, "c").stdout == "nothing to commit\n"


def test_an_export_of_what_began_empty_has_no_item_of_ours(tmp_path):
    empty = tmp_path / "empty.h5"
    h5py.File(empty, "w").close()
    with Mount(empty, checkout="c") as m:
        np.save(m / "__daf__.npy", np.array([1, 0], "i1"))
    npyfs("checkout", "commit", empty, "c", check=True)
    npyfs("checkout", "export", empty, tmp_path / "first.h5df", check=True)
    with h5py.File(tmp_path / "first.h5df") as file:
        assert list(file["__daf__"].attrs) == []
    # What earlier versions left there is no item either.
    with h5py.File(tmp_path / "first.h5df", "r+") as file:
        file["__daf__"].attrs["npyfs_time"] = 7
        file["__daf__"].attrs["title"] = "kept"
    with Mount(tmp_path / "first.h5df", checkout="c") as m:
        assert os.listdir(m.path) == ["title.npy"]
        np.save(m / "Count.npy", np.array(3))
    npyfs("checkout", "export", tmp_path / "first.h5df", "c", tmp_path / "second.h5df", check=True)
    with h5py.File(tmp_path / "second.h5df") as file:
        assert dict(file["__daf__"].attrs) == {"title": "kept", "Count": 3}


@pytest.mark.parametrize("changed", ["data", "indices", "indptr", "shape"])
def test_a_member_of_another_length_is_refused_and_named(store, tmp_path, changed):
    matrix = scipy.sparse.csr_matrix(np.array([[1, 0, 2, 0], [0, 0, 0, 0], [0, 3, 0, 4.5]]))
    folder = parts(matrix, tmp_path / "cell,gene#UMIs")
    wrong = {"data": np.arange(5.0), "indices": np.array([0, 1, 2]), "indptr": np.array([0, 4]), "shape": np.array([3, 5])}[changed]
    order = [name for name in ("data", "indices", "indptr", "shape") if name != changed]
    with open_checkout(store) as m:
        os.mkdir(m / "cell,gene#UMIs")
        np.save(m / "cell,gene#UMIs" / f"{changed}.npy", wrong)
        for name in order[:-1]:
            shutil.copyfile(folder / f"{name}.npy", m / "cell,gene#UMIs" / f"{name}.npy")
        with pytest.raises(OSError) as refused:
            shutil.copyfile(folder / f"{order[-1]}.npy", m / "cell,gene#UMIs" / f"{order[-1]}.npy")
        assert refused.value.errno == errno.EINVAL
        assert any(f"{changed} has " in line or f"{changed} is " in line for line in m.errors()), m.errors()
        # Written right, everything is there.
        for name in (changed, order[-1]):
            shutil.copyfile(folder / f"{name}.npy", m / "cell,gene#UMIs" / f"{name}.npy")
        np.testing.assert_array_equal(loaded(m, "cell,gene#UMIs"), matrix.toarray())


def test_commit_and_export_refuse_what_breaks_the_rules_of_daf(tmp_path):
    """One checkout uses the axis that another took away."""
    store = tmp_path / "cells.h5df"
    with h5py.File(store, "w") as file:
        daf.start(file)
        file["cell#"] = np.array([b"a", b"b"])
        file["gene#"] = np.array([b"x"])
    save(store, "uses", {"cell#age.npy": np.arange(2), "gene#size.npy": np.arange(1)}, commit=False)
    with Mount(store, checkout="deletes") as mount:
        os.unlink(mount / "gene#.npy")
    checkout("commit", store, "deletes")
    assert "gene#" in checkout("commit", store, "uses", code=OBJECT).stderr
    for command in (["commit", "--ours", store, "uses"], ["export", store, "uses", tmp_path / "out.h5df"]):
        refused = checkout(*command, code=OBJECT).stderr
        assert "gene#size: " in refused and "there is no such axis now" in refused and "cell#age: " not in refused, refused
    assert not (tmp_path / "out.h5df").exists()
    checkout("commit", "--theirs", store, "uses")
    checkout("export", store, tmp_path / "out.h5df")
    with h5py.File(tmp_path / "out.h5df") as file:
        assert set(file) == {"__daf__", "cell#", "cell#age"}
    assert "all is well" in npyfs("verify", tmp_path / "out.h5df", check=True).stdout


def test_verify_knows_the_rules_of_daf(tmp_path):
    store = tmp_path / "cells.h5df"
    with h5py.File(store, "w") as file:
        truth, _ = daf.write(file)
    assert "all is well" in npyfs("verify", store, check=True).stdout
    with h5py.File(store, "r+") as file:
        file["twice#"] = np.array([b"a", b"a"])
        file["lost#size"] = np.arange(2)
        file["cell#short"] = np.arange(3)
        file["latin#"] = np.array(["\xe9".encode("latin1")])
        file["cell#c"] = np.zeros(12, "c8")
        matrix = daf.put_sparse(file, "cell,gene#unsorted", scipy.sparse.csr_matrix(np.ones((12, 5))))
        matrix["indices"][0], matrix["indices"][1] = 1, 0
    told = npyfs("verify", store)
    assert told.returncode == OBJECT
    wrong = sorted(line.split("npyfs: ")[-1].split(": ")[0].lstrip("/") for line in told.stderr.splitlines() if "#" in line)
    assert wrong == sorted(["twice#", "lost#size", "cell#short", "latin#", "cell#c", "cell,gene#unsorted"]), told.stderr
