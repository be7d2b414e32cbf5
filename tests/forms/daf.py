"""daf: the rules of its reader (tanaylab daf 0.2.0-dev.1, storage/h5fs.py), checked with h5py."""

import errno
import io
import zipfile

import h5py
import numpy as np
from cases import Cases, same, shown

cases = Cases()
rng = np.random.default_rng(6)
CELL = np.array(["c1", "c22", "c333", "c"], "S4")
GENE = np.array(["g", "gg", "ggg"])
AXES = {"cell#": CELL, "gene#": GENE}


def mark(group, **items):
    version = group["__daf__"]
    assert version.dtype == np.int8 and version[:].tolist() == [1, 0]
    assert sorted(version.attrs) == sorted(items)
    return version


def is_text(dataset, want):
    kind = dataset.id.get_type()
    assert isinstance(kind, h5py.h5t.TypeStringID) and not kind.is_variable_str()
    assert (kind.get_strpad(), kind.get_cset()) == (h5py.h5t.STR_NULLPAD, h5py.h5t.CSET_ASCII)
    assert dataset[:].astype("U").tolist() == np.asarray(want).astype("U").tolist()


def stored(key, want=None, axes=("cell",), group=""):
    def check(file):
        at = file[group] if group else file
        mark(at)
        for axis in axes:
            is_text(at[axis + "#"], AXES[axis + "#"])
        name = key.split("/")[-1]
        assert set(at) == {"__daf__", name, *(axis + "#" for axis in axes)}
        dataset = at[name]
        if np.asarray(want).dtype.kind in "SU":
            is_text(dataset, want)
        else:
            same(dataset[()], np.ascontiguousarray(want))
            assert dataset.chunks is None
        want_back = np.asarray(want)
        assert not dataset.size or dataset.id.get_offset() is not None, want_back.shape
        back = shown(file, key + ".npy")
        assert back.shape == want_back.shape
        # Text is what it was, though it is ASCII.
        assert want_back.dtype.kind != "U" or back.dtype == want_back.dtype, back.dtype

    return check


for array in (CELL, CELL.astype("U"), np.array(["", "a"]), np.array([], "U5"), np.array([], "S0")):
    cases.add("cell#", array, stored("cell#", array, axes=()))
cases.add("sub/cell#", CELL, stored("sub/cell#", CELL, axes=(), group="sub"))
cases.add("cell#", CELL[::-1], stored("cell#", CELL[::-1], axes=()), AXES)
cases.add("cell#", CELL[:3], (errno.EINVAL, "remove it"), AXES)
cases.add("cell#", np.array(["a", "b", "a"]), (errno.EINVAL, "twice"))
cases.add("cell#", np.array(["\u00e9"]), (errno.EINVAL, "ASCII"))
cases.add("cell#", np.array([b"\xe9"]), (errno.EINVAL, "ASCII"))
cases.add("cell#", np.array([["a"]]), (errno.EINVAL, "vector of strings"))

for dtype in ("?", "i1", "<i2", "<i8", "u1", "<u8", "<f2", "<f4", "<f8"):
    array = rng.integers(0, 2, 4).astype(dtype)
    cases.add("cell#x", array, stored("cell#x", array), AXES)
    matrix = rng.integers(0, 2, (4, 3)).astype(dtype)
    both = stored("cell,gene#m", matrix, ("cell", "gene"))
    cases.add("cell,gene#m", matrix, both, AXES)
    cases.add("cell,gene#m", np.asfortranarray(matrix), both, AXES)
square = np.arange(16.0).reshape(4, 4)
cases.add("g/cell,cell#d", square, stored("g/cell,cell#d", square, group="g"), AXES)
for dtype in (">i2", ">u8", ">f2", ">f8"):
    array = rng.integers(0, 30_000, 4).astype(dtype)
    cases.add("cell#x", array, stored("cell#x", array.astype(array.dtype.newbyteorder("<"))), AXES)
