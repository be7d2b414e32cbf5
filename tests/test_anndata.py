"""AnnData as it is shown: the datasets of the file, the .npz of sparse matrices, the labels of categoricals. Judges: anndata, h5py, scipy."""

import os

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from support import anndata_files as made
from support.mount import Mount, reason_of
from support.process import npyfs
from support.truth import np_save, visible_array

pytestmark = pytest.mark.fast


def datasets(file):
    """{path: the bytes of its .npy} of all datasets that NumPy has a form for."""
    found = {}

    def see(name, member):
        if isinstance(member, h5py.Dataset) and member.shape is not None:
            found[f"{name}.npy"] = np_save(visible_array(member))
    file.visititems(see)
    return found


def check_sparse(mount, path, want):
    got = sp.load_npz(mount / f"{path}.npz")
    assert got.format == want.format and got.dtype == want.dtype and got.shape == want.shape, path
    assert (got != want).nnz == 0, path
    for part in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(np.load(mount / path / f"{part}.npy"), getattr(want, part))
    np.testing.assert_array_equal(np.load(mount / path / "shape.npy"), want.shape)


def check_table(mount, path, want):
    for name in want:
        if isinstance(want[name].dtype, pd.CategoricalDtype):
            got, labels = np.load(mount / path / f"{name}.npy"), made.labels(want[name])
            assert os.stat(mount / path / f"{name}.npy").st_size == len(np_save(got))
            np.testing.assert_array_equal(got, labels)
            np.testing.assert_array_equal(np.load(mount / path / name / "codes.npy"), want[name].cat.codes)
            np.testing.assert_array_equal(np.load(mount / path / name / "categories.npy"), np.asarray(want[name].cat.categories, got.dtype))
        elif name in ("count", "known"):
            mask = np.load(mount / path / name / "mask.npy")
            np.testing.assert_array_equal(mask, want[name].isna())
            np.testing.assert_array_equal(np.load(mount / path / name / "values.npy")[~mask], want[name][~mask].to_numpy())
        else:
            np.testing.assert_array_equal(np.load(mount / path / f"{name}.npy"), np.asarray(want[name]))
    info = mount.info(path)
    assert info["attributes"]["column-order"] == list(want) and info["rows"] == len(want) and info["kind"] == "anndata"


def check(mount, data, prefix=""):
    if sp.issparse(data.X):
        check_sparse(mount, f"{prefix}X", data.X)
    else:
        np.testing.assert_array_equal(np.load(mount / f"{prefix}X.npy"), data.X)
    check_table(mount, f"{prefix}obs", data.obs)
    check_table(mount, f"{prefix}var", data.var)
    check_sparse(mount, f"{prefix}raw/X", data.raw.X) if sp.issparse(data.raw.X) else None
    for slot in ("layers", "obsm", "varm", "obsp", "varp"):
        for name, value in getattr(data, slot).items():
            if sp.issparse(value):
                check_sparse(mount, f"{prefix}{slot}/{name}", value)
            elif isinstance(value, pd.DataFrame):
                check_table(mount, f"{prefix}{slot}/{name}", value)
            else:
                np.testing.assert_array_equal(np.load(mount / f"{prefix}{slot}/{name}.npy"), value)
    check_sparse(mount, f"{prefix}uns/nested/eye", data.uns["nested"]["eye"])


@pytest.mark.parametrize("form", ["dense", "csr", "csc"])
def test_a_file_of_anndata_is_shown(tmp_path, form):
    path = made.write(made.annotated(form), tmp_path / "a.h5ad")
    data = made.read(path)
    with Mount(path) as mount, h5py.File(path) as file:
        check(mount, data)
        for name, want in datasets(file).items():
            assert (mount / name).read_bytes() == want, name
        assert mount.info()["kind"] == "anndata" and not mount.errors()
        lane = np.load(mount / "obs/lane.npy")
        assert lane.dtype == "f8" and np.isnan(lane[1]) and np.load(mount / "obs/batch.npy").dtype == "i8"


