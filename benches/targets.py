"""What the project wants to reach: each row with the factor it asks for, as pairs in one run."""

import time

from report import Row, measure
from system import COLD, Npyfs, Sample, Worker, drop, timed

# dataset: at least, hoped for; both in times the speed of h5py
LOADS = {"gzip+shuffle": (3, 4.5), "lzf+shuffle": (3.5, 6), "blosc-lz4hc": (1, 1.5), "blosc-zstd": (1, 1.5)}
# As many as last for more than 0.1 s: what a host takes from its virtual machine comes in spans of up to 10 ms.
SAMPLES = 256
SAMPLE = 1 << 20
# Rounds of short pairs for each of `pairs`: a virtual processor is half as fast for seconds at a time, in whichever run that falls.
CLOSE = 3


class Targets:
    """Measures on `data.Arrays` and `data.Long`."""

    section = "targets: npyfs must reach a factor"

    def __init__(self, arrays, long, point, worker, pairs, limit):
        self.arrays, self.long, self.point = arrays, long, point
        self.worker, self.pairs, self.limit = worker, pairs, limit
        self.samples = min(SAMPLES, arrays.chunks // 2)
        self.asked = []  # (row, at least, hoped for)

    def row(self, what, state, against, least, hoped, work, unit="MB/s"):
        row = Row(self.section, what, state, against, work=work, unit=unit)
        self.asked.append((row, least, hoped))
        return row

    def cold(self, row, store, ours, other):
        """Pairs in which both sides find nothing in memory."""
        seen = []

        def once():
            with Npyfs(store, self.point) as mount:
                drop(3)
                sample = ours(mount)
                seen.append(mount.memory())
                return sample

        def against():
            drop(3)
            return other()

        measure([row], once, [against], self.pairs, lambda: seen[-1] if seen else None)
        return row

    def in_memory(self, row, store, ours, other):
        """Pairs in which both sides find the store in memory; neither keeps what it decoded."""
        with Npyfs(store, self.point) as mount:
            drop(3)
            timed(["cat", store], self.limit)
            measure([row], lambda: ours(mount), [other], CLOSE * self.pairs, mount.memory)
        return row

    def all(self):
        arrays, ask = self.arrays, self.ask
        for name, (least, hoped) in LOADS.items():
            yield self.cold(
                self.row(f"np.load {name}", COLD, "h5py read_direct", least, hoped, arrays.payload), arrays.store,
                lambda mount: ask("np_load", path=str(mount / f"{name}.npy")),
                lambda: ask("h5_direct", file=str(arrays.store), name=name))
        yield self.cold(
            self.row("np.load contiguous", COLD, "np.load real .npy", 0.9, 1, self.long.payload), self.long.store,
            lambda mount: ask("np_load", path=str(mount / "long.npy")),
            lambda: ask("np_load", path=str(self.long.npy)))
        yield self.warm_cat()
        for name in LOADS:
            for state, measured in ((COLD, self.cold), ("store in memory", self.in_memory)):
                yield measured(
                    self.row(f"a random sample, {name}", state, "h5py, file open", 1, 2, self.samples, "each"), arrays.store,
                    lambda mount: ask("samples", path=str(mount / f"{name}.npy"), count=self.samples, seed=7, header=128,
                                      size=SAMPLE, rows=arrays.chunks),
                    lambda: ask("h5_samples", file=str(arrays.store), name=name, count=self.samples, seed=7))
        yield self.four()

    def ask(self, op, **request):
        return self.worker.call(self.limit, op=op, **request)

    def warm_cat(self):
        row = self.row("cat contiguous", "warm", "cat real .npy", 0.95, 0.95, self.long.payload)
        with Npyfs(self.long.store, self.point) as mount:
            files = mount / "long.npy", self.long.npy
            for file in files * 2:
                timed(["cat", file], self.limit)
            measure([row], lambda: timed(["cat", files[0]], self.limit), [lambda: timed(["cat", files[1]], self.limit)],
                    CLOSE * self.pairs, mount.memory)
        return row

    def four(self):
        """Four processes, four datasets, all at once; the time until the last is done."""
        workers = [Worker() for _ in LOADS]
        arrays = self.arrays
        row = self.row("4 processes np.load 4 datasets", COLD, "h5py, 4 processes", 1.5, 2, 4 * arrays.payload)
        try:
            for worker in workers:
                worker.call(self.limit, op="np_load", path=str(arrays.npy))

            def together(requests):
                start = time.perf_counter()
                for worker, request in zip(workers, requests):
                    worker.send(**request)
                samples = [worker.receive(self.limit) for worker in workers]
                seconds = time.perf_counter() - start
                failed = next((sample for sample in samples if sample.seconds is None), None)
                return failed or Sample(seconds)

            return self.cold(
                row, arrays.store,
                lambda mount: together([{"op": "np_load", "path": str(mount / f"{name}.npy")} for name in LOADS]),
                lambda: together([{"op": "h5_direct", "file": str(arrays.store), "name": name} for name in LOADS]))
        finally:
            for worker in workers:
                worker.close()

    def conditions(self):
        for row, least, hoped in self.asked:
            ratio = row.ratio()
            factor = None if ratio is None else 1 / ratio
            yield {"condition": f"{row.what}, {row.state}: at least {least} x the speed of {row.against}",
                   "met": None if factor is None else factor >= least,
                   "data": "not measured" if factor is None else f"{factor:.2f} x, hoped for {hoped} x"}
