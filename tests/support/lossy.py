"""A service on the loopback that stands before another one, and loses what it is told to lose."""

import http.client
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Lossy:
    """`with Lossy(url) as lossy` hands requests on to the service at a url; `lossy.url` is its own.

    `lossy.fault(method, path)` says what becomes of a request: None; "refused" (503, and nothing is done); "lost" (it is done, and the
    connection breaks before the answer); "failed" (it is done, and the answer is 503); "cut" (the connection breaks, and nothing is
    done); "twice" (it is done twice, and the second answer counts). ("late", seconds): it is done, and answered so much later; ("slow",
    seconds): it is done so much later, and answered then; ("after", seconds): the connection breaks, and it is done so much later.
    `lossy.asked` are all requests, as (method, path); `lossy.fates` counts them by what became of them; `lossy.pending` is how many are under way."""

    def __init__(self, url):
        self.target, self.fault, self.asked, self.fates = urlsplit(url), lambda method, path: None, [], {}
        self.pending, self.lock = 0, threading.Lock()
        lossy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_):
                pass

            def answer(self):
                with lossy.lock:
                    lossy.pending += 1
                try:
                    self.answered()
                finally:
                    with lossy.lock:
                        lossy.pending -= 1

            def answered(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                lossy.asked.append((self.command, self.path))
                fate = lossy.fault(self.command, self.path)
                fate, seconds = fate if isinstance(fate, tuple) else (fate, 0)
                lossy.fates[fate] = lossy.fates.get(fate, 0) + 1
                if fate == "refused":
                    return self.unavailable()
                if fate in ("cut", "after"):
                    self.broken()
                if fate == "cut":
                    return None
                if fate in ("slow", "after"):
                    time.sleep(seconds)
                if fate == "twice":
                    self.done(body)
                answer, data = self.done(body)
                if fate == "failed":
                    return self.unavailable()
                if fate == "lost":
                    return self.broken()
                if fate == "after":
                    return None
                if fate == "late":
                    time.sleep(seconds)
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                        self.send_header(name, value)
                # The answer to HEAD tells the length of what is not sent.
                told = answer.getheader("Content-Length") if self.command == "HEAD" else len(data)
                self.send_header("Content-Length", str(told or 0))
                self.end_headers()
                self.wfile.write(data)

            def done(self, body):
                """The answer of the other service, and its body."""
                far = http.client.HTTPConnection(lossy.target.netloc, timeout=60)
                try:
                    headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
                    far.request(self.command, self.path, body, headers)
                    answer = far.getresponse()
                    return answer, answer.read()
                finally:
                    far.close()

            def broken(self):
                self.close_connection = True
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # The stream made of it holds the descriptor, too.
                self.rfile.close()
                self.connection.close()

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
