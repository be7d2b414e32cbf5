"""Inode numbers and times that stay, owners and permissions, extended attributes, EROFS for every write, and a store that
is replaced or rewritten while mounted: new opens see the new content, open handles the old or ESTALE, never a mixture.
Judge: stat and errno of the kernel, np.save, and the store's own bytes before and after."""

import errno
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time

import h5py
import numpy as np
import pytest

from support.mount import Mount, mounts, until
from support.truth import np_save, read

pytestmark = pytest.mark.fast


def write_store(path, value=1, length=400_000, **keywords):
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", data=np.full(length, value, "<i4"), chunks=(65_536,), compression="gzip", compression_opts=1)
        file.create_dataset("flat", data=np.full(length, value, "<i4"))
        file["g/small"] = np.full(3, value)
        x.attrs.update({"units": "mV", "scale": 2.5, "counts": [1, 2, 3]}, **keywords)
        file["g"].attrs["note"] = "größe"
    return path


@pytest.fixture
def store(tmp_path):
    return write_store(tmp_path / "store.h5")


def facts(mount):
    found = {}
    for folder, folders, files in os.walk(mount.path):
        for name in [".", *files]:
            stat = os.lstat(os.path.join(folder, name))
            found[os.path.relpath(os.path.join(folder, name), mount.path)] = (stat.st_ino, stat.st_mtime_ns, stat.st_mode, stat.st_size)
    return found


def test_inodes_times_and_sizes_over_remounts(store):
    os.utime(store, ns=(1_600_000_000_123_456_789, 1_600_000_000_987_654_321))
    with Mount(store) as mount:
        first = facts(mount)
        (mount / "g/small.npy").read_bytes()
        assert facts(mount) == first
    with Mount(store) as mount:
        os.stat(mount / "g/small.npy")  # another order of looking
        assert facts(mount) == first
    assert {fact[1] for fact in first.values()} == {1_600_000_000_987_654_321}
    inodes = [fact[0] for fact in first.values()]
    assert len(inodes) == len(set(inodes)) == 5
    assert first["x.npy"][3] == 128 + 1_600_000


def test_the_store_is_neither_changed_nor_locked(store):
    with Mount(store) as mount:
        np.load(mount / "x.npy")
        with open(mount / "flat.npy", "rb") as stream:
            stream.read(10)
            with h5py.File(store, "r+", locking=True):  # takes an exclusive lock: fails if the mount holds any
                pass
            assert os.listdir(store.parent) == [store.name]
    with h5py.File(store, "r", locking=True):  # and npyfs mounts what another reader has locked
        with Mount(store) as mount:
            assert np.load(mount / "g/small.npy").tolist() == [1, 1, 1]
    clean = write_store(store.with_name("clean.h5"))
    before, stat = clean.read_bytes(), os.stat(clean)
    with Mount(clean) as mount:
        for path in mount.files():
            read(mount / path)
    assert clean.read_bytes() == before and os.stat(clean).st_mtime_ns == stat.st_mtime_ns


def test_statfs_and_the_mount_table(store):
    with Mount(store, "fsname=my-store") as mount:
        here, below = os.statvfs(mount.path), os.statvfs(store)
        assert (here.f_blocks * here.f_frsize, here.f_namemax) == (below.f_blocks * below.f_frsize, 255)
        assert here.f_flag & os.ST_RDONLY and here.f_flag & os.ST_NOSUID and here.f_flag & os.ST_NODEV
        assert mounts()[str(mount.path)] == ("fuse.npyfs", "my-store")
    with Mount(store, "ro") as mount:
        assert mounts()[str(mount.path)][0] == "fuse.npyfs"


def test_modes_come_from_the_store_file(store):
    os.chmod(store, 0o640)
    with Mount(store) as mount:
        modes = {name: os.stat(mount / name).st_mode for name in ("", "x.npy", "g", "g/small.npy")}
        assert {name: oct(mode & 0o7777) for name, mode in modes.items()} == {"": "0o750", "x.npy": "0o640", "g": "0o750", "g/small.npy": "0o640"}
        assert (os.stat(mount / "x.npy").st_uid, os.stat(mount / "x.npy").st_gid) == (os.stat(store).st_uid, os.stat(store).st_gid)
        assert os.stat(mount / "x.npy").st_nlink == 1


