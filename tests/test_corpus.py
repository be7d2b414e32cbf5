"""HDF5 files that other projects wrote, old and new, out of their source packages: every dataset of every file is what
np.save makes of what h5py reads, or both refuse it, or it is left out for a reason that this test knows.
Judge: h5py with hdf5plugin."""

import os
import posixpath
import warnings
from collections import Counter

import h5py
import hdf5plugin  # noqa: F401  h5py finds the filters through it
import numpy as np
import pytest

from support import corpus
from support.mount import Mount
from support.process import npyfs
from support.truth import np_save, visible_array


NO_FILTERS = ["lzo", "zfp"]


def escaped(name):
    """A file name for an object: what docs/reading.md says of names, as far as the corpus has them."""
    bad = {0x25, 0x2F, 0x7F, *range(0x20)}
    raw = name.encode("utf-8", "surrogateescape")
    return b"".join(b"%%%02X" % byte if byte in bad else bytes([byte]) for byte in raw).decode("utf-8", "surrogateescape")


def objects(group, path="", seen=None):
    """(path of names, dataset) of all that hard links lead to, each group once."""
    seen = {group.id.__hash__()} if seen is None else seen
    for name in group:
        try:
            if group.get(name, getlink=True).__class__ is not h5py.HardLink:
                continue
            item = group[name]
        except (KeyError, OSError, RuntimeError, ValueError):
            yield [*path, name], None
            continue
        here = [*path, name]
        if isinstance(item, h5py.Dataset):
            yield here, item
        elif isinstance(item, h5py.Group):
            where = h5py.h5o.get_info(item.id)
            if (where.fileno, where.addr) not in seen:
                seen.add((where.fileno, where.addr))
                yield from objects(item, here, seen)


def not_shown(dataset):
    """Why `.npy` cannot hold a dataset, by the list in docs/reading.md; None if it can."""
    kind = dataset.id.get_type()
    name = dataset.attrs.get("NAME", b"") if dataset.ndim == 1 and dataset.attrs.get("CLASS") == b"DIMENSION_SCALE" else b""
    if bytes(name).startswith(b"This is a netCDF dimension but not a netCDF variable"):
        return "netCDF dimension"
    if dataset.id.get_space().get_simple_extent_type() == h5py.h5s.NULL:
        return "null dataspace"
    while isinstance(kind, h5py.h5t.TypeArrayID):
        kind = kind.get_super()
    if isinstance(kind, h5py.h5t.TypeReferenceID):
        return "reference"
    if isinstance(kind, h5py.h5t.TypeVlenID) and not shown_as_sequences(dataset):
        return "sequence"
    if isinstance(kind, h5py.h5t.TypeTimeID):
        return "time"
    return None


def shown_as_sequences(dataset):
    """Whether it is a dataset of sequences whose elements have a form of their own."""
    kind = dataset.id.get_type()
    if not isinstance(kind, h5py.h5t.TypeVlenID):
        return False
    base = kind.get_super()
    if isinstance(base, h5py.h5t.TypeStringID):
        return not base.is_variable_str() and base.get_cset() == h5py.h5t.CSET_ASCII
    return not isinstance(base, (h5py.h5t.TypeVlenID, h5py.h5t.TypeReferenceID, h5py.h5t.TypeArrayID))


def judge_sequences(shown, dataset):
    rows = list(np.asarray(dataset[()], object).ravel()) if dataset.shape else [dataset[()]]
    offsets, values = (np.load(os.path.join(shown, f"{member}.npy")) for member in ("offsets", "values"))
    base = h5py.check_vlen_dtype(dataset.dtype)
    joined = b"".join(np.asarray(row, base).tobytes() for row in rows)
    # h5py 3.16 does not turn elements of the other byte order.
    forms = [values.tobytes(), values.byteswap().tobytes()] if base.byteorder == ">" else [values.tobytes()]
    same = values.dtype == base and joined in forms and offsets.tolist() == list(np.cumsum([0] + [len(row) for row in rows]))
    return (None if same else f"sequences differ: {offsets[:9]}, {values[:9]}"), "sequences"


def judge(mount, names, dataset):
    """What is wrong with one dataset, or None, and how it was judged."""
    shown = os.path.join(mount.path, *map(escaped, names)) + ".npy"
    if dataset is not None and shown_as_sequences(dataset) and dataset.id.get_space().get_simple_extent_type() != h5py.h5s.NULL:
        return judge_sequences(shown.removesuffix(".npy"), dataset)
    reason = not_shown(dataset) if dataset is not None else None
    if reason:
        info = mount.info("/".join(map(escaped, names[:-1])))
        listed = [entry for entry in info["left_out"] if entry["name"] == names[-1]]
        if os.path.lexists(shown) or len(listed) != 1 or not listed[0]["reason"]:
            return f"{reason}: not left out with a reason", "left out"
        return None, "left out"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            truth = visible_array(dataset) if dataset is not None else None
        expected = None if truth is None else np_save(truth)
        why = "nothing of it can be shown"
    except (OSError, ValueError, TypeError, RuntimeError, KeyError, UnicodeDecodeError) as problem:
        expected, why = None, f"{type(problem).__name__}: {problem}"
    try:
        with open(shown, "rb", buffering=0) as stream:
            data = stream.readall()
    except OSError as problem:
        if expected is None:
            return None, "both refuse"
        log = [line for line in mount.errors() if f"{escaped(names[-1])}.npy" in line]
        if any(f"({name}) is not known" in line for line in log for name in NO_FILTERS):
            return None, "filters that docs/limits.md says are missing"
        return f"{problem.strerror}; h5py reads {truth.dtype} {truth.shape}; {log[-1:]}", "compared"
    if expected is None:
        if mount.info(os.path.relpath(shown, mount.path)).get("left_out"):
            return None, "the members that can be shown"
        return f"shown, {len(data)} bytes; h5py: {why}", "shown, not by h5py"
    if data != expected:
        at = next((i for i, (a, b) in enumerate(zip(data, expected)) if a != b), min(len(data), len(expected)))
        return f"differs at {at} of {len(expected)} (has {len(data)}): {data[:128]!r}, np.save {expected[:128]!r}", "compared"
    return None, "compared"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("package", corpus.PACKAGES)
def test_files_of_other_projects(package):
    try:
        folder = corpus.folder_of(package)
    except corpus.Unreachable as problem:
        pytest.skip(f"NOT TESTED against the files of {package}, which could not be had: {problem}")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert len(files) == corpus.PACKAGES[package][1]
    wrong, kinds = [], Counter()
    for path in files:
        try:
            file = h5py.File(path, "r")
        except OSError:  # h5py refuses the file
            assert npyfs("ls", path).returncode == 2, f"{path.name}: h5py cannot open it, npyfs can"
            kinds["files that h5py refuses"] += 1
            continue
        with file, Mount(path, "kind=plain") as mount:
            for names, dataset in objects(file):
                problem, kind = judge(mount, names, dataset)
                kinds[kind] += 1
                if problem:
                    wrong.append(f"{path.relative_to(folder)} /{posixpath.join(*names)}: {problem}")
    print(package, dict(kinds))
    assert not wrong, "\n".join([f"{len(wrong)} wrong of {kinds}", *wrong[:60]])
    assert kinds["compared"] >= len(files) // 2
