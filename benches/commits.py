#!/usr/bin/env python3
"""Commits of different objects by processes that run at the same time, on the disk that a folder is on: commits per second and the
99th percentile of how long one takes. Usage: commits.py [FOLDER [PROCESSES [COMMITS]]]; every process makes so many commits."""

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support import hosts  # noqa: E402
from support.checkouts import commits_of, write_plain  # noqa: E402
from support.process import NPYFS  # noqa: E402


def measure(folder, processes, each, environment):
    store = folder / "x.h5"
    write_plain(store)
    names = [[f"p{process}n{number}" for number in range(each)] for process in range(processes)]
    hosts.make_layers(store, [name for own in names for name in own])

    def run(own):
        seconds = []
        for name in own:
            start = time.perf_counter()
            subprocess.run([NPYFS, "checkout", "commit", store, name], env=environment, check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - start)
        return seconds

    start = time.perf_counter()
    with ThreadPoolExecutor(processes) as pool:
        seconds = [second for own in pool.map(run, names) for second in own]
    whole = time.perf_counter() - start
    layers = [commit["layer"] for commit in commits_of(store.with_name("x.h5.checkouts"))]
    assert sorted(layers) == sorted(name for own in names for name in own), "a commit is missing, or there twice"
    worst = statistics.quantiles(seconds, n=100)[98]
    return len(seconds) / whole, statistics.median(seconds), worst


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    processes, each = (int(text) for text in (sys.argv[2:4] + ["4", "200"][len(sys.argv[2:4]):]))
    with tempfile.TemporaryDirectory(dir=folder) as made:
        library = hosts.build(made)
        for title, environment in (("one host", None), ("locks that nobody sees", hosts.elsewhere(library))):
            place = Path(made) / title.replace(" ", "-")
            place.mkdir()
            rate, middle, worst = measure(place, processes, each, environment)
            print(f"{processes} x {each} commits, {title}: {rate:.1f} commits/s, median {middle * 1000:.0f} ms, "
                  f"99th percentile {worst * 1000:.0f} ms", flush=True)
            shutil.rmtree(place)


if __name__ == "__main__":
    main()
