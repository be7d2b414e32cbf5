"""Checkouts as tests make them, through mounts and commands, and their lists and indexes read as docs/checkout-format.md says."""

import hashlib
import json
import os
import zlib

import h5py
import numpy as np

from . import daf
from .mount import Mount
from .process import npyfs, one_line

CELLS = [b"a", b"b", b"c", b"d"]
GENES = [b"x", b"y", b"z"]
SCORE = np.array([0.5, 1.5, 2.5, 3.5])
# The beginning of the file of a commit.
COMMIT = '{"form":"npyfs commit 1",'


def write_daf(path, cells=CELLS, genes=GENES, seed=1):
    """A daf store; what lies along the axes depends on the seed."""
    random = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        daf.start(file)["title"] = f"made with {seed}"
        file["cell#"], file["gene#"] = np.array(cells), np.array(genes)
        file["cell#age"] = random.integers(0, 90, len(cells))
        file["cell,gene#UMIs"] = random.integers(0, 9, (len(cells), len(genes)))


def write_plain(path, seed=1, names=("a", "b", "g/c")):
    random = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        for name in names:
            file[name] = random.normal(size=(5, 3))


def top(store):
    """The directory of a store's checkouts."""
    return store.with_name(f"{store.name}.checkouts")


def checkout(command, *arguments, code=0):
    done = npyfs("checkout", command, *arguments)
    assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done


def attr(*arguments, code=0):
    done = npyfs("attr", *arguments)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else one_line(done.stderr)


def save(store, name, arrays, commit=True, message=None):
    with Mount(store, checkout=name) as mount:
        for path, array in arrays.items():
            os.makedirs(os.path.dirname(mount / path), exist_ok=True)
            np.save(mount / path, array)
    if commit:
        checkout("commit", store, name, *(["-m", message] if message else []))


def lines(path):
    """The records of a list, each with its checksum checked; none of one whose writer was killed before it began."""
    first, *rest = path.read_text().splitlines() or [None]
    for line in rest:
        assert int(line[:8], 16) == zlib.crc32(line[9:].encode()), line
    return first, [json.loads(line[9:]) for line in rest]


def commits_of(directory):
    """The numbered commits in a directory of checkouts, each with its id checked and made on the one before it."""
    commits = []
    for number, path in enumerate(sorted(directory.glob("commits/*.json")), 1):
        assert path.name == f"{number:020}.json", path
        text = path.read_text()
        fields = {key: value for key, value in json.loads(text).items() if key not in ("form", "id")}
        assert text.startswith(COMMIT) and (json.loads(text)["id"], text) == as_commit(fields), text
        commits.append(json.loads(text))
    for one, two in zip(commits, commits[1:]):
        assert two["parents"] == [one["id"]] and one["time"] < two["time"], two
    return commits


def as_commit(fields):
    """The id of a commit with these fields, and its file."""
    rest = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
    digest = hashlib.blake2b(rest.encode(), digest_size=16).hexdigest()
    return digest, f'{COMMIT}"id":"{digest}",{rest[1:]}\n'


def amend_last(directory, **fields):
    """Writes the last commit again, with other fields; None: without one. Returns its id."""
    path = max((directory / "commits").glob("*.json"))
    record = {**json.loads(path.read_text()), **fields}
    del record["form"], record["id"]
    last, text = as_commit({name: value for name, value in record.items() if value is not None})
    path.write_text(text)
    return last


def as_lines(first, *records):
    texts = [json.dumps(record, separators=(",", ":")) for record in records]
    return "".join([first + "\n", *(f"{zlib.crc32(text.encode()):08x} {text}\n" for text in texts)])


def entries(axis):
    """The entries of an axis as docs/checkout-format.md says that they are remembered."""
    whole = b"".join(len(entry).to_bytes(4, "little") + entry for entry in axis)
    return f"{len(axis)}:{hashlib.blake2b(whole, digest_size=16).hexdigest()}"
