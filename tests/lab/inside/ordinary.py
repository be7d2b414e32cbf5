"""An ordinary life: the package is installed, stores are read, mapped, written, committed, exported and kept, users mount, the machine
shuts down while a checkout is being written, and comes up again with what fstab and a unit mount."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import machine
import numpy as np
from machine import LAB, Skipped, as_ann, check, files, mount, run, same, sha256, until

STORES = Path("/srv/stores")
OUT = Path("/srv/out")
# What the writer was told to be on the disk; it is on the machine's disk as well.
CONFIRMED = Path("/srv/confirmed")
WRITER = Path("/srv/writer.py")

# Writes arrays and notes those that fsync confirmed; all elements of the array `wN` are N.
WRITES = """
import os, sys
import numpy as np
mount, confirmed = sys.argv[1:]
notes = open(confirmed, "a")
for n in range(10**6):
    path = f"{mount}/w{n}.npy"
    with open(path, "wb") as file:
        np.save(file, np.full([1, 100, 40000][n % 3], n))
        file.flush()
        os.fsync(file.fileno())
    print(n, file=notes, flush=True)
    os.fsync(notes.fileno())
"""

# Where the wheel is installed, and what is read with its package.
WHEEL = Path("/opt/wheel")
READS = """
import hashlib, sys
import npyfs
with npyfs.mount(sys.argv[1]) as m:
    print(hashlib.sha256((m / "images/large.npy").read_bytes()).hexdigest())
print(hashlib.sha256(npyfs.open(sys.argv[1], "images/large").bytes()).hexdigest())
"""


def landlock():
    try:
        return "landlock" in Path("/sys/kernel/security/lsm").read_text()
    except OSError:
        return False


@check
def install():
    if shutil.which("npyfs") is None:
        run("dpkg", "-i", *LAB.glob("npyfs_*.deb"))
    version = run("npyfs", "--version").stdout.split()[1]
    there = run("npyfs", "setup").stdout
    missing = re.findall(r"^missing +(\S+)", there, re.M)
    assert missing in ([], ["allow-other"]), there
    if not STORES.exists():
        shutil.copytree(LAB / "stores", STORES)
    return version


@check
def wheel(expected):
    """pip takes the wheel for this machine, with the program of the .deb, and Python reads and mounts with it."""
    made, python = list(LAB.glob("npyfs-*.whl")), LAB / "python"
    if not made or not python.exists():
        raise Skipped(f"{'no wheel for it' if not made else 'the Python of the tests has no pip'}: NOT TESTED")
    pip = ["python3", "-m", "pip", "install", "--no-index", "--no-deps", "--no-cache-dir", "--disable-pip-version-check", "--prefix", WHEEL, *made]
    run(*pip, env={**os.environ, "PYTHONPATH": str(python), "PYTHONDONTWRITEBYTECODE": "1"})
    program, package = next(WHEEL.rglob("bin/npyfs")), next(WHEEL.rglob("npyfs/__init__.py"))
    assert sha256(program) == sha256(shutil.which("npyfs")), "it has another program than the .deb"
    done = run("python3", "-c", READS, STORES / "plain.h5", env={**os.environ, "PYTHONPATH": str(package.parents[1]), "PATH": f"{program.parent}:{os.environ['PATH']}"})
    mounted, read = done.stdout.split()
    assert mounted == read == expected["plain.h5/images/large.npy"], done.stdout
    return made[0].name


@check
def facts():
    memory = int(re.search(r"MemTotal: +(\d+)", Path("/proc/meminfo").read_text())[1]) >> 10
    return f"{os.uname().release} {os.uname().machine}, {os.cpu_count()} processors, {memory} MiB, Landlock: {'yes' if landlock() else 'no'}, NumPy {np.__version__}"


@check
def read(expected):
    with mount(STORES) as point:
        found = files(point)
        same(found, expected, "stores")
        arrays = [path for path in found if path.endswith(".npy")]
        for path in arrays:
            np.load(point / path)
    return f"{len(found)} files, {len(arrays)} arrays"


@check
def maps(expected):
    with mount(STORES) as point:
        large = [path for path in expected if path.endswith(".npy") and (point / path).stat().st_size > 4096]
        for path in large:
            mapped, loaded = np.load(point / path, mmap_mode="r"), np.load(point / path)
            assert mapped.tobytes() == loaded.tobytes() and mapped.dtype == loaded.dtype, path
            del mapped
    return f"{len(large)} arrays"


@check
def command_line(expected):
    """Without FUSE."""
    names = sorted(path for path in expected if path.startswith("plain.h5/"))
    for path in names:
        done = subprocess.run(["npyfs", "cat", STORES / "plain.h5", path.partition("/")[2]], stdin=subprocess.DEVNULL, capture_output=True, timeout=600)
        assert done.returncode == 0 and hashlib.sha256(done.stdout).hexdigest() == expected[path], (path, done.stderr)
    run("npyfs", "verify", STORES / "plain.h5")
    return f"{len(names)} files"


@check
def sandbox():
    """What holds for the workers."""
    with mount(STORES / "plain.h5") as point:
        sha256(point / "images/large.npy")
        return json.dumps(json.loads((point / ".npyfs/status.json").read_text())["worker_sandbox"])


@check
def virtual():
    """A virtual dataset's sources are read only under Landlock."""
    done = subprocess.run(["npyfs", "cat", "-o", "external=same-dir", LAB / "virtual/virtual.h5", "v.npy"], stdin=subprocess.DEVNULL, capture_output=True, timeout=600)
    if landlock():
        assert done.returncode == 0 and done.stdout == (LAB / "virtual/expected.npy").read_bytes(), done.stderr
        return "read"
    assert done.returncode != 0 and done.stdout == b"", done
    return f"refused: {done.stderr.decode().strip()}"


