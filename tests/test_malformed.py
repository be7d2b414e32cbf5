"""Damaged and hostile files cost an error on what is damaged, never the mount. Judges: the kernel (the daemon's life and its
peak memory), a time limit on every reader, and h5py for what must stay readable. The foreign files come from
../shared/fixtures/malformed; the rest is damaged here."""

import ast
import errno
import json
import os
import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest

from support.mount import Mount, mounted
from support.process import npyfs, one_line, peak_memory, run
from support.sampling import Sample
from support.truth import np_save, read, visible_array

# Reads every file below a folder to the end; of files that claim more than 64 MiB the first 64 and the last one.
READER = """
import os, sys
files = errors = 0
def count(problem):
    global errors
    errors += 1
for folder, folders, names in os.walk(sys.argv[1], onerror=count):
    for name in names:
        path = os.path.join(folder, name)
        files += 1
        try:
            size = os.lstat(path).st_size
            with open(path, "rb", buffering=0) as stream:
                left = 64 << 20
                while left > 0 and (data := stream.read(1 << 20)):
                    left -= len(data)
                if left <= 0:
                    os.pread(stream.fileno(), 1 << 20, max(0, size - (1 << 20)))
        except OSError:
            errors += 1
print(files, errors)
"""
SECONDS, MEMORY = 20, 1 << 30
SAMPLE = Sample(__file__, "damage")

# What libhdf5, in a process that it may crash, lists of the root group: names one by one, and "whole" if that was all.
LISTER = """
import sys, h5py
with h5py.File(sys.argv[1]) as file:
    file.id.links.iterate(lambda name: print("name", ascii(name.decode("utf-8", "replace")), flush=True))
print("whole", flush=True)
"""


