"""Repositories made by real Hangar, compared with what Hangar reads from them, sample by sample."""

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import h5py
import numpy as np
import pytest

from support import hangar
from support.mount import Mount, until
from support.process import npyfs

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
    hangar.script(EVERYTHING, path)
    return path, hangar.told(path)


@pytest.mark.slow
def test_every_sample_of_every_commit(everything):
    path, told = everything
    before = hangar.state(path)
    with Mount(path, limit=300) as m:
        samples = sum(hangar.check(m / "branches" / name, told["commits"][digest]) for name, digest in told["branches"].items())
        samples += sum(hangar.check(m / "commits" / digest, columns) for digest, columns in told["commits"].items())
        samples += hangar.check(m / "stage", told["commits"][told["branches"]["master"]])
        assert samples > 10000 and len(told["commits"]) == 5
        assert m.errors() == []
        status = m.status()
        assert status["worker_restarts"] == 0
    assert hangar.state(path) == before, "a read-only mount changed the repository"


def test_a_listing_needs_no_data_file(everything):
    """Sizes follow from records and schemas: all of them are gone."""
    path, told = everything

    def sizes():
        with Mount(path) as m:
            listed = {os.path.join(folder, name): os.stat(os.path.join(folder, name)).st_size
                      for folder, _, names in os.walk(m / "branches/master") for name in names}
            return {os.path.relpath(name, m.path): size for name, size in listed.items()}, m.errors()

    listed = sizes()
    folder, away = path / ".hangar/data", path / ".hangar/away"
    folder.rename(away)
    try:
        (without, errors) = sizes()
    finally:
        away.rename(folder)
    assert errors == [] and len(without) > 1000
    # The lengths of text and bytes stand in the data files themselves.
    arrays = {name: size for name, size in listed[0].items() if name.endswith(".npy")}
    assert {name: without[name] for name in arrays} == arrays


LOOK_TWICE = """
import os, sys
folder = os.open(sys.argv[1], os.O_RDONLY)
names = [os.path.join(above, name) for above in os.listdir(folder) if not above.endswith(".npy")
         for name in os.listdir(os.open(above, os.O_RDONLY, dir_fd=folder))][:200]
look = lambda: [os.stat(name, dir_fd=folder)[:9] for name in names]
first = look()
print("ready", flush=True)
sys.stdin.readline()
print(len(names), look() == first)
"""


