"""Objects that are directories of members, and whose last member comes late or never: what there is of them outlives the mount,
is told, and is not committed. Written through mounts with NumPy; judges: h5py on the finished objects, bytes of np.save."""

import os
import signal

import h5py
import numpy as np
import pytest
import scipy.sparse

from support import arkouda, daf
from support.mount import Mount, clear, make_point, until
from support.process import npyfs, one_line
from support.truth import np_save, read

pytestmark = pytest.mark.fast

MATRIX = scipy.sparse.csr_matrix(np.eye(12, 5))
PARTS = {"data": MATRIX.data, "indices": MATRIX.indices, "indptr": MATRIX.indptr, "shape": np.array(MATRIX.shape)}
HALF = "cell,gene#half"


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "cells.h5df"
    with h5py.File(path, "w") as file:
        daf.write(file)
    before = path.read_bytes()
    yield path
    assert path.read_bytes() == before, "the store was written to"


@pytest.fixture
def arrays(tmp_path):
    with arkouda.Store(tmp_path, "a.h5", None) as store:
        arkouda.put_array(store, "ints", np.arange(9))
    return tmp_path / "a.h5"


def checkout(command, *arguments, code=0):
    done = npyfs("checkout", command, *arguments)
    assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done


def layer(store):
    return store.with_name(f"{store.name}.checkouts") / "work"


def members(store):
    """Files of the checkout that hold members."""
    return sorted(layer(store).glob("*.member"))


def save(path, array, sync=False):
    with open(path, "wb") as file:
        np.save(file, array)
        if sync:
            file.flush()
            os.fsync(file.fileno())


class Killed:
    """A mount whose daemon is killed at the end of the block."""

    def __init__(self, store):
        self.store = store

    def __enter__(self):
        self.point = make_point()
        self.mount = Mount(self.store, checkout="work", point=self.point)
        self.mount.__enter__()
        return self.mount

    def __exit__(self, *error):
        self.mount.expect_dead = True
        os.kill(self.mount.pid, signal.SIGKILL)
        until(lambda: not self.mount.alive(), "the end of the daemon")
        clear(self.point)
        self.mount.__exit__(*error)
        os.rmdir(self.point)


def test_members_wait_for_the_last_one_over_mounts(store):
    with Mount(store, checkout="work") as mount:
        os.mkdir(mount / HALF)
        for name in ("data", "indices"):
            save(mount / HALF / f"{name}.npy", PARTS[name])
            os.utime(mount / HALF / f"{name}.npy", (5, 1_600_000_000))
    assert len(members(store)) == 2
    said = checkout("diff", store, "work")
    assert said.stdout == "" and one_line(said.stderr) == f"npyfs: not complete: {HALF}: indptr, shape missing"
    head, line = checkout("ls", store).stdout.splitlines()
    assert dict(zip(head.split(), line.split()))["WAITING"] == "1"
    for command in (["commit", store, "work"], ["export", store, "work", store.with_name("out.h5df")]):
        refused = checkout(*command, code=3)
        assert f"{HALF}: indptr, shape missing" in refused.stderr and "--leave-out" in refused.stderr, refused
    assert not store.with_name("out.h5df").exists()
    # They are there again, twice, and become the object with the last one.
    for last in ("indptr", "shape"):
        with Mount(store, checkout="work") as mount:
            assert read(mount / HALF / "data.npy") == np_save(PARTS["data"])
            assert os.stat(mount / HALF / "indices.npy").st_mtime == 1_600_000_000
            assert last + ".npy" not in os.listdir(mount / HALF)
            assert f"{HALF}: " in checkout("diff", mount.path).stderr
            save(mount / HALF / f"{last}.npy", PARTS[last])
            if last == "shape":
                assert (scipy.sparse.load_npz(mount / f"{HALF}.npz") != MATRIX).nnz == 0
                assert checkout("diff", mount.path).stderr == ""
    assert members(store) == []
    assert checkout("diff", store, "work").stderr == ""
    checkout("commit", store, "work")
    checkout("export", store, store.with_name("out.h5df"))
    with h5py.File(store.with_name("out.h5df")) as file:
        group = file[HALF]
        found = scipy.sparse.csr_matrix((group["data"][:], group["indices"][:], group["indptr"][:]), group.attrs["shape"])
        assert (found != MATRIX).nnz == 0


