"""Stores in buckets whose service misbehaves: reads end in time, with an error that says why, and the mount works afterwards. The services are
servers of our own, which speak as much of each protocol as is needed to read."""

import base64
import json
import os
import re
import ssl
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from urllib.parse import unquote

import h5py
import numpy as np
import pytest

from support import weather
from support.mount import Mount, until
from support.process import npyfs, one_line, run
from support.proxies import Proxy
from support.web import Site, certificate

REST = "timeout=1,check=0,nopack"
SOME = np.random.default_rng(3).integers(0, 1000, (40, 4096)).astype("i4")

# What is another than on a web server: a service has no parts without a length, and refers to no other place.
OTHERS = {
    "404": ({"ENOENT", "ESTALE"}, "no such object"),
    "chunked": ({"EIO"}, "not the one that was asked for"),
    "chunked-whole": ({"ENOTSUP"}, "no ranges"),
    "whole": ({"ENOTSUP"}, "no ranges"),
    # A bucket holds what is compressed as it holds all else: it is the length that is wrong.
    "compressed": ({"EIO"}, "bytes"),
    "to-itself": ({"EIO"}, "302"),
    "to-nowhere": ({"EIO"}, "302"),
    "to-a-file": ({"EIO"}, "302"),
    "to-ever-other-places": ({"EIO"}, "307"),
}
CASES = {name: (fault, *OTHERS.get(name, (errors, says))) for name, fault, errors, says in weather.CASES}
CASES |= {
    "slow-down": (weather.slow_down, {"EIO"}, "503: SlowDown: Please reduce"),
    "slow-down-for-a-second": (lambda handler: weather.slow_down(handler, Retry_After="1"), {"EIO"}, "SlowDown"),
    "internal-error": (lambda handler: weather.slow_down(handler, 500, "InternalError"), {"EIO"}, "500: InternalError"),
    "request-timeout": (lambda handler: weather.slow_down(handler, 400, "RequestTimeout"), {"EIO"}, "asked [2-9] times"),
    "longer-than-asked": (weather.longer_than_asked, {"EIO"}, "more than"),
}
FEW = ["503", "429", "500", "403", "404", "412", "cut-body", "reset-in-body", "short-body", "hang", "wrong-range", "other-size", "whole", "longer-than-asked"]
READS = [("s3", name) for name in CASES] + [(scheme, name) for scheme in ("az", "gs") for name in FEW]


def write(path, arrays):
    with h5py.File(path, "w") as file:
        for number in range(arrays):
            file.create_dataset(f"d{number}", data=SOME + number, chunks=(1, 4096))


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """Nothing of this machine's own credentials; servers that hang end."""
    weather.ended.clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    yield
    weather.ended.set()


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("www")
    (directory / "data").mkdir()
    write(directory / "data/x.h5", len(CASES) + 1)
    return directory


