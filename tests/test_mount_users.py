"""Several users on one machine: who may mount, who may look, who may unmount, and what each is told. Two users that are not root, without
and with `user_allow_other`. Judges: the kernel, fusermount3, mount(8) and umount(8) as those users run them."""

import os

import h5py
import numpy as np
import pytest

from support.host import ANN, BOB, Host
from support.mount import until
from support.process import one_line
from support.truth import np_save

# People by name, as `uid=` and messages have them.
PASSWD = "root:x:0:0::/root:/bin/sh\nann:x:2001:2001::/nonexistent:/bin/sh\nbob:x:2002:2002::/nonexistent:/bin/sh\n"


def machine(allow_other):
    fstab = "FOLDER/store.h5 FOLDER/mnt npyfs ro,noauto,user 0 0\n"
    return Host(files={"/etc/passwd": PASSWD, "/etc/fuse.conf": "user_allow_other\n" if allow_other else "", "/etc/fstab": fstab})


@pytest.fixture(scope="module", params=[False, True], ids=["", "user_allow_other"])
def host(request):
    if os.geteuid() != 0:
        pytest.skip("needs root: other users cannot be tried by a normal user")
    with machine(request.param) as host:
        host.allow_other = request.param
        with h5py.File(host.folder / "store.h5", "w") as file:
            file["x"] = np.arange(10.0)
        with h5py.File(host.folder / "private.h5", "w") as file:
            file["x"] = np.arange(10.0)
        (host.folder / "private.h5").chmod(0o600)
        os.chown(host.folder / "private.h5", ANN, ANN)
        host.store = host.folder / "store.h5"
        yield host


@pytest.fixture(autouse=True)
def point(host):
    """A mount point of Ann's."""
    os.chown(host.point, ANN, ANN)
    yield host.point
    while host.mounted():
        host("umount", "-il", host.point)
    until(lambda: not host.daemons(), "the end of the daemons")


def test_mine_is_mine_alone(host, point):
    """Others, root among them, see that something is mounted, and cannot look. Nobody but root can unmount it."""
    host("npyfs", "mount", host.store, point, user=ANN)
    assert host.read("x.npy", user=ANN) == np_save(np.arange(10.0))
    for who in (BOB, None):
        assert "Permission denied" in host("ls", point, user=who, code=2).stderr
        refused = host("npyfs", "mount", host.store, point, user=who, code=32)
        assert "already mounted by npyfs, by ann" in one_line(refused.stderr)
    refused = host("npyfs", "umount", point, user=BOB, code=32)
    assert "is a mount of ann: only ann and root can unmount it" in one_line(refused.stderr)
    assert host.mounted()
    host("npyfs", "umount", point)
    assert not host.mounted()
    host("npyfs", "mount", host.store, point, user=ANN)
    host("npyfs", "umount", point, user=ANN)
    assert not host.mounted()


def test_roots_is_not_to_be_unmounted_by_others(host, point):
    host("npyfs", "mount", "-o", "allow_other", host.store, point)
    assert host.read("x.npy", user=BOB) == np_save(np.arange(10.0))
    for flags in ([], ["-l"]):
        refused = host("npyfs", "umount", *flags, point, user=BOB, code=32)
        assert "is a mount of root: only root can unmount it" in one_line(refused.stderr)
    assert host.mounted()
    host("npyfs", "umount", point)


def test_not_mounted_is_another_answer(host, point):
    refused = host("npyfs", "umount", point, user=BOB, code=32)
    assert "is not mounted" in one_line(refused.stderr)


