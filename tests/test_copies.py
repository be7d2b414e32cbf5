"""Whole stores copied out of one mount and into an empty store of the same kind, with cp, rsync and tar: what is exported then is the
same store, judged by h5py object by object. Both ways to an empty store: npyfs new, and mkdir in a mounted directory."""

import hashlib
import os
import random

import h5py
import numpy as np
import pytest
from test_arkouda import put_everything

from support import arkouda, daf, hangar
from support.checkouts import checkout
from support.mount import Mount
from support.process import npyfs, run

TOOLS = {
    "cp": lambda source, target: run(["cp", "-r", "--", f"{source}/.", target], timeout=300),
    "cp-a": lambda source, target: run(["cp", "-a", "--", f"{source}/.", target], timeout=300),
    "rsync": lambda source, target: run(["rsync", "-a", f"{source}/", f"{target}/"], timeout=300),
    "tar": lambda source, target: run(["sh", "-c", 'tar -C "$0" -cf - . | tar -C "$1" -xf -', source, target], timeout=300),
}
SUFFIX = {"plain": ".h5", "daf": ".h5df", "arkouda": ".h5"}
ENDS_WITH_NEW_ONES = ("arkouda_version", "npyfs_time", "npyfs_times", "npyfs_chars")


def into_new(tmp_path, kind, copy):
    """The file that is exported of a store of npyfs new."""
    store = tmp_path / f"copy{SUFFIX[kind]}"
    npyfs("new", kind, store, check=True)
    with Mount(store, checkout="work") as mount:
        copy(mount.path)
        assert mount.errors() == []
        assert mount.status()["checkout"]["waiting"] == []
    checkout("commit", store, "work")
    out = tmp_path / f"out{SUFFIX[kind]}"
    checkout("export", store, out)
    return out


def into_begun(tmp_path, kind, copy):
    """The same of one that was begun in a mounted directory."""
    folder = tmp_path / "folder"
    folder.mkdir()
    name = f"copy{SUFFIX[kind]}"
    with Mount(folder, "kind=arkouda" if kind == "arkouda" else "", checkout="work") as mount:
        os.mkdir(mount / name)
        copy(mount / name)
        assert mount.errors() == []
    # What waits would be said here.
    checkout("commit", folder, "work")
    checkout("export", folder, tmp_path / "out")
    return tmp_path / "out" / name


WAYS = {"new": into_new, "mkdir": into_begun}


def items(path):
    """{name: what is there} of a file: the sort, type, shape and elements as bytes; and attributes."""
    found = {}

    def see(name, item):
        attributes = {key: np.asarray(value).tolist() for key, value in item.attrs.items() if key not in ENDS_WITH_NEW_ONES}
        if isinstance(item, h5py.Group):
            found[name] = (("group",), attributes)
        else:
            elements = item[()]
            text = h5py.check_string_dtype(item.dtype)
            if text and text.length is None:
                elements = np.asarray(elements).astype("S")
            array = np.asarray(elements)
            found[name] = ((array.dtype.str, item.shape, array.tobytes()), attributes)

    with h5py.File(path) as file:
        see("/", file)
        file.visititems(see)
    return found


def same(source, copy, attributes=True):
    source, copy = items(source), items(copy)
    assert sorted(source) == sorted(copy)
    different = [name for name in source if source[name][0] != copy[name][0]]
    assert not different, {name: (source[name], copy[name]) for name in different[:3]}
    if attributes:
        assert {name: item[1] for name, item in source.items()} == {name: item[1] for name, item in copy.items()}


def write_plain(path):
    with h5py.File(path, "w") as file:
        for dtype in ("i1", "u2", "<i4", ">i8", "f2", ">f4", "f8", "c8", "c16", "?"):
            file[f"types/{dtype.replace('<', 'l').replace('>', 'b').replace('?', 'bool')}"] = np.arange(6).reshape(2, 3).astype(dtype)
        file["scalar"] = np.float32(1.5)
        file["deep/er/est/a"] = np.arange(4)
        file.create_group("empty/group")
        file["none"] = np.zeros((0, 3), "i2")
        file["bytes"] = np.array([b"ab", b"c", b""])
        file["varied"] = np.array(["a", "bé", ""], dtype=object)
        file["record"] = np.array([(1, 2.5), (3, np.nan)], dtype=[("a", "i4"), ("b", "f8")])
        file["odd name, of 100%"] = np.arange(2)
        file.create_dataset("chunked", data=np.arange(50_000), chunks=(1000,), compression="gzip")


