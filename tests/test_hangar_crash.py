"""A daemon that is killed, and writers that contend for the lock: Hangar finds a sound repository each time."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from support import hangar
from support.mount import Mount, clear, until
from support.process import npyfs
from support.sampling import Sample
from support.truth import np_save
from test_hangar_commit import STAGE, commit, files
from test_hangar_stage import samples, sync

SAMPLE = Sample(__file__, "hangar")
ROUNDS = SAMPLE.count(4, 40)
TURNS = SAMPLE.count(15, 50, "turns of two writers")
# Each look reads all that was written before: so many rounds in one repository, then a new one.
LOT = 20

# Opens the repository as Hangar does after somebody's crash, reads everything, and says what it found.
LOOK = '''
path = sys.argv[1]
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    repo = Repository(path)
    locked = repo.writer_lock_held
    co = repo.checkout(write=True)
    staged = columns(co)
    status = co.diff.status()
    co.close()
print(json.dumps({"locked": locked, "staged": staged, "status": status}))
'''

# Writes samples one after the other and says which were staged for certain.
COPY = '''
import os, sys
import numpy as np
stage, seed = sys.argv[1:]
seed = int(seed)
done = 0
while True:
    for i in range(7):
        value = np.full((5, 4), 1000 * seed + done, "f4")
        with open(f"{stage}/a/r{seed}_{done}.npy", "wb") as file:
            np.lib.format.write_array(file, value)
        with open(f"{stage}/text/r{seed}_{done}.txt", "w") as file:
            file.write(f"{seed} {done}")
        done += 1
    fd = os.open(stage, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    print(done, flush=True)
'''


@pytest.mark.slow
@pytest.mark.timeout(60 + 30 * LOT)
@pytest.mark.parametrize("first", range(0, ROUNDS, LOT))
def test_kill_at_any_time(tmp_path, first):
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    commit(path, "first")
    chance = SAMPLE.random(first)
    synced = {}
    for seed in range(first, min(first + LOT, ROUNDS)):
        with Mount(path, checkout="work") as m:
            copier = subprocess.Popen([sys.executable, "-c", COPY, m / "stage", str(seed)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            try:
                until(lambda: os.path.exists(m / f"stage/a/r{seed}_0.npy"), "the first sample")
                time.sleep(chance.uniform(0, 1.5))
                os.kill(m.pid, signal.SIGKILL)
                m.expect_dead = True
                until(lambda: copier.poll() is not None, "the copier")
                lines = copier.stdout.read().split()
            finally:
                copier.kill()
                copier.wait(20)
                copier.stdout.close()
            clear(m.path)
        synced[seed] = int(lines[-1]) if lines else 0
        # The process that has the lock ends a moment after its daemon.
        until(lambda: "writer lock" not in npyfs("checkout", "status", path, check=True).stdout, "the lock")
        found = hangar.script(LOOK, path)
        assert not found["locked"]
        staged = samples(found)
        for done, count in synced.items():
            for i in range(count):
                assert (f"r{done}_{i}",) in staged["a"] and (f"r{done}_{i}",) in staged["text"], (seed, done, i)
        marked = files(path)
        assert marked["stage_data"] <= marked["data"], "a marker without data"
        if seed % 4 == 3:
            commit_or_clean(path)
            verified = hangar.script('''
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    good = Repository(sys.argv[1]).verify_repo_integrity()
print(json.dumps(good))
''', path)
            assert verified is True
    assert sum(synced.values()) > 0
    # What never got its row goes when the checkout is next opened.
    with Mount(path, checkout="work"):
        pass
    commit_or_clean(path)
    left = files(path)
    assert left["data"] == left["store_data"]


def commit_or_clean(path):
    if "nothing is staged" not in npyfs("checkout", "status", path, check=True).stdout:
        commit(path, "the rest")


@pytest.mark.slow
@pytest.mark.timeout(270)
def test_two_writers_contend(tmp_path):
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    commit(path, "first")
    other = hangar.start('''
path, rounds = sys.argv[1], int(sys.argv[2])
done = []
import time
for i in range(rounds):
    while True:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                co = Repository(path).checkout(write=True)
                co["text"][f"hangar{i}"] = f"hangar {i}"
                co["a"][f"hangar{i}"] = np.full((5, 4), 10_000 + i, "f4")
                co.close()
            break
        except PermissionError:
            time.sleep(0.005)
print("done", flush=True)
''', path, TURNS)
    try:
        with Mount(path, checkout="work", limit=260) as m:
            for i in range(TURNS):
                (m / f"stage/text/ours{i}.txt").write_text(f"ours {i}")
                (m / f"stage/a/ours{i}.npy").write_bytes(np_save(np.full((5, 4), 20_000 + i, "f4")))
                end = time.monotonic() + 60
                while True:
                    try:
                        sync(m)
                        break
                    except OSError:
                        assert time.monotonic() < end
                        time.sleep(0.005)
            assert other.stdout.readline().strip() == "done"
            assert other.wait(60) == 0
    finally:
        other.kill()
        other.wait(20)
        other.stdin.close()
        other.stdout.close()
    found = hangar.script(LOOK, path)
    staged = samples(found)
    for i in range(TURNS):
        for who in ("ours", "hangar"):
            assert (f"{who}{i}",) in staged["text"] and (f"{who}{i}",) in staged["a"], (who, i)
    assert not found["locked"]
    commit(path, "both")
    assert hangar.script('''
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    good = Repository(sys.argv[1]).verify_repo_integrity()
print(json.dumps(good))
''', path) is True