@check
def write(store, changes):
    """Writes, looks again, commits, looks again, exports for the host."""
    with mount(STORES / store) as point:
        before = files(point)
    wanted = dict(before)
    with mount(STORES / store, "--checkout", "lab") as point:
        for path in changes:
            shutil.copy(LAB / "changes" / store / path, point / path)
            wanted[path] = sha256(LAB / "changes" / store / path)
        same(files(point), wanted, "while it is mounted")
    with mount(STORES / store, "--checkout", "lab") as point:
        same(files(point), wanted, "mounted again")
    run("npyfs", "checkout", "commit", "-m", "lab", STORES / store, "lab")
    with mount(STORES / store) as point:
        same(files(point), wanted, "committed")
    run("npyfs", "checkout", "export", STORES / store, OUT / store)
    with mount(OUT / store) as point:
        same(files(point), wanted, "exported")
    return f"{len(changes)} changes"


@check
def keep():
    """Kept copies, and how they are served."""
    path = "images/large.npy"
    with mount(STORES / "plain.h5", "-o", "keep=200M") as point:
        first = sha256(point / path)
        status = lambda: json.loads((point / ".npyfs/status.json").read_text())["kept"]
        until(lambda: status()["made"] >= 1, "a copy")
        time.sleep(3)
        for _ in range(3):
            run("sh", "-c", "echo 3 > /proc/sys/vm/drop_caches")
            assert sha256(point / path) == first
        said = status()
        assert said["served"] >= 1, said
    return f"served {said['served']}, by the kernel {said.get('passed_through')}" + (f" ({said['passthrough']})" if isinstance(said.get("passthrough"), str) else "")


@check
def user(expected):
    """ann mounts and unmounts."""
    shutil.copytree(LAB / "stores", "/home/ann/stores", dirs_exist_ok=True)
    run("chown", "-R", "ann:ann", "/home/ann")
    with mount("/home/ann/stores/plain.h5", by=as_ann) as point:
        listed = as_ann("sh", "-c", f"cd {point} && find . -type f -name '*.npy' -exec sha256sum {{}} +").stdout
        found = {line[66:].replace("./", "plain.h5/", 1): line[:64] for line in listed.splitlines()}
        same(found, {path: value for path, value in expected.items() if path.startswith("plain.h5/") and path.endswith(".npy")}, "as ann")
        assert run("ls", point, code=None).returncode != 0, "root looks into the mount of ann"
    with mount("/home/ann/stores/plain.h5", "--checkout", "hers", by=as_ann) as point:
        as_ann("cp", LAB / "changes/plain.h5/primes.npy", f"{point}/primes.npy")
    as_ann("npyfs", "checkout", "commit", "-m", "hers", "/home/ann/stores/plain.h5", "hers")
    return f"{len(found)} arrays"


@check
def without_fusermount3():
    """Root mounts without it, others are told what is missing, commands do not need it."""
    place = shutil.which("fusermount3")
    hidden = [path for path in {place, "/bin/fusermount3", "/usr/bin/fusermount3", "/bin/fusermount", "/usr/bin/fusermount"} if path and os.path.exists(path)]
    for path in hidden:
        if os.path.exists(path):
            os.rename(path, path + ".hidden")
    try:
        with mount(STORES / "plain.h5") as point:
            assert (point / "pi.npy").stat().st_size
        point = as_ann("mktemp", "-d").stdout.strip()
        refused = as_ann("npyfs", "mount", "/home/ann/stores/plain.h5", point, code=None)
        assert refused.returncode != 0 and refused.stderr.count("\n") == 1 and "fusermount3" in refused.stderr, refused
        as_ann("npyfs", "ls", "/home/ann/stores/plain.h5")
    finally:
        for path in hidden:
            if os.path.exists(path + ".hidden"):
                os.rename(path + ".hidden", path)
    return refused.stderr.strip()


