"""README and the pages in docs: their fenced blocks, run as a reader would run them, and their links.

A page runs from top to bottom in one shell, in a directory of its own that `npyfs demo` has filled. What follows the language
of a block decides how:

    ```console               commands behind "$ " ("> " goes on with one); the lines below are what a terminal shows,
                             where "..." stands for what varies, alone on a line for any number of lines
    ```sh, ```python         programs that must succeed
    ```makefile NAME         a file NAME, which the blocks below find
    ```python hangar         for the Python that has Hangar installed
    ```sh not-run: REASON    not run; the reason is the test's to list

Blocks without a language are pictures, other languages are text."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .mount import clear, mounts, until
from .process import NPYFS, npyfs, run

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name != "checkout-format.md")]
WIDTH = 100
README_LINES = 150
RUN = ("console", "sh", "python")
HANGAR = os.environ.get("NPYFS_HANGAR_PYTHON", "")

# What a terminal has and a pipe has not: ls in columns, with names quoted. Options behind these win.
PRELUDE = """
ls() {
    if [ -p /dev/stdout ]; then command ls "$@"; else command ls -C -T 0 -w 80 --color=never --quoting-style=shell-escape "$@"; fi
}
sudo() { echo 'sudo is not for blocks that run' >&2; return 1; }
"""


@dataclass
class Block:
    line: int
    language: str
    note: str
    body: list

    @property
    def reason(self):
        """Why it is not run, or None."""
        return self.note.removeprefix("not-run:").strip() if self.note.startswith("not-run:") else None

    def commands(self):
        """[(command, what it prints)] of a console block."""
        found = []
        for line in self.body:
            if line.startswith("$ "):
                found.append(([line[2:]], []))
            elif line.startswith("> ") and found and not found[-1][1]:
                found[-1][0].append(line[2:])
            else:
                assert found, f"line {self.line}: a console block begins with a command"
                found[-1][1].append(line)
        return [("\n".join(command), printed) for command, printed in found]


def blocks(text):
    """The fenced blocks of a page. Those in lists are indented."""
    found, opened = [], None
    for number, line in enumerate(text.splitlines(), 1):
        fence = re.match(r"( *)```(.*)$", line)
        if fence and opened is None:
            language, _, note = fence[2].strip().partition(" ")
            opened = (len(fence[1]), Block(number, language, note.strip(), []))
        elif fence:
            found.append(opened[1])
            opened = None
        elif opened:
            indent, block = opened
            block.body.append(line[indent:] if line[:indent].isspace() or not indent else line)
    assert opened is None, f"line {opened[1].line}: a block has no end"
    return found


def prose(text):
    """The page with its blocks left blank: the lines keep their numbers."""
    lines, inside = [], False
    for line in text.splitlines():
        is_fence = line.lstrip().startswith("```")
        lines.append("" if inside or is_fence else line)
        inside ^= is_fence
    return lines


def anchors(text):
    """What a link to a heading of the page may name, by GitHub's rules."""
    found = []
    for line in prose(text):
        if heading := re.match(r"#+ +(.*?)(?: +#+)?$", line):
            words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            again = sum(1 for other in found if re.fullmatch(re.escape(anchor) + r"(-\d+)?", other))
            found.append(f"{anchor}-{again}" if again else anchor)
    return found


def links(text):
    """[(line, target)] of inline links and of definitions."""
    found = []
    for number, line in enumerate(prose(text), 1):
        plain = re.sub(r"`[^`]*`", "", line)
        targets = re.findall(r"\]\(([^)\s]+)\)", plain) + re.findall(r"^\[[^]]+\]: +(\S+)", plain)
        found += [(number, target) for target in targets]
    return found