@pytest.fixture(scope="module")
def mounts(directory, tmp_path_factory):
    """{scheme: (service, mount)}, of those that are asked for."""
    made, ends = {}, []

    def of(scheme):
        if scheme not in made:
            site = Site(directory).__enter__()
            ends.append(site)
            mount = Mount(f"{scheme}://data/x.h5", f"{REST},{service(site)}", env={"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}).__enter__()
            ends.append(mount)
            made[scheme] = site, mount
        return made[scheme]

    yield of
    for one in reversed(ends):
        one.__exit__(None, None, None)


def service(site):
    """The options for a service that asks for no credentials."""
    return f"endpoint={site.url('').rstrip('/')},anonymous"


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


def look(path):
    """Reads in a process of its own: a read that hangs must not hold the tests."""
    return run(["python3", "-c", READ, path], timeout=30).stdout


numbers = {scheme: count() for scheme in ("s3", "az", "gs")}


@pytest.mark.sample("bucket", 10)
@pytest.mark.parametrize("scheme, name", READS)
def test_a_read_ends(mounts, scheme, name):
    site, mount = mounts(scheme)
    fault, errors, says = CASES[name]
    number = next(numbers[scheme])
    array, last = f"d{number}.npy", (SOME + number).tobytes()[-8:].hex()
    log = Path(mount / ".npyfs/errors.log")
    before = log.read_text().splitlines()
    site.fault = lambda handler: handler.command == "GET" and fault(handler)
    try:
        ended = weather.outcome(lambda: look(mount / array), errors)
    finally:
        site.fault = None
        weather.ended.set()
    assert ended in (errors or {last}), ended
    # If it was the first to find out that there is nothing any more.
    if errors and (name not in ("404", "410") or ended == "ENOENT"):
        lines = [line for line in log.read_text().splitlines() if line not in before and f"{scheme}://data/x.h5" in line]
        assert any(re.search(says, line) for line in lines), lines
    weather.ended.clear()
    until(lambda: look(mount / array) == last, "the array")
    np.testing.assert_array_equal(np.load(mount / array), SOME + number)


def test_opening_ends(directory):
    """Every case at a service of its own, several at the same time."""
    def opened(name):
        with Site(directory) as site:
            site.fault = CASES[name][0]
            return name, npyfs("ls", "-o", f"nopack,timeout=2,{service(site)}", "s3://data/x.h5", timeout=60)

    with ThreadPoolExecutor(6) as pool:
        for name, done in pool.map(opened, FEW + ["slow-down", "401", "to-nowhere", "endless"]):
            _, errors, says = CASES[name]
            if name in ("412", "short-body", "other-size"):
                # Of no version that is known already.
                errors, says = {"EIO"}, ""
            assert errors and done.returncode == 2 or name == "other-size", (name, done)
            assert name == "other-size" or re.search(says, one_line(done.stderr)) and "s3://data/x.h5" in done.stderr, (name, done)


def asked(site):
    """How often each part was asked for."""
    return Counter(part for method, _, part in site.asked if method == "GET")


def test_who_asks_waits_as_the_service_wants_it_and_asks_once_each_time(directory):
    """Five seconds, and a second between two requests: there are five at the most, of the whole program."""
    with Site(directory) as site, Mount("s3://data/x.h5", f"timeout=5,check=60,nopack,disk_cache=0,{service(site)}") as mount:
        os.listdir(mount.path)
        site.asked.clear()
        site.fault = lambda handler: weather.slow_down(handler, Retry_After="1")
        assert look(mount / "d3.npy") == "EIO"
        site.fault = None
        times = asked(site)
        assert times and all(2 <= number <= 5 for number in times.values()), times


def test_without_a_hint_the_pauses_grow(directory):
    with Site(directory) as site, Mount("s3://data/x.h5", f"timeout=4,check=60,nopack,disk_cache=0,{service(site)}") as mount:
        os.listdir(mount.path)
        site.asked.clear()
        site.fault = weather.slow_down
        assert look(mount / "d3.npy") == "EIO"
        site.fault = None
        # Pauses of at least 50, 100, 200, 400, 800 and 1600 ms.
        times = asked(site)
        assert times and all(3 <= number <= 7 for number in times.values()), times


@pytest.mark.parametrize("scheme", ["s3", "az", "gs"])
def test_connections_from_before_a_restart_cost_one_request(directory, scheme):
    with Site(directory, latency=0.1) as site, Mount(f"{scheme}://data/x.h5", f"{REST},{service(site)}") as mount:
        site.fault = restart = weather.Restart()
        restart.restart_with_many_connections(lambda number: np.load(mount / f"d{number}.npy"))
        site.latency = 0
        assert look(mount / "d36.npy") == (SOME + 36).tobytes()[-8:].hex()
        assert restart.used


def test_a_read_goes_on_when_the_service_does(directory):
    """Each part is refused twice, and cut once."""
    seen = Counter()

    def fault(handler):
        part = handler.headers.get("Range")
        seen[part] += 1
        faults = [weather.slow_down, lambda handler: weather.slow_down(handler, 429), weather.cut_body]
        return handler.command == "GET" and seen[part] <= len(faults) and faults[seen[part] - 1](handler)

    with Site(directory) as site:
        site.fault = fault
        with Mount("s3://data/x.h5", f"nopack,{service(site)}") as mount:
            for number in range(3):
                np.testing.assert_array_equal(np.load(mount / f"d{number}.npy"), SOME + number)
            assert mount.errors() == []


def test_listings_end_too(directory):
    for fault, says in [(weather.slow_down, "SlowDown"), (weather.hang, weather.LATE), (weather.cut_body, ""), (weather.status(403), "403")]:
        with Site(directory) as site:
            site.fault = fault if fault is not weather.cut_body else cut_listing
            done = npyfs("ls", "-o", f"timeout=1,{service(site)}", "s3://data/", timeout=30)
            assert done.returncode == 2 and re.search(says, one_line(done.stderr)) and "s3://data/" in done.stderr, done


def cut_listing(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    weather.write(handler, b"<ListBucketResult>")
    return weather.gone(handler, reset=False)


@pytest.mark.parametrize("place", ["refused", "unknown", "deaf"])
def test_a_service_that_is_not_there(place):
    with weather.Deaf() as deaf:
        host = {"refused": f"127.0.0.1:{weather.closed_port()}", "unknown": "no-such-host.invalid", "deaf": f"127.0.0.1:{deaf}"}[place]
        done = npyfs("ls", "-o", f"{REST},anonymous,endpoint=http://{host}", "s3://data/x.h5", timeout=30)
        assert done.returncode == 2 and "s3://data/x.h5" in one_line(done.stderr)


def test_another_region_is_named(directory):
    with Site(directory) as site:
        site.fault = lambda handler: handler.refuse(301, x_amz_bucket_region="eu-south-9")
        done = npyfs("ls", "-o", f"{REST},{service(site)}", "s3://data/x.h5")
        assert done.returncode == 2 and "region=eu-south-9" in one_line(done.stderr)


def test_a_listing_that_met_the_weather_is_not_remembered(directory, tmp_path):
    """What could not be asked for is left out of nothing: the next look finds everything."""
    bucket = tmp_path / "www/data"
    bucket.mkdir(parents=True)
    with h5py.File(bucket / "y.h5", "w") as file:
        for group in range(3):
            for number in range(20):
                file.create_dataset(f"g{group}/d{number}", data=np.full((64, 64), number), chunks=(8, 64))
                file[f"g{group}/d{number}"].attrs["about"] = "x" * 500
    with Site(tmp_path / "www") as site, Mount("s3://data/y.h5", f"{REST},{service(site)},disk_cache=0") as mount:
        weathers = [weather.slow_down, weather.status(403), weather.hang, weather.cut_body]
        for fault in weathers:
            site.fault = lambda handler, fault=fault: handler.command == "GET" and fault(handler)
            for group in range(3):
                try:
                    names = os.listdir(mount / f"g{group}")
                except OSError:
                    continue
                assert len(names) == 20, names
        site.fault = None
        weather.ended.set()
        for group in range(3):
            until(lambda group=group: listed(mount / f"g{group}") == 20, "the listing")
            for number in range(20):
                assert (np.load(mount / f"g{group}/d{number}.npy") == number).all()
        info = json.dumps(mount.info("g1"))
        assert "503" not in info and "403" not in info


def listed(path):
    try:
        return len(os.listdir(path))
    except OSError:
        return -1


PROXIES = ["http_proxy", "https_proxy", "all_proxy", "no_proxy"]


@pytest.fixture
def direct(monkeypatch):
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("scheme", ["s3", "az", "gs"])
def test_a_proxy_is_asked(directory, direct, monkeypatch, scheme):
    with Site(directory) as site, Proxy(site) as proxy:
        port = site.server.server_port
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
            proxy.asked.clear()
            done = npyfs("ls", "-o", f"{REST.replace('=1', '=20')},anonymous,disk_cache=0,endpoint=http://some-host.invalid:{port}", f"{scheme}://data/x.h5")
            assert done.returncode == 0 and "d0.npy" in done.stdout, done
            names = ["x.h5", "x.h5.checkouts/commits/00000000000000000001.json"]
            assert {unquote(asked) for asked in proxy.asked} == {f"http://some-host.invalid:{port}/data/{name}" for name in names}
            proxy.asked.clear()
            monkeypatch.setenv("NO_PROXY", "127.0.0.0/8,other.invalid")
            done = npyfs("ls", "-o", f"nopack,disk_cache=0,{service(site)}", f"{scheme}://data/x.h5")
            assert done.returncode == 0 and not proxy.asked
            monkeypatch.delenv("NO_PROXY")
            monkeypatch.delenv(name)


@pytest.mark.parametrize("url", ["s3://data/x.h5", "https://some-host.invalid:{port}/data/x.h5"])
def test_safe_connections_go_through_a_proxy_as_they_are(directory, direct, monkeypatch, tmp_path, url):
    own, key = certificate(tmp_path, "some-host.invalid")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(own))
    with Site(directory, tls=context) as site, Proxy(site) as proxy:
        port = site.server.server_port
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("://", "://me:aVerySecretWord@"))
        with Mount(url.format(port=port), f"nopack,anonymous,timeout=20,endpoint=https://some-host.invalid:{port}") as mount:
            np.testing.assert_array_equal(np.load(mount / "d0.npy"), SOME)
            assert set(proxy.asked) == {f"some-host.invalid:{port}"}
            assert set(proxy.users) == {"Basic " + base64.b64encode(b"me:aVerySecretWord").decode()}
            # The proxy sees where to, and nothing of what.
            assert all("proxy-authorization" not in seen for seen in site.seen)


def test_the_password_of_a_proxy_is_seen_nowhere(direct, monkeypatch):
    for scheme, name in [("http", "http_proxy"), ("https", "https_proxy")]:
        monkeypatch.setenv(name, f"http://me:aVerySecretWord@127.0.0.1:{weather.closed_port()}")
        for url, more in [("s3://data/x.h5", f",anonymous,endpoint={scheme}://some-host.invalid"), (f"{scheme}://some-host.invalid/x.h5", "")]:
            done = npyfs("ls", "-o", f"{REST}{more}", url, timeout=30)
            assert done.returncode == 2 and url in one_line(done.stderr) and "aVerySecretWord" not in done.stderr
