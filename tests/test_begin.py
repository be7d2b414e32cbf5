"""mkdir new.h5, new.h5df, new.h5fs in a mounted directory begins a store in the checkout. Judges: h5py, npyfs verify, the index read as
docs/checkout-format.md says."""

import errno
import os
import signal
import subprocess

import h5py
import numpy as np
import pytest

from support.checkouts import checkout, lines, save, write_plain
from support.mount import Mount, until
from support.process import npyfs, signal_all

CELLS = np.array(["a", "b", "c", "d"])


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "all"
    (path / "sub").mkdir(parents=True)
    write_plain(path / "old.h5")
    return path


def contents(path):
    """{path: elements} of a file, None for groups."""
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: None if isinstance(item, h5py.Group) else item[()].tolist()}))
    return found


@pytest.mark.parametrize("name, kind, arrays", [
    ("new.h5", "plain", {"a": np.arange(3), "g/b": np.arange(6.0).reshape(2, 3)}),
    ("new.hdf5", "plain", {"a": np.arange(3)}),
    ("sub/new.h5fs", "plain", {"g/cell#": CELLS}),
    ("sub/new.h5df", "daf", {"cell#": CELLS, "cell#age": np.arange(4), "title": np.array("x")}),
])
def test_a_store_is_begun_written_committed_and_exported(folder, tmp_path, name, kind, arrays):
    with Mount(folder, checkout="work") as mount:
        os.mkdir(mount / name)
        assert os.listdir(mount / name) == [] and os.path.basename(name) in os.listdir((mount / name).parent)
        assert mount.info(name)["kind"] == kind
        with pytest.raises(FileExistsError):
            os.mkdir(mount / name)
    # Empty, it survives a remount.
    assert checkout("diff", folder, "work").stdout == f"A {name}/  {kind} store\n"
    with Mount(folder, checkout="work") as mount:
        assert os.listdir(mount / name) == []
        for path, array in arrays.items():
            os.makedirs(os.path.dirname(mount / name / path), exist_ok=True)
            np.save(mount / name / f"{path}.npy", array)
    with Mount(folder, checkout="work") as mount:
        for path, array in arrays.items():
            np.testing.assert_array_equal(np.load(mount / name / f"{path}.npy"), array)
    assert not (folder / name).exists()
    first, records = lines(tmp_path / "all.checkouts/work/index")
    begun, = [record for record in records if record.get("path") == name]
    assert begun["stored"]["begins"] == kind and begun["needs"] == ["begun"]
    # Nobody else sees it before the commit.
    assert os.path.basename(name) not in npyfs("ls", "-R", folder, check=True).stdout
    checkout("commit", folder, "work")
    assert os.path.basename(name) in npyfs("ls", "-R", folder, check=True).stdout
    with Mount(folder) as mount:
        for path, array in arrays.items():
            np.testing.assert_array_equal(np.load(mount / name / f"{path}.npy"), array)
    checkout("export", folder, tmp_path / "out")
    with h5py.File(tmp_path / "out" / name) as file:
        assert ("__daf__" in file) == (kind == "daf")
        assert "npyfs_time" not in file.attrs
        for path, array in arrays.items():
            if path == "title":
                assert file["__daf__"].attrs["title"] == "x"
            else:
                np.testing.assert_array_equal(file[path].asstr()[()] if array.dtype.kind == "U" else file[path][()], array)
    assert "all is well" in npyfs("verify", tmp_path / "out", check=True).stdout
    assert contents(tmp_path / "out/old.h5") == contents(folder / "old.h5")


