"""Every fixture converted to every other kind and back: what the report does not name comes back byte for byte, what it names as lost is
not there, and nothing else is. Judges: the expectations beside the fixtures, made by np.save; h5py and the rules of each format."""

import json
import shutil

import h5py
import pytest
from test_arkouda_fixtures import files as views

from support.conversions import KINDS, all_is_well, convert, files, objects
from support.judge import faults_of
from support.sampling import Sample
from support.truth import sha256

pytestmark = pytest.mark.timeout(900)
SAMPLE = Sample(__file__, "fault")
DAF = ["clean.h5df", "clean_gzip.h5df", "latest.h5df", "multi.h5fs"]


def is_named(path, named):
    """Whether an object of a report is the file at a path, or has it as a member."""
    return any(path == name or path.startswith(f"{name.removesuffix('.npy').rstrip('/')}/") for name in named)


def check(source, first, folder, kinds):
    """Converts a store, whose files are `first`, to each kind and back."""
    folder.mkdir()
    for kind in kinds:
        new = folder / f"store{KINDS[kind]}"
        options = ["--column", "column"] if kind == "hangar" else []
        report = convert(source, new, kind, "--leave-out", *options)
        lost, changed = objects(report["without_counterpart"]), objects(report["changed"])
        if report["objects"]:
            all_is_well(new)
        if kind != "hangar":
            assert faults_of(new) == [], (source, kind)
        back = folder / f"{kind}-back"
        again = convert(new, back, "npy", "--leave-out") if report["objects"] or kind != "hangar" else None
        found = files(back) if again else {}
        for path, data in first.items():
            # An array that stands in no directory is a sample of the column.
            name = f"column/{path}" if kind == "hangar" and "/" not in path else path
            if is_named(path, lost):
                assert name not in found, (source, kind, path)
            elif not is_named(path, changed):
                # A single text is a file of text in Hangar.
                text = name.removesuffix(".npy") + ".txt"
                assert found.get(name) == data or kind == "hangar" and text in found, (source, kind, path, report)
        wanted = {f"column/{path}" if kind == "hangar" and "/" not in path else path for path in first if not is_named(path, lost)}
        assert {path.removesuffix(".txt").removesuffix(".npy") for path in found} == {path.removesuffix(".npy") for path in wanted}, (source, kind)


@pytest.mark.sample("fault", 2)
@pytest.mark.parametrize("name", DAF)
def test_daf(tmp_path, shared, name):
    store = tmp_path / name
    shutil.copyfile(shared / "daf" / name, store)
    report = convert(store, tmp_path / "npy", "npy", "--leave-out")
    found = files(tmp_path / "npy")
    expected = json.loads((shared / "daf" / name).with_suffix(".expected.json").read_text())
    lost = objects(report["without_counterpart"])
    for entry in expected:
        data = found.get(entry["path"])
        if data is None:
            assert entry.get("optional") or entry["kind"] == "link" or is_named(entry["path"], lost), entry
            continue
        forms = [entry, *entry.get("alternatives", [])]
        assert any((len(data), sha256(data)) == (form["size"], form["sha256"]) for form in forms), entry["path"]
    assert len(found) > 20
    kinds = ["plain", "arkouda", "hangar"] if name.endswith("h5df") else ["daf", "arkouda", "hangar"]
    check(store, found, tmp_path / "to", kinds)
    # A directory says the same as the store; a link in it is what it leads to.
    check(tmp_path / "npy", files(tmp_path / "npy", links=True), tmp_path / "from", ["plain", "daf", "arkouda", "hangar"])


def cases(shared, part):
    folder = shared / "arkouda"
    if not (folder / ".expected/manifest.json").is_file():
        pytest.skip("../shared/fixtures/arkouda is absent: the Arkouda fixtures are NOT tested here")
    found = {}
    for case in json.loads((folder / ".expected/manifest.json").read_text()):
        if case["files"][0].startswith(part):
            found.setdefault(case["files"][0], []).append(case)
    return folder, found


@pytest.mark.parametrize("part", ["single", "dist3"])
def test_arkouda(tmp_path, shared, part):
    folder, found = cases(shared, part)
    shutil.copytree(folder / part, tmp_path / part)
    seen = 0
    for number, (file, here) in enumerate(SAMPLE.choose(found.items(), 12, "files of Arkouda", part)):
        store = tmp_path / file
        npy = tmp_path / f"npy{number}"
        report = convert(store, npy, "npy", "--leave-out")
        shown = files(npy)
        changed, lost = objects(report["changed"]), objects(report["without_counterpart"])
        for case in here:
            for path, data in views(case, folder).items():
                path = path.partition(".h5/")[2]
                if path in shown:
                    seen += 1
                    assert shown[path] == data, (file, path)
                else:
                    # Members of what is an array.
                    above = path.rpartition("/")[0]
                    assert f"{above}.npy" in shown or is_named(path, lost), (file, path, report)
        check(store, shown, tmp_path / f"to{number}", ["plain", "daf", "hangar", *(["arkouda"] if part == "dist3" else [])])
        # What came as arrays is the same object again, unless the report says otherwise.
        again = convert(npy, tmp_path / f"again{number}.hdf", "arkouda", "--leave-out")
        lost = objects(again["without_counterpart"])
        with h5py.File(tmp_path / f"again{number}.hdf") as new:
            for case in here:
                name = case["path"]
                if part == "single" and name in new and not is_named(f"{name}.npy", changed):
                    with h5py.File(folder / case["files"][0]) as old:
                        if "ObjType" in old[name].attrs:
                            assert new[name].attrs["ObjType"] == old[name].attrs["ObjType"], (file, name)
        assert not lost, (file, lost)
    assert seen > (30 if SAMPLE.is_whole else 8)
