"""`npyfs convert`: running it, its report, and comparing what it wrote."""

import json
import os
from pathlib import Path

import numpy as np

from .process import npyfs

KINDS = {"plain": ".h5", "daf": ".h5df", "arkouda": ".hdf", "npy": "", "hangar": ".repo"}
AUTHOR = ("--name", "Ann", "--email", "ann@example.com")
LOST = 3


def convert(source, new, kind, *options, code=0, **keywords):
    """Converts; returns the report. Nothing but the new store is left beside it."""
    new = Path(new)
    before = set(os.listdir(new.parent))
    author = AUTHOR if kind == "hangar" else ()
    done = npyfs("convert", "--json", "--to", kind, *author, *options, source, new, timeout=300, **keywords)
    assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
    report = json.loads(done.stdout)
    assert report["written"] == (code == 0) and report["kind"] == kind
    assert set(os.listdir(new.parent)) - before == ({new.name} if code == 0 else set())
    return report


def objects(lines):
    return {line["object"]: line["what"] for line in lines}


def arrays(folder):
    """{path: array} of the .npy files of a directory."""
    return {path.relative_to(folder).as_posix(): np.load(path) for path in sorted(Path(folder).rglob("*.npy")) if not path.is_symlink()}


def files(folder, links=False):
    """{path: bytes} of the files of a directory."""
    paths = [path for path in sorted(Path(folder).rglob("*")) if path.is_file() and (links or not path.is_symlink())]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def all_is_well(store):
    done = npyfs("verify", store, timeout=300)
    assert done.returncode == 0 and "all is well" in done.stdout, done.stdout + done.stderr
