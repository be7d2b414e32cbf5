"""Stores in HDF5 files as directories of .npy files, from Python.

    with npyfs.mount("cells.h5df") as m:
        np.load(m / "cell#age.npy", mmap_mode="r")

    npyfs.open("cells.h5df", "cell#age").read()    # without mounting

This package runs the program npyfs, and needs nothing else; NumPy is imported by `read` alone. What the program says in
JSON is returned as dicts and lists with the keys that its --help describes. Whatever the program refuses is an `Error`
with the program's words.
"""

from ._mount import Mount
from ._program import Error, run, version
from ._store import Item, commit, diff, info, log, ls, open, status

__all__ = ["Error", "Item", "Mount", "commit", "diff", "info", "log", "ls", "mount", "open", "run", "status"]

mount = Mount


def __getattr__(name: str) -> str:
    # The program is asked only if somebody wants to know.
    if name == "__version__":
        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