def broken_links(page, text=None):
    """The links of a page that lead to no file of the repository, or to no heading of one."""
    text = page.read_text() if text is None else text
    problems = []
    for number, target in links(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        leads_to = (page.parent / path).resolve() if path else page
        if leads_to != page and not leads_to.exists():
            problems.append(f"{page.name}:{number}: {target}: no such file")
        elif heading and heading not in anchors(text if leads_to == page else leads_to.read_text()):
            problems.append(f"{page.name}:{number}: {target}: no such heading")
    return problems


def pattern(printed):
    """The regular expression of an output."""
    def of(line):
        return ".*".join(re.escape(part) for part in line.split("..."))
    return "".join(r"(?:.*\n)*?" if line == "..." else of(line) + r"\n" for line in printed)


def script(page_blocks, folder):
    """What bash is to run, and [(line, command, what it prints, or None for anything)]."""
    lines, expected = [PRELUDE], []

    def add(line, shown, command, printed):
        lines.append(f"{{ {command}\n}} 2>&1\nprintf '\\n\\001%d %d\\002\\n' {len(expected)} $?")
        expected.append((line, shown, printed))

    for block in page_blocks:
        text = "\n".join(block.body) + "\n"
        if block.reason is not None:
            continue
        if block.language == "console":
            for command, printed in block.commands():
                add(block.line, command, command, printed)
        elif block.language == "sh":
            lines.append("set -e")
            add(block.line, text, text, None)
            lines.append("set +e")
        elif block.language == "python":
            (folder / f".block{block.line}.py").write_text(text)
            python = HANGAR if block.note == "hangar" else "python3"
            add(block.line, text, f'{python} "{folder}/.block{block.line}.py"', None)
        elif block.note:
            (folder / block.note).write_text(text)
    return "\n".join(lines), expected


def judge(said, expected):
    """What is wrong with what bash printed."""
    parts = re.split(r"\n\x01(\d+) (\d+)\x02\n", said)
    results = {int(number): (output, int(code)) for output, number, code in zip(parts[0::3], parts[1::3], parts[2::3])}
    problems = []
    for number, (line, command, printed) in enumerate(expected):
        if number not in results:
            problems.append(f"line {line}: did not run to its end: {command}\n{parts[-1]}")
            break
        output, code = results[number]
        output += "\n" if output and not output.endswith("\n") else ""
        if printed is None:
            if code:
                problems.append(f"line {line}: exit code {code} of\n{command}\n{output}")
        elif not re.fullmatch(pattern(printed), output):
            wanted = "\n".join(printed)
            problems.append(f"line {line}: $ {command}\nprints (exit code {code})\n{output}\nand the page says\n{wanted}\n")
        elif code and not output:
            problems.append(f"line {line}: $ {command}\nfails with exit code {code} and says nothing")
    return problems


@contextlib.contextmanager
def guarded(folder, limit):
    """Clears every mount below `folder`, and ends the processes that serve them, when the block ends, or after `limit` seconds
    whatever happens to this process. Yields the variable that marks them, for their environment."""
    mark = f"NPYFS_PAGE={os.getpid()}-{folder}"
    guard = subprocess.Popen([sys.executable, "-m", "support.documents", str(limit), mark, folder], cwd=ROOT / "tests",
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        yield mark.partition("=")
        with contextlib.suppress(AssertionError):
            until(lambda: below(folder) or not marked(mark), "the daemons", 10)
    finally:
        os.killpg(guard.pid, signal.SIGKILL)
        guard.wait(20)
        kill(mark)
        for point in below(folder):
            clear(point)


def below(folder):
    return [point for point in mounts() if Path(folder) in Path(point).parents]


def marked(mark):
    """The processes with `mark` in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def kill(mark):
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def try_page(text, folder, limit=100):
    """Runs the blocks of a page in `folder`, which is new. Returns what is wrong with it."""
    npyfs("demo", folder, check=True)
    home = folder.with_name(folder.name + "-home")
    home.mkdir()
    program, expected = script(blocks(text), home)
    for path in home.iterdir():
        if not path.name.startswith("."):
            path.rename(folder / path.name)
    bins = [os.path.dirname(NPYFS), os.path.dirname(sys.executable), *([os.path.dirname(HANGAR)] if HANGAR else [])]
    with guarded(folder, limit + 20) as (name, _, value):
        keep = {key: os.environ[key] for key in ("TMPDIR",) if key in os.environ}
        env = {**keep, "HOME": str(home), "PATH": ":".join([*bins, "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"]),
               "LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT / "python"),
               name: value}
        done = run(["bash", "--norc", "-c", program], cwd=folder, env=env, timeout=limit)
        problems = judge(done.stdout, expected)
        problems += [f"stays mounted: {point}" for point in below(folder)]
    return problems


if __name__ == "__main__":
    import time
    seconds, what, where = sys.argv[1:]
    time.sleep(float(seconds))
    kill(what)
    for left in below(where):
        clear(left)
