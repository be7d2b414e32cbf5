"""What mountscripts/package made, installed on machines that never saw npyfs: the wheel in a new virtual environment here and for a
user of a fresh Debian 11, the .deb there. Judges: pip, dpkg, mount(8), man, bash, binutils, and the README, whose commands
print what it shows.

NPYFS_PACKAGES names the directory with the packages."""

import json
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from support.debian import SCRIPTS, Debian, wheels
from support.documents import PRELUDE, ROOT, blocks, judge, script
from support.process import NPYFS, run

# The first run downloads two hundred packages of Debian.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PACKAGES = os.environ.get("NPYFS_PACKAGES", "")
GLIBC = (2, 31)
HELPERS = {"/sbin/mount.npyfs", "/sbin/mount.fuse.npyfs", "/sbin/umount.fuse.npyfs"}


def one(pattern):
    """The file of that pattern among the packages."""
    if not PACKAGES:
        why = "NPYFS_PACKAGES names no packages, such as mountscripts/package makes: they are NOT tested"
        pytest.skip(os.environ.get("NPYFS_NO_PACKAGES") or (f"needs root: {why}" if os.geteuid() else why))
    found = list(Path(PACKAGES).glob(pattern))
    assert len(found) == 1, f"{PACKAGES}: {pattern}: {found}"
    return found[0].resolve()


@pytest.fixture(scope="module")
def wheel():
    return one("npyfs-*.whl")


@pytest.fixture(scope="module")
def deb():
    return one("npyfs_*.deb")


def versions(program):
    """The versions of glibc that the symbols of a program ask for."""
    found = re.findall(r"GLIBC_(\d+)\.(\d+)", run(["objdump", "-T", program], check=True).stdout)
    assert found, "a program without symbols of glibc"
    return {(int(major), int(minor)) for major, minor in found}


def test_the_wheel(wheel, tmp_path):
    assert wheel.stat().st_size <= 11 << 20
    tag = re.fullmatch(r"npyfs-[\d.]+-py3-none-manylinux_(\d+)_(\d+)_[\w.]+\.whl", wheel.name)
    assert tag and (int(tag[1]), int(tag[2])) <= GLIBC, wheel.name
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        program = next(name for name in names if name.endswith("/scripts/npyfs"))
        assert archive.getinfo(program).external_attr >> 16 & 0o777 == 0o755
        licences = {os.path.basename(name) for name in names if "/licenses/" in name}
        assert {"LICENSE-MIT", "LICENSE-APACHE", "LICENSE-OTHERS"} <= licences
        package = {path.relative_to(ROOT / "python").as_posix() for path in (ROOT / "python").rglob("*") if path.suffix in (".py", ".typed")}
        assert {name for name in names if name.startswith("npyfs/")} == package
        archive.extract(program, tmp_path)
    assert max(versions(tmp_path / program)) <= GLIBC
    assert (tmp_path / program).read_bytes() == one("npyfs").read_bytes()


def test_the_bill_of_materials(wheel, deb, tmp_path):
    """In both packages, with every package that the program is made of; judge: the program, which has the names of its sources."""
    run(["dpkg-deb", "--extract", deb, tmp_path], check=True)
    text = (tmp_path / "usr/share/doc/npyfs/npyfs.cdx.json").read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        inside = [name for name in archive.namelist() if re.search(r"\.dist-info/sboms/npyfs\.cdx\.json$", name)]
        assert len(inside) == 1 and archive.read(inside[0]) == text
    bill = json.loads(text)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    made = [(part["name"], part["version"]) for part in bill["components"]]
    assert len(set(made)) == len(made)
    assert all(part["purl"] == f"pkg:cargo/{part['name']}@{part['version']}" and part["licenses"] for part in bill["components"])
    # Of places in the sources, for messages. The standard library's own are elsewhere.
    program = (tmp_path / "usr/bin/npyfs").read_bytes()
    named = set(re.findall(rb"/registry/src/[^/]+/([\w-]+?)-(\d+\.\d+\.\d+[\w.+-]*)/", program))
    assert len(named) > 50 and {(name.decode(), version.decode()) for name, version in named} <= set(made)
    own = {part["name"]: part["version"] for outer in bill["components"] for part in outer.get("components", [])}
    assert own.keys() >= {"hdf5", "zstd", "lmdb", "zlib", "lz4", "c-blosc"} and all(own.values())


def test_the_program_is_small_and_its_lines_are_beside_it(wheel, tmp_path):
    program, debug = one("npyfs"), one("npyfs.debug")
    assert program.stat().st_size < 25 << 20
    sections = run(["objdump", "-h", program], check=True).stdout
    assert ".debug_line" not in sections and ".debug_info" not in sections and ".gnu_debuglink" in sections
    address = re.search(r"^(\w+) [tT] npyfs::command::main$", run(["nm", "-C", debug], check=True).stdout, re.M)[1]
    assert re.search(r"src/command\.rs:\d+", run(["addr2line", "-e", program, address], check=True).stdout)


