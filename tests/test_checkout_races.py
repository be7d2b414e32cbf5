"""Two programs that do something to one name at the same moment. The file that a program has open keeps its content and
loses its name, in every order in which the two can come: what is there afterwards is the same on a disk, which is the
judge."""

import contextlib
import errno
import itertools
import os
import subprocess
import threading

import h5py
import numpy as np
import pytest

from support import daf, hangar
from support.mount import Mount
from support.process import npyfs
from support.truth import np_save
from test_checkouts_in_buckets import Host, S3Place
from test_hangar_commit import STAGE, commit

ROUNDS = 16


class Place:
    """A directory, two names in it, and contents of files that may have these names."""

    def __init__(self, folder, shape, name="{}.npy"):
        self.folder, self.name = folder, name
        self.old, self.new, self.other = (np_save(np.full(shape, n, "<f4")) for n in range(3))

    def path(self, name):
        return self.folder / self.name.format(name)


@pytest.fixture(params=["disk", "plain", "daf", "hangar", "bucket"])
def place(request, tmp_path):
    kind = request.param
    if kind == "disk":
        yield Place(tmp_path, (5, 4))
        return
    store = tmp_path / "x.h5"
    if kind == "hangar":
        store = tmp_path / "repository"
        hangar.script(STAGE, store, "0")
        commit(store, "first")
    else:
        with h5py.File(store, "w") as file:
            if kind == "daf":
                daf.start(file)
                file["cell#"] = np.array([b"a", b"b", b"c"])
            file["x"] = np.arange(3)
    below = "stage/a" if kind == "hangar" else ""
    shape = {"plain": (50, 40), "daf": 3, "hangar": (5, 4), "bucket": (50, 40)}[kind]
    with mounts(kind, tmp_path, store) as mount:
        with mount() as m:
            place = Place(m / below, shape, "cell#{}.npy" if kind == "daf" else "{}.npy")
            yield place
            put(place.path("last"), place.new)
        with mount() as m:
            again = Place(m / below, shape, place.name)
            assert read(again.path("last")) == place.new
            assert read(again.path("s")) is None
    assert npyfs("verify", store).returncode == 0


@contextlib.contextmanager
def mounts(kind, tmp_path, store):
    """Yields what mounts the checkout `c` of a store. If it is in a bucket, each mount is that of another host."""
    if kind != "bucket":
        yield lambda: Mount(store, checkout="c")
        return
    numbers = itertools.count()
    with S3Place() as s3:
        s3.begin()
        yield lambda: Host(tmp_path / f"host{next(numbers)}", s3, store).mount("c")


