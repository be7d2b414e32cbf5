"""`npyfs find`: names by pattern, attributes, shape and type; paths for xargs; in little memory, however many there are.
Judge: h5py's own walk over the same file, fnmatch of Python."""

import fnmatch
import json
import os
import re
import subprocess
import sys

import h5py
import numpy as np
import pytest

from support.mount import Mount
from support.process import NPYFS, npyfs, one_line, run

pytestmark = pytest.mark.fast


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("find") / "x.h5"
    with h5py.File(path, "w") as file:
        for number, (name, dtype, shape) in enumerate([
                ("score", "f4", (3, 4)), ("score_old", "f8", (3, 4)), ("g/score", ">i2", (10,)), ("g/h/other", "c8", ()),
                ("g/ü line\u202eend", "u1", (2, 0)), ("flags", "?", (5,))]):
            data = file.create_dataset(name, data=np.zeros(shape, dtype))
            data.attrs["unit"] = ["mV", "V"][number % 2]
            data.attrs["number"] = number
        file["names"] = np.array(["a", "b"], dtype=h5py.string_dtype())
        file["g"].attrs["unit"] = "mV"
        file["link"] = h5py.SoftLink("/score")
    return path


def found(*arguments):
    done = npyfs("find", "-0", *arguments, check=True)
    return set(done.stdout.split("\0")[:-1])


def truth(store, fits):
    with h5py.File(store) as file:
        names = []
        file.visititems(lambda name, item: names.append(name + ".npy" * isinstance(item, h5py.Dataset)) if fits(name, item) else None)
    return set(names)


@pytest.mark.parametrize("pattern", ["score*", "score", "*", "?", "[fg]*", "*line*", "other.npy", "nothing", "g/*", "g/*/o*", "**/score", "g/**/o*", "**/h/*"])
def test_names(store, pattern):
    def fits(name, item):
        whole = name if "/" in pattern else name.rpartition("/")[2]
        if "**/" in pattern:  # whole directories, or none; fnmatch does not tell them
            wanted = re.compile("(?s:" + pattern.replace("**/", "(.*/)?").replace("/*", "/.*").replace("o*", "o.*") + r")(\.npy)?")
            return bool(wanted.fullmatch(whole))
        return any(fnmatch.fnmatchcase(one, pattern) for one in (whole, whole + ".npy" * isinstance(item, h5py.Dataset)))
    links = {"link.npy"} if "**" not in pattern and fnmatch.fnmatchcase("link", pattern) else set()
    assert found(store, pattern) == truth(store, fits) | links


def test_attributes_shapes_and_types(store):
    def is_array(item):
        return isinstance(item, h5py.Dataset)
    assert found(store, "--attr", "unit=mV") == truth(store, lambda _, item: item.attrs.get("unit") == "mV") >= {"g", "score.npy"}
    assert found(store, "--attr", "unit") == truth(store, lambda _, item: "unit" in item.attrs)
    assert found(store, "--attr", "number=[01]", "--attr", "unit=V") == {"score_old.npy"}
    for shape in ("3,4", "(3,4)", "3,*"):
        assert found(store, "--shape", shape) == truth(store, lambda _, item: is_array(item) and item.shape == (3, 4))
    assert found(store, "--shape", "()") == {"g/h/other.npy"}
    for dtype in ("<f8", "f8", "float64"):
        assert found(store, "--dtype", dtype) == truth(store, lambda _, item: is_array(item) and item.dtype == "f8")
    assert found(store, "--dtype", "float*", "score*") == {"score.npy", "score_old.npy"}
    assert found(store, "--dtype", ">i2") == {"g/score.npy"} == found(store, "--dtype", "int16")
    assert found(store, "--dtype", "str") == {"names.npy"}


def test_the_paths_are_those_that_commands_take(store):
    paths = sorted(found(store, "--shape", "*,*"))
    pipe = subprocess.run(f"{NPYFS} find -0 {store} --shape '*,*' | xargs -0 {NPYFS} ls -0 {store}", shell=True, capture_output=True, text=True, check=True)
    assert sorted(pipe.stdout.split("\0")[:-1]) == paths and len(paths) == 3
    lines = npyfs("find", store, "*line*", check=True).stdout
    assert lines == "g/ü line\\u{202e}end.npy\n"
    assert found(f"{store}:/g", "score") == {"score.npy"} and found(f"{store}/g/score.npy", "*") == {"g/score.npy"}


