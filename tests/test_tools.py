"""The tools people have — cp, rsync, tar, find, du, df, sha256sum, dd, cat — work on the mount and see the right bytes.
Judge: np.save of what h5py reads, computed before the tools run; statvfs of the store's volume for df."""

import hashlib
import os
import subprocess

import h5py
import numpy as np
import pytest

from support.mount import Mount
from support.process import run
from support.truth import np_save, sha256, walk

pytestmark = pytest.mark.fast


@pytest.fixture(scope="module")
def mount(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools") / "tree"
    (folder / "sub dir").mkdir(parents=True)
    random = np.random.default_rng(5)
    with h5py.File(folder / "big.h5", "w") as file:
        values = random.integers(0, 50, 3_000_001)  # 24 MB in chunks of 5.6 MB, the last one cut
        file.create_dataset("gzip", data=values, chunks=(700_000,), compression="gzip", compression_opts=1, shuffle=True)
        file.create_dataset("rows", data=values[:1_500_000].astype("f4").reshape(1500, 1000), chunks=(1024, 999), compression="lzf")
        file.create_dataset("flat", data=random.normal(size=300_000))
    with h5py.File(folder / "sub dir/small.h5", "w", libver="latest") as file:
        for i in range(40):
            file[f"group {i % 5}/deep/set{i}"] = np.arange(i)
        file["link"] = h5py.SoftLink("/group 1/deep/set1")
        file["text"] = np.array(["a", "ü"], object)
        file.create_group("empty group")
    with Mount(folder, limit=400) as mount:
        yield mount


@pytest.fixture(scope="module")
def truth(mount):
    """{path in the mount: bytes}"""
    found = {f"big.h5/{path}": np_save(array) for path, array in walk(mount.store / "big.h5").items()}
    found |= {f"sub dir/small.h5/{path}": np_save(array) for path, array in walk(mount.store / "sub dir/small.h5").items()}
    assert len(found) == 44
    return found


def assert_copy(folder, truth):
    files = {os.path.relpath(os.path.join(place, name), folder) for place, _, names in os.walk(folder) for name in names}
    assert files == {*truth, "sub dir/small.h5/link.npy"}
    wrong = [path for path, data in truth.items() if (folder / path).read_bytes() != data]
    assert not wrong
    assert os.readlink(folder / "sub dir/small.h5/link.npy") == "group 1/deep/set1.npy"
    assert (folder / "sub dir/small.h5/empty group").is_dir()


def test_cp_r(mount, truth, tmp_path):
    run(["cp", "-r", mount.path, tmp_path / "copy"], check=True)
    assert_copy(tmp_path / "copy", truth)


def test_cp_with_holes_and_times(mount, truth, tmp_path):
    run(["cp", "-a", "--sparse=always", mount.path, tmp_path / "copy"], check=True)
    assert_copy(tmp_path / "copy", truth)
    for path in truth:
        assert os.stat(tmp_path / "copy" / path).st_mtime_ns == os.stat(mount / path).st_mtime_ns


def test_rsync_twice(mount, truth, tmp_path):
    first = run(["rsync", "-a", "--stats", f"{mount.path}/", tmp_path / "copy"], check=True)
    assert statistic(first.stdout, "Number of regular files transferred") == len(truth)
    assert_copy(tmp_path / "copy", truth)
    second = run(["rsync", "-ai", "--stats", f"{mount.path}/", tmp_path / "copy"], check=True)
    assert statistic(second.stdout, "Number of regular files transferred") == 0
    assert not [line for line in second.stdout.splitlines() if line and line[0] in "<>ch" and line[1:2] in "fdL"], second.stdout
    compared = run(["rsync", "-acni", f"{mount.path}/", tmp_path / "copy"], check=True)
    assert compared.stdout == ""


def statistic(output, label):
    lines = [line for line in output.splitlines() if line.startswith(f"{label}:")]
    assert len(lines) == 1, output
    return int(lines[0].split(":")[1].replace(",", ""))


def test_tar(mount, truth, tmp_path):
    run(["tar", "-C", mount.path, "-cf", tmp_path / "all.tar", "."], check=True)
    (tmp_path / "copy").mkdir()
    run(["tar", "-C", tmp_path / "copy", "-xf", tmp_path / "all.tar"], check=True)
    assert_copy(tmp_path / "copy", truth)
    done = run(["tar", "-C", mount.path, "--compare", "-f", tmp_path / "all.tar"])
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_find(mount, truth):
    done = run(["find", mount.path, "-type", "f", "-printf", r"%P\0%s\0"], check=True)
    fields = done.stdout.split("\0")[:-1]
    assert dict(zip(fields[::2], map(int, fields[1::2]))) == {path: len(data) for path, data in truth.items()}
    links = run(["find", mount.path, "-type", "l", "-printf", r"%P -> %l\n"], check=True)
    assert links.stdout == "sub dir/small.h5/link.npy -> group 1/deep/set1.npy\n"
    assert run(["find", mount.path, "-name", ".npyfs"], check=True).stdout == ""


def test_du(mount, truth):
    done = run(["du", "-ab", mount.path], check=True)
    sizes = {line.split("\t")[1]: int(line.split("\t")[0]) for line in done.stdout.splitlines()}
    assert {path: sizes[str(mount / path)] for path in truth} == {path: len(data) for path, data in truth.items()}
    for path, data in truth.items():
        # tools take a file with too few blocks for one with holes
        assert len(data) <= os.stat(mount / path).st_blocks * 512 < len(data) + 8192, path
    whole = int(run(["du", "-sb", mount.path], check=True).stdout.split()[0])
    folders = [place for place, _, _ in os.walk(mount.path)]
    link = len("group 1/deep/set1.npy")
    assert whole == sum(map(len, truth.values())) + sum(os.lstat(folder).st_size for folder in folders) + link


def test_df_shows_the_volume_below(mount):
    fields = run(["df", "-B1", "--output=size,used,avail,fstype,target", mount.path], check=True).stdout.splitlines()[1].split()
    below = os.statvfs(mount.store)
    assert int(fields[0]) == below.f_blocks * below.f_frsize > 0
    # other programs write to that volume meanwhile: free space within one percent of the volume
    assert abs(int(fields[2]) - below.f_bavail * below.f_frsize) <= int(fields[0]) / 100
    assert fields[3:] == ["fuse.npyfs", str(mount.path)]


def test_sha256sum(mount, truth):
    names = sorted(truth)
    done = run(["sha256sum", "-z", *names], cwd=mount.path, check=True)
    assert {line[66:]: line[:64] for line in done.stdout.split("\0")[:-1]} == {name: sha256(truth[name]) for name in names}


@pytest.mark.parametrize("block, skip, count", [(1, 127, 300), (7, 3, 5000), (4097, 0, None), (65537, 1, None), (1_000_003, 2, 17), (5_600_001, 0, None)])
def test_dd_with_odd_block_sizes(mount, truth, block, skip, count):
    for path in ("big.h5/gzip.npy", "big.h5/rows.npy", "big.h5/flat.npy"):
        limit = [f"count={count}"] if count else []
        done = run(["dd", f"if={mount / path}", f"bs={block}", f"skip={skip}", "status=none", *limit], check=True, text=False)
        end = None if count is None else (skip + count) * block
        assert sha256(done.stdout) == sha256(truth[path][skip * block:end]), path


def test_dd_backwards_and_past_the_end(mount, truth):
    path = "big.h5/gzip.npy"
    data = truth[path]
    with open(mount / path, "rb", buffering=0) as stream:
        for start in range(len(data) - 1, 0, -1_234_567):
            assert os.pread(stream.fileno(), 10_001, start) == data[start:start + 10_001], start
        assert os.pread(stream.fileno(), 100, len(data)) == b""
        assert os.pread(stream.fileno(), 100, len(data) + 10**9) == b""


def test_cat_by_eight_processes_at_once(mount, truth):
    paths = ["big.h5/gzip.npy", "big.h5/rows.npy"] * 4
    with Mount(mount.store) as fresh:  # nothing of it is in any cache yet
        readers = [subprocess.Popen(["cat", fresh / path], stdout=subprocess.PIPE, stderr=subprocess.PIPE) for path in paths]
        sums = [hashlib.sha256() for _ in readers]
        waiting = set(range(len(readers)))
        while waiting:  # all of them advance together
            for i in list(waiting):
                part = readers[i].stdout.read(1 << 16)
                sums[i].update(part)
                if not part:
                    waiting.discard(i)
        for reader, digest, path in zip(readers, sums, paths):
            assert (reader.wait(60), reader.stderr.read()) == (0, b"")
            reader.stdout.close(), reader.stderr.close()
            assert digest.hexdigest() == sha256(truth[path]), path
