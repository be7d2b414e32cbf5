"""Short arrays beside long ones: their factors differ by what is paid once for a mount, an open and the first megabytes."""

import contextlib

import h5py

from data import STORAGE, repeated
from report import Row, measure
from system import COLD, Npyfs, drop

STORED = ("gzip+shuffle", "blosc-lz4hc", "blosc-zstd", "contiguous")
LEAST = 0.9


class Lengths:
    """A store for each storage and length, so that neither finds anything of the other's in memory, and the real .npy files."""

    def __init__(self, folder, lengths):
        folder.mkdir()
        self.lengths, self.stores, self.real = lengths, {}, {}
        for mib in lengths:
            self.real[mib] = folder / f"{mib}.npy"
            for name in STORED:
                self.stores[name, mib] = folder / f"{name}-{mib}.h5"
                with h5py.File(self.stores[name, mib], "w") as file, contextlib.ExitStack() as stack:
                    real = stack.enter_context(open(self.real[mib], "wb")) if name == "contiguous" else None
                    repeated(file, "x", mib, STORAGE[name], real)


class Short:
    """Measures on `Lengths`: np.load, cold, in a new mount."""

    section = "short arrays: npyfs must come near the factor of long ones"

    def __init__(self, lengths, point, worker, pairs, limit):
        self.lengths, self.point, self.worker, self.pairs, self.limit = lengths, point, worker, pairs, limit
        self.found = {}

    def ask(self, op, **request):
        return self.worker.call(self.limit, op=op, **request)

    def all(self):
        for name in STORED:
            for mib in self.lengths.lengths:
                yield self.load(name, mib)

    def load(self, name, mib):
        store, real = self.lengths.stores[name, mib], self.lengths.real[mib]
        against = "np.load real .npy" if name == "contiguous" else "h5py read_direct"
        row = Row(self.section, f"np.load {name}, {mib} MiB", COLD, against, work=mib << 20)
        self.found[name, mib] = row

        def ours():
            with Npyfs(store, self.point) as mount:
                drop(3)
                return self.ask("np_load", path=str(mount / "x.npy"))

        def other():
            drop(3)
            if name == "contiguous":
                return self.ask("np_load", path=str(real))
            return self.ask("h5_direct", file=str(store), name="x")

        measure([row], ours, [other], self.pairs)
        return row

    def conditions(self):
        short, long = min(self.lengths.lengths), max(self.lengths.lengths)
        for name in STORED:
            ratios = [self.found[name, mib].ratio() if (name, mib) in self.found else None for mib in (short, long)]
            met = data = None
            if None not in ratios:
                factor = ratios[1] / ratios[0]
                met = factor >= LEAST
                data = f"{1 / ratios[0]:.2f} x against {1 / ratios[1]:.2f} x: {factor:.2f}"
            yield {"condition": f"np.load {name}, cold: the factor of {short} MiB is at least {LEAST} of that of {long} MiB",
                   "met": met, "data": data or "not measured"}
