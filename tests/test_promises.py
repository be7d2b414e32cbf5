"""Every promise of the README has tests: the table in support/promises.py quotes the sentences and names the tests that prove
them, as docs/promises.md does. Judge: the README itself, so that a promise that is reworded or added fails here. That the named tests ran and passed is
seen when the run ends (support/verdict.py); that this would be noticed is tried here."""

import pytest

from support.promises import PROMISES, explained, judge, promises

pytestmark = pytest.mark.fast

TABLE = {"kept": ["test_a.one", "lib::two"]}


def test_the_readme_makes_exactly_these_promises():
    made = promises()
    assert len(made) == len(PROMISES)
    for promise, said in zip(PROMISES, made):
        assert said.startswith(promise)


def test_the_page_of_promises_quotes_them_with_their_tests():
    assert explained() == list(PROMISES.items())


def test_a_promise_is_kept_by_tests_that_passed():
    assert judge({"test_a.one": {"passed": 3, "skipped": 1}, "lib::two": {"passed": 1}}, TABLE) == ([], [])
    problems, notes = judge({"test_a.one": {"passed": 1}, "lib::two": {"skipped": 1}}, TABLE)
    assert not problems and "lib::two was skipped" in notes[0]


def test_a_promise_is_broken_by_tests_that_failed_or_did_not_run():
    for results, said in [({"test_a.one": {"passed": 1}}, "lib::two did not run"),
                          ({"test_a.one": {"passed": 5, "failed": 1}, "lib::two": {"passed": 1}}, "test_a.one failed"),
                          ({"test_a.one": {"skipped": 1}, "lib::two": {"skipped": 2}}, "nothing that proves it passed"),
                          ({"test_a.one": {}, "lib::two": {"passed": 1}}, "test_a.one did not run")]:
        problems, _ = judge(results, TABLE)
        assert len(problems) == 1 and said in problems[0]