def test_a_program_that_needs_more_than_debian_11_has_is_refused(tmp_path):
    """The check of mountscripts/package is awake."""
    here = max(versions(NPYFS))
    done = run([SCRIPTS / "package", "--check", NPYFS])
    assert (done.returncode == 0) is (here <= GLIBC), done
    if here > GLIBC:
        assert f"needs GLIBC_{here[0]}.{here[1]}; Debian 11 has 2.31" in done.stderr
    (tmp_path / "a.c").write_text("int main(void) { return 0; }\n")
    run(["cc", "-o", tmp_path / "a", tmp_path / "a.c", "-Wl,--no-as-needed", "-lresolv"], check=True)
    done = run([SCRIPTS / "package", "--check", tmp_path / "a"])
    assert done.returncode == 1 and "libraries that may be missing: libresolv.so.2" in done.stderr


def test_a_root_directory_that_cannot_be_made_leaves_nothing(root_only, tmp_path):
    if not shutil.which("debootstrap"):
        pytest.skip("debootstrap is missing: that half a root directory is removed is NOT tested")
    nobody = {**os.environ, "NPYFS_CACHE": str(tmp_path), "NPYFS_DEBIAN_MIRROR": "http://127.0.0.1:9/debian"}
    done = run([SCRIPTS / "debian-root", "clean", "fuse3"], env=nobody)
    assert done.returncode == 1 and done.stdout == "" and "no mirror served bullseye" in done.stderr
    assert not [path for path in (tmp_path / "debian").iterdir() if path.is_dir()]


def test_nothing_of_the_builder_is_in_the_program(wheel):
    program = one("npyfs").read_bytes()
    for path in (str(ROOT), str(Path.home() / ".cargo")):
        assert path.encode() not in program


# Mounts and reads with what pip installed, without NumPy.
MOUNTS = """
import npyfs
with npyfs.mount("plain.h5") as m:
    print(npyfs._program.program(), npyfs.__version__, len((m / "pi.npy").read_bytes()))
assert not m.path.exists()
"""


