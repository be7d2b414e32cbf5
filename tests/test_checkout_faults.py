"""The n-th write, sync, truncation or rename of the daemon, of a worker or of a command fails, through a real mount: with EIO or
ENOSPC, once or from then on. Whatever fails, programs see the old content or the new, whole; what a successful fsync, rename,
deletion or unmount confirmed is there after the next mount; the store is byte for byte what it was; h5py opens every file."""

import errno
import io
import os
import re
import threading
import time

import h5py
import numpy as np
import pytest

from support import daf
from support.faults import Faults, build
from support.mount import Mount, clear, make_point, until
from support.process import npyfs, run
from support.sampling import Sample

SAMPLE = Sample(__file__, "fault")
MATRIX = "cells/cell,gene#UMIs"
MEMBERS = {"data": np.array([1.0, 2.0]), "indices": np.array([0, 1]), "indptr": np.array([0, 1, 2]), "shape": np.array([2, 2])}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("library"))


def make_store(path):
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(10.0)
        file["g/y"] = np.arange(6)
        file["g/z"] = np.arange(4)
        cells = file.create_group("cells")
        daf.start(cells)
        cells["cell#"], cells["gene#"] = np.array([b"a", b"b"]), np.array([b"c", b"d"])


def read(mount, name):
    """What stands at a name: an array as bytes, a directory's arrays, or None. A new file that is still empty is nothing."""
    path = mount / name
    if os.path.isdir(path):
        return tuple((entry, read(mount, f"{name}/{entry}")) for entry in sorted(os.listdir(path)))
    end = time.monotonic() + 5
    while True:
        try:
            return None if os.stat(path).st_size == 0 else value(np.load(path))
        except FileNotFoundError:
            return None
        except (ValueError, EOFError):
            # What could not be written goes with its last descriptor, a moment after `close`.
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def value(array):
    return array.dtype.str, array.shape, array.tobytes()


def save(path, array, sync=False):
    whole = io.BytesIO()
    np.save(whole, array)  # to memory: what NumPy raises has no errno
    with open(path, "wb") as file:
        file.write(whole.getvalue())
        if sync:
            file.flush()
            os.fsync(file.fileno())


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy(source, to):
    done = run(["cp", source, to])
    if done.returncode:
        raise OSError(errno.EIO, done.stderr)


def replace(mount, name, array):
    save(mount / f"g/.{name}.tmp", array)
    os.rename(mount / f"g/.{name}.tmp", mount / f"g/{name}")


def matrix(mount):
    os.mkdir(mount / MATRIX)
    for member, array in MEMBERS.items():
        save(mount / f"{MATRIX}/{member}.npy", array)


ARRAYS = {"a.npy": np.arange(1000.0), "x.npy": np.arange(7), "g/y.npy": np.arange(200_000.0),
          "f.npy": np.asfortranarray(np.arange(600.0).reshape(20, 30))}

# What is done, what then stands where, and whether success means that all before it is on the disk.
STEPS = [
    (lambda m, there: copy(there / "a.npy", m / "a.npy"), {"a.npy": value(ARRAYS["a.npy"])}, False),
    (lambda m, there: time.sleep(0.3), {}, False),  # what was closed is synced meanwhile
    (lambda m, there: save(m / "x.npy", ARRAYS["x.npy"], sync=True), {"x.npy": value(ARRAYS["x.npy"])}, True),
    (lambda m, there: replace(m, "y.npy", ARRAYS["g/y.npy"]), {"g/y.npy": value(ARRAYS["g/y.npy"])}, True),
    (lambda m, there: save(m / "f.npy", ARRAYS["f.npy"]), {"f.npy": value(np.ascontiguousarray(ARRAYS["f.npy"]))}, False),
    (lambda m, there: matrix(m), {MATRIX: tuple((f"{name}.npy", value(MEMBERS[name])) for name in sorted(MEMBERS))}, False),
    (lambda m, there: os.utime(m / "x.npy", (5, 5)), {}, False),
    (lambda m, there: os.unlink(m / "g/z.npy"), {"g/z.npy": None}, True),
    (lambda m, there: sync(m.path), {}, True),
]
OBJECTS = sorted({name for _, effects, _ in STEPS for name in effects})


