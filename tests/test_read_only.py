"""Read-only mounts behave as any read-only file system does: permission bits of the store, `fsync` that succeeds, `-o ro` and
`-o rw` that mean what they say. And no signal that can be caught leaves a dead mount, of any mount.
Judge: the kernel, coreutils as another user, NumPy."""

import errno
import os
import shutil
import signal
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.mount import Mount, clear, make_point, mounted, until
from support.process import npyfs, one_line, run

pytestmark = pytest.mark.fast

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]


@pytest.fixture
def store(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.arange(10.0)
        file["g/y"] = np.arange(6)
    return tmp_path / "x.h5"


def test_copies_can_be_replaced_and_removed_by_people_who_are_not_root(store, root_only):
    assert shutil.which("setpriv"), "setpriv (util-linux) is missing"
    os.chown(store, 65534, 65534)
    os.chmod(store, 0o644)
    home = Path(tempfile.mkdtemp(prefix="npyfs-home-"))
    try:
        os.chown(home, 65534, 65534)
        with Mount(store, "allow_other") as mount:
            for source, script in {"x.npy": 'cp "$1" . && cp "$1" . && rm x.npy', "": 'cp -r "$1" copy && cp -r "$1/." copy && rm -rf copy'}.items():
                done = run([*NOBODY, "sh", "-c", script, "sh", mount / source], cwd=home)
                assert done.returncode == 0 and done.stderr == "", done.stderr
            assert os.listdir(home) == []
            assert run([*NOBODY, "sh", "-c", 'test ! -w "$1"', "sh", mount / "x.npy"]).returncode == 0, "a read-only file system"
    finally:
        shutil.rmtree(home)


def test_fsync_of_what_cannot_be_changed_succeeds(store):
    with Mount(store) as mount:
        for name in ("x.npy", "g", "", ".npyfs/status.json"):
            descriptor = os.open(mount / name, os.O_RDONLY)
            try:
                os.fsync(descriptor), os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        run(["sync", mount / "x.npy", mount.path], check=True)


def layer(store):
    """Every file of a checkout with its bytes and time."""
    folder = Path(f"{store}.checkouts")
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_ro_shows_a_checkout_and_changes_nothing(store):
    for name in ("new", "new.npy"):  # there is no such checkout, and none is made
        done = npyfs("mount", "-o", "ro", "--checkout", name, store, store.parent)
        assert done.returncode == 2 and name in one_line(done.stderr)
    assert not Path(f"{store}.checkouts").exists()
    with Mount(store, checkout="c") as mount:
        np.save(mount / "new.npy", np.arange(3))
        os.unlink(mount / "x.npy")
        busy = npyfs("mount", "-o", "ro", "--checkout", "c", store, store.parent)
        assert busy.returncode == 2 and "writes in this checkout" in one_line(busy.stderr)
    before = layer(store)
    with Mount(store, "ro", checkout="c") as mount, Mount(store, "rw,ro", checkout="c") as again:
        for m in (mount, again):
            assert m.files() == ["g/y.npy", "new.npy"] and (np.load(m / "new.npy") == np.arange(3)).all()
            for attempt in (lambda: open(m / "late.npy", "wb"), lambda: os.unlink(m / "new.npy"), lambda: os.mkdir(m / "d")):
                with pytest.raises(OSError) as refused:
                    attempt()
                assert refused.value.errno == errno.EROFS
        point = make_point()
        busy = npyfs("mount", "--checkout", "c", store, point)
        os.rmdir(point)
        assert busy.returncode == 2 and "mounted read-only" in one_line(busy.stderr)
    assert layer(store) == before
    with Mount(store, checkout="c") as mount:
        np.save(mount / "late.npy", np.arange(4))


def test_rw_without_a_checkout_says_what_is_missing(store):
    point = make_point()
    try:
        done = npyfs("mount", "-o", "rw", store, point)
        assert done.returncode == 0 and mounted(point)
        assert "read-only" in one_line(done.stderr) and "--checkout" in done.stderr
        with pytest.raises(OSError) as refused:
            open(point / "new.npy", "wb")
        assert refused.value.errno == errno.EROFS
        assert npyfs("umount", point).returncode == 0
    finally:
        clear(point)
        os.rmdir(point)
    with Mount(store, "rw", checkout="c") as mount:
        np.save(mount / "new.npy", np.arange(3))


ENDING = ["SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGXCPU"]
OTHERS = ["SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPIPE", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGXFSZ", "SIGRTMIN", "SIGRTMAX"]


@pytest.mark.parametrize("front", [True, False])
@pytest.mark.parametrize("name", [*ENDING, "others"])
def test_no_signal_leaves_a_dead_mount(store, tmp_path, name, front):
    with Mount(store, checkout="c", log=tmp_path / "log" if front else None) as mount:
        np.save(mount / "new.npy", np.arange(3))
        for other in OTHERS:
            os.kill(mount.pid, getattr(signal, other))
        assert (np.load(mount / "new.npy") == np.arange(3)).all(), "it goes on"
        assert mount.alive()
        if name == "others":
            return
        mount.expect_dead = True
        os.kill(mount.pid, getattr(signal, name))
        until(lambda: not mounted(mount.path), "the unmount")
        until(lambda: mount.front.poll() is not None if front else not mount.alive(), "the end of the daemon")
        assert os.listdir(mount.path) == [], "nothing is mounted, and nothing dead"
    with Mount(store, checkout="c") as mount:
        assert (np.load(mount / "new.npy") == np.arange(3)).all()
