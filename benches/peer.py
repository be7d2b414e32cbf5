"""The peer: hdfuse 1.0.2. It has no state and reads a whole dataset for every read and every stat of it."""

import os
import re
import subprocess
import time
from pathlib import Path

from report import Row, measure
from system import COLD, ENVIRONMENT, BenchError, Mount, Npyfs, Sample, drop, finish, memory, mounted, run, timed


class Hdfuse(Mount):
    """A directory mounted by hdfuse: HDF5 files in it become directories, datasets files of raw bytes."""

    process = None

    def __init__(self, python, how, root, point, log, limit=300):
        super().__init__(point, limit)
        self.python, self.how, self.root, self.log = python, how, root, log

    def start(self):
        with open(self.log, "wb") as log:
            script = Path(__file__).with_name("peer_mount.py")
            self.process = subprocess.Popen([self.python, script, self.root, self.point, self.how],
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=ENVIRONMENT)
        self.pid = self.process.pid
        end = time.monotonic() + 30
        while not mounted(self.point):
            if self.process.poll() is not None or time.monotonic() > end:
                finish(self.process, 0)
                raise BenchError(f"hdfuse does not mount: {self.last_error()}")
            time.sleep(0.05)

    def stop(self):
        pass  # it may be deep in a read that nobody waits for any more: `clear` kills it

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def clear(self):
        if self.alive():
            self.process.kill()
            finish(self.process, 10)
        super().clear()

    def last_error(self):
        """The last Python error that it logged."""
        text = Path(self.log).read_text(errors="replace")
        errors = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception): .*", text, re.M)
        return errors[-1] if errors else text.strip().splitlines()[-1] if text.strip() else "no message"


def variants():
    """[(label, python, how)]: as pip installs it today, and one that can work."""
    today, old = os.environ.get("NPYFS_BENCH_PEER"), os.environ.get("NPYFS_BENCH_PEER_OLD")
    found = []
    for python, hows in ((today, ["plain"] if old else ["plain", "patched"]), (old, ["plain"])):
        if python:
            version = run([python, "-c", "import h5py; print(h5py.__version__)"]).strip()
            found += [(f"hdfuse{' patched' * (how == 'patched')}, h5py {version}", python, how) for how in hows]
    return found


class Peer:
    """hdfuse and npyfs in turn on the same stores; `small` and `large` are pairs (Arrays, Many)."""

    def __init__(self, folder, small, large, points, log, pairs, limit):
        self.folder, self.small, self.large = folder, small, large
        self.point, self.peer_point = points
        self.log, self.pairs, self.limit = log, pairs, limit

    def all(self):
        known = variants()
        if not known:
            row = Row("hdfuse 1.0.2", "-", "", "hdfuse")
            row.notes = {"npyfs": "-", "other": f"not run: {os.environ.get('NPYFS_BENCH_PEER_WHY', 'not installed')}"}
            yield row
        for label, python, how in known:
            try:
                yield from self.variant(label, python, how)
            except BenchError as problem:
                row = Row("hdfuse 1.0.2", "-", "", label)
                row.notes = {"npyfs": "-", "other": str(problem)}
                yield row

    def variant(self, label, python, how):
        section = f"hdfuse 1.0.2, at most {self.limit:g} s a run"
        works = True
        for arrays, many in (self.small, self.large):
            if not works:
                return
            pairs = self.pairs if arrays is self.small[0] else 1
            for dataset in ("gzip+shuffle", "contiguous"):
                row = Row(section, f"cat {dataset}, {arrays.payload >> 20} MiB", COLD, label, work=arrays.payload)
                self.one(row, arrays.store, ["cat"], f"{dataset}.npy", dataset, python, how, pairs)
                yield row
                works = works and bool(row.pairs)
            row = Row(section, f"ls -l of {many.count}", COLD, label)
            self.one(row, many.store, ["ls", "-l"], "g", "g", python, how, pairs)
            yield row

    def one(self, row, store, command, ours_name, name, python, how, pairs):
        seen = []

        def ours():
            with Npyfs(store, self.point) as mount:
                drop(3)
                sample = timed([*command, mount / ours_name], self.limit)
                seen.append(mount.memory())
                return sample

        with Hdfuse(python, how, self.folder, self.peer_point, self.log) as peer:
            target = peer / os.path.relpath(store, self.folder) / name

            def theirs():
                drop(3)
                sample = timed([*command, target], self.limit)
                used = memory(peer.pid)
                if sample.error:
                    lines = sample.error.splitlines()
                    failed = f"{len(lines)} x like {lines[0]} ({peer.last_error()})"
                    return Sample(None, failed.replace(f"{self.peer_point}/", ""))
                if sample.seconds is None and used:
                    sample.note += f", its memory {used[0]:.0f}/{used[1]:.0f} MiB"
                return sample

            measure([row], ours, [theirs], pairs, lambda: seen[-1])
