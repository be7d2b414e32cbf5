"""Stores on web servers: `npyfs mount http://host/x.h5 mnt`, judged by h5py on the same file."""

import json
import os
import subprocess
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.mount import Mount
from support.process import npyfs
from support.web import Site


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/npyfs"


@pytest.fixture
def directory(tmp_path):
    directory = tmp_path / "www"
    directory.mkdir()
    return directory


def write(path, seed=0):
    """A file with every layout; returns {visible name: array}."""
    random, shown = np.random.default_rng(seed), {}
    with h5py.File(path, "w") as file:
        for name, array, options in [
                ("plain", random.normal(size=(500, 300)), {}),
                ("gzip", random.integers(0, 1000, (2000, 500)), {"chunks": (100, 500), "compression": "gzip", "shuffle": True}),
                ("group/small", np.arange(12, dtype=">i2").reshape(3, 4), {}),
                ("group/deep/lzf", random.normal(size=100_000).astype("f4"), {"chunks": (4096,), "compression": "lzf"}),
                ("scalar", np.array(3.5), {})]:
            file.create_dataset(name, data=array, **options)
            file[name].attrs["about"] = f"this is {name}"
            shown[f"{name}.npy"] = array
        file.create_dataset("text", data=["a", "some longer text", ""], dtype=h5py.string_dtype())
        shown["text.npy"] = np.array(["a", "some longer text", ""])
        file.create_dataset("never", (1000, 1000), "f8", fillvalue=2.5)
        shown["never.npy"] = np.full((1000, 1000), 2.5)
    return shown


def same(mount, shown):
    for name, array in shown.items():
        np.testing.assert_array_equal(np.load(mount / name), array, err_msg=name)


@pytest.mark.fast
def test_a_file_on_a_web_server_is_mounted(home, directory):
    shown = write(directory / "x.h5")
    with Site(directory) as site:
        with Mount(site.url("x.h5")) as mount:
            assert sorted(os.listdir(mount.path)) == ["group", "gzip.npy", "never.npy", "plain.npy", "scalar.npy", "text.npy"]
            same(mount, shown)
            assert mount.info("gzip.npy")["attributes"] == {"about": "this is gzip"}
            assert mount.status()["store"] == site.url("x.h5")
        assert site.bytes < 2 * os.path.getsize(directory / "x.h5")
        # A second mount finds it all on disk but for one look.
        site.asked.clear()
        with Mount(site.url("x.h5")) as mount:
            same(mount, shown)
        assert len(site.asked) <= 2, site.asked
    assert home.stat().st_mode & 0o077 == 0 or (home / "objects").stat().st_mode & 0o077 == 0


@pytest.mark.fast
def test_commands_take_addresses(home, directory):
    write(directory / "x.h5")
    with Site(directory) as site:
        url = site.url("x.h5")
        assert "gzip.npy" in npyfs("ls", url, check=True).stdout
        assert "small.npy" in npyfs("ls", f"{url}:/group", check=True).stdout
        assert "2000" in npyfs("info", url, "gzip.npy", check=True).stdout
        assert npyfs("verify", url).returncode == 0
        cat = subprocess.run([os.environ["NPYFS_BIN"], "cat", url, "scalar.npy"], capture_output=True, check=True).stdout
        assert cat.endswith(np.float64(3.5).tobytes())


