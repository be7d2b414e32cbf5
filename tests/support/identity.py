"""Who asks a bucket of S3: a guard that checks signatures as the documentation of version 4 says, and the services that give credentials out."""

import hashlib
import hmac
import json
import threading
import time
import urllib.parse
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def signature(handler, secret, scope, signed):
    """The signature that a request has if it was signed with `secret`."""
    path, _, query = handler.path.partition("?")
    pairs = sorted(urllib.parse.parse_qsl(query, keep_blank_values=True))
    query = "&".join(f"{urllib.parse.quote(key, safe='-_.~')}={urllib.parse.quote(value, safe='-_.~')}" for key, value in pairs)
    headers = "".join(f"{name}:{' '.join(handler.headers[name].split())}\n" for name in signed)
    request = "\n".join([handler.command, path, query, headers, ";".join(signed), handler.headers["x-amz-content-sha256"]])
    text = "\n".join(["AWS4-HMAC-SHA256", handler.headers["x-amz-date"], "/".join(scope), hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{secret}".encode()
    for part in [*scope, text]:
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()


class Guard:
    """A fault of a `Site`: refuses whoever has not signed with one of `keys`, {id: (secret, token)}. `used` has the ids of those who did;
    those in `expired` are told so."""

    def __init__(self):
        self.keys, self.used, self.expired = {}, [], set()

    def __call__(self, handler):
        kind, _, parts = handler.headers.get("Authorization", "").partition(" ")
        parts = dict(part.strip().split("=", 1) for part in parts.split(",") if "=" in part)
        if kind != "AWS4-HMAC-SHA256":
            return self.refuse(handler, 403, "AccessDenied")
        key, *scope = parts["Credential"].split("/")
        signed = parts["SignedHeaders"].split(";")
        secret, token = self.keys.get(key, ("", None))
        if key not in self.keys or handler.headers.get("x-amz-security-token") != token:
            return self.refuse(handler, 403, "InvalidAccessKeyId")
        if signature(handler, secret, scope, signed) != parts["Signature"] or (token and "x-amz-security-token" not in signed):
            return self.refuse(handler, 403, "SignatureDoesNotMatch")
        if key in self.expired:
            return self.refuse(handler, 400, "ExpiredToken")
        self.used.append(key)
        return False

    def refuse(self, handler, status, code):
        body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode() if handler.command != "HEAD" else b""
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        return True


class Givers:
    """`with Givers(guard) as givers`: the services of an instance, a container and an identity, on one port. Each answer is another key, which the
    guard then knows; `given` are their ids, `life` the seconds after which they end. With `broken` all of them fail."""

    TOKEN = "the-token-of-the-container"

    def __init__(self, guard, tls=None):
        self.guard, self.given, self.life, self.broken = guard, [], 3600, False
        givers = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self):
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, body = (500, "") if givers.broken else givers.answer(self.command, self.path, self.headers)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            do_GET = do_PUT = do_POST = answer

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.server.server_port}"

    def key(self):
        """(id, secret, token, end) of a key that nobody had."""
        number = len(self.given) + 1
        key, secret, token = f"ASIAGIVEN{number}", f"a-secret-of-number-{number}", f"a-session-of-number-{number}"
        end = datetime.now(timezone.utc) + timedelta(seconds=self.life)
        self.guard.keys[key] = secret, token
        self.given.append(key)
        return key, secret, token, end.strftime("%Y-%m-%dT%H:%M:%SZ")

    def answer(self, method, path, headers):
        path, _, query = path.partition("?")
        roles = "/latest/meta-data/iam/security-credentials/"
        if (method, path) == ("PUT", "/latest/api/token"):
            return 200, "a-token-of-the-instance"
        if path.startswith(roles):
            if headers.get("X-aws-ec2-metadata-token") != "a-token-of-the-instance":
                return 401, ""
            return (200, self.json()) if path == roles + "reader" else (200, "reader") if path == roles else (404, "")
        if path == "/container":
            return 200, self.json()
        if path == "/container-with-a-token":
            return (200, self.json()) if headers.get("Authorization") == self.TOKEN else (401, "")
        asked = dict(urllib.parse.parse_qsl(query))
        if method == "POST" and asked.get("Action") == "AssumeRoleWithWebIdentity":
            if asked["WebIdentityToken"] != "an-identity" or asked["RoleArn"] != "arn:aws:iam::1:role/reader":
                return 403, "<ErrorResponse/>"
            key, secret, token, end = self.key()
            return 200, (
                "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
                f"<SessionToken>{token}</SessionToken><SecretAccessKey>{secret}</SecretAccessKey><Expiration>{end}</Expiration>"
                f"<AccessKeyId>{key}</AccessKeyId></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>")
        return 404, ""

    def json(self):
        key, secret, token, end = self.key()
        return json.dumps({"Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": key, "SecretAccessKey": secret, "Token": token, "Expiration": end,
                           "LastUpdated": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
