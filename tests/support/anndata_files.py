"""AnnData and MuData as their own libraries write them."""

import warnings

import anndata
import numpy as np
import pandas as pd
import scipy.sparse as sp

ROWS, COLUMNS = 7, 4


def table(rows=ROWS, prefix="c"):
    """Columns of every encoding."""
    def cut(values):
        return (values * (rows // len(values) + 1))[:rows]
    return pd.DataFrame({
        "kind": pd.Categorical(cut(["B", "T", None, "größer"]), categories=["B", "T", "größer", "unused"]),
        "grade": pd.Categorical(cut(["low", "high"]), categories=["low", "high"], ordered=True),
        "batch": pd.Categorical(cut([3, 11])), "lane": pd.Categorical(cut([3, None, 11])), "level": pd.Categorical(cut([0.5, None, 2.5])),
        "passed": pd.Categorical(cut([True, False])),
        "count": pd.array(cut([1, None, 3]), dtype="Int64"), "known": pd.array(cut([True, None, False]), dtype="boolean"),
        "name": cut(["a", "é", "long text"]), "good": cut([True, False]), "depth": np.arange(rows, dtype="f4"), "n": np.arange(rows, dtype="u2"),
    }, index=[f"{prefix}{i}" for i in range(rows)])


def matrix(form, rows=ROWS, columns=COLUMNS, dtype="f4", density=0.4, seed=1):
    made = sp.random(rows, columns, density, format="csr", random_state=seed)
    made.data = np.ceil(made.data * 100).astype(dtype)
    return made.toarray() if form == "dense" else made.asformat(form)


def annotated(form="csr", rows=ROWS, columns=COLUMNS):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = anndata.AnnData(matrix(form, rows, columns), obs=table(rows), var=table(columns, "g"))
        data.layers["csr"], data.layers["csc"], data.layers["dense"] = (matrix(f, rows, columns, "i8") for f in ("csr", "csc", "dense"))
        data.obsm["pca"], data.obsm["sparse"] = np.arange(rows * 2.0).reshape(rows, 2), matrix("csr", rows, 9)
        data.obsm["frame"] = pd.DataFrame({"u": range(rows), "v": pd.Categorical(list("xyxyxyxyxy")[:rows])}, index=data.obs_names)
        data.varm["loadings"] = np.ones((columns, 3))
        data.obsp["near"], data.varp["corr"] = matrix("csr", rows, rows), matrix("csc", columns, columns)
        data.uns.update({"title": "é", "number": 3, "nested": {"deep": {"values": np.arange(3)}, "eye": sp.eye(3, format="csc")},
                         "colors": np.array(["#ff0000", "#00ff00"]), "records": np.array([(1, 2.5), (3, 4.5)], [("a", "<i4"), ("b", "<f8")])})
        data.raw = data
    return data


def write(data, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data.write_h5ad(path)
    return path


def read(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return anndata.read_h5ad(path)


def write_mudata(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mudata
        mudata.set_options(pull_on_update=False)
        mudata.MuData({"rna": annotated("csr"), "prot": annotated("csc")}).write(path)
    return path


def read_mudata(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mudata
        return mudata.read(path)


def labels(column):
    """What the mount shows of a categorical: missing values are the empty text or NaN."""
    values = np.asarray(column.array if hasattr(column, "array") else column)
    if values.dtype == object:
        return np.array(["" if pd.isna(value) else value for value in values])
    return values
