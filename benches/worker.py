"""Runs inside a process of its own: reads with h5py and NumPy, one JSON request a line, one JSON answer a line.

Everything is imported before the first request. A time includes opening the file and excludes closing it."""

import json
import os
import random
import sys
import time

import h5py
import hdf5plugin  # noqa: F401 - registers blosc
import numpy as np


def places(seed, count, size, total):
    """Offsets into the payload, aligned to the size read, the same for everybody who asks."""
    rng = random.Random(seed)
    return [rng.randrange(total // size) * size for _ in range(count)]


def h5_read(file, name):
    start = time.perf_counter()
    with h5py.File(file) as f:
        data = f[name][()]
        seconds = time.perf_counter() - start
    return seconds, data.nbytes


def h5_direct(file, name):
    """All of it into an array that is made first."""
    start = time.perf_counter()
    with h5py.File(file) as f:
        dataset = f[name]
        data = np.empty(dataset.shape, dataset.dtype)
        dataset.read_direct(data)
        seconds = time.perf_counter() - start
    return seconds, data.nbytes


# Samples taken before the time begins: the index of the chunks is read then, and both sides make their buffers.
BEFORE = 16


def h5_samples(file, name, count, seed):
    """Samples in any order, each another; the file and the dataset are open."""
    with h5py.File(file) as f:
        dataset = f[name]
        chosen = random.Random(seed).sample(range(dataset.shape[0]), BEFORE + count)
        for k in chosen[:BEFORE]:
            dataset[k]
        start = time.perf_counter()
        done = sum(dataset[k].nbytes for k in chosen[BEFORE:])
        seconds = time.perf_counter() - start
    return seconds, done


def samples(path, count, seed, header, size, rows):
    """The same from a .npy file that is opened and closed for each."""
    def sample(k):
        fd = os.open(path, os.O_RDONLY)
        read = len(os.pread(fd, size, header + k * size))
        os.close(fd)
        return read

    chosen = random.Random(seed).sample(range(rows), BEFORE + count)
    for k in chosen[:BEFORE]:
        sample(k)
    start = time.perf_counter()
    done = sum(map(sample, chosen[BEFORE:]))
    seconds = time.perf_counter() - start
    assert done == count * size, f"{done} of {count * size} bytes"
    return seconds, done


def h5_stream(file, name):
    """Sample by sample (a chunk each) through one reused buffer, as a filter in a pipe would."""
    sink = os.open(os.devnull, os.O_WRONLY)
    start = time.perf_counter()
    with h5py.File(file) as f:
        dataset = f[name]
        buffer = np.empty((1, *dataset.shape[1:]), dataset.dtype)
        done = 0
        for k in range(dataset.shape[0]):
            dataset.read_direct(buffer, np.s_[k:k + 1])
            done += os.write(sink, buffer)
        seconds = time.perf_counter() - start
    os.close(sink)
    return seconds, done


def h5_random(file, name, size, count, seed):
    start = time.perf_counter()
    with h5py.File(file) as f:
        dataset = f[name]
        rows, columns = dataset.shape[1:]
        row = columns * dataset.dtype.itemsize
        done = 0
        for at in places(seed, count, size, dataset.nbytes):
            sample, first = divmod(at // row, rows)
            done += dataset[sample, first:first + size // row].nbytes
        seconds = time.perf_counter() - start
    assert done == size * count, f"{done} of {size * count} bytes"
    return seconds, done


def h5_list(file, name):
    """Name, shape and type of every member: what a listing with sizes needs."""
    start = time.perf_counter()
    with h5py.File(file) as f:
        total = 0
        for dataset in f[name].values():
            total += dataset.size * dataset.dtype.itemsize
        seconds = time.perf_counter() - start
    return seconds, total


def h5_strings(files, name):
    """Strings at the width of the longest, a million at a time: NumPy knows no faster way to lay them out."""
    start = time.perf_counter()
    parts, width = [], 1
    for file in files:
        with h5py.File(file) as f:
            values, segments = f[name]["values"][()], f[name]["segments"][()]
        lengths = np.diff(segments, append=len(values)) - 1
        parts.append((values, segments, lengths))
        width = max(width, int(lengths.max(initial=0)))
    out = np.zeros((sum(len(lengths) for _, _, lengths in parts), width), "u1")
    row, column = 0, np.arange(width + 1)
    for values, segments, lengths in parts:
        for first in range(0, len(lengths), 1_000_000):
            here = lengths[first:first + 1_000_000]
            begin = segments[first]
            text = values[begin:begin + int(here.sum()) + len(here)]
            # The zero behind each string falls into a column of its own.
            padded = np.zeros((len(here), width + 1), "u1")
            padded[column <= here[:, None]] = text
            out[row:row + len(here)] = padded[:, :width]
            row += len(here)
    array = out.view(f"S{width}").ravel()
    return time.perf_counter() - start, array.nbytes


def h5_write(npy, file, name, durable):
    """A real .npy file into a new HDF5 file, mapped: NumPy and h5py know no shorter way. To the disk, if `durable`."""
    start = time.perf_counter()
    with h5py.File(file, "w") as f:
        f.create_dataset(name, data=np.load(npy, mmap_mode="r"))
    if durable:
        fsync(file)
    return time.perf_counter() - start, os.path.getsize(file)


def h5_write_many(folder, file, durable):
    """Every .npy file of a directory into one new HDF5 file."""
    start = time.perf_counter()
    with h5py.File(file, "w") as f:
        for entry in os.scandir(folder):
            f.create_dataset(entry.name[:-4], data=np.load(entry.path))
    if durable:
        fsync(file)
    return time.perf_counter() - start, os.path.getsize(file)


def fsync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def pread(path, size, count, seed, header, total):
    start = time.perf_counter()
    fd = os.open(path, os.O_RDONLY)
    done = 0
    for at in places(seed, count, size, total):
        done += len(os.pread(fd, size, header + at))
    seconds = time.perf_counter() - start
    os.close(fd)
    assert done == size * count, f"{done} of {size * count} bytes"
    return seconds, done


def np_load(path):
    start = time.perf_counter()
    data = np.load(path)
    return time.perf_counter() - start, data.nbytes


def np_mmap_sum(path):
    start = time.perf_counter()
    data = np.load(path, mmap_mode="r")
    total = float(data.sum(dtype=np.float64))
    seconds = time.perf_counter() - start
    assert isinstance(data, np.memmap)
    return seconds, total


def np_mmap_rows(path, count, seed):
    array = np.load(path, mmap_mode="r")
    array = array.reshape(-1, array.shape[-1])
    chosen = np.random.default_rng(seed).integers(0, len(array), count)
    start = time.perf_counter()
    total = 0.0
    for row in chosen:
        total += float(array[row].sum(dtype=np.float64))
    return time.perf_counter() - start, total


OPERATIONS = {f.__name__: f for f in (h5_read, h5_direct, h5_samples, h5_stream, h5_random, h5_list, h5_strings,
                                      h5_write, h5_write_many, pread, samples, np_load, np_mmap_sum, np_mmap_rows)}

for line in sys.stdin:
    request = json.loads(line)
    try:
        seconds, result = OPERATIONS[request.pop("op")](**request)
        answer = {"seconds": seconds, "result": result}
    except Exception as problem:  # the table says what went wrong
        answer = {"error": f"{type(problem).__name__}: {problem}"}
    print(json.dumps(answer), flush=True)
