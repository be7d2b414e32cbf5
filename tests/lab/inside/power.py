"""Power cuts. The host's disk notes every write and every flush of the machine (QEMU's blklogwrites, in the form of dm-log-writes). In its
first boot the machine works on a checkout and on the staging area of a Hangar repository; in the second one it makes the disk as it would
have been after a cut at many moments: all that was written before the last flush, and of what came later a random part. What npyfs
confirmed must be there, and nothing half.

After each confirmation the machine writes a mark beside the file system, past every cache, so that the log knows it, too."""

import json
import mmap
import os
import random
import shutil
import struct
import subprocess
from pathlib import Path

import machine
import numpy as np
from files import SCRATCH, partition
from machine import LAB, check, mount, report, run, sha256, until
from ordinary import facts, install

ROOM = Path("/mnt/room")
MEMORY = Path("/dev/shm")
STORE = "plain.h5"
NAMES = [f"{group}{n}" for group in ("", "images/") for n in range(4)]
SHAPES = [1, 100, 40_000]
SIZE = 4096
# Where the partitions are; the second boot has the log alone, since btrfs does not want to see two disks that are one.
SPANS = Path("/srv/spans.json")
OPERATIONS, MOMENTS = 60, 24


class Marks:
    """Numbered JSON in blocks of the second partition."""

    def __init__(self):
        self.disk = os.open(partition(2), os.O_WRONLY | os.O_DIRECT | os.O_SYNC)
        self.buffer = mmap.mmap(-1, SIZE)
        self.number = 0

    def __call__(self, **mark):
        text = json.dumps(mark).encode()
        self.buffer[:] = text.ljust(SIZE, b" ")
        os.pwrite(self.disk, self.buffer, self.number * SIZE)
        self.number += 1


def write(point, name, n, way):
    path = f"{point}/{name}.npy"
    begun = f"{point}/{os.path.dirname(name)}/.new.{n}" if way == "rename" else path
    with open(begun, "wb") as file:
        np.save(file, np.full(SHAPES[n % 3], n))
        file.flush()
        os.fsync(file.fileno())
    if way == "rename":
        os.rename(begun, path)
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


CACHE = ROOM / "cache"
KEPT = "images/large.npy"


def keep():
    """A new copy of an array."""
    if CACHE.exists():
        shutil.rmtree(CACHE)
    CACHE.mkdir(mode=0o700)
    run("npyfs", "keep", "-o", f"keep=50M,cache_dir={CACHE}", ROOM / STORE, KEPT)


REPOSITORY, FIRST_KEY = "digits", 100_000


def staged_value(point, key):
    """A sample like the others of the repository."""
    return np.full_like(np.load(point / "stage/digits/7.npy"), key % 251)


def stage(mark, keys):
    """New samples in the staging area of a Hangar repository."""
    with mount(ROOM / REPOSITORY, "--checkout", "work") as point:
        for key in keys:
            mark(begin="sample")
            with open(point / f"stage/digits/{key}.npy", "wb") as file:
                np.save(file, staged_value(point, key))
                file.flush()
                os.fsync(file.fileno())
            mark(done="sample", key=key)


def examine_staged(keys):
    """All samples that were confirmed are there, and no sample is half there; raises."""
    with mount(ROOM / REPOSITORY, "--checkout", "work") as point:
        found = {int(path.stem) for path in (point / "stage/digits").glob("*.npy")}
        assert keys <= found, f"{len(keys - found)} of {len(keys)} staged samples are lost"
        for key in found:
            if key >= FIRST_KEY:
                array = np.load(point / f"stage/digits/{key}.npy")
                assert (array == staged_value(point, key)).all(), f"sample {key} is another one"
    run("npyfs", "verify", ROOM / REPOSITORY)


