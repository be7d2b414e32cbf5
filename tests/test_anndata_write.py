"""AnnData written through a checkout: anndata.read_h5ad of the export equals what was written, and what does not fit is refused.
Judge: real anndata."""

import errno
import os
import shutil

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from support import anndata_files as made
from support.checkouts import checkout
from support.mount import Mount

pytestmark = pytest.mark.fast
N, M = made.ROWS, made.COLUMNS


@pytest.fixture
def store(tmp_path):
    return made.write(made.annotated(), tmp_path / "a.h5ad")


def exported(store, commit=True):
    """The export of the checkout, as anndata reads it."""
    out = store.parent / "out.h5ad"
    if commit:
        checkout("commit", store, "c")
        checkout("export", store, out)
    else:
        checkout("export", store, "c", out)
    return made.read(out)


def save_parts(path, **parts):
    os.makedirs(path, exist_ok=True)
    for name, values in parts.items():
        np.save(path / f"{name}.npy", values)


def save_sparse(path, matrix):
    save_parts(path, data=matrix.data, indices=matrix.indices, indptr=matrix.indptr, shape=np.array(matrix.shape))


@pytest.mark.parametrize("commit", [True, False])
def test_columns(store, commit):
    want = made.read(store)
    with Mount(store, checkout="c") as mount:
        for name, values in [("score", np.linspace(0, 1, N)), ("flag", np.arange(N) % 2 == 0), ("text", np.array(["é", "b", "", "d", "e", "f", "long text"])),
                             ("big", np.arange(N, dtype=">i4")), ("a", np.arange(N, dtype="u1"))]:
            np.save(mount / f"obs/{name}.npy", values)
        np.save(mount / "obs/depth.npy", np.arange(N) * 2.0)
        np.save(mount / "var/length.npy", np.arange(M))
        save_parts(mount / "obs/kind2", codes=np.array([0, 1, -1, 1, 0, 0, 1], "i1"), categories=np.array(["x", "ü"]))
        save_parts(mount / "obs/count2", values=np.arange(N), mask=np.arange(N) == 3)
        save_parts(mount / "obs/known2", values=np.ones(N, bool), mask=np.arange(N) == 2)
        listed = mount.info("obs")["attributes"]["column-order"]
        assert listed == [*want.obs.columns, "a", "big", "count2", "flag", "kind2", "known2", "score", "text"]
    with Mount(store, checkout="c") as mount:
        assert np.load(mount / "obs/kind2.npy").tolist() == ["x", "ü", "", "ü", "x", "x", "ü"]
        assert mount.info("obs")["attributes"]["column-order"] == listed
    got = exported(store, commit)
    obs = want.obs.copy()
    obs["depth"] = np.arange(N) * 2.0
    obs["a"], obs["big"] = np.arange(N, dtype="u1"), np.arange(N, dtype="i4")
    obs["count2"] = pd.arrays.IntegerArray(np.arange(N), np.arange(N) == 3)
    obs["flag"] = np.arange(N) % 2 == 0
    obs["kind2"] = pd.Categorical(["x", "ü", None, "ü", "x", "x", "ü"], categories=["x", "ü"])
    obs["known2"] = pd.arrays.BooleanArray(np.ones(N, bool), np.arange(N) == 2)
    # As many different texts as rows stay text.
    obs["score"], obs["text"] = np.linspace(0, 1, N), ["é", "b", "", "d", "e", "f", "long text"]
    pd.testing.assert_frame_equal(got.obs, obs, check_dtype=True)
    assert got.var["length"].tolist() == list(range(M)) and list(got.var.columns)[-1] == "length"
    assert (got.X != want.X).nnz == 0 and got.uns["title"] == "é"


