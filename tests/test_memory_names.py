"""What the daemon remembers of names that the kernel knows: at most 150 bytes each, and of chunk files nothing. Judges: the kernel's
account of the daemon's memory (RssAnon), and what was written through h5py, so that what was listed was the right thing.

The names of a directory are told with their attributes, and the kernel then knows every one of them until it needs the memory: no
name that was told is forgotten while these tests run. What else the machine does is no part of the account."""

import itertools
import os
import stat
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from support import arkouda as ak
from support.mount import Mount
from support.truth import np_save

NAMES, CHUNK_FILES = 100_000, 200_000
MOST = 150
MIB = 1 << 20

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
# All of them take minutes, and what they measure seldom changes.
measured = pytest.mark.sample("memory", 4, together=True)


def memory(mount):
    """Bytes of the daemon that are in memory and in no file."""
    for line in Path(f"/proc/{mount.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the daemon is gone")


def cost(mount, before, count, most):
    """Bytes for each of `count` names. What a listing took is given back a moment after it is closed."""
    end = time.monotonic() + 10
    while (each := (memory(mount) - before) / count) > most and time.monotonic() < end:
        time.sleep(0.05)
    return each


def at_rest(mount):
    """Bytes of the daemon that are left of what it did. What a listing took is given back a moment after it is closed."""
    least, end = memory(mount), time.monotonic() + 2
    while time.monotonic() < end:
        time.sleep(0.05)
        least = min(least, memory(mount))
    return least


