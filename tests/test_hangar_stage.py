"""Samples written into the staging area of a Hangar repository through a mount; Hangar itself judges."""

import contextlib
import errno
import os
import shutil
import signal
import threading

import numpy as np
import pytest

from support import hangar
from support.faults import Faults, build
from support.mount import Mount
from support.process import npyfs, one_line, run, signal_all, workers
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
        for change in (lambda: (m / "branches/master/a/x.npy").write_bytes(np_save(digit)),
                       lambda: os.utime(m / "branches"), lambda: os.utime(m / "branches/master/a")):
            with pytest.raises(OSError) as caught:
                change()
            assert caught.value.errno == errno.EROFS
        assert [line.partition(": setattr: ")[2] for line in m.errors()] == ["of a Hangar repository only samples in columns of stage/ can be changed"] * 2
    assert sorted(os.listdir(tmp_path)) == ["digit.npy", "repo"], "a directory of the checkout is left"
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


def test_a_mount_stands_for_its_repository(tmp_path):
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    first = commit(path, "first")
    new = np.ones((5, 4), "f4")
    with Mount(path, checkout="c") as mount:
        # Nobody has synced the sample.
        np.save(mount / "stage/a/100.npy", new)
        assert npyfs("checkout", "diff", mount.path, check=True).stdout == "A a/100.npy\n"
        status = npyfs("checkout", "status", mount.path, check=True).stdout
        assert status == f"branch master, {first}\na: 1 added, 0 modified, 0 deleted\n"
        for number, place in ((101, mount.path), (102, path)):
            np.save(mount / f"stage/a/{number}.npy", new)
            second = npyfs("checkout", "commit", "-m", f"and {number}", place, check=True).stdout.strip()
            np.testing.assert_array_equal(np.load(mount / f"commits/{second}/a/{number}.npy"), new)
        np.save(mount / "stage/a/103.npy", new)
        npyfs("checkout", "diff", mount.path, check=True)
        npyfs("checkout", "reset", mount.path, check=True)
        assert npyfs("checkout", "diff", mount.path, check=True).stdout == ""
        for command, said in (("ls", "status"), ("log", "commits"), ("discard", "reset"), ("gc", "room")):
            done = npyfs("checkout", command, mount.path)
            assert done.returncode == 1 and "is a Hangar repository" in one_line(done.stderr) and said in done.stderr
        for command in ("export", "publish"):
            assert "npyfs convert" in one_line(npyfs("checkout", command, mount.path, tmp_path / "out").stderr)
        assert mount.errors() == []
    with Mount(path) as mount:
        assert npyfs("checkout", "status", mount.path, check=True).stdout.endswith("nothing is staged\n")
    told = judge(path)
    assert told["status"] == "CLEAN" and told["head"] == second
    keys = {str(sample[0].get("int")) for sample in told["staged"]["a"]["samples"]}
    assert {"100", "101", "102"} <= keys and "103" not in keys


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


def test_many_large_samples(tmp_path):
    """Several workers compress them, each into a file of its own."""
    path = tmp_path / "repo"
    hangar.script('''
with contextlib.redirect_stdout(io.StringIO()):
    co = repository(sys.argv[1]).checkout(write=True)
    for backend in ("00", "01"):
        co.add_ndarray_column(f"b{backend}", prototype=np.zeros((300, 700), "f4"), backend=backend)
    co.commit("columns")
    co.close()
''', path)
    base = np.add.outer(np.arange(300), np.arange(700))
    values = {f"b{backend}/{i}": (base + 50 * int(backend) + i).astype("f4") for backend in ("00", "01") for i in range(25)}
    with Mount(path, checkout="work") as m:
        for name, value in values.items():
            write(m / f"stage/{name}.npy", value)
        sync(m)
        assert m.errors() == []
        for name, value in values.items():
            assert (np.load(m / f"stage/{name}.npy") == value).all(), name
    found = samples(judge(path))
    for name, value in values.items():
        column, key = name.split("/")
        assert found[column][(key,)] == content(value), name
    made = files(path)
    assert made["data"] == made["stage_data"]
    if len(os.sched_getaffinity(0)) > 1:
        assert len(made["data"]) > 2, made
    commit(path, "all of it")
    assert judge(path)["verified"] is True


