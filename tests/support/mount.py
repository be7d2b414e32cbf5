"""A mount that lives as long as a `with` block and is cleared whatever happens."""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from .process import NPYFS, npyfs, process_start, peak_memory, run, signal_all

POINTS = []  # every mount point this session made; conftest.py looks at them when it ends


def mounts():
    """{mount point: (type, source)} as the kernel lists them."""
    table = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        head, tail = line.split(" - ", 1)
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), head.split()[4])
        table[point] = tuple(tail.split()[:2])
    return table


def mounted(point):
    return os.fspath(point) in mounts()


def until(condition, what, seconds=30):
    """Poll. This bounds how long a failure takes; it says nothing about speed."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"still waiting after {seconds} s: {what}"
        time.sleep(0.02)


def clear(point):
    """Detach what is mounted at `point`, alive or dead. Returns what was tried, empty when nothing was there."""
    tried = []
    for command in (["fusermount3", "-uz"], ["umount", "-l"]):
        if not mounted(point):
            break
        try:
            done = run([*command, point], timeout=20)
            tried.append(f"{' '.join(command)}: {done.returncode} {done.stderr.strip()}")
        except (AssertionError, FileNotFoundError) as problem:
            tried.append(f"{' '.join(command)}: {problem}")
    return tried


def make_point():
    point = Path(os.path.realpath(tempfile.mkdtemp(prefix="npyfs-mnt-")))
    POINTS.append(point)
    return point


class Mount:
    """`with Mount(store, "xattrs,sep=@") as m:` — `m.path` is the mount point, `m / "a.npy"` a file below it.

    Leaving the block unmounts with `npyfs umount`, and fails when the daemon died before or outlives the unmount
    (`m.expect_dead = True` where a test kills it). A guard process kills the daemon after `limit` seconds and
    unmounts lazily, because a read that hangs in the kernel cannot be interrupted from here, and nothing can once the
    tests themselves were killed. With `log` the daemon stays in front, and what it
    says on standard error (a panic, for one) is in that file. `prefix` is a program that starts npyfs."""

    def __init__(self, store, options="", *, limit=220, point=None, log=None, env=None, checkout=None, checkouts=None, flags=(), prefix=()):
        self.env = {**os.environ, **env} if env else None
        self.store = store if "://" in str(store) else Path(store)
        self.options = options
        self.flags = [*flags, *(["--checkout", checkout] if checkout else [])]
        self.flags += ["--checkouts", checkouts] if checkouts else []
        self.limit = limit
        self.prefix = prefix
        self.own_point = point is None
        self.path = Path(point) if point else make_point()
        self.log = log
        self.front = None
        self.expect_dead = False
        self.pid = self.start = self.guard = None
        if point:
            POINTS.append(self.path)

    def __truediv__(self, name):
        return self.path / name

    def __enter__(self):
        option = [*self.flags, *(["-o", self.options] if self.options else [])]
        try:
            if self.log:
                with open(self.log, "wb") as log:
                    self.front = subprocess.Popen([*self.prefix, NPYFS, "mount", "-f", *option, self.store, self.path], stdin=subprocess.DEVNULL,
                                                  stdout=subprocess.DEVNULL, stderr=log, env=self.env, start_new_session=True)
                until(lambda: mounted(self.path) or self.front.poll() is not None, "the mount")
            else:
                done = run([*self.prefix, NPYFS, "mount", *option, self.store, self.path], timeout=60, env=self.env)
                assert done.returncode == 0, f"mount of {os.path.basename(self.store)} failed ({done.returncode}): {done.stderr}"
            assert mounted(self.path), "nothing is mounted"
            self.pid = self.status()["pid"]
            self.start = process_start(self.pid)
            assert self.start is not None, f"status.json names process {self.pid}, which does not run"
            self.guard = subprocess.Popen(
                ["sh", "-c", 'sleep "$1"; kill -KILL "$2"; fusermount3 -uzq "$3" || umount -l "$3"',
                 "guard", str(self.limit), str(self.pid), self.path],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        except BaseException:
            self._clear()
            raise
        return self

    def __exit__(self, kind, error, trace):
        problems = []
        try:
            if not self.expect_dead:
                if not self.alive():
                    # If it was the guard, it ends a moment after its kill.
                    try:
                        self.guard.wait(1)
                    except subprocess.TimeoutExpired:
                        pass
                if self.guard.poll() is not None:
                    problems.append(f"the mount lived longer than its limit of {self.limit} s and was killed")
                elif not self.alive():
                    problems.append("the daemon died while mounted")
                done = npyfs("umount", self.path, timeout=60)
                if done.returncode:
                    problems.append(f"npyfs umount: {done.returncode} {done.stderr.strip()}")
                else:
                    until(lambda: not mounted(self.path), "the unmount")
                    until(lambda: not self.alive(), "the end of the daemon")
        except (AssertionError, OSError) as problem:
            problems.append(str(problem))
        finally:
            self._clear()
        if problems and kind is None:
            raise AssertionError("; ".join(problems))

    def _clear(self):
        if self.guard and self.guard.poll() is None:
            os.killpg(self.guard.pid, signal.SIGKILL)
        if self.guard:
            self.guard.wait(20)
        clear(self.path)
        if self.alive():
            signal_all([self.pid], signal.SIGKILL)
        if self.front:
            self.front.wait(20)
        if self.own_point and not mounted(self.path):
            os.rmdir(self.path)
        # Until then it holds its checkout.
        until(lambda: not self.alive(), "the end of the daemon, which was killed")

    def alive(self):
        return self.start is not None and process_start(self.pid) == self.start

    def status(self):
        return json.loads((self.path / ".npyfs/status.json").read_bytes())

    def info(self, path=""):
        name = f".npyfs/info/{path}.json" if path else ".npyfs/info.json"
        return json.loads((self.path / name).read_bytes())

    def errors(self):
        """What went wrong: the log without what it says of kept copies."""
        lines = (self.path / ".npyfs/errors.log").read_text("utf-8", "surrogateescape").splitlines()
        return [line for line in lines if not re.search(r": kept, \d+ bytes$|: served from its kept copy$", line)]

    def peak_memory(self):
        return peak_memory(self.pid)

    def files(self):
        """Relative paths of all regular files, sorted; symbolic links are not followed."""
        found = []
        for folder, folders, names in os.walk(self.path, onerror=_raise):
            found += [os.path.relpath(os.path.join(folder, name), self.path) for name in names
                      if not os.path.islink(os.path.join(folder, name))]
        return sorted(found)


def _raise(problem):
    raise problem


def reason_of(info, name):
    """Why the object `name` is left out, from a directory's info; it may go by its visible name."""
    reasons = [entry["reason"] for entry in info["left_out"] if entry["name"] in (name, f"{name}.npy")]
    assert len(reasons) == 1 and reasons[0].strip(), f"left_out says {reasons} about {name!r}: {info['left_out']}"
    return reasons[0]
