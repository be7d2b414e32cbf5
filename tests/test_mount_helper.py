"""npyfs as a file system among others: `mount -t`, fstab, `mount -a`, `umount`, with every option that mount(8) has for all of them.
Judges: util-linux's own mount, umount and findmnt, mount.fuse3, and np.save."""

import h5py
import numpy as np
import pytest

from support.host import ANN, Host
from support.mount import until
from support.process import one_line
from support.truth import np_save

GENERIC = """defaults nosuid nodev noexec noatime auto noauto user nouser users nofail _netdev x-systemd.automount
    x-systemd.requires=network.target X-mount.mkdir comment=words nodiratime relatime norelatime strictatime lazytime sync async dirsync dev
    suid exec group owner silent loud iversion mand nomand""".split()


@pytest.fixture(scope="module")
def host(root_only_module):
    with Host() as host:
        with h5py.File(host.folder / "a store.h5", "w") as file:
            file["x"] = np.arange(10.0)
        yield host


@pytest.fixture(scope="module")
def root_only_module():
    import os
    if os.geteuid() != 0:
        pytest.skip("needs root: mount(8) is root's")


@pytest.fixture(autouse=True)
def cleared(host):
    yield
    left = host.mounted()
    host("umount", "-il", host.point, code=None)
    assert not left, f"still mounted: {left}"


def store(host):
    return host.folder / "a store.h5"


def served(host, options="ro"):
    """What must hold of a mount, however it was made."""
    fstype, source, shown = host.mounted()
    assert (fstype, source) == ("fuse.npyfs", f"{host.folder}/a\\x20store.h5"), "findmnt escapes the blank"
    assert {"nosuid", "nodev", "noexec", "noatime", options} <= set(shown.split(","))
    assert host.read("x.npy") == np_save(np.arange(10.0))


def unmount(host):
    host("umount", host.point)
    assert not host.mounted()
    until(lambda: not host.daemons(), "the end of the daemon")


@pytest.mark.parametrize("fstype", ["npyfs", "fuse.npyfs"])
def test_mount_by_type(host, fstype):
    done = host("mount", "-t", fstype, "-o", "ro", store(host), host.point)
    assert (done.stdout, done.stderr) == ("", "")
    served(host)
    unmount(host)


@pytest.mark.parametrize("links", [("npyfs-other",), ("mount.fuse.npyfs",)])
def test_fuse_npyfs_without_a_helper_of_that_name_and_with_one(root_only, links):
    """Without one mount.fuse3 is run, which runs npyfs."""
    with Host(links) as host:
        with h5py.File(store(host), "w") as file:
            file["x"] = np.arange(10.0)
        host("mount", "-t", "fuse.npyfs", "-o", "ro,nofail,_netdev,allow_other,umask=022", store(host), host.point)
        served(host)
        assert host.files_in(user=ANN) == ["x.npy"]
        unmount(host)
        failed = host("mount", "-t", "fuse.npyfs", "-o", "ro", "/no/such/store", host.point, code=32)
        assert "/no/such/store" in one_line(failed.stderr)
        # As people write who know mount.fuse only.
        host("mount", "-t", "fuse", "-o", "ro", f"npyfs#{store(host)}", host.point)
        served(host)
        unmount(host)


@pytest.mark.parametrize("fstype", ["npyfs", "fuse.npyfs"])
def test_all_generic_options_at_once(host, fstype):
    host("mount", "-t", fstype, "-o", ",".join([*GENERIC, "ro"]), store(host), host.point)
    served(host)
    unmount(host)


@pytest.mark.parametrize("option", [*GENERIC, "ro", "rw"])
def test_each_generic_option(host, option):
    assert host("/sbin/mount.npyfs", store(host), host.point, "-f", "-o", option).stderr == ""


def test_fstab(host):
    name = str(store(host)).replace(" ", "\\040")
    fstab = host.write_fstab(f"{name} {host.point} npyfs ro,noauto,nofail,user,_netdev,x-systemd.automount,comment=a,uid=nobody,gid=nogroup")
    host("mount", "-T", fstab, host.point)
    served(host)
    assert host("stat", "-c", "%U %G", host.point / "x.npy").stdout == "nobody nogroup\n"
    unmount(host)
    host("mount", "-a", "-T", fstab)
    assert not host.mounted(), "noauto"
    host("mount", "-T", fstab, name.replace("\\040", " "))
    served(host)
    unmount(host)