@pytest.mark.sample("fault", 4)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tool", TOOLS)
def test_plain(tmp_path, tool, way):
    source = tmp_path / "source.h5"
    write_plain(source)
    with Mount(source) as mount:
        def copy(target):
            done = TOOLS[tool](mount.path, target)
            assert done.returncode == 0, done.stderr
        out = WAYS[way](tmp_path, "plain", copy)
    same(source, out)


@pytest.mark.sample("fault", 4)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tool", TOOLS)
def test_daf(tmp_path, tool, way):
    source = tmp_path / "source.h5df"
    with h5py.File(source, "w") as file:
        daf.write(file)
    with Mount(source) as mount:
        def copy(target):
            done = TOOLS[tool](mount.path, target)
            assert done.returncode == 0, done.stderr
        out = WAYS[way](tmp_path, "daf", copy)
    same(source, out)
    with h5py.File(out) as file:
        assert daf.faults(file) == []


@pytest.mark.sample("fault", 2)
@pytest.mark.parametrize("tool", TOOLS)
def test_a_file_of_daf_stores(tmp_path, tool):
    """Groups of an .h5fs are daf stores from the first name with # on, groups above them and beside them are plain."""
    source = tmp_path / "source.h5fs"
    with h5py.File(source, "w") as file:
        daf.write(file.create_group("runs/first"))
        daf.write(file.create_group("runs/second"), rows=7, seed=5)
        file["plain/stack"] = np.arange(24.0).reshape(2, 3, 4)
        file["plain/deep/one"] = np.int16(1)
        file["loose"] = np.arange(3)
    (tmp_path / "target").mkdir()
    with Mount(source) as old, Mount(tmp_path / "target", checkout="work") as new:
        os.mkdir(new / "copy.h5fs")
        done = TOOLS[tool](old.path, new / "copy.h5fs")
        assert done.returncode == 0, done.stderr
        assert new.errors() == []
        assert new.status()["checkout"]["waiting"] == []
        assert [new.info(f"copy.h5fs/{name}")["kind"] for name in ("", "runs", "runs/first", "plain") if name] == ["plain", "daf", "plain"]
    checkout("commit", tmp_path / "target", "work")
    checkout("export", tmp_path / "target", tmp_path / "out")
    same(source, tmp_path / "out/copy.h5fs")
    with h5py.File(tmp_path / "out/copy.h5fs") as file:
        assert daf.faults(file["runs/first"]) == daf.faults(file["runs/second"]) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_file_of_daf_stores_in_any_order(tmp_path, seed):
    source, store = tmp_path / "source.h5fs", tmp_path / "copy.h5fs"
    with h5py.File(source, "w") as file:
        daf.write(file.create_group("run"))
    npyfs("new", "plain", store, check=True)
    choice = random.Random(seed)
    with Mount(source) as old, Mount(store, checkout="work") as new:
        names = old.files()
        choice.shuffle(names)
        if seed == 0:
            names.sort(key=lambda name: "#" in name)
        for name in names:
            os.makedirs((new / name).parent, exist_ok=True)
            (new / name).write_bytes((old / name).read_bytes())
    checkout("commit", store, "work")
    checkout("export", store, tmp_path / "out.h5fs")
    same(source, tmp_path / "out.h5fs")


