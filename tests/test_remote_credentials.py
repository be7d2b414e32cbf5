"""Whose requests are asked with: every way to credentials gives requests that are signed with the right key, and another key when that ends. The
services are on the loopback; signatures are judged by a guard of the tests."""

import os
import ssl
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.identity import Givers, Guard
from support.mount import Mount
from support.process import npyfs, one_line
from support.web import Site, certificate

SOME = np.random.default_rng(5).integers(0, 1000, (40, 4096)).astype("i4")
ARRAYS = 8


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("www")
    (directory / "data").mkdir()
    with h5py.File(directory / "data/x.h5", "w") as file:
        for number in range(ARRAYS):
            file.create_dataset(f"d{number}", data=SOME + number, chunks=(1, 4096))
    return directory


@pytest.fixture
def guard():
    return Guard()


@pytest.fixture
def site(directory, guard):
    with Site(directory) as site:
        site.fault = guard
        yield site


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home in which there is nothing, on a machine that gives nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    return tmp_path


def of_instance(givers, home, setenv):
    setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", givers.url)


def of_container(givers, home, setenv):
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{givers.url}/container")


def of_container_with_token(givers, home, setenv):
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{givers.url}/container-with-a-token")
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", givers.TOKEN)


def of_pod(givers, home, setenv):
    (home / "token").write_text(givers.TOKEN + "\n")
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{givers.url}/container-with-a-token")
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(home / "token"))


def of_identity(givers, home, setenv):
    (home / "identity").write_text("an-identity")
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(home / "identity"))
    setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/reader")
    setenv("AWS_ENDPOINT_URL_STS", givers.url)


def of_profile_with_identity(givers, home, setenv):
    (home / "identity").write_text("an-identity")
    (home / ".aws").mkdir()
    (home / ".aws/config").write_text(
        f"[profile lab]\nrole_arn = arn:aws:iam::1:role/reader\nweb_identity_token_file = {home}/identity\nrole_session_name = me\n")
    setenv("AWS_PROFILE", "lab")
    setenv("AWS_ENDPOINT_URL_STS", givers.url)


WAYS = [of_instance, of_container, of_container_with_token, of_pod, of_identity, of_profile_with_identity]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def givers(request, guard, home, monkeypatch):
    """A service that gives credentials out, named in the environment in one of the ways that there are."""
    tls = None
    if "identity" in request.param.__name__:
        # Only asked on connections that nobody else can read.
        own, key = certificate(home)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(own, key)
        monkeypatch.setenv("SSL_CERT_FILE", str(own))
    with Givers(guard, tls) as givers:
        request.param(givers, home, monkeypatch.setenv)
        yield givers


def options(site, more=""):
    return f"endpoint={site.url('').rstrip('/')},disk_cache=0,nopack,check=60,timeout=10{more}"


def same(mount, number):
    np.testing.assert_array_equal(np.load(mount / f"d{number}.npy"), SOME + number)


def unseen(mount, words):
    """That none of some words is anywhere where others could see them."""
    places = [mount / ".npyfs/status.json", mount / ".npyfs/errors.log", Path(f"/proc/{mount.pid}/cmdline"), Path("/proc/self/mountinfo")]
    for place in places:
        data = place.read_bytes()
        assert not [word for word in words if word.encode() in data], place


def test_requests_are_signed_with_what_was_given(site, guard, givers):
    with Mount("s3://data/x.h5", options(site)) as mount:
        for number in range(3):
            same(mount, number)
        assert givers.given == ["ASIAGIVEN1"] and set(guard.used) == {"ASIAGIVEN1"} and len(guard.used) > 3
        unseen(mount, [word for pair in guard.keys.values() for word in pair])
        assert mount.errors() == []


def test_what_ends_is_asked_for_again(site, guard, givers):
    """Credentials that end within five minutes are about to end."""
    givers.life = 2
    with Mount("s3://data/x.h5", options(site)) as mount:
        same(mount, 0)
        before = len(givers.given)
        time.sleep(1.5)
        guard.expired = set(givers.given)
        guard.used.clear()
        for number in range(1, ARRAYS):
            same(mount, number)
        assert len(givers.given) > before
        assert guard.used and not guard.expired & set(guard.used)
        assert mount.errors() == []


