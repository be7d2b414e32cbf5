"""Hangar repositories below prefixes of buckets: `npyfs mount s3://bucket/repo/ mnt`. The judge is real Hangar on the directory that was uploaded."""

import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

from support import hangar
from support.buckets import S3
from support.everything import everything  # noqa: F401 (a fixture)
from support.mount import Mount, until
from support.process import npyfs, one_line

TABLES = ("branch", "ref", "hash", "stage_ref", "stage_hash")

MADE = '''
path = sys.argv[1]
repo = repository(path)
rng = np.random.default_rng(11)
with contextlib.redirect_stdout(io.StringIO()):
    co = repo.checkout(write=True)
    image = co.add_ndarray_column("image", prototype=np.zeros((64, 64, 3), "f4"))
    digit = co.add_ndarray_column("digit", prototype=np.zeros((28, 28), "u1"))
    flat = co.add_ndarray_column("flat", prototype=np.zeros((40, 30), "i4"), backend="00")
    rough = co.add_ndarray_column("rough", prototype=np.zeros((9, 7), "f8"), variable_shape=True)
    small = co.add_ndarray_column("small", prototype=np.zeros(12, "i8"))
    part = co.add_ndarray_column("part", prototype=np.zeros((300, 7), "f4"), variable_shape=True, backend="10")
    large = co.add_ndarray_column("large", prototype=np.zeros((512, 700, 3), "f4"))
    nested = co.add_ndarray_column("nested", prototype=np.zeros((3, 2), "i2"), contains_subsamples=True)
    text, raw = co.add_str_column("text"), co.add_bytes_column("raw")
    with image, digit, flat, rough, small, part, text, raw:
        for i in range(120):
            image[i] = rng.random((64, 64, 3)).astype("f4")
        for i in rng.permutation(600):
            digit[int(i)] = rng.integers(0, 255, (28, 28), dtype="u1")
        for i in range(30):
            flat[i] = np.add.outer(np.arange(40), np.arange(30)).astype("i4") + i
            rough[f"k{i}"] = rng.random((i % 9 + 1, i % 7 + 1))
            small[i] = np.arange(12) * i
            part[i] = rng.random((i + 1, i % 7 + 1)).astype("f4")
            text[i], raw[i] = "x" * i + "\\u4e16", bytes(range(i))
    large[0] = np.round(rng.random((512, 700, 3)), 2).astype("f4")
    nested[0] = {"a": np.ones((3, 2), "i2"), 7: np.zeros((3, 2), "i2")}
    co.commit("first")
    co.close()
    repo.create_branch("side")
    co = repo.checkout(write=True, branch="side")
    co.columns["text"]["only"] = "on the side"
    del co.columns["flat"][3]
    co.commit("side")
    co.close()
    co = repo.checkout(write=True, branch="master")
    co.columns["small"][100] = np.arange(12)
    co.commit("second")
    co.close()
print(json.dumps(tell(path)))
'''

MORE = '''
with contextlib.redirect_stdout(io.StringIO()):
    repo = repository(sys.argv[1])
    co = repo.checkout(write=True, branch="master")
    co.columns["image"][900] = np.full((64, 64, 3), 9, "f4")
    co.columns["small"][900] = np.full(12, 9)
    co.columns["text"][900] = "nine hundred"
    co.commit("more")
    co.close()
print(json.dumps(tell(sys.argv[1])))
'''


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    return tmp_path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("hangar") / "repo"
    return path, hangar.script(MADE, path)


@pytest.fixture(scope="module")
def s3(made):
    with S3() as s3:
        s3.upload("data", "all/repo/", made[0])
        yield s3


@pytest.fixture
def options(s3, monkeypatch):
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    return s3.options


def check_all(folder, told, stage="master"):
    """Everything in a mounted repository is what Hangar told."""
    assert sorted(os.listdir(folder / "branches")) == sorted(told["branches"])
    assert sorted(os.listdir(folder / "commits")) == sorted(told["commits"])
    samples = sum(hangar.check(folder / "branches" / name, told["commits"][digest]) for name, digest in told["branches"].items())
    samples += sum(hangar.check(folder / "commits" / digest, columns) for digest, columns in told["commits"].items())
    return samples + hangar.check(folder / "stage", told["commits"][told["branches"][stage]])


