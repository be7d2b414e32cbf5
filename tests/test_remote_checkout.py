"""Checkouts over stores on web servers, and exports of them: what was written is on this machine, judged by h5py on the exported file."""

import io
import os
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest

from support import daf
from support.mount import Mount
from support.process import NPYFS, npyfs, one_line
from support.web import Site

GZIP = np.random.default_rng(5).integers(0, 99, (200, 1000))


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/npyfs"


@pytest.fixture
def site(tmp_path, home):
    (tmp_path / "www").mkdir()
    with Site(tmp_path / "www") as site:
        yield site


def saved(array):
    """The bytes of an .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def save(path, array):
    """Writes an array as Python does: np.save closes files without letting other threads run, of which the server is one."""
    path.write_bytes(saved(array))


def write_plain(path, offset=0):
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(1000.) + offset
        file["a"].attrs["unit"] = "m"
        file.create_dataset("group/gzip", data=GZIP + offset, chunks=(20, 1000), compression="gzip")
        file["text"] = "some text"


def write_daf(path):
    with h5py.File(path, "w") as file:
        daf.start(file)["title"] = "cells"
        file["cell#"], file["gene#"] = np.array([b"a", b"b", b"c"]), np.array([b"x", b"y"])
        file["cell#age"] = np.array([30, 40, 50])
        file["cell,gene#UMIs"] = np.arange(6).reshape(3, 2)


def checkout(command, *arguments, code=0):
    done = npyfs("checkout", command, *arguments, timeout=100)
    assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done


@pytest.mark.fast
def test_without_a_place_for_it_nothing_is_written(site, tmp_path):
    write_plain(site.directory / "x.h5")
    url = site.url("x.h5")
    point = tmp_path / "mnt"
    point.mkdir()
    for command in (["mount", "--checkout", "mine", url, point], ["checkout", "ls", url], ["checkout", "diff", url, "mine"],
                    ["checkout", "commit", url, "mine"], ["checkout", "discard", url, "mine"], ["log", "--checkout", "mine", url],
                    ["checkout", "export", url, "mine", tmp_path / "out.h5"]):
        refused = npyfs(*command)
        assert refused.returncode in (1, 2, 3) and "--checkouts DIR" in one_line(refused.stderr), (command, refused)
    for command in (["checkout", "status", url], ["checkout", "reset", url]):
        assert "on this machine" in one_line(npyfs(*command).stderr)
    refused = npyfs("mount", "--checkouts", site.url("checkouts/"), "--checkout", "mine", url, point)
    assert "a web server takes nothing" in one_line(refused.stderr)
    assert sorted(os.listdir(tmp_path)) == ["mnt", "www"] or sorted(os.listdir(tmp_path)) == ["cache", "mnt", "www"]
    assert not os.listdir(point)


@pytest.mark.fast
def test_what_is_written_over_a_remote_store_is_committed_and_exported(site, tmp_path):
    write_plain(site.directory / "x.h5")
    # The query belongs to the address, and to nothing that is kept.
    url, kept = site.url("x.h5", "?sig=first"), tmp_path / "kept"
    with Mount(url, checkout="mine", checkouts=kept) as mount:
        save(mount / "a.npy", np.ones(10))
        save(mount / "new.npy", np.arange(5))
        os.mkdir(mount / "more")
        save(mount / "more/deep.npy", np.eye(3))
        os.remove(mount / "text.npy")
        file = os.open(mount / "new.npy", os.O_RDONLY)
        os.fsync(file)
        os.close(file)
        np.testing.assert_array_equal(np.load(mount / "a.npy"), np.ones(10))
        np.testing.assert_array_equal(np.load(mount / "group/gzip.npy"), GZIP)
        assert "a.npy" in checkout("diff", mount.path).stdout
    diff = checkout("diff", "--checkouts", kept, url, "mine").stdout
    assert [line.split()[:2] for line in sorted(diff.splitlines())] == [["A", "more/"], ["A", "more/deep.npy"], ["A", "new.npy"], ["D", "text.npy"], ["M", "a.npy"]]
    # Others see it when it is committed, whatever their address was signed with.
    other = site.url("x.h5", "?sig=second")
    assert "new.npy" not in npyfs("ls", "--checkouts", kept, other, check=True).stdout
    checkout("export", "--checkouts", kept, url, "mine", tmp_path / "before.h5")
    checkout("commit", "-m", "first", "--checkouts", kept, other, "mine")
    id = checkout("log", "-0", "--checkouts", kept, url).stdout.split("\0")[0].strip()
    assert "new.npy" in npyfs("ls", "--checkouts", kept, url, check=True).stdout
    checkout("export", "--checkouts", kept, "--compress", "gzip:5", url, tmp_path / "after.h5")
    for name in ("before.h5", "after.h5"):
        with h5py.File(tmp_path / name) as file:
            assert sorted(file) == ["a", "group", "more", "new"]
            np.testing.assert_array_equal(file["a"][()], np.ones(10))
            np.testing.assert_array_equal(file["group/gzip"][()], GZIP)
            np.testing.assert_array_equal(file["more/deep"][()], np.eye(3))
    # A second checkout, on top of the commit, thrown away; and a mount of the commit.
    with Mount(other, checkout="two", checkouts=kept) as mount:
        assert sorted(os.listdir(mount.path)) == ["a.npy", "group", "more", "new.npy"]
        save(mount / "new.npy", np.zeros(2))
    checkout("discard", "--force", "--checkouts", kept, url, "two")
    with Mount(url, flags=["--at", id], checkouts=kept) as mount:
        np.testing.assert_array_equal(np.load(mount / "new.npy"), np.arange(5))
    assert checkout("revert", "--checkouts", kept, url, id)
    assert "text.npy" in npyfs("ls", "--checkouts", kept, url, check=True).stdout
    assert not any(b"sig=" in path.read_bytes() for path in kept.rglob("*") if path.is_file())


def test_a_checkout_by_the_options_of_mount(site, tmp_path):
    """As in fstab: everything by -o."""
    write_plain(site.directory / "x.h5")
    with Mount(site.url("x.h5"), f"rw,checkout=mine,checkouts={tmp_path / 'kept'},check=0") as mount:
        save(mount / "new.npy", np.arange(5))
        np.testing.assert_array_equal(np.load(mount / "new.npy"), np.arange(5))
    with Mount(site.url("x.h5"), f"checkout=mine,ro,checkouts={tmp_path / 'kept'}") as mount:
        np.testing.assert_array_equal(np.load(mount / "new.npy"), np.arange(5))


def test_stores_of_one_name_on_two_servers_have_checkouts_of_their_own(site, tmp_path):
    write_plain(site.directory / "x.h5")
    (tmp_path / "other").mkdir()
    write_plain(tmp_path / "other/x.h5", 1)
    local = tmp_path / "local/x.h5"
    local.parent.mkdir()
    shutil.copy2(site.directory / "x.h5", local)
    kept = tmp_path / "kept"
    with Site(tmp_path / "other") as second:
        for number, store in enumerate([site.url("x.h5"), second.url("x.h5"), local]):
            with Mount(store, checkout="mine", checkouts=kept) as mount:
                assert "new.npy" not in os.listdir(mount.path)
                save(mount / "new.npy", np.full(3, number))
        for number, store in enumerate([site.url("x.h5"), second.url("x.h5"), local]):
            with Mount(store, checkout="mine", checkouts=kept) as mount:
                np.testing.assert_array_equal(np.load(mount / "new.npy"), np.full(3, number))
        # The server is not there any more: its checkouts are still its own.
        gone = second.url("x.h5")
    third = Site(tmp_path / "other")
    with third:
        listed = checkout("ls", "--checkouts", kept, third.url("x.h5")).stdout
        assert "mine" not in listed and third.url("x.h5") != gone


def test_a_base_that_changed_is_told_and_judged_as_a_local_one(site, tmp_path):
    write_daf(site.directory / "c.h5df")
    url, kept = site.url("c.h5df"), tmp_path / "kept"
    with Mount(url, "check=0", checkout="mine", checkouts=kept) as mount:
        save(mount / "cell#score.npy", np.array([0.5, 1.5, 2.5]))
        np.testing.assert_array_equal(np.load(mount / "cell#score.npy"), [0.5, 1.5, 2.5])
    assert "was changed" not in checkout("diff", "--checkouts", kept, url, "mine").stderr
    # The same axes: everything fits still.
    with h5py.File(site.directory / "c.h5df", "a") as file:
        file["cell#more"] = np.arange(3)
    told = checkout("diff", "--checkouts", kept, url, "mine")
    assert "the store was changed after the checkout was begun" in told.stderr and "score" in told.stdout
    # Other entries: what was written along the old ones is not shown.
    with h5py.File(tmp_path / "new.h5df", "w") as file:
        daf.start(file)["title"] = "others"
        file["cell#"], file["gene#"] = np.array([b"z", b"y", b"x"]), np.array([b"x", b"y"])
    os.replace(tmp_path / "new.h5df", site.directory / "c.h5df")
    with Mount(url, "check=0", checkout="mine", checkouts=kept) as mount:
        assert "cell#score.npy" not in os.listdir(mount.path)
    refused = npyfs("checkout", "commit", "--checkouts", kept, url, "mine")
    assert refused.returncode == 3 and "fit" in refused.stderr


def test_a_base_that_changes_under_a_writable_mount(site, tmp_path):
    write_daf(site.directory / "c.h5df")
    with Mount(site.url("c.h5df"), "check=0", checkout="mine", checkouts=tmp_path / "kept") as mount:
        save(mount / "cell#score.npy", np.array([0.5, 1.5, 2.5]))
        assert "cell#score.npy" in os.listdir(mount.path)
        with h5py.File(tmp_path / "new.h5df", "w") as file:
            daf.start(file)["title"] = "others"
            file["cell#"], file["gene#"] = np.array([b"z", b"y", b"x"]), np.array([b"x", b"y"])
            file["cell#age"] = np.array([3, 2, 1])
        os.utime(tmp_path / "new.h5df", (10**9, 10**9))
        os.replace(tmp_path / "new.h5df", site.directory / "c.h5df")
        np.testing.assert_array_equal(np.load(mount / "cell#age.npy"), [3, 2, 1])
        assert "cell#score.npy" not in os.listdir(mount.path)


def test_daf_over_the_web_is_written_by_its_rules(site, tmp_path):
    write_daf(site.directory / "c.h5df")
    url, kept = site.url("c.h5df"), tmp_path / "kept"
    with Mount(url, checkout="mine", checkouts=kept) as mount:
        save(mount / "cell#score.npy", np.array([0.5, 1.5, 2.5]))
        with pytest.raises(OSError):
            with open(mount / "cell#bad.npy", "wb") as file:
                file.write(saved(np.arange(7)))
    checkout("commit", "--checkouts", kept, url, "mine")
    checkout("export", "--checkouts", kept, url, tmp_path / "out.h5df")
    with h5py.File(tmp_path / "out.h5df") as file, h5py.File(site.directory / "c.h5df") as base:
        np.testing.assert_array_equal(file["cell#score"][()], [0.5, 1.5, 2.5])
        for name in base:
            if isinstance(base[name], h5py.Dataset):
                np.testing.assert_array_equal(file[name][()], base[name][()])


def test_anndata_over_the_web(site, tmp_path):
    anndata = pytest.importorskip("anndata")
    made = anndata.AnnData(X=np.arange(12, dtype="f4").reshape(4, 3))
    made.obs["age"] = [1, 2, 3, 4]
    made.write_h5ad(site.directory / "a.h5ad")
    url, kept = site.url("a.h5ad"), tmp_path / "kept"
    with Mount(url, checkout="mine", checkouts=kept) as mount:
        save(mount / "obs/score.npy", np.array([0.5, 1.5, 2.5, 3.5]))
        np.testing.assert_array_equal(np.load(mount / "X.npy"), made.X)
    checkout("export", "--checkouts", kept, url, "mine", tmp_path / "out.h5ad")
    read = anndata.read_h5ad(tmp_path / "out.h5ad")
    np.testing.assert_array_equal(read.obs["score"], [0.5, 1.5, 2.5, 3.5])
    np.testing.assert_array_equal(read.obs["age"], [1, 2, 3, 4])
    np.testing.assert_array_equal(read.X, made.X)


@pytest.mark.fast
@pytest.mark.parametrize("how", [[], ["--compress", "gzip:9"], ["--compress", "off"], ["--for", "archive"], ["--for", "mmap"], ["--for", "samples"]])
def test_a_remote_store_is_exported(site, tmp_path, how):
    write_plain(site.directory / "x.h5")
    checkout("export", *how, site.url("x.h5", "?sig=aVerySecretWord"), tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        np.testing.assert_array_equal(file["a"][()], np.arange(1000.))
        np.testing.assert_array_equal(file["group/gzip"][()], GZIP)
        assert file["a"].attrs["unit"] == "m" and file["text"][()] == b"some text"
        if how == ["--compress", "off"]:
            assert file["group/gzip"].compression is None
    assert (tmp_path / "out.h5").stat().st_mode & 0o111 == 0
    if not how:
        assert (tmp_path / "out.h5").stat().st_size < 2 * (site.directory / "x.h5").stat().st_size
    assert b"aVerySecretWord" not in (tmp_path / "out.h5").read_bytes()


def test_an_export_that_breaks_off_leaves_nothing(site, tmp_path):
    with h5py.File(site.directory / "x.h5", "w") as file:
        file["a"] = np.random.default_rng(1).normal(size=3_000_000)
    # What is behind the beginning of the elements is refused.
    site.fault = lambda handler: int(handler.headers["Range"].partition("=")[2].partition("-")[0]) > 4 << 20 and handler.refuse(403)
    refused = npyfs("checkout", "export", "-o", "timeout=2", site.url("x.h5"), tmp_path / "out.h5")
    assert refused.returncode == 3 and site.url("x.h5") in one_line(refused.stderr) and "403" in refused.stderr
    assert not [name for name in os.listdir(tmp_path) if "out" in name or name.startswith(".")]


def test_an_object_that_is_replaced_while_it_is_exported_is_no_mixture(site, tmp_path):
    for name, seed in (("x.h5", 1), ("new.h5", 2)):
        with h5py.File(site.directory / name, "w") as file:
            file["a"] = np.random.default_rng(seed).normal(size=6_000_000)
    turns = iter(range(10**6))

    def fault(_):
        if next(turns) == 6:
            os.replace(site.directory / "new.h5", site.directory / "x.h5")

    site.fault = fault
    done = npyfs("checkout", "export", "-o", "timeout=10", site.url("x.h5"), tmp_path / "out.h5")
    if done.returncode == 0:
        with h5py.File(tmp_path / "out.h5") as file:
            assert any((file["a"][()] == np.random.default_rng(seed).normal(size=6_000_000)).all() for seed in (1, 2))
    else:
        assert not (tmp_path / "out.h5").exists() and "version" in done.stderr


def test_publishing_is_refused_with_a_reason(site, tmp_path):
    write_plain(site.directory / "x.h5")
    refused = npyfs("checkout", "publish", "--checkouts", tmp_path / "kept", site.url("x.h5"), tmp_path / "out.h5")
    assert refused.returncode == 3 and "it lies elsewhere" in one_line(refused.stderr) and "export" in refused.stderr
    assert not (tmp_path / "out.h5").exists()


@pytest.mark.fast
def test_a_remote_store_is_converted(site, tmp_path):
    write_plain(site.directory / "x.h5")
    url = site.url("x.h5", "?sig=aVerySecretWord")
    for new in ("arrays", "copy.h5", "hangar"):
        author = ["--to", "hangar", "--name", "me", "--email", "me@here"] if new == "hangar" else []
        done = npyfs("convert", "--leave-out", *author, url, tmp_path / new, timeout=100)
        assert done.returncode == 0, done
        assert "aVerySecretWord" not in done.stdout + done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "arrays/group/gzip.npy"), GZIP)
    with h5py.File(tmp_path / "copy.h5") as file:
        np.testing.assert_array_equal(file["group/gzip"][()], GZIP)
    files = [path for path in (tmp_path / "hangar").rglob("*") if path.is_file()]
    assert files and not any(b"aVerySecretWord" in path.read_bytes() for path in files)


@pytest.mark.fast
def test_other_commands_take_a_url_or_say_why_not(site, tmp_path):
    write_plain(site.directory / "x.h5")
    url = site.url("x.h5")
    assert "some text" in npyfs("cat", url, "text.txt").stdout or npyfs("cat", url, "text.npy").returncode == 0
    assert npyfs("show", url, "a.npy", check=True).stdout
    assert "fastest to read" in npyfs("bench", url, "group/gzip.npy", check=True, timeout=100).stdout
    assert npyfs("info", url, check=True).stdout.splitlines()[1].endswith(url)
    assert npyfs("info", "--json", url, "a.npy", check=True).stdout
    for command in (["umount", url], ["log", url], ["new", url], ["new", "plain", url], ["checkout", "sync", url], ["ls", "https://"],
                    ["ls", "s3:///key"], ["ls", "http://127.0.0.1:1/"], ["convert", url, site.url("new.h5")],
                    ["checkout", "export", url, site.url("new.h5")], ["mount", url, url]):
        done = npyfs(*command)
        assert 0 < done.returncode < 64, (command, done)
        assert len(done.stderr.splitlines()) == 1 and "panicked" not in done.stderr, (command, done)
    assert os.listdir(site.directory) == ["x.h5"] and "http:" not in os.listdir(".")


def test_a_line_of_fstab(site, tmp_path):
    """`mount -t fuse.npyfs URL DIR` calls mount.fuse.npyfs URL DIR -o OPTIONS."""
    write_plain(site.directory / "x.h5")
    point = tmp_path / "mnt"
    point.mkdir()
    helper = tmp_path / "mount.fuse.npyfs"
    helper.symlink_to(NPYFS)
    done = subprocess.run([helper, site.url("x.h5"), point, "-o", "ro,nosuid,nodev,check=0,x-systemd.automount"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    try:
        np.testing.assert_array_equal(np.load(point / "a.npy"), np.arange(1000.))
        entry = next(line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(point) in line)
        assert site.url("x.h5") in entry and "fuse.npyfs" in entry
    finally:
        done = npyfs("umount", point)
    assert done.returncode == 0, done