def test_a_request_that_waits_holds_up_no_other(tmp_path):
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    first = commit(path, "first")
    with Mount(path, checkout="work") as m:
        # Every thread of the daemon has had a request.
        for i in range(50):
            write(m / f"stage/a/before{i}.npy", np.full((5, 4), i, "f4"))
        stopped = workers(m.pid)
        assert stopped
        assert signal_all(stopped, signal.SIGSTOP)
        waiting = threading.Thread(target=os.stat, args=(m / "commits" / first,))
        try:
            waiting.start()
            for i in range(50):
                # A new name: nothing need be asked of a worker.
                write(m / f"stage/a/new{i}.npy", np.full((5, 4), i, "f4"))
                m.status()
            assert waiting.is_alive(), "nothing waited"
        finally:
            signal_all(stopped, signal.SIGCONT)
        waiting.join(60)
        assert not waiting.is_alive()


def test_replace_remove_rename_and_new_columns(tmp_path):
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    commit(path, "first")
    rng = np.random.default_rng(5)
    one, two, deep = rng.random((5, 4)).astype("f4"), rng.random((5, 4)).astype("f4"), rng.integers(0, 99, (2, 2))
    with Mount(path, checkout="work") as m:
        stage = m / "stage"
        write(stage / "a/0.npy", one)                      # replaced
        os.remove(stage / "a/1.npy")                       # removed
        os.rename(stage / "a/2.npy", stage / "a/two.npy")  # renamed, as it stands in the tables
        write(stage / "a/new.npy", two)
        os.rename(stage / "a/new.npy", stage / "a/%35.npy")  # renamed while it is not staged
        write(stage / "a/.tmp123", "no array")             # kept for the mount only
        write(stage / "a/save~", one)                      # an editor
        os.replace(stage / "a/save~", stage / "a/3.npy")
        assert sorted(os.listdir(stage / "a")) == sorted(["0.npy", "two.npy", "3.npy", "4.npy", "%35.npy", ".tmp123"])
        # Known from a listing alone, a group of subsamples shows what is written into it, before it is staged and after.
        assert all(entry.stat() for entry in os.scandir(stage / "deep"))
        with open(stage / "deep/0/more.npy", "wb") as file:
            np.save(file, deep)
            assert "more.npy" in os.listdir(stage / "deep/0")
        assert "more.npy" in os.listdir(stage / "deep/0")
        shutil.rmtree(stage / "deep/1")
        assert "1" not in os.listdir(stage / "deep")
        os.mkdir(stage / "deep/fresh")
        write(stage / "deep/fresh/x.npy", deep + 1)
        write(stage / "text/0.txt", "another")
        os.rename(stage / "raw/0.bin", stage / "raw/zero.bin")
        os.mkdir(stage / "flat_new")
        write(stage / "flat_new/9.npy", np.arange(12, dtype="u2").reshape(3, 4))
        write(stage / "flat_new/10.npy", np.asfortranarray(np.arange(12, 24, dtype="u2").reshape(3, 4)))
        os.makedirs(stage / "nested_new/s")
        write(stage / "nested_new/s/t.txt", "deep text")
        os.mkdir(stage / "bytes_new")
        write(stage / "bytes_new/b.bin", b"\x00\x01")
        shutil.rmtree(stage / "vary")
        assert "vary" not in os.listdir(stage)
        shown = {name: (stage / name).read_bytes() for name in hangar.files_below(stage) if "tmp" not in name}
        sync(m)
        # What is shown is the same before and after.
        again = {name: (stage / name).read_bytes() for name in hangar.files_below(stage) if "tmp" not in name}
        stacks = {f"{name}{tail}" for name in ("a", "deep", "flat", "flat_new") for tail in (".npy", ".keys.npy")}
        assert {name: data for name, data in again.items() if name not in stacks} == {name: data for name, data in shown.items() if name not in stacks}
        assert m.errors() == []
    now = judge(path)
    assert not now["locked"]
    found = samples(now)
    assert set(found) == {"a", "flat", "deep", "text", "raw", "flat_new", "nested_new", "bytes_new"}
    assert set(found["a"]) == {("0",), ("3",), ("4",), ("5",), ("two",)}
    assert {"str": "5"} in [keys[0] for *keys, _ in now["staged"]["a"]["samples"]]
    assert found["a"][("0",)] == found["a"][("3",)] == content(one) and found["a"][("5",)] == content(two)
    assert found["deep"][("0", "more")] == content(deep) and found["deep"][("fresh", "x")] == content(deep + 1)
    assert ("1", "x") not in found["deep"] and ("zero",) in found["raw"] and ("0",) not in found["raw"]
    assert found["text"][("0",)] == content("another") and found["nested_new"][("s", "t")] == content("deep text")
    assert found["flat_new"][("10",)] == content(np.arange(12, 24, dtype="u2").reshape(3, 4))
    commit(path, "second")
    now = judge(path)
    assert now["status"] == "CLEAN" and now["verified"] is True


