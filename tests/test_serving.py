"""How the kernel's requests are served: one program in a row where it runs, others whatever that one does, and all of it
the usual way where npyfs may not. Judge: bytes known beforehand, and that the others get theirs."""

import os
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

from support import hangar
from support.mount import Mount, until
from support.process import process_start
from support.truth import np_save

# Without the right to change scheduling back and forth.
UNPRIVILEGED = ["setpriv", "--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice"]

TRUTH = {"x.npy": np.arange(10.0), "group/y.npy": np.arange(6, dtype="<i2").reshape(2, 3)}

ASK = '''
import os, sys
point, go_on = sys.argv[1:]
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def ask():
    for name in ("x.npy", "group/y.npy", "none"):
        try:
            os.close(os.open(f"{point}/{name}", os.O_RDONLY))
        except FileNotFoundError:
            pass
for _ in range(1000):
    ask()
print("asked", flush=True)
while not os.path.exists(go_on):
    pass  # never sleeps
ask()
'''


def may_change_scheduling():
    if os.geteuid() != 0:
        pytest.skip("needs root: serving a program where it runs")


def read_all(point):
    for name, array in TRUTH.items():
        fd = os.open(point / name, os.O_RDONLY)
        try:
            assert os.read(fd, 1 << 16) == np_save(array)
        finally:
            os.close(fd)


@pytest.mark.alone
def test_one_program_is_served_where_it_runs(session_store):
    """By the counter of such answers, which may be reached late: the answers are the same wherever they are made."""
    may_change_scheduling()
    with Mount(session_store) as mount:
        before = mount.status()["same_processor"]["answers"]

        def served():
            for _ in range(100):
                read_all(mount.path)
            return mount.status()["same_processor"]["answers"] > before + 20

        until(served, "answers on the processor of this thread")
        # Threads of the daemon that answered that way do not stay idle when somebody else asks.
        others = [threading.Thread(target=lambda: [read_all(mount.path) for _ in range(200)]) for _ in range(4)]
        for other in others:
            other.start()
        for other in others:
            other.join()
        read_all(mount.path)


@pytest.mark.alone
def test_a_program_that_computes_holds_up_nobody(session_store, tmp_path):
    may_change_scheduling()
    with Mount(session_store) as mount:
        script, go_on = tmp_path / "ask.py", tmp_path / "go on"
        script.write_text(ASK)
        first = subprocess.Popen([sys.executable, script, mount.path, go_on], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        try:
            assert first.stdout.readline() == b"asked\n"
            start = process_start(first.pid)
            for _ in range(20):
                read_all(mount.path)
                assert sorted(os.listdir(mount.path)) == ["group", "x.npy"]
            assert process_start(first.pid) == start, "the first program has ended: nothing was tested"
            go_on.touch()
            assert first.wait(60) == 0
        finally:
            first.kill()
            first.wait(20)
            first.stdout.close()


def test_without_the_right_it_is_served_the_usual_way(session_store):
    assert shutil.which("setpriv"), "setpriv (util-linux) is missing"
    with Mount(session_store, prefix=UNPRIVILEGED) as mount:
        for _ in range(300):
            read_all(mount.path)
        assert "not permitted" in mount.status()["same_processor"]


def test_scheduling_is_switched_off_by_an_option(session_store):
    with Mount(session_store, options="scheduling=off") as mount:
        for _ in range(100):
            read_all(mount.path)
        assert mount.status()["same_processor"] == "switched off"


@pytest.mark.parametrize("prefix", [[], UNPRIVILEGED], ids=["root", "unprivileged"])
def test_many_small_samples_are_staged_either_way(tmp_path, prefix):
    arrays = {str(i): np.full((4, 3), i, "i4") for i in range(1000)}
    source, path = tmp_path / "source", tmp_path / "repository"
    source.mkdir()
    for name, array in arrays.items():
        np.save(source / f"{name}.npy", array)
    hangar.script(EMPTY, path)
    with Mount(path, checkout="w", prefix=prefix) as mount:
        # Two at once, each half of them.
        halves = [[source / f"{name}.npy" for name in arrays if int(name) % 2 == half] for half in (0, 1)]
        copies = [subprocess.Popen(["cp", *half, mount / "stage/a"], stdin=subprocess.DEVNULL) for half in halves]
        try:
            assert [copy.wait(60) for copy in copies] == [0, 0]
        finally:
            for copy in copies:
                copy.kill()
                copy.wait(20)
        assert sorted(os.listdir(mount / "stage/a")) == sorted(f"{name}.npy" for name in arrays)
    assert hangar.script(STAGED, path) == {name: array.tolist() for name, array in arrays.items()}


EMPTY = '''
repo = repository(sys.argv[1])
with contextlib.redirect_stdout(io.StringIO()):
    co = repo.checkout(write=True)
    co.add_ndarray_column("a", prototype=np.zeros((4, 3), "i4"))
    co.commit("empty")
    co.close()
'''

STAGED = '''
with contextlib.redirect_stdout(io.StringIO()):
    co = Repository(sys.argv[1]).checkout(write=True)
    found = {str(name): co["a"][name].tolist() for name in co["a"]}
    co.close()
print(json.dumps(found))
'''
