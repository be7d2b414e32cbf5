"""Makes a history: hosts that write, commit, take back and follow at random on one store, while they are stopped, killed and cut off.

A host is a namespace of mounts, processes and names with a home of its own (`history_host.py` runs in it). Hosts share the store and a directory of
checkouts, or a bucket: each reaches it through a service of its own that loses, repeats and delays (`lossy.py`), which is all of its network. In a
machine of the laboratory they are clients of NFS, which gives `Run` its own kind of machine (`tests/lab/inside/hosts.py`)."""

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import h5py
import numpy as np

from . import histories
from .networks import Node
from .process import NPYFS

BASE = {"x0": -1, "x1": -2}
ADDRESS = "s3://data/dir/x.checkouts/"
LIMIT = 600  # seconds after which a host ends that nobody ended


class Machine(Node):
    """A host that shares the network of this one."""

    kinds = tuple(kind for kind in Node.kinds if kind != "--net")
    # Whether `cut` and `join` end and mend its network.
    has_network = False

    def prepare(self):
        return [f"hostname {self.name}"]

    def inside(self):
        """The processes of the host but its first."""
        own = os.readlink(f"/proc/{self.init}/ns/pid")
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if int(pid) != self.init and os.readlink(f"/proc/{pid}/ns/pid") == own:
                    yield int(pid)
            except OSError:
                pass

    def signal(self, number):
        """To all processes of the host. nsenter stops with what it has started, and does not go on by itself."""
        known = set()
        while new := set(self.inside()) - known:
            known |= new
            for pid in new:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
        if number == signal.SIGCONT:
            for process in self.started:
                process.send_signal(number)

    def __exit__(self, *problem):
        for process in self.started:
            process.kill()
        super().__exit__(*problem)


class Host:
    """A host of a history over its lives."""

    def __init__(self, run, index, is_follower=False):
        self.run, self.index, self.is_follower = run, index, is_follower
        self.name = f"h{index}"
        self.folder = run.folder / self.name
        self.folder.mkdir()
        self.log = self.folder / "log.jsonl"
        self.log.touch()
        self.clock = int(run.random.uniform(-900, 900))
        self.life = 0
        self.machine = self.process = self.lossy = None
        self.until = None  # when something that is done to it ends, and what ends it
        if run.s3:
            from .lossy import Lossy
            self.lossy = Lossy(run.s3.url)
            self.lossy.__enter__()
            self.lossy.fault = self.fault
            self.lock, self.chance, self.is_cut = threading.Lock(), random.Random(f"{run.seed} {self.name}"), False

    def fault(self, method, path):
        """What becomes of a request of the host."""
        with self.lock:
            if self.run.is_over:
                return None
            if self.is_cut:
                return "cut"
            if self.chance.random() >= self.run.share:
                return None
            kind = self.chance.choice(["refused", "failed", "lost", "cut", "twice", "late", "slow", "after"])
            # Some of it is longer than anybody waits.
            return (kind, self.chance.choice([0.2, 1, 5])) if kind in ("late", "slow", "after") else kind

    def start(self):
        self.life += 1
        home = self.folder / "home"
        env = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "XDG_CACHE_HOME": str(home / "cache")}
        env |= {"LD_PRELOAD": str(self.run.library), "NPYFS_CLOCK": str(self.clock), "NPYFS_LOCKS": str(int(self.run.has_locks)), "NPYFS_LOST": "0"}
        options = []
        if self.lossy:
            env |= {**self.run.s3.env, "AWS_ENDPOINT_URL": self.lossy.url}
            options = ["-o", f"endpoint={self.lossy.url},timeout=3", "--checkouts", ADDRESS]
        settings = {"host": self.name, "index": self.index, "life": self.life, "seed": self.run.seed, "npyfs": NPYFS, "store": str(self.run.store),
                    "folder": str(self.folder), "log": str(self.log), "env": env, "options": options, "is_follower": self.is_follower,
                    "stop": str(self.run.folder / ("end" if self.is_follower else "stop")), "kills": 0.2 if self.run.has_faults else 0,
                    "can_lose": self.run.has_faults and not self.run.s3, "is_gc_at_once": self.run.has_locks,
                    "relays": 0 if not self.run.has_locks else 20 if self.run.s3 and self.index == 0 else 4, "patience": 8 if self.run.s3 else 1}
        home.mkdir(exist_ok=True)
        self.machine = self.run.machine(self.name, limit=LIMIT)
        self.machine.__enter__()
        with open(self.folder / "errors", "ab") as errors:
            self.process = self.machine.start(sys.executable, Path(__file__).with_name("history_host.py"), json.dumps(settings), stderr=errors)

    def events(self):
        return histories.parse(self.log.read_text().splitlines())

    # --- what is done to it

    def kill(self):
        machine, self.machine = self.machine, None
        machine.__exit__(None, None, None)
        return self.start

    def stop(self):
        self.machine.signal(signal.SIGSTOP)
        return lambda: self.machine.signal(signal.SIGCONT)

    def cut(self):
        if self.machine.has_network:
            self.machine.cut()
            return self.machine.join
        self.is_cut = True
        return self.join

    def join(self):
        self.is_cut = False

    def end(self):
        if self.until:
            self.until[1]()
            self.until = None

    def close(self):
        if self.machine:
            self.machine.__exit__(None, None, None)
        if self.lossy:
            self.lossy.__exit__(None, None, None)