def test_the_json_is_a_list_of_what_is_found(store, tmp_path):
    listed = json.loads(npyfs("find", "--json", store, check=True).stdout)
    assert {entry["name"] for entry in listed} == found(store)
    assert {entry["name"]: entry["kind"] for entry in listed if "score" in entry["name"] or entry["name"] in ("g", "link.npy")} == {
        "g": "directory", "link.npy": "link", "score.npy": "file", "score_old.npy": "file", "g/score.npy": "file"}
    listed = json.loads(npyfs("find", "--json", store, "--shape", "3,*", check=True).stdout)
    assert listed == [{"dtype": "<f4", "kind": "file", "name": "score.npy", "shape": [3, 4]}, {"dtype": "<f8", "kind": "file", "name": "score_old.npy", "shape": [3, 4]}]
    assert json.loads(npyfs("find", "--json", store, "nothing*", check=True).stdout) == []
    # What cannot be found out leaves a whole list.
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"] = np.arange(3)
    (tmp_path / "broken.h5").write_bytes(b"no HDF5 at all")
    done = npyfs("find", "--json", tmp_path)
    assert done.returncode == 3 and {entry["name"] for entry in json.loads(done.stdout)} >= {"x.h5", "x.h5/a.npy"}
    assert "broken.h5" in done.stderr


def test_in_a_mount(store):
    with Mount(store) as mount:
        for conditions in (["score*"], ["--attr", "unit=mV"], ["--dtype", "bool"], []):
            assert found(mount.path, *conditions) == {f"{mount.path}/{path}" for path in found(store, *conditions)}
        assert all(os.path.lexists(path) for path in found(mount.path))
        assert found(mount / "g", "score") == {f"{mount.path}/g/score.npy"}


def test_bad_input(store, tmp_path):
    done = npyfs("find", store, "--shape", "a,b")
    assert done.returncode == 1 and "--shape a,b" in one_line(done.stderr)
    assert npyfs("find", tmp_path / "none.h5").returncode == 2
    done = npyfs("find", store, "nothing*")
    assert done.returncode == 0 and done.stdout == ""
    # A damaged object is named, and the rest is found.
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"] = np.arange(3)
        file["z"] = np.arange(3)
    raw = (tmp_path / "x.h5").read_bytes()
    with h5py.File(tmp_path / "x.h5") as file:
        at = h5py.h5o.get_info(file["a"].id).addr
    (tmp_path / "x.h5").write_bytes(raw[:at] + b"\xff" * 16 + raw[at + 16:])
    done = npyfs("find", "--shape", "3", tmp_path / "x.h5")
    assert "z.npy\n" in done.stdout and done.returncode in (0, 3)
    assert done.returncode == 0 or all(line.startswith("npyfs: ") for line in done.stderr.splitlines())


# Runs a command with its output in a file, and prints the most memory that it or a process of it took, in KiB.
MEASURE = """
import os, resource, sys
child = os.fork()
if child == 0:
    os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
    os.execv(sys.argv[2], sys.argv[2:])
assert os.waitpid(child, 0)[1] == 0
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def test_many_objects_stream(tmp_path):
    many = 100_000
    with h5py.File(tmp_path / "many.h5", "w", libver="latest") as file:
        group = file.create_group("g")
        space, kind = h5py.h5s.create(h5py.h5s.SCALAR), h5py.h5t.NATIVE_INT8
        for number in range(many):
            h5py.h5d.create(group.id, f"object{number:06}".encode(), kind, space)
    # From a small process: a child counts as large as its parent was.
    def memory(*command):
        return int(run([sys.executable, "-S", "-c", MEASURE, tmp_path / "out", NPYFS, *command], check=True).stdout)
    # What the listing of the group takes, and little more; that does not hold headers of objects that it is done with.
    listed = memory("ls", tmp_path / "many.h5", "g")
    searched = memory("find", "-0", tmp_path / "many.h5", "*9")
    assert (tmp_path / "out").read_bytes().count(b"\0") == many // 10
    assert searched < listed + (16 << 10), f"{searched} KiB, a listing {listed}"
    assert listed < 96 << 10, f"{listed} KiB"
    # A reader that goes away ends it.
    done = subprocess.run(f"{NPYFS} find {tmp_path / 'many.h5'} | head -n 1", shell=True, capture_output=True, text=True)
    assert done.stdout == "g\n" and done.stderr == ""
