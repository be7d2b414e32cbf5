"""The Zarr view: groups, arrays, chunk files and names. Judges: zarr-python for the metadata, h5py for the values."""

import errno
import json
import os

import h5py
import numpy as np
import pytest
import zarr

from support.mount import Mount
from support.mount import until as wait

pytestmark = pytest.mark.fast


def write_mixed(path):
    random = np.random.default_rng(1)
    with h5py.File(path, "w") as file:
        file.attrs["title"] = "mixed"
        file["plain"] = np.arange(20).reshape(4, 5)
        file["scalar"] = 3.5
        file["zero"] = np.zeros((0, 3))
        file.create_dataset("zero_chunked", shape=(0, 3), maxshape=(None, 3), chunks=(4, 2), dtype="i4")
        file.create_dataset("gzip", data=random.normal(size=(100, 60)), chunks=(30, 40), compression="gzip", shuffle=True)
        file.create_dataset("small_chunks", data=np.arange(1000, dtype="i4"), chunks=(10,), compression="gzip")
        file.create_dataset("one_chunk", data=np.arange(6.0), chunks=(4096,), maxshape=(None,), compression="gzip")
        file.create_dataset("deep", data=random.integers(0, 100, size=(5, 6, 7, 3)), chunks=(2, 4, 3, 3), compression="lzf")
        file.create_dataset("big_endian", data=np.arange(1000, dtype=">i4").reshape(40, 25), chunks=(7, 25))
        file.create_dataset("big_floats", data=np.arange(10, dtype=">f8"))
        file.create_dataset("rows", data=random.integers(0, 100, size=(3000, 1000)))
        filled = file.create_dataset("filled", shape=(100, 100), chunks=(10, 10), dtype="f4", fillvalue=7)
        filled[25:35, 40:45] = 1
        filled.attrs["_FillValue"] = np.float32(7)
        unfilled = file.create_dataset("unfilled", shape=(100, 100), chunks=(10, 10), dtype="f4", fillvalue=7)
        unfilled[25:35, 40:45] = 1
        file.create_dataset("never", shape=(30,), chunks=(7,), dtype="i2", fillvalue=-3)
        file.create_dataset("never_contiguous", shape=(30,), dtype="i2", fillvalue=-3)
        texts = np.array(["a", "", "\u00e9" * 100] * 50, dtype=object)
        file.create_dataset("texts", data=texts, dtype=h5py.string_dtype(), chunks=(7,))
        file.create_dataset("table_of_texts", data=texts.reshape(10, 15), dtype=h5py.string_dtype(), chunks=(4, 4))
        file.create_dataset("one_text", data="only", dtype=h5py.string_dtype())
        file.create_dataset("never_texts", shape=(5,), dtype=h5py.string_dtype())
        file["bytes"] = np.array([b"ab", b"c"], "S5")
        file["booleans"] = np.array([[True, False]])
        file["complex"] = np.array([1 + 2j, 3])
        file["half"] = np.arange(4, dtype="f2")
        file["opaque"] = np.array([b"abc"], "V3")
        file["subarrays"] = np.zeros(3, np.dtype(("<i4", (2,))))
        below = file.create_group("group/below")
        below.attrs["key"] = "value"
        below["x"] = np.arange(3)
        below["50%41 #.npy"] = np.arange(2)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A mount of the mixed store, which no test changes."""
    store = tmp_path_factory.mktemp("mixed") / "mixed.h5"
    write_mixed(store)
    with Mount(store, limit=600) as mount:
        yield mount


def until(make, fits):
    """What is made as soon as it fits: the kernel may know a name for a second."""
    wait(lambda: fits(make()), "the new version")
    return make()


def members(group):
    """{path: array or group} by zarr-python."""
    return dict(group.members(max_depth=None))


def decoded(dataset):
    is_text = dataset.dtype.kind == "O" and h5py.check_string_dtype(dataset.dtype)
    return dataset.asstr()[...] if is_text else dataset[...]


@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("view", ["zarr", "zarr3"])
def test_everything_reads_as_h5py_reads_it(mixed, view, consolidated):
    with h5py.File(mixed.store) as file:
        found = members(zarr.open_group(mixed / ".npyfs" / view, mode="r", use_consolidated=consolidated))
        names = []
        file.visit(names.append)
        assert set(found) == set(names)
        for name in found:
            if isinstance(file[name], h5py.Group):
                assert isinstance(found[name], zarr.Group)
                continue
            want, got = np.asarray(decoded(file[name])), np.asarray(found[name][...])
            assert got.shape == want.shape, name
            assert np.array_equal(got, want), name
            if want.dtype.kind != "O":
                assert got.dtype.newbyteorder("=") == want.dtype.newbyteorder("="), name
                assert view == "zarr3" or got.dtype == want.dtype, name
            if file[name].chunks:
                assert found[name].chunks == file[name].chunks, name
        assert found["group/below"].attrs["key"] == "value"


def test_a_view_can_be_the_whole_mount(mixed):
    store = mixed.store
    for view in ["zarr", "zarr3"]:
        with Mount(store, f"view={view}") as m:
            group = zarr.open_group(m.path, mode="r")
            assert group.attrs["title"] == "mixed"
            assert np.array_equal(group["group/below/x"][...], np.arange(3))
            assert (m / ".npyfs/status.json").exists()
        with Mount(store, f"view={view},subpath=group") as m:
            assert np.array_equal(zarr.open_group(m.path, mode="r")["below/x"][...], np.arange(3))


def chunk_files(path):
    return sorted(name for name in os.listdir(path) if name[0].isdigit())


def test_chunk_files_are_the_chunks_of_the_file(mixed):
    with h5py.File(mixed.store) as file:
        root = mixed / ".npyfs/zarr"
        data, want = file["gzip"][...], np.zeros((30, 40))
        assert chunk_files(root / "gzip") == [f"{i}.{j}" for i in range(4) for j in range(2)]
        # Size and bytes of a chunk inside, and of one that lies beyond both edges.
        for i, j in [(1, 0), (3, 1)]:
            want[...] = 0
            inside = data[30 * i : 30 * i + 30, 40 * j : 40 * j + 40]
            want[: inside.shape[0], : inside.shape[1]] = inside
            chunk = root / "gzip" / f"{i}.{j}"
            assert chunk.stat().st_size == want.nbytes
            assert chunk.read_bytes() == want.tobytes()
        assert (root / "scalar/0").read_bytes() == np.float64(3.5).tobytes()
        # Rows of about 4 MiB where there are no chunks, the last one filled up.
        rows, whole = file["rows"][...], json.loads((root / "rows/.zarray").read_text())["chunks"]
        assert whole[1] == 1000 and whole[0] * 8000 <= 4 << 20 < (whole[0] + 1) * 8000
        last = len(chunk_files(root / "rows")) - 1
        assert last == 3000 // whole[0]
        tail = rows[last * whole[0] :].tobytes()
        assert (root / f"rows/{last}.0").read_bytes() == tail.ljust(whole[0] * 8000, b"\0")
        # What zarr-python may look for is not there.
        for name in ["4.0", "0.2", "00.0", "0", "0.0.0", "zarr.json", ".zgroup"]:
            assert not (root / "gzip" / name).exists(), name


def test_chunks_that_were_never_written_are_absent_where_that_means_the_same(mixed):
    for view in ["zarr", "zarr3"]:
        root = mixed / ".npyfs" / view
        assert chunk_files(root / "filled") == ["2.4", "3.4"]
        assert not (root / "filled/0.0").exists() and (root / "filled/2.4").exists()
    # Without `_FillValue`, version 2 has none, so that nothing is taken for missing.
    root = mixed / ".npyfs/zarr"
    assert len(chunk_files(root / "unfilled")) == 100
    assert (root / "unfilled/0.0").read_bytes() == np.full((10, 10), 7, "f4").tobytes()
    assert (root / "never/4").read_bytes() == np.full(7, -3, "i2").tobytes()
    assert chunk_files(mixed / ".npyfs/zarr3/never") == []


def test_links_are_shown_as_what_they_lead_to_unless_that_has_no_end(tmp_path):
    store = tmp_path / "links.h5"
    with h5py.File(store, "w") as file:
        file["a/x"] = np.arange(3)
        file["b/y"] = np.arange(4)
        file["a/to_b"] = h5py.SoftLink("/b")
        file["b/to_a"] = file["a"]
        file["a/up"] = h5py.SoftLink("/")
        file["a/self"] = h5py.SoftLink("/a")
        file["x_again"] = h5py.SoftLink("a/x")
        file["gone"] = h5py.SoftLink("/nothing")
        file["same"] = file["a/x"]
    with Mount(store) as m:
        found = set(members(zarr.open_group(m / ".npyfs/zarr", mode="r", use_consolidated=False)))
        arrays = {"a/x", "b/y", "a/to_b/y", "b/to_a/x", "x_again", "same"}
        assert found == arrays | {"a", "b", "a/to_b", "b/to_a"}
        consolidated = members(zarr.open_group(m / ".npyfs/zarr", mode="r", use_consolidated=True))
        assert set(consolidated) == found
        assert np.array_equal(consolidated["b/to_a/x"][...], np.arange(3))
        report = json.loads((m / ".npyfs/info.zarr/a.json").read_text())
        assert {one["name"] for one in report["left_out"]} == {"self", "up"}


def test_names_that_zarr_cannot_have_are_left_out_with_a_reason(tmp_path):
    store = tmp_path / "names.h5"
    good = ["__reserved", "a.npy", "%41", "\u00e9 #", "c", "0.0", "a.zarray", ".hidden"]
    bad = [".zgroup", ".zarray", ".zother", "zarr.json", "...", "x" * 300]
    with h5py.File(store, "w") as file:
        for name in good + bad:
            file[name] = np.arange(3)
        file.create_dataset("lists", (2,), h5py.vlen_dtype("i4"))
        file.id.links.create_soft(b"\xff", b"/%41")
    with Mount(store) as m:
        for view in ["zarr", "zarr3"]:
            found = members(zarr.open_group(m / ".npyfs" / view, mode="r", use_consolidated=False))
            assert set(found) == set(good)
            assert all(np.array_equal(array[...], np.arange(3)) for array in found.values())
            for name in [".zother", "lists"]:
                report = json.loads((m / ".npyfs" / f"info.{view}" / f"{name}.json").read_text())
                assert report["left_out"]


def test_a_directory_of_stores_has_the_metadata_of_each(tmp_path):
    for name in ["one", "two"]:
        write_mixed(tmp_path / f"{name}.h5")
    with Mount(tmp_path) as m:
        root = m / ".npyfs/zarr"
        assert not (root / ".zmetadata").exists()
        stores = sorted(name for name in os.listdir(root) if not name.startswith("."))
        assert len(stores) == 2
        for name in stores:
            group = zarr.open_group(root / name, mode="r", use_consolidated=True)
            assert np.array_equal(group["plain"][...], np.arange(20).reshape(4, 5))


def test_a_store_that_changes_is_shown_as_it_is(tmp_path):
    store = tmp_path / "changes.h5"

    def write(value):
        new = tmp_path / "new"
        with h5py.File(new, "w") as file:
            file.attrs["version"] = value
            file.create_dataset("x", data=np.full((100, 100), value), chunks=(10, 100), compression="gzip")
            file[f"only{value}"] = value
        os.replace(new, store)

    write(1)
    with Mount(store) as m:
        root = m / ".npyfs/zarr"
        for value in [1, 2, 3]:
            write(value)
            group = until(lambda: zarr.open_group(root, mode="r"), lambda group: group.attrs["version"] == value)
            assert (group["x"][...] == value).all()
            assert set(group.array_keys()) == {"x", f"only{value}"}


def test_a_checkout_is_shown_as_it_is_now(tmp_path):
    store = tmp_path / "store.h5"
    with h5py.File(store, "w") as file:
        file["x"] = np.arange(10)
        file["g/y"] = np.arange(5)
    with Mount(store, checkout="work") as m:
        root = m / ".npyfs/zarr"
        assert np.array_equal(zarr.open_group(root, mode="r")["x"][...], np.arange(10))
        np.save(m / "x.npy", np.arange(7.0))
        np.save(m / "g/new.npy", np.ones((3, 3)))
        os.remove(m / "g/y.npy")
        group = until(lambda: zarr.open_group(root, mode="r"), lambda group: "new" in group["g"])
        assert np.array_equal(group["x"][...], np.arange(7.0))
        assert np.array_equal(group["g/new"][...], np.ones((3, 3)))
        assert "y" not in group["g"]
        with pytest.raises(OSError):
            (root / "x/0").write_bytes(b"")


def test_more_arrays_than_are_put_together_are_walked(tmp_path):
    store = tmp_path / "many.h5"
    with h5py.File(store, "w", libver="latest") as file:
        group = file.create_group("many")
        for i in range(10_001):
            group.create_dataset(f"a{i}", data=np.int8(i % 100))
    with Mount(store) as m:
        root = m / ".npyfs/zarr"
        assert not (root / ".zmetadata").exists()
        many = zarr.open_group(root, mode="r")["many"]
        assert len(os.listdir(root / "many")) == 10_003
        assert many["a10000"][()] == 0 and many["a77"][()] == 77


def test_a_chunk_that_cannot_be_decoded_fails_and_no_other(tmp_path):
    store = tmp_path / "damaged.h5"
    with h5py.File(store, "w") as file:
        data = file.create_dataset("x", data=np.arange(40_000.0), chunks=(1000,), compression="gzip")
        at = data.id.get_chunk_info(3)
    with open(store, "r+b") as file:
        file.seek(at.byte_offset)
        file.write(b"\xff" * at.size)
    with Mount(store) as m:
        root = m / ".npyfs/zarr/x"
        with pytest.raises(OSError):
            (root / "3").read_bytes()
        for i in [0, 2, 4, 39]:
            want = np.arange(1000.0 * i, 1000.0 * (i + 1))
            assert (root / f"{i}").read_bytes() == want.tobytes()
        # The name of the chunk file is in the log.
        assert "zarr/x/3" in (m / ".npyfs/errors.log").read_text()


def test_a_filter_that_nobody_knows_costs_only_the_chunks(tmp_path):
    store = tmp_path / "unknown.h5"
    with h5py.File(store, "w") as file:
        file["x"] = np.arange(3)
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((50,))
        plist.set_filter(40_123, h5py.h5z.FLAG_OPTIONAL)
        space = h5py.h5s.create_simple((100,))
        dataset = h5py.h5d.create(file.id, b"unknown", h5py.h5t.STD_I32LE, space, plist)
        dataset.write_direct_chunk((0,), b"whatever", 0)
    with Mount(store) as m:
        root = m / ".npyfs/zarr"
        group = zarr.open_group(root, mode="r")
        assert group["unknown"].shape == (100,) and np.array_equal(group["x"][...], np.arange(3))
        with pytest.raises(OSError) as caught:
            (root / "unknown/0").read_bytes()
        assert caught.value.errno == errno.EIO
        report = json.loads((m / ".npyfs/info.zarr/unknown.json").read_text())
        assert [one["available"] for one in report["filters"]] == [False]
