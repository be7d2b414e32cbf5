"""The command line: ls, cat and info show the names and bytes of the mount without FUSE; each bad input is one line on stderr
and its exit code; mounting in front and in the background, signals, dead mounts; a directory of stores is mirrored.
Judge: the mount itself, the kernel's mount table, exit codes as documented."""

import errno
import json
import os
import re
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


def listed(*arguments):
    return npyfs("ls", *arguments, check=True).stdout


@pytest.mark.parametrize("path", ["", "plain.h5", "plain.h5/g", "sub", "sub/no_suffix", "sub/deeper/cells.h5df", "sub/deeper/cells.h5df/cell,gene#s_i4"])
def test_ls_agrees_with_the_mount(mount, path):
    arguments = [path] if path else []
    assert listed(mount.store, *arguments).splitlines() == sorted(os.listdir(mount / path), key=os.fsencode)
    lines = listed("-l", mount.store, *arguments).splitlines()
    for entry in os.scandir(mount / path):
        name = f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name
        found = [line for line in lines if line.endswith(f" {name}") or f" {name} -> " in line]
        assert len(found) == 1, f"{entry.name} in {lines}"
        if entry.is_file(follow_symlinks=False):
            assert str(entry.stat().st_size) in found[0].split()
        if entry.is_symlink():
            assert found[0].endswith(f" -> {os.readlink(entry)}")


def test_ls_l_says_type_and_shape_as_numpy_does(mount):
    entries = json.loads(listed("-l", "--json", "-R", mount.store))
    looked = 0
    for entry in entries:
        if entry["kind"] == "file" and entry["name"].endswith(".npy"):
            array = np.load(mount / entry["name"], mmap_mode="r", allow_pickle=False)
            assert (entry["dtype"], tuple(entry["shape"])) == (array.dtype.str, array.shape), entry
            looked += 1
        else:
            assert "dtype" not in entry and "shape" not in entry
    assert looked > 5
    assert all("dtype" not in entry for entry in json.loads(listed("--json", "-R", mount.store)))
    rows = {line.split()[-1]: line.split() for line in listed("-lh", mount.store, "plain.h5").splitlines()}
    assert rows["zipped.npy"][1:5] == ["781.4K", rows["zipped.npy"][2], "<i8", "(100000,)"] and rows["g/"][3:5] == ["-", "-"]


def test_ls_has_colours_on_a_terminal_only(mount):
    def on_terminal(**environment):
        command = f"'{NPYFS}' ls '{mount.store}'"
        return run(["script", "-qec", command, "/dev/null"], env={**os.environ, "TERM": "xterm", **environment}).stdout
    assert "\x1b[1;34mplain.h5\x1b[0m/" in on_terminal(NO_COLOR="")
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb", "NO_COLOR": ""}):
        assert "\x1b" not in on_terminal(**environment) and "plain.h5/" in on_terminal(**environment)
    assert "plain.h5" in listed(mount.store).splitlines()


def test_ls_R_agrees_with_the_mount(mount):
    blocks = [block.splitlines() for block in listed("-R", mount.store).rstrip("\n").split("\n\n")]
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


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["mount"], ["mount", "one"], ["mount", "a", "b", "c"], ["ls"], ["cat"], ["cat", "one"], ["--nonsense"], ["ls", "--nonsense", "x"]])
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
        until(lambda: mounted(point) or process.poll() is not None, "the mount in front")
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


@pytest.mark.parametrize("arguments, meant", [(["moun"], "mount"), (["ls", "--jsn", "x"], "--json"), (["checkout", "difff", "x"], "diff")])
def test_a_word_that_is_unknown_is_answered_with_what_was_meant(arguments, meant):
    done = npyfs(*arguments)
    assert done.returncode == 1 and f"did you mean {meant}?" in one_line(done.stderr)


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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(tmp_path, shell):
    text = npyfs("completions", shell, check=True).stdout
    assert "umount" in text and "checkout" in text
    if shell == "bash":
        (tmp_path / "npyfs").write_text(text)
        ask = f'source "{tmp_path}/npyfs"; COMP_WORDS=(npyfs checkout ex); COMP_CWORD=2; _npyfs npyfs ex checkout; echo "${{COMPREPLY[@]}}"'
        assert run(["bash", "-c", ask], check=True).stdout.split() == ["export"]
