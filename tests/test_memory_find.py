"""The memory of `npyfs find`: bounded for a store with 200 000 objects, in one group or in many. Judges: the kernel's account of the process
and its workers (ru_maxrss), and h5py for the names."""

import subprocess
import sys

import h5py
import pytest

from support.process import NPYFS, npyfs

OBJECTS = 200_000
MIB = 1 << 20

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(900)]

# The most memory of one of the processes below, in KiB, with the number of lines.
RUN = """
import resource, subprocess, sys
with subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE) as child:
    lines = sum(1 for _ in child.stdout)
assert child.returncode == 0
print(lines, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def find(store, *patterns):
    done = subprocess.run([sys.executable, "-c", RUN, NPYFS, "find", store, *patterns], stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    lines, peak = map(int, done.stdout.split())
    return lines, peak * 1024


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
    _, least = find(tmp_path / "few.h5")
    lines, peak = find(tmp_path / "many.h5")
    with capsys.disabled():
        print(f"\n{peak / MIB:.0f} MiB, {least / MIB:.0f} for few objects", end=" ")
    assert lines == OBJECTS + groups
    assert peak - least <= 64 * MIB


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