class Expected:
    """What may stand where after the next mount."""

    def __init__(self, mount):
        self.allowed = {name: [read(mount, name)] for name in OBJECTS}
        self.done = {}

    def step(self, effects, succeeded):
        for name, new in effects.items():
            self.allowed[name].append(new)
            if succeeded:
                self.done[name] = new
            else:
                self.done.pop(name, None)

    def confirm(self):
        for name, new in self.done.items():
            self.allowed[name] = [new]

    def settle(self, found):
        """It was unmounted without an error: what the mount showed is what is there."""
        self.allowed = {name: [there] for name, there in found.items()}

    def check(self, found, when):
        for name, there in found.items():
            assert there in self.allowed[name], f"{when}: {name} is {there!r:.300}"


def seen(mount):
    """Every object; a matrix that is not whole is kept for this mount only."""
    found = {name: read(mount, name) for name in OBJECTS}
    if found[MATRIX] is not None and len(found[MATRIX]) < len(MEMBERS):
        found[MATRIX] = None
    return found


def scenario(store, faults, expected, about):
    """All steps, the unmount and the commit, on a disk that may fail. Answers whether the commit succeeded."""
    point = make_point()
    try:
        with Mount(store, checkout="c", point=point, env=faults.env) as m:
            m.expect_dead = True  # who unmounts is seen to here
            for act, effects, syncs in STEPS:
                try:
                    act(m, store.parent)
                    succeeded = True
                except OSError as refused:
                    assert refused.errno in (errno.EIO, errno.ENOSPC), f"{about}: {refused}"
                    succeeded = False
                expected.step(effects, succeeded)
                if succeeded and syncs:
                    expected.confirm()
                for name, new in effects.items():
                    there = read(m, name)
                    if succeeded:
                        assert there == new, f"{about}: {name} was stored, and is {there!r:.300}"
            found = seen(m)
            expected.check(found, f"{about}, before the unmount")
            lost = m.status()["checkout"]["lost"]
            unmounted = npyfs("umount", point)
            if unmounted.returncode == 0:
                assert lost is None, f"{about}: unmounted, though lost: {lost}"
                expected.confirm()
                expected.check(found, f"{about}, confirmed by the unmount")
                expected.settle(found)
            else:
                assert "cannot be made durable" in unmounted.stderr, f"{about}: {unmounted.stderr}"
                assert any("not on the disk" in line or "rror" in line for line in m.errors()), f"{about}: {m.errors()}"
                assert npyfs("umount", "--lazy", point).returncode == 0
            until(lambda: not m.alive(), "the end of the daemon")
    except AssertionError as problem:
        if not str(problem).startswith("mount of "):
            raise
        assert expected.done == {}  # it could not even be mounted, and said so
        return False
    finally:
        clear(point)
        os.rmdir(point)
    return npyfs("checkout", "commit", store, "c", env={**os.environ, **faults.env}).returncode == 0