@check
def work(system):
    """Random work, each piece marked before it begins and after it was confirmed."""
    ROOM.mkdir(exist_ok=True)
    run("sh", "-c", f"printf ',600M\\n,64M\\n' | sfdisk -q --label gpt {SCRATCH}")
    until(lambda: os.path.exists(partition(2)), "the partitions")
    run(f"mkfs.{system}", "-q", "-F" if system == "ext4" else "-f", partition(1))
    run("mount", partition(1), ROOM)
    shutil.copy(LAB / "stores" / STORE, ROOM / STORE)
    shutil.copytree(LAB / "stores" / REPOSITORY, ROOM / REPOSITORY)
    run("sync")
    SPANS.write_text(json.dumps([span(1), span(2)]))
    mark = Marks()
    mark(begin=True)
    rng = random.Random(machine.task().get("seed", 1))
    n = commits = 0
    while n < OPERATIONS:
        with mount(ROOM / STORE, "--checkout", f"c{commits}", "-o", "rw") as point:
            for _ in range(rng.randint(3, 12)):
                n += 1
                name, way = rng.choice(NAMES), rng.choice(["save", "save", "rename", "remove"])
                mark(begin=n, name=name, way=way)
                if way == "remove":
                    if not os.path.exists(point / f"{name}.npy"):
                        mark(done=n, name=name, value=None)
                        continue
                    os.unlink(point / f"{name}.npy")
                    folder = os.open(os.path.dirname(point / f"{name}.npy"), os.O_RDONLY)
                    os.fsync(folder)
                    os.close(folder)
                    mark(done=n, name=name, value=None)
                else:
                    write(point, name, n, way)
                    mark(done=n, name=name, value=n)
        keep()
        stage(mark, range(FIRST_KEY + n, FIRST_KEY + n + 3))
        mark(begin="commit")
        done = run("npyfs", "checkout", "commit", "-m", f"{n}", ROOM / STORE, f"c{commits}", code=None)
        if done.returncode == 0:
            commits += 1
            mark(done="commit", commits=commits)
    run("umount", ROOM)
    return f"{n} pieces of work, {commits} commits"


class Log:
    """The writes of the disk, in the form of dm-log-writes."""

    def __init__(self, path):
        self.file = open(path, "rb")
        magic, _, self.entries, self.sector = struct.unpack("<QQQI", self.file.read(28))
        assert magic == 0x6a736677736872, "no log of writes"

    def __iter__(self):
        """Yields (offset, data, flags)."""
        at = self.sector
        for _ in range(self.entries):
            self.file.seek(at)
            sector, sectors, flags, _ = struct.unpack("<QQQQ", self.file.read(32))
            at += self.sector
            data = b""
            if not flags & 4 and sectors:
                self.file.seek(at)
                data = self.file.read(sectors * self.sector)
                at += len(data)
            yield sector * self.sector, data, flags


def span(number):
    sysfs = Path("/sys/class/block") / os.path.basename(os.path.realpath(partition(number)))
    start, size = (int((sysfs / name).read_text()) * 512 for name in ("start", "size"))
    return start, start + size


