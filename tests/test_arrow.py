"""The view of tables as Arrow files: `.npyfs/arrow` and `-o view=arrow`. Judges: pyarrow over a memory map with full validation,
polars, DuckDB and pandas read the files; h5py, anndata and the arrays that were written say what is in them."""

import errno
import json
import os
from functools import partial

import anndata
import duckdb
import h5py
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest
from pyarrow import ipc

from support import arkouda
from support.mount import Mount, until
from support.process import npyfs

pytestmark = pytest.mark.fast

VIEW = ".npyfs/arrow"


def opened(path):
    """A copy of the table of a file, which is validated in full over a memory map. The size is what stat said, and buffers are aligned."""
    size, data = os.stat(path).st_size, path.read_bytes()
    assert len(data) == size
    table = ipc.open_file(pa.BufferReader(data)).read_all()
    with pa.memory_map(str(path)) as source:
        mapped = ipc.open_file(source).read_all()
    mapped.validate(full=True)
    base = [buffer.address for column in mapped.itercolumns() for part in column.chunks for buffer in part.buffers() if buffer and buffer.size]
    assert all(address % 64 == 0 for address in base)
    # NaN is not itself.
    assert mapped.schema.equals(table.schema, check_metadata=True) and repr(mapped.to_pylist()) == repr(table.to_pylist())
    return table


def left_out(mount, group=""):
    """{name: reason} of what the view leaves out of a directory."""
    report = mount / (f".npyfs/info.arrow/{group}.json" if group else ".npyfs/info.arrow.json")
    return {entry["name"]: entry["reason"] for entry in json.loads(report.read_bytes())["left_out"]}


def values(table):
    return {name: column.to_pylist() for name, column in zip(table.column_names, table.columns)}


# Compounds.

COMPOUND = np.dtype({
    "names": ["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "big", "bigf", "s4", "s20", "c", "v3", "list", "nested"],
    "formats": ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", ">i4", ">f8", "S4", "S20", "c8", "V3", ("i2", (2, 3)),
                np.dtype([("x", ">u2"), ("ok", "?"), ("deep", [("name", "S15")])])],
})


def compounds(count):
    random = np.random.default_rng(3)
    rows = np.frombuffer(random.bytes(count * COMPOUND.itemsize), COMPOUND).copy()
    for name in ["b1"]:
        rows[name] = random.random(count) > 0.5
    rows["nested"]["ok"] = random.random(count) > 0.5
    rows["s4"] = [b"abcd"[: n % 5] for n in range(count)]
    rows["s20"] = [(b"text %d that is long" % n)[: n % 20] for n in range(count)]
    rows["nested"]["deep"]["name"] = [b"a name of %d" % (n % 100) for n in range(count)]
    for name in ["f2", "f4", "f8", "bigf"]:
        rows[name] = random.normal(size=count)
    rows["c"] = random.normal(size=count) + 1j
    return rows


def plain(value):
    """An element of NumPy as pyarrow shows it in Python."""
    if isinstance(value, np.void) and value.dtype.names:
        return {name: plain(value[name]) for name in value.dtype.names}
    if isinstance(value, np.ndarray):
        return [plain(one) for one in value]
    if isinstance(value, np.void):
        return value.tobytes()
    if isinstance(value, np.complexfloating):
        return {"r": float(value.real), "i": float(value.imag)}
    if isinstance(value, bytes):
        return value.decode()
    return value.item()


@pytest.mark.parametrize("layout", [{}, {"chunks": (300,), "compression": "gzip", "shuffle": True}, {"chunks": (1000,), "maxshape": (None,)}],
                         ids=["contiguous", "gzip", "chunked"])
def test_compounds_are_tables_of_their_members(layout, tmp_path):
    rows = compounds(1000)
    with h5py.File(tmp_path / "store.h5", "w") as file:
        file.create_dataset("group/rows", data=rows, **layout)
        file["group/rows"].attrs["long_name"] = "some rows"
        file["group/rows"].attrs["version"] = np.arange(2)
    with Mount(tmp_path / "store.h5") as mount:
        table = opened(mount / VIEW / "group/rows.arrow")
        assert table.column_names == list(COMPOUND.names) and len(table) == 1000
        for name in COMPOUND.names:
            assert table[name].to_pylist() == [plain(value) for value in rows[name]], name
        kinds = {name: str(table.schema.field(name).type) for name in COMPOUND.names}
        assert kinds["i8"] == "int64" and kinds["big"] == "int32" and kinds["u2"] == "uint16" and kinds["f2"] == "halffloat"
        assert kinds["b1"] == "bool" and kinds["s20"] == "string_view" and kinds["v3"] == "fixed_size_binary[3]"
        assert kinds["list"] == "fixed_size_list<item: fixed_size_list<item: int16>[3]>[2]"
        assert table.schema.metadata == {b"long_name": b"some rows", b"version": b"[0,1]"}
        frame = pl.scan_ipc(mount / VIEW / "group/rows.arrow").select("i8", "s20", "bigf").collect().to_dict(as_series=False)
        assert frame == {"i8": rows["i8"].tolist(), "s20": [text.decode() for text in rows["s20"]], "bigf": rows["bigf"].tolist()}
        assert os.listdir(mount / VIEW) == ["group"] and os.listdir(mount / VIEW / "group") == ["rows.arrow"]