def test_umount_tells_what_waits(store):
    other = HALF.replace("half", "third")
    point = make_point()
    try:
        with Mount(store, checkout="work", point=point) as mount:
            mount.expect_dead = True
            for folder, names in {HALF: ("data", "indices"), other: ("shape",)}.items():
                os.mkdir(mount / folder)
                for name in names:
                    save(mount / folder / f"{name}.npy", PARTS[name])
            done = npyfs("umount", point)
            until(lambda: not mount.alive(), "the end of the daemon")
        assert done.returncode == 0, done
        lacks = {HALF: "indptr, shape", other: "data, indices, indptr"}
        told = [f"npyfs: {folder}: {lack} missing; what is there waits for another mount" for folder, lack in lacks.items()]
        assert sorted(done.stderr.splitlines()) == sorted(told)
    finally:
        clear(point)
        os.rmdir(point)
    with Mount(store, checkout="work") as mount:
        assert read(mount / HALF / "data.npy") == np_save(PARTS["data"])
        for folder, names in {HALF: ("indptr", "shape"), other: ("data", "indices", "indptr")}.items():
            for name in names:
                save(mount / folder / f"{name}.npy", PARTS[name])
            assert (scipy.sparse.load_npz(mount / f"{folder}.npz") != MATRIX).nnz == 0


def test_what_fsync_confirmed_survives_kill_9(arrays):
    values, segments = np.arange(7.0), np.array([0, 3])
    with Killed(arrays) as mount:
        os.mkdir(mount / "runs")
        save(mount / "runs/values.npy", values, sync=True)
    with Killed(arrays) as mount:
        assert read(mount / "runs/values.npy") == np_save(values)
        # As rsync does it: what was synced under a temporary name is renamed.
        save(mount / "runs/.segments.npy.Ab12", np.array([0, 2]), sync=True)
        assert mount.status()["checkout"]["waiting"] == ["runs: segments missing"]
        # Written again, synced again.
        values = np.arange(8.0)
        save(mount / "runs/values.npy", values, sync=True)
    with Killed(arrays) as mount:
        assert read(mount / "runs/values.npy") == np_save(values)
        assert os.listdir(mount / "runs") == ["values.npy"]
        os.mkdir(mount / "lines")
        save(mount / "lines/.tmp", segments, sync=True)
        os.rename(mount / "lines/.tmp", mount / "lines/segments.npy")
    assert len(members(arrays)) == 2
    with Killed(arrays) as mount:
        assert read(mount / "lines/segments.npy") == np_save(segments)
        save(mount / "runs/segments.npy", segments, sync=True)
        # Deleted is deleted.
        os.unlink(mount / "lines/segments.npy")
    assert members(arrays) == []
    with Mount(arrays, checkout="work") as mount:
        assert not (mount / "lines").exists() and mount.errors() == []
        assert read(mount / "runs/values.npy") == np_save(values)
    checkout("commit", arrays, "work")
    checkout("export", arrays, arrays.with_name("out.h5"))
    with h5py.File(arrays.with_name("out.h5")) as file:
        np.testing.assert_array_equal(file["runs/values"], values)
        np.testing.assert_array_equal(file["runs/segments"], segments)
        assert file["runs"].attrs["ObjType"] == 3


def test_a_complete_object_takes_the_place_of_its_members_after_kill_9(arrays):
    with Killed(arrays) as mount:
        os.mkdir(mount / "runs")
        save(mount / "runs/values.npy", np.arange(3), sync=True)
        save(mount / "runs/segments.npy", np.array([0]), sync=True)
        save(mount / "runs/values.npy", np.arange(5), sync=True)
    assert checkout("diff", arrays, "work").stderr == "" and members(arrays) == []
    with Mount(arrays, checkout="work") as mount:
        assert read(mount / "runs/values.npy") == np_save(np.arange(5))


def test_what_is_not_wanted_can_be_left_out_or_discarded(store):
    with Mount(store, checkout="work") as mount:
        os.mkdir(mount / HALF)
        save(mount / HALF / "data.npy", PARTS["data"])
        save(mount / "cell#score.npy", np.arange(12.0))
    out = store.with_name("out.h5df")
    assert HALF in checkout("export", "--leave-out", store, "work", out).stderr
    with h5py.File(out) as file:
        assert HALF not in file and "cell#score" in file
    said = checkout("commit", "--leave-out", store, "work").stdout
    assert said.startswith(f"left out: {HALF}: indices, indptr, shape missing\ncommit 1: 1 changes, ") and said.count("\n") == 2
    assert members(store) == []
    with Mount(store, checkout="work") as mount:
        assert not (mount / HALF).exists()
        os.mkdir(mount / HALF)
        save(mount / HALF / "data.npy", PARTS["data"])
    checkout("discard", store, "work")
    with Mount(store, checkout="work") as mount:
        assert not (mount / HALF).exists()