none = np.array([b"a", b"\x01", b"", b"xyz"])
cases.add("cell#kind", none, stored("cell#kind", none), AXES)
words = np.array([["a", "", "\x01"]] * 4)
cases.add("cell,gene#w", words, stored("cell,gene#w", words, ("cell", "gene")), AXES)
cases.add("cell#p#q", np.zeros(4), stored("cell#p#q", np.zeros(4)), AXES)

for array, number, part in (
    (np.zeros(5), errno.EINVAL, "[5]"),
    (np.zeros((4, 1)), errno.EINVAL, "[4, 1]"),
    (np.zeros(4, "c8"), errno.EOPNOTSUPP, "c8"),
    (np.zeros(4, "M8[ns]"), errno.EOPNOTSUPP, "M8"),
    (np.zeros(4, "g"), errno.EOPNOTSUPP, "f16"),
    (np.array(["\u00e9"] * 4), errno.EINVAL, "ASCII"),
    (np.array([None] * 4), errno.EOPNOTSUPP, "pickled"),
):
    cases.add("cell#x", array, (number, part), AXES)
cases.add("type#x", np.zeros(4), ["type#"], AXES)
cases.add("cell,type#x", np.zeros((4, 4)), ["type#"], AXES)


def item(want, kind):
    def check(file):
        assert set(file) == {"__daf__"}
        attribute = mark(file, title=1).attrs.get_id("title")
        value = file["__daf__"].attrs["title"]
        if isinstance(want, (str, list)):
            assert attribute.get_type().is_variable_str()
            assert attribute.get_type().get_cset() == h5py.h5t.CSET_UTF8
            assert (value if isinstance(value, str) else value.tolist()) == want
        else:
            same(value, want)
        back = shown(file, "title.npy")
        assert back.dtype.kind == kind and back.tolist() == np.asarray(want).tolist(), back

    return check


for value in (np.int64(7), np.float64(0.5), np.bool_(True), np.int32(3), np.arange(8), np.zeros(0)):
    cases.add("title", np.asarray(value), item(value, np.asarray(value).dtype.kind))
cases.add("title", np.array(7, ">i4"), item(np.int32(7), "i"))
cases.add("title", np.array("h\u00e9llo"), item("h\u00e9llo", "U"))
cases.add("title", np.array(b"text"), item("text", "U"))
cases.add("title", np.array(["a", "b\u00e9", ""]), item(["a", "b\u00e9", ""], "U"))
big, square = np.arange(20_000), np.arange(6.0).reshape(2, 3)
cases.add("big", big, lambda file, want=big: same(mark(file, big=1).attrs["big"], want))
cases.add("square", square, lambda file, want=square: same(mark(file, square=1).attrs["square"], want))
cases.add("a,b,c#x", np.zeros((2, 2, 2)), (errno.EINVAL, "a,b,c#x"))


def csr(dense, index, shuffle=False):
    """The parts of a matrix as scipy makes them, by hand: not every machine has scipy."""
    rows = [np.flatnonzero(row) for row in dense]
    order = [rng.permutation(row) if shuffle else row for row in rows]
    data = np.concatenate([dense[i, row] for i, row in enumerate(order)]).astype(dense.dtype)
    return {
        "data": data,
        "indices": np.concatenate(order).astype(index),
        "indptr": np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(index),
        "shape": np.array(dense.shape, "<i8"),
    }


def directory(parts):
    return {(name, ".npy"): value for name, value in parts.items()}


def npz(parts, method, **more):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, value in {**parts, **more}.items():
            file = io.BytesIO()
            np.save(file, value)
            archive.writestr(name + ".npy", file.getvalue())
    return {("", ".npz"): out.getvalue()}


def matrix(dense, index):
    def check(file):
        mark(file)
        for axis in ("cell", "gene"):
            is_text(file[axis + "#"], AXES[axis + "#"])
        group = file["cell,gene#UMIs"]
        shape = group.attrs["shape"]
        assert shape.dtype == np.int64 and shape.tolist() == list(dense.shape)
        assert set(group) == {"data", "indices", "indptr"}
        data, indices, indptr = (group[name][:] for name in ("data", "indices", "indptr"))
        assert data.dtype == dense.dtype
        if index is not None:
            assert indices.dtype == indptr.dtype == index
        back = np.zeros_like(dense)
        for row in range(len(dense)):
            columns = indices[indptr[row] : indptr[row + 1]]
            assert (np.diff(columns) > 0).all()
            back[row, columns] = data[indptr[row] : indptr[row + 1]]
        same(back, dense)
        same(shown(file, "cell,gene#UMIs/data.npy"), data)

    return check


