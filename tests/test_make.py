"""make builds what depends on virtual files once, and nothing the second time, also after unmounting and mounting again;
a store that changed is built again. Judge: make itself, and a log that every recipe writes to."""

import os

import h5py
import numpy as np
import pytest

from support import daf
from support.mount import Mount, make_point, until
from support.process import run

pytestmark = pytest.mark.fast

MAKEFILE = r"""
all: x.sum ages.sum
x.sum: $(MNT)/plain.h5/vaz/x.npy
	cksum < $< > $@ && echo $@ >> log
ages.sum: $(MNT)/cells.h5df/cell\#age.npy $(MNT)/cells.h5df/cell\#.npy
	cat $^ | cksum > $@ && echo $@ >> log
"""


@pytest.fixture
def stores(tmp_path):
    folder = tmp_path / "stores"
    folder.mkdir()
    with h5py.File(folder / "plain.h5", "w") as file:
        file["vaz/x"] = np.arange(100)
    with h5py.File(folder / "cells.h5df", "w") as file:
        daf.start(file)
        file["cell#"] = np.array([b"a", b"b"])
        file["cell#age"] = np.array([4, 5])
    return folder


def test_make_builds_once(stores, tmp_path):
    work, point = tmp_path / "work", make_point()
    work.mkdir()
    (work / "Makefile").write_text(MAKEFILE)
    log = work / "log"

    def make(*flags):
        return run(["make", f"MNT={point}", *flags], cwd=work)

    try:
        with Mount(stores, point=point) as mount:
            assert make().returncode == 0
            assert sorted(log.read_text().split()) == ["ages.sum", "x.sum"]
            assert (work / "x.sum").read_text() == run(["sh", "-c", f"cksum < '{mount / 'plain.h5/vaz/x.npy'}'"], check=True).stdout
            assert make("-q").returncode == 0
            second = make()
            assert second.returncode == 0 and "Nothing to be done for 'all'" in second.stdout
        with Mount(stores, point=point) as mount:
            assert make("-q").returncode == 0
            third = make()
            assert third.returncode == 0 and "Nothing to be done for 'all'" in third.stdout
            assert len(log.read_text().split()) == 2

            # and it is no accident: a store that changes is built again, the other one is not
            with h5py.File(stores / "plain.new", "w") as file:
                file["vaz/x"] = np.arange(7)
            os.replace(stores / "plain.new", stores / "plain.h5")
            until(lambda: (mount / "plain.h5/vaz/x.npy").stat().st_size == 128 + 7 * 8, "the new size", 10)
            assert make().returncode == 0
            assert log.read_text().split()[2:] == ["x.sum"]
    finally:
        os.rmdir(point)
