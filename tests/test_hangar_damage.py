"""Repositories that real Hangar made and that were damaged: what is lost is said, and everything else is what Hangar reads."""

import errno
import os
import shutil

import h5py
import numpy as np
import pytest

from support import hangar
from support.everything import everything  # noqa: F401 (a fixture)
from support.mount import Mount
from support.process import npyfs

def test_verify_finds_nothing_and_then_what_is_damaged(everything, tmp_path):
    path, told = everything
    done = npyfs("verify", path, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "5 commits" in done.stdout and "all is well" in done.stdout
    broken = hangar.copy(path, tmp_path / "broken")
    with Mount(path) as m:
        info = m.info("branches/master/gzip_01/1.npy")
        damaged = m.info("branches/master/blosc_lz4_none_00/noise.npy")
    for victim in (info, damaged):
        flip(broken / ".hangar/data" / victim["backend"] / os.path.basename(victim["file"]))
    done = npyfs("verify", broken, timeout=200)
    assert done.returncode == 3
    assert "damaged" in done.stdout and "checksum" in done.stderr


def flip(path):
    """Change one byte in each stored chunk of a file."""
    with h5py.File(path, "r", swmr=True) as file:
        chunks = [file[name].id.get_chunk_info(i) for name in file for i in range(file[name].id.get_num_chunks())]
    with open(path, "r+b") as file:
        for chunk in chunks:
            at = chunk.byte_offset + chunk.size - 1
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 0x40]))


def test_a_damaged_sample_costs_its_own_rows_only(everything, tmp_path):
    path, told = everything
    broken = hangar.copy(path, tmp_path / "broken")
    with Mount(path) as m:
        infos = {key: m.info(f"branches/master/blosc_lz4_none_01/{key}.npy") for key in ("noise", "1")}
        good = np.load(m / "branches/master/blosc_lz4_none_01.npy")
        keys = list(np.load(m / "branches/master/blosc_lz4_none_01.keys.npy"))
    noise = infos["noise"]
    with h5py.File(noise["file"], "r", swmr=True) as file:
        chunk = file[noise["path"]].id.get_chunk_info_by_coord((noise["row"], 0, 0))
    copied = broken / os.path.relpath(noise["file"], path)
    with open(copied, "r+b") as file:
        file.seek(chunk.byte_offset + 100)
        file.write(b"damage")
    with Mount(broken) as m:
        folder = m / "branches/master/blosc_lz4_none_01"
        with pytest.raises(OSError) as refusal:
            (folder / "noise.npy").read_bytes()
        assert refusal.value.errno == errno.EIO
        assert any(noise["record"] in line and "checksum" in line for line in m.errors()), m.errors()
        np.load(folder / "1.npy")
        with open(m / "branches/master/blosc_lz4_none_01.npy", "rb", buffering=0) as file:
            header = os.stat(file.name).st_size - good.nbytes
            for row, key in enumerate(keys):
                at = header + row * good[0].nbytes
                if key == "noise":
                    with pytest.raises(OSError):
                        os.pread(file.fileno(), good[0].nbytes, at)
                elif row < 2:  # the others share a page with it
                    assert os.pread(file.fileno(), good[0].nbytes, at) == good[row].tobytes()


