"""Writing: cp into a checkout against cp to the same disk and h5py writing that copy."""

import os
import shutil

import h5py
import numpy as np

from data import Long
from report import Row, measure
from system import ROOT, Npyfs, Sample, drop, run, timed

LEAST = 0.8  # times the speed of the other
FEW, CROWD = 200, 20_000  # arrays in one directory


class Checkout:
    """Its own data: an array of twice `mib` MiB, a directory of `small` arrays, and an empty store to write to."""

    section = "checkout: cp into a writable mount"

    def __init__(self, folder, mib, small, point, worker, pairs, limit):
        self.long = Long(folder, mib)
        self.folder, self.point, self.worker, self.pairs, self.limit = folder, point, worker, pairs, limit
        self.store, self.out = folder / "store.h5", folder / "out"
        self.small, self.digits = small, folder / "digits"
        self.digits.mkdir()
        values = np.arange(28 * 28, dtype=np.uint8).reshape(28, 28)
        for k in range(small):
            np.save(self.digits / f"{k:06}.npy", np.roll(values, k))
        with h5py.File(self.store, "w") as f:
            f["x"] = 1
        self.asked = []

    def all(self):
        payload = self.long.payload
        for state in ("cold", "warm") if ROOT else ("warm",):
            for durable in (False, True):
                row = Row(self.section, "cp of one array, " + ("durable" if durable else "closed"), state,
                          "cp, and h5py of the copy", work=payload)
                if durable:
                    self.asked.append(row)
                yield self.pair(row, state == "cold", lambda mount: self.cp_one(mount, durable),
                                lambda: self.h5py_one(durable))
        row = Row(self.section, "cp of one array, durable", "warm", "cp to the same disk", work=payload)
        yield self.pair(row, False, lambda mount: self.cp_one(mount, True), lambda: self.cp_one(self.out, True))
        for durable in (False, True):
            row = Row(self.section, f"cp -r of {self.small} small arrays, " + ("durable" if durable else "closed"), "warm",
                      "cp -r, and h5py of the copies", work=self.small, unit="each")
            yield self.pair(row, False, lambda mount: self.cp_many(mount, durable), lambda: self.h5py_many(durable))

        row = Row(self.section, f"cp -r of {CROWD} small arrays, closed", "warm", f"the same of {FEW}, as often", work=CROWD, unit="each")
        yield self.pair(row, False, lambda mount: self.cp_crowd(mount, CROWD), self.cp_few)

    def crowd(self, count):
        """A directory of so many small arrays."""
        folder = self.folder / f"crowd{count}"
        if not folder.exists():
            folder.mkdir()
            for k in range(count):
                np.save(folder / f"{k:06}.npy", np.arange(k, k + 16))
        return folder

    def cp_crowd(self, mount, count):
        return self.together(["cp", "-r", self.crowd(count), mount / "crowd"])

    def cp_few(self):
        """The time of `CROWD` arrays, from that of a few."""
        with Npyfs(self.store, self.point, checkout="bench") as mount:
            sample = self.cp_crowd(mount, FEW)
        return sample if sample.seconds is None else Sample(sample.seconds * CROWD / FEW)

    def pair(self, row, cold, ours, other):
        """Both sides begin with nothing written, everything older on the disk, and what they read in memory or not."""
        seen = []

        def prepare():
            shutil.rmtree(f"{self.store}.checkouts", ignore_errors=True)
            shutil.rmtree(self.out, ignore_errors=True)
            self.out.mkdir()
            os.sync()
            if cold:
                drop(3)
            else:
                timed(["cat", self.long.npy], self.limit)

        def once():
            prepare()
            with Npyfs(self.store, self.point, checkout="bench") as mount:
                sample = ours(mount)
                seen.append(mount.memory())
                if sample.seconds is not None:
                    written = {"long.npy": self.long.npy, "digits": self.digits, "crowd": self.folder / f"crowd{CROWD}"}
                    name, real = next((name, real) for name, real in written.items() if (mount / name).exists())
                    run(["diff", "-r", real, mount / name])
                return sample

        def against():
            prepare()
            return other()

        measure([row], once, [against], self.pairs, lambda: seen[-1] if seen else None)
        return row

    def cp_one(self, to, durable):
        return self.together(["cp", self.long.npy, to / "long.npy"],
                             ["sync", to / "long.npy"] if durable else None)

    def cp_many(self, to, durable):
        return self.together(["cp", "-r", self.digits, to / "digits"],
                             ["sync", to / "digits" / "000000.npy"] if durable else None)

    def h5py_one(self, durable):
        return self.together(["cp", self.long.npy, self.out / "long.npy"], dict(
            op="h5_write", npy=str(self.out / "long.npy"), file=str(self.out / "long.h5"), name="long", durable=durable))

    def h5py_many(self, durable):
        return self.together(["cp", "-r", self.digits, self.out / "digits"], dict(
            op="h5_write_many", folder=str(self.out / "digits"), file=str(self.out / "digits.h5"), durable=durable))

    def together(self, *steps):
        """One after the other; commands, and requests to the Python worker."""
        seconds = 0
        for step in steps:
            if step is None:
                continue
            sample = self.worker.call(self.limit, **step) if isinstance(step, dict) else timed(step, self.limit)
            if sample.seconds is None:
                return sample
            seconds += sample.seconds
        return Sample(seconds)

    def conditions(self):
        for row in self.asked:
            ratio = row.ratio()
            yield {"condition": f"{row.what}, {row.state}: at least {LEAST} x the speed of {row.against}",
                   "met": None if ratio is None else 1 / ratio >= LEAST,
                   "data": "not measured" if ratio is None else f"{1 / ratio:.2f} x"}
