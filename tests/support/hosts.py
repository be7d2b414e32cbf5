"""Committers that behave as if each were on another host, and many checkouts for them, made without a mount each."""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np

from .checkouts import lines, as_lines
from .mount import Mount
from .process import NPYFS


def build(folder):
    """The library to preload, built in a folder."""
    library = Path(folder) / "hosts.so"
    source = Path(__file__).with_name("hosts.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, source, "-ldl"], check=True)
    return library


def elsewhere(library, lost=0, clock=0):
    """The environment of a process of another host."""
    return {**os.environ, "LD_PRELOAD": str(library), "NPYFS_LOST": str(lost), "NPYFS_CLOCK": str(clock)}


def make_layers(store, names):
    """A checkout for each name, with one array of this name that has the number of the name as its elements."""
    top = store.with_name(store.name + ".checkouts")
    with Mount(store, checkout="pattern") as mount:
        np.save(mount / "pattern.npy", np.zeros(3, np.int64))
    first, records = lines(top / "pattern/index")
    for number, name in enumerate(names):
        shutil.copytree(top / "pattern", top / name)
        [path] = (top / name).glob("*.h5")
        with h5py.File(path, "r+") as file:
            file["pattern"][...] = number
            file.move("pattern", name)
        own = [{**record, "path": name} if record.get("path") == "pattern" else record for record in records]
        (top / name / "index").write_text(as_lines(first, *own))
    shutil.rmtree(top / "pattern")


def start_commit(store, name, environment):
    return subprocess.Popen([NPYFS, "checkout", "commit", store, name], env=environment, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def commit_all(store, names, count, environment):
    """Commits checkouts, so many at a time, each by a process of its own; returns what each said."""
    def commit(name):
        process = start_commit(store, name, environment)
        out, error = process.communicate(timeout=120)
        return name, process.returncode, out, error
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(commit, names))


def shown(store, names):
    """The numbers of the arrays that a mount shows under these names; None for one that is not there."""
    found = {}
    with Mount(store) as mount:
        for name in names:
            path = mount / f"{name}.npy"
            found[name] = int(np.unique(np.load(path)).item()) if path.exists() else None
    return found