def test_matrices_and_arrays(store):
    random = {form: made.matrix(form, seed=9) for form in ("csr", "csc", "dense")}
    near = made.matrix("csr", N, N, "f8", seed=3)
    with Mount(store, checkout="c") as mount:
        sp.save_npz(mount / "layers/csc2.npz", random["csc"])
        sp.save_npz(mount / "layers/csr2.npz", random["csr"], compressed=False)
        save_sparse(mount / "layers/parts", random["csr"])
        np.save(mount / "layers/dense2.npy", random["dense"])
        sp.save_npz(mount / "X.npz", random["csc"])
        np.save(mount / "obsm/umap.npy", np.arange(N * 2.0).reshape(N, 2))
        np.save(mount / "varm/pcs.npy", np.ones((M, 5), "f4"))
        sp.save_npz(mount / "obsp/near2.npz", near)
        np.save(mount / "uns/scalar.npy", np.float64(2.5))
        np.save(mount / "uns/text.npy", np.array("ü"))
        np.save(mount / "uns/list.npy", np.array(["a", "b"]))
        os.mkdir(mount / "uns/more")
        np.save(mount / "uns/more/numbers.npy", np.arange(4))
        sp.save_npz(mount / "uns/more/eye.npz", sp.eye(3, format="csr"))
        np.save(mount / "obsm/frame/w.npy", np.arange(N))
        for path in ("layers/csc2", "X"):
            assert (sp.load_npz(mount / f"{path}.npz") != random["csc"]).nnz == 0
        assert sp.load_npz(mount / "X.npz").format == "csc"
    got = exported(store)
    for name, form in [("csc2", "csc"), ("csr2", "csr"), ("parts", "csr")]:
        assert got.layers[name].format == form and (got.layers[name] != random[form]).nnz == 0 and got.layers[name].dtype == random[form].dtype
    assert got.X.format == "csc" and (got.X != random["csc"]).nnz == 0
    np.testing.assert_array_equal(got.layers["dense2"], random["dense"])
    np.testing.assert_array_equal(got.obsm["umap"], np.arange(N * 2.0).reshape(N, 2))
    np.testing.assert_array_equal(got.varm["pcs"], np.ones((M, 5), "f4"))
    assert (got.obsp["near2"] != near).nnz == 0
    assert got.uns["scalar"] == 2.5 and got.uns["text"] == "ü" and got.uns["list"].tolist() == ["a", "b"]
    assert got.uns["more"]["numbers"].tolist() == [0, 1, 2, 3] and got.uns["more"]["eye"].shape == (3, 3)
    assert got.obsm["frame"]["w"].tolist() == list(range(N))


def test_deleting_columns_and_elements(store):
    with Mount(store, checkout="c") as mount:
        os.remove(mount / "obs/depth.npy")
        os.remove(mount / "layers/csc.npz")
        os.remove(mount / "obs/kind.npy")
        os.rename(mount / "obs/n.npy", mount / "obs/m.npy")
        for index in ("obs/_index.npy", "var/_index.npy"):
            with pytest.raises(OSError) as refused:
                os.remove(mount / index)
            assert refused.value.errno == errno.ENOTEMPTY
            with pytest.raises(OSError):
                os.rename(mount / index, mount / "obs/other.npy")
        assert not {"depth", "kind", "n"} & set(mount.info("obs")["attributes"]["column-order"])
        assert "kind" not in os.listdir(mount / "obs")
    got, before = exported(store), made.read(store)
    assert list(got.obs.columns) == [*(c for c in before.obs.columns if c not in ("depth", "kind", "n")), "m"]
    assert "csc" not in got.layers and got.obs["m"].tolist() == before.obs["n"].tolist()


def test_an_index_keeps_its_length(store):
    with Mount(store, checkout="c") as mount:
        for table in ("obs", "obsm/frame"):
            np.save(mount / table / "_index.npy", np.array([f"cell {i}" for i in range(N)]))
        for wrong in (np.array(["a"] * (N + 1)), np.arange(N)):
            with pytest.raises(OSError) as refused:
                np.save(mount / "obs/_index.npy", wrong)
            assert refused.value.errno == errno.EINVAL
    assert list(exported(store).obs_names) == [f"cell {i}" for i in range(N)]


def test_tables_have_the_names_of_their_axis(store):
    from support.process import npyfs
    names = np.array([f"cell {i}" for i in range(N)])
    with Mount(store, checkout="c") as mount:
        np.save(mount / "obs/_index.npy", names)
    for command in (["commit", store, "c"], ["export", store, "c", store.parent / "out.h5ad"]):
        done = npyfs("checkout", *command)
        assert done.returncode == 3 and "obsm/frame: its index has other names than that of obs" in done.stderr
    # What anndata says of such a file is what verify says.
    broken = store.with_name("broken.h5ad")
    shutil.copy(store, broken)
    with h5py.File(broken, "r+") as file:
        file["obs/_index"][...] = names
    with pytest.raises(ValueError, match="names"):
        made.read(broken)
    done = npyfs("verify", broken)
    assert done.returncode == 3 and "obsm/frame: its index has other names" in done.stderr + done.stdout
    with Mount(store, checkout="c") as mount:
        np.save(mount / "obsm/frame/_index.npy", names)
    assert list(exported(store).obsm["frame"].index) == names.tolist()


