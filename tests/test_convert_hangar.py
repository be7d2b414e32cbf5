"""npyfs convert from and to Hangar repositories. Judges: real Hangar, which reads what was written and writes what is read; h5py and NumPy."""

import json
import os
import tarfile

import h5py
import numpy as np
import pytest

from support import hangar
from support.conversions import AUTHOR, LOST, all_is_well, arrays, convert, files, objects
from support.process import npyfs, one_line
from support.truth import np_save

USAGE, STORE = 1, 2

WRITE = '''
repo = repository(sys.argv[1])
co = repo.checkout(write=True)
flat = co.add_ndarray_column("flat", prototype=np.zeros((2, 3), "i2"))
for k in (0, 5, 10, "5", "x.npy", "last"):
    flat[k] = np.full((2, 3), len(str(k)) + (k if isinstance(k, int) else 100), "i2")
nested = co.add_ndarray_column("nested", prototype=np.zeros(4, "f8"), contains_subsamples=True)
nested["a"] = {0: np.arange(4.0), "b": np.ones(4)}
sized = co.add_ndarray_column("sized", shape=(5, 5), dtype=np.uint8, variable_shape=True)
sized["small"], sized["large"] = np.ones((1, 2), "u1"), np.ones((5, 5), "u1")
words = co.add_str_column("words")
words[1], words["two"] = "Größe\\n", "x"
raw = co.add_bytes_column("raw")
raw["r"] = b"\\0\\1\\xff"
co.commit("all")
flat[0] = np.full((2, 3), 9, "i2")
co.close()
print(json.dumps(tell(sys.argv[1])))
'''


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository with something staged, and what Hangar reads of its commit."""
    path = tmp_path_factory.mktemp("hangar") / "repo"
    told = hangar.script(WRITE, path)
    return path, told["commits"][told["branches"]["master"]]


def read(path):
    told = hangar.told(path)
    return told["commits"][told["branches"]["master"]]


def samples(columns):
    """{column: {keys: content}}, without what is said of the columns."""
    return {name: {json.dumps(keys, sort_keys=True): content for *keys, content in column["samples"]} for name, column in columns.items()}


def test_a_repository_as_a_directory_and_back(tmp_path, repository):
    path, columns = repository
    before = hangar.state(path)
    report = convert(path, tmp_path / "npy", "npy")
    wanted, _ = hangar.expected(columns)
    assert set(files(tmp_path / "npy")) == set(wanted) and report["objects"] == len(wanted)
    assert report["changed"] == report["without_counterpart"] == []
    for name, content in wanted.items():
        hangar.check_file(tmp_path / "npy" / name, content)
    assert hangar.state(path) == before
    report = convert(tmp_path / "npy", tmp_path / "back", "hangar", "--leave-out")
    # A column of samples of several sizes has to be said, not told from the first.
    assert set(objects(report["without_counterpart"])) == {"sized/small.npy"}
    found = samples(read(tmp_path / "back"))
    wanted = samples(columns)
    del wanted["sized"]['[{"str": "small"}]']
    assert found == wanted
    all_is_well(tmp_path / "back")
    assert os.listdir(tmp_path / "back") == [".hangar"]


def test_a_repository_as_plain_hdf5_and_back(tmp_path, repository):
    path, columns = repository
    report = convert(path, tmp_path / "out.h5", "plain")
    assert report["without_counterpart"] == []
    with h5py.File(tmp_path / "out.h5") as file:
        assert sorted(file) == sorted(columns) and sorted(file["flat"]) == ["%35", "0", "10", "5", "last", "x.npy"]
        np.testing.assert_array_equal(file["flat/10"][()], np.full((2, 3), 12, "i2"))
        assert file["words/1"].asstr()[()] == "Größe\n" and list(file["raw/r"]) == [0, 1, 255]
        np.testing.assert_array_equal(file["nested/a/0"], np.arange(4.0))
    report = convert(tmp_path / "out.h5", tmp_path / "back", "hangar", "--leave-out")
    assert set(objects(report["without_counterpart"])) == {"sized/small.npy"}
    found, wanted = samples(read(tmp_path / "back")), samples(columns)
    for name in ("flat", "nested", "words"):
        assert found[name] == wanted[name], name


def test_stacked_columns_there_and_back(tmp_path, repository):
    path, columns = repository
    report = convert(path, tmp_path / "out.h5", "plain", "--stacked")
    assert report["without_counterpart"] == []
    with h5py.File(tmp_path / "out.h5") as file:
        keys = file["flat.keys"].asstr()[()].tolist()
        assert file["flat"].shape == (6, 2, 3) and len(keys) == 6
        np.testing.assert_array_equal(file["flat"][keys.index("10")], np.full((2, 3), 12, "i2"))
        assert sorted(file) == ["flat", "flat.keys", "nested", "nested.keys", "raw", "sized", "words"]
    convert(path, tmp_path / "npy", "npy", "--stacked")
    assert {"flat.npy", "flat.keys.npy"} <= set(os.listdir(tmp_path / "npy"))
    for source in ("out.h5", "npy"):
        convert(tmp_path / source, tmp_path / f"{source}-back", "hangar", "--stacked", "--leave-out")
        found = samples(read(tmp_path / f"{source}-back"))
        assert {name: found[name] for name in ("flat", "nested")} == {name: samples(columns)[name] for name in ("flat", "nested")}


def test_rows_become_samples(tmp_path):
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in/images.npy", np.arange(24, dtype="u1").reshape(4, 2, 3))
    np.save(tmp_path / "in/named.npy", np.arange(3.0))
    np.save(tmp_path / "in/named.keys.npy", np.array(["a", "b", "7"]))
    report = convert(tmp_path / "in", tmp_path / "repo", "hangar", "--stacked")
    assert report["objects"] == 7
    found = hangar.script('''
co = Repository(sys.argv[1]).checkout()
print(json.dumps({name: {str(key) + type(key).__name__: co[name][key].tolist() for key in co[name].keys()} for name in co.columns}))
''', tmp_path / "repo")
    assert found["named"] == {"astr": 0.0, "bstr": 1.0, "7int": 2.0}
    assert found["images"]["2int"] == [[12, 13, 14], [15, 16, 17]] and len(found["images"]) == 4


def test_arrays_that_stand_in_no_directory_have_the_column_that_is_named(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(3):
        np.save(tmp_path / f"in/{number}.npy", np.full((2, 2), number, "u1"))
    np.save(tmp_path / "in/other.npy", np.zeros(2))
    report = convert(tmp_path / "in", tmp_path / "repo", "hangar", code=LOST)
    assert set(objects(report["without_counterpart"])) == {"other.npy"}
    convert(tmp_path / "in", tmp_path / "repo", "hangar", "--leave-out", "--column", "pictures")
    columns = read(tmp_path / "repo")
    assert list(columns) == ["pictures"] and len(columns["pictures"]["samples"]) == 3
    log = hangar.script('print(json.dumps(str(Repository(sys.argv[1]).log(return_contents=True))))', tmp_path / "repo")
    assert "Ann" in log and "npyfs convert" in log


def test_hangar_goes_on_with_what_was_made(tmp_path, repository):
    path, _ = repository
    convert(path, tmp_path / "copy", "hangar", "--leave-out")
    hangar.script('''
repo = Repository(sys.argv[1])
co = repo.checkout(write=True)
co["flat"]["new"] = np.zeros((2, 3), "i2")
co.commit("by hangar")
co.close()
assert repo.verify_repo_integrity()
''', tmp_path / "copy")
    assert len(read(tmp_path / "copy")["flat"]["samples"]) == 7
    all_is_well(tmp_path / "copy")


def test_a_repository_needs_an_author(tmp_path):
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in/x.npy", np.zeros(2))
    done = npyfs("convert", "--to", "hangar", tmp_path / "in", tmp_path / "repo")
    assert done.returncode == USAGE and "--name and --email" in one_line(done.stderr)
    done = npyfs("convert", "--to", "hangar", "--name", "a\nb", "--email", "c", tmp_path / "in", tmp_path / "repo")
    assert done.returncode == STORE and "author" in one_line(done.stderr)
    done = npyfs("convert", *AUTHOR, tmp_path / "in", tmp_path / "x.h5")
    assert done.returncode == STORE and "author" in one_line(done.stderr)
    assert os.listdir(tmp_path) == ["in"]


def test_a_collection_file_alone(tmp_path, repository):
    path, _ = repository
    file = next((path / ".hangar/data").rglob("*.hdf5"))
    convert(file, tmp_path / "npy", "npy", "--leave-out")
    assert arrays(tmp_path / "npy")


def test_the_fixture_of_real_hangar(tmp_path, shared):
    with tarfile.open(shared / "hangar/small.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    manifest = json.loads((shared / "hangar/small.manifest.json").read_text())
    report = convert(tmp_path / "small", tmp_path / "npy", "npy", "--leave-out")
    head = json.loads(npyfs("info", "--json", tmp_path / "small", check=True).stdout)["staging_area_on"]
    wanted, _ = hangar.expected(manifest["commits"][manifest["branches"][head]])
    lost = set(objects(report["without_counterpart"]))
    assert set(files(tmp_path / "npy")) == set(wanted) - lost and len(wanted) > 20
    for name in set(wanted) - lost:
        hangar.check_file(tmp_path / "npy" / name, wanted[name])
    report = convert(tmp_path / "npy", tmp_path / "back", "hangar", "--leave-out")
    again = convert(tmp_path / "back", tmp_path / "again", "npy")
    assert again["objects"] == report["objects"] and report["objects"] + len(report["without_counterpart"]) == len(files(tmp_path / "npy"))
    for name, data in files(tmp_path / "again").items():
        assert data == (tmp_path / "npy" / name).read_bytes(), name
    assert all(np_save(array) == (tmp_path / "again" / name).read_bytes() for name, array in arrays(tmp_path / "again").items())
