"""The command line: ls, cat and info show the names and bytes of the mount without FUSE; each bad input is one line on stderr
and its exit code; mounting in front and in the background, signals, dead mounts; a directory of stores is mirrored.
Judge: the mount itself, the kernel's mount table, exit codes as documented."""

import errno
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from support import daf
from support.mount import Mount, clear, make_point, mounted, until
from support.process import NPYFS, npyfs, one_line, process_start, run
from support.truth import np_save, read


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "tree"
    (folder / "sub/deeper").mkdir(parents=True)
    (folder / "empty").mkdir()
    with h5py.File(folder / "plain.h5", "w") as file:
        file["x"] = np.arange(10.0)
        file["g/y"] = np.arange(6).reshape(2, 3)
        file["g/link"] = h5py.SoftLink("/x")
        file.create_dataset("zipped", data=np.arange(100_000), chunks=(7_000,), compression="gzip")
    with h5py.File(folder / "sub/no_suffix", "w", userblock_size=1024) as file:
        file["z"] = np.arange(3)
    with h5py.File(folder / "sub/deeper/cells.h5df", "w") as file:
        daf.write(file, rows=3, columns=2)
    for name, content in {"notes.txt": b"text", "fake.h5": b"not HDF5 at all" * 100, "empty.h5": b"", "sub/data.npy": np_save(np.arange(3))}.items():
        (folder / name).write_bytes(content)
    os.mkfifo(folder / "fifo.h5")
    return folder


@pytest.fixture(scope="module")
def mount(tree):
    with Mount(tree) as mount:
        yield mount


def test_a_directory_is_mirrored(mount):
    assert sorted(os.listdir(mount.path)) == ["empty", "plain.h5", "sub"]
    assert sorted(os.listdir(mount / "sub")) == ["deeper", "no_suffix"]
    assert os.listdir(mount / "sub/deeper") == ["cells.h5df"] and os.listdir(mount / "empty") == []
    assert read(mount / "sub/no_suffix/z.npy") == np_save(np.arange(3))
    for name in ("notes.txt", "fake.h5", "empty.h5", "fifo.h5", "sub/data.npy"):
        assert not os.path.lexists(mount / name), name


# What `ls` says of files in `tree` that are called as a store and are none: on standard error, with exit code 3.
DAMAGE = {"npyfs: left out: empty.h5: an empty file", "npyfs: left out: fake.h5: not an HDF5 file: it has no signature"}


def listed(*arguments, damage=frozenset()):
    done = npyfs("ls", *arguments)
    assert set(done.stderr.splitlines()) == damage and done.returncode == (3 if damage else 0), done
    return done.stdout


@pytest.mark.parametrize("path", ["", "plain.h5", "plain.h5/g", "sub", "sub/no_suffix", "sub/deeper/cells.h5df", "sub/deeper/cells.h5df/cell,gene#s_i4"])
def test_ls_agrees_with_the_mount(mount, path):
    arguments = [path] if path else []
    damage = frozenset() if path else DAMAGE
    assert listed(mount.store, *arguments, damage=damage).splitlines() == sorted(os.listdir(mount / path), key=os.fsencode)
    lines = listed("-l", mount.store, *arguments, damage=damage).splitlines()
    for entry in os.scandir(mount / path):
        name = f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name
        found = [line for line in lines if line.endswith(f" {name}") or f" {name} -> " in line]
        assert len(found) == 1, f"{entry.name} in {lines}"
        if entry.is_file(follow_symlinks=False):
            assert str(entry.stat().st_size) in found[0].split()
        if entry.is_symlink():
            assert found[0].endswith(f" -> {os.readlink(entry)}")


def test_ls_l_says_type_and_shape_as_numpy_does(mount):
    entries = json.loads(listed("-l", "--json", "-R", mount.store, damage=DAMAGE))
    looked = 0
    for entry in entries:
        if entry["kind"] == "file" and entry["name"].endswith(".npy"):
            array = np.load(mount / entry["name"], mmap_mode="r", allow_pickle=False)
            assert (entry["dtype"], tuple(entry["shape"])) == (array.dtype.str, array.shape), entry
            looked += 1
        else:
            assert "dtype" not in entry and "shape" not in entry
    assert looked > 5
    assert all("dtype" not in entry for entry in json.loads(listed("--json", "-R", mount.store, damage=DAMAGE)))
    rows = {line.split()[-1]: line.split() for line in listed("-lh", mount.store, "plain.h5").splitlines()}
    assert rows["zipped.npy"][1:5] == ["781.4K", rows["zipped.npy"][2], "<i8", "(100000,)"] and rows["g/"][3:5] == ["-", "-"]


