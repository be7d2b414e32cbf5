"""Real Hangar 0.5.2, the judge of the tests on its repositories; and a repository as it should look in a mount.

Hangar needs old versions of NumPy and h5py, so it lives in an environment of its own and is driven by scripts that
run there. `tests/run` makes the environment and names its Python in NPYFS_HANGAR_PYTHON."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import numpy as np
import pytest

from .process import run
from .truth import np_save

PYTHON = os.environ.get("NPYFS_HANGAR_PYTHON", "")

# What every script may use. `tell` answers a repository's content as `expected` below reads it.
PRELUDE = '''
import contextlib, hashlib, io, json, os, sys, warnings
warnings.filterwarnings("ignore")
import numpy as np
from hangar import Repository

def repository(path, user="tester", email="t@example.com"):
    os.makedirs(path, exist_ok=True)
    with contextlib.redirect_stdout(io.StringIO()):
        repo = Repository(path, exists=False)
        if not repo.initialized:
            repo.init(user_name=user, user_email=email, remove_old=False)
    return repo

def content(value):
    if isinstance(value, str):
        data = value.encode()
        return {"t": "str", "len": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    if isinstance(value, bytes):
        return {"t": "bytes", "len": len(value), "sha256": hashlib.sha256(value).hexdigest()}
    data = np.ascontiguousarray(value).tobytes()
    return {"t": "ndarray", "dtype": value.dtype.str, "shape": list(value.shape), "sha256": hashlib.sha256(data).hexdigest()}

def key(k):
    return {"int": k} if isinstance(k, int) else {"str": k}

def columns(checkout):
    found = {}
    for name, column in checkout.columns.items():
        samples = []
        for k in column.keys():
            if column.column_layout == "flat":
                samples.append([key(k), content(column[k])])
            else:
                for sub in column[k].keys():
                    samples.append([key(k), key(sub), content(column[k][sub])])
        found[name] = {"type": column.column_type, "layout": column.column_layout,
                       "schema_type": column.schema_type, "samples": samples}
    return found

def tell(path):
    """Every branch and commit of a repository, read by Hangar."""
    with contextlib.redirect_stdout(io.StringIO()):
        repo = Repository(path)
        told = {"branches": {}, "commits": {}}
        for branch in repo.list_branches():
            log = repo.log(branch=branch, return_contents=True) if "/" not in branch else None
            if log is None:
                continue
            told["branches"][branch] = log["head"]
            for commit in log["order"]:
                if commit not in told["commits"]:
                    checkout = repo.checkout(write=False, commit=commit)
                    told["commits"][commit] = columns(checkout)
                    checkout.close()
    return told
'''


def script(text, *arguments, timeout=300, prefix=()):
    """Run a script with Hangar; its last line of output is JSON, which is returned. `prefix` is a command that runs it."""
    if not PYTHON:
        pytest.skip("NPYFS_HANGAR_PYTHON is not set (tests/run sets it): NOT TESTED against real Hangar")
    done = run([*prefix, PYTHON, "-B", "-c", PRELUDE + textwrap.dedent(text), *arguments], timeout=timeout)
    assert done.returncode == 0, f"a script with Hangar failed: {done.stderr[-3000:]}"
    lines = done.stdout.splitlines()
    return json.loads(lines[-1]) if lines else None


def start(text, *arguments):
    """The same, but still running when this returns; reads and writes lines."""
    if not PYTHON:
        pytest.skip("NPYFS_HANGAR_PYTHON is not set (tests/run sets it): NOT TESTED against real Hangar")
    command = [PYTHON, "-B", "-u", "-c", PRELUDE + textwrap.dedent(text), *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


@contextlib.contextmanager
def served(path):
    """Hangar's own server of the repositories that are pushed to it; yields its address."""
    server = start('''
from hangar.remote.server import serve
with contextlib.redirect_stdout(io.StringIO()):
    server, service, channel = serve(sys.argv[1], True, channel_address="localhost:0")
port = server.add_insecure_port("localhost:0")
server.start()
print(port, flush=True)
sys.stdin.readline()
server.stop(0.1)
service.close()
''', path)
    try:
        port = server.stdout.readline().strip()
        assert port, "Hangar's server did not start"
        yield f"localhost:{port}"
    finally:
        with server:
            server.stdin.close()
            server.wait(60)