@pytest.mark.parametrize("rows, columns", [(0, 4), (7, 0), (0, 0)])
@pytest.mark.parametrize("form", ["dense", "csr", "csc"])
def test_nothing_along_an_axis(tmp_path, form, rows, columns):
    path = made.write(made.annotated(form, rows, columns), tmp_path / "a.h5ad")
    with Mount(path) as mount:
        data = made.read(path)
        if form != "dense":
            check_sparse(mount, "X", data.X)
        assert np.load(mount / "obs/kind.npy").shape == (rows,) and np.load(mount / "var/batch.npy").shape == (columns,)
        assert mount.info("obs")["rows"] == rows and not mount.errors()


def test_many_labels_at_any_offset(tmp_path):
    random = np.random.default_rng(5)
    values = random.integers(0, 5000, 200_000)
    path = tmp_path / "a.h5ad"
    obs = pd.DataFrame({"clone": pd.Categorical([f"clone {i:04}" for i in values])}, index=np.arange(len(values)).astype(str))
    made.write(made.anndata.AnnData(sp.csr_matrix((len(values), 2)), obs=obs), path)
    with Mount(path) as mount:
        got = np.load(mount / "obs/clone.npy", mmap_mode="r")
        for start in random.integers(0, len(values) - 100, 50):
            np.testing.assert_array_equal(got[start:start + 100], [f"clone {i:04}" for i in values[start:start + 100]])
        np.testing.assert_array_equal(np.load(mount / "obs/clone.npy"), obs["clone"].astype(str))
        del got


def test_mudata(tmp_path):
    path = made.write_mudata(tmp_path / "m.h5mu")
    with Mount(path) as mount:
        back = made.read_mudata(path)
        for name in ("rna", "prot"):
            check(mount, back.mod[name], f"mod/{name}/")
            assert mount.info(f"mod/{name}")["kind"] == "anndata"
        assert mount.info()["kind"] == "anndata" and mount.info("obs")["rows"] == back.n_obs


def test_elements_in_a_plain_file(tmp_path):
    """Any group that says its encoding; the file itself stays plain HDF5."""
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        made.anndata.io.write_elem(file, "m", made.matrix("csc"))
        made.anndata.io.write_elem(file, "c", pd.Categorical(["x", None, "y"]))
        made.anndata.io.write_elem(file, "deep/study", made.annotated())
        file["x"] = np.arange(3)
    with Mount(tmp_path / "plain.h5") as mount, h5py.File(tmp_path / "plain.h5") as file:
        check_sparse(mount, "m", made.matrix("csc"))
        assert np.load(mount / "c.npy").tolist() == ["x", "", "y"]
        check(mount, made.anndata.io.read_elem(file["deep/study"]), "deep/study/")
        assert mount.info()["kind"] == "plain" and mount.info("deep/study")["kind"] == "anndata"
    with Mount(tmp_path / "plain.h5", "kind=plain") as mount:
        assert "m.npz" not in os.listdir(mount.path) and np.load(mount / "m/data.npy").size


def test_old_files(tmp_path):
    """Before 0.7: records, and sparse matrices with the attributes of h5sparse."""
    want = made.matrix("csr")
    with h5py.File(tmp_path / "old.h5ad", "w") as file:
        for name, rows in (("obs", made.ROWS), ("var", made.COLUMNS)):
            text = h5py.string_dtype()
            table = np.array([(f"{name}{i}", i) for i in range(rows)], [("index", text), ("n", "<i8")])
            file[name] = table
        group = file.create_group("X")
        group.attrs["h5sparse_format"], group.attrs["h5sparse_shape"] = "csr", want.shape
        for part in ("data", "indices", "indptr"):
            group[part] = getattr(want, part)
    with Mount(tmp_path / "old.h5ad") as mount:
        check_sparse(mount, "X", want)
        assert mount.info()["kind"] == "anndata"
        obs = np.load(mount / "obs.npy")
        assert obs["index"].tolist()[1] in ("obs1", b"obs1") and obs["n"].tolist() == list(range(made.ROWS))


def change(name, values):
    def do(file):
        attributes = dict(file[name].attrs)
        del file[name]
        file[name] = values
        file[name].attrs.update(attributes)
    return do


def drop(name):
    return lambda file: file.__delitem__(name)


def shape(name, *numbers):
    return lambda file: file[name].attrs.__setitem__("shape", numbers)


