"""npyfs checkout commit of a mount that goes on: what is stored so far is committed, what is open or not complete stays, and nothing
is lost, whichever step fails and whichever process is killed. Judges: NumPy through this mount and others, h5py on exported files."""

import errno
import json
import os
import shutil
import signal
import subprocess
import threading
import time

import h5py
import numpy as np
import pytest
import scipy.sparse

from support import daf
from support.commits import content, log, make_store, write
from support.faults import Faults, build
from support.mount import Mount
from support.process import NPYFS, npyfs, one_line, signal_all, workers
from support.sampling import Sample
from support.truth import np_save, read

SAMPLE = Sample(__file__, "fault")
ROUNDS = SAMPLE.count(8, 40)
OBJECT = 3


def commit(what, *arguments, number, changes):
    done = npyfs("checkout", "commit", *arguments, what, check=True)
    assert done.stdout.startswith(f"commit {number}: {changes} changes, ") and done.stderr == "", done


def files(mount):
    return {name: read(mount / name) for name in mount.files()}


def layers(store):
    return sorted(path.parent.name for path in store.with_name(f"{store.name}.checkouts").glob("*/index"))


@pytest.mark.fast
def test_a_mount_goes_on_after_its_commit(store, tmp_path):
    with Mount(store, checkout="work") as m:
        np.save(m / "a.npy", np.full(3, 1))
        np.save(m / "large.npy", np.arange(300_000))
        os.unlink(m / "g/c.npy")
        mapped = np.load(m / "large.npy", mmap_mode="r")
        open_ = open(m / "z.npy", "rb")
        first = files(m)
        commit(m.path, "-m", "first", number=1, changes=3)
        assert files(m) == first == content(store)
        # Handles go on, and so does the mount.
        np.testing.assert_array_equal(mapped, np.arange(300_000))
        np.testing.assert_array_equal(np.load(open_), np.arange(3))
        open_.close()
        assert npyfs("checkout", "diff", m.path, check=True).stdout == ""
        np.save(m / "a.npy", np.full(4, 2))
        np.save(m / "g/c.npy", np.arange(5))
        os.unlink(m / "large.npy")
        second = files(m)
        assert content(store) == first
        assert npyfs("checkout", "diff", m.path, check=True).stdout == "M a.npy  <i8 (4,)\nA g/c.npy  <i8 (5,)\nD large.npy\n"
        # The other form, and nothing in it the second time.
        done = npyfs("checkout", "commit", "-m", "second", store, "work", check=True)
        assert done.stdout.startswith("commit 2: 3 changes, ")
        assert npyfs("checkout", "commit", m.path, check=True).stdout == "nothing to commit\n"
        assert files(m) == second == content(store)
        np.testing.assert_array_equal(mapped, np.arange(300_000))
        np.save(m / "late.npy", np.arange(2))
        status = json.loads((m / ".npyfs/status.json").read_text())["checkout"]
        assert (status["name"], status["objects"], status["deleted"]) == ("work", 1, 0)
        del mapped
    assert [entry["message"] for entry in log(store)] == ["second", "first"]
    assert layers(store) == ["work", "work~2", "work~3"]
    npyfs("checkout", "commit", store, "work", check=True)
    assert content(store) == {**second, "late.npy": content(store)["late.npy"]}
    assert content(store, flags=["--at", "1"]) == first
    npyfs("checkout", "revert", store, "2", check=True)
    npyfs("checkout", "export", store, tmp_path / "out.h5", check=True)
    with h5py.File(tmp_path / "out.h5") as file:
        assert list(file["a"]) == [1, 1, 1] and list(file["late"]) == [0, 1] and "c" not in file["g"]


