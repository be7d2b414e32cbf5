"""Two hosts, each with a cache of its own, map over a store in a bucket and commit what they made; on a third, make rebuilds what depends on what
changed and nothing else. Judges: h5py on an export, NumPy on the file that was uploaded, and what make says.

NPYFS_CLUSTER_MIB is the size of the store: 16, or 2048 to measure (`pytest -s` prints the seconds)."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.networks import Node, connected, lacking
from support.process import NPYFS

MIB = int(os.environ.get("NPYFS_CLUSTER_MIB", "16"))
PARTS = 16
RECIPE = Path(__file__).resolve().parent.parent / "docs/cookbook/dask-cluster"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + MIB)]

UPLOAD = """
import boto3, sys
url, path, bucket, key = sys.argv[1:]
boto3.client("s3", endpoint_url=url).upload_file(path, bucket, key)
"""

# Maps over parts of the store: each worker reads from the Zarr view of its host and writes into its own checkout.
MAP = """
import json, sys, time
import numpy as np, zarr
from distributed import Client, get_worker
import npyfs_dask

def task(part, path, factor):
    rows = zarr.open_array(path, mode="r")
    count = rows.shape[0] // PARTS
    out, checkout = get_worker().plugins["npyfs"].out()
    np.save(out / f"mean{part:02}.npy", rows[part * count:(part + 1) * count].mean(axis=0, dtype="f8") * factor)
    return checkout

def main(scheduler, store, parts, factor, *options):
    with Client(scheduler, timeout=60) as client:
        client.wait_for_workers(4, timeout=60)
        client.register_plugin(npyfs_dask.Npyfs(store, *options))
        begin = time.monotonic()
        parts = json.loads(parts)
        tasks = client.map(task, parts, [str(npyfs_dask.FOLDER / "view/x")] * len(parts), [float(factor)] * len(parts), pure=False)
        checkouts = sorted(set(client.gather(tasks)))
        mapped = time.monotonic()
        npyfs_dask.commit(client, f"times {factor}", checkouts)
        print(json.dumps({"checkouts": checkouts, "map": mapped - begin, "commit": time.monotonic() - mapped}))

if __name__ == "__main__":
    main(*sys.argv[1:])
""".replace("PARTS", str(PARTS))

MAKEFILE = """
all: $(patsubst mnt/%.npy,%.txt,$(wildcard mnt/mean*.npy))
%.txt: mnt/%.npy
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
        self.store = "s3://data/x.h5"
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


def write(path):
    """A store of so many MiB, in chunks of 1 MiB."""
    random = np.random.default_rng(5)
    with h5py.File(path, "w") as file:
        made = file.create_dataset("x", (MIB * PARTS, 1 << 14), "f4", chunks=(16, 1 << 14))
        for row in range(0, len(made), 256):
            made[row:row + 256] = random.random((min(256, len(made) - row), 1 << 14), dtype="f4")


def means(path, parts, factor):
    with h5py.File(path) as file:
        count = len(file["x"]) // PARTS
        return {f"mean{part:02}": file["x"][part * count:(part + 1) * count].mean(axis=0, dtype="f8") * factor for part in parts}


def make(cluster):
    """What make rebuilds on the third host, whose mount is anew and sees what was committed."""
    host = cluster.hub
    host(NPYFS, "mount", *cluster.options, cluster.store, cluster.folder / "mnt")
    try:
        said = host("make", cwd=cluster.folder).stdout
    finally:
        host(NPYFS, "umount", cluster.folder / "mnt")
    return sorted(re.findall(r"made (mean\d+)\.txt", said))


@pytest.mark.parametrize("place", ["a shared directory"])
def test_two_hosts_map_and_commit_and_make_rebuilds_what_changed(cluster, place):
    local = cluster.folder / "x.h5"
    write(local)
    begin = time.monotonic()
    cluster.hub(sys.executable, "-c", UPLOAD, cluster.url, local, "data", "x.h5", timeout=100 + MIB)
    uploaded = time.monotonic() - begin
    shared = cluster.folder / "checkouts"
    shared.mkdir()
    cluster.options = ["-o", f"endpoint={cluster.url}", "--checkouts", "s3://data/x.checkouts/" if place == "a bucket" else str(shared)]
    (cluster.folder / "Makefile").write_text(MAKEFILE)

    everything = list(range(PARTS))
    first = cluster.map(everything, 1)
    # Both hosts took part; nobody's checkout is missing.
    assert {name.partition("-")[0] for name in first["checkouts"]} == {"one", "two"}
    wanted = means(local, everything, 1)
    assert make(cluster) == sorted(wanted)
    assert make(cluster) == []

    changed = [3, 8]
    cluster.map(changed, 2)
    wanted |= means(local, changed, 2)
    assert make(cluster) == ["mean03", "mean08"]
    assert make(cluster) == []

    for name, array in wanted.items():
        assert float((cluster.folder / f"{name}.txt").read_text()) == pytest.approx(array.sum(), rel=1e-6)
    out = cluster.folder / "out.h5"
    cluster.hub(NPYFS, "checkout", "export", *cluster.options, cluster.store, out, timeout=100 + MIB)
    with h5py.File(out) as file, h5py.File(local) as old:
        assert set(file) == {"x", *wanted}
        for name, array in wanted.items():
            np.testing.assert_allclose(file[name][()], array, rtol=1e-6)
        np.testing.assert_array_equal(file["x"][::97], old["x"][::97])
    # Each host fetched what its workers read, into a cache of its own.
    for node in cluster.nodes:
        assert list(Path(node.env["XDG_CACHE_HOME"]).rglob("*"))
    print(f"\n{MIB} MiB in {place}: uploaded {uploaded:.1f} s, mapped {first['map']:.1f} s, {len(first['checkouts'])} commits "
          f"{first['commit']:.2f} s")
