"""What the tests of stores on disk are judged by, once more through s3://: daf, Arkouda, MATLAB, AnnData and netCDF-4, and the sweep over types,
layouts and filters. Judges: the expectations beside the fixtures, h5py, hdf5plugin and np.save."""

import os
import shutil

import numpy as np
import pytest
import test_arkouda_fixtures
import test_daf_fixtures
import test_sweep

from support.buckets import S3
from support.mount import Mount
from support.sampling import Sample
from support.truth import assert_all, walk

pytestmark = pytest.mark.slow
SAMPLE = Sample(__file__, "sweep")


@pytest.fixture(scope="module")
def service():
    with S3() as s3:
        yield s3


@pytest.fixture
def s3(service, tmp_path_factory, monkeypatch):
    """The service, credentials for it, and a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    for name, value in service.env.items():
        monkeypatch.setenv(name, value)
    return service


@pytest.mark.sample("sweep", 1)
@pytest.mark.parametrize("name", test_daf_fixtures.STORES)
def test_daf(s3, shared, name):
    s3.put("daf", name, shared / "daf" / name)
    wrong, seen = [], 0
    with Mount(f"s3://daf/{name}", s3.options, limit=400) as mount:
        for entry in test_daf_fixtures.entries(shared, name):
            path = mount / entry["path"]
            if entry.get("optional") and not path.exists():
                continue
            seen += 1
            data = path.read_bytes()
            if not test_daf_fixtures.accepts(entry, data) or path.stat().st_size != len(data):
                wrong.append(entry["path"])
        assert mount.errors() == []
    assert seen >= 80 and not wrong, wrong


def test_arkouda(s3, shared):
    folder = shared / "arkouda"
    if not (folder / ".expected/manifest.json").is_file():
        pytest.skip("../shared/fixtures/arkouda is absent: the Arkouda fixtures are NOT tested here")
    for name in ("single", "dist3", "legacy"):
        s3.upload("arkouda", f"store/{name}/", folder / name)
    with Mount("s3://arkouda/store/", s3.options, limit=400) as mount:
        test_arkouda_fixtures.test_every_object_of_every_case(mount, folder)
        test_arkouda_fixtures.test_nothing_else_is_shown(mount, folder)
        test_arkouda_fixtures.test_the_kinds_are_named(mount, folder)


def test_sweep_over_types_layouts_and_filters(s3, tmp_path):
    for name in SAMPLE.choose(test_sweep.WRITERS, 3, "files of the sweep"):
        test_sweep.WRITERS[name](tmp_path / name)
    s3.upload("sweep", "", tmp_path)
    with Mount("s3://sweep/", s3.options, limit=900) as mount:
        assert sorted(os.listdir(mount.path)) == sorted(os.listdir(tmp_path))
        for path in sorted(tmp_path.iterdir()):
            truths = walk(path)
            # Its source is named by the file, which has no name that libhdf5 could open here.
            if truths.pop("stacked_name.npy", None) is not None:
                with pytest.raises(PermissionError):
                    (mount / path.name / "stacked_name.npy").read_bytes()
            assert_all(mount / path.name, truths, at_least=2)
        assert [line for line in mount.errors() if "stacked_name.npy" not in line] == []


def test_other_kinds_are_what_they_are_on_disk(s3, shared, tmp_path):
    """Through a mount of the same files, which other tests judge."""
    names = [path for kind in ("anndata", "matlab", "netcdf") if (shared / kind).is_dir()
             for path in sorted((shared / kind).rglob("*")) if path.suffix in (".h5ad", ".h5mu", ".mat", ".nc") and path.stat().st_size < 4 << 20]
    if not names:
        pytest.skip("../shared/fixtures has neither anndata nor matlab nor netcdf: NOT tested here")
    for number, path in enumerate(SAMPLE.choose(names, 20, "files of other kinds")):
        shutil.copyfile(path, tmp_path / f"{number:03}-{path.name}")
    s3.upload("others", "", tmp_path)
    seen = 0
    with Mount("s3://others/", s3.options, limit=600) as far, Mount(tmp_path, limit=600) as near:
        for store in sorted(os.listdir(near.path)):
            for folder, _, files in os.walk(near / store):
                for name in files:
                    path = os.path.relpath(os.path.join(folder, name), near.path)
                    try:
                        data = (near / path).read_bytes()
                    except OSError as problem:
                        with pytest.raises(OSError) as same:
                            (far / path).read_bytes()
                        assert same.value.errno == problem.errno, path
                        continue
                    seen += 1
                    assert (far / path).read_bytes() == data, path
    assert seen > 20


def test_random_elements_of_large_arrays(s3, tmp_path):
    import h5py
    random = np.random.default_rng(3)
    array = random.normal(size=(2000, 1500)).astype("f4")
    with h5py.File(tmp_path / "large.h5", "w") as file:
        file.create_dataset("rows", data=array, chunks=(10, 1500), compression="gzip", shuffle=True)
        file.create_dataset("blocks", data=array, chunks=(64, 64), compression="lzf")
        file["whole"] = array
    s3.put("large", "large.h5", tmp_path / "large.h5")
    with Mount("s3://large/large.h5", s3.options) as mount:
        for name in ("rows", "blocks", "whole"):
            mapped = np.load(mount / f"{name}.npy", mmap_mode="r")
            for row, column in random.integers(0, [2000, 1500], (60, 2)):
                np.testing.assert_array_equal(mapped[row, column:column + 50], array[row, column:column + 50])
            del mapped
