"""npyfs checkout gc: what nobody names goes, and nothing that a commit or a checkout names. Judges: NumPy through mounts before and
after it, h5py on exported files, and the indexes as docs/checkout-format.md says them, read here."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest

from support import hosts
from support.checkouts import as_commit, checkout, lines, save, top, write_plain
from support.commits import log
from support.mount import Mount, clear, make_point, until
from support.process import NPYFS, npyfs, one_line, signal_all, workers
from support.sampling import Sample

SAMPLE = Sample(__file__, "crash")
ROUNDS = SAMPLE.count(6, 20)
NUMBERED = re.compile(r"(\d{16})\.(h5|part|member|head)")


@pytest.fixture
def store(tmp_path):
    write_plain(tmp_path / "x.h5")
    return tmp_path / "x.h5"


def gc(store, *arguments, code=0):
    return checkout("gc", *arguments, store, code=code)


def content(store, **how):
    """{path: array} of what a mount shows."""
    with Mount(store, **how) as mount:
        return {name: np.load(mount / name).tobytes() for name in mount.files()}


def states(store):
    """What a mount shows after each commit."""
    return {commit["id"]: content(store, flags=["--at", commit["id"]]) for commit in log(store)}


def files(folder):
    """{path: bytes} of everything in a directory."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def named(layer):
    """The names of the files that the index of a layer names."""
    objects, waiting = {}, {}
    for record in lines(layer / "index")[1]:
        if "stored" in record:
            objects[record["path"]] = record["stored"] and f"{record['stored']['file']:016}.h5"
            waiting.pop(record["path"], None)
        if "members" in record:
            waiting[record["object"]] = [f"{member['file']:016}.member" for member in record["members"]]
    return {name for name in objects.values() if name} | {name for all in waiting.values() for name in all}


def nobody_names(store, without=(), killed=False):
    """Files of layers that their indexes do not name. A revert that was killed may only have begun its layer, without an index."""
    found = []
    for layer in top(store).iterdir():
        if layer.is_dir() and layer.name not in ("commits", *without):
            is_begun = killed and layer.name.startswith("revert+") and not (layer / "index").exists()
            assert is_begun or (layer / "index").is_file(), f"{layer.name} is no checkout"
            own = set() if is_begun else named(layer)
            there = {path.name for path in layer.iterdir()}
            assert own <= there, f"{layer.name}: {own - there} are gone"
            found += [f"{layer.name}/{name}" for name in there - own if NUMBERED.fullmatch(name)]
    return sorted(found)


def litter(store):
    """Leaves behind what processes that die at different moments leave. Returns the names as gc says them."""
    here, old = top(store), b"x" * 1000
    one = here / "one"
    some = next(path for path in one.iterdir() if path.suffix == ".h5")
    left = ["one/0000000000000099.h5", "one/0000000000000098.part", "work/0000000000000097.h5", "work/0000000000000096.member",
            "work/0000000000000095.head", "work/.scratch-12-0", "work/index.new", "commits/.00000000000000000009.json." + "a" * 32,
            "commits/.probe-" + "b" * 32, ".gc-" + "c" * 32, ".published.new"]
    for name in left:
        shutil.copy(some, here / name) if name.endswith(".h5") else (here / name).write_bytes(old)
    shutil.copytree(one, here / "revert+9")
    shutil.copytree(one, here / ".discarded-gone-0")
    (here / "begun").mkdir()
    (here / "begun/holder").touch()
    (here / "begun/index").touch()
    export = store.with_name(".npyfs-export-1-7")
    export.mkdir()
    (export / "part").write_bytes(old)
    return left + ["revert+9", ".discarded-gone-0", "begun", str(export)]


@pytest.fixture
def written(store):
    """A store with three commits, one of them taken back, and a checkout that is not committed."""
    save(store, "one", {"a.npy": np.arange(5), "new.npy": np.arange(3.0)})
    save(store, "two", {"a.npy": np.arange(7), "g/c.npy": np.arange(2)})
    checkout("revert", store, log(store)[0]["id"])
    save(store, "work", {"b.npy": np.arange(4)}, commit=False)
    save(store, "work", {"b.npy": np.arange(6)}, commit=False)
    return store