def test_groups_that_were_there_stay_plain(tmp_path):
    store = tmp_path / "x.h5fs"
    with h5py.File(store, "w") as file:
        file["there/a"] = np.arange(3)
    with Mount(store, checkout="work") as mount:
        np.save(mount / "there/cell#.npy", np.array(["a", "b"]))
        np.save(mount / "top#.npy", np.array(["a", "b"]))
        os.mkdir(mount / "new")
        np.save(mount / "new/stack.npy", np.zeros(3, [("a", "i4"), ("b", "f8")]))  # no item has such elements
        np.save(mount / "new/one.npy", np.int64(1))
        np.save(mount / "new/cell#.npy", np.array(["a", "b"]))
        assert sorted(os.listdir(mount / "new")) == ["cell#.npy", "one.npy", "stack.npy"]
        assert "new/stack: stays as it is" in mount.errors()[-1]
        with pytest.raises(OSError):
            np.save(mount / "new/cell#short.npy", np.arange(3))
        assert [mount.info(name)["kind"] for name in ("there", "new")] == ["plain", "daf"]
    with Mount(store, checkout="work") as mount:
        assert mount.info("new")["kind"] == "daf"
        assert sorted(os.listdir(mount / "new")) == ["cell#.npy", "one.npy", "stack.npy"]
    checkout("commit", store, "work")
    checkout("export", store, tmp_path / "out.h5fs")
    with h5py.File(tmp_path / "out.h5fs") as file:
        assert sorted(file["new"]) == ["__daf__", "cell#", "stack"] and file["new/__daf__"].attrs["one"] == 1
        assert sorted(file["there"]) == ["a", "cell#"] and "__daf__" not in file


def marks(attributes):
    """What Arkouda looks at. An ArrayView of one dimension is the array that it shows."""
    kind = attributes.get("ObjType")
    return {**attributes, "ObjType": arkouda.PDARRAY if kind == arkouda.ARRAYVIEW else kind}


@pytest.mark.sample("fault", 4)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tool", TOOLS)
def test_arkouda(tmp_path, tool, way):
    with arkouda.Store(tmp_path, "source.h5") as store:
        put_everything(store)
    source = tmp_path / "source.h5"
    with h5py.File(source, "a") as file:
        del file["nested"]  # a plain group: Arkouda has none
    with Mount(source) as mount:
        def copy(target):
            done = TOOLS[tool](mount.path, target)
            assert done.returncode == 0, done.stderr
        out = WAYS[way](tmp_path, "arkouda", copy)
    assert "all is well" in npyfs("verify", out, check=True).stdout
    before, after = items(source), items(out)
    for name, (what, attributes) in before.items():
        assert after[name][0] == what, (name, what, after[name][0])
        if "Shape" in attributes and len(np.atleast_1d(attributes["Shape"])) == 1:
            attributes = {key: value for key, value in attributes.items() if key not in ("Rank", "Shape")}
        if "ObjType" in attributes:
            kept = marks(after[name][1])
            assert {key: kept.get(key) for key in attributes} == marks(attributes), name
    # Strings whose segments may be left out get them.
    assert {name.rpartition("/")[2] for name in after.keys() - before.keys()} <= {"segments"}


@pytest.mark.parametrize("seed", range(4))
def test_no_order_matters(tmp_path, seed):
    """Axes after what lies along them, members of a sparse matrix apart, each file through a temporary name or not."""
    source = tmp_path / "source.h5df"
    with h5py.File(source, "w") as file:
        daf.write(file)
    choice = random.Random(seed)
    with Mount(source) as mount:
        def copy(target):
            names = [name for name in mount.files() if not name.endswith(".npz")]
            choice.shuffle(names)
            if seed == 0:
                names.sort(key=lambda name: name.endswith("#.npy"))
            for name in names:
                os.makedirs(os.path.dirname(target / name), exist_ok=True)
                way = choice.choice(["write", "rename", "times"])
                written = target / name if way != "rename" else (target / name).with_name(f".{os.path.basename(name)}.Xy12Zw")
                written.write_bytes((mount / name).read_bytes())
                if way == "rename":
                    os.utime(written, (1, 10**9))
                    os.rename(written, target / name)
                elif way == "times":
                    os.utime(target / name, (1, 10**9))
                    os.chmod(target / name, 0o640)
        out = into_begun(tmp_path, "daf", copy)
    same(source, out)