@pytest.mark.parametrize("place", ["commits", "branches"])
def test_the_kernel_asks_only_once_about_a_commit(everything, place):
    """With a daemon that is stopped, what is below commits/ can still be looked at, long after a branch's second is over."""
    path, told = everything
    name = told["branches"]["master"] if place == "commits" else "master"
    with Mount(path) as m:
        looker = subprocess.Popen([sys.executable, "-c", LOOK_TWICE, m / place / name], text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert looker.stdout.readline() == "ready\n"
            time.sleep(2)
            os.kill(m.pid, signal.SIGSTOP)
            if place == "commits":
                assert looker.communicate("\n", timeout=20)[0] == "200 True\n"
            else:
                with pytest.raises(subprocess.TimeoutExpired):
                    looker.communicate("\n", timeout=3)
        finally:
            os.kill(m.pid, signal.SIGCONT)
            looker.kill()
            looker.communicate(timeout=20)


def test_samples_by_their_records(everything):
    path, told = everything
    with Mount(path) as m:
        for name in ("large_part/0.npy", "type_float128_01/1.npy", "type_bool_10/2.npy", "same_01/k3.npy", "text/long.txt", "raw/0.bin"):
            info = m.info(f"branches/master/{name}")
            record = info["record"]
            data = (m / "branches/master" / name).read_bytes()
            assert (m / "records" / (record + name[-4:])).read_bytes() == data, record
            assert info["commit"] == told["branches"]["master"] and info["backend"] == record[:2]
        # Where a sample lives has nothing to do with its column.
        assert m.info("branches/master/same_01/k3.npy")["backend"] == "00"
        for wrong in ("nonsense.npy", f"{record[:-1]}g.bin", "01:../../x:0123456789abcdef:0:0:1.npy", record + ".txt"):
            assert not (m / "records" / wrong).exists()


def test_info_tells_commits_and_columns(everything):
    path, told = everything
    with Mount(path) as m:
        head = told["branches"]["master"]
        info = m.info("branches/master")
        assert (info["commit"], info["message"], info["author"], info["email"]) == (head, "a column more", "tester", "t@example.com")
        merge = m.info(f"commits/{info['parents'][0]}")
        assert merge["message"] == "merge the side" and len(merge["parents"]) == 2
        assert info["columns"]["large_01"]["schema"]["shape"] == [512, 700, 3]
        assert m.info("stage")["based_on_branch"] == "master"
        assert m.info()["branches"] == told["branches"]
        key = m.info("branches/master/keys/%35.npy")
        assert key["key"] == "5" and m.info("branches/master/keys/5.npy")["key"] == 5


def test_info_tells_how_the_dataset_of_a_sample_is_stored(everything):
    path, _ = everything
    with Mount(path) as m:
        seen = set()
        for name in ("gzip_01/1.npy", "gzip_00/0.npy", "lzf_01/0.npy", "blosc_lz4_none_01/1.npy", "type_float32_01/1.npy"):
            info = m.info(f"branches/master/{name}")
            with h5py.File(info["file"], "r", swmr=True) as file:
                dataset = file[info["path"]]
                plist = dataset.id.get_create_plist()
                filters = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
                assert info["chunks"] == (list(dataset.chunks) if dataset.chunks else None), name
                assert [step["id"] for step in info["filters"]] == filters
                assert info["stored_size"] == dataset.id.get_storage_size() > 0
                assert info["layout"] == ("chunked" if dataset.chunks else "contiguous")
            assert "error" not in info
            seen.update(filters)
        assert len(seen) >= 3
        record = m.info("branches/master/gzip_01/1.npy")
        assert m.info(f"records/{record['record']}.npy")["filters"] == record["filters"]


def test_times_follow_the_first_parents(everything, tmp_path, monkeypatch):
    path, told = everything
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def times(m):
        branch = m / "branches/master"
        return {os.path.join(folder, name): os.stat(os.path.join(folder, name)).st_mtime_ns - 0
                for folder, _, names in os.walk(branch) for name in names}

    with Mount(path) as m:
        commits = {info["message"]: info["time"] for info in (m.info(f"commits/{digest}") for digest in told["commits"])}
        at = lambda name: (m / "branches/master" / name).stat().st_mtime
        assert at("keys/0.npy") == pytest.approx(commits["everything"], abs=1e-5)
        assert at("many/late.npy") == pytest.approx(commits["on master"], abs=1e-5)
        # On the history of first parents the side's changes came with the merge.
        for merged in ("keys/new.npy", "many/7.npy", "text/side.txt", "many.npy", "keys", "many.keys.npy"):
            assert at(merged) == pytest.approx(commits["merge the side"], abs=1e-5), merged
        assert at("raw") == pytest.approx(commits["on master"], abs=1e-5)
        assert at("large_01.npy") == pytest.approx(commits["everything"], abs=1e-5)
        assert at("later/l.npy") == pytest.approx(commits["a column more"], abs=1e-5)
        first = {name.removeprefix(str(m.path)): time for name, time in times(m).items()}
    remembered = [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    assert remembered, "times are remembered outside the repository"
    for damage in (None, b"nonsense", b""):
        if damage is not None:
            for p in remembered:
                p.write_bytes(damage)
        with Mount(path) as m:
            assert {name.removeprefix(str(m.path)): time for name, time in times(m).items()} == first


def test_verify_finds_nothing_and_then_what_is_damaged(everything, tmp_path):
    path, told = everything
    done = npyfs("verify", path, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "5 commits" in done.stdout and "all is well" in done.stdout
    broken = hangar.copy(path, tmp_path / "broken")
    with Mount(path) as m:
        info = m.info("branches/master/gzip_01/1.npy")
        damaged = m.info("branches/master/blosc_lz4_none_00/noise.npy")
    for victim in (info, damaged):
        flip(broken / ".hangar/data" / victim["backend"] / os.path.basename(victim["file"]))
    done = npyfs("verify", broken, timeout=200)
    assert done.returncode == 3
    assert "damaged" in done.stdout and "checksum" in done.stderr


def flip(path):
    """Change one byte in each stored chunk of a file."""
    import h5py

    with h5py.File(path, "r", swmr=True) as file:
        chunks = [file[name].id.get_chunk_info(i) for name in file for i in range(file[name].id.get_num_chunks())]
    with open(path, "r+b") as file:
        for chunk in chunks:
            at = chunk.byte_offset + chunk.size - 1
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 0x40]))


