"""A web server on the loopback that serves a directory as told: with ranges and entity tags, or misbehaving."""

import os
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


class Site:
    """`with Site(directory) as site:` serves its files at `site.url("name")`.

    `site.asked` is a list of (method, name, range) of all requests, `site.seen` of their headers. `site.fault`, if it is set, is
    called with the handler before each answer; it returns true if it answered itself. `handler.cut` is the number of bytes after which
    it breaks off. `tags` may be "weak"; without `times` it tells no time of the last change; `tls` is an `ssl.SSLContext`."""

    def __init__(self, directory, *, ranges=True, tags=True, times=True, latency=0, tls=None):
        self.scheme = "https" if tls else "http"
        self.directory, self.ranges, self.tags, self.times, self.latency = Path(directory), ranges, tags, times, latency
        self.asked, self.seen, self.fault, self.bytes = [], [], None, 0
        # Requests that are being answered, and the bytes that these ask for: now, and the most at a time.
        self.at_once = self.most_at_once = self.under_way = self.most_under_way = 0
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        # Connections that break off are what is tried here.
        self.server.handle_error = lambda *_: None
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)

    def _handler(self):
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            server_site = site
            # Head and body are sent apart.
            disable_nagle_algorithm = True

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self.answer(False)

            def do_GET(self):
                wanted = self.headers.get("Range", "bytes=0-0").split("=")[1].split("-")
                bytes = int(wanted[1] or wanted[0]) - int(wanted[0]) + 1
                site.count(1, bytes)
                try:
                    self.answer(True)
                finally:
                    site.count(-1, -bytes)

            def refuse(self, status, **headers):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return True

            def answer(self, body):
                name = unquote(self.path.split("?")[0]).lstrip("/")
                with site.lock:
                    site.asked.append((self.command, name, self.headers.get("Range")))
                    site.seen.append({name.lower(): value for name, value in self.headers.items()})
                self.cut = None
                if site.latency:
                    time.sleep(site.latency)
                if site.fault and site.fault(self):
                    return None
                path = site.directory / name
                if not path.is_file():
                    return self.refuse(404)
                with open(path, "rb") as file:
                    status = os.fstat(file.fileno())
                    tag, modified = site.version(file.fileno())
                    # As servers do: a weak tag matches nothing.
                    if site.tags and (site.tags == "weak" or self.headers.get("If-Match", tag) != tag) and "If-Match" in self.headers:
                        return self.refuse(412)
                    first, last = 0, status.st_size - 1
                    wanted = self.headers.get("Range") if site.ranges else None
                    if wanted:
                        begin, end = wanted.split("=")[1].split("-")
                        first, last = int(begin), min(int(end or last), last)
                        if first > last:
                            return self.refuse(416)
                    self.send_response(206 if wanted else 200)
                    if wanted:
                        self.send_header("Content-Range", f"bytes {first}-{last}/{status.st_size}")
                    if site.tags:
                        self.send_header("ETag", tag)
                    if site.times:
                        self.send_header("Last-Modified", modified)
                    self.send_header("Content-Length", str(last - first + 1))
                    self.end_headers()
                    if body:
                        file.seek(first)
                        data = file.read(last - first + 1)
                        with site.lock:
                            site.bytes += len(data)
                        try:
                            self.wfile.write(data[:self.cut])
                            self.close_connection = self.cut is not None or self.close_connection
                        except ConnectionError:
                            pass
                return None

        return Handler

    def count(self, requests, bytes):
        with self.lock:
            self.at_once, self.under_way = self.at_once + requests, self.under_way + bytes
            self.most_at_once = max(self.most_at_once, self.at_once)
            self.most_under_way = max(self.most_under_way, self.under_way)

    def version(self, of):
        """The tag and the time of a file, or of the document that a handler is asked for."""
        status = os.stat(of if isinstance(of, int) else self.directory / unquote(of.path.split("?")[0]).lstrip("/"))
        tag = f'"{status.st_size:x}-{status.st_mtime_ns:x}-{status.st_ino:x}"'
        return ("W/" + tag if self.tags == "weak" else tag,
                time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(status.st_mtime)))

    def url(self, name, query=""):
        return f"{self.scheme}://127.0.0.1:{self.server.server_port}/{name}{query}"

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def certificate(directory, name="127.0.0.1"):
    """A certificate for 127.0.0.1 and for `name` that nobody vouches for: (certificate, key)."""
    pair = directory / "own.pem", directory / "own.key"
    names = "IP:127.0.0.1" if name == "127.0.0.1" else f"IP:127.0.0.1,DNS:{name}"
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext",
                           f"subjectAltName={names}", "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", pair[1], "-out", pair[0]],
                          capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return pair
