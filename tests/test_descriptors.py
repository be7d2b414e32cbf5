"""What the machine is short of for a moment says nothing about a store: with 64 descriptors for the daemon and each worker, 150 files
are read and 150 arrays are written; a failed fork and a full table of descriptors are over when they are over. Judges: h5py's arrays,
and the kernel, which counts descriptors and processes."""

import os
import resource
import signal

import h5py
import numpy as np

from support.mount import Mount
from support.process import npyfs, signal_all, workers
from support.truth import np_save, read

FILES = 150
FEW = ["prlimit", "--nofile=64:64"]


def write_files(folder):
    folder.mkdir()
    for i in range(FILES):
        with h5py.File(folder / f"f{i:03}.h5", "w") as file:
            file["x"] = np.arange(i, i + 100)
            file.create_dataset("c", data=np.arange(5000) + i, chunks=(500,), compression="gzip")
            file["t"] = np.array([f"text {i}".encode()] * 3, object)


def expected(i, name):
    return {"x": np.arange(i, i + 100), "c": np.arange(5000) + i, "t": np.array([f"text {i}".encode()] * 3)}[name]


def test_many_files_are_read_with_few_descriptors(tmp_path):
    write_files(tmp_path / "tree")
    with Mount(tmp_path / "tree", prefix=FEW) as mount:
        assert len(os.listdir(mount.path)) == FILES
        for _ in range(2):
            for i in range(FILES):
                for name in ("x", "c"):
                    assert read(mount / f"f{i:03}.h5/{name}.npy") == np_save(expected(i, name)), (i, name)
                assert np.load(mount / f"f{i:03}.h5/t.npy").tolist() == [f"text {i}".encode()] * 3
        assert len(os.listdir(f"/proc/{mount.pid}/fd")) < 64
        assert mount.errors() == []
        assert mount.status()["worker_restarts"] == 0


def test_many_files_are_held_open_with_few_descriptors(tmp_path):
    write_files(tmp_path / "tree")
    with Mount(tmp_path / "tree", prefix=FEW) as mount:
        held = [open(mount / f"f{i:03}.h5/x.npy", "rb", buffering=0) for i in range(FILES)]
        try:
            for i, stream in reversed(list(enumerate(held))):
                assert stream.read(1 << 20) == np_save(expected(i, "x"))
        finally:
            for stream in held:
                stream.close()


def test_many_arrays_are_written_with_few_descriptors(tmp_path):
    store = tmp_path / "s.h5"
    with h5py.File(store, "w") as file:
        file["x"] = np.arange(5)
    with Mount(store, checkout="w", prefix=FEW) as mount:
        for i in range(FILES):
            np.save(mount / f"n{i:03}.npy", np.arange(i, i + 1000))
        np.save(mount / "large.npy", np.arange(1 << 20))
        folder = os.open(mount.path, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        for i in range(FILES):
            assert read(mount / f"n{i:03}.npy") == np_save(np.arange(i, i + 1000)), i
    with Mount(store, checkout="w", prefix=FEW) as mount:
        for i in range(FILES):
            assert read(mount / f"n{i:03}.npy") == np_save(np.arange(i, i + 1000)), i
        assert read(mount / "large.npy") == np_save(np.arange(1 << 20))


def test_a_full_table_of_descriptors_is_not_remembered(tmp_path):
    """The limit of the running daemon is set below what it has open: nothing can be opened, no worker started."""
    write_files(tmp_path / "tree")
    with Mount(tmp_path / "tree") as mount:
        assert read(mount / "f000.h5/c.npy") == np_save(expected(0, "c"))
        before = resource.prlimit(mount.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(mount.pid, resource.RLIMIT_NOFILE, (3, before[1]))
        refused = 0
        for i in range(1, 12):
            for name in ("x", "c", "t"):
                try:
                    read(mount / f"f{i:03}.h5/{name}.npy")
                except OSError as problem:
                    assert problem.errno != 2 and problem.errno != 5, (name, problem)
                    refused += 1
        assert refused
        resource.prlimit(mount.pid, resource.RLIMIT_NOFILE, before)
        for i in range(FILES):
            for name in ("x", "c"):
                assert read(mount / f"f{i:03}.h5/{name}.npy") == np_save(expected(i, name)), (i, name)
            assert np.load(mount / f"f{i:03}.h5/t.npy").tolist() == [f"text {i}".encode()] * 3


def test_workers_that_were_killed_are_held_against_nobody(tmp_path):
    write_files(tmp_path / "tree")
    with Mount(tmp_path / "tree") as mount:
        for i in range(40):
            signal_all(workers(mount.pid), signal.SIGKILL)
            assert np.load(mount / f"f{i:03}.h5/t.npy").tolist() == [f"text {i}".encode()] * 3


def test_verify_with_few_descriptors(tmp_path):
    write_files(tmp_path / "tree")
    done = npyfs("verify", tmp_path / "tree", check=True)
    from support.process import NPYFS, run
    few = run([*FEW, NPYFS, "verify", tmp_path / "tree"], check=True)
    assert few.stdout == done.stdout and "all is well" in few.stdout
