"""Does one thing with Hangar and prints how long it took. Runs with the Python of the Hangar environment.

    hangar_worker.py make DIR                  a repository: 20 000 samples of 28×28 uint8, 1 000 of 64×64×3 float32
    hangar_worker.py order DIR COLUMN          reads a column in key order: seconds, without opening the checkout
    hangar_worker.py whole DIR COLUMN          the same, into one array
    hangar_worker.py random DIR COLUMN COUNT   reads samples at random"""

import contextlib
import io
import os
import random
import sys
import time
import warnings

warnings.filterwarnings("ignore")

import numpy as np
from hangar import Repository

SAMPLES = {"small": 20_000, "large": 1_000}


def make(folder):
    os.makedirs(folder)
    repo = Repository(folder, exists=False)
    repo.init("bench", "bench@example.com")
    checkout = repo.checkout(write=True)
    rng = np.random.default_rng(1)
    small = checkout.add_ndarray_column("small", prototype=np.zeros((28, 28), np.uint8))
    digit = np.add.outer(np.arange(28), np.arange(28)).astype(np.uint8)
    with small:
        for i in range(SAMPLES["small"]):
            sample = digit.copy()
            sample[rng.integers(0, 28, 200), rng.integers(0, 28, 200)] = rng.integers(0, 255, 200)
            small[i] = sample
    large = checkout.add_ndarray_column("large", prototype=np.zeros((64, 64, 3), np.float32))
    smooth = np.linspace(0, 1, 64 * 64 * 3, dtype=np.float32).reshape(64, 64, 3)
    with large:
        for i in range(SAMPLES["large"]):
            large[i] = np.round(smooth + rng.normal(0, 0.1, smooth.shape), 3).astype(np.float32)
    checkout.commit("samples")
    checkout.close()


def read(folder, name, keys):
    column = Repository(folder).checkout(write=False)[name]
    if keys:
        column[0]
    start = time.perf_counter()
    for key in keys or sorted(column.keys()):
        column[key]
    return time.perf_counter() - start


def whole(folder, name):
    column = Repository(folder).checkout(write=False)[name]
    start = time.perf_counter()
    keys = sorted(column.keys())
    first = column[keys[0]]
    array = np.empty((len(keys), *first.shape), first.dtype)
    for row, key in enumerate(keys):
        array[row] = column[key]
    return time.perf_counter() - start


def main(what, folder, name="", count="0"):
    with contextlib.redirect_stdout(io.StringIO()):
        if what == "make":
            return make(folder)
        chance = random.Random(int(count))
        keys = [chance.randrange(SAMPLES[name]) for _ in range(int(count))]
        seconds = whole(folder, name) if what == "whole" else read(folder, name, keys)
    print(seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
