"""`npyfs demo DIR` writes stores that anyone can mount. Judge: h5py opens them, NumPy and scipy load every file of the mount."""

import subprocess

import h5py
import numpy as np
import pytest
import scipy.sparse

from support.mount import Mount
from support.process import NPYFS, npyfs, one_line

pytestmark = pytest.mark.fast


def test_demo(tmp_path):
    folder = tmp_path / "demo"
    npyfs("demo", folder, check=True)
    stores = sorted(path for path in folder.rglob("*") if path.is_file() and h5py.is_hdf5(path))
    assert stores
    for path in stores:
        with h5py.File(path, "r") as file:
            assert len(file)
    with Mount(folder) as mount:
        files = mount.files()
        loaded = {path: np.load(mount / path) for path in files if path.endswith(".npy")}
        assert loaded and all(isinstance(array, np.ndarray) for array in loaded.values())
        archives = [path for path in files if path.endswith(".npz")]
        assert archives and all(scipy.sparse.load_npz(mount / path).shape for path in archives)
        assert set(files) == {*loaded, *archives}
        assert any("#" in path for path in loaded), "no daf store among them"
        assert mount.errors() == []


def test_demo_overwrites_nothing(tmp_path):
    npyfs("demo", tmp_path / "demo", check=True)
    before = {path: path.read_bytes() for path in (tmp_path / "demo").rglob("*") if path.is_file()}
    second = npyfs("demo", tmp_path / "demo")
    assert {path: path.read_bytes() for path in before} == before
    if second.returncode:
        one_line(second.stderr)


def test_a_name_is_taken_from_the_working_directory(tmp_path):
    run = subprocess.run([NPYFS, "demo", "demo"], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0 and run.stderr == "", run.stderr
    with Mount(tmp_path / "demo") as mount:
        assert np.load(mount / "digits/branches/master/digits.npy").shape == (100, 28, 28)
