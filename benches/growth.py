"""How a cost grows with a number, as a slope: 0 is not at all, 1 is ten times as much for ten times the number, 2 a hundred.

    NPYFS_BIN=... python3 growth.py [--what objects,chunks,stores,changes,commits,arrays,packs,readers] [--most 5]
                                    [--dir DIR] [--pairs 3]

`--most` is the power of ten of the largest number. What takes minutes to make stops earlier (`LARGEST`). Each value is
the least of some rounds, each with a new mount, as other work on the machine only adds time. The slope is that of a
straight line through the logarithms of the last three numbers. `~` marks a slope that says nothing: the times are below
a millisecond, or the memory below 1 MiB. The kernel's caches are warm, so what grows is the work of npyfs.

objects   datasets of one group: the first listing in a new mount, the memory of the daemon and its workers for it, a mount and the opening of one.
chunks    of one array, of 64 bytes each, not compressed: one element in the middle in a new mount, and the memory for it.
stores    of a directory with `join`: the mount, the first listing of the joined view, and reading one array of it to the end.
changes   of a checkout, by one mount: one more write, a new mount, the first listing in it, and the commit. Writes between two syncs share files of up to
          4096 objects: reading an object is reading a pack.
commits   of a store, each of one of a hundred arrays, by a layer of its own: one more commit, a mount, and `checkout log`. The layers are copies, and the
          records of all commits but the last ones are written by this program.
arrays    that were committed, one by each commit: the same.
packs     a pack of a store of so many objects in groups of a thousand, and the store over HTTP with 5 ms, with the pack and without: a mount with
          the first listing of a group in the middle, and then one array of it. Nothing was fetched before.
readers   processes, from 1 to 100, that read 2000 samples of 12 KiB between them, at random, at once and through one mount, of an array that is in the
          page cache and of a compressed one: the time for each sample, and the daemon's memory.

Needs the Python of the tests."""

import argparse
import json
import math
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import h5py  # noqa: E402
import numpy as np  # noqa: E402

from remote import Server  # noqa: E402
from support import hosts  # noqa: E402
from support.checkouts import as_commit, commits_of, write_plain  # noqa: E402
from support.mount import Mount  # noqa: E402
from support.process import NPYFS, workers  # noqa: E402
from system import seconds  # noqa: E402

LIMIT = 1200  # seconds for one mount
# The largest power of ten that is made in a few minutes.
LARGEST = {"objects": 6, "chunks": 6, "stores": 4, "changes": 5, "commits": 4, "arrays": 4, "packs": 5, "readers": 2}
SMALLEST = {"readers": 0}
MIB = 1 << 20


def memory(mount):
    """Bytes of the daemon and its workers."""
    pid = mount.status()["pid"]
    return sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") for one in [pid, *workers(pid)])


def listed(folder, count=None):
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    assert count is None or len(names) == count, (folder, len(names))
    return names


