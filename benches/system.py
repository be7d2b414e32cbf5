"""Commands with time limits, mounts that go away whatever happens, and what the machine is."""

import array
import contextlib
import json
import mmap
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

ENVIRONMENT = {**os.environ, "LC_ALL": "C", "PYTHONDONTWRITEBYTECODE": "1"}
ROOT = os.geteuid() == 0
MADV_POPULATE_WRITE = 23
COLD = "cold" if ROOT else "remounted"  # how a state is called that starts with a new mount

# Ends a mount whose owner died (end of file on stdin) or took too long. "done" on stdin: nothing is left to do.
GUARD = r"""
read -r -t "$1" word || true
[ "$word" = done ] && exit 0
if [ -n "$4" ] && [ "$(sed 's/.*) //' "/proc/$3/stat" | cut -d' ' -f20)" = "$4" ]; then kill -KILL "$3"; fi
fusermount3 -uz "$2" || umount -l "$2"
"""


class BenchError(Exception):
    """Something did not work; the text goes into the table."""


class Sample:
    """One timed run. `seconds` is None when the run hit its limit or failed, and then `note` says so."""

    def __init__(self, seconds, note="", error=""):
        self.seconds, self.note, self.error = seconds, note, error


def over(process, limit):
    """Wait for the end of a process; False if it takes longer. Popen's own wait with a limit polls, in steps of
    up to 50 ms."""
    if process.poll() is not None:
        return True
    handle = os.pidfd_open(process.pid)
    try:
        ended = select.select([handle], [], [], limit)[0]
    finally:
        os.close(handle)
    return bool(ended) and process.wait() is not None


def finish(process, limit):
    """Wait; kill what is not over in time."""
    if not over(process, limit):
        process.kill()
        over(process, 10)  # if not even now it is stuck in the kernel, and the guard of the mount frees it


def written(pid):
    try:
        return int(re.search(r"^wchar: (\d+)", Path(f"/proc/{pid}/io").read_text(), re.M)[1])
    except (OSError, TypeError):
        return 0


def timed(command, limit):
    """Run a command with its output thrown away. The time includes starting the process, about a millisecond."""
    errors = os.memfd_create("stderr")
    try:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                                   env=ENVIRONMENT)
        if not over(process, limit):
            arrived = written(process.pid)
            finish(process, 0)
            return Sample(None, f"> {limit:g} s ({arrived} bytes arrived)")
        seconds = time.perf_counter() - start
        error = os.pread(errors, min(os.fstat(errors).st_size, 1 << 24), 0).decode(errors="replace").strip()
        if process.returncode:
            first = error.splitlines()[0] if error else "no message"
            return Sample(None, f"exit code {process.returncode} after {seconds:.2f} s: {first}", error)
        return Sample(seconds, error=error)
    finally:
        os.close(errors)


