"""`-o keep=SIZE`: copies of arrays that were read, served by the kernel where it can. Judges: h5py on the same file, np.save, and the kernel."""

import contextlib
import ctypes
import json
import mmap
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from support import hangar
from support.foreign import Foreign
from support.mount import Mount, clear, make_point, until
from support.process import NPYFS, npyfs, one_line, run
from support.truth import np_save
from support.web import Site

ROOT = os.geteuid() == 0
BLOCK = 1 << 20


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("written") / "store.h5"
    write(path)
    return path


@pytest.fixture
def store(tmp_path, written):
    return Path(shutil.copyfile(written, tmp_path / "store.h5"))


def write(path, seed=0, mib=4, names="abc"):
    generator = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        for name in names:
            array = generator.integers(0, 1000, (mib << 10, 128), dtype="i8")
            file.create_dataset(name, data=array, chunks=(256, 128), compression="gzip", compression_opts=1, shuffle=True)
        file["plain"] = generator.random((min(mib, 4) << 10, 128))
        file["short"] = np.arange(100)


@pytest.fixture(scope="module")
def settled(tmp_path_factory):
    """Stores that nobody changes, of which the times of the file tell it: a change of the next moment would not show in them."""
    folder = tmp_path_factory.mktemp("settled")
    write(folder / "store.h5")
    write(folder / "large.h5", mib=24, names="a")
    (folder / "www").mkdir()
    write(folder / "www/store.h5", mib=1)
    time.sleep(3.2)
    return folder


def truth(path, name="a"):
    with h5py.File(path) as file:
        return np_save(file[name][()])


def passes():
    """Whether the kernel of this machine serves copies by itself, if it may."""
    version = tuple(int(part) for part in re.match(r"(\d+)\.(\d+)", os.uname().release).groups())
    return ROOT and version >= (6, 9)


def options(cache, size="64M", more=""):
    return f"keep={size},cache_dir={cache}{more}"


def kept(mount):
    return mount.status()["kept"]


def wait_made(mount, count=1):
    until(lambda: kept(mount)["made"] >= count or not_kept(mount), "the copy")
    assert kept(mount)["made"] == count, kept(mount)


def not_kept(mount):
    return kept(mount)["not_kept"]


def copies(cache):
    return sorted(path for path in (cache / "kept").iterdir() if path.suffix == ".npy")


def read(mount, name="a"):
    """The bytes by read(2); a handle of its own."""
    return (mount / f"{name}.npy").read_bytes()