BAD = {  # what is done to a good file, the extra file that is not shown, and a word of the reason
    "indptr_missing": (drop("X/indptr"), "X.npz", "indptr"), "indptr_short": (change("X/indptr", np.zeros(3, "i4")), "X.npz", "pointers"),
    "indptr_falls": (change("X/indptr", np.array([0, 5, 3, 3, 3, 3, 3, 3], "i4")), "X.npz", "pointer 2"),
    "indptr_end": (change("X/indptr", np.zeros(made.ROWS + 1, "i4")), "X.npz", "end at 0"),
    "indptr_float": (change("X/indptr", np.zeros(made.ROWS + 1)), "X.npz", "integers"),
    "data_short": (change("X/data", np.zeros(2, "f4")), "X.npz", "indices"), "data_2d": (change("X/data", np.zeros((2, 2))), "X.npz", "vector data"),
    "shape_other": (shape("X", made.ROWS, 9), "X.npz", "fit"), "shape_three": (shape("X", 1, 2, 3), "X.npz", "shape"),
    "shape_negative": (shape("X", -1, 4), "X.npz", "shape"),
    "layer": (shape("layers/csc", made.ROWS, 5), "layers/csc.npz", "fit"), "obsp": (shape("obsp/near", 9, 9), "obsp/near.npz", "fit"),
    "raw": (shape("raw/X", made.ROWS, 5), "raw/X.npz", "fit"),
    "codes_missing": (drop("obs/kind/codes"), "obs/kind.npy", "codes"), "categories_missing": (drop("obs/kind/categories"), "obs/kind.npy", "categories"),
    "codes_short": (change("obs/kind/codes", np.zeros(3, "i1")), "obs/kind.npy", "3 codes"),
    "codes_float": (change("obs/kind/codes", np.zeros(made.ROWS)), "obs/kind.npy", "integers"),
    "codes_2d": (change("obs/kind/codes", np.zeros((made.ROWS, 1), "i1")), "obs/kind.npy", "vector"),
    "categories_2d": (change("obs/kind/categories", np.zeros((2, 2))), "obs/kind.npy", "vector"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_left_out_with_the_reason(tmp_path, case):
    do, gone, word = BAD[case]
    path = made.write(made.annotated(), tmp_path / "a.h5ad")
    with h5py.File(path, "r+") as file:
        do(file)
    with Mount(path) as mount, h5py.File(path) as file:
        assert not os.path.exists(mount / gone)
        folder, name = os.path.split(gone)
        assert word in reason_of(mount.info(folder), name.rpartition(".")[0])
        for name, want in datasets(file).items():
            assert (mount / name).read_bytes() == want, name
        assert np.load(mount / "obs/grade.npy")[1] == "high"


def test_a_code_outside_the_categories_is_an_error_where_it_stands(tmp_path):
    path = made.write(made.annotated(), tmp_path / "a.h5ad")
    with h5py.File(path, "r+") as file:
        file["obs/kind/codes"][3] = 99
        file["obs/grade/codes"][3] = -2
    with Mount(path) as mount:
        for name in ("kind", "grade"):
            with pytest.raises(OSError):
                np.load(mount / f"obs/{name}.npy")
        assert any("code outside" in line for line in mount.errors())
        np.testing.assert_array_equal(np.load(mount / "obs/kind/codes.npy")[3], 99)


def test_columns_that_do_not_fit_the_index_are_noted(tmp_path):
    path = made.write(made.annotated(), tmp_path / "a.h5ad")
    with h5py.File(path, "r+") as file:
        file["obs/stray"] = np.arange(3)
        del file["obs/depth"]
    with Mount(path) as mount:
        notes = " ".join(mount.info("obs")["notes"])
        assert "stray" in notes and "depth" in notes
        assert np.load(mount / "obs/stray.npy").tolist() == [0, 1, 2]


def test_the_command_line_knows_the_kind(tmp_path):
    path = made.write(made.annotated(), tmp_path / "a.h5ad")
    assert npyfs("verify", path).returncode == 0
    done = npyfs("info", path, "--json")
    assert done.returncode == 0 and '"anndata"' in done.stdout
