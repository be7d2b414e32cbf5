"""libhdf5 runs in worker processes that may die or hang at any time; readers do not notice.
Judge: the array that was written with h5py (under two filters that compress, which only the workers undo; they take
a millisecond for a chunk, so that a request is short beside the time between two kills)."""

import errno
import os
import pathlib
import random
import re
import signal
import threading
import time

import h5py
import hdf5plugin
import numpy as np
import pytest

from support.mount import Mount, until
from support.process import signal_all, workers

CHUNKS, CHUNK = 32, 512 * 512 * 4


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("workers") / "workers.h5"
    values = np.arange(CHUNKS * CHUNK // 4, dtype="<f4").reshape(CHUNKS, 512, 512)
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((1, 512, 512))
    plist.set_filter(hdf5plugin.BLOSC_ID, h5py.h5z.FLAG_OPTIONAL, (0, 0, 0, 0, 5, 1, 1))  # level, shuffle, lz4
    plist.set_filter(h5py.h5z.FILTER_LZF, h5py.h5z.FLAG_OPTIONAL)
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple(values.shape)
        h5py.Dataset(h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, space, plist))[...] = values
    return path, values


def read_somewhere(mount, values):
    """4 KiB at the start of any chunk, not from the kernel's memory; they are right."""
    chunk = random.randrange(CHUNKS)
    handle = os.open(mount / "x.npy", os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(handle, 4096, 128 + chunk * CHUNK) == values[chunk].tobytes()[:4096]
    finally:
        os.close(handle)


def test_killed_workers_are_replaced_and_no_reader_sees_an_error(store):
    """One worker at a time, and the next only when a reading has ended since: a request whose worker dies twice may fail."""
    path, values = store
    with Mount(path, "cache_size=4m") as mount:
        kills, reads, done = 0, 0, threading.Event()

        def kill():
            nonlocal kills
            seen = -1
            while not done.wait(0.03):
                if reads == seen:
                    continue
                seen = reads
                running = workers(mount.pid)
                kills += signal_all(random.sample(running, min(1, len(running))), signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            end = time.monotonic() + 90
            while kills < 100 or reads < 100:
                assert time.monotonic() < end, (kills, reads)
                read_somewhere(mount, values)
                reads += 1
        finally:
            done.set()
            killer.join()
        assert mount.status()["worker_restarts"] > 0
        assert np.array_equal(np.load(mount / "x.npy"), values)
        assert mount.errors() == []


def test_a_hanging_worker_costs_time_and_no_data(store):
    path, values = store
    with Mount(path, "cache_size=4m") as mount:
        read_somewhere(mount, values)
        stopped = workers(mount.pid)
        assert signal_all(stopped, signal.SIGSTOP) >= 1
        for _ in range(8):  # at least one is no block that is still in memory
            read_somewhere(mount, values)
        assert np.array_equal(np.load(mount / "x.npy"), values)
        assert mount.status()["worker_restarts"] >= 1
        assert not set(stopped) & set(workers(mount.pid))


def test_workers_are_confined_and_the_status_says_so(store):
    path, values = store
    with Mount(path) as mount:
        read_somewhere(mount, values)
        said = mount.status()["worker_sandbox"]
        assert {"limits", "capabilities"} <= set(said["enforced"]) and len(said["enforced"] + said["missing"]) == 5
        for pid in workers(mount.pid):
            def status():
                lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
                return dict(line.split(":\t", 1) for line in lines if ":\t" in line)

            # A worker that starts just now gives its rights up before it takes a request. CAP_DAC_READ_SEARCH: root reads
            # what it could read before.
            until(lambda: int(status()["CapEff"], 16) & ~(1 << 2) == 0, "a confined worker")
            until(lambda: (status()["Seccomp"] == "2") == ("seccomp" in said["enforced"]), "its filter of system calls")
            limits = pathlib.Path(f"/proc/{pid}/limits").read_text()
            assert re.search(r"Max file size +0 +0", limits) and re.search(r"Max core file size +0 +0", limits)
            until(lambda: re.search(r"Max cpu time +\d+ ", pathlib.Path(f"/proc/{pid}/limits").read_text()), "its first request")


def test_a_store_directory_that_is_replaced_by_another_is_read(tmp_path):
    """The sandbox names files, not paths: there is a worker more, which may read the new one."""
    store = tmp_path / "store"

    def write(number):
        store.mkdir()
        with h5py.File(store / "a.h5", "w") as file:
            file["x"] = np.full(5, number)

    def shows(number):
        try:
            return np.load(mount / "a.h5/x.npy")[0] == number
        except OSError as problem:
            assert problem.errno in (errno.ESTALE, errno.ENOENT), problem
            return False

    write(0)
    with Mount(store) as mount:
        assert shows(0)
        old = workers(mount.pid)
        store.rename(tmp_path / "old")
        write(1)
        until(lambda: shows(1), "the new content")
        assert old and set(workers(mount.pid)) - set(old)


def test_no_worker_outlives_its_daemon(store):
    path, values = store
    with Mount(path) as mount:
        read_somewhere(mount, values)
        running = workers(mount.pid)
        assert running
        mount.expect_dead = True
        os.kill(mount.pid, signal.SIGKILL)
        end = time.monotonic() + 20
        while any(pathlib.Path(f"/proc/{pid}/exe").exists() for pid in running):
            assert time.monotonic() < end, "a worker still runs"
            time.sleep(0.05)
