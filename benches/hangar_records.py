"""Writes a Hangar repository of very many records without data: what a listing has to go through.

    hangar_records.py DIR RECORDS COLUMNS [COMMITS]

Runs with the Python of the Hangar environment (lmdb, blosc). The digests are random, the data files are missing; tables,
blobs and schema are as Hangar 0.5.2 writes them. Each commit after the first changes a
thousandth of the samples."""

import hashlib
import json
import os
import sys
from pathlib import Path

import blosc
import lmdb

SCHEMA = ("{'column_layout':'flat','column_type':'ndarray','schema_hasher_tcode':'1','data_hasher_tcode':'0',"
          "'schema_type':'fixed_shape','shape':(28,28),'dtype':'uint8','backend':'01',"
          "'backend_options':{'complib':'blosc:lz4hc','complevel':5,'shuffle':'byte'}}")
SCHEMA_DIGEST = "1=000000000000"


def blake(data):
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def commit(parent, spec, rows):
    records = blake("".join(blake(f"{key} {value}".encode()) for key, value in rows).encode() if rows else b"")
    parts = sorted([blake(parent.encode()), blake(spec.encode()), records])
    return "a=" + blake("".join(parts).encode())


def write(path, rows):
    settings = dict(map_size=50_000_000_000, subdir=False, lock=False, meminit=False, sync=False)
    with lmdb.open(str(path), **settings) as env, env.begin(write=True) as txn:
        for key, value in sorted(rows):
            txn.put(key.encode(), value if isinstance(value, bytes) else value.encode(), append=True)


def make(folder, records, columns, commits):
    tables = Path(folder) / ".hangar"
    (tables / "data" / "01").mkdir(parents=True)
    each = records // columns
    names = [f"column{n:03}" for n in range(columns)]
    digests = {f"f:{name}:#{i}": "0=" + os.urandom(20).hex() for name in names for i in range(each)}
    schemas = [(f"s:{name}:f", SCHEMA_DIGEST) for name in names]
    hashes = [("s:" + SCHEMA_DIGEST, SCHEMA)]
    refs, parent = [], ""

    def locate(values):
        for at, digest in enumerate(values):
            uid, row = f"u{at // 9900:07x}", at % 9900
            hashes.append(("h:" + digest, f"01:{uid}:{os.urandom(8).hex()}:{row // 100}:{row % 100}:28 28"))

    locate(digests.values())
    for number in range(commits):
        if number:
            changed = {key: "0=" + os.urandom(20).hex() for key in list(digests)[number::1000]}
            locate(changed.values())
            digests.update(changed)
        rows = sorted([*digests.items(), *schemas])
        spec = json.dumps({"commit_time": 1.7e9 + 1000.5 * number, "commit_message": f"commit {number}",
                           "commit_user": "bench", "commit_email": "b@example.com"}, separators=(",", ":"))
        text = "".join(f"{key} {value}$" for key, value in rows).encode()
        digest = commit(parent, spec, rows)
        refs += [(digest, parent), (f"{digest}:spec", blosc.compress(spec.encode(), typesize=8, clevel=9, cname="zlib")),
                 (f"{digest}:ref", blosc.compress(text, typesize=1, clevel=8, shuffle=blosc.NOSHUFFLE, cname="zstd"))]
        parent = digest
    write(tables / "ref.lmdb", refs)
    write(tables / "hash.lmdb", set(hashes))
    write(tables / "stage_ref.lmdb", rows)
    write(tables / "stage_hash.lmdb", [])
    write(tables / "branch.lmdb", [("branch:master", parent), ("head", "branch:master"), ("software_version", "0.5.2"),
                                   ("writerlock:", "LOCK_AVAILABLE")])


if __name__ == "__main__":
    make(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 1)
