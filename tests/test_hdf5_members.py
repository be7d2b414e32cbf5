"""HDF5 files that are stored as several: drivers family, split and multi of libhdf5, as h5py writes them. Judge: what h5py reads through
the same driver. What lies in a member that is missing, cut off or elsewhere is an error, and never zeros."""

import ctypes
import os

import h5py
import numpy as np
import pytest

from support.mount import Mount
from support.pipelines import library
from support.process import npyfs
from support.truth import np_save, read

pytestmark = pytest.mark.fast

SIZE = 4096


def export(*arguments, code=0):
    done = npyfs("checkout", "export", *arguments)
    assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def fill(file):
    """Arrays of every layout; of family and SIZE, many lie across members."""
    rng = np.random.default_rng(3)
    file["whole"] = np.arange(5000)
    file["few"] = np.arange(3, dtype="i2")
    file.create_dataset("packed", data=rng.integers(0, 9, 6000), chunks=(700,), compression="gzip", shuffle=True)
    file.create_dataset("chunked", data=rng.normal(size=(60, 50)), chunks=(20, 50))
    file.create_dataset("summed", data=np.arange(4000), chunks=(1000,), fletcher32=True)
    file.create_dataset("lzf", data=np.arange(4000) // 7, chunks=(512,), compression="lzf")
    file.create_dataset("never", shape=(30,), dtype="f4", fillvalue=1.5)
    file.create_dataset("part", shape=(3000,), dtype="i8", chunks=(500,))[500:700] = 7
    file["text"] = np.array([f"word {i}" for i in range(300)], dtype=h5py.string_dtype())
    file["bytes"] = np.array([b"abc", b"d"])
    file["group/scalar"] = 4.5
    file["group"].attrs["note"] = "kept"


def family(folder, pattern="x-%05d.h5", libver=None, size=SIZE):
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / pattern, "w", driver="family", memb_size=size, libver=libver) as file:
        fill(file)
    with h5py.File(folder / pattern, "r", driver="family", memb_size=size) as file:
        return arrays(file)


def split(folder, name="x", libver=None):
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / name, "w", driver="split", libver=libver) as file:
        fill(file)
    with h5py.File(folder / name, "r", driver="split") as file:
        return arrays(file)


def arrays(file):
    """{path: array} of all datasets."""
    found = {}

    def visit(path, item):
        if isinstance(item, h5py.Dataset):
            text = h5py.check_string_dtype(item.dtype)
            found[path] = item.asstr()[()].astype("U") if text and text.length is None else item[()]
    file.visititems(visit)
    return found


def same(mount, want):
    assert {name for name in mount.files() if name.endswith(".npy")} == {f"{path}.npy" for path in want}
    for path, array in want.items():
        assert read(mount / f"{path}.npy") == np_save(np.asarray(array)), path


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("make, first", [(family, "x-00000.h5"), (split, "x-m.h5")], ids=["family", "split"])
def test_all_arrays_are_as_h5py_reads_them(tmp_path, make, first, libver):
    want = make(tmp_path / "all", libver=libver)
    with Mount(tmp_path / "all" / first) as mount:
        same(mount, want)
    # In a directory it is one store, and its members are none.
    with h5py.File(tmp_path / "all/other.h5", "w") as file:
        file["y"] = 1
    with Mount(tmp_path / "all") as mount:
        assert sorted(os.listdir(mount.path)) == ["other.h5", "x.h5"]
        for path, array in want.items():
            assert read(mount / f"x.h5/{path}.npy") == np_save(np.asarray(array)), path
        assert os.readlink(mount / first) == "x.h5"
        for other in ("x-00001.h5", "x-r.h5"):
            assert not (mount / other).exists()
    told = npyfs("verify", tmp_path / "all")
    assert told.returncode == 0, told.stderr


def test_the_name_is_that_of_the_first_where_another_store_has_it(tmp_path):
    family(tmp_path)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["y"] = 1
    with Mount(tmp_path) as mount:
        assert sorted(os.listdir(mount.path)) == ["x-00000.h5", "x.h5"]
        assert np.load(mount / "x-00000.h5/few.npy").tolist() == [0, 1, 2]


