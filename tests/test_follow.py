"""-o follow: a mount goes on with the commits of others. What is open stays as it was, what is damaged is named and waited for.
Judges: NumPy on what was written, the kernel's own view of names, attributes and mapped pages."""

import mmap
import os
import shutil
import threading

import h5py
import numpy as np
import pytest

from support import hosts
from support.checkouts import amend_last, checkout, save, top, write_daf, write_plain
from support.commits import log
from support.mount import Mount, until
from support.process import npyfs, one_line


@pytest.fixture
def store(tmp_path):
    write_plain(tmp_path / "x.h5")
    return tmp_path / "x.h5"


def commit_of(number):
    return f"{number:020}.json"


def shows(mount, arrays):
    """Whether these arrays are there, and those that are None are not: names, sizes and elements."""
    for name, array in arrays.items():
        path = mount / name
        try:
            if array is None:
                assert not path.exists()
            else:
                assert np.array_equal(np.load(path), array)
            listed = path.parent.is_dir() and path.name in os.listdir(path.parent)
            assert listed == (array is not None)
        except (AssertionError, FileNotFoundError, ValueError):
            return False
    return True


def wait(mount, number, arrays):
    until(lambda: mount.status()["follow"]["commit"] == number, f"commit {number}: {mount.status()['follow']}")
    # The kernel may believe what it knows for a second more.
    until(lambda: shows(mount, arrays), f"what commit {number} has")


@pytest.mark.fast
def test_the_second_mount_goes_on(store):
    new, a, empty = np.arange(30.0), np.arange(4), np.zeros((0, 3))
    with Mount(store, "follow=1") as follows, Mount(store) as stays:
        assert follows.status()["follow"] == {"seconds": 1, "commit": 0, "id": None, "stays_because": None}
        assert stays.status()["follow"] is None
        before = {name: np.load(stays / name) for name in stays.files()}
        assert shows(follows, before) and shows(follows, {"new.npy": None, "deep/er/new.npy": None})
        with Mount(store, checkout="one") as writer:
            np.save(writer / "new.npy", new)
            np.save(writer / "a.npy", a)
            os.makedirs(writer / "deep/er")
            np.save(writer / "deep/er/new.npy", empty)
            os.unlink(writer / "b.npy")
            assert shows(follows, before)
        checkout("commit", store, "one")
        first = {"new.npy": new, "a.npy": a, "deep/er/new.npy": empty, "b.npy": None, "g/c.npy": before["g/c.npy"]}
        wait(follows, 1, first)
        assert follows.status()["follow"]["id"] == log(store)[0]["id"]
        assert sorted(os.listdir(follows.path)) == ["a.npy", "deep", "g", "new.npy"]
        assert os.path.getmtime(follows / "a.npy") > os.path.getmtime(stays / "a.npy")
        assert os.path.getmtime(follows / "g/c.npy") == os.path.getmtime(stays / "g/c.npy")
        shutil.rmtree(top(store) / "nothing", ignore_errors=True)
        save(store, "two", {"a.npy": np.arange(9), "b.npy": np.arange(3), "g/c.npy": np.arange(2)})
        wait(follows, 2, {**first, "a.npy": np.arange(9), "b.npy": np.arange(3), "g/c.npy": np.arange(2)})
        checkout("revert", store, log(store)[0]["id"])
        wait(follows, 3, first)
        assert shows(stays, before) and follows.errors() == []


def test_what_is_open_stays_as_it_was(store):
    big = np.arange(1_000_000.0)
    save(store, "one", {"big.npy": big, "gone.npy": np.arange(50_000)})
    with Mount(store, "follow=1") as m:
        wait(m, 1, {"gone.npy": np.arange(50_000)})
        mapped = np.load(m / "big.npy", mmap_mode="r")
        assert mapped[0] == 0
        with open(m / "big.npy", "rb") as handle, open(m / "gone.npy", "rb") as gone, h5py.File(store) as _:
            listing = os.scandir(m.path)
            first = next(listing).name
            with Mount(store, checkout="two") as writer:
                np.save(writer / "big.npy", -big[:700_000])
                os.unlink(writer / "gone.npy")
            checkout("commit", store, "two")
            wait(m, 2, {"big.npy": -big[:700_000], "gone.npy": None})
            assert (mapped == big).all()
            assert (np.load(handle) == big).all() and os.fstat(handle.fileno()).st_size == 128 + big.nbytes
            assert (np.load(gone) == np.arange(50_000)).all()
            pages = mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ)
            assert pages[128:] == big.tobytes()
            pages.close()
            assert sorted([first, *(entry.name for entry in listing)]) == ["a.npy", "b.npy", "big.npy", "g", "gone.npy"]
        del mapped
        assert m.errors() == []


