"""Deleting objects that are several files, and what others need: with rm, rmtree and rsync, through mounts of checkouts. Judges: what the
next mount shows, exit codes, and h5py by daf's rules on what was exported."""

import errno
import os
import shutil
import time

import h5py
import numpy as np
import pytest

from support import daf
from support.mount import Mount, until
from support.process import npyfs, run

pytestmark = pytest.mark.fast

MATRIX = "cell,gene#UMIs"
MEMBERS = ["data.npy", "indices.npy", "indptr.npy", "shape.npy"]


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "cells.h5df"
    random = np.random.default_rng(7)
    import scipy.sparse
    with h5py.File(path, "w") as file:
        items = daf.start(file)
        items["title"] = "cells"
        file["cell#"] = np.array([b"a", b"b", b"c"])
        file["gene#"] = np.array([b"x", b"y"])
        file["Cell#"] = np.array([b"unused"])
        file["cell#age"] = np.arange(3)
        file["cell,gene#dense"] = random.random((3, 2))
        daf.put_sparse(file, MATRIX, scipy.sparse.csr_matrix(random.integers(0, 3, (3, 2)).astype("f4")))
        daf.put_sparse(file, "gene,gene#other", scipy.sparse.csr_matrix(np.eye(2)))
    before = path.read_bytes()
    yield path
    assert path.read_bytes() == before, "the store was written to"


def exported(store):
    out = store.with_name("out.h5df")
    out.unlink(missing_ok=True)
    npyfs("checkout", "export", store, "c", out, check=True)
    return h5py.File(out)


def remove_all(folder, how):
    if how == "rmtree":
        shutil.rmtree(folder)
    elif how == "rsync":
        empty = folder.parent.parent / "empty"
        empty.mkdir(exist_ok=True)
    else:
        run(["rm", how, folder], check=True)


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("rewritten", [False, True], ids=["of the store", "of the checkout"])
def test_a_member_deleted_is_the_matrix_deleted(store, member, rewritten, tmp_path):
    with Mount(store, checkout="c") as mount:
        if rewritten:
            shutil.copytree(mount / MATRIX, tmp_path / "copy")
            run(["cp", "-r", f"{tmp_path}/copy/.", mount / MATRIX], check=True)
        os.unlink(mount / MATRIX / member)
        # A program that deletes a directory finds the other members, and may complete the object again.
        assert sorted(os.listdir(mount / MATRIX)) == [name for name in MEMBERS if name != member]
        assert not (mount / f"{MATRIX}.npz").exists()
    with Mount(store, checkout="c") as mount:
        assert not (mount / MATRIX).exists() and not (mount / f"{MATRIX}.npz").exists()
        assert mount.errors() == []
    with exported(store) as file:
        assert MATRIX not in file and "cell,gene#dense" in file


def test_a_member_that_is_deleted_can_be_written_again(store):
    with Mount(store, checkout="c") as mount:
        before = {name: np.load(mount / MATRIX / name) for name in MEMBERS}
        os.unlink(mount / MATRIX / "data.npy")
        np.save(mount / MATRIX / "data.npy", before["data.npy"] * 2)
        assert (mount / f"{MATRIX}.npz").exists()
    with Mount(store, checkout="c") as mount:
        for name in MEMBERS:
            want = before[name] * 2 if name == "data.npy" else before[name]
            np.testing.assert_array_equal(np.load(mount / MATRIX / name), want)


@pytest.mark.parametrize("how", ["-r", "-rf", "rmtree"])
def test_the_directory_of_a_matrix_goes_with_all_that_is_in_it(store, how):
    with Mount(store, checkout="c") as mount:
        if how == "rmtree":
            shutil.rmtree(mount / MATRIX)
        else:
            run(["rm", how, mount / MATRIX], check=True)
        left = [name for name in os.listdir(mount.path) if name.startswith(MATRIX)]
        assert left == [] and mount.errors() == []
        os.unlink(mount / "gene,gene#other.npz")
        until(lambda: not (mount / "gene,gene#other").exists(), "the end of what the kernel remembers")
    with Mount(store, checkout="c") as mount:
        assert sorted(os.listdir(mount.path)) == ["Cell#.npy", "cell#.npy", "cell#age.npy", "cell,gene#dense.npy", "gene#.npy", "title.npy"]


