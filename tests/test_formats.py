"""What version 1.0 wrote, in tests/formats-1.0: this version shows it, commits on top of it and exports it, and a second reader, which
is written from the pages, agrees with what mounts show. What another version wrote is refused by name and stays as it is.
Judges: expectations that NumPy and h5py stored beside, the second reader, and the bytes of all files."""

import json
import os
import random
import shutil
import tarfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from support import checkout_reader
from support.checkouts import amend_last, checkout, lines, as_lines, save, write_plain
from support.mount import Mount
from support.process import npyfs, one_line
from support.sampling import Sample

FIXTURES = Path(__file__).resolve().parent / "formats-1.0"
STORES = {"plain.h5": ["plain.h5"], "cells.h5df": ["cells.h5df"], "weather.nc": ["weather.nc"],
          "trips_LOCALE0000.h5": ["trips_LOCALE0000.h5", "trips_LOCALE0001.h5"], "history.h5": ["history.h5"]}
OPEN = [store for store in STORES if store != "history.h5"]
ATTRIBUTES = json.loads((FIXTURES / "expected.json").read_text())
HISTORY = ("1", "50", "100", "101")
SAMPLE = Sample(__file__, "crash")


def expected(store, state):
    """{path: array} of a store as of a commit, or of its open checkout."""
    with np.load(FIXTURES / "expected.npz") as arrays:
        begin = f"{store}/{state}/"
        return {name.removeprefix(begin): arrays[name] for name in arrays.files if name.startswith(begin)}


def states(store):
    with np.load(FIXTURES / "expected.npz") as arrays:
        return sorted({name.split("/")[1] for name in arrays.files if name.startswith(f"{store}/")})


@pytest.fixture
def folder(tmp_path):
    """A copy of the stores and checkouts."""
    copy = tmp_path / "stores"
    shutil.copytree(FIXTURES, copy, ignore=shutil.ignore_patterns("make", "expected.*"))
    with tarfile.open(copy / "history.tar.xz") as tar:
        tar.extractall(copy, filter="data")
    return copy


def checkouts_of(folder, store):
    return folder / f"{store.replace('_LOCALE0000', '_LOCALE')}.checkouts"


def content(folder):
    """{path: bytes} of all files, but for locks and what they are called."""
    return {path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in (".lock", "holder")}


def shown(mount):
    """{path: array} of what a mount shows."""
    found = {}
    for path in mount.path.rglob("*.npy"):
        found[path.relative_to(mount.path).as_posix().removesuffix(".npy")] = np.load(path)
    return found


def attributes(mount, paths):
    """{path: {name: value}} of the attributes that a mount shows; names as in the file, values as text."""
    found = {}
    for path in paths:
        place = next(place for place in (mount / f"{path}.npy", mount / path) if place.exists())
        names = [name.removeprefix("user.") for name in os.listxattr(place)]
        found[path] = {name: os.getxattr(place, f"user.{name}").decode() for name in names}
    return found


def assert_equal(found, wanted, partly=False):
    if not partly:
        assert sorted(found) == sorted(wanted)
    for path, array in wanted.items():
        got = found[path]
        if array.dtype.kind == "U" and got.dtype.kind != "U":
            got = np.char.decode(got.astype(bytes), "utf-8")
        np.testing.assert_array_equal(got, array, err_msg=path)


def flags_of(state, name="work"):
    return {"checkout": name} if state == "open" else {"flags": ["--at", state]}


def cases():
    return [(store, state) for store in STORES for state in states(store)
            if state != "0" and (store != "history.h5" or state in HISTORY)]


@pytest.mark.parametrize("store, state", cases())
def test_this_version_shows_what_1_0_wrote(folder, store, state):
    with Mount(folder / store, "xattrs", **flags_of(state)) as mount:
        wanted = expected(store, state)
        # Beside the datasets of daf and Arkouda, a mount shows items, and matrices that are not complete.
        assert_equal(shown(mount), wanted, partly=store == "cells.h5df")
        gone = {path for other in states(store) for path in expected(store, other)} - set(wanted)
        assert not [path for path in gone if (mount / f"{path}.npy").exists()]
        for path, values in ATTRIBUTES[store].get(state, {}).items():
            own = attributes(mount, [path])[path]
            assert {name: own[name] for name in values} == values, path
        if store == "plain.h5":
            others = {path for found in ATTRIBUTES[store].values() for path in found} - set(ATTRIBUTES[store].get(state, {}))
            there = [path for path in others if (mount / f"{path}.npy").exists()]
            assert attributes(mount, there) == {path: {} for path in there}


@pytest.mark.parametrize("store, state", cases())
def test_the_second_reader_agrees(folder, store, state):
    before = content(folder)
    files = [folder / name for name in STORES[store]]
    at = {"name": "work"} if state == "open" else {"at": int(state)}
    tree = checkout_reader.read(checkouts_of(folder, store), files, **at)
    wanted = {path: array for path, array in expected(store, state).items() if not path.endswith("/shape")}
    assert_equal({path: array for path, array in tree.arrays.items() if path not in ("__daf__", "title")}, wanted)
    for path, values in ATTRIBUTES[store].get(state, {}).items():
        own = {name: value for (owner, name), value in tree.attributes.items() if owner == path}
        assert {name: own[name] for name in values} == values and (store != "plain.h5" or set(own) == set(values)), path
    assert content(folder) == before


