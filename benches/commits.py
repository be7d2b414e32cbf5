#!/usr/bin/env python3
"""Commits of different objects by processes that run at the same time: commits per second, and how long one takes.

    NPYFS_BIN=... python3 commits.py [--in disk,moto,azurite] [--only npyfs,icechunk] [--processes P] [--commits C]
                                     [--dir DIR] [--rounds R] [--apart]

On a disk (--dir) 4 processes make 200 commits each, in a bucket 16 processes make 50 each. In a bucket Icechunk does
the same, in turn, on a server of the same kind. A commit of Icechunk is a new array of three numbers.

npyfs: the changes were written before. Each commit is a process `npyfs checkout commit`, and its start counts. The
processes of one host wait for each other. With --apart each process acts as a host of its own.

Icechunk: the processes run already and have opened the repository. "commits" counts the session, the array and the
commit, as each commit needs a new session. "alone" counts the commit only.

Afterwards each commit must be there once, and each array with its value.

Needs the Python of the tests (h5py, boto3, moto). Icechunk goes into an environment in the cache of the other benches."""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import h5py  # noqa: E402
import numpy as np  # noqa: E402

from support import hosts  # noqa: E402
from support.buckets import S3, Azure  # noqa: E402
from support.checkouts import commits_of, write_plain  # noqa: E402
from support.mount import Mount  # noqa: E402
from support.process import NPYFS  # noqa: E402

# The newest release for Python 3.11.
PINS = ["icechunk==1.1.21", "zarr==3.1.6", "numpy==2.4.6"]
LIMIT = 1200  # seconds for one side of a round


