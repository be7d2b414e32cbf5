"""Where checkouts lie, who may see them, and what is left of what did not succeed: permissions, owners and groups as lstat says them, names
as they lie on the disk."""

import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.checkouts import top
from support.mount import Mount, until
from support.process import NPYFS, npyfs, run


def make(path, value=0.0):
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w") as file:
        file["x"] = np.full(10, value)
    return path


def everything(folder):
    return [folder, *folder.rglob("*")]


def wider(path, mode):
    """The permission bits that a path has and that files (or directories) of this mode have not."""
    meta = os.lstat(path)
    if stat.S_ISDIR(meta.st_mode):
        mode |= (mode & 0o444) >> 2
    return stat.S_IMODE(meta.st_mode) & 0o777 & ~mode & ~0o700


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o666, 0o400])
def test_nothing_is_wider_than_the_store(tmp_path, mode, umask):
    tmp_path.chmod(0o755)
    store = make(tmp_path / "x.h5")
    store.chmod(mode)
    become = ["sh", "-c", f'umask {umask:04o}; exec "$@"', "sh"]
    with Mount(store, checkout="c", prefix=become) as m:
        np.save(m / "x.npy", np.ones(3))
        np.save(m / "large.npy", np.ones(400_000))
        (m / "g").mkdir()
        assert wider(m / ".npyfs/errors.log", mode) == wider(m / ".npyfs/info/x.npy.json", mode) == 0
    want = mode & ~umask & 0o775
    commands = (["checkout", "export", store, "c", tmp_path / "own.h5"], ["checkout", "commit", store, "c"],
                ["checkout", "export", "--compress", "gzip", store, tmp_path / "all.h5"])
    for command in commands:
        run([*become, NPYFS, *command], check=True)
    made = [*everything(top(store)), tmp_path / "own.h5", tmp_path / "all.h5"]
    assert len(made) > 8
    assert {str(path): oct(wider(path, want)) for path in made if wider(path, want)} == {}
    # And the owner can go on.
    assert all(os.lstat(path).st_mode & 0o600 == 0o600 for path in made)
    with h5py.File(tmp_path / "all.h5") as file:
        np.testing.assert_array_equal(file["large"], np.ones(400_000))


def test_an_exported_directory_is_no_wider(tmp_path):
    folder = tmp_path / "folder"
    make(folder / "open.h5").chmod(0o644)
    make(folder / "own.h5").chmod(0o600)
    (folder / "sub").mkdir(mode=0o700)
    make(folder / "sub/y.h5").chmod(0o644)
    with Mount(folder, checkout="c") as m:
        np.save(m / "own.h5/x.npy", np.ones(3))
    assert [path for path in everything(top(folder)) if wider(path, 0o600)] == []
    npyfs("checkout", "export", folder, "c", tmp_path / "out", check=True)
    modes = {name: oct(stat.S_IMODE(os.lstat(tmp_path / "out" / name).st_mode)) for name in ("open.h5", "own.h5", "sub", "sub/y.h5")}
    assert modes == {"open.h5": "0o644", "own.h5": "0o600", "sub": "0o700", "sub/y.h5": "0o644"}


@pytest.fixture
def users(root_only):
    """A directory that all may look into; a command that becomes a user of group 3000."""
    folder = Path(tempfile.mkdtemp(prefix="npyfs-users-"))
    try:
        folder.chmod(0o755)
        shutil.copy(NPYFS, folder / "npyfs")
        os.chmod(folder / "npyfs", 0o755)
        yield folder, lambda user: ["setpriv", f"--reuid={user}", "--regid=3000", "--clear-groups", "--", folder / "npyfs"]
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_what_root_writes_over_the_store_of_a_user_is_the_users(users, mode):
    folder, become = users
    store = make(folder / "home/x.h5")
    os.chown(store, 2001, 3000)
    os.chown(store.parent, 2001, 3000)
    store.chmod(mode)
    with Mount(store, "allow_other", checkout="c") as m:
        np.save(m / "x.npy", np.ones(3))
        np.save(m / "large.npy", np.ones(400_000))
    owners = {(os.lstat(path).st_uid, os.lstat(path).st_gid) for path in everything(top(store))}
    assert owners == {(2001, 3000)}
    assert [path for path in everything(top(store)) if wider(path, mode)] == []
    # The user goes on with them, and so does root.
    assert "large.npy" in run([*become(2001), "checkout", "diff", store, "c"], check=True).stdout
    with Mount(store, checkout="c") as m:
        np.save(m / "more.npy", np.zeros(2))
    run([*become(2001), "checkout", "commit", store, "c"], check=True)
    run([*become(2001), "checkout", "export", store, folder / "home/out.h5"], check=True)
    with h5py.File(folder / "home/out.h5") as file:
        np.testing.assert_array_equal(file["x"], np.ones(3))
        assert set(file) == {"x", "large", "more"}


