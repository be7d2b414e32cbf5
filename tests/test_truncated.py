"""Uploads that end early are refused when they are closed, wherever they end, and what stood there stays. A file that begins as
programs begin an array (`open_memmap`) may be completed later; what never is, is told by `fsync` and by `npyfs umount`.
Judge: NumPy, coreutils, h5py."""

import errno
import io
import os

import h5py
import numpy as np
import pytest

from support import daf
from support.mount import Mount, clear, make_point, mounted, until
from support.process import npyfs, run

pytestmark = pytest.mark.fast

OLD, NEW = np.arange(5.0), np.arange(3000.0)


def saved(array):
    whole = io.BytesIO()
    np.save(whole, array)
    return whole.getvalue()


def cuts(whole):
    """All lengths in and around the header, and some further on."""
    return [*range(1, 140), len(whole) // 2, len(whole) - 8, len(whole) - 1]


@pytest.fixture
def store(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["old"] = OLD
        cells = file.create_group("cells")
        daf.start(cells)
        cells["cell#"], cells["gene#"] = np.array([b"a", b"b"]), np.array([b"c", b"d"])
    return tmp_path / "x.h5"


def write(path, content, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
    descriptor = os.open(path, flags)
    try:
        assert os.write(descriptor, content) == len(content)
    finally:
        os.close(descriptor)


def refused(call, *arguments):
    with pytest.raises(OSError) as problem:
        call(*arguments)
    return problem.value.errno


def gone(path):
    """It goes with its last descriptor, a moment after `close`."""
    until(lambda: not os.path.exists(path), f"the end of {path}")


@pytest.mark.timeout(300)
def test_a_cut_upload_is_refused_at_close(store):
    whole = saved(NEW)
    with Mount(store, checkout="c") as mount:
        for cut in cuts(whole):
            for name in ("new.npy", "old.npy"):
                assert refused(write, mount / name, whole[:cut]) == errno.EINVAL, cut
            gone(mount / "new.npy")
            until(lambda: os.stat(mount / "old.npy").st_size == 128 + OLD.nbytes, "the old content")
            assert (np.load(mount / "old.npy") == OLD).all(), cut
        assert any("old.npy: close" in line for line in mount.errors())
        # empty: in the place of something it is refused, and anew a beginning, as `touch` makes it
        assert refused(write, mount / "old.npy", b"") == errno.EINVAL
        until(lambda: os.stat(mount / "old.npy").st_size == 128 + OLD.nbytes, "the old content")
        write(mount / "new.npy", b"")
        write(mount / "new.npy", whole, os.O_WRONLY)
        assert (np.load(mount / "new.npy") == NEW).all()
    with Mount(store, checkout="c") as mount:
        assert mount.files() == ["cells/cell#.npy", "cells/gene#.npy", "new.npy", "old.npy"]
        assert (np.load(mount / "old.npy") == OLD).all()


def test_programs_that_copy_say_so(store, tmp_path):
    whole = saved(NEW)
    for name, cut in {"empty": 0, "begun": 64, "header": 128, "half": 9000}.items():
        (tmp_path / f"{name}.npy").write_bytes(whole[:cut])
    with Mount(store, checkout="c") as mount:
        for name in ("begun", "header", "half"):
            source = tmp_path / f"{name}.npy"
            for command in (["cp", source, mount / "old.npy"], ["cp", source, mount / "new.npy"], ["dd", f"if={source}", f"of={mount}/new.npy"]):
                assert run([str(part).replace(str(mount), str(mount.path)) for part in command]).returncode, command
                gone(mount / "new.npy")
        assert run(["cp", tmp_path / "empty.npy", mount / "old.npy"]).returncode
        for name in ("empty", "begun", "header", "half"):  # as rsync and editors do it
            run(["cp", tmp_path / f"{name}.npy", mount / "x.tmp"], check=True)
            for to in ("old.npy", "new.npy"):
                assert refused(os.rename, mount / "x.tmp", mount / to) == errno.EINVAL
                assert os.path.exists(mount / "x.tmp") and (np.load(mount / "old.npy") == OLD).all()
            os.unlink(mount / "x.tmp")
        until(lambda: mount.files() == ["cells/cell#.npy", "cells/gene#.npy", "old.npy"], "the end of what was refused")


def test_cut_members_are_refused(store, tmp_path):
    members = {"data": np.ones(2), "indices": np.array([0, 1]), "indptr": np.array([0, 1, 2]), "shape": np.array([2, 2])}
    folder = "cells/cell,gene#m"
    with Mount(store, checkout="c") as mount:
        os.mkdir(mount / folder)
        for member, array in members.items():
            whole = saved(array)
            for cut in (1, 9, 64, 127, 128, 129, len(whole) - 1):
                assert refused(write, mount / folder / f"{member}.npy", whole[:cut]) == errno.EINVAL, (member, cut)
                gone(mount / folder / f"{member}.npy")
        for member, array in members.items():
            assert not os.path.exists(mount / "cells/cell,gene#m.npz")
            np.save(mount / folder / f"{member}.npy", array)
        whole = (mount / "cells/cell,gene#m.npz").read_bytes()
        for cut in (1, 30, len(whole) // 2, len(whole) - 1):
            assert refused(write, mount / "cells/cell,gene#n.npz", whole[:cut]) == errno.EINVAL, cut
        assert mount.status()["checkout"]["waiting"] == [] and mount.status()["checkout"]["unfinished"] == []


def test_arrays_that_are_made_in_steps(store):
    with Mount(store, checkout="c") as mount:
        for name in ("new.npy", "old.npy"):
            array = np.lib.format.open_memmap(mount / name, "w+", np.float64, NEW.shape)
            array[:] = NEW
            array.flush()
            del array
            assert (np.load(mount / name) == NEW).all()
        with open(mount / "both.npy", "w+b") as file:  # as open_memmap begins
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(NEW))
        assert mount.status()["checkout"]["unfinished"][0]["path"] == "both.npy"
        with open(mount / "both.npy", "r+b") as file:
            file.seek(0, os.SEEK_END)
            file.write(NEW.tobytes())
        run(["sh", "-c", '(head -c 128; cat) < "$1" > "$2"', "sh", mount / "new.npy", mount / "shell.npy"], check=True)
        run(["rsync", "--inplace", mount / "new.npy", mount / "rsync.npy"], check=True)
        for name in ("both", "shell", "rsync"):
            assert (np.load(mount / f"{name}.npy") == NEW).all(), name
        assert mount.status()["checkout"]["unfinished"] == []
    with Mount(store, checkout="c") as mount:
        for name in ("new", "old", "both", "shell", "rsync"):
            assert (np.load(mount / f"{name}.npy") == NEW).all(), name


def test_what_was_refused_at_close_is_not_told_again(store):
    with Mount(store, checkout="c") as mount:
        def unfinished():
            return [(file["path"], file["is_open"]) for file in mount.status()["checkout"]["unfinished"]]

        for name in ("old.npy", "new.npy"):
            descriptor = os.open(mount / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.write(descriptor, saved(NEW)[:200])
            assert unfinished() == [(name, True)]
            # The kernel does not say yet that it was the last close, as it may not for a while after every close.
            assert refused(os.close, os.dup(descriptor)) == errno.EINVAL
            assert unfinished() == []
            os.write(descriptor, b"more")
            assert unfinished() == [(name, True)]
            assert refused(os.close, descriptor) == errno.EINVAL
            assert unfinished() == []


def test_what_never_became_an_array_is_told(store):
    header = saved(NEW)[:128]
    point = make_point()
    try:
        with Mount(store, checkout="c", point=point) as mount:
            mount.expect_dead = True
            write(mount / "old.npy", header, os.O_RDWR | os.O_TRUNC)
            os.mkdir(mount / "g")
            write(mount / "g/empty.npy", b"")
            write(mount / "g/notes.tmp", b"text")
            np.save(mount / "good.npy", NEW)
            for name in ("old.npy", "g/empty.npy"):
                descriptor = os.open(mount / name, os.O_RDWR)
                assert refused(os.fsync, descriptor) == errno.EINVAL
                os.close(descriptor)
            done = npyfs("umount", point)
            assert done.returncode == 3 and not mounted(point), done
            lines = done.stderr.splitlines()
            assert len(lines) == 6 and all(line.startswith("npyfs: ") for line in lines), lines
            # The two that fsync refused, and then what is lost.
            assert ["refused: " in line and ": fsync: " in line for line in lines] == [True] * 2 + [False] * 4
            lines = lines[2:]
            for name, reason in {"old.npy": "header", "g/empty.npy": "empty", "g/notes.tmp": "name"}.items():
                assert sum(f" {name}: " in line and reason in line for line in lines) == 1, (name, lines)
            until(lambda: not mount.alive(), "the end of the daemon")
    finally:
        clear(point)
        os.rmdir(point)
    with Mount(store, checkout="c") as mount:
        assert mount.files() == ["cells/cell#.npy", "cells/gene#.npy", "good.npy", "old.npy"]
        assert (np.load(mount / "old.npy") == OLD).all()
        np.save(mount / "x.tmp", NEW)
        with open(mount / "only.tmp", "wb") as file:
            file.write(b"scratch")
        os.unlink(mount / "x.tmp.npy")
        # A scratch name is told, too, but nothing was promised of it: the exit code is 0, or leaving this block would fail.
