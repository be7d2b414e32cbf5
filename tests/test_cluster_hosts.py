"""Two hosts, each with a cache of its own, map over a store in a bucket, a prefix with files, and commit what they made; on a third, make rebuilds
what depends on what changed and nothing else. Judges: h5py on an export, NumPy on the files that were uploaded, and what make says.

NPYFS_CLUSTER_MIB is the size of the store: 16, or 2048 to measure (`pytest -s` prints the seconds)."""

import json
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.mount import until
from support.networks import Node, connected, lacking
from support.process import NPYFS

MIB = int(os.environ.get("NPYFS_CLUSTER_MIB", "16"))
PARTS = [f"part{number:02}" for number in range(16)]
RECIPE = Path(__file__).resolve().parent.parent / "docs/cookbook/dask-cluster"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + MIB)]

UPLOAD = """
import boto3, pathlib, sys
url, folder, bucket, prefix = sys.argv[1:]
for path in pathlib.Path(folder).iterdir():
    boto3.client("s3", endpoint_url=url).upload_file(str(path), bucket, prefix + path.name)
"""

# Maps over parts of the store: each worker reads from the Zarr view of its host and writes into its own checkout.
MAP = """
import json, sys, time
import numpy as np, zarr
from distributed import Client, get_worker
import npyfs_dask

def task(part, view, factor):
    array = zarr.open_array(f"{view}/{part}.h5/x", mode="r")
    out, checkout = get_worker().plugins["npyfs"].out()
    step = array.chunks[0]
    mean = sum(array[row:row + step].sum(axis=0, dtype="f8") for row in range(0, array.shape[0], step)) / array.shape[0]
    np.save(out / f"{part}.h5/mean.npy", mean * factor)
    return checkout

def main(scheduler, store, parts, factor, *options):
    with Client(scheduler, timeout=60) as client:
        client.wait_for_workers(4, timeout=60)
        client.register_plugin(npyfs_dask.Npyfs(store, *options))
        begin = time.monotonic()
        parts = json.loads(parts)
        tasks = client.map(task, parts, [str(npyfs_dask.FOLDER / "view")] * len(parts), [float(factor)] * len(parts), pure=False)
        checkouts = sorted(set(client.gather(tasks)))
        mapped = time.monotonic()
        npyfs_dask.commit(client, f"times {factor}", checkouts)
        print(json.dumps({"checkouts": checkouts, "map": mapped - begin, "commit": time.monotonic() - mapped}))

if __name__ == "__main__":
    main(*sys.argv[1:])
"""

MAKEFILE = """
all: $(patsubst mnt/%.h5/mean.npy,%.txt,$(wildcard mnt/*.h5/mean.npy))
%.txt: mnt/%.h5/mean.npy
\tpython3 -c 'import numpy as np, sys; print(repr(float(np.load("$<").sum())))' > $@
\t@echo made $@
"""


class Cluster:
    """A service with a bucket on one host, a scheduler and workers on two others; `options` are for every command."""

    def __init__(self, folder, hub, one, two):
        self.folder, self.hub, self.nodes = folder, hub, (one, two)
        server = hub.start(sys.executable, Path(__file__).with_name("support") / "s3_server.py", "0.0.0.0", stdin=subprocess.PIPE,
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        server.stdin.write(json.dumps({"data": []}) + "\n")
        server.stdin.flush()
        self.server = server
        self.url = f"http://{hub.address}:{int(server.stdout.readline())}"
        self.store = "s3://data/runs/"
        self.scheduler = f"tcp://{one.address}:8786"
        (folder / "map.py").write_text(MAP)
        self.log = open(folder / "dask.log", "w")
        dask = [sys.executable, "-m", "dask"]
        start = {"stdout": self.log, "stderr": self.log, "cwd": folder}
        one.start(*dask, "scheduler", "--host", one.address, "--port", "8786", "--no-dashboard", **start)
        for node in self.nodes:
            node.start(*dask, "worker", self.scheduler, "--host", node.address, "--no-dashboard", "--nworkers", "2", "--nthreads", "1",
                       "--memory-limit", "0", "--local-directory", node.folder, **start)

    def close(self):
        self.log.close()
        self.server.stdin.close()
        self.server.stdout.close()

    def map(self, parts, factor):
        done = self.nodes[0](sys.executable, "map.py", self.scheduler, self.store, json.dumps(parts), factor, *self.options, cwd=self.folder,
                             timeout=200 + MIB, code=None)
        assert done.returncode == 0, done.stderr[-3000:] + (self.folder / "dask.log").read_text()[-3000:]
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def cluster(tmp_path):
    why = lacking()
    if why:
        pytest.skip(f"{why}: two hosts with a network between them are NOT tested")
    pytest.importorskip("distributed", reason="dask.distributed is missing: two hosts are NOT tested")
    mounts = tmp_path / "mounts"
    mounts.mkdir()
    (tmp_path / "mnt").mkdir()

    def node(name):
        home = tmp_path / f"home-{name}"
        home.mkdir()
        env = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "XDG_STATE_HOME": str(home / "state"), "NPYFS_DASK": str(mounts),
               "PATH": f"{os.path.dirname(NPYFS)}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}", "PYTHONPATH": str(RECIPE),
               "AWS_ACCESS_KEY_ID": "known", "AWS_SECRET_ACCESS_KEY": "to-all", "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1",
               "AWS_EC2_METADATA_DISABLED": "true"}
        # What is mounted on one host is on no other.
        return Node(name, private=[mounts], env=env, limit=280 + MIB)

    with node("hub") as hub, node("one") as one, node("two") as two, connected(hub, one, two):
        cluster = Cluster(tmp_path, hub, one, two)
        try:
            yield cluster
        finally:
            cluster.close()


