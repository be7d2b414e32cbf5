"""npyfs and Hangar by turns on one repository: what one began the other goes on with, takes back or finds locked. The judge is Hangar."""

import errno
import os

import numpy as np
import pytest

from support import hangar
from support.mount import Mount
from support.process import npyfs
from test_hangar_commit import STAGE, commit, files, judge
from test_hangar_stage import content, samples, sync, write


def test_bytes_of_which_only_a_remote_knew_are_kept(tmp_path):
    """A clone names samples that it has not fetched. Writing one makes it present, in every commit that names it, also after a reset
    of the staging area. Renaming one fetches nothing."""
    for name in ("origin", "server", "clone"):
        (tmp_path / name).mkdir()
    path = tmp_path / "clone"
    arrays = [np.full((12, 9), i, "f4") for i in range(4)]
    with hangar.served(tmp_path / "server") as address:
        hangar.script('''
path, clone, address = sys.argv[1:]
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    repo = repository(path)
    co = repo.checkout(write=True)
    fixed, text = co.add_ndarray_column("fixed", prototype=np.zeros((12, 9), "f4")), co.add_str_column("text")
    for i in range(4):
        fixed[i], text[i] = np.full((12, 9), i, "f4"), f"text {i}"
    co.commit("all")
    co.close()
    repo.remote.add("origin", address)
    repo.remote.push("origin", "master")
    other = Repository(clone, exists=False)
    other.clone("tester", "t@example.com", address, remove_old=False)
    co = other.checkout(write=True)
    co.close()
''', tmp_path / "origin", path, address)
    with Mount(path, checkout="work") as m:
        write(m / "stage/fixed/new.npy", arrays[9 % 4] + 90)
        write(m / "stage/fixed/again.npy", arrays[1])
        write(m / "stage/fixed/2.npy", arrays[2])
        write(m / "stage/text/same.txt", "text 3")
        os.rename(m / "stage/fixed/3.npy", m / "stage/fixed/three.npy")
        sync(m)
        for i in (1, 2):
            assert (np.load(m / f"stage/fixed/{i}.npy") == arrays[i]).all()
        assert (m / "stage/text/3.txt").read_text() == "text 3"
        with pytest.raises(OSError) as caught:
            (m / "stage/fixed/three.npy").read_bytes()
        assert caught.value.errno == errno.ENODATA
        assert (np.load(m / "branches/master/fixed/1.npy") == arrays[1]).all()
    seen = hangar.script('''
path = sys.argv[1]
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    repo = Repository(path)
    def look(co):
        found = {}
        for column in ("fixed", "text"):
            for key in co[column].keys():
                with contextlib.suppress(FileNotFoundError):
                    found[f"{column} {key}"] = content(co[column][key])
        return found
    co = repo.checkout(write=True)
    staged = look(co)
    co.reset_staging_area()
    co.close()
    co = repo.checkout()
    after = look(co)
    co.close()
print(json.dumps([staged, after]))
''', path)
    here = {"fixed 1": content(arrays[1]), "fixed 2": content(arrays[2]), "text 3": content("text 3")}
    assert seen[0] == {**here, "fixed again": content(arrays[1]), "fixed new": content(arrays[1] + 90), "text same": content("text 3")}
    assert seen[1] == here
    done = npyfs("verify", path)
    assert done.returncode == 0 and "5 samples are not here" in done.stdout, done.stdout


@pytest.mark.slow
def test_hangar_and_npyfs_take_turns(tmp_path):
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    commit(path, "first")
    with Mount(path, checkout="work", limit=300) as m:
        for turn in range(10):
            write(m / f"stage/a/ours{turn}.npy", np.full((5, 4), 100 + turn, "f4"))
            write(m / f"stage/text/ours{turn}.txt", f"ours {turn}")
            write(m / f"stage/flat/{900 + turn}.npy", np.full(7, turn, "i2"))
            sync(m)
            hangar.script('''
turn = int(sys.argv[2])
with contextlib.redirect_stdout(io.StringIO()):
    co = Repository(sys.argv[1]).checkout(write=True)
    assert co.diff.status() == "DIRTY" and co["text"][f"ours{turn}"] == f"ours {turn}"
    assert (co["a"][f"ours{turn}"] == 100 + turn).all() and (co["flat"][900 + turn] == turn).all()
    co["a"][f"hangars{turn}"] = np.full((5, 4), 500 + turn, "f4")
    del co["text"][f"ours{turn}"]
    if turn % 3 == 2:
        co.commit(f"turn {turn}")
    co.close()
''', path, str(turn))
            assert (np.load(m / f"stage/a/hangars{turn}.npy") == 500 + turn).all()
            assert not os.path.exists(m / f"stage/text/ours{turn}.txt")
            if turn % 3 == 1:
                commit(path, f"turn {turn}")
        assert m.errors() == []
    commit(path, "the rest")
    now = judge(path)
    assert now["status"] == "CLEAN" and now["verified"] is True and len(now["log"]["order"]) == 8
    assert {f"ours{turn}" for turn in range(10)} <= {keys[0] for keys in samples(now)["a"]}