def test_owner_of_the_store_file(store, root_only):
    os.chown(store, 1234, 4321)
    with Mount(store) as mount:
        assert {(os.stat(mount / name).st_uid, os.stat(mount / name).st_gid) for name in ("", "x.npy", "g")} == {(1234, 4321)}


def test_uid_gid_umask(store):
    with Mount(store, "uid=1001,gid=2002,umask=077") as mount:
        for name, mode in {"": 0o700, "x.npy": 0o600, "g": 0o700}.items():
            stat = os.stat(mount / name)
            assert (stat.st_uid, stat.st_gid, stat.st_mode & 0o7777) == (1001, 2002, mode), name


def refused(call, *arguments, **keywords):
    with pytest.raises(OSError) as problem:
        call(*arguments, **keywords)
    return problem.value.errno


def test_extended_attributes_are_off_by_default(store):
    with Mount(store) as mount:
        for name in ("x.npy", "g", ""):
            assert refused(os.getxattr, mount / name, "user.units") == errno.ENOTSUP
            assert refused(os.getxattr, mount / name, "security.capability") == errno.ENOTSUP
        try:
            assert os.listxattr(mount / "x.npy") == []
        except OSError as problem:
            assert problem.errno == errno.ENOTSUP


def test_extended_attributes_on_demand(store):
    with Mount(store, "xattrs") as mount:
        assert os.getxattr(mount / "x.npy", "user.units") == b"mV"
        assert float(os.getxattr(mount / "x.npy", "user.scale")) == 2.5
        assert json.loads(os.getxattr(mount / "x.npy", "user.counts")) == [1, 2, 3]
        assert os.getxattr(mount / "g", "user.note") == "größe".encode()
        assert {"user.units", "user.scale", "user.counts"} <= set(os.listxattr(mount / "x.npy"))
        assert refused(os.getxattr, mount / "x.npy", "user.nothing") == errno.ENODATA
        assert refused(os.getxattr, mount / "flat.npy", "user.units") == errno.ENODATA


def test_every_write_is_refused(store):
    with Mount(store) as mount:
        file, folder, new = mount / "x.npy", mount / "g", mount / "new.npy"
        attempts = {
            "open for writing": (os.open, file, os.O_WRONLY), "open for both": (os.open, file, os.O_RDWR),
            "open and truncate": (os.open, file, os.O_RDONLY | os.O_TRUNC), "append": (os.open, file, os.O_WRONLY | os.O_APPEND),
            "create": (os.open, new, os.O_WRONLY | os.O_CREAT), "truncate": (os.truncate, file, 3), "unlink": (os.unlink, file),
            "mkdir": (os.mkdir, mount / "d"), "rmdir": (os.rmdir, folder), "rename": (os.rename, file, new), "replace": (os.replace, file, folder / "small.npy"),
            "symlink": (os.symlink, "x", new), "link": (os.link, file, new), "chmod": (os.chmod, file, 0o600), "chown": (os.chown, file, os.getuid(), -1),
            "utime": (os.utime, file, (1, 1)), "setxattr": (os.setxattr, file, "user.a", b"1"), "mkfifo": (os.mkfifo, new),
            "in .npyfs": (os.open, mount / ".npyfs/new", os.O_WRONLY | os.O_CREAT), "the status": (os.open, mount / ".npyfs/status.json", os.O_WRONLY)}
        answers = {what: refused(*call) for what, call in attempts.items()}
        assert answers == dict.fromkeys(attempts, errno.EROFS)
        assert np.load(file)[0] == 1


def test_the_hidden_folder(store):
    with Mount(store) as mount:
        assert ".npyfs" not in os.listdir(mount.path)
        assert {"info", "info.json", "status.json", "errors.log"} <= set(os.listdir(mount / ".npyfs"))
        for name in ("status.json", "info.json", "info/x.npy.json", "info/g.json", "info/g/small.npy.json"):
            json.loads((mount / ".npyfs" / name).read_text())
        assert mount.errors() == []
        for name in (".npyfs/nothing", ".npyfs/info/nothing.npy.json", "nothing", "x.npy/y", "g/nothing.npy"):
            assert refused(os.stat, mount / name) in (errno.ENOENT, errno.ENOTDIR), name


def replaced_by_rename(store, new):
    os.replace(new, store)


