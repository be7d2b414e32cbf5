"""npyfs convert: stores of every kind as every other kind that can hold them, and back. Judges: h5py and NumPy, on what was written
and on what it was written from; the rules of each format."""

import json
import os
import shutil

import h5py
import numpy as np
import pytest
import scipy.sparse

from support import daf
from support.checkouts import checkout
from support.conversions import LOST, all_is_well, arrays, convert, files, objects
from support.judge import faults_of
from support.mount import Mount
from support.process import npyfs, one_line
from support.truth import np_save

pytestmark = pytest.mark.fast
USAGE, STORE = 1, 2


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    npyfs("demo", folder, check=True)
    return folder


@pytest.fixture
def cells(tmp_path):
    """A daf store, and what it shows."""
    path = tmp_path / "cells.h5df"
    with h5py.File(path, "w") as file:
        shown, matrices = daf.write(file)
    return path, shown, matrices


def numbers():
    """Arrays of every type that all HDF5 kinds can hold."""
    random = np.random.default_rng(7)
    found = {code: random.integers(0, 2 if code == "?" else 100, 9).astype(code) for code in "?bhilqBHILQefd"}
    return found | {"matrix": random.normal(size=(4, 5)), "one": np.array(2.5), "none": np.zeros(0, "i4")}


def save(folder, found):
    for name, array in found.items():
        path = folder / f"{name}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array)
    return folder


def test_daf_as_plain_and_back(tmp_path, cells):
    store, shown, matrices = cells
    report = convert(store, tmp_path / "plain.h5", "plain")
    assert report["changed"] == report["without_counterpart"] == []
    with h5py.File(tmp_path / "plain.h5") as file:
        assert "__daf__" not in file and not file.attrs
        for path, array in shown.items():
            found = file[path.removesuffix(".npy")]
            value = found.asstr()[()] if array.dtype.kind == "U" else found[()]
            np.testing.assert_array_equal(value, array, path)
            assert array.dtype.kind in "US" or found.dtype == array.dtype, path
        leaves = []
        file.visititems(lambda name, item: leaves.append(name) if isinstance(item, h5py.Dataset) else None)
        assert len(leaves) == len(shown) == report["objects"]
    assert npyfs("info", tmp_path / "plain.h5", check=True).stdout.count("plain")
    convert(tmp_path / "plain.h5", tmp_path / "back.h5df", "daf")
    assert faults_of(tmp_path / "back.h5df") == []
    all_is_well(tmp_path / "back.h5df")
    with Mount(tmp_path / "back.h5df") as mount:
        for path, array in shown.items():
            assert (mount / path).read_bytes() == np_save(array), path
        for path, matrix in matrices.items():
            assert (scipy.sparse.load_npz(mount / path) != matrix).nnz == 0


def test_daf_as_a_directory_and_back(tmp_path, cells):
    store, shown, _ = cells
    report = convert(store, tmp_path / "npy", "npy")
    assert files(tmp_path / "npy") == {path: np_save(array) for path, array in shown.items()}
    assert report["bytes"] == sum(len(data) for data in files(tmp_path / "npy").values())
    report = convert(tmp_path / "npy", tmp_path / "back.h5df", "daf")
    assert report["changed"] == report["without_counterpart"] == []
    assert faults_of(tmp_path / "back.h5df") == []
    convert(tmp_path / "back.h5df", tmp_path / "again", "npy")
    assert files(tmp_path / "again") == files(tmp_path / "npy")


