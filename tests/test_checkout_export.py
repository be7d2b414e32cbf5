"""npyfs checkout export of sets of Arkouda files and of directories of stores. Judges: h5py on every file that is written, with
Arkouda's rules for the parts of a set; what the mount with the checkout shows."""

import os
import shutil

import h5py
import numpy as np
import pytest
import xarray
import scipy.sparse

from support import arkouda, daf
from support.mount import Mount
from support.process import npyfs, one_line, run
from support.truth import np_save, read

pytestmark = pytest.mark.fast

TIME = 1_700_000_000


def export(*arguments, code=0):
    done = npyfs("checkout", "export", *arguments)
    assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done.stderr if code else done.stdout


def make_set(folder, name, weights=(4, 3, 2)):
    with arkouda.Store(folder, name, list(weights)) as store:
        arkouda.put_array(store, "ints", np.arange(9))
        arkouda.put_array(store, "gone", np.arange(9.0))
        arkouda.put_strings(store, "words", [b"a", b"bcd", b""])
        arkouda.put_segarray(store, "rows", [np.arange(3), np.arange(0), np.arange(5)])
    for path in folder.glob("*_LOCALE*"):
        os.utime(path, (TIME, TIME))


def change_set(mount):
    """Every form that Arkouda's objects have is written."""
    np.save(mount / "ints.npy", np.arange(4.0))
    np.save(mount / "words.npy", np.array([b"one", b"", b"three"]))
    np.save(mount / "flags.npy", np.array([True, False, True]))
    np.save(mount / "grid.npy", np.arange(6).reshape(2, 3))
    np.save(mount / "when.npy", np.array(["2020-01-01", "NaT"], "M8[ns]"))
    os.mkdir(mount / "runs")
    np.save(mount / "runs/values.npy", np.array([True, True, False]))
    np.save(mount / "runs/segments.npy", np.array([0, 1]))
    os.mkdir(mount / "kinds")
    np.save(mount / "kinds/codes.npy", np.array([1, 0, 1]))
    np.save(mount / "kinds/categories.npy", np.array([b"x", b"N/A"]))
    np.save(mount / "kinds/NA_Codes.npy", np.array([1]))
    os.mkdir(mount / "big")
    np.save(mount / "big/Limb_1.npy", np.array([3, 4], "u8"))
    np.save(mount / "big/Limb_0.npy", np.array([1, 2], "u8"))
    os.unlink(mount / "gone.npy")


def same_shown(one, other):
    """Both mounts show the same files, bytes and times."""
    assert one.files() == other.files()
    for name in one.files():
        assert read(one / name) == read(other / name), name
        assert os.stat(one / name).st_mtime_ns == os.stat(other / name).st_mtime_ns, name


def attributes(item):
    return {name: (value.tolist() if hasattr(value, "tolist") else value) for name, value in item.attrs.items() if not name.startswith("npyfs_")}


def tree(file):
    """{path: (type or "group", attributes, elements)} of a file."""
    found = {}
    file.visititems(lambda path, item: found.update({path: (
        ("group", attributes(item), None) if isinstance(item, h5py.Group) else (str(item.dtype), attributes(item), item[()].tolist()))}))
    return found


