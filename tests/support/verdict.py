"""What a run of the tests must show besides passed tests. A pytest plugin.

With NPYFS_CI set, a test that is skipped has failed, unless what it needs is something that a machine may lack: only the
reasons in MAY_LACK count, and each is printed with the number of tests it cost. This holds for the tests in Rust, too, which
print NOT TESTED: tests/run leaves what `cargo test --show-output` said in NPYFS_CARGO_LOG.

When all tests ran, each promise of the README is held against the tests that prove it (see promises.py)."""

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from . import promises

MAY_LACK = {
    r"needs root\b": "the machine may run the tests as a normal user",
    r"\.\./shared/fixtures\b.* is absent": "real files of other people, which are not in the repository",
    r"not their day\b": "packages are not made every day",
    r"this kernel\b": "the kernel may be older than what is tried",
}
CI = bool(os.environ.get("NPYFS_CI"))


def may_lack(reason):
    return any(re.match(pattern, reason) for pattern in MAY_LACK)


class Rust:
    """What `cargo test` said: {test: "ok", "FAILED" or "ignored"}, by binary and path as in `api::name`, and what was not tested."""

    def __init__(self, log):
        self.results, self.not_tested = {}, []
        binary = None
        for line in log.splitlines():
            if found := re.match(r" +Running (?:unittests )?(\S+)\.rs \(", line):
                binary = found[1].rpartition("/")[2]
            elif found := re.match(r" +Doc-tests ", line):
                binary = "doc"
            elif found := re.match(r"test (.+?)(?: - should panic)? \.\.\. (ok|FAILED|ignored)", line):
                self.results[f"{binary}::{found[1]}"] = found[2]
            elif found := re.search(r"NOT TESTED:? *(.*)", line):
                self.not_tested.append(found[1])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not may_lack(reason):
            report.outcome = "failed"
            report.longrepr = f"{item.location[0]}: skipped, which is a failure here (NPYFS_CI): {reason}"
    return report


class Verdict:
    """Of the process that was called."""

    def __init__(self, config):
        self.config = config
        self.results = {}  # {module.function: Counter of outcomes}
        self.skips = Counter()
        self.problems, self.notes = [], []

    def pytest_runtest_logreport(self, report):
        path, _, rest = report.nodeid.partition("::")
        name = f"{Path(path).stem}.{rest.partition('[')[0]}"
        if report.skipped:
            self.skips[report.longrepr[2].removeprefix("Skipped: ")] += 1
        if report.when == "call" or not report.passed:
            self.results.setdefault(name, Counter())[report.outcome] += 1

    def whole(self):
        """Whether the run was of all tests."""
        option = self.config.option
        return not (option.keyword or option.markexpr or option.deselect or option.ignore or option.collectonly) and \
            self.config.args_source is not pytest.Config.ArgsSource.ARGS

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        rust = None
        if log := os.environ.get("NPYFS_CARGO_LOG"):
            rust = Rust(Path(log).read_text(errors="replace"))
            for reason, count in Counter(rust.not_tested).items():
                if CI and not may_lack(reason):
                    self.problems.append(f"{count} tests in Rust did nothing, which is a failure here (NPYFS_CI): {reason}")
                self.skips[reason] += count
        if self.whole() and not session.shouldfail and not session.shouldstop:
            if rust:
                for name, result in rust.results.items():
                    self.results[name] = Counter({{"ok": "passed", "FAILED": "failed"}.get(result, "skipped"): 1})
            problems, self.notes = promises.judge(self.results, with_rust=rust is not None)
            self.problems += problems
        if self.problems and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if self.skips:
            terminalreporter.section("not tested here")
            for reason, count in sorted(self.skips.items()):
                why = next((why for pattern, why in MAY_LACK.items() if re.match(pattern, reason)), "NOT allowed in CI")
                terminalreporter.line(f"{count} x {reason} ({why})")
        if self.problems or self.notes:
            terminalreporter.section("the run as a whole")
            for problem in self.problems:
                terminalreporter.line(f"FAILED {problem}", red=True)
            for note in self.notes:
                terminalreporter.line(note)


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Verdict(config), "npyfs-verdict")
