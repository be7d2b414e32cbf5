"""Publications, and comparing what h5py reads from one with something else."""

import os

import h5py
import numpy as np

from .process import npyfs
from .truth import problems_of, visible_array


def publish(*arguments, code=0, **keywords):
    done = npyfs("checkout", "publish", *arguments, **keywords)
    assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done.stderr if code else done.stdout


def attributes(item):
    found = {}
    for name, value in item.attrs.items():
        if not name.startswith("npyfs_"):
            found[name] = value.tolist() if hasattr(value, "tolist") else value
    return found


def tree(group, path="", on_the_way=()):
    """{path: object} of all that h5py reaches: by name, through links of all kinds."""
    found = {}
    for name in group:
        item = group[name]
        found[f"{path}{name}"] = item
        if isinstance(item, h5py.Group) and len(on_the_way) < 8:
            found |= tree(item, f"{path}{name}/", (*on_the_way, name))
    return found


def assert_shows(out, mount):
    """h5py reads from the publication what the mount shows, no more and no less."""
    with h5py.File(out, "r") as file:
        shown = {f"{path}.npy": item for path, item in tree(file).items() if isinstance(item, h5py.Dataset)}
        files = {os.path.relpath(os.path.join(folder, name), mount.path)
                 for folder, _, names in os.walk(mount.path, followlinks=True) for name in names}
        assert set(shown) == {name for name in files if not name.startswith(".npyfs")}
        wrong = {name: found for name, item in shown.items() if (found := problems_of(mount / name, visible_array(item)))}
        assert not wrong, wrong


def assert_same(one, other, paths=None):
    """Two files have the same objects, types, elements and attributes; or those at some paths."""
    with h5py.File(one, "r") as one, h5py.File(other, "r") as other:
        assert attributes(one) == attributes(other)
        left, right = tree(one), tree(other)
        if paths is None:
            assert list(left) == list(right)
        for path in paths or left:
            a, b = left[path], right[path]
            assert type(a) is type(b) and attributes(a) == attributes(b), path
            if isinstance(a, h5py.Dataset):
                assert a.dtype == b.dtype and a.shape == b.shape and a.chunks == b.chunks and a.compression == b.compression, path
                assert np.array_equal(np.asarray(a[()]), np.asarray(b[()])), path