def test_the_group_of_the_store_is_kept_where_that_is_possible(users):
    folder, become = users
    store = make(folder / "home/x.h5")
    os.chown(store.parent, 2001, 3000)
    for group, want, bits in ((3000, 3000, 0o640), (4000, 3000, 0o600)):
        os.chown(store, 2001, group)
        store.chmod(0o640)
        out = folder / f"home/out{group}.h5"
        run([*become(2001), "checkout", "export", store, out], check=True)
        meta = os.lstat(out)
        assert (meta.st_gid, oct(stat.S_IMODE(meta.st_mode))) == (want, oct(bits))


def test_two_stores_in_one_directory_are_kept_apart(tmp_path):
    place = tmp_path / "all"
    stores = [make(tmp_path / "a/x.h5", 1.0), make(tmp_path / "b/x.h5", 2.0), make(tmp_path / "b/y.h5", 3.0)]
    for number, store in enumerate(stores):
        with Mount(store, checkout="c", checkouts=place) as m:
            np.testing.assert_array_equal(np.load(m / "x.npy"), np.full(10, number + 1.0))
            np.save(m / "x.npy", np.full(3, number))
            np.save(m / f"own{number}.npy", np.zeros(1))
    for number, store in enumerate(stores):
        listed = npyfs("checkout", "diff", "--checkouts", place, store, "c", check=True).stdout
        assert [line.split()[1] for line in listed.splitlines()] == [f"own{number}.npy", "x.npy"]
        npyfs("checkout", "commit", "--checkouts", place, store, "c", check=True)
        with Mount(store, checkouts=place) as m:
            np.testing.assert_array_equal(np.load(m / "x.npy"), np.full(3, number))
        assert not top(store).exists()
    assert sorted(os.listdir(place)) == ["x.h5.checkouts", "x.h5~2.checkouts", "y.h5.checkouts"]


def test_checkouts_directly_in_the_directory_are_refused_by_name(tmp_path):
    store, place = make(tmp_path / "x.h5"), tmp_path / "place"
    with Mount(store, checkout="c") as m:
        np.save(m / "c.npy", np.ones(3))
    top(store).rename(place)
    before = sorted(place.rglob("*"))
    for arguments in (["checkout", "ls"], ["mount", "--checkout", "c"]):
        refused = npyfs(*arguments, "--checkouts", place, store, *[tmp_path] * (arguments[0] == "mount"))
        assert refused.returncode and f"{place}: checkouts lie in it itself" in refused.stderr
    assert sorted(place.rglob("*")) == before
    place.rename(top(store))
    with Mount(store, checkout="c") as m:
        np.testing.assert_array_equal(np.load(m / "c.npy"), np.ones(3))


def failing_mounts(tmp_path, store):
    """Mounts that fail early and late."""
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").write_bytes(b"")
    empty = tmp_path / "empty"
    empty.mkdir()
    broken = tmp_path / "broken.h5"
    broken.write_bytes(b"no HDF5")
    return [(store, "new", tmp_path / "none"), (store, "new", full), (store, "a/b", empty), (broken, "new", empty),
            (tmp_path / "missing.h5", "new", empty)]


