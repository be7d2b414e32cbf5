"""`npyfs status`: every mount of this user with what it shows, what is not committed, refusals, readers, memory; dead ones with
the command that takes them away. `npyfs info MOUNTPOINT` begins with the same.
Judge: the kernel's mount table, the processes of the test, what the test wrote and was refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.mount import Mount, mounted
from support.process import NPYFS, npyfs, one_line, run, stopped

pytestmark = pytest.mark.fast


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("status") / "plain.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(10)
        file.create_dataset("zipped", data=np.arange(100_000), chunks=(10_000,), compression="gzip")
    return path


def status(*points):
    done = npyfs("status", "--json", *points, check=True)
    return {one["mount_point"]: one for one in json.loads(done.stdout)}


def test_a_mount_is_listed_with_what_it_shows(store):
    with Mount(store, "sep=@,cache_size=64M,keep=1M") as mount:
        np.load(mount / "zipped.npy")
        one = status()[str(mount.path)]
        assert (one["store"], one["state"], one["writable"], one["remedy"], one["checkout"]) == (str(store), "live", False, None, None)
        assert one["options"] == {"sep": "@", "cache_size": 64 << 20} and one["cache"]["limit"] == 64 << 20
        assert one["kept"]["limit"] == 1 << 20 and one["refused"] == {"count": 0, "since": None} and one["readers"] == []
        resident = next(line for line in Path(f"/proc/{one['pid']}/status").read_text().splitlines() if line.startswith("VmRSS")).split()[1]
        assert int(resident) << 10 <= one["memory"] < 1 << 30
        assert Path(f"/proc/{one['pid']}/comm").read_text() == "npyfs\n"
        text = npyfs("status", check=True).stdout
        assert f"{mount.path}  live\n  store    {store}\n" in text and "  options  ro," in text
        assert npyfs("status", mount.path, check=True).stdout.startswith(f"{mount.path}  live\n")
    assert str(mount.path) not in status()


def test_something_in_a_mount_stands_for_it(store):
    with Mount(store) as mount:
        names = [name for name in os.listdir(mount.path)]
        for place in (mount / names[0], f"{mount.path}/"):
            assert list(status(place)) == [str(mount.path)]
        inside = npyfs("status", ".", cwd=mount.path, check=True)
        assert inside.stdout.startswith(f"{mount.path}  live\n")


def test_readers_and_refusals(store):
    with Mount(store) as mount:
        reader = subprocess.Popen([sys.executable, "-c", f"file = open('{mount.path}/x.npy'); print(flush=True); input()"],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        reader.stdout.readline()
        assert [one["process"] for one in status()[str(mount.path)]["readers"]] == [reader.pid]
        assert f"(process {reader.pid})" in npyfs("status", mount.path, check=True).stdout
        reader.communicate(b"\n")
        assert status()[str(mount.path)]["readers"] == []


def test_what_is_not_committed_or_saved(store, tmp_path):
    shutil.copy(store, tmp_path / "plain.h5")
    with Mount(tmp_path / "plain.h5", checkout="work") as mount:
        clean = status(mount.path)[str(mount.path)]
        assert clean["writable"] and clean["checkout"] == {"name": "work", "objects": 0, "deleted": 0, "unsaved": 0, "waiting": 0}
        assert "nothing that is not committed" in npyfs("status", mount.path, check=True).stdout
        np.save(mount / "new.npy", np.arange(3))
        os.remove(mount / "x.npy")
        with pytest.raises(OSError):
            with open(mount / "half.npy", "wb") as file:
                file.write(b"abc")
        before = status(mount.path)[str(mount.path)]
        assert (before["checkout"]["objects"], before["checkout"]["deleted"]) == (1, 1)
        assert before["refused"]["count"] == 1 and before["refused"]["since"].startswith("20")
        text = npyfs("status", mount.path, check=True).stdout
        assert "1 object not committed, 1 deletion not committed" in text and f"npyfs log {mount.path}" in text
        # A file that is being written is not saved.
        with open(mount / "open.npy", "wb") as file:
            file.write(b"\x93NUMPY")
            file.flush()
            assert status(mount.path)[str(mount.path)]["checkout"]["unsaved"] == 1
            os.remove(mount / "open.npy")


def test_info_of_a_mount_says_what_is_mounted_there(store):
    with Mount(store, "sep=@") as mount:
        told = npyfs("info", mount.path, check=True).stdout
        assert told.startswith(f"{mount.path}  live\n  store    {store}\n") and "\nkind     plain\n" in told
        assert json.loads(npyfs("info", "--json", mount.path, check=True).stdout)["kind"] == "plain"


def test_a_dead_mount_and_its_remedy(store):
    with Mount(store) as mount:
        mount.expect_dead = True
        os.kill(status()[str(mount.path)]["pid"], signal.SIGKILL)
        time.sleep(0.5)
        one = status()[str(mount.path)]
        assert one["state"] == "dead" and one["memory"] is None and one["checkout"] is None
        assert f"dead: its process is gone ({one['remedy']} takes it away)" in npyfs("status", check=True).stdout
        assert run(["bash", "-c", one["remedy"].replace("npyfs", str(NPYFS), 1)]).returncode == 0 and not mounted(mount.path)


def test_a_stuck_mount_costs_a_limited_time(store):
    with Mount(store) as mount:
        with stopped(status()[str(mount.path)]["pid"]):
            one = status(mount.path)[str(mount.path)]
        assert one["state"] == "stuck" and one["remedy"] == f"npyfs umount --lazy {mount.path}"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_others_see_their_own_mounts_only(store):
    with Mount(store) as mount:
        done = run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", NPYFS, "status", "--json"])
        if "denied" in done.stderr:
            pytest.skip("the program is not for others here")
        assert done.returncode == 0 and json.loads(done.stdout) == []
        one = json.loads(run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", NPYFS, "status", "--json", mount.path], check=True).stdout)[0]
        assert one["state"] == "closed" and one["user"] == "root" and one["remedy"] is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
@pytest.mark.parametrize("options, state, why", [("", "closed", "without -o allow_other"), ("allow_other", "live", "alone sees")])
def test_what_others_are_told(store, options, state, why):
    with Mount(store, options) as mount:
        def other(*arguments):
            return run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", NPYFS, *arguments])
        done = other("status", "--json", mount.path)
        if "denied" in done.stderr:
            pytest.skip("the program is not for others here")
        assert json.loads(done.stdout)[0]["state"] == state
        assert ("its own user alone is told" if state == "live" else "lets its own user in alone") in other("status", mount.path).stdout
        line = one_line(other("log", mount.path).stderr)
        assert "a mount of root" in line and why in line
        shown = other("show", mount.path)
        assert shown.returncode == (0 if state == "live" else 32)
        assert state == "live" or why in one_line(shown.stderr)


def test_bad_input(tmp_path):
    done = npyfs("status", tmp_path)
    assert done.returncode == 32 and "no store is mounted there" in one_line(done.stderr)