@pytest.mark.fast
def test_what_nobody_names_goes_and_nothing_else(written, tmp_path):
    store = written
    before, shown, work = log(store), states(store), content(store, options="ro", checkout="work")
    kept = files(tmp_path)
    left = litter(store)
    foreign = [top(store) / "notes.txt", top(store) / "one/notes.txt", top(store) / "commits/notes", top(store) / "my dir/x"]
    foreign[-1].parent.mkdir()
    for path in foreign:
        path.write_text("mine")
    all_files = files(tmp_path)

    listed = json.loads(gc(store, "--dry-run", "--older-than", "0", "--json").stdout)
    assert sorted(entry["name"] for entry in listed) == sorted(left)
    sizes = {entry["name"]: entry["bytes"] for entry in listed}
    for name in left:
        path = top(store) / name
        whole = [path] if path.is_file() else [below for below in path.rglob("*") if below.is_file()]
        assert sizes[name] == sum(file.stat().st_size for file in whole), name
    told = gc(store, "--dry-run", "--older-than", "0").stdout
    assert told.endswith(f"would remove {len(left)} names, {sum(sizes.values())} bytes\n")
    assert all(name in told for name in left)
    young = gc(store)
    assert young.stdout == "nothing to remove\n"
    assert one_line(young.stderr).startswith(f"npyfs: too young: {len(left)} names")
    assert files(tmp_path) == all_files

    done = gc(store, "--older-than", "0", "-0")
    assert sorted(done.stdout.split("\0")[:-1]) == sorted(left) and done.stderr == ""
    assert files(tmp_path) == {**kept, **{str(path.relative_to(tmp_path)): b"mine" for path in foreign}}
    assert gc(store, "--older-than", "0").stdout == "nothing to remove\n"
    shutil.rmtree(top(store) / "my dir")
    for path in foreign[:-1]:
        path.unlink()

    assert log(store) == before and states(store) == shown
    assert content(store, options="ro", checkout="work") == work
    # What was taken back can come again.
    checkout("revert", store, before[0]["id"])
    assert content(store) == shown[before[1]["id"]] != shown[before[0]["id"]]
    checkout("export", store, "work", tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        assert (file["b"][()] == np.arange(6)).all()
        assert (file["g/c"][()] == np.arange(2)).all()


def test_a_layer_that_somebody_writes_in_is_left_alone(written):
    store = written
    with Mount(store, checkout="work") as mount:
        (top(store) / "work/0000000000000097.h5").write_bytes(b"x")
        (top(store) / "two/0000000000000097.h5").write_bytes(b"x")
        np.save(mount / "b.npy", np.arange(8))
        done = gc(store, "--older-than", "0")
        assert done.stdout.startswith("removed 1 names")
        assert one_line(done.stderr) == "npyfs: work: a process writes in it, and clears it up"
        assert (np.load(mount / "b.npy") == np.arange(8)).all()
    assert (top(store) / "work/0000000000000097.h5").exists()
    assert gc(store, "--older-than", "0").stdout.startswith("removed 1 names")
    assert nobody_names(store) == []


def test_files_of_a_publication_stay(written, tmp_path):
    store = written
    checkout("publish", store, "work", tmp_path / "links.h5")
    with h5py.File(tmp_path / "links.h5") as file:
        b = file["b"][()]
    save(store, "work", {"b.npy": np.zeros(9)})
    assert gc(store, "--older-than", "0").stdout == "nothing to remove\n"
    with h5py.File(tmp_path / "links.h5") as file:
        assert (file["b"][()] == b).all()
    (tmp_path / "links.h5").unlink()
    assert gc(store, "--older-than", "0").stdout.startswith("removed 1 names")


def test_what_is_damaged_is_named_and_stays(written):
    store = written
    litter(store)
    index = top(store) / "one/index"
    text = index.read_bytes()
    for bad in (text[:40] + b"?" + text[41:], b"", None):
        index.unlink(missing_ok=True)
        if bad is not None:
            index.write_bytes(bad)
        before = {name for name in files(top(store)) if name.startswith("one/")}
        done = gc(store, "--older-than", "0", code=3)
        assert "one/index" in done.stderr.splitlines()[0], done.stderr
        assert {name for name in files(top(store)) if name.startswith("one/")} == before
    index.write_bytes(text)
    # A checkout of an earlier state of the commits, as somebody has taken one out by hand.
    shutil.copytree(top(store) / "two", top(store) / "two~7")
    assert "two~7: no commit has it" in gc(store, "--older-than", "0", code=3).stderr
    assert (top(store) / "two~7/index").exists()
    shutil.rmtree(top(store) / "two~7")
    # A mount that was killed while it committed has begun the layer in which it was to go on.
    (top(store) / "two~7").mkdir()
    (top(store) / "two~7/holder").write_bytes(b"")
    assert gc(store, "--older-than", "0").stdout.startswith("removed 1 names")
    assert not (top(store) / "two~7").exists()
    # Without knowing what is committed nothing is removed.
    left = litter_again(store)
    commit = top(store) / "commits/00000000000000000002.json"
    whole = commit.read_bytes()
    for bad in (whole[:50], b""):
        commit.write_bytes(bad)
        assert commit.name in gc(store, "--older-than", "0", code=3).stderr
        assert left.exists()
    commit.unlink()
    assert commit.name in gc(store, "--older-than", "0", code=3).stderr
    assert left.exists()
    commit.write_bytes(whole)
    assert gc(store, "--older-than", "0").stdout.startswith("removed 1 names")
    assert not left.exists()


def litter_again(store):
    path = top(store) / "one/0000000000000099.h5"
    path.write_bytes(b"x")
    return path


def test_a_clock_that_is_wrong_removes_nothing_young(written, tmp_path):
    store, library = written, hosts.build(tmp_path)
    left = litter_again(store)
    month = 30 * 24 * 3600
    for clock in (month, -month):
        done = subprocess.run([NPYFS, "checkout", "gc", store], env=hosts.elsewhere(library, clock=clock), text=True, capture_output=True)
        assert (done.returncode, done.stdout) == (0, "nothing to remove\n"), done
        assert left.exists()
    done = subprocess.run([NPYFS, "checkout", "gc", "--older-than", "0", store], env=hosts.elsewhere(library, clock=-month), text=True,
                          capture_output=True)
    assert done.stdout.startswith("removed 1 names"), done


def test_checkpoints_that_larger_ones_hold_go(store):
    save(store, "one", {"a.npy": np.arange(5)})
    commits, parents = top(store) / "commits", []
    for number in range(1, 1235):
        fields = {"parents": parents, "write": "", "layer": f"l{number}", "time": number, "author": "", "message": "", "tool": "", "without": []}
        parent, text = as_commit(fields)
        parents = [parent]
        (commits / f"{number:020}.json").write_text(text)
    (commits / "newest").unlink()
    for number in [*range(100, 1201, 100), 1300]:
        (commits / f"{number:020}.checkpoint").write_text("x")
    (commits / "100.checkpoint").write_text("x")
    before = set(files(commits))
    gone = sorted(f"commits/{number:020}.checkpoint" for number in range(100, 1000, 100))
    # No commit has the layer that was really written, and it is what the checkout is now.
    assert gc(store, "--older-than", "0", "-0").stdout.split("\0")[:-1] == gone
    assert before - set(files(commits)) == {name.split("/")[1] for name in gone}


@pytest.mark.parametrize("arguments", [["--older-than", "7"], ["--older-than", "soon"], ["--older-than", "7y"]])
def test_an_age_needs_a_unit(store, arguments):
    assert "expected an age" in npyfs("checkout", "gc", *arguments, store).stderr


def test_without_checkouts_there_is_nothing_to_do(store):
    assert gc(store).stdout == "nothing to remove\n"
    assert not top(store).exists()


# Writes arrays whose elements all are the number of the write, durably; says before and after each what it does.
WRITER = r"""
import os, random, sys
import numpy as np
mount, seed, stop = sys.argv[1], int(sys.argv[2]), sys.argv[3]
rng = random.Random(f"{os.environ['NPYFS_SEED']} {seed}")
for step in range(1, 100000):
    if os.path.exists(stop):
        break
    name, number = f"n{rng.randrange(4)}", seed * 100000 + step
    print("begin", name, number, flush=True)
    try:
        with open(f"{mount}/{name}.npy", "wb") as file:
            np.save(file, np.full(rng.choice([1, 100, 40_000]), number))
            file.flush()
            os.fsync(file.fileno())
        print("done", name, number, flush=True)
    except OSError as e:
        print("failed", e.errno, flush=True)
        break
"""


def start_writer(mount, seed, stop, log):
    with open(log, "wb") as out:
        return subprocess.Popen([sys.executable, "-c", WRITER, str(mount), str(seed), str(stop)], stdout=out)


def told(log):
    """What a writer confirmed, and what it had begun."""
    confirmed, begun = {}, {}
    for line in log.read_text().splitlines():
        word, name, *number = line.split()
        if word == "begin":
            begun = {name: int(number[0])}
        elif word == "done":
            confirmed[name], begun = int(number[0]), {}
    return confirmed, begun


def numbers(mount):
    found = {}
    for path in mount.glob("n?.npy"):
        array = np.load(path)
        assert array.size and (array == array.flat[0]).all(), f"{path.name} is mixed"
        found[path.stem] = int(array.flat[0])
    return found


@pytest.mark.slow
@pytest.mark.timeout(120 + 20 * ROUNDS)
def test_beside_a_writer_and_after_kills_nothing_named_is_lost(store, tmp_path):
    """Each round kills a daemon that writes in one checkout, commits and reverts of others, and gc itself, while another daemon
    writes all the time."""
    rng = SAMPLE.random()
    never, stop = tmp_path / "never", tmp_path / "stop"
    hosts.make_layers(store, [f"o{number}" for number in range(ROUNDS)])
    expected, shown, left = {}, {}, 0
    with Mount(store, checkout="steady", limit=120 + 20 * ROUNDS) as steady:
        steady_log = tmp_path / "steady"
        running = start_writer(steady.path, 1, stop, steady_log)
        for number in range(ROUNDS):
            point = make_point()
            with Mount(store, checkout="k", point=point) as m:
                m.expect_dead = True
                out = tmp_path / "log"
                writer = start_writer(point, number + 2, never, out)
                until(lambda: b"done" in out.read_bytes(), "the first write")
                others = [subprocess.Popen([NPYFS, "checkout", "commit", store, f"o{number}"], stdout=subprocess.DEVNULL,
                                           stderr=subprocess.DEVNULL)]
                if shown:
                    others.append(subprocess.Popen([NPYFS, "checkout", "revert", store, rng.choice(list(shown))],
                                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
                time.sleep(rng.random() * 0.3)
                for process in others:
                    process.kill()
                if rng.random() < 0.5:
                    signal_all(workers(m.pid), signal.SIGKILL)
                os.kill(m.pid, signal.SIGKILL)
                until(lambda: not m.alive(), "the end of the daemon")
                writer.wait(60)
                clear(point)
            os.rmdir(point)
            for process in others:
                process.wait(60)
            commits = log(store)
            before = content(store)
            (top(store) / "k" / "0000000000000999.part").write_bytes(b"of a writer that was killed before it named this")
            (top(store) / f"revert+{900 + number}").mkdir()  # of a revert that was killed then
            left += len(nobody_names(store, without=["steady"], killed=True))
            killed = subprocess.Popen([NPYFS, "checkout", "gc", "--older-than", "0", store], stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL)
            time.sleep(rng.random() * 0.02)
            killed.kill()
            killed.wait(60)
            gc(store, "--older-than", "0")
            assert nobody_names(store, without=["steady"]) == []
            assert not [path.name for path in top(store).iterdir() if path.name.startswith(".") and path.is_dir()]
            assert not [path.name for path in (top(store) / "commits").glob(".*")]
            assert log(store) == commits and content(store) == before
            confirmed, begun = told(out)
            with Mount(store, "ro", checkout="k") as mount:
                found = numbers(mount.path)
                for name in {*expected, *confirmed, *found}:
                    allowed = {confirmed.get(name, expected.get(name)), begun.get(name, confirmed.get(name, expected.get(name)))}
                    assert found.get(name) in allowed, f"round {number}: {name} is {found.get(name)}, not one of {allowed}"
                expected = found
            for commit in commits:
                if commit["id"] not in shown:
                    shown[commit["id"]] = content(store, flags=["--at", commit["id"]])
            assert running.poll() is None, steady_log.read_text()[-200:]
        stop.touch()
        running.wait(60)
        confirmed, begun = told(steady_log)
        assert begun == {} and b"failed" not in steady_log.read_bytes()
        assert numbers(steady.path) == confirmed
    gc(store, "--older-than", "0")
    assert nobody_names(store) == []
    with Mount(store, "ro", checkout="steady") as mount:
        assert numbers(mount.path) == confirmed
    assert left >= ROUNDS and {commit["id"] for commit in log(store)} == set(shown)
    for commit, known in shown.items():
        assert content(store, flags=["--at", commit]) == known
