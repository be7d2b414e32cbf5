"""`mountscripts/`: the units and lines of fstab are what systemd and mount(8) accept, the installation is where they look, and
`mount-for` leaves no mount behind. Judges: systemd-analyze, findmnt, mount(8), a command's own exit code."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.documents import blocks
from support.host import Host
from support.mount import clear, make_point, mounted, until
from support.process import NPYFS, one_line, run
from support.truth import np_save

SCRIPTS = Path(__file__).resolve().parent.parent / "mountscripts"
UNITS = sorted(str(path.relative_to(SCRIPTS / "systemd")) for path in (SCRIPTS / "systemd").rglob("*.*"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "small.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(10.0)
    return path


@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_the_unit(name, root_only):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is missing (package systemd): the units are NOT verified")
    with Host(files={}) as host:
        unit = host.folder / Path(name).name.replace("@", "@cells")
        folder = host.folder / "units"
        folder.mkdir()
        # With its neighbours: an automount without its mount is an error.
        for other in (SCRIPTS / "systemd" / name).parent.glob("*.*"):
            shutil.copy(other, folder / other.name)
        unit = folder / Path(name).name.replace("@", "@cells")
        if "@" in name:
            shutil.copy(SCRIPTS / "systemd" / name, unit)
        instance = "--user" if name.startswith("user/") else "--system"
        done = host("env", f"XDG_RUNTIME_DIR={host.folder}", "systemd-analyze", "verify", "--man=no", "--generators=no", instance, unit, code=None)
        complaints = [line for line in done.stderr.splitlines() if "npyfs" in line or "mnt-cells" in line]
        assert complaints == [] and (done.returncode == 0 or "npyfs" not in done.stderr), done


def test_systemd_says_what_is_wrong(root_only):
    """The judge is awake."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is missing (package systemd): the units are NOT verified")
    with Host() as host:
        unit = host.folder / "npyfs@cells.service"
        unit.write_text((SCRIPTS / "systemd/npyfs@.service").read_text().replace("/usr/local/bin/npyfs mount", "/usr/local/bin/npyfs-no mount"))
        done = host("systemd-analyze", "verify", "--man=no", "--generators=no", "--system", unit, code=None)
        assert done.returncode and "npyfs-no" in done.stderr


def test_the_command_of_the_service(store, tmp_path):
    """As systemd starts it, with the settings of an example."""
    text = (SCRIPTS / "systemd/npyfs@.service").read_text()
    start = next(line for line in text.splitlines() if line.startswith("ExecStart=")).removeprefix("ExecStart=/usr/local/bin/npyfs ")
    stop = next(line for line in text.splitlines() if line.startswith("ExecStop=")).removeprefix("ExecStop=/usr/local/bin/npyfs ")
    point = make_point()
    for options in ("ro", ""):
        values = {"${OPTIONS}": options, "${STORE}": str(store), "${MOUNTPOINT}": str(point)}
        daemon = subprocess.Popen([NPYFS, *(values.get(word, word) for word in start.split())], stdin=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, env={"PATH": "/usr/bin:/bin"})
        try:
            until(lambda: mounted(point) or daemon.poll() is not None, "the mount")
            assert (point / "x.npy").read_bytes() == np_save(np.arange(10.0))
            assert run([NPYFS, *(values.get(word, word) for word in stop.split())]).returncode == 0
            assert daemon.wait(30) == 0
        finally:
            daemon.kill()
            daemon.wait(20)
            clear(point)
    os.rmdir(point)


def test_the_example_of_fstab(root_only):
    """Every line is one to findmnt and to mount(8), and its options are known."""
    with Host(("mount.npyfs",)) as host:
        (host.folder / "fstab").write_text((SCRIPTS / "fstab.example").read_text())
        listed = host("findmnt", "--fstab", "--tab-file", host.folder / "fstab", "--noheadings", "--raw", "-o", "TARGET,OPTIONS").stdout.splitlines()
        assert len(listed) == sum(line.startswith("/") for line in (SCRIPTS / "fstab.example").read_text().splitlines()) == 5
        for target, options in (line.split() for line in listed):
            known = ",".join(option for option in options.split(",") if option not in ("uid=ann", "gid=lab"))
            assert host("/sbin/mount.npyfs", "/no/such/store", target, "-f", "-o", known).stderr == ""


def test_installation(tmp_path, store):
    environment = {**os.environ, "DESTDIR": str(tmp_path)}
    run([SCRIPTS / "install", NPYFS], check=True, env=environment)
    installed = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if not path.is_dir() or path.is_symlink()}
    assert {"sbin/mount.fuse.npyfs", "sbin/mount.npyfs", "sbin/umount.fuse.npyfs", "usr/local/bin/npyfs", "usr/local/bin/npyfs-mount-for",
            "usr/local/lib/systemd/system/npyfs@.service", "usr/local/lib/systemd/user/npyfs@.service"} <= installed
    assert os.readlink(tmp_path / "sbin/mount.npyfs") == "/usr/local/bin/npyfs"
    run([SCRIPTS / "install", NPYFS], check=True, env=environment)
    run([SCRIPTS / "install", "--remove"], check=True, env=environment)
    assert list(tmp_path.iterdir()) == []
    assert "no" in run([SCRIPTS / "install", "--remove"], env=environment).stderr


