"""Commits of a store, made through mounts and taken back, and what later mounts show of them."""

import json
import os
import shutil

import h5py
import numpy as np

from .mount import Mount
from .process import npyfs
from .truth import read

REFUSED = 3
OLD = 1_600_000_000


def make_store(path):
    """A plain store that is some years old."""
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(10.0)
        file["a"].attrs["unit"] = "mm"
        file["g/b"] = np.arange(6)
        file["g/c"] = np.arange(4)
        file["g/h/d"] = np.arange(2)
        file["g"].attrs["note"] = "a group"
        file["link"] = h5py.SoftLink("/g/h")
        file["z"] = np.arange(3)
    os.utime(path, (OLD, OLD))
    return path


def write(store, name, arrays, deleted=(), message=None):
    """Writes arrays in a checkout, deletes others, and commits. Returns the id of the commit."""
    with Mount(store, checkout=name) as m:
        for path in deleted:
            (shutil.rmtree if os.path.isdir(m / path) else os.unlink)(m / path)
        for path, array in arrays.items():
            (m / path).parent.mkdir(exist_ok=True, parents=True)
            np.save(m / path, array)
    npyfs("checkout", "commit", *(["-m", message] if message else []), store, name, check=True)
    return log(store)[0]["id"]


def log(store):
    return json.loads(npyfs("checkout", "log", "--json", store, check=True).stdout)


def revert(store, commit, *arguments):
    """Takes a commit back. Returns the id of the new commit."""
    done = npyfs("checkout", "revert", *arguments, store, commit, check=True)
    commits = log(store)
    assert done.stdout.startswith(f"commit {len(commits)}: ") and done.stderr == "", done
    assert commits[0]["reverts"] == commit
    return commits[0]["id"]


def refused(store, commit):
    before = log(store)
    done = npyfs("checkout", "revert", store, commit)
    assert done.returncode == REFUSED and log(store) == before, done
    dry = npyfs("checkout", "revert", "--dry-run", store, commit)
    assert (dry.returncode, dry.stdout, dry.stderr) == (done.returncode, "", done.stderr)
    return done.stderr


def content(store, **keywords):
    """Every file that a mount shows, with its bytes."""
    with Mount(store, **keywords) as m:
        return {name: read(m / name) for name in m.files()}


def times(store, **keywords):
    with Mount(store, **keywords) as m:
        return {name: os.stat(m / name).st_mtime_ns for name in m.files()}
