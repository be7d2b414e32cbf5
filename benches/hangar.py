"""npyfs against real Hangar 0.5.2 on the same repository, in pairs; and listings of very many records.

    NPYFS_BIN=… NPYFS_HANGAR_PYTHON=… python3 benches/hangar.py [--pairs N] [--records N] [--dir DIR] [--only samples,stacked,listing]

Prints a table: what, npyfs, Hangar (or the file system), the median ratio of the pairs (above 1 npyfs is faster) and what is
asked for. Both sides run in a new Python process each time, which is not timed; Hangar's time begins when its
checkout is open. Before random samples both sides have read one other sample: files are open then. `tests/run` makes the Hangar environment."""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from system import BenchError, Npyfs, drop, machine, remove, run, timed

HERE = Path(__file__).resolve().parent
HANGAR = os.environ.get("NPYFS_HANGAR_PYTHON", "")

READ = '''
import os, random, sys, time
def order(path, total):
    """Each sample in turn, none kept, as the other side does it."""
    start = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size - 128
        file.seek(128)
        sample = bytearray(size // total)
        while file.readinto(sample):
            pass
    return time.perf_counter() - start
def whole(path):
    import numpy
    start = time.perf_counter()
    numpy.load(path)
    return time.perf_counter() - start
def samples(folder, total, count):
    chance = random.Random(count)
    keys = [chance.randrange(total) for _ in range(count)]
    size = os.stat(f"{folder}/0.npy").st_size
    def sample(key):
        file = os.open(f"{folder}/{key}.npy", os.O_RDONLY)
        os.read(file, size)
        os.close(file)
    sample(0)
    start = time.perf_counter()
    for key in keys:
        sample(key)
    return time.perf_counter() - start
what, path, *rest = sys.argv[1:]
print({"order": order, "whole": whole, "samples": samples}[what](path, *map(int, rest)))
'''


def hangar(*arguments):
    return float(run([HANGAR, "-I", "-B", HERE / "hangar_worker.py", *map(str, arguments)], 600).strip() or 0)


def ours(*arguments):
    return float(run([sys.executable, "-c", READ, *map(str, arguments)], 600).strip())