def rewritten_in_place(store, new):
    time.sleep(0.05)  # file times have the grain of a kernel tick
    shutil.copyfile(new, store)
    os.unlink(new)


@pytest.mark.parametrize("change", [replaced_by_rename, rewritten_in_place])
@pytest.mark.parametrize("length", [400_000, 300_000, 500_000])
def test_a_changed_store(store, change, length):
    """The same size, shorter, longer."""
    old = {name: read_of(1, 400_000) for name in ("x.npy", "flat.npy")}
    new = {name: read_of(2, length) for name in ("x.npy", "flat.npy")}
    with Mount(store) as mount:
        handles = {name: os.open(mount / name, os.O_RDONLY) for name in old}
        try:
            assert all(os.pread(handle, 1000, 0) == old[name][:1000] for name, handle in handles.items())
            change(store, write_store(store.with_name("new"), 2, length))
            for name in old:
                assert read(mount / name) == new[name], f"the next open of {name}"
            for name, handle in handles.items():
                assert_old_or_stale(handle, old[name])
        finally:
            for handle in handles.values():
                os.close(handle)
        for name in new:
            until(lambda: os.stat(mount / name).st_size == len(new[name]), f"the new size of {name}", 10)
            assert np.load(mount / name, mmap_mode="r").tobytes() == new[name][128:]
            assert os.stat(mount / name).st_mtime_ns == os.stat(store).st_mtime_ns
        assert mount.info("x.npy")["shape"] == [length]


def read_of(value, length):
    return np_save(np.full(length, value, "<i4"))


def assert_old_or_stale(handle, old):
    """Whatever an open handle still delivers is the old content."""
    for start in range(0, len(old), 100_000):
        try:
            part = os.pread(handle, 100_000, start)
        except OSError as problem:
            assert problem.errno == errno.ESTALE
        else:
            assert part == old[start:start + len(part)] and part, f"at {start}: neither old content nor ESTALE"


def test_objects_that_come_and_go(store):
    with Mount(store) as mount:
        assert sorted(os.listdir(mount.path)) == ["flat.npy", "g", "x.npy"]
        assert not (mount / "added.npy").exists()
        with h5py.File(store.with_name("new"), "w") as file:
            file["added"] = np.arange(4)
            file["x"] = np.arange(2)
        os.replace(store.with_name("new"), store)
        until(lambda: sorted(os.listdir(mount.path)) == ["added.npy", "x.npy"], "the new listing", 10)
        until(lambda: (mount / "added.npy").exists() and not (mount / "flat.npy").exists(), "the new names", 10)
        assert np.load(mount / "added.npy").tolist() == [0, 1, 2, 3]


READER = """
    import errno, os, sys
    names, deadline = sys.argv[1:3], sys.argv[3]
    seen = set()
    while not os.path.exists(deadline):
        for name in names:
            try:
                with open(name, "rb", buffering=0) as stream:
                    data = b"".join(iter(lambda: stream.read(123_457), b""))
            except OSError as problem:
                if problem.errno != errno.ESTALE: sys.exit(f"{name}: {problem}")
                continue
            values = set(memoryview(data)[128:].cast("i")) if len(data) == 128 + 1_600_000 else {"size", len(data)}
            if not (values == {1} or values == {2}): sys.exit(f"{name}: a mixture: {sorted(map(str, values))[:5]}")
            seen |= values
    if seen != {1, 2}: sys.exit(f"saw only {seen}")
"""


def test_never_a_mixture(store, tmp_path):
    """Two readers read without a pause while the store is replaced again and again by another of the same size."""
    originals = [write_store(tmp_path / f"original{i}", i) for i in (1, 2)]
    stop = tmp_path / "stop"
    with Mount(store) as mount:
        readers = [subprocess.Popen([sys.executable, "-c", textwrap.dedent(READER), mount / "x.npy", mount / "flat.npy", stop],
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
        try:
            for turn in range(40):
                shutil.copyfile(originals[turn % 2], tmp_path / "next")
                os.replace(tmp_path / "next", store)
                time.sleep(0.05)
                assert all(reader.poll() is None for reader in readers), [r.communicate()[0] for r in readers if r.poll() is not None]
        finally:
            stop.touch()
            results = [(reader.communicate(timeout=60)[0], reader.returncode) for reader in readers]
        assert results == [("", 0), ("", 0)]
