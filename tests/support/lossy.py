"""A service on the loopback that stands before another one, and loses what it is told to lose."""

import http.client
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Lossy:
    """`with Lossy(url) as lossy` hands requests on to the service at a url; `lossy.url` is its own.

    `lossy.fault(method, path)` says what becomes of a request: None; "refused" (503, and nothing is done); "lost" (it is done, and the
    connection breaks before the answer); "failed" (it is done, and the answer is 503). `lossy.asked` are all requests, as (method,
    path); `lossy.fates` counts them by what became of them."""

    def __init__(self, url):
        self.target, self.fault, self.asked, self.fates = urlsplit(url), lambda method, path: None, [], {}
        lossy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_):
                pass

            def answer(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                lossy.asked.append((self.command, self.path))
                fate = lossy.fault(self.command, self.path)
                lossy.fates[fate] = lossy.fates.get(fate, 0) + 1
                if fate == "refused":
                    return self.unavailable()
                far = http.client.HTTPConnection(lossy.target.netloc, timeout=60)
                try:
                    headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
                    far.request(self.command, self.path, body, headers)
                    answer = far.getresponse()
                    data = answer.read()
                finally:
                    far.close()
                if fate == "failed":
                    return self.unavailable()
                if fate == "lost":
                    self.close_connection = True
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return self.connection.close()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                        self.send_header(name, value)
                # The answer to HEAD tells the length of what is not sent.
                told = answer.getheader("Content-Length") if self.command == "HEAD" else len(data)
                self.send_header("Content-Length", str(told or 0))
                self.end_headers()
                self.wfile.write(data)

            def unavailable(self):
                body = b"<?xml version='1.0'?><Error><Code>ServiceUnavailable</Code><Message>later, please</Message></Error>"
                self.send_response(503)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        # Connections that break off are what is tried here.
        self.server.handle_error = lambda *_: None

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}{self.target.path}"
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