@pytest.mark.parametrize("more", [[], ["--compress", "gzip"]], ids=["as it is", "gzip"])
def test_a_set_becomes_a_set_of_as_many_files(tmp_path, more):
    make_set(tmp_path, "set.h5")
    before = {path: path.read_bytes() for path in tmp_path.glob("set_LOCALE0*")}
    with Mount(tmp_path / "set_LOCALE0000.h5", checkout="work") as mount:
        change_set(mount)
    said = export("--times", *more, tmp_path / "set_LOCALE0000.h5", "work", tmp_path / "out.h5")
    outs = [tmp_path / f"out_LOCALE{i:04}.h5" for i in range(3)]
    assert said == f"{tmp_path}/out.h5: 3 files, {sum(path.stat().st_size for path in outs)} bytes\n"
    trees = []
    for path, old in zip(outs, sorted(before), strict=True):
        with h5py.File(path) as file, h5py.File(old) as base:
            assert attributes(file) == attributes(base)
            trees.append(tree(file))
            # What was not changed is as it was, part by part.
            was = tree(base)
            assert {p: v for p, v in trees[-1].items() if p.startswith("rows")} == {p: v for p, v in was.items() if p.startswith("rows")}
    changed = ("ints", "words", "flags", "grid", "when", "runs", "kinds", "big")
    for later in trees[1:]:
        # Every part has every object, with the same marks.
        assert set(later) == set(trees[0]) and "gone" not in later
        for path, (kind, marks, _) in later.items():
            if path.split("/")[0] in changed:
                assert (kind, marks) == trees[0][path][:2], path
    assert trees[0]["flags"][1]["isBool"] == 1 and trees[0]["kinds"][1]["ObjType"] == 4
    # Elements are divided by Arkouda's block rule, segments begin anew.
    assert [each["ints"][2] for each in trees] == [[0, 1], [2], [3]] and [each["when"][2][:1] != [] for each in trees] == [True, True, False]
    assert [each["words/values"][2] for each in trees] == [list(b"one\0"), [0], list(b"three\0")]
    assert [each["words/segments"][2] for each in trees] == [[0], [0], [0]]
    with Mount(tmp_path / "set_LOCALE0000.h5", checkout="work") as mount, Mount(outs[0]) as exported:
        same_shown(mount, exported)
        assert read(exported / "grid.npy") == np_save(np.arange(6).reshape(2, 3))
        assert read(exported / "big.npy") == np_save(np.array([[1, 3], [2, 4]], "u8"))
        assert os.stat(exported / "rows/values.npy").st_mtime == TIME
    assert {path: path.read_bytes() for path in tmp_path.glob("set_LOCALE0*")} == before
    # The names are taken, even one of them.
    for path in outs[:2]:
        path.unlink()
    assert "it is there already" in one_line(export(tmp_path / "set_LOCALE0000.h5", "work", tmp_path / "out.h5", code=3))
    assert sorted(path.name for path in tmp_path.glob("*npyfs*")) == [] and not outs[0].exists()


def test_a_set_with_a_part_missing_is_refused(tmp_path):
    make_set(tmp_path, "set.h5")
    (tmp_path / "set_LOCALE0001.h5").unlink()
    assert "not complete" in export(tmp_path / "set_LOCALE0000.h5", tmp_path / "out.h5", code=3)
    assert not list(tmp_path.glob("out*"))


@pytest.fixture
def stores(tmp_path):
    """A directory of stores of every kind, in directories; it is as it was when the test is over."""
    top = tmp_path / "stores"
    (top / "sub/deep").mkdir(parents=True)
    with h5py.File(top / "a.h5", "w") as file:
        file["x"] = np.arange(5)
        file["g/y"] = np.ones((2, 3))
        file["g"].attrs["note"] = "kept"
    with h5py.File(top / "sub/cells.h5df", "w") as file:
        daf.write(file)
    with h5py.File(top / "sub/deep/other.h5", "w") as file:
        file.create_dataset("z", data=np.zeros(100), chunks=(10,), compression="gzip")
    make_set(top, "set.h5")
    (top / "notes.txt").write_text("no store")
    os.symlink("sub/deep", top / "link")
    for path in top.rglob("*.h5*"):
        os.utime(path, (TIME, TIME))
    before = {path: path.read_bytes() for path in top.rglob("*") if path.is_file()}
    yield top
    assert {path: path.read_bytes() for path in top.rglob("*") if path.is_file()} == before, "the stores were written to"


def test_a_directory_becomes_a_directory(stores, tmp_path):
    with Mount(stores, checkout="base") as mount:
        np.save(mount / "sub/deep/other.h5/z.npy", np.arange(3))
    npyfs("checkout", "commit", stores, "base", check=True)
    matrix = scipy.sparse.csr_matrix(np.eye(12, 5))
    with Mount(stores, checkout="work") as mount:
        np.save(mount / "a.h5/x.npy", np.arange(3.0))
        np.save(mount / "a.h5/g/new.npy", np.array([True]))
        os.unlink(mount / "a.h5/g/y.npy")
        scipy.sparse.save_npz(mount / "sub/cells.h5df/cell,gene#new.npz", matrix, compressed=False)
        change_set(mount / "set.h5")
    out = tmp_path / "out"
    said = export("--times", stores, "work", out)
    files = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file() and not path.is_symlink())
    assert files == ["a.h5", "set_LOCALE0000.h5", "set_LOCALE0001.h5", "set_LOCALE0002.h5", "sub/cells.h5df", "sub/deep/other.h5"]
    assert said.startswith(f"{out}: 6 files, ") and os.readlink(out / "link") == "sub/deep"
    with h5py.File(out / "a.h5") as file:
        assert file["x"][:].tolist() == [0, 1, 2] and list(file["g"]) == ["new"] and file["g"].attrs["note"] == "kept"
    with h5py.File(out / "sub/cells.h5df") as file:
        assert file["cell,gene#new"].attrs["shape"].tolist() == [12, 5]
    with h5py.File(out / "sub/deep/other.h5") as file:
        assert file["z"][:].tolist() == [0, 1, 2]
    with Mount(stores, checkout="work") as mount, Mount(out) as exported:
        same_shown(mount, exported)
    # A second time, into nothing that is there, and not into the store.
    assert "it is there already" in one_line(export(stores, "work", out, code=3))
    assert "part of the store" in one_line(export(stores, "work", stores / "sub/out", code=3))
    assert [path.name for path in (*tmp_path.glob(".npyfs*"), *stores.rglob(".npyfs*"))] == []