@pytest.mark.parametrize("path, values", [
    ("obs/short", np.zeros(N - 1)), ("obs/matrix", np.zeros((N, 2))), ("var/long", np.zeros(M + 1)), ("obs/scalar", np.float64(1)),
    ("layers/turned", np.zeros((M, N))), ("obsm/short", np.zeros((N - 1, 2))), ("varm/rows", np.zeros((N, 2))), ("obsp/rows", np.zeros((N, M))), ("X", np.zeros((N, M + 1))),
    ("obs/time", np.zeros(N, "M8[ns]")),
])
def test_what_does_not_fit_the_axes_is_refused(store, path, values):
    with Mount(store, checkout="c") as mount:
        with pytest.raises(OSError) as refused:
            np.save(mount / f"{path}.npy", values)
        assert refused.value.errno in (errno.EINVAL, errno.EOPNOTSUPP)
        assert any("fit" in line or "type" in line for line in mount.errors())


def test_what_anndata_would_not_open_is_refused(store, tmp_path):
    with h5py.File(store, "r+") as file:
        file["odd"] = np.arange(3)
    with Mount(store, checkout="c") as mount:
        for make in (lambda: np.save(mount / "score.npy", np.zeros(N)), lambda: np.save(mount / "mod.npy", np.zeros(N)), lambda: os.mkdir(mount / "extra")):
            with pytest.raises(OSError) as refused:
                make()
            assert refused.value.errno == errno.EINVAL
        assert all("uns" in line for line in mount.errors())
        assert not {"score.npy", "mod.npy", "extra"} & set(os.listdir(mount.path))
        # What is there already is not made worse; it can be deleted, and the file is AnnData again.
        np.save(mount / "odd.npy", np.arange(4))
        os.remove(mount / "odd.npy")
        np.save(mount / "uns/score.npy", np.arange(N))
    assert exported(store).uns["score"].tolist() == list(range(N))
    mudata = made.write_mudata(tmp_path / "m.h5mu")
    with Mount(mudata, checkout="c") as mount:
        for name in ("score", "mod/rna/score"):
            with pytest.raises(OSError):
                np.save(mount / f"{name}.npy", np.zeros(N))


@pytest.mark.parametrize("parts", [
    {"codes": np.zeros(N - 1, "i1"), "categories": np.array(["a"])}, {"codes": np.ones(N, "i1"), "categories": np.array(["a"])},
    {"codes": np.zeros(N), "categories": np.array(["a"])}, {"codes": np.zeros(N, "i1"), "categories": np.array(["a", "a"])},
    {"values": np.zeros(N, int), "mask": np.zeros(N - 1, bool)}, {"values": np.zeros(N, int), "mask": np.zeros(N, int)}, {"values": np.zeros(N), "mask": np.zeros(N, bool)},
])
def test_members_that_do_not_fit_each_other_are_refused(store, parts):
    with Mount(store, checkout="c") as mount:
        with pytest.raises(OSError):
            save_parts(mount / "obs/new", **parts)
        assert "new" not in mount.info("obs")["attributes"]["column-order"]


def test_sparse_matrices_that_do_not_fit_are_refused(store):
    good = made.matrix("csr", seed=4)
    with Mount(store, checkout="c") as mount:
        for wrong in (made.matrix("csr", N, M + 1), made.matrix("csc", N + 1, M), sp.csr_matrix((M, N))):
            with pytest.raises(OSError):
                sp.save_npz(mount / "layers/wrong.npz", wrong)
            assert "wrong" not in os.listdir(mount / "layers")
        outside = good.copy()
        outside.indices = outside.indices + M
        with pytest.raises(OSError):
            save_sparse(mount / "layers/outside", outside)
    with h5py.File(store) as file:
        assert "wrong" not in file["layers"]


def test_a_second_mount_and_later_layers(store):
    with Mount(store, checkout="c") as mount:
        np.save(mount / "obs/one.npy", np.arange(N))
    checkout("commit", store, "c")
    with Mount(store, checkout="c") as mount:
        assert mount.info("obs")["attributes"]["column-order"][-1] == "one"
        os.remove(mount / "obs/one.npy")
        np.save(mount / "obs/two.npy", np.arange(N))
    got = exported(store)
    assert "one" not in got.obs and got.obs.columns[-1] == "two"