@pytest.fixture(scope="module")
def malformed(shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("malformed") / "tree"
    folder.mkdir()
    for path in sorted((shared / "malformed").iterdir()):
        if path.suffix != ".txt":
            shutil.copyfile(path, folder / path.name)
    assert len(os.listdir(folder)) == 73
    write_good(folder / "good.h5")
    return folder


def write_good(path):
    with h5py.File(path, "w") as file:
        for name in ("a", "m", "z"):
            file[name] = np.arange(1000)
        file.create_dataset("chunked", data=np.arange(5000), chunks=(500,), compression="gzip", fletcher32=True)


def walk_and_read(folder):
    """find -ls and a complete reading, each in a process of its own under a time limit. Returns (files, errors)."""
    run(["find", folder, "-ls"], timeout=SECONDS)
    done = run([sys.executable, "-c", READER, folder], timeout=SECONDS, check=True)
    return tuple(map(int, done.stdout.split()))


def assert_good(folder):
    assert read(folder / "a.npy") == np_save(np.arange(1000))
    assert read(folder / "chunked.npy") == np_save(np.arange(5000))


def names(shared_folder):
    return sorted(name for name in os.listdir(shared_folder) if name != "good.h5")


@pytest.mark.timeout(1800)
def test_all_in_one_tree(malformed):
    with Mount(malformed, limit=1700) as mount:
        problems = []
        for name in sorted(os.listdir(mount.path)):
            try:
                walk_and_read(mount / name)
            except AssertionError as problem:
                problems.append(f"{name}: {problem}")
            assert mount.alive(), f"the daemon died at {name}"
            if mount.peak_memory() >= MEMORY:
                problems.append(f"{name}: the daemon used {mount.peak_memory()} bytes")
                break
        assert not problems, "\n".join(problems)
        assert_good(mount / "good.h5")
        with Mount(malformed / "good.h5") as other:
            assert_good(other.path)
        run(["find", mount.path, "-ls"], timeout=60)
        served = {name for name in os.listdir(mount.path)}
        assert "good.h5" in served and "cve-2018-17436" not in served  # the one that is not HDF5


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_each_alone(malformed):
    """A refusal is one line and exit code 2; what is mounted is walked, read, and unmounted. Exit code 3, and one line
    on standard error, is a root group of which a part can be listed: h5py, too, fails in its middle, and each name that it
    comes to before that is shown or left out with a reason."""
    problems, refused, served = [], 0, 0
    tried = SAMPLE.choose(names(malformed), 20, "malformed files")
    for name in tried:
        try:
            probe = npyfs("ls", malformed / name, timeout=SECONDS)
            assert probe.returncode in (0, 2, 3), f"ls: exit code {probe.returncode} {probe.stderr!r}"
            whole, found = listed(malformed / name)
            if probe.returncode == 3:
                assert "some members are missing" in one_line(probe.stderr) and not whole
                info = json.loads(npyfs("info", "--json", malformed / name, timeout=SECONDS, check=True).stdout)
                left = {entry["name"] for entry in info["left_out"]}
                assert found <= left | {shown.removesuffix(".npy") for shown in probe.stdout.splitlines()}, f"{found} of {info}"
            if probe.returncode == 0:
                assert whole, "h5py cannot list all of it, which npyfs does not say"
            if probe.returncode == 2:
                one_line(probe.stderr)
                refused += 1
            else:
                with Mount(malformed / name, limit=100) as mount:
                    walk_and_read(mount.path)
                    assert mount.peak_memory() < MEMORY
                served += 1
        except AssertionError as problem:
            problems.append(f"{name}: {problem}")
    assert not problems, "\n".join(problems)
    # libhdf5 itself opens most of them.
    assert refused + served == len(tried) and served > len(tried) // 4
    assert not SAMPLE.is_whole or (len(tried) == 73 and served > 20)


def listed(path):
    """Whether h5py can list all of the root group, and the names that it came to."""
    done = subprocess.run([sys.executable, "-c", LISTER, path], capture_output=True, text=True, timeout=SECONDS)
    lines = done.stdout.splitlines()
    return "whole" in lines, {ast.literal_eval(line.removeprefix("name ")) for line in lines if line.startswith("name ")}


def test_a_refused_file_mounts_nothing(malformed, tmp_path):
    done = npyfs("mount", malformed / "cve-2018-17436", tmp_path)
    assert done.returncode == 2 and not mounted(tmp_path)
    one_line(done.stderr)


@pytest.fixture
def damaged(tmp_path):
    """A store with one bad chunk, one dataset without its filter, one whose data lie past the end; all else is good."""
    path = tmp_path / "damaged.h5"
    write_good(path)
    with h5py.File(path, "r+") as file:
        for name in ("flipped", "torn"):
            file.create_dataset(f"bad/{name}", data=np.arange(3000), chunks=(1000,), compression="gzip", fletcher32=name == "flipped")
        file["bad/neighbour"] = np.arange(10)
        foreign = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        foreign.set_chunk((100,))
        foreign.set_filter(32999, h5py.h5z.FLAG_OPTIONAL, ())  # a filter that nobody has
        dataset = file.create_dataset("bad/unknown_filter", (100,), "u1", dcpl=foreign, allow_unknown_filter=True)
        dataset.id.write_direct_chunk((0,), b"whatever this means", 0)
        places = {name: file[f"bad/{name}"].id.get_chunk_info(1) for name in ("flipped", "torn")}
    with open(path, "r+b") as stream:
        for place in places.values():
            stream.seek(place.byte_offset + place.size // 2)
            old = stream.read(8)
            stream.seek(-8, os.SEEK_CUR)
            stream.write(bytes(byte ^ 0xFF for byte in old))
    return path


@pytest.mark.parametrize("name", ["flipped", "torn", "unknown_filter"])
def test_a_damaged_object_is_EIO_there_and_nowhere_else(damaged, name):
    with h5py.File(damaged, "r") as file, pytest.raises(OSError):
        file[f"bad/{name}"][()]  # h5py agrees that it is damaged
    with Mount(damaged) as mount:
        assert mount.errors() == []
        for _ in range(2):
            with pytest.raises(OSError) as problem:
                read(mount / f"bad/{name}.npy")
            assert problem.value.errno == errno.EIO
        lines = [line for line in mount.errors() if name in line]
        assert lines and all("damaged.h5" in line for line in lines)
        assert_good(mount.path)
        assert read(mount / "bad/neighbour.npy") == np_save(np.arange(10))
        assert sorted(os.listdir(mount / "bad")) == ["flipped.npy", "neighbour.npy", "torn.npy", "unknown_filter.npy"]
    done = npyfs("cat", damaged, f"bad/{name}.npy", text=False)
    assert done.returncode == 3
    one_line(done.stderr.decode())


def test_chunks_before_the_damaged_one_still_read(damaged):
    with Mount(damaged) as mount:
        with open(mount / "bad/flipped.npy", "rb", buffering=0) as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            assert os.pread(stream.fileno(), 4096, 0) == np_save(np.arange(3000))[:4096]


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_truncated_files(tmp_path, keep, libver):
    tree = tmp_path / "tree"
    tree.mkdir()
    write_good(tree / "good.h5")
    with h5py.File(tree / "cut.h5", "w", libver=libver) as file:
        for i in range(50):
            file[f"g{i % 5}/d{i}"] = np.arange(300)
    size = (tree / "cut.h5").stat().st_size
    os.truncate(tree / "cut.h5", int(size * keep))
    done = npyfs("ls", tree / "cut.h5")
    assert done.returncode == 2
    one_line(done.stderr)
    with Mount(tree) as mount:
        if (mount / "cut.h5").is_dir():
            walk_and_read(mount / "cut.h5")
        assert_good(mount / "good.h5")
        assert mount.peak_memory() < 300 << 20


def test_a_store_cut_while_it_is_mounted(tmp_path):
    """The map says where the data were; they are gone. An error, no crash (a mapped file would end in SIGBUS)."""
    path = tmp_path / "cut.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(2_000_000)
    with Mount(path) as mount:
        with open(mount / "x.npy", "rb", buffering=0) as stream:
            assert len(stream.read(4096)) == 4096
            os.truncate(path, 9000)
            with pytest.raises(OSError) as problem:
                os.pread(stream.fileno(), 4096, 15_000_000)
            assert problem.value.errno in (errno.EIO, errno.ESTALE)
        assert mount.alive() and mount.status()["pid"] == mount.pid
        assert peak_memory(mount.pid) < 300 << 20


def write_long(path, kind):
    """32 MiB of elements that are read from the file itself, decoded from chunks, or by libhdf5 (text and virtual)."""
    values = np.arange(4 << 20)
    with h5py.File(path, "w") as file:
        if kind == "contiguous":
            file["x"] = values
        elif kind == "chunked":
            file.create_dataset("x", data=values, chunks=(1 << 15,), compression="gzip", compression_opts=1)
        elif kind == "text":
            file["x"] = np.array([f"{i:060}".encode() for i in range(1 << 19)], object)
        else:
            file["parts"] = values.reshape(8, -1)
            layout = h5py.VirtualLayout((8, 1 << 19), "<i8")
            layout[...] = h5py.VirtualSource(".", "parts", (8, 1 << 19), "<i8")
            file.create_virtual_dataset("x", layout)


@pytest.mark.parametrize("kind", ["contiguous", "chunked", "text", "virtual"])
def test_a_store_cut_under_a_running_cat(tmp_path, kind):
    path = tmp_path / "cut.h5"
    write_long(path, kind)
    with h5py.File(path, "r") as file:
        truth = np_save(visible_array(file["x"]))
    with Mount(path, "cache_size=4m") as mount:
        cat = subprocess.Popen(["cat", mount / "x.npy"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            data = cat.stdout.read(1 << 20)
            os.truncate(path, path.stat().st_size // 2)
            rest, said = cat.communicate(timeout=SECONDS)
        finally:
            cat.kill()
            cat.wait()
        data += rest
        assert cat.returncode == 1 and len(data) < len(truth), said
        assert b"Input/output error" in said or b"Stale file handle" in said
        assert truth.startswith(data), "what was read before is not the data"
        assert mount.alive() and mount.status()["pid"] == mount.pid


@pytest.mark.slow
def test_every_byte_of_a_small_store_damaged(tmp_path):
    """One file per damaged region of a small store: 8 bytes turned over, everywhere. All in one mounted tree."""
    with h5py.File(tmp_path / "seed.h5", "w", libver="latest") as file:
        file["g/x"] = np.arange(20)
        file.create_dataset("c", data=np.arange(40), chunks=(7,), maxshape=(None,), compression="gzip", fletcher32=True)
        file["t"] = np.array(["one", "two"], object)
        file["l"] = h5py.SoftLink("/g/x")
    seed, tree = (tmp_path / "seed.h5").read_bytes(), tmp_path / "tree"
    tree.mkdir()
    starts = SAMPLE.choose(range(0, len(seed) - 8, max(8, len(seed) // 250)), 80, "damaged regions")
    for start in starts:
        (tree / f"m{start:06}.h5").write_bytes(seed[:start] + bytes(byte ^ 0xFF for byte in seed[start:start + 8]) + seed[start + 8:])
    write_good(tree / "good.h5")
    with Mount(tree) as mount:
        done = run([sys.executable, "-c", READER, mount.path], timeout=90, check=True)
        files, errors = map(int, done.stdout.split())
        assert files > len(starts) and errors > 0
        assert mount.alive() and mount.peak_memory() < MEMORY
        assert_good(mount / "good.h5")