def environment(**more):
    keep = {name: os.environ[name] for name in ("TMPDIR", "XDG_STATE_HOME") if name in os.environ}
    return {**keep, "HOME": os.environ.get("HOME", "/"), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C.UTF-8", **more}


@pytest.mark.sample("package", 2, together=True)
def test_pip_install_in_a_new_environment(wheel, tmp_path):
    run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=100)
    pip = [tmp_path / "venv/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run([*pip, "install", "--no-index", wheel], check=True, timeout=100)
    program = tmp_path / "venv/bin/npyfs"
    assert run([program, "--version"], check=True).stdout == f"npyfs {wheel.name.split('-')[1]}\n"
    npyfs_demo = run([program, "demo", tmp_path / "stores"], env=environment(), check=True)
    assert npyfs_demo.stderr == ""
    done = run([tmp_path / "venv/bin/python", "-W", "error", "-c", MOUNTS], cwd=tmp_path / "stores", env=environment(), check=True)
    assert done.stdout.split() == [str(program), wheel.name.split("-")[1], "136"]
    done = run([ROOT / "mountscripts/demo"], timeout=100, env=environment(NPYFS_BIN=str(program)))
    assert done.returncode == 0 and "That was npyfs." in done.stdout and "NOT MOUNTED" not in done.stdout, done
    run([*pip, "uninstall", "--yes", "npyfs"], check=True)
    assert not program.exists()
    assert run([tmp_path / "venv/bin/python", "-c", "import npyfs"], cwd=tmp_path).returncode == 1


def typed(debian, page, cwd, path):
    """What is wrong with the console blocks of a page, typed in by ann."""
    program, expected = script(blocks(page), Path("/nonexistent"))
    assert len(expected) > 10 and program.startswith(PRELUDE)
    done = debian("bash", "--norc", "-c", program, user="ann", cwd=cwd, path=path, code=None)
    return judge(done.stdout, expected)


@pytest.mark.sample("package", 2, together=True)
def test_the_readme_after_pip_install(wheel, root_only):
    """An ordinary user of a fresh Debian, who has nothing but what pip installs."""
    with Debian(packages=wheel.parent, wheels=wheels()) as debian:
        debian.shell(f"python3 -m venv venv && venv/bin/pip install --no-index --find-links /wheels /packages/{wheel.name} numpy", user="ann")
        debian("/home/ann/venv/bin/npyfs", "demo", "stores", user="ann")
        assert typed(debian, (ROOT / "README.md").read_text(), "/home/ann/stores", ["/home/ann/venv/bin"]) == []
        # Debian 11 has Python 3.9.
        said = debian.shell("""cd stores && python -c 'import npyfs; print(npyfs.open("plain.h5", "pi").read())'""", user="ann", path=["/home/ann/venv/bin"])
        assert said.stdout == "3.141592653589793\n"
        debian.shell("cd stores && python -W error -c '" + MOUNTS.replace("'", '"') + "'", user="ann", path=["/home/ann/venv/bin"])
        assert debian.mounts() == []


@pytest.mark.sample("package", 2, together=True)
def test_setup_after_pip_install(wheel, root_only):
    """What else root can do: said to the user, done by root, taken away again."""
    with Debian(packages=wheel.parent) as debian:
        debian.shell(f"python3 -m venv venv && venv/bin/pip install --no-index /packages/{wheel.name}", user="ann")
        program = "/home/ann/venv/bin/npyfs"
        before = debian.files()
        said = debian(program, "setup", user="ann").stdout
        for part in ("program", "mount", "units", "man", "completions", "allow-other"):
            assert re.search(rf"^missing +{part} ", said, re.M), said
        assert re.search(r"^there +/dev/fuse ", said, re.M) and re.search(r"^there +fusermount3 ", said, re.M), said
        assert f"sudo {program} setup --install" in said
        refused = debian(program, "setup", "--install", user="ann", code=1)
        assert refused.stderr == f"npyfs: setup --install needs root: sudo {program} setup --install\n" and debian.files() == before

        debian.shell("mkdir mnt && npyfs demo stores", user="ann", path=["/home/ann/venv/bin"])
        assert "allow_other" in debian(program, "mount", "-o", "allow_other", "stores/plain.h5", "mnt", user="ann", code=None).stderr
        debian(program, "setup", "--install")
        debian(program, "setup", "--install", "allow-other")
        assert "missing" not in debian(program, "setup", user="ann").stdout
        # For everybody, whatever becomes of the environment.
        debian.shell("rm -r venv", user="ann")
        used_by_all(debian, "/usr/local")
        debian.shell("npyfs mount -o allow_other stores/plain.h5 mnt", user="ann")
        debian("ls", "/home/ann/mnt")
        debian.shell("npyfs umount mnt", user="ann")
        debian("/usr/local/bin/npyfs", "setup", "--remove")
        assert debian.files() == before


def used_by_all(debian, prefix):
    """Uses every part of an installation in a prefix."""
    debian.shell("test -d stores || npyfs demo stores", user="ann")
    debian.shell("mkdir -p /mnt/cells && mount -t npyfs -o ro,allow_other /home/ann/stores/cells.h5df /mnt/cells")
    assert "cell#.npy" in debian("ls", "/mnt/cells", user="ann").stdout
    debian("umount", "/mnt/cells")
    debian.shell("echo '/home/ann/stores/plain.h5 /mnt/cells npyfs ro,allow_other 0 0' >> /etc/fstab && mount -a && ls /mnt/cells/pi.npy && umount /mnt/cells"
                 " && sed -i '$d' /etc/fstab && rmdir /mnt/cells")
    assert debian.mounts() == []
    for page in ("npyfs", "npyfs-mount", "npyfs-checkout-commit", "mount.npyfs"):
        # /usr/local/man leads to /usr/local/share/man.
        assert debian.shell(f"realpath $(man -w {page})", user="ann").stdout.startswith(f"{prefix}/share/man/man"), page
    complete = 'source /usr/share/bash-completion/bash_completion; _completion_loader npyfs; complete -p npyfs'
    assert "-F _clap_complete_npyfs" in debian("bash", "--norc", "-c", complete, user="ann").stdout
    units = debian.shell(f"cat {prefix}/lib/systemd/system/npyfs@.service {prefix}/lib/systemd/user/npyfs@.service").stdout
    assert units.count(f"{prefix}/bin/npyfs mount ") == 2
    debian("npyfs-mount-for", "--help", user="ann")


@pytest.mark.sample("package", 2, together=True)
def test_the_deb(deb, root_only):
    """Installed with dpkg -i, used, and removed without a trace."""
    with Debian(packages=deb.parent, scripts=ROOT / "mountscripts") as debian:
        before = debian.files()
        debian("dpkg", "-i", f"/packages/{deb.name}")
        used_by_all(debian, "/usr")
        demo = debian.shell("NPYFS_BIN=/usr/bin/npyfs /scripts/demo", user="ann").stdout
        assert "That was npyfs." in demo and "NOT MOUNTED" not in demo
        said = debian("npyfs", "setup").stdout
        assert re.findall(r"^missing +(\S+)", said, re.M) == ["allow-other"], said
        again = debian("npyfs", "setup", "--install").stdout
        assert "from a package" in again and debian.shell("test ! -e /usr/local/bin/npyfs")
        listed = set(debian("dpkg", "-L", "npyfs").stdout.split())
        assert HELPERS <= listed and "/usr/share/doc/npyfs/copyright" in listed and "/usr/share/doc/npyfs/LICENSE-OTHERS" in listed
        depends = debian("dpkg-query", "-W", "-f", "${Depends}", "npyfs").stdout
        assert "fuse3" in depends and "libc6" in depends
        debian("dpkg", "-r", "npyfs")
        assert debian.files() == before
