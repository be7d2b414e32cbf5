"""Every array that other tests read is copied out of one mount and into a checkout of another store of the same kind, with cp, and
is there again: byte for byte in that mount, and by value, type and shape for h5py in the file that is exported."""

import json
import shutil

import h5py
import numpy as np
import pytest
from test_arkouda import put_everything

from support import arkouda, daf, sweep_layouts, sweep_types
from support.mount import Mount
from support.process import npyfs, run
from support.truth import np_save, read, walk

# What does not come back, and why.
NOT_IN_ARKOUDA = {
    "nested": "Arkouda has no groups: what is in a directory are the members of one object",
}


def copy(source, target, names):
    """Files and directories of a mount, into another."""
    for some in (names[at:at + 200] for at in range(0, len(names), 200)):
        done = run(["cp", "-r", "--", *(source / name for name in some), target], timeout=300)
        assert done.returncode == 0, done.stderr


def top(mount):
    return sorted(path.name for path in mount.iterdir())


def same_files(source, target, names):
    """The same bytes under all these names."""
    assert names
    different = [name for name in names if read(source / name) != read(target / name)]
    assert not different, f"{len(different)} of {len(names)} differ: {different[:20]}"


def export(store, out):
    npyfs("checkout", "export", store, "copy", out, check=True, timeout=300)
    return out


def same_arrays(found, wanted):
    """By value, type and shape; text by its characters: h5py does not know how wide it was."""
    assert set(found) == set(wanted)
    different = []
    for name, want in wanted.items():
        have = found[name]
        if want.dtype.kind == "U" and have.dtype.kind == "S":
            have = np.char.decode(have, "utf-8") if have.size else have.astype("U")
        if want.dtype.kind == "U":
            have = have.astype(want.dtype)
        if np_save(have) != np_save(want):
            different.append(f"{name}: {have.dtype} {have.shape}, not {want.dtype} {want.shape}")
    assert not different, f"{len(different)} of {len(wanted)}: {different[:20]}"


PLAIN = {
    "types": lambda path: sweep_types.write_types(path), "odd": lambda path: sweep_types.write_odd_types(path),
    "filters": sweep_layouts.write_filters, "packed": sweep_layouts.write_packed,
    "storage": lambda path: sweep_layouts.write_storage(path, "latest"), "maximum": lambda path: sweep_layouts.write_maximum_shapes(path, "latest"),
}


@pytest.mark.sample("sweep", 2)
@pytest.mark.parametrize("name", PLAIN)
def test_plain(name, tmp_path):
    source, target = tmp_path / "source.h5", tmp_path / "target.h5"
    PLAIN[name](source)
    with h5py.File(target, "w") as file:
        file["own"] = 1
    with Mount(source, limit=500) as one, Mount(target, checkout="copy", limit=500) as other:
        copy(one.path, other.path, top(one.path))
        names = one.files()
        same_files(one, other, names)
        assert other.files() == sorted([*names, "own.npy"]) and other.errors() == []
    wanted, found = walk(source), walk(export(target, tmp_path / "out.h5"))
    del found["own.npy"]
    same_arrays(found, wanted)


def daf_arrays(file):
    """{path: what h5py reads} of a daf store, items as well."""
    found = {f"@{name}": np.asarray(value) for name, value in file["__daf__"].attrs.items()}
    keep = lambda path, item: found.update({path: item[()]}) if isinstance(item, h5py.Dataset) else found.update({f"{path}@shape": item.attrs.get("shape")})
    file.visititems(keep)
    return found


