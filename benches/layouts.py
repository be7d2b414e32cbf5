"""Layouts of `npyfs checkout export --for`: what each is for, against the export that leaves arrays as they are.

    NPYFS_BIN=… python benches/layouts.py [--pairs 5] [--mib 128] [--dir DIR] [--only mmap,samples,cloud]

Pairs in one run, one side after the other; prints medians and the median of the ratios, with the smallest and the largest.
  mmap     Rows in any order of an array that is mapped: np.memmap of the file `--for mmap`, and np.load(mmap_mode="r") through a mount
           of it, against np.load(mmap_mode="r") of a real .npy file. Cold: the pages of the file were given up before.
  samples  Samples in any order through a mount, each read once: `--for samples` against an export as the array is stored, in
           the chunks that h5py chooses, gzip. Cold: the mount is new, the pages of the store were given up before.
  cloud    h5py lists a store through a file object that waits 30 ms for each request: shape, type, attributes and the number
           of chunks of each array. Requests are as h5py makes them; of blocks of 64 KiB, each fetched once, as a cache has them;
           and `--for cloud` with h5py's page buffer, which the other file cannot have."""

import argparse
import io
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
from system import forget, seconds

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support.mount import NPYFS, Mount  # noqa: E402

DELAY = 0.03
SIDE = 256  # a sample is so many float32 by as many


def export(store, out, *options):
    subprocess.run([NPYFS, "checkout", "export", *options, store, out], check=True, capture_output=True)
    os.sync()
    return out


