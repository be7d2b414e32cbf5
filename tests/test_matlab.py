"""MATLAB 7.3: every class of value, in files that MATLAB wrote, in what hdf5storage writes for it, and in what only h5py can make.
Judge: np.save of what h5py reads, its dimensions reversed; mat73 and hdf5storage say what the values are."""

import errno
import json
import os

import h5py
import hdf5storage
import mat73
import numpy as np
import pytest
import scipy.sparse

from support.matlab import MatFile, check, expected
from support.mount import Mount, reason_of
from support.process import npyfs
from support.truth import np_save

FIXTURES = ["array", "cell", "complex", "logical", "simple", "sparse", "struct"]


def same(mount, path, value):
    """What is shown at a path is the value that mat73 found."""
    file = mount / f"{path}.npy"
    if scipy.sparse.issparse(value):
        if value.dtype.names:
            value = scipy.sparse.csc_matrix((value.data.view("c16"), value.indices, value.indptr), value.shape)
        assert (scipy.sparse.load_npz(mount / f"{path}.npz") != value).nnz == 0, path
    elif isinstance(value, dict):
        assert {name.removesuffix(".npy") for name in os.listdir(mount / path) if not name.endswith(".npz")} == set(value), path
        for key in value:
            same(mount, f"{path}/{key}", value[key])
    elif isinstance(value, list):
        rows, columns = mount.info(path)["shape"]
        grid = [value] if rows == 1 else value
        for row in range(rows):
            for column in range(columns):
                same(mount, f"{path}/{column * rows + row + 1}", grid[row][column])
    elif value is None:
        assert np.load(file).size == 0, path
    elif isinstance(value, str):
        assert np.load(file).item() == value, path
    else:
        got, value = np.load(file), np.asarray(value)
        assert got.dtype == value.dtype, path
        assert np.array_equal(got.reshape(value.shape) if got.ndim == 2 and 1 in got.shape else got, value), path


def agrees_with_mat73(mount, path):
    for name, value in mat73.loadmat(str(path)).items():
        same(mount, name, value)


@pytest.mark.fast
@pytest.mark.parametrize("name", FIXTURES)
def test_what_matlab_wrote(shared, name):
    path = shared / "matlab" / f"{name}.mat"
    if not path.is_file():
        pytest.skip("../shared/fixtures/matlab is absent: files that MATLAB wrote are NOT tested here")
    with Mount(path) as mount, h5py.File(path) as file:
        check(mount, expected(file))
        agrees_with_mat73(mount, path)
        assert mount.info()["kind"] == "matlab" and mount.info()["header"].startswith("MATLAB 7.3 MAT-file")
        assert mount.errors() == []