@pytest.mark.fast
def test_an_empty_checkout_after_the_last_commit_is_none(store):
    def listed():
        return [(one["name"], one["commit"]) for one in json.loads(npyfs("checkout", "ls", "--json", store, check=True).stdout)]

    with Mount(store, checkout="other") as other:
        np.save(other / "o.npy", np.arange(2))
    with Mount(store, checkout="work") as m:
        np.save(m / "a.npy", np.arange(3))
        commit(m.path, number=1, changes=1)
        # It is listed as long as a mount writes there, and is not meant while it is empty.
        assert listed() == [("work", 1), ("other", None), ("work", None)]
        assert npyfs("checkout", "diff", store, check=True).stdout == "A o.npy  <i8 (2,)\n"
        with pytest.raises(OSError):
            np.save(m / "missing/x.npy", np.arange(2)) if (m / "missing").exists() else os.mkdir(m / "g/b.npy")
        with pytest.raises(OSError):
            np.save(m / "refused.npy", np.array([object()], dtype=object), allow_pickle=True)
    assert layers(store) == ["other", "work", "work~2"]
    assert listed() == [("work", 1), ("other", None)]
    assert npyfs("checkout", "diff", store, check=True).stdout == "A o.npy  <i8 (2,)\n"
    # The log is that of the checkout in which the mount went on.
    kept = store.with_name(f"{store.name}.checkouts") / "work~2/log.jsonl"
    assert "refused.npy" in kept.read_text() and not (kept.parent.parent / "work/log.jsonl").exists()
    assert "refused.npy" in npyfs("log", "--checkout", "work", store, check=True).stdout
    npyfs("checkout", "gc", store, check=True)
    assert layers(store) == ["other", "work", "work~2"], "it is too young"
    npyfs("checkout", "gc", "--older-than", "0s", store, check=True)
    assert layers(store) == ["other", "work"]
    with Mount(store, checkout="work") as m:
        np.save(m / "b.npy", np.arange(3))
    assert listed() == [("work", 1), ("other", None), ("work", None)]


@pytest.mark.fast
def test_what_is_being_written_is_in_the_next_commit(store):
    with Mount(store, checkout="work") as m:
        np.save(m / "done.npy", np.arange(3))
        whole = np_save(np.arange(4))
        with open(m / "open.npy", "wb", buffering=0) as file, open(m / "scratch.tmp", "wb") as other:
            file.write(whole[:-8])
            np.save(other, np.arange(6))
            commit(m.path, number=1, changes=1)
            assert content(store).keys() - {"a.npy", "z.npy", "g/b.npy", "g/c.npy", "g/h/d.npy"} == {"done.npy"}
            file.write(whole[-8:])
        os.rename(m / "scratch.tmp", m / "renamed.npy")
        commit(m.path, number=2, changes=2)
        np.testing.assert_array_equal(np.load(m / "open.npy"), np.arange(4))
    shown = content(store)
    assert {"done.npy", "open.npy", "renamed.npy"} <= shown.keys()


@pytest.mark.fast
def test_objects_that_are_not_complete_stay_in_the_checkout(tmp_path):
    cells = tmp_path / "cells.h5df"
    with h5py.File(cells, "w") as file:
        daf.start(file)
        file["cell#"], file["gene#"] = np.array([b"a", b"b", b"c"]), np.array([b"x", b"y"])
        daf.put_sparse(file, "cell,gene#UMIs", scipy.sparse.csr_matrix([[1, 0], [0, 2], [0, 0]]))
    with Mount(cells, checkout="work") as m:
        np.save(m / "cell#age.npy", np.arange(3))
        for name in ("new", "other"):
            os.mkdir(m / f"cell,gene#{name}")
            for part in ("data", "indices"):
                shutil.copy(m / f"cell,gene#UMIs/{part}.npy", m / f"cell,gene#{name}/{part}.npy")
        commit(m.path, number=1, changes=1)
        assert "cell,gene#new" not in " ".join(content(cells))
        # It is completed in the same mount, and by a later one.
        for part in ("indptr", "shape"):
            shutil.copy(m / f"cell,gene#UMIs/{part}.npy", m / f"cell,gene#new/{part}.npy")
        assert (m / "cell,gene#new.npz").exists()
        commit(m.path, number=2, changes=1)
    assert "cell,gene#other: indptr, shape missing" in npyfs("checkout", "diff", cells, "work").stderr
    with Mount(cells, checkout="work") as m:
        for part in ("indptr", "shape"):
            shutil.copy(m / f"cell,gene#UMIs/{part}.npy", m / f"cell,gene#other/{part}.npy")
        commit(m.path, number=3, changes=1)
    with Mount(cells) as m:
        for name in ("new", "other"):
            for part in ("data", "indices", "indptr", "shape"):
                assert read(m / f"cell,gene#{name}/{part}.npy") == read(m / f"cell,gene#UMIs/{part}.npy")
    # Nothing of it lies twice, and what was committed is whole.
    checkouts = cells.with_name("cells.h5df.checkouts")
    assert not list(checkouts.rglob("*.member")) and not list(checkouts.rglob("*.part"))
    assert "all is well" in npyfs("verify", cells, check=True).stdout


