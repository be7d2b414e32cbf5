"""Proxies, as programs find them in `http_proxy` and `https_proxy`."""

import select
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener


def pump(ends):
    """Hands on what came at one of two ends; false if one of them is closed."""
    for end in select.select(list(ends), [], [], 20)[0]:
        data = end.recv(1 << 16)
        if not data:
            return False
        ends[end].sendall(data)
    return True


class Proxy:
    """An HTTP proxy that takes all requests as its own: `proxy.asked` is what it was asked for, `proxy.users` who asked. `with Proxy(site) as
    proxy`: its answers are the site's. Tunnels that it is asked for (CONNECT) lead to the site, too."""

    def __init__(self, site):
        asked, users = self.asked, self.users = [], []
        opener = build_opener(ProxyHandler({}))

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self):
                asked.append(self.path)
                users.append(self.headers.get("Proxy-Authorization"))
                path = "/" + self.path.split("://", 1)[1].split("/", 1)[1]
                request = Request(site.url(path.lstrip("/")), method=self.command,
                                  headers={name: self.headers[name] for name in ("Range", "If-Match") if name in self.headers})
                try:
                    answer = opener.open(request, timeout=20)
                except HTTPError as refused:
                    answer = refused
                with answer:
                    data = answer.read()
                    self.send_response(answer.status)
                    for name in ("Content-Range", "ETag", "Last-Modified"):
                        if name in answer.headers:
                            self.send_header(name, answer.headers[name])
                    self.send_header("Content-Length", answer.headers["Content-Length"])
                    self.end_headers()
                    self.wfile.write(data)

            def do_CONNECT(self):
                asked.append(self.path)
                users.append(self.headers.get("Proxy-Authorization"))
                with socket.create_connection(("127.0.0.1", site.server.server_port), timeout=20) as far:
                    self.send_response(200)
                    self.end_headers()
                    ends = {self.connection: far, far: self.connection}
                    while pump(ends):
                        pass
                self.close_connection = True

            do_GET = do_HEAD = answer

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
