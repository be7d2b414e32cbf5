"""A reader of daf's files, written after what tanaylab's daf 0.2.0-dev.1 does (`storage/files.py`, `storage/memory_mapping.py`): what
stops its whole open fails here, and so does what its `DafReader` refuses afterwards. It knows nothing of npyfs."""

import mmap
import os

import numpy as np
import pandas as pd
import scipy.sparse
import yaml

DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
SPARSE = (".data", ".indices", ".indptr")


def load(path):
    with open(path, encoding="utf-8") as file:
        return yaml.safe_load(file)


def mapped(path):
    """The bytes of a file, through a shared map as daf makes it; the size is that of fstat."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        with mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) as there:
            data = there[:]
    assert len(data) == size
    return data


def elements(path, dtype, count):
    assert dtype in DTYPES, f"{path}: invalid dtype {dtype}"
    data = mapped(path)
    assert len(data) == np.dtype(dtype).itemsize * count, f"{path}: {len(data)} bytes for {count} {dtype}"
    return np.frombuffer(data, dtype)


def is_version(value):
    return isinstance(value, list) and len(value) == 2 and all(isinstance(n, int) and n >= 0 for n in value) and value[0] == 1


class FilesReader:
    """`FilesReader(path)`: names are judged at once, values are read when they are asked for."""

    def __init__(self, path):
        self.path = os.fspath(path).rstrip("/")
        mark = load(f"{self.path}/__daf__.yaml")
        assert isinstance(mark, dict) and is_version(mark["version"]), mark
        self.items, self.axes, self.data = [], {}, {}  # data: name -> (axes, property, "csv" | "dense" | "sparse")
        names = sorted(os.listdir(self.path))
        for name in names:
            if name.endswith("#.csv"):
                self.axes[name.removesuffix("#.csv")] = None
        for name in names:
            if name == "__daf__.yaml" or name.endswith("#.csv") or not name.endswith((".yaml", ".csv")):
                continue
            stem, _, kind = name.rpartition(".")
            left, hash_, prop = stem.partition("#")
            if not hash_:
                if kind == "yaml":
                    self.items.append(stem)
                continue
            axes = left.split(",")
            if len(axes) > 2:
                continue
            assert all(axis in self.axes for axis in axes), f"{name}: missing axis"
            assert stem not in self.data, f"{name}: both text and numbers"
            if kind == "yaml":
                dense, sparse = os.path.exists(f"{self.path}/{stem}.array"), [os.path.exists(f"{self.path}/{stem}{part}") for part in SPARSE]
                assert (dense and not any(sparse)) or (not dense and all(sparse) and len(axes) == 2), f"{name}: neither dense nor sparse, or both"
                kind = "dense" if dense else "sparse"
            self.data[stem] = (tuple(axes), prop, kind)
        for axis in self.axes:
            self.axes[axis] = self.axis(axis)

    def csv(self, name, columns):
        frame = pd.read_csv(f"{self.path}/{name}.csv", converters=dict.fromkeys(range(columns), str))
        assert frame.shape[1] == columns, f"{name}: {list(frame.columns)}"
        return frame

    def item(self, name):
        return load(f"{self.path}/{name}.yaml")

    def axis(self, name):
        frame = self.csv(f"{name}#", 1)
        assert list(frame.columns) == [name], f"invalid axis entries CSV file of {name!r}: {list(frame.columns)}"
        return list(frame[name])

    def get(self, name):
        """A list (text along one axis), an array, a csr matrix, or a list of lists; refused where daf would refuse it."""
        axes, prop, kind = self.data[name]
        shape = [len(self.axes[axis]) for axis in axes]
        if kind == "csv":
            value = self.vector_csv(name, axes[0], prop) if len(axes) == 1 else self.matrix_csv(name, axes, prop)
            found = [len(value)] if len(axes) == 1 else [len(value), len(value[0]) if value else 0]
            assert found == shape, f"{name}: expected {shape}, got {found}"
            return value
        about = load(f"{self.path}/{name}.yaml")
        assert is_version(about["version"]) and len(about["shape"]) == len(axes) and all(type(n) is int and n > 0 for n in about["shape"]), about
        if kind == "dense":
            value = elements(f"{self.path}/{name}.array", about["dtype"], int(np.prod(about["shape"]))).reshape(about["shape"])
            assert list(value.shape) == shape, f"{name}: expected {shape}, got {value.shape}"
            return value
        nnz, rows = about["nnz"], about["shape"][0]
        data, indices, indptr = (elements(f"{self.path}/{name}{part}", about[f"{part[1:]}_dtype"], rows + 1 if part == ".indptr" else nnz)
                                 for part in SPARSE)
        data = data.astype("f4") if data.dtype == "f2" else data  # scipy has no float16
        value = scipy.sparse.csr_matrix((data, indices, indptr))  # columns: the highest index, as daf does it
        assert list(value.shape) == shape == about["shape"], f"{name}: expected any-major matrix of {shape}, got {value.shape}"
        assert all((np.diff(indices[a:b].astype("i8")) > 0).all() for a, b in zip(indptr, indptr[1:])), f"{name}: cannot set WRITEABLE flag"
        return value

    def vector_csv(self, name, axis, prop):
        frame = self.csv(name, 2)
        key, value = axis, f"{prop}.value" if prop == axis else prop
        assert list(frame.columns) == [key, value], f"{name}: {list(frame.columns)}"
        series = pd.Series([None] * len(self.axes[axis]), index=self.axes[axis], dtype=object)
        for entry, text in zip(frame[key], frame[value]):
            assert entry in series.index, f"{name}: KeyError {entry!r}"
            series[entry] = text
        return list(series)

    def matrix_csv(self, name, axes, prop):
        frame = self.csv(name, 3)
        rows, columns = axes if axes[0] != axes[1] else (f"{axes[0]}.row", f"{axes[0]}.column")
        value = f"{prop}.value" if prop in (rows, columns) else prop
        assert list(frame.columns) == [rows, columns, value], f"{name}: {list(frame.columns)}"
        table = frame.pivot(index=rows, columns=columns, values=value)  # sorts, and drops what has no value
        return [[None if isinstance(text, float) else text for text in row] for row in table.to_numpy(dtype=object).tolist()]


def same(value, truth):
    """Returns whether a value of the reader is that of the store: text by element, arrays by dtype and bytes, sparse matrices against
    a dense one."""
    if isinstance(value, list):
        return value == truth
    if scipy.sparse.issparse(value):
        truth = truth.astype("f4") if truth.dtype == "f2" else truth
        return value.dtype == truth.dtype and np.array_equal(value.toarray(), truth)
    return value.dtype == truth.dtype and value.shape == truth.shape and value.tobytes() == truth.tobytes()