def test_random_readers_fetch_what_they_touch(home, directory):
    array = np.random.default_rng(1).normal(size=(64, 64 << 10)).astype("f4")
    with h5py.File(directory / "x.h5", "w") as file:
        file.create_dataset("a", data=array, chunks=(1, 4096))
    with Site(directory) as site, Mount(site.url("x.h5")) as mount:
        # Not by a map: a fault would hold the interpreter that answers the request.
        file = os.open(mount / "a.npy", os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        before = site.bytes
        for row in (5, 60, 31):
            at = 128 + array.itemsize * (row * array.shape[1] + 20000)
            assert os.pread(file, 40, at) == array[row, 20000:20010].tobytes()
        os.close(file)
        assert site.bytes - before < array.nbytes / 4


@pytest.mark.parametrize("status, errno", [(403, 13), (404, 2), (401, 13)])
def test_refusals_name_the_address(home, directory, status, errno):
    write(directory / "x.h5")
    with Site(directory) as site:
        site.fault = lambda handler: handler.refuse(status)
        refused = npyfs("ls", site.url("x.h5", "?signature=word"))
        assert refused.returncode == 2
        assert site.url("x.h5") in refused.stderr and "word" not in refused.stderr
        assert len(refused.stderr.strip().splitlines()) == 1


def test_servers_that_are_busy_or_break_off_are_asked_again(home, directory):
    shown = write(directory / "x.h5")
    turns = iter(range(10**6))

    def fault(handler):
        turn = next(turns)
        if turn % 4 == 1:
            return handler.refuse(503, Retry_After="0")
        if turn % 4 == 2:
            handler.cut = 10
        return False

    with Site(directory) as site:
        site.fault = fault
        with Mount(site.url("x.h5")) as mount:
            same(mount, shown)


def test_a_server_that_never_answers_ends_reads_in_time(home, directory):
    shown = write(directory / "x.h5")
    hang = []
    with Site(directory) as site:
        site.fault = lambda handler: bool(hang) and (time.sleep(20) or True)
        with Mount(site.url("x.h5"), "timeout=2,check=0", limit=120) as mount:
            np.testing.assert_array_equal(np.load(mount / "scalar.npy"), shown["scalar.npy"])
            hang.append(True)
            with pytest.raises(OSError) as refused:
                np.load(mount / "gzip.npy")
            assert refused.value.errno in (110, 5)
            # What was read is still there.
            np.testing.assert_array_equal(np.load(mount / "scalar.npy"), shown["scalar.npy"])
            hang.clear()
            same(mount, shown)


def test_an_object_that_is_replaced_is_seen_and_never_mixed(home, directory):
    old = write(directory / "x.h5", seed=1)
    with Site(directory) as site, Mount(site.url("x.h5"), "check=0") as mount:
        with open(mount / "gzip.npy", "rb") as opened:
            opened.read(1000)
            new = write(directory / "new.h5", seed=2)
            os.replace(directory / "new.h5", directory / "x.h5")
            same(mount, new)
            try:
                rest = opened.read()
            except OSError as refused:
                assert refused.errno == 116
            else:
                assert rest[-8:] == old["gzip.npy"].tobytes()[-8:]


def test_a_server_without_ranges_sends_it_once(home, directory):
    shown = write(directory / "x.h5")
    with Site(directory, ranges=False) as site, Mount(site.url("x.h5")) as mount:
        same(mount, shown)
        assert len([asked for asked in site.asked if asked[:2] == ("GET", "x.h5")]) == 1


def test_a_server_without_tags_is_told_by_time_and_size(home, directory):
    shown = write(directory / "x.h5")
    with Site(directory, tags=False) as site, Mount(site.url("x.h5")) as mount:
        same(mount, shown)
        assert "time and size" in Path(mount / ".npyfs/errors.log").read_text()


def test_secrets_stay_where_they_are(home, directory, tmp_path):
    write(directory / "x.h5")
    headers = tmp_path / "headers"
    headers.write_text("X-Secret: openSesame\n")
    with Site(directory) as site, Mount(site.url("x.h5", "?signature=aVerySecretWord"), f"header=@{headers}") as mount:
        np.load(mount / "plain.npy")
        assert any(seen.get("x-secret") == "openSesame" for seen in site.seen)
        places = [Path(mount / ".npyfs/status.json").read_bytes(), Path(mount / ".npyfs/errors.log").read_bytes(),
                  Path(f"/proc/{mount.pid}/cmdline").read_bytes(), Path("/proc/self/mountinfo").read_bytes()]
        places += [path.read_bytes() for path in home.rglob("*") if path.is_file()]
        names = " ".join(map(str, home.rglob("*"))).encode()
        for place in [*places, names]:
            assert b"aVerySecretWord" not in place and b"openSesame" not in place


def test_headers_do_not_cross_to_another_host(home, directory, tmp_path):
    shown = write(directory / "x.h5")
    headers = tmp_path / "headers"
    headers.write_text("X-Secret: openSesame\n")
    with Site(directory) as behind, Site(directory) as site:
        site.fault = lambda handler: handler.refuse(302, Location=behind.url("x.h5"))
        with Mount(site.url("x.h5"), f"header=@{headers}") as mount:
            same(mount, shown)
        assert all("x-secret" in seen for seen in site.seen) and site.seen
        assert not any("x-secret" in seen for seen in behind.seen) and behind.seen


def test_what_is_kept_is_checked(home, directory):
    shown = write(directory / "x.h5")
    with Site(directory) as site:
        with Mount(site.url("x.h5")) as mount:
            same(mount, shown)
        kept = next((home / "objects").glob("*.bytes"))
        data = bytearray(kept.read_bytes())
        for at in range(0, len(data), 40_000):
            data[at] ^= 0xff
        kept.write_bytes(data)
        with Mount(site.url("x.h5")) as mount:
            same(mount, shown)


def test_without_a_disk_cache_nothing_is_kept(home, directory):
    shown = write(directory / "x.h5")
    with Site(directory) as site, Mount(site.url("x.h5"), "disk_cache=0") as mount:
        same(mount, shown)
    assert not list(home.rglob("*.bytes"))


def test_links_to_other_files_lead_nowhere(home, directory, tmp_path):
    (tmp_path / "secret.h5").write_bytes(b"")
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["a"] = np.arange(4)
    with h5py.File(directory / "x.h5", "w") as file:
        file["link"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/a")
        file["own"] = np.arange(3)
        layout = h5py.VirtualLayout((4,), "i8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "a", (4,))
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("raw", (4,), "i8", external=[(str(tmp_path / "raw.bin"), 0, 32)])
    (tmp_path / "raw.bin").write_bytes(np.arange(4).tobytes())
    with Site(directory) as site, Mount(site.url("x.h5"), "external=allow") as mount:
        np.testing.assert_array_equal(np.load(mount / "own.npy"), np.arange(3))
        for name in ("link.npy", "virtual.npy", "raw.npy"):
            with pytest.raises(OSError):
                np.load(mount / name)


def test_directories_of_web_servers_are_refused(home, directory):
    with Site(directory) as site:
        refused = npyfs("ls", site.url(""))
        assert refused.returncode == 2 and "name one of them" in refused.stderr


def test_views_of_a_store_that_lies_elsewhere(home, directory):
    """Chunk files are fetched when they are read, and only then."""
    zarr = pytest.importorskip("zarr")
    array = np.random.default_rng(5).normal(size=(4000, 250))
    with h5py.File(directory / "x.h5", "w") as file:
        file.create_dataset("large", data=array, chunks=(100, 250))
        file["group/small"] = np.arange(5)
    with Site(directory) as site, Mount(site.url("x.h5")) as mount:
        view = zarr.open_group(mount / ".npyfs/zarr", mode="r")
        assert sorted(view.array_keys()) == ["large"] and view["large"].chunks == (100, 250)
        assert site.bytes < array.nbytes / 4
        np.testing.assert_array_equal(view["large"][:100], array[:100])
        assert site.bytes < array.nbytes / 2
        np.testing.assert_array_equal(view["large"][:], array)
        np.testing.assert_array_equal(view["group/small"][:], np.arange(5))
    with Site(directory) as site, Mount(site.url("x.h5"), "view=zarr3") as mount:
        view = zarr.open_group(mount.path, mode="r", zarr_format=3)
        np.testing.assert_array_equal(view["large"][:], array)


def test_a_file_without_a_time_has_no_date(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.arange(3)
    with Site(tmp_path, times=False) as site:
        line, = npyfs("ls", "-l", site.url("x.h5"), check=True).stdout.splitlines()
        assert "1970" not in line and line.split()[:3] == ["-", "152", "-"]
        entry, = json.loads(npyfs("ls", "--json", site.url("x.h5"), check=True).stdout)
        assert entry["time"] is None
    with Site(tmp_path) as site:
        entry, = json.loads(npyfs("ls", "--json", site.url("x.h5"), check=True).stdout)
        assert entry["time"].startswith("20")
