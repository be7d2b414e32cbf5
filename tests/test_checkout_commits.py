"""Commits by processes that no lock keeps apart, as on several hosts: each is there once, on top of all others, whatever answer is
lost and whoever is killed; what is damaged is named. Judges: hashlib on the commits, NumPy through later mounts."""

import errno
import json
import os
import shutil
import time

import numpy as np
import pytest

from support import hosts
from support.checkouts import checkout, commits_of, save, top, write_plain
from support.mount import Mount
from support.process import npyfs, one_line
from support.sampling import Sample

REFUSED = 3
SAMPLE = Sample(__file__, "crash")
ROUNDS = SAMPLE.count(6, 20)
AT_ONCE = SAMPLE.count(15, 50, "commits of each process")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return hosts.build(tmp_path_factory.mktemp("library"))


@pytest.fixture
def store(tmp_path):
    write_plain(tmp_path / "x.h5")
    return tmp_path / "x.h5"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lost", [0, errno.EEXIST, errno.EIO])
def test_of_many_at_once_each_is_there_once(store, library, lost):
    count, each = 4, min(AT_ONCE, 10) if lost else AT_ONCE
    names = [f"o{number}" for number in range(count * each)]
    hosts.make_layers(store, names)
    told = hosts.commit_all(store, names, count, hosts.elsewhere(library, lost))
    assert all(code == 0 and error == "" for _, code, _, error in told), told
    assert sorted(int(out.split()[1].rstrip(":")) for _, _, out, _ in told) == list(range(1, len(names) + 1))
    commits = commits_of(top(store))
    assert sorted(commit["layer"] for commit in commits) == sorted(names)
    by_number = {commits[int(out.split()[1].rstrip(":")) - 1]["layer"]: name for name, _, out, _ in told}
    assert all(layer == name for layer, name in by_number.items())
    assert len({commit["write"] for commit in commits}) == len(names)
    assert hosts.shown(store, names) == {name: number for number, name in enumerate(names)}
    assert not [name for name in os.listdir(top(store) / "commits") if name.startswith(".")]


@pytest.mark.slow
@pytest.mark.timeout(60 + 10 * ROUNDS)
def test_whenever_they_are_killed_each_is_there_or_not(store, library):
    names = [f"o{number}" for number in range(8 * ROUNDS)]
    hosts.make_layers(store, names)
    rng = SAMPLE.random()
    expected, killed, whole = set(), 0, 0.5
    for turn in range(2 * ROUNDS):
        # More turns are needed if a first one that was slow has made the kills come late.
        if turn >= ROUNDS and killed >= ROUNDS / 2:
            break
        mine = names[4 * turn:4 * turn + 4]
        start = time.monotonic()
        running = [hosts.start_commit(store, name, hosts.elsewhere(library)) for name in mine]
        if turn:
            time.sleep(rng.random() * 1.2 * whole)
            for process in rng.sample(running, rng.randint(1, 4)):
                process.kill()
        done = [process.communicate(timeout=120) and process.returncode for process in running]
        whole = whole if turn else time.monotonic() - start
        layers = [commit["layer"] for commit in commits_of(top(store))]
        assert len(set(layers)) == len(layers), "a commit is there twice"
        for name, code in zip(mine, done):
            assert code in (0, -9), (name, code)
            assert name in layers or code == -9, f"{name} was confirmed and is not there"
            killed += code == -9
        whole = whole if -9 in done or not turn else whole / 2
        assert expected <= set(layers) <= expected | set(mine)
        # Those who come later go on, with the others' names taken or not.
        for name in set(mine) - set(layers):
            assert checkout("commit", store, name).stdout.startswith("commit ")
        expected |= set(mine)
    assert killed >= ROUNDS / 2
    assert hosts.shown(store, names) == {name: number if name in expected else None for number, name in enumerate(names)}


def test_of_two_that_changed_one_object_one_is_told(store, library):
    for name in ("one", "two"):
        save(store, name, {"a.npy": np.arange(3)}, commit=False)
    told = hosts.commit_all(store, ["one", "two"], 2, hosts.elsewhere(library))
    assert sorted(code for _, code, _, _ in told) == [0, REFUSED], told
    assert len(commits_of(top(store))) == 1


def test_of_two_that_commit_one_checkout_one_is_told(store, library):
    save(store, "work", {"a.npy": np.arange(3)}, commit=False)
    told = hosts.commit_all(store, ["work"] * 4, 4, hosts.elsewhere(library))
    assert sorted(code == 0 for _, code, _, _ in told) == [False] * 3 + [True], told
    assert len(commits_of(top(store))) == 1


def test_clocks_that_disagree_by_hours_leave_times_in_order(store, library):
    hosts.make_layers(store, names := [f"o{number}" for number in range(6)])
    for name, hours in zip(names, (0, 5, -7, 0, 5.01, -1)):
        [(_, code, _, error)] = hosts.commit_all(store, [name], 1, hosts.elsewhere(library, clock=int(hours * 3600)))
        assert code == 0, error
    times = [commit["time"] for commit in commits_of(top(store))]
    assert times[2] == times[1] + 1 and times[3] == times[1] + 2 and times[4] > times[1] + 10 ** 9
    told = [commit["id"] for commit in json.loads(checkout("log", "--json", store).stdout)]
    assert told == [commit["id"] for commit in reversed(commits_of(top(store)))]


def test_what_is_damaged_edited_or_gone_is_named(store, tmp_path):
    for name in ("one", "two", "three"):
        save(store, name, {f"{name}.npy": np.arange(3)})
    whole = top(store) / "commits"
    kept = tmp_path / "kept"
    shutil.copytree(whole, kept)

    def refused(number, word):
        path = whole / f"{number:020}.json"
        for arguments in (["checkout", "ls", store], ["checkout", "log", store], ["ls", store], ["checkout", "export", store, tmp_path / "out.h5"]):
            done = npyfs(*arguments)
            assert done.returncode and str(path) in one_line(done.stderr) and word in done.stderr, done
        mounted = npyfs("mount", store, tmp_path)
        assert mounted.returncode and str(path) in mounted.stderr
        shutil.rmtree(whole)
        shutil.copytree(kept, whole)

    for number in (1, 2, 3):
        path = whole / f"{number:020}.json"
        text = path.read_text()
        path.write_text(text.replace('"message":""', '"message":"x"'))
        refused(number, "not what its id says")
        path.write_bytes(text.encode()[:70])
        refused(number, "not the whole commit")
        path.unlink()
        refused(number, "the commit is gone")
    (whole / f"{2:020}.json").write_bytes((whole / f"{3:020}.json").read_bytes())
    refused(2, "was made on")
    # What only saves time may go.
    (whole / "newest").unlink()
    with Mount(store) as mount:
        assert all((mount / f"{name}.npy").exists() for name in ("one", "two", "three"))
    save(store, "four", {"four.npy": np.arange(3)})
    assert len(commits_of(top(store))) == 4