def requests(mount):
    return sum(entry["requests"] for entry in mount.status()["remote"]), sum(entry["bytes_fetched"] for entry in mount.status()["remote"])


def test_every_branch_commit_and_column(made, options):
    _, told = made
    with Mount("s3://data/all/repo/", options) as m:
        assert sorted(os.listdir(m.path)) == ["branches", "commits", "records", "remotes", "stage"]
        assert check_all(m, told) > 4000
        assert m.errors() == []
        assert m.status()["worker_restarts"] == 0
        assert m.info()["file"] == "s3://data/all/repo/.hangar/"
        with pytest.raises(OSError):
            (m / "stage/small/5.npy").write_bytes(b"")


def test_below_a_mounted_prefix(made, options):
    _, told = made
    with Mount("s3://data/", options) as m:
        assert os.listdir(m.path) == ["all"] and os.listdir(m / "all") == ["repo"]
        head = told["branches"]["side"]
        assert hangar.check(m / "all/repo/branches/side", told["commits"][head]) > 800
        assert m.info("all/repo")["branches"] == told["branches"]
        assert m.errors() == []


@pytest.mark.slow
def test_every_backend_type_and_filter(everything, monkeypatch):
    path, told = everything
    with S3() as s3:
        s3.upload("data", "repo/", path)
        for name, value in s3.env.items():
            monkeypatch.setenv(name, value)
        with Mount("s3://data/repo/", s3.options, limit=400) as m:
            samples = sum(hangar.check(m / "branches" / name, told["commits"][digest]) for name, digest in told["branches"].items())
            assert samples > 3000 and m.errors() == []
            info = m.info("branches/master/gzip_01/1.npy")
            assert info["file"].startswith("s3://data/repo/.hangar/data/01/") and info["chunks"]
            assert (m / "records" / (info["record"] + ".npy")).read_bytes() == (m / "branches/master/gzip_01/1.npy").read_bytes()


