"""Epochs over an array that is larger than memory: kept copies (`-o keep=SIZE`) against a real .npy file.

    NPYFS_BIN=… python3 benches/epochs.py [--mib 8192] [--samples 10000] [--memory 4096] [--rounds 3] [--dir DIR]

The array is float32 in chunks of 1 MiB, blosc-zstd. An epoch opens the file, reads 1 MiB and closes it, for each of
--samples random samples. Mount, reader and page cache share --memory MiB (a cgroup, which only root can make). Epochs
alternate with those of the real file. `begun`: the first epochs, one after the other, while the copy is made. `kept`:
epochs of a new mount, after all of the copy was made.
Takes three times the array's size on disk."""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np

from data import HEADER, STORAGE, repeated
from system import BenchError, Npyfs, decoder_speed, timed

SIZE = 1 << 20


def write(folder, mib):
    with h5py.File(folder / "x.h5", "w") as file, open(folder / "real.npy", "wb") as real:
        repeated(file, "x", mib, STORAGE["blosc-zstd"], real)
    os.sync()


def drop():
    # `system.drop` fills memory beforehand, more than there is here.
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


class Bounded:
    """A cgroup of so many bytes; `with` it, this process is in it, and whatever it starts."""

    def __init__(self, limit):
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        old = next((own for _, names, own in lines if "memory" in names.split(",")), None)
        if old is not None:
            self.before, file = Path(f"/sys/fs/cgroup/memory{old}"), "memory.limit_in_bytes"
        else:
            own = next(own for number, names, own in lines if number == "0" and not names)
            self.before, file = Path(f"/sys/fs/cgroup{own}"), "memory.max"
        self.group = self.before / f"npyfs-epochs-{os.getpid()}"
        try:
            self.group.mkdir()
            (self.group / file).write_text(str(limit))
        except OSError as problem:
            with contextlib.suppress(OSError):
                self.group.rmdir()
            raise BenchError(f"no cgroup can be made: {problem}") from None

    def __enter__(self):
        (self.group / "cgroup.procs").write_text(str(os.getpid()))
        return self

    def __exit__(self, *_):
        (self.before / "cgroup.procs").write_text(str(os.getpid()))
        for _ in range(100):
            with contextlib.suppress(OSError):
                self.group.rmdir()
                return
            time.sleep(0.1)


def epoch(path, mib, samples, seed):
    chosen = np.random.default_rng(seed).integers(0, mib, samples)
    begin = time.perf_counter()
    for k in chosen.tolist():
        fd = os.open(path, os.O_RDONLY)
        read = len(os.pread(fd, SIZE, HEADER + k * SIZE))
        os.close(fd)
        assert read == SIZE, read
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=8192)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--memory", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--begun", type=int, default=3)
    parser.add_argument("--dir", type=Path)
    asked = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("epochs.py: needs root, for a cgroup")
    Npyfs.binary = os.environ["NPYFS_BIN"]
    with tempfile.TemporaryDirectory(dir=asked.dir) as folder:
        folder = Path(folder)
        write(folder, asked.mib)
        print(f"{asked.mib} MiB, {asked.samples} samples of 1 MiB, {asked.memory} MiB of memory; zlib inflates "
              f"{decoder_speed()} MB/s", flush=True)
        store, real, cache, point = (folder / name for name in ("x.h5", "real.npy", "cache", "mnt"))
        options = f"cache_dir={cache},keep={2 * asked.mib}M"
        take = lambda path, seed: epoch(path, asked.mib, asked.samples, seed)
        with Bounded(asked.memory << 20):
            drop()
            with Npyfs(store, point, limit=7200) as mount:
                print(f"not kept         {take(mount / 'x.npy', 1):7.2f} s", flush=True)
            drop()
            with Npyfs(store, point, limit=7200, options=options) as mount:
                for number in range(asked.begun):
                    seconds = take(mount / "x.npy", number)
                    kept = mount.status()["kept"]
                    shown = {name: kept.get(name) for name in ("made", "handed_on", "waiting", "passed_through", "not_kept")}
                    print(f"begun, epoch {number + 1}   {seconds:7.2f} s   {json.dumps(shown)}", flush=True)
            subprocess.run([Npyfs.binary, "keep", "-o", f"cache_dir={cache}", store, "x.npy"], check=True)
            os.sync()
            pairs = []
            with Npyfs(store, point, limit=7200, options=options) as mount:
                # The checksums of a copy that another process made are looked at first.
                timed(["cat", mount / "x.npy"], 3600)
                while mount.status()["kept"]["passed_through"] == 0 or mount.status()["kept"]["waiting"]:
                    epoch(mount / "x.npy", asked.mib, 1, 0)
                    time.sleep(0.1)
                for number in range(asked.rounds):
                    times = []
                    for path in (mount / "x.npy", real):
                        drop()
                        take(path, 2 * number)
                        times.append(take(path, 2 * number + 1))
                    pairs.append(times)
                    print(f"kept, 2nd epoch  {times[0]:7.2f} s   the real file {times[1]:7.2f} s   {times[1] / times[0]:.2f}",
                          flush=True)
            ratios = [b / a for a, b in pairs]
            print(f"kept: {statistics.median(ratios):.2f} x the speed of the real file ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