def round_trip_daf(source, tmp_path):
    target = tmp_path / "target.h5df"
    with h5py.File(target, "w") as file:
        daf.start(file)
    with Mount(source, limit=300) as one, Mount(target, checkout="copy", limit=300) as other:
        names = [name for name in top(one.path) if not name.endswith(".npz")]
        axes = [name for name in names if name.endswith("#.npy")]
        copy(one.path, other.path, axes)
        copy(one.path, other.path, [name for name in names if name not in axes])
        files = [name for name in one.files() if not name.endswith(".npz")]
        same_files(one, other, files)
        assert other.files() == one.files() and other.errors() == []
    with h5py.File(source) as file, h5py.File(export(target, tmp_path / "out.h5df")) as out:
        wanted, found = daf_arrays(file), daf_arrays(out)
        assert set(found) == set(wanted)
        for name, want in wanted.items():
            have = found[name]
            assert have.shape == want.shape and have.tolist() == want.tolist(), (name, have, want)
            assert have.dtype == want.dtype or have.dtype.kind in "SO", (name, have.dtype, want.dtype)


def test_daf(tmp_path):
    with h5py.File(tmp_path / "source.h5df", "w") as file:
        daf.write(file)
    round_trip_daf(tmp_path / "source.h5df", tmp_path)


@pytest.mark.parametrize("name", ["clean.h5df", "clean_gzip.h5df", "latest.h5df"])
def test_daf_fixtures(name, shared, tmp_path):
    shutil.copyfile(shared / "daf" / name, tmp_path / "source.h5df")
    round_trip_daf(tmp_path / "source.h5df", tmp_path)


# What Arkouda writes of an object; who wrote it, and what npyfs adds, may differ.
NO_MARKS = {"arkouda_version", "npyfs_time", "npyfs_times"}


def round_trip_arkouda(source, tmp_path, without=()):
    """`cp -r` of all that is shown, in whatever order: each object is what it was, with every dataset and attribute."""
    target = tmp_path / "target.h5"
    with arkouda.Store(tmp_path, "target.h5", None) as store:
        arkouda.put_array(store, "own", np.arange(3))
    with Mount(source, limit=300) as one, Mount(target, checkout="copy", limit=300) as other:
        names = [name for name in top(one.path) if name not in without]
        copy(one.path, other.path, names)
        files = [name for name in one.files() if name.split("/")[0] not in without]
        assert npyfs("checkout", "diff", other.path, check=True).stderr == ""
        same_files(one, other, files)
        assert other.files() == sorted([*files, "own.npy"]) and other.errors() == []
        # Once more, over what is there.
        copy(one.path, other.path, names)
        same_files(one, other, files)
        npyfs("checkout", "sync", other.path, check=True)
        assert npyfs("checkout", "diff", other.path, check=True).stderr == "" and other.errors() == []
        arrays = {name: read(other / name) for name in files}
    out = export(target, tmp_path / "out.h5")
    with Mount(out) as mount:
        assert {name: read(mount / name) for name in files} == arrays
    with h5py.File(source) as file, h5py.File(out) as new:
        found = [name for name in file if name not in without and not name.startswith("_arkouda")]
        for name in found:
            same_object(file[name], new[name])
        assert set(new) == {*found, "own"}
        return found


def same_object(old, new):
    """Attributes, members, types, elements. Where Arkouda leaves marks out (in members of single files, in old files), npyfs may say
    them; indices are wide."""
    assert type(old) is type(new), old.name
    marks = {name for name in old.attrs if name not in NO_MARKS}
    assert marks <= set(new.attrs), (old.name, marks - set(new.attrs))
    assert set(new.attrs) - marks <= {*NO_MARKS, "ObjType", "file_version", "isBigInt", "MaxBits", "NumLimbs"}, old.name
    for name in marks:
        assert np.array_equal(old.attrs[name], new.attrs[name]), (old.name, name, old.attrs[name], new.attrs[name])
    if isinstance(old, h5py.Dataset):
        assert old.shape == new.shape and np.array_equal(old[()], new[()], equal_nan=old.dtype.kind == "f"), old.name
        assert old.dtype == new.dtype or new.dtype == "<i8", (old.name, old.dtype, new.dtype)
        return
    assert set(old) <= set(new) and set(new) - set(old) <= {"segments"}, (old.name, set(old), set(new))
    for name in old:
        same_object(old[name], new[name])


