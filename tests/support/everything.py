"""A Hangar repository with every backend, type and filter, as a fixture of a module: `from support.everything import everything`."""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile

import pytest

from . import hangar
from .process import CACHE

EVERYTHING = '''
path = sys.argv[1]
repo = repository(path)
rng = np.random.default_rng(7)
with contextlib.redirect_stdout(io.StringIO()):
    co = repo.checkout(write=True)
    blosc = lambda codec, shuffle, level=5: {"complib": f"blosc:{codec}", "complevel": level, "shuffle": shuffle}
    options = {f"blosc_{codec}_{shuffle}": blosc(codec, shuffle)
               for codec in ("blosclz", "lz4", "lz4hc", "zlib", "zstd") for shuffle in ("none", "byte", "bit")}
    options |= {"lzf": {"complib": "lzf", "complevel": None, "shuffle": True},
                "lzf_plain": {"complib": "lzf", "complevel": None, "shuffle": False},
                "gzip": {"complib": "gzip", "complevel": 4, "shuffle": True},
                "gzip_plain": {"complib": "gzip", "complevel": 1, "shuffle": False}}
    smooth = np.add.outer(np.arange(40), np.arange(30))
    offset = 0
    for name, option in options.items():
        for backend in ("00", "01"):
            offset += 100  # the same content would be stored once
            column = co.add_ndarray_column(f"{name}_{backend}", prototype=np.zeros((40, 30), "i4"), backend=backend, backend_options=option)
            for i in range(3):
                column[i] = (smooth + i + offset).astype("i4")
            column["noise"] = rng.integers(-2**31, 2**31, (40, 30), dtype="i4")      # stored raw: filter mask
            column["constant"] = np.full((40, 30), offset, "i4")
    types = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64", "float128"]
    for backend in ("00", "01", "10"):
        for dtype in types:
            shape = (6,) if backend == "10" else (6, 5)
            column = co.add_ndarray_column(f"type_{dtype}_{backend}", prototype=np.zeros(shape, dtype), backend=backend)
            for i in range(3):
                column[i] = (rng.random(shape) * 100).astype(dtype) if dtype != "bool" else rng.random(shape) > 0.5
    for backend in ("00", "01", "10"):
        column = co.add_ndarray_column(f"scalar_{backend}", prototype=np.array(0, "f8"), backend=backend)
        column["x"] = np.array(3.25)
        column[1] = np.array(-1.0)
    for backend in ("00", "10"):
        column = co.add_ndarray_column(f"variable_{backend}", prototype=np.zeros((9,) if backend == "10" else (9, 7, 4), "f4"),
                                       variable_shape=True, backend=backend)
        for i, shape in enumerate([(9, 7, 4), (1, 1, 1), (3, 7, 2), (9, 1, 4), (2, 5, 3)]):
            column[i] = rng.random(shape[:1] if backend == "10" else shape).astype("f4")
    large = co.add_ndarray_column("large_01", prototype=np.zeros((512, 700, 3), "f4"), backend="01")
    large[0] = np.round(rng.random((512, 700, 3)), 2).astype("f4")
    large[1] = np.zeros((512, 700, 3), "f4")
    ragged = co.add_ndarray_column("ragged_01", prototype=np.zeros((1025, 1023), "f8"), backend="01")
    ragged["r"] = np.round(rng.random((1025, 1023)), 2)
    flat = co.add_ndarray_column("large_00", prototype=np.zeros((600, 600), "f4"), backend="00")
    flat[0] = np.round(rng.random((600, 600)), 2).astype("f4")
    part = co.add_ndarray_column("large_part", prototype=np.zeros((512, 700, 3), "f4"), variable_shape=True, backend="00")
    part[0] = np.round(rng.random((100, 699, 2)), 2).astype("f4")
    part[1] = np.round(rng.random((512, 3, 3)), 2).astype("f4")
    keys = co.add_ndarray_column("keys", prototype=np.zeros((2, 2), "u1"))
    for i, key in enumerate([0, 5, "5", "00012", 12, "a.npy", "b.keys", ".", "..", "-dash", ".hidden", "x" * 64, 10**18, "10", 100, "_", "c.txt"]):
        keys[key] = np.full((2, 2), i, "u1")
    names = co.add_ndarray_column("img.keys", prototype=np.zeros(3, "u1"))
    names[0] = np.array([1, 2, 3], "u1")
    dots = co.add_ndarray_column("..", prototype=np.zeros(3, "u1"))
    dots["."] = np.array([4, 5, 6], "u1")
    empty = co.add_ndarray_column("empty", prototype=np.zeros((3, 4), "u1"))
    same = co.add_ndarray_column("same_00", prototype=np.zeros((4, 4), "u1"), backend="00")
    also = co.add_ndarray_column("same_01", prototype=np.zeros((4, 4), "u1"), backend="01")
    for i in range(5):
        same[i] = np.full((4, 4), i, "u1")
        also[f"k{i}"] = np.full((4, 4), i, "u1")                                   # lives in the other column's file
    text = co.add_str_column("text")
    text[0], text["long"], text["empty"], text["uni"] = "zero", "line\\n" * 5000, "", "\\u00e9\\u4e16 \\U0001f600"
    raw = co.add_bytes_column("raw")
    raw[0], raw["all"], raw["empty"] = b"\\x00\\xff", bytes(range(256)) * 20, b""
    nested = co.add_ndarray_column("nested", prototype=np.zeros((3, 2), "i2"), contains_subsamples=True)
    for i in range(4):
        nested[i] = {j: np.full((3, 2), 10 * i + j, "i2") for j in range(3)}
    nested["s"] = {"a": np.ones((3, 2), "i2"), 7: np.zeros((3, 2), "i2"), "7": np.full((3, 2), 9, "i2")}
    deep = co.add_str_column("deep", contains_subsamples=True)
    deep["x"] = {"de": "hallo", "fr": "salut"}
    rough = co.add_ndarray_column("deep_variable", prototype=np.zeros((5, 5), "i8"), contains_subsamples=True, variable_shape=True)
    rough[0] = {"a": np.ones((2, 5), "i8"), "b": np.zeros((5, 1), "i8")}
    many = co.add_ndarray_column("many", prototype=np.zeros((7, 7), "u2"))
    with many:
        for i in range(1500):
            many[i] = np.full((7, 7), i, "u2")
    co.commit("everything")
    co.close()
    repo.create_branch("side")
    co = repo.checkout(write=True, branch="side")
    co["keys"]["new"] = np.full((2, 2), 77, "u1")
    co["text"]["side"] = "side"
    del co["many"][3]
    co["many"][7] = np.full((7, 7), 1, "u2")                                       # what another key has already
    co.commit("on the side")
    co.close()
    co = repo.checkout(write=True, branch="master")
    co["many"]["late"] = np.full((7, 7), 9999, "u2")
    co["raw"].pop("all")
    co.commit("on master")
    co.merge("merge the side", "side")
    co.close()
    co = repo.checkout(write=True, branch="master")
    later = co.add_ndarray_column("later", prototype=np.zeros((2, 3), "f4"))
    later["l"] = np.ones((2, 3), "f4")
    co.commit("a column more")
    co.close()
    repo.create_branch("empty_so_far")
'''


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A repository with every backend, type and filter, and what Hangar reads from it. Not to be changed."""
    path = tmp_path_factory.mktemp("hangar") / "everything"
    made = kept()
    shutil.copytree(made / "everything", path, symlinks=True)
    return path, json.loads((made / "told.json").read_text())


def kept():
    """The folder in the cache with the repository, made by the first test that asks for it: Hangar takes its time, and the scripts say
    all that is in it."""
    key = hashlib.sha256((hangar.PRELUDE + EVERYTHING + hangar.PYTHON).encode()).hexdigest()[:16]
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = CACHE / f"hangar-everything-{key}"
    with open(CACHE / ".hangar-everything", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            for old in CACHE.glob("hangar-everything-*"):
                shutil.rmtree(old)
            with tempfile.TemporaryDirectory(dir=CACHE) as making:
                path = os.path.join(making, "new", "everything")
                hangar.script(EVERYTHING, path)
                with open(os.path.join(making, "new", "told.json"), "w") as file:
                    json.dump(hangar.told(path), file)
                os.rename(os.path.join(making, "new"), folder)
    return folder
