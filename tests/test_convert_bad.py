"""npyfs convert when something is wrong: whatever fails, there is no file with the final name and nothing else is left. Judges: the
directory, the exit status that the kernel tells, h5py on what is complete."""

import errno
import os
import signal
import shutil
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
from test_progress import Terminal

from support import daf
from support.conversions import AUTHOR, KINDS, LOST, arrays, convert, objects
from support.faults import Faults, build
from support.mount import Mount
from support.process import NPYFS, npyfs, one_line, run
from support.sampling import Sample

STORE = 2
SAMPLE = Sample(__file__, "fault")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("library"))


def save(folder, **found):
    folder.mkdir(exist_ok=True)
    for name, array in found.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def refused(*arguments, code=STORE, **keywords):
    done = npyfs("convert", *arguments, **keywords)
    assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
    assert done.stdout == ""
    return one_line(done.stderr)


@pytest.mark.fast
def test_what_is_there_stays(tmp_path):
    source = save(tmp_path / "in", x=np.arange(3))
    (tmp_path / "file.h5").write_text("mine")
    (tmp_path / "dir").mkdir()
    (tmp_path / "link.h5").symlink_to("nowhere")
    for name in ("file.h5", "dir", "dir/", "link.h5"):
        assert "there already" in refused(source, f"{tmp_path}/{name}")
    assert (tmp_path / "file.h5").read_text() == "mine" and os.listdir(tmp_path / "dir") == []
    assert sorted(os.listdir(tmp_path)) == ["dir", "file.h5", "in", "link.h5"]


