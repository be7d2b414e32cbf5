"""The daemon and its workers are killed at random instants while a program writes into a checkout. After each remount every
array that fsync confirmed is there, whole and right; nothing half is; the store is byte for byte what it was; h5py opens every
file of the layer."""

import os
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest

from support.mount import Mount, clear, make_point, until
from support.process import signal_all, workers
from support.sampling import Sample

SAMPLE = Sample(__file__, "crash")
ROUNDS = SAMPLE.count(25, 200)
NAMES = [f"{group}{n}" for group in ("", "g/") for n in range(4)]

# Writes arrays whose elements all are the number of the write; says before and after each what it does.
WRITER = r"""
import os, random, sys
import numpy as np
mount, seed, names = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
rng = random.Random(f"{os.environ['NPYFS_SEED']} {seed}")
for step in range(1, 1000):
    name, number = rng.choice(names), seed * 1000 + step
    array = np.full(rng.choice([1, 100, 40_000]), number)
    way = rng.choice(["save", "rename", "remove"] if step > 3 else ["save"])
    path = f"{mount}/{name}.npy"
    print("begin", name, number if way != "remove" else "none", flush=True)
    try:
        if way == "remove":
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
        else:
            target = path if way == "save" else path + ".tmp"
            with open(target, "wb") as file:
                np.save(file, array)
                file.flush()
                os.fsync(file.fileno())
            if way == "rename":
                os.rename(target, path)
        print("done", name, number if way != "remove" else "none", flush=True)
    except OSError:
        break
"""


def content(mount):
    """{name: number} of what the mount shows; every array must be whole."""
    found = {}
    for name in mount.files():
        assert name.endswith(".npy"), name
        array = np.load(mount / name)
        assert array.size and (array == array.flat[0]).all(), f"{name} is mixed"
        found[name[:-4]] = int(array.flat[0])
    return found


@pytest.mark.slow
@pytest.mark.timeout(60 + 3 * ROUNDS)
def test_what_fsync_confirmed_is_there_after_kill_9(tmp_path):
    store = tmp_path / "x.h5"
    with h5py.File(store, "w") as file:
        file["0"] = np.full(3, -1)
        file["g/0"] = np.full(3, -2)
    before = store.read_bytes()
    expected = {"0": -1, "g/0": -2}
    rng = SAMPLE.random()
    confirmed = 0
    for number in range(1, ROUNDS + 1):
        point = make_point()
        with Mount(store, checkout="c", point=point) as m:
            m.expect_dead = True
            log = tmp_path / "log"
            with open(log, "wb") as out:
                writer = subprocess.Popen([sys.executable, "-c", WRITER, point, str(number), *NAMES], stdout=out, stderr=out)
            until(lambda: b"done" in log.read_bytes() or writer.poll() is not None, "the first write")
            time.sleep(rng.random() * 0.4)
            # the daemon first, or one of its workers and then the daemon
            if rng.random() < 0.5:
                signal_all(workers(m.pid), signal.SIGKILL)
                time.sleep(rng.random() * 0.05)
            os.kill(m.pid, signal.SIGKILL)
            until(lambda: not m.alive(), "the end of the daemon")
            # Before the mount is taken away: it would go on in the directory below.
            writer.wait(60)
            clear(point)
        # What was begun last may have happened or not.
        open_end = {}
        for line in log.read_text().splitlines():
            word, name, value = line.split()
            value = None if value == "none" else int(value)
            if word == "begin":
                open_end = {name: value}
            elif word == "done":
                confirmed += 1
                open_end = {}
                expected[name] = value
        with Mount(store, checkout="c") as m:
            found = content(m)
            for name in set(expected) | set(found):
                allowed = {expected.get(name)} | ({open_end[name]} if name in open_end else set())
                assert found.get(name) in allowed, f"round {number}: {name} is {found.get(name)}, not one of {allowed}"
            expected = {name: found.get(name) for name in set(expected) | set(found)}
            assert m.errors() == []
        assert store.read_bytes() == before, "the store was written to"
        for path in (tmp_path / "x.h5.checkouts/c").glob("*.h5"):
            with h5py.File(path) as file:
                file.visit(lambda name: None)
        os.rmdir(point)
    assert confirmed > ROUNDS
