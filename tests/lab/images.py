"""Disks of Debian for the laboratory: a root file system from Debian's archive, with the kernel and the initial RAM disk beside it.

Each is made once and stays in the cache; a machine writes into a layer over it. No loop device and no partition is needed: mke2fs fills
the file system. The root directory of another architecture is configured by qemu-user, for which the kernel of this machine must know
binfmt_misc."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

CACHE = Path(os.environ.get("NPYFS_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "npyfs") / "lab"
MIRRORS = os.environ.get("NPYFS_DEBIAN_MIRROR", "http://deb.debian.org/debian http://archive.debian.org/debian").split()

PACKAGES = ["systemd-sysv", "udev", "kmod", "fuse3", "python3-numpy", "initramfs-tools", "procps", "iproute2", "zstd",
            "e2fsprogs", "xfsprogs", "btrfs-progs", "nfs-kernel-server", "fdisk"]
KERNELS = {"amd64": "linux-image-cloud-amd64", "arm64": "linux-image-cloud-arm64"}

# Starts what runs inside, and nothing that has nothing to do with it.
SERVICE = """\
[Unit]
After=local-fs.target systemd-tmpfiles-setup.service
[Service]
ExecStart=/bin/sh -c 'mkdir -p /lab && mount -o ro LABEL=lab-data /lab && exec python3 -u /lab/inside'
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
[Install]
WantedBy=multi-user.target
"""
MASKED = ["apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer",
          "logrotate.timer", "man-db.timer", "nfs-server.service", "nfs-blkmap.service", "rpcbind.service", "rpcbind.socket",
          "rpc-statd-notify.service", "systemd-timesyncd.service", "getty@tty1.service", "serial-getty@ttyS0.service",
          "serial-getty@ttyAMA0.service", "systemd-networkd-wait-online.service", "apparmor.service"]
# The initial RAM disk has these alone, so that it is small: a machine may have 256 MiB of memory.
MODULES = ["virtio_pci", "virtio_blk", "virtio_mmio", "ext4"]


def run(*command, **keywords):
    return subprocess.run(list(map(str, command)), check=True, stdin=subprocess.DEVNULL, **keywords)


class Image:
    """`disk`, `kernel` and `initrd` of a release and an architecture, with a package `more` than others have."""

    def __init__(self, release, machine, more=""):
        self.release, self.machine, self.name = release, machine, f"{release}{more and '+'}{more}-{machine}"
        self.packages = [KERNELS[machine], *PACKAGES, *([more] if more else [])]
        text = json.dumps([self.packages, SERVICE, MASKED, MODULES])
        self.folder = CACHE / f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        self.disk, self.kernel, self.initrd = (self.folder / name for name in ("disk", "kernel", "initrd"))

    def make(self, say):
        """Makes it if it is not there; takes minutes."""
        CACHE.mkdir(parents=True, exist_ok=True)
        name = self.name
        with (CACHE / f".lock.{name}").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.folder.is_dir():
                return
            for left in CACHE.glob(f"making.{name}.*"):
                shutil.rmtree(left)
            making = Path(tempfile.mkdtemp(prefix=f"making.{name}.", dir=CACHE))
            try:
                with emulated(self.machine):
                    self.bootstrap(making, say)
                for old in CACHE.glob(f"{name}-*"):
                    shutil.rmtree(old)
                making.rename(self.folder)
            finally:
                shutil.rmtree(making, ignore_errors=True)

    def bootstrap(self, making, say):
        root, log = making / "root", CACHE / f"{self.name}.log"
        say(f"making a disk of {self.release} for {self.machine}: some minutes; {log} has its log")
        with log.open("w") as output:
            for mirror in MIRRORS:
                shutil.rmtree(root, ignore_errors=True)
                # debootstrap would work out in the emulator what is to be installed, which takes hours.
                command = ["mmdebstrap", "--mode=root", "--variant=minbase", f"--architectures={self.machine}", f"--include={','.join(self.packages)}"]
                # What it mounts is gone with its namespace.
                done = subprocess.run(["unshare", "--mount", "--propagation", "private", *command, self.release, root, mirror],
                                      stdin=subprocess.DEVNULL, stdout=output, stderr=output)
                if done.returncode == 0:
                    break
            else:
                raise RuntimeError(f"no mirror served {self.release}; see {log}")
            inside = ["unshare", "--mount", "--propagation", "private", "chroot", root, "/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C",
                      "DEBIAN_FRONTEND=noninteractive"]
            for path, text in {"etc/fstab": "LABEL=lab-root / ext4 defaults 0 1\n", "etc/hostname": "lab\n", "etc/hosts": "127.0.0.1 localhost lab\n",
                               "etc/systemd/system/lab.service": SERVICE, "etc/initramfs-tools/conf.d/lab": "MODULES=list\n",
                               "etc/initramfs-tools/modules": "\n".join(MODULES) + "\n"}.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            units = root / "etc/systemd/system"
            (units / "multi-user.target.wants").mkdir(exist_ok=True)
            (units / "multi-user.target.wants/lab.service").symlink_to("/etc/systemd/system/lab.service")
            for unit in MASKED:
                (units / unit).unlink(missing_ok=True)
                (units / unit).symlink_to("/dev/null")
            run(*inside, "update-initramfs", "-u", "-k", "all", stdout=output, stderr=output)
            run(*inside, "useradd", "--create-home", "--uid", "2001", "--shell", "/bin/bash", "ann", stdout=output, stderr=output)
            for name in ("vmlinuz", "initrd.img"):
                found = sorted((root / "boot").glob(f"{name}-*"))
                shutil.copy(found[-1], making / {"vmlinuz": "kernel", "initrd.img": "initrd"}[name])
            for path in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man"):
                shutil.rmtree(root / path, ignore_errors=True)
            run("mke2fs", "-q", "-t", "ext4", "-L", "lab-root", "-d", root, making / "disk", "1800M", stdout=output, stderr=output)
        shutil.rmtree(root)


@contextmanager
def emulated(machine):
    """Programs of the architecture can be run as long as it is held."""
    here = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine)
    books, name = Path("/proc/sys/fs/binfmt_misc"), {"arm64": "qemu-aarch64"}.get(machine)
    if machine == here or (books / name).exists():
        yield
        return
    if not (books / "register").exists():
        run("mount", "-t", "binfmt_misc", "binfmt_misc", books)
    head = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
    mask = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
    # F: the interpreter is opened now, it need not be in the root directory.
    (books / "register").write_text(f":{name}:M::{head}:{mask}:/usr/bin/{name}-static:F")
    try:
        yield
    finally:
        (books / name).write_text("-1")
