"""Ways in which a web server misbehaves: functions for `Site.fault` (see `web`), which answer in the server's place."""

import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote

ended = threading.Event()
"""Set by whoever wants servers that hang to end."""


def wanted(handler):
    """(first, last, bytes of all) of the part of the document that is asked for."""
    data = (handler.server_site.directory / unquote(handler.path.split("?")[0]).lstrip("/")).read_bytes()
    asked = handler.headers.get("Range")
    first, last = (int(n or len(data) - 1) for n in asked.split("=")[1].split("-")) if asked else (0, len(data) - 1)
    return first, min(last, len(data) - 1), data


def head(handler, status, data, first, last, **headers):
    """The head of an answer with the tag and the time that the server itself would name."""
    handler.send_response(status)
    tag, modified = handler.server_site.version(handler)
    fields = {"ETag": tag, "Last-Modified": modified, "Content-Length": str(last - first + 1)}
    if status == 206:
        fields["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
    fields.update({name.replace("_", "-"): value for name, value in headers.items()})
    for name, value in fields.items():
        if value is not None:
            handler.send_header(name, value)
    handler.end_headers()


def write(handler, data):
    """Sends bytes as long as somebody takes them; false if nobody does."""
    try:
        handler.wfile.write(data)
        handler.wfile.flush()
        return True
    except OSError:
        handler.close_connection = True
        return False


def gone(handler, reset=True):
    """Ends the connection, by a reset or in order."""
    handler.close_connection = True
    if reset:
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    try:
        handler.connection.shutdown(socket.SHUT_RDWR) if not reset else handler.connection.close()
    except OSError:
        pass
    return True


def status(code, **headers):
    return lambda handler: handler.refuse(code, **headers)


def slow_down(handler, status=503, code="SlowDown", **headers):
    """What S3 says to who asks too often."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>Please reduce your request rate.</Message><RequestId>1</RequestId></Error>"
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    write(handler, body.encode() if handler.command != "HEAD" else b"")
    return True


def longer_than_asked(handler):
    """The head of the part that was asked for, and a body of a tebibyte."""
    first, last, data = wanted(handler)
    head(handler, 206, data, first, last, Content_Length=str(1 << 40))
    handler.close_connection = True
    while not ended.is_set() and write(handler, bytes(0x10000)):
        pass
    return True


def reset_in_head(handler):
    write(handler, b"HTTP/1.1 206 Partial Con")
    return gone(handler)


def reset_in_body(handler):
    first, last, data = wanted(handler)
    head(handler, 206, data, first, last)
    write(handler, data[first:first + (last - first) // 2])
    return gone(handler)


def cut_body(handler):
    first, last, data = wanted(handler)
    head(handler, 206, data, first, last)
    write(handler, data[first:first + (last - first) // 2])
    return gone(handler, reset=False)


def short_body(handler):
    """Less than was asked for, with a length that fits and a range that does not."""
    first, last, data = wanted(handler)
    head(handler, 206, data, first, last, Content_Length=str((last - first) // 2))
    write(handler, data[first:first + (last - first) // 2])
    return True


def no_answer(handler):
    return gone(handler, reset=False)


def rubbish(handler):
    write(handler, b"\x16\x03 this is no HTTP\r\n\r\n" * 20)
    return gone(handler, reset=False)


def more_than_told(handler):
    """A body longer than its length: what is behind is no part of it."""
    first, last, data = wanted(handler)
    head(handler, 206, data, first, last)
    write(handler, data[first:last + 1] + b"more" * 1000)
    handler.close_connection = True
    return True


def chunks(handler, parts):
    for part in parts:
        if not write(handler, b"%x\r\n%s\r\n" % (len(part), part)):
            return True
    write(handler, b"0\r\n\r\n")
    return True


def chunked(handler):
    """The right bytes, without a length."""
    first, last, data = wanted(handler)
    head(handler, 206, data, first, last, Content_Length=None, Transfer_Encoding="chunked")
    return chunks(handler, [data[at:min(at + 5000, last + 1)] for at in range(first, last + 1, 5000)])


def chunked_whole(handler):
    """All of it, without a length."""
    _, _, data = wanted(handler)
    head(handler, 200, data, 0, len(data) - 1, Content_Length=None, Transfer_Encoding="chunked")
    return chunks(handler, [data[at:at + 50_000] for at in range(0, len(data), 50_000)])


def endless(handler):
    """The right head, and bytes without an end."""
    first, last, data = wanted(handler)
    head(handler, 206, data, first, last, Content_Length=None, Transfer_Encoding="chunked")
    handler.close_connection = True
    while not ended.is_set() and write(handler, b"10000\r\n" + bytes(0x10000) + b"\r\n"):
        pass
    return True


def whole(handler):
    """All of it, as if no range had been asked for."""
    _, _, data = wanted(handler)
    head(handler, 200, data, 0, len(data) - 1)
    write(handler, data)
    return True


def huge(handler):
    """A document that is too large to be taken as a whole, of which nothing is ever sent."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(1 << 40))
    handler.end_headers()
    return gone(handler, reset=False)


def wrong_range(handler):
    """The right bytes with a range that was not asked for."""
    first, last, data = wanted(handler)
    head(handler, 206, data, first, last, Content_Range=f"bytes {first + 1}-{last + 1}/{len(data)}")
    write(handler, data[first:last + 1])
    return True


def other_range(handler):
    """Another part, which says so."""
    first, last, data = wanted(handler)
    other = max(0, first - 100) if first else 7
    head(handler, 206, data, other, other + last - first)
    write(handler, data[other:other + last - first + 1].ljust(last - first + 1, b"\0"))
    return True


def no_range(handler):
    """A part that does not say which it is."""
    first, last, data = wanted(handler)
    head(handler, 206, data, first, last, Content_Range=None)
    write(handler, data[first:last + 1])
    return True


def other_size(handler):
    """A part of something longer, with the tag of this one."""
    first, last, data = wanted(handler)
    head(handler, 206, data, first, last, Content_Range=f"bytes {first}-{last}/{len(data) + 1000}")
    write(handler, data[first:last + 1])
    return True


def compressed(handler):
    import gzip
    first, last, data = wanted(handler)
    # Not compressed in earnest: many answers at a time would take longer than a client waits.
    packed = gzip.compress(data[first:last + 1], 0)
    head(handler, 206, data, first, last, Content_Encoding="gzip", Content_Length=str(len(packed)))
    write(handler, packed)
    return True


def trickle(handler):
    """One byte a second."""
    first, last, data = wanted(handler)
    head(handler, 206, data, first, last)
    for at in range(first, last + 1):
        if ended.wait(1) or not write(handler, data[at:at + 1]):
            break
    handler.close_connection = True
    return True


def trickling_head(handler):
    """One line of the head a second."""
    write(handler, b"HTTP/1.1 206 Partial Content\r\n")
    while not ended.wait(1) and write(handler, b"X-Wait: a\r\n"):
        pass
    handler.close_connection = True
    return True


def hang(handler):
    """No answer, as long as the test runs."""
    handler.close_connection = True
    ended.wait(60)
    return True


class Restart:
    """A server that restarts: from `restart()` on, connections from before are closed when they are used again."""

    def __init__(self):
        self.known, self.closed, self.used = set(), frozenset(), 0

    def __call__(self, handler):
        self.known.add(handler.client_address)
        if handler.client_address in self.closed:
            self.used += 1
            return no_answer(handler)
        return False

    def restart_with_many_connections(self, load):
        """`load(number)` reads an array of its own: twelve at a time, until more connections stand open than a request is retried."""
        with ThreadPoolExecutor(12) as pool:
            for first in range(0, 36, 12):
                list(pool.map(load, range(first, first + 12)))
                if len(self.known) > 6:
                    break
        assert len(self.known) > 6, self.known
        self.closed = frozenset(self.known)


def to_itself(handler):
    return handler.refuse(302, Location=handler.path)


def to_nowhere(handler):
    return handler.refuse(302)


def to_a_file(handler):
    return handler.refuse(302, Location="file:///etc/passwd")


def to_ever_other_places(handler):
    return handler.refuse(307, Location=f"{handler.path}x")


LATE = "[Nn]o answer"

# What happens, the errors that a read may end with (none: it succeeds), what the line about it says.
CASES = [
    ("503", status(503), {"EIO"}, "503"),
    ("503-after-a-second", status(503, Retry_After="1"), {"EIO"}, "503"),
    ("429", status(429, Retry_After="0"), {"EIO"}, "429"),
    ("500", status(500), {"EIO"}, "500"),
    ("502", status(502), {"EIO"}, "502"),
    ("403", status(403), {"EACCES"}, "403"),
    ("401", status(401), {"EACCES"}, "401"),
    ("404", status(404), {"ENOENT", "ESTALE"}, "404"),
    ("410", status(410), {"ENOENT", "ESTALE"}, "410"),
    ("412", status(412), {"ESTALE"}, "another version"),
    ("416", status(416), {"ESTALE"}, "another version"),
    ("400", status(400), {"EIO"}, "400"),
    ("204", status(204), {"EIO", "ESTALE"}, ""),
    ("reset-in-head", reset_in_head, {"EIO", "ETIMEDOUT"}, ""),
    ("reset-in-body", reset_in_body, {"EIO", "ETIMEDOUT"}, ""),
    ("no-answer", no_answer, {"EIO", "ETIMEDOUT"}, ""),
    ("rubbish", rubbish, {"EIO", "ETIMEDOUT"}, ""),
    ("cut-body", cut_body, {"EIO", "ETIMEDOUT"}, ""),
    ("short-body", short_body, {"EIO"}, "bytes arrived of"),
    ("more-than-told", more_than_told, set(), ""),
    ("chunked", chunked, set(), ""),
    ("huge", huge, {"ENOTSUP"}, "no ranges"),
    ("endless", endless, {"EIO", "ETIMEDOUT"}, ""),
    ("wrong-range", wrong_range, {"EIO"}, "not the one that was asked for"),
    ("other-range", other_range, {"EIO"}, "not the one that was asked for"),
    ("no-range", no_range, {"EIO"}, "not the one that was asked for"),
    ("other-size", other_size, {"ESTALE"}, "another version"),
    ("compressed", compressed, {"ENOTSUP"}, "compressed"),
    ("trickle", trickle, {"ETIMEDOUT"}, LATE),
    ("trickling-head", trickling_head, {"ETIMEDOUT"}, LATE),
    ("hang", hang, {"ETIMEDOUT"}, LATE),
    ("to-itself", to_itself, {"EIO"}, "again and again"),
    ("to-nowhere", to_nowhere, {"EIO"}, "no place"),
    ("to-a-file", to_a_file, {"EIO"}, "no place"),
    ("to-ever-other-places", to_ever_other_places, {"EIO"}, "again and again"),
    # After these all of it is there.
    ("chunked-whole", chunked_whole, set(), ""),
    ("whole", whole, set(), ""),
]


class Deaf:
    """A port that takes connections and says nothing: `with Deaf() as port`."""

    def __enter__(self):
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        return self.socket.getsockname()[1]

    def __exit__(self, *_):
        self.socket.close()


def closed_port():
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def outcome(look, errors):
    """What `look` ends with. A machine that stalls for longer than a mount waits makes a timeout of any case: then again."""
    for _ in range(5):
        ended = look()
        if ended != "ETIMEDOUT" or ended in errors:
            break
    return ended
