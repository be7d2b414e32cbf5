"""What all tests share: the binary, the fixtures, and the plugins that run them (see support/sampling.py, support/workers.py, support/verdict.py)."""

import os
import shutil
import tempfile
from pathlib import Path

import netCDF4  # noqa: F401 (see below)
import pytest

from support import commits, process

pytest_plugins = ["support.sampling", "support.workers", "support.verdict"]

# The wheel of netCDF4 names filters of its own to every libhdf5, also to those of other processes, which are of other
# versions and fail with them (Hangar's h5py). It is imported here once, so that no test sets the variable again.
os.environ.pop("HDF5_PLUGIN_PATH", None)

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_configure(config):
    binary = os.environ.get("NPYFS_BIN")
    if not binary or not os.access(binary, os.X_OK):
        raise pytest.UsageError(f"NPYFS_BIN must name the npyfs program to test (it is {binary!r}); tests/run builds it and sets it")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise pytest.UsageError("these tests mount through the kernel: /dev/fuse is missing or not yours to open "
                                "(run them as root, or give your user access to it)")
    if shutil.which("fusermount3") is None:
        raise pytest.UsageError("fusermount3 is missing (package fuse3)")
    # Logs that outlive their mounts do not go to the user's; workers of xdist inherit it.
    if not hasattr(config, "workerinput"):
        config.state = tempfile.TemporaryDirectory(prefix="npyfs-state-")
        os.environ["XDG_STATE_HOME"] = config.state.name
    # Locks are a promise of the program, not something a test should trip over by chance.
    os.environ.pop("HDF5_USE_FILE_LOCKING", None)


def pytest_unconfigure(config):
    if hasattr(config, "state"):
        config.state.cleanup()


def pytest_report_header():
    version = process.npyfs("--version")
    who = "root" if os.geteuid() == 0 else f"user {os.geteuid()}: tests that need root are skipped and say so"
    return f"npyfs: {version.stdout.strip() or version.stderr.strip()}; running as {who}"


@pytest.fixture(scope="session")
def shared():
    """The fixtures beside the repository, other people's data that is not ours to commit."""
    folder = REPOSITORY.parent / "shared" / "fixtures"
    if not folder.is_dir():
        pytest.skip("../shared/fixtures is absent: real daf stores and malformed files are NOT tested here")
    return folder


@pytest.fixture
def root_only():
    if os.geteuid() != 0:
        pytest.skip("needs root: other owners and users cannot be tried by a normal user")
    assert shutil.which("setpriv"), "setpriv is missing (package util-linux)"


@pytest.fixture
def store(tmp_path):
    """A plain store that is some years old; it is as it was when the test is over. Many files have a fixture of this name of their own."""
    path = commits.make_store(tmp_path / "x.h5")
    before = path.read_bytes()
    yield path
    assert path.read_bytes() == before, "the store was written to"


@pytest.fixture(scope="session")
def session_store(tmp_path_factory):
    """One small plain store that tests may mount, never change."""
    import h5py
    import numpy as np

    path = tmp_path_factory.mktemp("store") / "small.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(10.0)
        file["group/y"] = np.arange(6, dtype="<i2").reshape(2, 3)
    return path
