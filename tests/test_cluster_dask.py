"""The worker plugin of docs/cookbook/dask-cluster where hosts and workers do not end well. Judges: the kernel's table of mounts, and h5py on
what an export has."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.documents import guarded
from support.mount import mounts, until
from support.process import NPYFS, npyfs

RECIPE = Path(__file__).resolve().parent.parent / "docs/cookbook/dask-cluster"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.sample("cluster", 1, together=True)]

# Workers as a user starts them: on one machine, processes with a nanny each. Commands come on standard input, so that the test can end what it likes.
PROGRAM = """
import json, os, sys
import numpy as np, zarr
from distributed import Client, LocalCluster, get_worker
import npyfs_dask

def task(number, path):
    rows = zarr.open_array(path, mode="r")[:]
    out, checkout = get_worker().plugins["npyfs"].out()
    np.save(out / f"sum{number}.npy", rows.sum() + number)
    return checkout

def say(thing):
    print(json.dumps(thing), flush=True)

def main(store):
    with LocalCluster(n_workers=3, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1") as cluster:
        with Client(cluster) as client:
            client.register_plugin(npyfs_dask.Npyfs(store))
            path = npyfs_dask.FOLDER / "view/x"
            for line in sys.stdin:
                word, *rest = line.split()
                if word == "pids":
                    say(sorted(client.run(os.getpid).values()))
                elif word == "map":
                    futures = client.map(task, range(6), [path] * 6, pure=False, retries=0)
                    try:
                        checkouts = client.gather(futures)
                        say(sorted(set(checkouts)))
                    except Exception as error:
                        say(f"{type(error).__name__}: {error}")
                elif word == "commit":
                    try:
                        npyfs_dask.commit(client, "from dask", checkouts)
                        say("committed")
                    except Exception as error:
                        say(f"{type(error).__name__}: {error}")
                elif word == "restart":
                    client.restart(timeout=60)
                    say("restarted")

if __name__ == "__main__":
    main(sys.argv[1])
"""


@pytest.fixture
def store(tmp_path):
    pytest.importorskip("distributed", reason="dask.distributed is missing: the plugin for it is NOT tested")
    path = tmp_path / "store.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(1000.0), chunks=(100,), compression="gzip")
    return path


@contextmanager
def cluster(store, folder, killed=False):
    """A client that does what it is asked, by words; `process` is its own. With `killed` the test kills it."""
    (folder / "program.py").write_text(PROGRAM)
    with guarded(folder, 280) as (name, _, value):
        env = {**os.environ, "PATH": f"{os.path.dirname(NPYFS)}:{os.environ['PATH']}", "PYTHONPATH": str(RECIPE), "TMPDIR": str(folder),
               "NPYFS_DASK": str(folder / "mounts"), name: value}
        with open(folder / "said", "w") as said:
            process = subprocess.Popen([sys.executable, folder / "program.py", store], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
                                       text=True, cwd=folder, env=env, start_new_session=True)

            def ask(word):
                process.stdin.write(word + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
                assert line, (folder / "said").read_text()
                return json.loads(line)

            ask.process = process
            try:
                yield ask
                process.stdin.close()
                assert killed or process.wait(60) == 0, (folder / "said").read_text()
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(20)
                process.stdout.close()
        until(lambda: below(folder) == [], "the guards that unmount", 30)


def below(folder):
    return sorted(point.removeprefix(f"{folder}/mounts/") for point in mounts() if point.startswith(f"{folder}/mounts/"))


def what_is_committed(store):
    """{name: value} of the arrays that are committed, in an export."""
    out = store.with_name("out.h5")
    out.unlink(missing_ok=True)
    npyfs("checkout", "export", store, out, check=True)
    with h5py.File(out) as file:
        return {name: float(item[()]) for name, item in file.items() if name != "x"}


TOTAL = float(np.arange(1000.0).sum())
ALL = {f"sum{number}": TOTAL + number for number in range(6)}


def daemon(point):
    return json.loads((point / ".npyfs/status.json").read_bytes())["pid"]


def test_workers_of_a_host_share_a_mount_and_each_has_a_checkout(store, tmp_path):
    with cluster(store, tmp_path) as ask:
        ask("pids")
        until(lambda: below(tmp_path) == ["view"], "one mount")
        checkouts = ask("map")
        assert below(tmp_path) == sorted(["view", *checkouts])
        assert what_is_committed(store) == {}
        assert ask("commit") == "committed"
        assert below(tmp_path) == ["view"]
        assert what_is_committed(store) == ALL


def test_a_worker_that_is_killed_has_committed_nothing_and_leaves_no_mount(store, tmp_path):
    with cluster(store, tmp_path) as ask:
        before = ask("map")
        for pid in ask("pids"):
            os.kill(pid, signal.SIGKILL)
        # The guards store what was written, and unmount; nobody takes it for whole.
        until(lambda: not set(below(tmp_path)) & set(before), "the guards that unmount")
        assert all(name in ask("commit") for name in before)
        assert what_is_committed(store) == {}
        after = ask("map")
        assert not set(after) & set(before)
        assert ask("commit") == "committed"
        assert what_is_committed(store) == ALL


def test_a_mount_whose_daemon_was_killed_is_replaced(store, tmp_path):
    with cluster(store, tmp_path) as ask:
        ask("map")
        assert ask("commit") == "committed"
        os.kill(daemon(tmp_path / "mounts/view"), signal.SIGKILL)
        assert "Error" in ask("map")
        ask("restart")
        ask("map")
        # The same arrays, from checkouts that were begun after the commit.
        assert ask("commit") == "committed"
        assert what_is_committed(store) == ALL


def test_nothing_stays_mounted_when_all_are_killed(store, tmp_path):
    with cluster(store, tmp_path, killed=True) as ask:
        checkouts = ask("map")
        assert below(tmp_path) == sorted(["view", *checkouts])
        for pid in [*ask("pids"), ask.process.pid]:
            os.kill(pid, signal.SIGKILL)
        until(lambda: below(tmp_path) == [], "the guards that unmount", 60)
    listed = npyfs("checkout", "ls", store, check=True).stdout
    assert all(name in listed for name in checkouts) and what_is_committed(store) == {}
