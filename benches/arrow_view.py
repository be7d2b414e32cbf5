"""The Arrow view: polars, DuckDB and pandas through it, against reading with the store's own library.

    NPYFS_BIN=… python3 benches/arrow_view.py [--pairs 5] [--rows 10000000] [--dir DIR] [--only first,sum,members,hdfstore,duckdb]

Pairs in one run, one side after the other; prints medians and the median of the ratios. Run it with a Python that has what
tests/requirements.txt names. Cold: the mount is new, and the pages of the files were given up before; mounting counts for `first`
alone.
  first     From the start of `npyfs mount` to the first row of the table.
  sum       polars sums one of 20 columns in gzip chunks, cold, against h5py → polars.
  members   polars groups by a member of a compound in gzip chunks and sums two others, cold, against h5py → polars.
  hdfstore  polars groups by a column of an HDFStore table and sums two others, cold, against pd.read_hdf and the same.
  duckdb    DuckDB filters and aggregates, warm, against the same over a copy of the Arrow file."""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import duckdb
import h5py
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
from pyarrow import ipc
from system import forget

NPYFS = os.environ["NPYFS_BIN"]
GZIP = {"compression": "gzip", "compression_opts": 1, "shuffle": True}


def write(path, rows):
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for n in range(20):
            file.create_dataset(f"columns/c{n}", data=random.integers(0, 1000, rows).astype("i4"), chunks=(1 << 18,), **GZIP)
        table = np.zeros(rows, [("k", "i4"), ("a", "i8"), ("b", "f8"), ("s", "S10")])
        table["k"], table["a"], table["b"], table["s"] = np.arange(rows) % 10, np.arange(rows), random.random(rows), b"text"
        file.create_dataset("members", data=table, chunks=(1 << 16,), **GZIP)
    frame = pd.DataFrame({name: table[name] for name in "kab"})
    frame.to_hdf(path, key="frame", format="table", complib="zlib", complevel=1)


def grouped(frame):
    return frame.group_by("k").agg(pl.col("a").sum(), pl.col("b").sum())


class Mounted:
    def __init__(self, store, point):
        self.store, self.point = store, point

    def __enter__(self):
        subprocess.run([NPYFS, "mount", self.store, self.point], check=True)
        return self.point / ".npyfs/arrow"

    def __exit__(self, *_):
        subprocess.run([NPYFS, "umount", "--lazy", self.point], check=True)


class Benches:
    def __init__(self, store, point):
        self.store, self.point = store, point

    def through(self, name, ask):
        def run():
            forget(self.store)
            with Mounted(self.store, self.point) as view:
                start = time.perf_counter()
                ask(view / name)
                return time.perf_counter() - start
        return run

    def against(self, ask):
        def run():
            forget(self.store)
            start = time.perf_counter()
            ask()
            return time.perf_counter() - start
        return run

    def first(self):
        def run():
            forget(self.store)
            start = time.perf_counter()
            with Mounted(self.store, self.point) as view, pa.memory_map(str(view / "columns.arrow")) as source:
                ipc.open_file(source).get_batch(0)["c0"][0].as_py()
                return time.perf_counter() - start
        return run, None

    def sum(self):
        def h5():
            with h5py.File(self.store) as file:
                return pl.Series(file["columns/c7"][...]).sum()
        return self.through("columns.arrow", lambda path: pl.scan_ipc(path).select(pl.col("c7").sum()).collect()), self.against(h5)

    def members(self):
        def h5():
            with h5py.File(self.store) as file:
                rows = file["members"][...]
            return grouped(pl.DataFrame({name: np.ascontiguousarray(rows[name]) for name in "kab"}))
        return self.through("members.arrow", lambda path: grouped(pl.scan_ipc(path)).collect()), self.against(h5)

    def hdfstore(self):
        def pandas():
            return pd.read_hdf(self.store, "frame").groupby("k")[["a", "b"]].sum()
        return self.through("frame.arrow", lambda path: grouped(pl.scan_ipc(path)).collect()), self.against(pandas)

    def duckdb(self):
        copy = self.store.with_name("copy.arrow")

        def ask(path):
            arrow = pa.dataset.dataset(path, format="ipc")
            duckdb.sql("SELECT c1 % 10, sum(c2) FROM arrow WHERE c0 > 500 GROUP BY ALL").fetchall()
            del arrow

        def ours():
            with Mounted(self.store, self.point) as view:
                ask(view / "columns.arrow")
                start = time.perf_counter()
                ask(view / "columns.arrow")
                return time.perf_counter() - start

        def theirs():
            if not copy.exists():
                with Mounted(self.store, self.point) as view:
                    copy.write_bytes((view / "columns.arrow").read_bytes())
            ask(copy)
            start = time.perf_counter()
            ask(copy)
            return time.perf_counter() - start
        return ours, theirs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--dir")
    parser.add_argument("--only", default="first,sum,members,hdfstore,duckdb")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        store, point = Path(folder) / "store.h5", Path(folder) / "mnt"
        point.mkdir()
        write(store, options.rows)
        for name in options.only.split(","):
            ours, theirs = getattr(Benches(store, point), name)()
            pairs = [(ours(), theirs() if theirs else None) for _ in range(options.pairs)]
            line = f"{name:10} {statistics.median(own for own, _ in pairs):8.3f} s"
            if theirs:
                ratios = [other / own for own, other in pairs]
                line += f", against {statistics.median(other for _, other in pairs):8.3f} s: {statistics.median(ratios):.2f} times the speed"
            print(line, flush=True)


if __name__ == "__main__":
    main()