def test_mudata(tmp_path):
    path = made.write_mudata(tmp_path / "m.h5mu")
    with Mount(path, checkout="c") as mount:
        np.save(mount / "mod/rna/obs/score.npy", np.arange(N))
        save_parts(mount / "mod/prot/obs/cut", codes=np.zeros(N, "i1"), categories=np.array(["all"]))
        sp.save_npz(mount / "mod/rna/layers/new.npz", made.matrix("csr", seed=8))
        with pytest.raises(OSError):
            np.save(mount / "mod/rna/obs/short.npy", np.arange(N - 1))
    checkout("commit", path, "c")
    checkout("export", path, tmp_path / "out.h5mu")
    got = made.read_mudata(tmp_path / "out.h5mu")
    assert got.mod["rna"].obs["score"].tolist() == list(range(N)) and set(got.mod["prot"].obs["cut"]) == {"all"}
    assert (got.mod["rna"].layers["new"] != made.matrix("csr", seed=8)).nnz == 0


def test_verify_finds_what_breaks_the_rules(store):
    from support.process import npyfs
    with h5py.File(store, "r+") as file:
        file["X/indices"][0] = M
        file["obs/grade/codes"][1] = 7
        file["obs/stray"] = np.arange(3)
    done = npyfs("verify", store)
    said = done.stdout + done.stderr
    assert done.returncode != 0 and "X: " in said and "/obs/grade" in said and "stray: shape [3]" in said


@pytest.mark.parametrize("commit", [True, False])
def test_a_column_of_text_becomes_a_categorical_where_anndata_makes_it_one(store, commit):
    """The judge writes the same columns itself."""
    few, as_bytes = np.array(["zé", "b", "", "b", "zé", "b", "long text"]), np.array(["a"] * N, "S1")
    more = np.array(["v10", "v9", "9", "10", "v9a", "v9", "x1y2"])
    every = np.array([f"u{i}" for i in range(N)])
    with Mount(store, checkout="c") as mount:
        for name, values in [("few", few), ("more", more), ("as_bytes", as_bytes), ("every", every), ("kind", few)]:
            np.save(mount / f"obs/{name}.npy", values)
            # What was written stays what it is.
            assert (mount / f"obs/{name}.npy").is_file() and not (mount / f"obs/{name}").exists()
            np.testing.assert_array_equal(np.load(mount / f"obs/{name}.npy"), values)
        np.save(mount / "var/gene_type.npy", np.array(["x"] * M))
        np.save(mount / "uns/few.npy", few)
        os.setxattr(mount / "obs/few.npy", "user.about", b"a few")
    want = made.read(store)
    for name, values in [("few", few), ("more", more), ("as_bytes", as_bytes.astype(str)), ("every", every), ("kind", few)]:
        want.obs[name] = values.astype(object)
    want.var["gene_type"] = ["x"] * M
    want.write_h5ad(store.parent / "judge.h5ad")
    got, judge = exported(store, commit), made.read(store.parent / "judge.h5ad")
    for name in ("few", "more", "as_bytes", "every", "kind"):
        pd.testing.assert_series_equal(got.obs[name], judge.obs[name])
        assert isinstance(got.obs[name].dtype, pd.CategoricalDtype) == (name != "every")
    pd.testing.assert_series_equal(got.var["gene_type"], judge.var["gene_type"])
    assert list(got.uns["few"]) == list(few) and set(got.obs.columns) == set(judge.obs.columns)
    with h5py.File(store.parent / "out.h5ad") as ours, h5py.File(store.parent / "judge.h5ad") as theirs:
        assert ours["obs/few"].attrs["about"] == "a few"
        for name in ("few", "more"):
            for part in ("codes", "categories"):
                a, b = ours[f"obs/{name}/{part}"], theirs[f"obs/{name}/{part}"]
                assert a.dtype == b.dtype or part == "categories"
                np.testing.assert_array_equal(a.asstr()[:] if part == "categories" else a[:], b.asstr()[:] if part == "categories" else b[:])
    # A mount of the new file has the texts under the same names.
    with Mount(store.parent / "out.h5ad") as mount:
        for name, values in [("few", few), ("more", more), ("every", every)]:
            np.testing.assert_array_equal(np.load(mount / f"obs/{name}.npy"), values)
        assert (mount / "obs/few/codes.npy").exists()


def test_a_publication_has_the_columns_too(store):
    with Mount(store, checkout="c") as mount:
        np.save(mount / "obs/score.npy", np.arange(N))
        os.remove(mount / "obs/depth.npy")
    checkout("commit", store, "c")
    checkout("publish", store, store.parent / "links.h5ad")
    got = made.read(store.parent / "links.h5ad")
    assert got.obs.columns[-1] == "score" and "depth" not in got.obs and got.obs["score"].tolist() == list(range(N))
