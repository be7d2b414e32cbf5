"""Stores in containers of Azure: `npyfs mount az://container/x.h5 mnt`. The service is Azurite, the judge of what is shown h5py on the same file."""

import os
import subprocess

import numpy as np
import pytest

from support.buckets import Azure
from support.mount import Mount, reason_of
from support.process import npyfs, one_line
from support.remote_files import NAMES, same, write


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    return [write(folder / f"{seed}.h5", seed) for seed in range(2)]


@pytest.fixture(scope="module")
def azure(files):
    with Azure() as azure:
        for name in NAMES:
            azure.put("data", f"dir/{name}", files[0])
        azure.put("public", "x.h5", files[0], public=True)
        yield azure


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in list(os.environ):
        if name.startswith("AZURE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def known(monkeypatch, azure):
    for name, value in azure.env.items():
        monkeypatch.setenv(name, value)


def test_a_file_in_a_container_is_mounted(azure, known, files):
    with Mount("az://data/dir/plain.h5", azure.options) as mount:
        same(mount.path, files[0])
        assert mount.status()["store"] == "az://data/dir/plain.h5"
        assert mount.errors() == []


@pytest.mark.parametrize("name", NAMES)
def test_names_are_as_they_are_in_the_container(azure, known, name):
    out = subprocess.run([os.environ["NPYFS_BIN"], "cat", "-o", azure.options, f"az://data/dir/{name}", "scalar.npy"], capture_output=True, check=True).stdout
    assert out.endswith(np.float64(3.5).tobytes())


def test_a_container_is_a_directory(azure, known, files):
    listed = npyfs("ls", "-o", azure.options, "az://data/dir/", check=True).stdout.splitlines()
    assert sorted(listed) == sorted(name.replace("\\", "\\\\") for name in NAMES)
    with Mount("az://data/", azure.options) as mount:
        assert os.listdir(mount.path) == ["dir"] and sorted(os.listdir(mount / "dir")) == sorted(NAMES)
        same(mount / "dir/größe-日本.h5", files[0])
    azure.put("data", "damage/x.h5", files[0])
    azure.put("data", "damage/page.h5", b"<html></html>")
    with Mount("az://data/damage/", azure.options) as mount:
        assert os.listdir(mount.path) == ["x.h5"]
        assert "web page" in reason_of(mount.info(), "page.h5")


def test_the_account_in_the_address(azure, known, files):
    url = f"abfss://data@{azure.ACCOUNT}.dfs.core.windows.net/dir/plain.h5"
    assert "gzip.npy" in npyfs("ls", "-o", azure.options, url, check=True).stdout


def refused(url, options):
    done = npyfs("ls", "-o", options, url)
    assert done.returncode == 2, done
    line = one_line(done.stderr)
    assert url in line
    return line


def test_who_is_not_known_is_refused(azure, known, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "QVZlcnlTZWNyZXRXb3JkVGhhdElzV3Jvbmc=")
    line = refused("az://data/dir/plain.h5", azure.options)
    assert "403" in line and "AuthorizationFailure" in line and "QVZlcn" not in line
    assert "403" in refused("az://data/dir/", azure.options)


def test_anonymous(azure, monkeypatch, files):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", azure.ACCOUNT)
    with Mount("az://public/x.h5", f"{azure.options},anonymous") as mount:
        same(mount.path, files[0])
    refused("az://data/dir/plain.h5", f"{azure.options},anonymous")


def test_what_is_missing(azure, known):
    assert "no such object" in refused("az://data/nothing.h5", azure.options)
    assert "no such bucket" in refused("az://nothing/x.h5", azure.options)


def test_an_object_that_is_replaced(azure, known, files):
    azure.put("data", "changing.h5", files[0])
    with Mount("az://data/changing.h5", f"{azure.options},check=0") as mount:
        same(mount.path, files[0])
        azure.put("data", "changing.h5", files[1])
        same(mount.path, files[1])
