"""A program writes arrays and members of objects that are not complete, syncs files and directories, renames and deletes, while
another one syncs directories beside it, and the daemon is killed at random instants. A model says after each remount what may be
there: everything that was confirmed is, nothing half is, and nothing that was never written."""

import errno
import json
import os
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest

from support import daf
from support.mount import Mount, clear, make_point, until
from support.process import signal_all, workers
from support.sampling import Sample

SAMPLE = Sample(__file__, "crash")
ROUNDS = SAMPLE.count(8, 20)
ARRAYS = ["0", "1", "g/0", "g/1"]
MATRICES = [f"cells/cell,gene#{n}" for n in "abcdefghijkl"]
CONSTANT = {"indices": [0, 1], "indptr": [0, 1, 2], "shape": [2, 2]}
MEMBERS = ["data", *CONSTANT]

# Each operation is a line before it and a line after it. Values are the number of the operation; those of most members are fixed.
WRITER = r"""
import json, os, random, shutil, sys
import numpy as np
mount, seed, arrays, matrices, constant = sys.argv[1], int(sys.argv[2]), *map(json.loads, sys.argv[3:])
rng = random.Random(f"{os.environ['NPYFS_SEED']} {seed}")

def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

def write(path, array, how):
    target = path if how != "rename" else path + ".tmp"
    with open(target, "wb") as file:
        np.save(file, array)
        if how == "fsync":
            file.flush()
            os.fsync(file.fileno())
    if how == "rename":
        os.rename(target, path)

for step in range(1, 10_000):
    number = seed * 10_000 + step
    what = rng.choice(["array", "member", "member", "member", "member", "member", "directory", "delete array", "delete member", "delete matrix"])
    name = rng.choice(arrays if "array" in what else matrices)
    member, how = rng.choice(["data", *constant]), rng.choice(["close", "fsync", "fsync", "rename"])
    path = f"{mount}/{name}.npy" if "array" in what else f"{mount}/{name}/{member}.npy"
    if what.startswith("delete") and rng.random() < 0.7:
        continue
    if what == "delete member":
        # Of a complete object that would mean something else.
        if not 0 < len([m for m in ["data", *constant] if os.path.exists(f"{mount}/{name}/{m}.npy")]) < 4:
            continue
    print(json.dumps(["begin", what, name, member, number, how]), flush=True)
    try:
        if what == "array":
            write(path, np.full(rng.choice([1, 100, 40_000, 200_000]), number), how)
        elif what == "member":
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write(path, np.array(constant.get(member, [number] * 2), dtype=float if member == "data" else int), how)
        elif what == "directory":
            sync(rng.choice([mount, mount + "/g", mount + "/cells"]))
        elif what == "delete matrix":
            shutil.rmtree(f"{mount}/{name}", ignore_errors=False)
        else:
            os.unlink(path)
    except OSError as problem:
        # What is deleted may not be there.
        if isinstance(problem, FileNotFoundError) and what.startswith("delete"):
            print(json.dumps(["done"]), flush=True)
            continue
        print(json.dumps(["error", problem.errno, str(problem)]), flush=True)
        break
    print(json.dumps(["done"]), flush=True)
"""

SYNCER = r"""
import os, sys
device = os.stat(sys.argv[1]).st_dev
while True:
    for name in sys.argv[1:]:
        try:
            descriptor = os.open(name, os.O_RDONLY)
        except FileNotFoundError:
            if os.stat(sys.argv[1]).st_dev != device:
                sys.exit()
            continue
        # What is below the mount point must not be synced on and on.
        if os.fstat(descriptor).st_dev != device:
            sys.exit()
        os.fsync(descriptor)
        os.close(descriptor)
"""


class Model:
    """For every array and every member the values that may be there: the confirmed one, and those written since."""

    def __init__(self, found):
        self.allowed = {place: {value} for place, value in found.items()}
        self.now = dict(found)

    def places(self, name):
        return [(name, member) for member in MEMBERS] if name in MATRICES else [(name, "")]

    def confirm(self, places):
        for place in places:
            self.allowed[place] = {self.now[place]}

    def is_complete(self, name):
        return all(self.now[place] is not None for place in self.places(name))

    def begin(self, what, name, member, number, how):
        if what in ("array", "member"):
            place, value = ((name, ""), number) if what == "array" else ((name, member), CONSTANT.get(member, number))
            value = tuple(value) if isinstance(value, list) else value
            # A member that was never confirmed is not there while it is written anew.
            self.allowed[place] |= {value}
        elif what == "directory":
            return
        else:
            for place in self.places(name) if what == "delete matrix" else [(name, member if what == "delete member" else "")]:
                self.allowed[place] |= {None}

    def done(self, what, name, member, number, how):
        if what == "directory":
            return self.confirm(self.allowed)
        if what in ("array", "member"):
            place, value = ((name, ""), number) if what == "array" else ((name, member), CONSTANT.get(member, number))
            self.now[place] = tuple(value) if isinstance(value, list) else value
            if how == "close":
                return None
            # All that is stored, and the members of this object.
            self.confirm(self.places(name))
        else:
            for place in self.places(name) if what == "delete matrix" else [(name, member if what == "delete member" else "")]:
                self.now[place] = None
                self.allowed[place] = {None}
        for other in ARRAYS + [matrix for matrix in MATRICES if self.is_complete(matrix)]:
            self.confirm(self.places(other))

    def check(self, found, when):
        for place, value in found.items():
            assert value in self.allowed[place], f"{when}: {place} is {value}, not one of {self.allowed[place]}"


