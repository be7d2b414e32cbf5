"""What goes wrong around a command: arguments in the wrong order, a store that vanishes, no home or one that cannot be written, no
terminal, closed streams, readers that go away. One clear line, and the documented exit code; nothing panics. Judge: the exit codes
of docs/reading.md and the kernel's errno."""

import errno
import os
import subprocess

import h5py
import numpy as np
import pytest

from support.host import ANN, Host
from support.mount import Mount, clear, make_point, mounted
from support.process import NPYFS, npyfs, one_line, run
from support.truth import np_save


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "stores"
    npyfs("demo", folder, check=True)
    return folder


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "small.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(10.0)
    return path


@pytest.mark.parametrize("arguments, code, words", [
    (["mount", "POINT", "STORE"], 32, "the order is STORE MOUNTPOINT"),
    (["mount", "STORE", "STORE"], 32, "is not a directory"),
    (["mount", "STORE"], 1, "MOUNTPOINT"),
    (["mount", "STORE", "POINT", "more"], 1, "more"),
    (["mount", "-o", "checkout=a", "--checkout", "b", "STORE", "POINT"], 1, "different things"),
    (["mount", "-o", "checkout=", "STORE", "POINT"], 1, "checkout="),
    (["mount", "-o", "checkout=a/b", "STORE", "POINT"], 2, "a/b"),
    (["mount", "--checkout", "", "STORE", "POINT"], 2, "name"),
    (["umount", "STORE"], 32, "is not mounted"),
    (["umount"], 1, "MOUNTPOINT"),
    (["ls", "x.npy", "STORE"], 2, "x.npy"),
    (["cat", "x.npy", "STORE"], 2, "x.npy"),
    (["info", "x.npy", "STORE"], 2, "x.npy"),
    (["checkout", "ls", "POINT/nothing"], 2, "nothing"),
    (["checkout", "sync", "POINT"], 3, "is not mounted"),
    (["checkout", "sync", "POINT/nothing"], 3, "nothing"),
    (["mount", "-o", "at=1,checkout=a", "STORE", "POINT"], 1, "exclude each other"),
    (["mount", "-o", "ro,at=12ab", "STORE", "POINT"], 2, "nothing was ever committed"),
    (["verify"], 1, "STORE"),
    (["mount", "-o", "ro,checkout=never", "STORE", "POINT"], 2, "no checkout never"),
    (["checkout", "diff", "STORE", "never"], 3, "no checkout never"),
    (["log", "POINT"], 32, "is not mounted"),
    (["cat", "STORE", "never.npy"], 3, "never.npy"),
])
def test_arguments(store, tmp_path, arguments, code, words):
    point = tmp_path / "POINT"
    point.mkdir()
    real = [argument.replace("STORE", str(store)).replace("POINT", str(point)) if argument != "MOUNTPOINT" else argument for argument in arguments]
    done = npyfs(*real, timeout=30)
    assert (done.returncode, done.stdout) == (code, "") and words in one_line(done.stderr), done
    assert not mounted(point)


def test_a_store_that_vanishes(store, tmp_path):
    with Mount(store) as mount:
        with open(mount / "x.npy", "rb") as opened:
            opened.read(6)
            os.unlink(store)
            with pytest.raises(OSError) as problem:
                (mount / "x.npy").read_bytes()
            assert problem.value.errno in (errno.ENOENT, errno.ESTALE, errno.EIO), problem.value
            try:
                assert opened.read(2) == np_save(np.arange(10.0))[6:8]
            except OSError as late:
                assert late.errno == errno.ESTALE
        assert mount.alive()
        done = npyfs("ls", store)
        assert done.returncode == 2 and store.name in one_line(done.stderr)
    assert not mounted(mount.path)


def test_a_mount_point_that_vanishes(store, tmp_path):
    """Its parent is gone while it is mounted: detached, not stuck."""
    (tmp_path / "above/point").mkdir(parents=True)
    with Mount(store, point=tmp_path / "above/point") as mount:
        (tmp_path / "above").rename(tmp_path / "moved")
        done = npyfs("umount", tmp_path / "above/point")
        assert done.returncode == 32
        one_line(done.stderr)
        npyfs("umount", tmp_path / "moved/point", check=True)
        mount.expect_dead = True
    clear(tmp_path / "moved/point")


# Homes

# The list of checkouts is empty here, and says nothing.
COMMANDS = [["ls", "-lR", "digits"], ["info", "plain.h5", "pi.npy"], ["show", "plain.h5", "images/stack.npy"], ["cat", "plain.h5", "pi.npy"],
            ["verify", "digits"], ["checkout", "ls", "plain.h5"], ["checkout", "status", "digits"]]