@pytest.mark.fast
def test_a_conflict_is_named_and_the_mount_goes_on(store):
    with Mount(store, checkout="work") as m:
        np.save(m / "a.npy", np.full(3, 1))
        write(store, "other", {"a.npy": np.full(3, 2), "more.npy": np.arange(2)})
        before = files(m)
        done = npyfs("checkout", "commit", m.path)
        assert done.returncode == OBJECT
        assert done.stderr.splitlines() == ["npyfs: a is changed here, a was changed by commit 1 (other)",
                                            "npyfs: nothing was committed: --ours keeps what is here, --theirs what was committed before"]
        assert files(m) == before and layers(store) == ["other", "work"]
        np.save(m / "z.npy", np.full(2, 3))
        commit(m.path, "--ours", number=2, changes=2)
        # What others committed is below the mount now.
        np.testing.assert_array_equal(np.load(m / "a.npy"), np.full(3, 1))
        np.testing.assert_array_equal(np.load(m / "more.npy"), np.arange(2))
        assert files(m) == content(store)
        np.save(m / "a.npy", np.full(3, 4))
        write(store, "other", {"a.npy": np.full(3, 5)})
        done = npyfs("checkout", "commit", "--theirs", m.path, check=True)
        assert done.stdout == "left out: a\n" + done.stdout.split("\n", 1)[1] and "commit 4" in done.stdout, done
        np.testing.assert_array_equal(np.load(m / "a.npy"), np.full(3, 5))
        # The commit was on top of all others: what is changed now is no conflict with them.
        np.save(m / "more.npy", np.arange(3))
        np.save(m / "a.npy", np.full(1, 6))
        commit(m.path, number=5, changes=2)


@pytest.mark.fast
def test_what_is_still_in_memory_is_listed(store):
    with Mount(store, checkout="work") as m:
        for number in range(3):
            for place in (m.path, store):
                name = f"new{number}{'s' if place == store else 'm'}.npy"
                np.save(m / name, np.arange(3))
                assert f"A {name}  <i8 (3,)\n" in npyfs("checkout", "diff", place, check=True).stdout


@pytest.mark.fast
def test_what_cannot_be_committed_is_one_line(store, tmp_path):
    with Mount(store) as m:
        assert "which checkout?" in one_line(npyfs("checkout", "commit", m.path).stderr)
    write(store, "one", {"b.npy": np.arange(3)})
    with Mount(store, checkout="work") as m:
        np.save(m / "a.npy", np.full(3, 1))
        assert "00000000000000000001.json" in one_line(broken_commit(store, m))
        assert "the message is too long" in one_line(npyfs("checkout", "commit", "-m", "x" * 100_000, m.path).stderr)
        assert "a --force" not in one_line(npyfs("checkout", "discard", store, "work").stderr)
        np.testing.assert_array_equal(np.load(m / "a.npy"), np.full(3, 7))
    with Mount(store, "ro", checkout="work") as m:
        done = npyfs("checkout", "commit", m.path)
        assert done.returncode == OBJECT and "is mounted read-only" in one_line(done.stderr), done
    assert npyfs("checkout", "diff", store, "work", check=True).stdout == "M a.npy  <i8 (3,)\n"


def broken_commit(store, mount):
    """What is said while a commit below is damaged, which it is not afterwards."""
    path = store.with_name("x.h5.checkouts") / "commits/00000000000000000001.json"
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"one"', b'"two"'))
    try:
        done = npyfs("checkout", "commit", mount.path)
        assert done.returncode == OBJECT, done
        np.save(mount / "a.npy", np.full(3, 7))
        return done.stderr
    finally:
        path.write_bytes(text)