def run_once(folder, library, at=-1, error=0, forever=False):
    """The scenario with one fault; answers the kinds of calls it took."""
    folder.mkdir()
    store = folder / "x.h5"
    make_store(store)
    np.save(folder / "a.npy", ARRAYS["a.npy"])
    before = store.read_bytes()
    with Mount(store) as m:
        expected = Expected(m)
        base = seen(m)
    faults = Faults(library, folder)
    about = f"call {at}, {errno.errorcode.get(error)}{' for good' if forever else ''}"
    faults.start(at, error, forever)
    committed = scenario(store, faults, expected, about)
    kinds = faults.stop()
    about += f" ({kinds[at:at + 1]})"
    assert store.read_bytes() == before, f"{about}: the store was written to"
    with Mount(store) as m:
        shown = seen(m)
    with Mount(store, checkout="c") as m:
        found = seen(m)
        expected.check(found, f"{about}, mounted again")
        assert m.errors() == [], f"{about}: {m.errors()}"
        assert shown == found if committed else shown in (base, found), f"{about}: committed in part: {shown!r:.500}"
        save(m / "new.npy", np.arange(3), sync=True)
    for layer in (folder / "x.h5.checkouts").iterdir():
        for path in layer.glob("*.h5") if layer.is_dir() else ():
            with h5py.File(path) as file:
                file.visit(lambda name: None)
        assert not layer.is_dir() or not list(layer.glob("*.part")) + list(layer.glob("*.head")), f"{about}: {os.listdir(layer)}"
    return kinds, expected


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whatever_call_fails_each_change_happens_or_does_not(tmp_path, library):
    kinds, expected = run_once(tmp_path / "whole", library)
    assert all(len(allowed) == 1 for allowed in expected.allowed.values()), expected.allowed
    assert len(kinds) > 60 and set(kinds) >= set("wsr"), kinds
    faults = [(at, error, forever) for at in range(len(kinds)) for error in (errno.EIO, errno.ENOSPC) for forever in (False, True)]
    for number, fault in enumerate(SAMPLE.choose(faults, 4, "failing calls")):
        run_once(tmp_path / str(number), library, *fault)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_what_the_disk_did_not_take_after_close_is_told(tmp_path, library, error):
    """`close` has answered, and the sync that follows within a second fails, once: a second one would succeed, and mean nothing."""
    store = tmp_path / "x.h5"
    make_store(store)
    before = store.read_bytes()
    faults = Faults(library, tmp_path)
    with Mount(store, checkout="c", env=faults.env) as m:
        m.expect_dead = True
        save(m / "kept.npy", np.arange(3), sync=True)
        faults.start(0, error, only="s")
        save(m / "x.npy", np.arange(4))
        try:
            save(m / "good.npy", np.arange(5))
            good = True
        except OSError:  # too late: it was not synced together with the first
            good = False
        until(lambda: m.status()["checkout"]["lost"], "the failure")
        lost = m.status()["checkout"]["lost"]
        # Small arrays that were written together are in one file.
        named = re.search(r"not on the disk: (good, )?x: .*mount again", lost)
        assert named, lost
        good = good and named[1] is None
        assert any(named[0][:20] in line for line in m.errors()), m.errors()
        assert faults.stop()[:1] == "s"
        for attempt in (lambda: sync(m.path), lambda: save(m / "late.npy", np.arange(6)), lambda: os.unlink(m / "kept.npy"),
                        lambda: save(m / "scratch.tmp", np.arange(6), sync=True)):
            with pytest.raises(OSError) as refused:
                attempt()
            assert refused.value.errno == error
        refused = npyfs("umount", m.path)
        assert refused.returncode and "cannot be made durable" in refused.stderr and "--lazy" in refused.stderr, refused
        assert npyfs("umount", "--lazy", m.path).returncode == 0
        until(lambda: not m.alive(), "the end of the daemon")
    with Mount(store, checkout="c") as m:
        assert read(m, "x.npy") == value(np.arange(10.0)), "what stood there before"
        assert read(m, "kept.npy") == value(np.arange(3)) and read(m, "late.npy") is None
        assert read(m, "good.npy") == (value(np.arange(5)) if good else None)
        assert m.status()["checkout"]["lost"] is None and m.errors() == []
    assert store.read_bytes() == before