def test_what_waits_for_its_axis_is_said_until_the_axis_comes(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with Mount(folder, checkout="work") as mount:
        os.mkdir(mount / "new.h5df")
        np.save(mount / "new.h5df/cell#age.npy", np.arange(3))
        assert mount.status()["checkout"]["waiting"] == ["new.h5df/cell#age: cell# missing"]
    assert "cell# missing" in checkout("diff", folder, "work").stderr
    assert "cell# missing" in checkout("commit", folder, "work", code=3).stderr
    with Mount(folder, checkout="work") as mount:
        np.testing.assert_array_equal(np.load(mount / "new.h5df/cell#age.npy"), np.arange(3))
        np.save(mount / "new.h5df/cell#.npy", np.array(["a", "b", "c"]))
        assert mount.status()["checkout"]["waiting"] == []
    checkout("commit", folder, "work")
    checkout("export", folder, tmp_path / "out")
    with h5py.File(tmp_path / "out/new.h5df") as file:
        np.testing.assert_array_equal(file["cell#age"][()], np.arange(3))
        assert daf.faults(file) == []


@pytest.mark.parametrize("tool", TOOLS)
def test_a_directory_of_stores(tmp_path, tool):
    """The copying program makes the stores itself: each directory's name says what it is."""
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "sub").mkdir(parents=True)
    (target / "sub").mkdir(parents=True)
    write_plain(source / "one.h5")
    with h5py.File(source / "sub/two.h5df", "w") as file:
        daf.write(file)
    with Mount(source) as old, Mount(target, checkout="work") as new:
        done = TOOLS[tool](old.path, new.path)
        # What has no permission to set the times of a directory that is none says so, and goes on.
        assert done.returncode == 0, done.stderr
    checkout("commit", target, "work")
    checkout("export", target, tmp_path / "out")
    same(source / "one.h5", tmp_path / "out/one.h5")
    same(source / "sub/two.h5df", tmp_path / "out/sub/two.h5df")


def test_links_are_refused_and_can_be_followed(tmp_path):
    source = tmp_path / "source.h5"
    with h5py.File(source, "w") as file:
        file["g/a"] = np.arange(3)
        file["link"] = h5py.SoftLink("/g/a")
    for flag, code in (("-r", 1), ("-rL", 0)):
        store = tmp_path / f"copy{flag}.h5"
        npyfs("new", "plain", store, check=True)
        with Mount(source) as old, Mount(store, checkout="work") as new:
            done = run(["cp", flag, "--", f"{old.path}/.", new.path])
            assert done.returncode == code, done.stderr
            assert sorted(new.files()) == ["g/a.npy", *(["link.npy"] if code == 0 else [])]


@pytest.mark.skipif(not hangar.PYTHON, reason="no Hangar")
@pytest.mark.sample("hangar", 2)
@pytest.mark.parametrize("tool", TOOLS)
def test_samples_of_hangar(tmp_path, tool):
    """A column is copied from a plain file, and from a column, into a repository: real Hangar reads what was committed."""
    arrays = {str(number): np.arange(6, dtype="f4").reshape(2, 3) + number for number in range(12)}
    source = tmp_path / "source.h5"
    with h5py.File(source, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    expected = [[{"int": int(name)}, {"t": "ndarray", "dtype": "<f4", "shape": [2, 3], "sha256": hashlib.sha256(array.tobytes()).hexdigest()}]
                for name, array in sorted(arrays.items(), key=lambda item: int(item[0]))]
    stores = [source, tmp_path / "one", tmp_path / "two"]
    for store, repository in zip(stores, stores[1:]):
        npyfs("new", "hangar", repository, "--name", "Ann", "--email", "ann@example.com", check=True)
        with Mount(store) as old, Mount(repository, checkout="work") as new:
            os.mkdir(new / "stage/column")
            done = TOOLS[tool](old.path if store == source else old / "branches/master/column", new / "stage/column")
            assert done.returncode == 0, done.stderr
            assert new.errors() == []
        checkout("commit", repository, "-m", "copied")
        told = hangar.told(repository)
        column = told["commits"][told["branches"]["master"]]["column"]
        assert sorted(column["samples"], key=lambda sample: sample[0]["int"]) == expected