@check
def fstab():
    """Lines of fstab and a unit, for the next boot; mount -a mounts them now."""
    for name in ("read", "work", "some", "unit"):
        Path(f"/mnt/{name}").mkdir()
    shutil.copytree(LAB / "stores", "/srv/boot")
    Path("/srv/some").mkdir()
    shutil.copy(LAB / "stores/plain.h5", "/srv/some")
    Path("/srv/some/broken.h5").write_text("no store")
    with open("/etc/fstab", "a") as lines:
        lines.write("/srv/boot/cells.h5df /mnt/read npyfs ro,allow_other 0 0\n")
        lines.write("/srv/boot/plain.h5 /mnt/work npyfs rw,allow_other,checkout=work 0 0\n")
        lines.write("/srv/some /mnt/some npyfs ro 0 0\n")
    run("systemctl", "daemon-reload")
    run("mount", "-a")
    Path("/etc/npyfs").mkdir(exist_ok=True)
    Path("/etc/npyfs/flights.conf").write_text("STORE=/srv/boot/flights.h5\nMOUNTPOINT=/mnt/unit\nOPTIONS=ro,allow_other\n")
    run("systemctl", "enable", "--now", "npyfs@flights")
    assert run("findmnt", "-n", "-t", "fuse.npyfs", "-o", "TARGET").stdout.split() == ["/mnt/read", "/mnt/work", "/mnt/some", "/mnt/unit"]


@check
def shutdown():
    """A program writes into the checkout until it is ended by the shutdown."""
    WRITER.write_text(WRITES)
    CONFIRMED.write_text("")
    run("systemd-run", "--unit=writer", "python3", WRITER, "/mnt/work", CONFIRMED)
    # Refused, for the log; and closed without fsync, which the unmount stores.
    refused = Path("/mnt/work/refused.npy")
    try:
        refused.write_bytes(b"this is no array" * 10)
    except OSError:
        pass
    until(lambda: len(CONFIRMED.read_text().split()) >= 20, "twenty arrays")
    np.save("/mnt/work/closed.npy", np.arange(1000))
    return f"{len(CONFIRMED.read_text().split())} confirmed before it"


@check
def mounted_at_boot(expected):
    until(lambda: run("systemctl", "is-active", "npyfs@flights", code=None).stdout.strip() == "active", "the unit")
    for name, point in {"cells.h5df": "/mnt/read", "flights.h5": "/mnt/unit"}.items():
        same({f"{name}/{path}": value for path, value in files(point).items()},
             {path: value for path, value in expected.items() if path.startswith(f"{name}/")}, point)
    as_ann("cmp", "/mnt/read/cell#age.npy", "/mnt/read/cell#age.npy")
    state = run("systemctl", "is-system-running", code=None).stdout.strip()
    failed = run("systemctl", "list-units", "--failed", "--plain", "--no-legend").stdout
    assert "npyfs" not in failed and "mnt-" not in failed, failed
    return f"systemd is {state}"


@check
def nothing_is_lost():
    confirmed = [int(word) for word in CONFIRMED.read_text().split()]
    point = Path("/mnt/work")
    for n in confirmed:
        array = np.load(point / f"w{n}.npy")
        assert array.shape == ([1, 100, 40000][n % 3],) and (array == n).all(), n
    assert (np.load(point / "closed.npy") == np.arange(1000)).all()
    there = sorted(int(path.stem[1:]) for path in point.glob("w*.npy"))
    more = [n for n in there if n not in confirmed]
    assert len(more) <= 1, f"more than one that was not confirmed: {more}"
    for n in more:
        assert (np.load(point / f"w{n}.npy") == n).all(), f"half an array: {n}"
    return f"{len(confirmed)} confirmed, {len(there)} there"


@check
def log_after_boot():
    said = run("npyfs", "log", "--checkout", "work", "/srv/boot/plain.h5").stdout
    assert "refused" in said and said.count("mounted at") >= 1, said
    # systemd mounted it, without HOME; its log outlives it.
    assert "plain.h5" in os.listdir("/mnt/some")
    run("umount", "/mnt/some")
    until(lambda: not run("findmnt", "/mnt/some", code=None).stdout, "the unmount")
    left_out = run("npyfs", "log", "/mnt/some").stdout
    assert "broken.h5" in left_out, left_out
    return f"{len(said.splitlines())} lines"


@check
def commit_after_boot():
    run("umount", "/mnt/work")
    until(lambda: not run("findmnt", "/mnt/work", code=None).stdout, "the unmount")
    run("npyfs", "verify", "/srv/boot/plain.h5")
    run("npyfs", "checkout", "commit", "-m", "after the boot", "/srv/boot/plain.h5", "work")
    run("npyfs", "checkout", "export", "/srv/boot/plain.h5", OUT / "boot.h5")


def main(task):
    expected = task["expected"]
    OUT.mkdir(exist_ok=True)
    run("mount", "LABEL=lab-out", OUT)
    if machine.boot() == 1:
        if install():
            facts()
            wheel(expected)
            read(expected)
            maps(expected)
            command_line(expected)
            sandbox()
            virtual()
            for store, changes in task["changes"].items():
                write(store, changes)
            keep()
            user(expected)
            without_fusermount3()
            fstab()
            shutdown()
    else:
        mounted_at_boot(expected)
        nothing_is_lost()
        log_after_boot()
        commit_after_boot()
    run("umount", OUT)
