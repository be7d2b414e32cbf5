"""`import npyfs`: mounts that live as long as a block, reading without a mount, and the reasons in exceptions. Judges: NumPy, h5py,
Python's own parser for old versions, and mypy where it is."""

import ast
import contextlib
import errno
import gc
import importlib.util
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.buckets import S3
from support.mount import clear, make_point, mounted, mounts, until
from support.process import NPYFS, process_start, run, signal_all
from support.web import Site

PACKAGE = Path(__file__).resolve().parent.parent / "python"
sys.path.insert(0, str(PACKAGE))
import npyfs  # noqa: E402

FILES = sorted((PACKAGE / "npyfs").glob("*.py"))


@pytest.fixture(autouse=True)
def cleared(tmp_path):
    """No mount of a test's own store outlives the test."""
    yield
    left = [point for point, (_, source) in mounts().items() if Path(source).is_relative_to(tmp_path)]
    for point in left:
        clear(point)
    assert left == []


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "plain.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(10.0)
        file["a/b"] = np.arange(60_000, dtype="<u2").reshape(200, 300)
        file["a/text"] = ["one", "two"]
        file["a/b"].attrs["units"] = "counts"
        file.create_dataset("packed", data=np.arange(400_000), chunks=(100_000,), compression="gzip")
    return path


def python(text, *arguments, timeout=60, env=None, code=0):
    """Runs a program with the package on its path."""
    env = {**os.environ, "PYTHONPATH": str(PACKAGE), **(env or {})}
    done = run([sys.executable, "-c", text, *arguments], timeout=timeout, env=env)
    assert code is None or done.returncode == code, done
    return done


@pytest.mark.fast
def test_a_block_mounts_reads_and_unmounts(store):
    with npyfs.mount(store) as m:
        assert mounted(m.path) and os.fspath(m) == str(m.path) and m / "x.npy" == m.path / "x.npy"
        assert np.array_equal(np.load(m / "a/b.npy", mmap_mode="r")[7], np.arange(2100, 2400))
        assert sorted(os.listdir(m)) == ["a", "packed.npy", "x.npy"] and str(m.path) in repr(m)
        [status] = npyfs.status(m)
        assert status["store"] == str(store) and not status["writable"]
    assert not mounted(m.path) and not m.path.exists()
    m.unmount()
    assert m.errors() == []


def test_options_are_those_of_mounts(tmp_path, store):
    point = make_point()
    with npyfs.mount(store, point, sep="@", xattrs=True, follow=None, strict=False, keep=1 << 20, fsname="a,b\\c") as m:
        assert m.path == point and os.getxattr(m / "a/b.npy", "user.units") == b"counts"
        options = npyfs.status(m)[0]["options"]
        assert options["sep"] == "@" and options["xattrs"] is True
        assert mounts()[str(point)][1] in ("a,b\\c", "a,b\\134c")
    assert point.exists()
    with pytest.raises(npyfs.Error, match='unknown option "nonsense"') as refused:
        npyfs.mount(store, nonsense=True)
    assert refused.value.returncode == 1
    point.rmdir()


def test_what_is_written_is_committed_after_the_block(store):
    total = np.arange(3.0)
    with npyfs.mount(store, checkout="work") as m:
        np.save(m / "total.npy", total)
        assert [(change["change"], change["name"]) for change in m.diff()] == [("added", "total.npy")]
    assert m.diff() == npyfs.diff(store, "work") == npyfs.diff(store)
    assert m.commit("totals").startswith("commit 1: 1 changes")
    [commit] = npyfs.log(store)
    assert (commit["message"], commit["checkout"], commit["number"]) == ("totals", "work", 1) and m.log() == [commit]
    assert np.array_equal(npyfs.open(store, "total").read(), total)
    with h5py.File(store) as file:
        assert "total" not in file
    with npyfs.mount(store, at=commit["id"]) as m:
        assert np.array_equal(np.load(m / "total.npy"), total)
        with pytest.raises(npyfs.Error, match="without checkout="):
            m.commit("nothing")
    with npyfs.mount(store, checkout="more"):
        pass
    with npyfs.mount(store, checkout="more", read_only=True) as m, pytest.raises(OSError) as refused:
        np.save(m / "y.npy", total)
    assert refused.value.errno == errno.EROFS