def test_allow_other(host, point):
    """Needs a line in /etc/fuse.conf. Then the permissions of the store hold for everybody."""
    code = 0 if host.allow_other else 32
    done = host("npyfs", "mount", "-o", "allow_other", host.store, point, user=ANN, code=code)
    if not host.allow_other:
        assert "user_allow_other" in one_line(done.stderr) and not host.mounted()
        return
    for who in (ANN, BOB, None):
        assert host.read("x.npy", user=who) == np_save(np.arange(10.0))
    host("npyfs", "umount", point, user=BOB, code=32)
    host("npyfs", "umount", point, user=ANN)
    host("npyfs", "mount", "-o", "allow_other", host.folder / "private.h5", point, user=ANN)
    assert host.read("x.npy", user=ANN) == np_save(np.arange(10.0))
    for command in (["ls", point], ["cat", point / "x.npy"]):
        assert "Permission denied" in host(*command, user=BOB, code=None).stderr
    host("npyfs", "umount", point, user=ANN)


def test_a_store_that_is_not_mine(host, point):
    os.chown(point, BOB, BOB)
    refused = host("npyfs", "mount", host.folder / "private.h5", point, user=BOB, code=2)
    assert "Permission denied" in one_line(refused.stderr)


def test_a_mount_point_that_is_not_mine(host, point):
    refused = host("npyfs", "mount", host.store, point, user=BOB, code=32)
    line = one_line(refused.stderr)
    assert str(point) in line and not host.mounted()


def test_users_mount_by_fstab(host, point):
    """`user`: whoever mounted may unmount, and root."""
    host("mount", point, user=ANN)
    assert host.mounted()[:2] == ("fuse.npyfs", str(host.store)) and f"user_id={ANN}" in host.mounted()[2]
    assert host.read("x.npy", user=ANN) == np_save(np.arange(10.0))
    assert host("umount", point, user=BOB, code=None).returncode != 0 and host.mounted()
    host("umount", point, user=ANN)
    assert not host.mounted()


def test_owners_by_name(host, point):
    host("npyfs", "mount", "-o", "allow_other,uid=bob,umask=077", host.store, point)
    assert host("stat", "-c", "%U", point / "x.npy", user=BOB).stdout == "bob\n"
    assert "Permission denied" in host("cat", point / "x.npy", user=ANN, code=1).stderr
    host("npyfs", "umount", point)


def test_the_mount_tells_nobody_of_what_is_denied(host, point):
    """Log, status and reports of a mount for all users: Bob learns nothing of a file of Ann's that he may not read."""
    folder = host.folder / "both"
    folder.mkdir(exist_ok=True)
    for name, mode in (("open.h5", 0o644), ("secret.h5", 0o600)):
        with h5py.File(folder / name, "w") as file:
            file["codename"] = np.arange(3.0)
            file["codename"].dims[0].label = "t"
            file.attrs["purpose"] = "hidden"
        (folder / name).chmod(mode)
        os.chown(folder / name, ANN, ANN)
    host("npyfs", "mount", "-o", "allow_other,join=t", folder, point)
    try:
        denied = ["errors.log", "errors.jsonl", "status.json", "info/secret.h5.json", "info/secret.h5/codename.npy.json"]
        shared = ["info/open.h5.json", "info/open.h5/codename.npy.json", "info.json"]
        for name in denied:
            assert host("cat", f"{point}/.npyfs/{name}", user=BOB, code=1).stderr.count("Permission denied") == 1, name
            host("cat", f"{point}/.npyfs/{name}")
        for name in shared:
            told = host("cat", f"{point}/.npyfs/{name}", user=BOB).stdout
            assert told.startswith("{") and (name == "info.json" or "codename" in told or "hidden" in told), told
        assert "hidden" in host("cat", f"{point}/.npyfs/info/secret.h5.json", user=ANN).stdout
        # The joined array is made of both files.
        assert "Permission denied" in host("cat", f"{point}/.npyfs/zarr/codename/.zarray", user=BOB, code=1).stderr
        assert '"shape"' in host("cat", f"{point}/.npyfs/zarr/codename/.zarray", user=ANN).stdout
        for name in ("errors.log", "errors.jsonl", "status.json"):
            stat = host("stat", "-c", "%a %u", f"{point}/.npyfs/{name}").stdout.split()
            assert stat == ["600", "0"], (name, stat)
    finally:
        host("npyfs", "umount", point)
