"""`npyfs mount STORE /dev/fd/N`: another program opened /dev/fuse and mounted, as where the one that serves may not mount. And what a
service manager is told. Judges: mount(2) and umount(2) called by this test, np.save, and sockets of its own."""

import json
import os
import signal
import socket
import subprocess

import h5py
import numpy as np
import pytest

from support.foreign import Foreign
from support.mount import Mount, clear, make_point, mounted, mounts, until
from support.process import NPYFS, npyfs, one_line, run
from support.truth import np_save

NOTIFY_LIMIT = 30


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "small.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(10.0)
    return path


@pytest.fixture
def daemons():
    started = []
    yield started
    for process in started:
        process.kill()
        process.wait(20)


def test_in_the_background(store, root_only):
    with Foreign() as mount:
        done = mount.serve(store)
        assert (done.returncode, done.stderr) == (0, "")
        mount.let_go()
        assert mounts()[str(mount.path)] == ("fuse.sidecar", "somebody")
        assert (mount.path / "x.npy").read_bytes() == np_save(np.arange(10.0))
        pid = json.loads((mount.path / ".npyfs/status.json").read_bytes())["pid"]
        mount.unmount()
        until(lambda: not os.path.exists(f"/proc/{pid}"), "the end of the daemon")


def test_in_front_until_somebody_unmounts(store, daemons, root_only):
    with Foreign() as mount:
        daemons.append(mount.serve(store, front=True, stderr=subprocess.DEVNULL))
        assert (mount.path / "x.npy").read_bytes() == np_save(np.arange(10.0))
        mount.unmount()
        assert daemons[0].wait(30) == 0


def test_a_signal_stores_what_was_written_and_leaves_the_mount(store, daemons, root_only):
    with Foreign(flags=0) as mount:
        daemons.append(mount.serve("--checkout", "work", store, front=True, stderr=subprocess.DEVNULL))
        (mount.path / "y.npy").write_bytes(np_save(np.arange(3)))
        daemons[0].send_signal(signal.SIGTERM)
        assert daemons[0].wait(30) == 0
        assert mounted(mount.path), "it belongs to who made it"
        mount.let_go()
    with Mount(store, "ro", checkout="work") as own:
        assert (own / "y.npy").read_bytes() == np_save(np.arange(3))


def test_workers_do_not_get_it(store, root_only):
    """A process that has the descriptor keeps the mount alive, and could answer for it."""
    with Foreign() as mount:
        assert mount.serve(store).returncode == 0
        mount.let_go()
        assert (mount.path / "x.npy").read_bytes() == np_save(np.arange(10.0))
        pid = json.loads((mount.path / ".npyfs/status.json").read_bytes())["pid"]
        children = run(["ps", "-o", "pid=", "--ppid", str(pid)], check=True).stdout.split()
        assert children
        for child in children:
            assert "/dev/fuse" not in [os.readlink(f"/proc/{child}/fd/{fd}") for fd in os.listdir(f"/proc/{child}/fd")]
        mount.unmount()


@pytest.mark.parametrize("flags", [[], ["-f"]])
def test_descriptors_that_cannot_be_served(store, tmp_path, flags):
    with open(tmp_path / "other", "w") as other, open("/dev/fuse", "r+b", buffering=0) as unmounted:
        for number, words in {9999: "is not open", other.fileno(): "is not one of /dev/fuse", unmounted.fileno(): "nothing is mounted"}.items():
            inherited = [number] if number != 9999 else []
            done = run([NPYFS, "mount", *flags, store, f"/dev/fd/{number}"], pass_fds=inherited)
            assert done.returncode == 32
            assert words in one_line(done.stderr) and f"/dev/fd/{number}" in done.stderr


# sd_notify

def listener(kind, tmp_path):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.settimeout(NOTIFY_LIMIT)
    name = f"@npyfs-test-{os.getpid()}" if kind == "abstract" else str(tmp_path / "notify")
    sock.bind(name.replace("@", "\0") if kind == "abstract" else name)
    return sock, name


@pytest.mark.parametrize("kind", ["path", "abstract"])
@pytest.mark.parametrize("end", ["signal", "unmount"])
def test_the_service_manager_is_told(store, tmp_path, daemons, kind, end):
    point = make_point()
    sock, name = listener(kind, tmp_path)
    try:
        daemons.append(subprocess.Popen([NPYFS, "mount", "--foreground", store, point], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        env={**os.environ, "NOTIFY_SOCKET": name}))
        first = sock.recv(4096).decode().splitlines()
        assert first[0] == "READY=1" and first[1].startswith("STATUS=") and str(store) in first[1]
        assert (point / "x.npy").read_bytes() == np_save(np.arange(10.0))
        if end == "signal":
            daemons[0].send_signal(signal.SIGTERM)
        else:
            npyfs("umount", point, check=True)
        assert sock.recv(4096) == b"STOPPING=1"
        assert daemons[0].wait(30) == 0
    finally:
        sock.close()
        clear(point)
        os.rmdir(point)


def test_what_returns_tells_nobody(store, tmp_path):
    """The daemon in the background is no service's."""
    sock, name = listener("path", tmp_path)
    sock.setblocking(False)
    with Mount(store, env={"NOTIFY_SOCKET": name}) as mount:
        assert (mount / "x.npy").exists()
    with pytest.raises(BlockingIOError):
        sock.recv(4096)
    sock.close()


def test_a_manager_that_is_gone_is_said_and_no_failure(store, tmp_path, daemons):
    point = make_point()
    try:
        with open(tmp_path / "log", "w") as log:
            daemons.append(subprocess.Popen([NPYFS, "mount", "-f", store, point], stdin=subprocess.DEVNULL, stderr=log,
                                            env={**os.environ, "NOTIFY_SOCKET": "/no/such/socket"}))
        until(lambda: "/no/such/socket" in (tmp_path / "log").read_text(), "the line about the socket")
        assert (point / "x.npy").read_bytes() == np_save(np.arange(10.0))
        npyfs("umount", point, check=True)
        assert daemons[0].wait(30) == 0
    finally:
        clear(point)
        os.rmdir(point)
