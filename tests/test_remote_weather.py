"""Stores on web servers that misbehave: reads end in time, with an error that says why, and the mount works afterwards."""

import os
import re
import socket
import ssl
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import h5py
import numpy as np
import pytest

from support import weather
from support.mount import Mount, until
from support.process import npyfs
from support.proxies import Proxy
from support.web import Site, certificate

REST = "timeout=1,check=0,nopack"
SOME = np.random.default_rng(3).integers(0, 1000, (40, 4096)).astype("i4")

READS = [pytest.param(fault, errors, says, id=name) for name, fault, errors, says in weather.CASES]


def write(path, arrays=1):
    with h5py.File(path, "w") as file:
        for number in range(arrays):
            file.create_dataset(f"d{number}", data=SOME + number, chunks=(1, 4096))
    return path


@pytest.fixture(autouse=True)
def servers_end():
    weather.ended.clear()
    yield
    weather.ended.set()


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/npyfs"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("www")
    write(directory / "x.h5", len(READS) + 1)
    return directory


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def site(directory):
    with Site(directory) as site:
        yield site


@pytest.fixture(scope="module")
def mount(site, cache):
    with Mount(site.url("x.h5"), REST, env={"XDG_CACHE_HOME": str(cache)}) as mount:
        yield mount


numbers = count()


