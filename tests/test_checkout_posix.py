"""Scratch files of a writable mount under two judges of file systems: pjdfstest asks for what POSIX says of names, errors, times
and permissions, fsx compares random operations with what they must give. `pjdfstest.txt` lists what passes, and why the rest
does not; a tmpfs passes it all. tests/run installs both programs."""

import os
import re
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.mount import Mount, make_point
from support.process import run

LIST = Path(__file__).with_name("pjdfstest.txt")
PJDFSTEST = """
[features]
posix_fallocate = {}
[settings]
naptime = 0.02
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"""
FSX = """
flen = 262144
[weights]
close_open = 1
punch_hole = 1
posix_fallocate = 1
copy_file_range = 1
sendfile = 1
posix_fadvise = 1
fsync = 0.2
fdatasync = 0.2
"""


def program(variable):
    found = os.environ.get(variable)
    if not found:
        pytest.skip(f"{variable} is not set: tests/run installs the program and sets it")
    return found


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(10.0)
        file["work/y"] = np.arange(3)
    before = path.read_bytes()
    yield path
    assert path.read_bytes() == before, "the store was written to"


def listed():
    """{test: reason}; an empty reason: it passes. In the list `{a,b}` stands for either."""
    reasons, reason = {}, None
    for line in LIST.read_text().splitlines():
        if line.startswith("== "):
            reason = "" if line == "== passes" else line[3:]
        elif line and not line.startswith("#"):
            head, _, rest = line.partition("{")
            choices, _, tail = rest.partition("}")
            for choice in choices.split(","):
                name = head + choice + tail
                assert name not in reasons and reason is not None, name
                reasons[name] = reason
    return reasons


def pjdfstest(folder, tmp_path):
    """{test: ok, FAILED or skipped} in a directory, and all that was said."""
    config = tmp_path / "pjdfstest.toml"
    config.write_text(PJDFSTEST)
    done = run([program("NPYFS_PJDFSTEST"), "-c", config, "-p", folder], timeout=100)
    said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    results = dict(re.findall(r"^([a-z_]+::[\w:]+) +(ok|FAILED|skipped)", said, re.MULTILINE))
    assert len(results) > 390, said[-2000:]
    return results, said


@pytest.mark.slow
def test_pjdfstest_passes_but_for_what_is_listed(store, tmp_path, root_only):
    program("NPYFS_PJDFSTEST")
    memory = make_point()  # other users get there; not below tmp_path
    run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", memory], check=True)
    try:
        judged, said = pjdfstest(memory, tmp_path)
    finally:
        run(["umount", "-l", memory], check=True)
        os.rmdir(memory)
    assert "FAILED" not in judged.values(), said[-2000:]  # so whatever fails below is ours
    with Mount(store, "allow_other", checkout="c") as m:
        found, said = pjdfstest(m / "work", tmp_path)
    reasons = listed()
    wrong = [f"{name}: {result}, listed as: {reasons.get(name, 'nothing')}" for name, result in sorted(found.items())
             if result != "skipped" and (result == "ok") != (reasons.get(name) == "")]
    assert not wrong, "\n".join(wrong)
    assert Counter(found.values())["ok"] > 110


def test_fsx_runs_clean_on_a_scratch_file(store, tmp_path):
    fsx = program("NPYFS_FSX")
    config = tmp_path / "fsx.toml"
    config.write_text(FSX)
    with Mount(store, checkout="c") as m:
        for seed in (6, 7):
            path = m / f"{seed}.tmp"
            path.touch()
            run([fsx, "-f", config, "-S", str(seed), "-N", "3000", "-q", "-P", tmp_path, path], check=True, timeout=100)
        assert m.errors() == []