def test_what_was_deleted_is_not_exported_and_damage_is_told(stores, tmp_path):
    with Mount(stores, checkout="work") as mount:
        np.save(mount / "a.h5/x.npy", np.arange(3.0))
    [file] = (tmp_path / "stores.checkouts/work").glob("*.h5")
    file.write_bytes(b"no HDF5")
    refused = export(stores, "work", tmp_path / "out", code=3)
    assert refused.startswith("npyfs: a.h5/x: ") and "--leave-out" in refused
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".npyfs*"))
    export("--leave-out", stores, "work", tmp_path / "out")
    with h5py.File(tmp_path / "out/a.h5") as file:
        assert len(file["x"]) == 5
    shutil.rmtree(tmp_path / "out")


def test_a_disk_that_fills_leaves_nothing(stores, tmp_path, root_only):
    with Mount(stores, checkout="work") as mount:
        np.save(mount / "sub/deep/other.h5/z.npy", np.random.default_rng(1).random(400_000))
    small = tmp_path / "small"
    small.mkdir()
    run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", small], check=True)
    try:
        said = one_line(export(stores, "work", small / "out", code=3))
        assert "No space left" in said and str(small / "out") in said and "descriptor" not in said
        assert os.listdir(small) == []
    finally:
        run(["umount", "-l", small], check=True)


def test_links_to_other_files_are_listed_or_left_out(stores, tmp_path):
    with h5py.File(stores / "sub/linked.h5", "w") as file:
        file["in"] = 1
        file["out"] = h5py.ExternalLink("../a.h5", "/x")
    try:
        refused = export(stores, tmp_path / "out", code=3)
        assert "sub/linked.h5/out: it is a link to another file" in refused and not (tmp_path / "out").exists()
        export("--leave-out", stores, tmp_path / "out")
        with h5py.File(tmp_path / "out/sub/linked.h5") as file:
            assert list(file) == ["in"]
    finally:
        (stores / "sub/linked.h5").unlink()


def test_a_repository_in_a_directory_is_named_or_left_out(tmp_path):
    npyfs("demo", tmp_path / "demo", check=True)
    assert "digits: a Hangar repository is no HDF5 file" in export(tmp_path / "demo", tmp_path / "out", code=3)
    assert not (tmp_path / "out").exists()
    export("--leave-out", tmp_path / "demo", tmp_path / "out")
    assert not (tmp_path / "out/digits").exists()
    with h5py.File(tmp_path / "out/plain.h5") as new, h5py.File(tmp_path / "demo/plain.h5") as old:
        assert np.array_equal(new["images/stack"][()], old["images/stack"][()])


def test_a_target_whose_name_is_not_utf8_is_written(tmp_path):
    store = tmp_path / "x.h5"
    with h5py.File(store, "w") as file:
        file["a"] = np.arange(3)
    with Mount(store, checkout="work") as mount:
        np.save(mount / "b.npy", np.arange(4))
    out = tmp_path / os.fsdecode(b"out\xff.h5")
    for arguments in ([store, "work", out], [store, out]):
        export(*arguments)
        with h5py.File(out) as file:
            assert np.array_equal(file["a"][()], np.arange(3)) and ("b" in file) == (len(arguments) == 3)
        os.unlink(out)
    wrong = export(store, os.fsdecode(b"w\xff"), out, code=1)
    assert "not UTF-8" in wrong and not os.path.exists(out)