class Bench:
    def __init__(self, asked, folder):
        self.asked, self.folder, self.point = asked, folder, folder / "mount"
        self.lines = []

    def row(self, what, pairs, wanted, unit=1.0, memory=""):
        """`pairs` of seconds; `unit`: operations in each."""
        mine, other = (statistics.median(side) / unit * 1e6 for side in zip(*pairs))
        ratios = [b / a for a, b in pairs]
        ratio = statistics.median(ratios)
        verdict = "met" if ratio >= wanted else "NOT MET"
        self.lines.append(f"{what:<58} {mine:>10.1f} µs {other:>10.1f} µs {ratio:>7.2f} ({min(ratios):.2f}-{max(ratios):.2f}) "
                          f"≥ {wanted:g}: {verdict} {memory}")
        print(self.lines[-1], file=sys.stderr, flush=True)

    def samples(self, store):
        for name, total, wanted in (("small", 20_000, 2), ("large", 1_000, 1)):
            pairs = []
            for _ in range(self.asked.pairs):
                with Npyfs(store, self.point) as mount:
                    mine = ours("samples", mount / "branches/master" / name, total, 5000)
                pairs.append((mine, hangar("random", store, name, 5000)))
            shape = {"small": "28×28 uint8", "large": "64×64×3 float32"}[name]
            self.row(f"a random sample of {shape}: open, read, close", pairs, wanted, 5000)

    def stacked(self, store):
        """Both sides take one sample after the other and keep none; and both make one array of them."""
        for name, total, wanted in (("small", 20_000, 10), ("large", 1_000, 2)):
            for how, arguments in (("order", [total]), ("whole", [])):
                pairs = []
                for _ in range(self.asked.pairs):
                    with Npyfs(store, self.point) as mount:
                        drop(3)
                        mine = ours(how, mount / f"branches/master/{name}.npy", *arguments)
                    drop(3)
                    pairs.append((mine, hangar(how, store, name)))
                end = {"order": "in turn", "whole": "as one array"}[how]
                self.row(f"column {name} of {total} stacked, cold, {end}; each", pairs, wanted, total)

    def first_listing(self):
        """Of a repository of very many records: as columns of a hundredth, a tenth, and of all of them."""
        for columns in (100, 10, 1):
            store = self.folder / f"records{columns}"
            run([HANGAR, "-I", "-B", HERE / "hangar_records.py", store, str(self.asked.records), str(columns)], 600)
            times = []
            for _ in range(self.asked.pairs):
                with Npyfs(store, self.point) as mount:
                    drop(3)
                    sample = timed(["ls", mount / "branches/master/column000"], 120)
                    if sample.seconds is None:
                        raise BenchError(sample.note)
                    times.append(sample.seconds)
                    seen = mount.memory()
            seconds = statistics.median(times)
            fits = seconds < 1 and seen[1] < 300
            each = self.asked.records // columns
            self.lines.append(f"first ls of {each} of {self.asked.records} records, cold: {seconds:.2f} s "
                              f"({min(times):.2f}-{max(times):.2f}), daemon with workers {seen[0]:.0f}/{seen[1]:.0f} MiB; "
                              f"under 1 s and 300 MiB: {'met' if fits else 'NOT MET'}")
            print(self.lines[-1], file=sys.stderr, flush=True)
            if columns == 10:
                self.long_listing(store, each)
            shutil.rmtree(store)

    def long_listing(self, store, count):
        real = self.folder / "real"
        real.mkdir()
        for i in range(count):
            (real / f"{i}.npy").touch()
        pairs = []
        with Npyfs(store, self.point) as mount:
            for _ in range(self.asked.pairs):
                sides = []
                for folder in (mount / "branches/master/column001", real):
                    drop(2)
                    sides.append(timed(["ls", "-l", folder], 120).seconds)
                pairs.append(sides)
        self.row(f"ls -l of {count} samples against as many files", pairs, 1)
        shutil.rmtree(real)

    def checksums(self):
        """What checking xxh64 costs, from the figures of one core."""
        size = 64 << 20
        text = f"import os, time, xxhash; b = os.urandom({size}); s = time.perf_counter(); xxhash.xxh64(b).digest(); " \
               "print(time.perf_counter() - s)"
        self.lines.append(f"xxh64: {size / float(run([HANGAR, '-c', text])) / 1e9:.1f} GB/s on one core")

    def run(self):
        store = self.folder / "repository"
        hangar("make", store)
        os.sync()
        for part, measure in (("samples", self.samples), ("stacked", self.stacked)):
            if part in self.asked.only:
                measure(store)
        self.checksums()
        if "listing" in self.asked.only:
            self.first_listing()
        facts = machine()
        print(f"{facts['cores']} cores ({facts['cpu']}; zlib inflates {facts['inflates_mb_s']} MB/s), Linux {facts['kernel']}, load {os.getloadavg()[0]:.1f}, "
              f"{self.asked.pairs} pairs\n")
        print(f"{'':<58} {'npyfs':>13} {'other':>13} {'ratio':>7}")
        print("\n".join(self.lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--only", default="samples,stacked,listing")
    asked = parser.parse_args()
    if not HANGAR:
        sys.exit("benches/hangar.py: NPYFS_HANGAR_PYTHON must name the Python of the Hangar environment (tests/run makes it)")
    folder = Path(tempfile.mkdtemp(prefix="npyfs-bench-", dir=asked.dir)).resolve()
    try:
        Npyfs.binary = shutil.copy(os.environ["NPYFS_BIN"], folder / "npyfs")
        # Times that were remembered for another run's repositories are of no use here.
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        Bench(asked, folder).run()
    finally:
        remove(folder)


if __name__ == "__main__":
    main()