@pytest.mark.slow
def test_a_burst_is_followed_to_its_end(store):
    """Past the first list of many commits, which is made at 100."""
    names = [f"o{number}" for number in range(130)]
    hosts.make_layers(store, names)
    with Mount(store, "follow=1") as m:
        for name in names[:3]:
            checkout("commit", store, name)
        wait(m, 3, {f"{name}.npy": np.full(3, number) for number, name in enumerate(names[:3])})
        for name in names[3:]:
            checkout("commit", store, name)
        wait(m, len(names), {f"{name}.npy": np.full(3, number) for number, name in enumerate(names)})
        assert m.errors() == []


def test_readers_meet_one_commit_or_the_next(store):
    """Two arrays change together, again and again: whoever lists and reads meets no state that was never committed."""
    count = 8
    with Mount(store, "follow=1") as m:
        save(store, "c0", {"x.npy": np.full(5, 0), "y.npy": np.full(5, 0)})
        wait(m, 1, {"x.npy": np.full(5, 0), "y.npy": np.full(5, 0)})
        done, bad, seen = threading.Event(), [], set()

        def read():
            while not done.is_set():
                try:
                    array = np.load(m / "x.npy")
                    seen.add(int(array[0]))
                    if array.shape != (5,) or len(set(array)) != 1 or "y.npy" not in os.listdir(m.path):
                        bad.append(array)
                except Exception as e:
                    bad.append(e)
        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for number in range(1, count):
            save(store, f"c{number}", {"x.npy": np.full(5, number), "y.npy": np.full(5, number)})
        wait(m, count, {"x.npy": np.full(5, count - 1), "y.npy": np.full(5, count - 1)})
        done.set()
        for reader in readers:
            reader.join(60)
        assert bad == [] and seen <= set(range(count)) and m.errors() == []


@pytest.mark.parametrize("bad", ["cut", "edited", "layer", "index"])
def test_what_is_damaged_is_named_and_waited_for(store, bad):
    with Mount(store, "follow=1") as m:
        save(store, "one", {"new.npy": np.arange(3)})
        wait(m, 1, {"new.npy": np.arange(3)})
        save(store, "two", {"new.npy": np.arange(5)}, commit=False)
        save(store, "three", {"more.npy": np.arange(5)}, commit=False)
        if bad == "layer":
            target = top(store) / "two"
        elif bad == "index":
            target = top(store) / "two/index"
        else:
            target = top(store) / "commits" / commit_of(2)
        # Stopped, it meets the commit as it is damaged.
        os.kill(m.pid, 19)
        checkout("commit", store, "two")
        if bad == "index":
            # The commit says the same, and nobody reads the index.
            amend_last(top(store), changes=None)
        aside = target.with_name(".aside-of-the-test")
        target.rename(aside)
        if bad == "cut":
            target.write_bytes(aside.read_bytes()[:40])
        elif bad == "edited":
            target.write_bytes(aside.read_bytes().replace(b'"message":""', b'"message":"no"'))
        os.kill(m.pid, 18)
        until(lambda: m.status()["follow"]["stays_because"], "the damage is noticed")
        status = m.status()["follow"]
        named = str(top(store) / "two") if bad == "index" else str(target)
        assert status["commit"] == 1 and named in status["stays_because"]
        assert shows(m, {"new.npy": np.arange(3), "more.npy": None})
        [line] = m.errors()
        assert "the mount stays at commit 1" in line and named in line
        assert line.split(" ", 1)[1] in npyfs("log", m.path, check=True).stdout
        aside.rename(target)
        checkout("commit", store, "three")
        wait(m, 3, {"new.npy": np.arange(5), "more.npy": np.arange(5)})
        assert m.status()["follow"]["stays_because"] is None
        assert len(m.errors()) == 2 and "follows commits again" in m.errors()[1]