def test_checkpoints_are_lists_of_the_commits(folder):
    directory = checkouts_of(folder, "history.h5") / "commits"
    listed = checkout_reader.records(directory / f"{100:020}.checkpoint", checkout_reader.CHECKPOINT)
    assert listed == checkout_reader.commits(directory.parent)[:100] and len(listed) == 100
    # They are read: without the commits that they hold, those after them are still there.
    for number in range(2, 90):
        os.unlink(directory / f"{number:020}.json")
    with Mount(folder / "history.h5") as mount:
        assert_equal(shown(mount), expected("history.h5", "101"))


@pytest.mark.parametrize("store", STORES)
def test_what_is_committed_on_top_is_read_by_both(folder, store, tmp_path):
    before, out = content(folder), tmp_path / "out"
    if store in OPEN:
        checkout("commit", *(["--leave-out"] if store == "cells.h5df" else []), folder / store, "work")
    name, new = ("cell#added" if store == "cells.h5df" else "added"), np.arange(4) * 2
    save(folder / store, "more", {f"{name}.npy": new})
    wanted = {**expected(store, "open" if store in OPEN else "101"), name: new}
    with Mount(folder / store) as mount:
        assert_equal(shown(mount), wanted, partly=store == "cells.h5df")
    wanted = {path: array for path, array in wanted.items() if not path.endswith("/shape")}
    tree = checkout_reader.read(checkouts_of(folder, store), [folder / part for part in STORES[store]])
    assert_equal(tree.arrays, wanted, partly=True)
    # Nothing that was there is changed, but for the index of the layer that was open, and what names the newest commit.
    after = content(folder)
    assert {path for path in before if after.get(path) != before[path]} <= {path for path in before if path.endswith(("/work/index", "/newest", ".member"))}
    out.mkdir()
    checkout("export", folder / store, out / "out.h5")
    assert_equal(checkout_reader.read(tmp_path / "none", sorted(out.glob("*.h5"))).arrays, wanted, partly=True)


def test_a_publication_and_a_pack_of_1_0(folder):
    with h5py.File(folder / "published.h5") as file:
        note = file.attrs["npyfs_published"]
        assert note.startswith('{"form":"npyfs publication 1",') and json.loads(note)["commit"]
        for path, array in expected("plain.h5", "5").items():
            np.testing.assert_array_equal(file[path][()], array, err_msg=path)
    with Mount(folder / "published.h5", "external=same-dir") as mount:
        assert_equal(shown(mount), expected("plain.h5", "5"))
    # A file that it links to is not removed.
    assert ".published" in os.listdir(checkouts_of(folder, "plain.h5"))
    assert (folder / "plain.h5.npyfs-pack").read_bytes()[:12] == b"npyfspak\x01\0\0\0"


def test_the_second_reader_agrees_on_a_random_checkout(tmp_path):
    for seed in range(SAMPLE.count(2, 12)):
        rng = random.Random(f"{os.environ.get('NPYFS_SEED', 0)} {seed}")
        store, directory = tmp_path / f"{seed}.h5", tmp_path / f"{seed}.h5.checkouts"
        paths = [*"abc", "g/a", "g/b", "g/h/a", "100%", "x y"]
        write_plain(store, seed, names=rng.sample(paths, 4))
        for number in range(rng.randint(2, 5)):
            name = f"c{number}"
            with Mount(store, "xattrs", checkout=name) as mount:
                for _ in range(rng.randint(1, 8)):
                    change(rng, mount, paths)
            if npyfs("checkout", "commit", "-m", str(number), store, name).returncode:
                checkout("discard", store, name)
            # A checkout in which nothing has changed is no commit.
            elif rng.random() < 0.3 and checkout_reader.commits(directory):
                npyfs("checkout", "revert", store, "HEAD", check=True)
        with Mount(store, "xattrs", checkout="open") as mount:
            change(rng, mount, paths)
        count = len(checkout_reader.commits(directory))
        for at in [*range(1, count + 1), "open"]:
            tree = checkout_reader.read(directory, [store], **({"name": "open"} if at == "open" else {"at": at}))
            with Mount(store, "xattrs", **flags_of(str(at), "open")) as mount:
                arrays = shown(mount)
                assert_equal(tree.arrays, arrays)
                own = {path: {name: value for (owner, name), value in tree.attributes.items() if owner == path} for path in arrays}
                assert own == attributes(mount, arrays), (seed, at)


