"""Whether an exported store keeps its format's rules: by h5py, and by `npyfs verify`, which must agree."""

from pathlib import Path

import h5py

from . import arkouda, daf


def faults_of(path):
    """What breaks the rules of its format in one HDF5 file, by h5py."""
    with h5py.File(path) as file:
        if "__daf__" in file:
            return daf.faults(file)
        if "File_Format" in file.attrs:
            return arkouda.faults(file)
    return []


def files(out):
    """The HDF5 files of an export: a file, a directory of stores, or a set, which has a file per locale and none of this name."""
    out = Path(out)
    if out.is_dir():
        paths = [path for path in sorted(out.rglob("*")) if path.is_file() and not path.is_symlink() and h5py.is_hdf5(path)]
        return out, paths
    if out.exists():
        return out, [out]
    parts = sorted(out.parent.glob(f"{out.stem}_LOCALE*{out.suffix}"))
    assert parts, f"nothing was exported to {out}"
    return parts[0], parts


def judge(out, verify):
    """Raises AssertionError unless all is well. `verify` runs `npyfs verify` on a path."""
    store, paths = files(out)
    faults = [f"{path}: {fault}" for path in paths for fault in faults_of(path)]
    assert not faults, f"an export breaks the rules of its format: {faults}"
    told = verify(store)
    assert told.returncode == 0, f"verify of an export: {told.stdout}{told.stderr}"