def moments(log, marks, rng):
    """The numbers of the entries after which the power is cut: any after the first mark, half of them just after a mark."""
    kinds = list(log)
    marked = [i for i, (offset, data, _) in enumerate(kinds) if data and marks[0] <= offset < marks[1]]
    first = marked[0] + 1
    chosen = set(rng.sample(marked[1:], min(MOMENTS // 2, len(marked) - 1)))
    chosen |= set(rng.sample(range(first, len(kinds)), min(MOMENTS // 2, len(kinds) - first)))
    return chosen


def examine(image, confirmed, pending, commits, staged):
    """What is wrong with a disk after a cut; raises."""
    run("btrfs", "device", "scan", "--forget", code=None)
    run("mount", "-o", "loop", image, ROOM)
    try:
        assert sha256(ROOM / STORE) == sha256(LAB / "stores" / STORE), "the store is another one"
        made = max((int(path.stem) for path in (ROOM / f"{STORE}.checkouts/commits").glob("[0-9]*.json")), default=0)
        assert made >= commits and made <= commits + (pending == "commit"), f"{made} commits, {commits} were confirmed"
        with mount(ROOM / STORE, "--checkout", f"c{made}") as point:
            for name in NAMES:
                path = point / f"{name}.npy"
                found = None
                if path.exists():
                    array = np.load(path)
                    found = int(array.flat[0])
                    assert array.shape == (SHAPES[found % 3],) and (array == found).all(), f"{name}: half of {found}"
                allowed = {confirmed.get(name)}
                if isinstance(pending, dict) and pending["name"] == name:
                    allowed.add(None if pending["way"] == "remove" else pending["begin"])
                assert found in allowed, f"{name}: {found}, may be {allowed}"
            with open(point / "after.npy", "wb") as file:
                np.save(file, np.arange(5))
                file.flush()
                os.fsync(file.fileno())
        if CACHE.exists():
            expected = machine.task()["expected"][f"{STORE}/{KEPT}"]
            with mount(ROOM / STORE, "-o", f"keep=50M,cache_dir={CACHE}") as point:
                for _ in range(2):
                    assert sha256(point / KEPT) == expected, "a kept copy is another array"
        run("npyfs", "verify", ROOM / STORE)
        run("npyfs", "checkout", "commit", "-m", "after", ROOM / STORE, f"c{made}")
        examine_staged(staged)
    finally:
        run("umount", ROOM)


@check
def cuts(system):
    rng = random.Random(machine.task().get("seed", 1))
    log = Log("/dev/disk/by-id/virtio-log")
    (start, end), marks = json.loads(SPANS.read_text())
    chosen = moments(log, marks, rng)
    base = MEMORY / "base"
    with base.open("wb") as file:
        file.truncate(end - start)
    # Later than the last flush: may be there or not.
    loose = []
    confirmed, pending, commits, staged = {}, None, 0, set()
    wrong, dropped = [], 0
    with base.open("r+b") as disk:
        for number, (offset, data, flags) in enumerate(log):
            if data and marks[0] <= offset < marks[1]:
                mark = json.loads(data[:SIZE].split(b"\0")[0])
                if mark.get("done") == "commit":
                    commits, pending = mark["commits"], None
                elif mark.get("done") == "sample":
                    staged.add(mark["key"])
                    pending = None
                elif "done" in mark:
                    confirmed[mark["name"]], pending = mark["value"], None
                elif mark["begin"] is not True:
                    pending = mark if "name" in mark else mark["begin"]
            elif data and start <= offset < end:
                loose.append((offset - start, data))
            if flags & 1:
                for at, content in loose:
                    disk.seek(at)
                    disk.write(content)
                loose = []
            if number in chosen:
                disk.flush()
                cut = MEMORY / "cut"
                run("cp", "--sparse=always", base, cut)
                keep = rng.random()
                with cut.open("r+b") as there:
                    for at, content in loose:
                        if rng.random() < keep:
                            there.seek(at)
                            there.write(content)
                        else:
                            dropped += 1
                try:
                    examine(cut, dict(confirmed), pending, commits, set(staged))
                except (AssertionError, subprocess.TimeoutExpired, OSError, ValueError) as problem:
                    wrong.append(f"after entry {number} ({len(loose)} writes were loose, {keep:.2f} kept, pending {pending}): {problem}")
                    report("cut", "note", wrong[-1][:1500])
                cut.unlink()
    assert not wrong, f"{len(wrong)} of {len(chosen)} cuts: {wrong[0]}"
    return f"{len(chosen)} cuts, {len(staged)} staged samples, among {log.entries} writes and flushes; {dropped} writes were lost in them"


def main(task):
    if not install():
        return
    if machine.boot() == 1:
        facts()
        work(task["system"])
    else:
        cuts(task["system"])
