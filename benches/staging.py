"""Writing samples into a Hangar repository: `cp -r` into a mount against Hangar's own writer in one `with` block.

    NPYFS_BIN=… NPYFS_HANGAR_PYTHON=… python benches/staging.py [--rounds 3]

Pairs in one run: each round writes the same samples both ways, into new repositories on the same disk; the copy counts until
the rows are staged. Prints medians, and the highest memory of the daemon."""

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
    start = time.perf_counter()
    with column:
        for name, array in zip(names, arrays):
            column[int(name[:-4])] = array
    seconds = time.perf_counter() - start
    co.close()
print(json.dumps(seconds))
'''


def smooth(count, dtype, shape):
    rng = np.random.default_rng(1)
    base = np.add.outer(np.arange(shape[0]), np.arange(shape[1]))
    for i in range(count):
        array = base + i + rng.integers(0, 4, base.shape)
        if len(shape) == 3:
            array = np.repeat(array[..., None], shape[2], 2)
        yield (array % 251).astype(dtype)


def copy(repository, source):
    with Mount(repository, checkout="bench", limit=600) as m:
        start = time.perf_counter()
        subprocess.run(["cp", "-r", f"{source}/.", m / "stage/train"], check=True)
        fd = os.open(m.path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        seconds = time.perf_counter() - start
        return seconds, peak_memory(m.pid)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    for name, (count, dtype, shape) in WORKS.items():
        if arguments.only not in name:
            continue
        with tempfile.TemporaryDirectory(dir="/dev/shm") as source, tempfile.TemporaryDirectory() as work:
            for i, array in enumerate(smooth(count, dtype, shape)):
                np.save(f"{source}/{i}.npy", array)
            pairs, memory = [], 0
            for number in range(arguments.rounds):
                ours, theirs = Path(work, f"o{number}"), Path(work, f"t{number}")
                for path in (ours, theirs):
                    hangar.script(PREPARE, path, dtype, repr(shape))
                seconds, peak = copy(ours, source)
                pairs.append((seconds, hangar.script(WRITE, theirs, source)))
                memory = max(memory, peak)
                for path in (ours, theirs):
                    shutil.rmtree(path)
            mine, other = (statistics.median(column) for column in zip(*pairs))
            ratio = statistics.median(b / a for a, b in pairs)
            print(f"{count} {name}: npyfs {mine:.2f} s, hangar {other:.2f} s, {ratio:.2f} x; daemon {memory >> 20} MiB")


if __name__ == "__main__":
    main()
