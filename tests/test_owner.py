"""root works in what belongs to somebody else: what it makes there belongs to him, and he goes on with it. Judges: real Hangar that runs as
that user, npyfs that runs as him, h5py, and the owners that the kernel tells."""

import os
import shutil
import signal
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from support import hangar
from support.mount import Mount, until
from support.process import NPYFS, npyfs, process_start, run, workers
from test_hangar_commit import STAGE
from test_hangar_stage import content, samples, sync, write

USER, GROUP = 2001, 3000
PLAIN = ["setpriv", f"--reuid={USER}", f"--regid={GROUP}", "--clear-groups"]
# Only to read what is below a directory of root's, as Python may be: writing is left to the user's own rights.
READS_ALL = [*PLAIN, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]

# Looks at what is staged, and goes on with it.
GO_ON = '''
path, number = sys.argv[1], sys.argv[2]
assert os.getuid() == 2001, os.getuid()
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    repo = Repository(path)
    co = repo.checkout(write=True)
    staged = columns(co)
    co["a"]["user_" + number] = np.full((5, 4), float(number), "f4")
    co["text"]["user_" + number] = "of the user " + number
    co["raw"]["user_" + number] = b"of the user " + number.encode()
    digest = co.commit("by the user")
    co.close()
    verified = repo.verify_repo_integrity()
print(json.dumps({"staged": staged, "digest": digest, "verified": verified}))
'''

RESET = '''
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    repo = Repository(sys.argv[1])
    co = repo.checkout(write=True)
    co.reset_staging_area()
    staged = columns(co)
    co.close()
    verified = repo.verify_repo_integrity()
print(json.dumps({"staged": staged, "verified": verified}))
'''


@pytest.fixture(params=["a directory of everybody's", "a directory of root's"])
def place(request, root_only):
    folder = Path(tempfile.mkdtemp(prefix="npyfs-owner-"))
    try:
        folder.chmod(0o755 if "everybody" in request.param else 0o700)
        yield folder
    finally:
        shutil.rmtree(folder)


def as_user(text, *arguments):
    """A script with Hangar, run by the user."""
    prefix = [*READS_ALL, "--", "env", "HOME=/nonexistent"]
    # Hangar asks access(2), for which the right to read counts nothing.
    above = Path(arguments[0]).parent
    mode = above.stat().st_mode & 0o7777
    above.chmod(0o755)
    try:
        return hangar.script(text, *arguments, prefix=prefix)
    finally:
        above.chmod(mode)


def give(top):
    for path in [top, *top.rglob("*")]:
        os.chown(path, USER, GROUP, follow_symlinks=False)


def strangers(*tops):
    """What does not belong to the user."""
    paths = [path for top in tops if top.exists() for path in [top, *top.rglob("*")]]
    assert paths
    return {str(path): path.lstat().st_uid for path in paths if (path.lstat().st_uid, path.lstat().st_gid) != (USER, GROUP)}


@pytest.fixture
def repository(place):
    """A repository of the user's, with columns of all kinds that its Hangar has committed."""
    path = place / "repo"
    path.mkdir()
    os.chown(path, USER, GROUP)
    as_user(STAGE + '''
with contextlib.redirect_stdout(io.StringIO()):
    co = repo.checkout(write=True)
    co.add_ndarray_column("lzf", prototype=np.zeros((40, 30), "i4"), backend="01", backend_options={"complib": "lzf", "complevel": None, "shuffle": True})
    co.add_ndarray_column("numpy", prototype=np.zeros((6, 5), "i4"), backend="10")
    co.commit("columns")
    co.close()
''', path, "0")
    assert strangers(path) == {}
    return path


def values(number):
    rng = np.random.default_rng(number)
    return {
        f"a/{number}.npy": rng.random((5, 4)).astype("f4"), f"lzf/{number}.npy": rng.integers(0, 9, (40, 30)).astype("i4"),
        f"numpy/{number}.npy": rng.integers(0, 9, (6, 5)).astype("i4"), f"vary/{number}.npy": rng.integers(0, 9, (3, 9)).astype("u1"),
        f"deep/{number}/x.npy": rng.integers(0, 9, (2, 2)), f"text/{number}.txt": f"text of root {number}", f"raw/{number}.bin": b"bytes of root",
        f"new{number}/0.npy": rng.random((7, 7)), f"newtext{number}/0.txt": "a new column",
    }


def put(mount, number):
    for name, value in values(number).items():
        path = mount / "stage" / name
        path.parent.mkdir(exist_ok=True)
        write(path, value)
    sync(mount)


def check(judged, number):
    found = samples(judged)
    for name, value in values(number).items():
        column, *keys = name.rsplit(".", 1)[0].split("/")
        assert found[column][tuple(keys)] == content(value), name