def test_what_hangar_would_refuse_is_refused(tmp_path):
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    commit(path, "first")
    good = np.ones((5, 4), "f4")
    bad = {
        "a/x.npy": np.ones((5, 4), "f8"), "a/y.npy": np.ones((4, 5), "f4"), "a/z.npy": np.ones((5, 4), ">f4"), "a/20.npy": b"no array",
        "vary/x.npy": np.ones((10, 9), "u1"), "vary/y.npy": np.ones((0, 9), "u1"), "vary/z.npy": np.ones(9, "u1"),
        "a/x.txt": "text", "text/x.npy": good, "a/" + "k" * 65 + ".npy": good, "a/a b.npy": good, "text/bad.txt": b"\xff\xfe",
        "a/cut.npy": np_save(good)[:-3],
    }
    with Mount(path, checkout="work") as m:
        before = hangar.state(path / ".hangar")
        for name, value in bad.items():
            with pytest.raises(OSError) as caught:
                write(m / "stage" / name, value)
            assert caught.value.errno == errno.EINVAL, name
            with contextlib.suppress(FileNotFoundError):
                os.remove(m / "stage" / name)
        for name in ("complex", "text_array"):
            os.mkdir(m / "stage" / name)
            with pytest.raises(OSError):
                write(m / "stage" / name / "1.npy", np.ones(3, "c8") if name == "complex" else np.array(["x"]))
        sync(m)
        assert hangar.state(path / ".hangar") == before
    assert judge(path)["status"] == "CLEAN"


def test_a_name_that_stands_for_another_sample_is_refused(tmp_path):
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    commit(path, "first")
    good = np.ones((5, 4), "f4")
    wrong = {"x.npy.npy": "x%2Enpy.npy", "%41.npy": "A.npy", "...npy": "%2E%2E.npy", "n.txt.npy": "n%2Etxt.npy", "%2e%2e.npy": "%2E%2E.npy"}
    with Mount(path, checkout="work") as m:
        before = sorted(os.listdir(m / "stage/a"))
        np.save(m / "stage/a/A.npy", good)
        for name, works in wrong.items():
            with pytest.raises(OSError) as caught:
                np.save(m / "stage/a" / name, 7 * good)
            assert caught.value.errno == errno.EINVAL, name
            assert any(works in line for line in m.errors()), (name, m.errors())
        columns = sorted(os.listdir(m / "stage"))
        for name in ("b.npy", "%41"):
            with pytest.raises(OSError) as caught:
                os.mkdir(m / "stage" / name)
            assert caught.value.errno == errno.EINVAL, name
        assert sorted(os.listdir(m / "stage")) == columns
        assert sorted(os.listdir(m / "stage/a")) == sorted([*before, "A.npy"])
        np.testing.assert_array_equal(np.load(m / "stage/a/A.npy"), good)
    assert samples(judge(path))["a"][("A",)] == content(good)