def test_what_is_damaged_hides_nothing_in_front_of_it(store):
    names = ["o0", "o1", "o2", "o3"]
    hosts.make_layers(store, names)
    with Mount(store, "follow=1") as m:
        os.kill(m.pid, 19)
        for name in names:
            checkout("commit", store, name)
        target = top(store) / "commits" / commit_of(3)
        whole = target.read_bytes()
        target.write_bytes(b"{}\n")
        os.kill(m.pid, 18)
        wait(m, 2, {"o0.npy": np.full(3, 0), "o1.npy": np.full(3, 1), "o2.npy": None, "o3.npy": None})
        target.write_bytes(whole)
        wait(m, 4, {f"{name}.npy": np.full(3, number) for number, name in enumerate(names)})


def test_checkouts_that_are_moved_away_and_come_back(store):
    save(store, "one", {"new.npy": np.arange(3)})
    with Mount(store, "follow=1") as m:
        away = top(store).with_name("away")
        top(store).rename(away)
        until(lambda: m.status()["follow"]["stays_because"], "they are missed")
        assert shows(m, {"a.npy": np.load(m / "a.npy")}) and m.status()["follow"]["commit"] == 1
        away.rename(top(store))
        save(store, "two", {"new.npy": np.arange(5)})
        wait(m, 2, {"new.npy": np.arange(5)})


def test_views_subtrees_and_axes_follow(tmp_path):
    import zarr
    store = tmp_path / "x.h5df"
    write_daf(store)
    with Mount(store, "follow=1") as m, Mount(store, "follow=1,view=zarr") as view:
        assert "cell#score" not in zarr.open_group(str(view.path), mode="r")
        save(store, "one", {"cell#score.npy": np.arange(4.0)})
        wait(m, 1, {"cell#score.npy": np.arange(4.0)})
        group = lambda: zarr.open_group(str(view.path), mode="r")
        until(lambda: view.status()["follow"]["commit"] == 1 and any("score" in name for name in group()), "the view")
        age = np.load(m / "cell#age.npy")
        save(store, "two", {"cell#.npy": np.array(["p", "q", "r", "s"])})
        wait(m, 2, {"cell#.npy": np.array(["p", "q", "r", "s"]), "cell#score.npy": np.arange(4.0), "cell#age.npy": age})
    plain = tmp_path / "y.h5"
    write_plain(plain)
    with Mount(f"{plain}:/g", "follow=1") as m:
        save(plain, "one", {"g/new.npy": np.arange(7)})
        wait(m, 1, {"new.npy": np.arange(7)})


def test_a_directory_of_stores_follows(tmp_path):
    (tmp_path / "all").mkdir()
    write_plain(tmp_path / "all/x.h5")
    with Mount(tmp_path / "all", "follow=1") as m:
        save(tmp_path / "all", "one", {"x.h5/new.npy": np.arange(7)})
        wait(m, 1, {"x.h5/new.npy": np.arange(7)})


def test_where_it_means_nothing_it_says_so(store, tmp_path):
    point = tmp_path / "mnt"
    point.mkdir()
    for flags in (["--checkout", "c"], ["--at", "abcd"]):
        done = npyfs("mount", *flags, "-o", "follow=1", store, point)
        assert done.returncode == 1 and "follow is for mounts of what is committed" in one_line(done.stderr)
    for bad in ("0", "x", "-1", ""):
        assert npyfs("mount", "-o", f"follow={bad}", store, point).returncode == 1
    done = npyfs("mount", "-o", "follow=1", store, point, check=True)
    try:
        assert one_line(done.stderr).endswith("x.h5.checkouts: no commits yet; they are shown as they are made")
    finally:
        npyfs("umount", point, check=True)
    assert not top(store).exists()