def test_a_damaged_sample_costs_its_own_rows_only(everything, tmp_path):
    path, told = everything
    broken = hangar.copy(path, tmp_path / "broken")
    with Mount(path) as m:
        infos = {key: m.info(f"branches/master/blosc_lz4_none_01/{key}.npy") for key in ("noise", "1")}
        good = np.load(m / "branches/master/blosc_lz4_none_01.npy")
        keys = list(np.load(m / "branches/master/blosc_lz4_none_01.keys.npy"))
    import h5py

    noise = infos["noise"]
    with h5py.File(noise["file"], "r", swmr=True) as file:
        chunk = file[noise["path"]].id.get_chunk_info_by_coord((noise["row"], 0, 0))
    copied = broken / os.path.relpath(noise["file"], path)
    with open(copied, "r+b") as file:
        file.seek(chunk.byte_offset + 100)
        file.write(b"damage")
    with Mount(broken) as m:
        folder = m / "branches/master/blosc_lz4_none_01"
        with pytest.raises(OSError) as refusal:
            (folder / "noise.npy").read_bytes()
        assert refusal.value.errno == errno.EIO
        assert any(noise["record"] in line and "checksum" in line for line in m.errors()), m.errors()
        np.load(folder / "1.npy")
        with open(m / "branches/master/blosc_lz4_none_01.npy", "rb", buffering=0) as file:
            header = os.stat(file.name).st_size - good.nbytes
            for row, key in enumerate(keys):
                at = header + row * good[0].nbytes
                if key == "noise":
                    with pytest.raises(OSError):
                        os.pread(file.fileno(), good[0].nbytes, at)
                elif row < 2:  # the others share a page with it
                    assert os.pread(file.fileno(), good[0].nbytes, at) == good[row].tobytes()