def write(folder):
    """A store of so many MiB: files with an array in chunks of 1 MiB."""
    random = np.random.default_rng(5)
    folder.mkdir()
    for part in PARTS:
        with h5py.File(folder / f"{part}.h5", "w") as file:
            made = file.create_dataset("x", (MIB // len(PARTS) * 16, 1 << 14), "f4", chunks=(16, 1 << 14))
            for row in range(0, len(made), 256):
                made[row:row + 256] = random.random((min(256, len(made) - row), 1 << 14), dtype="f4")


def mean_of(folder, part, factor):
    with h5py.File(folder / f"{part}.h5") as file:
        x = file["x"]
        return sum(x[row:row + 16].sum(axis=0, dtype="f8") for row in range(0, len(x), 16)) / len(x) * factor


@contextmanager
def third_host(cluster):
    """What make rebuilds on the third host, whose one mount follows what others commit: a function that waits for a number of commits."""
    host, point = cluster.hub, cluster.folder / "mnt"
    host(NPYFS, "mount", "-o", "follow=1", *cluster.options, cluster.store, point)

    def make(commits):
        shown = f"import json; print(json.load(open('{point}/.npyfs/status.json'))['follow']['commit'])"
        until(lambda: host(sys.executable, "-c", shown).stdout.split() == [str(commits)], f"commit {commits} on the third host")
        # The kernel may believe for a second what it knows.
        time.sleep(1.5)
        return sorted(re.findall(r"made (\w+)\.txt", host("make", cwd=cluster.folder).stdout))

    try:
        yield make
    finally:
        host(NPYFS, "umount", point)


@pytest.mark.sample("cluster", 1)
@pytest.mark.parametrize("place", ["a shared directory", "a bucket"])
def test_two_hosts_map_and_commit_and_make_rebuilds_what_changed(cluster, place):
    local = cluster.folder / "runs"
    write(local)
    begin = time.monotonic()
    cluster.hub(sys.executable, "-c", UPLOAD, cluster.url, local, "data", "runs/", timeout=100 + MIB)
    uploaded = time.monotonic() - begin
    shared = cluster.folder / "checkouts"
    shared.mkdir()
    cluster.options = ["-o", f"endpoint={cluster.url}", "--checkouts", "s3://data/runs.checkouts/" if place == "a bucket" else str(shared)]
    (cluster.folder / "Makefile").write_text(MAKEFILE)

    with third_host(cluster) as make:
        first = cluster.map(PARTS, 1)
        # Both hosts took part.
        assert {name.partition("-")[0] for name in first["checkouts"]} == {"one", "two"}
        wanted = {part: mean_of(local, part, 1) for part in PARTS}
        commits = len(first["checkouts"])
        assert make(commits) == PARTS
        assert make(commits) == []

        changed = [PARTS[3], PARTS[8]]
        commits += len(cluster.map(changed, 2)["checkouts"])
        wanted |= {part: mean_of(local, part, 2) for part in changed}
        assert make(commits) == changed
        assert make(commits) == []

    for part, array in wanted.items():
        assert float((cluster.folder / f"{part}.txt").read_text()) == pytest.approx(array.sum(), rel=1e-6)
    out = cluster.folder / "out"
    cluster.hub(NPYFS, "checkout", "export", *cluster.options, cluster.store, out, timeout=100 + MIB)
    assert sorted(path.stem for path in out.iterdir()) == PARTS
    for part, array in wanted.items():
        with h5py.File(out / f"{part}.h5") as file, h5py.File(local / f"{part}.h5") as old:
            assert set(file) == {"x", "mean"}
            np.testing.assert_allclose(file["mean"][()], array, rtol=1e-9)
            np.testing.assert_array_equal(file["x"][::7], old["x"][::7])
    # Each host fetched what its workers read, into a cache of its own.
    for node in cluster.nodes:
        assert any(path.is_file() for path in Path(node.env["XDG_CACHE_HOME"]).rglob("*"))
    print(f"\n{MIB} MiB in a bucket, checkouts in {place}: uploaded in {uploaded:.1f} s, mapped in {first['map']:.1f} s, "
          f"{len(first['checkouts'])} checkouts committed in {first['commit']:.2f} s")
