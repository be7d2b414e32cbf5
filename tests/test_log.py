"""What a mount refuses is told by `npyfs log`, while it lives and afterwards, and by `npyfs umount`."""

import errno
import json
import os
import pwd
import re
import signal
import stat
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.mount import Mount, clear, make_point, until
from support.process import NPYFS, npyfs, one_line

pytestmark = pytest.mark.fast


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "store.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(4)
    return path


@pytest.fixture
def state(tmp_path, monkeypatch):
    path = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(path))
    return path / "npyfs"


def refuse(path):
    """A file that is no array; the program is told EINVAL and nothing else."""
    with pytest.raises(OSError) as problem:
        with open(path, "wb") as file:
            file.write(b"no array")
    assert problem.value.errno == errno.EINVAL


def log(*arguments):
    return npyfs("log", *arguments, check=True).stdout


def test_a_living_mount_tells_what_it_refused(store, state):
    with Mount(store, checkout="c") as m:
        assert log(m.path) == ""
        refuse(m / "x.npy")
        line, = log(m.path).splitlines()
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ .*store\.h5: x\.npy: close: ", line), line
        assert log(m / "a.npy") == line + "\n", "of something in the mount"
        entry, = map(json.loads, log("--json", m.path).splitlines())
        assert (entry["path"], entry["operation"], entry["errno"], entry["count"]) == ("x.npy", "close", errno.EINVAL, 1)
        assert entry["message"] in line
        # The same again is told again.
        refuse(m / "x.npy")
        again, = log(m.path).splitlines()
        assert again.endswith("(2 times)")
        refuse(m / "y.npy")
        assert len(log(m.path).splitlines()) == 2


def test_a_log_is_followed_until_the_mount_ends(store, state, tmp_path):
    out = tmp_path / "out"
    with Mount(store, checkout="c") as m:
        refuse(m / "x.npy")
        with open(out, "wb") as file:
            follower = subprocess.Popen([NPYFS, "log", "-f", m.path], stdin=subprocess.DEVNULL, stdout=file)
        try:
            until(lambda: out.read_text().count("\n") == 1, "what there was")
            refuse(m / "y.npy")
            until(lambda: out.read_text().count("\n") == 2, "what came")
            refuse(m / "x.npy")
            until(lambda: out.read_text().count("\n") == 3, "what came again")
        except BaseException:
            follower.kill()
            raise
    try:
        assert follower.wait(30) == 0
    finally:
        follower.kill()
    assert [line.split(": ")[1] for line in out.read_text().splitlines()] == ["x.npy", "y.npy", "x.npy"]


def test_a_log_outlives_its_mount(store, state):
    point = make_point()
    try:
        with Mount(store, checkout="c", point=point) as m:
            assert not state.exists(), "nothing is made before there is something to say"
            refuse(m / "x.npy")
            # Killed, it has written its log all the same.
            assert len(list(state.iterdir())) == 1
        first = log(point)
        heading, line = first.splitlines()
        assert str(point) in heading and str(store) in heading and "x.npy: close" in line
        with Mount(store, checkout="c", point=point) as m:
            refuse(m / "y.npy")
            assert "x.npy" not in log(point), "the log of a mount is that mount's"
        assert log(point).startswith(first) and len(log(point).splitlines()) == 4
        kept, = state.iterdir()
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600 and stat.S_IMODE(state.stat().st_mode) == 0o700
        headings = [entry for entry in map(json.loads, log("--json", point).splitlines()) if "mounted_at" in entry]
        assert [entry["mounted_at"] for entry in headings] == [str(point)] * 2
        # The checkout has it, too, whoever mounted it and wherever.
        by_checkout = log("--checkout", "c", store).splitlines()
        assert len(by_checkout) == 4 and by_checkout[1] == line
    finally:
        os.rmdir(point)


