"""Two programs that do something to one name at the same moment. The file that a program has open keeps its content and
loses its name, in every order in which the two can come: what is there afterwards is the same on a disk, which is the
judge."""

import errno
import io
import os
import subprocess
import threading

import h5py
import numpy as np
import pytest

from support.mount import Mount
from support.process import npyfs

ROUNDS = 40


def content_of(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


OLD, NEW, OTHER = (content_of(array) for array in (np.ones((3, 4), "<i4"), np.arange(1000.0), np.arange(50_000)))


@pytest.fixture(params=["disk", "mount"])
def folder(request, tmp_path):
    if request.param == "disk":
        yield tmp_path
        return
    store = tmp_path / "x.h5"
    with h5py.File(store, "w") as file:
        file["x"] = np.arange(3)
    with Mount(store, checkout="c") as m:
        yield m.path
        with open(m.path / "last.npy", "wb") as file:
            file.write(NEW)
    assert npyfs("verify", store).returncode == 0


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


@pytest.mark.parametrize("other", ["t.npy", "t.tmp"])
@pytest.mark.parametrize("store", [os.close, os.fsync])
@pytest.mark.parametrize("before", [None, OLD], ids=["new", "old"])
def test_a_file_is_stored_while_its_name_changes(folder, before, store, other):
    """The name goes, or goes to another file, or the file takes its name along."""
    s, t = folder / "s.npy", folder / other

    def begin():
        if before is not None:
            put(s, before)
        return opened(s, NEW)

    def end(file):
        if store is os.fsync:
            os.close(file)

    for _ in range(ROUNDS):
        file = begin()
        assert at_once(lambda: store(file), lambda: os.unlink(s)) == [None, None]
        end(file)
        assert read(s) is None
        file = begin()
        put(t, OTHER)
        assert at_once(lambda: store(file), lambda: os.rename(t, s)) == [None, None]
        end(file)
        assert (read(s), read(t)) == (OTHER, None)
        os.unlink(s)
        file = begin()
        assert at_once(lambda: store(file), lambda: os.rename(s, t)) == [None, None]
        end(file)
        assert (read(s), read(t)) == (None, NEW)
        os.unlink(t)


def test_a_file_is_opened_while_its_name_changes(folder):
    s, t = folder / "s.npy", folder / "t.npy"
    for _ in range(ROUNDS):
        put(s, OLD)
        files = []
        failed = at_once(lambda: files.append(os.open(s, os.O_WRONLY | os.O_TRUNC)), lambda: os.unlink(s))
        assert failed in ([None, None], [errno.ENOENT, None])
        for file in files:
            assert os.write(file, NEW) == len(NEW)
            os.close(file)
        assert read(s) is None
        put(s, OLD)
        put(t, OTHER)
        files = []
        assert at_once(lambda: files.append(os.open(s, os.O_WRONLY | os.O_TRUNC)), lambda: os.rename(t, s)) == [None, None]
        for file in files:
            assert os.write(file, NEW) == len(NEW)
            os.close(file)
        assert read(s) in (OTHER, NEW)
        assert read(t) is None
        os.unlink(s)


def test_a_name_changes_in_two_ways(folder):
    s, t = folder / "s.npy", folder / "t.npy"
    for _ in range(ROUNDS):
        put(s, OLD)
        put(t, OTHER)
        assert at_once(lambda: os.rename(t, s), lambda: os.unlink(s)) == [None, None]
        assert read(s) in (None, OTHER)
        assert read(t) is None
        put(s, OLD)
        failed = at_once(lambda: os.rename(s, t), lambda: os.unlink(s))
        assert failed in ([None, errno.ENOENT], [errno.ENOENT, None])
        assert (read(s), read(t)) == (None, OLD if failed[0] is None else None)
        if failed[0] is None:
            os.unlink(t)


def test_a_file_is_stored_while_another_is_refused_at_its_name(folder):
    """What is no array cannot replace one: the file that stood there is as it was, and is stored."""
    s, t = folder / "s.npy", folder / "t.npy"
    for _ in range(ROUNDS):
        put(s, OLD)
        file, junk = opened(s, NEW), opened(t, b"junk")
        failed = at_once(lambda: os.close(file), lambda: os.rename(t, s))
        assert failed in ([None, None], [None, errno.EINVAL])
        assert read(s) == (b"junk" if failed[1] is None else NEW)
        try:
            os.close(junk)
        except OSError as e:
            assert e.errno == errno.EINVAL and failed[1] == errno.EINVAL
        for path in (s, t):
            path.unlink(missing_ok=True)


def test_programs_that_do_all_of_it_at_once_end(folder):
    """Nothing hangs, whatever meets; afterwards the names are used as ever."""
    work = """
import os, random, sys, time
folder, seed, old, new = sys.argv[1], int(sys.argv[2]), *(open(path, "rb").read() for path in sys.argv[3:])
choose = random.Random(seed)
end = time.monotonic() + 4
while time.monotonic() < end:
    path, other = (f"{folder}/{choose.choice(['s1', 's2'])}.npy" for _ in range(2))
    do = choose.choice(["write", "write", "rename over", "rename", "unlink", "read"])
    try:
        if do == "write":
            with open(path, "wb", buffering=0) as file:
                file.write(choose.choice([old, new]))
        elif do == "rename over":
            with open(f"{folder}/t{seed}.npy", "wb", buffering=0) as file:
                file.write(old)
            os.rename(f"{folder}/t{seed}.npy", path)
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
    for name, content in (("old", OLD), ("new", NEW)):
        inputs.append(folder / f"{name}.npy")
        put(inputs[-1], content)
    children = [subprocess.Popen(["python3", "-c", work, folder, str(n), *inputs]) for n in range(5)]
    assert [child.wait(120) for child in children] == [0] * 5
    for name in ("s1.npy", "s2.npy"):
        put(folder / name, OTHER)
        assert read(folder / name) == OTHER
        os.unlink(folder / name)
    assert not {"s1.npy", "s2.npy"} & set(os.listdir(folder))
