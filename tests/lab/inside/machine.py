"""The machine, as what runs inside sees it: its task, what it tells the host, commands, mounts."""

import hashlib
import json
import os
import subprocess
import tempfile
import time
import traceback
from contextlib import contextmanager
from pathlib import Path

LAB = Path("/lab")
PORT = Path("/dev/virtio-ports/lab")
# Software emulation is slow: a limit only ends what hangs.
PATIENCE = 600


def task():
    return json.loads((LAB / "task.json").read_text())


def boot():
    """Which boot of this machine it is, from 1."""
    words = dict(word.partition("=")[::2] for word in Path("/proc/cmdline").read_text().split())
    return int(words["lab.boot"])


def tell(**message):
    """One line to the host."""
    with PORT.open("w") as port:
        port.write(json.dumps(message) + "\n")


def report(check, state, said=""):
    """`state` is ok, failed, skipped or note."""
    tell(check=check, state=state, said=str(said), at=round(time.monotonic()))


class Skipped(Exception):
    """Why something cannot be checked here."""


def check(function):
    """Runs a check at once and reports what came of it; what it returns is said."""
    def checked(*arguments):
        name = "/".join([function.__name__, *(word for word in arguments if isinstance(word, str))])
        try:
            report(name, "ok", function(*arguments) or "")
            return True
        except Skipped as why:
            report(name, "skipped", why)
        except Exception as problem:
            frame = traceback.extract_tb(problem.__traceback__)[-1]
            report(name, "failed", f"{type(problem).__name__}: {problem} ({Path(frame.filename).name}:{frame.lineno})"[:3000])
        return False
    return checked


def run(*command, code=0, **keywords):
    """Runs a command; `code` None takes any exit code."""
    done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, **keywords)
    assert code is None or done.returncode == code, f"{' '.join(map(str, command))}: exit code {done.returncode}: {done.stdout[-600:]} {done.stderr[-900:]}"
    return done


def as_ann(*command, **keywords):
    return run("setpriv", "--reuid=2001", "--regid=2001", "--clear-groups", "env", "HOME=/home/ann", "USER=ann", *command, cwd="/home/ann", **keywords)


@contextmanager
def mount(store, *options, at=None, by=run):
    """Mounts, yields the mount point, and unmounts; by root, or by ann."""
    if at is None:
        at = by("mktemp", "-d", "-p", "/home/ann" if by is as_ann else "/run").stdout.strip()
    by("npyfs", "mount", *options, store, at)
    try:
        yield Path(at)
    finally:
        by("npyfs", "umount", at)
        os.rmdir(at)


def sha256(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def files(folder):
    """{path: SHA-256} of all files of a folder."""
    found = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
    return {os.path.relpath(path, folder): sha256(path) for path in sorted(found)}


def same(found, expected, what):
    """Compares {path: hash}."""
    wrong = sorted(path for path in {*found, *expected} if found.get(path) != expected.get(path))
    assert not wrong, f"{what}: {len(wrong)} of {len(expected)} files differ: {', '.join(wrong[:5])}"


def until(condition, what, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"still waiting after {seconds} s: {what}"
        time.sleep(0.5)


def fresh():
    """A directory of its own."""
    return Path(tempfile.mkdtemp(dir="/var/tmp"))