def test_members_that_are_deleted_are_forgotten(store):
    with Mount(store, checkout="work") as mount:
        os.mkdir(mount / HALF)
        for name in ("data", "indices"):
            save(mount / HALF / f"{name}.npy", PARTS[name])
    with Mount(store, checkout="work") as mount:
        os.unlink(mount / HALF / "indices.npy")
        assert mount.status()["checkout"]["waiting"] == [f"{HALF}: indptr, shape, indices missing"]
    with Mount(store, checkout="work") as mount:
        assert os.listdir(mount / HALF) == ["data.npy"]
        os.unlink(mount / HALF / "data.npy")
        os.rmdir(mount / HALF)
    assert members(store) == [] and checkout("diff", store, "work").stderr == ""
    assert checkout("commit", store, "work").stdout == "nothing to commit\n"


def test_parts_that_do_not_fit_the_stored_ones_wait_as_well(store):
    with Mount(store, checkout="work") as mount:
        os.mkdir(mount / HALF)
        for name, part in PARTS.items():
            save(mount / HALF / f"{name}.npy", part)
    wider = scipy.sparse.csr_matrix(np.ones((12, 5)))
    with Mount(store, checkout="work") as mount:
        save(mount / HALF / "data.npy", wider.data)
    assert "do not fit" in checkout("diff", store, "work").stderr
    with Mount(store, checkout="work") as mount:
        assert len(np.load(mount / HALF / "data.npy")) == 60
        save(mount / HALF / "indices.npy", wider.indices)
        save(mount / HALF / "indptr.npy", wider.indptr)
        assert (scipy.sparse.load_npz(mount / f"{HALF}.npz") != wider).nnz == 0
    assert members(store) == []


def test_other_scratch_files_are_forgotten_and_names_are_those_of_the_mount(store):
    with Mount(store, "sep=@", checkout="work") as mount:
        os.mkdir(mount / "cell,gene@half")
        save(mount / "cell,gene@half/data.npy", PARTS["data"])
        (mount / "notes.txt").write_text("x")
        (mount / "cell,gene@half/.x.tmp").write_text("x")
    with Mount(store, checkout="work") as mount:
        assert os.listdir(mount / HALF) == ["data.npy"]
        assert not (mount / "notes.txt").exists()


def test_a_large_member_is_kept_without_a_copy_and_may_be_changed_after(arrays):
    with Mount(arrays, checkout="work") as mount:
        os.mkdir(mount / "runs")
        large = np.lib.format.open_memmap(mount / "runs/values.npy", "w+", "u1", (1 << 30,))
        large[-1] = 7
        large.flush()
        del large
        fd = os.open(mount / "runs/values.npy", os.O_RDWR)
        os.fsync(fd)
        [kept] = members(arrays)
        assert kept.stat().st_blocks * 512 < 64 << 20
        os.pwrite(fd, b"\x05", os.fstat(fd).st_size - 2)
        os.close(fd)
    with Mount(arrays, checkout="work") as mount:
        found = np.load(mount / "runs/values.npy", mmap_mode="r")
        assert found[-2:].tolist() == [5, 7] and len(found) == 1 << 30
        del found
        os.unlink(mount / "runs/values.npy")
    assert members(arrays) == []


def test_a_damaged_member_costs_that_member(arrays):
    with Mount(arrays, checkout="work") as mount:
        for name in ("one", "two"):
            os.mkdir(mount / name)
            save(mount / name / "values.npy", np.arange(3))
    damaged = members(arrays)[0]
    damaged.write_bytes(b"short")
    with Mount(arrays, checkout="work") as mount:
        assert [(mount / name / "values.npy").exists() for name in ("one", "two")] == [False, True]
        assert any("one/values.npy" in line and damaged.name in line for line in mount.errors()), mount.errors()
        np.testing.assert_array_equal(np.load(mount / "ints.npy"), np.arange(9))
