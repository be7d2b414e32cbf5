"""Stores in buckets of Google: `npyfs mount gs://bucket/x.h5 mnt`, as far as a server of our own can tell: it answers as the documentation of the
XML API says, and asks for no credentials. The service itself, and its credentials, are NOT tested."""

import os
import urllib.parse
from xml.sax.saxutils import escape

import h5py
import numpy as np
import pytest

from support.mount import Mount, reason_of
from support.process import npyfs, one_line
from support.remote_files import write
from support.web import Site


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    bucket = tmp_path / "www/data"
    (bucket / "below").mkdir(parents=True)
    write(bucket / "x.h5")
    write(bucket / "below/y.h5", 1)
    with Site(tmp_path / "www") as site:
        site.fault = listed(site)
        yield site


def tag_of(site, path):
    with open(path, "rb") as file:
        return site.version(file.fileno())[0]


def listed(site):
    """Answers lists of names."""
    def answer(handler):
        path, _, query = handler.path.partition("?")
        query = dict(urllib.parse.parse_qsl(query))
        if query.get("list-type") != "2":
            return False
        bucket, prefix, entries = site.directory / path.strip("/"), query.get("prefix", ""), ""
        for found in sorted((bucket / prefix).iterdir()):
            name = escape(found.relative_to(bucket).as_posix())
            tag = "" if found.is_dir() else tag_of(site, found)
            entries += (f"<CommonPrefixes><Prefix>{name}/</Prefix></CommonPrefixes>" if found.is_dir() else
                        f'<Contents><Key>{name}</Key><Size>{found.stat().st_size}</Size><LastModified>2026-01-02T03:04:05.000Z</LastModified>'
                        f'<ETag>{escape(tag)}</ETag></Contents>')
        body = f'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>'.encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        return True
    return answer


def same(folder, path):
    """Not by a map: a fault would hold the interpreter that answers the request."""
    with h5py.File(path) as file:
        for name in ("gzip", "contiguous", "group/deep/lzf", "never", "scalar"):
            np.testing.assert_array_equal(np.load(folder / f"{name}.npy"), file[name][()])


def test_an_object_and_a_prefix(site):
    bucket, options = site.directory / "data", f"endpoint={site.url('').rstrip('/')},anonymous"
    with Mount("gs://data/x.h5", options) as mount:
        same(mount.path, bucket / "x.h5")
    with Mount("gs://data/", options) as mount:
        assert sorted(os.listdir(mount.path)) == ["below", "x.h5"]
        same(mount / "below/y.h5", bucket / "below/y.h5")
    (bucket / "page.h5").write_text("<html></html>")
    with Mount("gs://data/", options) as mount:
        assert sorted(os.listdir(mount.path)) == ["below", "x.h5"]
        assert "web page" in reason_of(mount.info(), "page.h5")


def test_the_variable_of_emulators(site, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", site.url("").removeprefix("http://").rstrip("/"))
    assert "gzip.npy" in npyfs("ls", "gs://data/x.h5", check=True).stdout
    refused = npyfs("ls", "gs://data/nothing.h5")
    assert refused.returncode == 2 and "gs://data/nothing.h5" in one_line(refused.stderr)