def opened(path, content, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
    file = os.open(path, flags, 0o644)
    assert os.write(file, content) == len(content)
    return file


def put(path, content):
    os.close(opened(path, content))


def read(path):
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def at_once(*calls):
    """Makes the calls in threads of their own, at the same moment. Returns the error of each."""
    barrier = threading.Barrier(len(calls), timeout=60)
    errors = [None] * len(calls)

    def make(n):
        barrier.wait()
        try:
            calls[n]()
        except OSError as e:
            errors[n] = e.errno

    threads = [threading.Thread(target=make, args=(n,), daemon=True) for n in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a call hangs"
    return errors


@pytest.mark.sample("write", 8)
@pytest.mark.parametrize("store", [os.close, os.fsync])
@pytest.mark.parametrize("has_old", [False, True], ids=["new", "old"])
def test_a_file_is_stored_while_its_name_changes(place, has_old, store):
    """The name goes, or goes to another file, or the file takes its name along."""
    s = place.path("s")

    def begin():
        if has_old:
            put(s, place.old)
        return opened(s, place.new)

    def end(file):
        if store is os.fsync:
            os.close(file)

    for n in range(ROUNDS):
        t = place.folder / "t.tmp" if n % 2 else place.path("t")
        file = begin()
        assert at_once(lambda: store(file), lambda: os.unlink(s)) == [None, None]
        end(file)
        assert read(s) is None
        file = begin()
        put(t, place.other)
        assert at_once(lambda: store(file), lambda: os.rename(t, s)) == [None, None]
        end(file)
        assert (read(s), read(t)) == (place.other, None)
        os.unlink(s)
        file = begin()
        assert at_once(lambda: store(file), lambda: os.rename(s, t)) == [None, None]
        end(file)
        assert (read(s), read(t)) == (None, place.new)
        os.unlink(t)


def test_a_file_is_opened_while_its_name_changes(place):
    s, t = place.path("s"), place.path("t")
    for _ in range(ROUNDS):
        put(s, place.old)
        files = []
        failed = at_once(lambda: files.append(os.open(s, os.O_WRONLY | os.O_TRUNC)), lambda: os.unlink(s))
        assert failed in ([None, None], [errno.ENOENT, None])
        for file in files:
            assert os.write(file, place.new) == len(place.new)
            os.close(file)
        assert read(s) is None
        put(s, place.old)
        put(t, place.other)
        files = []
        assert at_once(lambda: files.append(os.open(s, os.O_WRONLY | os.O_TRUNC)), lambda: os.rename(t, s)) == [None, None]
        for file in files:
            assert os.write(file, place.new) == len(place.new)
            os.close(file)
        assert read(s) in (place.other, place.new)
        assert read(t) is None
        os.unlink(s)


def test_a_name_changes_in_two_ways(place):
    s, t = place.path("s"), place.path("t")
    for _ in range(ROUNDS):
        put(s, place.old)
        put(t, place.other)
        assert at_once(lambda: os.rename(t, s), lambda: os.unlink(s)) == [None, None]
        assert read(s) in (None, place.other)
        assert read(t) is None
        put(s, place.old)
        failed = at_once(lambda: os.rename(s, t), lambda: os.unlink(s))
        assert failed in ([None, errno.ENOENT], [errno.ENOENT, None])
        assert (read(s), read(t)) == (None, place.old if failed[0] is None else None)
        if failed[0] is None:
            os.unlink(t)


def test_a_file_is_stored_while_another_is_refused_at_its_name(place):
    """What is no array cannot replace one: the file that stood there is as it was, and is stored."""
    s, t = place.path("s"), place.path("t")
    for _ in range(ROUNDS):
        put(s, place.old)
        file, junk = opened(s, place.new), opened(t, b"junk")
        failed = at_once(lambda: os.close(file), lambda: os.rename(t, s))
        assert failed in ([None, None], [None, errno.EINVAL])
        assert read(s) == (b"junk" if failed[1] is None else place.new)
        try:
            os.close(junk)
        except OSError as e:
            assert e.errno == errno.EINVAL and failed[1] == errno.EINVAL
        for path in (s, t):
            path.unlink(missing_ok=True)


def test_programs_that_do_all_of_it_at_once_end(place):
    """Nothing hangs, whatever meets; afterwards the names are used as ever."""
    work = """
import os, random, sys, time
name, seed, old, new = sys.argv[1], int(sys.argv[2]), *(open(path, "rb").read() for path in sys.argv[3:])
choose = random.Random(seed)
end = time.monotonic() + 2
while time.monotonic() < end:
    path, other = (name.format(choose.choice(['s1', 's2'])) for _ in range(2))
    do = choose.choice(["write", "write", "rename over", "rename", "unlink", "read"])
    try:
        if do == "write":
            with open(path, "wb", buffering=0) as file:
                file.write(choose.choice([old, new]))
        elif do == "rename over":
            with open(name.format(f"t{seed}"), "wb", buffering=0) as file:
                file.write(old)
            os.rename(name.format(f"t{seed}"), path)
        elif do == "rename":
            os.rename(path, other)
        elif do == "unlink":
            os.unlink(path)
        else:
            assert len(open(path, "rb").read()) <= len(new)
    except FileNotFoundError:
        pass
    except OSError as e:
        if e.errno != 22:
            raise
"""
    inputs = []
    for name, content in (("old", place.old), ("new", place.new)):
        inputs.append(place.path(name))
        put(inputs[-1], content)
    children = [subprocess.Popen(["python3", "-c", work, place.path("{}"), str(n), *inputs]) for n in range(5)]
    assert [child.wait(120) for child in children] == [0] * 5
    for path in (place.path("s1"), place.path("s2")):
        put(path, place.other)
        assert read(path) == place.other
        os.unlink(path)
        assert path.name not in os.listdir(place.folder)
