"""A checkout at its limits: a disk that fills, arrays larger than memory, random operations against a real file (fsx), and make with
a thousand targets."""

import errno
import os
import random
import shutil
import time

import h5py
import numpy as np
import pytest

from support.mount import Mount, until
from support.process import npyfs, run
from support.sampling import Sample

TARGETS = Sample(__file__, "crash").count(300, 1000, "targets of make")


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(10.0)
    before = path.read_bytes()
    yield path
    assert path.read_bytes() == before, "the store was written to"


def test_a_disk_that_fills(store, tmp_path, root_only):
    disk = tmp_path / "disk"
    disk.mkdir()
    run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], check=True)
    try:
        with Mount(store, checkout="c", checkouts=disk / "checkouts") as m:
            np.save(m / "x.npy", np.arange(1000))
            assert os.statvfs(m.path).f_blocks * os.statvfs(m.path).f_frsize == 8 << 20
            # 5.6 MB in an order that has to be turned round: there is room for the scratch file, not for both
            large = np.asfortranarray(np.zeros((1000, 700)) + 1)
            with pytest.raises(OSError) as refused:
                np.save(m / "x.npy", large)
            assert refused.value.errno == errno.ENOSPC
            until(lambda: os.stat(m / "x.npy").st_size < 10_000, "the old content")
            np.testing.assert_array_equal(np.load(m / "x.npy"), np.arange(1000))
            with pytest.raises(OSError) as refused:
                np.save(m / "new.npy", np.ones(2_000_000))
            assert refused.value.errno == errno.ENOSPC
            until(lambda: os.listdir(m.path) == ["x.npy"], "the end of what was refused")
            # A scratch file gives its room back after its name is gone; then there is room again.
            until(lambda: os.statvfs(m.path).f_bavail * os.statvfs(m.path).f_frsize > 4 << 20, "room on the disk")
            np.save(m / "y.npy", np.arange(100_000))
            np.testing.assert_array_equal(np.load(m / "y.npy"), np.arange(100_000))
        with Mount(store, checkout="c", checkouts=disk / "checkouts") as m:
            assert m.files() == ["x.npy", "y.npy"]
            np.testing.assert_array_equal(np.load(m / "x.npy"), np.arange(1000))
    finally:
        run(["umount", "-l", disk], check=True)


def test_a_directory_that_may_not_be_written(store, tmp_path):
    (tmp_path / "file").write_text("no directory")
    point = tmp_path / "point"
    point.mkdir()
    refused = npyfs("mount", "--checkout", "c", "--checkouts", tmp_path / "file/checkouts", store, point)
    assert refused.returncode and len(refused.stderr.splitlines()) == 1, refused.stderr
    refused = npyfs("mount", "--checkout", "../c", store, point)
    assert refused.returncode and len(refused.stderr.splitlines()) == 1, refused.stderr