def environment():
    """The Python with Icechunk, made where it is missing."""
    cache = os.environ.get("NPYFS_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "npyfs"
    venv = Path(cache) / "bench-icechunk"
    key, wanted = venv / ".key", "\n".join([sys.version, *PINS])
    if not key.exists() or key.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        subprocess.run([venv / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *PINS], check=True)
        key.write_text(wanted)
    return venv / "bin/python"


def say(title, seconds, whole, more=""):
    print(f"{title}: {len(seconds)} of {len(seconds)} commits, none twice, {len(seconds) / whole:.1f} commits/s, "
          f"median {statistics.median(seconds) * 1000:.0f} ms, 99th percentile {statistics.quantiles(seconds, n=100)[98] * 1000:.0f} ms{more}", flush=True)


def commit_all(store, names, options, envs):
    """Commits by a process each, the names of each list in turn, all lists at the same time. Returns the seconds of each, and of all."""
    def run(own, env):
        seconds = []
        for name in own:
            start = time.perf_counter()
            done = subprocess.run([NPYFS, "checkout", "commit", *options, store, name], env=env, capture_output=True, text=True, timeout=LIMIT)
            assert done.returncode == 0, f"{name}: exit code {done.returncode}: {done.stderr}"
            seconds.append(time.perf_counter() - start)
        return seconds

    start = time.perf_counter()
    with ThreadPoolExecutor(len(names)) as pool:
        seconds = [second for own in pool.map(run, names, envs) for second in own]
    return seconds, time.perf_counter() - start


def all_names(processes, each):
    return [[f"p{process}n{number}" for number in range(each)] for process in range(processes)]


def on_disk(folder, processes, each):
    library = hosts.build(folder)
    for title, env in (("one host", None), ("locks that nobody sees", hosts.elsewhere(library))):
        place = folder / title.replace(" ", "-")
        place.mkdir()
        store, names = place / "x.h5", all_names(processes, each)
        write_plain(store)
        flat = sorted(name for own in names for name in own)
        hosts.make_layers(store, flat)
        seconds, whole = commit_all(store, names, [], [env] * processes)
        layers = [commit["layer"] for commit in commits_of(store.with_name("x.h5.checkouts"))]
        assert sorted(layers) == flat, "a commit is missing, or there twice"
        say(f"disk, {title}, npyfs", seconds, whole)
        shutil.rmtree(place)


class Npyfs:
    """Checkouts in a bucket over a store on this disk; with `apart` each process is a host of its own, as far as what it keeps tells."""

    def __init__(self, where, folder, processes, each, apart):
        self.apart = apart
        self.names, self.store = all_names(processes, each), folder / "x.h5"
        self.where, self.folder = where, folder
        self.env = {**os.environ, **where["env"], "XDG_CACHE_HOME": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state")}
        self.place = f"{where['scheme']}://{where['bucket']}/x.checkouts/"
        self.options = ["-o", f"endpoint={where['url']}", "--checkouts", self.place]

    def prepare(self):
        """A checkout for each commit, with one array."""
        write_plain(self.store)

        # Processes: while one thread starts a program, this holds what others have open, and their mounts are busy.
        with ProcessPoolExecutor(8) as pool:
            list(pool.map(self.write, enumerate(name for own in self.names for name in own)))

    def write(self, numbered):
        number, name = numbered
        with Mount(self.store, f"endpoint={self.where['url']}", checkout=name, checkouts=self.place, env=self.env, limit=LIMIT) as mount:
            np.save(mount / f"{name}.npy", np.full(3, number))

    def run(self):
        own = [{**self.env, "XDG_STATE_HOME": str(self.folder / f"state{number}")} for number in range(len(self.names))]
        seconds, whole = commit_all(self.store, self.names, self.options, own if self.apart else [self.env] * len(own))
        return seconds, whole, ""

    def judge(self):
        listed = subprocess.run([NPYFS, "checkout", "log", "--json", *self.options, self.store], env=self.env, check=True, capture_output=True).stdout
        flat = [name for own in self.names for name in own]
        assert sorted(commit["checkout"] for commit in json.loads(listed)) == sorted(flat), "a commit is missing, or there twice"
        out = self.folder / "out.h5"
        subprocess.run([NPYFS, "checkout", "export", *self.options, self.store, out], env=self.env, check=True, stdout=subprocess.DEVNULL)
        with h5py.File(out) as file:
            for number, name in enumerate(flat):
                assert file[name][()].tolist() == [number] * 3, name


class Icechunk:
    def __init__(self, where, _folder, processes, each, _apart):
        self.command = [environment(), Path(__file__).with_name("icechunk_commits.py"), json.dumps({key: where[key] for key in where if key != "env"})]
        self.processes, self.each = processes, each

    def call(self, *words):
        subprocess.run([*self.command, *map(str, words)], check=True, timeout=LIMIT)

    def prepare(self):
        self.call("create")

    def run(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        workers = [subprocess.Popen([*self.command, "work", str(process), str(self.each)], **pipes) for process in range(self.processes)]
        try:
            for worker in workers:
                assert "ready\n" in worker.stdout, "a process of Icechunk has failed"
            start = time.perf_counter()
            for worker in workers:
                worker.stdin.write("go\n")
                worker.stdin.flush()
            # Icechunk's own messages go there, too.
            said = [json.loads(next(line for line in worker.stdout if line.startswith("{"))) for worker in workers]
            whole = time.perf_counter() - start
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
                worker.stdin.close()
                worker.stdout.close()
        alone = [second for one in said for second in one["alone"]]
        more = f"; alone: median {statistics.median(alone) * 1000:.0f} ms, 99th percentile {statistics.quantiles(alone, n=100)[98] * 1000:.0f} ms"
        return [second for one in said for second in one["all"]], whole, more

    def judge(self):
        self.call("judge", self.processes, self.each)


@contextlib.contextmanager
def service(name):
    """A server with an empty bucket, and how to reach it."""
    with S3(bench=[]) if name == "moto" else Azure() as served:
        if name == "moto":
            yield {"kind": "s3", "scheme": "s3", "bucket": "bench", "url": served.url, "env": served.env, "key": served.env["AWS_ACCESS_KEY_ID"],
                   "secret": served.env["AWS_SECRET_ACCESS_KEY"]}
        else:
            served.put("bench", "begun", b"")
            yield {"kind": "azure", "scheme": "az", "bucket": "bench", "url": served.url, "env": served.env, "key": Azure.ACCOUNT, "secret": Azure.KEY}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--in", dest="places", default="disk", help="disk, moto, azurite, with commas between them")
    parser.add_argument("--only", default="npyfs,icechunk")
    parser.add_argument("--apart", action="store_true", help="in buckets: each process is as on a host of its own")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--commits", type=int)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--dir", type=Path)
    asked = parser.parse_args()
    for place in [place for place in asked.places.split(",") for _ in range(asked.rounds)]:
        processes, each = asked.processes or (4 if place == "disk" else 16), asked.commits or (200 if place == "disk" else 50)
        print(f"# {place}: {processes} processes x {each} commits", flush=True)
        if place == "disk":
            with tempfile.TemporaryDirectory(dir=asked.dir) as folder:
                on_disk(Path(folder), processes, each)
            continue
        for side in (Npyfs, Icechunk):
            if side.__name__.lower() not in asked.only.split(","):
                continue
            # A server each, so that the second does not meet what the first has left.
            with service(place) as where, tempfile.TemporaryDirectory(dir=asked.dir) as folder:
                work = side(where, Path(folder), processes, each, asked.apart)
                work.prepare()
                seconds, whole, more = work.run()
                work.judge()
                say(f"{place}, {side.__name__.lower()}", seconds, whole, more)


if __name__ == "__main__":
    main()