def test_an_axis_in_use_stays(store):
    with Mount(store, checkout="c") as mount:
        for action in (os.unlink, lambda path: os.rename(path, mount / "kept.tmp"), lambda path: os.rename(path, mount / "other#.npy")):
            with pytest.raises(OSError) as refused:
                action(mount / "cell#.npy")
            assert refused.value.errno == errno.ENOTEMPTY
        [line] = {line[line.index("the axis"):] for line in mount.errors()}
        assert line == f"the axis cell is in use: {MATRIX}, {MATRIX}.npz, cell#age.npy, cell,gene#dense.npy" or all(
            name in line for name in ("cell#age.npy", "cell,gene#dense.npy", MATRIX)), line
        assert not os.path.exists(mount / "other#.npy")
        os.unlink(mount / "Cell#.npy")  # nothing lies along it
        for name in ("cell#age.npy", "cell,gene#dense.npy", f"{MATRIX}.npz", "cell#.npy"):
            os.unlink(mount / name)
    with Mount(store, checkout="c") as mount:
        assert sorted(os.listdir(mount.path)) == ["gene#.npy", "gene,gene#other", "gene,gene#other.npz", "title.npy"]
    with exported(store) as file:
        assert set(file) == {"__daf__", "gene#", "gene,gene#other"}


def test_axes_come_last(store):
    with Mount(store, checkout="c") as mount:
        np.save(mount / "zebra#.npy", np.array(["z"]))
        np.save(mount / "zz.npy", np.arange(2))
        with os.scandir(mount.path) as entries:
            found = [(entry.name, entry.inode(), entry.stat().st_ino) for entry in entries]
        names = [name for name, *_ in found]
        assert set(names[-4:]) == {"Cell#.npy", "cell#.npy", "gene#.npy", "zebra#.npy"} and len(names) == len(set(names))
        rest = max(number for name, *numbers in found if not name.endswith("#.npy") for number in numbers)
        for name, *numbers in found:
            if name.endswith("#.npy"):
                assert min(numbers) > rest, name


def test_axes_come_last_whatever_lies_along_them(tmp_path):
    """Datasets of a large group are no entries of their own, and axes still are, behind all others: one run deletes them."""
    with h5py.File(tmp_path / "all.h5", "w") as file:
        daf.start(file)
        file["zebra#"], file["cell#"] = np.array([b"z"]), np.array([b"a", b"b"])
        for i in range(2000):
            file[f"cell#p{i}"] = np.arange(2)
            file[f"zebra,cell#p{i}"] = np.ones((1, 2))
        file["zoo"] = 3
    names = {f"{axes}#p{i}.npy" for axes in ("cell", "zebra,cell") for i in range(2000)} | {"zoo.npy"}
    with Mount(tmp_path / "all.h5", checkout="c") as mount:
        for listed in (os.listdir(mount.path), [entry.name for entry in os.scandir(mount.path)]):
            assert len(listed) == len(names) + 2 and set(listed[:-2]) == names and listed[-2:] == ["cell#.npy", "zebra#.npy"]
        for name in os.listdir(mount.path):
            os.unlink(mount / name)
        assert os.listdir(mount.path) == []


@pytest.mark.parametrize("how", ["rm -r", "rm *", "rmtree", "rsync"])
def test_a_whole_store_can_be_emptied(tmp_path, how):
    """In at most two runs, whatever order the program takes."""
    with h5py.File(tmp_path / "all.h5", "w") as file:
        daf.write(file.create_group("cells"))
    with Mount(tmp_path / "all.h5", checkout="c") as mount:
        folder = mount / "cells"
        (tmp_path / "empty").mkdir()
        commands = {"rm -r": ["rm", "-r", folder], "rm *": ["sh", "-c", 'rm -r "$0"/*', folder],
                    "rsync": ["rsync", "-r", "--delete", f"{tmp_path}/empty/", f"{folder}/"]}
        # Who empties the directory as it is listed ends well at once; who goes by name comes to axes too early, and in a second run not.
        if how == "rmtree":
            shutil.rmtree(folder)
        elif how == "rm -r":
            run(commands[how], check=True)
        else:
            run(commands[how])
            if os.listdir(folder):
                run(commands[how], check=True)
        assert not folder.exists() or os.listdir(folder) == []
    with Mount(tmp_path / "all.h5", checkout="c") as mount:
        assert not (mount / "cells").exists() or os.listdir(mount / "cells") == []
    npyfs("checkout", "export", tmp_path / "all.h5", "c", tmp_path / "out.h5", check=True)
    with h5py.File(tmp_path / "out.h5") as file:
        assert "cells" not in file or set(file["cells"]) == {"__daf__"} and not file["cells/__daf__"].attrs