@pytest.fixture(scope="module")
def host():
    if os.geteuid() != 0:
        pytest.skip("needs root: a disk that is full or read-only is made")
    with Host() as host:
        yield host


@pytest.fixture(params=["none", "missing", "empty", "relative", "not a directory", "read-only", "full", "another's"])
def home(request, host):
    """The words that make the environment of a command."""
    place = host.folder / "home"
    host.shell(f"umount {place} 2>/dev/null || true; rm -rf {place}; mkdir {place}")
    match request.param:
        case "none":
            return ["env", "-u", "HOME", "-u", "XDG_CACHE_HOME", "-u", "XDG_STATE_HOME"]
        case "missing":
            return ["env", f"HOME={place}/missing"]
        case "empty":
            return ["env", "HOME=", "XDG_CACHE_HOME=", "XDG_STATE_HOME="]
        case "relative":
            return ["env", "HOME=.", "XDG_CACHE_HOME=..", "XDG_STATE_HOME=here"]
        case "not a directory":
            return ["env", "HOME=/dev/null"]
        case "read-only":
            host("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", place)
        case "full":
            host.shell(f"mount -t tmpfs -o size=64k tmpfs {place}; dd if=/dev/zero of={place}/all bs=4k 2>/dev/null || true; mkdir -p {place}/.cache || true")
        case "another's":
            host("chown", str(ANN), place)
            host("chmod", "777", place)
    return ["env", f"HOME={place}"]


def test_no_command_needs_a_home(host, home, demo):
    """What would be remembered there is not, and nothing else is different."""
    for command in COMMANDS:
        real = [str(demo / word) if (demo / word).exists() else word for word in command]
        done = host(*home, NPYFS, *real, code=None, cwd=demo)
        assert (done.returncode, done.stderr) == (0, ""), done
    for name in ("digits", "plain.h5"):
        done = host(*home, "npyfs", "mount", demo / name, host.point, cwd=demo)
        assert done.stderr == ""
        host("ls", "-lR", host.point)
        done = host(*home, "npyfs", "umount", host.point, cwd=demo)
        assert done.stderr == "" and not host.mounted()
    assert not (demo / "here").exists()


# Streams

@pytest.mark.parametrize("command", [["--help"], ["mount", "--help"], ["--version"], *COMMANDS], ids=" ".join)
def test_closed_streams_and_readers_that_went_away(demo, command):
    def of(stdout, redirect=""):
        return subprocess.run(["sh", "-c", f'exec "$@" {redirect}', "sh", NPYFS, *command], cwd=demo, stdin=subprocess.DEVNULL, stdout=stdout,
                              stderr=subprocess.PIPE, timeout=60)

    reader, writer = os.pipe()
    os.close(reader)
    done = of(writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b""), "nobody reads on: no error"
    with open("/dev/full", "w") as full:
        done = of(full)
        if command[-1] not in ("--help", "--version") and command[:2] != ["checkout", "ls"]:
            assert done.returncode == 3 and b"standard output" in done.stderr and len(done.stderr.splitlines()) == 1
    assert b"panicked" not in done.stderr
    assert of(subprocess.PIPE, ">&-").stderr == b""
    assert of(subprocess.PIPE, ">&- 2>&- <&-").returncode in (0, 3)


def test_no_terminal_and_closed_streams_of_a_mount(store):
    point = make_point()
    try:
        for flags in ("", "<&-", "<&- >&-", "<&- >&- 2>&-"):
            done = run(["setsid", "--wait", "sh", "-c", f'exec "$@" {flags}', "sh", NPYFS, "mount", store, point])
            assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), flags
            assert (point / "x.npy").read_bytes() == np_save(np.arange(10.0))
            npyfs("umount", point, check=True)
        done = run(["sh", "-c", 'exec "$@" 2>&-', "sh", NPYFS, "mount", "/no/such/store", point])
        assert done.returncode == 2
    finally:
        clear(point)
        os.rmdir(point)


@pytest.mark.parametrize("missing", ["fusermount3", "/dev/fuse"])
def test_what_mounting_needs_is_missing(root_only, missing):
    """Said by name, with the package or the command that helps."""
    with Host() as host:
        with h5py.File(host.folder / "small.h5", "w") as file:
            file["x"] = np.arange(3)
        os.chown(host.point, ANN, ANN)
        if missing == "fusermount3":
            for path in {os.path.realpath(path) for path in ("/usr/bin/fusermount3", "/usr/bin/fusermount") if os.path.exists(path)}:
                host("mount", "--bind", "/dev/null", path)
        else:
            host("chmod", "600", "/dev/fuse")
        done = host("npyfs", "mount", host.folder / "small.h5", host.point, user=ANN, code=32)
        assert missing in one_line(done.stderr)
