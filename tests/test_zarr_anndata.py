"""The Zarr view in AnnData: `read_zarr` of the view is what `read_h5ad` makes of the file. The judge is anndata."""

from collections.abc import Mapping

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from support.mount import Mount

pytestmark = pytest.mark.fast

VIEWS = ["zarr", "zarr3"]


def make(form):
    random = np.random.default_rng(7)
    cells, genes = 12, 7
    dense = random.poisson(0.5, (cells, genes)).astype("f4")
    x = {"csr": sp.csr_matrix, "csc": sp.csc_matrix, "dense": np.asarray}[form](dense)
    obs = pd.DataFrame(
        {
            "kind": pd.Categorical(random.choice(["B", "T", "NK"], cells)),
            "grade": pd.Categorical(random.choice(["low", "high"], cells), categories=["low", "high"], ordered=True),
            "gap": pd.Categorical([None, "a"] * 6),
            "age": random.integers(0, 90, cells),
            "score": random.normal(size=cells),
            "passed": random.random(cells) > 0.5,
            "note": np.array(["é", ""] * 6, dtype=object),
            "maybe": pd.array([1, None, 3] * 4, dtype="Int64"),
            "perhaps": pd.array([True, None, False] * 4, dtype="boolean"),
        },
        index=[f"cell{i}" for i in range(cells)],
    )
    # A table of one column: the list of its columns must stay a list.
    var = pd.DataFrame({"symbol": [f"s{i}" for i in range(genes)]}, index=[f"gene{i}" for i in range(genes)])
    data = anndata.AnnData(
        x,
        obs,
        var,
        uns={
            "method": "umap",
            "number": 5,
            "flag": True,
            "colors": np.array(["#fff", "#000"], dtype=object),
            "nested": {"weights": np.arange(3.0), "table": pd.DataFrame({"a": [1, 2]}, index=["x", "y"])},
            "record": np.array([(1, 2.5), (3, 4.5)], dtype=[("n", "i4"), ("v", "f8")]),
            "empty": np.zeros((0, 2)),
        },
        obsm={"X_pca": random.normal(size=(cells, 3)), "sparse": sp.csr_matrix(dense), "frame": obs[["age"]]},
        varm={"loadings": random.normal(size=(genes, 3))},
        layers={"counts": sp.csr_matrix(dense), "dense": dense * 2},
        obsp={"distances": sp.csr_matrix(random.random((cells, cells)) > 0.7)},
    )
    data.raw = data.copy()
    return data[:, 1:].copy()


def same(got, want, where="adata"):
    """Of the same classes and types, with the same values, all the way down."""
    if isinstance(want, Mapping):
        assert got.keys() == want.keys(), where
        for key in want:
            same(got[key], want[key], f"{where}/{key}")
        return
    assert type(got) is type(want), where
    if isinstance(want, pd.DataFrame):
        pd.testing.assert_frame_equal(got, want, obj=where)
    elif sp.issparse(want):
        assert got.dtype == want.dtype and got.shape == want.shape, where
        assert (got != want).nnz == 0, where
    else:
        got, want = np.asarray(got), np.asarray(want)
        # zarr-python has a type of its own for text.
        got = got.astype(object) if got.dtype.kind == "T" else got
        assert got.dtype == want.dtype, where
        np.testing.assert_array_equal(got, want, err_msg=where)


def assert_equal(got, want):
    for part in ["X", "obs", "var", "obsm", "varm", "obsp", "varp", "layers", "uns"]:
        same(getattr(got, part), getattr(want, part), part)
    same(got.raw.X, want.raw.X, "raw/X")
    same(got.raw.var, want.raw.var, "raw/var")
    assert len(want.uns) == 7 and len(want.obs.columns) == 9 and len(want.layers) == 2


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("form", ["csr", "csc", "dense"])
def test_anndata_reads_what_it_wrote(tmp_path, form, view):
    store = tmp_path / "data.h5ad"
    make(form).write_h5ad(store, compression="gzip")
    want = anndata.read_h5ad(store)
    with Mount(store) as m:
        assert_equal(anndata.read_zarr(m / ".npyfs" / view), want)
    with Mount(store, f"view={view}") as m:
        assert_equal(anndata.read_zarr(m.path), want)


@pytest.mark.parametrize("view", VIEWS)
def test_anndata_reads_lazily(tmp_path, view):
    store = tmp_path / "data.h5ad"
    make("csr").write_h5ad(store)
    want = anndata.read_h5ad(store)
    with Mount(store) as m:
        lazy = anndata.experimental.read_lazy(m / ".npyfs" / view)
        assert lazy.shape == want.shape
        assert np.array_equal(lazy.X[2:5].compute().toarray(), want.X[2:5].toarray())
        assert np.array_equal(lazy.obs["age"].values, want.obs["age"].values)
        some = lazy[3:8].to_memory()
        assert np.array_equal(some.layers["dense"], want[3:8].layers["dense"])
        assert list(some.obs["kind"]) == list(want[3:8].obs["kind"])
        assert list(some.obs_names) == list(want[3:8].obs_names)


@pytest.mark.filterwarnings("ignore::anndata.OldFormatWarning")
def test_tables_as_anndata_once_wrote_them(tmp_path):
    """Before 0.8 the categories of a column lay beside it, and an attribute referred to them; Zarr v3 reserves the name of the categories, and reads it."""
    store = tmp_path / "old.h5ad"
    with h5py.File(store, "w") as file:
        file.attrs["encoding-type"], file.attrs["encoding-version"] = "anndata", "0.1.0"
        file["X"] = np.ones((3, 2), "f4")
        file["X"].attrs["encoding-type"], file["X"].attrs["encoding-version"] = "array", "0.2.0"
        for axis, names in [("obs", ["a", "b", "c"]), ("var", ["x", "y"])]:
            table = file.create_group(axis)
            table.attrs["encoding-type"], table.attrs["encoding-version"] = "dataframe", "0.1.0"
            table.attrs["_index"] = "_index"
            table["_index"] = np.array(names, dtype=object)
            table.attrs["column-order"] = np.array(["kind"], dtype=object) if axis == "obs" else np.array([], dtype="f8")
        file["obs/kind"] = np.array([1, 0, 1], "i1")
        file["obs/__categories/kind"] = np.array(["B", "T"], dtype=object)
        file["obs/__categories/kind"].attrs["ordered"] = False
        file["obs/kind"].attrs["categories"] = file["obs/__categories/kind"].ref
    want = anndata.read_h5ad(store)
    assert list(want.obs["kind"]) == ["T", "B", "T"]
    with Mount(store) as m:
        for view in ("zarr", "zarr3"):
            got = anndata.read_zarr(m / ".npyfs" / view)
            assert list(got.obs["kind"]) == ["T", "B", "T"] and got.obs["kind"].dtype == want.obs["kind"].dtype
            assert got.shape == (3, 2) and list(got.var.columns) == []
