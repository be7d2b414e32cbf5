"""What calls itself daf and is not: shown as plain HDF5, with one line in errors.log and in the directory's info that says why.
Judge: np.save of what h5py reads; each case differs from a good store in one thing."""

import h5py
import numpy as np
import pytest
import scipy.sparse

from support import daf
from support.mount import Mount
from support.truth import np_save, visible_array

pytestmark = pytest.mark.fast

MATRIX = scipy.sparse.csr_matrix(np.arange(12).reshape(4, 3) % 4)  # cell × gene, as in base()


def base(group, version=(1, 0)):
    daf.start(group, version)["title"] = "an item"
    group["cell#"] = np.array([b"c0", b"c1", b"c2", b"c3"])
    group["gene#"] = np.array([b"g0", b"g1", b"g2"])
    group["cell#good"] = np.arange(4)


def version_file(content):
    def write(group):
        base(group)
        del group["__daf__"]
        content(group)
    return write


VERSIONS = {
    "major_2": lambda group: daf.start(group, (2, 0)), "major_0": lambda group: daf.start(group, (0, 1)),
    "three": lambda group: daf.start(group, (1, 0, 0)), "one": lambda group: daf.start(group, (1,)),
    "scalar": lambda group: group.create_dataset("__daf__", data=1), "float": lambda group: group.create_dataset("__daf__", data=[1.0, 0.0]),
    "matrix": lambda group: group.create_dataset("__daf__", data=[[1, 0]]), "text": lambda group: group.create_dataset("__daf__", data=[b"1", b"0"]),
    "big_endian": lambda group: group.create_dataset("__daf__", data=np.array([1, 0], ">i4")),
    "empty": lambda group: group.create_dataset("__daf__", data=h5py.Empty("i1")),
}
PROPERTIES = {  # name: array that does not fit the axes cell (4) and gene (3)
    "cell#too_short": np.arange(3), "cell#too_long": np.arange(5), "cell#no_rows": np.zeros(0), "cell#matrix": np.zeros((4, 3)), "cell#scalar": np.int64(7),
    "tree#height": np.arange(4), "cell,gene#swapped": np.zeros((3, 4)), "cell,gene#vector": np.zeros(4), "cell,gene#cube": np.zeros((4, 3, 1)),
    "cell,tree#no_axis": np.zeros((4, 3)), "tree,gene#no_axis": np.zeros((4, 3)), "cell,gene,tree#three": np.zeros((4, 3, 2)),
}


def parts(**changes):
    return {part: changes.get(part, getattr(MATRIX, part)) for part in daf.PARTS}


def put_parts(group, name, members, shape=(4, 3)):
    place = group.create_group(name)
    for part, values in members.items():
        if values is not None:
            place[part] = values
    if shape is not None:
        place.attrs["shape"] = shape


SPARSE = {  # name: what put_parts gets
    "short_indptr": (parts(indptr=MATRIX.indptr[:-1]),), "long_indptr": (parts(indptr=np.append(MATRIX.indptr, 9)),), "no_indptr_rows": (parts(indptr=np.zeros(0, "i4")),),
    "short_indices": (parts(indices=MATRIX.indices[:-1]),), "short_data": (parts(data=MATRIX.data[:-1]),), "end_too_large": (parts(indptr=np.array([0, 2, 4, 6, 99])),),
    "start_not_zero": (parts(indptr=np.array([1, 2, 4, 6, 9])),), "falling": (parts(indptr=np.array([0, 8, 4, 6, 9])),), "float_indices": (parts(indices=MATRIX.indices.astype("f4")),),
    "data_2d": (parts(data=MATRIX.data.reshape(3, 3)),), "other_shape": (parts(), (3, 4)), "shape_of_three": (parts(), (4, 3, 1)), "negative_shape": (parts(), (-4, 3)),
    "no_shape": (parts(), None), "text_shape": (parts(), "4x3"), "no_data": (parts(data=None),), "huge_shape": (parts(), (2**62, 2**62)),
}


@pytest.fixture(scope="module")
def mount(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    assert MATRIX.nnz == 9
    with h5py.File(folder / "versions.h5", "w") as file:
        for name, content in VERSIONS.items():
            version_file(content)(file.create_group(name))
    with h5py.File(folder / "properties.h5df", "w") as file:
        base(file)
        for name, array in PROPERTIES.items():
            file[name] = array
    with h5py.File(folder / "sparse.h5df", "w") as file:
        base(file)
        put_parts(file, "cell,gene#good", parts())
        for name, arguments in SPARSE.items():
            put_parts(file, f"cell,gene#{name}", *arguments)
    with Mount(folder) as mount:
        mount.files()  # a walk of everything; what is wrong is in the log now
        yield mount


def said(mount, file, name):
    """The one line of errors.log about the object `name` of `file`."""
    lines = [line for line in mount.errors() if file in line and name in line]
    assert len(lines) == 1, f"{len(lines)} lines about {name}: {lines}\nall: {mount.errors()}"
    return lines[0]


def assert_same(mount, store, name):
    with h5py.File(mount.store / store, "r") as file:
        assert (mount / store / f"{name}.npy").read_bytes() == np_save(visible_array(file[name])), name


@pytest.mark.parametrize("name", VERSIONS)
def test_foreign_version(mount, name):
    folder = mount / "versions.h5" / name
    shown = {entry.name for entry in folder.iterdir()}
    assert {"cell#.npy", "gene#.npy", "cell#good.npy"} <= shown
    assert "title.npy" not in shown
    assert mount.info(f"versions.h5/{name}/cell#good.npy")["kind"] == "plain"
    assert_same(mount, "versions.h5", f"{name}/cell#good")
    if name != "empty":  # a null dataspace has no .npy
        assert_same(mount, "versions.h5", f"{name}/__daf__")
    assert "daf" in said(mount, "versions.h5", f"/{name}")
    assert "daf" in str(mount.info(f"versions.h5/{name}"))


@pytest.mark.parametrize("name", PROPERTIES)
def test_property_that_fits_no_axis(mount, name):
    assert_same(mount, "properties.h5df", name)
    said(mount, "properties.h5df", name)
    assert name in str(mount.info("properties.h5df"))


@pytest.mark.parametrize("store", ["properties.h5df", "sparse.h5df"])
def test_the_good_parts_stay_daf(mount, store):
    assert_same(mount, store, "cell#good")
    assert np.load(mount / store / "title.npy") == "an item"
    assert mount.info(f"{store}/cell#good.npy")["kind"] == "daf"
    assert not [line for line in mount.errors() if "#good" in line]


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_parts_that_do_not_fit(mount, name):
    folder = mount / "sparse.h5df" / f"cell,gene#{name}"
    present = {f"{part}.npy" for part, values in SPARSE[name][0].items() if values is not None}
    assert {entry.name for entry in folder.iterdir()} == present  # plain: neither shape.npy nor .npz
    assert not (mount / "sparse.h5df" / f"cell,gene#{name}.npz").exists()
    for part in present:
        assert_same(mount, "sparse.h5df", f"cell,gene#{name}/{part.removesuffix('.npy')}")
    said(mount, "sparse.h5df", f"cell,gene#{name}")


def test_the_sparse_matrix_that_fits(mount):
    assert daf.equal(scipy.sparse.load_npz(mount / "sparse.h5df/cell,gene#good.npz"), MATRIX)


def test_looking_again_adds_no_lines(mount):
    before = mount.errors()
    mount.files()
    assert mount.errors() == before and len(before) == len(VERSIONS) + len(PROPERTIES) + len(SPARSE)
