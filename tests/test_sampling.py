"""Samples are what support/sampling.py says: the same for a seed, others for another one, never empty, whole when that is asked for, and counted.
Judges: Python's own sets, and git for what has changed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import sampling
from support.process import run
from support.sampling import GROUPS, Sample

HERE = Path(__file__).parent
REPOSITORY = HERE.parent


@pytest.fixture
def seeded(monkeypatch):
    """Sets the seed and the groups that are whole."""
    def set_to(seed, whole=()):
        monkeypatch.setattr(sampling, "SEED", seed)
        monkeypatch.setattr(sampling, "WHOLE", set(whole))
        monkeypatch.setattr(sampling, "SAMPLES", {})
        return Sample("test_x.py", "crash")
    return set_to


@pytest.mark.fast
def test_a_sample_is_that_of_its_seed(seeded):
    days = [seeded(day).choose(range(100), 10) for day in range(50)]
    assert days == [seeded(day).choose(range(100), 10) for day in range(50)]
    assert all(day == sorted(day) and len(set(day)) == 10 for day in days)
    assert set().union(*days) > set(range(90)), "in time everything is tried"
    assert seeded(1).choose(range(100), 10, of="one") != seeded(1).choose(range(100), 10, of="another")


@pytest.mark.fast
@pytest.mark.parametrize("whole", ["all", "crash"])
def test_everything_is_tried_when_that_is_asked_for(seeded, whole):
    assert seeded(1, [whole]).choose("abc", 1) == ["a", "b", "c"] and sampling.SAMPLES == {("test_x", "cases"): (3, 3)}
    assert seeded(1, ["fault"]).count(3, 20) == 3


@pytest.mark.fast
def test_what_is_left_out_is_counted(seeded):
    sample = seeded(1)
    sample.choose("abc", 1, of="letters")
    sample.choose("12345", 2, of="digits")
    sample.count(2, 20)
    assert sampling.SAMPLES == {("test_x", "cases"): (3, 8), ("test_x", "rounds"): (2, 20)}
    with pytest.raises(AssertionError):
        sample.choose("abc", 0)


TESTS = """
import pytest
from support.sampling import Sample

ROUNDS = Sample(__file__, "crash").count(2, 9)

@pytest.mark.sample("sweep", 2)
@pytest.mark.parametrize("case", range(6))
def test_cases(case):
    pass

@pytest.mark.sample("page", 1, together=True)
def test_one():
    pass

@pytest.mark.sample("page", 1, together=True)
def test_another():
    pass
"""


SAID = ["test_x: 2 of 6 cases of test_cases", "test_x: 2 of 9 rounds", "test_x: 1 of 2 tests"]


@pytest.mark.parametrize("whole, passed, said, jobs", [("", 3, SAID, 0), ("", 3, SAID, 2), ("sweep", 7, SAID[1:], 0), ("all", 8, [], 2)])
def test_a_run_says_what_it_leaves_out(tmp_path, whole, passed, said, jobs):
    (tmp_path / "test_x.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text((HERE / "pytest.ini").read_text())
    env = {**os.environ, "PYTHONPATH": str(HERE), "NPYFS_SEED": "7", "NPYFS_ALL": whole, "PYTEST_ADDOPTS": "", "NPYFS_CARGO_LOG": ""}
    env.pop("PYTEST_XDIST_WORKER", None)
    done = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "support.sampling", *(["-n", str(jobs)] if jobs else [])],
               cwd=tmp_path, env=env)
    assert done.returncode == 0 and re.search(rf"^{passed} passed", done.stdout, re.M), done
    assert sorted(re.findall(r"^test_x: .*", done.stdout, re.M)) == sorted(said)
    assert ("NPYFS_SEED=7 tries these again" in done.stdout) is bool(said)


MORE = """
import pytest

@pytest.mark.parametrize("case", range(9))
def test_cases(case):
    pass

@pytest.mark.fast
def test_telling():
    pass

@pytest.mark.sample("sweep", 2)
@pytest.mark.parametrize("case", range(3))
def test_sampled(case):
    pass
