"""Stores without a mount: what is in them, what is committed, and which mounts there are.

Everything is read by the program; where a store lies makes no difference.
"""

from __future__ import annotations

import io
import os
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from ._program import Error, flag_arguments, option_arguments, program, run, run_json, said

if TYPE_CHECKING:
    import numpy

    from ._program import Commit, OptionValue, Text

# What the names of files in a mount end in; the name of an array alone means its .npy file.
SUFFIXES = (".npy", ".npz", ".txt", ".bin", ".keys", ".json")


class Stream:
    """What the program writes, for NumPy, which takes a real file for one that it can seek in."""

    def __init__(self, source: Any) -> None:
        self.read = source.read


class Item:
    """A file of a store, as a mount would show it. Made by `open`; nothing is read before it is asked for."""

    def __init__(self, store: Text, path: str, arguments: List[str]) -> None:
        self.store = os.fspath(store)
        self.path = path if path.endswith(SUFFIXES) else f"{path}.npy"
        self._name = path
        self._arguments = arguments

    def __repr__(self) -> str:
        return f"<npyfs.Item {self.path!r} of {self.store!r}>"

    def read(self) -> numpy.ndarray[Any, Any]:
        """Returns the array. Needs NumPy.

        Raises `Error` if it cannot be read to its end, or is no .npy file.
        """
        if not self.path.endswith(".npy"):
            raise Error(f"{self.path} is no .npy file: bytes() returns what is in it")
        from numpy.lib import format as npy

        array: numpy.ndarray[Any, Any] = self._streamed(lambda source: npy.read_array(Stream(source), allow_pickle=False))
        return array

    def bytes(self) -> bytes:
        """Returns the bytes of the file: those that `np.save` writes, if it is an array.

        Raises `Error` if they cannot be read to their end.
        """
        content: bytes = self._streamed(lambda source: source.read())
        return content

    def info(self) -> Dict[str, Any]:
        """Returns all that is known of it: "dtype", "shape" in elements, "attributes", "chunks", ... as `npyfs info --json`."""
        try:
            return info(self.store, self.path, _arguments=self._arguments)
        except Error as error:
            raise self._explained(error) from None

    def _explained(self, error: Error) -> Error:
        """Returns the error, or another one if the name is that of a directory."""
        if self.path == self._name or not self._name:
            return error
        try:
            info(self.store, self._name, _arguments=self._arguments)
        except Error:
            return error
        return Error(f"{self._name} is a group: npyfs.ls lists what is in it", error.returncode)

    def _streamed(self, take: Any) -> Any:
        """Returns what `take` makes of the program's output."""
        problem: Optional[Exception] = None
        command = [program(), "cat", *self._arguments, "--", self.store, self.path]
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
            assert process.stdout is not None
            with process.stdout as source:
                try:
                    taken = take(source)
                    if source.read(1):
                        problem = Error(f"{self.path}: more than one file has such a name")
                except ValueError as error:
                    # An array that ends early; the program says why.
                    taken, problem = None, error
                except BaseException:
                    process.kill()
                    process.wait()
                    raise
            # If too much was written, the program finds the pipe closed.
            returncode = process.wait()
            if returncode:
                raise self._explained(Error(said(errors) or f"npyfs cat ended with exit code {returncode}", returncode))
            if problem is not None:
                raise problem
            return taken


def open(
    store: Text,
    path: str,
    *,
    checkout: Optional[str] = None,
    checkouts: Optional[Text] = None,
    at: Optional[Commit] = None,
    **options: OptionValue,
) -> Item:
    """Returns a file of a store without mounting it: `npyfs.open("s3://bucket/x.h5", "a/b").read()`.

    `store` is a path or an address, `path` the name that a mount shows, with or without `.npy`. `checkout` shows the
    store with a checkout on top, `at` as it was after a commit; other keywords are the options of mounts that `npyfs
    cat` takes, such as `sep`, `kind` and `external`.
    """
    arguments = [*flag_arguments(checkout=checkout, checkouts=checkouts, at=at), *option_arguments(options)]
    return Item(store, path, arguments)


def info(store: Text, path: str = "", *, _arguments: Optional[List[str]] = None) -> Dict[str, Any]:
    """Returns all that is known of a store, or of something in it, as `npyfs info --json`. Raises `Error` if it is not there."""
    known: Dict[str, Any] = run_json("info", "--json", *(_arguments or []), "--", store, *([path] if path else []))
    return known


def ls(store: Text, path: str = "") -> List[Dict[str, Any]]:
    """Returns the entries of a store or of a directory in it: "name", "kind", "size" in bytes, "time", as `npyfs ls --json`."""
    entries: List[Dict[str, Any]] = run_json("ls", "--json", "--", store, *([path] if path else []))
    return entries


def status(*mount_points: Text) -> List[Dict[str, Any]]:
    """Returns the mounts of this user (of all, as root), or those at these mount points, as `npyfs status --json`."""
    mounts: List[Dict[str, Any]] = run_json("status", "--json", "--", *mount_points)
    return mounts


def log(store: Text, until: Optional[Commit] = None, *, checkouts: Optional[Text] = None) -> List[Dict[str, Any]]:
    """Returns the commits of a store, the newest first: "id", "number", "message", ... as `npyfs checkout log --json`.

    `until` is the first that is listed: a number, the first digits of an id, HEAD, HEAD~1.
    """
    words = [store] if until is None else [store, str(until)]
    commits: List[Dict[str, Any]] = run_json("checkout", "log", "--json", *flag_arguments(checkouts=checkouts), "--", *words)
    return commits


def diff(store: Text, checkout: Optional[str] = None, *, checkouts: Optional[Text] = None) -> List[Dict[str, Any]]:
    """Returns what a checkout changes: "change" (added, modified or deleted), "name" and "description" of each object.

    Without a name it is the only checkout that is not committed.
    """
    words = [store] if checkout is None else [store, checkout]
    found = run_json("checkout", "diff", "--json", *flag_arguments(checkouts=checkouts), "--", *words)
    changes: List[Dict[str, Any]] = found["changes"]
    return changes


def commit(
    store: Text,
    checkout: Optional[str],
    message: Optional[str] = None,
    *,
    checkouts: Optional[Text] = None,
    ours: bool = False,
    theirs: bool = False,
    leave_out: bool = False,
) -> str:
    """Commits a checkout, or with None what is staged in a Hangar repository. Returns what the program says of it.

    `ours` and `theirs` decide conflicts with other commits; `leave_out` does without objects that are not complete.
    Raises `Error` if nothing was committed, such as for a conflict or a checkout that is mounted.
    """
    sides = [("--ours", ours), ("--theirs", theirs), ("--leave-out", leave_out)]
    flags = [*flag_arguments(message=message, checkouts=checkouts), *(flag for flag, is_set in sides if is_set)]
    return run("checkout", "commit", *flags, "--", store, *([checkout] if checkout is not None else [])).strip()
