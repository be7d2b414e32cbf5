"""Many programs use one name of a checkout at once: whoever opens a name that exists gets what has it at some moment of the call, and is
never told that it went stale or is not there. Judge: the kernel's answers, and the content, which is whole in every version."""

import collections
import errno
import json
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

from support import daf
from support.mount import Mount, until
from support.sampling import is_whole

# Of each way, at least: a run of everything gives it longer, and a slow disk may need longer.
SECONDS = 4 if is_whole("crash") else 2
ROUNDS = 20

# Each way of using the name again and again; says what it was refused.
PROGRAM = r"""
import collections, io, json, os, sys, time
import numpy as np
path, way = sys.argv[1:3]
number, seconds, least, size = map(int, sys.argv[3:])
buffer = io.BytesIO()
np.save(buffer, np.full(size, number))
content = buffer.getvalue()
seen, rounds = collections.Counter(), 0

def write(path, flags):
    descriptor = os.open(path, os.O_WRONLY | flags)
    try:
        for at in (0, 200):
            os.write(descriptor, content[at:at + 200] if at == 0 else content[200:])
    finally:
        os.close(descriptor)

end = time.monotonic() + seconds
while time.monotonic() < end or rounds < least:
    rounds += 1
    try:
        if way == "overwrite":
            write(path, os.O_CREAT | os.O_TRUNC)
        elif way == "rename":
            other = f"{path[:-4]}.{number}.tmp"
            write(other, os.O_CREAT | os.O_TRUNC)
            os.rename(other, path)
        elif way == "change":
            os.close(os.open(path, os.O_RDWR))
        elif way == "read":
            with open(path, "rb") as file:
                file.read()
        elif way == "stat":
            os.stat(path)
            os.utime(path)
        elif way == "refused":
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.write(descriptor, b"no array")
            os.close(descriptor)
    except OSError as problem:
        seen[problem.errno] += 1
print(json.dumps(seen))
"""


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.full(10, -1)
        cells = file.create_group("cells")
        daf.start(cells)
        cells["cell#"] = np.array([b"a", b"b"])
        cells["cell#x"] = np.array([-1, -1])
    return path


def use(mount, name, ways, size=10):
    """What the programs were refused, by errno, and how often; each used the name at least `ROUNDS` times."""
    running = [(way, subprocess.Popen([sys.executable, "-c", PROGRAM, mount / name, way, *map(str, (n, SECONDS, ROUNDS, size))], stdout=subprocess.PIPE, text=True))
               for n, way in enumerate(ways)]
    refused = collections.Counter()
    try:
        for way, program in running:
            said, _ = program.communicate(timeout=SECONDS + 60)
            assert program.returncode == 0
            seen = json.loads(said)
            refused.update({(way, errno.errorcode[int(number)]): count for number, count in seen.items()})
    finally:
        for _, program in running:
            program.kill()
            program.wait(20)
            program.stdout.close()
    return refused


WAYS = {
    "overwrite": ["overwrite"] * 6,
    "rename": ["overwrite", "overwrite", "overwrite", "rename", "rename", "rename"],
    "read": ["overwrite", "overwrite", "rename", "read", "read", "read", "stat"],
    "change": ["overwrite", "overwrite", "rename", "change", "stat"],
}


@pytest.mark.parametrize("name, size", [("x.npy", 10), ("cells/cell#x.npy", 2)])
@pytest.mark.parametrize("ways", WAYS)
def test_a_name_that_exists_is_never_stale(store, ways, name, size):
    with Mount(store, checkout="c") as m:
        refused = use(m, name, WAYS[ways], size)
        # Two who write into one file at once may leave what is no array: the last to close it is told.
        unexpected = {what: count for what, count in refused.items() if what[1] != "EINVAL"}
        assert not unexpected, refused
        until(lambda: m.status()["checkout"]["unfinished"] == [], "the end of writing")
        array = np.load(m / name)
        # Who overwrites does so in two writes, and between them another may write his.
        parts = array[:9], array[9:]
        assert array.shape == (size,) and all((part == part[0]).all() for part in parts if len(part)), array


def test_a_new_name_that_is_refused_again_and_again(store):
    with Mount(store, checkout="c") as m:
        refused = use(m, "new.npy", ["refused", "refused", "overwrite", "overwrite"])
        assert {error for _, error in refused} <= {"EINVAL"}, refused
        # One alone is told each time, however late the descriptors of the refusals before are let go.
        for n in range(300):
            with pytest.raises(OSError) as refusal:
                with open(m / "bad.npy", "wb", buffering=0) as file:
                    file.write(b"no array")
            assert refusal.value.errno == errno.EINVAL, n
        for n in range(100):
            with pytest.raises(OSError):
                with open(m / f"{n}.npy", "wb", buffering=0) as file:
                    file.write(b"no array")
            np.save(m / f"{n}.npy", np.arange(n))
            assert os.stat(m / f"{n}.npy").st_size == 128 + 8 * n
            np.testing.assert_array_equal(np.load(m / f"{n}.npy"), np.arange(n))
