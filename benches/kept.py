"""Kept copies: reading an array with `-o keep=SIZE` against a real .npy file, and what keeping costs.

    NPYFS_BIN=… python3 benches/kept.py [--pairs 9] [--mib 1024] [--dir DIR] [--only cat,rows,first,again]

Pairs in one run, one side after the other; prints medians and the median of the ratios, with the smallest and the largest. The store is
float32 in chunks of 1 MiB, blosc-zstd. Without root, or before Linux 6.9, copies are read by npyfs, and the first line says so.
  cat    `cat` of an array that is kept, against `cat` of the real file; both in memory. Starting cat counts.
  rows   10 000 random rows of 2 KiB of np.load(mmap_mode="r"), both in memory, against the real file.
  first  The first pass with keep=, cold, against the first pass without: `cat` until its end.
  again  The first `cat` of a new mount whose copy was made before, store and copy not in memory, against `cat` of the real file, cold."""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import h5py  # noqa: E402
import hdf5plugin  # noqa: E402
import numpy as np  # noqa: E402

from support.mount import Mount, until  # noqa: E402

CHUNK = 1 << 20


def write(folder, mib):
    """The store, and the same array as a file."""
    rows = mib << 9
    generator = np.random.default_rng(1)
    with h5py.File(folder / "x.h5", "w") as file:
        codec = hdf5plugin.Blosc(cname="zstd", clevel=5, shuffle=hdf5plugin.Blosc.SHUFFLE)
        data = file.create_dataset("x", (rows, 512), "f4", chunks=(512, 512), **codec)
        real = np.lib.format.open_memmap(folder / "real.npy", "w+", "f4", (rows, 512))
        smooth = np.sin(np.linspace(0, 12, 512, dtype="f4"))
        for row in range(0, rows, 512):
            part = np.round(280 + 10 * smooth + generator.normal(0, 1, (min(512, rows - row), 512)), 2).astype("f4")
            data[row:row + len(part)] = part
            real[row:row + len(part)] = part
        real.flush()
    os.sync()


def cat(path):
    begin = time.perf_counter()
    subprocess.run(["cat", path], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def rows(path):
    generator = np.random.default_rng(2)
    array = np.load(path, mmap_mode="r")
    chosen = generator.integers(0, len(array), 10_000)
    begin = time.perf_counter()
    total = 0.0
    for row in chosen:
        total += float(array[row].sum())
    return time.perf_counter() - begin


def forget(*paths):
    for path in paths:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def show(what, against, pairs):
    """Prints a row; each pair is (ours, the other's) in seconds."""
    ours, other = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratios = [b / a for a, b in pairs]
    print(f"{what:<40} {ours:>8.3f} s   {against:<24} {other:>8.3f} s   "
          f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def kept(mount):
    return mount.status()["kept"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--only", default="cat,rows,first,again")
    given = parser.parse_args()
    only = given.only.split(",")
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        folder = Path(folder)
        write(folder, given.mib)
        store, real, cache = folder / "x.h5", folder / "real.npy", folder / "cache"
        options = f"cache_dir={cache},keep={4 * given.mib}M"
        if "first" in only:
            pairs = []
            for _ in range(given.pairs):
                times = []
                for more in (options, ""):
                    subprocess.run(["rm", "-rf", cache], check=True)
                    forget(store)
                    with Mount(store, more, limit=600) as mount:
                        times.append(cat(mount / "x.npy"))
                pairs.append(times)
            show("the first pass, cold, while keeping", "the first pass without", pairs)
        subprocess.run([os.environ["NPYFS_BIN"], "keep", "-o", f"cache_dir={cache}", store, "x.npy"], check=True)
        os.sync()
        copy = next((cache / "kept").glob("*.npy"))
        if "again" in only:
            pairs = []
            for _ in range(given.pairs):
                forget(store, copy, real)
                with Mount(store, options, limit=600) as mount:
                    ours = cat(mount / "x.npy")
                pairs.append((ours, cat(real)))
            show("the first pass of a new mount, kept, cold", "the real file, cold", pairs)
        with Mount(store, options, limit=3600) as mount:
            cat(mount / "x.npy")
            cat(mount / "x.npy")
            until(lambda: kept(mount)["waiting"] == 0 and cat(mount / "x.npy") and kept(mount)["served"] > 2, "the copy")
            print(f"passthrough: {kept(mount)['passthrough']}")
            for name, run, what in (("cat", cat, "cat, kept, warm"), ("rows", rows, "10 000 random rows, mmap, kept")):
                if name in only:
                    run(mount / "x.npy"), run(real), cat(real)
                    show(what, "the real file", [(run(mount / "x.npy"), run(real)) for _ in range(3 * given.pairs)])


if __name__ == "__main__":
    main()
