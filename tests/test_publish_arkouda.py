"""npyfs checkout publish of Arkouda stores: single files, and sets whose parts become one. Judges: h5py, and what the mount shows. A part
that is missing is never zeros."""

import os
import shutil

import h5py
import numpy as np
import pytest

from support import arkouda
from support.mount import Mount
from support.process import npyfs
from support.publications import attributes, publish, tree
from support.truth import problems_of

pytestmark = pytest.mark.fast


def test_an_arkouda_file_is_published_with_its_objects(tmp_path):
    with arkouda.Store(tmp_path, "ark.h5") as store:
        arkouda.put_array(store, "ints", np.arange(9))
        arkouda.put_array(store, "gone", np.arange(9.0))
        arkouda.put_strings(store, "words", [b"a", b"bcd", b""])
        arkouda.put_strings(store, "kept", [b"x", b"y"])
    path = tmp_path / "ark.h5"
    with Mount(path, checkout="work") as mount:
        np.save(mount / "ints.npy", np.arange(4.0))
        np.save(mount / "words.npy", np.array([b"one", b"", b"three"]))
        os.mkdir(mount / "runs")
        np.save(mount / "runs/values.npy", np.array([True, True, False]))
        np.save(mount / "runs/segments.npy", np.array([0, 1]))
        os.unlink(mount / "gone.npy")
    out, whole = tmp_path / "out.h5", tmp_path / "whole.h5"
    publish(path, "work", out)
    assert npyfs("checkout", "export", path, "work", whole).returncode == 0
    with h5py.File(out, "r") as one, h5py.File(whole, "r") as other:
        left, right = tree(one), tree(other)
        assert set(left) == set(right) and dict(one.attrs)["File_Format"] == 0
        for name, item in left.items():
            assert attributes(item) == attributes(right[name]), name
            if isinstance(item, h5py.Dataset):
                assert item.dtype == right[name].dtype and np.array_equal(item[()], right[name][()]), name


def put_all(store):
    """Every kind of object; what the mount shows of it."""
    random = np.random.default_rng(5)
    shown = arkouda.put_array(store, "ints", np.arange(7) - 3)
    shown |= arkouda.put_array(store, "floats", random.normal(size=20))
    shown |= arkouda.put_array(store, "flags", np.array([True, False, True, True]))
    shown |= arkouda.put_array(store, "none", np.zeros(0))
    shown |= arkouda.put_strings(store, "words", [b"one", b"", "zwei ü".encode(), b"four", b"5"])
    shown |= arkouda.put_bigint(store, "big", [1 << 70, 5, 1 << 64, 7, 8], max_bits=100)
    rows = [np.arange(3), np.arange(0), np.arange(5), np.arange(1)]
    shown |= arkouda.put_segarray(store, "rows", rows, "i8")
    shown |= arkouda.put_segarray(store, "texts", [[b"a", b"bc"], [], [b"def"], [b"", b"g"]], "strings")
    shown |= arkouda.put_categorical(store, "kinds", [1, 0, 1, 2, 1], [b"x", b"y", b"N/A"])
    shown |= arkouda.put_dataframe(store, "frame", {
        "n": lambda store, path: arkouda.put_array(store, path, np.arange(6.0)),
        "t": lambda store, path: arkouda.put_strings(store, path, [b"u", b"vw", b"", b"x", b"y", b"z"]),
    }, np.arange(6))
    return shown


@pytest.mark.parametrize("weights", [(1, 1, 1), (3, 0, 4), (0, 1), (1, 1, 1, 1, 1, 1, 1, 1, 1)], ids=str)
def test_the_parts_of_a_set_are_one_file(tmp_path, weights):
    with arkouda.Store(tmp_path, "set.h5", list(weights)) as store:
        shown = put_all(store)
    first = tmp_path / "set_LOCALE0000.h5"
    out = tmp_path / "out.h5"
    printed = publish(first, out).splitlines()
    # Nothing lies in the file of an empty locale.
    assert printed[1:] == [path.name for number, path in enumerate(store.paths) if weights[number] or number == 0], printed
    with h5py.File(out, "r") as file:
        assert arkouda.faults(file) == [] and file.attrs["File_Format"] == 0
        # Starts that begin anew in a later file are written; those of a file that has them all are not.
        assert file["floats"].is_virtual and file["words/segments"].is_virtual == (weights == (0, 1))
        assert np.array_equal(file["ints"], np.arange(7) - 3)
        values = file["words/values"][()].tobytes()
        assert [values[start:].split(b"\0")[0] for start in file["words/segments"]] == [b"one", b"", "zwei ü".encode(), b"four", b"5"]
        assert file["rows/segments"][()].tolist() == [0, 3, 3, 8] and file["texts/segments"][()].tolist() == [0, 2, 2, 3]
    with Mount(first) as one, Mount(out, "external=same-dir") as other:
        assert one.files() == other.files() and set(shown) <= set(one.files())
        wrong = {name: found for name, array in shown.items() if (found := problems_of(other / name, array))}
        assert not wrong, wrong