@pytest.mark.parametrize("only, error", [("w", errno.ENOSPC), ("s", errno.EIO)])
@pytest.mark.parametrize("array", [np.arange(4), np.arange(200_000.0)], ids=["packed", "alone"])
def test_what_a_failed_fsync_leaves_is_tried_again_or_lost_by_name(tmp_path, library, only, error, array):
    """Every write, or sync, that `fsync` of a written file leads to fails once, in turn. What waits is shown, and on the disk once it is
    unmounted; what is lost is named, and the next mount shows what stood there before. Which of both is what the log says."""
    old, new = value(np.arange(10.0)), value(array)
    whole = io.BytesIO()
    np.save(whole, array)
    at, left = 0, set()
    while True:
        folder = tmp_path / str(at)
        folder.mkdir()
        store = folder / "x.h5"
        make_store(store)
        faults = Faults(library, folder)
        with Mount(store, checkout="c", env=faults.env) as m:
            m.expect_dead = True
            save(m / "kept.npy", np.arange(3), sync=True)  # the index has its first line
            descriptor = os.open(m / "x.npy", os.O_WRONLY | os.O_TRUNC)
            os.write(descriptor, whole.getvalue())
            faults.start(at, error, only=only)
            told = None
            try:
                os.fsync(descriptor)
            except OSError as refused:
                told = refused.errno
            calls = faults.stop()
            lines = [line for line in m.errors() if "fsync" in line]
            shown, lost = read(m, "x.npy"), m.status()["checkout"]["lost"]
            try:
                os.close(descriptor)
            except OSError as refused:
                assert lost and refused.errno == error, (at, calls)
            assert told in (None, error), (at, calls)
            unmounted = npyfs("umount", m.path)
            if lost:
                left.add("lost")
                assert re.search("not on the disk: x: ", lost) and any("not on the disk: x: " in line for line in lines), (lost, lines)
                assert shown in (old, new) and unmounted.returncode and "cannot be made durable" in unmounted.stderr, (at, calls, unmounted)
                npyfs("umount", "--lazy", m.path, check=True)
                want = old
            else:
                assert unmounted.returncode == 0, (at, calls, unmounted)
                said = unmounted.stderr.splitlines()
                if any("not on the disk yet: x: " in line for line in lines):
                    left.add("waits")
                    assert told and shown == new, (at, calls)
                    assert [line for line in said if "not on the disk yet" in line and "stored later: " in line], said
                assert not [line for line in said if "not on the disk yet" in line and "refused: " in line], said
                want = new  # at the latest, `close` has stored it
            until(lambda: not m.alive(), "the end of the daemon")
        with Mount(store, checkout="c") as m:
            assert read(m, "x.npy") == want and m.errors() == [], (at, calls)
        if told is None and at >= len(calls):
            break
        at += 1
    assert left == {"w": {"waits"}, "s": {"lost"}}[only] or left == {"waits", "lost"}, left


def test_a_full_disk_is_waited_for_and_the_unmount_tells_what_became_of_it(tmp_path, library):
    store = tmp_path / "x.h5"
    make_store(store)
    faults = Faults(library, tmp_path)
    with Mount(store, checkout="c", env=faults.env) as m:
        m.expect_dead = True
        save(m / "kept.npy", np.arange(3), sync=True)  # the index has its first line
        descriptor = os.open(m / "x.npy", os.O_WRONLY | os.O_TRUNC)
        whole = io.BytesIO()
        np.save(whole, np.arange(4))
        os.write(descriptor, whole.getvalue())
        faults.start(0, errno.ENOSPC, forever=True, only="w")
        with pytest.raises(OSError) as refused:
            os.fsync(descriptor)
        os.close(descriptor)
        assert refused.value.errno == errno.ENOSPC and read(m, "x.npy") == value(np.arange(4))
        failed = npyfs("umount", m.path)
        assert failed.returncode and "not on the disk yet: x" in failed.stderr and os.path.ismount(m.path), failed
        faults.stop()
        # What is wrong in itself is refused still.
        with pytest.raises(OSError):
            (m / "bad.npy").write_bytes(b"no array")
        done = npyfs("umount", m.path, check=True)
        said = {word: [line for line in done.stderr.splitlines() if line.startswith(f"npyfs: {word}: ")] for word in ("refused", "stored later")}
        assert said["stored later"] and all("not on the disk yet: x" in line for line in said["stored later"]), done.stderr
        assert said["refused"] and all("bad.npy" in line for line in said["refused"]), done.stderr
        until(lambda: not m.alive(), "the end of the daemon")
    with Mount(store, checkout="c") as m:
        assert read(m, "x.npy") == value(np.arange(4))


