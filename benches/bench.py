"""Makes the data, measures section by section, prints the table. See `run`."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import hdf5plugin
import numpy

import data
import report
from checkout import Checkout
from kept import Kept
from listing import Listing
from options import arguments
from peer import Peer
from reading import Reading
from short import Lengths, Short
from strings import Locales, Strings
from targets import Targets
from system import BenchError, Npyfs, Worker, machine, remove, run, type_of


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class Bench:
    """One run: its directories, its data, what it found."""

    def __init__(self, asked, folder):
        self.asked, self.folder = asked, folder
        self.rows, self.conditions, self.facts = [], [], {}
        self.worker = Worker()
        self.data = folder / "data"
        self.points = folder / "mount", folder / "peer"
        self.data.mkdir()

    def collect(self, name, rows):
        """Rows one by one, so that a failure loses only what comes after it."""
        say(f"measuring: {name}")
        try:
            for row in rows:
                self.rows.append(row)
                say("  " + "  ".join(cell for cell in row.cells() if cell))
        except (BenchError, OSError) as problem:
            row = report.Row(f"FAILED: {name}", str(problem), "", "")
            row.notes = {"npyfs": "", "other": ""}
            self.rows.append(row)
            say(f"  FAILED: {problem}")

    def run(self):
        asked = self.asked
        needed = 26 * (asked.mib << 20) + 6000 * asked.count + 30 * asked.strings + (100 << 20)
        if shutil.disk_usage(self.folder).free < needed:
            raise BenchError(f"{self.folder} has less than {needed >> 20} MiB free; choose another with --dir")
        self.facts = machine()
        filesystem = type_of(self.folder)
        arrays = many = None
        if {"targets", "kept", "cat", "numpy", "random", "peer"} & set(asked.only):
            say(f"writing arrays of {asked.mib} MiB")
            arrays = data.Arrays(self.data / "large", asked.mib)
        if {"list", "peer"} & set(asked.only):
            say(f"writing {asked.count} datasets and files")
            many = data.Many(self.data / "many", asked.count)
        os.sync()  # what is not on disk yet cannot be dropped from memory

        strings = None
        if "strings" in asked.only:
            say(f"writing {asked.strings} Arkouda strings")
            locales = Locales(self.data / "strings", asked.strings)
            strings = Strings(locales, self.points[0], self.worker, asked.pairs, asked.limit)
            os.sync()
        reading = listing = None
        if arrays:
            reading = Reading(arrays, self.points[0], self.worker, asked.pairs, asked.limit)
            say("comparing the mount with the real files")
            reading.check()
        targets = None
        if "targets" in asked.only:
            say(f"writing a contiguous array of {2 * asked.mib} MiB")
            targets = Targets(arrays, data.Long(self.data / "long", asked.mib), self.points[0], self.worker, asked.pairs,
                              asked.limit)
            os.sync()
            self.collect("targets", targets.all())
        kept = None
        if "kept" in asked.only:
            kept = Kept(arrays, self.folder, self.points[0], self.worker, asked.pairs, asked.limit)
            self.collect("kept", kept.all())
        short = None
        if "short" in asked.only:
            say(f"writing arrays of {asked.mib // 2} and {2 * asked.mib} MiB")
            lengths = Lengths(self.data / "short", (asked.mib // 2, 2 * asked.mib))
            os.sync()
            short = Short(lengths, self.points[0], self.worker, asked.pairs, asked.limit)
            self.collect("short", short.all())
        checkout = None
        if "checkout" in asked.only:
            say(f"writing an array of {2 * asked.mib} MiB and {asked.small} small ones")
            checkout = Checkout(self.data / "checkout", asked.mib, asked.small, self.points[0], self.worker, asked.pairs,
                                asked.limit)
            self.collect("checkout", checkout.all())
        for name in ("cat", "numpy", "random"):
            if name in asked.only:
                self.collect(name, getattr(reading, name)())
        if "list" in asked.only:
            listing = Listing(many, self.points[0], self.worker, asked.pairs, asked.limit, filesystem)
            self.collect("list", listing.all())
        if strings:
            self.collect("strings", strings.all())
        if "peer" in asked.only:
            small = data.Arrays(self.data / "small", 4), data.Many(self.data / "few", min(1000, asked.count))
            os.sync()
            self.collect("peer", Peer(self.data, small, (arrays, many), self.points, self.folder / "peer.log",
                                      asked.pairs, asked.peer_limit).all())
        if targets:
            self.conditions += targets.conditions()
        if kept:
            self.conditions += kept.conditions()
        if short:
            self.conditions += short.conditions()
        if checkout:
            self.conditions += checkout.conditions()
        if reading and "cat" in asked.only:
            self.conditions.append(reading.condition())
        if listing:
            self.conditions += listing.conditions()
        if strings:
            self.conditions.append(strings.condition())
        self.note_facts(arrays, reading, filesystem)

    def note_facts(self, arrays, reading, filesystem):
        binary = Npyfs.binary
        self.facts.update({
            "load_after": [round(load, 2) for load in os.getloadavg()],
            "data_on": filesystem,
            "npyfs": run([binary, "--version"]).strip(),
            "h5py": h5py.__version__, "h5py_hdf5": h5py.version.hdf5_version, "numpy": numpy.__version__,
            "hdf5plugin": hdf5plugin.version, "python": sys.version.split()[0], "pairs": self.asked.pairs,
        })
        if arrays:
            with Npyfs(arrays.store, self.points[0]) as mount:
                status = mount.status()
            self.facts.update({"npyfs_hdf5": status["hdf5"], "cache_limit": status["cache"]["limit"],
                               "read_ahead_kib": reading.read_ahead, "array_bytes": arrays.payload,
                               "stored_bytes": arrays.stored, "shape": arrays.shape})

    def heading(self):
        f = self.facts
        lines = [
            f"{f['cores']} cores ({f['cpu']}; zlib inflates {f['inflates_mb_s']} MB/s), {f['memory_gib']} GiB, Linux {f['kernel']}, data on {f['data_on']}, "
            f"load {f['load_before'][0]} at the start, {f['load_after'][0]} at the end",
            f"{f['npyfs']} (HDF5 {f.get('npyfs_hdf5', '?')}); h5py {f['h5py']} (HDF5 {f['h5py_hdf5']}), "
            f"NumPy {f['numpy']}, hdf5plugin {f['hdf5plugin']}, Python {f['python']}",
            "cold: npyfs mounted anew, and the kernel's caches dropped before every run" if f["root"] else
            "NOT ROOT: caches cannot be dropped; 'remounted' is a new mount of npyfs, with all real files in memory",
        ]
        if "stored_bytes" in f:
            stored = ", ".join(f"{name} {size / f['array_bytes']:.2f}" for name, size in f["stored_bytes"].items())
            lines.append(f"array: {f['shape'][0]} chunks of 1 MiB, float32, {f['array_bytes'] >> 20} MiB; "
                         f"stored: {stored}; "
                         f"npyfs cache {f['cache_limit'] >> 20} MiB, read-ahead {f['read_ahead_kib']} KiB")
        lines.append("ratio: npyfs's time / its time, median of the pairs; below 1 npyfs is faster. MB: 10^6 bytes. "
                     "MiB: memory of the daemon with its child processes, VmRSS/VmHWM")
        return lines

    def show(self):
        print("\n".join(self.heading()), end="\n\n")
        print(report.table(self.rows), end="\n\n")
        for condition in self.conditions:
            verdict = {True: "met", False: "NOT MET", None: "unknown"}[condition["met"]]
            print(f"{verdict}: {condition['condition']} ({condition['data']})")
        if self.asked.json:
            report.save(self.asked.json, self.facts, self.rows, self.conditions)


def apart(asked, name, python, *more):
    """Runs a script that has a table of its own; `python` is None if its environment is not there."""
    if not python:
        print(f"\n{name}: not measured: tests/run makes the environment that it needs")
        return
    say(f"measuring: {name}")
    command = [python, Path(__file__).with_name(f"{name}.py"), "--pairs", asked.pairs, *more]
    if asked.dir:
        command += ["--dir", asked.dir]
    print(flush=True)
    if subprocess.run(list(map(str, command))).returncode:
        raise BenchError(f"{name}.py failed")


def main():
    asked = arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    folder = Path(tempfile.mkdtemp(prefix="npyfs-bench-", dir=asked.dir)).resolve()
    bench = None
    try:
        # Our own copy: somebody may build another meanwhile.
        Npyfs.binary = shutil.copy(os.environ["NPYFS_BIN"], folder / "npyfs")
        bench = Bench(asked, folder)
        bench.run()
        bench.show()
        if "hangar" in asked.only:
            there = os.environ.get("NPYFS_HANGAR_PYTHON") and sys.executable
            apart(asked, "hangar", there, "--records", asked.records)
        if "patterns" in asked.only:
            apart(asked, "patterns", sys.executable)
        if "arrow_view" in asked.only:
            apart(asked, "arrow_view", os.environ.get("NPYFS_TESTS_PYTHON"), "--rows", asked.rows)
        if "growth" in asked.only:
            apart(asked, "growth", sys.executable, *(["--most", "3"] if asked.quick else []))
    except KeyboardInterrupt:
        return 130
    except BenchError as problem:
        print(f"benches/run: {problem}", file=sys.stderr)
        return 1
    finally:
        if bench:
            bench.worker.close()
        remove(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
