"""What is kept on disk of stores that lie elsewhere: shared by processes, bounded, never wrong. Judged by h5py on the same file."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.mount import Mount, until
from support.process import npyfs, one_line, run
from support.sampling import Sample
from support.web import Site

SAMPLE = Sample(__file__, "cache")
ROUNDS = SAMPLE.count(12, 100)


@pytest.fixture
def directory(tmp_path):
    directory = tmp_path / "www"
    directory.mkdir()
    return directory


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "kept"


def write(path, mib=8, seed=0):
    """A file with contiguous and compressed arrays; returns {visible name: array}."""
    generator, shown = np.random.default_rng(seed), {}
    with h5py.File(path, "w") as file:
        for number in range(4):
            array = generator.integers(1, 2**31, (mib << 20) // 32, dtype="i8")
            options = {"chunks": (1 << 13,), "compression": "gzip", "compression_opts": 1} if number % 2 else {}
            file.create_dataset(f"g{number}/a", data=array, **options)
            shown[f"g{number}/a.npy"] = array
    return shown


def same(mount, shown):
    for name, array in shown.items():
        # Not by a map: a fault would hold the interpreter that answers the request.
        np.testing.assert_array_equal(np.load(mount / name), array, err_msg=name)


def kept(cache):
    return sum(path.stat().st_blocks * 512 for path in cache.rglob("*") if path.is_file())


def data_requests(site, name="x.h5"):
    return [asked for asked in site.asked if asked[0] == "GET" and asked[1] == name]


READER = """
import os, random, sys
point, names, seed, seconds = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]), float(sys.argv[4])
import time, zlib
rng, end = random.Random(f"{os.environ['NPYFS_SEED']} {seed}"), time.monotonic() + seconds
while time.monotonic() < end:
    name = rng.choice(names)
    fd = os.open(f"{point}/{name}", os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    size = os.fstat(fd).st_size
    for _ in range(8):
        at = rng.randrange(size)
        data = os.pread(fd, rng.choice([10, 5000, 100_000, 1 << 20]), at)
        print(name, at, len(data), zlib.crc32(data))
    os.close(fd)
"""


def npy(array):
    import io
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def judged(output, shown, mount):
    """Whether all that readers printed is what the arrays hold; returns how much that is."""
    import zlib
    whole = {name: Path(mount / name).read_bytes() for name in shown}
    for name, array in shown.items():
        assert whole[name].endswith(array.tobytes()), name
    count = 0
    for line in output.splitlines():
        name, at, length, crc = line.split()
        assert zlib.crc32(whole[name][int(at):int(at) + int(length)]) == int(crc), line
        count += 1
    return count


def test_a_file_of_another_form_is_left_alone(directory, cache):
    shown = write(directory / "x.h5", 1)
    with Site(directory) as site:
        with Mount(site.url("x.h5"), f"cache_dir={cache}") as mount:
            same(mount, shown)
        [path] = cache.rglob("*.bytes")
        with open(path, "r+b") as file:
            file.seek(-4096, os.SEEK_END)
            assert file.read(8) == b"npyfsob1"
            file.seek(-4096, os.SEEK_END)
            file.write(b"npyfsob2")
        before = path.read_bytes()
        with Mount(site.url("x.h5"), f"cache_dir={cache}") as mount:
            same(mount, shown)
            assert "another version of the format" in json.dumps(mount.status())
        assert path.read_bytes() == before
        npyfs("cache", "clear", "--dir", cache, check=True)
        assert not path.exists()


def test_two_mounts_on_one_small_cache_read_no_wrong_byte(directory, cache):
    shown = write(directory / "x.h5", 16)
    with Site(directory) as site:
        options = f"cache_dir={cache},disk_cache=4M,cache_size=8M"
        with Mount(site.url("x.h5"), options) as one, Mount(site.url("x.h5"), options) as two:
            readers = []
            for number in range(8):
                mount = (one, two)[number % 2]
                command = [sys.executable, "-c", READER, str(mount.path), ",".join(shown), str(number), "6"]
                readers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            peak, count = 0, 0
            outputs = []
            collectors = [threading.Thread(target=lambda reader=reader: outputs.append(reader.communicate(timeout=200)[0])) for reader in readers]
            for collector in collectors:
                collector.start()
            while any(collector.is_alive() for collector in collectors):
                peak = max(peak, kept(cache))
                time.sleep(0.05)
            assert all(reader.returncode == 0 for reader in readers)
            for number, output in enumerate(outputs):
                count += judged(output, shown, (one, two)[number % 2])
            assert count > 100
        # A little over it, as each of them looks only now and then.
        assert peak < 7 << 20, peak
    assert kept(cache) > 0


def test_the_second_mount_reads_from_disk(directory, cache):
    shown = write(directory / "x.h5")
    with Site(directory) as site:
        with Mount(site.url("x.h5"), f"cache_dir={cache}") as mount:
            same(mount, shown)
        site.asked.clear()
        with Mount(site.url("x.h5"), f"cache_dir={cache}") as mount:
            same(mount, shown)
        assert len(site.asked) == 1, site.asked


def test_the_metadata_of_what_was_given_back_are_still_there(directory, cache):
    write(directory / "x.h5", 8)
    shown = write(directory / "y.h5", 16, seed=1)
    options = f"cache_dir={cache},disk_cache=8M"
    with Site(directory) as site:
        with Mount(site.url("x.h5"), options) as mount:
            mount.files()
        with Mount(site.url("y.h5"), options) as mount:
            same(mount, shown)
        site.asked.clear()
        with Mount(site.url("x.h5"), options) as mount:
            assert len(mount.files()) == 4
            run(["ls", "-lR", mount.path], check=True)
        assert len(site.asked) == 1, site.asked


def test_what_is_kept_is_private(directory, cache):
    shown = write(directory / "x.h5", 1)
    with Site(directory) as site, Mount(site.url("x.h5"), f"cache_dir={cache}") as mount:
        same(mount, shown)
    objects = cache / "objects"
    assert objects.stat().st_mode & 0o7777 == 0o700
    files = list(objects.iterdir())
    assert files and all(path.stat().st_mode & 0o7777 == 0o600 for path in files)


@pytest.mark.parametrize("make", ["link", "open", "other", "file", "parent", "above"])
def test_directories_that_cannot_be_trusted_are_not_used(directory, cache, tmp_path, make):
    shown = write(directory / "x.h5", 1)
    objects, elsewhere = cache / "objects", tmp_path / "elsewhere"
    elsewhere.mkdir()
    cache.mkdir()
    if make == "link":
        objects.symlink_to(elsewhere)
    elif make == "file":
        objects.write_bytes(b"")
    else:
        objects.mkdir()
        if make == "open":
            objects.chmod(0o777)
        elif make in ("parent", "above") and os.geteuid() == 0:
            os.chown(cache if make == "parent" else cache.parent, 12345, 12345)
        elif os.geteuid() == 0:
            os.chown(objects, 12345, 12345)
        else:
            pytest.skip("only root gives a directory away")
    with Site(directory) as site, Mount(site.url("x.h5"), f"cache_dir={cache}") as mount:
        same(mount, shown)
        assert "nothing is kept" in Path(mount / ".npyfs/errors.log").read_text()
    assert not list(elsewhere.iterdir()) and (make in ("link", "file") or not list(objects.iterdir()))


def test_links_in_place_of_files_are_not_followed(directory, cache, tmp_path):
    shown = write(directory / "x.h5", 1)
    with Site(directory) as site:
        with Mount(site.url("x.h5"), f"cache_dir={cache}") as mount:
            same(mount, shown)
        version = next((cache / "objects").glob("*.bytes"))
        version.unlink()
        (tmp_path / "victim").write_bytes(b"victim")
        version.symlink_to(tmp_path / "victim")
        with Mount(site.url("x.h5"), f"cache_dir={cache}") as mount:
            same(mount, shown)
    assert (tmp_path / "victim").read_bytes() == b"victim"


def test_nothing_is_kept_on_a_mount_of_npyfs_nor_in_the_mount_point(directory, cache, tmp_path):
    shown = write(directory / "x.h5", 1)
    with h5py.File(tmp_path / "local.h5", "w") as file:
        file["a"] = np.arange(3)
    with Site(directory) as site:
        with Mount(tmp_path / "local.h5", checkout="c") as local:
            (local.path / "objects").mkdir()
            with Mount(site.url("x.h5"), f"cache_dir={local.path}") as mount:
                same(mount, shown)
                assert "mount of npyfs" in Path(mount / ".npyfs/errors.log").read_text()
        point = tmp_path / "point"
        point.mkdir()
        refused = npyfs("mount", "-o", f"cache_dir={point}/below", site.url("x.h5"), point)
        assert refused.returncode != 0 and "mount point" in one_line(refused.stderr)


def test_a_full_disk_is_done_without(directory, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    shown = write(directory / "x.h5", 8)
    small = tmp_path / "small"
    small.mkdir()
    if run(["mount", "-t", "tmpfs", "-o", "size=2M,mode=700", "tmpfs", small]).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        with Site(directory) as site, Mount(site.url("x.h5"), f"cache_dir={small},cache_size=4M") as mount:
            same(mount, shown)
            same(mount, shown)
            assert any("nothing more is kept on disk" in note for note in mount.status()["remote"][0]["notes"])
    finally:
        run(["umount", small], check=True)


def test_a_disk_that_was_full_is_used_again(directory, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    shown = write(directory / "x.h5", 24)
    small = tmp_path / "small"
    small.mkdir()
    if run(["mount", "-t", "tmpfs", "-o", "size=64M,mode=700", "tmpfs", small]).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        (small / "of-others").write_bytes(bytes(62 << 20))
        with Site(directory) as site, Mount(site.url("x.h5"), f"cache_dir={small}/cache,cache_size=4M") as mount:
            half = dict(list(shown.items())[:2])
            same(mount, half)
            assert any("nothing more is kept on disk" in note for note in mount.status()["remote"][0]["notes"])
            (small / "of-others").unlink()
            until(lambda: tried(mount, shown), "the disk")
            same(mount, shown)
        # What was in memory meanwhile is there, too.
        assert kept(small / "cache") > 18 << 20
    finally:
        run(["umount", small], check=True)


def tried(mount, shown):
    """Whether the disk is in use; looks at a little that was not read yet, as nobody else would find out."""
    name = list(shown)[-1]
    at = tried.at = getattr(tried, "at", 0) + 100_000
    with open(mount / name, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(file.fileno(), 10, at)
    time.sleep(0.5)
    return not mount.status()["remote"][0]["notes"]


def test_damage_of_any_part_of_a_file_costs_requests_and_no_bytes(directory, cache):
    shown = write(directory / "x.h5", 1)
    rng = random.Random(3)
    with Site(directory) as site:
        for number in range(12):
            with Mount(site.url("x.h5"), f"cache_dir={cache}") as mount:
                same(mount, shown)
            version = next((cache / "objects").glob("*.bytes"))
            data = bytearray(version.read_bytes())
            match number % 4:
                case 0:
                    # Anywhere: bytes, checksums and the last page.
                    for _ in range(200):
                        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                case 1:
                    data[-rng.randrange(1, 12_000):] = bytes(0)
                case 2:
                    for _ in range(20):
                        at = rng.randrange(len(data))
                        data[at:at + 50_000] = bytes(len(data[at:at + 50_000]))
                case 3:
                    data[-4096:] = rng.randbytes(4096)
            version.write_bytes(data)


def test_a_file_that_is_cut_or_removed_while_it_is_used(directory, cache):
    shown = write(directory / "x.h5", 2)
    with Site(directory) as site, Mount(site.url("x.h5"), f"cache_dir={cache},cache_size=1M") as mount:
        same(mount, shown)
        version = next((cache / "objects").glob("*.bytes"))
        run(["sh", "-c", "echo 3 > /proc/sys/vm/drop_caches"])
        os.truncate(version, 100_000)
        same(mount, shown)
        version.unlink()
        same(mount, shown)


@pytest.mark.slow
@pytest.mark.timeout(120 + 6 * ROUNDS)
def test_kill_9_while_the_cache_is_filled_leaves_no_wrong_byte(directory, cache):
    shown = write(directory / "x.h5", 4)
    rng = SAMPLE.random()
    filled = 0
    with Site(directory) as site:
        for number in range(ROUNDS):
            small = rng.random() < 0.5
            options = f"cache_dir={cache},cache_size=2M,disk_cache={'1M' if small else '1G'}"
            with Mount(site.url("x.h5"), options) as mount:
                mount.expect_dead = True
                reader = subprocess.Popen([sys.executable, "-c", READER, str(mount.path), ",".join(shown), str(number), "60"],
                                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                if number % 2:
                    until(lambda: kept(cache) > 100_000, "what is read to be kept")
                time.sleep(rng.random() * 0.5)
                os.kill(mount.pid, signal.SIGKILL)
                reader.wait(60)
            filled += kept(cache) > 100_000
            if number % 10 == 9:
                # Without the network what is there is all there is: it must be right, too.
                with Mount(site.url("x.h5"), f"cache_dir={cache}") as mount:
                    same(mount, shown)
                npyfs("cache", "clear", "--dir", cache, check=True)
        assert filled > ROUNDS // 2


def listed(cache):
    return json.loads(npyfs("cache", "ls", "--json", "--dir", cache, check=True).stdout)


def test_cache_ls_and_clear(directory, cache):
    shown = write(directory / "x.h5", 1)
    write(directory / "y.h5", 1)
    with Site(directory) as site:
        assert listed(cache) == []
        for query in ("", "?signature=aVerySecretWord"):
            with Mount(site.url("x.h5", query), f"cache_dir={cache}") as mount:
                same(mount, shown)
        with Mount(site.url("y.h5"), f"cache_dir={cache}") as mount:
            mount.files()
            entries = {entry["url"]: entry for entry in listed(cache)}
            assert set(entries) == {site.url("x.h5"), site.url("y.h5")}
            x, y = entries[site.url("x.h5")], entries[site.url("y.h5")]
            assert x["size"] == os.path.getsize(directory / "x.h5") and x["kept"] > 0.9 * x["size"] and not x["in_use"]
            assert y["in_use"] and y["kept"] < x["kept"] and x["version"].startswith('"')
            text = npyfs("cache", "ls", "--dir", cache, check=True).stdout
            assert len(text.splitlines()) == 4 and site.url("x.h5") in text and "SecretWord" not in text
            # Two versions by their key, and one that is in use.
            done = npyfs("cache", "clear", "--dir", cache, check=True)
            assert site.url("y.h5") in done.stderr + done.stdout
            assert [entry["url"] for entry in listed(cache)] == [site.url("y.h5")]
            mount.files()
        npyfs("cache", "clear", "--dir", cache, site.url("x.h5"), check=True)
        assert len(listed(cache)) == 1
        npyfs("cache", "clear", "--dir", cache, site.url("y.h5", "?any=thing"), check=True)
        assert listed(cache) == []


def test_versions_that_are_gone_make_room_first(directory, cache):
    options = f"cache_dir={cache},disk_cache=8M"
    with Site(directory) as site:
        for number in range(6):
            shown = write(directory / "x.h5", 4, seed=number)
            with Mount(site.url("x.h5"), options) as mount:
                same(mount, shown)
            assert kept(cache) <= 8 << 20
        site.asked.clear()
        with Mount(site.url("x.h5"), options) as mount:
            same(mount, shown)
        assert len(site.asked) == 1


def test_a_process_that_was_killed_while_it_gave_room_back_is_recovered_from(directory, cache):
    shown = write(directory / "x.h5", 1)
    with Site(directory) as site:
        with Mount(site.url("x.h5"), f"cache_dir={cache}") as mount:
            same(mount, shown)
        version = next((cache / "objects").glob("*.bytes"))
        with open(version, "r+b") as file:
            # Its generation is odd: somebody was at it. And the hole that he made.
            file.seek(-4096 + 8, os.SEEK_END)
            file.write((12345).to_bytes(8, "little"))
            file.seek(100_000)
            file.write(bytes(300_000))
        with Mount(site.url("x.h5"), f"cache_dir={cache}") as mount:
            same(mount, shown)


def test_a_disk_that_fails_is_done_without(directory, cache, tmp_path):
    """What is in the place of the directory cannot be written to at all."""
    shown = write(directory / "x.h5", 1)
    with Site(directory) as site, Mount(site.url("x.h5"), "cache_dir=/proc/npyfs") as mount:
        same(mount, shown)
        assert "nothing is kept in /proc/npyfs" in Path(mount / ".npyfs/errors.log").read_text()
