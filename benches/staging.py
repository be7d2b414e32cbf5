"""Writing samples into a Hangar repository: `cp -r` into a mount against Hangar's own writer in one `with` block.

    NPYFS_BIN=… NPYFS_HANGAR_PYTHON=… python benches/staging.py [--rounds 3] [--only uint8] [--samples 1000]

Pairs in one run: each round writes the same samples both ways, into new repositories on the same disk; the copy counts until
the rows are staged. Prints medians, the processor time of each sample in cp, daemon and workers, and their highest memory.
On a busy machine: `chrt -f 10`, and look at processor time."""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support import hangar  # noqa: E402
from support.mount import Mount  # noqa: E402
from support.process import peak_memory  # noqa: E402

WORKS = {"uint8 28x28": (10_000, "u1", (28, 28)), "float32 64x64x3": (1000, "f4", (64, 64, 3)), "float32 1024x1024": (200, "f4", (1024, 1024))}

PREPARE = '''
path, dtype, shape = sys.argv[1], sys.argv[2], eval(sys.argv[3])
repo = repository(path)
with contextlib.redirect_stdout(io.StringIO()):
    co = repo.checkout(write=True)
    co.add_ndarray_column("train", prototype=np.zeros(shape, dtype))
    co.commit("column")
    co.close()
'''

WRITE = '''
import time
path, source = sys.argv[1], sys.argv[2]
names = sorted(os.listdir(source))
arrays = [np.load(f"{source}/{name}") for name in names]
with contextlib.redirect_stdout(io.StringIO()):
    co = Repository(path).checkout(write=True)
    column = co["train"]
    start, used = time.perf_counter(), time.process_time()
    with column:
        for name, array in zip(names, arrays):
            column[int(name[:-4])] = array
    seconds, used = time.perf_counter() - start, time.process_time() - used
    co.close()
print(json.dumps([seconds, used]))
'''


def smooth(count, dtype, shape):
    rng = np.random.default_rng(1)
    base = np.add.outer(np.arange(shape[0]), np.arange(shape[1]))
    for i in range(count):
        array = base + i + rng.integers(0, 4, base.shape)
        if len(shape) == 3:
            array = np.repeat(array[..., None], shape[2], 2)
        yield (array % 251).astype(dtype)


def workers(daemon):
    """Processes that the daemon has started."""
    lists = Path(f"/proc/{daemon}/task").glob("*/children")
    return [int(pid) for found in lists for pid in found.read_text().split()]


def used(pids):
    """Seconds of processor time, in programs and in the kernel."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids]
    tick = os.sysconf("SC_CLK_TCK")
    return np.array([sum(int(f[at]) for f in fields) / tick for at in (11, 12)])


def copy(repository, source):
    """Seconds, processor time of cp, daemon and workers, and the highest memory of daemon and each worker."""
    with Mount(repository, checkout="bench", limit=600) as m:
        os.listdir(m / "stage/train")
        before = [used([m.pid]), used(workers(m.pid))]
        start = time.perf_counter()
        copying = subprocess.Popen(["cp", "-r", f"{source}/.", m / "stage/train"])
        _, status, usage = os.wait4(copying.pid, 0)
        copied = time.perf_counter() - start
        assert status == 0, "cp failed"
        fd = os.open(m.path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        seconds = time.perf_counter() - start
        processes = [m.pid, *workers(m.pid)]
        after = [used([m.pid]), used(processes[1:])]
        split = [np.array([usage.ru_utime, usage.ru_stime]), *(b - a for a, b in zip(before, after))]
        return seconds, copied, split, list(map(peak_memory, processes))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--samples", type=int, help="of each kind, instead of those that are wanted")
    arguments = parser.parse_args()
    for name, (count, dtype, shape) in WORKS.items():
        if arguments.only not in name:
            continue
        count = arguments.samples or count
        with tempfile.TemporaryDirectory(dir="/dev/shm") as source, tempfile.TemporaryDirectory() as work:
            for i, array in enumerate(smooth(count, dtype, shape)):
                np.save(f"{source}/{i}.npy", array)
            measure(name, count, dtype, shape, Path(source), Path(work), arguments.rounds)


def measure(name, count, dtype, shape, source, work, rounds):
    pairs, memory = [], []
    for number in range(rounds):
        ours, theirs = work / f"o{number}", work / f"t{number}"
        for path in (ours, theirs):
            hangar.script(PREPARE, path, dtype, repr(shape))
        os.sync()
        seconds, copied, split, peak = copy(ours, source)
        os.sync()
        other, their_use = hangar.script(WRITE, theirs, source, timeout=600)
        pairs.append((seconds, other))
        memory = max(memory, peak, key=sum)
        parts = ", ".join(f"{who} {u * 1e6 / count:.0f}+{s * 1e6 / count:.0f}" for who, (u, s) in zip(("cp", "daemon", "workers"), split))
        print(f"  {seconds:.2f} s ({copied:.2f} s cp), hangar {other:.2f} s; us a sample, user+system: {parts}; "
              f"all {np.sum(split) * 1e6 / count:.0f}, hangar {their_use * 1e6 / count:.0f}", flush=True)
        for path in (ours, theirs):
            shutil.rmtree(path)
    mine, other = (statistics.median(column) for column in zip(*pairs))
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"{count} {name}: npyfs {mine:.2f} s, hangar {other:.2f} s, {ratio:.2f} x; "
          f"memory {sum(memory) >> 20} MiB, of the daemon {memory[0] >> 20}", flush=True)


if __name__ == "__main__":
    main()