def test_the_owner_goes_on_with_his_repository(repository):
    checkouts = repository.with_name("repo.checkouts")
    with Mount(repository, checkout="work") as m:
        put(m, 101)
        assert strangers(repository, checkouts) == {}
        write(m / "stage/a/104.npy", np.zeros((5, 4), "f4"))
        (m / "stage/a/0.npy").unlink()
        assert m.errors() == []
    assert strangers(repository) == {}
    told = as_user(GO_ON, repository, "1")
    assert told["verified"] is True
    check(told, 101)
    assert ("0",) not in samples(told)["a"] and ("104",) in samples(told)["a"]
    # In turns: root stages and commits, the user commits.
    with Mount(repository, checkout="work") as m:
        put(m, 102)
        assert m.errors() == []
    npyfs("checkout", "commit", "-m", "by root", repository, check=True)
    assert strangers(repository) == {}
    told = as_user(GO_ON, repository, "2")
    assert told["verified"] is True
    check(told, 102)
    # What root has staged, the user takes back, with its files.
    before = {path.name for path in (repository / ".hangar/data").glob("*/*")}
    with Mount(repository, checkout="work") as m:
        put(m, 103)
        assert m.errors() == []
    assert strangers(repository) == {} and {path.name for path in (repository / ".hangar/data").glob("*/*")} > before
    told = as_user(RESET, repository)
    assert told["verified"] is True and "new103" not in told["staged"]
    assert {path.name for path in (repository / ".hangar/data").glob("*/*")} == before
    # And root what the user has staged.
    as_user('''
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    co = Repository(sys.argv[1]).checkout(write=True)
    co["a"]["staged"] = np.ones((5, 4), "f4")
    co["raw"]["staged"] = b"staged"
    co.close()
''', repository)
    npyfs("checkout", "reset", repository, check=True)
    assert strangers(repository) == {}
    assert as_user(GO_ON, repository, "3")["verified"] is True


def of_process(pid, what):
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(f"{what}:")]
    return line.split()[1:]


def writers(mount):
    """{process: its first argument} of the workers that write."""
    arguments = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1].decode() for pid in workers(mount.pid)}
    return {pid: argument for pid, argument in arguments.items() if argument in ("h5-writer", "lmdb-writer")}


def test_workers_that_write_are_the_owner_and_end_with_their_daemon(repository):
    with Mount(repository, checkout="work") as m:
        put(m, 101)
        found = writers(m)
        assert set(found.values()) == {"h5-writer", "lmdb-writer"}
        for pid in found:
            assert of_process(pid, "Uid") == [str(USER)] * 4 and of_process(pid, "Gid") == [str(GROUP)] * 4
            assert of_process(pid, "Groups") == []
            for what in ("CapPrm", "CapEff"):
                assert int(of_process(pid, what)[0], 16) & ~(1 << 2) == 0, "more than CAP_DAC_READ_SEARCH"
            for what in ("CapInh", "CapAmb"):
                assert int(of_process(pid, what)[0], 16) == 0
        # One that hangs hears nothing of the end of its connection.
        stopped = {pid: process_start(pid) for pid, argument in found.items() if argument == "h5-writer"}
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        m.expect_dead = True
        os.kill(m.pid, signal.SIGKILL)
        until(lambda: not any(process_start(pid) == start for pid, start in stopped.items()), "the end of the writers")
    with Mount(repository, checkout="work") as m:
        put(m, 102)
        assert m.errors() == []
    assert strangers(repository) == {}
    check(as_user(GO_ON, repository, "1"), 102)


@pytest.mark.parametrize("right, words", [("chown", "cannot be given to user 2001"), ("setuid", "cannot become user 2001")])
def test_root_without_that_right_is_told_and_leaves_nothing_of_its_own(repository, right, words):
    prefix = ["setpriv", "--bounding-set", f"-{right}", "--inh-caps", f"-{right}", "--"]
    with Mount(repository, checkout="work", prefix=prefix) as m:
        with pytest.raises(OSError):
            put(m, 101)
        assert any(words in line for line in m.errors()), m.errors()
        m.expect_dead = True
        assert npyfs("umount", m.path).returncode != 0
        npyfs("umount", "--lazy", m.path)
        until(lambda: not m.alive(), "the end of the daemon")
    assert strangers(repository) == {}
    assert as_user(GO_ON, repository, "1")["verified"] is True


def test_the_owner_goes_on_with_a_checkout_of_his_store(place):
    store, out = place / "x.h5", place / "out"
    shutil.copy(NPYFS, place / "npyfs")
    place.chmod(0o755)
    with h5py.File(store, "w") as file:
        file["x"] = np.arange(10.0)
        file.create_dataset("zip", data=np.arange(1000), chunks=(100,), compression="gzip")
    os.chown(store, USER, GROUP)
    store.chmod(0o644)
    out.mkdir()
    os.chown(out, USER, GROUP)
    arrays = {"x": np.ones(3), "zip": np.arange(5000), "group/large": np.arange(600_000.0), "text": np.array(["a", "öä"])}
    with Mount(store, checkout="c") as m:
        (m / "group").mkdir()
        for name, array in arrays.items():
            np.save(m / f"{name}.npy", array)
            # Again: written over what is there.
            np.save(m / f"{name}.npy", array)
        sync(m)
        for name, array in arrays.items():
            np.testing.assert_array_equal(np.load(m / f"{name}.npy"), array)
        assert m.errors() == []
    assert strangers(store.with_name("x.h5.checkouts")) == {}
    # The directory is root's: what is beside the store is there already.
    user = [*PLAIN, "--", place / "npyfs"]
    assert "\nc " in run([*user, "checkout", "ls", store], check=True).stdout
    run([*user, "checkout", "commit", "-m", "by the user", store, "c"], check=True)
    run([*user, "checkout", "export", store, out / "out.h5"], check=True)
    with h5py.File(out / "out.h5") as file:
        for name, array in arrays.items():
            found = file[name].asstr()[()] if name == "text" else file[name][()]
            np.testing.assert_array_equal(found, array)
    with Mount(store, checkout="c2") as m:
        np.testing.assert_array_equal(np.load(m / "x.npy"), np.ones(3))
        np.save(m / "x.npy", np.zeros(4))
        assert m.errors() == []
    run([*user, "checkout", "discard", store, "c2"], check=True)