def content(mount):
    """What the mount shows; every array must be whole, and nothing else there."""
    found = {(name, ""): None for name in ARRAYS} | {(name, member): None for name in MATRICES for member in MEMBERS}
    for path in mount.files():
        stem, suffix = os.path.splitext(path)
        if stem in ("cells/cell#", "cells/gene#") or (suffix == ".npz" and stem in MATRICES):
            continue
        folder, name = os.path.split(stem)
        place = (folder, name) if folder in MATRICES else (stem, "")
        assert place in found and suffix == ".npy", f"{path} was never written"
        array = np.load(mount / path)
        if place[1] in CONSTANT:
            found[place] = tuple(int(value) for value in array)
        else:
            assert array.size and (array == array.flat[0]).all(), f"{path} is mixed"
            found[place] = int(array.flat[0])
    return found


def one_round(store, number, rng, log):
    """Writes until the daemon is killed; answers the lines of the writer."""
    point = make_point()
    programs = []
    try:
        with Mount(store, checkout="c", point=point) as m:
            m.expect_dead = True
            with open(log, "wb") as out:
                arguments = [json.dumps(value) for value in (ARRAYS, MATRICES, CONSTANT)]
                programs.append(subprocess.Popen([sys.executable, "-c", WRITER, point, str(number), *arguments], stdout=out, stderr=out))
            folders = [point, point / "cells", *(point / name for name in MATRICES)]
            programs += [subprocess.Popen([sys.executable, "-c", SYNCER, *folders], stderr=subprocess.DEVNULL) for _ in range(2)]
            # Every second time many writes are done, however slow the disk is.
            least = 10 if number % 2 else 1
            until(lambda: log.read_bytes().count(b"done") >= least or programs[0].poll() is not None, "the first writes")
            time.sleep(rng.random() * 0.6)
            # the daemon first, or its workers and then the daemon
            if rng.random() < 0.3:
                signal_all(workers(m.pid), signal.SIGKILL)
                time.sleep(rng.random() * 0.05)
            os.kill(m.pid, signal.SIGKILL)
            until(lambda: not m.alive(), "the end of the daemon")
            # Before the mount is taken away: they would go on in the directory below it.
            until(lambda: all(program.poll() is not None for program in programs), "the end of the programs")
    finally:
        clear(point)
        for program in programs:
            try:
                program.wait(20)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait(20)
        os.rmdir(point)
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(60 + 5 * ROUNDS)
def test_what_was_confirmed_is_there_after_kill_9(tmp_path):
    store = tmp_path / "x.h5"
    with h5py.File(store, "w") as file:
        file["0"], file["g/0"] = np.full(3, -1), np.full(3, -2)
        cells = file.create_group("cells")
        daf.start(cells)
        cells["cell#"], cells["gene#"] = np.array([b"a", b"b"]), np.array([b"c", b"d"])
    before = store.read_bytes()
    with Mount(store) as m:
        model = Model(content(m))
    rng = SAMPLE.random()
    done, seen = 0, set()
    for number in range(1, ROUNDS + 1):
        operation = None
        lines = one_round(store, number, rng, tmp_path / "log")
        for at, (word, *rest) in enumerate(lines):
            if word == "begin":
                operation = rest
                model.begin(*operation)
            elif word == "done":
                model.done(*operation)
                done += 1
                seen.add(operation[0])
            else:
                # EIO: its worker was killed first.
                gone = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)
                assert at == len(lines) - 1 and rest[0] in gone, f"round {number}: {operation} failed: {rest}"
        with Mount(store, checkout="c") as m:
            found = content(m)
            model.check(found, f"round {number}, after {lines[-3:]}")
            assert m.errors() == []
        model = Model(found)
        assert store.read_bytes() == before, "the store was written to"
        for path in (tmp_path / "x.h5.checkouts/c").glob("*.h5"):
            with h5py.File(path) as file:
                file.visit(lambda name: None)
    assert done > 5 * ROUNDS and len(seen) >= 5, (done, seen)