def test_a_sparse_matrix_comes_as_an_archive(tmp_path):
    folder = save(tmp_path / "in", {"cell#": np.array(["a", "b"]), "gene#": np.array(["x", "y", "z"])})
    matrix = scipy.sparse.csr_matrix(np.array([[0, 1, 2], [3, 0, 0]], "f4"))
    scipy.sparse.save_npz(folder / "cell,gene#UMIs.npz", matrix)
    report = convert(folder, tmp_path / "out.h5df", "daf")
    assert report["objects"] == 3 and report["without_counterpart"] == []
    with h5py.File(tmp_path / "out.h5df") as file:
        group = file["cell,gene#UMIs"]
        np.testing.assert_array_equal(group["data"], matrix.data)
        np.testing.assert_array_equal(group["indptr"], matrix.indptr)
        np.testing.assert_array_equal(group.attrs["shape"], [2, 3])
    assert objects(convert(folder, tmp_path / "out.h5", "plain", code=LOST)["without_counterpart"]) == {"cell,gene#UMIs.npz": "an archive"}


def test_what_daf_has_no_form_for_is_listed(tmp_path):
    folder = save(tmp_path / "in", {"cell#": np.array(["a", "b"]), "cell#age": np.array([1, 2]), "cell#short": np.array([1]), "gene#x": np.zeros(3),
                                    "a,b,c#x": np.zeros(3), "complex": np.array(1j), "group/x": np.zeros(2), "big": np.zeros((3 << 20), "f8"),
                                    "item": np.arange(3)})
    (folder / "notes.md").write_text("hello")
    report = convert(folder, tmp_path / "out.h5df", "daf", code=LOST)
    lost = objects(report["without_counterpart"])
    assert set(lost) == {"cell#short.npy", "gene#x.npy", "a,b,c#x.npy", "complex.npy", "group/x.npy", "big.npy", "notes.md"}
    assert "does not fit" in lost["cell#short.npy"] and "gene#" in lost["gene#x.npy"] and "groups" in lost["group/x.npy"]
    again = convert(folder, tmp_path / "out.h5df", "daf", "--leave-out")
    assert objects(again["without_counterpart"]) == lost and again["objects"] == 3
    with h5py.File(tmp_path / "out.h5df") as file:
        assert sorted(file) == ["__daf__", "cell#", "cell#age"] and list(file["__daf__"].attrs["item"]) == [0, 1, 2]


