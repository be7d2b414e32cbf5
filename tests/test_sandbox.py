"""What a worker can still do, tried out inside one: the hidden command `h5-probe` goes through a worker's door and then tries what a worker
that was led astray might. Judges: what it reports, and the files afterwards. Then what all this means for virtual datasets."""

import errno
import json
import os
import struct
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.mount import Mount, until
from support.process import NPYFS, run, workers

pytestmark = pytest.mark.fast

REFUSED = [errno.EPERM, errno.EACCES]
MARKED = 77  # a descriptor that a shell left open


@pytest.fixture
def place(tmp_path):
    """A store with other stores and other files beside it, and a file elsewhere."""
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir(), out.mkdir()
    for name in ("store.h5", "other.h5"):
        with h5py.File(folder / name, "w") as file:
            file["x"] = np.arange(5)
    (folder / "beside").write_bytes(b"secret beside")
    (folder / "doomed").write_bytes(b"doomed")
    (out / "secret").write_bytes(b"secret elsewhere")
    return folder, out


def probe(role, place):
    folder, out = place
    secret = os.open(out / "secret", os.O_RDWR)
    os.dup2(secret, MARKED, inheritable=True)
    os.close(secret)
    try:
        # A shell hands on what it has open. A reading worker may not write a file, not even the one with its report.
        done = run(["sh", "-c", '"$@" | cat', "sh", NPYFS, "h5-probe", role, folder / "store.h5", out / "secret", str(MARKED)],
                   pass_fds=[MARKED])
    finally:
        os.close(MARKED)
    assert done.returncode == 0, done
    report = json.loads(done.stdout)
    if report["sandbox"]["missing"]:
        pytest.skip(f"this kernel: {report['sandbox']['missing']}")
    return report


def state(place):
    return {path: (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns) for top in place for path in sorted(top.iterdir())}


ALLOWED = {
    "read": {"read the file": 0},
    "write": {"read the file": 0, "read a file beside it": 0, "write the file": 0},
    "tables": {"read the file": 0, "read a file beside it": 0, "write the file": 0, "flock": 0},
}


@pytest.mark.parametrize("role", ALLOWED)
def test_a_worker_can_do_what_it_is_for_and_nothing_else(role, place):
    before = state(place)
    report = probe(role, place)
    tried = report["tried"]
    assert len(tried) > 50
    for what, got in tried.items():
        if what in ALLOWED[role]:
            assert got == 0, (what, got)
        elif what == "read the inherited descriptor":
            assert got == errno.EBADF
        elif what == "lock the file by fcntl" and role == "tables":
            assert got == errno.EBADF, "it is open to read"
        else:
            assert got in REFUSED, (what, got)
    # Of 600 calls those on the list can be made, and no others, whatever the kernel has.
    assert report["unlisted"] == [] and 40 < len(report["reached"]) < 100, report["reached"]
    assert state(place) == before