def npyfs(*words):
    done = subprocess.run([NPYFS, *map(str, words)], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Mounted(Mount):
    """A mount that knows how long it took."""

    def __enter__(self):
        self.seconds = seconds(super().__enter__)
        return self


def objects(folder, count, rounds):
    path = folder / "many.h5"
    with h5py.File(path, "w", libver="latest") as file:
        group, space, kind = file.create_group("g").id, h5py.h5s.create_simple((4,)), h5py.h5t.IEEE_F64LE
        values = np.zeros(4)
        for k in range(count):
            h5py.h5d.create(group, f"d{k:07}".encode(), kind, space).write(h5py.h5s.ALL, h5py.h5s.ALL, values)
    for _ in range(rounds):
        with Mounted(path, limit=LIMIT) as mount:
            yield "mount", mount.seconds
            before = memory(mount)
            yield "first listing", seconds(lambda: listed(mount / "g", count))
            yield "memory for it", memory(mount) - before
            yield "listing again", seconds(lambda: listed(mount / "g", count))
            yield "one array", seconds(lambda: np.load(mount / f"g/d{count // 2:07}.npy"))


def chunks(folder, count, rounds):
    path = folder / "chunks.h5"
    with h5py.File(path, "w", libver="latest") as file:
        made = file.create_dataset("x", (count * 16,), "f4", chunks=(16,))
        row = np.arange(16, dtype="f4").tobytes()
        for k in range(count):
            made.id.write_direct_chunk((16 * k,), row)
    for _ in range(rounds):
        with Mounted(path, limit=LIMIT) as mount:
            before = memory(mount)
            yield "one element", seconds(lambda: np.load(mount / "x.npy", mmap_mode="r")[count * 8].item())
            yield "memory for it", memory(mount) - before


def stores(folder, count, rounds):
    place = folder / "days"
    place.mkdir()
    with h5py.File(place / "d0000000.h5", "w") as file:
        file["time"], file["x"] = np.arange(2.0), np.arange(3.0)
        file["time"].make_scale("time")
        file["x"].make_scale("x")
        file["t"] = np.arange(6.0).reshape(2, 3)
        file["t"].dims[0].attach_scale(file["time"])
        file["t"].dims[1].attach_scale(file["x"])
    for k in range(1, count):
        shutil.copy(place / "d0000000.h5", place / f"d{k:07}.h5")
    for _ in range(rounds):
        with Mounted(place, "join=time", limit=LIMIT) as mount:
            before = memory(mount)
            # A mount reads the stores when something is asked of them.
            yield "mount, listing", mount.seconds + seconds(lambda: listed(mount / ".npyfs/zarr"))
            yield "memory for it", memory(mount) - before

            def read():
                for path in (mount / ".npyfs/zarr/time").rglob("*"):
                    if path.is_file():
                        path.read_bytes()
            yield "an array of all", seconds(read)


def changes(folder, count, rounds):
    store = folder / "x.h5"
    write_plain(store)
    np.save(folder / "a.npy", np.arange(4))
    data = (folder / "a.npy").read_bytes()

    def write(mount, name):
        (mount / "g" / f"{name}.npy").write_bytes(data)

    with Mounted(store, checkout="work", limit=LIMIT) as mount:
        os.makedirs(mount / "g", exist_ok=True)
        for k in range(count):
            write(mount, f"d{k:07}")
        for turn in range(rounds):
            yield "one more write", seconds(lambda: [write(mount, f"e{turn}{k}") for k in range(10)]) / 10
    for _ in range(rounds):
        with Mounted(store, checkout="work", limit=LIMIT) as mount:
            yield "mount", mount.seconds
            yield "first listing", seconds(lambda: listed(mount / "g"))
            yield "memory", memory(mount)
            yield "one array", seconds(lambda: np.load(mount / f"g/d{count // 2:07}.npy"))
    files = [path.stat().st_size for path in (folder / "x.h5.checkouts/work").glob("*.h5")]
    yield "packs (number)", len(files)
    yield "commit", seconds(lambda: npyfs("checkout", "commit", store, "work"))
    for _ in range(rounds):
        with Mounted(store, limit=LIMIT) as mount:
            yield "mount of the commit", mount.seconds


def commits(folder, count, rounds, arrays=100):
    store = folder / "x.h5"
    write_plain(store)
    names = [f"o{number:06}" for number in range(count + rounds)]
    hosts.make_layers(store, names)
    top = store.with_name("x.h5.checkouts")
    npyfs("checkout", "commit", store, names[0])
    [first] = commits_of(top)
    fields = {key: value for key, value in first.items() if key not in ("form", "id")}
    last = first["id"]
    for number in range(2, count):
        layer = names[number - 1]
        fields |= {"parents": [last], "write": f"{number:032x}", "layer": layer, "time": fields["time"] + 1}
        fields["changes"][0]["path"] = names[(number - 1) % arrays]
        last, text = as_commit(fields)
        (top / f"commits/{number:020}.json").write_text(text)
    # This one writes the checkpoints that it misses, and the snapshot.
    npyfs("checkout", "commit", store, names[count - 1])
    for name in names[count:]:
        yield "commit", seconds(lambda: npyfs("checkout", "commit", store, name))
        yield "log", seconds(lambda: npyfs("checkout", "log", "-0", store))
        with Mounted(store, limit=LIMIT) as mount:
            yield "mount", mount.seconds
            yield "memory", memory(mount)
            yield "first listing", seconds(lambda: listed(mount.path))


def arrays(folder, count, rounds):
    return commits(folder, count, rounds, count)


def packs(folder, count, rounds):
    www = folder / "www"
    www.mkdir()
    with h5py.File(www / "bare.h5", "w") as file:
        for k in range(count):
            file[f"g{k // 1000:04}/d{k:07}"] = np.arange(4.0)
    shutil.copy(www / "bare.h5", www / "packed.h5")
    middle = count // 2
    group, array = f"g{middle // 1000:04}", f"d{middle:07}.npy"
    for _ in range(rounds):
        (www / "packed.h5.npyfs-pack").unlink(missing_ok=True)
        yield "pack", seconds(lambda: npyfs("pack", www / "packed.h5"))
    yield "pack, memory on disk", (www / "packed.h5.npyfs-pack").stat().st_size
    with Server(www, 5, 60) as server:
        for turn in range(rounds):
            for name in ("packed", "bare"):
                with Mounted(f"{server.url}{name}.h5", f"cache_dir={folder / f'cache-{name}-{turn}'}", limit=LIMIT) as mount:
                    yield f"{name}: mount, listing", mount.seconds + seconds(lambda: listed(mount / group))
                    yield f"{name}: one array", seconds(lambda: np.load(mount / group / array))


SAMPLES, BYTES, READS = 8192, 12288, 2000


def read_samples(path, seed, reads, ready, go):
    """What one process of many does."""
    own = random.Random(seed)
    with open(path, "rb", buffering=0) as file:
        ready.release()
        go.wait()
        for _ in range(reads):
            os.pread(file.fileno(), BYTES, 128 + BYTES * own.randrange(SAMPLES))


def readers(folder, count, rounds):
    store = folder / "samples.h5"
    with h5py.File(store, "w") as file:
        data = np.random.default_rng(1).integers(0, 16, (SAMPLES, BYTES), dtype="u1")
        file["plain"] = data
        file.create_dataset("gzip", data=data, chunks=(1, BYTES), compression=4)
    for _ in range(rounds):
        with Mounted(store, limit=LIMIT) as mount:
            (mount / "plain.npy").read_bytes()
            for kind in ("plain", "gzip"):
                context = multiprocessing.get_context("fork")
                ready, go = context.Semaphore(0), context.Event()
                arguments = [(mount / f"{kind}.npy", seed, READS // count, ready, go) for seed in range(count)]
                all_of_them = [context.Process(target=read_samples, args=own) for own in arguments]
                for process in all_of_them:
                    process.start()
                for process in all_of_them:
                    ready.acquire()

                def read():
                    go.set()
                    for process in all_of_them:
                        process.join()
                yield f"{kind}: a sample", seconds(read) / READS
                assert all(process.exitcode == 0 for process in all_of_them)
                yield f"{kind}: memory", memory(mount)


WHAT = {"objects": objects, "chunks": chunks, "stores": stores, "changes": changes, "commits": commits, "arrays": arrays, "packs": packs, "readers": readers}


def shown(what, value):
    if "number" in what:
        return f"{value:.0f}"
    if "memory" in what:
        return f"{value / MIB:.1f} MiB"
    if value < 1e-3:
        return f"{value * 1e6:.0f} us"
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"


def slope(what, values):
    """That of the last three, and what makes it say little."""
    last = sorted(values.items())[-3:]
    if len(last) < 2:
        return ""
    if min(value for _, value in last) <= 0:
        return "~"
    x, y = zip(*((math.log(count), math.log(value)) for count, value in last))
    small = last[-1][1] < (MIB if "memory" in what else 1e-3) and "number" not in what
    return f"{'~' if small else ''}{statistics.linear_regression(x, y).slope:.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--what", default=",".join(WHAT))
    parser.add_argument("--most", type=int, default=5, help="the power of ten of the largest number [5]")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    everything = {}
    print(f"load {os.getloadavg()[0]:.1f} at the start", flush=True)
    for name in asked.what.split(","):
        powers = range(SMALLEST.get(name, 2), min(asked.most, LARGEST[name]) + 1)
        table = everything[name] = {}
        for power in powers:
            with tempfile.TemporaryDirectory(prefix="npyfs-growth-", dir=asked.dir) as folder:
                for what, value in WHAT[name](Path(folder), 10 ** power, asked.pairs):
                    own = table.setdefault(what, {})
                    own[10 ** power] = min(value, own.get(10 ** power, math.inf))
            print(f"{time.strftime('%H:%M:%S')} {name} 10^{power}", file=sys.stderr, flush=True)
        print(f"\n| {name} |", " | ".join(f"10^{power}" for power in powers), "| slope |")
        print("|---|" + "---|" * (len(powers) + 1))
        for what, values in table.items():
            cells = [shown(what, values[10 ** power]) if 10 ** power in values else "" for power in powers]
            print(f"| {what} |", " | ".join(cells), f"| {slope(what, values)} |", flush=True)
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")
    if asked.json:
        asked.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
