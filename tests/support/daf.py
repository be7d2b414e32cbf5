"""Small daf stores written by h5py after the rules of daf's own writer, and what they must show."""

import h5py
import numpy as np
import scipy.sparse

NUMBERS = ["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]
PARTS = ("data", "indices", "indptr")


def start(group, version=(1, 0)):
    group.create_dataset("__daf__", data=np.array(version, "i1"))
    return group["__daf__"].attrs


def put_sparse(group, name, matrix, shape=None):
    place = group.create_group(name)
    for part in PARTS:
        place.create_dataset(part, data=getattr(matrix, part))
    place.attrs["shape"] = np.array(matrix.shape if shape is None else shape, "i8")
    return place


def write(group, rows=12, columns=5, seed=4):
    """A daf store in `group`. Returns {path of the visible file: array}, {path of the .npz: csr matrix}."""
    random, shown, matrices = np.random.default_rng(seed), {}, {}
    items = start(group)
    for name, value, array in [
            ("title", "Größe 😀", np.array("Größe 😀")), ("count", 42, np.array(42, "<i8")), ("big", 2**63 + 5, np.array(2**63 + 5, "<u8")),
            ("pi", 3.25, np.array(3.25)), ("flag", True, np.array(True)), ("small", np.float32(0.5), np.array(0.5, "<f4")),
            ("list", [1, 2, 3], np.array([1, 2, 3], "<i8")), ("words", ["a", "bcd"], np.array(["a", "bcd"], "<U3"))]:
        items[name] = value
        shown[f"{name}.npy"] = array
    for axis, size in {"cell": rows, "gene": columns}.items():
        shown[f"{axis}#.npy"] = np.array([f"{axis}{i}" for i in range(size)], "S")
        names = [None if i == 1 else f"t{i % 3}" for i in range(size)]
        shown[f"{axis}#type.npy"] = np.array([b"\x01" if name is None else name.encode() for name in names], "S4")
    for code in NUMBERS:
        for name, shape in {f"cell#v_{code}": (rows,), f"cell,gene#m_{code}": (rows, columns)}.items():
            shown[f"{name}.npy"] = random.integers(0, 2 if code == "bool" else 100, shape).astype(code)
        matrix = scipy.sparse.csr_matrix(random.integers(0, 2, (rows, columns)) * random.integers(1, 100, (rows, columns)))
        matrix = matrix.astype("f4" if code == "f2" else code)  # scipy has no float16 matrices
        matrix.sort_indices()
        sparse(group, shown, matrices, f"cell,gene#s_{code}", matrix)
    sparse(group, shown, matrices, "gene,cell#empty", scipy.sparse.csr_matrix((columns, rows), dtype="f8"))
    shown["gene,gene#corr.npy"] = random.normal(size=(columns, columns))
    for path, array in shown.items():
        name = path.removesuffix(".npy")
        if "#" in name and "/" not in name:
            group.create_dataset(name, data=array)
    return shown, matrices


def sparse(group, shown, matrices, name, matrix):
    put_sparse(group, name, matrix)
    shown.update({f"{name}/{part}.npy": getattr(matrix, part) for part in PARTS})
    shown[f"{name}/shape.npy"] = np.array(matrix.shape, "<i8")
    matrices[f"{name}.npz"] = matrix


def equal(loaded, truth):
    """The same csr matrix, stored parts and all."""
    return (loaded.format == "csr" and loaded.shape == truth.shape and loaded.dtype == truth.dtype
            and all(np.array_equal(getattr(loaded, part), getattr(truth, part)) for part in PARTS))


def read_sparse(group):
    """A csr matrix from a sparse group, by h5py."""
    return scipy.sparse.csr_matrix(tuple(group[part][()] for part in PARTS), shape=tuple(group.attrs["shape"]))


def faults(group):
    """What breaks daf's rules in a store, by h5py: axes of unique non-empty ASCII strings; vectors and dense matrices as long as
    their axes, of strings or numbers; sparse ones as well, with the columns of each row in order."""
    found, axes = [], {}
    for name, item in group.items():
        axis, hash_, rest = name.partition("#")
        if hash_ and not rest and axis and "," not in axis:
            if not isinstance(item, h5py.Dataset) or item.ndim != 1 or item.dtype.kind not in "SO":
                found.append(f"{name}: no vector of strings")
                continue
            entries = [value if isinstance(value, bytes) else str(value).encode() for value in item[()]]
            axes[axis] = len(entries)
            if len(set(entries)) != len(entries) or b"" in entries or not all(entry.isascii() for entry in entries):
                found.append(f"{name}: entries are not unique, not empty, ASCII")
    for name, item in group.items():
        left, hash_, prop = name.partition("#")
        along = left.split(",")
        if not hash_ or not prop or "" in along or len(along) > 2:
            continue
        if missing := [axis for axis in along if axis not in axes]:
            found.append(f"{name}: no axis {missing}")
            continue
        shape = tuple(axes[axis] for axis in along)
        if isinstance(item, h5py.Dataset):
            if item.shape != shape or item.dtype.kind not in "biufSO":
                found.append(f"{name}: {item.dtype} of shape {item.shape}, its axes have {shape}")
        elif len(along) == 2 and {*PARTS} <= {*item}:
            found += [f"{name}: {why}" for why in sparse_faults(item, shape)]
    return found


def sparse_faults(group, shape):
    data, indices, indptr = (group[part][()] for part in PARTS)
    if tuple(group.attrs["shape"]) != shape:
        return [f"shape {group.attrs['shape']}, its axes have {shape}"]
    if len(indptr) != shape[0] + 1 or len(data) != len(indices) or indptr[0] != 0 or indptr[-1] != len(data) or (np.diff(indptr) < 0).any():
        return ["rows that do not fit data and indices"]
    if len(indices) and not (0 <= indices.min() and indices.max() < shape[1]):
        return ["columns outside"]
    same_row = np.repeat(np.arange(shape[0]), np.diff(indptr))
    if ((np.diff(indices.astype("i8")) <= 0) & (np.diff(same_row) == 0)).any():
        return ["columns of a row that are not in order"]
    return []
