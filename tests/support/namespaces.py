"""Namespaces of one's own, for machines that tests make up.

Nothing is left behind: when the `with` block ends, or its time, every process of the namespaces is killed, and with the last
of them its mounts are gone."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from .mount import until
from .process import process_start


class Namespaces:
    """What `prepare` says is done in them first; `kinds` are options of unshare(1). `folder` is everybody's to enter, and goes
    with them; `init` is the process that others enter them by."""

    kinds = ("--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
    name = "namespaces"

    def __init__(self, limit):
        self.limit = limit
        self.keeper = self.init = None

    def prepare(self):
        """The lines of a script for sh -e."""
        raise NotImplementedError

    def __enter__(self):
        self.folder = Path(os.path.realpath(tempfile.mkdtemp(prefix=f"npyfs-{self.name}-")))
        self.folder.chmod(0o755)
        try:
            # A copy of another test's mount would keep its daemon alive.
            others = "umount --all --lazy --types fuse.npyfs"
            # Children whose parents are gone are nobody's to wait for.
            lines = [others, *self.prepare(), f"touch {self.folder}/ready", "trap '' CHLD", f"exec sleep {self.limit}"]
            self.keeper = subprocess.Popen(["unshare", *self.kinds, "sh", "-ec", "\n".join(lines)], stdin=subprocess.DEVNULL, start_new_session=True)
            until(lambda: (self.folder / "ready").exists() or self.keeper.poll() is not None, "the namespaces")
            assert self.keeper.poll() is None, "the namespaces cannot be made, see above"
            children = Path(f"/proc/{self.keeper.pid}/task/{self.keeper.pid}/children").read_text().split()
            self.init = int(children[0])
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind, error, trace):
        if self.keeper:
            self.keeper.kill()
            self.keeper.wait(20)
        end = time.monotonic() + 20
        while self.init and process_start(self.init) is not None and time.monotonic() < end:
            time.sleep(0.02)
        shutil.rmtree(self.folder)
