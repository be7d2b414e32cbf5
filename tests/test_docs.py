"""README and the pages in docs do what they say: their commands are run and print what the pages show, links lead somewhere,
lines are narrow. Judge: the pages themselves, run by bash and Python in a directory with the demonstration stores."""

import re

import pytest

from support.documents import (HANGAR, PAGES, README_LINES, ROOT, RUN, WIDTH, anchors, below, blocks, broken_links, judge, links, marked,
                               try_page)
from support.mount import mounted

# Pages for those who work on npyfs, of which only the links are tried.
OTHERS = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benches/README.md", "docs/checkout-format.md"]

# Every block that is not run, by page and reason.
NOT_RUN = {
    "README.md": ["builds npyfs"],
    "docs/arkouda.md": ["needs R"],
    "docs/arrow.md": ["Debian has no package of R's arrow"],
    "docs/checkouts.md": ["needs a bucket"],
    "docs/daf.md": ["tanaylab's daf is not on PyPI"],
    "docs/remote.md": ["needs a bucket"] * 6,
    # Run by test_mount_scripts.py on a machine of its own, but for systemd's and the container's.
    "docs/mounting.md": ["changes the machine"] * 3 + ["needs another program that mounts", "needs systemd"],
}


def name(page):
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [pytest.param(page, marks=pytest.mark.fast if page.name == "README.md" else pytest.mark.sample("page", 4)) for page in PAGES], ids=name)
def test_every_block_runs_and_prints_what_the_page_shows(page, tmp_path):
    text = page.read_text()
    if not HANGAR and any(block.note == "hangar" for block in blocks(text)):
        pytest.skip("NPYFS_HANGAR_PYTHON names no Python with Hangar: the page's blocks are NOT run")
    problems = try_page(text, tmp_path / "stores")
    assert not problems, f"{name(page)}:\n" + "\n".join(problems)


@pytest.mark.fast
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_is_not_run_is_listed_with_its_reason(page):
    reasons = sorted(block.reason for block in blocks(page.read_text()) if block.reason is not None)
    assert reasons == sorted(NOT_RUN.get(name(page), [])) and all(reasons)


def test_the_list_names_pages_that_exist():
    assert set(NOT_RUN) <= {name(page) for page in PAGES}


@pytest.mark.fast
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_lines_are_narrow(page):
    wide = [number for number, line in enumerate(page.read_text().splitlines(), 1) if len(line) > WIDTH]
    assert not wide, f"{name(page)}: lines {wide} are wider than {WIDTH} columns"


@pytest.mark.fast
@pytest.mark.parametrize("page", [*PAGES, *(ROOT / path for path in OTHERS)], ids=name)
def test_links_lead_to_files_and_headings(page):
    assert broken_links(page) == []


@pytest.mark.fast
@pytest.mark.parametrize("page", ["SECURITY.md", "docs/support.md"])
def test_tests_that_a_page_names_exist(page):
    named = set(re.findall(r"`(test_\w+)`", (ROOT / page).read_text()))
    assert len(named) > 5
    assert [name for name in named if not (ROOT / f"tests/{name}.py").exists()] == []


@pytest.mark.fast
def test_the_readme_is_short_and_leads_to_every_page():
    readme = ROOT / "README.md"
    assert len(readme.read_text().splitlines()) <= README_LINES
    reached = {target.partition("#")[0] for _, target in links(readme.read_text())}
    assert {name(page) for page in PAGES} - {"README.md"} <= reached


PAGE = """# A page

```console
$ mkdir mnt && npyfs mount plain.h5 mnt
$ npyfs cat plain.h5 pi.npy | wc -c
136
$ cp pi.npy mnt/new.npy
cp: cannot stat 'pi.npy': ...
$ npyfs umount mnt
```

```sh
test -d mnt
```
"""


def test_a_page_that_is_right_passes(tmp_path):
    assert try_page(PAGE, tmp_path / "stores") == []


@pytest.mark.parametrize("right, wrong, said", [
    ("136", "137", "the page says\n137"),
    ("136\n", "", "prints (exit code 0)\n136"),
    ("test -d mnt", "test -d nowhere", "did not run to its end: test -d nowhere"),
    ("npyfs umount mnt", "true", "stays mounted"),
    ("cp: cannot stat", "cp: cannot open", "cannot stat"),
    ("test -d mnt", "exit 0", "did not run to its end"),
])
def test_a_page_that_is_wrong_is_found_and_leaves_no_mount(tmp_path, right, wrong, said):
    assert right in PAGE
    problems = try_page(PAGE.replace(right, wrong), tmp_path / "stores")
    assert problems and said in problems[0]
    assert below(tmp_path) == []


def test_a_page_that_hangs_ends(tmp_path):
    with pytest.raises(AssertionError, match="not finished"):
        try_page(PAGE.replace("$ npyfs umount mnt", "$ sleep 600"), tmp_path / "stores", limit=3)
    assert not mounted(tmp_path / "stores/mnt")
    assert not marked(f"NPYFS_PAGE={tmp_path}")


def test_links_and_headings():
    page = ROOT / "docs/imaginary.md"
    text = "# How do I `ls` a store?\n## Twice\n## Twice\n[a](#how-do-i-ls-a-store) [b](#twice-1) [c](../README.md)\n"
    assert anchors(text) == ["how-do-i-ls-a-store", "twice", "twice-1"]
    assert broken_links(page, text) == []
    assert len(broken_links(page, text + "[d](#thrice)\n[e](nowhere.md)\n[f](../README.md#no-such-heading)\n`[g](code)`\n")) == 3


def test_output_that_varies():
    for printed, output, is_right in [(["a ... c"], "a b c\n", True), (["..."], "", True), (["...", "z"], "x\ny\nz\n", True),
                                      (["a.c"], "abc\n", False), (["a"], "a\nb\n", False), ([], "a\n", False)]:
        said = f"{output}\n\x010 0\x02\n"
        assert (judge(said, [(1, "x", printed)]) == []) is is_right, (printed, output)


@pytest.mark.fast
def test_what_is_written_in_rust_is_compiled():
    compiled = {line.removeprefix("//!").strip() for line in (ROOT / "src/lib.rs").read_text().splitlines()}
    for page in PAGES:
        for block in blocks(page.read_text()):
            if block.language == "rust":
                assert [line for line in block.body if line.strip() not in compiled] == []


@pytest.mark.fast
def test_every_kind_of_block_is_known():
    known = {*RUN, "rust", "makefile", "r", "cpp", "text"}
    for page in PAGES:
        assert {block.language for block in blocks(page.read_text())} <= known
