"""Small arrays of one sync share HDF5 files. Judged by h5py: what is in these files, and what an export holds. After `kill -9` at
any instant everything that fsync confirmed is there, and nothing is half."""

import binascii
import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import h5py
import numpy as np
import pytest

from support import daf
from support.mount import Mount, clear, make_point, until
from support.process import npyfs, run, signal_all, stopped, workers
from support.sampling import Sample

SAMPLE = Sample(__file__, "crash")
ROUNDS = SAMPLE.count(6, 20)


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(10.0)
        file["g/0"] = np.arange(5)
    before = path.read_bytes()
    yield path
    assert path.read_bytes() == before, "the store was written to"


def layer(store, name="c"):
    return store.parent / f"{store.name}.checkouts" / name


def files(store, name="c"):
    return sorted(layer(store, name).glob("*.h5"))


def entries(store, name="c"):
    """{key: what the index says of it} of the objects that a layer has."""
    found = {}
    for line in (layer(store, name) / "index").read_text().splitlines()[1:]:
        record = json.loads(line[9:])
        if "path" in record:
            found[record["path"]] = record
    return {key: record for key, record in found.items() if record.get("stored")}


def datasets(path):
    """{path: array} of an HDF5 file."""
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, it: found.update({name: it[()]}) if isinstance(it, h5py.Dataset) else None)
    return found


def stored(store, name="c"):
    """{key: array} of a layer, read by h5py at the key's path in the file that the index names."""
    by_file, found = {}, {}
    for key, record in entries(store, name).items():
        number = record["stored"]["file"]
        if number not in by_file:
            by_file[number] = datasets(layer(store, name) / f"{number:016}.h5")
        if key in by_file[number] or "packed" in record["stored"]:  # others are directories
            found[key] = by_file[number][key]
    return found


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def same(found, want):
    assert found.keys() == want.keys()
    for key, array in want.items():
        assert found[key].dtype == array.dtype and np.array_equal(found[key], array), key


TYPES = ["?", "u1", "<i2", ">i4", "<i8", "<f2", "<f4", ">f8", "<c8", "<c16"]


def arrays(count, seed=1):
    """Arrays of many types and shapes, among them empty ones and scalars."""
    rng, made = np.random.default_rng(seed), {}
    for k in range(count):
        shape = [(), (0,), (3,), (28, 28), (2, 3, 4)][k % 5]
        group = ["", "g/", "new/", "new/deep/"][k % 4]
        made[f"{group}a{k}"] = rng.integers(0, 2, shape).astype(TYPES[k % len(TYPES)])
    return made


def write(mount, made):
    for key, array in made.items():
        path = mount / f"{key}.npy"
        os.makedirs(path.parent, exist_ok=True)
        np.save(path, array)


def test_arrays_of_one_sync_share_files(store, tmp_path):
    made = arrays(300)
    with Mount(store, checkout="c") as m:
        write(m, made)
        for key, array in made.items():  # at once: some wait in memory, some are in a file
            found = np.load(m / f"{key}.npy")
            assert found.dtype == array.dtype and np.array_equal(found, array), key
        sync(m.path)
        for key, array in made.items():
            assert (m / f"{key}.npy").read_bytes() == np_bytes(array), key
        assert m.errors() == []
    same(stored(store), made)
    assert len(files(store)) < len(made) / 3
    assert all(entries(store)[key]["needs"] == ["packed"] for key in made)
    listed = json.loads(npyfs("checkout", "ls", "--json", store, check=True).stdout)
    assert sum(path.stat().st_size for path in files(store)) == (listed["checkouts"] if isinstance(listed, dict) else listed)[0]["bytes"]
    npyfs("checkout", "commit", store, "c", check=True)
    with Mount(store) as m, Mount(store, checkout="d") as other:
        for key, array in made.items():
            for mount in (m, other):
                found = np.load(mount / f"{key}.npy")
                assert found.dtype == array.dtype and np.array_equal(found, array), key
        assert m.info("a0.npy")["checkout"] == "c"
    npyfs("verify", store, check=True)
    npyfs("checkout", "export", store, tmp_path / "out.h5", check=True)
    same(datasets(tmp_path / "out.h5"), {**made, "x": np.arange(10.0), "g/0": np.arange(5)})
    npyfs("checkout", "publish", store, tmp_path / "links.h5", check=True)
    with h5py.File(tmp_path / "links.h5") as file:
        for key, array in made.items():
            assert file[key].dtype == array.dtype and np.array_equal(file[key][()], array), key


def np_bytes(array):
    whole = io.BytesIO()
    np.save(whole, array)
    return whole.getvalue()


