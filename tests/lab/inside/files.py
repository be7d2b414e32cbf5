"""File systems below stores, checkouts, exports and kept copies: on each a short round, and what the file system can and cannot."""

import ctypes
import errno
import fcntl
import json
import os
import shutil
import time
from contextlib import contextmanager
from pathlib import Path

import machine
import numpy as np
from machine import LAB, Skipped, check, files, mount, report, run, same, sha256, until
from ordinary import facts, install

SCRATCH = "/dev/disk/by-id/virtio-scratch"
ROOM = Path("/mnt/room")
STORE = "plain.h5"


def partition(number):
    return f"{SCRATCH}-part{number}"


def part_the_disk():
    run("sh", "-c", f"printf ',800M\\n,800M\\n,800M\\n,,\\n' | sfdisk -q --label gpt {SCRATCH}")
    until(lambda: os.path.exists(partition(4)), "the partitions")


@contextmanager
def ext4():
    run("mkfs.ext4", "-q", "-F", partition(1))
    with mounted("-t", "ext4", partition(1)):
        yield


@contextmanager
def xfs():
    run("mkfs.xfs", "-q", "-f", partition(2))
    with mounted("-t", "xfs", partition(2)):
        yield


@contextmanager
def btrfs():
    run("mkfs.btrfs", "-q", "-f", partition(3))
    with mounted("-t", "btrfs", partition(3)):
        yield


@contextmanager
def tmpfs():
    with mounted("-t", "tmpfs", "tmpfs"):
        yield


@contextmanager
def overlayfs():
    below = machine.fresh()
    for name in ("lower", "upper", "work"):
        (below / name).mkdir()
    with mounted("-t", "overlay", "-o", f"lowerdir={below}/lower,upperdir={below}/upper,workdir={below}/work", "overlay"):
        yield


def served(device, clients):
    """Serves a new file system to clients by NFS 4; returns where it is."""
    folder = Path("/srv/served")
    folder.mkdir(exist_ok=True)
    run("sh", "-c", f"mountpoint -q {folder} || {{ mkfs.ext4 -q -F {device} && mount {device} {folder}; }}")
    Path("/etc/exports").write_text(f"{folder} {clients}(rw,no_root_squash,sync,no_subtree_check,fsid=0)\n")
    Path("/etc/nfs.conf.d").mkdir(exist_ok=True)
    Path("/etc/nfs.conf.d/lab.conf").write_text("[nfsd]\nvers3=n\ngrace-time=10\nlease-time=10\nthreads=4\n")
    run("systemctl", "unmask", "nfs-server")
    run("systemctl", "daemon-reload")
    run("systemctl", "start", "nfs-server")
    return folder


@contextmanager
def nfs4():
    run("ip", "link", "set", "lo", "up")
    served(partition(4), "127.0.0.1")
    with mounted("-t", "nfs4", "-o", "vers=4.2,proto=tcp", "127.0.0.1:/"):
        yield
    run("systemctl", "stop", "nfs-server")


@contextmanager
def virtiofs():
    if run("mount", "-t", "virtiofs", "lab-shared", ROOM, code=None).returncode:
        raise Skipped("the host shares no directory with it")
    try:
        yield
    finally:
        run("umount", ROOM)


@contextmanager
def mounted(*words):
    run("mount", *words, ROOM)
    try:
        yield
    finally:
        until(lambda: run("umount", ROOM, code=None).returncode == 0, "the unmount", 60)


# --- what the file system can

libc = ctypes.CDLL(None, use_errno=True)


def rename_noreplace(folder):
    (folder / "a").write_text("a")
    (folder / "b").write_text("b")
    result = libc.renameat2(-100, os.fsencode(folder / "a"), -100, os.fsencode(folder / "b"), 1)
    code = ctypes.get_errno() if result else 0
    return "yes" if code == errno.EEXIST else errno.errorcode.get(code, "replaced")


def link(folder):
    (folder / "c").write_text("c")
    os.link(folder / "c", folder / "d")
    return "yes"


def nameless(folder):
    os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR))
    return "yes"


def direct(folder):
    (folder / "e").write_bytes(bytes(8192))
    os.close(os.open(folder / "e", os.O_RDONLY | os.O_DIRECT))
    return "yes"


def flock(folder):
    with (folder / "f").open("w") as one, (folder / "f").open("w") as two:
        fcntl.flock(one, fcntl.LOCK_EX)
        try:
            fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "yes"
    return "granted twice"


def lease(folder):
    (folder / "g").write_text("g")
    with (folder / "g").open() as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    return "yes"


