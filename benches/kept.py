"""Kept copies: reading arrays of a mount with `-o keep=SIZE` against a real .npy file and h5py, and what keeping costs."""

import os
import shutil
import time

from report import Row, measure
from system import COLD, BenchError, Npyfs, drop, run, timed

CODECS = ("gzip+shuffle", "lzf+shuffle", "blosc-lz4hc", "blosc-zstd")
READ = "blosc-zstd"
SAMPLES, SAMPLE, ROWS = 256, 1 << 20, 10_000
CLOSE = 3  # rounds of short pairs for each of `pairs`


class Kept:
    """Measures on `data.Arrays`."""

    section = "kept copies: npyfs must reach a factor"

    def __init__(self, arrays, folder, point, worker, pairs, limit):
        self.arrays, self.cache, self.point = arrays, folder / "kept-cache", point
        self.worker, self.pairs, self.limit = worker, pairs, limit
        self.options = f"cache_dir={self.cache},keep={8 * arrays.payload}"
        self.asked = []
        self.passthrough = None

    def row(self, what, state, against, least, work=0, unit="MB/s"):
        row = Row(self.section, what, state, against, work=work, unit=unit)
        if least:
            self.asked.append((row, least))
        return row

    def mount(self, options=None):
        return Npyfs(self.arrays.store, self.point, options=self.options if options is None else options)

    def ask(self, op, **request):
        return self.worker.call(self.limit, op=op, **request)

    def all(self):
        yield self.first()
        # A file counts as settled two seconds after it was written.
        run([Npyfs.binary, "keep", "-o", f"cache_dir={self.cache}", self.arrays.store,
             *(f"{name}.npy" for name in CODECS)], self.limit)
        os.sync()
        yield self.again()
        with self.mount() as mount:
            self.wait_served(mount)
            yield self.cat(mount)
            yield self.rows(mount)
            for name in CODECS:
                yield self.samples(mount, name)

    def wait_served(self, mount):
        """The checksums of copies of others are looked at behind the first reader."""
        end = time.monotonic() + self.limit
        for name in CODECS:
            file = mount / f"{name}.npy"
            timed(["cat", file], self.limit)
            while True:
                before = mount.status()["kept"]
                self.passthrough = before["passthrough"]
                timed(["cat", file], self.limit)
                now = mount.status()["kept"]
                passed = now["passed_through"] > before["passed_through"] or self.passthrough is not True
                if passed and now["served"] > before["served"] and not now["waiting"]:
                    break
                if time.monotonic() > end:
                    raise BenchError(f"{name} is not served from its copy: {now}")
                time.sleep(0.05)

    def first(self):
        """The first pass over an array, in a new mount, with and without keeping it."""
        row = self.row(f"first cat {READ}, while it is kept", COLD, "first cat without", 0.9, self.arrays.payload)

        def once(options):
            shutil.rmtree(self.cache, ignore_errors=True)
            with self.mount(options) as mount:
                drop(3)
                return timed(["cat", mount / f"{READ}.npy"], self.limit)

        measure([row], lambda: once(self.options), [lambda: once("")], self.pairs)
        return row

    def again(self):
        row = self.row(f"first cat {READ} of a new mount, kept", COLD, "cat real .npy", None, self.arrays.payload)

        def ours():
            with self.mount() as mount:
                drop(3)
                return timed(["cat", mount / f"{READ}.npy"], self.limit)

        def other():
            drop(3)
            return timed(["cat", self.arrays.npy], self.limit)

        measure([row], ours, [other], self.pairs)
        return row

    def cat(self, mount):
        row = self.row(f"cat {READ}, kept", "warm", "cat real .npy", 1.0, self.arrays.payload)
        files = mount / f"{READ}.npy", self.arrays.npy
        for file in files * 2:
            timed(["cat", file], self.limit)
        measure([row], lambda: timed(["cat", files[0]], self.limit), [lambda: timed(["cat", files[1]], self.limit)],
                CLOSE * self.pairs, mount.memory)
        return row

    def rows(self, mount):
        row = self.row(f"{ROWS} random rows of 2 KiB, mmap, {READ}, kept", "warm", "the real file", 0.95, ROWS, "each")
        files = mount / f"{READ}.npy", self.arrays.npy
        take = [lambda file=file: self.ask("np_mmap_rows", path=str(file), count=ROWS, seed=3) for file in files]
        for one in take:
            one()
        measure([row], take[0], [take[1]], CLOSE * self.pairs, mount.memory)
        return row

    def samples(self, mount, name):
        arrays = self.arrays
        count = min(SAMPLES, arrays.chunks // 2)
        row = self.row(f"a random sample, {name}, kept", "in memory", "h5py, file open", 1, count, "each")
        timed(["cat", arrays.store], self.limit)
        measure([row],
                lambda: self.ask("samples", path=str(mount / f"{name}.npy"), count=count, seed=7, header=128, size=SAMPLE,
                                 rows=arrays.chunks),
                [lambda: self.ask("h5_samples", file=str(arrays.store), name=name, count=count, seed=7)],
                CLOSE * self.pairs, mount.memory)
        return row

    def conditions(self):
        for row, least in self.asked:
            ratio = row.ratio()
            factor = None if ratio is None else 1 / ratio
            yield {"condition": f"{row.what}, {row.state}: at least {least} x the speed of {row.against}",
                   "met": None if factor is None else factor >= least,
                   "data": "not measured" if factor is None else f"{factor:.2f} x; passthrough: {self.passthrough}"}