def test_a_repository_of_the_fixtures(shared, tmp_path, monkeypatch):
    with tarfile.open(shared / "hangar/small.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    manifest = json.loads((shared / "hangar/small.manifest.json").read_text())
    with S3() as s3:
        s3.upload("data", "", tmp_path / "small")
        for name, value in s3.env.items():
            monkeypatch.setenv(name, value)
        with Mount("s3://data/", s3.options) as m:
            for branch, digest in manifest["branches"].items():
                hangar.check(m / "branches" / branch, manifest["commits"][digest])
            for digest, columns in manifest["commits"].items():
                hangar.check(m / "commits" / digest, columns)
            assert hangar.check(m / "stage", manifest["stage"]) > 10
            assert m.errors() == []


def test_commands(made, options):
    path, told = made
    url = "s3://data/all/repo/"
    assert npyfs("ls", "-o", options, url, "branches", check=True).stdout.split() == sorted(told["branches"])
    assert "900" not in npyfs("ls", "-o", options, f"{url}:/branches/master", "text", check=True).stdout
    near = subprocess.run([os.environ["NPYFS_BIN"], "cat", path, "branches/master/rough/k3.npy"], capture_output=True, check=True).stdout
    far = subprocess.run([os.environ["NPYFS_BIN"], "cat", "-o", options, url, "branches/master/rough/k3.npy"], capture_output=True, check=True).stdout
    assert far == near and len(far) > 128
    assert told["branches"]["side"] in npyfs("info", "-o", options, url, "branches/side", check=True).stdout
    assert "11" in npyfs("show", "-o", options, url, "branches/master/small/1.npy", check=True).stdout
    done = npyfs("verify", "-o", options, url, timeout=200)
    wanted = npyfs("verify", path, timeout=200)
    assert done.returncode == 0 and done.stdout == wanted.stdout, done
    assert npyfs("verify", "-o", options, "s3://data/all/", timeout=200).returncode == 0


def test_tables_lie_in_a_directory_of_the_process_and_go_with_it(made, options, home):
    def folders():
        return list((home / "temporary").glob("npyfs-tables-*"))

    with Mount("s3://data/all/repo/", options) as m:
        assert len(os.listdir(m / "branches/side/text")) == 31
        (folder,) = folders()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        names = {f"{table}.lmdb" for table in TABLES}
        assert names <= set(os.listdir(folder))
        for name in names:
            assert (folder / name).read_bytes() == (made[0] / ".hangar" / name).read_bytes()
    assert folders() == []
    npyfs("ls", "-R", "-o", options, "s3://data/all/repo/", "branches", check=True)
    assert folders() == []
    with Mount("s3://data/all/repo/", options) as m:
        assert "side" in os.listdir(m / "branches")
        m.expect_dead = True
        os.kill(m.pid, signal.SIGKILL)
        until(lambda: not m.alive(), "the end of the daemon")
    assert len(folders()) == 1
    npyfs("ls", "-o", options, "s3://data/all/repo/", check=True)
    assert folders() == [], "what a mount left that was killed"


def test_a_commit_is_noticed(made, s3, options, tmp_path):
    path = hangar.copy(made[0], tmp_path / "repo")
    s3.upload("data", "live/repo/", path)
    with Mount("s3://data/live/repo/", f"{options},check=1") as m, Mount("s3://data/live/", f"{options},check=1") as below:
        old = made[1]["branches"]["master"]
        hangar.check(m / "branches/master", made[1]["commits"][old])
        with open(m / "branches/master/image.npy", "rb") as file:
            before = file.read(1000)
            told = hangar.script(MORE, path)
            # Tables last, the one that names the commits after all others.
            files = sorted((file for file in path.rglob("*") if file.is_file()), key=lambda file: (file.suffix == ".lmdb", file.name == "branch.lmdb"))
            for changed in files:
                s3.put("data", f"live/repo/{changed.relative_to(path).as_posix()}", changed)
            new = told["branches"]["master"]
            assert new != old
            for folder in (m.path, below / "repo"):
                until(lambda: (folder / "branches/master/small/900.npy").exists(), "the new commit")
                assert hangar.check(folder / "branches/master", told["commits"][new]) == hangar.check(folder / "commits" / old, told["commits"][old]) + 3
            file.seek(0)
            assert file.read(1000) == before
        assert [line for line in m.errors() if "900" not in line] == []


def test_a_server_that_is_gone(made, tmp_path, monkeypatch):
    _, told = made
    with S3() as s3:
        s3.upload("data", "repo/", made[0])
        for name, value in s3.env.items():
            monkeypatch.setenv(name, value)
        with Mount("s3://data/repo/", f"{s3.options},check=1,timeout=5") as m:
            columns = told["commits"][told["branches"]["side"]]
            hangar.check(m / "branches/side", columns)
            s3.server.end()
            until(lambda: os.listdir(m / "branches/side") and any("last known" in line for line in m.errors()), "the note", seconds=60)
            assert hangar.check(m / "branches/side", columns) > 800


def damaged(path, tmp_path):
    """A repository with this table cut off, and with bytes overwritten; each with the name of the table."""
    for table in TABLES:
        for how in ("cut", "overwritten", "missing"):
            copy = tmp_path / f"{table}-{how}"
            # What the tables name is of no use here.
            shutil.copytree(path, copy, ignore=shutil.ignore_patterns("data"))
            file = copy / f".hangar/{table}.lmdb"
            data = file.read_bytes()
            if how == "cut":
                file.write_bytes(data[:5000])
            elif how == "overwritten":
                file.write_bytes(data[:8192] + b"\xff" * (len(data) - 8192))
            else:
                file.unlink()
            yield table, how, copy


def test_damaged_tables_are_named(made, s3, options, tmp_path):
    refused = set()
    for table, how, copy in damaged(made[0], tmp_path):
        if (table, how) in (("branch", "missing"), ("stage_ref", "missing"), ("stage_hash", "missing")):
            continue
        prefix = f"damaged/{table}-{how}/"
        s3.upload("data", prefix, copy)
        done = npyfs("ls", "-R", "-o", options, f"s3://data/{prefix}", timeout=120)
        if done.returncode:
            assert f"s3://data/{prefix}.hangar/{table}.lmdb" in done.stderr, (table, how, done.stderr)
            refused.add((table, how))
    assert {("branch", "cut"), ("branch", "overwritten"), ("ref", "cut"), ("ref", "missing"), ("hash", "cut"), ("hash", "missing")} <= refused


def test_damaged_data_files_cost_their_samples(made, s3, options, tmp_path):
    copy = hangar.copy(made[0], tmp_path / "repo")
    with Mount(copy) as m:
        victims = {name: Path(m.info(f"branches/master/{name}")["file"]) for name in ("image/5.npy", "small/5.npy", "text/5.txt")}
    for file in victims.values():
        file.write_bytes(file.read_bytes()[:200 if file.suffix == ".npy" else 4096])
    s3.upload("data", "cut/", copy)
    with Mount("s3://data/cut/", options) as m:
        for name, file in victims.items():
            with pytest.raises(OSError) as refusal:
                (m / "branches/master" / name).read_bytes()
            assert refusal.value.errno == errno.EIO, name
            url = f"s3://data/cut/{file.relative_to(copy).as_posix()}"
            assert any(name in line and url in line for line in m.errors()), (url, m.errors())
        assert np.load(m / "branches/master/flat/5.npy")[0, 0] == 5


def test_what_is_written_is_refused(made, options, tmp_path):
    url, point = "s3://data/all/repo/", tmp_path / "point"
    point.mkdir()
    done = npyfs("mount", "-o", options, "--checkout", "mine", "--checkouts", tmp_path / "checkouts", url, point)
    line = one_line(done.stderr)
    assert done.returncode and "Hangar repository" in line and "copy it" in line and url in line
    done = npyfs("mount", "-o", options, "--checkout", "mine", url, point)
    assert done.returncode and url in one_line(done.stderr)
    for command in (["checkout", "status"], ["checkout", "reset"], ["column", "create"]):
        more = ["pictures", "--dtype", "uint8", "--shape", "2"] if command[0] == "column" else []
        done = npyfs(*command, url, *more)
        assert done.returncode and url in one_line(done.stderr), command


def test_a_row_of_a_column_takes_a_row_and_all_of_it_comes_ahead(made, options):
    path, _ = made
    with Mount(path) as near:
        wanted = (near / "branches/master/image.npy").read_bytes()
    row = 64 * 64 * 3 * 4
    start = len(wanted) - 120 * row
    with Mount("s3://data/all/repo/", f"{options},disk_cache=64M") as m:
        file = os.open(m / "branches/master/image.npy", os.O_RDONLY)
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
            for at in (70, 20, 110):
                assert os.pread(file, row, start + at * row) == wanted[start + at * row:start + (at + 1) * row]
        finally:
            os.close(file)
        some = requests(m)
        assert (m / "branches/master/image.npy").read_bytes() == wanted
        everything_ = requests(m)
        assert everything_[0] - some[0] < 40, (some, everything_)


def test_packs_are_of_files(options):
    done = npyfs("pack", "-o", options, "s3://data/all/repo/")
    line = one_line(done.stderr)
    assert done.returncode == 1 and "s3://data/all/repo/" in line and "one file" in line


def test_addresses_where_a_mount_point_is_wanted(options):
    url = "s3://data/all/repo/"
    for command in ("umount", "log"):
        line = one_line(npyfs(command, url).stderr)
        assert url in line and "not mounted" in line, command
    with Mount(url, options) as m:
        for command in ("umount", "log"):
            line = one_line(npyfs(command, url).stderr)
            assert url in line and str(m.path) in line, command