def test_ls_has_colours_on_a_terminal_only(mount):
    def on_terminal(**environment):
        command = f"'{NPYFS}' ls '{mount.store}'"
        return run(["script", "-qec", command, "/dev/null"], env={**os.environ, "TERM": "xterm", **environment}).stdout
    assert "\x1b[1;34mplain.h5\x1b[0m/" in on_terminal(NO_COLOR="")
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb", "NO_COLOR": ""}):
        assert "\x1b" not in on_terminal(**environment) and "plain.h5/" in on_terminal(**environment)
    assert "plain.h5" in listed(mount.store, damage=DAMAGE).splitlines()


def test_ls_R_agrees_with_the_mount(mount):
    blocks = [block.splitlines() for block in listed("-R", mount.store, damage=DAMAGE).rstrip("\n").split("\n\n")]
    shown = {block[0].removesuffix(":"): block[1:] for block in blocks}
    base = next(iter(shown))  # how the root is called is up to ls; the rest is below it
    shown = {"." if name == base else name.removeprefix(f"{base}/"): names for name, names in shown.items()}
    expected = {os.path.relpath(folder, mount.path): sorted(folders + files, key=os.fsencode) for folder, folders, files in os.walk(mount.path)}
    assert shown == expected


def test_ls_of_a_file_and_cat_and_info(mount):
    assert listed(mount.store, "plain.h5/x.npy") in ("plain.h5/x.npy\n", "x.npy\n")
    names = [name for name in mount.files() if "cells.h5df" not in name] + ["sub/deeper/cells.h5df/cell#.npy", "sub/deeper/cells.h5df/cell,gene#s_f4.npz"]
    for name in names:
        done = npyfs("cat", mount.store, name, text=False, check=True)
        assert done.stdout == read(mount / name) and done.stderr == b"", name
    assert npyfs("cat", mount.store, "plain.h5/g/link.npy", text=False, check=True).stdout == read(mount / "plain.h5/x.npy")
    assert npyfs("cat", mount.store / "plain.h5", "zipped.npy", text=False, check=True).stdout == np_save(np.arange(100_000))
    assert npyfs("info", mount.store, "plain.h5/x.npy", check=True).stdout


def test_cat_into_a_closed_pipe(mount):
    done = run(["sh", "-c", f"'{NPYFS}' cat '{mount.store}' plain.h5/zipped.npy | head -c 100"], text=False)
    assert done.stdout == np_save(np.arange(100_000))[:100] and b"panicked" not in done.stderr


@pytest.mark.parametrize("command", ["ls", "cat", "info"])
@pytest.mark.parametrize("path", ["nothing", "plain.h5/nothing.npy", "plain.h5/x", "plain.h5/x.npy/y", "../tree", "fake.h5", "notes.txt"])
def test_no_such_path_is_3(tree, command, path):
    done = npyfs(command, tree, path)
    assert done.returncode == 3 and done.stdout == ""
    one_line(done.stderr)


def test_cat_of_a_directory_is_3(tree):
    done = npyfs("cat", tree, "plain.h5/g")
    assert done.returncode == 3
    one_line(done.stderr)


# Bad stores: exit code 2