@pytest.mark.parametrize("kind", ["plain", "arkouda"])
def test_a_directory_as_a_file_and_back(tmp_path, kind):
    found = numbers() | {"bytes": np.array([b"a", b"bcd", b""]), "text": np.array(["Größe", "b"]), "time": np.array(["2020-01-01T01:02:03", "NaT"], "M8[ns]"),
                         "span": np.array([1, -5], "m8[ns]")}
    if kind == "plain":
        found |= {"deep/below/x": np.arange(3), "complex": np.array([1j]), "scalar": np.array("text"), "grid": np.array([["a", "b"]])}
    report = convert(save(tmp_path / "in", found), tmp_path / "out.h5", kind)
    assert report["objects"] == len(found) and report["without_counterpart"] == []
    changed = objects(report["changed"])
    assert changed == {} if kind == "plain" else set(changed) == {"text.npy"}
    assert faults_of(tmp_path / "out.h5") == []
    all_is_well(tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        np.testing.assert_array_equal(file["i"][()], found["i"])
        np.testing.assert_array_equal(file["matrix"][()].reshape(4, 5), found["matrix"])
        if kind == "arkouda":
            assert file["time"].attrs["ObjType"] == 7 and file["text"].attrs["ObjType"] == 2
            np.testing.assert_array_equal(file["time"][()], found["time"].view("i8"))
            assert bytes(file["text/values"][()]) == "Größe\0b\0".encode()
    convert(tmp_path / "out.h5", tmp_path / "back", "npy")
    before, after = files(tmp_path / "in"), files(tmp_path / "back")
    assert set(before) == set(after)
    for path in set(before) - set(changed):
        assert before[path] == after[path], path
    if kind == "arkouda":
        np.testing.assert_array_equal(np.char.decode(np.load(tmp_path / "back/text.npy"), "utf-8"), found["text"])


def test_other_byte_and_element_orders(tmp_path):
    found = {"big": np.arange(5, dtype=">i4"), "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)), "seconds": np.array(["2020-01-01"], "M8[s]")}
    folder = save(tmp_path / "in", found)
    for kind, changed in {"plain": set(), "arkouda": {"seconds.npy"}}.items():
        report = convert(folder, tmp_path / f"{kind}.h5", kind)
        order = {"fortran.npy": "in C order in the place of Fortran order"}
        assert set(objects(report["changed"])) == changed | set(order)
        assert order.items() <= objects(report["changed"]).items()
        convert(tmp_path / f"{kind}.h5", tmp_path / kind, "npy")
        for name, array in arrays(tmp_path / kind).items():
            np.testing.assert_array_equal(array, found[name.removesuffix(".npy")])
    with h5py.File(tmp_path / "plain.h5") as file:
        assert file["big"].dtype == ">i4"
        np.testing.assert_array_equal(file["fortran"][()], found["fortran"])


def test_sequences_become_groups_and_are_listed(tmp_path):
    rows = [np.arange(n, dtype="<i4") for n in (2, 0, 3)]
    store = tmp_path / "x.h5"
    with h5py.File(store, "w") as file:
        for name in ("ragged", "g/deep"):
            data = file.create_dataset(name, (3,), h5py.vlen_dtype("<i4"))
            for at, row in enumerate(rows):
                data[at] = row
        file["ragged"].attrs["units"] = "mV"
        file["plain"] = np.arange(3)
    report = convert(store, tmp_path / "out", "npy")
    form = "a group of values and offsets: sequences of variable length"
    found = {}
    for remark in report["changed"]:
        found.setdefault(remark["object"], []).append(remark["what"])
    assert found == {"ragged": ["without its attributes units", form], "g/deep": [form]} and report["without_counterpart"] == []
    report = convert(tmp_path / "out", tmp_path / "back.h5", "plain")
    assert report["changed"] == report["without_counterpart"] == []
    with h5py.File(tmp_path / "back.h5") as file:
        assert isinstance(file["ragged"], h5py.Group) and sorted(file["ragged"]) == ["offsets", "values"]
        assert np.array_equal(file["g/deep/values"][()], np.concatenate(rows)) and file["g/deep/offsets"][()].tolist() == [0, 2, 2, 5]


def test_arkouda_as_plain_and_back(tmp_path, demo):
    report = convert(demo / "trips_LOCALE0000.h5", tmp_path / "plain.h5", "plain")
    assert objects(report["changed"]) == {"carrier.npy": "only the labels of a Categorical"}
    with Mount(demo / "trips_LOCALE0000.h5") as mount:
        want = {name: np.load(mount / f"{name}.npy") for name in ("carrier", "delayed", "departure", "distance", "flight")}
        want |= {f"stops/{name}": np.load(mount / f"stops/{name}.npy") for name in ("values", "segments")}
    with h5py.File(tmp_path / "plain.h5") as file:
        assert "File_Format" not in file.attrs
        for name, array in want.items():
            value = file[name][()]
            np.testing.assert_array_equal(value.view(array.dtype) if array.dtype.kind == "M" else value, array)
    report = convert(tmp_path / "plain.h5", tmp_path / "back.h5", "arkouda")
    assert report["changed"] == report["without_counterpart"] == []
    all_is_well(tmp_path / "back.h5")
    assert faults_of(tmp_path / "back.h5") == []
    with h5py.File(tmp_path / "back.h5") as file:
        assert file["stops"].attrs["ObjType"] == 3 and file["departure"].attrs["ObjType"] == 7 and file["flight"].attrs["ObjType"] == 2
    with Mount(tmp_path / "back.h5") as mount:
        for name, array in want.items():
            np.testing.assert_array_equal(np.load(mount / f"{name}.npy"), array)


def test_a_set_becomes_one_file_with_every_object_as_it_was(tmp_path, demo):
    report = convert(demo / "trips_LOCALE0000.h5", tmp_path / "one.h5", "arkouda")
    assert report["changed"] == report["without_counterpart"] == [] and report["objects"] == 6
    with h5py.File(tmp_path / "one.h5") as file:
        assert file["carrier"].attrs["ObjType"] == 4
    assert faults_of(tmp_path / "one.h5") == []
    with Mount(demo / "trips_LOCALE0000.h5") as mount:
        want = arrays(mount.path)
    with Mount(tmp_path / "one.h5") as mount:
        found = arrays(mount.path)
    assert set(found) == set(want) and all((found[name] == want[name]).all() for name in want)


def test_a_data_frame_is_a_directory_of_its_columns(tmp_path):
    columns = {"df/Index": np.arange(3), "df/name": np.array([b"x", b"yy", b""]), "df/size": np.array([1.5, 2.5, 3.5])}
    report = convert(save(tmp_path / "in", columns), tmp_path / "df.hdf", "arkouda")
    assert report["objects"] == 1 and report["without_counterpart"] == []
    with h5py.File(tmp_path / "df.hdf") as file:
        assert file["df"].attrs["ObjType"] == 6
        np.testing.assert_array_equal(file["df/size"], columns["df/size"])
    convert(tmp_path / "df.hdf", tmp_path / "back", "npy")
    assert {name: array.tolist() for name, array in arrays(tmp_path / "back").items()} == {f"{name}.npy": array.tolist() for name, array in columns.items()}


def test_a_directory_that_is_a_copy_of_a_mount_keeps_every_object_what_it_was(tmp_path, demo):
    with Mount(demo / "flights.h5") as mount:
        shutil.copytree(mount.path, tmp_path / "copy")
        want = arrays(mount.path)
    report = convert(tmp_path / "copy", tmp_path / "out.h5", "arkouda")
    assert report["changed"] == report["without_counterpart"] == []
    with Mount(tmp_path / "out.h5") as mount:
        found = arrays(mount.path)
    assert set(found) == set(want) and all((found[name] == want[name]).all() for name in want)


def test_names_that_others_cannot_hold_are_listed(tmp_path, demo):
    lost = objects(convert(demo / "plain.h5", tmp_path / "out.hdf", "arkouda", code=LOST)["without_counterpart"])
    assert set(lost) == {"images", "latest.npy"} and "Index" in lost["images"] and "links" in lost["latest.npy"]
    done = npyfs("convert", demo / "plain.h5", tmp_path / "out.h5df")
    assert done.returncode == LOST and done.stdout == ""
    assert done.stderr.splitlines()[-1].endswith("not written: 2 objects have no counterpart; --leave-out does without them")
    assert os.listdir(tmp_path) == []


def test_attributes_that_stay_behind_are_told(tmp_path, demo):
    report = convert(demo / "plain.h5", tmp_path / "out", "npy")
    assert objects(report["changed"]) == {"images/stack.npy": "without its attributes units"}
    assert os.readlink(tmp_path / "out/latest.npy") == "images/stack.npy"
    with h5py.File(demo / "plain.h5") as file:
        assert (tmp_path / "out/images/stack.npy").read_bytes() == np_save(file["images/stack"][()])


def test_a_file_of_the_same_kind_is_copied_with_what_is_committed(tmp_path, demo):
    store = tmp_path / "plain.h5"
    shutil.copy(demo / "plain.h5", store)
    with Mount(store, checkout="work") as mount:
        np.save(mount / "new.npy", np.arange(3))
    convert(store, tmp_path / "before.hdf5", "plain")
    checkout("commit", store, "work")
    convert(store, tmp_path / "after.hdf5", "plain")
    with h5py.File(tmp_path / "before.hdf5") as before, h5py.File(tmp_path / "after.hdf5") as after:
        assert "new" not in before and list(after["new"]) == [0, 1, 2]
        assert after["images/stack"].attrs["units"] and after["images/stack"].chunks and after["latest"] == after["images/stack"]
    report = convert(store, tmp_path / "after", "npy")
    assert "new.npy" in files(tmp_path / "after") and report["objects"] == 4


def test_another_separator_stays_out_of_the_names(tmp_path, cells):
    store, shown, _ = cells
    convert(store, tmp_path / "npy", "npy", "-o", "sep=@")
    assert set(files(tmp_path / "npy")) == set(shown)


def test_text_files_are_texts(tmp_path):
    folder = save(tmp_path / "in", {"x": np.arange(3)})
    (folder / "note.txt").write_text("Größe\n")
    (folder / "raw.bin").write_bytes(b"\0\1\2")
    convert(folder, tmp_path / "out.h5", "plain")
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["note"].asstr()[()] == "Größe\n" and list(file["raw"]) == [0, 1, 2]
    convert(folder, tmp_path / "copy", "npy")
    assert files(tmp_path / "copy") == files(folder)


def test_the_kind_is_told_by_the_name(tmp_path):
    folder = save(tmp_path / "in", {"x": np.arange(3)})
    for name, line in {"a.h5": "plain", "a.hdf5": "plain", "a.h5df": "daf", "a": "npy", "b/": "npy"}.items():
        done = npyfs("convert", folder, f"{tmp_path}/{name}", check=True)
        assert done.stdout == f"{tmp_path}/{name}: {line}, 1 objects, 152 bytes\n"
    done = npyfs("convert", folder, tmp_path / "a.zarr")
    assert done.returncode == USAGE and "convert it to HDF5 first" in one_line(done.stderr)
    done = npyfs("convert", "--to", "parquet", folder, tmp_path / "c")
    assert done.returncode == USAGE and "plain, daf, arkouda, hangar, npy" in one_line(done.stderr)


@pytest.mark.parametrize("view", ["zarr", "zarr3"])
def test_a_zarr_store_is_a_copy_of_the_view(demo, tmp_path, view):
    """Judge: `cp -r` of the view of a mount."""
    def files(top):
        return {path.relative_to(top): path.read_bytes() for path in top.rglob("*") if path.is_file()}

    for name in ("plain.h5", "cells.h5df"):
        with Mount(demo / name) as mount:
            shutil.copytree(mount / f".npyfs/{view}", tmp_path / f"{name}.copy")
        done = npyfs("convert", "--leave-out", "--to", view, "--json", demo / name, tmp_path / f"{name}.{view}")
        assert done.returncode == 0, done.stderr
        written = files(tmp_path / f"{name}.{view}")
        assert written == files(tmp_path / f"{name}.copy") and json.loads(done.stdout)["bytes"] == sum(map(len, written.values()))


def test_a_zarr_store_by_its_name_and_what_is_refused(demo, tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["g/a"] = np.arange(5)
    done = npyfs("convert", tmp_path / "x.h5", tmp_path / "x.zarr", check=True)
    assert "x.zarr: zarr, " in done.stdout and (tmp_path / "x.zarr/g/a/.zarray").exists()
    npyfs("convert", f"{tmp_path}/x.h5:/g", tmp_path / "g.zarr", check=True)
    assert (tmp_path / "g.zarr/a/.zarray").exists()
    assert "it is there already" in one_line(npyfs("convert", tmp_path / "x.h5", tmp_path / "x.zarr").stderr)
    assert npyfs("convert", "--stacked", tmp_path / "x.h5", tmp_path / "y.zarr").returncode == USAGE
    # What has no counterpart is named, and nothing is written.
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        file["r"] = np.array([file["g"].ref], dtype=h5py.ref_dtype)
    done = npyfs("convert", tmp_path / "x.h5", tmp_path / "z.zarr")
    assert done.returncode == 3 and "r: " in done.stderr and "--leave-out" in done.stderr and not (tmp_path / "z.zarr").exists()
    npyfs("convert", "--leave-out", tmp_path / "x.h5", tmp_path / "z.zarr", check=True)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("command", [["convert"], ["checkout", "export"], ["pack"]])
def test_nothing_new_is_written_to_an_address(demo, command):
    done = npyfs(*command, demo / "plain.h5", "s3://bucket/new.h5", env={})
    assert done.returncode == USAGE and "s3://bucket/new.h5: nothing is written there: write a file of this machine" in one_line(done.stderr)
