"""Stores written by the real daf show every expected entry, through a mount and through `npyfs cat`: size, sha256, np.load
with and without mmap. Judge: the expectations beside the fixtures, made by np.save; scipy for .npz; and for a store of our own
(so that this runs without the fixtures) np.save and scipy again."""

import json
import shutil

import h5py
import numpy as np
import pytest
import scipy.sparse

from support import daf
from support.mount import Mount
from support.process import npyfs
from support.truth import assert_all, np_save, sha256

STORES = ["clean.h5df", "clean_gzip.h5df", "latest.h5df", "multi.h5fs"]


def entries(shared, name):
    return json.loads((shared / "daf" / name).with_suffix(".expected.json").read_text())


def dtype_of(entry):
    code = entry["dtype"]
    return np.dtype(code if isinstance(code, str) else [tuple(field) for field in code])


def accepts(entry, data):
    return any((len(data), sha256(data)) == (form["size"], form["sha256"]) for form in [entry, *entry.get("alternatives", [])])


@pytest.fixture(scope="module", params=STORES)
def mount(request, shared, tmp_path_factory):
    store = tmp_path_factory.mktemp("daf") / request.param
    shutil.copyfile(shared / "daf" / request.param, store)
    with Mount(store, limit=300) as mount:
        yield mount


def test_every_entry_through_the_mount(mount, shared):
    expected, wrong, seen = entries(shared, mount.store.name), [], 0
    for entry in expected:
        path = mount / entry["path"]
        if entry.get("optional") and not path.exists():
            continue
        seen += 1
        try:
            data, size = path.read_bytes(), path.stat().st_size
        except OSError as problem:
            wrong.append(f"{entry['path']}: {problem}")
            continue
        if size != len(data) or not accepts(entry, data):
            wrong.append(f"{entry['path']}: {size} bytes in stat, {len(data)} read, {sha256(data)}; expected {entry['size']} {entry['sha256']}; {data[:160]!r}")
            continue
        forms = [(dtype_of(form), tuple(form["shape"])) for form in [entry, *entry.get("alternatives", [])]]
        for mode in (None, "r") if len(data) > 128 else (None,):  # NumPy cannot map an array without bytes
            loaded = np.load(path, mmap_mode=mode)
            if (loaded.dtype, loaded.shape) not in forms:
                wrong.append(f"{entry['path']}: np.load(mmap_mode={mode!r}) gives {loaded.dtype} {loaded.shape}")
            del loaded
    assert seen >= sum(not entry.get("optional") for entry in expected) >= 80
    assert not wrong, f"{len(wrong)} of {seen} entries are wrong\n" + "\n".join(wrong)


def test_every_entry_through_cat(mount, shared):
    wrong, seen = [], 0
    for entry in entries(shared, mount.store.name):
        done = npyfs("cat", mount.store, entry["path"], text=False)
        if entry.get("optional") and done.returncode == 3:
            continue
        seen += 1
        if done.returncode or done.stderr or not accepts(entry, done.stdout):
            wrong.append(f"{entry['path']}: exit code {done.returncode}, {len(done.stdout)} bytes, {done.stderr!r}")
    assert seen >= 80
    assert not wrong, "\n".join(wrong)


def test_npz_of_every_sparse_matrix(mount):
    found = {}
    with h5py.File(mount.store, "r") as file:
        file.visititems(lambda name, item: found.update({name: daf.read_sparse(item)})
                        if isinstance(item, h5py.Group) and "#" in name.rpartition("/")[2] and "shape" in item.attrs and item["data"].dtype != "f2" else None)
    assert found
    wrong = [name for name, truth in found.items() if not daf.equal(scipy.sparse.load_npz(mount / f"{name}.npz"), truth)]
    assert not wrong


def test_no_file_is_missing_or_foreign(mount, shared):
    expected = {entry["path"] for entry in entries(shared, mount.store.name)}
    extra = {path for path in mount.files() if path not in expected and not path.endswith(".npz")}
    assert not extra, "files that no expectation names"


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    with h5py.File(folder / "own.h5df", "w") as file:
        arrays, csr = daf.write(file)
        shown = {f"own.h5df/{path}": value for path, value in arrays.items()}
        matrices = {f"own.h5df/{path}": value for path, value in csr.items()}
    with h5py.File(folder / "own.h5fs", "w", libver="latest") as file:
        for i, name in enumerate(["a", "b/c", "b/c/inner"]):  # one daf group may stand inside another
            arrays, csr = daf.write(file.create_group(name), rows=4 + i, seed=i)
            shown |= {f"own.h5fs/{name}/{path}": value for path, value in arrays.items()}
            matrices |= {f"own.h5fs/{name}/{path}": value for path, value in csr.items()}
        file["b/plain"] = np.arange(3, dtype=">u2")
        shown["own.h5fs/b/plain.npy"] = np.arange(3, dtype=">u2")
    with Mount(folder) as mount:
        yield mount, shown, matrices


def test_own_store_files(own):
    mount, shown, _ = own
    assert_all(mount.path, shown, at_least=300)


def test_own_store_shows_nothing_else(own):
    mount, shown, matrices = own
    assert set(mount.files()) == {*shown, *matrices}


def test_own_store_npz(own):
    mount, _, matrices = own
    wrong = [path for path, truth in matrices.items() if not daf.equal(scipy.sparse.load_npz(mount / path), truth)]
    assert len(matrices) == 4 * 13 and not wrong, wrong
    with np.load(mount / "own.h5df/cell,gene#s_i4.npz") as archive:
        assert archive["format"].item() == b"csr" and sorted(archive.files) == ["data", "format", "indices", "indptr", "shape"]


def test_own_store_through_cat(own):
    mount, shown, _ = own
    names = [path for path in shown if path.startswith("own.h5fs/b/c/") and "inner" not in path][::5]
    wrong = [path for path in names if npyfs("cat", mount.store, path, text=False).stdout != np_save(shown[path])]
    assert len(names) > 10 and not wrong, wrong


def test_info_names_the_kind(own):
    mount, _, _ = own
    assert mount.info("own.h5fs/b/c/cell#.npy")["kind"] == "daf"
    assert mount.info("own.h5fs/b/plain.npy")["kind"] == "plain"
