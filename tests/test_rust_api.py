"""The examples of the Rust API, each on what it is for. Judges: h5py, NumPy and scipy.

cargo test builds the examples beside the program."""

import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.sparse

from support.buckets import S3
from support.mount import Mount
from support.process import NPYFS, npyfs, run
from support.web import Site

EXAMPLES = Path(NPYFS).with_name("examples")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rust") / "stores"
    npyfs("demo", folder, check=True)
    return folder


def example(name, *arguments, code=0, env=None):
    program = EXAMPLES / name
    if not program.is_file():
        pytest.skip(f"{program} is missing: cargo test builds it; the example is NOT run")
    # Nothing that could stand in for the program itself as its worker.
    done = run([program, *arguments], env={"HOME": os.environ.get("HOME", "/"), **(env or {})})
    assert done.returncode == code, done
    return done.stdout if code == 0 else done.stderr


def test_attributes_and_groups(demo):
    wanted, found = {}, {}
    with h5py.File(demo / "plain.h5") as file:
        wanted["/"] = dict(file.attrs)
        file.visititems(lambda name, item: wanted.update({f"{name}.npy" if isinstance(item, h5py.Dataset) else name: dict(item.attrs)}))
    for line in example("attributes", demo / "plain.h5").splitlines():
        if line.startswith("    "):
            name, _, value = line.strip().partition(": ")
            above[name] = value
        else:
            above = found[line] = {}
    assert found.keys() == wanted.keys() and found["images/stack.npy"] == wanted["images/stack.npy"] == {"units": "counts"}


def test_attributes_of_every_type(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(3)
        file["x"].attrs.update({"number": np.int64(-7), "numbers": [1, 2, 3], "float": 0.5, "text": "grün", "small": np.uint8(200)})
        file["x"].attrs["reference"] = file["x"].ref
    lines = [line.strip() for line in example("attributes", tmp_path / "a.h5").splitlines()]
    assert lines[:5] == ["/", "x.npy", "float: 0.5", "number: -7", "numbers: [1, 2, 3]"]
    assert lines[5].startswith("reference: x.npy: attribute reference: ") and lines[6:] == ["small: |u1 []", "text: grün"]


def test_text(demo):
    with h5py.File(demo / "cells.h5df") as file:
        values, counts = np.unique(file["cell#batch"].asstr()[()], return_counts=True)
    assert example("text", demo / "cells.h5df", "cell#batch").splitlines() == [f"{count} {value}" for value, count in zip(values, counts)]


def test_parts(tmp_path):
    data = np.arange(3_000_000, dtype="f4").reshape(3000, 1000) / 7
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=data, chunks=(700, 1000), compression="gzip", compression_opts=1)
    # A chunk of 700 rows has 2.7 MiB: one in a part of 4 MiB at the most.
    said = example("parts", tmp_path / "a.h5", "x").split()
    assert said[:2] == ["5", "parts,"] and float(said[3]) == pytest.approx(data.sum(dtype="f8"), rel=1e-12)


def test_addresses(demo):
    with h5py.File(demo / "cells.h5df") as file:
        row = file["cell,gene#score"][17]
    with Site(demo) as site:
        said = example("address", site.url("cells.h5df"), "cell,gene#score", "17")
        assert f"{len(row)} elements, mean Some(" in said and float(said.split("Some(")[1].rstrip(")\n")) == pytest.approx(row.mean(), rel=1e-5)
        assert "NotFound" in example("address", site.url("cells.h5df"), "nothing", "17", code=1)


def test_commits_and_checkouts(demo, tmp_path):
    store = tmp_path / "plain.h5"
    with h5py.File(store, "w") as file:
        file["x"] = np.arange(3.0)
    for name in ("first", "second", "third"):
        with Mount(store, checkout=name) as m:
            np.save(m / f"{name}.npy", np.arange(2))
        if name != "third":
            npyfs("checkout", "commit", "-m", name, store, name, check=True)
    def names(*how):
        return [line.split()[0] for line in example("commit", store, *how).splitlines()]
    assert names("at", "1") == names("at", "HEAD~1") == ["first.npy", "x.npy"]
    assert names("at", "HEAD") == ["first.npy", "second.npy", "x.npy"]
    assert names("checkout", "third") == ["first.npy", "second.npy", "third.npy", "x.npy"]
    assert "no commit" in example("commit", store, "at", "7", code=1)


