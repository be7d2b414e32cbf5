"""What takes longer than a second says how far it is, with bytes and rate, on a terminal only; Ctrl-C ends it and leaves neither the line
nor half a file. Judge: what a pseudo-terminal gets, the exit status that the kernel tells, the files that are there.

The commands have something to do that ends only when the test says so, so nothing here depends on time but the limits."""

import os
import pty
import re
import select
import signal
import time

import h5py
import numpy as np
import pytest

from support.mount import Mount
from support.process import NPYFS, npyfs
from support.truth import np_save

pytestmark = pytest.mark.fast
LIMIT = 60
CLEARED = "\x1b[2K"
# What may come behind the line: movements of the cursor, and what the terminal echoes.
REST = r"[\r\n^C]*(\x1b\[\d*[A-Z][\r\n^C]*)*"


class Terminal:
    """A command in front of a pseudo-terminal, which is its standard error and, unless another is given, its output."""

    def __init__(self, *arguments, stdout=None):
        self.text = ""
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            try:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                if stdout is not None:
                    os.dup2(stdout, 1)
                os.environ.update({"TERM": "xterm", "COLUMNS": "120"})
                os.execv(NPYFS, [NPYFS, *map(os.fspath, arguments)])
            finally:
                os._exit(127)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.master)

    def read(self, pause=0.05):
        """Takes what the terminal got; False at its end."""
        if select.select([self.master], [], [], pause)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return False
            self.text += data.decode()
            return bool(data)
        return True

    def until(self, pattern):
        end = time.monotonic() + LIMIT
        while not re.search(pattern, self.text):
            assert time.monotonic() < end and self.read(), f"{pattern} is not in {self.text!r}"

    def end(self):
        """Waits for the end; returns the exit code, or minus the signal."""
        end = time.monotonic() + LIMIT
        while self.read():
            assert time.monotonic() < end, self.text
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def interrupt(self):
        os.write(self.master, b"\x03")
        code = self.end()
        assert code == -signal.SIGINT, (code, self.text)
        # Nothing is seen of the line any more: it was cleared, and only what the terminal echoes came after it.
        behind = self.text.rpartition(CLEARED)[2]
        assert CLEARED in self.text and re.fullmatch(REST, behind), repr(self.text[-300:])
        assert "npyfs:" not in self.text


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store that takes minutes to read: most of it is a hole in its file."""
    path = tmp_path_factory.mktemp("progress") / "s.h5"
    with h5py.File(path, "w") as file:
        file["small"] = np.arange(5)
        file["middle"] = np.arange(1 << 20)
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_layout(h5py.h5d.CONTIGUOUS)
        layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        space = h5py.h5s.create_simple((1 << 37,))
        h5py.h5d.create(file.id, b"hole", h5py.h5t.STD_I64LE, space, layout)
    assert os.stat(path).st_size > 1 << 40 and os.stat(path).st_blocks * 512 < 1 << 26
    return path


@pytest.mark.parametrize("arguments", [("show", "STORE", "hole.npy"), ("verify", "STORE")], ids=" ".join)
def test_bytes_and_rate_are_shown_and_ctrl_c_ends_it(store, arguments):
    with Terminal(*(store if part == "STORE" else part for part in arguments)) as terminal:
        terminal.until(r"reading .*[1-9][\d.]* [GM]iB/1\.00 TiB, [\d.]+ \wiB/s, \d+s")
        terminal.interrupt()


def test_cat_shows_it_while_its_reader_waits(store):
    read, write = os.pipe()
    with Terminal("cat", store, "middle.npy", stdout=write) as terminal:
        os.close(write)
        terminal.until(r"writing .*/8\.00 MiB")
        data = b"".join(iter(lambda: os.read(read, 65536), b""))
        assert terminal.end() == 0
        assert data == np_save(np.arange(1 << 20))
        assert re.fullmatch(REST, terminal.text.rpartition(CLEARED)[2])
    os.close(read)


def test_nothing_is_shown_of_what_takes_no_time_or_where_no_terminal_is(store):
    with Terminal("cat", store, "small.npy", stdout=os.open(os.devnull, os.O_WRONLY)) as terminal:
        assert terminal.end() == 0 and terminal.text == ""
    with Terminal("ls", store) as terminal:
        assert terminal.end() == 0 and terminal.text.split() == ["hole.npy", "middle.npy", "small.npy"]
    assert npyfs("show", store, "middle.npy", check=True).stderr == ""


def test_an_export_that_is_interrupted_leaves_nothing(store, tmp_path):
    """A copy of the hole takes no time where the file system copies holes; compressing it does."""
    with Mount(store, checkout="c", checkouts=tmp_path / "checkouts") as mount:
        np.save(mount / "new.npy", np.arange(3))
    out = tmp_path / "out"
    out.mkdir()
    before = os.stat(store)
    with Terminal("checkout", "export", "--compress", "gzip", "--checkouts", tmp_path / "checkouts", store, "c", out / "new.h5") as terminal:
        terminal.until(r"writing .*/s, \d+s")
        terminal.interrupt()
    assert list(out.iterdir()) == []
    assert (before.st_size, before.st_mtime_ns) == (os.stat(store).st_size, os.stat(store).st_mtime_ns)