def read_anew(mount):
    """The bytes, none of which the kernel has in memory."""
    with open(mount / "a.npy", "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return file.read()


def served(mount):
    status = kept(mount)
    return status["passed_through"] if passes() else status["served"]


def test_nothing_is_kept_unless_asked_for(store, cache):
    with Mount(store, f"cache_dir={cache}") as mount:
        read(mount)
        assert mount.status()["kept"] is None
    assert not cache.exists()


@pytest.mark.parametrize("name", ["a", "plain"])
def test_an_array_that_was_read_is_a_file_from_then_on(store, cache, name):
    want = truth(store, name)
    with Mount(store, options(cache)) as mount:
        read(mount, "short")
        assert read(mount, name) == want
        wait_made(mount)
        (copy,) = copies(cache)
        assert copy.read_bytes() == want
        assert [path.stat().st_mode & 0o777 for path in (cache, cache / "kept", copy)][1:] == [0o700, 0o600]
        before = mount.status()["cache"]["decoded_bytes"]
        assert read(mount, name) == want
        np.testing.assert_array_equal(np.load(mount / f"{name}.npy"), np.load(copy))
        mapped = np.load(mount / f"{name}.npy", mmap_mode="r")
        np.testing.assert_array_equal(mapped[::97], np.load(copy)[::97])
        del mapped
        with open(mount / f"{name}.npy", "rb") as file:
            assert os.pread(file.fileno(), 1 << 20, len(want) - 10) == want[-10:]
            assert os.pread(file.fileno(), 1 << 20, len(want)) == b""
            assert os.fstat(file.fileno()).st_size == len(want)
        assert served(mount) >= 4 and mount.status()["cache"]["decoded_bytes"] == before
        if passes():
            assert kept(mount)["passthrough"] is True
        lines = npyfs("log", mount.path, check=True).stdout
        assert f"{name}.npy: kept, {len(want)} bytes" in lines


def test_the_next_mount_begins_with_it(store, cache):
    want = truth(store)
    with Mount(store, options(cache)) as mount:
        read(mount)
        wait_made(mount)
    with Mount(store, options(cache)) as mount:
        # The checksums are looked at as it is read.
        assert read(mount) == want
        until(lambda: read(mount) == want and served(mount) > 0, "a file that is served")
        assert mount.status()["cache"]["decoded_bytes"] == 0
        assert "a.npy: served from its kept copy" in npyfs("log", mount.path, check=True).stdout


def test_samples_are_counted(store, cache):
    want = truth(store)
    with Mount(store, options(cache)) as mount:
        rng = np.random.default_rng(1)
        places = range(0, len(want), 64 << 10)
        for at in rng.permutation(len(places)):
            with open(mount / "a.npy", "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
                assert os.pread(file.fileno(), 64 << 10, places[at]) == want[places[at]:][:64 << 10]
        wait_made(mount)
        assert copies(cache)[0].read_bytes() == want


def test_a_file_that_is_held_is_not_switched(store, cache):
    """The kernel refuses to have an inode both ways: an open that chooses wrong fails."""
    want = truth(store)
    with Mount(store, options(cache)) as mount:
        with open(mount / "a.npy", "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        assert mapped[:] == want
        read(mount)
        wait_made(mount)
        for _ in range(3):
            assert read(mount) == want
        assert kept(mount)["passed_through"] == 0 and kept(mount)["served"] >= 3
        assert mapped[-100:] == want[-100:]
        mapped.close()
        # The kernel tells a moment later that it is closed.
        until(lambda: read(mount) == want and served(mount) > 0, "the switch")
        with open(mount / "a.npy", "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        shutil.rmtree(cache / "kept")
        for _ in range(3):
            assert read(mount) == want
        assert mapped[:] == want
        mapped.close()
        assert read(mount) == want


def spoil(how, path):
    if how == "changed":
        with open(path, "r+b") as file:
            file.seek(2 * BLOCK + 5)
            byte = file.read(1)[0]
            file.seek(2 * BLOCK + 5)
            file.write(bytes([byte ^ 1]))
    elif how == "cut":
        os.truncate(path, path.stat().st_size - 1)
    elif how == "longer":
        os.truncate(path, path.stat().st_size + 1)
    elif how == "emptied":
        os.truncate(path, 0)
    elif how == "checksums cut":
        os.truncate(path.with_suffix(".sums"), 20)
    elif how == "checksums of a newer form":
        sums = path.with_suffix(".sums")
        assert sums.read_bytes().startswith(b"npyfskp1")
        sums.write_bytes(b"npyfskp2" + sums.read_bytes()[8:])
    elif how == "checksums gone":
        path.with_suffix(".sums").unlink()
    elif how == "a link":
        path.rename(path.with_suffix(".moved"))
        path.symlink_to(path.with_suffix(".moved"))
    elif how == "a directory":
        path.unlink()
        path.mkdir()


WAYS = ["changed", "cut", "longer", "emptied", "checksums cut", "checksums of a newer form", "checksums gone", "a link", "a directory"]


@pytest.mark.parametrize("how", WAYS)
def test_a_copy_that_somebody_changed_is_not_served(store, cache, how):
    want = truth(store)
    with Mount(store, options(cache)) as mount:
        read(mount)
        wait_made(mount)
        spoil(how, copies(cache)[0])
        # In the mount that has checked it, and in the next one.
        if not how.startswith("checksums"):
            assert read(mount) == want
    with Mount(store, options(cache)) as mount:
        assert read(mount) == want
        assert read(mount) == want
        if how != "a directory":
            # What the kernel has of the spoiled one and the store would never be read.
            until(lambda: read_anew(mount) == want and served(mount) > 0, "a new copy")
            assert copies(cache)[0].read_bytes() == want


def test_an_open_copy_that_is_changed_is_left(store, cache):
    """Read by the daemon: what the kernel serves itself is a file, and changes as one."""
    want = truth(store)
    with Mount(store, options(cache)) as mount:
        read(mount)
        wait_made(mount)
    (copy,) = copies(cache)
    pair = [copy, copy.with_suffix(".sums")]
    away = [path.rename(cache / path.name) for path in pair]
    # A handle from before there is a copy: until it is closed, the kernel is given none for this inode.
    with Mount(store, options(cache)) as mount, open(mount / "a.npy", "rb"):
        for path in away:
            path.rename(cache / "kept" / path.name)
        with open(mount / "a.npy", "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            assert os.pread(file.fileno(), 4096, 0) == want[:4096]
            assert kept(mount)["served"] == 1 and kept(mount)["passed_through"] == 0
            os.truncate(copy, 100_000)
            assert file.read() == want
            assert kept(mount)["spoiled"] <= 1


def test_a_store_that_changes_takes_its_copies_along(tmp_path, store, cache):
    old = truth(store)
    with Mount(store, options(cache)) as mount:
        assert read(mount) == old
        wait_made(mount)
        assert read(mount) == old
        with h5py.File(store, "r+") as file:
            file["a"][7, 7] = -1
        new = truth(store)
        assert read(mount) == new != old
        wait_made(mount, 2)
        assert read(mount) == new
        write(tmp_path / "other.h5", seed=5)
        os.rename(tmp_path / "other.h5", store)
        assert read(mount) == truth(store)
    with Mount(store, options(cache)) as mount:
        assert read(mount) == truth(store)


def test_a_store_that_changes_while_it_is_kept(store, cache):
    with Mount(store, options(cache)) as mount:
        for number in range(12):
            with h5py.File(store, "r+") as file:
                file["a"][:, number] = number
            assert read(mount) == truth(store), number
            time.sleep(0.1 * (number % 4))
    whole = truth(store)
    for _ in range(2):
        with Mount(store, options(cache)) as mount:
            assert read(mount) == whole
            wait_made(mount, 1 - kept(mount)["served"])
    assert whole in [path.read_bytes() for path in copies(cache)]


def test_external_data_that_change(tmp_path, cache):
    data = np.arange(1 << 17, dtype="i8")
    data.tofile(tmp_path / "raw.bin")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("a", shape=data.shape, dtype="i8", external=[(tmp_path / "raw.bin", 0, data.nbytes)])
    with Mount(tmp_path / "x.h5", options(cache, more=",external=allow")) as mount:
        assert read(mount) == np_save(data)
        wait_made(mount)
        assert read(mount) == np_save(data) and served(mount) > 0
    data[5] = -5
    data.tofile(tmp_path / "raw.bin")
    with Mount(tmp_path / "x.h5", options(cache, more=",external=allow")) as mount:
        assert read(mount) == np_save(data)


def test_two_mounts_keep_one_array(store, cache):
    want = truth(store)
    with Mount(store, options(cache)) as one, Mount(store, options(cache)) as two:
        for _ in range(3):
            assert read(one) == read(two) == want
        until(lambda: kept(one)["made"] + kept(two)["made"] == 1, "the copy")
        for mount in (one, two):
            until(lambda mount=mount: read(mount) == want and served(mount) > 0, "both serve it")
        assert len(copies(cache)) == 1
        assert not list((cache / "kept").glob("*.part"))


def test_a_daemon_that_is_killed_while_it_keeps(tmp_path, cache):
    store = tmp_path / "large.h5"
    write(store, mib=96, names="a")
    want = truth(store)
    with Mount(store, options(cache, "1G")) as mount:
        read(mount)
        until(lambda: list((cache / "kept").glob("*.part")), "a copy that is made")
        os.kill(mount.pid, signal.SIGKILL)
        mount.expect_dead = True
    assert not copies(cache)
    with Mount(store, options(cache, "1G")) as mount:
        assert read(mount) == want
        wait_made(mount)
        assert read(mount) == want and served(mount) > 0
    assert not list((cache / "kept").glob("*.part")) and copies(cache)[0].read_bytes() == want


def test_a_full_disk(store, root_only):
    libc = ctypes.CDLL(None, use_errno=True)
    disk = make_point()
    assert libc.mount(b"none", os.fsencode(disk), b"tmpfs", 0, b"size=6m") == 0, os.strerror(ctypes.get_errno())
    try:
        with Mount(store, options(disk)) as mount:
            for name in "ab":
                assert read(mount, name) == truth(store, name)
            until(lambda: not_kept(mount), "the disk to be full")
            assert "No space left" in not_kept(mount) and kept(mount)["made"] == 1
            for name in "abc":
                assert read(mount, name) == truth(store, name)
            assert not list((disk / "kept").glob("*.part"))
            assert "not kept" in npyfs("log", mount.path, check=True).stdout
    finally:
        clear(disk)
        os.rmdir(disk)


def test_what_was_used_least_makes_room(store, cache):
    for count, name in enumerate("abca", 1):
        # The kernel would not ask for the same bytes twice.
        with Mount(store, options(cache, "9M")) as mount:
            assert read(mount, name) == truth(store, name)
            wait_made(mount)
            # What is used counts by the second.
            sums = max((cache / "kept").glob("*.sums"), key=lambda path: path.stat().st_mtime)
            os.utime(sums, (time.time() - 1000 + count, time.time() - 1000 + count))
            assert sum(path.stat().st_blocks for path in copies(cache)) * 512 <= 9 << 20
    assert {path.read_bytes() for path in copies(cache)} == {truth(store, "a"), truth(store, "c")}
    with Mount(store, options(cache, "3M")) as mount:
        assert read(mount, "b") == truth(store, "b")
        time.sleep(0.5)
        assert kept(mount)["made"] == 0


def test_without_the_right(store, cache, root_only):
    """A daemon that may not tell the kernel to read files by itself reads them."""
    want = truth(store)
    with Foreign() as mount:
        command = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]
        front = mount.serve("-o", options(cache), store, front=True, prefix=command, stderr=subprocess.DEVNULL)
        try:
            status = lambda: json.loads((mount.path / ".npyfs/status.json").read_bytes())["kept"]
            assert read(mount.path) == want
            until(lambda: status()["made"], "the copy")
            for _ in range(3):
                assert read(mount.path) == want
            np.testing.assert_array_equal(np.load(mount.path / "a.npy", mmap_mode="r")[::50], np.load(copies(cache)[0])[::50])
            assert status()["passed_through"] == 0 and status()["served"] >= 3
            if passes():
                assert status()["passthrough"] == "it needs root"
        finally:
            mount.unmount()
            assert front.wait(30) == 0


def test_permissions_of_the_store_hold(cache, written, root_only):
    other = ["setpriv", "--reuid=2001", "--regid=2001", "--clear-groups"]
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        store = Path(shutil.copyfile(written, Path(folder) / "store.h5"))
        store.chmod(0o644)
        hold(store, cache, other)


def hold(store, cache, other):
    want = truth(store)
    with Mount(store, options(cache, more=",allow_other")) as mount:
        read(mount)
        wait_made(mount)
        assert read(mount) == want and served(mount) > 0
        assert run([*other, "cat", mount / "a.npy"], text=False, check=True).stdout == want
        assert run([*other, "cat", copies(cache)[0]]).returncode != 0
    store.chmod(0o600)
    with Mount(store, options(cache, more=",allow_other")) as mount:
        # Changing the mode made another version of it.
        read(mount)
        wait_made(mount)
        assert read(mount) == want
        assert run([*other, "cat", mount / "a.npy"]).returncode != 0


def test_directories_that_cannot_be_used(store, tmp_path):
    for name, mode in (("open", 0o777), ("file", None)):
        cache = tmp_path / name
        (cache / "kept").mkdir(parents=True) if mode else cache.write_bytes(b"")
        if mode:
            (cache / "kept").chmod(mode)
        with Mount(store, options(cache)) as mount:
            assert read(mount) == read(mount) == truth(store)
            assert mount.status()["kept"] is None
            assert any("no copies are kept" in line for line in mount.errors())
    (tmp_path / "mnt").mkdir()
    refused = npyfs("mount", "-o", options(tmp_path / "mnt"), store, tmp_path / "mnt")
    assert refused.returncode == 1 and "lies in the mount point" in one_line(refused.stderr)


def test_a_checkout_keeps_nothing(store, cache, tmp_path):
    with Mount(store, options(cache), checkout="work", checkouts=tmp_path / "checkouts") as mount:
        read(mount)
        assert mount.status()["kept"] is None
        (mount / "a.npy").write_bytes(np_save(np.arange(1 << 16)))
        npyfs("umount", mount.path, check=True)
        mount.expect_dead = True
    npyfs("checkout", "commit", "--checkouts", tmp_path / "checkouts", store, "work", check=True)
    arguments = ["--checkouts", tmp_path / "checkouts"]
    with Mount(store, options(cache), flags=arguments) as mount:
        # Of a layer, as everybody sees it.
        assert read(mount) == np_save(np.arange(1 << 16))
        wait_made(mount)
        assert read(mount) == np_save(np.arange(1 << 16)) and served(mount) > 0


def in_use(cache):
    """How many copies somebody has open."""
    return sum(copy["in_use"] for copy in json.loads(npyfs("cache", "ls", "--kept", "--json", "--dir", cache, check=True).stdout))


def test_beforehand(store, cache):
    keep = lambda *arguments, **keywords: npyfs("keep", "-o", f"cache_dir={cache}", *arguments, **keywords)
    assert "kept 1 array" in one_line(keep(store, "a.npy", check=True).stderr)
    assert copies(cache)[0].read_bytes() == truth(store)
    again = one_line(keep(store, "/", check=True).stderr)
    assert "kept 4 arrays" in again and "1 were kept before" in again
    listed = json.loads(npyfs("cache", "ls", "--kept", "--json", "--dir", cache, check=True).stdout)
    assert {copy["path"] for copy in listed} == {f"{name}.npy" for name in ("a", "b", "c", "plain", "short")}
    assert {copy["store"] for copy in listed} == {str(store)}
    with Mount(store, options(cache)) as mount:
        for name in ("a", "b", "c", "plain"):
            assert read(mount, name) == truth(store, name)
        assert mount.status()["cache"]["decoded_bytes"] == 0
        with open(mount / "a.npy", "rb"):
            # The kernel tells of files that were closed when it gets to it.
            until(lambda: in_use(cache) == 1, "the others to be closed")
            left = npyfs("cache", "clear", "--kept", "--dir", cache, check=True).stdout
            assert "left: 1 array, in use" in left
        assert read(mount) == truth(store)
    npyfs("cache", "clear", "--kept", "--dir", cache, check=True)
    assert npyfs("cache", "ls", "--kept", "--dir", cache, check=True).stdout == ""
    assert keep(store, "nothing.npy").returncode == 3


def test_all_kinds_of_arrays(tmp_path, cache):
    """What is made of several datasets or other files is kept whole, or not at all."""
    rows = 40_000
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["text"] = [f"row {number}" for number in range(rows)]
        file.create_dataset("records", data=np.zeros(rows, [("a", "i8"), ("b", "f4", (3,))]), compression="gzip")
        file.create_dataset("never", shape=(rows, 10), dtype="f8", fillvalue=7)
        file.create_dataset("across", data=np.arange(rows * 30).reshape(300, -1), chunks=(100, 100), compression="lzf")
        layout = h5py.VirtualLayout((300, rows // 10), "i8")
        layout[:] = h5py.VirtualSource(file["across"])
        file.create_virtual_dataset("virtual", layout)
    names = ["text", "records", "never", "across", "virtual"]
    with Mount(tmp_path / "x.h5") as mount:
        want = {name: read(mount, name) for name in names}
    assert want["across"] == np_save(np.arange(rows * 30).reshape(300, -1))
    with Mount(tmp_path / "x.h5", options(cache)) as mount:
        for name in names:
            assert read(mount, name) == want[name], name
        until(lambda: kept(mount)["made"] >= 4, "the copies")
        until(lambda: kept(mount)["waiting"] == 0, "the copies")
        for name in names:
            assert read(mount, name) == want[name], name
        assert served(mount) >= 4
    assert {path.read_bytes() for path in copies(cache)} <= set(want.values())


def test_what_readers_were_given_is_handed_on(settled, cache):
    # Of a small one the kernel would read all, and the copying thread would make all of the copy.
    store = settled / "large.h5"
    want = truth(store)
    with Mount(store, options(cache)) as mount:
        with open(mount / "a.npy", "rb") as file:
            half = file.read(len(want) // 2)
            until(lambda: kept(mount)["handed_on"] > 0, "a part")
            assert half + file.read() == want
        wait_made(mount)
        # The first eighth is not handed on: it is not known yet that more will follow.
        assert 0 < kept(mount)["handed_on"] < len(want)
        (copy,) = copies(cache)
        assert copy.read_bytes() == want
        assert read(mount) == want and served(mount) > 0


@contextlib.contextmanager
def begun(store, cache):
    """A mount in which a third of `a` was read, and its copy is begun."""
    want = truth(store)
    with Mount(store, options(cache)) as mount:
        with open(mount / "a.npy", "rb") as file:
            assert file.read(len(want) // 3) == want[:len(want) // 3]
        def is_settled():
            # A part that is being written when a mount ends keeps the file, which goes when room is made next.
            before = kept(mount)["handed_on"]
            time.sleep(0.3)
            return before and kept(mount)["handed_on"] == before

        until(is_settled, "parts of a copy")
        yield want


def test_what_was_begun_goes_with_the_mount(settled, cache):
    store = settled / "large.h5"
    with begun(store, cache) as want:
        assert list((cache / "kept").glob("*.part")) and not copies(cache)
    assert not list((cache / "kept").glob("*.part*"))
    with Mount(store, options(cache)) as mount:
        assert read(mount) == want


def test_beforehand_waits_for_what_a_mount_has_begun(settled, cache):
    store = settled / "large.h5"
    with contextlib.ExitStack() as stack:
        with begun(store, cache) as want:
            keeper = subprocess.Popen([NPYFS, "keep", "-o", f"cache_dir={cache}", store, "a.npy"], stderr=subprocess.PIPE, text=True)
            stack.callback(keeper.kill)
            with pytest.raises(subprocess.TimeoutExpired):
                keeper.wait(2)
        assert "kept 1 array" in keeper.communicate(timeout=60)[1]
    assert keeper.returncode == 0 and copies(cache)[0].read_bytes() == want


def test_small_pieces_cost_whole_chunks(store, cache):
    want = truth(store)
    with Mount(store, options(cache)) as mount:
        with open(mount / "a.npy", "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            for at in range(0, len(want), 48 << 10):
                assert os.pread(file.fileno(), 100, at) == want[at:][:100]
        wait_made(mount)
        assert copies(cache)[0].read_bytes() == want


def wait_idle(mount):
    until(lambda: kept(mount)["waiting"] == 0, "the jobs")
    time.sleep(0.5)


@pytest.mark.parametrize("tags", [True, False])
def test_stores_elsewhere_are_kept_by_default(settled, cache, tags):
    want = {name: truth(settled / "www/store.h5", name) for name in ("a", "b", "plain")}
    with Site(settled / "www", tags=tags) as site:
        more = f"cache_dir={cache},check=0"
        with Mount(site.url("store.h5"), more) as mount:
            assert mount.status()["kept"]["limit"] == 4 << 30
            for name in ("a", "plain"):
                assert read(mount, name) == want[name]
            wait_made(mount, 2)
            # Of this one not all was fetched, and nothing is for a copy.
            with open(mount / "b.npy", "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
                file.seek(4096)
                for _ in range(3):
                    half = len(want["b"]) // 2
                    assert os.pread(file.fileno(), half, 4096) == want["b"][4096:][:half]
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            wait_idle(mount)
            assert kept(mount)["made"] == 2
        with Mount(site.url("store.h5"), more) as mount:
            asked = len(site.asked)
            for name in ("a", "plain"):
                assert read(mount, name) == want[name]
            assert kept(mount)["served"] >= 2 and mount.status()["cache"]["decoded_bytes"] == 0
            assert not [request for request in site.asked[asked:] if request[0] == "GET" and request[2] not in (None, "bytes=0-0")]
        with Mount(site.url("store.h5"), more + ",keep=0") as mount:
            assert mount.status()["kept"] is None
            assert read(mount, "a") == want["a"]
        with Mount(site.url("store.h5"), more + ",disk_cache=0") as mount:
            assert mount.status()["kept"] is None


def test_nothing_is_kept_of_which_the_server_tells_no_version(settled, cache):
    """Another object of the same size would be taken for it."""
    with Site(settled / "www", tags=False, times=False) as site:
        for _ in range(2):
            with Mount(site.url("store.h5"), f"cache_dir={cache}") as mount:
                for _ in range(2):
                    assert read(mount, "a") == truth(settled / "www/store.h5", "a")
                wait_idle(mount)
                assert kept(mount)["made"] == 0 and kept(mount)["served"] == 0
    assert not list(cache.glob("kept/*.npy"))


def test_a_stacked_column_of_hangar(tmp_path, cache):
    told = hangar.script("""
path = sys.argv[1]
repo = repository(path)
with contextlib.redirect_stdout(io.StringIO()):
    co = repo.checkout(write=True)
    column = co.add_ndarray_column("digit", prototype=np.zeros((32, 32), "i4"))
    for number in range(300):
        column[number] = np.arange(1024, dtype="i4").reshape(32, 32) * number
    co.commit("digits")
    co.close()
print(json.dumps("made"))
""", tmp_path / "repo")
    assert told == "made"
    want = np_save(np.stack([np.arange(1024, dtype="i4").reshape(32, 32) * number for number in range(300)]))
    with Mount(tmp_path / "repo", options(cache)) as mount:
        name = "branches/master/digit"
        assert read(mount, name) == want
        wait_made(mount)
        assert copies(cache)[0].read_bytes() == want
        assert read(mount, name) == want and served(mount) > 0
    with Mount(tmp_path / "repo", options(cache)) as mount:
        assert read(mount, name) == want and kept(mount)["served"] > 0
