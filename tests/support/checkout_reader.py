"""A second reader of checkouts, written from docs/formats.md and docs/checkout-format.md alone: it runs no npyfs.

    tree = read("x.h5.checkouts", ["x.h5"], at=3)       as of commit 3; without `at` as of the last one
    tree = read("x.h5.checkouts", ["x.h5"], name="work")   what the checkout "work" shows
    tree.arrays["g/x"], tree.attributes["g/x", "units"]

It takes what the layers hold to fit the store, and reads one store, whose parts, if it has several, are joined along their first
dimension. Arrays are those of the HDF5 files."""

import hashlib
import itertools
import json
import re
import zlib
from pathlib import Path
from urllib.parse import unquote_to_bytes

import h5py
import numpy as np

INDEX, CHECKPOINT, SNAPSHOT, KNOWN = "npyfs checkout 2", "npyfs commits 3", "npyfs snapshot 1", {"restored", "begun", "packed", "attributes"}
MARK = "\x01"  # before the name of an attribute in a key


class Refused(Exception):
    pass


def records(path, first):
    """The records of a list whose first line is `first`."""
    data, first = path.read_bytes(), first.encode() + b"\n"
    if first.startswith(data):
        return []
    if not data.startswith(first):
        raise Refused(f"{path}: begins with {data.splitlines()[0]!r}")
    found, bad = [], False
    for line in data[len(first):].splitlines(keepends=True):
        whole = re.fullmatch(rb"([0-9a-f]{8}) (.*)\n", line, re.S)
        if not whole or int(whole[1], 16) != zlib.crc32(whole[2]):
            bad = True
        elif bad:
            raise Refused(f"{path}: an invalid line before a valid one")
        else:
            found.append(checked(path, json.loads(whole[2])))
    return found


def checked(path, record):
    if unknown := set(record.get("needs", [])) - KNOWN:
        raise Refused(f"{path}: needs {unknown}")
    return record


def commit(path, text):
    """The record of a commit: the object of one, or a line of a checkpoint, without its line feed."""
    whole = re.fullmatch(r'\{"form":"npyfs commit 1","id":"([0-9a-f]{32})",(.*)', text, re.S)
    if not whole:
        raise Refused(f"{path}: begins with {text[:40]!r}")
    if hashlib.blake2b(b"{" + whole[2].encode(), digest_size=16).hexdigest() != whole[1]:
        raise Refused(f"{path}: is not what its id says")
    return checked(path, json.loads(text))


def commits(directory):
    found = []
    for number in itertools.count(1):
        path = Path(directory) / f"commits/{number:020}.json"
        if not path.exists():
            return found
        record = commit(path, path.read_text().removesuffix("\n"))
        if record["parents"] != [one["id"] for one in found[-1:]]:
            raise Refused(f"{path}: was made on another commit")
        found.append(record)


def layer_of(directory, name):
    """The directory of the layer of a checkout that is not committed."""
    committed = {record["layer"] for record in commits(directory)}
    names = itertools.chain([name], (f"{name}~{number}" for number in itertools.count(2)))
    return next(layer for layer in names if layer not in committed)


def entries(layer):
    """{key: record} of a layer, the last of each, without attributes that went with their objects."""
    last = {record["path"]: record for record in records(layer / "index", INDEX) if "path" in record}

    def counts(key):
        stored = last[key].get("stored")
        if MARK not in key or not stored:
            return True
        owner = [key.partition(MARK)[0].rstrip("/")]
        while owner[-1]:
            owner.append(owner[-1].rpartition("/")[0])
        near = next((last[path] for path in owner if path in last), None)
        return stored.get("of") == (None if near is None else (near.get("stored") or {"file": 0})["file"])
    return {key: record for key, record in last.items() if counts(key)}


def said_twice(directory, commit):
    """Refuses a commit whose list of changes is not that of the index of its layer."""
    index = directory / commit["layer"] / "index"
    last = {record["path"]: record for record in records(index, INDEX) if "path" in record}
    said = [checked(index, record) for record in commit.get("changes", last.values())]
    if len(said) != len(last) or any(last.get(record["path"]) != record for record in said):
        raise Refused(f"{index}: the commit {commit['id']} says something else")