@pytest.mark.parametrize("fstype", ["npyfs", "fuse.npyfs"])
def test_mount_all(host, fstype):
    """One entry cannot be mounted, another may fail: the others are mounted, and a second time nothing is left to do."""
    name = str(store(host)).replace(" ", "\\040")
    host("mkdir", "-p", host.folder / "other")
    fstab = host.write_fstab(f"/no/such/store {host.folder}/other {fstype} ro", f"{name} {host.point} {fstype} ro,_netdev,nofail",
                             f"/no/such/thing {host.folder}/other {fstype} ro,nofail")
    done = host("mount", "-a", "-T", fstab, code=64)
    assert [line for line in done.stderr.splitlines() if "/no/such/store" in line and line.startswith("npyfs: ")], done
    served(host)
    again = host("mount", "-a", "-v", "-T", fstab, code=32)
    assert again.stdout.startswith(f"{host.point}") and "already mounted" in again.stdout, again
    assert len(host.daemons()) == 1
    unmount(host)


def test_writable_without_a_checkout_is_read_only_and_says_so(host):
    for flags in ([], ["-o", "rw"], ["-w"]):
        done = host("mount", "-t", "npyfs", *flags, store(host), host.point)
        line = one_line(done.stderr)
        assert "read-only" in line and "checkout=NAME" in line
        served(host)
        unmount(host)
    assert host("mount", "-t", "npyfs", "-r", store(host), host.point).stderr == ""
    served(host)
    unmount(host)


def test_a_checkout_in_fstab(host):
    name = str(store(host)).replace(" ", "\\040")
    fstab = host.write_fstab(f"{name} {host.point} npyfs checkout=work,checkouts={host.folder}/check\\054outs")
    fstab.write_text(fstab.read_text().replace("\\054", "\\,"))  # a comma that fstab leaves alone
    done = host("mount", "-T", fstab, host.point)
    assert done.stderr == ""
    served(host, "rw")
    host("cp", host.point / "x.npy", host.point / "y.npy")
    unmount(host)
    assert (host.folder / "check,outs/a store.h5.checkouts/work").is_dir()
    # Shown, not written, with quotes in place of the backslash.
    host("mount", "-t", "npyfs", "-o", f'ro,checkout=work,checkouts="{host.folder}/check,outs"', store(host), host.point)
    served(host)
    assert host.files_in() == ["x.npy", "y.npy"]
    unmount(host)


@pytest.mark.parametrize("flags, told", [([], False), (["-c"], True), (["-l"], True)])
def test_umount_stores_what_was_written(host, flags, told):
    """umount(8) of an absolute path takes the type for `fuse`, and runs no helper. As systemd runs it, with -c, it does: what is
    not stored is told."""
    name = f"other{len(host.files_in(host.folder))}{''.join(flags)}"
    host("mount", "-t", "npyfs", "-o", f"checkout={name},checkouts={host.folder}/others", store(host), host.point)
    host("cp", host.point / "x.npy", host.point / "z.npy")
    host("sh", "-c", f"echo no array > '{host.point}/half.tmp'")
    done = host("umount", *flags, host.point)
    if told:
        assert "half.tmp" in one_line(done.stderr)
    until(lambda: not host.mounted() and not host.daemons(), "the end of the daemon")
    listed = host("npyfs", "checkout", "diff", "--checkouts", host.folder / "others", store(host), name).stdout
    assert listed.startswith("A z.npy") and len(listed.splitlines()) == 1


