"""Stores in buckets of S3: `npyfs mount s3://bucket/x.h5 mnt`. The service is moto, the judge of what is shown h5py on the same file."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from support.buckets import S3
from support.mount import Mount, make_point, until
from support.process import npyfs, one_line
from support.remote_files import NAMES, same, write


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    return [write(folder / f"{seed}.h5", seed) for seed in range(2)]


@pytest.fixture(scope="module")
def s3(files):
    """A service that anybody may ask."""
    with S3() as s3:
        for name in NAMES:
            s3.put("data", f"dir/{name}", files[0])
        s3.put("data", "other.txt", b"no store")
        s3.put("data", "public.h5", files[0], ACL="public-read")
        yield s3


@pytest.fixture(scope="module")
def locked(files):
    """A service that only answers whom it knows."""
    with S3() as s3:
        s3.put("data", "x.h5", files[0])
        s3.lock()
        yield s3


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home of the test's own, in which there is nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return tmp_path


@pytest.fixture
def known(monkeypatch, s3):
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)


@pytest.mark.fast
def test_a_file_in_a_bucket_is_mounted(s3, known, files):
    with Mount("s3://data/dir/plain.h5", s3.options) as mount:
        same(mount.path, files[0])
        assert mount.info("gzip.npy")["attributes"] == {"about": "this is gzip"}
        assert mount.status()["store"] == "s3://data/dir/plain.h5"
        assert mount.errors() == []


@pytest.mark.parametrize("name", NAMES)
def test_names_are_as_they_are_in_the_bucket(s3, known, name):
    out = subprocess.run([os.environ["NPYFS_BIN"], "cat", "-o", s3.options, f"s3://data/dir/{name}", "scalar.npy"], capture_output=True, check=True).stdout
    assert out.endswith(np.float64(3.5).tobytes())


def test_commands_take_addresses(s3, known):
    url = "s3://data/dir/plain.h5"
    assert "gzip.npy" in npyfs("ls", "-o", s3.options, url, check=True).stdout
    assert "small.npy" in npyfs("ls", "-o", s3.options, f"{url}:/group", check=True).stdout
    assert "2000" in npyfs("info", "-o", s3.options, url, "gzip.npy", check=True).stdout
    assert "3.5" in npyfs("show", "-o", s3.options, url, "scalar.npy", check=True).stdout
    assert npyfs("verify", "-o", s3.options, url).returncode == 0


def test_credentials_of_the_environment(locked, monkeypatch, files):
    for name, value in locked.env.items():
        monkeypatch.setenv(name, value)
    with Mount("s3://data/x.h5", locked.options) as mount:
        same(mount.path, files[0])


def refused(url, options, code=2):
    done = npyfs("ls", "-o", options, url)
    assert done.returncode == code, done
    line = one_line(done.stderr)
    assert url in line
    return line


def test_who_is_not_known_is_refused(locked, monkeypatch, s3):
    assert "403" in refused("s3://data/dir/plain.h5", f"{s3.options},anonymous")
    assert "no credentials" in refused("s3://data/x.h5", locked.options)
    assert "anonymous" in refused("s3://data/x.h5", locked.options)
    assert "403" in refused("s3://data/x.h5", f"{locked.options},anonymous")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAWRONG")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-word-that-nobody-should-see")
    line = refused("s3://data/x.h5", locked.options)
    assert "InvalidAccessKeyId" in line and "AKIAWRONG" not in line
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", locked.env["AWS_ACCESS_KEY_ID"])
    line = refused("s3://data/x.h5", locked.options)
    assert "SignatureDoesNotMatch" in line and "a-word" not in line and locked.env["AWS_ACCESS_KEY_ID"] not in line
    refused("s3://data/", locked.options)


def test_anonymous(s3, files):
    with Mount("s3://data/public.h5", f"{s3.options},anonymous") as mount:
        same(mount.path, files[0])


def test_what_is_missing(s3, known):
    assert "no such object" in refused("s3://data/dir/nothing.h5", s3.options)
    assert "/ at its end" in refused("s3://data/dir", s3.options)
    assert "no such bucket" in refused("s3://nothing/x.h5", s3.options)
    assert "no such bucket" in refused("s3://nothing/", s3.options)
    assert "begins so" in refused("s3://data/nothing/", s3.options)
    assert "not an HDF5 file" in refused("s3://data/other.txt", s3.options)
    assert "user" in npyfs("ls", "s3://me:word@data/x.h5").stderr and "word" not in npyfs("ls", "s3://me:word@data/x.h5").stderr


def test_a_mount_that_fails_calls_no_known_address_unknown(s3, known):
    for store in ("s3://nothing/x.h5", "s3://data/dir/nothing.h5"):
        done = npyfs("mount", "-o", s3.options, store, make_point())
        assert done.returncode == 2 and "there is no such" in one_line(done.stderr) and "not known" not in done.stderr, done.stderr
    done = npyfs("mount", "ftp://nothing/x.h5", make_point())
    assert done.returncode == 2 and "ftp:// is not known" in one_line(done.stderr)


def test_a_bucket_is_no_volume_and_is_mounted_once(s3, known):
    with Mount("s3://data/public.h5", s3.options) as mount:
        volume = os.statvfs(mount.path)
        assert (volume.f_blocks, volume.f_bavail, volume.f_namemax) == (0, 0, 255)
        assert subprocess.run(["df", mount.path], capture_output=True, timeout=30).returncode == 0
        again = npyfs("mount", "-o", s3.options, "s3://data/public.h5", mount.path)
        assert again.returncode == 32 and "already mounted by npyfs" in one_line(again.stderr), again.stderr


def test_the_service_is_not_there(known):
    line = refused("s3://data/x.h5", "endpoint=http://127.0.0.1:9,timeout=3")
    assert "127.0.0.1:9" in line or "no answer" in line


def test_an_object_that_is_replaced(s3, known, files):
    s3.put("data", "changing.h5", files[0])
    with Mount("s3://data/changing.h5", f"{s3.options},check=0") as mount:
        same(mount.path, files[0])
        with open(mount / "gzip.npy", "rb", buffering=0) as opened:
            first = opened.read(1000)
            s3.put("data", "changing.h5", files[1])
            same(mount.path, files[1])
            # Of the old version, or ESTALE.
            try:
                opened.seek(0)
                assert opened.read(1000) == first
                opened.seek(5_000_000)
                opened.read(100)
            except OSError as gone:
                assert gone.errno == 116
        s3.delete("data", "changing.h5")
        with pytest.raises(OSError):
            (mount / "scalar.npy").read_bytes()


def test_who_asks_agrees_to_pay(known, files):
    """A service of our own says which headers it is sent."""
    from support.web import Site
    with Site(files[0].parent) as site:
        # The bucket is a directory of the site.
        (files[0].parent / "data").mkdir(exist_ok=True)
        (files[0].parent / "data/x.h5").write_bytes(files[0].read_bytes())
        options = f"endpoint={site.url('').rstrip('/')}"
        npyfs("ls", "-o", f"{options},requester_pays", "s3://data/x.h5", check=True)
        assert all(seen.get("x-amz-request-payer") == "requester" for seen in site.seen) and site.seen
        assert all("Credential=AKIDEXAMPLE" in seen["authorization"] for seen in site.seen)
        site.seen.clear()
        npyfs("ls", "-o", f"{options},disk_cache=0", "s3://data/x.h5", check=True)
        assert not any("x-amz-request-payer" in seen for seen in site.seen) and site.seen
        # Every part is asked for as one of this version.
        assert any("if-match" in seen for seen in site.seen)


def profile(home, config="", credentials=""):
    (home / ".aws").mkdir(exist_ok=True)
    (home / ".aws/config").write_text(config)
    (home / ".aws/credentials").write_text(credentials)


def test_profiles(locked, home, files, monkeypatch):
    keys = f"aws_access_key_id = {locked.env['AWS_ACCESS_KEY_ID']}\naws_secret_access_key = {locked.env['AWS_SECRET_ACCESS_KEY']}\n"
    profile(home, f"[default]\nregion = us-east-1\n[profile lab]\nregion = us-east-1\nendpoint_url = {locked.url}\n", f"[lab]\n{keys}")
    with Mount("s3://data/x.h5", "profile=lab") as mount:
        same(mount.path, files[0])
    assert "no profile nobody" in refused("s3://data/x.h5", f"{locked.options},profile=nobody")
    # The default profile has no keys.
    assert "no credentials" in refused("s3://data/x.h5", locked.options)
    monkeypatch.setenv("AWS_PROFILE", "lab")
    npyfs("ls", "s3://data/x.h5", check=True)
    # The environment goes before a profile that it names, and after one that is asked for.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAWRONG")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert "InvalidAccessKeyId" in refused("s3://data/x.h5", "region=us-east-1")
    npyfs("ls", "-o", "profile=lab", "s3://data/x.h5", check=True)
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    # Files elsewhere.
    (home / "my-config").write_text(f"[default]\nendpoint_url = {locked.url}\n")
    (home / "my-keys").write_text(f"[default]\n{keys}")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "my-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home / "my-keys"))
    npyfs("ls", "s3://data/x.h5", check=True)


@pytest.mark.parametrize("line, what", [("credential_process = /bin/false", "credential_process"), ("sso_session = lab", "sso_session"),
                                        ("role_arn = arn:aws:iam::1:role/x\nsource_profile = default", "source_profile")])
def test_ways_that_are_not_gone_are_refused_by_name(locked, home, line, what):
    profile(home, f"[profile odd]\n{line}\n")
    said = refused("s3://data/x.h5", f"{locked.options},profile=odd")
    assert what in said and "aws configure export-credentials --profile odd" in said


def test_keys_that_change_while_mounted(locked, home, files):
    """Programs renew keys in the file; a mount goes on with the new ones."""
    wrong = "[default]\naws_access_key_id = AKIAWRONG\naws_secret_access_key = wrong\n"
    right = wrong.replace("AKIAWRONG", locked.env["AWS_ACCESS_KEY_ID"]).replace("= wrong", f"= {locked.env['AWS_SECRET_ACCESS_KEY']}")
    profile(home, credentials=right)
    with Mount("s3://data/x.h5", f"{locked.options},disk_cache=0,timeout=10") as mount:
        np.load(mount / "scalar.npy")
        profile(home, credentials=wrong)
        with pytest.raises(OSError) as denied:
            np.load(mount / "gzip.npy")
        assert denied.value.errno == 13
        assert any("InvalidAccessKeyId" in line and "s3://data/x.h5" in line for line in mount.errors())
        profile(home, credentials=right)
        until(lambda: readable(mount / "gzip.npy"), "the new keys")
        same(mount.path, files[0])


def readable(path):
    try:
        Path(path).read_bytes()
    except OSError:
        return False
    return True


def test_secrets_stay_where_they_are(locked, home):
    secret = locked.env["AWS_SECRET_ACCESS_KEY"]
    profile(home, credentials=f"[default]\naws_access_key_id = {locked.env['AWS_ACCESS_KEY_ID']}\naws_secret_access_key = {secret}\n")
    with Mount("s3://data/x.h5", locked.options) as mount:
        np.load(mount / "gzip.npy")
        places = [Path(mount / ".npyfs/status.json"), Path(mount / ".npyfs/errors.log"), Path(f"/proc/{mount.pid}/cmdline"), Path(f"/proc/{mount.pid}/environ"),
                  Path("/proc/self/mountinfo"), *(path for path in (home / "cache").rglob("*") if path.is_file())]
        for place in places:
            try:
                assert secret.encode() not in place.read_bytes(), place
            except FileNotFoundError:
                # It was renamed when it was complete: a block to its name, a kept copy to that of an array.
                assert place.suffix == ".part", place
                renamed = [path for path in place.parent.glob(f"{place.stem}*") if path.suffix != ".part"]
                assert renamed and all(secret.encode() not in path.read_bytes() for path in renamed), place
