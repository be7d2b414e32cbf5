"""The Zarr view: xarray and dask through it, against h5netcdf and VirtualiZarr, and what listing it costs.

    NPYFS_BIN=… python3 benches/views.py [--pairs 5] [--mib 1024] [--files 500] [--arrays 100000] [--dir DIR] [--only mean,first,files,list]

Pairs in one run, one side after the other; prints medians and the median of the ratios, with the smallest and the largest. Each
run is a Python of its own that has imported everything before its clock starts. Cold: the mount is new, and the pages of the files
were given up before. Libraries are installed into an environment in the cache of the other benches.
  mean   The mean over one float32 variable, gzip and shuffle in chunks of 1 MiB, by xarray with dask's threads: through the view, against
         the engine h5netcdf. Opening counts on both sides, mounting does not.
  first  The same until the first mean is there, against VirtualiZarr: it has to scan the file, npyfs to mount it, and both count.
  files  The same for a directory of files: all are opened and joined into one variable. VirtualiZarr scans in as many threads as there
         are processors, and xarray opens the stores of both in the same way; or npyfs joins them, and xarray opens one.
  list   `ls -l` and `ls -lR` of the view of a group of small arrays, against `ls -l` of the group's .npy files in the same mount."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from system import forget

PINS = ["numpy==2.4.6", "h5py==3.16.0", "dask[array]==2026.8.0", "h5netcdf==1.8.2", "xarray==2026.9.0", "zarr==3.1.6",
        "virtualizarr==2.5.1", "obstore==0.12.1", "obspec-utils==0.9.0"]
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))


def environment():
    """The Python with the libraries, made where it is missing."""
    cache = os.environ.get("NPYFS_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "npyfs"
    venv = Path(cache) / "bench-views"
    key, wanted = venv / ".key", "\n".join([sys.version, *PINS])
    if not key.exists() or key.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        subprocess.run([venv / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *PINS], check=True)
        key.write_text(wanted)
    return venv / "bin/python"


def virtual(paths):
    """Datasets of files that VirtualiZarr has scanned."""
    import xarray as xr
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr.parsers import HDFParser

    registry = ObjectStoreRegistry({"file://": LocalStore()})

    def scan(path):
        return HDFParser()(url=f"file://{path}", registry=registry)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        stores = list(pool.map(scan, paths))
    return [xr.open_zarr(store, consolidated=False, zarr_format=3, chunks={}) for store in stores]


def run_one(request):
    """The mean of a variable, and the seconds until it is there."""
    import warnings

    import dask
    import numpy  # noqa: F401
    import xarray as xr

    warnings.simplefilter("ignore")
    how, paths = request["how"], request["paths"]
    if how == "virtualizarr":
        from virtualizarr.parsers import HDFParser  # noqa: F401
    elif how == "npyfs":
        import zarr  # noqa: F401
    else:
        import h5netcdf  # noqa: F401
    dask.config.set(scheduler="threads")
    start = time.perf_counter()
    if request.get("mount"):
        point, store = request["mount"]
        options = ["-o", f"join={request['join']}"] if request.get("join") else []
        subprocess.run([os.environ["NPYFS_BIN"], "mount", *options, store, point], check=True)
    try:
        if how == "npyfs":
            found = [xr.open_zarr(path, chunks={}) for path in paths]
        elif how == "h5netcdf":
            found = [xr.open_dataset(path, engine="h5netcdf", chunks={}) for path in paths]
        else:
            found = virtual(paths)
        whole = found[0] if len(found) == 1 else xr.concat(found, "x", coords="minimal", compat="override", join="override")
        mean = float(whole["v"].mean().compute())
        seconds = time.perf_counter() - start
    finally:
        if request.get("mount"):
            subprocess.run([os.environ["NPYFS_BIN"], "umount", request["mount"][0]], check=True)
    print(json.dumps({"seconds": seconds, "mean": mean}))


def ask(python, **request):
    done = subprocess.run([python, __file__, "--one", json.dumps(request)], check=True, stdout=subprocess.PIPE, text=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    return answer["seconds"], answer["mean"]


def show(what, against, pairs):
    """Prints a row; each pair is (ours, the other's) in seconds."""
    ours, other = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratios = [b / a for a, b in pairs]
    print(f"{what:<58} {ours:>9.3f} s   {against:<34} {other:>9.3f} s   "
          f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


WRITE = """
import sys, h5netcdf, numpy as np
out, rows, seed, variables = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
rng = np.random.default_rng(seed)
with h5netcdf.File(out, "w") as file:
    file.dimensions = {"x": rows, "y": 512}
    chunks = (min(512, rows), 512)
    y = np.sin(np.linspace(0, 12, 512))
    for name in ["v", *(f"v{number}" for number in range(1, variables))]:
        v = file.create_variable(name, ("x", "y"), "f4", chunks=chunks, compression="gzip", compression_opts=4, shuffle=True)
        for row in range(0, rows, 512):
            part = min(512, rows - row)
            v[row:row + part] = np.round(280 + 10 * y + rng.normal(0, 1, (part, 512)), 2)
"""

MANY = """
import sys, h5py, numpy as np
with h5py.File(sys.argv[1], "w", libver="latest") as file:
    group = file.create_group("g")
    for number in range(int(sys.argv[2])):
        group[f"array{number:06}"] = np.float32([number, 1])
"""


def same(ours, other):
    """The seconds of a pair whose means agree."""
    assert abs(ours[1] - other[1]) <= 1e-5 * abs(other[1]), (ours, other)
    return ours[0], other[0]


def mean(python, folder, given):
    from support.mount import Mount

    store = folder / "one.nc"
    subprocess.run([python, "-c", WRITE, store, str(given.mib * 512), "1", "1"], check=True)
    os.sync()
    print(f"# {given.mib} MiB in {store.stat().st_size >> 20} MiB", flush=True)
    for row, against in (("mean", "h5netcdf"), ("first", "virtualizarr")):
        pairs = []
        for _ in range(given.pairs if row in given.only else 0):
            forget(store)
            if row == "mean":
                with Mount(store, limit=900) as mount:
                    ours = ask(python, how="npyfs", paths=[str(mount / ".npyfs/zarr")])
            else:
                point = folder / "mnt"
                point.mkdir(exist_ok=True)
                ours = ask(python, how="npyfs", paths=[str(point / ".npyfs/zarr")], mount=[str(point), str(store)])
            forget(store)
            pairs.append(same(ours, ask(python, how=against, paths=[str(store)])))
        if pairs:
            show({"mean": "mean, cold", "first": "to the first mean, with mounting"}[row],
                 {"mean": "xarray, h5netcdf", "first": "VirtualiZarr, with its scan"}[row], pairs)


def files(python, folder, given):
    """A directory of files: each a store of its own, and all as one with `join=`."""
    point = folder / "mnt"
    point.mkdir(exist_ok=True)
    for rows, variables in ((1024, 1), (64, 10)):
        stores = folder / f"stores{variables}"
        stores.mkdir()
        paths = [stores / f"f{number:04}.nc" for number in range(given.files)]
        one = [[python, "-c", WRITE, path, str(rows), str(number), str(variables)] for number, path in enumerate(paths)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda command: subprocess.run(command, check=True), one))
        os.sync()
        view = point / ".npyfs/zarr"
        for joined in (False, True):
            pairs = []
            for _ in range(given.pairs):
                forget(*paths)
                ours = ask(python, how="npyfs", paths=[str(view)] if joined else [str(view / path.name) for path in paths],
                           mount=[str(point), str(stores)], join="x" if joined else None)
                forget(*paths)
                pairs.append(same(ours, ask(python, how="virtualizarr", paths=[str(path) for path in paths])))
            what = f"mean of {given.files} files, {variables} x {rows // 512 or rows / 512} MiB{', joined' if joined else ''}, with mounting"
            show(what, "VirtualiZarr, with its scan", pairs)


def listing(python, folder, given):
    from support.mount import Mount

    store = folder / "many.h5"
    subprocess.run([python, "-c", MANY, store, str(given.arrays)], check=True)

    def seconds(*command):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - start

    for state in ("first", "again"):
        for options in ("-l", "-lR"):
            pairs = []
            for _ in range(given.pairs):
                # Each in a mount of its own: what one reads of the file would help the other.
                times = []
                for path, option in ((".npyfs/zarr/g", options), ("g", "-l")):
                    with Mount(store, limit=900) as mount:
                        if state == "again":
                            seconds("ls", option, mount / path)
                        times.append(seconds("ls", option, mount / path))
                pairs.append(tuple(times))
            show(f"ls {options} of the view of {given.arrays} arrays, {state}", "ls -l of the .npy files", pairs)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--pairs", type=int, default=5)
    arguments.add_argument("--mib", type=int, default=1024)
    arguments.add_argument("--files", type=int, default=500)
    arguments.add_argument("--arrays", type=int, default=100_000)
    arguments.add_argument("--dir")
    arguments.add_argument("--only", default="mean,first,files,list")
    arguments.add_argument("--one", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.one:
        return run_one(json.loads(given.one))
    given.only = given.only.split(",")
    python = environment()
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        folder = Path(folder)
        print(f"# load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors", flush=True)
        if {"mean", "first"} & set(given.only):
            mean(python, folder, given)
        if "files" in given.only:
            files(python, folder, given)
        if "list" in given.only:
            listing(python, folder, given)


if __name__ == "__main__":
    main()