@pytest.mark.parametrize("rows", [7, 0, 3])
def test_arkouda(rows, tmp_path):
    with arkouda.Store(tmp_path, "source.h5", None) as store:
        put_everything(store, rows)
    assert len(round_trip_arkouda(tmp_path / "source.h5", tmp_path, NOT_IN_ARKOUDA)) > 20


@pytest.mark.slow
def test_arkouda_fixtures(shared, tmp_path):
    files = {file for case in json.loads((shared / "arkouda/.expected/manifest.json").read_text()) for file in case["files"] if len(case["files"]) == 1}
    singles = sorted(file for file in files if file.startswith("single/"))
    assert len(singles) > 10
    for number, file in enumerate(singles):
        place = tmp_path / str(number)
        place.mkdir()
        shutil.copyfile(shared / "arkouda" / file, place / "source.h5")
        round_trip_arkouda(place / "source.h5", place)


def test_text_comes_back_as_wide_as_it_was_and_rsync_transfers_nothing(tmp_path):
    """`<U` of ASCII lies in HDF5 as bytes; a mark says what it was."""
    texts = {"ascii": np.array(["a", "bcd"]), "wide": np.array(["a", "b"], "U40"), "mixed": np.array([["\u00e9", "b"]], "U9"), "one": np.array("x"),
             "bytes": np.array([b"a", b"bc"], "S7")}
    (tmp_path / "from").mkdir()
    for name, array in texts.items():
        np.save(tmp_path / "from" / f"{name}.npy", array)
    plain, cells = tmp_path / "x.h5", tmp_path / "cells.h5df"
    with h5py.File(plain, "w") as file:
        file["own"] = 1
    with Mount(plain, checkout="work") as mount:
        transferred = []
        for _ in range(2):
            done = run(["rsync", "-a", "--stats", f"{tmp_path}/from/", mount.path])
            assert done.returncode == 0, done.stderr
            transferred.append([line for line in done.stdout.splitlines() if "files transferred" in line][0].split(": ")[1])
        assert transferred == [str(len(texts)), "0"]
        for name in texts:
            assert run(["cmp", tmp_path / f"from/{name}.npy", mount / f"{name}.npy"]).returncode == 0, name
    with h5py.File(cells, "w") as file:
        daf.start(file)
    axis = np.array(["one", "two"], "U9")
    with Mount(cells, checkout="work") as mount:
        np.save(mount / "cell#.npy", axis)
        np.save(mount / "cell#kind.npy", np.array(["", "x"], "U3"))
        assert read(mount / "cell#.npy") == np_save(axis) and read(mount / "cell#kind.npy") == np_save(np.array(["", "x"], "U3"))


def test_a_mark_that_cannot_be_true_is_not_believed(tmp_path):
    store = tmp_path / "x.h5"
    kinds = {"ascii": (np.array([b"ab", b"c"], "S4"), [5, 1, 0, -1, 2**62]), "utf8": (np.array(["\u00e9\u00e9\u00e9".encode()], h5py.string_dtype("utf-8", 6)), [2, 7])}
    with h5py.File(store, "w") as file:
        for name, (array, marks) in kinds.items():
            for mark in marks:
                file.create_dataset(f"{name}{mark}", data=array).attrs["npyfs_chars"] = np.int64(mark)
        for number, odd in enumerate([np.int32(2), np.array([2, 2]), "2", np.float64(2)]):
            file.create_dataset(f"odd{number}", data=kinds["ascii"][0]).attrs["npyfs_chars"] = odd
        file.create_dataset("not_utf8", data=np.array([b"\xff"], "S4")).attrs["npyfs_chars"] = np.int64(2)
        file.create_dataset("true", data=kinds["ascii"][0]).attrs["npyfs_chars"] = np.int64(3)
    with Mount(store) as mount:
        dtypes = {name: np.load(mount / name).dtype.str for name in mount.files()}
        assert dtypes.pop("true.npy") == "<U3"
        assert {code for name, code in dtypes.items() if name.startswith("utf8")} == {"<U3"}
        assert {code for name, code in dtypes.items() if not name.startswith("utf8")} == {"|S4"}
