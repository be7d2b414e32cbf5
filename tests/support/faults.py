"""A disk that fails at a chosen call: builds and steers the library faults.c, which a real mount is started with."""

import mmap
import os
import shutil
import struct
from pathlib import Path

from .process import run

SOURCE = Path(__file__).with_name("faults.c")
HEAD = struct.Struct("=6q")  # struct control of faults.c
LOGGED = 4096


def build(folder):
    """Compiles the library; fails where there is no C compiler."""
    library = Path(folder) / "faults.so"
    compiler = shutil.which("cc")
    assert compiler, "cc is missing: faults cannot be injected (package gcc)"
    run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library, SOURCE, "-ldl"], check=True)
    return library


class Faults:
    """Calls of npyfs and its workers that change files on the disk of `folder`: counted, and one of them may fail."""

    def __init__(self, library, folder):
        path = Path(folder) / "faults"
        path.write_bytes(bytes(HEAD.size + LOGGED))
        with open(path, "r+b") as file:
            self.control = mmap.mmap(file.fileno(), 0)
        self.env = {"LD_PRELOAD": os.fspath(library), "NPYFS_FAULTS": os.fspath(path)}

    def start(self, at=-1, error=0, forever=False, only="\0"):
        """Counts from now on, all calls or only those of one kind (see `stop`); call `at` (the first is 0) fails with the errno
        `error`, and with `forever` all that follow. An `error` of -n makes the call take n microseconds, and succeed."""
        HEAD.pack_into(self.control, 0, at, error, forever, 1, ord(only), 0)

    def stop(self):
        """Counts no more; answers one letter per call: w(rite), s(ync), t(runcate), r(ename)."""
        count = HEAD.unpack_from(self.control)[5]
        HEAD.pack_into(self.control, 0, -1, 0, 0, 0, 0, count)
        return self.control[HEAD.size:HEAD.size + min(count, LOGGED)].decode()