def change(rng, mount, paths):
    path = rng.choice(paths)
    target = mount / f"{path}.npy"
    match rng.choice(["write", "write", "delete", "rename", "attribute"]):
        case "write":
            target.parent.mkdir(exist_ok=True, parents=True)
            np.save(target, np.full(rng.choice([1, 7, 40_000]), rng.random()))
        case "delete" if target.exists():
            os.unlink(target)
        case "rename" if target.exists():
            other = mount / f"{rng.choice(paths)}.npy"
            other.parent.mkdir(exist_ok=True, parents=True)
            os.rename(target, other)
        case "attribute" if target.exists():
            os.setxattr(target, f"user.{rng.choice(['units', 'a/b', '50%'])}", str(rng.choice("xyz")).encode())


def newer(path, first):
    """The file with the next version of its form."""
    text = path.read_text()
    name, _, version = first.rpartition(" ")
    assert first in text[:60], text[:60]
    path.write_text(text.replace(first, f"{name} {int(version) + 1}", 1))
    return f"form {int(version) + 1}"


@pytest.fixture
def store(tmp_path):
    """A store with a commit, an open checkout and a publication."""
    store = tmp_path / "x.h5"
    write_plain(store)
    save(store, "one", {"n.npy": np.arange(3)}, message="first")
    save(store, "work", {"m.npy": np.arange(4)}, commit=False)
    npyfs("checkout", "publish", store, tmp_path / "links.h5", check=True)
    return store


REFUSED = {
    "work/index": ("npyfs checkout 2", [("commit", "work"), ("diff", "work"), ("discard", "work"), ("export", "work", "OUT")]),
    "one/index": ("npyfs checkout 2", [("commit", "work"), ("ls",), ("export", "OUT"), ("revert", "1"), ("gc",)]),
    "commits/00000000000000000001.json": ("npyfs commit 1", [("commit", "work"), ("ls",), ("log",), ("revert", "1"), ("export", "OUT"), ("gc",)]),
    ".published": ("npyfs published 1", [("publish", "OUT"), ("discard", "work"), ("gc",)]),
}


@pytest.mark.parametrize("path", REFUSED)
def test_what_a_newer_version_wrote_is_refused_by_name_and_stays(store, tmp_path, path):
    first, commands = REFUSED[path]
    directory = tmp_path / "x.h5.checkouts"
    if path == "one/index":
        # The commit says the same, and nobody reads the index.
        amend_last(directory, changes=None)
    form = newer(directory / path, first)
    before, out = content(tmp_path), tmp_path / "out.h5"
    for command, *arguments in commands:
        arguments = [out if argument == "OUT" else argument for argument in arguments]
        done = npyfs("checkout", command, store, *arguments)
        assert done.returncode, (command, done)
        assert path in done.stderr and "written by a newer npyfs" in done.stderr and form in done.stderr, (command, done.stderr)
        assert content(tmp_path) == before, command
    if path != ".published":
        point = tmp_path / "mnt"
        point.mkdir()
        done = npyfs("mount", "--checkout", "work", store, point)
        assert done.returncode and path in done.stderr and form in one_line(done.stderr)
        assert content(tmp_path) == before


def test_what_only_saves_time_is_made_again(store, tmp_path):
    hint = tmp_path / "x.h5.checkouts/commits/newest"
    newer(hint, "npyfs newest 1")
    kept = hint.read_text()
    assert checkout("log", store).stdout.count("first") == 1
    assert hint.read_text() == kept
    checkout("commit", store, "work")
    assert hint.read_text().startswith('{"form":"npyfs newest 1","number":2,')


def test_a_publication_of_another_form_is_named_by_verify(store, tmp_path):
    links = tmp_path / "links.h5"
    note = h5py.File(links).attrs["npyfs_published"]
    data = links.read_bytes()
    assert note.startswith('{"form":"npyfs publication 1",')
    links.write_bytes(data.replace(b"npyfs publication 1", b"npyfs publication 2"))
    done = npyfs("verify", "-o", "external=same-dir", links)
    assert done.returncode and "npyfs_published" in done.stdout + done.stderr and "form 2" in done.stdout + done.stderr


def test_a_commit_that_needs_what_is_not_known_is_refused(store, tmp_path):
    directory, out = tmp_path / "x.h5.checkouts", tmp_path / "out.h5"
    shadow = {"path": "n", "stored": None, "needs": ["shadows"]}
    last = amend_last(directory, changes=[shadow])
    for command in [("commit", store, "work"), ("export", store, out), ("revert", store, "1")]:
        refused = checkout(*command, code=3).stderr
        assert "needs shadows" in refused and last in refused, refused
    with pytest.raises(checkout_reader.Refused, match="shadows"):
        checkout_reader.read(directory, [store])
    amend_last(directory, needs=["wings"])
    assert "needs wings" in checkout("ls", store, code=3).stderr
    with pytest.raises(checkout_reader.Refused, match="wings"):
        checkout_reader.commits(directory)


def test_fields_that_are_not_known_are_no_obstacle(store, tmp_path):
    index = tmp_path / "x.h5.checkouts/work/index"
    first, records = lines(index)
    index.write_text(as_lines(first, *({**record, "colour": "red"} for record in records)))
    with Mount(store, checkout="work") as mount:
        np.testing.assert_array_equal(np.load(mount / "m.npy"), np.arange(4))
