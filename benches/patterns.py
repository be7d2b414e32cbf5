"""Samples out of a memory map, in the patterns that programs have: npyfs, h5py and the real .npy file in turn.

    NPYFS_BIN=… python3 benches/patterns.py [--pairs 3] [--only pictures,table] [--stored NAME] [--pattern NAME] [--user NAME] [--busy N] [-o OPTIONS]

Pictures of 64 × 64 × 3 bytes (12 KiB, 234 MiB together), stored one or 64 a chunk, compressed or not; a table of
100 000 × 300 float32. Each run is a process of its own, with a new mount, and nothing of the data is in memory. The
programs stay in memory: dropping all caches would drop the program of the new mount, too. `again` repeats a pattern in
the same process. `--user` mounts and reads as another user, for whom the kernel reads ahead 128 KiB at most. `--busy`
keeps so many processors busy. Times are medians. The first factor is the median of h5py's time ÷ npyfs's time, the
second one that of the real file's time. `remote.py` (`map`) measures samples over a network.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PICTURES = (20_000, 64, 64, 3)
TABLE = (100_000, 300)
STORED = {
    "one a chunk, gzip": dict(chunks=(1, *PICTURES[1:]), compression="gzip"),
    "one a chunk, lzf": dict(chunks=(1, *PICTURES[1:]), compression="lzf"),
    "64 a chunk, gzip": dict(chunks=(64, *PICTURES[1:]), compression="gzip"),
    "one a chunk, none": dict(chunks=(1, *PICTURES[1:])),
    "contiguous": {},
}
TABLES = {"h5py's chunks, gzip": dict(chunks=True, compression="gzip"), "contiguous": {}}


# --- what is done: each takes a function that opens the array, and returns the seconds of each round

def picked(count, most, seed):
    return random.Random(seed).sample(range(most), count)


def touch(part):
    import numpy as np

    return np.array(part).nbytes


def one_by_one(opened, indices):
    start, taken = time.perf_counter(), []
    with opened() as array:
        for _ in range(2):
            for i in indices:
                touch(array[i])
            taken.append(time.perf_counter() - start)
            start = time.perf_counter()
    return taken


def once(opened, *parts):
    start = time.perf_counter()
    with opened() as array:
        for part in parts:
            touch(array[part])
        return [time.perf_counter() - start]


def loader(opened, indices):
    taken = []
    for _ in range(2):
        start = time.perf_counter()
        for i in indices:
            with opened() as array:
                touch(array[i])
        taken.append(time.perf_counter() - start)
    return taken


WORK = {
    "500 random a[i]": lambda opened, rows: one_by_one(opened, picked(500, rows, 1)),
    "60 random a[i:i+8]": lambda opened, rows: once(opened, *(slice(i, i + 8) for i in picked(60, rows - 8, 2))),
    "a[::100]": lambda opened, rows: once(opened, slice(None, None, 100)),
    "a[:256]": lambda opened, rows: once(opened, slice(256)),
    "200 x (open, a[i])": lambda opened, rows: loader(opened, picked(200, rows, 3)),
    "250 random a[i]": lambda opened, rows: one_by_one(opened, picked(250, rows, os.getpid())),
    "1000 rows in reverse": lambda opened, rows: once(opened, *range(rows // 2, rows // 2 - 1000, -1)),
    "a column": lambda opened, rows: once(opened, (slice(None), 7)),
    "1000 rows in order": lambda opened, rows: once(opened, slice(50_000, 51_000)),
}


def work(kind, where, pattern):
    """Runs in a process of its own."""
    import numpy as np

    @contextlib.contextmanager
    def mapped():
        yield np.load(where, mmap_mode="r")

    @contextlib.contextmanager
    def dataset():
        with h5py.File(where) as file:
            yield file["x"]

    opened = mapped if kind == "map" else dataset
    if kind == "h5py":
        import h5py  # noqa: F401 - not what is timed
    print("ready", flush=True)
    rows = json.loads(sys.stdin.readline())
    print(json.dumps(WORK[pattern](opened, rows)), flush=True)


# --- data

def pictures(folder):
    import h5py
    import numpy as np

    generator = np.random.default_rng(0)
    slopes = generator.integers(-2, 3, (PICTURES[0], 1, 1, 3))
    ramp = np.arange(64)[:, None, None] + np.arange(64)[None, :, None]
    real = np.lib.format.open_memmap(folder / "real.npy", "w+", "|u1", PICTURES)
    with contextlib.ExitStack() as stack:
        sets = []
        for name, how in STORED.items():
            file = stack.enter_context(h5py.File(folder / f"{name}.h5", "w"))
            sets.append(file.create_dataset("x", PICTURES, "|u1", **how))
        for at in range(0, PICTURES[0], 1024):
            here = slopes[at:at + 1024]
            part = (128 + here * ramp // 2 + generator.integers(0, 8, (len(here), *PICTURES[1:]))).astype("u1")
            real[at:at + len(part)] = part
            for dataset in sets:
                dataset[at:at + len(part)] = part


def tables(folder):
    import h5py
    import numpy as np

    table = np.random.default_rng(1).integers(0, 4096, TABLE).astype("<f4")
    np.save(folder / "real.npy", table)
    for name, how in TABLES.items():
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file.create_dataset("x", data=table, **how)


# --- measuring

class Bench:
    def __init__(self, asked, folder):
        from system import Npyfs

        self.asked, self.folder, self.mount = asked, folder, Npyfs
        self.point = folder / "mnt"
        self.point.mkdir()
        if asked.user:
            shutil.chown(self.point, asked.user)

    def run(self, processes, kind, where, data, pattern, rows):
        """The seconds of each round; of several processes the longest. `data` is the file that `where` is read from."""
        from system import forget, own_memory

        command = [sys.executable, __file__, "--work", kind, str(where), pattern]
        as_user = {"user": self.asked.user} if self.asked.user and kind == "map" else {}
        running = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **as_user) for _ in range(processes)]
        for process in running:
            assert process.stdout.readline() == "ready\n", f"{kind} {where} {pattern}"
        forget(data)
        own_memory()
        for process in running:
            process.stdin.write(f"{rows}\n")
            process.stdin.flush()
        taken = [json.loads(process.stdout.readline()) for process in running]
        for process in running:
            assert process.wait(60) == 0
        return [max(round_) for round_ in zip(*taken)]

    def row(self, store, real, pattern, rows, processes=1):
        """Medians and factors of one pattern on one store, one for each round."""
        found = {"npyfs": [], "h5py": [], "real": []}
        for _ in range(self.asked.pairs):
            with self.mounted(store) as mount:
                found["npyfs"].append(self.run(processes, "map", mount / "x.npy", store, pattern, rows))
            found["h5py"].append(self.run(processes, "h5py", store, store, pattern, rows))
            found["real"].append(self.run(processes, "map", real, real, pattern, rows))
        for number in range(len(found["npyfs"][0])):
            times = {who: [taken[number] for taken in runs] for who, runs in found.items()}
            factor = statistics.median(h / n for h, n in zip(times["h5py"], times["npyfs"]))
            of_real = statistics.median(r / n for r, n in zip(times["real"], times["npyfs"]))
            cells = [f"{statistics.median(times[who]) * 1e3:9.1f}" for who in ("npyfs", "h5py", "real")]
            what = pattern + (", again" if number else "") + (f", {processes} processes" if processes > 1 else "")
            print(f"{store.stem:20} {what:34} {' '.join(cells)} ms   {factor:6.2f} {of_real:6.2f}", flush=True)

    def mounted(self, store):
        return self.mount(store, self.point, options=self.asked.options, user=self.asked.user)

    def local(self, write, stores, patterns):
        folder = (self.asked.data or self.folder) / write.__name__
        if not folder.exists():
            folder.mkdir(parents=True)
            write(folder)
            os.sync()
        rows = PICTURES[0] if write is pictures else TABLE[0]
        for name in stores:
            if self.asked.stored and self.asked.stored not in name:
                continue
            for pattern in patterns:
                processes = 4 if pattern.startswith("250") else 1
                self.row(folder / f"{name}.h5", folder / "real.npy", pattern, rows, processes)


def main():
    if sys.argv[1:2] == ["--work"]:
        return work(*sys.argv[2:])
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--only", default="pictures,table")
    parser.add_argument("--stored", help="only stores with this in their name")
    parser.add_argument("--pattern", help="only patterns with this in their name")
    parser.add_argument("--user", help="mount and read as this user")
    parser.add_argument("--data", type=Path, metavar="DIR", help="where the data is, or is to stay")
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("-o", dest="options", default="", help="options of the mounts")
    parser.add_argument("--dir", type=Path)
    asked = parser.parse_args()
    from system import Npyfs, remove

    folder = Path(tempfile.mkdtemp(prefix="npyfs-bench-", dir=asked.dir)).resolve()
    folder.chmod(0o755)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(asked.busy)]
    try:
        Npyfs.binary = shutil.copy(os.environ["NPYFS_BIN"], folder / "npyfs")
        bench = Bench(asked, folder)
        print(f"{'stored':20} {'pattern':34} {'npyfs':>9} {'h5py':>9} {'real':>9}      {'÷h5py':>6} {'÷real':>6}")
        wanted = [pattern for pattern in WORK if not asked.pattern or asked.pattern in pattern]
        if "pictures" in asked.only:
            bench.local(pictures, STORED, [p for p in wanted if p not in ("a column", "1000 rows in order")])
        if "table" in asked.only:
            bench.local(tables, TABLES, [p for p in wanted if p in ("a column", "500 random a[i]", "1000 rows in order")])
    finally:
        for process in busy:
            process.kill()
        remove(folder)


if __name__ == "__main__":
    sys.exit(main())