def test_a_disk_that_became_read_only_is_told_at_the_unmount(tmp_path, library):
    """EROFS of the disk, as the kernel answers once it has given up a file system, and others that must not be swallowed."""
    for error in (errno.EROFS, errno.EACCES, errno.EINVAL):
        folder = tmp_path / str(error)
        folder.mkdir()
        store = folder / "x.h5"
        make_store(store)
        faults = Faults(library, folder)
        with Mount(store, checkout="c", env=faults.env) as m:
            m.expect_dead = True
            save(m / "kept.npy", np.arange(3), sync=True)
            faults.start(0, error, forever=True, only="s")
            save(m / "x.npy", np.arange(4))
            for command in (("checkout", "sync", m.path), ("umount", m.path)):
                done = npyfs(*command)
                assert done.returncode and os.path.ismount(m.path), (error, done)
            assert "cannot be made durable" in done.stderr and "--lazy" in done.stderr, done
            assert any("not on the disk" in line for line in m.errors()), m.errors()
            faults.stop()
            assert npyfs("umount", "--lazy", m.path).returncode == 0
            until(lambda: not m.alive(), "the end of the daemon")
        with Mount(store, checkout="c") as m:
            assert read(m, "x.npy") == value(np.arange(10.0)) and read(m, "kept.npy") == value(np.arange(3))


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("source", ["g/.y.tmp", "x.npy"])
def test_a_rename_happens_or_does_not(tmp_path, library, error, source):
    """Every write and sync of it fails in turn: then both names are what they were, now and after the next mount."""
    at, succeeded = 0, False
    while not succeeded:
        folder = tmp_path / str(at)
        folder.mkdir()
        store = folder / "x.h5"
        make_store(store)
        faults = Faults(library, folder)
        with Mount(store, checkout="c", env=faults.env) as m:
            m.expect_dead = True
            if source != "x.npy":
                save(m / source, np.arange(7))
            before = {name: read(m, name) for name in (source, "g/y.npy")}
            faults.start(at, error)
            try:
                os.rename(m / source, m / "g/y.npy")
                succeeded = True
            except OSError as refused:
                assert refused.errno == error, at
            calls = faults.stop()
            after = {name: read(m, name) for name in (source, "g/y.npy")}
            assert after == ({source: None, "g/y.npy": before[source]} if succeeded else before), (at, calls)
            npyfs("umount", "--lazy", m.path, check=True)
            until(lambda: not m.alive(), "the end of the daemon")
        with Mount(store, checkout="c") as m:
            want = after if source == "x.npy" else {"g/y.npy": after["g/y.npy"]}
            assert {name: read(m, name) for name in want} == want, (at, calls)
        # A call that only counts how much was done may fail unnoticed.
        succeeded = succeeded and at >= len(calls)
        at += 1
    assert at > 3, at


def test_parallel_renames_are_made_durable_together(tmp_path, library):
    """On a slow disk: each new file is synced, but directory and index for many renames at once."""
    store = tmp_path / "x.h5"
    folders, each = 4, 10
    with h5py.File(store, "w") as file:
        for number in range(folders):
            file.create_group(f"g{number}")["x"] = np.arange(3)
    faults = Faults(library, tmp_path)
    with Mount(store, checkout="c", env=faults.env) as m:
        def work(number):
            for step in range(each):
                save(m / f"g{number}/tmp", np.full(10, step))
                os.rename(m / f"g{number}/tmp", m / f"g{number}/{step}.npy")

        faults.start(0, -20_000, forever=True, only="s")
        threads = [threading.Thread(target=work, args=[number]) for number in range(folders)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        calls = faults.stop()
        # One after the other they would take three for each.
        assert folders * each <= len(calls) < 2.5 * folders * each, len(calls)
        for number in range(folders):
            assert [int(np.load(m / f"g{number}/{step}.npy")[0]) for step in range(each)] == list(range(each))
