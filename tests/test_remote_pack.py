"""`npyfs pack`: the metadata of a store in one file beside it. Judged by h5py on the store, and by the requests that a server saw."""

import os
import random
import struct
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.mount import Mount
from support.process import npyfs, one_line, run
from support.web import Site

MUTATIONS = 100


@pytest.fixture
def directory(tmp_path):
    directory = tmp_path / "www"
    directory.mkdir()
    return directory


def write(path, seed=0, groups=8, datasets=8):
    """Datasets whose metadata lie scattered among the data; returns {visible name: array}."""
    generator, shown = np.random.default_rng(seed), {}
    with h5py.File(path, "w") as file:
        for group in range(groups):
            for number in range(datasets):
                array = generator.integers(0, 1000, 8000 + number)
                name = f"g{group}/d{number}"
                options = {"chunks": (2000,), "compression": "gzip"} if number % 2 else {}
                file.create_dataset(name, data=array, **options)
                file[name].attrs["number"] = number
                shown[f"{name}.npy"] = array
                file.flush()
    return shown


def same(mount, shown):
    for name, array in shown.items():
        np.testing.assert_array_equal(np.load(mount / name), array, err_msg=name)


def gets(site, name="x.h5"):
    return [asked for asked in site.asked if asked[1] == name]


def looked(site, cache, options=""):
    """The requests for the store, and the notes, of a mount that is listed."""
    site.asked.clear()
    with Mount(site.url("x.h5"), ",".join(filter(None, [f"cache_dir={cache}", options]))) as mount:
        run(["ls", "-lR", mount.path], check=True)
        notes = Path(mount / ".npyfs/errors.log").read_text()
    return len(gets(site)), notes


def made(site, directory, tmp_path, from_copy):
    """Makes a pack beside the store."""
    pack = directory / "x.h5.npyfs-pack"
    if from_copy:
        done = npyfs("pack", directory / "x.h5", check=True)
        assert "put it beside the store" in done.stderr
    else:
        done = npyfs("pack", "-o", "disk_cache=0", site.url("x.h5"), pack, check=True)
        assert f"as {site.url('x.h5.npyfs-pack')}" in done.stderr
    return pack


@pytest.mark.fast
@pytest.mark.parametrize("from_copy", [False, True])
@pytest.mark.parametrize("tags", [True, False])
def test_a_mount_uses_the_pack_beside_a_store(directory, tmp_path, from_copy, tags):
    shown = write(directory / "x.h5")
    with Site(directory, tags=tags) as site:
        without, notes = looked(site, tmp_path / "a")
        assert "npyfs-pack" not in notes
        assert len(gets(site, "x.h5.npyfs-pack")) == 1
        pack = made(site, directory, tmp_path, from_copy)
        assert pack.stat().st_size < os.path.getsize(directory / "x.h5") / 2
        with_pack, notes = looked(site, tmp_path / "b")
        assert "npyfs-pack" not in notes
        assert with_pack <= 2 < without, (with_pack, without)
        # What is on disk already needs no pack, and is not asked for.
        again, _ = looked(site, tmp_path / "b")
        assert again == 1 and not gets(site, "x.h5.npyfs-pack")
        # Nor if nobody wants it.
        unpacked, _ = looked(site, tmp_path / "c", "nopack")
        assert unpacked > with_pack and not gets(site, "x.h5.npyfs-pack")
        with Mount(site.url("x.h5"), f"cache_dir={tmp_path / 'd'}") as mount:
            same(mount, shown)