@pytest.mark.fast
def test_what_is_no_source(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.h5").write_text("hello")
    stores = tmp_path / "stores"
    stores.mkdir()
    with h5py.File(stores / "a.h5", "w") as file:
        file["x"] = 1
    assert "No such file" in refused(tmp_path / "missing", tmp_path / "out.h5")
    assert "no HDF5 file" in refused(tmp_path / "empty", tmp_path / "out.h5")
    assert "not an HDF5 file" in refused(tmp_path / "text.h5", tmp_path / "out")
    assert "name one of them" in refused(stores, tmp_path / "out.h5")
    save(tmp_path / "empty", x=np.arange(3))
    assert "directory that is converted" in refused(tmp_path / "empty", tmp_path / "empty/out")
    assert os.listdir(tmp_path / "empty") == ["x.npy"]
    assert "nowhere" in refused(stores / "a.h5", tmp_path / "nowhere/out")
    assert sorted(os.listdir(tmp_path)) == ["empty", "stores", "text.h5"]


@pytest.mark.fast
def test_two_objects_that_get_one_name(tmp_path):
    source = save(tmp_path / "in", x=np.arange(3))
    (source / "x.txt").write_text("hello")
    save(source / "x", y=np.arange(2))
    lost = objects(convert(source, tmp_path / "out.h5", "plain", code=LOST)["without_counterpart"])
    assert len(lost) == 2 and set(lost.values()) == {"another object has the same name there"}


@pytest.mark.fast
def test_what_cannot_be_read_is_listed(tmp_path):
    source = save(tmp_path / "in", good=np.arange(3), objects=np.array([{}, 1], object))
    (source / "cut.npy").write_bytes((source / "good.npy").read_bytes()[:-5])
    (source / "none.npy").write_bytes(b"hello")
    with h5py.File(tmp_path / "bad.h5", "w") as file:
        file["good"] = np.arange(3)
        file.create_dataset("bad", data=np.arange(1000), chunks=(1000,), compression="gzip")
        where = file["bad"].id.get_chunk_info(0).byte_offset
    with open(tmp_path / "bad.h5", "r+b") as file:
        file.seek(where)
        file.write(b"\xff" * 50)
    for source, kind, lost in [(source, "plain", {"objects.npy", "cut.npy", "none.npy"}), (source, "arkouda", {"objects.npy", "cut.npy", "none.npy"}),
                               (tmp_path / "bad.h5", "arkouda", {"bad.npy"}), (tmp_path / "bad.h5", "npy", {"bad.npy"})]:
        report = convert(source, tmp_path / "out.x", kind, code=LOST)
        assert set(objects(report["without_counterpart"])) == lost
        report = convert(source, tmp_path / f"{kind}-{source.name}.hdf", kind, "--leave-out")
        assert report["objects"] == 1


@pytest.mark.fast
def test_data_in_other_files(tmp_path):
    np.arange(4, dtype="<i4").tofile(tmp_path / "raw")
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["x"] = np.arange(3)
        file.create_dataset("outside", (4,), "<i4", external=[(b"raw", 0, 16)])
        file["away"] = h5py.ExternalLink("other.h5", "/x")
    lost = objects(convert(tmp_path / "in.h5", tmp_path / "out", "npy", code=LOST)["without_counterpart"])
    assert "outside.npy" in lost and any(name.startswith("away") for name in lost)
    convert(tmp_path / "in.h5", tmp_path / "out", "npy", "--leave-out")
    assert list(arrays(tmp_path / "out")) == ["x.npy"]
    report = convert(tmp_path / "in.h5", tmp_path / "all", "npy", "--leave-out", "-o", "external=same-dir")
    assert report["objects"] == 2 and np.load(tmp_path / "all/outside.npy").tolist() == [0, 1, 2, 3]


def scenario(folder):
    """A source of each kind, and what it is converted to."""
    many = save(folder / "arrays", **{"cell#": np.array(["a", "b"]), "cell#age": np.arange(2), "cell#score": np.ones(2), "item": np.array(3)})
    large = save(folder / "large", x=np.arange(1 << 18), names=np.array(["a", "bc"]))
    with h5py.File(folder / "cells.h5df", "w") as file:
        daf.write(file)
    pictures = save(folder / "pictures", **{str(number): np.full((3, 3), number, "u1") for number in range(5)})
    return [(many, "daf"), (large, "plain"), (large, "arkouda"), (many, "npy"), (folder / "cells.h5df", "npy"), (pictures, "hangar")]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whatever_fails_nothing_is_left(tmp_path, library):
    faults = Faults(library, tmp_path)
    env = os.environ | faults.env
    out = tmp_path / "out"
    out.mkdir()
    for source, kind in scenario(tmp_path):
        new = out / f"new{KINDS[kind]}"
        arguments = ["convert", "--to", kind, *(AUTHOR if kind == "hangar" else ()), source, new]
        faults.start()
        npyfs(*arguments, env=env, check=True)
        calls = faults.stop()
        assert os.listdir(out) == [new.name] and len(calls) > 3
        npyfs("verify" if kind != "npy" else "--version", new, check=kind != "npy")
        for at in SAMPLE.choose(range(len(calls)), 2, "failing calls", f"{source.name} {kind}"):
            clear(out)
            forever = bool(at % 2)
            faults.start(at, SAMPLE.random(at).choice([errno.EIO, errno.ENOSPC]), forever=forever)
            done = npyfs(*arguments, env=env)
            faults.stop()
            if done.returncode == 0:
                # What failed was of no use to anybody, or was done another way.
                npyfs("verify" if kind != "npy" else "--version", new, check=kind != "npy")
                continue
            # What is said goes to a file on the same disk.
            assert done.returncode in (2, 3) and (forever or done.stderr.startswith("npyfs: ")), (kind, at, calls[at], done)
            left = os.listdir(out)
            # The directory is synced when the store is complete and has its name, and what was done is said after that.
            assert left == [] or left == [new.name] and calls[at:] in ("sw", "w"), (kind, at, calls[at:], left, done.stderr)
            if left and kind != "npy":
                npyfs("verify", new, check=True)
        clear(out)


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def clear(folder):
    for name in os.listdir(folder):
        remove(folder / name)


def begun(arguments, env, out):
    """A conversion that takes its time, and has begun to write."""
    process = subprocess.Popen([NPYFS, *map(str, arguments)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not any(name.startswith(".npyfs-export-") for name in os.listdir(out)):
        assert time.monotonic() < end and process.poll() is None, process.communicate()
        time.sleep(0.01)
    return process


@pytest.mark.parametrize("kind", ["npy", "plain"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_nothing(tmp_path, library, kind, number):
    source = save(tmp_path / "in", **{f"x{i}": np.arange(1 << 16) for i in range(30)})
    out = tmp_path / "out"
    out.mkdir()
    faults = Faults(library, tmp_path)
    faults.start(0, -200_000, forever=True)
    process = begun(["convert", "--to", kind, source, out / "new"], os.environ | faults.env, out)
    process.send_signal(number)
    process.communicate(timeout=60)
    faults.stop()
    assert process.returncode == -number
    left = os.listdir(out)
    assert "new" not in left and (left == [] or number == signal.SIGKILL)
    # What was killed left its workplace, which the next one to that place removes.
    convert(save(tmp_path / "small", x=np.arange(3)), out / "next", kind)
    end = time.monotonic() + 30
    while os.listdir(out) != ["next"]:
        assert time.monotonic() < end, os.listdir(out)
        time.sleep(0.1)
        npyfs("convert", "--to", kind, tmp_path / "small", out / "another", check=True)
        remove(out / "another")


def test_progress_is_shown_on_a_terminal(tmp_path, library, monkeypatch):
    source = save(tmp_path / "in", **{f"x{i}": np.arange(1 << 16) for i in range(30)})
    out = tmp_path / "out"
    out.mkdir()
    faults = Faults(library, tmp_path)
    faults.start(0, -200_000, forever=True)
    for name, value in faults.env.items():
        monkeypatch.setenv(name, value)
    with Terminal("convert", "--to", "npy", source, out / "new") as terminal:
        terminal.until(r"converting .*[1-9][\d.]* [KM]iB/15\.00 MiB, [\d.]+ \wiB/s, \d+s")
        terminal.interrupt()
    faults.stop()
    assert os.listdir(out) == []


@pytest.mark.parametrize("source_kind", ["npy", "plain", "hangar"])
def test_a_source_that_changes_is_not_converted(tmp_path, library, source_kind):
    source = save(tmp_path / "in", **{f"x{i}": np.arange(1 << 10) for i in range(10)})
    if source_kind != "npy":
        new = tmp_path / f"in{KINDS[source_kind]}"
        convert(source, new, source_kind, *(("--column", "c") if source_kind == "hangar" else ()))
        source = new
    out = tmp_path / "out"
    out.mkdir()
    faults = Faults(library, tmp_path)
    faults.start(0, -300_000, forever=True)
    process = begun(["convert", "--to", "npy", source, out / "new"], os.environ | faults.env, out)
    # The arrays are in it already, or the branch is known.
    time.sleep(0.5)
    if source_kind == "npy":
        np.save(source / "x9.npy", np.arange(1 << 10) + 1)
    elif source_kind == "plain":
        with h5py.File(source, "r+") as file:
            file["more"] = 1
    else:
        commit(source)
    _, told = process.communicate(timeout=120)
    faults.stop()
    if source_kind == "hangar" and process.returncode == 0:
        # What it was converted from is a commit, which stays as it is.
        assert len(os.listdir(out / "new/c")) == 10
        return
    assert process.returncode == LOST and "changed" in told, told
    assert os.listdir(out) == []


def commit(repository):
    with Mount(repository, checkout="work") as mount:
        np.save(mount / "stage/c/more.npy", np.arange(1 << 10))
    npyfs("checkout", "commit", "-m", "more", repository, check=True)


@pytest.mark.fast
def test_readers_that_go_away(tmp_path):
    source = save(tmp_path / "in", x=np.arange(3))
    for number, stream in enumerate(["stdout", "stderr"]):
        read, write = os.pipe()
        os.close(read)
        new = tmp_path / f"out{number}.h5"
        done = subprocess.run([NPYFS, "convert", source, new], **{stream: write}, timeout=60)
        os.close(write)
        assert done.returncode == 0 and h5py.is_hdf5(new)
    assert sorted(os.listdir(tmp_path)) == ["in", "out0.h5", "out1.h5"]


MIB = 1 << 20
CACHE = 32 * MIB
PEAK = "import os, sys; pid = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:]); _, status, used = os.wait4(pid, 0); assert status == 0; print(used.ru_maxrss)"


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(600)
@pytest.mark.parametrize("source, kind", [("chunked", "npy"), ("chunked", "arkouda"), ("npy", "plain"), ("fortran", "plain"), ("text", "arkouda"), ("stack", "hangar")])
def test_memory_does_not_depend_on_the_size_of_an_array(tmp_path, source, kind):
    values = (np.arange(64 * MIB, dtype="<u4") * np.uint32(2654435761) >> np.uint32(20)).astype("<i4")
    options = []
    if source == "chunked":
        store = tmp_path / "in.h5"
        with h5py.File(store, "w") as file:
            file.create_dataset("x", data=values, chunks=(1 * MIB,), compression="lzf")
    else:
        array = {"npy": lambda: values, "fortran": lambda: np.asfortranarray(values.reshape(8192, 8192)), "stack": lambda: values.reshape(64, MIB),
                 "text": lambda: np.arange(16 * MIB).astype("S16")}[source]()
        store = save(tmp_path / "in", x=array)
        options = ["--stacked"] if source == "stack" else []
    author = AUTHOR if kind == "hangar" else ()
    command = [NPYFS, "convert", "--to", kind, *options, *author, "-o", f"cache_size={CACHE}", store, tmp_path / "out"]
    # A process begins with the peak of the one that started it, so a small one does.
    done = run([sys.executable, "-c", PEAK, *command], timeout=300, check=True)
    peak = int(done.stdout.splitlines()[-1]) * 1024
    assert peak < CACHE + 64 * MIB, f"{peak >> 20} MiB"
    if kind == "npy":
        np.testing.assert_array_equal(np.load(tmp_path / "out/x.npy"), values)
    elif kind == "plain":
        with h5py.File(tmp_path / "out") as file:
            np.testing.assert_array_equal(file["x"][()], values.reshape(file["x"].shape))
    elif source == "chunked":
        with h5py.File(tmp_path / "out") as file:
            np.testing.assert_array_equal(file["x"][()], values)
