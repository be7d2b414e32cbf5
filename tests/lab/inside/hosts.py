"""Hosts that share a directory by NFS 4: they write, commit, take back, collect and follow at random, while they are stopped, killed and cut off.

A host is a set of namespaces with a network and a client of NFS of its own; the server is the machine itself. What each host was told is compared with
the bytes on the server's disk, by `support/histories.py` of the tests and Debian's h5py."""

import itertools
import json
import os
import sys
from pathlib import Path

import files
import h5py
import numpy as np
from machine import LAB, check, run, until
from ordinary import facts, install

os.environ["NPYFS_BIN"] = "/usr/bin/npyfs"
sys.path.insert(0, str(LAB))
from support.histories_run import Machine, Run  # noqa: E402
from support.networks import Node  # noqa: E402

SERVER = "10.77.0.1"
# A client with these options remembers for up to a minute which names are not there, but not beyond an open of their directory.
OPTIONS = "vers=4.2,proto=tcp"
REMEMBERED = 30  # seconds, at least


class Client(Machine):
    """A host that has the shared directory by NFS, where the server has it."""

    kinds = Node.kinds
    has_network = True
    numbers = itertools.count(2)

    def __enter__(self):
        super().__enter__()
        # A host that comes up again has its name, and another address: the cable of the one before may still be there.
        number = next(self.numbers)
        self.port = f"port{number}"
        run("ip", "link", "add", "eth0", "netns", self.init, "type", "veth", "peer", "name", self.port)
        run("ip", "link", "set", self.port, "master", "switch")
        run("ip", "link", "set", self.port, "up")
        self("sh", "-ec", f"ip link set lo up; ip addr add 10.77.{number >> 8}.{number & 255}/16 dev eth0; ip link set eth0 up")
        self("mount", "-t", "nfs4", "-o", OPTIONS, f"{SERVER}:/", self.shared)
        return self

    def cut(self):
        run("ip", "link", "set", self.port, "down")

    def join(self):
        run("ip", "link", "set", self.port, "up")


@check
def serve():
    for words in ("link add switch type bridge", f"addr add {SERVER}/16 dev switch", "link set switch up"):
        run("ip", *words.split())
    Client.shared = files.served(files.SCRATCH, "10.77.0.0/16")


# Writes an array, durably.
SAVE = """
import os, sys
import numpy as np
with open(sys.argv[1], "wb") as file:
    np.save(file, np.full(4, int(sys.argv[2])))
    file.flush()
    os.fsync(file.fileno())
"""


def made(name):
    """A store that the hosts share, and a mount point."""
    shared, point = Client.shared / name, Path("/srv") / name
    shared.mkdir()
    point.mkdir()
    with h5py.File(shared / "x.h5", "w") as file:
        file["x"] = np.zeros(4)
    return shared / "x.h5", point


@check
def seen_at_once():
    """A commit is seen by the other host as soon as it is made, also where that has just looked and found none, and soon by a mount that follows."""
    store, point = made("seen")
    follower = Path("/srv/follower")
    follower.mkdir()
    with Client("one") as one, Client("two") as two:
        def log():
            return json.loads(two("npyfs", "checkout", "log", "--json", store).stdout)

        two("npyfs", "mount", "-o", "follow=1", store, follower)
        for number in range(1, 4):
            assert len(log()) == len(log()) == number - 1
            one("npyfs", "mount", "--checkout", f"c{number}", store, point)
            one(sys.executable, "-c", SAVE, point / f"a{number}.npy", number)
            one("npyfs", "umount", point)
            one("npyfs", "checkout", "commit", store, f"c{number}")
            assert len(log()) == number, f"of {number} commits: {log()}"
            assert f"a{number}.npy" in two("npyfs", "ls", store).stdout
            until(lambda: f"a{number}.npy" in two("ls", follower).stdout, "who follows", REMEMBERED - 5)
        two("npyfs", "umount", follower)


@check
def lost_lock(how):
    """A host is cut off for longer than the server waits, and another one takes its checkout: nothing that either was told is lost, and the first one
    stores nothing more. The other one still has it ("held"), or no longer ("released"), and the first one only commits ("idle")."""
    store, point = made(how)
    words = [sys.executable, "-c", SAVE]
    with Client("one") as one, Client("two") as two:
        one("npyfs", "mount", "--checkout", "work", store, point)
        one(*words, point / "a.npy", 1)
        one.cut()
        # Its bytes leave the host when it is there again.
        late = one.start(*words, point / "late.npy", 2) if how != "idle" else None
        until(lambda: two("npyfs", "mount", "--checkout", "work", store, point, code=None).returncode == 0, "the checkout", 120)
        two(*words, point / "b.npy", 3)
        if how != "held":
            two("npyfs", "umount", point)
        one.join()
        told = [late.wait(120), *(one(*words, point / f"{name}.npy", 4, code=None).returncode for name in ("c", "d"))] if late else []
        committed = one("npyfs", "checkout", "commit", point, code=None)
        said = one("npyfs", "umount", point, code=None).stderr + committed.stderr
        if how == "held":
            two(*words, point / "e.npy", 5)
            two("npyfs", "umount", point)
        two("npyfs", "verify", store)
        two("npyfs", "checkout", "commit", store, "work")
        two("npyfs", "mount", store, point)
        names = two("ls", point).stdout.split()
        values = {name: two(sys.executable, "-c", "import sys, numpy; print(numpy.load(sys.argv[1])[0])", point / name).stdout.strip() for name in names}
        two("npyfs", "umount", point)
    expected = {"x.npy": "0.0", "a.npy": "1", "b.npy": "3", **({"e.npy": "5"} if how == "held" else {})}
    assert values == expected and 0 not in [*told, committed.returncode], f"{values}; what the first was told: {told}, {committed.returncode}, {said}"
    return f"the first was told {said.strip()[-300:]}"


@check
def history(seed, number, seconds):
    folder, shared = Path(f"/srv/history-{number}"), Client.shared / number
    folder.mkdir()
    shared.mkdir()
    with Run(folder, LAB / "hosts.so", "locks", seed, shared=shared, machine=Client) as made:
        made.go(seconds)
        said, found = made.summary(), made.problems()
    assert not found, f"{said}\n" + "\n".join(found)
    return said


def main(task):
    if install() and serve():
        facts()
        seen_at_once()
        for how in ("held", "released", "idle"):
            lost_lock(how)
        for number in range(task["histories"]):
            history(task["seed"] + number, str(number), task["seconds"])
