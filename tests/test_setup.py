"""`npyfs setup` below another root directory: what it lists, installs, leaves alone and takes away. Judge: the directory itself. That what it
installs is of use is tried on whole machines, in test_packages.py and test_mount_scripts.py."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from support.host import ANN, Host
from support.process import NPYFS, npyfs, one_line, run

pytestmark = pytest.mark.fast

PROGRAM = "usr/local/bin/npyfs"
HELPERS = ("sbin/mount.npyfs", "sbin/mount.fuse.npyfs", "sbin/umount.fuse.npyfs")
PARTS = ("program", "mount", "units", "man", "completions", "allow-other")


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "root/sbin").mkdir()
    return tmp_path / "root"


def setup(root, *arguments, code=0):
    done = npyfs("setup", "--root", root, *arguments)
    assert done.returncode == code, done
    return done


def contents(root):
    """{path: (mode, bytes or where it leads)} of everything below."""
    found = {}
    for path in root.rglob("*"):
        is_file = path.is_file() and not path.is_symlink()
        what = os.readlink(path) if path.is_symlink() else path.read_bytes() if is_file else None
        found[str(path.relative_to(root))] = (path.lstat().st_mode, what)
    return found


def marks(root, *arguments):
    """{part: mark} of the list."""
    listed = dict(reversed(line.split()[:2]) for line in setup(root, *arguments).stdout.splitlines() if re.match(r"(there|missing|differs|foreign) ", line))
    assert set(listed) == set(PARTS)
    return listed


def test_everything_is_installed_and_taken_away(root):
    before = contents(root)
    assert set(marks(root).values()) == {"missing"} and contents(root) == before
    old = os.umask(0o077)
    try:
        report = setup(root, "--install").stdout.splitlines()
    finally:
        os.umask(old)
    after = contents(root)
    new = {path for path in set(after) - set(before) if not (root / path).is_dir()}
    assert {f"installed /{path}" for path in new if path != "usr/local/share/npyfs/installed"} == set(report)
    assert {PROGRAM, "usr/local/bin/npyfs-mount-for", *HELPERS, "usr/local/lib/systemd/system/npyfs@.service",
            "usr/local/lib/systemd/user/npyfs@.service", "usr/local/share/man/man1/npyfs.1", "usr/local/share/man/man1/npyfs-setup.1",
            "usr/local/share/man/man8/mount.npyfs.8", "usr/local/share/bash-completion/completions/npyfs",
            "usr/local/share/zsh/site-functions/_npyfs", "usr/local/share/fish/vendor_completions.d/npyfs.fish"} <= new
    assert (root / PROGRAM).read_bytes() == Path(NPYFS).read_bytes()
    for path in set(after) - set(before):
        mode = after[path][0] & 0o777
        assert mode == (0o777 if (root / path).is_symlink() else 0o755 if (root / path).is_dir() or path.startswith("usr/local/bin") else 0o644), path
    assert all(os.readlink(root / helper) == "/usr/local/bin/npyfs" for helper in HELPERS)
    assert marks(root) == {part: "missing" if part == "allow-other" else "there" for part in PARTS}
    assert setup(root, "--install").stdout == "all of it is there\n" and contents(root) == after
    assert len(setup(root, "--remove").stdout.splitlines()) == len(report)
    assert contents(root) == before
    assert setup(root, "--remove").stdout == "setup has installed nothing in /usr/local\n"


def test_parts(root):
    setup(root, "--install", "man")
    assert {part for part, mark in marks(root).items() if mark == "there"} == {"man"} and not (root / PROGRAM).exists()
    # What needs the program brings it.
    setup(root, "--install", "units", "completions")
    assert {part for part, mark in marks(root).items() if mark == "missing"} == {"mount", "allow-other"}
    setup(root, "--remove")
    assert not (root / "usr").exists()


def test_the_installed_program_is_the_running_one(root):
    setup(root, "--install")
    done = run([root / PROGRAM, "setup", "--root", root, "--install"], check=True)
    assert done.stdout == "all of it is there\n"
    run([root / PROGRAM, "setup", "--root", root, "--remove"], check=True)
    assert not (root / PROGRAM).exists()


def test_another_version_is_brought_up_to_date(root):
    setup(root, "--install")
    before = contents(root)
    for path in (PROGRAM, "usr/local/share/man/man1/npyfs.1"):
        (root / path).write_bytes(b"of another version")
    (root / "usr/local/lib/systemd/user/npyfs@.service").unlink()
    assert marks(root) == {"program": "differs", "units": "differs", "man": "differs", "mount": "there", "completions": "there", "allow-other": "missing"}
    assert len(setup(root, "--install").stdout.splitlines()) == 3
    assert contents(root) == before


def test_what_was_changed_or_was_there_stays(root):
    (root / "usr/local/bin").mkdir(parents=True)
    shutil.copy(NPYFS, root / PROGRAM)
    (root / PROGRAM).chmod(0o755)
    setup(root, "--install")
    unit = root / "usr/local/lib/systemd/system/npyfs@.service"
    unit.write_text(unit.read_text() + "# mine\n")
    (root / "usr/local/share/man/man1/other.1").write_text("of another program")
    (root / HELPERS[0]).unlink()
    report = setup(root, "--remove").stdout
    assert "left /usr/local/lib/systemd/system/npyfs@.service, which was changed\n" in report
    left = {path for path, (_, what) in contents(root).items() if what is not None}
    assert left == {PROGRAM, "usr/local/lib/systemd/system/npyfs@.service", "usr/local/share/man/man1/other.1"}


@pytest.mark.parametrize("helper", HELPERS)
def test_a_helper_of_others_stays(root, helper):
    (root / helper).symlink_to("/opt/npyfs")
    assert marks(root)["mount"] == "foreign"
    done = setup(root, "--install", code=3)
    assert f"/{helper} was put there by others" in one_line(done.stderr) and os.readlink(root / helper) == "/opt/npyfs"
    # And all the rest is there.
    assert {part for part, mark in marks(root).items() if mark == "there"} == {"program", "units", "man", "completions"}
    setup(root, "--remove")
    assert os.readlink(root / helper) == "/opt/npyfs" and not (root / "usr").exists()


def test_users_may_let_others_in(root):
    conf = root / "etc/fuse.conf"
    text = "# mount_max = 1000\n#user_allow_other\n"
    conf.write_text(text)
    conf.chmod(0o640)
    assert marks(root)["allow-other"] == "missing"
    setup(root, "--install")
    assert conf.read_text() == text
    setup(root, "--install", "allow-other")
    assert conf.read_text() == f"{text}user_allow_other\n" and conf.stat().st_mode & 0o777 == 0o640 and marks(root)["allow-other"] == "there"
    setup(root, "--install", "allow-other")
    conf.write_text(conf.read_text() + "mount_max = 5\n")
    setup(root, "--remove")
    assert conf.read_text() == f"{text}mount_max = 5\n"
    # The administrator's own line.
    conf.write_text(f" user_allow_other\n{text}")
    setup(root, "--install", "allow-other")
    setup(root, "--remove")
    assert conf.read_text() == f" user_allow_other\n{text}"


def test_a_file_that_others_link_is_not_written(root):
    (root / "etc/fuse.conf").symlink_to(root / "elsewhere")
    done = setup(root, "--install", "allow-other", code=3)
    assert "/etc/fuse.conf" in one_line(done.stderr) and not (root / "elsewhere").exists()


def test_a_packages_files_count(root):
    setup(root, "--prefix", "/usr", "--install")
    assert (root / "usr/share/zsh/vendor-completions/_npyfs").exists()
    assert "ExecStart=/usr/bin/npyfs mount" in (root / "usr/lib/systemd/system/npyfs@.service").read_text()
    shutil.rmtree(root / "usr/share/npyfs")
    before = contents(root)
    assert marks(root) == {part: "missing" if part == "allow-other" else "there" for part in PARTS}
    assert setup(root, "--install").stdout.count("is there, from a package") == 5
    assert contents(root) == before


def test_a_link_in_the_place_of_the_program_is_replaced_not_followed(root):
    mine = root / "home/npyfs"
    mine.parent.mkdir()
    mine.write_text("mine")
    (root / "usr/local/bin").mkdir(parents=True)
    (root / PROGRAM).symlink_to(mine)
    setup(root, "--install")
    assert mine.read_text() == "mine" and not (root / PROGRAM).is_symlink()


@pytest.mark.parametrize("text", ["file\tzz\t/etc/passwd\n", "dir\t\t/usr/../etc\n", "line\tx\n", "\n", b"\xff"])
def test_a_damaged_record_is_not_followed(root, text):
    record = root / "usr/local/share/npyfs/installed"
    record.parent.mkdir(parents=True)
    record.write_bytes(text if isinstance(text, bytes) else text.encode())
    before = contents(root)
    for arguments in (["--remove"], ["--install", "man"]):
        assert "installed" in one_line(setup(root, *arguments, code=3).stderr)
    assert contents(root) == before


@pytest.mark.parametrize("arguments", [["--prefix", "usr"], ["--prefix", "/usr/../etc"], ["--install", "nonsense"], ["--install", "--remove"],
                                       ["--prefix", "/a\tb"], ["mount"]])
def test_bad_input(root, arguments):
    one_line(setup(root, *arguments, code=1).stderr)
    assert sorted(path.name for path in root.rglob("*")) == ["etc", "sbin"]


def test_what_cannot_be_written(root):
    (root / "usr").write_text("a file")
    assert "/usr" in one_line(setup(root, "--install", code=3).stderr)
    assert marks(root)["man"] == "missing"


def test_users_are_told_what_root_types(root_only):
    with Host(()) as host:
        program = host.folder / "installed/npyfs"
        assert host(program, "setup", user=ANN).stdout.startswith(f"npyfs {npyfs('--version').stdout.split()[1]} is {program}\n")
        for option in ("--install", "--remove"):
            done = host(program, "setup", option, user=ANN, code=1)
            assert f"needs root: sudo {program} setup {option}" in one_line(done.stderr)


def test_the_list_as_json(root):
    listed = json.loads(setup(root, "--json").stdout)
    assert {part["name"]: part["state"] for part in listed["parts"]} == marks(root) and listed["needs"] == []
    assert [command.split(" setup ")[1] for command in listed["commands"]] == [f"--root {root} --install", f"--root {root} --install allow-other"]
    setup(root, "--install")
    listed = json.loads(setup(root, "--json").stdout)
    assert {part["name"]: part["state"] for part in listed["parts"]} == marks(root)
    assert {need["name"] for need in json.loads(npyfs("setup", "--json", check=True).stdout)["needs"]} == {"/dev/fuse", "fusermount3"}
    setup(root, "--json", "--install", code=1)
