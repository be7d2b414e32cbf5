"""Arkouda strings at fixed width: very many of them over three locales, against decoding them with h5py and NumPy."""

import os

import h5py
import numpy as np

from report import Row, measure
from system import COLD, BenchError, Npyfs, drop, memory

LOCALES = 3
LONGEST = 29


class Locales:
    """`count` strings of 0 to 29 letters in `s_LOCALE000?.h5`, as Arkouda lays them out."""

    def __init__(self, folder, count):
        folder.mkdir()
        self.folder, self.count, self.shown = folder, count, "s.h5/words.npy"
        self.files = [folder / f"s_LOCALE{i:04}.h5" for i in range(LOCALES)]
        ends = [-(-count * part // LOCALES) for part in range(LOCALES + 1)]
        self.firsts, self.payload = ends[:-1], count * LONGEST
        random = np.random.default_rng(count)
        for path, start, stop in zip(self.files, ends, ends[1:]):
            with h5py.File(path, "w") as file:
                file.attrs["File_Format"] = np.int64(1)
                group = file.create_group("words")
                group.attrs["ObjType"] = np.int64(2)
                lengths = random.integers(0, LONGEST + 1, stop - start)
                lengths[:1] = LONGEST
                ends_here = np.cumsum(lengths + 1)
                values = random.integers(97, 123, ends_here[-1] if len(lengths) else 0, dtype="u1")
                values[ends_here - 1] = 0
                group["values"], group["segments"] = values, (ends_here - lengths - 1).astype("<i8")

    def row(self, number):
        """One string, read by h5py alone."""
        part = max(k for k in range(LOCALES) if self.firsts[k] <= number)
        with h5py.File(self.files[part]) as file:
            segments, values = file["words/segments"], file["words/values"]
            local = number - self.firsts[part]
            start, *end = segments[local:local + 2]
            return values[start:end[0] if end else len(values)].tobytes().rstrip(b"\0")


class Strings:
    """Measures on `Locales`."""

    def __init__(self, data, point, worker, pairs, limit):
        self.data, self.point, self.worker, self.pairs, self.limit = data, point, worker, pairs, limit
        self.peaks, self.cache = [], 0

    def check(self):
        """1000 random rows are what h5py reads. Notes the daemon's memory."""
        rows = np.random.default_rng(0).integers(0, self.data.count, 1000)
        with Npyfs(self.data.folder, self.point) as mount:
            array = np.load(mount / self.data.shown, mmap_mode="r")
            if array.shape != (self.data.count,) or array.dtype != f"S{LONGEST}":
                raise BenchError(f"{self.data.shown} is {array.dtype} {array.shape}")
            wrong = [int(row) for row in rows if array[row] != self.data.row(int(row))]
            del array
            self.note(mount)
        if wrong:
            raise BenchError(f"{len(wrong)} of {len(rows)} rows are wrong, first {wrong[0]}")

    def note(self, mount):
        """The daemon without its workers, which hold no data here."""
        self.cache = mount.status()["cache"]["limit"] >> 20
        peak = [line for line in open(f"/proc/{mount.pid}/status") if line.startswith("VmHWM")]
        self.peaks.append(int(peak[0].split()[1]) / 1024)

    def all(self):
        self.check()
        files = [os.fspath(path) for path in self.data.files]
        section = f"{self.data.count} Arkouda strings in {LOCALES} files, |S{LONGEST}"

        def theirs():
            drop(3)
            return self.worker.call(self.limit, op="h5_strings", files=files, name="words")

        def ours():
            with Npyfs(self.data.folder, self.point) as mount:
                drop(3)
                sample = self.worker.call(self.limit, op="np_load", path=os.fspath(mount / self.data.shown))
                seen.append(memory(mount.pid))
                self.note(mount)
                return sample

        seen = []
        row = Row(section, "np.load", COLD, "h5py + NumPy", work=self.data.payload)
        measure([row], ours, [theirs], self.pairs, lambda: seen[-1])
        yield row

    def condition(self):
        """The daemon's memory stays under its cache and 64 MiB."""
        most = max(self.peaks, default=None)
        return {"condition": "the daemon serves Arkouda strings in its cache and 64 MiB",
                "met": None if most is None else most < self.cache + 64,
                "data": f"peak {most or 0:.0f} MiB, cache {self.cache} MiB"}
