"""A freshly installed Debian 11, for tests that install npyfs: mount, process and network namespaces of its own, over a root
directory that is made once and that nobody writes into.

Nothing is left behind: when the `with` block ends, or its time, every process of the namespaces is killed, and with the last
of them its mounts are gone, and what was written with them."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from .namespaces import Namespaces
from .process import CACHE, run

SCRIPTS = Path(__file__).resolve().parents[2] / "mountscripts"

# What the machine has of Debian's packages; the first is what npyfs asks for.
PACKAGES = ("fuse3", "python3-venv", "man-db", "bash-completion")
# For the Python of Debian 11.
NUMPY = "numpy==2.0.2"
ANN = 2001


def root_directory():
    """The root directory, made if it is not there."""
    done = run([SCRIPTS / "debian-root", "clean", *PACKAGES], timeout=600)
    if done.returncode:
        pytest.skip(f"no root directory of Debian 11 can be made, npyfs is NOT installed in one: {done.stderr.strip()}")
    return Path(done.stdout.strip())


def wheels():
    """A directory with NumPy for Debian's Python."""
    folder = CACHE / "debian" / f"wheels-{NUMPY}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as making:
            machine = os.uname().machine
            done = run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:", "--python-version=3.9",
                        "--implementation=cp", "--abi=cp39", f"--platform=manylinux2014_{machine}", f"--dest={making}/wheels", NUMPY], timeout=200)
            if done.returncode:
                pytest.skip(f"{NUMPY} cannot be downloaded, npyfs is NOT installed beside it: {done.stderr.strip()}")
            Path(making).joinpath("wheels").rename(folder)
    return folder


class Debian(Namespaces):
    """`with Debian(packages=folder) as debian: debian("dpkg", "-i", "/packages/npyfs.deb")`; needs root.

    The directories `shown` are there to be read, under / and their names. `ann` is a user with the home /home/ann."""

    kinds = (*Namespaces.kinds, "--net")
    name = "debian"

    def __init__(self, limit=600, **shown):
        super().__init__(limit)
        self.shown = shown

    def prepare(self):
        below = root_directory()
        self.root = self.folder / "root"
        self.root.mkdir()
        layer = self.folder / "layer"
        layer.mkdir()
        root = self.root
        lines = [f"mount -t tmpfs tmpfs {layer}", f"mkdir {layer}/new {layer}/work",
                 f"mount -t overlay -o lowerdir={below},upperdir={layer}/new,workdir={layer}/work overlay {root}",
                 f"mount -t proc proc {root}/proc", f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp", f"mount -t tmpfs -o mode=755 tmpfs {root}/dev",
                 f"ln -s /proc/self/fd {root}/dev/fd", f"mkdir -m 1777 {root}/dev/shm"]
        devices = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0), "fuse": (10, 229)}
        lines += [f"mknod -m 666 {root}/dev/{name} c {major} {minor}" for name, (major, minor) in devices.items()]
        for name, folder in self.shown.items():
            lines += [f"mkdir {root}/{name}", f"mount --bind {folder} {root}/{name}", f"mount -o remount,bind,ro {root}/{name}"]
        # As installers and containers have it; fusermount3 asks for it.
        lines += [f"ln -sf ../proc/self/mounts {root}/etc/mtab"]
        lines += [f"chroot {root} useradd --create-home --uid {ANN} --shell /bin/bash ann"]
        return lines

    def __call__(self, *command, user="root", code=0, cwd=None, path=(), **keywords):
        """Runs `command`; checks its exit code unless `code` is None. `path` comes first in PATH."""
        who = [f"--userspec={ANN}:{ANN}"] if user == "ann" else []
        home = "/home/ann" if user == "ann" else "/root"
        bins = [*path, "/usr/local/bin", "/usr/bin", "/bin", *(["/usr/local/sbin", "/usr/sbin", "/sbin"] if user == "root" else [])]
        environment = ["env", "-i", "-C", cwd or home, f"HOME={home}", f"USER={user}", f"PATH={':'.join(map(str, bins))}", "LC_ALL=C.UTF-8", "TZ=UTC",
                       "DEBIAN_FRONTEND=noninteractive"]
        enter = ["nsenter", f"--target={self.init}", "--mount", "--net", "--pid", "chroot", *who, self.root]
        done = run([*enter, *environment, *command], **{"timeout": 100, **keywords})
        assert code is None or done.returncode == code, f"{command}: {done}"
        return done

    def shell(self, text, **keywords):
        return self("bash", "-ec", text, **keywords)

    def files(self):
        """Everything that is there, but for the books of package managers and of the manual."""
        listed = self.shell("find / -xdev -path /tmp -prune -o -printf '%y %m %U %p -> %l\\n'").stdout.splitlines()
        books = ("/var/lib/dpkg", "/var/lib/apt", "/var/cache/", "/var/log/", "/home/ann/", "/root/")
        return {line for line in listed if not line.split(" ", 3)[3].startswith(books)}

    def mounts(self):
        """[mount point] of what npyfs has mounted."""
        return self.shell("findmnt --noheadings --raw --types fuse.npyfs --output TARGET || :").stdout.split()