def test_hangar_resets_what_was_written(tmp_path):
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    first = commit(path, "first")
    before, kept = judge(path), files(path)
    reset = '''
with contextlib.redirect_stdout(io.StringIO()):
    co = Repository(sys.argv[1]).checkout(write=True)
    co.reset_staging_area()
'''
    with Mount(path, checkout="work") as m:
        def put(number):
            write(m / f"stage/a/{number}.npy", np.full((5, 4), number, "f4"))
            write(m / f"stage/text/{number}.txt", f"number {number}")
            write(m / f"stage/flat/{number}.npy", np.full(7, number, "i2"))

        put(700)
        sync(m)
        assert judge(path)["status"] == "DIRTY"
        hangar.script(reset, path)
        assert not os.path.exists(m / "stage/a/700.npy")
        # The checkout goes on, in new files.
        put(701)
        sync(m)
        assert (np.load(m / "stage/a/701.npy") == 701).all()
        assert (m / "stage/text/701.txt").read_text() == "number 701"
        hangar.script(reset, path)
        assert m.errors() == []
    now = judge(path)
    assert now["status"] == "CLEAN" and now["verified"] is True and now["head"] == first
    assert now["staged"] == before["staged"] and files(path)["data"] == kept["data"]


def test_columns_are_created(tmp_path):
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    commit(path, "first")

    def create(*arguments, code=0):
        done = npyfs("column", "create", path, *arguments)
        assert done.returncode == code, done
        return done.stderr

    create("pictures", "--dtype", "uint8", "--shape", "28,28", "--backend", "01", "--compress", "blosc:zstd:9:bit")
    create("sounds", "--dtype", "float32", "--shape", "500,2", "--variable", "--nested")
    create("names", "--type", "str")
    assert "pictures" in create("pictures", "--type", "str", code=3)
    assert create("x", "--dtype", "uint8", "--shape", "2,2", "--backend", "01", "--compress", "blosc:lz4", code=3)
    assert create("x", "--dtype", "complex64", "--shape", "2,2", code=1)
    assert create("a b", "--type", "str", code=3)
    with Mount(path, checkout="work") as m:
        write(m / "stage/pictures/1.npy", np.arange(784, dtype="u1").reshape(28, 28))
        os.mkdir(m / "stage/sounds/bird")
        write(m / "stage/sounds/bird/1.npy", np.ones((10, 2), "f4"))
        write(m / "stage/names/1.txt", "one")
    columns = hangar.script('''
with contextlib.redirect_stdout(io.StringIO()):
    co = Repository(sys.argv[1]).checkout(write=True)
    told = {name: [str(c.dtype), list(c.shape) if c.shape else None, c.schema_type, c.column_layout, c.backend, c.backend_options]
            for name, c in co.columns.items()}
    extra = co.add_ndarray_column("pictures2", prototype=np.zeros((28, 28), "u1"), backend="01",
                                  backend_options={"complib": "blosc:zstd", "complevel": 9, "shuffle": "bit"})
    co.commit("c")
    co.close()
print(json.dumps(told))
''', path)
    assert columns["pictures"] == ["uint8", [28, 28], "fixed_shape", "flat", "01", {"complib": "blosc:zstd", "complevel": 9, "shuffle": "bit"}]
    assert columns["sounds"][1:5] == [[500, 2], "variable_shape", "nested", "00"]
    now = judge(path)
    assert now["verified"] is True
    # Hangar's own column of these properties has the same schema, found by its digest.
    with Mount(path) as m:
        info = m.info("branches/master")["columns"]
        assert info["pictures"]["schema_digest"] == info["pictures2"]["schema_digest"]


def test_one_checkout_has_one_writer_and_a_lock_that_is_taken_is_told(tmp_path):
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    commit(path, "first")
    with Mount(path, checkout="work") as m:
        second = npyfs("mount", "--checkout", "work", path, tmp_path)
        assert second.returncode and "process" in second.stderr
        writer = hangar.start('''
with contextlib.redirect_stdout(io.StringIO()):
    co = Repository(sys.argv[1]).checkout(write=True)
print("open", flush=True)
sys.stdin.readline()
co.close()
''', path)
        try:
            assert writer.stdout.readline().strip() == "open"
            write(m / "stage/text/50.txt", "written meanwhile")
            assert (m / "stage/text/50.txt").read_text() == "written meanwhile"
            with pytest.raises(OSError) as caught:
                sync(m)
            assert caught.value.errno == errno.EBUSY and any("writer lock" in line for line in m.errors())
            refused = npyfs("checkout", "sync", m.path)
            assert refused.returncode == 3 and "a writer of Hangar" in refused.stderr and "has the writer lock" in refused.stderr, refused
            refused = npyfs("umount", m.path)
            assert refused.returncode == 32 and "durable" in refused.stderr and "has the writer lock" in refused.stderr, refused
            writer.stdin.write("\n")
            writer.stdin.flush()
            assert writer.wait(60) == 0
        finally:
            writer.kill()
            writer.wait(20)
            writer.stdin.close()
            writer.stdout.close()
        npyfs("checkout", "sync", m.path, check=True)
    assert samples(judge(path))["text"][("50",)] == content("written meanwhile")