def test_a_set_with_changes(tmp_path):
    with arkouda.Store(tmp_path, "set.h5", [2, 1, 3]) as store:
        put_all(store)
    first, out = tmp_path / "set_LOCALE0000.h5", tmp_path / "out.h5"
    with Mount(first, checkout="work") as mount:
        np.save(mount / "ints.npy", np.arange(4.0))
        np.save(mount / "words.npy", np.array([b"six", b"seven"]))
        np.save(mount / "new.npy", np.arange(3))
        os.unlink(mount / "frame/n.npy")
        np.save(mount / "frame/m.npy", np.arange(6) * 2)
        shutil.rmtree(mount / "rows")
        shown = mount.files()
    publish(first, "work", out)
    with h5py.File(out, "r") as file:
        assert arkouda.faults(file) == []
        assert file["ints"][()].tolist() == [0.0, 1.0, 2.0, 3.0] and file["words/values"][()].tobytes() == b"six\0seven\0"
        assert file["new"][()].tolist() == [0, 1, 2] and "rows" not in file
        assert file["frame/m"][()].tolist() == [0, 2, 4, 6, 8, 10] and "n" not in file["frame"]
        assert file["frame/t/values"][()].tobytes() == b"u\0vw\0\0x\0y\0z\0"
        tops = {name.split("/")[0].removesuffix(".npy") for name in shown if not name.startswith(".npyfs")}
        assert set(file) == tops


@pytest.mark.parametrize("weights", [None, [2, 1, 1]], ids=["one file", "a set"])
def test_strings_side_by_side_are_one_object(tmp_path, weights):
    """NAME_values and NAME_segments are strings called NAME: both go when these are written, and a set has them in a group."""
    texts = [b"one", b"", b"three", b"4"]
    with arkouda.Store(tmp_path, "set.h5", weights) as store:
        arkouda.put_array(store, "ints", np.arange(4))
        for name in ("words", "kept"):
            for file, (start, stop) in zip(store.files, store.cut(len(texts))):
                file[f"{name}_values"], file[f"{name}_segments"] = arkouda.flat(texts[start:stop])
    with Mount(store.paths[0], checkout="work") as mount:
        assert np.load(mount / "words.npy").tolist() == np.load(mount / "kept.npy").tolist() == texts
        np.save(mount / "words.npy", np.array([b"new"]))
    out = tmp_path / "out.h5"
    publish(store.paths[0], "work", out)
    with h5py.File(out, "r") as file:
        assert file["words/values"][()].tobytes() == b"new\0" and not {"words_values", "words_segments"} & set(file)
        values, segments = (file["kept_values"], file["kept_segments"]) if weights is None else (file["kept/values"], file["kept/segments"])
        assert values[()].tobytes() == b"one\0\0three\x004\0" and segments[()].tolist() == [0, 4, 5, 11]
        assert weights is None or values.is_virtual


def test_a_missing_part_of_a_set_is_never_zeros(tmp_path):
    """A virtual dataset shows its fill value there: no number that could be taken for data; `verify` names the file."""
    with arkouda.Store(tmp_path, "set.h5", [1, 1]) as store:
        arkouda.put_array(store, "ints", np.arange(1, 7))
        arkouda.put_array(store, "floats", np.arange(1.0, 7))
        arkouda.put_array(store, "counts", np.arange(1, 7).astype("u8"))
    out = tmp_path / "out.h5"
    publish(store.paths[0], out)
    store.paths[1].unlink()
    with h5py.File(out, "r") as file:
        assert file["ints"][()].tolist() == [1, 2, 3] + [np.iinfo("i8").min] * 3
        assert np.isnan(file["floats"][3:]).all() and (file["counts"][3:] == np.iinfo("u8").max).all()
    done = npyfs("verify", "-o", "external=allow", out)
    assert done.returncode == 3 and "set_LOCALE0001.h5 is not there" in done.stderr


def test_a_set_whose_files_do_not_fit_is_refused(tmp_path):
    with arkouda.Store(tmp_path, "set.h5", [1, 1, 1]) as store:
        arkouda.put_array(store, "ints", np.arange(6))
        store.files[1].create_dataset("odd", data=np.arange(3))
    out = tmp_path / "out.h5"
    refused = publish(store.paths[0], out, code=3)
    assert "odd: missing in" in refused and not out.exists()
    publish("--leave-out", store.paths[0], out)
    with h5py.File(out, "r") as file:
        assert list(file) == ["ints"]
    out.unlink()
    store.paths[1].unlink()
    assert publish(store.paths[0], out, code=3) and not out.exists()