def show(what, against, pairs, unit):
    """Prints a row; each pair is (ours, the other's)."""
    ours, other = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratios = [b / a for a, b in pairs]
    print(f"{what:<44} {ours:>10.4g} {unit:<10} {against:<34} {other:>10.4g}   "
          f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def images(folder, mib):
    """A store with a stack of images in the chunks that h5py chooses, and the stack."""
    count = mib * 4
    x = np.linspace(0, 12, SIDE, dtype="f4")
    rng = np.random.default_rng(1)
    stack = np.empty((count, SIDE, SIDE), "f4")
    for number in range(count):
        wave = np.sin(x[:, None] + number / 7) * np.cos(x + number / 5)
        stack[number] = np.round(wave + rng.normal(0, 0.02, wave.shape), 3)
    with h5py.File(folder / "images.h5", "w") as file:
        file.create_dataset("stack", data=stack, chunks=True, compression="gzip", shuffle=True)
    return folder / "images.h5", stack


def rows_of(array, order):
    return lambda: [float(array[row].sum()) for row in order]


def mmap(folder, store, stack, pairs):
    np.save(folder / "real.npy", stack)
    mapped = export(store, folder / "mapped.h5", "--for", "mmap")
    order = random.Random(1).sample(range(len(stack)), min(256, len(stack)))
    with h5py.File(mapped) as file:
        at, shape, dtype = file["stack"].id.get_offset(), file["stack"].shape, file["stack"].dtype

    def direct():
        return np.memmap(mapped, dtype, "r", at, shape)

    def real():
        return np.load(folder / "real.npy", mmap_mode="r")

    assert np.array_equal(direct(), stack)
    def us(array, state):
        """Microseconds a row. The mapping ends with it: pages that are mapped are not given up."""
        if state == "warm":
            rows_of(array, order)()
        return seconds(rows_of(array, order)) / len(order) * 1e6

    def through():
        with Mount(mapped) as mount:
            return us(np.load(mount / "stack.npy", mmap_mode="r"), state)

    for state in ("cold", "warm"):
        for what, ours in (("np.memmap of the store", lambda: us(direct(), state)), ("through a mount", through)):
            times = []
            for _ in range(pairs):
                forget(mapped, folder / "real.npy")
                times.append((ours(), us(real(), state)))
            show(f"mmap row, {what}, {state}", "real .npy, mmap", times, "us a row")


def samples(folder, store, stack, pairs):
    new = {"for samples": export(store, folder / "samples.h5", "--for", "samples"), "as it is": export(store, folder / "plain.h5"),
           "lz4": export(store, folder / "lz4.h5", "--for", "samples", "--compress", "blosc:lz4"),
           "gzip": export(store, folder / "gzip.h5", "--for", "samples", "--compress", "gzip")}
    for name, path in new.items():
        with h5py.File(path) as file:
            data = file["stack"]
            print(f"# {name}: chunks {data.chunks}, {data.compression}, {path.stat().st_size >> 20} MiB")
    order = random.Random(2).sample(range(len(stack)), min(200, len(stack)))
    size = SIDE * SIDE * 4

    def each(path):
        forget(path)
        with Mount(path) as mount:
            handle = os.open(mount / "stack.npy", os.O_RDONLY)
            start = os.fstat(handle).st_size - stack.nbytes
            taken = time.perf_counter()
            got = [os.pread(handle, size, start + number * size) for number in order]
            taken = time.perf_counter() - taken
            os.close(handle)
        assert all(part == stack[number].tobytes() for number, part in zip(order, got, strict=True))
        return taken / len(order) * 1e6

    for name in ("for samples", "lz4", "gzip"):
        times = [(each(new[name]), each(new["as it is"])) for _ in range(pairs)]
        show(f"random sample through a mount: {name}", "export as it is", times, "us each")


class Remote(io.RawIOBase):
    """A file each of whose requests takes 30 ms; with `block`, blocks of so many bytes are fetched, and kept."""

    def __init__(self, path, block=None):
        self.bytes, self.at, self.block, self.kept, self.requests = Path(path).read_bytes(), 0, block, set(), 0

    def seek(self, offset, whence=0):
        self.at = offset + (0, self.at, len(self.bytes))[whence]
        return self.at

    def tell(self):
        return self.at

    def fetch(self):
        self.requests += 1
        time.sleep(DELAY)

    def readinto(self, buffer):
        part = self.bytes[self.at:self.at + len(buffer)]
        if self.block is None:
            self.fetch()
        else:
            wanted = set(range(self.at // self.block, (self.at + max(len(part), 1) - 1) // self.block + 1))
            for block in wanted - self.kept:
                self.fetch()
                self.kept.add(block)
        buffer[:len(part)] = part
        self.at += len(part)
        return len(part)


def listing(path, block=None, **options):
    source = Remote(path, block)

    def look(_, item):
        dict(item.attrs)
        if isinstance(item, h5py.Dataset):
            (item.shape, item.dtype, item.chunks and item.id.get_num_chunks())

    def work():
        with h5py.File(source, **options) as file:
            file.visititems(look)
    return seconds(work), source.requests


def cloud(folder, pairs):
    rng = np.random.default_rng(1)
    store = folder / "many.h5"
    with h5py.File(store, "w") as file:
        for number in range(100):
            name = f"group{number % 10}/array{number}"
            file.create_dataset(name, data=np.round(rng.random((250, 1000)), 3), chunks=True, compression="gzip", shuffle=True)
            file[name].attrs["units"] = "mV"
    new = export(store, folder / "cloud.h5", "--for", "cloud")
    old = export(store, folder / "old.h5")
    with h5py.File(new) as file:
        page = file.id.get_create_plist().get_file_space_page_size()
    print(f"# cloud: page {page >> 10} KiB, {new.stat().st_size >> 20} MiB; as it is: {old.stat().st_size >> 20} MiB")
    for what, ours, other in (("as h5py asks", {}, {}), ("blocks of 64 KiB", {"block": 1 << 16}, {"block": 1 << 16}),
                              ("page buffer / as h5py asks", {"page_buf_size": 16 * page}, {}),
                              ("page buffer / blocks of 64 KiB", {"page_buf_size": 16 * page}, {"block": 1 << 16})):
        found = [(listing(new, **ours), listing(old, **other)) for _ in range(pairs)]
        show(f"listing over 30 ms, {what}", f"as it is; {found[0][0][1]} / {found[0][1][1]} requests",
             [(a[0], b[0]) for a, b in found], "s")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--pairs", type=int, default=5)
    arguments.add_argument("--mib", type=int, default=128)
    arguments.add_argument("--dir")
    arguments.add_argument("--only", default="mmap,samples,cloud")
    given = arguments.parse_args()
    only = given.only.split(",")
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        folder = Path(folder)
        print(f"# load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
        if {"mmap", "samples"} & set(only):
            store, stack = images(folder, given.mib)
            if "mmap" in only:
                mmap(folder, store, stack, given.pairs)
            if "samples" in only:
                samples(folder, store, stack, given.pairs)
        if "cloud" in only:
            cloud(folder, given.pairs)


if __name__ == "__main__":
    main()