@pytest.mark.fast
def test_programs_write_meanwhile(store):
    end, errors = threading.Event(), []
    with Mount(store, checkout="work") as m:
        def work(number):
            step = 0
            while not end.is_set():
                step += 1
                try:
                    np.save(m / f"w{number}_{step % 5}.npy", np.full(step % 7 + 1, step))
                    np.save(m / f"count{number}.npy", np.array(step))
                    assert np.load(m / f"count{number}.npy") == step
                except Exception as problem:
                    errors.append(problem)
                    return

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(6):
                time.sleep(0.2)
                done = npyfs("checkout", "commit", m.path)
                assert done.returncode == 0 and done.stdout.startswith(("commit ", "nothing")), done
        finally:
            end.set()
            for thread in threads:
                thread.join(60)
        assert errors == []
        npyfs("checkout", "commit", m.path, check=True)
        want = files(m)
    assert content(store) == want
    assert "all is well" in npyfs("verify", store, check=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("forever", [False, True])
def test_whatever_call_fails_nothing_is_lost(tmp_path, error, forever):
    library = build(tmp_path)
    at, done, calls, goes_on = 0, None, "", 0
    while done is None or done.returncode or at <= len(calls):
        folder = tmp_path / str(at)
        folder.mkdir()
        store = make_store(folder / "x.h5")
        faults = Faults(library, folder)
        with Mount(store, checkout="work", env=faults.env) as m:
            np.save(m / "a.npy", np.full(3, 1))
            np.save(m / "large.npy", np.arange(50_000))
            os.unlink(m / "g/c.npy")
            os.sync()
            fd = os.open(m.path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
            want = files(m)
            faults.start(at, error, forever)
            done = npyfs("checkout", "commit", m.path)
            calls = faults.stop()
            assert files(m) == want, (at, calls, done)
            made = os.path.exists(store.with_name("x.h5.checkouts") / "commits/00000000000000000001.json")
            assert made or done.returncode == OBJECT, (at, calls, done)
            assert done.returncode or made, (at, calls, done)
            # It goes on, unless it is not known whether it was committed. Nothing is written into a committed layer.
            frozen = {path: path.read_bytes() for path in store.with_name("x.h5.checkouts").glob("work/*[!l]")} if made else {}
            try:
                np.save(m / "late.npy", np.arange(2))
                fd = os.open(m.path, os.O_RDONLY)
                os.fsync(fd)
                os.close(fd)
                want = files(m)
                goes_on += done.returncode
            except OSError:
                assert done.returncode and made, (at, calls, done)
            assert frozen == {path: path.read_bytes() for path in frozen}, (at, calls, done)
            m.expect_dead = True
            signal_all([m.pid, *workers(m.pid)], signal.SIGKILL)
        assert content(store, checkout="work") == want, (at, calls, done)
        npyfs("checkout", "commit", store, "work", check=True)
        assert content(store) == want, (at, calls, done)
        at += 1
    assert at > 5 and goes_on, (at, calls)


@pytest.mark.slow
def test_whenever_the_mount_is_killed_nothing_is_lost(tmp_path):
    store = make_store(tmp_path / "x.h5")
    random_ = SAMPLE.random()
    want, whole, made = None, 0.3, 0
    for number in range(ROUNDS):
        with Mount(store, checkout="work") as m:
            if want is not None:
                assert files(m) == want, number
            for name in range(5):
                np.save(m / f"n{random_.randrange(20)}.npy", np.full(random_.choice([3, 40_000]), number * 10 + name))
            os.mkdir(m / f"group{number}")
            fd = os.open(m.path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
            want = files(m)
            before = len(log(store)) if number else 0
            start = time.monotonic()
            process = subprocess.Popen([NPYFS, "checkout", "commit", m.path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            time.sleep(random_.uniform(0, 1.3 * whole))
            m.expect_dead = True
            signal_all([m.pid, *workers(m.pid)], signal.SIGKILL)
            said, wrong = process.communicate(timeout=60)
            if process.returncode == 0:
                whole = 0.5 * whole + 0.5 * (time.monotonic() - start)
        after = len(log(store)) if (store.with_name("x.h5.checkouts") / "commits").exists() else 0
        assert after - before in ((1,) if process.returncode == 0 else (0, 1)), (number, said, wrong)
        made += after - before
        if after and after > before:
            assert content(store) == want, number
    assert "all is well" in npyfs("verify", store, check=True).stdout
    npyfs("checkout", "gc", "--older-than", "0", store, check=True)
    assert content(store, checkout="work") == want
