"""npyfs checkout ls, diff, commit, discard and export on stores of HDF5 files. Everything is written through a mount with NumPy
and cp. Judges: h5py on exported files, NumPy through later mounts, make on times, exit codes as documented."""

import json
import os
import re
import subprocess
import zlib

import h5py
import hdf5plugin  # noqa: F401 (h5py reads blosc with it)
import numpy as np
import pytest
import scipy.sparse

from support import arkouda, daf
from support.checkouts import as_commit
from support.mount import Mount
from support.process import NPYFS, npyfs, one_line, run
from support.truth import np_save, read

OBJECT, STORE, USAGE = 3, 2, 1


@pytest.fixture
def store(tmp_path):
    """A plain store with what a copy might lose; it is as it was when the test is over."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(10.0)
        file["a"].attrs["unit"] = "mm"
        file.create_dataset("zipped", data=np.arange(50_000).reshape(500, 100), chunks=(7, 100), compression="gzip", shuffle=True)
        file["g/b"] = np.arange(6, dtype=">i2").reshape(2, 3)
        file["g/c"] = np.array([(1, 2.5)], [("x", "i4"), ("y", "f8")])
        file["g"].attrs["note"] = "a group"
        file["soft"] = h5py.SoftLink("/g/b")
        file["twice"] = file["g"]
        file.create_dataset("words", data=["a", "bcd", "é"], dtype=h5py.string_dtype())
        file.create_dataset("ref", data=file["a"].ref, dtype=h5py.ref_dtype)
        file.attrs["title"] = "all"
    before = path.read_bytes()
    yield path
    assert path.read_bytes() == before, "the store was written to"


def write(store, name, arrays, deleted=(), **options):
    """Writes arrays in a checkout and deletes others, through a mount."""
    with Mount(store, checkout=name, **options) as mount:
        for path, array in arrays.items():
            (mount / path).parent.mkdir(exist_ok=True)
            np.save(mount / path, array)
        for path in deleted:
            os.unlink(mount / path)


def checkout(command, *arguments, code=0, **options):
    """What a command says; on failure what it says on stderr."""
    done = npyfs("checkout", command, *arguments, **options)
    assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done.stderr if code else done.stdout


def shown(store, path, **options):
    with Mount(store, **options) as mount:
        return np.load(mount / path) if (mount / path).exists() else None


def test_what_is_committed_is_shown_by_later_mounts_and_by_no_earlier_one(store):
    write(store, "work", {"new.npy": np.ones((2, 3), "f4"), "a.npy": np.arange(4)}, deleted=["g/c.npy"])
    assert checkout("diff", store, "work") == "M a.npy  <i8 (4,)\nD g/c.npy\nA new.npy  <f4 (2, 3)\n"
    head, line = checkout("ls", store).splitlines()
    assert head.split() == ["NAME", "OBJECTS", "DELETED", "WAITING", "BYTES", "BEGUN", "STATE", "COMMIT", "MESSAGE"]
    assert line.split()[:3] == ["work", "2", "1"] and line.endswith("open")
    with Mount(store) as earlier:
        assert re.fullmatch(r"commit 1: 3 changes, [0-9a-f]{12}\n", checkout("commit", store, "work"))
        assert not (earlier / "new.npy").exists() and len(np.load(earlier / "a.npy")) == 10
        with Mount(store) as later:
            np.testing.assert_array_equal(np.load(later / "new.npy"), np.ones((2, 3), "f4"))
            assert len(np.load(later / "a.npy")) == 4 and not (later / "g/c.npy").exists()
            assert (later / "g/b.npy").exists()
    assert re.search(r"^work .* commit 1, \d{4}-", checkout("ls", store), re.M)
    assert "is committed" in checkout("commit", store, "work", code=OBJECT)
    # The name can be used again: what is begun now stands on what is committed.
    write(store, "work", {"a.npy": np.arange(3)})
    assert checkout("diff", store, "work") == "M a.npy  <i8 (3,)\n"
    assert re.fullmatch(r"commit 2: 1 changes, [0-9a-f]{12}\n", checkout("commit", store, "work"))
    assert len(shown(store, "a.npy")) == 3


def test_two_checkouts_do_not_see_each_other(store):
    with Mount(store, checkout="one") as one, Mount(store, checkout="two") as two:
        np.save(one / "a.npy", np.zeros(1))
        np.save(two / "a.npy", np.zeros(2))
        np.save(two / "only.npy", np.zeros(2))
        assert len(np.load(one / "a.npy")) == 1 and len(np.load(two / "a.npy")) == 2
        assert not (one / "only.npy").exists()
    assert [line.split()[0] for line in checkout("ls", store).splitlines()[1:]] == ["one", "two"]


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_an_object_that_both_changed_is_named_and_somebody_decides(store, side):
    write(store, "first", {"a.npy": np.zeros(1), "g/n.npy": np.zeros(1)})
    write(store, "second", {"a.npy": np.zeros(2), "own.npy": np.zeros(2)})
    checkout("commit", store, "first")
    refused = checkout("commit", store, "second", code=OBJECT)
    assert "a is changed here, a was changed by commit 1 (first)" in refused
    assert "own" not in refused and "g/n" not in refused
    assert "--ours" in refused.splitlines()[-1] and "--theirs" in refused.splitlines()[-1]
    assert shown(store, "own.npy") is None, "something was committed"
    said = checkout("commit", f"--{side}", store, "second")
    assert re.search(rf"commit 2: {2 if side == 'ours' else 1} changes, [0-9a-f]{{12}}\n$", said)
    assert ("left out: a\n" in said) == (side == "theirs")
    with Mount(store) as mount:
        assert len(np.load(mount / "a.npy")) == (2 if side == "ours" else 1)
        assert len(np.load(mount / "own.npy")) == 2 and len(np.load(mount / "g/n.npy")) == 1


def test_a_deleted_object_and_a_changed_one_are_a_conflict(store):
    write(store, "first", {"g/b.npy": np.zeros(1)})
    write(store, "second", {}, deleted=["g/b.npy"])
    checkout("commit", store, "first")
    assert "g/b is deleted here, g/b was changed by commit 1" in checkout("commit", store, "second", code=OBJECT)


def test_who_writes_is_named_and_keeps_discard_and_restore_away(store):
    with Mount(store, checkout="work") as mount:
        np.save(mount / "new.npy", np.zeros(3))
        holder = f"process {mount.pid}"
        assert holder in checkout("ls", store)
        for command in ("discard", "restore"):
            for where in ([store], [mount.path]):
                paths = ["new.npy"] if command == "restore" else [] if where == [mount.path] else ["work"]
                refused = checkout(command, *where, *paths, code=OBJECT)
                assert holder in refused and "unmount it" in refused, refused
                one_line(refused)
        second = npyfs("mount", "--checkout", "work", store, mount.path.parent)
        assert second.returncode and holder in second.stderr
        # From inside, the checkout goes by its mount point.
        assert checkout("diff", mount.path) == "A new.npy  <f8 (3,)\n"
        assert "work" in checkout("ls", mount.path)
    checkout("commit", store, "work")


def test_what_is_discarded_is_gone(store):
    write(store, "work", {"new.npy": np.zeros(3), "a.npy": np.zeros(1)})
    assert checkout("discard", store, "work") == "discarded work: 2 changes\n"
    assert checkout("ls", store) == ""
    assert "no checkout work" in checkout("discard", store, "work", code=OBJECT)
    with Mount(store, checkout="work") as mount:
        assert len(np.load(mount / "a.npy")) == 10 and not (mount / "new.npy").exists()


def test_of_commits_at_once_all_are_there(store):
    names = [f"c{i}" for i in range(6)]
    for name in names:
        write(store, name, {f"{name}.npy": np.zeros(2)})
    running = [subprocess.Popen([NPYFS, "checkout", "commit", store, name], stdout=subprocess.PIPE, text=True) for name in names]
    said = [process.communicate(timeout=60)[0] for process in running]
    assert [line.split(", ")[0] for line in sorted(said)] == [f"commit {i}: 1 changes" for i in range(1, 7)]
    with Mount(store) as mount:
        assert all((mount / f"{name}.npy").exists() for name in names)


def test_a_directory_of_their_own(store, tmp_path):
    place = tmp_path / "elsewhere"
    write(store, "work", {"new.npy": np.zeros(3)}, checkouts=place)
    assert checkout("ls", store) == "" and not store.with_name("x.h5.checkouts").exists()
    assert "work" in checkout("ls", "--checkouts", place, store)
    checkout("commit", "--checkouts", place, store, "work")
    assert shown(store, "new.npy") is None
    assert shown(store, "new.npy", checkouts=place) is not None


def test_diff_says_when_the_store_changed_since(store):
    write(store, "work", {"new.npy": np.zeros(3)})
    before, times = store.read_bytes(), os.stat(store)
    with h5py.File(store, "a") as file:
        file["later"] = 1
    assert "the store was changed after the checkout was begun" in npyfs("checkout", "diff", store, "work", check=True).stderr
    store.write_bytes(before)
    os.utime(store, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert npyfs("checkout", "diff", store, "work", check=True).stderr == ""


def test_bad_usage_is_one_line_and_its_code(store, tmp_path):
    for arguments, code, about in [
            (["commit", store], USAGE, "which checkout"), (["commit", store, "../x"], OBJECT, "cannot be the name"),
            (["commit", store, "none"], OBJECT, "no checkout none"), (["ls", tmp_path / "none.h5"], STORE, "No such file"),
            (["commit", "--branch", "b", store, "work"], USAGE, "Hangar"), (["commit", "--ours", "--theirs", store, "w"], USAGE, "--theirs"),
            (["export", store, "none", tmp_path / "out.h5"], OBJECT, "no checkout none"),
            (["export", "--compress", "zip", store, tmp_path / "out.h5"], USAGE, "expected gzip, lzf or blosc:CODEC"), (["nonsense", store], USAGE, "nonsense")]:
        refused = checkout(*arguments, code=code)
        one_line(refused)
        assert about in refused, refused


def described(file):
    """Everything h5py finds in a file, by path, but for times: kind, type, layout, values, attributes, links."""
    found = {}

    def value(item):
        return item.tolist() if isinstance(item, (np.ndarray, np.generic)) else str(item)

    def visit(group, path):
        found[path or "/"] = ("group", {name: value(v) for name, v in group.attrs.items() if not name.startswith("npyfs_")})
        for name in group:
            below, link = f"{path}/{name}", group.get(name, getlink=True)
            if isinstance(link, h5py.SoftLink):
                found[below] = ("soft", link.path)
            elif isinstance(group[name], h5py.Group):
                visit(group[name], below)
            else:
                data = group[name]
                content = "reference" if data.dtype == h5py.ref_dtype else value(data[()])
                attributes = {key: value(v) for key, v in data.attrs.items() if not key.startswith("npyfs_")}
                found[below] = (str(data.dtype), data.shape, content, attributes)

    visit(file, "")
    return found


def test_an_exported_file_is_the_store_with_the_changes_and_nothing_else(store, tmp_path):
    write(store, "base", {"committed.npy": np.arange(7)})
    checkout("commit", store, "base")
    write(store, "work", {"a.npy": np.ones((2, 3), "f4"), "g/new.npy": np.array([True, False]), "d/e.npy": np.array(5)}, deleted=["g/c.npy"])
    out = tmp_path / "out.h5"
    said = checkout("export", store, "work", out)
    assert said == f"{out}: {out.stat().st_size} bytes\n"
    with h5py.File(store) as base, h5py.File(out) as file:
        want = described(base)
        for group in ("/g", "/twice"):
            del want[f"{group}/c"]
            want[f"{group}/new"] = ("bool", (2,), [True, False], {})
        want["/a"] = ("float32", (2, 3), np.ones((2, 3)).tolist(), {})
        want["/committed"] = ("int64", (7,), list(range(7)), {})
        want["/d"] = ("group", {})
        want["/d/e"] = ("int64", (), 5, {})
        assert described(file) == want
        assert file["zipped"].chunks == (7, 100) and file["zipped"].compression == "gzip"
        assert file["g"] == file["twice"], "a group with two links became two"
    # Without a name: what is committed.
    checkout("export", store, tmp_path / "committed.h5")
    with h5py.File(tmp_path / "committed.h5") as file:
        assert "committed" in file and len(file["a"]) == 10 and "d" not in file
    # npyfs shows the same of both.
    with Mount(store, checkout="work") as mount, Mount(out) as exported:
        assert exported.files() == mount.files()
        for name in mount.files():
            assert read(exported / name) == read(mount / name), name
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".npyfs")]


def test_no_file_is_replaced_and_none_is_left_of_a_failure(store, tmp_path):
    write(store, "work", {"new.npy": np.zeros(3)})
    out = tmp_path / "out.h5"
    out.write_text("precious")
    assert "it is there already" in checkout("export", store, "work", out, code=OBJECT)
    assert out.read_text() == "precious"
    assert "No such file" in checkout("export", store, "work", tmp_path / "none/out.h5", code=OBJECT)
    # A file of the checkout that is damaged.
    [file] = (tmp_path / "x.h5.checkouts/work").glob("*.h5")
    file.write_bytes(b"no HDF5")
    refused = checkout("export", store, "work", tmp_path / "other.h5", code=OBJECT)
    assert refused.startswith("npyfs: new: ") and "--leave-out" in refused
    assert not (tmp_path / "other.h5").exists()
    checkout("export", "--leave-out", store, "work", tmp_path / "other.h5")
    with h5py.File(tmp_path / "other.h5") as exported:
        assert "new" not in exported and "a" in exported
    assert sorted(name for name in os.listdir(tmp_path) if "npyfs" in name) == []


def test_what_lies_in_other_files_is_listed_or_left_out(tmp_path):
    (tmp_path / "to").mkdir()
    (tmp_path / "raw").write_bytes(bytes(80))
    store = tmp_path / "x.h5"
    with h5py.File(store, "w") as file:
        file["a"] = np.arange(3)
        file.create_dataset("g/outside", (10,), "i8", external=[("raw", 0, 80)])
        file["link"] = h5py.ExternalLink("other.h5", "/x")
    out = tmp_path / "to/out.h5"
    refused = checkout("export", store, out, code=OBJECT)
    assert "g/outside: its data is in another file" in refused and "link: it is a link to another file" in refused
    assert "2 objects" in refused.splitlines()[-1] and not out.exists()
    checkout("export", "--leave-out", store, out)
    with h5py.File(out) as file:
        assert list(file) == ["a", "g"] and not list(file["g"])
    # Beside the store the names lead to the same files.
    checkout("export", store, tmp_path / "beside.h5")
    with h5py.File(tmp_path / "beside.h5") as file:
        assert file["g/outside"].shape == (10,) and file["g/outside"].external


@pytest.mark.parametrize("method,filters", [("gzip", ["shuffle", "deflate"]), ("gzip:9", ["shuffle", "deflate"]), ("lzf", ["shuffle", "lzf"]),
                                            ("blosc:zstd", ["blosc"]), ("blosc:lz4hc:9", ["blosc"]), ("blosc:blosclz", ["blosc"])])
def test_a_compressed_file_holds_the_same(store, tmp_path, method, filters):
    write(store, "work", {"large.npy": np.arange(700_000).reshape(700, 1000), "wide.npy": np.ones((2, 300_000), "f4"), "none.npy": np.zeros((0, 3))})
    checkout("export", "--times", store, "work", tmp_path / "plain.h5")
    # References are lost, and said to be.
    assert "ref: references" in checkout("export", "--compress", method, store, "work", tmp_path / "out.h5", code=3)
    checkout("export", "--times", "--leave-out", "--compress", method, store, "work", tmp_path / "out.h5")
    with h5py.File(tmp_path / "plain.h5") as plain, h5py.File(tmp_path / "out.h5") as file:
        assert described(file) == described(plain)
        assert file["g"] == file["twice"], "a group with two links became two"
        for name, chunks in {"large": (131, 1000), "wide": (1, 262_144), "zipped": (500, 100)}.items():
            plist = file[name].id.get_create_plist()
            used = [plist.get_filter(i)[3].decode() for i in range(plist.get_nfilters())]
            assert file[name].chunks == chunks and used == filters, (name, file[name].chunks, used)
        assert file["a"].chunks is None and file["none"].chunks is None
    assert (tmp_path / "out.h5").stat().st_size < (tmp_path / "plain.h5").stat().st_size / 3
    with Mount(tmp_path / "plain.h5") as plain, Mount(tmp_path / "out.h5") as out:
        for name in plain.files():
            assert read(out / name) == read(plain / name), name
            assert os.stat(out / name).st_mtime_ns == os.stat(plain / name).st_mtime_ns, name


def test_make_rebuilds_what_changed_and_nothing_else_after_commit_and_export(tmp_path):
    count = 200
    store, work = tmp_path / "x.h5", tmp_path / "work"
    with h5py.File(store, "w") as file:
        for i in range(count):
            file[f"g/v{i}"] = np.arange(i + 1)
    os.utime(store, (1_700_000_000, 1_700_000_000))
    work.mkdir()
    rules = [f"v{i}.sum: $(MNT)/g/v{i}.npy\n\tcksum < $< > $@ && echo $@ >> log\n" for i in range(count)]
    (work / "Makefile").write_text(f"all: {' '.join(f'v{i}.sum' for i in range(count))}\n" + "".join(rules))

    def made(mount):
        (work / "log").write_text("")
        assert run(["make", f"MNT={mount.path}"], cwd=work).returncode == 0
        return (work / "log").read_text().split()

    with Mount(store) as mount:
        assert len(made(mount)) == count and made(mount) == []
    with Mount(store, checkout="work") as mount:
        assert made(mount) == []
        np.save(mount / "g/v17.npy", np.arange(3))
        assert made(mount) == ["v17.sum"] and made(mount) == []
    with Mount(store, checkout="work") as mount:
        assert made(mount) == []
        np.save(mount / "g/v18.npy", np.arange(3))
    checkout("commit", store, "work")
    with Mount(store) as mount:
        assert made(mount) == ["v18.sum"]
        times = {name: os.stat(mount / name).st_mtime_ns for name in mount.files()}
    checkout("export", "--times", store, tmp_path / "out.h5")
    with Mount(tmp_path / "out.h5") as mount:
        assert {name: os.stat(mount / name).st_mtime_ns for name in mount.files()} == times
        assert made(mount) == []


def test_a_daf_store_stays_one(tmp_path):
    store = tmp_path / "cells.h5df"
    with h5py.File(store, "w") as file:
        shown_before, _ = daf.write(file)
    score = np.arange(12, dtype="f4")
    write(store, "work", {"cell#score.npy": score}, deleted=["cell#type.npy"])
    checkout("export", store, "work", tmp_path / "out.h5df")
    with h5py.File(store) as base, h5py.File(tmp_path / "out.h5df") as file:
        assert set(file) == (set(base) | {"cell#score"}) - {"cell#type"}
        assert {name: str(value) for name, value in file["__daf__"].attrs.items()} == \
            {name: str(value) for name, value in base["__daf__"].attrs.items()}
        np.testing.assert_array_equal(file["cell#score"], score)
    with Mount(tmp_path / "out.h5df") as mount:
        assert read(mount / "cell#score.npy") == np_save(score)
        kept = [name for name in mount.files() if name in shown_before]
        assert len(kept) == len(shown_before) - 1


def test_an_arkouda_file_stays_one(tmp_path):
    with arkouda.Store(tmp_path, "one.h5", None) as store:
        arkouda.put_array(store, "ints", np.arange(9))
        arkouda.put_array(store, "gone", np.arange(9.0))
        arkouda.put_strings(store, "words", [b"a", b"bcd", b""])
    store = tmp_path / "one.h5"
    os.utime(store, (1_700_000_000, 1_700_000_000))
    write(store, "work", {}, deleted=["gone.npy"])
    out = tmp_path / "out.h5"
    checkout("export", "--times", store, "work", out)
    with h5py.File(store) as base, h5py.File(out) as file:
        want = described(base)
        del want["/gone"]
        assert described(file) == want
    with Mount(store) as before, Mount(out) as after:
        assert after.files() == [name for name in before.files() if name != "gone.npy"]
        for name in after.files():
            assert read(after / name) == read(before / name), name
            assert os.stat(after / name).st_mtime == 1_700_000_000, name


def by_hand(layer, number, key, stored=True):
    """Adds a line to the index of a layer, and answers the path of the file that it names."""
    record = json.dumps({"path": key, "stored": {"file": number, "time": 5_000_000_000} if stored else None}, separators=(",", ":"))
    with open(layer / "index", "a") as index:
        index.write(f"{zlib.crc32(record.encode()):08x} {record}\n")
    return layer / f"{number:016}.h5"


def test_items_and_sparse_matrices_of_a_daf_store_are_exported(tmp_path):
    store = tmp_path / "cells.h5df"
    with h5py.File(store, "w") as file:
        daf.write(file)
    write(store, "work", {"cell#score.npy": np.arange(12.0)})
    layer = tmp_path / "cells.h5df.checkouts/work"
    with h5py.File(by_hand(layer, 90, "title"), "w") as file:
        daf.start(file)["title"] = "other"
    with h5py.File(by_hand(layer, 91, "words"), "w") as file:
        daf.start(file)["words"] = ["x", "yz", "ü"]
    by_hand(layer, 0, "count", stored=False)
    matrix = scipy.sparse.csr_matrix(np.eye(12, 5))
    with h5py.File(by_hand(layer, 92, "cell,gene#s_f8"), "w") as file:
        daf.start(file)
        daf.put_sparse(file, "cell,gene#s_f8", matrix)
    for more in ([], ["--compress", "gzip"]):
        out = tmp_path / f"out{len(more)}.h5df"
        checkout("export", "--times", *more, store, "work", out)
        with h5py.File(store) as base, h5py.File(out) as file:
            items, before = file["__daf__"].attrs, base["__daf__"].attrs
            assert items["title"] == "other" and list(items["words"]) == ["x", "yz", "ü"]
            assert set(items) == set(before) - {"count"} and items["pi"] == before["pi"] and items["flag"] == before["flag"]
            assert list(file["cell,gene#s_f8"].attrs["shape"]) == [12, 5]
            np.testing.assert_array_equal(file["cell,gene#s_f8/indices"], matrix.indices)
        with Mount(out) as mount:
            assert os.stat(mount / "cell,gene#s_f8.npz").st_mtime == 5 == os.stat(mount / "cell,gene#s_f8/data.npy").st_mtime
            assert os.stat(mount / "cell#.npy").st_mtime_ns == os.stat(store).st_mtime_ns


def test_a_group_that_both_made_is_no_conflict(store):
    for name in ("one", "two"):
        with Mount(store, checkout=name) as mount:
            os.mkdir(mount / "results")
            np.save(mount / f"results/{name}.npy", np.arange(3))
    checkout("commit", store, "one")
    checkout("commit", store, "two")
    with Mount(store) as mount:
        assert sorted(os.listdir(mount / "results")) == ["one.npy", "two.npy"]


def test_what_a_damaged_commit_says_is_not_followed(store, tmp_path):
    write(store, "work", {"new.npy": np.zeros(3)})
    checkout("commit", store, "work")
    [commit] = (tmp_path / "x.h5.checkouts/commits").glob("*.json")
    good = commit.read_text()
    record = json.loads(good)
    del record["form"], record["id"]
    for layer in ("../../etc", "/etc", ".", "a/b"):
        commit.write_text(as_commit({**record, "layer": layer})[1])
        assert "no name of a layer" in checkout("ls", store, code=OBJECT)
    commit.write_text(good.replace('"layer"', '"player"'))
    assert "no record that is known" in checkout("ls", store, code=OBJECT)
    mount = npyfs("mount", store, tmp_path)
    assert mount.returncode and commit.name in mount.stderr
    commit.write_text(good)
    assert len(checkout("ls", store).splitlines()) == 2


def test_diff_of_a_mount_says_what_is_not_complete(tmp_path):
    store = tmp_path / "cells.h5df"
    with h5py.File(store, "w") as file:
        daf.write(file)
    with Mount(store, checkout="work") as mount:
        os.mkdir(mount / "cell,gene#half")
        np.save(mount / "cell,gene#half/data.npy", np.ones(3))
        said = npyfs("checkout", "diff", mount.path, check=True)
        assert said.stdout == "" and said.stderr.startswith("npyfs: not complete: cell,gene#half"), said
        assert "indptr" in one_line(said.stderr)
    assert "not complete: cell,gene#half" in checkout("commit", store, "work", code=OBJECT)


def test_diff_of_a_mount_that_only_reads_a_checkout(store):
    write(store, "work", {"new.npy": np.arange(3)})
    with Mount(store, "ro", checkout="work") as mount:
        assert checkout("diff", mount.path).startswith("A new.npy")
        assert mount.status()["checkout"]["read_only"]


def test_a_disk_that_fills_leaves_nothing_of_an_export(store, tmp_path, root_only):
    write(store, "work", {"large.npy": np.random.default_rng(1).random(400_000)})
    small = tmp_path / "small"
    small.mkdir()
    run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", small], check=True)
    try:
        for more in ([], ["--leave-out"], ["--compress", "gzip"]):
            refused = checkout("export", *more, store, "work", small / "out.h5", code=OBJECT)
            assert "No space left" in one_line(refused) and "leave-out" not in refused, refused
            assert os.listdir(small) == []
    finally:
        run(["umount", "-l", small], check=True)


def test_a_commit_is_named_by_its_number_its_id_and_its_distance_from_the_newest(store):
    for count in range(1, 4):
        write(store, "work", {"a.npy": np.arange(count)})
        said = checkout("commit", store, "work")
    ids = checkout("log", "-0", store).split("\0")[:-1][::-1]
    assert said == f"commit 3: 1 changes, {ids[2][:12]}\n"
    names = {1: ["1", ids[0], ids[0][:8], "HEAD~2"], 2: ["2", "HEAD~1", "HEAD^", "HEAD~"], 3: ["3", "HEAD", "HEAD~0", ids[2][:6]]}
    for number, spellings in names.items():
        for name in spellings:
            raw = npyfs("cat", "--at", name, store, "a.npy", check=True, text=False).stdout
            assert raw == np_save(np.arange(number)), name
            listed = [entry["number"] for entry in json.loads(checkout("log", "--json", store, name))]
            assert listed == list(range(number, 0, -1)), name
    with Mount(store, "at=HEAD~1") as mount:
        assert len(np.load(mount / "a.npy")) == 2
    for wrong in ("0", "4", "HEAD~3", "HEAD~99999999999999999999", "HEAD~x", "abc", "-1"):
        done = npyfs("cat", "--at=" + wrong, store, "a.npy")
        assert done.returncode == 2 and one_line(done.stderr), wrong
    assert checkout("revert", "--dry-run", store, "HEAD") == "M a.npy  <i8 (2,)\n"
    assert re.fullmatch(r"commit 4: 1 changes, [0-9a-f]{12}\n", checkout("revert", store, "3"))
    assert len(shown(store, "a.npy")) == 2


def test_diff_means_the_only_checkout(store):
    assert "its NAME goes behind the store (none is open;" in checkout("diff", store, code=1)
    write(store, "one", {"new.npy": np.ones(3)})
    assert checkout("diff", store) == checkout("diff", store, "one") == "A new.npy  <f8 (3,)\n"
    write(store, "two", {"b.npy": np.ones(3)})
    assert "which checkout?" in checkout("diff", store, code=1)
    assert "open: one, two" in checkout("commit", store, code=1)
    assert "--checkout NAME says so (open: one, two;" in checkout("restore", store, "b.npy", code=1)
    checkout("commit", store, "one")
    assert checkout("diff", store) == checkout("diff", store, "two")


def test_commands_for_hangar_say_so():
    for command in ("status", "reset"):
        assert "Hangar" in npyfs("checkout", command, "--help", check=True, judged=False).stdout