def test_the_log_of_a_dead_mount(store, state):
    with Mount(store, checkout="c") as m:
        refuse(m / "x.npy")
        told, = log(m.path).splitlines()
        m.expect_dead = True
        os.kill(m.pid, signal.SIGKILL)
        until(lambda: npyfs("show", m.path).returncode == 32, "its end")
        heading, line = log(m.path).splitlines()
        assert line == told and str(store) in heading and log(m / "a.npy") == log(m.path)
        done = npyfs("log", "-f", m.path)
        assert done.returncode == 32 and "whose process is gone" in one_line(done.stderr)
        clear(m.path)


def test_a_log_is_as_private_as_its_store(store, state):
    store.chmod(0o640)
    with Mount(store, checkout="c") as m:
        refuse(m / "x.npy")
        assert stat.S_IMODE(os.stat(m / ".npyfs/errors.jsonl").st_mode) & 0o007 == 0
    kept = store.parent / "store.h5.checkouts/c/log.jsonl"
    assert stat.S_IMODE(kept.stat().st_mode) & 0o007 == 0


def test_umount_names_what_was_refused_and_what_is_lost(store, state):
    point = make_point()
    try:
        with Mount(store, checkout="c", point=point) as m:
            m.expect_dead = True
            for i in range(12):
                refuse(m / f"x{i}.npy")
            (m / "notes.txt").write_text("scratch")
            np.save(m / "good.npy", np.arange(3))
            done = npyfs("umount", m.path)
        lines = done.stderr.splitlines()
        assert sum("refused: " in line for line in lines) == 11
        assert "x0.npy: close" in lines[0] and any("2 more" in line and "npyfs log" in line for line in lines)
        assert any("notes.txt: not stored" in line for line in lines), lines
        assert "good.npy" not in done.stderr
        assert "notes.txt: unmount: not stored" in log(point).splitlines()[-1]
    finally:
        os.rmdir(point)


def test_a_mount_in_front_says_what_it_refuses(store, state, tmp_path):
    said = tmp_path / "said"
    with Mount(store, checkout="c", log=said) as m:
        refuse(m / "x.npy")
        until(lambda: "x.npy: close" in said.read_text(), "the line")


@pytest.mark.parametrize("home", ["none", "full", "a file"])
def test_a_mount_works_where_its_log_cannot_be_kept(store, tmp_path, home):
    environment = {key: value for key, value in os.environ.items() if key not in ("HOME", "XDG_STATE_HOME")}
    if home == "full":
        environment["XDG_STATE_HOME"] = "/dev/full"
    if home == "a file":
        environment["HOME"] = str(tmp_path / "file")
        (tmp_path / "file").write_text("no directory")
    command = ["env", "-i", *(f"{key}={value}" for key, value in environment.items())]
    with Mount(store, checkout="c", prefix=command) as m:
        refuse(m / "x.npy")
        assert "x.npy: close" in log(m.path)
        users = [place for place in m.status()["logs"] if "checkouts" not in place["place"]]
        assert [place["failed"] is not None for place in users] == [home != "none"], users
    if home == "none":
        # As systemd mounts fstab: the user's entry in the passwd database has the home.
        place = Path(users[0]["place"])
        assert place.is_relative_to(Path(pwd.getpwuid(os.geteuid()).pw_dir, ".local/state/npyfs")), place
        place.unlink()


def test_there_is_no_log_where_nothing_was_mounted(state, tmp_path):
    for arguments in ([tmp_path / "nowhere"], ["-f", tmp_path]):
        done = npyfs("log", *arguments)
        assert done.returncode == 32 and done.stderr.count("\n") == 1 and "is not mounted" in done.stderr, done
    done = npyfs("log", "-f", "--checkout", "c", tmp_path)
    assert done.returncode == 1 and "--follow" in done.stderr
    with h5py.File(tmp_path / "s.h5", "w"):
        pass
    done = npyfs("log", "--checkout", "c", tmp_path / "s.h5")
    assert done.returncode == 2 and "no checkout c" in done.stderr


def test_a_checkout_is_free_when_umount_returns(store):
    for number in range(10):
        with Mount(store, checkout="c") as m:
            m.expect_dead = True
            np.save(m / f"x{number}.npy", np.arange(number))
            npyfs("umount", m.path, check=True)
            assert not m.alive(), "the process that holds the checkout"
    npyfs("checkout", "commit", store, "c", check=True)
