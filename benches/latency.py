"""A web server on the loopback that is as far away as told: each answer comes after a time, each connection has a rate.

    python3 benches/latency.py DIRECTORY MILLISECONDS MEGABYTES_PER_SECOND

Prints its port, and ends when its standard input does. Ranges, entity tags, If-Match and If-None-Match are honoured, and `/` lists the
files, for rclone. `/_taken` answers {"requests", "bytes", "peak"} since it was last asked; "peak" is the most requests at once."""

import asyncio
import json
import os
import sys
from email.utils import formatdate
from pathlib import Path
from urllib.parse import unquote

PART = 256 << 10


class Server:
    def __init__(self, directory, latency, rate):
        self.directory, self.latency, self.rate = Path(directory), latency, rate
        self.now = 0
        self.taken = {"requests": 0, "bytes": 0, "peak": 0}

    async def serve(self, reader, writer):
        """Answers the requests of one connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *lines = head.decode("latin-1").split("\r\n")
                headers = dict(part.split(":", 1) for part in lines if ":" in part)
                headers = {name.lower(): value.strip() for name, value in headers.items()}
                method, target, _ = line.split(" ", 2)
                if target == "/_taken":
                    taken, self.taken = self.taken, {"requests": 0, "bytes": 0, "peak": self.now}
                    await self.send(writer, 200, {}, json.dumps(taken).encode())
                    continue
                self.now += 1
                self.taken["requests"] += 1
                self.taken["peak"] = max(self.taken["peak"], self.now)
                try:
                    await asyncio.sleep(self.latency)
                    await self.answer(writer, method, unquote(target.split("?")[0]).lstrip("/"), headers)
                finally:
                    self.now -= 1
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # The other side is gone, or this one is to end.
        finally:
            writer.close()

    async def send(self, writer, status, headers, body=b""):
        lines = [f"HTTP/1.1 {status} {status}", *(f"{name}: {value}" for name, value in headers.items())]
        if "Content-Length" not in headers:
            lines.append(f"Content-Length: {len(body)}")
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()

    async def answer(self, writer, method, name, headers):
        if not name:
            links = "".join(f'<a href="{path.name}">{path.name}</a>\n' for path in self.directory.iterdir())
            return await self.send(writer, 200, {"Content-Type": "text/html"}, links.encode())
        path = self.directory / name
        if not path.is_file():
            return await self.send(writer, 404, {})
        status = path.stat()
        size, tag = status.st_size, f'"{status.st_size:x}-{status.st_mtime_ns:x}"'
        told = {"Accept-Ranges": "bytes", "ETag": tag, "Last-Modified": formatdate(status.st_mtime, usegmt=True),
                "Content-Type": "application/octet-stream"}
        if headers.get("if-match", tag) != tag:
            return await self.send(writer, 412, {})
        if headers.get("if-none-match") == tag:
            return await self.send(writer, 304, told)
        first, last, code = 0, size - 1, 200
        if wanted := headers.get("range"):
            begin, end = wanted.split("=")[1].split("-")
            first = int(begin) if begin else max(size - int(end), 0)
            last = min(int(end), last) if begin and end else last
            if first > last:
                return await self.send(writer, 416, {"Content-Range": f"bytes */{size}"})
            code, told["Content-Range"] = 206, f"bytes {first}-{last}/{size}"
        told["Content-Length"] = last - first + 1
        await self.send(writer, code, told)
        if method == "HEAD":
            return None
        clock = asyncio.get_running_loop().time
        due = clock()
        with open(path, "rb") as file:
            file.seek(first)
            left = last - first + 1
            while left and (part := file.read(min(left, PART))):
                writer.write(part)
                await writer.drain()
                left -= len(part)
                self.taken["bytes"] += len(part)
                due += len(part) / self.rate
                # A connection that was idle does not catch up; one that is under way does, whatever a sleep takes.
                await asyncio.sleep(max(due - clock(), 0))
        return None


async def main(directory, latency, rate):
    server = Server(directory, float(latency) / 1000, float(rate) * 1e6)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=1 << 20, backlog=1024)
    print(listening.sockets[0].getsockname()[1], flush=True)
    over = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().add_reader(sys.stdin, lambda: os.read(0, 1) or over.done() or over.set_result(None))
    await over


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
