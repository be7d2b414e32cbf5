"""Damaged copies of small files of every structure, all read completely in one mount beside healthy ones: the daemon lives,
nothing panics, nothing hangs past the workers' deadline, memory stays within its limit, and nobody else notices.
Judges: the kernel (the daemon's life and its peak memory), the clock, np.save of what h5py reads in the healthy files.

Each day has other ones."""

import json
import os
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from support import mutants
from support.mount import Mount
from support.process import run
from support.sampling import SEED, Sample
from support.truth import np_save, walk

COUNT = Sample(__file__, "damage").count(300, 2000, "mutants")
BATCH, READERS, CACHE = 150, 3, 32 << 20

# An object may cost two workers their 10 seconds, be it listed, opened or read; a busy machine adds to that.
PATIENCE = 40

# Reads every object below the folders it is given. Of large files the first 16 MiB and the last one.
READER = """
import json, os, sys, time
objects, errors, slowest = 0, 0, [0, ""]
def timed(name, work):
    global objects, errors
    start = time.monotonic()
    objects += 1
    try:
        return work()
    except OSError:
        errors += 1
    finally:
        slowest[:] = max(slowest, [time.monotonic() - start, name])
def consume(path):
    size = os.stat(path).st_size
    with open(path, "rb", buffering=0) as stream:
        left = 16 << 20
        while left > 0 and (data := stream.read(1 << 20)):
            left -= len(data)
        if left <= 0:
            os.pread(stream.fileno(), 1 << 20, max(0, size - (1 << 20)))
def visit(folder, depth):
    for name in timed(folder, lambda: os.listdir(folder)) or []:
        path = os.path.join(folder, name)
        if os.path.islink(path):
            continue
        if timed(path, lambda: os.path.isdir(path)):
            if depth < 30:
                visit(path, depth + 1)
        else:
            timed(path, lambda: consume(path))
for folder in sys.argv[1:]:
    visit(folder, 0)
print(json.dumps([objects, errors, *slowest]))
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    return mutants.write_seeds(tmp_path_factory.mktemp("seeds"))


def plant(folder, seeds, numbers):
    """Mutants number by number, whatever the batches, and a healthy copy of every seed."""
    (folder / "healthy").mkdir(parents=True)
    for seed in seeds:
        shutil.copyfile(seed, folder / "healthy" / seed.name)
    shutil.copyfile(seeds[0].parent / "raw.bin", folder / "healthy" / "raw.bin")
    shutil.copyfile(seeds[0].parent / "raw.bin", folder / "raw.bin")
    for number in numbers:
        seed = seeds[number % len(seeds)]
        data = mutants.mutant(seed.read_bytes(), np.random.default_rng([SEED, number]))
        (folder / f"{number:04}_{seed.name}").write_bytes(data)


def healthy(seeds, mount):
    """{path in the mount: bytes} of the healthy objects that h5py can be the judge of."""
    plain = ("chunks", "compound", "dense", "filters", "text")
    found = {}
    for seed in seeds:
        if seed.name.startswith(plain):
            truths = walk(seed)
            found |= {mount / "healthy" / seed.name / name: np_save(array) for name, array in truths.items() if array is not None and not array.dtype.hasobject}
    assert len(found) > 100
    return found


def check(truths):
    for path, expected in truths.items():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)  # from the daemon, not from the kernel's memory
            assert os.pread(handle, len(expected) + 1, 0) == expected, path
        finally:
            os.close(handle)


def read_all(mount):
    """Every mutant in the mount, by some processes at a time. Returns [objects, errors, seconds, slowest object]."""
    paths = sorted(mount / name for name in os.listdir(mount.path) if name != "healthy")

    def start(number):
        return json.loads(run([sys.executable, "-c", READER, *paths[number::READERS]], timeout=800, check=True).stdout)

    with ThreadPoolExecutor(READERS) as pool:
        results = list(pool.map(start, range(READERS)))
    return [sum(result[0] for result in results), sum(result[1] for result in results), *max(result[2:] for result in results)]


@pytest.mark.parametrize("first", range(0, COUNT, BATCH))
def test_mutants(seeds, tmp_path, first, capsys):
    numbers = range(first, min(first + BATCH, COUNT))
    plant(tmp_path / "tree", seeds, numbers)
    with Mount(tmp_path / "tree", f"external=same-dir,cache_size={CACHE}", limit=840, log=tmp_path / "log") as mount:
        truths = healthy(seeds, mount)
        check(truths)
        done, failures, rounds = threading.Event(), [], 0

        def watch():
            nonlocal rounds
            while not done.wait(0.05):
                try:
                    check(truths)
                    rounds += 1
                except (AssertionError, OSError) as problem:
                    failures.append(repr(problem))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            objects, errors, seconds, slowest = read_all(mount)
        finally:
            done.set()
            watcher.join()
        status = mount.status()
        with capsys.disabled():
            print(f"\nmutants {first}..{numbers[-1]} of {COUNT}, seed {SEED}: {objects} objects, "
                  f"{errors} errors, slowest {seconds:.1f} s ({slowest.removeprefix(str(mount.path))}), {status['worker_restarts']} worker "
                  f"restarts, peak {mount.peak_memory() >> 20} MiB, healthy ones read {rounds} times meanwhile")
        assert objects > len(numbers) and errors > len(numbers) // 20
        assert failures == [] and rounds > 0
        assert seconds < PATIENCE, slowest
        check(truths)
        lost = [line for line in mount.errors() if "libhdf5 crashed" in line or "libhdf5 took longer" in line]
        assert status["worker_restarts"] >= 2 * bool(lost)
        # A mount in front says there what it refuses, in words of libhdf5 about overflows in the files.
        log = [line for line in (tmp_path / "log").read_text("utf-8", "replace").splitlines() if not line.startswith("npyfs: ")]
        assert not any("panicked" in line or "overflow" in line for line in log), log
        assert mount.peak_memory() < CACHE + (64 << 20)
