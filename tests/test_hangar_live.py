"""A mount while Hangar writes: branches and the stage follow, commits stay; killed writers; damaged tables."""

import os
import random
import signal

import h5py
import numpy as np
import pytest

from support import hangar
from support.mount import Mount, until
from support.process import run
from support.sampling import Sample
from support.truth import np_save

COMMITS = Sample(__file__, "hangar").count(20, 60, "commits beside a reader")

WRITER = '''
path = sys.argv[1]
repo = repository(path)
with contextlib.redirect_stdout(io.StringIO()):
    co = repo.checkout(write=True)
    column = co.add_ndarray_column("a", prototype=np.zeros((16, 16), "u2"))
    text = co.add_str_column("t")
    column[0] = np.zeros((16, 16), "u2")
    text["first"] = "one"
    first = co.commit("first")
print(first, flush=True)
for line in sys.stdin:
    what, *rest = line.split()
    with contextlib.redirect_stdout(io.StringIO()):
        if what == "put":
            for i in range(int(rest[0]), int(rest[1])):
                column[i] = np.full((16, 16), i, "u2")
            answer = "put"
        elif what == "text":
            text[rest[0]] = rest[1]
            answer = "text"
        elif what == "commit":
            answer = co.commit(rest[0])
        elif what == "many":
            # Commit after commit, a sample each.
            for i in range(int(rest[0]), int(rest[1])):
                column[i] = np.full((16, 16), i, "u2")
                answer = co.commit(f"commit {i}")
        elif what == "close":
            co.close()
            answer = "closed"
    print(answer, flush=True)
'''


