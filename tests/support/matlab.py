"""Files of MATLAB: what `hdf5storage` writes for it, what only h5py can make, and what a mount has to show of either.

`mat73` says what a value is; the bytes are those of np.save of the array that HDF5 holds with its dimensions reversed."""

import os

import h5py
import numpy as np
import scipy.sparse

from support.truth import np_save

REF = h5py.ref_dtype


def as_matlab(dataset):
    """The array that MATLAB has, of a dataset of numbers: its dimensions reversed, in Fortran order."""
    kind = dataset.attrs["MATLAB_class"].decode()
    stored = np.ascontiguousarray(dataset[()])
    if dataset.attrs.get("MATLAB_empty"):
        dtype = {"double": "f8", "single": "f4", "logical": "?", "canonical empty": "f8"}.get(kind, kind)
        return np.zeros([int(n) for n in stored], dtype)
    if stored.dtype.names == ("real", "imag"):
        stored = stored.view({8: "c8", 16: "c16"}[stored.dtype.itemsize])
    if kind == "logical":
        stored = stored.astype(bool)
    return stored.T


def text_of(dataset):
    """The text that a dataset of characters is, or the texts: one for each row."""
    if dataset.attrs.get("MATLAB_empty"):
        rows, width = (int(n) for n in dataset[()])
        return np.zeros(() if rows == 1 or (rows, width) == (0, 0) else rows, f"<U{max(width, 1)}")
    coding = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[dataset.dtype.itemsize]
    texts = [row.tobytes().decode(coding, "surrogatepass") for row in dataset[()].T]
    return np.array(texts[0] if len(texts) == 1 else texts, f"<U{len(dataset)}")


def expected(file):
    """{path: bytes, or a scipy matrix for .npz} of all files that a mount shows of an open file."""
    found = {}

    def look(value, path):
        attributes = value.attrs
        if "MATLAB_object_decode" in attributes or attributes.get("MATLAB_class") == b"function_handle":
            return
        if "MATLAB_sparse" in attributes:
            found.update(sparse(value, path))
        elif isinstance(value, h5py.Group):
            for name in value:
                look(value[name], f"{path}/{name}")
        elif value.dtype == REF:
            for number, ref in enumerate(value[()].flat, 1):
                look(file[ref], f"{path}/{number}")
        elif attributes["MATLAB_class"] in (b"cell", b"struct"):
            assert attributes["MATLAB_empty"]
        elif attributes["MATLAB_class"] == b"char":
            found[f"{path}.npy"] = np_save(text_of(value))
        else:
            found[f"{path}.npy"] = np_save(as_matlab(value))

    for name in file:
        if name not in ("#refs#", "#subsystem#"):
            look(file[name], name)
    return found


def sparse(group, path):
    kind = {b"double": "f8", b"logical": "?"}[group.attrs["MATLAB_class"]]
    data, indices = (group[name][()] if name in group else np.zeros(0) for name in ("data", "ir"))
    data = data.view("c16") if data.dtype.names else data.astype(kind)
    indptr = group["jc"][()].astype("i8")
    shape = np.array([int(group.attrs["MATLAB_sparse"]), len(indptr) - 1])
    parts = {"data": data, "indices": indices.astype("i8"), "indptr": indptr, "shape": shape}
    found = {f"{path}/{name}.npy": np_save(part) for name, part in parts.items()}
    found[f"{path}.npz"] = scipy.sparse.csc_matrix((data, parts["indices"], indptr), shape)
    return found


def check(mount, want):
    """The mount shows these files and no others, with these bytes."""
    assert set(mount.files()) == set(want)
    for path, bytes_ in want.items():
        if path.endswith(".npz"):
            got = scipy.sparse.load_npz(mount / path)
            assert got.format == "csc" and got.dtype == bytes_.dtype and got.shape == bytes_.shape, path
            assert (got != bytes_).nnz == 0, path
        else:
            assert (mount / path).read_bytes() == bytes_, path
            assert os.stat(mount / path).st_size == len(bytes_), path


class MatFile(h5py.File):
    """A new file for MATLAB, in which values are made one by one."""

    def __init__(self, path):
        super().__init__(path, "w", userblock_size=512)
        self.name_on_disk = path

    def close(self):
        super().close()
        with open(self.name_on_disk, "r+b") as file:
            file.write(b"MATLAB 7.3 MAT-file, Platform: none".ljust(124) + b"\0\x02IM")

    def __exit__(self, *args):
        self.close()

    def put(self, name, stored, kind, **attributes):
        """A dataset as it is stored: with its dimensions reversed."""
        dataset = self.create_dataset(name, data=stored)
        self.mark(dataset, kind, **attributes)
        return dataset

    def mark(self, value, kind, **attributes):
        if kind is not None:
            value.attrs["MATLAB_class"] = np.bytes_(kind)
        for key, of in attributes.items():
            value.attrs[f"MATLAB_{key}"] = of

    def refer(self, name, targets, kind="cell", shape=None):
        """A dataset of references to objects."""
        shape = shape or (len(targets), 1)
        dataset = self.create_dataset(name, shape, REF)
        dataset[()] = np.array([target.ref if target is not None else h5py.Reference() for target in targets], REF).reshape(shape)
        self.mark(dataset, kind)
        return dataset