def test_a_known_sample_is_not_stored_again(tmp_path):
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    commit(path, "first")
    before = files(path)
    with Mount(path, checkout="work") as m:
        for i in range(5):
            shutil.copyfile(m / f"branches/master/a/{i}.npy", m / f"stage/a/again{i}.npy")
        sync(m)
        assert files(path) == before
        for i in range(50):
            write(m / f"stage/a/same{i}.npy", np.full((5, 4), 7, "f4"))
        sync(m)
    assert len(files(path)["data"] - before["data"]) == 1
    rows = hangar.script('''
import lmdb
env = lmdb.open(sys.argv[1] + "/.hangar/stage_hash.lmdb", subdir=False, lock=False, map_size=50_000_000_000)
with env.begin() as txn:
    print(json.dumps(txn.stat()["entries"]))
''', path)
    assert rows == 1
    commit(path, "second")
    assert judge(path)["verified"] is True


def test_empty_text_and_bytes_are_samples(tmp_path):
    """Hangar holds them. They come about by creating, cutting, renaming, and over mounts; an empty array is none."""
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    commit(path, "first")
    with Mount(path, checkout="work") as m:
        stage = m / "stage"
        for name in ("text/none.txt", "raw/none.bin", "text/0.txt", "raw/0.bin"):
            run(["sh", "-c", ': > "$1"', "sh", stage / name], check=True)
        os.mkdir(stage / "new")
        write(stage / "new/first.txt", "")
        os.truncate(stage / "text/1.txt", 0)
        write(stage / "text/held.txt", "")
        os.rename(stage / "text/held.txt", stage / "text/moved.txt")
        sync(m)
        os.rename(stage / "text/none.txt", stage / "text/was_none.txt")
        write(stage / "text/later.txt", "")
        write(stage / "text/later.txt", "no more")
        with pytest.raises(OSError) as caught:
            os.truncate(stage / "a/0.npy", 0)
            with open(stage / "a/0.npy", "wb"):
                pass
        assert caught.value.errno == errno.EINVAL
        sync(m)
        for name in ("text/0.txt", "text/was_none.txt", "raw/none.bin", "new/first.txt", "text/moved.txt"):
            assert (stage / name).read_bytes() == b""
    empty = {"text": {"0", "1", "was_none", "moved"}, "raw": {"0", "none"}, "new": {"first"}}
    commit(path, "second")
    now = judge(path)
    assert now["status"] == "CLEAN" and now["verified"] is True
    for column, names in empty.items():
        found = {keys for keys, value in samples(now)[column].items() if value["len"] == 0}
        assert found == {(name,) for name in names}, column
    assert samples(now)["text"][("later",)] == content("no more") and ("none",) not in samples(now)["text"]
    assert npyfs("verify", path).returncode == 0
    with Mount(path) as m:
        assert (m / "branches/master/text/0.txt").read_bytes() == b""


def test_a_rename_that_is_not_on_the_disk_has_happened_and_the_next_sync_says_so(tmp_path):
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    commit(path, "first")
    faults = Faults(build(tmp_path), tmp_path)
    with Mount(path, checkout="work", env=faults.env) as m:
        stage = m / "stage/a"
        before = np.load(stage / "2.npy")
        faults.start(0, errno.EIO, forever=True, only="s")
        os.rename(stage / "2.npy", stage / "two.npy")
        failed = faults.stop()
        assert failed, "the rename synced nothing"
        assert "two.npy" in os.listdir(stage) and "2.npy" not in os.listdir(stage)
        directory = os.open(stage, os.O_RDONLY)
        with pytest.raises(OSError) as refusal:
            os.fsync(directory)
        assert refusal.value.errno == errno.EIO
        os.fsync(directory)
        os.close(directory)
    with Mount(path, checkout="work") as m:
        assert "2.npy" not in os.listdir(m / "stage/a")
        np.testing.assert_array_equal(np.load(m / "stage/a/two.npy"), before)