def test_columns_of_more_than_one_batch(tmp_path):
    count = 2_500_000
    rows = np.zeros(count, [("i", "u4"), ("b", "?"), ("s", "S14")])
    rows["i"], rows["b"] = np.arange(count), np.arange(count) % 3 == 0
    rows["s"] = np.char.add("number ", np.arange(count).astype(str)).astype("S14")
    with h5py.File(tmp_path / "store.h5", "w") as file:
        file.create_dataset("rows", data=rows, chunks=(100_000,), compression="lzf")
        file.create_dataset("columns/a", data=rows["i"], chunks=(100_000,), compression="gzip")
        file.create_dataset("columns/b", data=rows["b"])
    with Mount(tmp_path / "store.h5") as mount:
        for name in ["rows.arrow", "columns.arrow"]:
            with pa.memory_map(str(mount / VIEW / name)) as source:
                assert [ipc.open_file(source).get_batch(n).num_rows for n in range(3)] == [1_000_000, 1_000_000, 500_000]
        table = opened(mount / VIEW / "rows.arrow")
        assert np.array_equal(table["i"].to_numpy(), rows["i"]) and np.array_equal(table["b"].to_numpy(), rows["b"])
        assert table["s"].to_pylist() == [text.decode() for text in rows["s"].tolist()]
        table = opened(mount / VIEW / "columns.arrow")
        assert np.array_equal(table["a"].to_numpy(), rows["i"]) and np.array_equal(table["b"].to_numpy(), rows["b"])


def test_text_that_is_not_utf8_is_no_harm(tmp_path):
    rows = np.array([(b"caf\xe9", b"a long text with \xff\xfe in it")], [("short", "S6"), ("long", "S40")])
    with h5py.File(tmp_path / "store.h5", "w") as file:
        file["rows"] = rows
        file["texts/bytes"] = np.array([b"\xff", b"b"])
    with Mount(tmp_path / "store.h5") as mount:
        assert values(opened(mount / VIEW / "rows.arrow")) == {"short": ["caf?"], "long": ["a long text with ?? in it"]}
        table = opened(mount / VIEW / "texts.arrow")
        assert table.schema.field("bytes").type == pa.large_binary() and values(table) == {"bytes": [b"\xff", b"b"]}


# Groups of columns.

def test_groups_whose_arrays_have_one_length(tmp_path):
    with h5py.File(tmp_path / "store.h5", "w") as file:
        file["a"], file["b"], file["scalar"], file["matrix"] = np.arange(3), np.arange(3) > 1, 5.0, np.zeros((2, 2))
        file["a"].attrs["units"] = "m"
        file["names"] = ["x", "", "é and more than twelve bytes"]
        file["fixed"] = np.array([b"ab", b"c", b""])
        file["one/column"] = np.arange(4, dtype=">f4")
        file["two/lengths"], file["two/differ"] = np.arange(4), np.arange(5)
        file["none/rows"] = np.zeros(0, "i2")
        file["none/texts"] = np.zeros(0, h5py.string_dtype())
        file["root/x"] = file["deep.arrow/x"] = np.arange(2)
    with Mount(tmp_path / "store.h5") as mount:
        view = mount / VIEW
        assert sorted(os.listdir(view)) == ["%72oot.arrow", "deep%2Earrow", "deep.arrow.arrow", "none", "none.arrow", "one", "one.arrow", "root",
                                            "root.arrow", "two"]
        table = opened(view / "root.arrow")
        assert values(table) == {"a": [0, 1, 2], "b": [False, False, True], "fixed": ["ab", "c", ""],
                                 "names": ["x", "", "é and more than twelve bytes"]}
        assert table.schema.field("a").metadata == {b"units": b"m"} and table.schema.field("names").type == pa.large_string()
        assert values(opened(view / "one.arrow")) == {"column": [0, 1, 2, 3]}
        assert values(opened(view / "none.arrow")) == {"rows": [], "texts": []}
        assert values(opened(view / "%72oot.arrow")) == values(opened(view / "deep.arrow.arrow")) == {"x": [0, 1]}
        assert not (view / "two.arrow").exists() and not (view / "deep%2Earrow/x.arrow").exists() and not (view / "no.arrow").exists()
        info = json.loads((mount / ".npyfs/info.arrow/root.arrow.json").read_bytes())
        assert info["rows"] == 3 and {"name": "a", "type": "Int64"} in info["columns"]


def test_the_view_alone(tmp_path):
    with h5py.File(tmp_path / "store.h5", "w") as file:
        file["a"] = np.arange(3)
    with Mount(tmp_path / "store.h5", "view=arrow") as mount:
        assert os.listdir(mount.path) == ["root.arrow"]
        assert values(opened(mount / "root.arrow")) == {"a": [0, 1, 2]}