def test_the_page_about_mounting(root_only, tmp_path):
    """Its blocks that change the machine, run on one that does not mind."""
    page = SCRIPTS.parent / "docs/mounting.md"
    commands = ["sudo() { \"$@\"; }"]
    for block in blocks(page.read_text()):
        if block.reason == "changes the machine":
            commands += [line.replace("mountscripts/", f"{SCRIPTS}/") for line in block.body]
    # The first block comes before what it needs is installed.
    assert len(commands) == 12 and commands[2].startswith(str(SCRIPTS)), commands
    run([NPYFS, "demo", tmp_path / "demo"], check=True)
    with Host((), writable=("/usr", "/etc", "/srv", "/mnt")) as host:
        host("cp", tmp_path / "demo/cells.h5df", "/srv")
        host("mkdir", "/mnt/cells")
        done = host("env", f"NPYFS_BIN={NPYFS}", f"PATH={os.path.dirname(NPYFS)}:{os.environ['PATH']}", "bash", "-exc", f"cd {host.folder}; rmdir mnt\n" + "\n".join(commands))
        assert "cell#.npy" in done.stdout and "fuse.npyfs" in done.stdout and (host.folder / "ages.npy").exists()
        assert not host.mounted("/mnt/cells") and not host.daemons()
    assert not Path("/usr/local/bin/npyfs-mount-for").exists()


# mount-for

def environment(**more):
    return {**os.environ, "NPYFS_BIN": NPYFS, **more}


@pytest.fixture
def point():
    point = make_point()
    yield point
    left = mounted(point)
    clear(point)
    os.rmdir(point)
    assert not left, "mount-for left a mount"


def mount_for(*arguments, **keywords):
    return run([SCRIPTS / "mount-for", *arguments], env=environment(), **keywords)


def test_one_command(store, point, tmp_path):
    done = mount_for(store, point, "--", "cat", point / "x.npy", text=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, np_save(np.arange(10.0)), b"")
    done = mount_for("-o", "umask=077", store, point, "--", "sh", "-c", "cd / && stat -c %a $1/x.npy; exit 7", "sh", point)
    assert (done.returncode, done.stdout) == (7, "600\n")
    with open(tmp_path / "input", "w+") as stream:
        stream.write("words")
        stream.seek(0)
        assert mount_for(store, point, "--", "cat", stdin=stream).stdout == "words"


def test_what_the_command_writes_is_stored(store, point, tmp_path):
    for code, line in ((0, "cp x.npy y.npy"), (3, "head -c 150 x.npy > z.npy; true")):
        done = mount_for("--checkout", "work", "--checkouts", tmp_path / "checkouts", store, point, "--", "sh", "-c", f"cd '{point}' && {line}")
        assert done.returncode in (0, code), done
    with_checkout = mount_for("-o", f"ro,checkout=work,checkouts={tmp_path}/checkouts", store, point, "--", "ls", point)
    assert with_checkout.stdout.split() == ["x.npy", "y.npy"]


def test_wrong_usage_and_what_cannot_be_mounted(store, point):
    for arguments in ([], [store, point], [store, point, "--"], [store, "--", "true"]):
        done = mount_for(*arguments)
        assert done.returncode == 1 and done.stderr.startswith("usage: "), arguments
    done = mount_for("/no/such/store", point, "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (2, "") and "/no/such/store" in one_line(done.stderr)
    assert mount_for(store, point, "--", "/no/such/command").returncode == 127


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_goes_to_the_command(store, point, tmp_path, number):
    # Whoever runs the tests may ignore some of them, as nohup does, and bash cannot undo that.
    fresh = ["env", "--default-signal=TERM,INT,HUP,QUIT"]
    process = subprocess.Popen([*fresh, SCRIPTS / "mount-for", store, point, "--", "sh", "-c", f"touch '{tmp_path}/begun'; exec sleep 100"], env=environment(),
                               stdin=subprocess.DEVNULL, start_new_session=True, stderr=subprocess.DEVNULL)
    until(lambda: (tmp_path / "begun").exists(), "the command")
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert not mounted(point)


def test_what_is_killed_is_cleared_up_after(store, point, tmp_path):
    process = subprocess.Popen([SCRIPTS / "mount-for", store, point, "--", "sh", "-c", f"cd '{point}'; echo $$ > '{tmp_path}/begun'; exec sleep 100"],
                               env=environment(), stdin=subprocess.DEVNULL, start_new_session=True)
    until(lambda: (tmp_path / "begun").exists() and (tmp_path / "begun").read_text(), "the command")
    process.kill()
    process.wait(20)
    until(lambda: not mounted(point), "the unmount")
    os.kill(int((tmp_path / "begun").read_text()), signal.SIGKILL)


def test_a_command_that_leaves_something_behind(store, point, tmp_path):
    """What still uses the mount keeps it no longer."""
    done = mount_for(store, point, "--", "sh", "-c", f"cd '{point}'; sleep 100 >/dev/null 2>&1 & echo $! > '{tmp_path}/left'")
    try:
        assert done.returncode == 32 and "busy" in one_line(done.stderr) and not mounted(point)
    finally:
        os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)
