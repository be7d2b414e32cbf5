"""Samples: what enumerates kills, faults, damages or combinations tries some of its cases, and others each day; of what no change can
have touched, each test is tried every second day. A pytest plugin.

The seed is the number of the day since 1970, or NPYFS_SEED, which repeats the run of a day. The summary says what a run left
out. `tests/run --all` sets NPYFS_ALL=all, and everything is tried; NPYFS_ALL may name groups of GROUPS instead. NPYFS_AREAS, if it is
set, names the areas of AREAS and the test files of which every test is tried. Of others every second one is, and those that are marked
`fast` or prove a promise. `.ci/run` names the groups and the areas whose code has changed since the commit that it passed last, which is
what this file prints as a program, in two lines:

    python3 tests/support/sampling.py COMMIT

Nothing is left out silently: a case that is not tried is deselected, or is a round fewer of a test that counts its rounds here."""

import os
import random
import re
import subprocess
import sys
import time

try:
    import pytest
except ImportError:  # as a program
    pytest = None

SEED = int(os.environ.get("NPYFS_SEED") or time.time() // 86400)
os.environ["NPYFS_SEED"] = str(SEED)  # of the processes that tests start, too, and past midnight

# What is tried whole when one of these has changed: beginnings of paths. A test file belongs to the groups that it names.
GROUPS = {
    "crash": ["crates/io/src/storage.rs", "crates/core/src/checkout/layer", "crates/core/src/checkout/records", "crates/core/src/checkout/history", "crates/core/src/checkout/write"],
    "fault": ["crates/io/src/storage.rs", "crates/core/src/checkout/layer", "crates/core/src/checkout/records", "crates/core/src/checkout/verbs", "crates/core/src/convert"],
    "bucket": ["crates/core/src/checkout/mirror", "crates/io/src/remote/origin"],
    "cache": ["crates/io/src/remote/disk", "crates/io/src/remote/cache_dir"],
    "write": ["src/mount/fs/write"],
    "hangar": ["crates/core/src/formats/hangar/stage", "crates/worker/src/lmdb"],
    "damage": ["crates/codec/src", "crates/hdf5/src/walk", "crates/worker/src/ffi"],
    "sweep": ["crates/codec/src", "crates/base/src/npy", "crates/hdf5/src/walk", "crates/core/src/dataset/chunked", "crates/core/src/dataset/blocks"],
    "option": ["src/cli/options", "crates/base/src/options"],
    "package": ["Cargo.toml", "Cargo.lock", "tests/lab", "mountscripts/package", "mountscripts/debian-root", "mountscripts/install", "src/cli/setup"],
    "page": ["docs/", "README.md"],
    "history": ["crates/core/src/checkout/history", "crates/core/src/checkout/mirror", "crates/core/src/checkout/verbs", "crates/core/src/checkout/write", "crates/core/src/checkout/view/follow.rs"],
    "memory": ["crates/core/src/tree", "crates/core/src/formats", "crates/core/src/store", "crates/core/src/checkout/view", "crates/base/src/heap.rs", "src/mount"],
    "cluster": ["docs/cookbook/dask-cluster", "docs/cookbook/slurm", "docs/cookbook/snakemake"],
}

# Tests that other code can hardly break: beginnings of paths of code, and of names of test files. What is in no area is of BASE.
# Code that is in none concerns all of them.
BASE = "base"
AREAS = {
    "checkouts": (["crates/core/src/checkout", "src/mount/fs/write", "src/cli/checkout"],
                  ["checkout", "begin", "publish", "follow", "histories", "cluster", "attributes_write", "dimensions_write", "new", "owner"]),
    "remote": (["crates/io/src/remote", "crates/core/src/formats/remote"], ["remote", "hostile_uploads", "checkouts_in_buckets"]),
    "hangar": (["crates/core/src/formats/hangar", "crates/worker/src/lmdb"],
               ["hangar", "memory_hangar", "convert_hangar", "remote_hangar", "checkout_revert_formats"]),
    "formats": (["crates/core/src/formats/"],
                ["anndata", "arkouda", "bad_daf", "daf", "formats", "matlab", "netcdf", "publish_arkouda", "zarr", "convert", "promises", "python"]),
    "views": (["crates/core/src/views"], ["arrow", "zarr", "layouts"]),
    "convert": (["crates/core/src/convert", "src/cli/convert"], ["convert"]),
    "commands": (["src/cli"], ["cli", "info", "log", "odd_values", "output", "progress", "setup", "show", "subpath", "tools", "verify"]),
    "pages": (["docs/", "README.md", "CHANGELOG.md"], ["cookbook", "demo", "docs", "judges", "promises"]),
}
# Nothing that a test in Python runs.
ASIDE = ("benches/", "fuzz/", "examples/", "tests/lab/", ".gitignore", "CONTRIBUTING.md", "ARCHITECTURE.md", "LICENSE")

WHOLE = set(os.environ.get("NPYFS_ALL", "").split())
if unknown := WHOLE - {"all", *GROUPS}:
    raise SystemExit(f"NPYFS_ALL names no group: {' '.join(sorted(unknown))}; there are all, {', '.join(GROUPS)}")

TOUCHED = set(os.environ["NPYFS_AREAS"].split()) if "NPYFS_AREAS" in os.environ and "all" not in WHOLE else None
SAMPLES = {}  # {(test file, what): (tried, of how many)} of this process


def is_whole(group):
    """Whether this run tries every case of a group."""
    return "all" in WHOLE or group in WHOLE


def note(name, what, tried, every):
    assert 0 < tried <= every, (name, what, tried, every)
    before = SAMPLES.get((name, what), (0, 0))
    SAMPLES[name, what] = before[0] + tried, before[1] + every


class Sample:
    """What a test file, `name`, takes of the cases of `group`."""

    def __init__(self, name, group):
        self.name, self.group = name.removesuffix(".py").rpartition("/")[2], group
        self.is_whole = is_whole(group)
        assert group in GROUPS, group

    def count(self, some, every, what="rounds"):
        """How many rounds a test does."""
        tried = every if self.is_whole else min(some, every)
        note(self.name, what, tried, every)
        return tried

    def choose(self, cases, some, what="cases", of=""):
        """Some of the cases, in their order. What is chosen of other cases by the same `what` is counted together."""
        cases = list(cases)
        tried = self.count(some, len(cases), what)
        return [cases[at] for at in sorted(self.random(f"{what} {of}").sample(range(len(cases)), tried))]

    def random(self, what=""):
        """A generator of the day's seed, another one for each `what`."""
        return random.Random(f"{SEED} {self.name} {what}")


# --- tests: the mark `sample(group, count)` leaves so many cases of each function, with `together=True` so many of the marked ones of a file

def sampled(items):
    """The items that are not tried. Every worker finds the same."""
    functions = {}
    for item in items:
        if mark := item.get_closest_marker("sample"):
            together = mark.kwargs.get("together")
            functions.setdefault((item.path.stem, "tests" if together else f"cases of {item.originalname}"), (*mark.args, []))[2].append(item)
    left = set()
    for (name, what), (group, count, cases) in functions.items():
        left |= set(cases) - set(Sample(name, group).choose(cases, count, what))
    return left


def areas_of(name):
    """The areas of a test file."""
    own = {area for area, (_, names) in AREAS.items() if name.removeprefix("test_").startswith(tuple(names))}
    return own or {BASE}


def every_second(items):
    """The items of untouched areas that are not tried: on two days in a row they are different ones, and every worker finds the same."""
    from support.promises import PROMISES

    proofs = {name for names in PROMISES.values() for name in names}
    files = {}
    for item in items:
        name = item.path.stem
        if TOUCHED is None or name in TOUCHED or areas_of(name) & TOUCHED:
            continue
        if not (item.get_closest_marker("sample") or item.get_closest_marker("fast") or f"{name}.{item.originalname}" in proofs):
            files.setdefault(name, []).append(item)
    left = set()
    for name, own in files.items():
        order = random.Random(name).sample(own, len(own))
        left |= set(order[(SEED + 1) % 2::2]) if len(own) > 1 else set()
        note(name, "tests", len(own) - len(left & set(own)), len(own))
    return left


if pytest:
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(config, items):
        """Behind what `-k` and `-m` leave. What is named is tried."""
        if any("::" in arg for arg in config.args):
            return
        if left := sampled(items) | every_second(items):
            config.hook.pytest_deselected(items=list(left))
            items[:] = [item for item in items if item not in left]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(session):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["npyfs_samples"] = [[*key, *value] for key, value in SAMPLES.items()]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(node):
        for name, what, tried, every in getattr(node, "workeroutput", {}).get("npyfs_samples", []):
            # In every worker what its files count when they are read, in one of them what a test chooses.
            SAMPLES[name, what] = max(SAMPLES.get((name, what), (0, 0)), (tried, every))

    def pytest_report_header():
        whole = f"; whole: {' '.join(sorted(WHOLE))}" if WHOLE else ""
        return f"samples: seed {SEED} (NPYFS_SEED repeats it){whole}"

    def pytest_terminal_summary(terminalreporter):
        left_out = {key: counts for key, counts in sorted(SAMPLES.items()) if counts[0] < counts[1]}
        if left_out:
            terminalreporter.section(f"sampled, seed {SEED}")
            for (name, what), (tried, every) in left_out.items():
                terminalreporter.line(f"{name}: {tried} of {every} {what}")
            terminalreporter.line(f"NPYFS_SEED={SEED} tries these again, tests/run --all everything")


# --- what changed

def changed(commit):
    """The groups, and the areas and test files, whose code or whose tests are other ones than in a commit; None if git does not know the
    commit. Lines of comments in Rust are no code."""
    done = subprocess.run(["git", "diff", "--numstat", "--no-renames", r"-I^\s*//", commit, "HEAD"], capture_output=True, text=True)
    if done.returncode:
        return None
    groups, areas = set(), set()
    for path in (line.split("\t", 2)[2] for line in done.stdout.splitlines()):
        groups |= {group for group, beginnings in GROUPS.items() if path.startswith(tuple(beginnings))}
        if re.fullmatch(r"tests/test_\w+\.py", path):
            if os.path.exists(path):
                areas.add(path[len("tests/"):-len(".py")])
                with open(path) as file:
                    groups |= set(re.findall(r"(?:Sample\(__file__, |mark\.sample\()\"(\w+)\"", file.read()))
        elif not path.startswith(ASIDE):
            areas |= {area for area, (beginnings, _) in AREAS.items() if path.startswith(tuple(beginnings))} or {BASE, *AREAS}
    return groups, areas


if __name__ == "__main__":
    found = changed(sys.argv[1])
    if found is None:
        sys.exit(f"sampling.py: git has no commit {sys.argv[1]}")
    for names in found:
        print(*sorted(names))