def test_references_are_kept_or_named(tmp_path):
    """A copy keeps object references; where arrays are written again, what would lose them is named, and nothing is written without
    being told to. Judge: h5py."""
    store, plain, packed = tmp_path / "x.h5", tmp_path / "plain.h5", tmp_path / "packed.h5"
    with h5py.File(store, "w") as file:
        file["big"] = np.arange(5000)
        file.create_group("g")
        file["g/refs"] = np.array([file["big"].ref, file["g"].ref], h5py.ref_dtype)
        file["big"].attrs["scale"] = file["g"].ref
        file["table"] = np.array([(1, file["big"].ref)], [("n", "i8"), ("r", h5py.ref_dtype)])
        file["labels"] = np.arange(3)
        file["labels"].make_scale()
        file["along"] = np.zeros(3)
        file["along"].dims[0].attach_scale(file["labels"])
    with Mount(store, checkout="work") as mount:
        np.save(mount / "new.npy", np.arange(3))
    npyfs("checkout", "export", store, "work", plain, check=True)
    with h5py.File(plain) as file:
        assert [file[ref].name for ref in file["g/refs"][()]] == ["/big", "/g"] and file[file["big"].attrs["scale"]].name == "/g"
        assert file["along"].dims[0][0].name == "/labels"
    refused = npyfs("checkout", "export", "--compress", "gzip", store, "work", packed)
    named = {line.removeprefix("npyfs: ").split(": references")[0] for line in refused.stderr.splitlines() if ": references" in line}
    assert named == {"g/refs", "big@scale", "table", "along@DIMENSION_LIST", "labels@REFERENCE_LIST"}, refused.stderr
    assert refused.returncode == 3 and not packed.exists()
    npyfs("checkout", "export", "--compress", "gzip", "--leave-out", store, "work", packed, check=True)
    with h5py.File(packed) as file:
        assert file["big"].compression == "gzip" and file["big"][-1] == 4999 and file["new"][-1] == 2


def test_checkouts_that_are_left_out_are_named(tmp_path):
    store = tmp_path / "x.h5"
    with h5py.File(store, "w") as file:
        daf.start(file)
        file["cell#"] = np.array([b"a", b"b"])
    for name in ("empty", "own", "other", "parts"):
        with Mount(store, checkout=name) as m:
            if name in ("own", "other"):
                np.save(m / "cell#age.npy", np.zeros(2))
                np.save(m / "count.npy", np.array(3))
            if name == "parts":
                os.mkdir(m / "cell,cell#near")
                np.save(m / "cell,cell#near/data.npy", np.zeros(2))
    done = npyfs("checkout", "export", store, "own", tmp_path / "own.h5", check=True)
    others = ["npyfs: left out: checkout other, which is not committed: 2 changes",
              "npyfs: left out: checkout parts, which is not committed: 0 changes, 1 objects not complete"]
    assert done.stderr.splitlines() == others
    done = npyfs("checkout", "export", store, tmp_path / "all.h5", check=True)
    assert done.stderr.splitlines() == [others[0], others[0].replace("other", "own"), others[1]]
    for name in ("own", "other"):
        npyfs("checkout", "commit", "--theirs", store, name)
    npyfs("checkout", "discard", store, "parts", check=True)
    assert npyfs("checkout", "export", store, tmp_path / "committed.h5", check=True).stderr == ""


@pytest.mark.fast
def test_times_of_objects_are_kept_if_asked_for_and_nobody_sees_them_otherwise(tmp_path):
    store = tmp_path / "x.nc"
    with h5py.File(store, "w") as file:
        file["a"], file["g/b"] = np.arange(3), np.arange(4)
    os.utime(store, (TIME, TIME))
    with Mount(store, checkout="work") as m:
        np.save(m / "g/b.npy", np.arange(5))
        np.save(m / "new.npy", np.arange(6))

    def noted(path):
        with h5py.File(path) as file:
            found = [key for key in file.attrs if key.startswith("npyfs_time")]
            file.visititems(lambda _, item: found.extend(key for key in item.attrs if key.startswith("npyfs_time")))
            return sorted(found)

    def times(path, **keywords):
        with Mount(path, **keywords) as m:
            return {name: os.stat(m / name).st_mtime_ns for name in m.files()}

    for more in ([], ["--compress", "gzip"]):
        out = tmp_path / f"out{len(more)}.nc"
        export(*more, store, "work", out)
        assert noted(out) == []
        assert set(times(out).values()) == {out.stat().st_mtime_ns}
        with xarray.open_dataset(out, engine="h5netcdf", phony_dims="sort") as seen:
            assert seen.attrs == {} and not any("npyfs" in name for name in seen.variables["a"].attrs)
    export("--times", store, "work", tmp_path / "kept.nc")
    assert noted(tmp_path / "kept.nc") == ["npyfs_time", "npyfs_time", "npyfs_times"]
    assert times(tmp_path / "kept.nc") == times(store, checkout="work")
    # A file that has times keeps them, with those of what is written later.
    with Mount(tmp_path / "kept.nc", checkout="work") as m:
        np.save(m / "a.npy", np.arange(3) * 2)
    export(tmp_path / "kept.nc", "work", tmp_path / "again.nc")
    assert noted(tmp_path / "again.nc") == ["npyfs_time", "npyfs_time", "npyfs_time", "npyfs_times"]
    assert times(tmp_path / "again.nc") == times(tmp_path / "kept.nc", checkout="work")
