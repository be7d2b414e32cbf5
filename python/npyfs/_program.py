"""The program npyfs: where it is, how it is run, what its failures are called. Never reads stores itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
import tempfile
from typing import IO, TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Union

if TYPE_CHECKING:
    Text = Union[str, os.PathLike[str]]
    OptionValue = Union[str, int, os.PathLike[str], None]
    # A number, the first digits of an id, HEAD, HEAD~1.
    Commit = Union[str, int]


class Error(RuntimeError):
    """What the program refused, in its own words, which name the file, the object and the reason.

    `returncode` is the exit code of the program, or None if it did not run.
    """

    def __init__(self, message: str, returncode: Optional[int] = None) -> None:
        super().__init__(message)
        self.returncode = returncode


def program() -> str:
    """Returns the path of the program: $NPYFS_BIN, or beside this Python, or on PATH.

    Raises `Error` if it is nowhere.
    """
    named = os.environ.get("NPYFS_BIN")
    if named:
        if not os.access(named, os.X_OK):
            raise Error(f"NPYFS_BIN names no program: {named}")
        return os.path.abspath(named)
    schemes = [sysconfig.get_path("scripts")]
    if "posix_user" in sysconfig.get_scheme_names():
        # pip install --user
        schemes.append(sysconfig.get_path("scripts", "posix_user"))
    for scripts in schemes:
        path = os.path.join(scripts, "npyfs")
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("npyfs")
    if found is None:
        raise Error(f"the program npyfs is neither in {' nor in '.join(schemes)} nor on PATH, and NPYFS_BIN does not name it")
    return os.path.abspath(found)


class Done(NamedTuple):
    """A run of the program that has ended."""

    returncode: int
    output: str
    # The lines on standard error, without the program's name.
    message: str

    def checked(self) -> Done:
        """Returns itself. Raises `Error` if the program failed."""
        if self.returncode:
            raise Error(self.message or f"npyfs ended with exit code {self.returncode}", self.returncode)
        return self


def said(stream: IO[bytes]) -> str:
    """Returns what the program wrote on standard error, without its name in front of the lines."""
    stream.seek(0)
    lines = stream.read().decode("utf-8", "replace").splitlines()
    return "\n".join(line[len("npyfs: ") :] if line.startswith("npyfs: ") else line for line in lines)


def call(*arguments: Text) -> Done:
    """Runs the program to its end, away from the terminal's signals: Ctrl-C is for Python, which ends the program."""
    # In files: a process in the background may inherit a pipe and keep it open.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [program(), *(os.fspath(argument) for argument in arguments)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        try:
            returncode = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        output.seek(0)
        return Done(returncode, output.read().decode("utf-8", "surrogateescape"), said(errors))


def run(*arguments: Text) -> str:
    """Runs `npyfs ARGUMENTS`, and returns what it prints.

    Raises `Error` if it fails.
    """
    return call(*arguments).checked().output


def run_json(*arguments: Text) -> Any:
    """Runs a command that prints one JSON value, and returns the value."""
    return json.loads(run(*arguments))


def parse_lines(text: str) -> List[Dict[str, Any]]:
    """Returns the JSON values of lines."""
    return [json.loads(line) for line in text.splitlines()]


def option_arguments(options: Dict[str, OptionValue]) -> List[str]:
    """Returns the arguments of options of a mount. True is an option without a value; None and False leave one out."""
    arguments = []
    for name, value in options.items():
        if value is True:
            arguments.append(f"-o{name}")
        elif value is not None and value is not False:
            text = value if isinstance(value, (str, int)) else os.fspath(value)
            escaped = str(text).replace("\\", "\\\\").replace(",", "\\,")
            arguments.append(f"-o{name}={escaped}")
    return arguments


def flag_arguments(**flags: Union[Text, int, None]) -> List[str]:
    """Returns the arguments `--NAME=VALUE` of all flags that have a value."""
    texts = {name: value if isinstance(value, int) else os.fspath(value) for name, value in flags.items() if value is not None}
    return [f"--{name}={text}" for name, text in texts.items()]


def version() -> str:
    """Returns the version of the program."""
    return run("--version").split()[-1]
