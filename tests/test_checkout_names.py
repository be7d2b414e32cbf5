"""Names in a checkout: what the mount would show under another name, or never again, is refused before anything is stored.
Judges: the list of names after a remount, and h5py on what was exported."""

import errno
import os

import h5py
import numpy as np
import pytest

from support import arkouda, daf
from support.mount import Mount
from support.process import npyfs
from support.truth import np_save

pytestmark = pytest.mark.fast

# What cannot be stored, and the name that works in its place.
WRONG = {
    "x.npy.npy": "x%2Enpy.npy", "%41.npy": "A.npy", "...npy": "%2E%2E.npy", "..npy": "%2E.npy", "counts.txt.npy": "counts%2Etxt.npy", "a\tb.npy": "a%09b.npy",
    "line\nbreak.npy": "line%0Abreak.npy", "\x1b[31m.npy": "%1B[31m.npy", "del\x7f.npy": "del%7F.npy", "low%2enpy.npy": "low%2Enpy.npy", "a.keys.npy": "a%2Ekeys.npy",
}
FOLDERS = {"a.npy": "a%2Enpy", "%41": "A", "tab\t": "tab%09", "b.txt": "b%2Etxt"}
RIGHT = ["x%2Enpy.npy", "A.npy", "%2E%2E.npy", "a%09b.npy", "100%.npy", "x.npyx.npy", "....npy"]


def make_plain(path):
    with h5py.File(path, "w") as file:
        file["A"] = np.arange(3)
        file["x.npy"] = np.arange(4)
        file["n" * 300] = np.arange(5)
        file.create_group("g" * 300)["inside"] = 1


def make_daf(path):
    with h5py.File(path, "w") as file:
        daf.start(file)["A"] = 1
        file["cell#"] = np.array([b"a", b"b"])


def make_arkouda(path):
    with arkouda.Store(path.parent, path.name, None) as store:
        arkouda.put_array(store, "A", np.arange(3))


@pytest.fixture(params=[make_plain, make_daf, make_arkouda], ids=["plain", "daf", "arkouda"])
def store(tmp_path, request):
    path = tmp_path / "names.h5"
    request.param(path)
    return path


def refused(action, *arguments):
    with pytest.raises(OSError) as caught:
        action(*arguments)
    return caught.value.errno


def test_a_name_that_is_not_its_own_escape_is_refused(store):
    with Mount(store, checkout="c") as mount:
        before = sorted(os.listdir(mount.path))
        (mount / "scratch").write_bytes(np_save(np.arange(2)))
        for name, works in WRONG.items():
            assert refused(np.save, mount / name, np.arange(2)) == errno.EINVAL, name
            assert refused(os.rename, mount / "scratch", mount / name) == errno.EINVAL, name
            assert sum(repr(works)[1:-1] in line for line in mount.errors()) >= 2, (name, mount.errors())
        for name, works in FOLDERS.items():
            assert refused(os.mkdir, mount / name) == errno.EINVAL, name
            assert any(works in line for line in mount.errors()), name
        # Scratch files may be called as they like, until they are to be stored.
        for name in ("x.npy.npy.tmp", ".%41.npy.Ab12Cd", "tab\t"):
            (mount / name).write_bytes(b"x")
            os.unlink(mount / name)
        os.unlink(mount / "scratch")
        assert sorted(os.listdir(mount.path)) == before
    with Mount(store, checkout="c") as mount:
        assert sorted(os.listdir(mount.path)) == before
    assert npyfs("checkout", "commit", store, "c").stdout == "nothing to commit\n"


def test_the_name_that_is_told_works(store, tmp_path):
    with Mount(store, checkout="c") as mount:
        for number, name in enumerate(RIGHT):
            np.save(mount / name, np.full(1, number))
        assert mount.errors() == []
    with Mount(store, checkout="c") as mount:
        for number, name in enumerate(RIGHT):
            np.testing.assert_array_equal(np.load(mount / name), [number])
    npyfs("checkout", "export", store, "c", tmp_path / "out.h5", check=True)
    with Mount(tmp_path / "out.h5") as mount:
        for number, name in enumerate(RIGHT):
            np.testing.assert_array_equal(np.load(mount / name), [number])


def test_names_that_are_cut_cannot_be_written(tmp_path):
    """Their files stand for objects with longer names, which a checkout would not replace."""
    make_plain(tmp_path / "names.h5")
    with Mount(tmp_path / "names.h5", checkout="c") as mount:
        [cut] = [name for name in os.listdir(mount.path) if name.startswith("nnn")]
        [group] = [name for name in os.listdir(mount.path) if name.startswith("ggg")]
        for action in (lambda: np.save(mount / cut, np.arange(2)), lambda: os.unlink(mount / cut),
                       lambda: np.save(mount / group / "x.npy", np.arange(2)), lambda: os.mkdir(mount / group / "below")):
            assert refused(action) == errno.EINVAL
        np.testing.assert_array_equal(np.load(mount / cut), np.arange(5))
    assert npyfs("checkout", "commit", tmp_path / "names.h5", "c").stdout == "nothing to commit\n"


def test_with_another_separator(tmp_path):
    make_daf(tmp_path / "cells.h5df")
    with Mount(tmp_path / "cells.h5df", "sep=@", checkout="c") as mount:
        assert refused(np.save, mount / "cell#age.npy", np.arange(2)) == errno.EINVAL
        assert any("cell@age.npy" in line for line in mount.errors())
        np.save(mount / "cell@age.npy", np.arange(2))
    with Mount(tmp_path / "cells.h5df", checkout="c") as mount:
        np.testing.assert_array_equal(np.load(mount / "cell#age.npy"), [0, 1])