def test_what_is_missing_or_wrong_is_said_and_everything_else_works(everything, tmp_path):
    path, told = everything
    broken = hangar.copy(path, tmp_path / "broken")
    with Mount(path) as m:
        gone = m.info("branches/master/gzip_00/0.npy")
        lost = m.info("branches/master/lzf_01/0.npy")
        beside = m.info("branches/master/lzf_01/1.npy")
        value = m.info("branches/master/text/0.txt")
    os.remove(broken / os.path.relpath(gone["file"], path))
    shutil.rmtree((broken / os.path.relpath(value["file"], path)).parent)
    hangar.script('''
import lmdb
root = sys.argv[1] + "/.hangar/"
settings = dict(subdir=False, lock=False, map_size=50_000_000_000)
def change(name, changes):
    with lmdb.open(root + name, **settings) as env, env.begin(write=True) as txn:
        for key, value in changes.items():
            if value is None:
                assert txn.delete(key.encode())
            else:
                txn.put(key.encode(), value.encode())
outside, dropped = sys.argv[2:4]
change("hash.lmdb", {"h:" + outside: sys.argv[4].rpartition(":")[0].rpartition(":")[0] + ":100:40 30", "h:" + dropped: None})
with lmdb.open(root + "branch.lmdb", **settings) as env, env.begin() as txn:
    heads = {k.decode()[7:]: v.decode() for k, v in txn.cursor() if k.startswith(b"branch:")}
change("ref.lmdb", {heads["side"] + ":ref": "this is no blosc frame at all"})
change("branch.lmdb", {"branch:nothing": "", "branch:lost": "a=" + "0" * 40})
change("stage_ref.lmdb", {"f:keys:#True": "0=" + "0" * 40, "f:keys:odd": "nonsense", "f:nowhere:x": "0=" + "0" * 40})
''', broken, lost["digest"], beside["digest"], lost["record"])
    with Mount(broken) as m:
        for name, reason in (("gzip_00/0.npy", "missing"), ("lzf_01/0.npy", "row"), ("lzf_01/1.npy", "no record"), ("text/0.txt", "missing")):
            with pytest.raises(OSError) as refusal:
                (m / "branches/master" / name).read_bytes()
            assert refusal.value.errno == errno.EIO, name
            assert any(name in line and reason in line for line in m.errors()), (name, m.errors())
        assert np.load(m / "branches/master/lzf_01/2.npy").shape == (40, 30)
        assert len(os.listdir(m / "branches/master/lzf_01")) == 5
        assert sorted(os.listdir(m / "branches")) == ["empty_so_far", "lost", "master", "nothing", "side"]
        assert os.listdir(m / "branches/nothing") == []
        for branch in ("lost", "side"):
            with pytest.raises(OSError):
                os.listdir(m / "branches" / branch)
        stage = os.listdir(m / "stage/keys")
        assert "odd.npy" not in stage and "5.npy" in stage
        assert "Hangar itself cannot read" in str(m.info("stage/keys")["left_out"])
        assert "nowhere" in str(m.info("stage")["notes"])
        first = [d for d, c in told["commits"].items() if "later" not in c][0]
        assert np.load(m / "commits" / first / "keys/5.npy")[0, 0] == 1


def test_data_files_that_lead_out_of_the_repository_are_refused(everything, tmp_path):
    path, _ = everything
    moved = hangar.copy(path, tmp_path / "moved/repo")
    names = ("type_int8_10/0.npy", "type_int8_01/0.npy", "text/0.txt")
    with Mount(path) as m:
        infos = {name: m.info(f"branches/master/{name}") for name in names}
        data = {name: (m / "branches/master" / name).read_bytes() for name in names}
    for number, info in enumerate(infos.values()):
        file = moved / os.path.relpath(info["file"], path)
        outside = tmp_path / f"outside{number}"
        shutil.move(file, outside)
        file.symlink_to(outside)
    with Mount(moved) as m:
        for name in names:
            with pytest.raises(OSError) as refusal:
                (m / "branches/master" / name).read_bytes()
            assert refusal.value.errno == errno.EACCES, name
    with Mount(moved, "external=allow") as m:
        for name in names:
            assert (m / "branches/master" / name).read_bytes() == data[name], name


def test_versions_that_hangar_refuses_are_refused(everything, tmp_path):
    path, _ = everything
    old = hangar.copy(path, tmp_path / "all/old")
    hangar.copy(path, tmp_path / "all/new")
    hangar.script('''
import lmdb
with lmdb.open(sys.argv[1] + "/.hangar/branch.lmdb", subdir=False, lock=False) as env, env.begin(write=True) as txn:
    txn.put(b"software_version", b"0.4.0")
''', old)
    done = npyfs("ls", old)
    assert done.returncode == 2 and "0.4.0" in done.stderr
    # Beside others it costs only itself.
    with Mount(tmp_path / "all") as m:
        assert sorted(os.listdir(m.path)) == ["new", "old"]
        with pytest.raises(OSError):
            os.listdir(m / "old")
        assert "0.4.0" in m.info("old")["error"]
        assert "keys" in os.listdir(m / "new/branches/master")