def test_deleting_and_replacing_one_leaves_the_others(store, tmp_path):
    made = {f"n{k}": np.full(7, k) for k in range(40)}
    with Mount(store, checkout="c") as m:
        write(m, made)
        sync(m.path)
        before = {record["stored"]["file"] for record in entries(store).values()}
        for k in range(0, 40, 4):
            os.unlink(m / f"n{k}.npy")
            del made[f"n{k}"]
        for k in range(1, 40, 4):
            made[f"n{k}"] = np.full((2, 2), -k)
            np.save(m / f"n{k}.npy", made[f"n{k}"])
        os.rename(m / "n2.npy", m / "n3.npy")
        made["n3"] = made.pop("n2")
        os.utime(m / "n6.npy", (5, 5))
        for key, array in made.items():
            np.testing.assert_array_equal(np.load(m / f"{key}.npy"), array)
    same(stored(store), made)
    with Mount(store, checkout="c") as m:
        assert os.stat(m / "n6.npy").st_mtime == 5
        for key, array in made.items():
            np.testing.assert_array_equal(np.load(m / f"{key}.npy"), array)
    npyfs("checkout", "export", store, "c", tmp_path / "out.h5", check=True)
    same(datasets(tmp_path / "out.h5"), {**made, "x": np.arange(10.0), "g/0": np.arange(5)})
    with Mount(store, checkout="c") as m:
        # Nobody needs a file all of whose objects are others now.
        for key in list(made):
            made[key] = made[key] + 1
            np.save(m / f"{key}.npy", made[key])
        sync(m.path)
        names = {int(path.stem) for path in files(store)}
        assert names == {record["stored"]["file"] for record in entries(store).values()} and not names & before
    same(stored(store), made)


def test_a_commit_is_taken_back(store):
    first = {f"n{k}": np.full(7, k) for k in range(20)}
    second = {f"n{k}": np.full(9, -k) for k in range(10)}
    for made in (first, second):
        with Mount(store, checkout="c") as m:
            write(m, made)
        npyfs("checkout", "commit", store, "c", check=True)
    newest = npyfs("checkout", "log", "-0", store, check=True).stdout.split("\0")[0].split()[-1]
    assert npyfs("checkout", "revert", store, newest).returncode in (0, 3)
    with Mount(store) as m:
        for key, array in first.items():
            np.testing.assert_array_equal(np.load(m / f"{key}.npy"), array)


def test_two_checkouts_that_change_one_object_conflict(store):
    for name in ("c", "d"):
        with Mount(store, checkout=name) as m:
            write(m, {f"{name}{k}": np.arange(k) for k in range(5)} | {"both": np.arange(3)})
    npyfs("checkout", "commit", store, "c", check=True)
    refused = npyfs("checkout", "commit", store, "d")
    assert refused.returncode == 3 and "both is changed here" in refused.stderr and "d1" not in refused.stderr
    npyfs("checkout", "commit", "--ours", store, "d", check=True)


def test_versions_that_do_not_know_such_files_refuse_the_layer(store):
    """Readers refuse a record that needs what they do not know: so it was with versions before this, and so it is with the next."""
    with Mount(store, checkout="c") as m:
        write(m, {"a": np.arange(3), "b": np.arange(4)})
    index = layer(store) / "index"
    assert all(record["needs"] == ["packed"] for record in entries(store).values())
    lines = index.read_text().splitlines()
    for at, line in enumerate(lines):
        if '"packed"]' in line:
            record = line[9:].replace('["packed"]', '["crated"]')
            lines[at] = f"{binascii.crc32(record.encode()):08x} {record}"
    index.write_text("\n".join(lines) + "\n")
    refused = npyfs("checkout", "diff", store, "c")
    assert refused.returncode and "newer npyfs" in refused.stderr and "needs crated" in refused.stderr


def test_what_does_not_go_together_has_files_of_its_own(store):
    large, text = np.arange(40_000), np.array(["a", "bc"])
    with Mount(store, checkout="c") as m:
        np.save(m / "large.npy", large)
        np.save(m / "text.npy", text)
        np.save(m / "__daf__.npy", np.array([1, 0], "i1"))
        for k in range(3):
            np.save(m / "again.npy", np.arange(k))
        np.save(m / "d.npy", np.arange(2))
        os.unlink(m / "d.npy")
        os.mkdir(m / "d")
        np.save(m / "d/e.npy", np.arange(3))
        sync(m.path)
        np.testing.assert_array_equal(np.load(m / "again.npy"), np.arange(2))
        np.testing.assert_array_equal(np.load(m / "d/e.npy"), np.arange(3))
        found = entries(store)
        for name in ("large", "text", "__daf__"):
            assert "packed" not in found[name]["stored"], name
            assert set(datasets(layer(store) / f"{found[name]['stored']['file']:016}.h5")) == {name}
        assert m.errors() == []