NUMBERS = {f"n_{name}": np.arange(-3, 9).reshape(3, 4).astype(name)
           for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")}
ARRAYS = {
    **NUMBERS,
    "cube": np.random.default_rng(1).random((2, 3, 4)), "row": np.arange(5.0).reshape(1, 5), "column": np.arange(5.0).reshape(5, 1),
    "scalar": np.array([[2.5]]), "hyper": np.arange(1 * 2 * 1 * 3.0).reshape(1, 2, 1, 3), "flat_cube": np.arange(4.0).reshape(1, 1, 4),
    "logical": np.array([[True, False, True], [False, False, True]]), "complex": np.array([[1 + 2j, 3, 1j], [0, -1j, 5]]),
    "complex_single": np.array([[1 + 2j], [3]], "c8"), "empty": np.zeros((0, 3)), "empty_logical": np.zeros((2, 0), bool),
    "empty_cube": np.zeros((2, 0, 3), "i2"),
}


def objects(rows):
    """An array of objects: what hdf5storage makes a cell array of."""
    cells = np.empty((len(rows), len(rows[0])), object)
    for at in np.ndindex(cells.shape):
        cells[at] = rows[at[0]][at[1]]
    return cells


OTHERS = {
    "text": "h\u00e9llo \u4e16\u754c", "nothing": "", "far": "a\U0001F600b", "nul": np.array(["ab", "cde"]),
    "struct": {"a": ARRAYS["cube"], "inner": {"b": "deep", "cells": [np.float64(1), "x", [np.arange(3), {"c": "d"}]]}},
    "cells": objects([[np.float64(1), "two", np.arange(3)], [[1, [2, "three"]], {"k": np.arange(4.0).reshape(2, 2)}, None]]),
    "no_cells": [], "structs": np.array([(1, 2.5), (3, 4.5), (5, 6.5)], [("p", "i4"), ("q", "f8")]),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("mat") / "written.mat"
    hdf5storage.write({**ARRAYS, **OTHERS}, path="/", filename=str(path), matlab_compatible=True)
    return path


@pytest.mark.fast
def test_what_hdf5storage_writes(written):
    with Mount(written) as mount, h5py.File(written) as file:
        check(mount, expected(file))
        for name, array in ARRAYS.items():
            assert (mount / f"{name}.npy").read_bytes() == np_save(np.asfortranarray(array)), name
        back = hdf5storage.read(path="/", filename=str(written))
        for name in ARRAYS:
            assert np.array_equal(np.load(mount / f"{name}.npy"), back[name]), name
        agrees_with_mat73(mount, written)
        assert np.load(mount / "text.npy").item() == OTHERS["text"] and np.load(mount / "far.npy").item() == OTHERS["far"]
        assert mount.info("cells")["shape"] == [2, 3] and mount.info("no_cells")["shape"] == [1, 0]
        assert mount.info("structs")["shape"] == [1, 3] and mount.info("structs")["class"] == "struct"
        assert sorted(os.listdir(mount / "structs/q")) == ["1.npy", "2.npy", "3.npy"]
        assert mount.errors() == []


def test_headers_say_fortran_order_where_numpy_does(written):
    with Mount(written) as mount:
        for name, array in ARRAYS.items():
            got = np.load(mount / f"{name}.npy", mmap_mode="r" if array.size else None)
            assert got.flags.f_contiguous, name
            assert mount.info(f"{name}.npy")["fortran_order"] == (not np.asfortranarray(array).flags.c_contiguous) if array.size else True
            assert mount.info(f"{name}.npy")["shape"] == list(array.shape), name


def test_compressed_chunks_are_read_as_they_are(tmp_path):
    """Blocks that do not end with the rows of the array, read at random."""
    array = np.random.default_rng(2).integers(0, 1000, (300, 400, 7))
    with MatFile(tmp_path / "x.mat") as file:
        for name, options in {"gzip": {"chunks": (3, 37, 41), "compression": "gzip", "shuffle": True}, "plain": {}}.items():
            file.mark(file.create_dataset(name, data=array.T, **options), "int64")
        flags = file.create_dataset("flags", data=(array.T % 3).astype("u1"), chunks=(2, 50, 60), compression="gzip")
        file.mark(flags, "logical", int_decode=np.int32(1))
    with Mount(tmp_path / "x.mat") as mount:
        for name, want in {"gzip": array, "plain": array, "flags": array % 3 != 0}.items():
            assert (mount / f"{name}.npy").read_bytes() == np_save(np.asfortranarray(want))
            got = np.load(mount / f"{name}.npy", mmap_mode="r")
            assert np.array_equal(got[17, :, 3], want[17, :, 3]) and np.array_equal(got[:, 399], want[:, 399])
            del got
        assert mount.info("gzip.npy")["chunks"] == [41, 37, 3]


def test_characters(tmp_path):
    rows = np.array([list("one  "), list("two  "), list("three")])
    units = rows.view("u4").reshape(rows.shape).astype("u2")
    with MatFile(tmp_path / "x.mat") as file:
        for name, stored in {
            "rows": units.T, "column": units[:1], "bytes": np.frombuffer(b"caf\xe9", "u1").reshape(4, 1),
            "pairs": np.frombuffer("\U0001F600\U0001F601x".encode("utf-16-le"), "u2").reshape(5, 1),
            "alone": np.array([[0xDC00], [0xD800], [0x41]], "u2"), "utf32": np.array([[0x1F600], [0x41]], "u4"),
        }.items():
            file.put(name, stored, "char", int_decode=np.int32(stored.itemsize))
        for name, dims in {"empty": (0, 0), "row_of_none": (1, 0), "no_rows": (0, 4), "rows_of_none": (3, 0)}.items():
            file.put(f"e_{name}", np.array(dims, "u8"), "char", empty=np.uint8(1))
        file.put("cube", np.arange(24, dtype="u2").reshape(4, 3, 2), "char")
        file.put("beyond", np.array([[0x110000], [0x41]], "u4"), "char")
    with Mount(tmp_path / "x.mat") as mount, h5py.File(tmp_path / "x.mat") as file:
        want = expected({name: file[name] for name in file if name not in ("cube", "beyond")})
        # Of more than two dimensions, the code units.
        want["cube.npy"] = np_save(file["cube"][()].T)
        want["beyond.npy"] = np_save(np.array("\ufffdA"))
        check(mount, want)
        assert np.load(mount / "rows.npy").tolist() == ["one  ", "two  ", "three"]
        assert np.load(mount / "pairs.npy").item() == "\U0001F600\U0001F601x"
        assert np.load(mount / "e_empty.npy").item() == ""
        # One text where MATLAB has 0x0 or 1x0, and rows of texts elsewhere.
        empty = {name: np.load(mount / f"e_{name}.npy") for name in ("empty", "row_of_none", "no_rows", "rows_of_none")}
        assert {name: (text.dtype.str, text.shape) for name, text in empty.items()} == {
            "empty": ("<U1", ()), "row_of_none": ("<U1", ()), "no_rows": ("<U4", (0,)), "rows_of_none": ("<U1", (3,))}


def test_long_text_is_shown_in_code_units(tmp_path):
    units = np.full((1 << 20, 1), ord("x"), "u2")
    with MatFile(tmp_path / "x.mat") as file:
        file.put("most", units, "char")
        file.put("more", np.vstack([units, units[:1]]), "char")
    with Mount(tmp_path / "x.mat") as mount:
        assert np.load(mount / "most.npy").item() == "x" * (1 << 20)
        more = np.load(mount / "more.npy", mmap_mode="r")
        assert more.dtype == "u2" and more.shape == (1, (1 << 20) + 1) and (more == ord("x")).all()
        del more


def test_sparse(tmp_path):
    rng = np.random.default_rng(3)
    matrix = scipy.sparse.random(50, 40, 0.1, "csc", rng=rng)
    with MatFile(tmp_path / "x.mat") as file:
        def put(name, rows, kind="double", **parts):
            group = file.create_group(name)
            file.mark(group, kind, sparse=np.uint64(rows))
            for part, values in parts.items():
                group[part] = values
        whole = {"data": matrix.data, "ir": matrix.indices.astype("u8"), "jc": matrix.indptr.astype("u8")}
        put("real", 50, **whole)
        put("flags", 50, "logical", **whole | {"data": np.ones(matrix.nnz, "u1")})
        put("narrow", 50, **whole | {"ir": matrix.indices, "jc": matrix.indptr})
        put("zeros", 7, jc=np.zeros(6, "u8"))
        put("no_columns", 50, **whole | {"jc": np.zeros(0, "u8")})
        put("shorter", 50, **whole | {"ir": whole["ir"][1:]})
        put("no_pointers", 50, data=whole["data"], ir=whole["ir"])
        put("floats", 50, **whole | {"ir": matrix.data})
        put("text", 50, "char", **whole)
        cells = [file["real"], file["shorter"], file["zeros"]]
        file.refer("cells", cells)
    with Mount(tmp_path / "x.mat") as mount:
        assert {name.removesuffix(".npz") for name in os.listdir(mount.path)} == {"real", "flags", "narrow", "zeros", "cells"}
        for name in ("real", "narrow", "cells/1"):
            got = scipy.sparse.load_npz(mount / f"{name}.npz")
            assert got.format == "csc" and got.dtype == "f8" and (got != matrix).nnz == 0
            assert np.array_equal(np.load(mount / name / "indices.npy"), matrix.indices)
        assert scipy.sparse.load_npz(mount / "flags.npz").dtype == bool
        assert scipy.sparse.load_npz(mount / "zeros.npz").shape == (7, 5)
        for name in ("no_columns", "shorter", "no_pointers", "floats", "text"):
            assert reason_of(mount.info(), name)
        # In a cell array it is looked into when it is asked for.
        with pytest.raises(OSError) as refused:
            (mount / "cells/2.npz").read_bytes()
        assert refused.value.errno == errno.EIO
        assert mount.info("real")["shape"] == [50, 40]


@pytest.mark.fast
def test_what_only_matlab_can_open_is_left_out(tmp_path):
    with MatFile(tmp_path / "x.mat") as file:
        file.put("x", np.ones((2, 2)), "double")
        file.put("s", np.arange(6, dtype="u4").reshape(6, 1), "string", object_decode=np.int32(3))
        file.put("t", np.arange(6, dtype="u4").reshape(6, 1), "table", object_decode=np.int32(3))
        file.mark(file.create_group("f"), "function_handle", object_decode=np.int32(1))
        file.mark(file.create_group("old"), "inline", object_decode=np.int32(2))
        file.put("unknown", np.ones((1, 1)), "quaternion")
        file.put("ints", np.zeros((2, 2), [("real", "i4"), ("imag", "i4")]), "int32")
        file.create_group("#subsystem#").create_group("MCOS")
        file["#subsystem#/x"] = 1
        file["linked"] = h5py.SoftLink("/x")
        file["outside"] = h5py.ExternalLink("other.h5", "/x")
        file.create_dataset("varlen", (1,), h5py.string_dtype())
        file.refer("cells", [file["x"], file["s"], file["f"], file["x"]])
    with Mount(tmp_path / "x.mat") as mount:
        assert sorted(os.listdir(mount.path)) == ["cells", "ints.npy", "x.npy"]
        assert sorted(os.listdir(mount / "cells")) == ["1.npy", "4.npy"]
        for name, word in {"s": "string", "t": "table", "f": "function handle", "old": "inline", "unknown": "quaternion",
                           "linked": "link", "outside": "link", "varlen": "MATLAB"}.items():
            assert word in reason_of(mount.info(), name), name
        assert "string" in reason_of(mount.info("cells"), "2") and "function" in reason_of(mount.info("cells"), "3")
        assert np.load(mount / "ints.npy").dtype == [("real", "<i4"), ("imag", "<i4")]
        assert len(mount.info()["left_out"]) == 8


def test_references_that_lead_nowhere(tmp_path):
    path = tmp_path / "x.mat"
    with MatFile(path) as file:
        good = file.put("#refs#/a", np.ones((1, 1)), "double")
        gone = file.put("#refs#/b", np.ones((1, 1)), "double")
        file.refer("cells", [good, None, gone, good])
        wild = file.refer("wild", [good, good, good])
        address = np.array([[2**64 - 1], [2**40], [1]], "<u8")
        del file["#refs#/b"]
        regions = file.create_dataset("regions", (1, 1), h5py.regionref_dtype)
        file.mark(regions, "cell")
        offset = wild.id.get_offset()
    with open(path, "r+b") as raw:
        raw.seek(offset)
        raw.write(address.tobytes())
    with Mount(path) as mount:
        assert {"1.npy", "4.npy"} <= set(os.listdir(mount / "cells"))
        assert reason_of(mount.info("cells"), "2")
        assert "2.npy" not in os.listdir(mount / "cells") and np.load(mount / "cells/1.npy") == 1
        assert os.listdir(mount / "wild") == [] and len(mount.info("wild")["left_out"]) == 3
        with pytest.raises(OSError):
            os.listdir(mount / "regions")


def test_values_that_hold_themselves(tmp_path):
    with MatFile(tmp_path / "x.mat") as file:
        struct = file.create_group("s")
        file.mark(struct, "struct")
        struct["again"] = struct
        struct["up"] = file["/"]
        inner = file.create_dataset("#refs#/c", (2, 1), h5py.ref_dtype)
        file.mark(inner, "cell")
        x = file.put("#refs#/x", np.ones((1, 1)), "double")
        inner[()] = np.array([[inner.ref], [x.ref]], h5py.ref_dtype)
        file.refer("c", [inner, x])
        # A chain that is deeper than what is shown.
        below = x
        for depth in range(100):
            below = file.refer(f"#refs#/d{depth}", [below])
        file.refer("deep", [below])
    with Mount(tmp_path / "x.mat") as mount:
        assert os.listdir(mount / "s") == []
        assert "itself" in reason_of(mount.info("s"), "again") and "itself" in reason_of(mount.info("s"), "up")
        assert mount.files() == ["c/1/2.npy", "c/2.npy"]
        deepest = max((folder for folder, *_ in os.walk(mount / "deep")), key=len)
        below = os.path.relpath(deepest, mount.path)
        assert below.count("/1") >= 50 and "deep" in reason_of(mount.info(below), "1")


def test_values_that_are_shared_are_shown_once(tmp_path):
    """Else each level would double the number of paths."""
    with MatFile(tmp_path / "x.mat") as file:
        below = [file.put("#refs#/x", np.ones((1, 1)), "double")] * 2
        for depth in range(40):
            below = [file.refer(f"#refs#/{side}{depth}", below) for side in "ab"]
        file.refer("c", below)
        struct = file.create_group("s")
        file.mark(struct, "struct")
        file.put("s/y", np.ones((1, 1)), "double")
        file["t"] = struct
    with Mount(tmp_path / "x.mat") as mount:
        files = mount.files()
        # A number is shown in each cell that refers to it.
        assert len([path for path in files if path.startswith("c/")]) == 4
        assert len([path for path in files if path.endswith("y.npy")]) == 1
        assert npyfs("verify", tmp_path / "x.mat").returncode == 0


@pytest.mark.fast
def test_empty_values(tmp_path):
    with MatFile(tmp_path / "x.mat") as file:
        def put(name, dims, kind, dtype="u8"):
            return file.put(name, np.array(dims, dtype), kind, empty=np.uint8(1))
        put("canonical", (0, 0), "canonical empty")
        for kind in ("double", "single", "int8", "uint64", "logical"):
            put(f"of_{kind}", (3, 0, 2), kind)
        put("narrow", (0, 5), "double", "u4")
        put("cells", (0, 4), "cell")
        put("struct", (1, 1), "struct")
        put("structs", (0, 0), "struct")
        put("lies", (2, 2), "double")
        put("below_zero", (-1, 0), "double", "i8")
        put("no_class", (0, 0), "wonder")
        put("matrix", [[0, 0]], "double")
        file.put("not_empty", np.ones((2, 2)), "double", empty=np.uint8(0))
    with Mount(tmp_path / "x.mat") as mount:
        for name, want in {"canonical": np.zeros((0, 0)), "of_double": np.zeros((3, 0, 2)), "of_single": np.zeros((3, 0, 2), "f4"),
                           "of_int8": np.zeros((3, 0, 2), "i1"), "of_uint64": np.zeros((3, 0, 2), "u8"),
                           "of_logical": np.zeros((3, 0, 2), bool), "narrow": np.zeros((0, 5)), "not_empty": np.ones((2, 2))}.items():
            assert (mount / f"{name}.npy").read_bytes() == np_save(np.asfortranarray(want)), name
        for name, shape in {"cells": [0, 4], "struct": [1, 1], "structs": [0, 0]}.items():
            assert os.listdir(mount / name) == [] and mount.info(name)["shape"] == shape
        for name in ("lies", "below_zero"):
            with pytest.raises(OSError):
                (mount / f"{name}.npy").read_bytes()
        assert reason_of(mount.info(), "no_class") and reason_of(mount.info(), "matrix")


def test_many_cells(tmp_path):
    """More than one answer of a worker holds."""
    count = 25_000
    with MatFile(tmp_path / "x.mat") as file:
        values = [file.put(f"#refs#/{n}", np.full((1, 1 + n % 3), float(n)), "double") for n in range(100)]
        file.refer("row", [values[n % 100] for n in range(count)], shape=(count, 1))
        file.refer("column", [values[n % 100] for n in range(count)], shape=(1, count))
        file.refer("cube", [values[n % 100] for n in range(count)], shape=(5, 50, 100))
    with Mount(tmp_path / "x.mat") as mount:
        for name, shape in {"row": [1, count], "column": [count, 1], "cube": [100, 50, 5]}.items():
            assert os.listdir(mount / name) == [f"{n}.npy" for n in range(1, count + 1)]
            assert mount.info(name)["shape"] == shape
            for n in (0, 9_999, 10_000, 10_001, 20_000, 24_999):
                assert np.array_equal(np.load(mount / name / f"{n + 1}.npy"), np.full((1 + n % 100 % 3, 1), n % 100)), (name, n)
            for wrong in ("0.npy", "25001.npy", "01.npy", "1", "1.npz", "-1.npy", "1.npy.npy", ""):
                assert not os.path.isfile(mount / name / wrong), wrong


@pytest.mark.fast
def test_it_is_recognised_by_what_it_holds(tmp_path):
    def make(path, userblock, marked):
        with h5py.File(path, "w", userblock_size=512 if userblock else 0) as file:
            file["x"] = np.arange(6.0).reshape(2, 3)
            if marked:
                file["x"].attrs["MATLAB_class"] = np.bytes_("double")
        if userblock:
            with open(path, "r+b") as file:
                file.write(userblock.ljust(128))
        return path

    signature = b"MATLAB 7.3 MAT-file, Platform: none"
    for name, userblock, marked, kind in [("a.h5", signature, True, "matlab"), ("b.h5", signature, False, "matlab"), ("c.h5", b"", True, "matlab"),
                                          ("d.mat", b"", False, "plain"), ("e.mat", b"MATLAB 5.0 MAT-file", False, "plain")]:
        path = make(tmp_path / name, userblock, marked)
        with Mount(path) as mount:
            assert mount.info()["kind"] == kind, name
            assert np.load(mount / "x.npy").shape == ((3, 2) if kind == "matlab" else (2, 3)), name
    with Mount(tmp_path / "a.h5", "kind=plain") as mount:
        assert np.array_equal(np.load(mount / "x.npy"), np.arange(6.0).reshape(2, 3))
    with Mount(tmp_path / "d.mat", "kind=matlab") as mount:
        assert np.load(mount / "x.npy").shape == (3, 2)


@pytest.mark.fast
def test_a_checkout_cannot_write(written):
    with Mount(written, checkout="c") as mount:
        before = set(mount.files())
        for change in (lambda: np.save(mount / "new.npy", np.ones(3)), lambda: np.save(mount / "row.npy", np.ones(3)),
                       lambda: (mount / "row.npy").unlink(), lambda: (mount / "cells/1.npy").unlink(), lambda: (mount / "new").mkdir(),
                       lambda: (mount / "no_cells").rmdir(), lambda: (mount / "row.npy").rename(mount / "other.npy"),
                       lambda: (mount / "note.txt").write_text("x"), lambda: os.truncate(mount / "row.npy", 0)):
            with pytest.raises(OSError) as refused:
                change()
            assert refused.value.errno == errno.EROFS
        assert set(mount.files()) == before
        assert any("only read" in line for line in mount.errors())


def test_commands(written, tmp_path):
    """What the commands make of such a file: each variable is there, and what is converted is what it was."""
    def said(*arguments):
        return npyfs(*arguments, check=True).stdout

    assert "cube.npy" in said("ls", written) and "(2,3,4)" in said("ls", "-l", written)
    about = json.loads(said("info", "--json", written, "cube.npy"))
    assert (about["kind"], about["class"], about["shape"]) == ("matlab", "double", [2, 3, 4])
    assert npyfs("cat", written, "cube.npy", check=True, text=False).stdout == np_save(np.asfortranarray(ARRAYS["cube"]))
    assert npyfs("verify", written).returncode == 0
    # Of an array by columns, as NumPy prints it, with the picture the right way round.
    shown = said("show", "--image", written, "n_int16.npy")
    assert f"{ARRAYS['n_int16']}" in shown and "mean" in shown
    printed = said("show", "--no-stats", written, "cube.npy")
    assert str(ARRAYS["n_float32"]) in said("show", written, "n_float32.npy") and printed.count("[[") == 2
    new = tmp_path / "new.h5"
    said("convert", written, new)
    with h5py.File(new) as file:
        for name, array in ARRAYS.items():
            assert np.array_equal(file[name][()], array) and file[name].shape == array.shape, name
        assert file["structs/q/2"][()] == 4.5 and file["cells/3"][()] == b"two"
    refused = npyfs("convert", new, tmp_path / "back.mat", "--to", "matlab")
    assert refused.returncode != 0 and "matlab" in refused.stderr
