"""Mounts for dask.distributed: one to read for each host, and one to write for each worker."""

import asyncio
import fcntl
import os
import socket
import subprocess
import threading
import time
import uuid
from pathlib import Path

from distributed.diagnostics.plugin import WorkerPlugin

LIMIT = 60  # seconds that a command may take
# The same on all hosts, as paths below it are in tasks; on a disk of the host itself.
FOLDER = Path(os.environ.get("NPYFS_DASK", f"/tmp/npyfs-dask-{os.getuid()}"))
NOTHING = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.DEVNULL)


def npyfs(*words):
    done = subprocess.run(["npyfs", *map(str, words)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=LIMIT)
    if done.returncode:
        raise RuntimeError(f"npyfs {words[0]}: exit code {done.returncode}: {done.stderr.strip()}")


def answers(point):
    """Returns whether a mount is there and answers. A process of its own asks: it may hang."""
    asked = subprocess.Popen(["stat", point / ".npyfs/status.json"], **NOTHING)
    try:
        return asked.wait(10) == 0
    except subprocess.TimeoutExpired:
        asked.kill()
        return False


def lock(path, how):
    """Locks a file until it is closed, or this process ends, be it killed."""
    file, end = open(path, "a"), time.monotonic() + LIMIT
    while True:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > end:
                raise TimeoutError(f"{path} stays locked") from None
            time.sleep(0.05)


class Mount:
    """A mount that processes of this host share. The first makes it, and it goes with the last:
    a guard waits for the lock that all of them hold, and unmounts."""

    def __init__(self, name, *words):
        self.point, self.users, self.words = FOLDER / name, FOLDER / f"{name}.users", words

    def __enter__(self):
        FOLDER.mkdir(mode=0o700, exist_ok=True)
        if FOLDER.lstat().st_uid != os.getuid():
            raise PermissionError(f"{FOLDER} is somebody else's")
        self.held = lock(self.users, fcntl.LOCK_SH)
        with lock(FOLDER / "door", fcntl.LOCK_EX):
            if not answers(self.point):
                # What is there is dead, if anything is.
                subprocess.run(["npyfs", "umount", "--lazy", self.point], timeout=LIMIT, **NOTHING)
                self.point.mkdir(exist_ok=True)
                npyfs("mount", *self.words, self.point)
                unmount = f'timeout {LIMIT} npyfs umount "$0" || npyfs umount --lazy "$0"'
                subprocess.Popen(["flock", self.users, "sh", "-c", unmount, self.point],
                                 start_new_session=True, **NOTHING)
        return self

    def __exit__(self, *_):
        self.held.close()


def view(store, *options):
    """The store as Zarr, to read: `with view(STORE) as mount: ... mount.point`."""
    return Mount("view", *options, "-o", "view=zarr", store)


class Npyfs(WorkerPlugin):
    """Mounts a store on the hosts of all workers. `options` go to every command of npyfs, such as
    `"--checkouts", DIR`."""

    name = "npyfs"

    def __init__(self, store, *options):
        self.store, self.options = store, options

    async def setup(self, worker):
        self.lock, self.writing = threading.Lock(), None
        self.view = await asyncio.to_thread(view(self.store, *self.options).__enter__)

    def out(self):
        """Returns where a task writes, and the name of the checkout: this worker's own."""
        with self.lock:
            if not self.writing:
                # Never a name again: what a worker left that was killed is not gone on with.
                self.checkout = f"{socket.gethostname()}-{uuid.uuid4().hex[:12]}"
                words = [*self.options, "--checkout", self.checkout, self.store]
                self.writing = Mount(self.checkout, *words).__enter__()
            return self.writing.point, self.checkout

    def end(self):
        """Unmounts what was written, after which all of it is stored. Returns its checkout."""
        with self.lock:
            if not self.writing:
                return None
            mount, self.writing = self.writing, None
            npyfs("umount", mount.point)
            mount.__exit__()
            mount.point.rmdir()
            mount.users.unlink()
            return self.checkout

    def commit(self, message):
        if checkout := self.end():
            npyfs("checkout", "commit", *self.options, "-m", message, self.store, checkout)
        return checkout

    async def teardown(self, worker):
        # Commits nothing: a worker ends like this, too, when its tasks are given to others.
        await asyncio.to_thread(self.end)
        self.view.__exit__()


async def commit_one(message, dask_worker):
    return await asyncio.to_thread(dask_worker.plugins["npyfs"].commit, message)


def commit(client, message, checkouts):
    """Has each worker commit what it wrote. `checkouts` are those that the results lie in."""
    committed = set(client.run(commit_one, message).values())
    if lost := set(checkouts) - committed:
        raise RuntimeError(f"not committed, as their workers are gone: {', '.join(sorted(lost))}")