def bad_stores(folder):
    (folder / "text.h5").write_text("this is not HDF5\n" * 50)
    (folder / "empty.h5").write_bytes(b"")
    (folder / "signature.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    with h5py.File(folder / "truncated.h5", "w") as file:
        file["x"] = np.arange(10_000)
    os.truncate(folder / "truncated.h5", 9_000)
    (folder / "no_stores/sub").mkdir(parents=True)
    (folder / "no_stores/readme.txt").write_text("nothing here")
    (folder / "empty_folder").mkdir()
    os.mkfifo(folder / "fifo.h5")
    return folder


@pytest.mark.parametrize("name", ["text.h5", "empty.h5", "signature.h5", "truncated.h5", "no_stores", "empty_folder", "missing.h5", "fifo.h5", "text.h5/below"])
def test_bad_store_is_2(tmp_path, name):
    store = bad_stores(tmp_path) / name
    point = tmp_path / "point"
    point.mkdir()
    commands = {"mount": ["mount", store, point], "mount -f": ["mount", "-f", store, point], "ls": ["ls", store], "cat": ["cat", store, "x.npy"], "info": ["info", store]}
    for what, arguments in commands.items():
        done = npyfs(*arguments, timeout=30)
        assert done.returncode == 2 and done.stdout == "", f"{what}: {done}"
        assert Path(name).parts[0] in one_line(done.stderr), what
        assert not mounted(point)


def test_no_permission_is_2(tree, root_only):
    """As user `nobody`, who may read the program but not the store."""
    folder = Path(tempfile.mkdtemp(prefix="npyfs-nobody-"))
    try:
        os.chmod(folder, 0o755)
        shutil.copy(NPYFS, folder / "npyfs")
        shutil.copy(tree / "plain.h5", folder / "closed.h5")
        shutil.copy(tree / "plain.h5", folder / "open.h5")
        os.chmod(folder / "closed.h5", 0o600), os.chmod(folder / "open.h5", 0o644), os.chmod(folder / "npyfs", 0o755)
        (folder / "closed").mkdir(mode=0o700)
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", folder / "npyfs"]
        assert "x.npy" in run([*nobody, "ls", folder / "open.h5"], check=True).stdout
        for name in ("closed.h5", "closed"):
            done = run([*nobody, "ls", folder / name])
            assert done.returncode == 2 and "ermission denied" in one_line(done.stderr), name
    finally:
        shutil.rmtree(folder)


# Usage: exit code 1, before anything else happens

@pytest.mark.parametrize("options", ["nonsense", "ro,nonsense=3", "uid=abc", "cache_size=lots", "sep=", "external=maybe", "umask=9", "text_limit=-1"])
def test_a_bad_option_is_1_before_anything_else(options):
    done = npyfs("mount", "-o", options, "/no/such/store", "/no/such/point")
    assert done.returncode == 1
    line = one_line(done.stderr)
    assert options.split(",")[-1].split("=")[0] in line and "/no/such" not in line


@pytest.mark.parametrize("arguments", [["nonsense"], ["mount"], ["mount", "one"], ["mount", "a", "b", "c"], ["ls"], ["cat"], ["--nonsense"], ["ls", "--nonsense", "x"]])
def test_bad_usage_is_1(arguments):
    done = npyfs(*arguments)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("npyfs: ")


@pytest.mark.parametrize("arguments", [["--help"], ["mount", "--help"], ["ls", "--help"], ["--version"]])
def test_help_and_version(arguments):
    done = npyfs(*arguments, check=True)
    assert "npyfs" in done.stdout and done.stderr == ""
    if arguments == ["mount", "--help"]:
        assert all(option in done.stdout for option in ("allow_other", "cache_size", "external", "sep", "xattrs"))


# Mount points: exit code 32

def test_bad_mount_points_are_32(tree, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    (tmp_path / "plain_file").touch()
    for name, word in {"missing": "missing", "full": "empty", "plain_file": "directory"}.items():
        done = npyfs("mount", tree, tmp_path / name)
        assert done.returncode == 32 and not mounted(tmp_path / name), name
        line = one_line(done.stderr)
        assert name in line and (word in line or name == "missing")


def test_already_mounted_is_32(tree, mount):
    done = npyfs("mount", tree, mount.path)
    assert done.returncode == 32 and "mounted" in one_line(done.stderr)
    assert mount.alive() and read(mount / "sub/no_suffix/z.npy")


def test_umount_of_what_is_not_mounted_is_32(tmp_path):
    for name in (tmp_path, tmp_path / "missing"):
        done = npyfs("umount", name)
        assert done.returncode == 32
        one_line(done.stderr)


def test_umount_leaves_other_mounts_alone(tmp_path, root_only):
    run(["mount", "-t", "tmpfs", "none", tmp_path], check=True)
    try:
        done = npyfs("umount", tmp_path)
        assert done.returncode == 32 and mounted(tmp_path)
        one_line(done.stderr)
    finally:
        run(["umount", tmp_path], check=True)


def test_a_busy_mount_and_lazy_umount(tree):
    with Mount(tree) as mount:
        handle = os.open(mount / "plain.h5/x.npy", os.O_RDONLY)
        try:
            busy = npyfs("umount", mount.path)
            assert busy.returncode == 32 and mounted(mount.path)
            one_line(busy.stderr)
            npyfs("umount", "-l", mount.path, check=True)
            assert not mounted(mount.path)
            assert os.pread(handle, 6, 0) == b"\x93NUMPY"  # the open handle goes on
        finally:
            os.close(handle)
        until(lambda: not mount.alive(), "the end of the daemon after the last close")
        mount.expect_dead = True


def test_a_dead_mount_is_recognised_and_cleared(tree):
    with Mount(tree) as mount:
        os.kill(mount.pid, signal.SIGKILL)
        until(lambda: not mount.alive(), "the daemon's death")
        mount.expect_dead = True

        def refusal():
            with pytest.raises(OSError) as problem:
                os.listdir(mount.path)
            return problem.value.errno

        # What the daemon was asked at the moment of its death ends in ECONNABORTED.
        until(lambda: refusal() == errno.ENOTCONN, "the kernel's notice of it")
        assert mounted(mount.path)
        done = npyfs("mount", tree, mount.path)
        line = one_line(done.stderr)
        assert done.returncode == 32 and str(mount.path) in line and ("npyfs umount" in line or "fusermount3 -u" in line)
        npyfs("umount", mount.path, check=True)
        assert not mounted(mount.path)
        with Mount(tree, point=mount.path) as again:
            assert read(again / "sub/no_suffix/z.npy") == np_save(np.arange(3))


# Front and back

def test_the_parent_answers_when_the_mount_does(tree):
    """Right after the exit the files are there; and the daemon keeps none of the caller's pipes open."""
    point = make_point()
    try:
        done = subprocess.run([NPYFS, "mount", tree, point], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert sorted(os.listdir(point)) == ["empty", "plain.h5", "sub"]
        npyfs("umount", point, check=True)
    finally:
        clear(point)
        os.rmdir(point)


def test_a_relative_store_and_mount_point(tree, tmp_path):
    (tmp_path / "here").mkdir()
    point = tmp_path / "here"
    try:
        assert npyfs("mount", os.path.relpath(tree, tmp_path), "here", cwd=tmp_path).returncode == 0
        assert read(point / "plain.h5/x.npy") == np_save(np.arange(10.0))
        npyfs("umount", "here", cwd=tmp_path, check=True)
        assert not mounted(point)
    finally:
        clear(point)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_unmount_in_front(tree, number):
    point = make_point()
    process = subprocess.Popen([NPYFS, "mount", "-f", tree, point], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: mounted(point) or process.poll() is not None, "the mount in front")
        assert sorted(os.listdir(point)) == ["empty", "plain.h5", "sub"] and process.poll() is None
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0 or (number == signal.SIGINT and process.returncode == 130), (process.returncode, out, err)
        assert not mounted(point)
    finally:
        process.kill()
        process.wait(20)
        clear(point)
        os.rmdir(point)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_unmount_in_the_background(tree, number):
    with Mount(tree) as mount:
        os.kill(mount.pid, number)
        until(lambda: not mount.alive(), "the end of the daemon")
        mount.expect_dead = True
        assert not mounted(mount.path)


def test_umount_ends_a_process_in_front(tree):
    point = make_point()
    process = subprocess.Popen([NPYFS, "mount", "-f", tree, point], stdin=subprocess.DEVNULL)
    try:
        # Not before it serves: a mount that is gone before then has failed.
        until(lambda: os.listdir(point) or process.poll() is not None, "the mount in front")
        npyfs("umount", point, check=True)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait(20)
        clear(point)
        os.rmdir(point)


def test_allow_other(tree, root_only):
    """Another user may look only where allow_other says so."""
    look = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", "ls"]
    for options, code in {"allow_other": 0, "allow_other,default_permissions": 0, "": 2}.items():
        with Mount(tree / "plain.h5", options) as mount:
            assert run([*look, mount.path]).returncode == code, options


@pytest.mark.slow
def test_ten_thousand_stores_are_not_opened_by_mounting(tree, tmp_path):
    folder = tmp_path / "many"
    content = (tree / "sub/no_suffix").read_bytes()
    for i in range(100):
        (folder / f"d{i:02}").mkdir(parents=True)
        for j in range(100):
            (folder / f"d{i:02}/s{j:02}.h5").write_bytes(content)
    with Mount(folder) as mount:
        assert mount.status()["stores_opened"] == 0
        assert len(os.listdir(mount.path)) == 100 and len(os.listdir(mount / "d42")) == 100
        assert mount.status()["stores_opened"] == 0
        assert read(mount / "d42/s17.h5/z.npy") == np_save(np.arange(3))
        assert mount.status()["stores_opened"] == 1
        done = run(["find", mount.path, "-name", "z.npy", "-size", "-2"], timeout=100, check=True)
        assert len(done.stdout.splitlines()) == 10_000
        assert mount.peak_memory() < 400 << 20
        assert process_start(mount.pid) == mount.start


@pytest.mark.parametrize("arguments, meant", [(["moun"], "mount"), (["ls", "--jsn", "x"], "--json"), (["checkout", "difff", "x"], "diff"),
                                              (["export", "x", "y"], "checkout export"), (["comit", "x"], "checkout commit")])
def test_a_word_that_is_unknown_is_answered_with_what_was_meant(arguments, meant):
    done = npyfs(*arguments)
    assert done.returncode == 1 and f"did you mean {meant}?" in one_line(done.stderr)


def test_the_program_alone_shows_its_help():
    done = npyfs()
    assert done.returncode == 2 and done.stdout == "" and "Usage: npyfs" in done.stderr and " mount " in done.stderr


@pytest.mark.parametrize("arguments, usage", [(["mount", "one"], "npyfs mount"), (["ls"], "npyfs ls"), (["ls", "--nonsense", "x"], "npyfs ls"),
                                              (["checkout", "diff", "--nonsense"], "npyfs checkout diff"), (["show", "--depth", "x", "y"], "npyfs show")])
def test_bad_usage_shows_the_usage_of_the_command(arguments, usage):
    done = npyfs(*arguments)
    line = one_line(done.stderr)
    assert done.returncode == 1 and f"usage: {usage} " in line and f"(see {usage} --help)" in line


def test_an_option_that_is_unknown_is_answered_with_the_nearest(tmp_path):
    line = one_line(npyfs("mount", "-o", "cash_size=3M", tmp_path, tmp_path).stderr)
    assert line == 'npyfs: unknown option "cash_size"; did you mean cache_size=SIZE?'
    assert "lists all" in one_line(npyfs("ls", "-o", "nonsense", tmp_path).stderr)


@pytest.mark.parametrize("command", [["ls"], ["show"], ["info"], ["verify"], ["checkout", "ls"], ["mount"]])
def test_a_store_that_is_missing_is_answered_with_the_nearest(tree, tmp_path, command):
    point = [tmp_path] if command == ["mount"] else []
    done = npyfs(*command, tree / "plian.h5", *point)
    assert done.returncode and f"did you mean {tree / 'plain.h5'}?" in one_line(done.stderr)
    assert "did you mean plain.h5?" in one_line(npyfs(*command, "Plain.h5", *point, cwd=tree).stderr)
    assert "did you mean" not in one_line(npyfs(*command, tree / "nothing.h5", *point).stderr)
    assert "did you mean plain.h5:/g?" in one_line(npyfs(*command, "plain.h5:g", *point, cwd=tree).stderr)
    assert "ftp:// is not known" in one_line(npyfs(*command, "ftp://host/x.h5", *point).stderr)


def test_a_size_without_a_unit_is_doubted(tree):
    done = npyfs("ls", "-o", "cache_size=256", tree / "plain.h5")
    assert done.returncode == 0 and "256 bytes" in one_line(done.stderr) and "256M" in done.stderr
    point = make_point()
    try:
        done = npyfs("mount", "-o", "cache_size=256", tree / "plain.h5", point)
        assert done.returncode == 0 and "256M" in one_line(done.stderr)
    finally:
        npyfs("umount", point)
    assert npyfs("ls", "-o", "cache_size=256M,keep=0", tree / "plain.h5").stderr == ""


def test_a_command_of_commands_alone_shows_its_help():
    done = npyfs("checkout")
    assert done.returncode == 1 and "commit" in done.stderr and "Usage: npyfs checkout" in done.stderr


def test_every_command_has_a_page_and_every_option_is_in_it(tmp_path):
    npyfs("man", tmp_path, check=True)
    pages = {path.name for path in (tmp_path / "man1").iterdir()}
    assert {"npyfs.1", "npyfs-mount.1", "npyfs-log.1", "npyfs-checkout-log.1"} <= pages and "npyfs-man.1" not in pages
    for path in [*(tmp_path / "man1").iterdir(), tmp_path / "man8/mount.npyfs.8"]:
        done = run(["groff", "-Kutf8", "-man", "-Tutf8", "-ww", path])
        assert done.returncode == 0 and done.stderr == "", f"{path.name}: {done.stderr}"
        if path.name.endswith(".1"):
            words = path.stem.split("-")
            shown = " ".join(re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout).split())
            assert " ".join(words) in shown
            for option in re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", npyfs(*words[1:], "--help", check=True, judged=False).stdout, re.M):
                assert option in shown, f"{path.name} lacks {option}"
    assert "nofail" in (tmp_path / "man8/mount.npyfs.8").read_text()


def test_pages_end_with_exit_codes_examples_and_other_pages(tmp_path):
    npyfs("man", tmp_path, check=True)
    for path in (tmp_path / "man1").iterdir():
        text = path.read_text()
        assert all(f".SH {title}\n" in text for title in ("EXIT STATUS", "EXAMPLES", "SEE ALSO")), path.name
        beside = re.findall(r"npyfs[a-z\\-]*\(1\)", text.split(".SH SEE ALSO")[1])
        for other in beside:
            assert (tmp_path / "man1" / (other.replace("\\", "").removesuffix("(1)") + ".1")).exists(), f"{path.name}: {other}"
    assert "npyfs\\-checkout(1)" in (tmp_path / "man1/npyfs-checkout-log.1").read_text()
    # The examples that need nothing but a store are calls that work.
    with h5py.File(tmp_path / "cells.h5ad", "w") as file:
        file["X"] = np.arange(6.0).reshape(2, 3)
        file["obs/count"] = np.arange(2)
    for page in ("ls", "cat", "info", "find", "hash", "verify", "show"):
        text = (tmp_path / f"man1/npyfs-{page}.1").read_text().split(".SH EXAMPLES")[1].split(".SH")[0]
        for call in re.findall(r"\\fB(npyfs .*)\\fR", text):
            call = call.replace("\\-", "-").split(" | ")[0]
            if "mnt" not in call and "run.h5" not in call:
                assert npyfs(*shlex.split(call)[1:], cwd=tmp_path, text=False).returncode == 0, call


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_ask_for_completions(shell):
    text = npyfs("completions", shell, check=True).stdout
    assert "npyfs" in text and "NPYFS_COMPLETE" in text


def test_only_shells_that_are_there_for_it(tmp_path):
    for shell in ("elvish", "powershell"):
        assert npyfs("completions", shell).returncode == 1


def completed(*words, cwd):
    """What bash offers for the last word, as it splits words at colons and equals signs."""
    script = npyfs("completions", "bash", check=True).stdout
    quoted = " ".join(shlex.quote(os.fspath(word)) for word in ("npyfs", *words))
    ask = f'''{script}
npyfs() {{ {shlex.quote(os.fspath(NPYFS))} "$@"; }}
COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; COMP_TYPE=9
_clap_complete_npyfs npyfs {shlex.quote(os.fspath(words[-1]))} {shlex.quote(os.fspath(words[-2] if len(words) > 1 else "npyfs"))}
printf "%s\\n" "${{COMPREPLY[@]}}"'''
    done = run(["bash", "-c", ask], check=True, cwd=cwd)
    assert done.stderr == ""
    return {line.strip() for line in done.stdout.splitlines() if line.strip()}


def test_completion_knows_commands_mount_options_and_names_in_stores(tmp_path):
    with h5py.File(tmp_path / "cells.h5ad", "w") as file:
        file["obs/count"] = np.arange(3)
        file["obs/kind"] = np.arange(3)
        file["other"] = np.arange(3)
    assert completed("checkout", "ex", cwd=tmp_path) == {"export"}
    assert completed("mount", "-o", "cache_", cwd=tmp_path) == {"cache_size=", "cache_dir="}
    assert completed("ls", "-o", "xattrs,sep", cwd=tmp_path) == {"xattrs,sep="}
    assert completed("show", "cel", cwd=tmp_path) == {"cells.h5ad"}
    assert completed("show", "cells.h5ad", "o", cwd=tmp_path) == {"obs/", "other.npy"}
    assert completed("show", "cells.h5ad", "obs/c", cwd=tmp_path) == {"obs/count.npy"}
    assert completed("show", "cells.h5ad/obs/", cwd=tmp_path) == {"cells.h5ad/obs/count.npy", "cells.h5ad/obs/kind.npy"}
    assert completed("info", "cells.h5ad", ":", "/obs/k", cwd=tmp_path) == {"/obs/kind.npy"}
    # Whatever cannot be looked into offers nothing, and says nothing.
    (tmp_path / "broken.h5").write_bytes(b"no HDF5")
    assert completed("show", "broken.h5", "o", cwd=tmp_path) <= {"obs/"}
    with Mount(tmp_path / "cells.h5ad") as mount:
        assert completed("show", mount.path, "ot", cwd=tmp_path) == {"other.npy"}


def test_umount_from_within(tree):
    """A process that works in the mount is named; that is never npyfs itself."""
    with Mount(tree / "plain.h5") as mount:
        done = npyfs("umount", f"../{mount.path.name}", cwd=mount.path)
        assert done.returncode == 0, done.stderr
        mount.expect_dead = True
    with Mount(tree / "plain.h5") as mount:
        done = run(["sh", "-c", f"{NPYFS} umount ../{mount.path.name}; echo $?"], cwd=mount.path)
        assert done.stdout == "32\n" and "sh (process" in one_line(done.stderr) and "npyfs (process" not in done.stderr


NAMED = {
    b"CDF\x01": "CDF-1", b"CDF\x02": "CDF-2", b"CDF\x05": "CDF-5", b"PAR1": "Parquet", b"\x0e\x03\x13\x01": "HDF4", b"\x93NUMPY": ".npy",
    b"MATLAB 5.0 MAT-file": "MATLAB", b"II*\0": "TIFF", b"GRIB": "GRIB", b"SIMPLE  =": "FITS", b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip",
}


@pytest.mark.parametrize("head", NAMED)
def test_what_is_no_store_is_called_by_its_name(tmp_path, head):
    (tmp_path / "x.dat").write_bytes(head + bytes(600))
    for command in (["ls"], ["verify"], ["info"], ["convert"]):
        if head == b"\x93NUMPY":
            continue  # which is a file of arrays
        done = npyfs(*command, tmp_path / "x.dat", *([tmp_path / "new.h5"] if command == ["convert"] else []))
        assert done.returncode == 2 and NAMED[head] in one_line(done.stderr), command
    done = npyfs("mount", tmp_path / "x.dat", make_point())
    assert NAMED[head] in one_line(done.stderr)
    (tmp_path / "dir").mkdir()
    with h5py.File(tmp_path / "dir/good.h5", "w") as file:
        file["x"] = np.arange(3)
    os.rename(tmp_path / "x.dat", tmp_path / "dir/x.nc")
    assert NAMED[head] in npyfs("ls", tmp_path / "dir").stderr + npyfs("verify", tmp_path / "dir").stderr


def test_a_zarr_store_is_called_by_its_name(tmp_path):
    for name in (".zgroup", "zarr.json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("{}")
        for command in (["ls"], ["mount"]):
            done = npyfs(*command, tmp_path / name, *([make_point()] if command == ["mount"] else []))
            assert done.returncode == 2 and "a Zarr store" in one_line(done.stderr)
