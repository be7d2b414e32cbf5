"""`npyfs hash`: one hash for an array wherever it lies and however it is stored, another one for any other array.
Judge: hashlib.blake2b of Python over what the help says is hashed, of arrays as h5py and NumPy read them."""

import hashlib
import json
import os
import time

import h5py
import numpy as np
import pytest

from support.mount import Mount, until
from support.process import npyfs, one_line

pytestmark = pytest.mark.fast
RANDOM = np.random.default_rng(11)


def judged(array):
    """The hash as the help describes it."""
    array = np.asarray(array)
    descr = np.lib.format.dtype_to_descr(array.dtype)
    head = f"{descr!r}\n{','.join(map(str, array.shape))}\n"
    return hashlib.blake2b(head.encode() + array.tobytes(order="C"), digest_size=32).hexdigest()


def hashes(*arguments):
    done = npyfs("hash", *arguments)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return {path: digest for digest, path in (line.split("  ", 1) for line in done.stdout.splitlines())}


ARRAYS = {
    "f8": RANDOM.normal(size=(30, 7, 5)), "i2": RANDOM.integers(-9, 9, (200, 3)).astype(">i2"), "alone": np.float32(3.5),
    "empty": np.zeros((3, 0)), "bool": np.array([True, False]), "text": np.array(["a", "bcd"], "S3"), "c": RANDOM.normal(size=4) * (1 + 2j),
    "record": np.array([(1, 2.5), (3, 4.5)], [("n", "<i4"), ("x", "<f8")]), "long": np.arange(700_000)}


