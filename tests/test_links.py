"""Soft links are symbolic links that stay inside the mount, a group reached twice is shown once, `find` ends.
Judge: h5py for what a link leads to, the kernel (readlink, realpath, ELOOP) and find for the rest."""

import errno
import os

import h5py
import numpy as np
import pytest

from support.mount import Mount
from support.process import run
from support.truth import np_save, read

pytestmark = pytest.mark.fast

SOFT = {  # link path -> what it leads to, as seen from the mount
    "absolute": "vaz/x.npy", "to_group": "vaz", "chain": "vaz/x.npy", "vaz/near": "vaz/x.npy", "vaz/deep/up": "vaz/x.npy",
    "through": "vaz/deep/y.npy", "vaz/deep/root": "", "named.npy": "vaz/x.npy",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("links") / "tree"
    (folder / "sub").mkdir(parents=True)
    (folder.parent / "outside.npy").write_bytes(np_save(np.array([666])))
    with h5py.File(folder / "sub/links.h5", "w") as file:
        file["vaz/x"] = np.arange(5.0)
        file["vaz/deep/y"] = np.arange(3)
        for name, target in {"absolute": "/vaz/x", "to_group": "/vaz", "chain": "absolute", "vaz/near": "x", "vaz/deep/up": "/vaz/x",
                             "through": "/to_group/deep/y", "vaz/deep/root": "/", "named.npy": "/vaz/x",
                             "dangling": "/not/there", "dangling_near": "nothing", "loop_a": "/loop_b", "loop_b": "/loop_a", "self_loop": "self_loop",
                             "escape": "../../outside", "vaz/escape": "/../../../outside", "etc": "/../../../../../../../../etc/passwd"}.items():
            file[name] = h5py.SoftLink(target)
        file["hard/b"] = file["vaz"]           # a second way to the group
        file["hard/a"] = file["hard/b"]        # and a third
        file["hard/dataset"] = file["vaz/x"]   # a second name of a dataset is simply another file
        file.create_group("cycle/inner")
        file["cycle/inner/back"] = file["cycle"]
        file["cycle/to_root"] = file["/"]
        file["cycle/itself"] = file["cycle"]
    return folder


@pytest.fixture(scope="module")
def mount(store):
    with Mount(store) as mount:
        yield mount


def shown(mount, name):
    """The visible path of link `name`: datasets carry .npy, groups do not; a name that ends like a suffix is escaped."""
    place = mount / "sub/links.h5" / name
    own = place.name.replace(".npy", "%2Enpy")
    found = [path for path in (place.parent / own, place.parent / f"{own}.npy") if os.path.lexists(path)]
    assert len(found) == 1, f"{name} shows as {[path.name for path in found]}"
    return found[0]


@pytest.mark.parametrize("name", SOFT)
def test_soft_link(mount, name):
    path, target = shown(mount, name), mount / "sub/links.h5" / SOFT[name]
    assert path.is_symlink() and not os.path.isabs(os.readlink(path))
    assert os.path.realpath(path) == os.path.realpath(target) and path.exists()
    if target.suffix == ".npy":
        assert read(path) == read(target)
        assert np.array_equal(np.load(path), h5_value(mount, name))
    else:
        assert sorted(os.listdir(path)) == sorted(os.listdir(target))


def h5_value(mount, name):
    with h5py.File(mount.store / "sub/links.h5", "r") as file:
        return file[name][()]


@pytest.mark.parametrize("name", ["dangling", "dangling_near", "escape", "vaz/escape", "etc"])
def test_dangling_link(mount, name):
    path = shown(mount, name)
    assert path.is_symlink()
    with pytest.raises(FileNotFoundError):
        read(path)


@pytest.mark.parametrize("name", ["loop_a", "loop_b", "self_loop"])
def test_links_in_a_circle(mount, name):
    path = shown(mount, name)
    assert path.is_symlink()
    with pytest.raises(OSError) as problem:
        read(path)
    assert problem.value.errno in (errno.ELOOP, errno.ENOENT)


def test_no_link_leaves_its_store(mount):
    root, seen = os.path.realpath(mount / "sub/links.h5"), 0
    for folder, folders, files in os.walk(mount.path):
        for name in folders + files:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                seen += 1
                assert os.path.commonpath([root, os.path.realpath(path)]) == root, f"{path} -> {os.readlink(path)}"
    assert seen >= 16


def test_a_group_reached_again_is_a_link_to_the_first(mount):
    base = mount / "sub/links.h5"
    paths = [base / "vaz", base / "hard/a", base / "hard/b"]
    real = [path for path in paths if not path.is_symlink()]
    assert len(real) == 1
    assert {os.path.realpath(path) for path in paths} == {os.path.realpath(real[0])}
    assert (base / "hard/dataset.npy").read_bytes() == (base / "vaz/x.npy").read_bytes()


def test_which_one_is_first_does_not_depend_on_who_looks_first(store, mount):
    names = ["vaz", "hard/a", "hard/b", "cycle", "cycle/inner", "cycle/inner/back", "cycle/to_root", "cycle/itself"]
    def kinds(mount, order):
        for name in order:
            os.lstat(mount / "sub/links.h5" / name)
        return {name: os.path.islink(mount / "sub/links.h5" / name) for name in names}
    with Mount(store) as other:
        assert kinds(other, reversed(names)) == kinds(mount, names)


def test_cycles_are_links(mount):
    base = mount / "sub/links.h5"
    for name in ("cycle/inner/back", "cycle/to_root", "cycle/itself"):
        assert (base / name).is_symlink() and (base / name).is_dir(), name
    assert os.path.samefile(base / "cycle/inner/back", base / "cycle")
    assert os.path.samefile(base / "cycle/to_root", base)


def test_find_ends(mount):
    done = run(["find", mount.path], check=True)
    names = done.stdout.splitlines()
    assert len(names) == len(set(names)) and 25 < len(names) < 60
    assert not any("/cycle/inner/back/" in name for name in names)
    run(["find", mount.path, "-ls"], check=True)
    # find -L names the loops it meets and ends as well
    done = run(["find", "-L", mount.path])
    assert "loop" in done.stderr and len(done.stdout.splitlines()) < 1000