@pytest.mark.parametrize("order", ["csr", "csc"])
def test_sparse_matrices(tmp_path, order):
    import anndata

    rng = np.random.default_rng(3)
    # A square one: its shape does not tell the order.
    matrix = scipy.sparse.random(40, 40, 0.1, format=order, rng=rng, dtype="f4")
    anndata.AnnData(matrix).write_h5ad(tmp_path / "a.h5ad")
    said = example("sparse", tmp_path / "a.h5ad", "X").rpartition(" ")
    assert said[0] == f"{order.capitalize()} 40 x 40, {matrix.nnz} stored, sum" and float(said[2]) == pytest.approx(matrix.sum(dtype="f8"), rel=1e-6)


def test_a_sparse_matrix_of_daf(demo):
    with h5py.File(demo / "cells.h5df") as file:
        total = file["cell,gene#UMIs/data"][()].sum()
        stored = len(file["cell,gene#UMIs/data"])
    assert example("sparse", demo / "cells.h5df", "cell,gene#UMIs") == f"Csr 1000 x 200, {stored} stored, sum {total}\n"
    assert example("sparse", demo / "cells.h5df", "cell,gene#UMIs.npz") == f"Csr 1000 x 200, {stored} stored, sum {total}\n"
    for missing in ("nothing", "nothing.npz"):
        assert "NotFound" in example("sparse", demo / "cells.h5df", missing, code=1)
    for dense in ("cell#age", "cell#age.npy"):
        assert "no sparse matrix" in example("sparse", demo / "cells.h5df", dense, code=1)


def test_the_top_of_a_store_is_listed(demo):
    assert example("read", demo / "plain.h5").splitlines() == ["images/", "names.npy <U5 [3]", "pi.npy <f8 []"]


def test_writing_into_a_checkout(demo, tmp_path):
    store = shutil.copy(demo / "cells.h5df", tmp_path / "cells.h5df")
    [id_] = example("write", store, "cell,gene#score", "cell#sum").split()
    assert npyfs("checkout", "log", "-0", store, check=True).stdout.split("\0")[0] == id_
    npyfs("checkout", "export", store, tmp_path / "out.h5df", check=True)
    with h5py.File(tmp_path / "out.h5df") as file:
        np.testing.assert_allclose(file["cell#sum"][:], file["cell,gene#score"][:].sum(axis=1), rtol=1e-5)
    assert "gene#sum" in example("write", store, "cell,gene#score", "gene#sum", code=1)


def test_a_bucket(demo, tmp_path, monkeypatch):
    with h5py.File(demo / "cells.h5df") as file:
        row = file["cell,gene#score"][17]
    with S3() as s3:
        s3.put("data", "dir/cells.h5df", demo / "cells.h5df", ACL="public-read")
        env = {**s3.env, "AWS_ENDPOINT_URL": s3.url, "AWS_EC2_METADATA_DISABLED": "true"}
        said = example("address", "s3://data/dir/cells.h5df", "cell,gene#score", "17", env=env)
        assert float(said.split("Some(")[1].rstrip(")\n")) == pytest.approx(row.mean(), rel=1e-5)
        # A checkout of a store in a bucket lies beside it.
        [id_] = example("write", "s3://data/dir/cells.h5df", "cell,gene#score", "cell#sum", env={**env, "HOME": str(tmp_path)}).split()
        keys = [item["Key"] for item in s3.client.list_objects_v2(Bucket="data")["Contents"]]
        assert any(key.startswith("dir/cells.h5df.checkouts/commits/") for key in keys), keys