def times(folder):
    """How far apart two changes must be to have different times."""
    path = folder / "h"
    path.write_text("")
    steps = set()
    end = time.monotonic() + 1
    while time.monotonic() < end:
        path.write_text("")
        steps.add(path.stat().st_mtime_ns)
    steps = sorted(steps)
    return f"{min(later - earlier for earlier, later in zip(steps, steps[1:])) / 1e6:.1f} ms" if len(steps) > 1 else "more than a second"


def holes(folder):
    """Whether a hole takes no room."""
    with (folder / "i").open("wb") as file:
        file.truncate(1 << 20)
    return "yes" if (folder / "i").stat().st_blocks == 0 else "no"


def abilities():
    folder = ROOM / "abilities"
    folder.mkdir()
    found = {}
    for function in (rename_noreplace, link, nameless, direct, flock, lease, times, holes):
        try:
            found[function.__name__] = function(folder)
        except OSError as problem:
            found[function.__name__] = errno.errorcode[problem.errno]
    return found


# --- the round

def kept(cache):
    """A copy with its cache on this file system."""
    path = "images/large.npy"
    with mount(ROOM / STORE, "-o", f"keep=100M,cache_dir={cache}") as point:
        status = lambda: json.loads((point / ".npyfs/status.json").read_text()).get("kept") or {}
        first = sha256(point / path)
        end = time.monotonic() + 120
        while not status().get("made") and time.monotonic() < end:
            said = run("npyfs", "log", point).stdout
            if not status() or "copies" in said and "without" in said:
                break
            time.sleep(1)
        run("sh", "-c", "echo 3 > /proc/sys/vm/drop_caches")
        time.sleep(3)
        assert sha256(point / path) == first and sha256(point / path) == first
        made = status().get("made")
        if made:
            return f"copies: made, served {status().get('served')}, by the kernel {status().get('passed_through')}"
        return f"copies: none ({run('npyfs', 'log', point).stdout.strip()[-300:]})"


@check
def below(name, expected):
    """Reads, writes, commits, exports and keeps, all on one file system."""
    with globals()[name]():
        report(f"abilities/{name}", "note", json.dumps(abilities()))
        shutil.copy(LAB / "stores" / STORE, ROOM / STORE)
        wanted = {path.partition("/")[2]: value for path, value in expected.items() if path.startswith(f"{STORE}/")}
        with mount(ROOM / STORE) as point:
            same(files(point), wanted, "read")
        with mount(ROOM / STORE, "--checkout", "lab") as point:
            for path in machine.task()["changes"][STORE]:
                shutil.copy(LAB / "changes" / STORE / path, point / path)
                wanted[path] = sha256(LAB / "changes" / STORE / path)
            with open(point / "synced.npy", "wb") as file:
                np.save(file, np.arange(10))
                file.flush()
                os.fsync(file.fileno())
            wanted["synced.npy"] = sha256(point / "synced.npy")
            os.rename(point / "synced.npy", point / "renamed.npy")
            wanted["renamed.npy"] = wanted.pop("synced.npy")
            same(files(point), wanted, "while it is mounted")
        with mount(ROOM / STORE, "--checkout", "lab") as point:
            same(files(point), wanted, "mounted again")
        commit = run("npyfs", "checkout", "commit", "-m", "lab", ROOM / STORE, "lab", code=None)
        assert commit.returncode == 0, f"commit: {commit.stderr.strip()}"
        with mount(ROOM / STORE, "--checkout", "next") as point:
            np.save(point / "next.npy", np.arange(3))
            wanted["next.npy"] = sha256(point / "next.npy")
            second = run("npyfs", "checkout", "ls", ROOM / STORE).stdout
            assert "next" in second
        run("npyfs", "checkout", "commit", "-m", "two", ROOM / STORE, "next")
        with mount(ROOM / STORE) as point:
            same(files(point), wanted, "committed")
        run("npyfs", "verify", ROOM / STORE)
        run("npyfs", "checkout", "export", ROOM / STORE, ROOM / "exported.h5")
        with mount(ROOM / "exported.h5") as point:
            same(files(point), wanted, "exported")
        (ROOM / "cache").mkdir(mode=0o700)
        return kept(ROOM / "cache")


def main(task):
    if not install():
        return
    facts()
    ROOM.mkdir()
    part_the_disk()
    for name in ("ext4", "xfs", "btrfs", "tmpfs", "overlayfs", "nfs4", "virtiofs"):
        below(name, task["expected"])
