"""Running programs under a time limit, and looking at processes by id."""

import os
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

NPYFS = os.environ.get("NPYFS_BIN", "")
# What is downloaded or made once and kept.
CACHE = Path(os.environ.get("NPYFS_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "npyfs")


def run(command, *, timeout=60, check=False, text=True, env=None, cwd=None, stdin=subprocess.DEVNULL, pass_fds=(), judged=True):
    """Run `command` to its end. Output goes to files, so a child that keeps a pipe open cannot hang the caller.

    Returns a CompletedProcess with `stdout` and `stderr` filled in; raises AssertionError when time is up. What an export writes,
    whoever runs it, is judged by the rules of its format, unless a test exports what breaks them already."""
    command = [os.fspath(part) for part in command]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdin=stdin, stdout=out, stderr=err, env=env, cwd=cwd, start_new_session=True, pass_fds=pass_fds)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)
            raise AssertionError(f"not finished after {timeout} s: {command}") from None
        streams = []
        for stream in (out, err):
            stream.seek(0)
            data = stream.read()
            streams.append(data.decode("utf-8", "surrogateescape") if text else data)
    done = subprocess.CompletedProcess(command, code, *streams)
    if check:
        assert code == 0, f"exit code {code} of {command}\nstdout: {streams[0]!r:.2000}\nstderr: {streams[1]!r:.2000}"
    if judged and code == 0 and ("checkout", "export") in pairwise(command):
        from .judge import judge
        judge(Path(cwd or ".") / command[-1], lambda out: run([NPYFS, "verify", out], timeout=300, env=env, cwd=cwd))
    return done


def npyfs(*arguments, **keywords):
    return run([NPYFS, *arguments], **keywords)


def one_line(stderr):
    """The error message of npyfs: exactly one line that begins with its name."""
    lines = stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("npyfs: ") and len(lines[0]) > len("npyfs: "), f"stderr: {stderr!r}"
    return lines[0]


def process_start(pid):
    """Start time of a process, or None where it is gone or only waits to be collected. While a thread of it runs,
    its files are open and locked, though its first thread may have ended."""
    fields = lambda stat: stat.read_text().rpartition(")")[2].split()
    try:
        start, states = int(fields(Path(f"/proc/{pid}/stat"))[19]), set()
        for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
            try:
                states.add(fields(stat)[0])
            except (FileNotFoundError, ProcessLookupError):
                pass
    except (FileNotFoundError, ProcessLookupError):
        return None
    return start if states - {"Z", "X"} else None


def workers(pid):
    """The worker processes of a daemon: its children that still run. Threads and children may end while they are listed."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += [int(child) for child in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def signal_all(pids, number):
    """Sends a signal to those processes that there still are; returns how many these were."""
    sent = 0
    for pid in pids:
        try:
            os.kill(pid, number)
            sent += 1
        except ProcessLookupError:
            pass
    return sent


@contextmanager
def stopped(pid):
    """A process of which every thread is stopped meanwhile. The signal alone is no proof: threads go on for a moment."""
    states = lambda: {stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")}
    os.kill(pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 30
        while states() != {"T"}:
            assert time.monotonic() < deadline, f"process {pid} does not stop"
            time.sleep(0.01)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def peak_memory(pid):
    """Highest resident size so far, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no VmHWM line: it is gone")
