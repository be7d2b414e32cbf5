"""Samples written into the staging area of a Hangar repository through a mount; Hangar itself judges."""

import errno
import os
import shutil

import numpy as np
import pytest

from support import hangar
from support.mount import Mount
from support.process import npyfs
from support.truth import np_save
from test_hangar_commit import STAGE, commit, files, judge

TYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64", "longdouble"]

# A repository whose columns have every backend and compression that Hangar takes.
COLUMNS = '''
path = sys.argv[1]
repo = repository(path)
with contextlib.redirect_stdout(io.StringIO()):
    co = repo.checkout(write=True)
    options = {f"{codec}_{shuffle}_{level}": {"complib": f"blosc:{codec}", "complevel": level, "shuffle": shuffle}
               for codec in ("blosclz", "lz4", "lz4hc", "zlib", "zstd") for shuffle, level in (("none", 0), ("byte", 5), ("bit", 9))}
    options["none"] = {"complib": "blosc:lz4", "complevel": 5, "shuffle": None}
    options |= {f"lzf_{flag}": {"complib": "lzf", "complevel": None, "shuffle": flag} for flag in (True, False)}
    options |= {f"gzip_{level}_{flag}": {"complib": "gzip", "complevel": level, "shuffle": flag} for level in (0, 1, 9) for flag in (True, False)}
    for backend in ("00", "01"):
        for name, option in options.items():
            co.add_ndarray_column(f"c{backend}_{name}", prototype=np.zeros((40, 30), "i4"), backend=backend, backend_options=option)
    for dtype in sys.argv[2].split():
        for backend in ("00", "01", "10"):
            co.add_ndarray_column(f"t{backend}_{dtype}", prototype=np.zeros((6, 5), dtype), backend=backend)
        co.add_ndarray_column(f"d_{dtype}", prototype=np.zeros((4, 3), dtype), contains_subsamples=True)
    # Hangar 0.5.2 cannot verify single values in backend 01, its own neither.
    for backend in ("00", "10"):
        co.add_ndarray_column(f"s{backend}", prototype=np.array(0, "f8"), backend=backend)
    for backend in ("00", "10"):
        co.add_ndarray_column(f"v{backend}", prototype=np.zeros((9, 7, 4), "f4"), variable_shape=True, backend=backend)
    co.add_ndarray_column("large_01", prototype=np.zeros((512, 700, 3), "f4"), backend="01")
    co.add_ndarray_column("large_00", prototype=np.zeros((600, 600), "f4"), backend="00")
    co.add_str_column("text")
    co.add_bytes_column("raw")
    co.add_str_column("deep_text", contains_subsamples=True)
    co.commit("columns")
    co.close()
'''