def look(code, *arguments, timeout=30):
    """Runs Python code in a process of its own: a read that hangs must not hold the tests."""
    return subprocess.run(["python3", "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=timeout)


READ = """
import errno, os, sys
try:
    file = os.open(sys.argv[1], os.O_RDONLY)
    data = b''
    while part := os.read(file, 1 << 20):
        data += part
    sys.stdout.write(data[-8:].hex())
except OSError as e:
    sys.stdout.write(errno.errorcode[e.errno])
"""


@pytest.mark.sample("bucket", 15)
@pytest.mark.parametrize("fault, errors, says", READS)
def test_a_read_ends(mount, site, fault, errors, says):
    number = next(numbers)
    name, last = f"d{number}.npy", (SOME + number).tobytes()[-8:].hex()
    log = Path(mount / ".npyfs/errors.log")
    before = log.read_text().splitlines()
    site.fault = lambda handler: handler.command == "GET" and fault(handler)
    try:
        ended = weather.outcome(lambda: look(READ, mount / name).stdout, errors)
    finally:
        site.fault = None
        weather.ended.set()
    assert ended in (errors or {last}), ended
    if errors:
        lines = [line for line in log.read_text().splitlines() if line not in before and site.url("x.h5") in line]
        assert any(re.search(says, line) for line in lines), lines
    # The next ones are answered, whatever there was; one may meet a request that was on its way.
    weather.ended.clear()
    until(lambda: look(READ, mount / name).stdout == last, "the array")
    np.testing.assert_array_equal(np.load(mount / name), SOME + number)


OPENS = [case for case in READS if case.id not in {"412", "416", "short-body", "other-size", "other-range"}]


def test_opening_ends(home, directory, tmp_path):
    """Every case at a file of its own, several at the same time."""
    www = tmp_path / "www"
    www.mkdir()
    cases = {case.id: case.values for case in OPENS}
    for id in cases:
        os.link(directory / "x.h5", www / f"{id}.h5")
    with Site(www) as site:
        site.fault = lambda handler: cases[handler.path.split("?")[0][1:].removesuffix(".h5")][0](handler)

        def opened(id):
            _, errors, says = cases[id]
            # As in `weather.outcome`: a machine that stalls for longer makes a timeout of any case.
            for _ in range(5):
                done = npyfs("ls", "-o", f"nopack,timeout={2 if errors else 20}", site.url(f"{id}.h5", "?sig=aVerySecretWord"), timeout=60)
                if "no answer within" not in done.stderr or re.search(says, done.stderr):
                    break
            return id, done

        with ThreadPoolExecutor(8) as pool:
            for id, done in pool.map(opened, cases):
                _, errors, says = cases[id]
                if not errors:
                    assert done.returncode == 0 and "d0.npy" in done.stdout, (id, done)
                    continue
                assert done.returncode == 2, (id, done)
                line, = done.stderr.splitlines()
                assert site.url(f"{id}.h5") in line and "aVerySecretWord" not in line, (id, line)
                assert re.search(says, line), (id, line)


@pytest.mark.parametrize("place", ["refused", "unknown", "deaf"])
def test_a_host_that_is_not_there(home, place):
    with weather.Deaf() as deaf:
        url = {"refused": f"http://127.0.0.1:{weather.closed_port()}/x.h5", "unknown": "http://no-such-host.invalid/x.h5",
               "deaf": f"http://127.0.0.1:{deaf}/x.h5"}[place]
        done = npyfs("ls", "-o", REST, url, timeout=30)
        assert done.returncode == 2
        line, = done.stderr.splitlines()
        assert url in line


def test_a_mount_outlives_its_server(home, directory):
    """What was read is served, the last known version counts, and both are said."""
    with Site(directory) as site:
        with Mount(site.url("x.h5"), REST) as mount:
            np.testing.assert_array_equal(np.load(mount / "d0.npy"), SOME)
            port = site.server.server_port
            site.fault = weather.no_answer
            site.server.shutdown()
            site.server.server_close()
            for _ in range(3):
                os.listdir(mount.path)
                np.testing.assert_array_equal(np.load(mount / "d0.npy"), SOME)
            assert look(READ, mount / "d1.npy").stdout in ("EIO", "ETIMEDOUT")
            assert any("last known version" in note for note in mount.status()["remote"][-1]["notes"])
            assert "last known version" in Path(mount / ".npyfs/errors.log").read_text()
            # It comes back, at the same place.
            again = Site(directory)
            again.server.server_close()
            again.server.server_address = ("127.0.0.1", port)
            again.server.socket = socket.create_server(("127.0.0.1", port))
            threading.Thread(target=again.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
            try:
                np.testing.assert_array_equal(np.load(mount / "d1.npy"), SOME + 1)
            finally:
                again.server.shutdown()
                again.server.server_close()
            site.server = Site(directory).server
            threading.Thread(target=site.server.serve_forever, daemon=True).start()


def test_connections_from_before_a_restart_cost_one_request(home, directory):
    """The retry is sent on a new connection, not on the next one that the server has closed."""
    with Site(directory, latency=0.1) as site, Mount(site.url("x.h5"), REST) as mount:
        site.fault = restart = weather.Restart()
        restart.restart_with_many_connections(lambda number: np.load(mount / f"d{number}.npy"))
        site.latency = 0
        assert look(READ, mount / "d36.npy").stdout == (SOME + 36).tobytes()[-8:].hex()
        assert restart.used


@pytest.mark.parametrize("hangs", ["open", "read"])
def test_an_open_asks_anew(home, directory, hangs):
    """A request that hangs since before an open does not fail the reads behind that open."""
    with Site(directory) as site, Mount(site.url("x.h5"), "timeout=4,check=0,nopack") as mount:
        np.testing.assert_array_equal(np.load(mount / "d0.npy"), SOME)
        if hangs == "read":
            os.close(os.open(mount / "d1.npy", os.O_RDONLY))
        site.asked.clear()
        site.fault = lambda handler: handler.command == "GET" and weather.hang(handler)
        with subprocess.Popen(["python3", "-c", READ, mount / "d1.npy"], stdout=subprocess.DEVNULL) as first:
            until(lambda: any(method == "GET" for method, *_ in site.asked), "a request that hangs")
            site.fault = None
            assert look(READ, mount / "d1.npy").stdout == (SOME + 1).tobytes()[-8:].hex()
            first.wait(timeout=30)


def test_what_got_no_answer_is_asked_for_once(home, directory):
    """The kernel asks again for what it read ahead and did not get: that read has waited long enough."""
    with Site(directory) as site, Mount(site.url("x.h5"), "timeout=3,check=0,nopack") as mount:
        os.close(os.open(mount / "d1.npy", os.O_RDONLY))
        site.asked.clear()
        site.fault = lambda handler: handler.command == "GET" and weather.hang(handler)
        assert look(READ, mount / "d1.npy").stdout == "ETIMEDOUT"
        ranges = sorted(tuple(map(int, range.split("=")[1].split("-"))) for method, _, range in site.asked if method == "GET")
        assert ranges
        assert all(last < first for (_, last), (first, _) in zip(ranges, ranges[1:])), ranges


@pytest.mark.parametrize("tags", [True, "weak", False])
def test_readers_of_an_object_that_is_replaced_see_one_version(home, tmp_path, tags):
    """Twenty readers, many rounds: every array that is read is one of one version, or there is an error."""
    www = tmp_path / "www"
    www.mkdir()

    def version(number):
        with h5py.File(www / "new.h5", "w") as file:
            file.create_dataset("a", data=np.full((64, 4096), number, "i4"), chunks=(1, 4096))
        os.utime(www / "new.h5", (10**9 + number, 10**9 + number))
        os.replace(www / "new.h5", www / "x.h5")

    version(0)
    mixed, read, stop = [], [], threading.Event()
    with Site(www, tags=tags) as site, Mount(site.url("x.h5"), "check=0,timeout=10") as mount:
        readers = [subprocess.Popen(["python3", "-c", READER, mount / "a.npy", "4"], stdout=subprocess.PIPE, text=True) for _ in range(20)]
        number = 0
        while any(reader.poll() is None for reader in readers):
            number += 1
            version(number)
            stop.wait(0.4)
        for reader in readers:
            out, _ = reader.communicate(timeout=60)
            for line in out.splitlines():
                kind, _, what = line.partition(" ")
                (mixed if kind == "mixed" else read).append((kind, what))
        assert not mixed, mixed[:5]
        assert {what for kind, what in read if kind == "error"} <= {"ESTALE"}, read[:5]
        assert len({what for kind, what in read if kind == "one"}) > 2
        version(number + 1)
        assert (np.load(mount / "a.npy") == number + 1).all()


READER = """
import errno, os, random, sys, time
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    try:
        file = os.open(sys.argv[1], os.O_RDONLY)
    except OSError as e:
        print("error", errno.errorcode[e.errno]); continue
    try:
        found = set()
        for row in random.sample(range(64), 4):
            found |= {int.from_bytes(x, "little") for x in zip(*[iter(os.pread(file, 4 * 4096, 128 + row * 4 * 4096))] * 4)}
        print("one" if len(found) == 1 else "mixed", *found)
    except OSError as e:
        print("error", errno.errorcode[e.errno])
    finally:
        os.close(file)
"""


def test_redirects_to_another_host_go_without_secrets(home, directory, tmp_path):
    headers = tmp_path / "headers"
    headers.write_text("X-Secret: openSesame\n")
    with Site(directory) as behind, Site(directory) as front:
        front.fault = lambda handler: handler.refuse(307, Location=behind.url("x.h5"))
        url = front.url("x.h5", "?sig=aVerySecretWord").replace("://", "://me:password@")
        done = npyfs("ls", "-o", f"header=@{headers},{REST}", url)
        assert done.returncode == 0, done
        assert all("x-secret" in seen and "authorization" in seen for seen in front.seen) and front.seen
        for seen in behind.seen:
            assert not {"x-secret", "authorization", "cookie", "referer"} & set(seen)
            assert "aVerySecretWord" not in str(seen)


def test_a_certificate_of_nobody_is_refused(home, directory, tmp_path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own, key = certificate(tmp_path)
    context.load_cert_chain(own, key)
    with Site(directory, tls=context) as site:
        refused = npyfs("ls", "-o", "timeout=20", site.url("x.h5"), timeout=15)
        assert refused.returncode == 2
        line, = refused.stderr.splitlines()
        assert site.url("x.h5") in line and "certificate is not trusted" in line
        assert not site.asked
        # Whoever trusts it says so.
        trusted = npyfs("ls", site.url("x.h5"), env={**os.environ, "SSL_CERT_FILE": str(own)})
        assert trusted.returncode == 0 and "d0.npy" in trusted.stdout, trusted


def test_a_proxy_is_asked(home, directory):
    with Site(directory) as site, Proxy(site) as proxy:
        elsewhere = f"http://some-host.invalid:{site.server.server_port}/x.h5"
        done = npyfs("ls", "-o", "timeout=20,nopack", elsewhere, env={**os.environ, "http_proxy": proxy.url})
        assert done.returncode == 0 and "d0.npy" in done.stdout, done
        assert proxy.asked and all(asked == elsewhere for asked in proxy.asked)
        proxy.asked.clear()
        done = npyfs("ls", site.url("x.h5"), env={**os.environ, "http_proxy": proxy.url, "no_proxy": "127.0.0.1"})
        assert done.returncode == 0 and not proxy.asked
        # The daemon in the background asks the same.
        with Mount(elsewhere, "timeout=20,nopack", env={"http_proxy": proxy.url}) as mount:
            np.testing.assert_array_equal(np.load(mount / "d0.npy"), SOME)


def test_an_address_that_was_signed_for_reading_alone(home, directory):
    """A presigned address allows GET and refuses HEAD: changes are seen all the same."""
    path = write(directory / "signed.h5", 1)
    with Site(directory) as site:
        site.fault = lambda handler: handler.command == "HEAD" and handler.refuse(403)
        with Mount(site.url("signed.h5", "?sig=x"), "check=0") as mount:
            np.testing.assert_array_equal(np.load(mount / "d0.npy"), SOME)
            with h5py.File(directory / "new.h5", "w") as file:
                file["d0"] = SOME + 7
            os.replace(directory / "new.h5", path)
            np.testing.assert_array_equal(np.load(mount / "d0.npy"), SOME + 7)
            assert not mount.status()["remote"][-1]["notes"]


def test_a_document_that_is_too_large_without_ranges_is_refused(home, directory):
    path = directory / "large.h5"
    write(path)
    with open(path, "ab") as file:
        file.truncate(300 << 20)
    with Site(directory, ranges=False) as site:
        refused = npyfs("ls", site.url("large.h5"))
        assert refused.returncode == 2 and "no ranges" in refused.stderr and "256 MiB" in refused.stderr
        assert site.bytes <= 1 << 20 or not site.bytes


def test_an_empty_document(home, directory):
    (directory / "empty.h5").write_bytes(b"")
    with Site(directory) as site:
        refused = npyfs("ls", site.url("empty.h5"))
        assert refused.returncode == 2 and "empty" in refused.stderr


LIST = "import os, sys; os.listdir(sys.argv[1])"


def test_each_reason_is_said(home, directory):
    """A server that does not answer, and then answers that there is nothing: the second reason is in the log, too."""
    with Site(directory) as site, Mount(site.url("x.h5"), REST) as mount:
        log = Path(mount / ".npyfs/errors.log")
        for fault, says in (weather.status(503), "503"), (weather.status(410), "410"):
            site.fault = fault
            until(lambda: look(LIST, mount.path) and says in log.read_text(), f"{says} in the log")