def test_a_large_pack_comes_in_parts(directory, tmp_path):
    with h5py.File(directory / "x.h5", "w") as file:
        for number in range(20_000):
            file[f"g{number // 1000}/d{number}"] = np.full(3, number)
    with Site(directory) as site:
        before, _ = looked(site, tmp_path / "a")
        size = made(site, directory, tmp_path, True).stat().st_size
        assert size > 6 << 20
        after, notes = looked(site, tmp_path / "b")
        assert not notes and after < before / 4, (before, after, notes)
        assert len(gets(site, "x.h5.npyfs-pack")) == 1 + -(-(size - (1 << 20)) // (4 << 20))
        with Mount(site.url("x.h5"), f"cache_dir={tmp_path / 'c'}") as mount:
            for number in (0, 777, 10_500, 19_999):
                np.testing.assert_array_equal(np.load(mount / f"g{number // 1000}/d{number}.npy"), np.full(3, number))


def test_a_pack_is_written_beside_a_file_or_where_it_is_told(directory, tmp_path):
    write(directory / "x.h5", groups=1)
    npyfs("pack", directory / "x.h5", check=True)
    npyfs("pack", f"file://{directory}/x.h5", tmp_path / "own", check=True)
    assert (directory / "x.h5.npyfs-pack").read_bytes() == (tmp_path / "own").read_bytes()
    with Site(directory) as site:
        npyfs("pack", site.url("x.h5"), check=True, cwd=tmp_path)
        assert (tmp_path / "x.h5.npyfs-pack").read_bytes().startswith(b"npyfspak")
        (directory / "no.h5").write_bytes(b"no HDF5 file")
        for store in (directory / "no.h5", directory / "missing.h5", site.url("no.h5"), site.url("missing.h5")):
            refused = npyfs("pack", store, tmp_path / "none")
            assert refused.returncode == 2 and one_line(refused.stderr)
    assert not (tmp_path / "none").exists()
    pack = (tmp_path / "x.h5.npyfs-pack").read_bytes()
    assert b"127.0.0.1" not in pack


def test_a_pack_of_another_version_is_not_used(directory, tmp_path):
    write(directory / "x.h5")
    with Site(directory) as site:
        pack = made(site, directory, tmp_path, False)
        shown = write(directory / "x.h5", seed=1)
        requests, notes = looked(site, tmp_path / "a")
        assert "another version" in notes and requests > 2
        with Mount(site.url("x.h5"), f"cache_dir={tmp_path / 'a'}") as mount:
            same(mount, shown)
        # Made from a copy, put there before the store was changed in place.
        pack.unlink()
        made(site, directory, tmp_path, True)
        with h5py.File(directory / "x.h5", "r+") as file:
            file["g0/d0"].attrs["number"] = 77
        later = os.stat(directory / "x.h5").st_mtime + 10
        os.utime(directory / "x.h5", (later, later))
        _, notes = looked(site, tmp_path / "b")
        assert "older than the store" in notes
        with Mount(site.url("x.h5"), f"cache_dir={tmp_path / 'b'}") as mount:
            assert mount.info("g0/d0.npy")["attributes"]["number"] == 77


def test_packs_are_refused_by_name_where_they_are_too_large_or_none(directory, tmp_path):
    write(directory / "x.h5", groups=1)
    pack = directory / "x.h5.npyfs-pack"
    with Site(directory) as site:
        with open(pack, "wb") as file:
            file.truncate((64 << 20) + 1)
        assert "larger than 64 MiB" in looked(site, tmp_path / "a")[1]
        assert site.bytes < 10 << 20
        pack.write_bytes(b"<html>nothing here</html>")
        assert "no pack" in looked(site, tmp_path / "b")[1]
        pack.write_bytes(b"")
        looked(site, tmp_path / "c")


def test_nothing_is_looked_for_beside_an_address_with_a_signature(directory, tmp_path):
    write(directory / "x.h5", groups=1)
    with Site(directory) as site:
        with Mount(site.url("x.h5", "?signature=word"), f"cache_dir={tmp_path / 'a'}") as mount:
            mount.files()
        assert not gets(site, "x.h5.npyfs-pack")


@pytest.mark.slow
@pytest.mark.parametrize("from_copy", [False, True])
def test_damaged_packs_cost_requests_and_never_bytes(directory, tmp_path, from_copy):
    shown = write(directory / "x.h5", groups=2, datasets=4)
    rng = random.Random(5)
    with Site(directory) as site:
        pack = made(site, directory, tmp_path, from_copy)
        good = pack.read_bytes()
        moved = os.stat(pack).st_mtime
        for number in range(MUTATIONS // 2):
            bad = bytearray(good)
            match number % 5:
                case 0:
                    bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
                case 1:
                    del bad[rng.randrange(len(bad)):]
                case 2:
                    at = rng.randrange(len(bad))
                    bad[at:at + 4096] = rng.randbytes(len(bad[at:at + 4096]))
                case 3:
                    # Its head, where sizes and ranges are.
                    at = 8 * rng.randrange(16)
                    bad[at:at + 8] = struct.pack("<Q", rng.choice([0, 1, 2**63, 2**64 - 1, rng.randrange(1 << 24)]))
                case 4:
                    bad += rng.randbytes(rng.randrange(1, 10_000))
            pack.write_bytes(bad)
            os.utime(pack, (moved, moved))
            cache = tmp_path / f"cache-{number}"
            with Mount(site.url("x.h5"), f"cache_dir={cache}") as mount:
                if bytes(bad) != good:
                    assert "is not used" in Path(mount / ".npyfs/errors.log").read_text()
                same(mount, shown)
                assert mount.info("g1/d3.npy")["attributes"] == {"number": 3}
