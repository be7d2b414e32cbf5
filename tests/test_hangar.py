"""Repositories made by real Hangar, compared with what Hangar reads from them, sample by sample."""

import errno
import hashlib
import os
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest

from support import hangar
from support.everything import everything  # noqa: F401 (a fixture)
from support.mount import Mount, until
from support.process import npyfs, stopped

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
            with stopped(m.pid):
                if place == "commits":
                    assert looker.communicate("\n", timeout=20)[0] == "200 True\n"
                else:
                    with pytest.raises(subprocess.TimeoutExpired):
                        looker.communicate("\n", timeout=3)
        finally:
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