def test_an_array_larger_than_memory_may_be(store):
    """20 GB, nearly all of them a hole: neither the disk nor the daemon holds them."""
    rows = 2500
    with Mount(store, checkout="c", limit=300) as m:
        array = np.lib.format.open_memmap(m / "big.npy", "w+", dtype="<f8", shape=(rows, 1_000_000))
        array[0, 0], array[rows // 2, 5], array[-1, -1] = 1, 2, 3
        del array
        until(lambda: m.status()["checkout"]["scratch_files"] == 0, "the end of writing", seconds=120)
        with open(m / "big.npy", "rb") as file:
            size = os.fstat(file.fileno()).st_size
            assert size == 128 + rows * 8_000_000
            file.seek(-8, os.SEEK_END)
            assert np.frombuffer(file.read(8))[0] == 3
        assert m.peak_memory() < 400 << 20, m.peak_memory()
    with Mount(store, checkout="c") as m:
        array = np.load(m / "big.npy", mmap_mode="r")
        assert (array[0, 0], array[rows // 2, 5], array[-1, -1], array[7, 7]) == (1, 2, 3, 0)
        del array
    files = list((store.parent / "x.h5.checkouts/c").glob("*.h5"))
    assert sum(path.stat().st_blocks * 512 for path in files) < 200 << 20


@pytest.mark.parametrize("name", ["scratch.tmp", "array.npy"])
def test_random_operations_are_those_of_a_real_file(store, tmp_path, name):
    """fsx: read, write, append, truncate, allocate, map, close and open again, the same here and there."""
    rng = random.Random(5 if name == "array.npy" else 6)
    array = name.endswith(".npy")
    with Mount(store, checkout="c") as m:
        real, ours = tmp_path / name, m / name
        np.save(tmp_path / "start.npy", np.arange(20_000))
        for path in (real, ours):
            shutil.copyfile(tmp_path / "start.npy", path)
        handles = [open(path, "r+b", buffering=0) for path in (real, ours)]
        size, least = os.stat(real).st_size, 128 if array else 0
        for step in range(1500):
            what = rng.choice(["read", "write", "write", "map", "mapwrite", "reopen", "second"] + ["truncate", "grow", "hole"] * (not array))
            at = rng.randrange(least, size)
            length = rng.randrange(1, 20_000)
            data = rng.randbytes(min(length, size - at) if array else length)
            results = []
            for i, handle in enumerate(handles):
                fd = handle.fileno()
                if what == "read":
                    results.append(os.pread(fd, length, at))
                elif what == "write":
                    results.append(os.pwrite(fd, data, at))
                elif what in ("map", "mapwrite"):
                    mapped = np.memmap(handle, "u1", "r+", shape=(size,))
                    if what == "mapwrite":
                        mapped[at:at + len(data)] = np.frombuffer(data, "u1")[:size - at]
                    results.append(mapped[at:at + 500].tobytes())
                    del mapped
                elif what == "reopen":
                    handle.close()
                    handles[i] = open(handle.name, "r+b", buffering=0)
                elif what == "second":
                    with open(handle.name, "rb") as other:
                        results.append(other.read())
                elif what == "truncate":
                    results.append(os.ftruncate(fd, at))
                elif what == "grow":
                    results.append(os.ftruncate(fd, size + length % 5000))
                elif what == "hole":
                    keep = rng.getstate()
                    os.posix_fallocate(fd, at, length)
                    rng.setstate(keep)
            assert not results or results[0] == results[1], f"step {step}: {what} at {at}, {length} bytes"
            sizes = [os.fstat(handle.fileno()).st_size for handle in handles]
            assert sizes[0] == sizes[1], f"step {step}: {what}"
            size = sizes[0]
            if size < 2 * least + 2:
                for handle in handles:
                    os.ftruncate(handle.fileno(), 100_000)
                size = 100_000
        for handle in handles:
            handle.close()
        assert real.read_bytes() == ours.read_bytes()


MAKEFILE = """
TARGETS := $(patsubst %,$(MNT)/out/%.npy,$(shell seq 1 $(N)))
all: $(TARGETS)
$(MNT)/out/%.npy: $(MNT)/in/%.npy
	@cp $< $@ && echo $* >> log
.DELETE_ON_ERROR:
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_make_builds_exactly_what_changed(store, tmp_path):
    """Also after unmounting and mounting again, in other checkouts of the store after a commit, and with an exported file."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "Makefile").write_text(MAKEFILE)
    log = work / "log"

    def make(m):
        log.write_text("")
        run(["make", "-j4", f"MNT={m.path}", f"N={TARGETS}"], cwd=work, check=True, timeout=250)
        return sorted(log.read_text().split(), key=int)

    def change(m, n):
        time.sleep(0.02)  # the clock of file times ticks every few milliseconds
        np.save(m / f"in/{n}.npy", np.full(4, n))

    with Mount(store, checkout="c", limit=400) as m:
        os.mkdir(m / "in")
        os.mkdir(m / "out")
        for n in range(1, TARGETS + 1):
            np.save(m / f"in/{n}.npy", np.full(3, n))
        assert make(m) == [str(n) for n in range(1, TARGETS + 1)]
        assert make(m) == []
        change(m, 17)
        assert make(m) == ["17"]
    with Mount(store, checkout="c", limit=200) as m:
        assert make(m) == []
        os.utime(m / "in/23.npy")
        assert make(m) == ["23"]
        np.testing.assert_array_equal(np.load(m / "out/17.npy"), np.full(4, 17))
    assert npyfs("checkout", "commit", store, "c").returncode == 0
    with Mount(store) as m:
        assert make(m) == []
    with Mount(store, checkout="d", limit=200) as m:
        assert make(m) == []
        change(m, 31)
        assert make(m) == ["31"]
    exported = tmp_path / "out.h5"
    assert npyfs("checkout", "export", store, "d", exported, timeout=250).returncode == 0
    with Mount(exported) as m:
        assert make(m) == []
    with Mount(exported, checkout="e", limit=200) as m:
        change(m, 44)
        assert make(m) == ["44"]
        np.testing.assert_array_equal(np.load(m / "out/31.npy"), np.full(4, 31))
    with Mount(exported, checkout="e", limit=200) as m:
        assert make(m) == []
    with h5py.File(exported) as file:
        assert len(file["out"]) == TARGETS


def test_make_deletes_what_a_failed_recipe_left(store, tmp_path):
    (tmp_path / "Makefile").write_text("$(MNT)/y.npy: $(MNT)/x.npy\n\tcp $< $@ && false\n.DELETE_ON_ERROR:\n")
    with Mount(store, checkout="c") as m:
        done = run(["make", f"MNT={m.path}"], cwd=tmp_path)
        assert done.returncode and "Deleting file" in done.stderr
        assert os.listdir(m.path) == ["x.npy"]