@pytest.mark.parametrize("pattern", ["x%d.h5", "run0-%03d", "a 100%%-%d.b.h5", "%06d.h5"])
def test_patterns_of_many_forms(tmp_path, pattern):
    want = family(tmp_path / "made", pattern)
    # To libhdf5 the whole path is a format.
    (tmp_path / "made").rename(tmp_path / "of%s")
    with Mount(tmp_path / "of%s" / (pattern % 0)) as mount:
        same(mount, want)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_multi_has_a_member_for_each_kind_of_bytes(tmp_path, libver):
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    set_multi = library().H5Pset_fapl_multi
    set_multi.argtypes = [ctypes.c_int64, *[ctypes.c_void_p] * 4, ctypes.c_bool]
    assert set_multi(access.id, None, None, None, None, True) >= 0
    access.set_libver_bounds(getattr(h5py.h5f, f"LIBVER_{libver.upper()}"), h5py.h5f.LIBVER_LATEST)
    name = str(tmp_path / "x").encode()
    with h5py.File(h5py.h5f.create(name, fapl=access)) as file:
        fill(file)
    assert len(list(tmp_path.glob("x-?.h5"))) >= 4
    with h5py.File(h5py.h5f.open(name, h5py.h5f.ACC_RDONLY, fapl=access)) as file:
        want = arrays(file)
    with Mount(tmp_path / "x-s.h5") as mount:
        same(mount, want)
    with Mount(tmp_path) as mount:
        assert os.listdir(mount.path) == ["x.h5"]


def test_another_member_names_the_first(tmp_path):
    family(tmp_path)
    split(tmp_path, "y")
    assert f"name its first, {tmp_path}/x-00000.h5" in npyfs("ls", tmp_path / "x-00003.h5").stderr
    assert f"name its first, {tmp_path}/y-m.h5" in npyfs("ls", tmp_path / "y-r.h5").stderr


def test_a_family_without_a_member_says_which(tmp_path):
    family(tmp_path)
    members = sorted(tmp_path.glob("x-*"))
    for gone in (members[-1], members[2]):
        gone.rename(tmp_path / "kept")
        told = npyfs("cat", tmp_path / members[0], "few.npy")
        assert told.returncode != 0 and f"not there: {gone.name}" in told.stderr and not told.stdout
        with h5py.File(tmp_path / "other.h5", "w") as file:
            file["y"] = 1
        with Mount(tmp_path) as mount:
            assert np.load(mount / "other.h5/y.npy") == 1
            with pytest.raises(OSError):
                os.listdir(mount / "x.h5")
            (tmp_path / "kept").rename(gone)
            assert np.load(mount / "x.h5/few.npy").tolist() == [0, 1, 2]
        (tmp_path / "other.h5").unlink()


def test_a_split_file_without_raw_data_still_tells_what_is_in_it(tmp_path):
    want = split(tmp_path)
    (tmp_path / "x-r.h5").unlink()
    with Mount(tmp_path / "x-m.h5", options="xattrs") as mount:
        assert {name for name in mount.files() if name.endswith(".npy")} >= {f"{path}.npy" for path in want if path not in ("text",)}
        for path in ("whole", "packed", "chunked", "lzf", "bytes", "text"):
            with pytest.raises(OSError):
                read(mount / f"{path}.npy")
        assert read(mount / "never.npy") == np_save(want["never"])
        assert "x-r.h5" in (mount / ".npyfs/errors.log").read_text()


def test_any_member_that_changes_makes_another_version(tmp_path):
    family(tmp_path)
    with h5py.File(tmp_path / "x-%05d.h5", "r", driver="family", memb_size=SIZE) as file:
        at = file["whole"].id.get_offset() + 8 * 4000
    with Mount(tmp_path / "x-00000.h5") as mount:
        assert np.load(mount / "whole.npy")[4000] == 4000
        with open(tmp_path / f"x-{at // SIZE:05}.h5", "r+b") as file:
            file.seek(at % SIZE)
            file.write(np.int64(-1).tobytes())
        for _ in range(100):
            try:
                if np.load(mount / "whole.npy")[4000] == -1:
                    break
            except OSError:
                pass
        else:
            with Mount(tmp_path / "x-00000.h5") as again:
                assert np.load(again / "whole.npy")[4000] == -1