def seconds(work):
    """Call a function and return the time that it took."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def run(command, limit=60):
    """Run a helper to its end and return its output."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit,
                              env=ENVIRONMENT)
    except subprocess.TimeoutExpired:
        raise BenchError(f"{command[0]} took more than {limit} s") from None
    if done.returncode:
        raise BenchError(f"{' '.join(map(str, command))}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def own_memory(most=3 << 30):
    """Have the host of a virtual machine back the memory that a run will take, up to `most` bytes: it takes back what is
    free, and the page faults of the next program would last several times as long."""
    free = int(re.search(r"^MemFree: *(\d+) kB", Path("/proc/meminfo").read_text(), re.M)[1]) << 10
    size = min(most, free * 3 // 4)
    if size >= mmap.PAGESIZE:
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # Large pages are what it takes back, and what NumPy asks for. A kernel may have none.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        memory.madvise(MADV_POPULATE_WRITE)
        memory.close()


def drop(what):
    """Drop the kernel's clean caches: 2 names and inodes, 3 file content too. Only root may; False otherwise."""
    if not ROOT:
        return False
    Path("/proc/sys/vm/drop_caches").write_text(str(what))
    if what == 3:
        own_memory()
    # The programs themselves are not what is measured.
    for tool in (["cat", "/dev/null"], ["ls", "-l", "/dev/null"], ["find", "/dev/null", "-size", "+1"]):
        run(tool)
    if what == 2:
        time.sleep(0.3)  # a FUSE server is told of every inode dropped; let it finish
    return True


def forget(*paths):
    """Give up the pages of files in the kernel's cache, and nothing of the programs that read them. Any user may."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def mount_table():
    """[(mount point, device, type)]"""
    table = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        head, tail = line.split(" - ", 1)
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), head.split()[4])
        table.append((point, head.split()[2], tail.split()[0]))
    return table


def mounted(point):
    return any(entry[0] == os.fspath(point) for entry in mount_table())


def start_time(pid):
    """None if it does not run: not every first process of a container takes the dead away at once."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def family(pid):
    """A process and all below it."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += map(int, task.read_text().split())
    return found


def memory(pid):
    """(VmRSS, VmHWM, processes): MiB, summed over a daemon and its child processes."""
    rss = peak = count = 0
    try:
        for process in family(pid):
            text = Path(f"/proc/{process}/status").read_text()
            rss += int(re.search(r"^VmRSS:\s+(\d+)", text, re.M)[1])
            peak += int(re.search(r"^VmHWM:\s+(\d+)", text, re.M)[1])
            count += 1
    except (OSError, TypeError):
        return None
    return rss / 1024, peak / 1024, count


class Mount:
    """`with` it: mounted inside, gone outside. Subclasses start the daemon and know its process."""

    pid = started = guard = None
    mount_seconds = 0.0

    def __init__(self, point, limit):
        self.point, self.limit = Path(point), limit

    def __truediv__(self, name):
        return self.point / name

    def __enter__(self):
        self.point.mkdir(parents=True, exist_ok=True)
        try:
            self.start()
            self.started = start_time(self.pid)
            command = ["bash", "-c", GUARD, "guard", str(self.limit), self.point, str(self.pid), self.started or ""]
            self.guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                          stderr=subprocess.DEVNULL, start_new_session=True)
        except BaseException:
            self.clear()
            raise
        return self

    def __exit__(self, kind, error, trace):
        late = self.guard.poll() is not None
        try:
            if mounted(self.point):
                self.stop()
        except BenchError:
            if kind is None and not late:
                raise
        finally:
            self.clear()
        if late and kind is None:
            raise BenchError(f"the mount was cleared after {self.limit} s")

    def alive(self):
        return self.started is not None and start_time(self.pid) == self.started

    def wait_gone(self, seconds):
        end = time.monotonic() + seconds
        while self.alive() and time.monotonic() < end:
            time.sleep(0.01)

    def clear(self):
        for command in (["fusermount3", "-uz"], ["umount", "-l"]):
            if mounted(self.point):
                subprocess.run([*command, self.point], capture_output=True, timeout=20)
        self.wait_gone(5)
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)
        if self.guard:
            try:
                self.guard.communicate(b"done\n", timeout=20)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                self.guard.kill()

    def memory(self):
        return memory(self.pid)


class Npyfs(Mount):
    """A mount by `npyfs mount` as a user types it: in the background."""

    binary = None

    def __init__(self, store, point, limit=300, checkout=None, options="", user=None):
        super().__init__(point, limit)
        self.store, self.checkout, self.options = store, checkout, options
        self.become = ["setpriv", f"--reuid={user}", "--clear-groups", "--"] if user else []

    def start(self):
        start = time.perf_counter()
        more = ["--checkout", self.checkout] if self.checkout else []
        more += ["-o", self.options] if self.options else []
        run([*self.become, self.binary, "mount", *more, self.store, self.point])
        self.mount_seconds = time.perf_counter() - start
        self.pid = self.status()["pid"]

    def stop(self):
        run([*self.become, self.binary, "umount", self.point])
        self.wait_gone(10)

    def status(self):
        # Not read by this process: nobody could end that if the mount hung.
        return json.loads(run([*self.become, "cat", self.point / ".npyfs/status.json"], 20))

    def read_ahead(self):
        device = next(device for point, device, _ in mount_table() if point == os.fspath(self.point))
        return int(Path(f"/sys/class/bdi/{device}/read_ahead_kb").read_text())


class Worker:
    """A Python process that does one request after another, so that no interpreter start is timed."""

    def __init__(self):
        self.process = None

    def call(self, limit, **request):
        """The worker's answer as a Sample; `note` holds what it says about the result."""
        self.send(**request)
        return self.receive(limit, request)

    def send(self, **request):
        if self.process is None:
            script = Path(__file__).with_name("worker.py")
            self.process = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            text=True, env=ENVIRONMENT)
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def receive(self, limit, request=None):
        alarm = signal.signal(signal.SIGALRM, _late)
        signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            line = self.process.stdout.readline()
        except TimeoutError:
            self.close()
            return Sample(None, f"> {limit:g} s")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, alarm)
        if not line:
            self.close()
            raise BenchError(f"the Python worker died at {request}")
        answer = json.loads(line)
        if "error" in answer:
            return Sample(None, answer["error"])
        return Sample(answer["seconds"], answer["result"])

    def close(self):
        if self.process:
            self.process.kill()
            finish(self.process, 10)
            self.process = None


def _late(*_):
    raise TimeoutError


def type_of(path):
    """The file system's type and the device it is on."""
    path = os.path.realpath(path)
    above = [entry for entry in mount_table() if os.path.commonpath([entry[0], path]) == entry[0]]
    # Of several at one place the last is on top.
    return max(enumerate(above), key=lambda entry: (len(entry[1][0]), entry[0]))[1][2]


def decoder_speed(rounds=15):
    """MB/s at which one thread of this processor inflates the same 4 MiB of counts on every machine: the fastest of some rounds.

    What is measured is the zlib of Python, whatever version that is: figures of two machines that differ by less than a tenth say nothing."""
    data = array.array("I", (i * i >> 7 & 0xfff for i in range(1 << 20))).tobytes()
    packed, seconds = zlib.compress(data, 6), []
    for _ in range(rounds):
        start = time.perf_counter()
        assert zlib.decompress(packed) == data
        seconds.append(time.perf_counter() - start)
    return round(len(data) / min(seconds) / 1e6)


def machine():
    """What the numbers depend on."""
    cpu = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.M)
    total = re.search(r"^MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text(), re.M)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu[1] if cpu else os.uname().machine,
        "inflates_mb_s": decoder_speed(),
        "memory_gib": round(int(total[1]) / 2**20, 1),
        "kernel": os.uname().release,
        "root": ROOT,
        "load_before": [round(load, 2) for load in os.getloadavg()],
    }


def remove(folder):
    """Remove our data; never while something is still mounted below it."""
    below = [point for point, *_ in mount_table() if point.startswith(os.fspath(folder) + "/")]
    if below:
        raise BenchError(f"{folder} stays: still mounted: {below}")
    shutil.rmtree(folder)