@pytest.mark.fast
def test_a_commit_is_named_by_its_number(store):
    for value in (1.0, 2.0):
        with npyfs.mount(store, checkout="work") as m:
            np.save(m / "new.npy", np.full(2, value))
        m.commit()
    assert [npyfs.open(store, "new", at=number).read()[0] for number in (1, 2)] == [1.0, 2.0]
    with npyfs.mount(store, at=1) as m:
        assert np.load(m / "new.npy")[0] == 1.0
    assert [commit["number"] for commit in npyfs.log(store, 1)] == [1]


def test_a_block_goes_on_after_a_commit(store):
    with npyfs.mount(store, checkout="work") as m:
        np.save(m / "a.npy", np.arange(3))
        kept = np.load(m / "a.npy", mmap_mode="r")
        assert m.commit("one").startswith("commit 1: 1 changes")
        assert [commit["message"] for commit in m.log()] == ["one"] and np.array_equal(kept, np.arange(3))
        np.save(m / "b.npy", np.arange(4))
        assert [change["name"] for change in m.diff()] == ["b.npy"]
        del kept
    assert m.commit("two").startswith("commit 2: 1 changes")
    assert [commit["message"] for commit in npyfs.log(store)] == ["two", "one"]
    assert np.array_equal(npyfs.open(store, "a").read(), np.arange(3)) and np.array_equal(npyfs.open(store, "b").read(), np.arange(4))


def test_two_checkouts_in_conflict(store):
    for name in ("first", "second"):
        with npyfs.mount(store, checkout=name) as m:
            np.save(m / "x.npy", np.zeros(10))
    npyfs.commit(store, "first", "one")
    with pytest.raises(npyfs.Error, match="x is changed here") as refused:
        m.commit("two")
    assert refused.value.returncode == 3
    assert m.commit("two", ours=True).startswith("commit 2")
    assert [commit["message"] for commit in npyfs.log(store)] == ["two", "one"]
    assert [commit["message"] for commit in npyfs.log(store, "HEAD~1")] == ["one"]


def test_an_exception_has_the_reason_of_the_log(store):
    with pytest.raises(OSError) as refused, npyfs.mount(store, checkout="work") as m:
        (m / "bad.npy").write_bytes(b"no array at all")
    assert refused.value.errno == errno.EINVAL
    [note] = refused.value.__notes__
    assert note.startswith("npyfs: ") and "bad: not an .npy file" in note
    assert [line["path"] for line in m.errors()] == ["bad.npy"] and not mounted(m.path)