def test_rsync_deletes_what_is_gone(store, tmp_path):
    with Mount(store, checkout="c") as mount:
        run(["rsync", "-a", f"{mount.path}/", f"{tmp_path}/copy/"], check=True)
        shutil.rmtree(tmp_path / "copy" / MATRIX)
        os.unlink(tmp_path / "copy" / f"{MATRIX}.npz")
        os.utime(tmp_path / "copy", (10**9, 10**9))
        for _ in range(2):
            run(["rsync", "-a", "--delete", f"{tmp_path}/copy/", f"{mount.path}/"], check=True)
        assert run(["rsync", "-ain", "--delete", f"{tmp_path}/copy/", f"{mount.path}/"], check=True).stdout.strip() == ""
    with Mount(store, checkout="c") as mount:
        assert sorted(os.listdir(mount.path)) == sorted(os.listdir(tmp_path / "copy"))


@pytest.mark.parametrize("late", [0.0, 0.8])
def test_rsync_finds_nothing_to_do_again(store, tmp_path, late):
    """The times of directories that a program sets stay, also when files in them are stored after that."""
    with Mount(store, checkout="c") as mount:
        run(["rsync", "-a", f"{mount.path}/", f"{tmp_path}/copy/"], check=True)
        shutil.rmtree(tmp_path / "copy" / MATRIX)
        os.unlink(tmp_path / "copy" / f"{MATRIX}.npz")
        np.save(tmp_path / "copy" / "cell#weight.npy", np.arange(3.0))
        for folder, _, _ in os.walk(tmp_path / "copy"):
            os.utime(folder, (10**9, 10**9))
        for _ in range(2):
            run(["rsync", "-a", "--delete", f"{tmp_path}/copy/", f"{mount.path}/"], check=True)
        time.sleep(late)
        assert run(["rsync", "-ain", "--delete", f"{tmp_path}/copy/", f"{mount.path}/"], check=True).stdout.strip() == ""
        assert os.stat(mount.path).st_mtime == 10**9
        os.unlink(mount / "cell#age.npy")
        assert time.time() - os.stat(mount.path).st_mtime < 60


def test_a_deletion_that_is_not_committed_has_one_time(store):
    """Each mount shows the time of the deletion, not its own."""
    with Mount(store, checkout="c") as mount:
        os.unlink(mount / "cell#age.npy")
    time.sleep(0.1)
    remounted = time.time_ns()
    times = []
    for _ in range(2):
        with Mount(store, checkout="c") as mount:
            times.append(os.stat(mount.path).st_mtime_ns)
    assert times[0] == times[1] < remounted


def test_a_link_and_long_text_stay_deleted(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["g/a"] = np.arange(3)
        file["link"] = file["g"]
        file["soft"] = h5py.SoftLink("/g")
        file.create_dataset("text", data=["a", "b" * 100], dtype=h5py.string_dtype())
    with Mount(tmp_path / "x.h5", "text_limit=100", checkout="c") as mount:
        assert sorted(os.listdir(mount / "text")) == ["offsets.npy", "values.npy"]
        with pytest.raises(OSError):
            np.save(mount / "text/more.npy", np.arange(2))
        for name in ("link", "soft"):
            os.unlink(mount / name)
        run(["rm", "-r", mount / "text"], check=True)
    with Mount(tmp_path / "x.h5", checkout="c") as mount:
        assert os.listdir(mount.path) == ["g"] and os.listdir(mount / "g") == ["a.npy"]
    npyfs("checkout", "export", tmp_path / "x.h5", "c", tmp_path / "out.h5", check=True)
    with h5py.File(tmp_path / "out.h5") as file:
        assert list(file) == ["g"]


@pytest.mark.parametrize("folder", [MATRIX, "new"], ids=["a matrix", "a group"])
def test_a_directory_is_made_anew_while_somebody_has_the_old_one_open(store, folder, tmp_path):
    with Mount(store, checkout="c") as mount:
        path, held = mount / folder, []
        try:
            for turn in range(4):
                # As a shell or a backup has that stands in it.
                if path.exists():
                    held.append(os.open(path, os.O_RDONLY))
                    shutil.rmtree(path)
                os.mkdir(path)
                with open(path / "data.npy", "wb") as file:
                    np.save(file, np.full(2, float(turn)))
                    os.fsync(file.fileno())
                with os.scandir(mount / ".") as entries:
                    listed = {entry.name: entry.inode() for entry in entries}
                assert os.stat(path).st_ino == listed[folder]
                number = os.stat(path).st_ino
                if len(held) > 1:
                    # It stays the same when the others are closed.
                    os.close(held.pop(0))
                    assert os.stat(path).st_ino == number
            with pytest.raises(FileNotFoundError):
                os.stat("data.npy", dir_fd=held[-1])
        finally:
            for descriptor in held:
                os.close(descriptor)
    with Mount(store, checkout="c") as mount:
        np.testing.assert_array_equal(np.load(mount / folder / "data.npy"), [3.0, 3.0])
