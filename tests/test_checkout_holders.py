"""Whoever meets a lock is told who has it: host, process, program and mount point. Judges: process ids as the kernel has them, and
a process of Python that takes the lock."""

import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.mount import Mount, until
from support.process import NPYFS, npyfs, one_line

pytestmark = pytest.mark.fast


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(10.0)
    with Mount(path, checkout="work") as m:
        np.save(m / "new.npy", np.ones(3))
    return path


def refused(*arguments):
    done = npyfs(*arguments)
    assert done.returncode, done
    return one_line(done.stderr)


def writer(mount):
    return f"host {socket.gethostname()}, process {mount.pid} (npyfs mount at {mount.path})"


def test_a_writing_mount_is_named_with_its_mount_point(store, tmp_path):
    point = tmp_path / "point"
    point.mkdir()
    with Mount(store, checkout="work") as m:
        for command in (["checkout", "restore", store, "a"], ["checkout", "discard", store, "work"], ["checkout", "restore", m.path, "a"],
                        ["mount", "--checkout", "work", store, point], ["mount", "-o", "ro", "--checkout", "work", store, point],
                        ["ls", "--checkout", "work", store], ["cat", "--checkout", "work", store, "new.npy"],
                        ["info", "--checkout", "work", store], ["verify", "--checkout", "work", store]):
            assert f"{writer(m)} writes in this checkout" in refused(*command), command
        assert writer(m) in npyfs("checkout", "ls", store, check=True).stdout


def test_mounts_that_only_read_are_named(store, tmp_path):
    point = tmp_path / "point"
    point.mkdir()
    with Mount(store, "ro", checkout="work") as one, Mount(store, "ro", checkout="work") as two:
        for command in (["checkout", "commit", store, "work"], ["mount", "--checkout", "work", store, point]):
            said = refused(*command)
            assert "this checkout is mounted read-only" in said
            # Not every kernel has the table.
            if f" {one.pid} " in (Path("/proc/locks").read_text() if os.path.exists("/proc/locks") else ""):
                assert f"process {one.pid} (npyfs mount at " in said and f"process {two.pid} (npyfs mount at " in said, said


def test_who_waits_for_the_commit_lock_is_told_for_whom(store):
    lock = store.with_name("x.h5.checkouts") / ".lock"
    with Mount(store, checkout="other") as m:
        np.save(m / "other.npy", np.ones(3))
    program = os.path.basename(Path("/proc/self/cmdline").read_bytes().split(b"\0")[0].decode())
    with open(lock, "r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        # Not every kernel has the table.
        is_told = f" {os.getpid()} " in (Path("/proc/locks").read_text() if os.path.exists("/proc/locks") else "")
        who = f"host {socket.gethostname()}, process {os.getpid()} ({program})" if is_told else "another process"
        for command in (["commit", store, "work"], ["discard", store, "other"]):
            waiting = subprocess.Popen([NPYFS, "checkout", *command], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            said = waiting.stderr.readline()
            assert said == f"npyfs: {lock}: waits for {who}\n"
            assert waiting.poll() is None
            fcntl.flock(held, fcntl.LOCK_UN)
            out, more = waiting.communicate(timeout=60)
            fcntl.flock(held, fcntl.LOCK_EX)
            if command[0] == "commit":
                assert (waiting.returncode, out.split(", ")[0], more) == (0, "commit 1: 1 changes", "")
    assert lock.read_bytes() == b""


# Uses a mount half of the time, as `npyfs status` and the like do for a moment.
GLANCES = """
import sys, time
try:
    while True:
        with open(sys.argv[1]):
            print(flush=True)
            time.sleep(0.02)
        time.sleep(0.02)
except FileNotFoundError:
    pass
"""


def test_programs_that_look_in_passing_do_not_keep_a_mount_busy(store):
    for _ in range(5):
        with Mount(store) as m:
            looking = subprocess.Popen([sys.executable, "-c", GLANCES, m / ".npyfs/status.json"], stdout=subprocess.PIPE)
            try:
                assert looking.stdout.readline() == b"\n"
                npyfs("umount", m.path, check=True)
                m.expect_dead = True
                assert looking.wait(30) == 0
            finally:
                looking.kill()
                looking.wait()
                looking.stdout.close()


def test_who_keeps_a_mount_busy_is_named(store):
    with Mount(store) as m:
        reader = subprocess.Popen(["sleep", "100"], cwd=m.path)
        try:
            until(lambda: os.readlink(f"/proc/{reader.pid}/cwd") == str(m.path), "the program")
            said = refused("umount", m.path)
            assert f"is busy: sleep (process {reader.pid}) uses it (npyfs umount --lazy" in said
            with open(m / "a.npy", "rb"):
                said = refused("umount", m.path)
                assert f"sleep (process {reader.pid})" in said and f"(process {os.getpid()})" in said and " use it " in said
        finally:
            reader.kill()
            reader.wait()