dense = np.array([[0, 1, 2], [0, 0, 0], [3, 4, 5], [0, 0, 6]], "<f4")
key = "cell,gene#UMIs"
for index in ("<i4", "<i8"):
    parts = csr(dense, index)
    cases.add(key, directory(parts), matrix(dense, index), AXES)
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        cases.add(key, npz(parts, method, format=np.array(b"csr")), matrix(dense, index), AXES)
cases.add(key, directory(csr(dense, "<u4")), matrix(dense, "<i8"), AXES)
cases.add(key, directory(csr(dense, ">i4")), matrix(dense, "<i8"), AXES)
big = csr(dense, "<i4")
cases.add(key, directory({**big, "data": big["data"].astype(big["data"].dtype.newbyteorder(">"))}), matrix(dense, "<i4"), AXES)
empty = np.zeros((4, 3), "<i2")
cases.add(key, directory(csr(empty, "<i4")), matrix(empty, "<i4"), AXES)
for number in range(5):
    cases.add(key, directory(csr(dense, "<i4", shuffle=True)), matrix(dense, None), AXES)
wide = (rng.random((300, 2000)) < 0.3) * rng.integers(1, 99, (300, 2000)).astype("<u2")
AXES_WIDE = {"cell#": np.array([f"c{i}" for i in range(300)]), "gene#": np.array([f"g{i}" for i in range(2000)])}
shuffled = csr(wide, "<i4", shuffle=True)


def wide_matrix(file):
    group = file[key]
    data, indices, indptr = (group[name][:] for name in ("data", "indices", "indptr"))
    back = np.zeros_like(wide)
    for row in range(len(wide)):
        columns = indices[indptr[row] : indptr[row + 1]]
        assert (np.diff(columns) > 0).all()
        back[row, columns] = data[indptr[row] : indptr[row + 1]]
    same(back, wide)


cases.add(key, npz(shuffled, zipfile.ZIP_DEFLATED, format=np.array(b"csr")), wide_matrix, AXES_WIDE)

good = csr(dense, "<i4")
some = {name: good[name] for name in ("data", "indptr")}
cases.add(key, directory(some), ["indices", "shape"], AXES)


def wrong(part, **changes):
    cases.add(key, directory({**good, **changes}), (errno.EINVAL, part), AXES)


wrong("column twice", indices=good["indices"] * 0)
wrong("column index 0 is 3", indices=good["indices"] + 2)
wrong("column index 0 is -1", indices=good["indices"] - 2)
wrong("indices has 5 elements", indices=good["indices"][:5])
wrong("indptr has 4 elements", indptr=good["indptr"][:4])
wrong("row pointer 0 is 1", indptr=good["indptr"] + 1)
wrong("row pointer 2 is 1", indptr=np.array([0, 2, 1, 5, 6], "<i4"))
wrong("indptr is for 5 values", indptr=np.array([0, 2, 2, 5, 5], "<i4"))
wrong("shape is [4, 4]", shape=np.array([4, 4]))
wrong("no member extra", extra=np.zeros(3))
wrong("vector of integers", indptr=good["indptr"].astype("f8"))
cases.add(key, npz(good, zipfile.ZIP_STORED, format=np.array(b"csc")), (errno.EINVAL, "tocsr"), AXES)
cases.add(key, npz(some, zipfile.ZIP_STORED), (errno.EINVAL, "no member indices"), AXES)
cut = next(iter(npz(good, zipfile.ZIP_DEFLATED).values()))
cases.add(key, {("", ".npz"): cut[:-30]}, (errno.EINVAL, ".npz"), AXES)
broken = bytearray(cut)
broken[120] ^= 255
cases.add(key, {("", ".npz"): bytes(broken)}, (errno.EINVAL, "damaged"), AXES)
cases.run()
