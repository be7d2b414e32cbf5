"""Renaming in a mount with --checkout: temporary names, names that were renamed away, names that are overwritten. The judges are those
of test_checkout: NumPy, cmp and h5py on the files of the layer."""

import errno
import os
import shutil

import numpy as np
import pytest

from support.mount import until
from support.process import run
from test_checkout import arrays, open_checkout, same, store  # noqa: F401: fixtures

pytestmark = pytest.mark.fast


def test_mv_over_an_existing_name_and_temporary_names(store, arrays):
    with open_checkout(store) as m:
        shutil.copyfile(arrays / "b.npy", m / ".x.npy.a1B2c3")
        same(m / "x.npy", np.arange(10.0))
        run(["mv", m / ".x.npy.a1B2c3", m / "x.npy"], check=True)
        run(["cmp", arrays / "b.npy", m / "x.npy"], check=True)
        assert sorted(os.listdir(m.path)) == ["g", "x.npy"]
        # from name to name, and over each other
        run(["mv", m / "x.npy", m / "g/new.npy"], check=True)
        run(["mv", m / "g/new.npy", m / "g/y.npy"], check=True)
        run(["cmp", arrays / "b.npy", m / "g/y.npy"], check=True)
        assert sorted(os.listdir(m / "g")) == ["y.npy", "z.npy"] and os.listdir(m.path) == ["g"]
        run(["mv", arrays / "a.npy", m / "x.npy"], check=True)
        same(m / "x.npy", np.arange(1000.0))
        done = run(["mv", "-n", m / "x.npy", m / "g/y.npy"])
        assert os.path.exists(m / "x.npy"), done
    with open_checkout(store) as m:
        assert sorted(m.files()) == ["g/y.npy", "g/z.npy", "x.npy"]
        same(m / "g/y.npy", np.ones((3, 4)))


def test_what_is_renamed_to_a_scratch_name_is_not_lost(store):
    with open_checkout(store) as m:
        os.rename(m / "x.npy", m / "x.npy~")
        assert sorted(os.listdir(m.path)) == ["g", "x.npy~"]
        same(m / "x.npy~", np.arange(10.0))
    with open_checkout(store) as m:
        same(m / "x.npy", np.arange(10.0))
        os.rename(m / "x.npy", m / "x.npy~")
        os.unlink(m / "x.npy~")
        assert os.listdir(m.path) == ["g"]
    with open_checkout(store) as m:
        assert os.listdir(m.path) == ["g"]


def test_a_name_that_was_renamed_away_stays_free_until_something_is_stored_there(store):
    def refuse(call, *arguments):
        with pytest.raises(OSError) as problem:
            call(*arguments)
        assert problem.value.errno == errno.EINVAL

    with open_checkout(store) as m:
        for name in ("x.npy", "g/y.npy"):
            os.rename(m / name, m / f"{name}~")
        left = ["g", "x.npy~"]

        def write(name, content):
            with open(m / name, "wb", buffering=0) as file:
                file.write(content)

        for _ in range(2):
            refuse(write, "x.npy", b"no array")
            until(lambda: sorted(os.listdir(m.path)) == left, "the end of what was refused")
            write("x.npy", b"")  # may be completed
            assert sorted(os.listdir(m.path)) == [*left[:1], "x.npy", "x.npy~"]
            os.unlink(m / "x.npy")
            assert sorted(os.listdir(m.path)) == left and not os.path.exists(m / "x.npy")
            write("x.tmp", b"text")
            refuse(os.rename, m / "x.tmp", m / "x.npy")
            os.unlink(m / "x.tmp")
            write("x.npy", b"")
            os.rename(m / "x.npy", m / "x.tmp")
            assert sorted(os.listdir(m.path)) == [*left[:1], "x.npy~", "x.tmp"]
            os.unlink(m / "x.tmp")
        same(m / "x.npy~", np.arange(10.0))
        np.save(m / "x.npy", np.ones(3))
        same(m / "x.npy~", np.arange(10.0))
        os.rename(m / "x.npy~", m / "z.npy")
        # Nothing is lost that is not told: what has a scratch name only is there again in the next mount.
        write("g/y.npy", b"")
        os.unlink(m / "g/y.npy")
        assert sorted(os.listdir(m / "g")) == ["y.npy~", "z.npy"]
    with open_checkout(store) as m:
        same(m / "x.npy", np.ones(3))
        same(m / "z.npy", np.arange(10.0))
        same(m / "g/y.npy", np.arange(6).reshape(2, 3))


def test_one_name_is_renamed_away_twice(store):
    with open_checkout(store) as m:
        os.rename(m / "x.npy", m / "x.1")
        np.save(m / "x.npy", np.ones(3))
        os.rename(m / "x.npy", m / "x.2")
        os.unlink(m / "x.1")
        assert sorted(os.listdir(m.path)) == ["g", "x.2"]
        same(m / "x.2", np.ones(3))
    with open_checkout(store) as m:
        same(m / "x.npy", np.ones(3))
        os.rename(m / "x.npy", m / "x.1")
        np.save(m / "x.npy", np.zeros(2))
        os.rename(m / "x.npy", m / "x.2")
        os.rename(m / "x.1", m / "one.npy")
        os.rename(m / "x.2", m / "two.npy")
        assert m.files() == ["g/y.npy", "g/z.npy", "one.npy", "two.npy"]
    with open_checkout(store) as m:
        assert m.files() == ["g/y.npy", "g/z.npy", "one.npy", "two.npy"]
        same(m / "one.npy", np.ones(3))
        same(m / "two.npy", np.zeros(2))
