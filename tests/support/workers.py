"""Tests in several processes side by side (pytest -n), as one run. A pytest plugin.

A file's tests stay together, in one worker: they share module fixtures, mounts above all. The files that took longest the
last time come first, so that the workers end together; their seconds are kept in NPYFS_CACHE. Tests marked `alone` measure
what others on the machine disturb: they run at the end, one after the other, when every other worker has ended. A worker holds a shared lock until
then, and the wait for it is no test's time."""

import fcntl
import functools
import json
import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from .mount import POINTS, clear, mounted
from .process import CACHE

ALONE = "alone"  # the unit of work that comes last


def seconds_file():
    return CACHE / "test-seconds.json"


def known_seconds():
    """{file: seconds} of earlier runs; a guess is made for what is not in it."""
    try:
        known = json.loads(seconds_file().read_text())
        return {str(name): float(took) for name, took in known.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def write(path, value):
    """In one step: others may be writing the same file."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as new:
        json.dump(value, new, indent=0, sort_keys=True)
    os.replace(new.name, path)


def clear_mounts():
    """Clears what is still mounted of this process's mounts, and returns the mount points."""
    left = [point for point in POINTS if mounted(point)]
    for point in left:
        clear(point)
    return list(map(str, left))


def in_order(items, known):
    """Sorts the tests of one worker: whole files, the longest first, and at the end all that must be alone."""
    guess = Counter()
    for item in items:
        guess[item.path.name] += 30 if item.get_closest_marker("slow") else 0.5
    place = {name: i for i, name in enumerate(sorted(guess, key=lambda name: (-known.get(name, guess[name]), name)))}
    items.sort(key=lambda item: (item.get_closest_marker(ALONE) is not None, place[item.path.name]))


class Worker:
    """The side of a process that runs tests."""

    def __init__(self, config):
        self.config = config
        self.seconds = config.workerinput["npyfs_seconds"]
        self.folder = Path(config.workerinput["npyfs_folder"])
        self.room = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self.room, fcntl.LOCK_SH)
        self.all_mine = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        in_order(items, self.seconds)
        # The scheduler sees names, no marks. Every worker writes the same.
        write(self.folder / ALONE, [item.nodeid for item in items if item.get_closest_marker(ALONE)])

    @pytest.hookimpl(tryfirst=True, wrapper=True)
    def pytest_runtest_protocol(self, item):
        """Outside of pytest-timeout's wrapper: the wait is not the test's."""
        if item.get_closest_marker(ALONE) and not self.all_mine:
            fcntl.flock(self.room, fcntl.LOCK_UN)
            fcntl.flock(self.room, fcntl.LOCK_EX)
            self.all_mine = True
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self):
        self.config.workeroutput["npyfs_mounts_left"] = clear_mounts()
        fcntl.flock(self.room, fcntl.LOCK_UN)


class Controller:
    """The side of the process that was called: it hands out the tests, and knows what came of them."""

    def __init__(self, config):
        self.config = config
        self.known = known_seconds()
        self.took = Counter()
        self.broken = set()
        self.left = []
        self.folder = tempfile.TemporaryDirectory(prefix="npyfs-tests-")

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node):
        node.workerinput["npyfs_folder"] = self.folder.name
        node.workerinput["npyfs_seconds"] = self.known

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config, log):
        from xdist.scheduler.loadscope import LoadScopeScheduling

        marked = Path(self.folder.name) / ALONE

        class ByFile(LoadScopeScheduling):
            @functools.cached_property
            def alone(self):
                return set(json.loads(marked.read_text()))

            def _split_scope(self, nodeid):
                return ALONE if nodeid in self.alone else nodeid.split("::", 1)[0]

            def _reschedule(self, node):
                # The next file when the last test of this one begins, not before: it may go to whoever is free earlier.
                if self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) > 1:
                    return
                super()._reschedule(node)

        config.option.loadscopereorder = False  # in_order() knows better
        return ByFile(config, log)

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.split("::", 1)[0].rpartition("/")[2]
        self.took[name] += report.duration
        if report.failed:
            self.broken.add(name)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.left += getattr(node, "workeroutput", {}).get("npyfs_mounts_left", [])

    def pytest_sessionfinish(self, session):
        self.left += clear_mounts()
        if self.left:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self.folder.cleanup()

    def pytest_terminal_summary(self, terminalreporter):
        if self.left:
            terminalreporter.line(f"mounts left behind (cleared now): {', '.join(self.left)}", red=True)
        whole = not (self.config.option.keyword or self.config.option.markexpr) and not any("::" in arg for arg in self.config.args)
        if whole and not terminalreporter.stats.get("deselected") and self.took:
            self.keep({name: round(took, 1) for name, took in self.took.items() if name not in self.broken})

    def keep(self, took):
        """Of files that ran whole and passed."""
        seconds_file().parent.mkdir(parents=True, exist_ok=True)
        write(seconds_file(), {**self.known, **took})


def pytest_configure(config):
    side = Worker if hasattr(config, "workerinput") else Controller
    config.pluginmanager.register(side(config), f"npyfs-{side.__name__.lower()}")
