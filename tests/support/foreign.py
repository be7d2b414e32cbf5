"""A mount that another program makes, and that npyfs serves by its descriptor."""

import ctypes
import os
import subprocess

from .mount import clear, make_point
from .process import NPYFS, run

RDONLY = 1


class Foreign:
    """A mount that this program makes by system call, and that is served by whoever has the descriptor."""

    def __init__(self, flags=RDONLY, options=""):
        self.flags, self.options = flags, options

    def __enter__(self):
        self.path = make_point()
        self.descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_NONBLOCK)
        os.set_inheritable(self.descriptor, True)
        libc = ctypes.CDLL(None, use_errno=True)
        data = f"fd={self.descriptor},rootmode=40000,user_id=0,group_id=0{self.options}"
        if libc.mount(b"somebody", os.fsencode(self.path), b"fuse.sidecar", self.flags, data.encode()):
            raise OSError(ctypes.get_errno(), "mount(2)")
        return self

    def __exit__(self, *_):
        self.let_go()
        clear(self.path)
        os.rmdir(self.path)

    def let_go(self):
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def unmount(self):
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.umount2(os.fsencode(self.path), 0) == 0, os.strerror(ctypes.get_errno())

    def serve(self, *arguments, front=False, prefix=(), **keywords):
        command = [*prefix, NPYFS, "mount", *(["-f"] if front else []), *arguments, f"/dev/fd/{self.descriptor}"]
        start = subprocess.Popen if front else run
        return start(command, stdin=subprocess.DEVNULL, pass_fds=[self.descriptor], **keywords)