def test_a_directory_of_stores(tmp_path):
    stores = tmp_path / "stores"
    stores.mkdir()
    for name in ["x.h5", "y.h5"]:
        with h5py.File(stores / name, "w") as file:
            file["a"] = np.arange(3)
    with Mount(stores) as mount:
        assert sorted(os.listdir(mount / VIEW)) == ["x.h5", "y.h5"] and os.listdir(mount / VIEW / "x.h5") == ["root.arrow"]
        assert values(opened(mount / VIEW / "y.h5/root.arrow")) == {"a": [0, 1, 2]}


def test_nothing_is_written_through_the_view(tmp_path):
    with h5py.File(tmp_path / "store.h5", "w") as file:
        file["a"] = np.arange(3)
    # As everywhere in .npyfs, a mount that can be written says that this cannot be.
    for checkout, number in [(None, errno.EROFS), ("work", errno.EPERM)]:
        with Mount(tmp_path / "store.h5", checkout=checkout) as mount:
            for act in [lambda path: open(path, "r+b"), os.unlink, lambda path: os.rename(path, path.with_name("other"))]:
                with pytest.raises(OSError) as refused:
                    act(mount / VIEW / "root.arrow")
                assert refused.value.errno == number
            with pytest.raises(OSError) as refused:
                (mount / VIEW / "new.arrow").write_bytes(b"")
            assert refused.value.errno == number


def test_a_store_that_changes_is_another_file(tmp_path):
    store = tmp_path / "store.h5"
    with h5py.File(store, "w") as file:
        file["a"] = np.arange(3)
    with Mount(store) as mount:
        assert values(opened(mount / VIEW / "root.arrow")) == {"a": [0, 1, 2]}
        size = os.stat(mount / VIEW / "root.arrow").st_size
        with h5py.File(tmp_path / "new.h5", "w") as file:
            file["a"] = np.arange(10)
        os.replace(tmp_path / "new.h5", store)
        # The kernel may know the old size for a second.
        until(lambda: os.stat(mount / VIEW / "root.arrow").st_size > size, "the new version")
        assert values(opened(mount / VIEW / "root.arrow")) == {"a": list(range(10))}


def test_changes_of_a_checkout_are_in_the_tables(tmp_path):
    with h5py.File(tmp_path / "store.h5", "w") as file:
        file["group/a"] = np.arange(3)
    with Mount(tmp_path / "store.h5", checkout="work") as mount:
        np.save(mount / "group/b.npy", np.arange(3) * 2.0)
        until(lambda: values(opened(mount / VIEW / "group.arrow")) == {"a": [0, 1, 2], "b": [0.0, 2.0, 4.0]}, "the new column")


# AnnData.

