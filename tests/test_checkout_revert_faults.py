"""npyfs checkout revert on disks that fail, killed at any moment, and in any order with other commits: it happened or it did not, and
every commit shows for ever what it showed first. Judges: NumPy through later mounts and exported files."""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import time

import h5py
import numpy as np
import pytest

from support.commits import content, log, revert, times, write
from support.faults import Faults, build
from support.mount import Mount
from support.process import NPYFS, npyfs
from support.sampling import Sample

SAMPLE = Sample(__file__, "fault")
ROUNDS = SAMPLE.count(10, 40)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("library"))


@pytest.mark.slow
@pytest.mark.sample("fault", 1)
@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_whatever_call_fails_it_is_taken_back_or_not(tmp_path, library, error, forever):
    at, done = 0, None
    while done is None or done.returncode or at <= len(calls):
        folder = tmp_path / str(at)
        folder.mkdir()
        store = folder / "x.h5"
        with h5py.File(store, "w") as file:
            file["a"], file["b"] = np.arange(5), np.arange(6)
        base = content(store)
        commit = write(store, "work", {"a.npy": np.zeros(3), "new.npy": np.ones(2)}, ["b.npy"])
        changed = content(store)
        faults = Faults(library, folder)
        faults.start(at, error, forever)
        done = npyfs("checkout", "revert", store, commit, env={**os.environ, **faults.env})
        calls = faults.stop()
        happened = len(log(store)) == 2
        # It happened if only the word of it could not be written. Of a disk that takes nothing back nobody knows what it has.
        assert happened == (done.returncode == 0) or "standard output" in done.stderr or forever, (at, calls, done)
        assert content(store) == (base if happened else changed), (at, calls, done)
        if not happened:
            revert(store, commit)
            assert content(store) == base
        layers = [name for name in os.listdir(store.with_name("x.h5.checkouts")) if name.startswith("revert")]
        assert layers == ["revert+2"], layers
        at += 1
    assert at > 3, at


@pytest.mark.slow
def test_whenever_it_is_killed_it_is_taken_back_or_not(tmp_path):
    store = tmp_path / "x.h5"
    with h5py.File(store, "w") as file:
        for number in range(200):
            file[f"a{number}"] = np.arange(5)
    base = content(store)
    first = write(store, "work", {f"a{number}.npy": np.zeros(3) for number in range(200)})
    states, now, commit = [content(store), base], 0, first
    start = time.monotonic()
    commit, now = revert(store, commit), 1
    whole = time.monotonic() - start
    random_ = SAMPLE.random()
    for number in range(ROUNDS):
        process = subprocess.Popen([NPYFS, "checkout", "revert", store, commit], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(random_.uniform(0, 1.2 * whole))
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        killed = process.wait(60) != 0
        newest = log(store)[0]["id"]
        if newest != commit:
            commit, now = newest, 1 - now
        else:
            assert killed
        if number % 10 == 9:
            assert content(store) == states[now]
    revert(store, commit)
    assert content(store) == states[1 - now]


@pytest.mark.slow
@pytest.mark.sample("fault", 1)
@pytest.mark.parametrize("seed", range(3))
def test_random_commits_and_what_takes_them_back(store, tmp_path, seed):
    """Whatever is committed and taken back in any order: what a commit changed is what it was before it, and nothing else changes;
    what later commits changed is refused; every commit shows for ever what it showed first."""
    random_ = SAMPLE.random(seed)
    places = ["a.npy", "z.npy", "new.npy", "g/b.npy", "g/c.npy", "g/new.npy", "g/h/d.npy", "n/x.npy", "n/m/y.npy"]
    shown, ids, taken, refusals = [content(store)], [], 0, 0
    for step in range(200):
        if step >= 30 and taken > 3 and refusals:
            break
        if ids and random_.random() < 0.5:
            number = random_.choice([random_.randrange(len(ids)), len(ids) - 1])
            done = npyfs("checkout", "revert", store, ids[number])
            before, after, now = shown[number], shown[number + 1], shown[-1]
            changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
            if done.returncode:
                refusals += 1
                assert number + 1 < len(ids) and "changed since" in done.stderr or "deleted since" in done.stderr, done.stderr
                continue
            taken += 1
            assert all(now.get(name) == after.get(name) for name in changed), done
            want = {name: now[name] for name in now.keys() - changed} | {name: before[name] for name in changed & before.keys()}
            assert content(store) == want, (step, number)
            if done.stdout == "nothing to take back\n":
                continue
        else:
            gone = random_.sample(["g", "n", "g/h", *places], random_.choice([0, 0, 1, 2]))
            with Mount(store, checkout="work") as m:
                for name in gone:
                    if os.path.lexists(m / name):
                        (shutil.rmtree if os.path.isdir(m / name) else os.unlink)(m / name)
                for name in random_.sample(places, random_.choice([0, 1, 2])):
                    (m / name).parent.mkdir(exist_ok=True, parents=True)
                    np.save(m / name, np.full(random_.randrange(1, 5), step))
            done = npyfs("checkout", "commit", store, "work", check=True)
            if done.stdout == "nothing to commit\n":
                continue
        ids.append(log(store)[0]["id"])
        shown.append(content(store))
    assert taken > 3 and refusals > 0, (taken, refusals)
    for number in random_.sample(range(len(ids)), 5):
        assert content(store, flags=["--at", ids[number]]) == shown[number + 1]
    npyfs("checkout", "export", "--times", store, tmp_path / "out.h5", check=True)
    assert content(tmp_path / "out.h5") == shown[-1]
    assert times(tmp_path / "out.h5") == times(store)