def test_what_is_missing_or_wrong_is_said_and_everything_else_works(everything, tmp_path):
    path, told = everything
    broken = hangar.copy(path, tmp_path / "broken")
    with Mount(path) as m:
        gone = m.info("branches/master/gzip_00/0.npy")
        lost = m.info("branches/master/lzf_01/0.npy")
        beside = m.info("branches/master/lzf_01/1.npy")
        value = m.info("branches/master/text/0.txt")
    os.remove(broken / os.path.relpath(gone["file"], path))
    shutil.rmtree((broken / os.path.relpath(value["file"], path)).parent)
    hangar.script('''
import lmdb
root = sys.argv[1] + "/.hangar/"
settings = dict(subdir=False, lock=False, map_size=50_000_000_000)
def change(name, changes):
    with lmdb.open(root + name, **settings) as env, env.begin(write=True) as txn:
        for key, value in changes.items():
            if value is None:
                assert txn.delete(key.encode())
            else:
                txn.put(key.encode(), value.encode())
outside, dropped = sys.argv[2:4]
change("hash.lmdb", {"h:" + outside: sys.argv[4].rpartition(":")[0].rpartition(":")[0] + ":100:40 30", "h:" + dropped: None})
with lmdb.open(root + "branch.lmdb", **settings) as env, env.begin() as txn:
    heads = {k.decode()[7:]: v.decode() for k, v in txn.cursor() if k.startswith(b"branch:")}
change("ref.lmdb", {heads["side"] + ":ref": "this is no blosc frame at all"})
change("branch.lmdb", {"branch:nothing": "", "branch:lost": "a=" + "0" * 40})
change("stage_ref.lmdb", {"f:keys:#True": "0=" + "0" * 40, "f:keys:odd": "nonsense", "f:nowhere:x": "0=" + "0" * 40})
''', broken, lost["digest"], beside["digest"], lost["record"])
    with Mount(broken) as m:
        for name, reason in (("gzip_00/0.npy", "missing"), ("lzf_01/0.npy", "row"), ("lzf_01/1.npy", "no record"), ("text/0.txt", "missing")):
            with pytest.raises(OSError) as refusal:
                (m / "branches/master" / name).read_bytes()
            assert refusal.value.errno == errno.EIO, name
            assert any(name in line and reason in line for line in m.errors()), (name, m.errors())
        assert np.load(m / "branches/master/lzf_01/2.npy").shape == (40, 30)
        assert len(os.listdir(m / "branches/master/lzf_01")) == 5
        assert sorted(os.listdir(m / "branches")) == ["empty_so_far", "lost", "master", "nothing", "side"]
        assert os.listdir(m / "branches/nothing") == []
        for branch in ("lost", "side"):
            with pytest.raises(OSError):
                os.listdir(m / "branches" / branch)
        stage = os.listdir(m / "stage/keys")
        assert "odd.npy" not in stage and "5.npy" in stage
        assert "Hangar itself cannot read" in str(m.info("stage/keys")["left_out"])
        assert "nowhere" in str(m.info("stage")["notes"])
        first = [d for d, c in told["commits"].items() if "later" not in c][0]
        assert np.load(m / "commits" / first / "keys/5.npy")[0, 0] == 1


def test_data_files_that_lead_out_of_the_repository_are_refused(everything, tmp_path):
    path, _ = everything
    moved = hangar.copy(path, tmp_path / "moved/repo")
    names = ("type_int8_10/0.npy", "type_int8_01/0.npy", "text/0.txt")
    with Mount(path) as m:
        infos = {name: m.info(f"branches/master/{name}") for name in names}
        data = {name: (m / "branches/master" / name).read_bytes() for name in names}
    for number, info in enumerate(infos.values()):
        file = moved / os.path.relpath(info["file"], path)
        outside = tmp_path / f"outside{number}"
        shutil.move(file, outside)
        file.symlink_to(outside)
    with Mount(moved) as m:
        for name in names:
            with pytest.raises(OSError) as refusal:
                (m / "branches/master" / name).read_bytes()
            assert refusal.value.errno == errno.EACCES, name
    with Mount(moved, "external=allow") as m:
        for name in names:
            assert (m / "branches/master" / name).read_bytes() == data[name], name


def test_versions_that_hangar_refuses_are_refused(everything, tmp_path):
    path, _ = everything
    old = hangar.copy(path, tmp_path / "all/old")
    hangar.copy(path, tmp_path / "all/new")
    hangar.script('''
import lmdb
with lmdb.open(sys.argv[1] + "/.hangar/branch.lmdb", subdir=False, lock=False) as env, env.begin(write=True) as txn:
    txn.put(b"software_version", b"0.4.0")
''', old)
    done = npyfs("ls", old)
    assert done.returncode == 2 and "0.4.0" in done.stderr
    # Beside others it costs only itself.
    with Mount(tmp_path / "all") as m:
        assert sorted(os.listdir(m.path)) == ["new", "old"]
        with pytest.raises(OSError):
            os.listdir(m / "old")
        assert "0.4.0" in m.info("old")["error"]
        assert "keys" in os.listdir(m / "new/branches/master")


