"""Object stores on the loopback, each in a process of its own: S3 by moto, Azure Blob by Azurite."""

import base64
import email.utils
import hashlib
import hmac
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

LIMIT = 900  # seconds after which a server that nobody ended ends


class _Server:
    """A program that serves until it is ended, or its time is over."""

    def __init__(self, command, env=None):
        self.process = subprocess.Popen(["timeout", "-k", "5", str(LIMIT), *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True, env={**os.environ, **(env or {})}, start_new_session=True)

    def line(self, pattern, seconds=60):
        """The first group of the first line that it prints and that matches."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            line = self.process.stdout.readline()
            if not line:
                break
            if found := re.search(pattern, line):
                return found[1]
        self.end()
        raise AssertionError(f"{self.process.args} does not serve")

    def end(self):
        self.process.stdin.close()
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.process.stdout.close()


def data_of(content):
    return content if isinstance(content, bytes) else Path(content).read_bytes()


class S3:
    """`with S3() as s3:` serves buckets; `s3.put(bucket, key, path or bytes)`, `s3.options` for mounts, `s3.env` for who asks.

    `S3(bucket=[names])` begins with empty objects. `lock` is called when buckets are filled: from then on only who has the keys of `s3.env` is
    answered."""

    def __init__(self, **filled):
        self.filled = filled
        self.env = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "a-word-that-nobody-should-see", "AWS_REGION": "us-east-1",
                    "AWS_EC2_METADATA_DISABLED": "true"}

    def __enter__(self):
        import boto3
        self.server = _Server([sys.executable, Path(__file__).with_name("s3_server.py")])
        self.server.process.stdin.write(json.dumps(self.filled) + "\n")
        self.server.process.stdin.flush()
        self.url = f"http://127.0.0.1:{self.server.line('^([0-9]+)$')}"
        self.options = f"endpoint={self.url}"
        self._clients = {name: boto3.client(name, endpoint_url=self.url, region_name="us-east-1", aws_access_key_id="root", aws_secret_access_key="root")
                         for name in ("s3", "iam")}
        self.client = self._clients["s3"]
        self.buckets = set(self.filled)
        return self

    def __exit__(self, *_):
        for client in self._clients.values():
            client.close()
        self.server.end()

    def put(self, bucket, key, content, **more):
        if bucket not in self.buckets:
            self.client.create_bucket(Bucket=bucket)
            self.buckets.add(bucket)
        self.client.put_object(Bucket=bucket, Key=key, Body=data_of(content), **more)

    def upload(self, bucket, prefix, folder):
        """Puts every file below a directory."""
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                self.put(bucket, prefix + path.relative_to(folder).as_posix(), path)

    def delete(self, bucket, key):
        self.client.delete_object(Bucket=bucket, Key=key)

    def lock(self):
        iam = self._clients["iam"]
        iam.create_user(UserName="reader")
        iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=(
            '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ["s3:Get*", "s3:List*"], "Resource": "*"}]}'))
        key = iam.create_access_key(UserName="reader")["AccessKey"]
        self.env |= {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}
        request = urllib.request.Request(f"{self.url}/moto-api/reset-auth", data=b"0", headers={"Content-Type": "text/plain"}, method="POST")
        urllib.request.urlopen(request, timeout=20).close()


def azurite():
    """The program, or a skip that says why it is not there."""
    found = os.environ.get("NPYFS_AZURITE") or shutil.which("azurite-blob")
    if not found:
        pytest.skip("azurite is missing (tests/run installs it by npm): stores in Azure are NOT tested here")
    return found


class Azure:
    """`with Azure() as azure:` serves containers; `azure.put(container, name, path or bytes)`, `azure.options`, `azure.env`."""

    # The account that Azurite has, and its key: both are in its documentation.
    ACCOUNT = "devstoreaccount1"
    KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    def __init__(self):
        self.env = {"AZURE_STORAGE_ACCOUNT_NAME": self.ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": self.KEY}

    def __enter__(self):
        self.server = _Server([azurite(), "--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck",
                               "--disableTelemetry"])
        self.url = self.server.line(r"listens? on (http://\S+)") + f"/{self.ACCOUNT}"
        self.options = f"endpoint={self.url}"
        self.containers = set()
        return self

    def __exit__(self, *_):
        self.server.end()

    def ask(self, method, name, query=None, data=b"", **headers):
        """Sends a request, signed as the service's documentation of Shared Key says."""
        query = query or {}
        path = urllib.parse.quote(f"/{self.ACCOUNT}/{name}")
        headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-12-02",
                   **{key.replace("_", "-"): value for key, value in headers.items()}}
        own = "".join(f"{key}:{headers[key]}\n" for key in sorted(headers) if key.startswith("x-ms-"))
        resource = f"/{self.ACCOUNT}{path}" + "".join(f"\n{key}:{query[key]}" for key in sorted(query))
        length, kind = str(len(data)) if data else "", "application/octet-stream" if data else ""
        text = f"{method}\n\n\n{length}\n\n{kind}\n\n\n\n\n\n\n{own}{resource}"
        signature = base64.b64encode(hmac.new(base64.b64decode(self.KEY), text.encode(), hashlib.sha256).digest()).decode()
        headers["Authorization"] = f"SharedKey {self.ACCOUNT}:{signature}"
        if data:
            headers["Content-Type"] = kind
        url = self.url.removesuffix(f"/{self.ACCOUNT}") + path + (f"?{urllib.parse.urlencode(query)}" if query else "")
        request = urllib.request.Request(url, data=data or None, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()

    def put(self, container, name, content, public=False):
        if container not in self.containers:
            self.ask("PUT", container, {"restype": "container"}, **({"x_ms_blob_public_access": "container"} if public else {}))
            self.containers.add(container)
        self.ask("PUT", f"{container}/{name}", data=data_of(content), x_ms_blob_type="BlockBlob")

    def delete(self, container, name):
        self.ask("DELETE", f"{container}/{name}")