class Writer:
    def __init__(self, path):
        self.process = hangar.start(WRITER, path)
        self.first = self.process.stdout.readline().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(20)
        self.process.stdin.close()
        self.process.stdout.close()

    def send(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def ask(self, text):
        self.send(text)
        return self.answer()

    def answer(self):
        return self.process.stdout.readline().strip()


def test_branches_follow_and_commits_stay(tmp_path):
    with Writer(tmp_path / "repo") as writer, Mount(tmp_path / "repo") as m:
        branch, stage, first = m / "branches/master", m / "stage", m / "commits" / writer.first
        assert sorted(os.listdir(branch / "a")) == ["0.npy"]
        old = open(branch / "a.npy", "rb")
        inode = (branch / "a/0.npy").stat().st_ino
        writer.ask("put 1 5")
        # Samples that are staged, in a file that is still being written.
        until(lambda: len(os.listdir(stage / "a")) == 5, "the staged samples")
        assert (np.load(stage / "a/4.npy") == 4).all()
        assert len(os.listdir(branch / "a")) == 1
        digest = writer.ask("commit second")
        until(lambda: len(os.listdir(branch / "a")) == 5, "the new commit")
        assert (np.load(branch / "a/3.npy") == 3).all()
        assert np.load(branch / "a.npy").shape == (5, 16, 16)
        assert (m / "branches/master/a.keys.npy").read_bytes() == np_save(np.arange(5))
        # What did not change is the same file, and older than what did.
        assert (branch / "a/0.npy").stat().st_ino == inode
        assert (branch / "a/0.npy").stat().st_mtime < (branch / "a/1.npy").stat().st_mtime
        assert (branch / "t/first.txt").stat().st_mtime == (branch / "a/0.npy").stat().st_mtime
        # An open file keeps what it showed, or fails.
        try:
            assert np.lib.format.read_array(old).shape == (1, 16, 16)
        except OSError:
            pass
        old.close()
        assert os.listdir(first / "a") == ["0.npy"] and np.load(first / "a.npy").shape == (1, 16, 16)
        assert m.info("branches/master")["commit"] == digest
        writer.ask("text first two")
        writer.ask("commit third")
        until(lambda: (branch / "t/first.txt").read_text() == "two", "the new text")
        assert (first / "t/first.txt").read_text() == "one"
        assert m.errors() == []


@pytest.mark.slow
def test_reading_while_a_writer_commits(tmp_path):
    with Writer(tmp_path / "repo") as writer:
        writer.ask("put 1 300")
        writer.ask("commit base")
        with Mount(tmp_path / "repo", limit=300) as m:
            writer.send(f"many 300 {300 + COMMITS}")
            branch = m / "branches/master"
            rounds, chance = 0, random.Random(1)
            done = []
            import threading

            waiter = threading.Thread(target=lambda: done.append(writer.answer()))
            waiter.start()
            while waiter.is_alive() or rounds < 5:
                rounds += 1
                names = os.listdir(branch / "a")
                assert len(names) >= 300
                for name in chance.sample(names, 20):
                    assert (np.load(branch / "a" / name) == int(name[:-4])).all(), name
                stack, keys = np.load(branch / "a.npy"), np.load(branch / "a.keys.npy")
                for key, row in zip(keys, stack):
                    assert (row == key).all()
                assert len(os.listdir(m / "commits")) >= 2
                staged = os.listdir(m / "stage/a")
                assert len(staged) >= 300
            waiter.join()
            head = done[0]
            until(lambda: m.info("branches/master")["commit"] == head, "the last commit")
            assert len(np.load(branch / "a.npy")) == 300 + COMMITS
            assert m.errors() == []
            writer.ask("close")
            told = hangar.told(tmp_path / "repo")
            assert hangar.check(branch, told["commits"][head]) == 301 + COMMITS
            assert hangar.check(m / "commits" / head, told["commits"][head]) == 301 + COMMITS


def test_files_of_a_killed_writer_are_read(tmp_path):
    path = tmp_path / "repo"
    with Writer(path) as writer:
        writer.ask("put 1 20")
        writer.ask("commit before")
        writer.ask("put 20 30")
        writer.process.send_signal(signal.SIGKILL)
        writer.process.wait(20)
    files = list((path / ".hangar/data/01").iterdir())
    assert any(file.read_bytes()[11] & 4 for file in files), "the writer left its mark"
    # Hangar commits such files, marks and all.
    hangar.script('''
with contextlib.redirect_stdout(io.StringIO()):
    repo = Repository(sys.argv[1])
    repo.force_release_writer_lock()
    co = repo.checkout(write=True)
    co.commit("after")
    co.close()
''', path)
    assert any(file.read_bytes()[11] & 4 for file in files)
    told = hangar.told(path)
    with Mount(path) as m:
        assert hangar.check(m / "branches/master", told["commits"][told["branches"]["master"]]) == 31
        assert m.errors() == []


def test_make_rebuilds_what_a_commit_touched(tmp_path):
    path, out = tmp_path / "repo", tmp_path / "out"
    out.mkdir()
    with Writer(path) as writer:
        writer.ask("put 0 4")
        writer.ask("commit base")
        with Mount(path) as m:
            (tmp_path / "Makefile").write_text(
                f"SAMPLES := $(wildcard {m.path}/branches/master/a/*.npy)\n"
                f"all: $(SAMPLES:{m.path}/branches/master/a/%.npy=out/%.copy)\n"
                f"out/%.copy: {m.path}/branches/master/a/%.npy\n\tcp $< $@\n\t@echo made $*\n")
            def made():
                done = run(["make", "-C", tmp_path], check=True)
                return sorted(line.split()[1] for line in done.stdout.splitlines() if line.startswith("made"))

            assert made() == ["0", "1", "2", "3"]
            assert made() == []
            writer.ask("put 6 8")
            writer.ask("commit more")
            until(lambda: len(os.listdir(m / "branches/master/a")) == 6, "the new commit")
            assert made() == ["6", "7"]


def damaged(data, kind, chance):
    data = bytearray(data)
    if kind == "cut":
        return bytes(data[:chance.randrange(1, len(data))])
    if kind == "empty":
        return b""
    if kind == "zeros":
        return bytes(len(data))
    for _ in range(40):
        at = chance.randrange(len(data)) if kind == "noise" else chance.randrange(0, len(data), 4096) + chance.randrange(40)
        data[min(at, len(data) - 1)] = chance.randrange(256)
    return bytes(data)


@pytest.mark.sample("hangar", 1)
@pytest.mark.parametrize("table", ["branch.lmdb", "ref.lmdb", "hash.lmdb", "stage_ref.lmdb"])
def test_damaged_tables_cost_no_daemon(tmp_path, table):
    path = tmp_path / "repo"
    with Writer(path) as writer:
        writer.ask("put 1 200")
        writer.ask("commit base")
        writer.ask("close")
    file = path / ".hangar" / table
    good = file.read_bytes()
    chance = random.Random(table)
    with Mount(path, limit=300) as m:
        for kind in ["cut", "empty", "zeros", *["noise", "heads"] * 6]:
            # As another file: who maps the old one is not to be surprised in this test.
            other = file.with_suffix(".other")
            other.write_bytes(damaged(good, kind, chance))
            os.replace(other, file)
            for folder in ("", "branches", "branches/master", "branches/master/a", "commits", "stage/a"):
                try:
                    names = os.listdir(m / folder)
                    for name in names[:5]:
                        if name.endswith((".npy", ".txt")):
                            (m / folder / name).read_bytes()
                except OSError:
                    pass
            assert m.alive()
        other.write_bytes(good)
        os.replace(other, file)
        until(lambda: sorted(os.listdir(m / "branches")) == ["master"], "the table that was put back")
        try:
            assert (np.load(m / "branches/master/a/150.npy") == 150).all()
        except OSError:
            print(*m.errors()[-4:], sep="\n")
            raise
        assert len(os.listdir(m / "stage/a")) == 200


@pytest.mark.slow
def test_a_collection_file_outside_a_repository(tmp_path):
    path = tmp_path / "repo"
    hangar.script('''
repo = repository(sys.argv[1])
with contextlib.redirect_stdout(io.StringIO()):
    co = repo.checkout(write=True)
    for backend in ("00", "01"):
        column = co.add_ndarray_column("c" + backend, prototype=np.zeros((4, 6, 2), "f4"), backend=backend)
        for i in range(260):
            column[i] = np.full((4, 6, 2), i + 1000 * int(backend), "f4")
    co.commit("x")
    co.close()
''', path)
    for backend, rows in (("00", 250), ("01", 100)):
        (file,) = (path / ".hangar/data" / backend).iterdir()
        with Mount(file) as m:
            written = {f"{i // rows}/{i % rows}.npy" for i in range(260)}
            assert set(m.files()) == written
            for i in (0, 99, 100, 249, 250, 259):
                name = f"{i // rows}/{i % rows}.npy"
                assert (m / name).read_bytes() == np_save(np.full((4, 6, 2), i + 1000 * int(backend), "f4")), name
            assert m.info()["kind"] == "hangar"
            assert m.errors() == []


def test_records_of_the_first_formats(tmp_path):
    """Hangar 0.2 and 0.4 are not to be had any more: their layouts, written with h5py."""
    path = tmp_path / "repo"
    with Writer(path) as writer:
        writer.ask("close")
    folder = path / ".hangar/data/00"
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(1)
    cube = np.round(rng.random((250, 20, 2, 3)), 1).astype("f4")
    flat = rng.integers(0, 5, (250, 100)).astype("i8")
    with h5py.File(folder / "WzUtdu.hdf5", "w", libver="latest") as file:
        file.create_dataset("3", data=cube, chunks=(1, 20, 2, 3), compression="lzf", shuffle=True)
    with h5py.File(folder / "rlUK3C.hdf5", "w", libver="latest") as file:
        file.create_dataset("16", data=flat, chunks=(1, 100), compression="gzip")
        file.create_dataset("17", data=flat)
    sum = hangar.script("import xxhash; print(json.dumps(xxhash.xxh64_hexdigest(np.array(eval(sys.argv[1]), 'i8').tobytes())))",
                        repr(flat[105, :100].tolist()))
    with Mount(path) as m:
        records = {
            "00:WzUtdu$3 199*20 2 3": cube[199],
            "00:WzUtdu$3 0*7 2 1": cube[0, :7, :, :1],
            f"00:rlUK3C${sum}$16 105*10 10": flat[105].reshape(10, 10),
            f"00:rlUK3C:{sum}:16:105:4 25": flat[105].reshape(4, 25),
            "00:rlUK3C$17 8*9": flat[8, :9],
        }
        for record, array in records.items():
            assert (m / "records" / f"{record}.npy").read_bytes() == np_save(array), record
        for wrong in (f"00:rlUK3C${sum[::-1]}$16 105*10 10", "00:rlUK3C$16 250*9", "00:rlUK3C$16 1*101", "00:rlUK3C$99 1*1"):
            with pytest.raises(OSError):
                (m / "records" / f"{wrong}.npy").read_bytes()