def test_a_partial_clone_lists_what_it_has_not_fetched(tmp_path):
    for name in ("origin", "server", "clone"):
        (tmp_path / name).mkdir()
    with hangar.served(tmp_path / "server") as address:
        hangar.script('''
path, clone, address = sys.argv[1:]
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    repo = repository(path)
    co = repo.checkout(write=True)
    fixed = co.add_ndarray_column("fixed", prototype=np.zeros((12, 9), "f4"))
    variable = co.add_ndarray_column("variable", prototype=np.zeros((12, 9), "i8"), variable_shape=True)
    text, raw = co.add_str_column("text"), co.add_bytes_column("raw")
    for i in range(20):
        fixed[i] = np.full((12, 9), i, "f4")
        variable[i] = np.full((i % 12 + 1, 9), i, "i8")
        text[i], raw[i] = "x" * i, bytes(range(i))
    co.commit("all")
    co.close()
    repo.remote.add("origin", address)
    repo.remote.push("origin", "master")
    other = Repository(clone, exists=False)
    other.clone("tester", "t@example.com", address, remove_old=False)
''', tmp_path / "origin", tmp_path / "clone", address)
        told = hangar.told(tmp_path / "origin")
        columns = told["commits"][told["branches"]["master"]]
        files, _ = hangar.expected(columns)
        with Mount(tmp_path / "clone") as m:
            assert os.listdir(m / "remotes") == ["origin"] and os.listdir(m / "remotes/origin") == ["master"]
            folder = m / "remotes/origin/master"
            assert set(files) <= set(hangar.files_below(folder))
            for name in ("fixed/5.npy", "variable/5.npy", "text/5.txt", "raw/5.bin"):
                with pytest.raises(OSError) as refusal:
                    (folder / name).read_bytes()
                assert refusal.value.errno == errno.ENODATA, name
            assert all("fetch" in line for line in m.errors()) and len(m.errors()) >= 4
            size = (folder / "fixed/5.npy").stat().st_size
            done = npyfs("verify", tmp_path / "clone")
            assert done.returncode == 0 and "80 samples are not here" in done.stdout, done.stdout
            hangar.script('''
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    repo = Repository(sys.argv[1])
    repo.remote.fetch_data("origin", branch="master")
''', tmp_path / "clone")
            # Without mounting anew. The kernel may believe sizes for a second.
            assert len((folder / "fixed/5.npy").read_bytes()) == size
            until(lambda: (folder / "text/19.txt").stat().st_size == 19, "the size of what was fetched")
            assert hangar.check(folder, columns) == len(files)
            assert hangar.check(m / "branches/master", columns) == len(files)
            digest = told["branches"]["master"]
            assert hangar.check(m / "commits" / digest, columns) == len(files)
        with Mount(tmp_path / "server") as m:
            assert hangar.check(m / "branches/master", columns) == len(files)


COLD = '''
path = sys.argv[1]
repo = repository(path)
rng = np.random.default_rng(3)
with contextlib.redirect_stdout(io.StringIO()):
    co = repo.checkout(write=True)
    large = co.add_ndarray_column("large", prototype=np.zeros((64, 64, 3), "f4"))
    small = co.add_ndarray_column("small", prototype=np.zeros((28, 28), "u1"))
    with large, small:
        for i in range(250):
            large[i] = np.round(rng.random((64, 64, 3)), 2).astype("f4")
        for i in rng.permutation(2500):
            small[int(i)] = rng.integers(0, 255, (28, 28), dtype="u1")
    co.commit("cold")
    co.close()
print(json.dumps(tell(path)))
'''


def test_a_stacked_column_that_comes_from_the_disk(tmp_path):
    """In storage order and in another one; over several datasets, and more samples than are looked up at a time."""
    path = tmp_path / "repository"
    told = hangar.script(COLD, path)
    columns = told["commits"][told["branches"]["master"]]
    for _ in range(2):
        for file in (path / ".hangar/data").rglob("*.hdf5"):
            with open(file, "rb") as stream:
                os.fsync(stream.fileno())
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with Mount(path) as m:
            for name, column in columns.items():
                wanted = {key["int"]: content["sha256"] for key, content in column["samples"]}
                stack = np.load(m / f"branches/master/{name}.npy")
                keys = np.load(m / f"branches/master/{name}.keys.npy")
                assert len(stack) == len(keys) == len(wanted)
                for key, row in zip(keys, stack):
                    assert hashlib.sha256(row.tobytes()).hexdigest() == wanted[int(key)], (name, key)