@pytest.mark.parametrize("make, first", [(family, "x-00000.h5"), (split, "x-m.h5")], ids=["family", "split"])
def test_what_is_written_over_it_is_committed_and_exported_as_one_file(tmp_path, make, first):
    want = make(tmp_path / "all")
    before = {path: path.read_bytes() for path in (tmp_path / "all").iterdir()}
    store = tmp_path / "all" / first
    with Mount(store, checkout="work") as mount:
        np.save(mount / "few.npy", np.arange(4.0))
        os.unlink(mount / "packed.npy")
    done = npyfs("checkout", "commit", store, "work")
    assert done.returncode == 0, done.stderr
    del want["packed"]
    want["few"] = np.arange(4.0)
    export(store, tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        found = arrays(file)
        assert file["group"].attrs["note"] == "kept" and file["lzf"].compression == "lzf"
    assert found.keys() == want.keys()
    for path, array in want.items():
        assert np.array_equal(found[path], array), path
    with Mount(store) as mount, Mount(tmp_path / "out.h5") as out:
        same(mount, want)
        same(out, want)
    assert {path: path.read_bytes() for path in before} == before
    # A directory of stores becomes one of files.
    export(tmp_path / "all", tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["x.h5"] and h5py.File(tmp_path / "copy/x.h5")["whole"][7] == 7
    told = npyfs("checkout", "publish", store, tmp_path / "links.h5")
    assert told.returncode != 0 and "export makes one" in told.stderr and not (tmp_path / "links.h5").exists()


def refused(path, why):
    told = npyfs("cat", path, "few.npy")
    assert told.returncode != 0 and why in told.stderr and not told.stdout, told


def patch(path, at, number):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(int(number).to_bytes(8, "little"))


def test_hostile_families(tmp_path):
    # Where format version 0 has the end of the addresses and, behind the superblock, the size of members.
    end, size = 40, 112
    first = tmp_path / "x-00000.h5"
    for name, at, number, why in [
        ("huge", end, 1 << 62, "more than 512"),
        ("long", end, SIZE * 400, "bytes of 4096"),
        ("none", size, 0, "no size"),
        ("smaller", size, SIZE // 2, "in a family of 2048 each"),
        ("larger", size, SIZE * 2, "bytes of"),
        ("vast", size, 1 << 63, "bytes of"),
    ]:
        folder = tmp_path / name
        family(folder, libver="earliest")
        patch(folder / first.name, at, number)
        refused(folder / first.name, why)
    # A member that is cut off, one that is a link out of the directory, one that is a directory.
    family(tmp_path)
    second = tmp_path / "x-00001.h5"
    whole = second.read_bytes()
    second.write_bytes(whole[:-1])
    refused(first, "x-00001.h5 has 4095 bytes of 4096")
    second.unlink()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/secret").write_bytes(whole)
    second.symlink_to(tmp_path / "elsewhere/secret")
    refused(first, "symbolic link")
    second.unlink()
    second.symlink_to("../etc/passwd")
    refused(first, "symbolic link")
    second.unlink()
    second.mkdir()
    refused(first, "x-00001.h5")


@pytest.mark.parametrize("name", [b"%n-r.h5", b"%s/../r", b"%s%s.h5", b"%d", b"\0"])
def test_hostile_names_in_split_files(tmp_path, name):
    split(tmp_path, libver="earliest")
    path = tmp_path / "x-m.h5"
    data = path.read_bytes()
    assert data.count(b"%s-r.h5\0") == 1
    path.write_bytes(data.replace(b"%s-r.h5\0", name.ljust(8, b"\0")))
    refused(path, "makes no sense")


def test_a_part_of_split_by_another_name(tmp_path):
    split(tmp_path)
    (tmp_path / "x-m.h5").rename(tmp_path / "y.h5")
    refused(tmp_path / "y.h5", "must be called ...-m.h5")
