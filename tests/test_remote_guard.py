"""What stores on web servers may not reach, and what nobody may see: secrets in logs, processes and files; sockets in workers; other files and
other hosts through links in a file."""

import base64
import os
import re
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.mount import Mount
from support.process import npyfs, workers
from support.web import Site

QUERY, PASSWORD, HEADER, KEY = "aVerySecretSignature", "aVerySecretPassword", "openSesame", "aVerySecretKeyOfAWS"
SECRETS = [word.encode() for word in (QUERY, PASSWORD, HEADER, KEY)]


@pytest.fixture
def place(tmp_path, monkeypatch):
    for name in ("CACHE", "STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    (tmp_path / "www").mkdir()
    with h5py.File(tmp_path / "www/x.h5", "w") as file:
        file.create_dataset("a", data=np.arange(100_000), chunks=(1000,), compression="gzip")
        # A worker reads it.
        file.create_dataset("text", data=["some", "text"], dtype=h5py.string_dtype())
        file["b"] = np.random.default_rng(1).normal(size=200_000)
    return tmp_path


def files_below(top):
    """(name, bytes) of everything below a directory."""
    for path in Path(top).rglob("*"):
        yield os.fsencode(path), path.read_bytes() if path.is_file() and not path.is_symlink() else b""


def read(path):
    """NumPy takes an error in the midst of a file for its end."""
    file = os.open(path, os.O_RDONLY)
    try:
        while os.read(file, 1 << 20):
            pass
    finally:
        os.close(file)


def of_process(pid, *names):
    return [(f"/proc/{pid}/{name}".encode(), Path(f"/proc/{pid}/{name}").read_bytes()) for name in names]


@pytest.mark.fast
def test_secrets_are_seen_nowhere(place):
    headers = place / "headers"
    np.save(place / "saved.npy", np.arange(4))
    headers.write_text(f"X-Secret: {HEADER}\n")
    environment = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": KEY, "AWS_SESSION_TOKEN": KEY}
    with Site(place / "www") as site:
        url = site.url("x.h5", f"?X-Amz-Signature={QUERY}").replace("://", f"://me:{PASSWORD}@")
        with Mount(url, f"header=@{headers},timeout=1,check=0", checkout="mine", checkouts=place / "kept", env=environment) as mount:
            np.testing.assert_array_equal(np.load(mount / "a.npy"), np.arange(100_000))
            assert list(np.load(mount / "text.npy")) == ["some", "text"]
            (mount / "new.npy").write_bytes((place / "saved.npy").read_bytes())
            assert np.load(mount / "new.npy").tolist() == [0, 1, 2, 3]
            assert all(HEADER in str(seen) and "authorization" in seen for seen in site.seen)
            # Everything that says something when it goes wrong.
            for status in (403, 404, 500, 503, 302):
                site.fault = lambda handler, status=status: handler.refuse(status, Location=handler.path + "#" + QUERY)
                with pytest.raises(OSError):
                    read(mount / "b.npy")
            site.fault = None
            found = list(of_process(mount.pid, "cmdline", "mountinfo", "mounts"))
            # Nothing but what the caller's own environment had.
            own = of_process(mount.pid, "environ")[0][1].replace(f"AWS_SECRET_ACCESS_KEY={KEY}".encode(), b"")
            found.append((b"environ", own.replace(f"AWS_SESSION_TOKEN={KEY}".encode(), b"")))
            assert workers(mount.pid)
            for pid in workers(mount.pid):
                found += of_process(pid, "cmdline", "environ")
                assert of_process(pid, "environ")[0][1] == b""
            found += [(name.encode(), (mount / ".npyfs" / name).read_bytes()) for name in ("status.json", "errors.log", "errors.jsonl", "info.json")]
            for command in (["log", mount.path], ["checkout", "ls", mount.path], ["info", mount.path, "a.npy"]):
                done = npyfs(*command)
                found.append((str(command).encode(), (done.stdout + done.stderr).encode()))
            assert b"403" in dict(found)[b"errors.log"]
        assert any(b"checkouts" in name for name, _ in files_below(place / "kept"))
        for command in (["ls", url], ["verify", url], ["info", url], ["checkout", "ls", "--checkouts", place / "kept", url],
                        ["checkout", "export", url, place / "out.h5"], ["log", mount.path], ["ls", url + "#" + QUERY], ["cat", url, "no.npy"],
                        ["ls", "-o", "timeout=1", url.replace("x.h5", "y.h5")], ["mount", url, place / "no-such-directory"]):
            site.fault = None
            done = npyfs(*command)
            found.append((str(command[:2]).encode(), (done.stdout + done.stderr).encode()))
        headers.unlink()
        found += files_below(place)
        for name, data in found:
            for secret in SECRETS:
                assert secret not in data and (secret not in name or name.startswith(b"[")), (name, secret)


@pytest.mark.fast
@pytest.mark.parametrize("where", ["option", "environment"])
def test_the_password_of_a_service_is_seen_nowhere(place, where):
    (place / "www/data").mkdir()
    shutil.copy(place / "www/x.h5", place / "www/data/x.h5")
    np.save(place / "saved.npy", np.arange(4))
    # One that other signs end, where addresses stand in a text.
    password = PASSWORD + "')(!"
    url = "s3://data/x.h5"
    with Site(place / "www") as site:
        endpoint = site.url("").rstrip("/").replace("://", f"://me:{password}@")
        option = f",endpoint={endpoint}" if where == "option" else ""
        environment = {"AWS_ENDPOINT_URL": endpoint} if where == "environment" else {}
        common = f"anonymous,region=us-east-1{option}"
        with Mount(url, f"{common},timeout=1,check=0", checkout="mine", checkouts=place / "kept", env=environment) as mount:
            np.testing.assert_array_equal(np.load(mount / "a.npy"), np.arange(100_000))
            (mount / "new.npy").write_bytes((place / "saved.npy").read_bytes())
            # The service is told, and it is told to no other.
            expected = "Basic " + base64.b64encode(f"me:{password}".encode()).decode()
            assert site.seen and {seen.get("authorization") for seen in site.seen} == {expected}
            for status in (403, 404, 500, 503, 302):
                site.fault = lambda handler, status=status: handler.refuse(status, Location=handler.path)
                with pytest.raises(OSError):
                    read(mount / "b.npy")
            with Site(place / "www") as behind:
                site.fault = lambda handler: handler.refuse(307, Location=behind.url(handler.path.lstrip("/")))
                read(mount / "b.npy")
                assert behind.seen and not any("authorization" in seen for seen in behind.seen)
            site.fault = None
            found = list(of_process(mount.pid, "cmdline", "mountinfo", "mounts"))
            own = of_process(mount.pid, "environ")[0][1]
            found.append((b"environ", own if where == "option" else own.replace(f"AWS_ENDPOINT_URL={endpoint}".encode(), b"")))
            for pid in workers(mount.pid):
                found += of_process(pid, "cmdline", "environ")
            found += [(name.encode(), (mount / ".npyfs" / name).read_bytes()) for name in ("status.json", "errors.log", "errors.jsonl", "info.json")]
            for command in (["log", mount.path], ["checkout", "ls", mount.path], ["info", mount.path, "a.npy"]):
                done = npyfs(*command)
                found.append((str(command).encode(), (done.stdout + done.stderr).encode()))
        environ = {**os.environ, **environment}
        for command in (["ls", "-o", common, url], ["verify", "-o", common, url], ["info", "-o", common, url],
                        ["pack", "-o", common, url, place / "x.npyfs-pack"], ["ls", "-o", f"{common},timeout=1", "s3://data/y.h5"],
                        ["checkout", "export", "-o", common, url, place / "out.h5"], ["ls", "-o", f"{common},bogus", url],
                        ["ls", "-o", f"endpoint=me:{PASSWORD}@host", url], ["ls", "-o", f"endpoint=http://me:{PASSWORD}/x@host", url],
                        ["ls", "-o", f"endpoint=http://me:{PASSWORD}@127.0.0.1:9,anonymous,timeout=1", url],
                        ["ls", "-o", f"header=X: {PASSWORD}", url], ["ls", f"http://me:{PASSWORD}/x@host/y.h5"]):
            done = npyfs(*command, env=environ)
            found.append((str(command[0]).encode(), (done.stdout + done.stderr).encode()))
        found += files_below(place)
        for name, data in found:
            assert PASSWORD.encode() not in data and PASSWORD.encode() not in name, (name, data[-300:])


@pytest.mark.fast
def test_the_cache_is_for_its_user_alone(place):
    with Site(place / "www") as site:
        npyfs("ls", site.url("x.h5"), check=True)
        kept = [path for path in (place / "cache/npyfs").rglob("*")]
        assert kept
        for path in [place / "cache/npyfs/objects", *kept]:
            assert path.stat().st_mode & 0o077 == 0 or path.parent.stat().st_mode & 0o077 == 0, path


def sockets(pid):
    """Sockets of a process, and those of them that lead into a network."""
    inodes = set()
    for number in os.listdir(f"/proc/{pid}/fd"):
        link = os.readlink(f"/proc/{pid}/fd/{number}")
        if link.startswith("socket:"):
            inodes.add(link[8:-1])
    network = set()
    for table in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
        path = Path(f"/proc/{pid}/net/{table}")
        network |= {line.split()[9] for line in path.read_text().splitlines()[1:]} if path.exists() else set()
    return inodes, inodes & network


@pytest.mark.fast
def test_workers_have_no_socket_but_the_one_to_the_daemon(place):
    with Site(place / "www") as site, Mount(site.url("x.h5")) as mount:
        np.load(mount / "text.npy")
        np.load(mount / "a.npy")
        assert sockets(mount.pid)[1], "the daemon has connections"
        assert workers(mount.pid)
        for pid in workers(mount.pid):
            every, network = sockets(pid)
            assert len(every) == 1 and not network
            # Nothing of the cache can be written by it.
            for number in os.listdir(f"/proc/{pid}/fd"):
                assert "objects" not in os.readlink(f"/proc/{pid}/fd/{number}")


@pytest.mark.fast
def test_workers_make_no_call_of_the_network(place):
    strace = shutil.which("strace")
    if not strace or subprocess.run([strace, "-f", "-o", place / "probe", "true"], capture_output=True).returncode:
        pytest.skip("no strace here")
    trace = place / "trace"
    with Site(place / "www") as site:
        listed = subprocess.run([strace, "-f", "-e", "trace=socket,connect,bind,listen,execve", "-o", trace, os.environ["NPYFS_BIN"], "verify", site.url("x.h5")],
                                capture_output=True, text=True, timeout=100)
    assert listed.returncode == 0, listed
    lines = trace.read_text().splitlines()
    of_workers = {line.split()[0] for line in lines if "execve(" in line and "h5-" in line}
    assert of_workers
    calls = [line for line in lines if re.search(r" (socket|connect|bind|listen)\(", line)]
    assert any("AF_INET" in line and line.split()[0] not in of_workers for line in calls), "the daemon connects"
    assert not [line for line in calls if line.split()[0] in of_workers]


def leading_out(path, other, host):
    """A file that names another file and another host in all ways that HDF5 has; returns names of what leads out."""
    with h5py.File(path, "w") as file:
        file["own"] = np.arange(3)
        number = 0
        for target in (other, os.path.basename(other), f"file://{other}", host, "x.h5?", "far", ".", f"../../../../../..{other}"):
            link = h5py.ExternalLink(target, "/a")
            file[f"link{number}"] = link
            file[f"in/group{number}/link"] = link
            file[f"soft{number}"] = h5py.SoftLink(f"/link{number}")
            layout = h5py.VirtualLayout((4,), "i8", maxshape=(None,))
            layout[:] = h5py.VirtualSource(target, "a", (4,))
            file.create_virtual_dataset(f"virtual{number}", layout, fillvalue=-1)
            if "\0" not in target and target != ".":
                file.create_dataset(f"raw{number}", (4,), "i8", external=[(target, 0, 32)])
            number += 1
        # What leads out by way of what is inside.
        layout = h5py.VirtualLayout((4,), "i8")
        layout[:] = h5py.VirtualSource(".", "raw0", (4,))
        file.create_virtual_dataset("of_raw", layout, fillvalue=-1)
        layout = h5py.VirtualLayout((4,), "i8")
        layout[:] = h5py.VirtualSource(".", "link0", (4,))
        file.create_virtual_dataset("of_link", layout, fillvalue=-1)


@pytest.mark.parametrize("external", ["deny", "same-dir", "allow"])
def test_a_file_on_a_server_reaches_nothing_else(place, external):
    secret = np.array([0x5EC2E7] * 4)
    other = place / "secret.h5"
    with h5py.File(other, "w") as file:
        file["a"] = secret
    (place / "work").mkdir()
    shutil.copy(other, place / "www/secret.h5")
    with Site(place / "www") as site, Site(place / "www") as host:
        leading_out(place / "www/out.h5", str(other), host.url("secret.h5"))
        asked = len(site.asked)
        with Mount(site.url("out.h5"), f"external={external}", env={"PWD": str(place)}) as mount:
            assert np.load(mount / "own.npy").tolist() == [0, 1, 2]
            refused = 0
            for top, _, names in os.walk(mount.path):
                for name in names:
                    path = Path(top) / name
                    if name == "own.npy" or ".npyfs" in path.parts:
                        continue
                    try:
                        shown = path.read_bytes()
                    except OSError:
                        refused += 1
                        continue
                    assert secret.tobytes()[:3] not in shown, path
            assert refused
            for pid in workers(mount.pid):
                assert not any("secret" in os.readlink(f"/proc/{pid}/fd/{n}") for n in os.listdir(f"/proc/{pid}/fd"))
        assert not host.asked and {name for _, name, _ in site.asked[asked:]} <= {"out.h5", "out.h5.npyfs-pack"}
        # An export has none of it either.
        url = site.url("out.h5")
        refused = npyfs("checkout", "export", url, place / "new.h5")
        assert refused.returncode == 3 and "another file" in refused.stderr and not (place / "new.h5").exists()
        for number, how in enumerate([[], ["--compress", "gzip:5"]]):
            new = place / f"new{number}.h5"
            done = npyfs("checkout", "export", "--leave-out", *how, url, new, judged=False)
            assert done.returncode == 0, done
            with h5py.File(new) as file:
                assert file["own"][()].tolist() == [0, 1, 2]
            assert secret.tobytes() not in new.read_bytes()
        npyfs("convert", "--leave-out", url, place / "arrays")
        assert not any(secret.tobytes() in data for _, data in files_below(place / "arrays"))
        assert not host.asked
