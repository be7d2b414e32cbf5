"""Hosts with a network between them, as far as programs see: namespaces of networks, mounts, processes and names of their own on this machine.

All of them see the same files, as if they had a shared file system, but for what is `private`. Nothing is left behind: the cables end with
the namespaces."""

import os
import shutil
import subprocess
from contextlib import contextmanager

from .namespaces import Namespaces
from .process import run


class Node(Namespaces):
    """A host; `with Node("one", private=[...]) as node: node("npyfs", "ls", ...)`. Directories of `private` are on a disk of its own."""

    kinds = (*Namespaces.kinds, "--mount-proc", "--net", "--uts")

    def __init__(self, name, private=(), env=None, limit=600):
        super().__init__(limit)
        self.name, self.private, self.env = name, private, {**os.environ, **(env or {})}
        self.address = None
        self.started = []

    def prepare(self):
        return [f"hostname {self.name}", "ip link set lo up", *(f"mount -t tmpfs tmpfs '{path}'" for path in self.private)]

    def within(self, *command, cwd="/"):
        return ["nsenter", f"--target={self.init}", "--mount", "--pid", "--net", "--uts", "env", "-C", str(cwd), *map(str, command)]

    def __call__(self, *command, code=0, cwd="/", timeout=120):
        """Runs a command to its end; checks its exit code unless `code` is None."""
        done = run(self.within(*command, cwd=cwd), timeout=timeout, env=self.env)
        assert code is None or done.returncode == code, f"{command}: {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done

    def start(self, *command, cwd="/", **keywords):
        """Starts a command that ends with the host at the latest."""
        process = subprocess.Popen(self.within(*command, cwd=cwd), env=self.env, stdin=keywords.pop("stdin", subprocess.DEVNULL), **keywords)
        self.started.append(process)
        return process

    def __exit__(self, *problem):
        super().__exit__(*problem)
        for process in self.started:
            process.wait(20)


def lacking():
    """Why no such hosts can be made here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    for program in ("ip", "nsenter", "unshare"):
        if not shutil.which(program):
            return f"{program} is missing (packages iproute2, util-linux)"
    tried = run(["unshare", "--net", "sh", "-c", "ip link add try0 type veth peer name try1 && ip link add try2 type bridge && ip link set try0 master try2"])
    return None if tried.returncode == 0 else f"no networks can be made: {tried.stderr.strip()}"


@contextmanager
def connected(hub, *nodes):
    """Lays a cable from `hub`, which is a switch as well, to each of the others, all of which have begun."""
    def ip(node, text):
        node("ip", *text.split())

    ip(hub, "link add switch type bridge")
    ip(hub, "addr add 10.77.0.1/24 dev switch")
    ip(hub, "link set switch up")
    hub.address = "10.77.0.1"
    for number, node in enumerate(nodes, 2):
        run(["ip", "link", "add", "eth0", "netns", str(node.init), "type", "veth", "peer", "name", f"port{number}", "netns", str(hub.init)], check=True)
        ip(hub, f"link set port{number} master switch")
        ip(hub, f"link set port{number} up")
        node.address = f"10.77.0.{number}"
        ip(node, f"addr add {node.address}/24 dev eth0")
        ip(node, "link set eth0 up")
    yield
