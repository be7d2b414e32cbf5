"""A mount that lives as long as a `with` block.

The program mounts in the background. What ends the block, an exception and Ctrl-C included, unmounts; a mount that is
forgotten ends with the interpreter. A Python that is killed leaves its mount, which `npyfs status` lists.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NoReturn, Optional, Type

from . import _store
from ._program import Error, call, flag_arguments, option_arguments, parse_lines

if TYPE_CHECKING:
    from types import TracebackType

    from ._program import Commit, OptionValue, Text

    PathBase = os.PathLike[str]
else:
    PathBase = os.PathLike

# The reasons that an exception is given at most.
MOST_REASONS = 3

# The seconds that the process of a detached mount may take to end before a commit.
PATIENCE = 2.0


class Mount(PathBase):
    """Mounts a store, and is the mount: `with npyfs.mount("cells.h5df") as m: np.load(m / "cell#age.npy")`. `m.path` is its root.

    `store` is a path or an address. `point` is an empty directory; without one the mount has a temporary directory of
    its own. `checkout` makes it writable, `checkouts` is the directory of the checkouts, and `at` shows the store as it
    was after a commit. Other keywords are options of mounts by their names, such as `keep="4G"`, `view="zarr"`,
    `join="time"`, `follow=1` and `xattrs=True`.

    Raises `Error` if the store cannot be opened or mounted.
    """

    def __init__(
        self,
        store: Text,
        point: Optional[Text] = None,
        *,
        checkout: Optional[str] = None,
        checkouts: Optional[Text] = None,
        at: Optional[Commit] = None,
        read_only: bool = False,
        **options: OptionValue,
    ) -> None:
        store = os.fspath(store)
        # It still means the same after a change of directory.
        self.store = store if "://" in store else os.path.abspath(store)
        self.checkout = checkout
        self._checkouts = checkouts if checkouts is None or "://" in os.fspath(checkouts) else os.path.abspath(checkouts)
        flags = flag_arguments(checkout=checkout, checkouts=self._checkouts, at=at)
        arguments = [*flags, *option_arguments({**options, "ro": True} if read_only else options)]
        is_own = point is None
        self.path = Path(os.path.realpath(tempfile.mkdtemp(prefix="npyfs-") if point is None else point))
        self._log: List[Dict[str, Any]] = []
        # Who uses a mount that was detached.
        self._users: Optional[str] = None
        try:
            done = call("mount", *arguments, "--", self.store, self.path)
        except BaseException:
            # The mount may have come to be before the call was interrupted.
            clear(os.getpid(), self.path, is_own)
            raise
        if done.returncode:
            remove(self.path, is_own)
        done.checked()
        self._is_own = is_own
        self._finalizer = weakref.finalize(self, clear, os.getpid(), self.path, is_own)
        for line in done.message.splitlines():
            warnings.warn(line, RuntimeWarning, stacklevel=2)
        self._status: Dict[str, Any] = self._state() or {"pid": None}

    def __fspath__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: Text) -> Path:
        return self.path / name

    def __repr__(self) -> str:
        state = "" if self._finalizer.alive else ", unmounted"
        return f"<npyfs.Mount of {self.store!r} at {str(self.path)!r}{state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a mount belongs to the process that made it: hand paths on, such as m.path")

    def __enter__(self) -> Mount:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        if isinstance(error, Exception):
            # The log is gone with the mount.
            explain(error, self.path, self.errors())
        if error is None:
            self._unmount(warn)
            return
        try:
            self._unmount(lambda line: note(error, line))
        except Error as problem:
            note(error, str(problem))

    def errors(self) -> List[Dict[str, Any]]:
        """Returns the log of the mount, the latest last: what it refused and why, also after it ended.

        The keys are those of `npyfs log --json`: "message", "time", "count", and where a program asked for something
        "path", "operation" and "errno".
        """
        if not self._finalizer.alive:
            return self._log
        done = call("log", "--json", "--", self.path)
        if done.returncode:
            return self._log
        lines: List[Dict[str, Any]] = []
        for line in parse_lines(done.output):
            # The log of a mount that is gone begins with a line about it, and those of earlier ones are before that.
            lines = [] if "mounted_at" in line else [*lines, line]
        return lines

    def unmount(self, *, lazy: bool = False) -> None:
        """Unmounts, after everything that was written is stored. Does nothing if that was done before.

        A mount that programs still use, this one included, is detached: arrays that are mapped and files that are open
        stay readable, and the process of the mount ends when the last of them is closed. A ResourceWarning says who
        uses it. With `lazy` it is detached even if what was written cannot be stored.

        Raises `Error` if what was written cannot be stored (the mount stays), did not become arrays, or if the mount
        ended before.
        """
        self._unmount(warn, lazy)

    def _unmount(self, tell: Callable[[str], None], lazy: bool = False) -> None:
        """Unmounts, and passes on what the program said although it succeeded."""
        if not self._finalizer.alive:
            return
        state = self._state()
        self._log = self.errors()
        if state is None:
            self._finalizer.detach()
            left = "" if remove(self.path, self._is_own) else f"; what was written since is in {self.path}"
            raise Error(f"{self.path}: the mount has ended before it was unmounted here{left}")
        done = call("umount", *(["--lazy"] if lazy else []), "--", self.path)
        if done.returncode == 32 and " is busy: " in done.message:
            self._users = done.message.partition(" is busy: ")[2].partition(" (npyfs umount")[0]
            done = call("umount", "--lazy", "--", self.path)
            if done.returncode != 32:
                warnings.warn(f"{self.path} is detached, and ends when it is not used any more: {self._users}", ResourceWarning, stacklevel=3)
        if done.returncode == 32:
            done.checked()
        # Unmounted, whatever is to be said of it.
        self._finalizer.detach()
        remove(self.path, self._is_own)
        done.checked()
        for line in done.message.splitlines():
            tell(line)
        if state["state"] == "dead":
            raise Error(f"{self.path}: the process of the mount was gone before it was unmounted")

    def commit(self, message: Optional[str] = None, *, ours: bool = False, theirs: bool = False, leave_out: bool = False) -> str:
        """Commits the checkout that the mount wrote. Returns what the program says: the number and id of the commit.

        Raises `Error` if nothing was committed: for a conflict, or because the mount or another one is writing in the
        checkout.
        """
        name = self._name()
        self._wait_for_end()
        try:
            return _store.commit(
                self.store, name, message, checkouts=self._checkouts, ours=ours, theirs=theirs, leave_out=leave_out
            )
        except Error as error:
            if self._users is None or not self._is_running():
                raise
            raise Error(f"{error}; it was detached while in use: {self._users}", error.returncode) from None

    def diff(self) -> List[Dict[str, Any]]:
        """Returns what the checkout changes: see `npyfs.diff`."""
        if self._finalizer.alive:
            # Small arrays may still be in the memory of the mount.
            call("checkout", "sync", "--", self.path).checked()
        return _store.diff(self.store, self._name(), checkouts=self._checkouts)

    def log(self) -> List[Dict[str, Any]]:
        """Returns the commits of the store, the newest first: see `npyfs.log`."""
        return _store.log(self.store, checkouts=self._checkouts)

    def _name(self) -> Optional[str]:
        """Returns the name of the checkout, or None for a Hangar repository, which has a staging area."""
        if self.checkout is None:
            raise Error(f"{self.path} was mounted without checkout=")
        return None if _store.info(self.store).get("kind") == "hangar" else self.checkout

    def _is_running(self) -> bool:
        """Returns whether the process of the mount is there."""
        try:
            return Path(f"/proc/{self._status['pid']}/comm").read_text() == "npyfs\n"
        except OSError:
            return False

    def _wait_for_end(self) -> None:
        """Waits a moment for the process of a mount that was detached: it ends after its last file is closed."""
        deadline = time.monotonic() + PATIENCE
        while self._users is not None and self._is_running() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _state(self) -> Optional[Dict[str, Any]]:
        """Returns what the program knows of the mount; None if it has ended, whatever is mounted there now."""
        try:
            [status] = _store.status(self.path)
        except Error:
            return None
        first = getattr(self, "_status", status)
        is_other = None not in (status["pid"], first["pid"]) and status["pid"] != first["pid"]
        return None if is_other else status


def clear(process: int, point: Path, is_own: bool) -> None:
    """Takes a mount away, whatever is said of it. Does nothing in children of the process that mounted."""
    if os.getpid() != process:
        return
    with contextlib.suppress(Error, OSError):
        if call("umount", "--", point).returncode == 32:
            call("umount", "--lazy", "--", point)
    remove(point, is_own)


def remove(point: Path, is_own: bool) -> bool:
    """Removes a directory that was made for a mount. Returns False if something is in it."""
    if is_own:
        try:
            os.rmdir(point)
        except FileNotFoundError:
            pass
        except OSError:
            return False
    return True


def warn(line: str) -> None:
    """Passes on what the program says although it succeeds, as of the line of the caller's caller's caller."""
    warnings.warn(line, RuntimeWarning, stacklevel=4)


def explain(error: Exception, point: Path, lines: List[Dict[str, Any]]) -> None:
    """Adds to an error what the log says of it: the latest refusals with its errno, of its file if it names one."""
    refusals = [line for line in lines if "errno" in line]
    if isinstance(error, OSError) and error.errno is not None:
        refusals = [line for line in refusals if line["errno"] == error.errno][-1:]
        if isinstance(error.filename, str):
            named = os.path.relpath(error.filename, point)
            refusals = [line for line in lines if line.get("path") == named and line["errno"] == error.errno][-1:]
    for line in refusals[-MOST_REASONS:]:
        note(error, line["message"])


def note(error: BaseException, text: str) -> None:
    """Adds a line to an error. Tracebacks show it from Python 3.11 on; before, it is a warning as well."""
    text = f"npyfs: {text}"
    # The program says refusals again when it unmounts, with their times.
    if any(said[len("npyfs: ") :] in text for said in getattr(error, "__notes__", [])):
        return
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:
        error.__dict__.setdefault("__notes__", []).append(text)
        warnings.warn(text, RuntimeWarning, stacklevel=4)
