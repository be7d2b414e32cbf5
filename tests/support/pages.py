"""Tests that count what npyfs does for one reading, on a kernel that may throw pages away and ask for them again."""

import functools
import time

TRIES = 4


class Miscounted(AssertionError):
    """A number is not what one reading takes: nothing else may be tried again."""


def counted(holds, *shown):
    """Asserts what only holds if each page was asked for once; `shown` are the numbers."""
    if not holds:
        raise Miscounted(shown)


def refaults():
    """Pages of files that were read again after the kernel had reclaimed them, on this machine since it started."""
    # Each processor adds what it counted once a second.
    time.sleep(2.5)
    with open("/proc/vmstat") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("workingset_refault_file "))


def counting(test):
    """Repeats a test that miscounted while the kernel asked for reclaimed pages again, a few times. Any other failure, of
    bytes or of memory above all, is final."""

    @functools.wraps(test)
    def repeated(*arguments, **keywords):
        for left in reversed(range(TRIES)):
            before = refaults()
            try:
                return test(*arguments, **keywords)
            except Miscounted as failure:
                again = refaults() - before
                if not again or not left:
                    raise
                print(f"tried again: the kernel had to read {again} reclaimed pages meanwhile: {failure.args[0]}")

    return repeated
