"""The memory of `npyfs find`, and what it reads: bounded for a store with 200 000 objects, in one group or in many. Judges: the kernel's account of
the process and its workers (ru_maxrss, rchar), and h5py for the names."""

import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

from support.mount import Mount
from support.process import NPYFS, npyfs
from support.truth import np_save

OBJECTS = 200_000
MIB = 1 << 20

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(900)]

# The number of lines, the most memory of one of the processes below in KiB, and the bytes that all of them read.
RUN = """
import resource, subprocess, sys
with subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE) as child:
    lines = sum(1 for _ in child.stdout)
assert child.returncode == 0
with open("/proc/self/io") as io:
    read = io.readline().split()[1]
print(lines, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, read)
"""


def find(store, *patterns):
    done = subprocess.run([sys.executable, "-c", RUN, NPYFS, "find", store, *patterns], stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    lines, peak, read = map(int, done.stdout.split())
    return lines, peak * 1024, read


def write(path, groups, each):
    with h5py.File(path, "w", libver="latest") as file:
        for g in range(groups):
            group = file.create_group(f"g{g:06}")
            for i in range(each):
                h5py.h5d.create(group.id, b"dataset_%07d" % i, h5py.h5t.STD_I32LE, h5py.h5s.create_simple((3,)))


@pytest.mark.parametrize("groups", [1, OBJECTS // 20])
def test_find_takes_no_more_memory_for_many_objects(tmp_path, capsys, groups):
    write(tmp_path / "few.h5", 1, 20)
    write(tmp_path / "many.h5", groups, OBJECTS // groups)
    _, least, _ = find(tmp_path / "few.h5")
    lines, peak, read = find(tmp_path / "many.h5")
    times = read / (tmp_path / "many.h5").stat().st_size
    with capsys.disabled():
        print(f"\n{peak / MIB:.0f} MiB, {least / MIB:.0f} for few objects; the file is read {times:.1f} times", end=" ")
    assert lines == OBJECTS + groups
    assert peak - least <= 64 * MIB
    # The names of a large group lie in a heap of which libhdf5 wants another block for each of them.
    assert times <= 30


def test_what_is_found_is_everything_in_order(tmp_path):
    """Also behind the first part of a large group, and while it is printed."""
    write(tmp_path / "many.h5", 2, 45_000)
    with h5py.File(tmp_path / "many.h5", "a") as file:
        file["g000000/zz"] = h5py.SoftLink("/g000001")
        file["g000001/a/b"] = 3
    done = npyfs("find", tmp_path / "many.h5", check=True)
    names = [f"g{g:06}/dataset_{i:07}.npy" for g in range(2) for i in range(45_000)]
    wanted = ["g000000", *names[:45_000], "g000000/zz", "g000001", "g000001/a", "g000001/a/b.npy", *names[45_000:]]
    assert done.stdout.splitlines() == wanted
    with subprocess.Popen([NPYFS, "find", tmp_path / "many.h5", "dataset_000000*"], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "g000000/dataset_0000000.npy\n"
        child.stdout.close()
        assert child.wait(60) == 0


def run_counted(*arguments):
    """Runs npyfs. Returns what it printed, and the bytes that it and its workers read."""
    script = "import subprocess, sys; subprocess.run(sys.argv[1:], check=True); sys.stderr.write(open('/proc/self/io').readline())"
    done = subprocess.run([sys.executable, "-c", script, NPYFS, *arguments], capture_output=True, check=True, timeout=600)
    return done.stdout, int(done.stderr.split()[-1])


def test_one_dataset_of_a_large_group_is_read_without_the_others(tmp_path):
    """Whatever its name is; and it is the same file before the group is listed and after."""
    store = tmp_path / "many.h5"
    write(store, 1, OBJECTS)
    odd = {"a%41": 1, "..": 2, "x.npy": 3, "é": 4, "a#b": 5, "n" * 300: 6, "tab\t": 7}
    with h5py.File(store, "a") as file:
        for name, value in odd.items():
            if name == "..":
                # h5py would go up.
                h5py.h5d.create(file["g000000"].id, b"%2E%2E", h5py.h5t.STD_I32LE, h5py.h5s.create_simple((3,)))
                continue
            file["g000000"].create_dataset(name, data=np.full(3, value, "i4"))
        file["g000000/group"] = h5py.SoftLink("/g000000/group_")
        file["g000000/group_/b"] = np.arange(2)
        file["g000000/link"] = h5py.SoftLink("/g000000/é")
        shown = {name: np.asarray(file["g000000"][name]) for name in ["dataset_0000007", *(name for name in odd if name != "..")]}
    raw, read = run_counted("cat", store, "g000000/dataset_0000007.npy")
    assert raw == np_save(shown["dataset_0000007"])
    assert read < 16 * MIB
    with Mount(store, "sep=@") as mount:
        names = {"dataset_0000007": "dataset_0000007", "a%41": "a%2541", "x.npy": "x%2Enpy", "é": "é", "a#b": "a@b", "tab\t": "tab%09"}
        before = {}
        for own, visible in names.items():
            path = mount / f"g000000/{visible}.npy"
            assert path.read_bytes() == np_save(shown[own]), own
            before[path] = path.stat().st_ino
        assert (mount / "g000000/link.npy").read_bytes() == np_save(shown["é"])
        for absent in ("a%41", "x.npy.npy", "a#b", "none", "group"):
            assert not (mount / f"g000000/{absent}.npy").exists(), absent
        listed = {entry.name: entry.inode() for entry in os.scandir(mount / "g000000")}
        assert len(listed) == OBJECTS + len(odd) + 3
        for path, inode in before.items():
            assert listed[path.name] == inode == path.stat().st_ino
        [cut] = [name for name in listed if name.startswith("nnn")]
        assert (mount / "g000000" / cut).read_bytes() == np_save(shown["n" * 300])