def test_an_empty_store_is_a_store(folder, tmp_path):
    with Mount(folder, checkout="work") as mount:
        for name in ("one.h5", "two.h5df", "three.h5fs"):
            os.mkdir(mount / name)
    checkout("commit", folder, "work")
    checkout("export", folder, tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == ["old.h5", "one.h5", "sub", "three.h5fs", "two.h5df"]
    assert contents(tmp_path / "out/one.h5") == contents(tmp_path / "out/three.h5fs") == {}
    assert contents(tmp_path / "out/two.h5df") == {"__daf__": [1, 0]}
    assert "all is well" in npyfs("verify", tmp_path / "out", check=True).stdout


def test_rmdir_takes_it_back(folder, tmp_path):
    with Mount(folder, checkout="work") as mount:
        os.mkdir(mount / "new.h5df")
        np.save(mount / "new.h5df/cell#.npy", CELLS)
        with pytest.raises(OSError) as refused:
            os.rmdir(mount / "new.h5df")
        assert refused.value.errno == errno.ENOTEMPTY
        os.remove(mount / "new.h5df/cell#.npy")
        os.rmdir(mount / "new.h5df")
        assert sorted(os.listdir(mount.path)) == ["old.h5", "sub"]
        # As another kind, in the same place.
        os.mkdir(mount / "new.h5")
        os.rmdir(mount / "new.h5")
        os.mkdir(mount / "new.h5")
        np.save(mount / "new.h5/x.npy", CELLS)
    assert checkout("diff", folder, "work").stdout.splitlines() == ["A new.h5/  plain store", "A new.h5/x.npy  <U1 (4,)"]
    with Mount(folder, checkout="work") as mount:
        assert sorted(os.listdir(mount.path)) == ["new.h5", "old.h5", "sub"]
    # A committed one is removed by a later checkout.
    checkout("commit", folder, "work")
    with Mount(folder, checkout="later") as mount:
        os.remove(mount / "new.h5/x.npy")
        os.rmdir(mount / "new.h5")
        assert "new.h5" not in os.listdir(mount.path)
    checkout("commit", folder, "later")
    assert "new.h5" not in npyfs("ls", folder, check=True).stdout
    checkout("export", folder, tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == ["old.h5", "sub"]


def test_a_store_of_the_directory_gives_way_to_a_new_one(folder, tmp_path):
    """Removed with all that is in it, and begun again: nothing of the old one is in the new one."""
    with Mount(folder, checkout="one") as mount:
        np.save(mount / "old.h5/extra.npy", np.arange(3))
    checkout("commit", folder, "one")
    with Mount(folder, checkout="two") as mount:
        subprocess.run(["rm", "-r", mount / "old.h5"], check=True)
        os.mkdir(mount / "old.h5")
        assert os.listdir(mount / "old.h5") == []
        np.save(mount / "old.h5/a.npy", np.arange(4))
    checkout("commit", folder, "two")
    with Mount(folder) as mount:
        assert os.listdir(mount / "old.h5") == ["a.npy"]
    checkout("export", folder, tmp_path / "out")
    assert contents(tmp_path / "out/old.h5") == {"a": [0, 1, 2, 3]}


@pytest.mark.fast
def test_what_cannot_be_made_is_refused_with_a_reason(folder):
    with Mount(folder, checkout="work") as mount:
        for name in ("plain", "sub/plain", "new.npy", ".h5", "new.H5DF.txt"):
            with pytest.raises(OSError) as refused:
                os.mkdir(mount / name)
            assert refused.value.errno == errno.EPERM, name
            assert f"{name}: mkdir" in mount.errors()[-1] and ".h5df" in mount.errors()[-1]
        with pytest.raises(OSError) as refused:
            os.mkdir(mount / "x_LOCALE0000.h5")
        assert refused.value.errno == errno.EINVAL and "x_LOCALE0000.h5" in mount.errors()[-1]
        with pytest.raises(OSError):
            np.save(mount / "loose.npy", np.arange(3))
        # In a store it is what it always was: a group.
        os.mkdir(mount / "old.h5/new.h5df")
    assert checkout("diff", folder, "work").stdout == "A old.h5/new.h5df/  empty group\n"


def test_kind_says_what_is_begun(folder, tmp_path):
    with Mount(folder, "kind=arkouda", checkout="work") as mount:
        os.mkdir(mount / "new.h5")
        np.save(mount / "new.h5/distance.npy", np.arange(5))
    with Mount(folder, checkout="work") as mount:
        assert mount.info("new.h5")["kind"] == "arkouda"
    with Mount(folder, "kind=hangar", checkout="work") as mount:
        with pytest.raises(OSError) as refused:
            os.mkdir(mount / "other.h5")
        assert refused.value.errno == errno.EOPNOTSUPP


def test_an_empty_directory_gets_its_first_store(tmp_path):
    folder = tmp_path / "all"
    folder.mkdir()
    assert npyfs("ls", folder).returncode == 2
    with Mount(folder, checkout="work") as mount:
        os.mkdir(mount / "new.h5df")
        np.save(mount / "new.h5df/cell#.npy", CELLS)
    checkout("commit", folder, "work")
    assert npyfs("ls", "-R", folder, check=True).stdout.split() == [".:", "new.h5df", "new.h5df:", "cell#.npy"]
    checkout("export", folder, tmp_path / "out")
    with h5py.File(tmp_path / "out/new.h5df") as file:
        np.testing.assert_array_equal(file["cell#"].asstr()[()], CELLS)


def test_discard_and_revert_forget_it(folder, tmp_path):
    with Mount(folder, checkout="work") as mount:
        os.mkdir(mount / "new.h5")
        np.save(mount / "new.h5/a.npy", np.arange(3))
    checkout("discard", folder, "work")
    assert "new.h5" not in npyfs("ls", folder, check=True).stdout
    with Mount(folder, checkout="work") as mount:
        os.mkdir(mount / "new.h5")
        np.save(mount / "new.h5/a.npy", np.arange(3))
    checkout("commit", folder, "work")
    save(folder, "more", {"new.h5/b.npy": np.arange(2)})
    last, first = checkout("log", "-0", folder).stdout.split("\0")[:2]
    refused = checkout("revert", folder, first, code=3)
    assert "new.h5/b" in refused.stderr
    checkout("revert", folder, last)
    checkout("revert", folder, first)
    assert "new.h5" not in npyfs("ls", folder, check=True).stdout
    # And back.
    checkout("revert", folder, checkout("log", "-0", folder).stdout.split("\0")[0])
    with Mount(folder) as mount:
        assert os.listdir(mount / "new.h5") == ["a.npy"]
        np.testing.assert_array_equal(np.load(mount / "new.h5/a.npy"), np.arange(3))


def test_two_checkouts_that_begin_the_same_store(folder, tmp_path):
    for name in ("one", "two"):
        with Mount(folder, checkout=name) as mount:
            os.mkdir(mount / "new.h5df")
            np.save(mount / f"new.h5df/{name}#.npy", CELLS)
    checkout("commit", folder, "one")
    checkout("commit", folder, "two")
    with Mount(folder) as mount:
        assert sorted(os.listdir(mount / "new.h5df")) == ["one#.npy", "two#.npy"]
    checkout("export", folder, tmp_path / "out")
    assert sorted(contents(tmp_path / "out/new.h5df")) == ["__daf__", "one#", "two#"]


def test_it_survives_kill_once_it_was_synced(folder):
    with Mount(folder, checkout="work") as mount:
        os.mkdir(mount / "new.h5df")
        np.save(mount / "new.h5df/cell#.npy", CELLS)
        with open(mount / "new.h5df/cell#.npy") as file:
            os.fsync(file.fileno())
        signal_all([mount.pid], signal.SIGKILL)
        mount.expect_dead = True
    with Mount(folder, checkout="work") as mount:
        np.testing.assert_array_equal(np.load(mount / "new.h5df/cell#.npy"), CELLS)


def test_a_file_that_appears_in_its_place_is_shown(folder, tmp_path):
    """The file that is there wins, at once, and the checkout's store is named as what does not fit."""
    with Mount(folder, checkout="work") as mount:
        os.mkdir(mount / "new.h5df")
        np.save(mount / "new.h5df/cell#.npy", CELLS)
        np.save(mount / "new.h5df/cell#age.npy", np.arange(4))
    checkout("commit", folder, "work")
    with Mount(folder) as mount:
        assert sorted(os.listdir(mount / "new.h5df")) == ["cell#.npy", "cell#age.npy"]
        write_plain(tmp_path / "real.h5df")
        names = sorted(contents(tmp_path / "real.h5df"))
        os.rename(tmp_path / "real.h5df", folder / "new.h5df")
        until(lambda: not os.path.exists(mount / "new.h5df/cell#.npy"), "the real file")
        assert any("new.h5df was begun in a checkout, and a file is there now" in line for line in mount.errors()), mount.errors()
    with Mount(folder) as mount:
        shown = [os.path.splitext(name)[0] for name in mount.files() if name.startswith("new.h5df/")]
        assert sorted(f"new.h5df/{name}" for name in names if name in ("a", "b")) <= sorted(shown)
        assert not any("cell#" in name for name in shown)
    listed = npyfs("checkout", "ls", folder)
    assert "new.h5df was begun in a checkout, and a file is there now" in listed.stdout + listed.stderr, listed
    refused = npyfs("checkout", "export", folder, tmp_path / "out")
    assert refused.returncode and "new.h5df" in refused.stderr
    checkout("export", "--leave-out", folder, tmp_path / "out")
    assert sorted(contents(tmp_path / "out/new.h5df")) == names
    # What is written from now on is written over the file.
    with Mount(folder, checkout="later") as mount:
        np.save(mount / "new.h5df/later.npy", np.arange(5))
    checkout("commit", folder, "later")
    with Mount(folder) as mount:
        np.testing.assert_array_equal(np.load(mount / "new.h5df/later.npy"), np.arange(5))


def test_an_older_program_refuses_the_index(folder, tmp_path):
    """The record says what must be known to read it: without that, nothing is read."""
    with Mount(folder, checkout="work") as mount:
        os.mkdir(mount / "new.h5")
    index = tmp_path / "all.checkouts/work/index"
    record = [record for record in lines(index)[1] if record.get("path") == "new.h5"]
    assert record[0]["needs"] == ["begun"]


@pytest.mark.parametrize("length", [251, 252, 255])
def test_a_name_as_long_as_names_may_be(folder, length):
    name = "d" * (length - 3) + ".h5"
    with Mount(folder, checkout="work") as mount:
        os.mkdir(mount / name)
        np.save(mount / name / "a.npy", np.arange(3))
        for longer in (name + ".npy", "x" * 300):
            with pytest.raises(OSError) as refused:
                os.stat(mount / longer)
            assert refused.value.errno == (errno.ENAMETOOLONG if len(longer) > 255 else errno.ENOENT)
        assert not [line for line in mount.errors() if "lookup" in line], mount.errors()
    assert checkout("diff", folder, "work").stdout.splitlines()[0] == f"A {name}/  plain store"
    checkout("commit", folder, "work")
    with Mount(folder) as mount:
        assert name in os.listdir(mount.path) and np.array_equal(np.load(mount / name / "a.npy"), np.arange(3))