class Run:
    """One history. `place` is "locks", a directory whose locks all hosts see, "no locks", one whose locks nobody sees, or "bucket". `shared` is the
    directory of the store, which each `machine` has at the same path.

    After `with Run(...) as run: run.go(seconds)` it is judged by `run.problems()`."""

    def __init__(self, folder, library, place, seed, hosts=7, faults=True, shared=None, machine=Machine):
        self.folder, self.library, self.place, self.seed, self.has_faults = Path(folder), library, place, seed, faults
        self.machine = machine
        self.random = random.Random(f"{seed}")
        self.has_locks, self.is_over = place != "no locks", False
        self.share = 0.04 if faults else 0
        self.store = Path(shared or folder) / "x.h5"
        with h5py.File(self.store, "w") as file:
            for key, value in BASE.items():
                file[key] = np.full(4, value)
        self.s3, self.hosts, self.number, self.done, self.late = None, [], hosts, {}, []

    def __enter__(self):
        try:
            if self.place == "bucket":
                from .buckets import S3
                self.s3 = S3(data=[])
                self.s3.__enter__()
            for index in range(self.number):
                self.hosts.append(Host(self, index))
            self.hosts.append(Host(self, self.number, is_follower=True))
            for host in self.hosts:
                host.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for host in self.hosts:
            host.close()
        if self.s3:
            self.s3.__exit__(None, None, None)

    def go(self, seconds):
        """Lets the hosts work, and waits until all of them are done."""
        begin = time.monotonic()
        sleeper = self.long_sleep() if self.s3 and self.has_faults else iter(())
        while time.monotonic() < begin + seconds or next(sleeper, None):
            time.sleep(0.1)
            next(sleeper, None)
            for host in self.hosts:
                if host.until and time.monotonic() >= host.until[0]:
                    host.end()
            # The first host of a bucket is left to the long sleep.
            if self.has_faults and self.random.random() < 0.06:
                self.harm(self.random.choice(self.hosts[1 if self.s3 else 0:]))
        self.is_over = True
        for host in self.hosts:
            host.end()
        self.finish([host for host in self.hosts if not host.is_follower], "stop")
        self.wait_for_requests()
        self.made = self.read()
        self.await_follower()
        self.finish(self.hosts, "end")

    def harm(self, host):
        if host.until:
            return
        kinds = {"kill": host.kill, "stop": host.stop, **({"cut": host.cut} if self.s3 or host.machine.has_network else {})}
        kind = self.random.choice(list(kinds))
        self.count(kind)
        # A server of NFS takes a host for dead after a while, and gives what it had locked to others.
        longest = [15] if kind == "cut" and host.machine.has_network else []
        host.until = time.monotonic() + self.random.choice([0.1, 0.5, 2, 4, *longest]), kinds[kind]()

    def long_sleep(self):
        """Stops the first host while it writes in a checkout that others want, or commits it, until one of them has it. True as long as that is
        under way."""
        host, others, what = self.hosts[0], self.hosts[1:], self.random.choice(["save", "save", "commit"])
        while (begun := self.relaying(host, what)) is None:
            yield None
        if what == "commit":
            time.sleep(self.random.uniform(0, 0.3))
        wake = host.stop()
        self.count(f"{what} stopped for a lease")
        try:
            end = time.monotonic() + 130
            while time.monotonic() < end:
                if any(event.op == "take" and event.told == "taken" and event.checkout == "relay" and event.begin > begun
                       for other in others for event in other.events()):
                    self.count("taken over")
                    break
                for _ in range(5):
                    yield True
        finally:
            wake()
        # It goes on for a while.
        end = time.monotonic() + 5
        while time.monotonic() < end:
            yield True

    @staticmethod
    def relaying(host, what):
        """When a host began what it does now in the shared checkout, if it is `what`."""
        events = sorted(host.events(), key=lambda event: event.begin)
        last = events[-1] if events else None
        return last.begin if last and (last.op, last.checkout) == (what, "relay") else None

    def count(self, what):
        self.done[what] = self.done.get(what, 0) + 1

    def finish(self, hosts, name):
        (self.folder / name).touch()
        for host in hosts:
            if host.process:
                code = host.process.wait(300)
                assert code == 0, f"{host.name}: {code}\n{(host.folder / 'errors').read_text()[-3000:]}"

    def wait_for_requests(self):
        end = time.monotonic() + 30
        while any(host.lossy and host.lossy.pending for host in self.hosts) and time.monotonic() < end:
            time.sleep(0.1)

    def await_follower(self):
        """Until who follows is where all are."""
        follower, end = self.hosts[-1], time.monotonic() + 60
        at = None
        while time.monotonic() < end and at != len(self.made):
            time.sleep(0.3)
            seen = [event for event in follower.events() if event.op == "follow" and event.told == "seen"]
            at = seen[-1].number if seen else None
        if at != len(self.made):
            self.late = [f"who follows stays at commit {at} of {len(self.made)}: {follower.events()[-1]}"]

    # --- what is there

    def read(self):
        directory = self.store.with_name("x.h5.checkouts")
        if self.s3:
            directory = self.download()
        return histories.read_made(directory, value_of, BASE)

    def download(self):
        """A directory of what is in the bucket, laid out as one on a disk."""
        top = self.folder / "bucket"
        pages = self.s3.client.get_paginator("list_objects_v2").paginate(Bucket="data", Prefix="dir/x.checkouts/")
        for key in [item["Key"] for page in pages for item in page.get("Contents", [])]:
            path = top / key.removeprefix("dir/x.checkouts/").replace("%7E", "~")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.s3.client.get_object(Bucket="data", Key=key)["Body"].read())
        for path in sorted(top.glob("commits/*.json")):
            record = json.loads(path.read_text())
            content, layer = record["content"], top / record["layer"]
            text = content.get("part") or (layer / content["object"]).read_text()
            lines = [json.loads(line[9:]) for line in text.splitlines()[1:]]
            layer.mkdir(exist_ok=True)
            (layer / "index").write_text(lines[-1]["text"])
        return top

    def events(self):
        return [event for host in self.hosts for event in host.events()]

    def problems(self):
        return histories.problems(self.events(), self.made, BASE) + self.late

    def summary(self):
        """What was done, in a line."""
        counts = {}
        for event in self.events():
            counts[event.op, event.told] = counts.get((event.op, event.told), 0) + 1
        told = ", ".join(f"{op} {told}: {count}" for (op, told), count in sorted(counts.items(), key=str))
        fates = {}
        for host in self.hosts:
            for fate, count in (host.lossy.fates if host.lossy else {}).items():
                fates[fate] = fates.get(fate, 0) + count
        return f"{self.place}, seed {self.seed}: {len(self.made)} commits; {told}; done to hosts: {self.done}; requests: {fates}"


def value_of(path, key):
    with h5py.File(path) as file:
        values = np.unique(file[key][()])
    return int(values.item()) if values.size == 1 else sorted(values.tolist())
