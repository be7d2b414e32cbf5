"""What one host of a history does, as a program: it writes, commits, takes back, collects and reads at random, or follows, until a file says stop.

    python3 history_host.py SETTINGS    a JSON object, see `histories_run.py`

Before and after each step it appends a line to its log, which `histories.parse` reads; whoever kills it leaves steps without an end. It runs npyfs
by commands and through its mounts, and knows nothing of what other hosts do."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

LOST = (0, 0, 0, 17, 5)  # what a link that was made says, on a shared directory: EEXIST, EIO
LONGEST = 150  # seconds that a command may take


class Host:
    def __init__(self, settings):
        self.__dict__.update(settings)
        self.random = random.Random(f"{self.seed} {self.host} {self.life}")
        self.folder = Path(self.folder)
        self.point = self.folder / f"mnt-{self.life}"
        self.point.mkdir(parents=True, exist_ok=True)
        self.out = open(self.log, "a")
        # The line before may have no end.
        self.out.write("\n")
        # No value is used twice, in whatever life of the host.
        self.next = (self.index * 1000 + self.life) * 100_000
        self.steps = 0

    # --- the log

    def write(self, record):
        self.out.write(json.dumps(record) + "\n")
        self.out.flush()

    @contextlib.contextmanager
    def step(self, op, **more):
        """A step that is under way; its end is written with what `record` says by then. Without `told` it has no end, and is as if never asked."""
        self.steps += 1
        record = {"event": f"{self.host}/{self.life}/{self.steps}", "op": op, "host": self.host, "begin": time.monotonic(), **more}
        self.write(record)
        yield record
        self.write({**record, "end": time.monotonic()})

    def number(self):
        self.next += 1
        return self.next

    # --- commands

    def environment(self):
        extra = {"NPYFS_LOST": str(self.random.choice(LOST))} if self.can_lose else {}
        return {**os.environ, **self.env, **extra}

    def run(self, *words, kill=None):
        """A command; `kill` is the time after which it is killed. Returns exit code, output, errors."""
        process = subprocess.Popen([self.npyfs, *map(str, words)], env=self.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        try:
            out, error = process.communicate(timeout=LONGEST if kill is None else kill)
        except subprocess.TimeoutExpired:
            process.kill()
            out, error = process.communicate()
        return process.returncode, out, error

    def checkout(self, command, *words, kill=None):
        return self.run("checkout", command, *self.options, *words, kill=kill)

    def made(self, record, code, out, error):
        """What a command that commits was told."""
        done = re.search(r"^commit (\d+): ", out, re.M)
        if code == 0:
            record |= {"told": "made", "number": int(done[1])} if done else {"told": "nothing"}
        else:
            record["told"] = "refused" if code == 3 and "nothing was committed" in error and "not known" not in error else "unclear"
        record["why"] = f"{code} {(out + error).strip()[-300:]}"

    # --- mounts

    def mount(self, *words):
        return self.run("mount", *self.options, *words, self.store, self.point)

    def umount(self):
        """Ends the mount; false if what was written may not be stored."""
        code, _, error = self.run("umount", self.point)
        if code == 0:
            return True
        self.clear()
        return False

    def clear(self):
        """Ends what is mounted, dead or alive."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            os.kill(self.status()["pid"], signal.SIGKILL)
        subprocess.run(["umount", "-l", self.point], stderr=subprocess.DEVNULL)
        # A mount point that was busy is not used again.
        self.point = self.folder / f"mnt-{self.life}-{self.steps}"
        self.point.mkdir(exist_ok=True)

    def status(self):
        return json.loads((self.point / ".npyfs/status.json").read_text())

    def arrays(self):
        """{name: value} of all arrays that are shown."""
        shown = {}
        for path in sorted(self.point.glob("*.npy")):
            # Who follows may see a name go between the listing and the opening.
            with contextlib.suppress(FileNotFoundError):
                values = set(np.load(path).ravel().tolist())
                shown[path.stem] = values.pop() if len(values) == 1 else sorted(values)
        return shown

    def take(self, checkout):
        with self.step("take", checkout=checkout) as record:
            code, _, error = self.mount("--checkout", checkout)
            record |= {"told": "taken" if code == 0 else "refused", "why": error.strip()[-200:]}
        if code:
            self.clear()
            time.sleep(0.1)
        return code == 0

    def save(self, checkout, key, value):
        """Writes an array, or deletes it, and syncs. True if it is stored."""
        path = self.point / f"{key}.npy"
        with self.step("save", checkout=checkout, key=key, value=value) as record:
            try:
                if value is None:
                    os.remove(path)
                    target = self.point
                else:
                    np.save(path, np.full(self.random.choice((4, 4, 300)), value))
                    target = path
                handle = os.open(target, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
                record["told"] = "stored"
            except OSError as problem:
                record |= {"told": "failed", "why": str(problem)}
        return record["told"] == "stored"

    def saves(self, checkout, own):
        """A few writes; false if one of them failed."""
        done = self.save(checkout, own, self.number())
        while done and self.random.random() < 0.5:
            key = f"x{self.random.randrange(3)}"
            there = (self.point / f"{key}.npy").exists()
            done = self.save(checkout, key, None if there and self.random.random() < 0.25 else self.number())
        return done

    # --- steps

    def commit(self, checkout, *, mounted=False, ours=False):
        kill = self.random.uniform(0.005, 0.4) if not mounted and self.random.random() < self.kills else None
        with self.step("commit", checkout=checkout, ours=ours, mounted=mounted) as record:
            flags = ["--ours"] if ours else []
            words = [self.point] if mounted else [self.store, checkout]
            code, out, error = self.run("checkout", "commit", *flags, *([] if mounted else self.options), *words, kill=kill)
            self.made(record, code, out, error)
        return record

    def batch(self):
        """A checkout that is written, unmounted and committed."""
        checkout = f"{self.host}-{self.life}-{self.steps}"
        if not self.take(checkout):
            return
        if self.random.random() < self.kills:
            self.saves(checkout, f"o{self.index}")
            self.clear()
        else:
            self.saves(checkout, f"o{self.index}")
            self.umount()
        told = self.commit(checkout)
        for _ in range(3):
            if told["told"] == "made":
                return
            told = self.commit(checkout, ours="--ours" in told["why"])
        if told["told"] == "refused":
            self.checkout("discard", self.store, checkout)

    def live(self):
        """A mount that commits, and goes on."""
        checkout = f"{self.host}-{self.life}-{self.steps}"
        if not self.take(checkout):
            return
        for _ in range(self.random.randint(1, 3)):
            if not self.saves(checkout, f"o{self.index}") or self.commit(checkout, mounted=True)["told"] != "made":
                break
        self.umount()
        if self.random.random() < 0.5:
            self.commit(checkout, ours=True)

    def relay(self):
        """A checkout in which all hosts write, one after the other."""
        checkout = "relay"
        if not self.take(checkout):
            return
        end, count = time.monotonic() + self.random.uniform(0, self.patience), 0
        # Who was stopped meanwhile goes on.
        while self.save(checkout, f"r{self.index}", self.number()) and (time.monotonic() < end or count < 3):
            count += 1
            time.sleep(0.2)
        self.umount()
        if self.random.random() < 0.5:
            self.commit(checkout, ours=True)

    def revert(self):
        ids = self.look()
        if not ids:
            return
        of = self.random.choice(ids[-4:])
        kill = self.random.uniform(0.005, 0.4) if self.random.random() < self.kills else None
        with self.step("revert", of=of) as record:
            self.made(record, *self.checkout("revert", self.store, of, kill=kill))

    def look(self):
        with self.step("log") as record:
            code, out, error = self.checkout("log", "--json", self.store)
            if code == 0:
                record |= {"told": "seen", "seen": [commit["id"] for commit in reversed(json.loads(out))]}
            else:
                record |= {"told": "failed", "why": error.strip()[-300:]}
        return record.get("seen")

    def see(self):
        """What a new mount shows."""
        with self.step("mount") as record:
            code, _, error = self.mount()
            if code:
                record |= {"told": "failed", "why": error.strip()[-300:]}
            else:
                try:
                    record |= {"seen": self.arrays(), "told": "seen"}
                except OSError as problem:
                    record |= {"told": "failed", "why": str(problem)}
        self.umount() if code == 0 else self.clear()

    def gc(self):
        with self.step("gc") as record:
            code, out, error = self.checkout("gc", "--older-than", "0s" if self.is_gc_at_once else "7d", self.store)
            record |= {"told": "done" if code == 0 else "failed", "why": (out + error).strip()[-300:]}

    def follow(self):
        """A mount that follows, until the end."""
        while not os.path.exists(self.stop):
            code, _, error = self.mount("-o", "follow=1")
            if code:
                self.clear()
                time.sleep(0.5)
                continue
            mount, is_last = f"{self.life}-{self.steps}", False
            while not is_last:
                is_last = os.path.exists(self.stop)
                with self.step("follow", checkout=mount) as record:
                    try:
                        seen = self.arrays()
                        status = self.status()["follow"]
                        record |= {"seen": seen, "number": status["commit"] or 0, "id": status["id"], "told": "seen", "why": str(status["stays_because"])}
                    except OSError as problem:
                        record |= {"told": "failed", "why": str(problem)}
                        is_last = True
                time.sleep(0.3)
            self.clear() if record["told"] == "failed" else self.umount()

    def work(self):
        steps = {self.batch: 8, self.live: 4, self.revert: 3, self.see: 3, self.look: 2, self.gc: 2, self.relay: self.relays}
        while not os.path.exists(self.stop):
            self.random.choices(list(steps), steps.values())[0]()
        # What was stored there is to be in a commit in the end.
        if self.relays:
            self.commit("relay", ours=True)


if __name__ == "__main__":
    host = Host(json.loads(sys.argv[1]))
    host.follow() if host.is_follower else host.work()