def frame(cells=12):
    random = np.random.default_rng(7)
    return pd.DataFrame(
        {
            "kind": pd.Categorical(random.choice(["B", "T", "NK"], cells)),
            "grade": pd.Categorical(random.choice(["low", "high"], cells), categories=["low", "high"], ordered=True),
            "gap": pd.Categorical([None, "a"] * (cells // 2)),
            "age": random.integers(0, 90, cells),
            "score": random.normal(size=cells),
            "passed": random.random(cells) > 0.5,
            "note": np.array(["é", ""] * (cells // 2), dtype=object),
            "maybe": pd.array([1, None, 3] * (cells // 3), dtype="Int64"),
            "perhaps": pd.array([True, None, False] * (cells // 3), dtype="boolean"),
            "level": pd.Categorical(np.arange(cells) % 3 * 10),
        },
        index=pd.Index([f"cell{i}" for i in range(cells)], name="barcode"),
    )


def write_cells(path, obs):
    anndata.AnnData(np.zeros((len(obs), 2), "f4"), obs, pd.DataFrame(index=["g1", "g2"])).write_h5ad(path)


@pytest.fixture
def cells(tmp_path):
    write_cells(tmp_path / "cells.h5ad", frame())
    return tmp_path / "cells.h5ad"


def test_data_frames_are_as_anndata_reads_them(cells):
    truth = anndata.read_h5ad(cells).obs
    with Mount(cells) as mount:
        view = mount / VIEW
        assert {"obs.arrow", "var.arrow"} <= set(os.listdir(view)) and "root.arrow" not in os.listdir(view) and not left_out(mount)
        table = opened(view / "obs.arrow")
        assert table.column_names == ["barcode", *truth.columns]
        shown = table.to_pandas().set_index("barcode")
        for name in truth.columns:
            missing = truth[name].isna()
            assert (shown[name].isna() == missing).all(), name
            assert shown[name][~missing].tolist() == truth[name][~missing].tolist(), name
        assert shown["grade"].cat.ordered and shown["grade"].cat.categories.tolist() == ["low", "high"] and not shown["kind"].cat.ordered
        assert shown.index.tolist() == truth.index.tolist()
        assert table["gap"].null_count == 6 and table["maybe"].null_count == 4 and table["kind"].null_count == 0
        assert values(opened(view / "var.arrow")) == {"_index": ["g1", "g2"]}
        counts = pl.scan_ipc(view / "obs.arrow").group_by("kind").len().collect()
        assert dict(zip(counts["kind"].to_list(), counts["len"].to_list())) == truth["kind"].value_counts().to_dict()
        arrow = table
        ages = dict(duckdb.sql("select kind, sum(age) from arrow where passed group by kind").fetchall())
        assert ages == truth[truth.passed].groupby("kind", observed=True).age.sum().to_dict()


def broken(cells, change):
    with h5py.File(cells, "a") as file:
        change(file["obs"])


def replaced(group, name, data):
    attributes = dict(group[name].attrs)
    del group[name]
    group[name] = data
    group[name].attrs.update(attributes)


# What a data frame may say that is not so: the column that is left out, a word of the reason, and how it is made.
BAD_COLUMNS = {
    "codes beyond": ("kind", "a code 3, of 3 categories", lambda obs: obs["kind/codes"].__setitem__(3, 3)),
    "negative codes": ("kind", "a code -2", lambda obs: obs["kind/codes"].__setitem__(3, -2)),
    "codes of floats": ("kind", "not integers", lambda obs: replaced(obs["kind"], "codes", np.zeros(12))),
    "codes of another length": ("kind", "11 rows", lambda obs: replaced(obs["kind"], "codes", np.zeros(11, "i1"))),
    "codes in a matrix": ("kind", "shape", lambda obs: replaced(obs["kind"], "codes", np.zeros((12, 1), "i1"))),
    "no categories": ("kind", "categories", lambda obs: obs["kind"].__delitem__("categories")),
    "mask of another length": ("maybe", "a mask of length 13", lambda obs: replaced(obs["maybe"], "mask", np.zeros(13, "?"))),
    "mask of numbers": ("maybe", "not of booleans", lambda obs: replaced(obs["maybe"], "mask", np.zeros(12))),
    "missing": ("nothing", "no such array", lambda obs: obs.attrs.__setitem__("column-order", [*obs.attrs["column-order"], "nothing"])),
    "listed twice": ("age", "another column has its name", lambda obs: obs.attrs.__setitem__("column-order", [*obs.attrs["column-order"], "age"])),
    "the index again": ("barcode", "another column", lambda obs: obs.attrs.__setitem__("column-order", [*obs.attrs["column-order"], "barcode"])),
    "a circle": ("age", "no such array", lambda obs: (obs.__delitem__("age"), obs.__setitem__("age", obs))),
    "another length": ("age", "11 rows", lambda obs: replaced(obs, "age", np.zeros(11))),
    "no column": ("age", "shape", lambda obs: replaced(obs, "age", 5)),
}


@pytest.mark.parametrize("what", BAD_COLUMNS)
def test_a_bad_column_is_left_out_and_said(what, cells):
    name, why, change = BAD_COLUMNS[what]
    broken(cells, change)
    with Mount(cells) as mount:
        table = opened(mount / VIEW / "obs.arrow")
        assert table.column_names.count(name) == (what in ("listed twice", "the index again")) and len(table) == 12
        assert why in left_out(mount)[f"obs.arrow: {name}"]
        report = json.loads((mount / ".npyfs/info.arrow/obs.arrow.json").read_bytes())
        assert [entry["name"] for entry in report["left_out"]] == [name]


BAD_FRAMES = {
    "no index": ("barcode", lambda obs: obs.__delitem__("barcode")),
    "an index that is not named": ("no index", lambda obs: obs.attrs.__delitem__("_index")),
    "no order": ("column-order", lambda obs: obs.attrs.__delitem__("column-order")),
    "an index that is a group": ("barcode", lambda obs: (obs.__delitem__("barcode"), obs.create_group("barcode"))),
}


@pytest.mark.parametrize("what", BAD_FRAMES)
def test_a_bad_frame_is_left_out_and_said(what, cells):
    why, change = BAD_FRAMES[what]
    broken(cells, change)
    with Mount(cells) as mount:
        assert "obs.arrow" not in os.listdir(mount / VIEW) and not (mount / VIEW / "obs.arrow").exists()
        assert why in left_out(mount)["obs.arrow"] and "var.arrow" in os.listdir(mount / VIEW)
        assert "left out" in npyfs("info", str(mount / VIEW)).stdout.lower() or why


def test_columns_that_arrow_has_no_form_for_are_left_out(tmp_path):
    with h5py.File(tmp_path / "store.h5", "w") as file:
        file["a"] = np.arange(2)
        file["long"] = np.zeros(2, np.longdouble)
        file["only/long"] = np.zeros(2, np.longdouble)
    with Mount(tmp_path / "store.h5") as mount:
        assert opened(mount / VIEW / "root.arrow").column_names == ["a"]
        assert "no elements of type" in left_out(mount)["root.arrow: long"]
        assert "none of its columns" in left_out(mount)["only.arrow"] and not (mount / VIEW / "only.arrow").exists()


def test_rows_that_were_never_written_cost_nothing(tmp_path):
    with h5py.File(tmp_path / "store.h5", "w") as file:
        file.create_dataset("a", shape=(1 << 40,), dtype="i8", chunks=(1 << 20,), fillvalue=7)
        file.create_dataset("rows/b", shape=(1 << 50,), dtype=np.dtype([("x", "i4"), ("y", "S30")]), chunks=(1 << 16,))
    with Mount(tmp_path / "store.h5") as mount:
        with pa.memory_map(str(mount / VIEW / "root.arrow")) as source:
            reader = ipc.open_file(source)
            last = reader.get_batch(4095)["a"][-1].as_py()
            assert (reader.num_record_batches, last) == (4096, 7)
            del reader
        assert os.stat(mount / VIEW / "rows/b.arrow").st_size > 1 << 50


# daf.

def test_axes_of_daf_are_tables(tmp_path):
    with daf_store(tmp_path / "cells.h5df") as path, Mount(path) as mount:
        assert sorted(name for name in os.listdir(mount / VIEW) if name.endswith(".arrow")) == ["cell.arrow", "gene.arrow"]
        table = opened(mount / VIEW / "cell.arrow")
        assert values(table) == {"cell": ["c1", "c2", "c3"], "age": [1, 2, 3], "cell.value": [1.5, 2.5, 3.5], "type": ["T", None, "T"]}
        assert opened(mount / VIEW / "gene.arrow").column_names == ["gene"]


def daf_store(path):
    from contextlib import contextmanager

    @contextmanager
    def store():
        with h5py.File(path, "w") as file:
            file["__daf__"] = np.array([1, 0], "u1")
            file["cell#"], file["gene#"] = ["c1", "c2", "c3"], ["g1", "g2"]
            file["cell#age"], file["cell#cell"] = np.arange(1, 4), np.arange(1.5, 4)
            file["cell#type"] = ["T", "\x01", "T"]  # None, as daf writes it
            file["cell,gene#UMIs"] = np.zeros((3, 2))
        yield path
    return store()


# pandas and PyTables.

def numbers(count=30):
    return pd.DataFrame({
        "a": np.arange(count), "b": np.arange(count) * 0.5, "c": [None if n % 7 == 3 else f"text {n}" for n in range(count)],
        "t": pd.date_range("2020", periods=count), "f": np.arange(count) % 3 == 0, "d": np.arange(count) * 1.5,
        "td": pd.to_timedelta(np.arange(count), "s"), "é x": np.arange(count, dtype="i2"),
    }, index=pd.RangeIndex(count, name="row"))


def coded(count=30):
    return numbers(count).assign(
        k=pd.Categorical([["u", "v", None][n % 3] for n in range(count)]),
        o=pd.Categorical([["low", "high"][n % 2] for n in range(count)], categories=["low", "high"], ordered=True),
        z=pd.date_range("2020-03-28", periods=count, freq="h", tz="Europe/Berlin"))


def same_frame(table, truth, name="row"):
    shown = table.to_pandas().set_index(name)
    assert shown.columns.tolist() == truth.columns.tolist() and shown.index.name == truth.index.name
    assert shown.index.tolist() == truth.index.tolist()
    for column in truth:
        missing = truth[column].isna()
        assert (shown[column].isna() == missing).all(), column
        assert shown[column][~missing].tolist() == truth[column][~missing].tolist(), column
    return shown


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, {"data_columns": ["a", "c"]}, {"data_columns": True, "complib": "zlib", "complevel": 5}], ids=str)
def test_tables_of_hdfstore_are_as_pandas_reads_them(options, tmp_path):
    store = tmp_path / "store.h5"
    coded().to_hdf(store, key="group/frame", format="table", **options)
    coded().set_index("t").a.to_hdf(store, key="series", format="table")
    with Mount(store) as mount:
        frame = pd.read_hdf(store, "group/frame")
        shown = same_frame(opened(mount / VIEW / "group/frame.arrow"), frame)
        assert shown["o"].cat.ordered and shown["o"].cat.categories.tolist() == ["low", "high"] and not shown["k"].cat.ordered
        assert str(shown["z"].dtype) == str(frame["z"].dtype) and shown["t"].dtype == "M8[ns]" and shown["td"].dtype == "m8[ns]"
        series = pd.read_hdf(store, "series")
        assert opened(mount / VIEW / "series.arrow").to_pandas().set_index("t").a.tolist() == series.tolist()
        assert opened(mount / VIEW / "series.arrow")["t"].to_pandas().tolist() == series.index.tolist()


@pytest.mark.filterwarnings("ignore")
def test_fixed_frames_of_hdfstore_are_as_pandas_reads_them(tmp_path):
    store = tmp_path / "store.h5"
    frame = numbers()
    frame.to_hdf(store, key="frame", format="fixed")
    frame.set_index("t").drop(columns="c").to_hdf(store, key="times", format="fixed")
    frame.b.to_hdf(store, key="series", format="fixed")
    with Mount(store) as mount:
        # Texts are pickles there.
        same_frame(opened(mount / VIEW / "frame.arrow"), frame.drop(columns="c"))
        assert "pickles" in left_out(mount)["frame.arrow: c"]
        same_frame(opened(mount / VIEW / "times.arrow"), pd.read_hdf(store, "times"), "t")
        assert values(opened(mount / VIEW / "series.arrow")) == {"row": list(range(30)), "b": frame.b.tolist()}


@pytest.mark.filterwarnings("ignore")
def test_frames_of_hdfstore_with_an_index_of_several_levels(tmp_path):
    store = tmp_path / "store.h5"
    frame = numbers().set_index(["a", "c"])[["b", "f"]]
    frame.to_hdf(store, key="table", format="table")
    frame.to_hdf(store, key="fixed", format="fixed")
    with Mount(store) as mount:
        truth = pd.read_hdf(store, "table").reset_index()
        assert pd.read_hdf(store, "fixed").reset_index().equals(truth)
        shown = opened(mount / VIEW / "table.arrow").to_pandas()
        assert sorted(shown.columns) == sorted(truth.columns)
        for name in truth:
            missing = truth[name].isna()
            assert (shown[name].isna() == missing).all() and shown[name][~missing].tolist() == truth[name][~missing].tolist()
        assert "several levels" in left_out(mount)["fixed.arrow"] and not (mount / VIEW / "fixed.arrow").exists()


def test_tables_of_pytables(tmp_path):
    import tables

    class Row(tables.IsDescription):
        name = tables.StringCol(20)
        number = tables.Int64Col(pos=0)
        pair = tables.Float32Col(shape=(2,))
        flag = tables.BoolCol()

        class inner(tables.IsDescription):
            x = tables.UInt8Col()

    with tables.open_file(tmp_path / "store.h5", "w") as file:
        table = file.create_table("/", "readout", Row, filters=tables.Filters(5))
        for n in range(100):
            table.row["name"], table.row["number"], table.row["pair"] = f"particle {n}", n, (n, n / 2)
            table.row["flag"], table.row["inner/x"] = n % 2 == 0, n
            table.row.append()
        table.flush()
        truth, order = table.read(), table.description._v_names
    with Mount(tmp_path / "store.h5") as mount:
        shown = opened(mount / VIEW / "readout.arrow")
        assert shown.column_names == list(order)
        assert shown["number"].to_pylist() == truth["number"].tolist() and shown["pair"].to_pylist() == truth["pair"].tolist()
        assert shown["name"].to_pylist() == [name.decode() for name in truth["name"]]
        assert [bool(flag) for flag in shown["flag"].to_pylist()] == truth["flag"].tolist()
        assert shown["inner"].to_pylist() == [{"x": n} for n in range(100)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", ["values_cols", "info", "index_kind"])
def test_attributes_of_hdfstore_that_are_damaged(what, tmp_path):
    store = tmp_path / "store.h5"
    numbers().to_hdf(store, key="frame", format="table")
    with h5py.File(store, "a") as file:
        place = file["frame/table" if what == "index_kind" else "frame"]
        # A pickle that would call something.
        place.attrs[what] = np.bytes_(b"date" if what == "index_kind" else b"cos\nsystem\n(S'touch called'\ntR.")
    with Mount(store) as mount:
        if what == "info":
            assert opened(mount / VIEW / "frame.arrow").column_names == ["index", *numbers().columns]
        else:
            assert ("index" if what == "index_kind" else "no list of names") in left_out(mount)["frame.arrow"]


# Arkouda.

def arkouda_store(folder):
    with arkouda.Store(folder, "x.h5", [1, 2]) as store:
        rows = [[1, 2], [], [3], [4, 5, 6], []]
        put = {
            "number": lambda s, p: arkouda.put_array(s, p, np.arange(5) * 2),
            "flag": lambda s, p: arkouda.put_array(s, p, np.arange(5) > 2),
            "word": lambda s, p: arkouda.put_strings(s, p, [b"a", b"", "é".encode(), b"long text", b"x"]),
            "list": partial(arkouda.put_segarray, rows=rows, dtype="<i8"),
            "when": lambda s, p: arkouda.put_array(s, p, np.arange(5) * 10**9, arkouda.DATETIME),
        }
        arkouda.put_dataframe(store, "frame", put, np.arange(5) + 100)
    return rows


def test_dataframes_of_arkouda(tmp_path):
    rows = arkouda_store(tmp_path)
    with Mount(tmp_path) as mount:
        table = opened(mount / VIEW / "x.h5/frame.arrow")
        shown = values(table)
        assert table.column_names == ["Index", "flag", "list", "number", "when", "word"]
        assert shown["Index"] == [100, 101, 102, 103, 104] and shown["number"] == [0, 2, 4, 6, 8] and shown["list"] == rows
        assert shown["flag"] == [False, False, False, True, True] and shown["word"] == ["a", "", "é", "long text", "x"]
        assert [time.value for time in table["when"].to_pandas()] == [0, 10**9, 2 * 10**9, 3 * 10**9, 4 * 10**9]


SEGMENTS = {
    "fall": ([0, 2, 1, 3, 6], "segment 2 is 1, the one before it 2"),
    "begin behind the first value": ([1, 2, 2, 3, 6], "segment 0 begins at 1"),
    "lead out of the values": ([0, 2, 2, 3, 99], "segment 4 is 99"),
    "are negative": ([0, -1, 2, 3, 6], "segment 1 is -1"),
}


@pytest.mark.parametrize("what", SEGMENTS)
def test_segments_of_arkouda_that_are_damaged_are_left_out(what, tmp_path):
    bad, why = SEGMENTS[what]
    rows = [[1, 2], [], [3], [4, 5, 6], []]
    columns = {"list": partial(arkouda.put_segarray, rows=rows, dtype="<i8"), "number": lambda s, p: arkouda.put_array(s, p, np.arange(5))}
    with arkouda.Store(tmp_path, "x.h5") as store:
        arkouda.put_dataframe(store, "frame", columns, np.arange(5))
    for segments, names in [([0, 2, 2, 3, 6], ["Index", "list", "number"]), (bad, ["Index", "number"])]:
        with h5py.File(tmp_path / "x.h5", "a") as file:
            file["frame/list/segments"][...] = segments
        with Mount(tmp_path / "x.h5") as mount:
            assert opened(mount / VIEW / "frame.arrow").column_names == names
            said = left_out(mount)
            assert said == {} if "list" in names else why in said["frame.arrow: list"]


@pytest.mark.parametrize("weights", [None, [1, 2]], ids=["one file", "two locales"])
def test_indexes_and_categoricals_of_arkouda(weights, tmp_path):
    codes = np.array([0, 2, 1, 0, 0])
    words = [b"a", b"", "é".encode(), b"long text", b"x"]
    with arkouda.Store(tmp_path, "x.h5", weights) as store:
        arkouda.put_index(store, "index", [partial(arkouda.put_index_array, array=np.arange(5) * 3)])
        arkouda.put_index(store, "levels", [partial(arkouda.put_index_array, array=np.arange(5)),
                                            partial(arkouda.put_strings, strings=words)])
        arkouda.put_dataframe(store, "frame", {
            "kind": partial(arkouda.put_categorical, codes=codes, categories=[b"u", b"v", b"N/A"]),
        }, np.arange(5))
    with Mount(tmp_path if weights else tmp_path / "x.h5") as mount:
        view = mount / VIEW / ("x.h5" if weights else "")
        assert values(opened(view / "index.arrow")) == {"IDX_0": [0, 3, 6, 9, 12]}
        assert values(opened(view / "levels.arrow")) == {"IDX_0": [0, 1, 2, 3, 4], "IDX_1": [word.decode() for word in words]}
        table = opened(view / "frame.arrow")
        assert pa.types.is_dictionary(table.schema.field("kind").type)
        assert values(table) == {"Index": [0, 1, 2, 3, 4], "kind": ["u", "N/A", "v", "u", "u"]}


def test_columns_of_arkouda_that_have_no_form(tmp_path):
    columns = {
        "big": partial(arkouda.put_bigint, numbers=[1 << 70, 2, 3]),
        "texts": partial(arkouda.put_segarray, rows=[[b"a"], [], [b"b", b"c"]], dtype="strings"),
        "address": lambda s, p: arkouda.put_array(s, p, np.arange(3, dtype="<u8"), arkouda.IPV4),
    }
    with arkouda.Store(tmp_path, "x.h5") as store:
        arkouda.put_dataframe(store, "frame", columns, np.arange(3))
    with Mount(tmp_path / "x.h5") as mount:
        table = opened(mount / VIEW / "frame.arrow")
        said = left_out(mount)
        # An address is its number.
        assert values(table) == {"Index": [0, 1, 2], "address": [0, 1, 2]}
        assert "shape" in said["frame.arrow: big"] and "lists of text" in said["frame.arrow: texts"]


# Links, and labels.

def test_links_to_tables(tmp_path):
    rows = np.array([(1, b"x"), (2, b"y")], [("a", "i4"), ("s", "S4")])
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["rows"] = rows
    with h5py.File(tmp_path / "store.h5", "w") as file:
        file["rows"], file["group/a"] = rows, np.arange(3)
        file["hard"], file["same"] = file["rows"], file["group"]
        file["soft"], file["away"] = h5py.SoftLink("/rows"), h5py.ExternalLink("other.h5", "/rows")
        file["group/up"] = h5py.SoftLink("/group")
    with Mount(tmp_path / "store.h5") as mount:
        view = mount / VIEW
        for name in ["rows", "hard"]:
            assert values(opened(view / f"{name}.arrow")) == {"a": [1, 2], "s": ["x", "y"]}
        assert values(opened(view / "group.arrow")) == {"a": [0, 1, 2]}
        assert sorted(os.listdir(view)) == ["group", "group.arrow", "hard.arrow", "rows.arrow"]
        for name in ["soft", "away", "same", "group/up"]:
            assert not (view / f"{name}.arrow").exists()


def test_enumerations_are_integers(tmp_path):
    kinds = h5py.enum_dtype({"low": 1, "high": 7}, "i2")
    with h5py.File(tmp_path / "store.h5", "w") as file:
        file.create_dataset("rows", data=np.array([(7, True), (1, False)], [("kind", kinds), ("flag", "?")]))
    with Mount(tmp_path / "store.h5") as mount:
        table = opened(mount / VIEW / "rows.arrow")
        assert values(table) == {"kind": [7, 1], "flag": [True, False]} and table.schema.field("kind").type == pa.int16()


# What reads beside pyarrow.

def test_polars_duckdb_and_pandas_agree_with_numpy(tmp_path):
    count = 300_000
    random = np.random.default_rng(5)
    rows = np.zeros(count, [("k", "i4"), ("a", ">f8"), ("s", "S16")])
    rows["k"], rows["a"] = random.integers(0, 5, count), random.random(count)
    rows["s"] = np.char.add("the text ", (np.arange(count) % 7).astype(str)).astype("S16")
    with h5py.File(tmp_path / "store.h5", "w") as file:
        file.create_dataset("rows", data=rows, chunks=(10_000,), compression="gzip", shuffle=True)
    truth = {int(k): rows["a"][(rows["k"] == k) & (rows["s"] == b"the text 3")].sum() for k in range(5)}
    with Mount(tmp_path / "store.h5") as mount:
        path = mount / VIEW / "rows.arrow"
        found = pl.scan_ipc(path).filter(pl.col("s") == "the text 3").group_by("k").agg(pl.col("a").sum()).collect().rows()
        assert dict(found) == pytest.approx(truth)
        arrow = pa.dataset.dataset(path, format="ipc")
        assert dict(duckdb.sql("SELECT k, sum(a) FROM arrow WHERE s = 'the text 3' GROUP BY k").fetchall()) == pytest.approx(truth)
        frame = pd.read_feather(path, columns=["k", "a"])
        assert frame.groupby("k").a.sum().tolist() == pytest.approx([rows["a"][rows["k"] == k].sum() for k in range(5)])
        del arrow, frame


def test_a_copy_is_the_arrow_file(cells, tmp_path):
    with Mount(cells) as mount:
        copy = tmp_path / "obs.arrow"
        copy.write_bytes((mount / VIEW / "obs.arrow").read_bytes())
        assert opened(copy).equals(opened(mount / VIEW / "obs.arrow"))


def test_variables_of_netcdf_along_one_dimension(tmp_path):
    import h5netcdf

    with h5netcdf.File(tmp_path / "station.nc", "w") as file:
        file.dimensions = {"time": 4}
        file.create_variable("time", ("time",), "i4", data=np.arange(4, dtype="i4")).attrs["units"] = "days since 2020-01-01"
        file.create_variable("t", ("time",), "f4", data=np.arange(4, dtype="f4")).attrs["long_name"] = "temperature"
    with Mount(tmp_path / "station.nc") as mount:
        table = opened(mount / VIEW / "root.arrow")
        assert values(table) == {"t": [0, 1, 2, 3], "time": [0, 1, 2, 3]}
        assert table.schema.field("time").metadata == {b"units": b"days since 2020-01-01"}
        assert table.schema.field("t").metadata == {b"long_name": b"temperature"}


def test_a_chunk_that_is_damaged_fails_in_its_column_alone(tmp_path):
    count = 1 << 16
    with h5py.File(tmp_path / "store.h5", "w") as file:
        for name in "abc":
            dataset = file.create_dataset(f"group/{name}", data=np.arange(count), chunks=(count,), compression="gzip")
            file.flush()
            place = place if name == "c" else dataset.id.get_chunk_info(0)
    with open(tmp_path / "store.h5", "r+b") as file:
        file.seek(place.byte_offset)
        file.write(b"\xff" * 64)
    with Mount(tmp_path / "store.h5") as mount:
        for number in range(3):
            with open(mount / VIEW / "group.arrow", "rb", buffering=0) as file:
                reader = ipc.open_file(file, options=ipc.IpcReadOptions(included_fields=[number]))
                if number != 1:
                    assert reader.get_batch(0).column(0).to_pylist() == list(range(count))
                else:
                    with pytest.raises(OSError, match="Errno 5"):
                        reader.get_batch(0)
                del reader


def test_attributes_that_change_in_a_checkout_do_not_break_a_table(tmp_path):
    with h5py.File(tmp_path / "store.h5", "w") as file:
        file["group/a"] = np.arange(3)
    with Mount(tmp_path / "store.h5", "xattrs", checkout="work") as mount:
        assert values(opened(mount / VIEW / "group.arrow")) == {"a": [0, 1, 2]}
        os.setxattr(mount / "group/a.npy", "user.units", b"m")
        assert values(opened(mount / VIEW / "group.arrow")) == {"a": [0, 1, 2]}


def test_names_that_are_too_long_and_tables_within_tables(tmp_path):
    with h5py.File(tmp_path / "store.h5", "w") as file:
        file["x" * 251] = np.zeros(2, [("a", "i4")])
        file["y" * 240] = np.zeros(2, [("a", "i4"), ("b", "i4")])
    with Mount(tmp_path / "store.h5") as mount:
        assert os.listdir(mount / VIEW) == ["y" * 240 + ".arrow"]
        assert left_out(mount) == {"x" * 251 + ".arrow": "its name is too long"}
