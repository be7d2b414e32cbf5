"""Random calls on two directories, one on a disk and one in a mount: each call has the same outcome, and the files are the same.

Several descriptors are open at a time, while names are renamed, also to names that are no array's, and deleted and used again. Each
file that is written is whole. A commit changes nothing. After some hundred calls the files with scratch names are deleted, and the
mount is made anew. At the end, h5py reads an export of the checkout."""

import errno
import os
import random
import shutil

import h5py
import numpy as np
import pytest

from support import hangar
from support.process import npyfs
from support.sampling import Sample
from support.truth import np_save
from test_checkout_races import mounts
from test_hangar_commit import STAGE, commit

SAMPLE = Sample(__file__, "write")
ROUNDS = SAMPLE.count(3, 20)
MOUNTS, CALLS = 3, 400
FLAT = ["s.npy", "t.npy", "u.tmp", "v.tmp"]
DEEP = ["s.npy", "t.npy", "x.npy", "u.tmp", "d/s.npy", "d/v.tmp", "d/f/s.npy", "e/s.npy", "e/w.tmp"]
DIRECTORIES = ["d", "e", "d/f"]
WAYS = [
    os.O_RDONLY,
    os.O_WRONLY,
    os.O_RDWR,
    os.O_WRONLY | os.O_TRUNC,
    os.O_RDWR | os.O_CREAT,
    os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    os.O_WRONLY | os.O_CREAT | os.O_EXCL,
]


CONTENTS = [np_save(np.full((5, 4), n, "<f4")) for n in range(50)]


def files_of(root):
    """{path: content} of all files below a directory, and {path: None} of all directories."""
    found = {}
    for folder, directories, files in os.walk(root):
        if ".npyfs" in directories:
            directories.remove(".npyfs")
        for name in directories:
            found[os.path.relpath(os.path.join(folder, name), root)] = None
        for name in files:
            with open(os.path.join(folder, name), "rb") as file:
                found[os.path.relpath(os.path.join(folder, name), root)] = file.read()
    return found