def test_what_the_bucket_calls_expired_is_asked_for_again(site, guard, givers):
    """Whatever the service said of how long they are good."""
    with Mount("s3://data/x.h5", options(site)) as mount:
        same(mount, 0)
        guard.expired = set(givers.given)
        guard.used.clear()
        for number in range(1, ARRAYS):
            same(mount, number)
        # Once, for all who were refused at that time.
        assert givers.given == ["ASIAGIVEN1", "ASIAGIVEN2"] and set(guard.used) == {"ASIAGIVEN2"}
        assert mount.errors() == []


def test_a_service_that_fails_is_done_without_as_long_as_they_are_good(site, guard, givers):
    givers.life = 200
    with Mount("s3://data/x.h5", options(site)) as mount:
        same(mount, 0)
        givers.broken = True
        for number in range(1, ARRAYS - 2):
            same(mount, number)
        guard.expired = set(givers.given)
        with pytest.raises(OSError) as denied:
            read_all(mount)
        assert denied.value.errno == 13
        assert any("ExpiredToken" in line and "s3://data/x.h5" in line for line in mount.errors())
        unseen(mount, [word for pair in guard.keys.values() for word in pair])


def read_all(mount):
    """NumPy takes an error in the midst of a file for its end."""
    for number in range(ARRAYS):
        descriptor = os.open(mount / f"d{number}.npy", os.O_RDONLY)
        try:
            while os.read(descriptor, 1 << 20):
                pass
        finally:
            os.close(descriptor)


def test_a_service_that_has_none_is_told(site, givers):
    givers.broken = True
    done = npyfs("ls", "-o", options(site), "s3://data/x.h5", timeout=40)
    assert done.returncode == 2 and "no credentials" in one_line(done.stderr) and "500" in done.stderr
    assert givers.TOKEN not in done.stderr and "an-identity" not in done.stderr


def test_keys_of_the_environment(site, guard, monkeypatch):
    guard.keys["AKIAOWN"] = "my-own-secret", "my-own-session"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOWN")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "my-own-secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "my-own-session")
    with Mount("s3://data/x.h5", options(site)) as mount:
        same(mount, 0)
        assert set(guard.used) == {"AKIAOWN"}
        # Nobody gives others: it is said what is the matter.
        guard.expired.add("AKIAOWN")
        with pytest.raises(OSError) as denied:
            read_all(mount)
        assert denied.value.errno == 13
        assert any("ExpiredToken" in line for line in mount.errors())
        unseen(mount, ["my-own-secret", "my-own-session"])


def test_keys_of_a_profile_that_are_renewed(site, guard, home):
    def put(number):
        guard.keys[f"AKIAFILE{number}"] = f"secret-{number}", f"session-{number}"
        (home / ".aws").mkdir(exist_ok=True)
        (home / ".aws/credentials").write_text(
            f"[default]\naws_access_key_id = AKIAFILE{number}\naws_secret_access_key = secret-{number}\naws_session_token = session-{number}\n")

    put(1)
    with Mount("s3://data/x.h5", options(site)) as mount:
        same(mount, 0)
        guard.expired.add("AKIAFILE1")
        put(2)
        for number in range(1, ARRAYS):
            same(mount, number)
        assert set(guard.used) == {"AKIAFILE1", "AKIAFILE2"} and mount.errors() == []


def test_tokens_of_containers_go_to_no_other_host(site, home, monkeypatch):
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://some-host.invalid/container")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", Givers.TOKEN)
    done = npyfs("ls", "-o", options(site), "s3://data/x.h5")
    assert done.returncode == 2 and "https" in one_line(done.stderr) and Givers.TOKEN not in done.stderr


def test_what_is_signed_goes_to_no_host_that_the_service_refers_to(site, directory, guard, monkeypatch):
    guard.keys["AKIAOWN"] = "my-own-secret", "my-own-session"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOWN")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "my-own-secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "my-own-session")
    with Site(directory) as behind:
        site.fault = lambda handler: guard(handler) or handler.refuse(307, Location=behind.url(handler.path.lstrip("/")))
        done = npyfs("ls", "-o", options(site), "s3://data/x.h5")
        assert done.returncode == 0 and "d0.npy" in done.stdout, done
        assert set(guard.used) == {"AKIAOWN"} and behind.seen
        for seen in behind.seen:
            assert not [name for name in seen if name in ("authorization", "cookie", "referer") or name.startswith("x-amz")], seen
            assert "my-own" not in str(seen)
