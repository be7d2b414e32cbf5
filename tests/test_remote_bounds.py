"""What a server may cost: bytes of memory, requests, and time. Judged by what the kernel says of the daemon (VmHWM) and by what the server was
asked for."""

import os
import re
import threading
from contextlib import contextmanager
from itertools import pairwise

import h5py
import numpy as np
import pytest

from support import weather
from support.mount import Mount, until
from support.process import NPYFS, one_line, run
from support.web import Site

MIB = 1 << 20
READERS = 12

READ = """
import errno, os, sys, threading
path, size, readers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ends = [None] * readers
def read(number):
    file = os.open(path, os.O_RDONLY)
    try:
        at = 128 + size // (readers + 1) * (number + 1)
        data = os.pread(file, 1 << 20, at)
        ends[number] = "right" if data == bytes([number + 1]) * len(data) and data else "wrong"
    except OSError as e:
        ends[number] = errno.errorcode[e.errno]
    finally:
        os.close(file)
threads = [threading.Thread(target=read, args=(number,)) for number in range(readers)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*ends)
"""


def read_at_once(path, size, readers=READERS):
    """What became of readers of places far apart, all at the same time: in a process of its own, as a read that hangs must not hold the tests."""
    done = run(["python3", "-c", READ, path, str(size), str(readers)], timeout=120)
    assert done.returncode == 0, done
    return done.stdout.split()


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    weather.ended.clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    yield
    weather.ended.set()


def store(path, size, readers=READERS):
    """A dataset of so many bytes, most of which are a hole: where reader N reads there is N + 1. Nobody reads its beginning, which
    comes with the first look."""
    with h5py.File(path, "w") as file:
        data = file.create_dataset("d", (size,), "u1", chunks=None)
        for number in range(readers):
            at = size // (readers + 1) * (number + 1)
            data[at:at + MIB] = np.full(MIB, number + 1, "u1")
        data[size - 1] = 1
    return path


class Endless:
    """200 with a body that never ends, to every request for a part. `sent` has the bytes of each answer."""

    def __init__(self):
        self.sent = []

    def __call__(self, handler):
        if handler.command != "GET":
            return False
        tag, modified = handler.server_site.version(handler)
        handler.send_response(200)
        for name, value in {"ETag": tag, "Last-Modified": modified, "Transfer-Encoding": "chunked"}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.close_connection = True
        number = len(self.sent)
        self.sent.append(0)
        part = b"%x\r\n%s\r\n" % (MIB, bytes(MIB))
        # Bounded all the same, for whoever takes all of it.
        while not weather.ended.is_set() and self.sent[number] < 1 << 29 and weather.write(handler, part):
            self.sent[number] += MIB
        return True


@pytest.mark.alone
def test_a_server_that_stops_honouring_ranges_is_asked_once(tmp_path):
    (tmp_path / "www").mkdir()
    size = 200 * MIB
    store(tmp_path / "www/x.h5", size)
    with Site(tmp_path / "www") as site, Mount(site.url("x.h5"), "nopack,timeout=30,cache_size=16M,keep=0") as mount:
        assert (mount / "d.npy").stat().st_size == size + 128
        before = mount.peak_memory()
        site.fault = endless = Endless()
        assert read_at_once(mount / "d.npy", size) == ["EIO"] * READERS
        # One answer is taken as the document: of all others no more comes than what fits on the way.
        assert mount.peak_memory() - before < size + 100 * MIB
        assert sum(sent > 64 * MIB for sent in endless.sent) == 1, endless.sent
        asked = len(site.asked)
        assert read_at_once(mount / "d.npy", size) == ["EIO"] * READERS
        assert not [what for what in site.asked[asked:] if what[0] == "GET"]
        lines = [line for line in mount.errors() if site.url("x.h5") in line]
        assert any("no ranges any more" in line for line in lines), lines


def test_a_server_that_honours_ranges_again_is_asked_again(tmp_path):
    (tmp_path / "www").mkdir()
    size = 24 * MIB
    store(tmp_path / "www/x.h5", size)
    with Site(tmp_path / "www") as site, Mount(site.url("x.h5"), "nopack,timeout=1,keep=0") as mount:
        site.fault = Endless()
        assert set(read_at_once(mount / "d.npy", size)) <= {"EIO", "ETIMEDOUT"}
        site.fault = None
        weather.ended.set()
        until(lambda: read_at_once(mount / "d.npy", size) == ["right"] * READERS, "the server, once more")


@pytest.mark.alone
def test_readers_of_a_server_without_ranges_share_what_it_sends(tmp_path):
    """Nothing is kept, so all of the document comes again and again: once at a time, however many read."""
    (tmp_path / "www").mkdir()
    size = 100 * MIB
    store(tmp_path / "www/x.h5", size)
    with Site(tmp_path / "www", ranges=False) as site:
        with Mount(site.url("x.h5"), "nopack,disk_cache=0,cache_size=16M,timeout=60") as mount:
            assert (mount / "d.npy").stat().st_size == size + 128
            before = mount.peak_memory()
            assert read_at_once(mount / "d.npy", size) == ["right"] * READERS
            assert mount.peak_memory() - before < 256 * MIB + 64 * MIB


MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=40)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.stdout.write(done.stderr.decode("utf-8", "replace"))
"""


def peak_of(arguments):
    """(exit code, what it says, the highest resident size) of npyfs. A small process starts it: its own size counts, too."""
    done = run(["python3", "-c", MEASURE, NPYFS, *map(str, arguments)], timeout=60)
    assert done.returncode == 0, done.stderr
    numbers, _, says = done.stdout.partition("\n")
    code, peak = map(int, numbers.split())
    return code, says, peak * 1024


def answer(status, length):
    """An answer that is said to have so many bytes, or does not say it, and never ends."""
    def fault(handler):
        handler.send_response(status)
        handler.send_header(*(("Content-Length", str(length)) if length else ("Transfer-Encoding", "chunked")))
        handler.end_headers()
        handler.close_connection = True
        part = b"<ListBucketResult>".ljust(MIB)
        part = part if length else b"%x\r\n%s\r\n" % (len(part), part)
        sent = 0
        while not weather.ended.is_set() and sent < 1 << 30 and weather.write(handler, part):
            sent += MIB
        return True
    return fault


@pytest.mark.parametrize("scheme", ["s3", "az", "gs"])
@pytest.mark.parametrize("status, length", [(200, None), (200, 1 << 42), (403, None), (403, 1 << 42), (503, 1 << 42)])
def test_listings_and_errors_without_an_end(tmp_path, monkeypatch, scheme, status, length):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    with Site(tmp_path) as site:
        site.fault = answer(status, length)
        for address in (f"{scheme}://data/", f"{scheme}://data/x.h5"):
            code, says, peak = peak_of(["ls", "-o", f"nopack,timeout=2,anonymous,endpoint={site.url('').rstrip('/')}", address])
            assert code == 2 and address in one_line(says), (code, says)
            assert peak < 250 * MIB, (address, peak)


HEADERS = {"zeros": "/dev/zero", "terminal": "/dev/tty", "memory": "/proc/self/mem", "none": "/no/such/file"}


@pytest.mark.parametrize("what", [*HEADERS, "pipe", "directory", "large", "no lines", "no name", "no value", "bytes"])
def test_files_that_options_name_are_regular_and_small(tmp_path, what):
    path = HEADERS.get(what, tmp_path / "file")
    if what == "pipe":
        os.mkfifo(path)
    elif what == "directory":
        path.mkdir()
    elif what == "large":
        path.write_text("A: b\n" * 100_000)
    elif what not in HEADERS:
        path.write_bytes({"no lines": b"nothing", "no name": b"a b: c", "no value": b"A: b\x01", "bytes": b"\xff: \xff"}[what])
    code, says, peak = peak_of(["ls", "-o", f"header=@{path}", "http://127.0.0.1:1/x.h5"])
    assert code == 1 and re.search("option header: .*file", one_line(says)), (code, says)
    assert peak < 100 * MIB, peak


def test_axes_of_new_stores_are_regular_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", tmp_path / "pipe", tmp_path):
        code, says, peak = peak_of(["new", "daf", tmp_path / "new.h5df", "--axis", f"cell={path}"])
        assert code == 2 and "no regular file" in one_line(says), (code, says)
        assert peak < 100 * MIB and not (tmp_path / "new.h5df").exists()


def test_what_was_not_had_in_time_is_not_waited_for_twice(tmp_path):
    """A server that hangs is asked for each part once, though the kernel asks again for what it did not get when it read ahead: the
    time that a read takes is not twice `timeout`. That holds beside a program that looks at the mount. An open asks anew."""
    (tmp_path / "www").mkdir()
    some = np.random.default_rng(5).integers(0, 99, (64, 4096)).astype("i8")
    with h5py.File(tmp_path / "www/x.h5", "w") as file:
        file["plain"] = some
        file.create_dataset("chunked", data=some, chunks=(2, 4096), compression="gzip")
    for name in ("plain", "chunked"):
        with Site(tmp_path / "www") as site, Mount(site.url("x.h5"), "nopack,timeout=3,keep=0,disk_cache=0") as mount:
            (mount / f"{name}.npy").stat()
            weather.ended.clear()
            site.fault = lambda handler: handler.command == "GET" and weather.hang(handler)
            asked = len(site.asked)
            with looked_at(mount):
                ended = run(["python3", "-c", WHOLE, mount / f"{name}.npy"], timeout=60).stdout
            assert ended == "ETIMEDOUT", ended
            parts = [part.removeprefix("bytes=").split("-") for method, _, part in site.asked[asked:] if method == "GET"]
            parts = sorted((int(first), int(last)) for first, last in parts)
            assert parts and all(last < first for (_, last), (first, _) in pairwise(parts)), parts
            site.fault = None
            weather.ended.set()
            np.testing.assert_array_equal(np.load(mount / f"{name}.npy"), some)


@contextmanager
def looked_at(mount):
    """A thread looks at a file, and reads what the mount says of itself, again and again: as `npyfs status` does."""
    ended = threading.Event()

    def look():
        while not ended.wait(0.05):
            os.stat(mount / "plain.npy"), (mount / ".npyfs/status.json").read_bytes()

    looker = threading.Thread(target=look)
    looker.start()
    try:
        yield
    finally:
        ended.set()
        looker.join()


WHOLE = """
import errno, sys
try:
    with open(sys.argv[1], "rb") as file:
        while file.read(1 << 20): pass
    sys.stdout.write("all")
except OSError as e:
    sys.stdout.write(errno.errorcode[e.errno])
"""
