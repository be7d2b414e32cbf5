"""What others put into the directory of a store's checkouts: links, FIFOs, second names of files and files of strangers are refused by
name, and nothing outside is written, deleted or shown. Judged by the bytes of the files outside, by NumPy and by what commands say."""

import os
import shutil
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.checkouts import top
from support.mount import Mount
from support.process import NPYFS, npyfs, run

pytestmark = pytest.mark.fast

STRANGER = 12345
COMMANDS = {
    "ls": lambda store, out: ["checkout", "ls", store],
    "diff": lambda store, out: ["checkout", "diff", store, "c"],
    "export": lambda store, out: ["checkout", "export", store, "c", out],
    "commit": lambda store, out: ["checkout", "commit", store, "c"],
    "discard": lambda store, out: ["checkout", "discard", store, "c"],
}


@pytest.fixture
def store(tmp_path):
    """A store with a checkout `c` in which `x` is another."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(10.0)
    with Mount(path, checkout="c") as m:
        np.save(m / "x.npy", np.ones(3))
    return path


@pytest.fixture
def victim(tmp_path):
    """A directory of files that nobody is to touch; it is as it was when the test is over."""
    folder = tmp_path / "victim"
    folder.mkdir()
    with h5py.File(folder / "secret.h5", "w") as file:
        file["x"] = np.full(3, 42.0)
    for name in ("notes", "index", "holder", "0000000000000001.h5", "0000000000000002.part"):
        (folder / name).write_bytes(b"theirs\n")

    def content():
        return {path.name: path.read_bytes() for path in folder.iterdir()}
    before = content()
    yield folder
    assert content() == before, "files outside were changed"


def tree(folder):
    """All names below a folder, and what each is; only the lock says who came last."""
    return {os.path.relpath(os.path.join(at, name), folder): os.lstat(os.path.join(at, name)).st_mode
            for at, folders, names in os.walk(folder) for name in folders + names if name not in (".lock", "commits")}


def refused(arguments, *words):
    """The command fails, says these words, and is no fault of npyfs."""
    done = npyfs(*arguments, timeout=60)
    assert done.returncode != 0, f"{arguments}: accepted: {done.stdout}"
    for word in words:
        assert str(word) in done.stderr, f"{arguments}: {done.stderr}"
    assert "panicked" not in done.stderr


def mount_refused(store, *words, options=()):
    point = Path(tempfile.mkdtemp(prefix="npyfs-mnt-"))
    try:
        refused(["mount", *options, store, point], *words)
    finally:
        point.rmdir()


def replace(path, kind, target):
    """Puts something else in the place of a file or directory."""
    if path.is_dir() and not path.is_symlink():
        shutil.move(path, path.with_name(path.name + ".away"))
    else:
        path.unlink(missing_ok=True)
    if kind == "symlink":
        path.symlink_to(target)
    elif kind == "relative":
        path.symlink_to(os.path.relpath(target, path.parent))
    elif kind == "hard link":
        os.link(target, path)
    elif kind == "fifo":
        os.mkfifo(path)


@pytest.mark.parametrize("kind", ["symlink", "relative", "hard link", "fifo"])
@pytest.mark.parametrize("name", ["holder", "index"])
def test_files_of_a_layer(store, victim, tmp_path, name, kind):
    path = top(store) / "c" / name
    replace(path, kind, victim / "notes")
    before = tree(top(store))
    mount_refused(store, path, options=["--checkout", "c"])
    for command, words in COMMANDS.items():
        if name == "holder" and command == "export":
            continue  # it asks nobody
        refused(words(store, tmp_path / "out.h5"), path)
    assert tree(top(store)) == before and not (tmp_path / "out.h5").exists()


@pytest.mark.parametrize("kind", ["symlink", "hard link", "fifo"])
@pytest.mark.parametrize("name", [".lock", "commits"])
def test_files_of_all_checkouts(store, victim, name, kind):
    path = top(store) / name
    replace(path, kind, victim / "notes")
    mount_refused(store, path, options=["--checkout", "c"])
    refused(["checkout", "commit", store, "c"], path)
    refused(["checkout", "discard", store, "c"], path)
    assert (top(store) / "c/index").is_file()


@pytest.mark.parametrize("kind", ["symlink", "relative"])
def test_a_layer_that_is_a_link(store, victim, tmp_path, kind):
    path = top(store) / "c"
    replace(path, kind, victim)
    mount_refused(store, path, "symbolic link", options=["--checkout", "c"])
    mount_refused(store, path, "symbolic link", options=["--checkout", "c", "-o", "ro"])
    for words in COMMANDS.values():
        refused(words(store, tmp_path / "out.h5"), path, "symbolic link")
    assert path.is_symlink()


def test_the_directory_itself_is_a_link(store, victim):
    replace(top(store), "symlink", victim)
    mount_refused(store, top(store), "symbolic link")
    mount_refused(store, top(store), "symbolic link", options=["--checkout", "new"])
    refused(["checkout", "ls", store], top(store), "symbolic link")


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("kind", ["symlink", "hard link", "fifo"])
def test_an_object_that_is_a_link(store, victim, tmp_path, kind, committed):
    [path] = (top(store) / "c").glob("*.h5")
    if committed:
        npyfs("checkout", "commit", store, "c", check=True)
    replace(path, kind, victim / "secret.h5")
    with Mount(store, checkout="new" if committed else "c") as m:
        with pytest.raises(OSError):
            np.load(m / "x.npy")
        assert any(str(path) in line for line in m.errors()), m.errors()
    if committed:
        refused(["checkout", "export", store, tmp_path / "out.h5"], path)
        assert not (tmp_path / "out.h5").exists()


@pytest.mark.parametrize("kind", ["symlink", "hard link", "fifo"])
def test_commands_on_an_object_that_is_a_link(store, victim, tmp_path, kind):
    [path] = (top(store) / "c").glob("*.h5")
    replace(path, kind, victim / "secret.h5")
    refused(COMMANDS["commit"](store, None), path)
    refused(COMMANDS["export"](store, tmp_path / "out.h5"), path)
    assert "42" not in npyfs(*COMMANDS["diff"](store, None)).stdout
    assert not (tmp_path / "out.h5").exists()
    npyfs(*COMMANDS["discard"](store, None), check=True)
    assert not (top(store) / "c").exists()


def test_files_of_strangers(store, tmp_path, root_only):
    layer = top(store) / "c"
    [obj] = layer.glob("*.h5")

    def strange(path):
        os.chown(path, STRANGER, STRANGER)
        return path, f"user {STRANGER}"

    def own(path):
        os.chown(path, 0, 0)
    for path in (layer / "index", layer / "holder", layer, top(store) / ".lock", top(store)):
        mount_refused(store, *strange(path), options=["--checkout", "c"])
        own(path)
    for path in (layer / "index", layer, top(store)):
        strange(path)
        for words in COMMANDS.values():
            refused(words(store, tmp_path / "out.h5"), path, f"user {STRANGER}")
        own(path)
    strange(obj)
    refused(COMMANDS["commit"](store, None), obj, f"user {STRANGER}")
    refused(COMMANDS["export"](store, tmp_path / "out.h5"), obj, f"user {STRANGER}")
    own(obj)
    # The checkout of a stranger beside ours does not hide it.
    shutil.copytree(layer, top(store) / "other")
    strange(top(store) / "other")
    done = npyfs("checkout", "ls", store)
    assert done.returncode != 0 and "\nc " in done.stdout and "\nother" not in done.stdout and str(top(store) / "other") in done.stderr
    # What the store's owner made counts.
    strange(store)
    strange(obj)
    npyfs(*COMMANDS["commit"](store, None), check=True)
    with Mount(store) as m:
        np.testing.assert_array_equal(np.load(m / "x.npy"), np.ones(3))


@pytest.fixture
def commons(root_only):
    """A directory that a group may write in, and a store in it; two users of the group, each a command that becomes one."""
    folder = Path(tempfile.mkdtemp(prefix="npyfs-group-"))
    try:
        folder.chmod(0o755)
        shutil.copy(NPYFS, folder / "npyfs")
        os.chmod(folder / "npyfs", 0o755)
        place = folder / "place"
        place.mkdir()
        os.chown(place, 2001, 3000)
        place.chmod(0o2775)
        store = place / "x.h5"
        with h5py.File(store, "w") as file:
            file["x"] = np.arange(10.0)
        os.chown(store, 2001, 3000)
        store.chmod(0o664)
        yield store, lambda user: ["setpriv", f"--reuid={user}", "--regid=3000", "--clear-groups", "--", folder / "npyfs"]
    finally:
        shutil.rmtree(folder)


def test_members_of_the_group_of_the_directory_are_trusted_and_no_others(commons):
    store, become = commons
    with Mount(store, checkout="c") as m:
        np.save(m / "x.npy", np.ones(3))
    for path in [top(store), *top(store).rglob("*")]:
        os.chown(path, 2002, 3000)
    assert "\nc " in run([*become(2003), "checkout", "ls", store], check=True).stdout
    run([*become(2003), "checkout", "diff", store, "c"], check=True)
    # The group says nothing where everybody may write.
    store.parent.chmod(0o2777)
    done = run([*become(2003), "checkout", "ls", store])
    assert done.returncode != 0 and "user 2002" in done.stderr
    # And nothing where it may not write.
    store.parent.chmod(0o2755)
    done = run([*become(2003), "checkout", "ls", store])
    assert done.returncode != 0 and "user 2002" in done.stderr
    # The user's own count all the same.
    assert "\nc " in run([*become(2002), "checkout", "ls", store], check=True).stdout