def snapshot(directory):
    """What a snapshot of all commits is to have after its first record: the stores by layer, the records of entries, and those of directories."""
    made = commits(directory)
    layers = [{key: record for key, record in entries(directory / one["layer"]).items() if key not in one["without"]} for one in made]
    last = {key: at for at, layer in enumerate(layers) for key in layer}
    stores = [{record["store"]: record["identity"] for record in records(directory / one["layer"] / "index", INDEX) if "store" in record}
              for one in made]

    def said(at, key):
        record = layers[at][key]
        if "restored" not in record:
            return {"stored": record["stored"]} if record["stored"] else {}
        time, name = record["restored"]["time"], record["restored"].get("layer")
        if name is None:
            return {"since": time}
        of = [one["layer"] for one in made].index(name)
        return {"stored": {**layers[of][key]["stored"], "time": time}, "of": of}

    def changed(key, time):
        directory = key.rpartition("/")[0]
        latest[directory] = max(latest.get(directory, time), time)
    found = [{"at": at, "path": key, **said(at, key)} for at, layer in enumerate(layers) for key in sorted(layer, key=str.encode)]
    kept = [record for record in found if last[record["path"]] == record["at"] or record["path"].endswith("#")
            or "begins" in record.get("stored", {})]
    latest = {}
    for record in found:
        changed(record["path"], record.get("stored", {}).get("time") or record.get("since") or made[record["at"]]["time"])
    told = {(record["path"].rpartition("/")[0], record.get("stored", {}).get("time") or record.get("since")) for record in kept}
    return stores, kept, [{"directory": key, "time": time} for key, time in sorted(latest.items(), key=lambda item: item[0].encode())
                          if (key, time) not in told]


def own_path(key):
    return b"/".join(unquote_to_bytes(name) for name in key.split("/"))


def has(file, key):
    with h5py.File(file) as file:
        return own_path(key) in file


class Tree:
    """Arrays by their paths and attributes by path and name: each is a place, (files, the path in them), or a value once read."""

    def __init__(self, files):
        self.arrays, self.attributes = {}, {}
        self.add(files, "")

    def add(self, files, key):
        """What files have at a key and below it."""
        own = own_path(key)
        with h5py.File(files[0]) as file:
            top = file[own] if own else file

            def see(name, item):
                path = "/".join(part for part in (key, name) if part)
                if isinstance(item, h5py.Dataset):
                    self.arrays[path] = (files, item.name)
                self.attributes.update({(path, name): item.attrs[name] for name in item.attrs})
            see("", top)
            if isinstance(top, h5py.Group):
                top.visititems(see)

    def drop(self, key):
        """Nothing is at a key and below it any more."""
        below = lambda path: path == key or path.startswith(f"{key}/")
        self.arrays = {path: place for path, place in self.arrays.items() if not below(path)}
        self.attributes = {place: value for place, value in self.attributes.items() if not below(place[0])}

    def take(self, directory, key, record, files):
        """Applies an entry of the layer in a directory; the store's own objects are in `files`."""
        owner, mark, name = key.partition(MARK)
        place = owner.rstrip("/"), unquote_to_bytes(name).decode()
        if "restored" in record:
            from_layer = record["restored"].get("layer")
            if from_layer is not None:
                return self.take(directory.parent / from_layer, key, entries(directory.parent / from_layer)[key], files)
            below = Tree(files)
            if mark:
                self.attributes.update({place: below.attributes[place]} if place in below.attributes else {})
            elif has(files[0], key):
                self.add(files, key)
            return None
        if record["stored"] is None:
            return None
        file = directory / f"{record['stored']['file']:016}.h5"
        if mark:
            with h5py.File(file) as attributes:
                self.attributes[place] = attributes.attrs[place[1]]
        else:
            self.add([file], key)
        return None

    def load(self):
        for path, (files, own) in self.arrays.items():
            parts = []
            for name in files:
                with h5py.File(name) as file:
                    parts.append(file[own][()])
            self.arrays[path] = np.concatenate(parts) if len(parts) > 1 else parts[0]
        return self


def read(directory, files, at=None, name=None):
    directory, files = Path(directory), [Path(file) for file in files]
    all_commits = commits(directory)[:at]
    for record in all_commits:
        said_twice(directory, record)
    layers = [(directory / record["layer"], set(record["without"])) for record in all_commits]
    if name is not None:
        layers.append((directory / layer_of(directory, name), set()))
    tree = Tree(files)
    for layer, without in layers:
        found = {key: record for key, record in entries(layer).items() if key not in without}
        for key in found:
            owner, mark, attribute = key.partition(MARK)
            if mark:
                tree.attributes.pop((owner.rstrip("/"), unquote_to_bytes(attribute).decode()), None)
            else:
                tree.drop(key)
        # What is deeper comes later.
        for key in sorted(found, key=lambda key: (key.count("/"), key)):
            tree.take(layer, key, found[key], files)
    return tree.load()