class Twins:
    """The two directories, and the descriptors of files that are open in both."""

    def __init__(self, seed, names, directories):
        self.choose = random.Random(seed)
        self.names, self.directories = names, directories
        self.roots, self.open, self.calls = (), [], []

    def same(self, what, outcomes):
        self.calls.append((*what, outcomes[1]))
        short = [[entry[:3] for entry in self.calls[-30:]], outcomes]
        assert outcomes[0] == outcomes[1], short
        return outcomes[0][0] == "done"

    def both(self, what, call):
        """Makes a call in both directories. Returns true if it succeeded."""
        return self.same(what, [outcome(call, root) for root in self.roots])

    def call_some(self, count, mount):
        """Makes some calls, and commits what they did in between."""
        for call in range(count):
            self.one_call()
            if call % 20 == 0:
                self.compare()
            if call % 100 == 99:
                done = npyfs("checkout", "commit", "-m", f"call {call}", mount.path)
                assert done.returncode == 0 or "nothing" in done.stderr, done.stderr
                self.compare()

    def one_call(self):
        choose = self.choose
        do = choose.choice(["open"] * 3 + ["write"] * 2 + ["close"] * 2 + ["rename"] * 2 + [
            "truncate", "fsync", "dup", "pread", "unlink", "read", "utime", "mkdir", "rmdir"])
        name, other = choose.choice(self.names), choose.choice(self.names)
        content = choose.choice(CONTENTS)
        if do == "open":
            self.open_both(name, choose.choice(WAYS), content)
        elif do in ("write", "truncate", "close", "fsync", "dup", "pread"):
            self.with_descriptor(do, content)
        elif do in ("mkdir", "rmdir"):
            if self.directories:
                path = choose.choice(self.directories)
                self.both((do, path), lambda root: getattr(os, do)(root / path))
        elif do == "rename":
            self.both((do, name, other), lambda root: os.rename(root / name, root / other))
        elif do == "unlink":
            self.both((do, name), lambda root: os.unlink(root / name))
        elif do == "utime":
            self.both((do, name), lambda root: os.utime(root / name, (10**9, 10**9 + len(self.calls))))
        else:
            self.both((do, name), lambda root: (root / name).read_bytes())

    def open_both(self, name, way, content):
        if len(self.open) > 6:
            return
        found = []

        def call(root):
            file = os.open(root / name, way, 0o644)
            found.append(file)
            if way & (os.O_CREAT | os.O_TRUNC):
                os.pwrite(file, content, 0)

        if self.both(("open", name, oct(way)), call):
            self.open.append((found, way))

    def with_descriptor(self, do, content):
        if not self.open:
            return
        at = self.choose.randrange(len(self.open))
        files, way = self.open[at]
        # What was opened to be read only keeps the version that was there.
        if do == "pread" and way & os.O_ACCMODE == os.O_RDONLY:
            return
        if do == "close":
            del self.open[at]
        calls = {
            "write": lambda file: os.pwrite(file, content, 0),
            "truncate": lambda file: (os.ftruncate(file, 0), os.pwrite(file, content, 0)),
            "close": os.close,
            "fsync": os.fsync,
            "dup": lambda file: os.close(os.dup(file)),
            "pread": lambda file: os.pread(file, 100_000, 0),
        }
        self.same((do, at), [outcome(calls[do], file) for file in files])

    def compare(self):
        disk, mount = (files_of(root) for root in self.roots)
        differ = {path for path in disk.keys() | mount.keys() if disk.get(path, "") != mount.get(path, "")}
        assert not differ, (differ, [entry[:3] for entry in self.calls[-100:]])

    def close_all(self):
        for files, _ in self.open:
            for file in files:
                os.close(file)
        self.open.clear()

    def delete_scratch(self):
        for name in self.names:
            if name.endswith(".tmp"):
                self.both(("unlink", name), lambda root, name=name: os.unlink(root / name))


def outcome(call, argument):
    try:
        return "done", call(argument)
    except OSError as e:
        return "failed", errno.errorcode[e.errno]


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.parametrize("kind", ["plain", "hangar", "bucket"])
def test_a_mount_and_a_disk_agree(tmp_path, kind, seed):
    disk, store, below = tmp_path / "disk", tmp_path / "x.h5", ""
    disk.mkdir()
    is_flat = kind == "hangar"
    if is_flat:
        store, below = tmp_path / "repository", "stage/a"
        hangar.script(STAGE, store, "0")
        commit(store, "first")
    else:
        with h5py.File(store, "w") as file:
            file["x"] = np.zeros(3)
            file["d/x"] = np.zeros(3)
    twins = Twins(f"{os.environ['NPYFS_SEED']} {kind} {seed}", FLAT if is_flat else DEEP, [] if is_flat else DIRECTORIES)
    with mounts(kind, tmp_path, store) as mount:
        for n in range(MOUNTS):
            with mount() as m:
                twins.roots = (disk, m / below)
                if n == 0:
                    shutil.copytree(m / below, disk, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".npyfs"))
                twins.compare()
                try:
                    twins.call_some(CALLS // 4 if kind == "bucket" else CALLS, m)
                finally:
                    twins.close_all()
                twins.compare()
                twins.delete_scratch()
                twins.compare()
    assert npyfs("verify", store).returncode == 0
    if kind == "plain":
        npyfs("checkout", "export", store, "c", tmp_path / "out.h5", check=True)
        arrays = {}
        with h5py.File(tmp_path / "out.h5") as file:
            file.visititems(lambda name, item: arrays.update({f"{name}.npy": item[()]}) if isinstance(item, h5py.Dataset) else None)
        expected = {path: np.load(disk / path) for path, content in files_of(disk).items() if content is not None}
        assert arrays.keys() == expected.keys()
        for path, array in arrays.items():
            np.testing.assert_array_equal(array, expected[path])