def test_exit_codes_and_messages(host):
    """Those of mount(8): 1 is usage, 32 is a mount that failed. One line each."""
    full = host.folder / "full"
    full.mkdir(exist_ok=True)
    (full / "file").touch()
    cases = [
        (["-o", "ro,nonsense", store(host), host.point], 1, "nonsense"),
        (["-o", "uid=no such user", store(host), host.point], 1, "uid=no such user"),
        (["-o", "ro,remount", store(host), host.point], 1, "remount"),
        (["-o", "ro", "/no/such/store", host.point], 32, "/no/such/store"),
        (["-o", "ro", store(host), "/no/such/point"], 32, "/no/such/point"),
        (["-o", "ro", store(host), full], 32, "not empty"),
        (["-o", "ro", host.point, store(host)], 32, "STORE MOUNTPOINT"),
        (["-o", "ro,checkout=never", store(host), host.point], 32, "no checkout never"),
    ]
    for arguments, code, words in cases:
        done = host("mount", "-t", "npyfs", *arguments, code=code)
        assert words in one_line(done.stderr), done
        assert not host.mounted()
    for arguments in ([], [store(host)], [store(host), host.point, "more"], [store(host), host.point, "-q"]):
        one_line(host("/sbin/mount.npyfs", *arguments, code=1).stderr)


def test_flags_of_the_calling_convention(host):
    host("mount", "-f", "-t", "npyfs", "-o", "ro", store(host), host.point)
    assert not host.mounted(), "-f is fake"
    host("mount", "-f", "-t", "npyfs", "-o", "nonsense", store(host), host.point, code=1)
    done = host("mount", "-s", "-n", "-v", "-t", "npyfs", "-o", "ro,nonsense=3", store(host), host.point)
    assert "nonsense" in one_line(done.stderr)
    served(host)
    unmount(host)
    host("/sbin/mount.npyfs", store(host), host.point, "-o", "ro", "-t", "fuse.npyfs", "-nv", "-o", "umask=077")
    served(host)
    assert host("stat", "-c", "%a", host.point / "x.npy").stdout == "600\n"
    unmount(host)


def test_another_mount_namespace(host):
    """`mount -N`: the helper is to go there itself."""
    script = f"""
        unshare --mount --propagation private sleep 100 & other=$!
        until [ "$(readlink /proc/$other/ns/mnt)" != "$(readlink /proc/self/ns/mnt)" ]; do sleep 0.02; done
        mount -N /proc/$other/ns/mnt -t npyfs -o ro '{store(host)}' {host.point}
        ! findmnt {host.point}
        nsenter --target=$other --mount cat {host.point}/x.npy | cmp - {host.folder}/expected
        umount -N /proc/$other/ns/mnt {host.point}
        ! nsenter --target=$other --mount findmnt {host.point}
        kill $other"""
    (host.folder / "expected").write_bytes(np_save(np.arange(10.0)))
    host.shell(script)


@pytest.mark.parametrize("command", [["/sbin/mount.npyfs"], ["/usr/bin/mount", "-t", "npyfs"], ["/usr/bin/mount", "-t", "fuse.npyfs"]])
def test_an_empty_environment_no_terminal_and_closed_streams(host, command):
    """As an init system may call it: no HOME, no PATH, nothing open."""
    words = " ".join(command)
    host.shell(f"cd /; exec env -i setsid {words} '{store(host)}' {host.point} -o ro <&- >&- 2>&-")
    served(host)
    unmount(host)


def test_privileges_dropped_by_mount_fuse(host):
    """mount.fuse3 mounts, and leaves npyfs a descriptor: it needs no right to mount any more."""
    host("mount", "-t", "fuse.npyfs", "-o", "ro,drop_privileges,allow_other", store(host), host.point)
    assert host.mounted()[0] == "fuse.npyfs"
    assert host.read("x.npy") == np_save(np.arange(10.0))
    daemon = host.daemons()[0].split()[0]
    status = host("cat", f"/proc/{daemon}/status").stdout
    assert "CapEff:\t0000000000000000" in status
    unmount(host)


def test_as_another_user_by_mount_fuse(host):
    """setuid=: mount.fuse3 becomes that user before it runs npyfs, which then mounts by fusermount3."""
    point = host.folder / "nobodys"
    host("mkdir", point)
    host("chown", "nobody", point)
    host("mount", "-t", "fuse.npyfs", "-o", "ro,setuid=nobody", store(host), point)
    assert host.read("x.npy", point, user=65534) == np_save(np.arange(10.0))
    assert "user_id=65534" in host.mounted(point)[2]
    host("umount", point)