def content(value):
    import hashlib

    if isinstance(value, bytes):
        return {"t": "bytes", "len": len(value), "sha256": hashlib.sha256(value).hexdigest()}
    if isinstance(value, str):
        data = value.encode()
        return {"t": "str", "len": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return {"t": "ndarray", "dtype": value.dtype.str, "shape": list(value.shape), "sha256": hashlib.sha256(value.tobytes()).hexdigest()}


def key(name):
    return {"int": int(name)} if name.isdigit() else {"str": name}


def samples(judged):
    """{column: {keys: content}} of what Hangar sees staged."""
    found = {}
    for name, column in judged["staged"].items():
        found[name] = {tuple(str(next(iter(k.values()))) for k in keys): value for *keys, value in column["samples"]}
    return found


def write(path, value):
    if isinstance(value, bytes):
        path.write_bytes(value)
    elif isinstance(value, str):
        path.write_text(value, encoding="utf-8")
    else:
        path.write_bytes(np_save(value))


def sync(mount):
    fd = os.open(mount.path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def test_a_sample_is_copied_into_a_column(tmp_path):
    """The first thing that anybody tries."""
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    first = commit(path, "first")
    digit = np.arange(20, dtype="f4").reshape(5, 4)
    np.save(tmp_path / "digit.npy", digit)
    with Mount(path, checkout="work") as m:
        before = hangar.script("print(json.dumps(tell(sys.argv[1])))", path)
        shutil.copyfile(tmp_path / "digit.npy", m / "stage/a/70001.npy")
        assert (np.load(m / "stage/a/70001.npy") == digit).all()
        assert sorted(os.listdir(m / "stage/a")) == ["0.npy", "1.npy", "2.npy", "3.npy", "4.npy", "70001.npy"]
        assert not os.path.exists(m / "branches/master/a/70001.npy")
        sync(m)
        assert (np.load(m / "stage/a/70001.npy") == digit).all()
        assert np.load(m / "stage/a.npy").shape == (6, 5, 4)
        with pytest.raises(OSError) as caught:
            (m / "branches/master/a/x.npy").write_bytes(np_save(digit))
        assert caught.value.errno == errno.EROFS
        assert m.errors() == []
    now = judge(path)
    assert now["status"] == "DIRTY" and not now["locked"] and now["told"] == before
    assert samples(now)["a"][("70001",)] == content(digit)
    assert "A a/70001.npy" in npyfs("checkout", "diff", path, check=True).stdout
    second = hangar.script('''
with contextlib.redirect_stdout(io.StringIO()):
    co = Repository(sys.argv[1]).checkout(write=True)
    digest = co.commit("Hangar commits it")
    co.close()
print(json.dumps(digest))
''', path)
    now = judge(path)
    assert now["verified"] is True and now["log"]["order"] == [second, first]
    assert files(path)["data"] == files(path)["store_data"]


def everything(rng, types):
    """{path below stage: value} for the columns above."""
    values = {}
    smooth = np.add.outer(np.arange(40), np.arange(30))
    levels = [("none", 0), ("byte", 5), ("bit", 9)]
    names = [f"{codec}_{shuffle}_{level}" for codec in ("blosclz", "lz4", "lz4hc", "zlib", "zstd") for shuffle, level in levels]
    names += ["none", "lzf_True", "lzf_False", *(f"gzip_{level}_{flag}" for level in (0, 1, 9) for flag in (True, False))]
    for number, name in enumerate(names):
        for backend in ("00", "01"):
            offset = 1000 * number + 500 * int(backend)
            for i in range(3):
                values[f"c{backend}_{name}/{i}.npy"] = (smooth + offset + i).astype("i4")
            values[f"c{backend}_{name}/noise.npy"] = rng.integers(-2**31, 2**31, (40, 30), dtype="i4")
            values[f"c{backend}_{name}/constant.npy"] = np.full((40, 30), offset, "i4")

    def some(shape, dtype):
        return rng.random(shape) > 0.5 if dtype == "bool" else (rng.random(shape) * 100).astype(dtype)

    for dtype in types:
        for backend in ("00", "01", "10"):
            for i in range(3):
                values[f"t{backend}_{dtype}/{i}.npy"] = some((6, 5), dtype)
        for i in range(2):
            for j in ("a", "1"):
                values[f"d_{dtype}/{i}/{j}.npy"] = some((4, 3), dtype)
    for backend in ("00", "10"):
        values[f"s{backend}/x.npy"] = np.array(3.25 + int(backend))
    for backend in ("00", "10"):
        for i, shape in enumerate([(9, 7, 4), (1, 1, 1), (3, 7, 2), (9, 1, 4), (2, 5, 3), (3, 7, 4)]):
            values[f"v{backend}/{i}.npy"] = rng.random(shape).astype("f4")
    values["large_01/0.npy"] = np.round(rng.random((512, 700, 3)), 2).astype("f4")
    values["large_01/1.npy"] = np.zeros((512, 700, 3), "f4")
    values["large_00/0.npy"] = np.round(rng.random((600, 600)), 2).astype("f4")
    values |= {"text/0.txt": "zero", "text/long.txt": "line\n" * 5000, "text/uni.txt": "\u00e9\u4e16 \U0001f600"}
    values |= {"raw/0.bin": b"\x00\xff", "raw/all.bin": bytes(range(256)) * 20}
    values |= {"deep_text/x/de.txt": "hallo", "deep_text/x/fr.txt": "salut"}
    return values


def test_every_backend_type_and_compression(tmp_path):
    path = tmp_path / "repo"
    hangar.script(COLUMNS, path, " ".join(TYPES))
    values = everything(np.random.default_rng(3), TYPES)
    with Mount(path, checkout="work", limit=300) as m:
        for name, value in values.items():
            os.makedirs((m / "stage" / name).parent, exist_ok=True)
            write(m / "stage" / name, value)
        sync(m)
        assert m.errors() == []
    now = judge(path)
    assert now["status"] == "DIRTY"
    found = samples(now)
    assert sum(map(len, found.values())) == len(values)
    for name, value in values.items():
        column, *keys = name.rsplit(".", 1)[0].split("/")
        assert found[column][tuple(keys)] == content(value), name
    commit(path, "all of it")
    now = judge(path)
    assert now["status"] == "CLEAN" and now["verified"] is True
    assert "all is well" in npyfs("verify", path, check=True).stdout