def test_stores_of_a_directory_and_formats_do_not_share(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    for name in ("a.h5", "b.h5"):
        with h5py.File(folder / name, "w") as file:
            file["x"] = np.arange(3)
    with h5py.File(folder / "c.h5df", "w") as file:
        shown, _ = daf.write(file)
    rows = len(shown["cell#.npy"])
    with Mount(folder, checkout="c") as m:
        for k in range(10):
            for name in ("a.h5", "b.h5"):
                np.save(m / f"{name}/n.npy", np.full(3, k))
                np.save(m / f"{name}/m{k}.npy", np.full(4, k))
            np.save(m / f"c.h5df/cell#p{k}.npy", np.arange(rows) * k)
        assert m.errors() == []
    with Mount(folder, checkout="c") as m:
        for k in range(10):
            for name in ("a.h5", "b.h5"):
                np.testing.assert_array_equal(np.load(m / f"{name}/n.npy"), np.full(3, 9))
                np.testing.assert_array_equal(np.load(m / f"{name}/m{k}.npy"), np.full(4, k))
            np.testing.assert_array_equal(np.load(m / f"c.h5df/cell#p{k}.npy"), np.arange(rows) * k)
    by_file = {}
    for key, record in entries(folder).items():
        by_file.setdefault(record["stored"]["file"], set()).add(key.split("/")[0])
    assert all(len(stores) == 1 for stores in by_file.values()), by_file


def test_objects_lie_along_the_axis_of_their_time(tmp_path):
    """A daf axis that gets other entries in between: what was written along the old ones is of another state."""
    store = tmp_path / "x.h5df"
    with h5py.File(store, "w") as file:
        daf.start(file)
        file["cell#"] = np.array([b"a", b"b", b"c"])
    with Mount(store, checkout="c") as m:
        for k in range(20):
            np.save(m / f"cell#old{k}.npy", np.full(3, k, "i8"))
        np.save(m / "cell#.npy", np.array([b"a", b"b", b"d"]))
        for k in range(20):
            np.save(m / f"cell#new{k}.npy", np.full(3, -k, "i8"))
        sync(m.path)
        for k in range(20):
            np.testing.assert_array_equal(np.load(m / f"cell#old{k}.npy"), np.full(3, k))
            np.testing.assert_array_equal(np.load(m / f"cell#new{k}.npy"), np.full(3, -k))
    assert len(files(store)) < 20
    for path in files(store):
        held = datasets(path)
        kinds = {key[5:8] for key in held if key.startswith("cell#") and key != "cell#"}
        assert not {"old", "new"} <= kinds, "two states of an axis in one file"
        if kinds:
            want = b"c" if kinds == {"old"} else b"d"
            assert held["cell#"][2] == want
    npyfs("checkout", "commit", store, "c", check=True)
    npyfs("checkout", "export", store, tmp_path / "out.h5df", check=True)
    with h5py.File(tmp_path / "out.h5df") as file:
        assert file["cell#"][2] == b"d"
        assert all((file[f"cell#old{k}"][()] == k).all() and (file[f"cell#new{k}"][()] == -k).all() for k in range(20))


def test_a_full_disk_is_told_to_who_closes(store, tmp_path, root_only):
    """What was closed without an error is there after the unmount; with room again there are others."""
    disk = tmp_path / "disk"
    disk.mkdir()
    run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], check=True)
    try:
        closed = {}
        with Mount(store, checkout="c", checkouts=disk / "checkouts") as m:
            (disk / "ballast").write_bytes(bytes(1 << 20))
            with pytest.raises(OSError) as refused:
                for k in range(2000):
                    array = np.full([10, 700, 12_000][k % 3], k)
                    np.save(m / f"n{k}.npy", array)
                    closed[f"n{k}"] = array
            assert refused.value.errno == errno.ENOSPC and len(closed) > 20
            (disk / "ballast").unlink()
            until(lambda: not m.status()["checkout"]["unfinished"], "the end of what was refused")
            np.save(m / "again.npy", np.arange(5000))
            sync(m.path)
            closed["again"] = np.arange(5000)
        with Mount(store, checkout="c", checkouts=disk / "checkouts") as m:
            for key, array in closed.items():
                np.testing.assert_array_equal(np.load(m / f"{key}.npy"), array)
    finally:
        run(["umount", "-l", disk], check=True)


# A process of its own: NumPy closes a file with the lock of its interpreter held, which would hold up the test.
FILL = r"""
import sys, time
import numpy as np
try:
    for k in range(2000):
        np.save(f"{sys.argv[1]}/n{k}.npy", np.full([10, 700, 12_000][k % 3], k))
        print(k, flush=True)
        if k == 45:
            time.sleep(0.6)  # until the file of these is begun
except OSError as e:
    print("errno", e.errno)
"""


