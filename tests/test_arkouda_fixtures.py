"""Every object of every case of the Arkouda fixtures equals its expected .npy byte for byte, through a mount. Judge: the
arrays beside the fixtures, made by np.save after the rules of Arkouda's source; Categorical labels by NumPy's indexing."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from support.mount import Mount
from support.truth import np_save

# Views of the expectations that are no files of the mount.
NO_FILES = {"as_unicode", "ints", "max_bits", "decoded"}
# Views that are the object itself.
ITSELF = {"data", "limbs", "as_datetime64", "as_timedelta64"}


@pytest.fixture(scope="module")
def folder(shared):
    folder = shared / "arkouda"
    if not (folder / ".expected/manifest.json").is_file():
        pytest.skip("../shared/fixtures/arkouda is absent: the Arkouda fixtures are NOT tested here")
    return folder


@pytest.fixture(scope="module")
def mount(folder, tmp_path_factory):
    store = tmp_path_factory.mktemp("arkouda") / "store"
    for name in ("single", "dist3", "legacy"):
        shutil.copytree(folder / name, store / name, ignore=shutil.ignore_patterns("LICENSE*"))
        (store / name).chmod(0o755)
    with Mount(store) as mount:
        yield mount


def place(case):
    """Where the object of a case is shown: a set is one directory without the number of the locale."""
    return re.sub(r"_LOCALE\d+", "", case["files"][0]) + "/" + case["path"]


def files(case, folder):
    """{visible path: expected bytes}"""
    views = case["views"]
    found = {}
    for view, expected in views.items():
        parent, _, last = view.rpartition("/")
        path = Path(place(case), parent)
        if last in NO_FILES or (last == "data" and {"as_datetime64", "as_timedelta64"} & {v.rpartition("/")[2] for v in views if v.rpartition("/")[0] == parent}):
            continue
        path = path.with_name(path.name + ".npy") if last in ITSELF else path / f"{last}.npy"
        found[str(path)] = (folder / ".expected" / expected).read_bytes()
    for view in views:
        if view.rpartition("/")[2] == "decoded":
            path = Path(place(case), view.rpartition("/")[0])
            found[str(path.with_name(path.name + ".npy"))] = (folder / ".expected" / views[view]).read_bytes()
    return found


def test_every_object_of_every_case(mount, folder):
    cases = json.loads((folder / ".expected/manifest.json").read_text())
    wrong, seen = [], 0
    for case in cases:
        for path, expected in files(case, folder).items():
            seen += 1
            try:
                data, size = (mount / path).read_bytes(), (mount / path).stat().st_size
            except OSError as problem:
                wrong.append(f"{case['id']}: {path}: {problem}")
                continue
            if data != expected or size != len(expected):
                wrong.append(f"{case['id']}: {path}: {len(data)} bytes, stat says {size}, expected {len(expected)}: {data[:200]!r}")
                continue
            array = np.load(mount / path)
            assert np_save(array) == expected, path
            if array.size:
                assert np.load(mount / path, mmap_mode="r").tobytes() == array.tobytes(), path
    assert len(cases) >= 83 and seen >= 190, (len(cases), seen)
    assert not wrong, f"{len(wrong)} of {seen} files are wrong\n" + "\n".join(wrong)
    assert mount.errors() == []


def test_nothing_else_is_shown(mount, folder):
    known = set()
    for case in json.loads((folder / ".expected/manifest.json").read_text()):
        known |= files(case, folder).keys()
    # The bytes and starts of categories are not among the expectations, nor are names that say what numbers are.
    extra = [path for path in mount.files() if path not in known and not re.search(r"/(categories/(values|segments)|Limb_\d+|MaxBits|IPv4|ArrayView)\.npy$", path)]
    assert not extra


def test_the_kinds_are_named(mount, folder):
    names = {"pdarray/bigint": "bigint", "pdarray/bool": "pdarray", "pdarray/int64": "pdarray", "pdarray/uint64": "pdarray", "pdarray/float64": "pdarray"}
    wrong = []
    for case in json.loads((folder / ".expected/manifest.json").read_text()):
        path = place(case)
        path += "" if (mount / path).is_dir() else ".npy"
        info = mount.info(path)
        if (info["kind"], info["type"]) != ("arkouda", names.get(case["kind"], case["kind"])) or len(info["locales"]) != len(case["files"]):
            wrong.append(f"{case['id']}: {info['kind']} {info['type']} {info['locales']}")
    assert not wrong, "\n".join(wrong)