"""


def test_of_areas_that_nothing_touched_every_second_test_is_tried(tmp_path):
    def tried(seed, areas, jobs=0):
        env = {**os.environ, "PYTHONPATH": str(HERE), "NPYFS_SEED": str(seed), "NPYFS_ALL": "", "PYTEST_ADDOPTS": "", "NPYFS_CARGO_LOG": ""}
        env |= {} if areas is None else {"NPYFS_AREAS": areas}
        env.pop("PYTEST_XDIST_WORKER", None)
        done = run([sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "support.sampling", *(["-n", str(jobs)] if jobs else [])],
                   cwd=tmp_path, env=env)
        assert done.returncode == 0, done
        said = dict(re.findall(r"^(test_\w+): (\d+) of 9 tests$", done.stdout, re.M))
        ran = set(re.findall(r"test_\w+\.py::\S+(?= PASSED)|(?<=PASSED )test_\w+\.py::\S+", done.stdout))
        return said, {name: {test for test in ran if test.startswith(f"{name}.py::test_cases")} for name in ("test_remote_x", "test_x")}, len(ran)

    for name in ("test_x", "test_remote_x"):
        (tmp_path / f"{name}.py").write_text(MORE)
    (tmp_path / "pytest.ini").write_text((HERE / "pytest.ini").read_text())
    for areas in (None, "base remote", "test_x test_remote_x"):
        said, ran, count = tried(1, areas)
        assert not said and all(len(tests) == 9 for tests in ran.values()) and count == 24
    said, first, count = tried(1, "base", jobs=2)
    assert said.keys() == {"test_remote_x"} and len(first["test_x"]) == 9 and count == 15 + len(first["test_remote_x"])
    # On two days in a row everything.
    said, second, _ = tried(2, "")
    assert said == {name: str(len(tests)) for name, tests in second.items()}
    assert len(first["test_remote_x"] | second["test_remote_x"]) == 9 and not first["test_remote_x"] & second["test_remote_x"]


@pytest.mark.fast
def test_every_test_file_is_of_an_area_and_every_beginning_of_one():
    names = [path.stem.removeprefix("test_") for path in HERE.glob("test_*.py")]
    for area, (paths, beginnings) in sampling.AREAS.items():
        for beginning in beginnings:
            assert any(name.startswith(beginning) for name in names), f"{area}: no test file begins with test_{beginning}"
        for path in paths:
            assert list(REPOSITORY.glob(f"{path}*")), f"{area}: nothing begins with {path}"
    assert {area for name in names for area in sampling.areas_of(f"test_{name}")} == {sampling.BASE, *sampling.AREAS}


def test_what_is_named_is_tried(tmp_path):
    (tmp_path / "test_x.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text((HERE / "pytest.ini").read_text())
    env = {**os.environ, "PYTHONPATH": str(HERE), "NPYFS_ALL": "", "NPYFS_CARGO_LOG": ""}
    done = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "support.sampling", *(f"test_x.py::test_cases[{n}]" for n in range(6))],
               cwd=tmp_path, env=env)
    assert "6 passed" in done.stdout, done


def changed(commit, cwd):
    return run([sys.executable, HERE / "support/sampling.py", commit], cwd=cwd)


def test_a_group_is_tried_whole_when_its_code_or_its_tests_have_changed(tmp_path):
    def git(*arguments):
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@x", *arguments], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)

    def commit(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
        git("add", "-A")
        git("commit", "-qm", path)

    git("init", "-q")
    commit("README", "nothing")
    commit("src/cli/setup/install_root.rs", "code")
    commit("tests/test_x.py", TESTS)
    commit("src/main.rs", "code")
    every = " ".join(sorted([sampling.BASE, *sampling.AREAS]))
    for back, groups, areas in [(1, "", every), (2, "crash page sweep", f"{every} test_x"), (3, "crash package page sweep", f"{every} test_x")]:
        done = changed(f"HEAD~{back}", tmp_path)
        assert done.returncode == 0, done
        assert [line.split() for line in done.stdout.splitlines()] == [groups.split(), sorted(areas.split())], done
    commit("crates/core/src/checkout/layer.rs", "code\n")
    commit("crates/core/src/checkout/layer.rs", "    //! A reason.\ncode\n")
    for back, groups, areas in [(1, "", ""), (2, "crash fault", "checkouts")]:
        assert changed(f"HEAD~{back}", tmp_path).stdout == f"{groups}\n{areas}\n"
    commit("docs/remote.md", "words\n")
    commit("benches/x.py", "code\n")
    assert changed("HEAD~2", tmp_path).stdout == "page\npages\n"
    assert changed("0123456789abcdef", tmp_path).returncode == 1


@pytest.mark.fast
def test_the_table_names_what_there_is():
    for beginnings in GROUPS.values():
        for beginning in beginnings:
            folder, _, name = beginning.rpartition("/")
            there = (REPOSITORY / folder).is_dir() and any(path.name.startswith(name) for path in (REPOSITORY / folder).iterdir())
            assert there, f"nothing begins with {beginning}"