def write_many(path, count, shape=lambda i: (3,), value=None):
    """Datasets of a group `g`, and a group `few` of some."""
    with h5py.File(path, "w", libver="latest") as file:
        file["few/a"], file["few/b"] = np.arange(3), np.arange(4.0)
        group = file.create_group("g")
        for i in range(count):
            h5py.h5d.create(group.id, b"dataset_%07d" % i, h5py.h5t.STD_I32LE, h5py.h5s.create_simple(shape(i)))
        for i in (0, count // 2, count - 1) if value else ():
            group[f"dataset_{i:07}"][...] = value


def list_all(folder):
    """{name: (inode number, size)} of what is told of all names, and of a look at each."""
    with os.scandir(folder) as entries:
        return {entry.name: (entry.inode(), entry.stat().st_size) for entry in entries}


ALIKE, DIFFERENT = (lambda i: (3,)), (lambda i: (1 + i,))


@pytest.mark.parametrize("shape, checkout", [(ALIKE, None), (DIFFERENT, None), (ALIKE, "work")], ids=["alike", "different", "writable"])
@measured
def test_a_name_of_a_large_group_costs_150_bytes(tmp_path, capsys, shape, checkout):
    store = tmp_path / "many.h5"
    write_many(store, NAMES, shape)
    with Mount(store, limit=800, checkout=checkout) as m:
        assert set(os.listdir(m / "few")) == {"a.npy", "b.npy"}
        (m / "few/a.npy").read_bytes()
        before = memory(m)
        known = list_all(m / "g")
        grown = cost(m, before, NAMES, MOST)
        with capsys.disabled():
            print(f"\n{grown:.0f} bytes for each of {NAMES} names", end=" ")
        assert known.keys() == {f"dataset_{i:07}.npy" for i in range(NAMES)}
        for i in (0, 1, NAMES // 2, NAMES - 1):
            expected = np_save(np.zeros(shape(i), "<i4"))
            path = m / f"g/dataset_{i:07}.npy"
            # The number that a listing of a writable mount tells is not the one that a look tells.
            assert checkout or path.stat().st_ino == known[path.name][0]
            assert path.stat().st_size == known[path.name][1] == len(expected)
            assert path.read_bytes() == expected
        with pytest.raises(FileNotFoundError):
            os.stat(m / "g/dataset_.npy")
        assert m.info("g")["entries"] == NAMES
        assert grown <= MOST, f"{grown:.0f} bytes for each name"
    with Mount(store) as m:
        name = f"dataset_{NAMES // 3:07}.npy"
        assert checkout or (m / "g" / name).stat().st_ino == known[name][0]


@measured
def test_a_text_costs_150_bytes_once_it_is_measured(tmp_path, capsys):
    """Those that were measured last are remembered whole: the first group fills their place, and the threads' heaps."""
    store, names, first = tmp_path / "texts.h5", 60_000, 8_000
    with h5py.File(store, "w", libver="latest") as file:
        for folder, count in ("first", first), ("g", names):
            group = file.create_group(folder)
            for i in range(count):
                group[f"text_{i:05}"] = "x" * (i % 7)
    with Mount(store, limit=800) as m:
        assert len(list_all(m / "first")) == first
        before = at_rest(m)
        known = list_all(m / "g")
        grown = cost(m, before, names, MOST)
        with capsys.disabled():
            print(f"\n{grown:.0f} bytes for each of {names} texts", end=" ")
        for i in (0, 1, 6, names // 2, names - 1):
            path = m / f"g/text_{i:05}.npy"
            expected = np_save(np.array("x" * (i % 7)))
            assert (path.stat().st_ino, path.stat().st_size) == known[path.name] and known[path.name][1] == len(expected)
            assert path.read_bytes() == expected
        assert len(known) == names
        assert grown <= MOST, f"{grown:.0f} bytes for each text"


def put(group, name, shape, kind=h5py.h5t.STD_I32LE):
    h5py.h5d.create(group.id, name.encode(), kind, h5py.h5s.create_simple(shape))


def write_daf(file, names):
    file.create_dataset("__daf__", data=np.array([1, 0], "i1")).attrs["p_0000007"] = "an item"
    file["cell#"] = np.array([b"a", b"b", b"c"])
    for i in range(names):
        put(file, f"cell#p_{i:07}", (3,))
    return {f"cell#p_{i:07}.npy": np.zeros(3, "<i4") for i in (0, 1, names // 2, names - 1)} | {
        "cell#.npy": np.array([b"a", b"b", b"c"]), "p_0000007.npy": np.array("an item")}, names + 2


def write_anndata(file, names):
    file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
    for name in ("obs", "var"):
        frame = file.create_group(name)
        frame.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": "_index"})
        frame["_index"] = np.array([b"a", b"b", b"c"])
        frame.attrs["column-order"] = np.array([f"p_{i:07}".encode() for i in range(200)])
    group = file["obs"]
    for i in range(names):
        put(group, f"p_{i:07}", (3,))
    return {f"p_{i:07}.npy": np.zeros(3, "<i4") for i in (0, 1, names // 2, names - 1)}, names + 1


def write_records(file, names):
    kind = h5py.h5t.py_create(np.dtype([("n", "<i4"), ("text", h5py.string_dtype())]), logical=True)
    group = file.create_group("g")
    for i in range(names):
        put(group, f"p_{i:07}", (2,), kind)
    group[f"p_{7:07}"][0] = (3, "seven")
    return {f"p_{7:07}.npy": np.array([(3, "seven"), (0, "")], [("n", "<i4"), ("text", "<U5")])}, names


# What a worker told of the types of records and of AnnData's attributes leaves holes in the heap.
@pytest.mark.parametrize("write, place, checkout, most", [
    (write_daf, "", None, MOST), (write_daf, "", "work", MOST), (write_anndata, "obs", None, MOST + 20), (write_records, "g", None, MOST + 170)],
    ids=["daf", "daf-writable", "anndata", "records"])
@measured
def test_a_name_of_a_format_costs_150_bytes(tmp_path, capsys, write, place, checkout, most):
    """A first store of the format fills the threads' heaps, which take up to 1 MiB for any number of names."""
    names, first = NAMES, 8_000
    with h5py.File(tmp_path / "many.h5", "w", libver="latest") as file:
        few = write(file.require_group("first"), first)[1]
        want, count = write(file.require_group("s"), names)
    with Mount(tmp_path / "many.h5", limit=800, checkout=checkout) as m:
        assert len(list_all(m / "first" / place)) == few
        before = at_rest(m)
        known = list_all(m / "s" / place)
        grown = cost(m, before, names, most)
        with capsys.disabled():
            print(f"\n{grown:.0f} bytes for each of {names} names", end=" ")
        assert len(known) == count
        for name, array in want.items():
            path = m / "s" / place / name
            assert path.stat().st_size == known[name][1] and path.read_bytes() == np_save(array), name
        assert grown <= most, f"{grown:.0f} bytes for each name"


def put_numbers(group, name, array, marks):
    """An array with the attributes that tell Arkouda what its numbers are; h5py's own way takes ten times as long."""
    kind, scalar = h5py.h5t.py_create(array.dtype), h5py.h5s.create(h5py.h5s.SCALAR)
    dataset = h5py.h5d.create(group.id, name.encode(), kind, h5py.h5s.create_simple(array.shape))
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(array))
    for mark, value in marks.items():
        h5py.h5a.create(dataset, mark.encode(), h5py.h5t.STD_I64LE, scalar).write(np.array(value, "<i8"))


@pytest.mark.parametrize("weights", [None, [2, 1]], ids=["file", "locales"])
@measured
def test_a_name_of_arkouda_costs_150_bytes(tmp_path, capsys, weights):
    """Arrays of numbers, in the root and in a group; their files are made anew whenever they are looked up."""
    names, number, truth, time = 30_000, {"ObjType": ak.PDARRAY}, {"ObjType": ak.PDARRAY, "isBool": 1}, {"ObjType": ak.DATETIME}
    kinds = [lambda i: (np.arange(3) % 2 == 0, "u1", truth), lambda i: (np.array([i, 3, 5], "M8[ns]"), "i8", time),
             lambda i: (np.arange(i % 7 + 2.0), "f8", number)]
    # Of 4096 arrays what was looked up last is remembered.
    want, most = {}, MOST + 4096 * 700 / names
    with ak.Store(tmp_path, "few.h5", weights) as store:
        ak.put_array(store, "few", np.arange(3))
    with ak.Store(tmp_path, "many.h5", weights) as store:
        ak.put_strings(store, "text", [b"a", b"bc"])
        for file in store.files:
            file.create_group("g")
        for i in range(names):
            name, place = f"array_{i:05}", "g" if i % 2 else "/"
            array, stored, marks = kinds[i % 3](i)
            for file, (start, stop) in zip(store.files, store.cut(len(array))):
                put_numbers(file[place], name, array[start:stop].view(stored), marks)
            want[f"{place}/{name}.npy".lstrip("/")] = array
    with Mount(tmp_path, limit=800) as m:
        root = m / "many.h5"
        (m / "few.h5/few.npy").read_bytes()
        before = memory(m)
        known = {f"{folder}{name}": size for folder in ("", "g/") for name, (_, size) in list_all(root / folder).items()}
        grown = cost(m, before, names, most)
        with capsys.disabled():
            print(f"\n{grown:.0f} bytes for each of {names} names", end=" ")
        for path in itertools.islice(want, 0, None, 997):
            expected = np_save(want[path])
            assert known[path] == len(expected) and (root / path).read_bytes() == expected, path
        assert known.keys() - {"text", "text.npy", "g"} == want.keys()
        assert m.info("many.h5/g")["entries"] == names // 2
        with pytest.raises(FileNotFoundError):
            os.stat(root / "g/array_.npy")
        assert grown <= most, f"{grown:.0f} bytes for each name"


@measured
def test_a_directory_costs_1000_bytes_and_its_names_150_each(tmp_path, capsys):
    groups, names = 4_000, 20
    store = tmp_path / "groups.h5"
    with h5py.File(store, "w", libver="latest") as file:
        for number in range(groups):
            group = file.create_group(f"group_{number:05}")
            for i in range(names):
                h5py.h5d.create(group.id, b"dataset_%02d" % i, h5py.h5t.STD_I32LE, h5py.h5s.create_simple((1 + i,)))
    with Mount(store, limit=800) as m:
        before = memory(m)
        for number in range(groups):
            known = list_all(m / f"group_{number:05}")
            assert len(known) == names and all(known[f"dataset_{i:02}.npy"][1] == 128 + 4 * (1 + i) for i in range(names))
        grown = cost(m, before, groups, 1000 + names * MOST)
        with capsys.disabled():
            print(f"\n{grown:.0f} bytes for each directory of {names} names", end=" ")
        assert (m / "group_00777/dataset_07.npy").read_bytes() == np_save(np.zeros(8, "<i4"))
        assert grown <= 1000 + names * MOST, f"{grown:.0f} bytes for each directory"


@measured
def test_a_change_of_a_checkout_costs_1100_bytes(tmp_path, capsys):
    names = 20_000
    store, array = tmp_path / "store.h5", np_save(np.arange(3))
    with h5py.File(store, "w") as file:
        file["few"] = np.arange(3)
    with Mount(store, checkout="work", limit=800) as m:
        (m / "g").mkdir()
        nothing = memory(m)
        for i in range(names):
            (m / f"g/change_{i:05}.npy").write_bytes(array)
    with Mount(store, checkout="work", limit=800) as m:
        grown = cost(m, nothing, names, 1100)
        with capsys.disabled():
            print(f"\n{grown:.0f} bytes for each of {names} changes", end=" ")
        before = memory(m)
        assert len(list_all(m / "g")) == names
        assert cost(m, before, names, MOST) <= MOST
        for i in (0, 1, names // 2, names - 1):
            assert (m / f"g/change_{i:05}.npy").read_bytes() == array
        assert grown <= 1100, f"{grown:.0f} bytes for each change"


def test_chunk_files_cost_nothing(tmp_path, capsys):
    store = tmp_path / "chunks.h5"
    with h5py.File(store, "w", libver="latest") as file:
        file.create_dataset("huge", (100_000, 100_000), "<i1", chunks=(1, 1))
    with Mount(store, limit=800) as m, os.scandir(m / ".npyfs/zarr/huge") as entries:
        first = list(itertools.islice(entries, 50_000))
        before = memory(m)
        seen = set()
        for entry in itertools.islice(entries, CHUNK_FILES):
            status = entry.stat()
            assert stat.S_ISREG(status.st_mode) and status.st_ino == entry.inode()
            seen.add(entry.inode())
        grown = memory(m) - before
        with capsys.disabled():
            print(f"\n{grown / MIB:.1f} MiB for {CHUNK_FILES} chunk files", end=" ")
        assert len(seen) == CHUNK_FILES
        numbers = {entry.name: entry.inode() for entry in first}
        for name in ("0.0", "0.1", "0.49900"):
            assert os.stat(m / ".npyfs/zarr/huge" / name).st_ino == numbers[name]
        for name in ("0.0", "0.1", "0.49900", "99999.99999", "0.1"):
            assert (m / ".npyfs/zarr/huge" / name).read_bytes() == b"\0"
        for name in ("0.100000", "100000.0", "0"):
            with pytest.raises(FileNotFoundError):
                os.stat(m / ".npyfs/zarr/huge" / name)
        assert grown <= 4 * MIB, f"{grown / MIB:.1f} MiB"
    with Mount(store) as m:
        assert os.stat(m / ".npyfs/zarr/huge/0.49900").st_ino == numbers["0.49900"]


@pytest.mark.parametrize("path", ["g/dataset_0000000.npy", ".npyfs/zarr/g/dataset_0000000/0"])
def test_what_is_open_stays_when_the_store_is_replaced(tmp_path, path):
    """Of files that the daemon keeps nothing of but their numbers."""
    store, other = tmp_path / "store.h5", tmp_path / "other.h5"
    write_many(store, 2000, value=1)
    write_many(other, 2000, shape=lambda i: (5,), value=2)
    with Mount(store) as m:
        list_all(m / "g"), list_all(m / ".npyfs/zarr/g/dataset_0000000")
        with open(m / path, "rb") as stream:
            old = os.fstat(stream.fileno())
            os.rename(other, store)
            new = (m / path).read_bytes()
            time.sleep(1.2)  # what the kernel remembers of attributes
            for i in range(1, 500):  # and the daemon of files
                assert os.stat(m / f"g/dataset_{i:07}.npy").st_size == 128 + 20
            assert np.frombuffer(new[-20:], "<i4").tolist() == [2] * 5
            assert os.stat(m / path).st_ino != old.st_ino
            now = os.fstat(stream.fileno())
            assert (now.st_ino, now.st_size) == (old.st_ino, old.st_size)
            assert np.frombuffer(stream.read()[-12:], "<i4").tolist() == [1] * 3
        assert m.errors() == []