def told(path):
    return script("print(json.dumps(tell(sys.argv[1])))", path)


def shown(key):
    """The visible name of a key, without suffix."""
    if "int" in key:
        return str(key["int"])
    text = key["str"]
    if re.fullmatch(r"0|[1-9][0-9]*", text):
        return f"%{ord(text[0]):02X}{text[1:]}"
    if text in (".", ".."):
        return text.replace(".", "%2E")
    for suffix in (".npy", ".npz", ".txt", ".bin", ".keys"):
        if text.endswith(suffix):
            return text[:-len(suffix)] + "%2E" + suffix[1:]
    return text


SUFFIX = {"ndarray": ".npy", "str": ".txt", "bytes": ".bin"}


def expected(columns):
    """{path below the commit: content} of all samples, and the names of stacked columns."""
    files, stacks = {}, {}
    for name, column in columns.items():
        folder = shown({"str": name}) if not re.fullmatch(r"0|[1-9][0-9]*", name) else name
        suffix = SUFFIX[column["type"]]
        for *keys, content in column["samples"]:
            files["/".join([folder, *map(shown, keys)]) + suffix] = content
        if column["type"] == "ndarray" and column["schema_type"] == "fixed_shape":
            stacks[folder] = column
    return files, stacks


def check_file(path, content):
    data = path.read_bytes()
    assert path.stat().st_size == len(data), path
    if content["t"] != "ndarray":
        assert (len(data), hashlib.sha256(data).hexdigest()) == (content["len"], content["sha256"]), path
        return None
    array = np.load(path)
    assert (array.dtype.str, list(array.shape)) == (content["dtype"], content["shape"]), path
    assert hashlib.sha256(array.tobytes()).hexdigest() == content["sha256"], path
    assert np_save(array) == data, path
    return array


def files_below(folder):
    found = []
    for here, _, names in os.walk(folder, onerror=_raise):
        found += [os.path.relpath(os.path.join(here, name), folder) for name in names]
    return found


def _raise(problem):
    raise problem


def check(folder, columns):
    """A directory of columns shows exactly these, sample by sample, and stacked."""
    files, stacks = expected(columns)
    extra = {f"{name}{tail}" for name in stacks for tail in (".npy", ".keys.npy")}
    assert sorted(os.listdir(folder)) == sorted({shown({"str": name}) if not name.isdigit() else name for name in columns} | extra)
    assert sorted(files_below(folder)) == sorted(set(files) | extra)
    arrays = {path: check_file(folder / path, content) for path, content in files.items()}
    for name, column in stacks.items():
        check_stack(folder, name, column, arrays)
    return len(files)


def check_stack(folder, name, column, arrays):
    stack = np.load(folder / f"{name}.npy", mmap_mode="r") if column["samples"] else np.load(folder / f"{name}.npy")
    keys = np.load(folder / f"{name}.keys.npy")
    assert len(stack) == len(keys) == len(column["samples"])
    wanted = {}
    for *parts, _ in column["samples"]:
        path = "/".join([name, *map(shown, parts)]) + ".npy"
        for spelling in (tuple(map(shown, parts)), tuple(str(part.get("str", part.get("int"))) for part in parts)):
            wanted.setdefault(spelling, path)
    for key, row in zip(keys, stack):
        parts = tuple(str(part) for part in np.atleast_1d(key))
        array = arrays[wanted[parts]]
        assert row.dtype == array.dtype and row.shape == array.shape and row.tobytes() == array.tobytes(), (name, parts)
    ints = [parts[0]["int"] for *parts, _ in column["samples"] if "int" in parts[0]]
    if column["layout"] == "flat" and len(ints) == len(keys):
        assert list(keys) == sorted(ints)


def state(folder):
    """Name, bytes, permissions and time of everything below a directory."""
    found = {}
    for here, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            path = Path(here, name)
            stat = path.lstat()
            data = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
            found[os.path.relpath(path, folder)] = (stat.st_mode, stat.st_mtime_ns, stat.st_size, data)
    return found


def copy(repository, to):
    shutil.copytree(repository, to)
    return to
