"""Every dtype × byte order × layout × filter × rank that HDF5 can store and .npy can hold: the virtual file is,
byte for byte, what np.save writes of what h5py reads, and np.load opens it with and without mmap.
Judge: h5py, hdf5plugin and np.save. Several thousand datasets in one mounted directory of stores."""

from functools import partial

import pytest

from support import sweep_layouts, sweep_types
from support.mount import Mount
from support.truth import assert_all, walk

FORMATS = ["earliest", "v110", "latest"]
WRITERS = {
    "types_earliest.h5": sweep_types.write_types,
    "types_latest.h5": partial(sweep_types.write_types, libver="latest"),
    "odd.h5": sweep_types.write_odd_types,
    "filters.h5": sweep_layouts.write_filters,
    "packed.h5": sweep_layouts.write_packed,
    "virtual.h5": sweep_layouts.write_virtual,
    **{f"storage_{libver}.h5": partial(sweep_layouts.write_storage, libver=libver) for libver in FORMATS},
    **{f"maximum_{libver}.h5": partial(sweep_layouts.write_maximum_shapes, libver=libver) for libver in FORMATS},
}


@pytest.fixture(scope="module")
def mount(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    for name, write in WRITERS.items():
        write(folder / name)
    with Mount(folder, limit=600) as mount:
        yield mount


def check(mount, name, at_least, choose=lambda path: True):
    truths = {path: array for path, array in walk(mount.store / name).items() if choose(path)}
    assert_all(mount / name, truths, at_least=at_least)
    assert mount.errors() == []  # no chunk table was refused
    return truths


def test_the_directory_shows_exactly_the_stores(mount):
    shown = sorted(entry.name for entry in mount.path.iterdir())
    assert shown == sorted(entry.name for entry in mount.store.iterdir())


@pytest.mark.fast
@pytest.mark.sample("sweep", 1)
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_types_orders_layouts_ranks(mount, libver):
    truths = check(mount, f"types_{libver}.h5", 1200)
    assert {array.ndim for array in truths.values()} >= {0, 1, 2, 3, 4}


def test_bitfields_complex_class_empty_and_header_over_64k(mount):
    truths = check(mount, "odd.h5", 20)
    versions = {path: (mount / "odd.h5" / path).read_bytes()[6:8] for path in truths}
    assert versions["header_over_64k.npy"] == b"\x02\x00"


@pytest.mark.sample("sweep", 2)
@pytest.mark.parametrize("filters", ["gzip", "shuffle", "lzf", "fletcher"])
def test_filters_of_libhdf5_and_h5py(mount, filters):
    check(mount, "filters.h5", 40, lambda path: "blosc" not in path and "szip" not in path and filters in path)


@pytest.mark.sample("sweep", 2)
@pytest.mark.parametrize("codec", ["blosclz", "lz4_", "lz4hc", "zlib", "zstd"])
def test_blosc(mount, codec):
    check(mount, "filters.h5", 120, lambda path: f"blosc_{codec}" in path)


def test_szip(mount):
    check(mount, "filters.h5", 24, lambda path: "szip" in path)


@pytest.mark.sample("sweep", 1)
@pytest.mark.parametrize("kind", ["nbit", "scaleoffset", "masks"])
def test_packing_filters_and_filter_masks(mount, kind):
    check(mount, "packed.h5", {"nbit": 24, "scaleoffset": 80, "masks": 2}[kind], lambda path: path.startswith(kind))


@pytest.mark.sample("sweep", 1)
@pytest.mark.parametrize("libver", FORMATS)
def test_layouts_and_chunk_indexes(mount, libver):
    check(mount, f"storage_{libver}.h5", 500)


@pytest.mark.sample("sweep", 1)
@pytest.mark.parametrize("libver", FORMATS)
def test_maximum_shapes(mount, libver):
    """The cells on which chunk tables of libhdf5 and of other readers are known to be wrong."""
    check(mount, f"maximum_{libver}.h5", 315)


def test_virtual_datasets_within_the_file(mount):
    check(mount, "virtual.h5", 10)
