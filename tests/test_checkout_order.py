"""A daf store copied into an empty one, its files in any order: what comes before its axis waits for it, over unmounting too.
Judges: h5py on the export, by daf's rules, against the store that was copied; bytes of the mount of it."""

import os
import random
import shutil

import h5py
import numpy as np
import pytest

from support import daf
from support.mount import Mount
from support.process import npyfs, run
from support.truth import read


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The files of a store as a mount shows it, copied to disk."""
    folder = tmp_path_factory.mktemp("source")
    with h5py.File(folder / "full.h5df", "w") as file:
        daf.write(file, rows=7, columns=4)
    with Mount(folder / "full.h5df") as mount:
        run(["cp", "-r", mount.path, folder / "files"], check=True)
    run(["chmod", "-R", "u+w", folder / "files"], check=True)
    return folder


@pytest.fixture
def empty(tmp_path):
    with h5py.File(tmp_path / "empty.h5df", "w") as file:
        daf.start(file)
    return tmp_path / "empty.h5df"


def judge(store, source):
    """The export holds what the source holds."""
    out = store.with_name("out.h5df")
    npyfs("checkout", "export", store, "c", out, check=True)
    with h5py.File(out) as new, h5py.File(source / "full.h5df") as old:
        assert set(new) == set(old) and set(new["__daf__"].attrs) == set(old["__daf__"].attrs)
        for name in old:
            if isinstance(old[name], h5py.Group):
                assert (daf.read_sparse(new[name]) != daf.read_sparse(old[name])).nnz == 0, name
            else:
                np.testing.assert_array_equal(new[name][()], old[name][()], name)
    with Mount(out) as mount, Mount(source / "full.h5df") as full:
        assert sorted(mount.files()) == sorted(full.files())
        for name in full.files():
            if not name.endswith(".npz"):  # their members have dates
                assert read(mount / name) == read(full / name), name


@pytest.mark.parametrize("command", ["cp", "tar", "rsync"])
def test_a_whole_store_is_copied(source, empty, command):
    with Mount(empty, checkout="c") as mount:
        if command == "cp":
            run(["cp", "-r", f"{source}/files/.", mount.path], check=True)
        elif command == "rsync":
            run(["rsync", "-a", f"{source}/files/", f"{mount.path}/"], check=True)
        else:
            run(["sh", "-c", 'tar -C "$0" -c . | tar -C "$1" -x --no-same-permissions', source / "files", mount.path], check=True)
        assert mount.status()["checkout"]["waiting"] == [] and mount.errors() == []
    judge(empty, source)


@pytest.mark.parametrize("seed", range(4))
def test_any_order_over_any_number_of_mounts(source, empty, seed):
    files = sorted(str(path.relative_to(source / "files")) for path in (source / "files").rglob("*.np?"))
    if seed % 2:  # without the .npz, which makes a matrix complete at once
        files = [name for name in files if not name.endswith(".npz")]
    chance = random.Random(seed)
    chance.shuffle(files)
    if seed == 3:  # all axes last
        files.sort(key=lambda name: name.endswith("#.npy"))
    cuts = sorted(chance.sample(range(len(files)), 3))
    for start, end in zip([0, *cuts], [*cuts, len(files)]):
        with Mount(empty, checkout="c") as mount:
            for number, name in enumerate(files[start:end]):
                (mount / name).parent.mkdir(exist_ok=True)
                with open(mount / name, "wb") as file:
                    file.write(read(source / "files" / name))
                    if number % 5 == 0:
                        file.flush()
                        os.fsync(file.fileno())
            for name in files[:end]:
                if not name.endswith(".npz"):
                    assert read(mount / name) == read(source / "files" / name), name
            assert mount.errors() == []
    judge(empty, source)


def test_what_waits_is_told_and_not_committed(empty):
    with Mount(empty, checkout="c") as mount:
        np.save(mount / "cell#age.npy", np.arange(3))
        np.save(mount / "cell,gene#x.npy", np.zeros((3, 2)))
        os.mkdir(mount / "cell,gene#s")
        np.save(mount / "cell,gene#s/shape.npy", np.array([3, 2]))
        assert mount.status()["checkout"]["waiting"] == [
            "cell#age: cell# missing", "cell,gene#s: cell#, gene#, data, indices, indptr missing", "cell,gene#x: cell#, gene# missing"]
        np.testing.assert_array_equal(np.load(mount / "cell#age.npy"), np.arange(3))
    assert npyfs("checkout", "ls", empty, check=True).stdout.splitlines()[1].split()[:4] == ["c", "0", "0", "3"]
    refused = npyfs("checkout", "commit", empty, "c")
    assert refused.returncode == 3 and "cell#age: cell# missing" in refused.stderr
    with Mount(empty, checkout="c") as mount:
        np.save(mount / "cell#.npy", np.array(["a", "b", "c"]))
        assert [line.split(":")[0] for line in mount.status()["checkout"]["waiting"]] == ["cell,gene#s", "cell,gene#x"]
        shutil.rmtree(mount / "cell,gene#s")
        os.unlink(mount / "cell,gene#x.npy")
        assert mount.status()["checkout"]["waiting"] == []
    assert "commit 1: 2 changes" in npyfs("checkout", "commit", empty, "c", check=True).stdout


def test_what_waited_and_does_not_fit_its_axis_goes_on_waiting(empty):
    with Mount(empty, checkout="c") as mount:
        np.save(mount / "cell#age.npy", np.arange(4))
        np.save(mount / "cell#.npy", np.array(["a", "b", "c"]))
        np.testing.assert_array_equal(np.load(mount / "cell#age.npy"), np.arange(4))
        assert any("cell#age" in line and "[4]" in line for line in mount.errors()), mount.errors()
    assert "cell#age: " in npyfs("checkout", "commit", empty, "c").stderr
    with Mount(empty, checkout="c") as mount:
        np.testing.assert_array_equal(np.load(mount / "cell#age.npy"), np.arange(4))
        np.save(mount / "cell#age.npy", np.arange(3))
        assert mount.status()["checkout"]["waiting"] == []
    npyfs("checkout", "commit", empty, "c", check=True)
