"""Reading one large array: `cat`, NumPy, random ranges."""

from report import Row, measure
from system import COLD, BenchError, Npyfs, drop, run, timed

RANDOM = {4096: "4 KiB", 65536: "64 KiB"}


class Reading:
    """Measures on the arrays of `data.Arrays`. Cold: a new mount for every run of npyfs, and no file in memory."""

    def __init__(self, arrays, point, worker, pairs, limit):
        self.arrays, self.point, self.worker, self.pairs, self.limit = arrays, point, worker, pairs, limit
        self.decoded = []  # of every cold cat of the gzip dataset: bytes, blocks
        self.read_ahead = None

    def check(self):
        """What is compared must be equal."""
        with Npyfs(self.arrays.store, self.point) as mount:
            self.read_ahead = mount.read_ahead()
            for name in self.arrays.stored:
                run(["cmp", mount / f"{name}.npy", self.arrays.npy], self.limit)

    # --- npyfs, cold: each in a mount of its own

    def ours_cold(self, row_memory, action, after=None):
        def once():
            with Npyfs(self.arrays.store, self.point) as mount:
                drop(3)
                before = mount.status()["cache"]
                sample = action(mount)
                row_memory.append(mount.memory())
                if after:
                    after(before, mount.status()["cache"])
                return sample
        return once

    def other_cold(self, action):
        def once():
            drop(3)
            return action()
        return once

    def both(self, section, what, dataset, ours, others, *, work, unit="MB/s", after=None, states=("cold", "warm")):
        """Rows of `ours(mount)` against each of `others` {name: (callable, work)}, cold and warm."""
        done = []
        if "cold" in states:
            rows = [Row(section, what, COLD, name, work=work, unit=unit) for name in others]
            self.set_work(rows, others)
            seen = []
            measure(rows, self.ours_cold(seen, ours, after), [self.other_cold(call) for call, _ in others.values()],
                    self.pairs, lambda: seen[-1] if seen else None)
            done += rows
        if "warm" in states:
            rows = [Row(section, what, "warm", name, work=work, unit=unit) for name in others]
            self.set_work(rows, others)
            with Npyfs(self.arrays.store, self.point) as mount:
                # Once unseen: everything that can be in memory is.
                for file in (mount / f"{dataset}.npy", self.arrays.npy, self.arrays.store):
                    timed(["cat", file], self.limit)
                ours(mount)
                for call, _ in others.values():
                    call()
                measure(rows, lambda: ours(mount), [call for call, _ in others.values()], self.pairs, mount.memory)
            done += rows
        return done

    @staticmethod
    def set_work(rows, others):
        for row, (_, work) in zip(rows, others.values()):
            row.other_work = work

    # --- the scenarios

    def ask(self, op, **request):
        return self.worker.call(self.limit, op=op, **request)

    def h5(self, op, dataset, **request):
        return lambda: self.ask(op, file=str(self.arrays.store), name=dataset, **request)

    def cat(self):
        for dataset in self.arrays.stored:
            def note(before, now, dataset=dataset):
                if dataset == "gzip+shuffle":
                    self.decoded.append((now["decoded_bytes"] - before["decoded_bytes"],
                                         now["misses"] - before["misses"]))
            yield from self.both(
                "cat of the whole file to /dev/null", f"cat {dataset}", dataset,
                lambda mount: timed(["cat", mount / f"{dataset}.npy"], self.limit),
                {"h5py read": (self.h5("h5_read", dataset), None),
                 "h5py stream": (self.h5("h5_stream", dataset), None),
                 "cat real .npy": (lambda: timed(["cat", self.arrays.npy], self.limit), None)},
                work=self.arrays.payload, after=note)

    def numpy(self):
        section = "NumPy on the file, interpreter start not counted"
        real = str(self.arrays.npy)
        for dataset in ("gzip+shuffle", "contiguous"):
            yield from self.both(
                section, f"np.load {dataset}", dataset,
                lambda mount: self.ask("np_load", path=str(mount / f"{dataset}.npy")),
                {"h5py read": (self.h5("h5_read", dataset), None),
                 "np.load real .npy": (lambda: self.ask("np_load", path=real), None)},
                work=self.arrays.payload)
            sums = set()

            def mapped(path):
                sample = self.ask("np_mmap_sum", path=path)
                if sample.seconds is not None:
                    sums.add(sample.note)
                return sample

            yield from self.both(
                section, f"mmap sum {dataset}", dataset, lambda mount: mapped(str(mount / f"{dataset}.npy")),
                {"same on real .npy": (lambda: mapped(real), None)}, work=self.arrays.payload)
            if len(sums) > 1:
                raise BenchError(f"sums of {dataset} differ: {sums}")

    def random(self):
        """Cold: as many reads for all. Warm: more for files: they take microseconds, which are few to time."""
        section = "random reads, time of one (opening the file is spread over all of a run)"
        few, many = 300, 20_000
        header = self.arrays.npy.stat().st_size - self.arrays.payload
        for dataset in ("gzip+shuffle", "contiguous"):
            for size, shown in RANDOM.items():
                def pread(path, count, size=size):
                    return self.ask("pread", path=str(path), size=size, count=count, seed=size, header=header,
                                    total=self.arrays.payload)
                library = self.h5("h5_random", dataset, size=size, count=few, seed=size)
                for state, count in (("cold", few), ("warm", many)):
                    yield from self.both(
                        section, f"pread {shown} {dataset}", dataset,
                        lambda mount: pread(mount / f"{dataset}.npy", count),
                        {"h5py slices": (library, few),
                         "pread real .npy": (lambda: pread(self.arrays.npy, count), count)},
                        work=count, unit="each", states=(state,))

    def condition(self):
        """Issue condition 1 from the cold runs of `cat`."""
        want = (self.arrays.payload, self.arrays.chunks)
        if not self.decoded:
            return {"condition": "a cat of a gzip dataset decodes each chunk once", "met": None, "data": "not measured"}
        met = all(bytes_ == want[0] for bytes_, _ in self.decoded)
        seen = sorted(set(self.decoded))
        shown = ", ".join(f"{b} bytes decoded in {n} blocks" for b, n in seen)
        return {"condition": "a cat of a gzip dataset decodes each chunk once", "met": met,
                "data": f"{len(self.decoded)} cold runs: {shown}; the dataset has {want[0]} bytes in {want[1]} chunks"}
