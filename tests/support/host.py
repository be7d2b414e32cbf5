"""A machine on which npyfs is installed, as far as programs that mount see one: mount and process namespaces of their own.

What is installed lies in front of the directories of system programs, and files of /etc under others, only there. Nothing is
left behind: when the `with` block ends, or its time, every process of the namespaces is killed, and with the last of them its
mounts are gone."""

import os
import shutil

from .namespaces import Namespaces
from .process import NPYFS, run

# Two users that no file of the machine needs to know.
ANN, BOB = 2001, 2002


class Host(Namespaces):
    """`with Host() as host: host("mount", "-t", "npyfs", store, host.point)`; needs root.

    `links` are the names npyfs is installed under in the directory of system programs, `files` {path: text} what stands in the
    place of these files, which exist; what is written below the directories `writable` is not on the machine. `folder` is
    everybody's to enter."""

    kinds = (*Namespaces.kinds, "--mount-proc")
    name = "host"

    def __init__(self, links=("mount.npyfs", "umount.fuse.npyfs"), files=(), writable=(), limit=600):
        super().__init__(limit)
        self.links, self.files, self.writable = links, dict(files), writable

    def prepare(self):
        self.point = self.folder / "mnt"
        self.point.mkdir()
        installed = self.folder / "installed"
        installed.mkdir()
        try:
            os.link(NPYFS, installed / "npyfs")
        except OSError:
            shutil.copy(NPYFS, installed / "npyfs")
        for link in self.links:
            (installed / link).symlink_to("npyfs")
        device = self.folder / "dev"
        device.mkdir()
        # Everybody may open it, as udev has it.
        lines = [f"mount -t tmpfs tmpfs {device}", f"mknod -m 666 {device}/fuse c 10 229", f"mount --bind {device}/fuse /dev/fuse",
                 f"chmod 755 {device}"]
        for number, there in enumerate(self.writable):
            mine = f"{device}/writable{number}"
            lines += [f"mkdir -p {mine}/new {mine}/work",
                      f"mount -t overlay -o lowerdir={there},upperdir={mine}/new,workdir={mine}/work overlay {there}"]
        for there in (os.path.realpath("/sbin"), "/usr/local/bin") if self.links else ():
            lines.append(f"mount -t overlay -o lowerdir={installed}:{there} overlay {there}")
        for number, (path, text) in enumerate(self.files.items()):
            mine = self.folder / f"file{number}"
            mine.write_text(text.replace("FOLDER", str(self.folder)))
            lines.append(f"mount --bind {mine} {path}")
        return lines

    def within(self, *command, user=None):
        """The command line that runs `command` on this machine."""
        enter = ["nsenter", f"--target={self.init}", "--mount", "--pid"]
        who = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"] if user else []
        return [*enter, *who, *command]

    def __call__(self, *command, user=None, code=0, **keywords):
        """Runs `command`; checks its exit code unless `code` is None."""
        done = run(self.within(*command, user=user), **{"timeout": 60, **keywords})
        assert code is None or done.returncode == code, f"{command}: {done}"
        return done

    def shell(self, text, **keywords):
        return self("sh", "-ec", text, **keywords)

    def install(self, path, name, mode=0o755):
        """Puts a file where everybody can run it; returns its path."""
        copy = self.folder / name
        shutil.copy(path, copy)
        copy.chmod(mode)
        return copy

    def mounted(self, point=None):
        """(type, source, options) of what is mounted, None where nothing is."""
        found = self("findmnt", "--noheadings", "--raw", "--output", "FSTYPE,SOURCE,OPTIONS", "--mountpoint", point or self.point, code=None).stdout
        return tuple(found.split()) or None

    def files_in(self, point=None, **keywords):
        return sorted(self("ls", point or self.point, **keywords).stdout.split())

    def read(self, name, point=None, **keywords):
        return self("cat", (point or self.point) / name, text=False, **keywords).stdout

    def daemons(self):
        """The npyfs processes of this machine."""
        listed = self("ps", "-e", "-o", "pid=,stat=,args=").stdout.splitlines()
        return [line for line in listed if "npyfs mount" in line and line.split()[1][0] != "Z"]

    def write_fstab(self, *lines):
        fstab = self.folder / "fstab"
        fstab.write_text("".join(f"{line} 0 0\n" for line in lines))
        return fstab