def test_what_the_status_says_holds_for_every_worker(place):
    folder, _ = place
    with Mount(folder / "store.h5") as mount:
        np.testing.assert_array_equal(np.load(mount / "x.npy"), np.arange(5))
        said = mount.status()["worker_sandbox"]
        assert "descriptors" in said["enforced"]
        for pid in workers(mount.pid):
            links = {os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")}
            files = {link for link in links if not link.startswith(("socket:", "/dev/null", "anon_inode:"))}
            assert files <= {os.fspath(folder / "store.h5")}, files


def test_descriptors_of_the_shell_do_not_reach_the_workers(place):
    folder, out = place
    with Mount(folder, prefix=["sh", "-c", 'exec 9<"$0"; exec "$@"', out / "secret"]) as mount:
        np.load(mount / "store.h5/x.npy")
        assert workers(mount.pid)
        for pid in workers(mount.pid):
            assert not any("secret" in os.readlink(f"/proc/{pid}/fd/{n}") for n in os.listdir(f"/proc/{pid}/fd"))


def test_many_stores_in_many_directories_and_their_replacements_are_read(tmp_path):
    """Every worker may open some of the files only: others are started, and nobody notices."""
    for folder in range(6):
        (tmp_path / f"d{folder}").mkdir()
        for number in range(5):
            with h5py.File(tmp_path / f"d{folder}/{number}.h5", "w") as file:
                file.create_dataset("x", data=np.full(7, folder * 10 + number), chunks=(3,), compression="gzip")
    with Mount(tmp_path) as mount:
        for again in range(3):
            for number in range(5):
                for folder in range(6):
                    assert np.load(mount / f"d{folder}/{number}.h5/x.npy").tolist() == [folder * 10 + number] * 7
        with h5py.File(tmp_path / "new", "w") as file:
            file["x"] = np.full(7, 99)
        os.rename(tmp_path / "new", tmp_path / "d3/2.h5")
        until(lambda: np.load(mount / "d3/2.h5/x.npy")[0] == 99, "the new content")
        assert mount.errors() == [] and mount.status()["worker_restarts"] == 0


def virtual(path, *sources):
    layout = h5py.VirtualLayout((len(sources), 4), "i4")
    for i, source in enumerate(sources):
        layout[i] = h5py.VirtualSource(source, "d", (4,), "i4")
    with h5py.File(path, "w", libver="latest") as file:
        file.create_virtual_dataset("v", layout, fillvalue=-1)


def source(path, value):
    with h5py.File(path, "w") as file:
        file["d"] = np.full(4, value, "i4")


def test_sources_are_opened_as_they_were_checked(tmp_path):
    """A source that is replaced between two reads is another one, or an error, never the fill value; and never what a link leads to."""
    (tmp_path / "in").mkdir()
    source(tmp_path / "secret.h5", 666)
    for number in range(3):
        source(tmp_path / f"in/s{number}.h5", number)
    virtual(tmp_path / "in/a.h5", "s0.h5", "s1.h5", "gone.h5")
    virtual(tmp_path / "in/b.h5", "s2.h5", "s0.h5")
    with Mount(tmp_path / "in", "external=same-dir") as mount:
        assert np.load(mount / "a.h5/v.npy").tolist() == [[0] * 4, [1] * 4, [-1] * 4]
        assert np.load(mount / "b.h5/v.npy").tolist() == [[2] * 4, [0] * 4]
        source(tmp_path / "new", 7)
        os.rename(tmp_path / "new", tmp_path / "in/s1.h5")
        os.utime(tmp_path / "in/a.h5")

        def shown():
            try:
                return np.load(mount / "a.h5/v.npy").tolist()
            except OSError as problem:
                assert problem.errno == errno.ESTALE
                return None

        until(lambda: shown() == [[0] * 4, [7] * 4, [-1] * 4], "the new source")
        os.unlink(tmp_path / "in/s1.h5")
        os.symlink(tmp_path / "secret.h5", tmp_path / "in/s1.h5")
        os.utime(tmp_path / "in/a.h5")

        def denied():
            try:
                value = np.load(mount / "a.h5/v.npy")
            except OSError as problem:
                return problem.errno == errno.EACCES
            assert not (value == 666).any()
            return False

        until(denied, "the refusal of the link")


def without_landlock():
    """A program to start others with, for which the kernel has no Landlock: a filter answers ENOSYS for its three calls."""
    machine = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[os.uname().machine]
    load, equal, answer = 0x20, 0x15, 0x06
    allow, refuse = 6, 7  # lines
    code = [(load, 0, 0, 4), (equal, 0, allow - 2, machine), (load, 0, 0, 0)]
    code += [(equal, refuse - len(code) - 1 - i, 0, 444 + i) for i in range(3)]
    code += [(answer, 0, 0, 0x7FFF0000), (answer, 0, 0, 0x00050000 | errno.ENOSYS)]
    code = [struct.pack("HBBI", *line) for line in code]
    program = b"".join(code)
    return ["python3", "-c", f"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program({len(code)}, {program!r}))) == 0, os.strerror(ctypes.get_errno())
os.execvp(sys.argv[1], sys.argv[1:])
"""]


def test_without_landlock_sources_of_virtual_datasets_are_refused(tmp_path, root_only):
    source(tmp_path / "s.h5", 5)
    virtual(tmp_path / "v.h5", "s.h5")
    with h5py.File(tmp_path / "v.h5", "a") as file:
        file["link"] = h5py.ExternalLink("s.h5", "/d")
        file["own"] = np.arange(3)
    with Mount(tmp_path / "v.h5", "external=same-dir", prefix=without_landlock()) as mount:
        np.testing.assert_array_equal(np.load(mount / "own.npy"), np.arange(3))
        assert any("landlock" in line for line in mount.status()["worker_sandbox"]["missing"])
        with pytest.raises(OSError) as refused:
            np.load(mount / "v.npy")
        assert refused.value.errno == errno.EACCES and any("Landlock" in line for line in mount.errors())
        # npyfs itself opens what a link names.
        assert np.load(mount / "link.npy").tolist() == [5] * 4
    with Mount(tmp_path / "v.h5", "external=allow", prefix=without_landlock()) as mount:
        assert np.load(mount / "v.npy").tolist() == [[5] * 4]


# A library in all programs below, for a worker has no environment: $1, with the empty directory $2; standard output goes to $3.
PRELOADED = """
umount --all --lazy --types fuse.npyfs
mount -t tmpfs tmpfs "$2"
mkdir "$2/new" "$2/work"
mount -t overlay -o "lowerdir=/etc,upperdir=$2/new,workdir=$2/work" overlay /etc
echo "$1" > /etc/ld.so.preload
out=$3
shift 3
exec "$@" > "$out"
"""


def test_an_older_landlock_is_not_taken_for_none(tmp_path, root_only):
    """Linux 5.13 to 6.11 have a part of what is asked for. All versions say which files a worker may open, so what it opens later is
    handed to it."""
    library, layer, out = tmp_path / "older.so", tmp_path / "layer", tmp_path / "out.npy"
    layer.mkdir()
    run(["cc", "-O1", "-shared", "-fPIC", "-o", library, Path(__file__).with_name("support") / "landlock.c", "-ldl"], check=True)
    source(tmp_path / "s.h5", 5)
    virtual(tmp_path / "v.h5", "s.h5")
    with Mount(tmp_path / "s.h5", checkout="c") as mount:
        np.save(mount / "new.npy", np.arange(9))
    run([NPYFS, "checkout", "commit", tmp_path / "s.h5", "c"], check=True)

    def read(*command):
        run(["unshare", "--mount", "--propagation", "private", "sh", "-ec", PRELOADED, "sh", library, layer, out, NPYFS, "cat", *command], check=True)
        return np.load(out).tolist()
    assert read(tmp_path / "s.h5", "d.npy") == [5] * 4
    assert read(tmp_path / "s.h5", "new.npy") == list(range(9))
    assert read("-o", "external=same-dir", tmp_path / "v.h5", "v.npy") == [[5] * 4]