def test_room_of_what_is_closed_is_its_own_while_others_are_written(store, tmp_path, root_only):
    """The file of the first arrays is held up; those that are closed meanwhile do not take its room on the disk."""
    disk = tmp_path / "disk"
    disk.mkdir()
    run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], check=True)
    try:
        with Mount(store, checkout="c", checkouts=disk / "checkouts") as m:
            np.save(m / "first.npy", np.arange(10))
            sync(m.path)
            (disk / "ballast").write_bytes(bytes(1 << 20))
            with ExitStack() as stack:
                for pid in workers(m.pid):
                    stack.enter_context(stopped(pid))
                filling = subprocess.Popen([sys.executable, "-c", FILL, m.path], stdout=subprocess.PIPE, text=True)
                time.sleep(2)
            *closed, refused = filling.communicate(timeout=60)[0].splitlines()
            assert refused == f"errno {errno.ENOSPC}" and len(closed) > 20
            (disk / "ballast").unlink()
            until(lambda: not m.status()["checkout"]["unfinished"], "the end of what was refused")
            sync(m.path)
        with Mount(store, checkout="c", checkouts=disk / "checkouts") as m:
            for k in map(int, closed):
                np.testing.assert_array_equal(np.load(m / f"n{k}.npy"), np.full([10, 700, 12_000][k % 3], k))
    finally:
        run(["umount", "-l", disk], check=True)


# Writes small arrays whose elements all are the number of the write, many between one fsync and the next; says what it does.
WRITER = r"""
import os, random, sys
import numpy as np
mount, seed = sys.argv[1], int(sys.argv[2])
rng = random.Random(f"{os.environ['NPYFS_SEED']} {seed}")
number = seed * 100_000
try:
    while True:
        for _ in range(rng.choice([1, 20, 200])):
            number += 1
            name = f"{rng.choice(['', 'g/', 'h/'])}n{rng.randrange(150)}"
            os.makedirs(os.path.dirname(f"{mount}/{name}") or mount, exist_ok=True)
            print("begin", name, number, flush=True)
            np.save(f"{mount}/{name}.npy", np.full(rng.choice([1, 98, 400]), number))
            if rng.random() < 0.02:
                print("begin", name, "none", flush=True)
                os.unlink(f"{mount}/{name}.npy")
        descriptor = os.open(mount, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        print("synced", flush=True)
except OSError:
    pass
"""


@pytest.mark.slow
@pytest.mark.timeout(60 + 6 * ROUNDS)
def test_what_fsync_confirmed_is_there_after_kill_9(store, tmp_path):
    """For each object: what fsync confirmed last, or anything that was begun since; nothing else, and nothing half."""
    allowed, rng, synced = {}, SAMPLE.random(), 0
    base = datasets(store)
    for number in range(1, ROUNDS + 1):
        point = make_point()
        with Mount(store, checkout="c", point=point) as m:
            m.expect_dead = True
            log = tmp_path / "log"
            with open(log, "wb") as out:
                writer = subprocess.Popen([sys.executable, "-c", WRITER, point, str(number)], stdout=out, stderr=subprocess.DEVNULL)
            until(lambda: b"begin" in log.read_bytes() or writer.poll() is not None, "the first write")
            time.sleep(rng.random() * 0.8)
            if rng.random() < 0.4:
                signal_all(workers(m.pid), signal.SIGKILL)
                time.sleep(rng.random() * 0.05)
            os.kill(m.pid, signal.SIGKILL)
            until(lambda: not m.alive(), "the end of the daemon")
            writer.wait(60)
            clear(point)
        os.rmdir(point)
        for line in log.read_text().splitlines():
            word, *rest = line.split()
            if word == "synced":
                synced += 1
                allowed = {name: values[-1:] for name, values in allowed.items()}
            elif len(rest) == 2:
                name, value = rest
                allowed.setdefault(name, [None]).append(None if value == "none" else int(value))
        with Mount(store, checkout="c") as m:
            found = {name[:-4]: np.load(m / name) for name in m.files()}
            same({name: found.pop(name) for name in base}, base)
            assert set(found) <= set(allowed), f"round {number}: {set(found) - set(allowed)}"
            for name, values in allowed.items():
                array = found.get(name)
                there = None if array is None else int(array.flat[0])
                assert array is None or (array == there).all(), f"round {number}: {name} is mixed"
                assert there in values, f"round {number}: {name} is {there}, not one of {values}"
                allowed[name] = [there]
            assert m.errors() == []
        for path in files(store):
            datasets(path)
        same(stored(store), found)
    assert synced > 0
