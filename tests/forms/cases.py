"""Cases of `tests/forms.rs`: what is stored, and what must come of it."""

import errno
import json
import pathlib
import subprocess
import os
import io
import sys

import h5py
import numpy as np

TIME = 1_234_567_890_123_456_789


class Cases:
    def __init__(self):
        self.what, place = sys.argv[1:]
        self.dir = pathlib.Path(place)
        self.listed = []
        self.wanted = []
        self.saved = 0

    def save(self, value):
        """Saves an array, or bytes as they are."""
        self.saved += 1
        path = self.dir / f"{self.saved}.npy"
        if self.what == "make":
            if isinstance(value, bytes):
                path.write_bytes(value)
            else:
                np.save(path, value)
        return str(path)

    def add(self, key, files, wanted, base=None, **more):
        """`files`: an array, bytes, or a dictionary of (member, suffix). `wanted`: a function that is given the open
        file, an errno with a part of the message, or the list of missing members."""
        if not isinstance(files, dict):
            files = {("", ".npy"): files}
        files = [(*name, self.save(value)) for name, value in files.items()]
        base = {name: self.save(value) for name, value in (base or {}).items()}
        self.listed.append({"key": key, "files": files, "base": base, **more})
        self.wanted.append(wanted)

    def run(self):
        if self.what == "make":
            (self.dir / "cases.json").write_text(json.dumps(self.listed))
            return
        outcomes = json.loads((self.dir / "outcomes.json").read_text())
        for case, wanted, outcome in zip(self.listed, self.wanted, outcomes, strict=True):
            try:
                judge(case, wanted, outcome)
            except Exception as error:
                raise AssertionError(f"{case['key']}: {outcome}") from error
        print(len(outcomes))


def judge(case, wanted, outcome):
    if callable(wanted):
        with h5py.File(outcome["path"]) as file:
            assert file.attrs["npyfs_time"] == TIME
            wanted(file)
    elif isinstance(wanted, list):
        assert outcome["missing"] == wanted
    else:
        number, part = wanted
        assert errno.errorcode[outcome["errno"]] == errno.errorcode[number]
        assert part in outcome["message"]


def shown(file, path):
    """What npyfs itself shows of a file."""
    command = [os.environ["NPYFS_BIN"], "cat", file.filename, path]
    done = subprocess.run(command, capture_output=True, check=True)
    return np.load(io.BytesIO(done.stdout))


def same(got, want):
    """Equal type, shape and bytes."""
    got, want = np.asarray(got), np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape), (got.dtype, want.dtype, got.shape)
    assert got.tobytes() == want.tobytes(), (got, want)
