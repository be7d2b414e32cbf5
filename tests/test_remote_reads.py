"""What is fetched of a store on a web server, and how much at a time: counted at the server, never in seconds."""

import os
import random
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest

from support.mount import Mount, until
from support.web import Site

CHUNK = 16 << 10
HEADER = 128
PAGE = 4096
# What is kept is fetched in blocks of so many bytes.
BLOCK = 8 << 10


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = tmp_path / "www"
    directory.mkdir()
    return directory


def write(path, rows=1024, **options):
    """An array of which each row is a chunk of 16 KiB, and one that is stored in one piece."""
    array = np.random.default_rng(1).integers(0, 2**31, (rows, CHUNK // 4), "i4")
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=array, chunks=(1, CHUNK // 4), **options)
        file["plain"] = array
    return array


def stored(path, name="a"):
    """Where the rows of an array are stored, by h5py."""
    with h5py.File(path) as file:
        dataset = file[name]
        if dataset.chunks:
            found = [dataset.id.get_chunk_info(row) for row in range(len(dataset))]
            return [(chunk.byte_offset, chunk.byte_offset + chunk.size) for chunk in found]
        offset = dataset.id.get_offset()
        return [(offset + row * CHUNK, offset + (row + 1) * CHUNK) for row in range(len(dataset))]


def ranges(site):
    asked = [range for method, _, range in site.asked if method == "GET"]
    return [tuple(map(int, part.split("=")[1].split("-"))) for part in asked]


def pread(path, row):
    file = os.open(path, os.O_RDONLY)
    try:
        return os.pread(file, CHUNK, HEADER + row * CHUNK)
    finally:
        os.close(file)


@pytest.mark.parametrize("name, options", [("a", {}), ("a", {"compression": "gzip"}), ("plain", {})])
def test_random_readers_fetch_what_they_touch_and_nothing_else(directory, name, options):
    array = write(directory / "x.h5", **options)
    places = stored(directory / "x.h5", name)
    with Site(directory) as site, Mount(site.url("x.h5")) as mount:
        path, wanted = mount / f"{name}.npy", random.Random(2).sample(range(1, len(array) - 1), 40)
        # A sample shows how the file is read: others are answered without the kernel's pages, which do not end where chunks do.
        assert pread(path, wanted[0]) == array[wanted[0]].tobytes()
        site.asked.clear()
        before = site.bytes
        for row in wanted[1:]:
            assert pread(path, row) == array[row].tobytes()
        if name == "a":
            for first, last in ranges(site):
                assert any(places[row][0] - BLOCK <= first and last < places[row][1] + BLOCK for row in wanted), (first, last)
        # What lies in one piece is read through the kernel's pages, and now and then of more of them.
        reach = CHUNK if name == "plain" else 0
        assert site.bytes - before <= 39 * (CHUNK + 2 * (BLOCK + reach))
        assert len(site.asked) <= 40


@pytest.mark.parametrize("options, wanted", [({"compression": "gzip"}, 3 * CHUNK), ({}, CHUNK + PAGE)])
def test_one_handle_at_random_fetches_little(directory, options, wanted):
    """Pages touch the chunks beside the one that is read: a compressed one is fetched whole, of others the bytes in the pages."""
    array = write(directory / "x.h5", **options)
    with Site(directory) as site, Mount(site.url("x.h5")) as mount:
        file = os.open(mount / "a.npy", os.O_RDONLY)
        before = site.bytes
        for row in random.Random(3).sample(range(1, len(array) - 1), 40):
            assert os.pread(file, CHUNK, HEADER + row * CHUNK) == array[row].tobytes()
        os.close(file)
        assert site.bytes - before <= 40 * (wanted + 2 * BLOCK)


@pytest.mark.parametrize("name, options", [("a", {}), ("a", {"compression": "gzip"}), ("plain", {})])
def test_readers_in_order_ask_for_large_parts_once(directory, name, options):
    array = write(directory / "x.h5", rows=2048, **options)
    size = sum(last - first for first, last in stored(directory / "x.h5", name))
    with Site(directory) as site, Mount(site.url("x.h5")) as mount:
        os.stat(mount / f"{name}.npy")
        site.asked.clear()
        before = site.bytes
        digest = subprocess.run(["cat", mount / f"{name}.npy"], check=True, stdout=subprocess.PIPE).stdout
        assert digest[HEADER:] == array.tobytes()
        assert site.bytes - before <= 1.1 * size + (1 << 20)
        assert len(site.asked) <= 64, len(site.asked)


def test_text_of_variable_length_is_fetched_in_large_parts(directory):
    text = [f"{number:05}" * 40 for number in range(10_000)]
    with h5py.File(directory / "x.h5", "w") as file:
        file.create_dataset("text", data=text, dtype=h5py.string_dtype())
    with Site(directory) as site, Mount(site.url("x.h5")) as mount:
        os.listdir(mount.path)
        site.asked.clear()
        assert np.load(mount / "text.npy").tolist() == text
        # The heaps that hold it are of 4 KiB each.
        assert len(site.asked) <= 40, len(site.asked)


def test_what_is_fetched_ahead_of_all_readers_is_bounded(directory):
    arrays = {}
    with h5py.File(directory / "x.h5", "w") as file:
        for name in "abcdef":
            arrays[name] = np.random.default_rng(ord(name)).integers(0, 2**31, (1024, CHUNK // 4), "i4")
            file.create_dataset(name, data=arrays[name], chunks=(64, CHUNK // 4))
    # A quarter is 4 MiB; each of the readers may ask for what it reads itself, two windows of the kernel's with a sixteenth each.
    with Site(directory, latency=0.03) as site, Mount(site.url("x.h5"), "cache_size=16m") as mount:
        os.listdir(mount.path)
        site.most_under_way = 0

        def read(name):
            done = subprocess.run(["cat", mount / f"{name}.npy"], check=True, stdout=subprocess.PIPE).stdout
            return done[HEADER:] == arrays[name].tobytes()

        with ThreadPoolExecutor(len(arrays)) as pool:
            assert all(pool.map(read, arrays))
        own = len(arrays) * (4 << 20)
        assert site.most_under_way <= (4 << 20) + own, site.most_under_way


def test_readers_do_not_wait_for_each_other(directory):
    array = write(directory / "x.h5")
    with Site(directory, latency=0.2) as site, Mount(site.url("x.h5")) as mount:
        wanted = random.Random(4).sample(range(len(array)), 48)
        assert pread(mount / "a.npy", 0) == array[0].tobytes()
        site.most_at_once = 0
        with ThreadPoolExecutor(16) as pool:
            assert all(pool.map(lambda row: pread(mount / "a.npy", row) == array[row].tobytes(), wanted))
        # More than there are threads that take requests of the kernel.
        assert site.most_at_once >= 12


class Held:
    """A site that answers no request for data as long as it is held."""

    def __init__(self, site):
        self.go, self.waiting = threading.Event(), 0
        self.go.set()
        site.fault = self.fault

    def fault(self, handler):
        if not self.go.is_set() and handler.command == "GET":
            self.waiting += 1
            assert self.go.wait(120)
        return False


def in_time(work, seconds=60):
    """What `work` returns, in a thread, as it may hang for good where it is wrong."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(seconds)


def test_reads_that_wait_hold_up_no_listing(directory):
    array = write(directory / "x.h5", rows=256)
    with h5py.File(directory / "x.h5", "a") as file:
        file["group/small"] = np.arange(5)
    with Site(directory) as site, Mount(site.url("x.h5"), "check=1000") as mount:
        np.testing.assert_array_equal(np.load(mount / "group/small.npy"), np.arange(5))
        assert pread(mount / "a.npy", 0) == array[0].tobytes()
        held = Held(site)
        held.go.clear()
        with ThreadPoolExecutor(40) as pool:
            reads = [pool.submit(pread, mount / "a.npy", row) for row in range(2, 242, 6)]
            try:
                names = in_time(lambda: subprocess.run(["ls", "-lR", mount.path], check=True, stdout=subprocess.PIPE, timeout=50).stdout)
                assert b"small.npy" in names and b"plain.npy" in names
                kept = subprocess.run(["cat", mount / "group/small.npy"], check=True, stdout=subprocess.PIPE, timeout=50).stdout
                assert kept.endswith(np.arange(5).tobytes())
                # Some lie beside what was fetched before.
                until(lambda: held.waiting >= 12, "requests of reads")
                assert sum(not read.done() for read in reads) >= 30
            finally:
                held.go.set()
            assert [read.result(60) for read in reads] == [array[row].tobytes() for row in range(2, 242, 6)]


def test_workers_that_wait_for_the_network_hold_up_no_others(directory):
    text = [f"{number:05}" * 40 for number in range(4000)]
    with h5py.File(directory / "x.h5", "w") as file:
        for number in range(10):
            # Only libhdf5 reads text of variable length.
            file.create_dataset(f"text{number}", data=text, dtype=h5py.string_dtype(), chunks=(500,))
        for number in range(10):
            file.create_dataset(f"number{number}", data=np.arange(1000) * number, chunks=(100,), compression="gzip")
    with Site(directory) as site, Mount(site.url("x.h5"), "check=1000,timeout=100") as mount:
        # Opening asks a worker for the map of chunks, and reading fetches them.
        for number in range(4):
            np.testing.assert_array_equal(np.load(mount / f"number{number}.npy"), np.arange(1000) * number)
        subprocess.run(["ls", mount.path], check=True, stdout=subprocess.DEVNULL)
        held = Held(site)
        held.go.clear()
        commands = [subprocess.Popen(["cat", mount / f"text{number}.npy"], stdout=subprocess.PIPE) for number in range(10)]
        try:
            # Each of these takes a worker again, which finds all metadata at hand.
            shapes = [mount.info(f"number{number}.npy")["shape"] for number in range(4, 10)]
            assert shapes == [[1000]] * 6
            assert all(command.poll() is None for command in commands)
        finally:
            held.go.set()
        for command in commands:
            assert text[-1].encode() in command.communicate(timeout=100)[0].replace(b"\0", b"")