@pytest.mark.parametrize("place", [None, "place"])
def test_a_mount_that_fails_leaves_no_directory(tmp_path, place):
    store = make(tmp_path / "store/x.h5")
    options = ["--checkouts", tmp_path / place] if place else []
    mounts = failing_mounts(tmp_path, store)
    before = sorted(tmp_path.rglob("*"))
    for target, name, point in mounts:
        done = npyfs("mount", "--checkout", name, *options, target, point)
        assert done.returncode != 0, f"{target} {name} {point}"
        assert [path for path in sorted(tmp_path.rglob("*")) if path not in before] == []
    # What is there stays.
    with Mount(store, checkout="old", checkouts=tmp_path / place if place else None):
        pass
    before = sorted(tmp_path.rglob("*"))
    for target, name, point in mounts:
        for known in (name, "old" if name == "new" else name):
            assert npyfs("mount", "--checkout", known, *options, target, point).returncode != 0
    assert sorted(tmp_path.rglob("*")) == before


@pytest.fixture
def slow(tmp_path):
    """A store whose export takes some seconds, and where to write it."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        for number in range(8):
            file[f"x{number}"] = np.random.default_rng(number).integers(0, 1 << 20, 4_000_000)
    place = tmp_path / "place"
    place.mkdir()
    return path, place


def interrupted(slow, what):
    store, place = slow
    export = subprocess.Popen([NPYFS, "checkout", "export", "--compress", "gzip:9", store, place / "out.h5"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: list(place.glob("*/part.h5")) or export.poll() is not None, "the export")
    time.sleep(0.3)
    assert export.poll() is None, "the export was faster than the signal"
    export.send_signal(what)
    assert export.wait(60) == -what


@pytest.mark.parametrize("what", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_export_that_a_signal_ends_leaves_nothing(slow, what):
    interrupted(slow, what)
    assert os.listdir(slow[1]) == []


def test_what_a_killed_export_left_goes_with_the_next(slow, tmp_path):
    interrupted(slow, signal.SIGKILL)
    store, place = slow
    assert len(os.listdir(place)) == 1
    # One that is at work is left alone.
    make(tmp_path / "small.h5")
    running = subprocess.Popen([NPYFS, "checkout", "export", "--compress", "gzip:9", store, place / "out.h5"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL)
    until(lambda: list(place.glob(f"*-{running.pid}-*/part.h5")), "the export")
    npyfs("checkout", "export", tmp_path / "small.h5", place / "small.h5", check=True)
    assert running.wait(100) == 0
    assert sorted(os.listdir(place)) == ["out.h5", "small.h5"]
    with h5py.File(place / "out.h5") as file, h5py.File(store) as want:
        np.testing.assert_array_equal(file["x7"], want["x7"])


def test_an_index_stays_small(tmp_path):
    store = make(tmp_path / "x.h5")
    with Mount(store, checkout="c") as m:
        for name in ("a", "b"):
            np.save(m / f"{name}.npy", np.ones(2))
        for number in range(40):
            for name in ("a", "b") * 50:
                os.utime(m / f"{name}.npy", ns=(number, 1_000_000_000 * number))
            os.sync() if number % 20 == 0 else None
            npyfs("checkout", "sync", m.path, check=True)
    index = top(store) / "c/index"
    assert len(index.read_bytes().splitlines()) < 1500
    assert sorted(os.listdir(index.parent))[-2:] == ["holder", "index"]
    with Mount(store, checkout="c") as m:
        assert os.stat(m / "a.npy").st_mtime == os.stat(m / "b.npy").st_mtime == 39
        np.testing.assert_array_equal(np.load(m / "a.npy"), np.ones(2))


def test_diff_goes_on_past_an_object_whose_file_is_gone(tmp_path):
    store = make(tmp_path / "x.h5")
    with Mount(store, checkout="c") as m:
        for name in ("a", "b", "x"):
            np.save(m / f"{name}.npy", np.ones(40_000))  # too large to share a file
    gone = sorted((top(store) / "c").glob("*.h5"))[1]
    gone.unlink()
    done = npyfs("checkout", "diff", store, "c")
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["A", "a.npy"], ["A", "b"], ["M", "x.npy"]]
    assert str(gone) in lines[1] and "cannot be read" in lines[1]
    assert done.returncode != 0 and "1 objects cannot be read" in done.stderr