def test_a_read_that_fails_has_the_reason(store):
    with h5py.File(store) as file:
        offset = file["packed"].id.get_chunk_info(2).byte_offset
    with open(store, "r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 64)
    with pytest.raises((OSError, ValueError)) as refused, npyfs.mount(store) as m:
        np.load(m / "packed.npy")
    assert any("packed" in note for note in refused.value.__notes__)
    with pytest.raises(npyfs.Error, match="packed") as refused:
        npyfs.open(store, "packed").read()
    assert refused.value.returncode == 3


def test_an_exception_of_the_program_itself_is_left_alone(store, tmp_path):
    with pytest.raises(FileNotFoundError) as missing, npyfs.mount(store):
        (tmp_path / "nothing").read_text()
    assert not hasattr(missing.value, "__notes__")


def test_without_notes_there_is_a_warning(store):
    """As before Python 3.11."""
    class Old(OSError):
        add_note = property()

    with pytest.raises(Old) as refused, pytest.warns(RuntimeWarning, match="bad: not an .npy file"), npyfs.mount(store, checkout="work") as m:
        with pytest.raises(OSError):
            (m / "bad.npy").write_bytes(b"no array at all")
        raise Old(errno.EINVAL, "old")
    assert "bad: not an .npy file" in refused.value.__notes__[0]


def test_what_was_refused_and_never_raised_is_a_warning(store):
    with pytest.warns(RuntimeWarning, match="refused: .*bad: not an .npy file") as said:
        with npyfs.mount(store, checkout="work") as m, contextlib.suppress(OSError):
            (m / "bad.npy").write_bytes(b"no array at all")
    assert {warning.filename for warning in said} == {__file__}


def test_a_mount_that_is_used_is_detached(store):
    with pytest.warns(ResourceWarning, match=f"is detached.*{os.getpid()}"):
        with npyfs.mount(store, checkout="work") as m:
            x = np.load(m / "x.npy", mmap_mode="r")
            np.save(m / "y.npy", np.arange(3))
            pid = npyfs.status(m)[0]["pid"]
            start = process_start(pid)
    assert not mounted(m.path) and not m.path.exists()
    assert np.array_equal(x, np.arange(10.0))
    with pytest.raises(npyfs.Error, match=f"detached while in use: .*{os.getpid()}"):
        m.commit("in use")
    del x
    gc.collect()
    until(lambda: process_start(pid) != start, "the end of the daemon")
    assert m.commit("not in use").startswith("commit 1")


def test_one_mount_point_is_for_one_mount(store):
    point = make_point()
    with npyfs.mount(store, point):
        with pytest.raises(npyfs.Error) as refused, npyfs.mount(store, point):
            pass
        assert str(refused.value) == f"mount point {point} is already mounted by npyfs" and refused.value.returncode == 32
        assert mounted(point)
    point.rmdir()


def test_a_mount_that_ended_meanwhile(store):
    with pytest.raises(npyfs.Error, match="has ended before"), npyfs.mount(store) as m:
        npyfs.run("umount", m)
    assert not m.path.exists()
    with pytest.raises(npyfs.Error, match="has ended before.*what was written since is in"), npyfs.mount(store) as m:
        npyfs.run("umount", m)
        (m / "y.npy").write_bytes(b"elsewhere")
    (m / "y.npy").unlink()
    m.path.rmdir()
    point = make_point()
    with pytest.raises(npyfs.Error, match="has ended before"), npyfs.mount(store, point) as first:
        npyfs.run("umount", point)
        other = npyfs.mount(store, point)
    assert mounted(point), "the mount of somebody else"
    other.unmount()
    assert first.errors() == []
    point.rmdir()


def test_a_mount_whose_process_was_killed(store):
    with pytest.raises(npyfs.Error, match="process of the mount was gone"), npyfs.mount(store) as m:
        [status] = npyfs.status(m)
        start = process_start(status["pid"])
        signal_all([status["pid"]], signal.SIGKILL)
        until(lambda: process_start(status["pid"]) != start, "the end of the daemon")
    assert not mounted(m.path) and not m.path.exists()


CTRL_C = """
import signal, sys, time, npyfs
# A process that began in the background of a shell ignores the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
with npyfs.mount(sys.argv[1]) as m:
    print(m.path, flush=True)
    time.sleep(60)
"""


def test_ctrl_c_unmounts(store):
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    process = subprocess.Popen([sys.executable, "-c", CTRL_C, store], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               start_new_session=True)
    with process:
        point = process.stdout.readline().strip()
        assert mounted(point)
        # As a terminal does: the whole group.
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in said and not mounted(point) and not os.path.exists(point)


def test_a_mount_that_is_forgotten_ends_with_python_and_not_with_its_children(store):
    done = python("import os, sys, npyfs\nm = npyfs.mount(sys.argv[1])\nprint(m.path, flush=True)\n"
                  "child = os.fork()\nif not child: sys.exit(0)\n"
                  "os.waitpid(child, 0)\nassert os.path.ismount(m)", store)
    assert not os.path.exists(done.stdout.strip())


def test_a_mount_stays_in_its_process(store):
    with npyfs.mount(store) as m, pytest.raises(TypeError, match="hand paths on"):
        pickle.dumps(m)


@pytest.mark.fast
def test_reading_without_a_mount(store):
    with h5py.File(store) as file:
        for name in ("x", "a/b", "packed"):
            item = npyfs.open(store, name)
            array = item.read()
            assert array.dtype == file[name].dtype and np.array_equal(array, file[name][()])
            assert item.info()["shape"] == list(file[name].shape)
    assert npyfs.open(store, "a/text.npy").read().tolist() == ["one", "two"]
    assert npyfs.open(store, "x").bytes()[:6] == b"\x93NUMPY"
    assert npyfs.info(store)["kind"] == "plain"
    assert {entry["name"]: entry["kind"] for entry in npyfs.ls(store)} == {"a": "directory", "packed.npy": "file", "x.npy": "file"}
    assert [entry["name"] for entry in npyfs.ls(store, "a")] == ["b.npy", "text.npy"]


@pytest.mark.parametrize("store_name, path, said, code", [
    ("plain.h5", "y", "y.npy: no such path in the store", 3), ("nothing.h5", "x", "nothing.h5: No such file", 2),
    ("plain.h5", "a", "^a is a group: npyfs.ls", 3), ("plain.h5", "*", "more than one file", None), ("plain.h5", "x.npz", "no .npy file", None)])
def test_what_cannot_be_read_is_an_error(store, store_name, path, said, code):
    with pytest.raises(npyfs.Error, match=said) as refused:
        npyfs.open(store.with_name(store_name), path).read()
    assert refused.value.returncode == code


def test_an_address(store):
    with Site(store.parent) as site:
        assert np.array_equal(npyfs.open(site.url("plain.h5"), "a/b", cache_dir=store.parent / "cache").read(), np.arange(60_000).reshape(200, 300))


def test_neither_numpy_nor_anything_else_is_imported(store):
    done = python("import sys, npyfs\nm = npyfs.open(sys.argv[1], 'x').bytes()\nassert 'numpy' not in sys.modules\n"
                  "print(len(m), npyfs.__version__)", store)
    assert done.stdout.split() == ["208", run([NPYFS, "--version"]).stdout.split()[1]]


def test_python_m_npyfs():
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    assert run([sys.executable, "-m", "npyfs", "--version"], env=env).stdout == run([NPYFS, "--version"]).stdout
    done = run([sys.executable, "-m", "npyfs", "nonsense"], env=env)
    assert done.returncode == 1 and done.stderr.startswith("npyfs: ")


def test_where_the_program_is_looked_for(tmp_path):
    text = "import sys, sysconfig, npyfs._program as p\nsysconfig.get_path = lambda *_: sys.argv[1]\nprint(p.program())"
    beside, on_path = tmp_path / "beside", tmp_path / "path"
    for folder in (beside, on_path):
        folder.mkdir()
        os.link(NPYFS, folder / "npyfs") if os.stat(NPYFS).st_dev == os.stat(folder).st_dev else (folder / "npyfs").symlink_to(NPYFS)
    plain = {"PATH": str(on_path), "NPYFS_BIN": ""}
    assert python(text, beside, env=plain).stdout.strip() == str(beside / "npyfs")
    assert python(text, tmp_path, env=plain).stdout.strip() == str(on_path / "npyfs")
    assert python(text, beside, env={**plain, "NPYFS_BIN": NPYFS}).stdout.strip() == NPYFS
    said = python(text, tmp_path, env={**plain, "PATH": ""}, code=1).stderr.splitlines()[-1]
    assert "the program npyfs is neither in" in said and "NPYFS_BIN" in said
    said = python(text, beside, env={**plain, "NPYFS_BIN": "/nonexistent"}, code=1).stderr.splitlines()[-1]
    assert "NPYFS_BIN names no program: /nonexistent" in said


@pytest.mark.fast
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_python_3_8_understands_it(file):
    ast.parse(file.read_text(), feature_version=(3, 8))


def test_types(tmp_path):
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("no mypy: the types of the Python package are NOT checked")
    done = run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path, PACKAGE / "npyfs"], timeout=200)
    assert done.returncode == 0, done.stdout
    assert (PACKAGE / "npyfs/py.typed").exists()


def test_stores_and_checkouts_in_buckets(store, tmp_path, monkeypatch):
    with S3() as s3:
        s3.put("data", "dir/plain.h5", store)
        for name, value in {**s3.env, "AWS_ENDPOINT_URL": s3.url, "AWS_EC2_METADATA_DISABLED": "true", "XDG_CACHE_HOME": str(tmp_path / "cache"),
                            "XDG_STATE_HOME": str(tmp_path / "state")}.items():
            monkeypatch.setenv(name, value)
        url = "s3://data/dir/plain.h5"
        np.testing.assert_array_equal(npyfs.open(url, "x").read(), np.arange(10.0))
        with npyfs.mount(url, checkout="work") as m:
            np.testing.assert_array_equal(np.load(m / "a/b.npy"), np.arange(60_000).reshape(200, 300))
            np.save(m / "new.npy", np.arange(3))
            m.commit("new")
        assert [commit["message"] for commit in npyfs.log(url)] == ["new"]
        np.testing.assert_array_equal(npyfs.open(url, "new").read(), np.arange(3))
        assert any(item["Key"].startswith("dir/plain.h5.checkouts/commits/") for item in s3.client.list_objects_v2(Bucket="data")["Contents"])