def test_a_hash_is_that_of_type_shape_and_elements(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, array in ARRAYS.items():
            file[name] = array
    wanted = {f"{name}.npy": judged(array) for name, array in ARRAYS.items()}
    assert hashes(tmp_path / "a.h5") == wanted and len(set(wanted.values())) == len(wanted)
    assert hashes(tmp_path / "a.h5", "f8.npy", "alone.npy") == {name: wanted[name] for name in ("f8.npy", "alone.npy")}
    told = json.loads(npyfs("hash", "--json", tmp_path / "a.h5", check=True).stdout)
    assert {one["name"]: one["hash"] for one in told} == wanted


def test_layouts_files_and_mounts_make_no_difference(tmp_path):
    array = ARRAYS["f8"]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["plain"] = array
        file.create_dataset("zipped", data=array, chunks=(4, 3, 2), compression="gzip", shuffle=True)
        file.create_dataset("g/named_otherwise", data=array, chunks=(30, 1, 5), maxshape=(None, 7, 5))
    for order in "CF":
        np.save(tmp_path / f"{order}.npy", np.asarray(array, order=order))
        assert set(hashes(tmp_path / f"{order}.npy").values()) == {judged(array)}
    assert set(hashes(tmp_path / "a.h5").values()) == {judged(array)}
    with Mount(tmp_path / "a.h5") as mount:
        assert hashes(mount.path) == {f"{mount.path}/{name}": judged(array) for name in ("plain.npy", "zipped.npy", "g/named_otherwise.npy")}
        (tmp_path / "copy.npy").write_bytes((mount / "zipped.npy").read_bytes())
    assert set(hashes(tmp_path / "copy.npy", tmp_path / "C.npy").values()) == {judged(array)}


@pytest.mark.parametrize("shape", [(1000, 3), (3, 1000), (5, 1, 70, 2), (2, 300_000), (300_000, 2), (1, 9), (64, 64, 64, 9)])
def test_fortran_order(tmp_path, shape):
    array = RANDOM.integers(0, 1000, shape).astype("f4")
    np.save(tmp_path / "f.npy", np.asfortranarray(array))
    assert set(hashes(tmp_path / "f.npy").values()) == {judged(array)}


def test_fortran_order_larger_than_a_block(tmp_path):
    array = np.lib.format.open_memmap(tmp_path / "f.npy", "w+", "<f8", (3000, 4500), fortran_order=True)
    array[:] = np.arange(3000.0)[:, None] * 5000 + np.arange(4500)
    array.flush()
    assert set(hashes(tmp_path / "f.npy").values()) == {judged(np.array(array, order="C"))}


def test_any_difference_is_one(tmp_path):
    array = np.arange(12)
    different = [array, array.reshape(3, 4), array.reshape(4, 3), array.astype("f8"), array.astype(">i8"), array + (array == 5), array[:11], array.reshape(12, 1)]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number, one in enumerate(different):
            file[f"x{number}"] = one
    assert len(set(hashes(tmp_path / "a.h5").values())) == len(different)


def test_a_checkout_and_its_export_have_one_hash(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(3)
    new = RANDOM.normal(size=(50, 4))
    with Mount(tmp_path / "a.h5", checkout="work") as mount:
        np.save(mount / "new.npy", new)
    assert hashes("--checkout", "work", tmp_path / "a.h5", "new.npy") == {"new.npy": judged(new)}
    npyfs("checkout", "export", tmp_path / "a.h5", "work", tmp_path / "out.h5", check=True)
    assert hashes(tmp_path / "out.h5") == {"new.npy": judged(new), "x.npy": judged(np.arange(3))}


def test_what_is_no_array_is_named(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    np.save(tmp_path / "whole.npy", np.arange(9))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "whole.npy").read_bytes()[:-1])
    for path in ("a.npz", "cut.npy"):
        done = npyfs("hash", tmp_path / path)
        assert done.returncode == 3 and "is no array" in one_line(done.stderr) and path in done.stderr
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"] = np.arange(3)
        file.create_dataset("broken", data=np.arange(5000), chunks=(5000,), compression="gzip")
        where = file["broken"].id.get_chunk_info(0)
        file["z"] = np.arange(4)
    with open(tmp_path / "a.h5", "r+b") as file:
        file.seek(where.byte_offset)
        file.write(b"\xff" * where.size)
    done = npyfs("hash", tmp_path / "a.h5")
    assert done.returncode == 3 and "broken.npy" in one_line(done.stderr)
    assert [line.split("  ")[1] for line in done.stdout.splitlines()] == ["a.npy", "z.npy"]


def test_info_has_a_hash_that_is_known_and_computes_none(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store = tmp_path / "a.h5"

    def known(*paths):
        told = json.loads(npyfs("info", "--json", store, *paths, check=True).stdout)
        return [one.get("hash") for one in (told if len(paths) > 1 else [told])]

    def write(**arrays):
        with h5py.File(store, "w") as file:
            for name, array in arrays.items():
                file.create_dataset(name, data=array, chunks=True)
        # A file that was changed just now may change again without a trace.
        os.utime(store, (1_600_000_000, 1_600_000_000))
        until(lambda: time.time() - os.stat(store).st_ctime > 3, "the file is settled")

    write(x=np.arange(7.0), y=np.arange(3))
    assert known("x.npy", "y.npy") == [None, None]
    assert hashes(store, "x.npy") == {"x.npy": judged(np.arange(7.0))}
    assert known("x.npy", "y.npy") == [judged(np.arange(7.0)), None]
    assert judged(np.arange(7.0)) in npyfs("info", store, "x.npy", check=True).stdout
    # Of another version nothing is known, and what is no hash is none.
    write(x=np.arange(8.0), y=np.arange(3))
    assert known("x.npy") == [None]
    assert hashes(store, "x.npy") == {"x.npy": judged(np.arange(8.0))} and known("x.npy") == [judged(np.arange(8.0))]
    noted = tmp_path / "cache/npyfs/hashes/known"
    noted.write_text(noted.read_text().replace(judged(np.arange(8.0)), "x" * 64))
    assert known("x.npy") == [None]
    noted.write_bytes(b"\xff" * 100)
    assert known("x.npy") == [None]
    noted.write_text("a" * (1 << 20))
    hashes(store, "y.npy")
    assert noted.stat().st_size < 200 and known("y.npy") == [judged(np.arange(3))]
