"""The description of every object, through `.npyfs/info` and `npyfs info --json`, and what is left out with its reason.
Judge: h5py's own properties of the same dataset."""

import errno
import json
import os
import re
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest

from support.mount import Mount, reason_of
from support.process import npyfs
from support.truth import np_save

pytestmark = pytest.mark.fast

LEFT_OUT = ["object_reference", "region_reference", "sequences", "null", "compound_of_sequences", "named_type"]


@pytest.fixture(scope="module")
def mount(tmp_path_factory):
    store = tmp_path_factory.mktemp("info") / "store.h5"
    with h5py.File(store, "w") as file:
        x = file.create_dataset("g/x", data=np.arange(60, dtype=">f4").reshape(6, 10), chunks=(4, 5), compression="gzip", shuffle=True, fillvalue=2.5)
        x.attrs.update({"units": "mV", "offset": 3, "factors": [0.5, 1.5]})
        file["g"].attrs["note"] = "größe"
        file["plain"] = np.arange(5, dtype="<i2")
        file["scalar"] = 3
        file["text"] = np.array(["a", "üü"], object)
        odd = file.create_group("odd")
        odd.create_dataset("object_reference", data=np.array([file["plain"].ref], h5py.ref_dtype), dtype=h5py.ref_dtype)
        odd.create_dataset("region_reference", (2,), h5py.regionref_dtype)
        odd.create_dataset("sequences", (2,), h5py.vlen_dtype(h5py.ref_dtype))
        odd.create_dataset("null", data=h5py.Empty("<f4"))
        odd.create_dataset("compound_of_sequences", (2,), [("v", h5py.vlen_dtype("<i4"))])
        odd["named_type"] = np.dtype("<f8")  # a committed datatype is no array
        odd["fine"] = np.arange(3)
    with Mount(store) as mount:
        yield mount


def test_a_dataset(mount):
    info = mount.info("g/x.npy")
    with h5py.File(mount.store, "r") as file:
        x = file["g/x"]
        expected = {"kind": "plain", "path": "/g/x", "dtype": ">f4", "shape": [6, 10], "chunks": [4, 5],
                    "stored_size": x.id.get_storage_size(), "fill_value": 2.5}
    assert {key: info[key] for key in expected} == expected
    assert os.path.basename(info["file"]) == "store.h5"
    assert info["layout"] == "chunked"
    assert "shuffle" in str(info["filters"]) and "deflate" in str(info["filters"]).replace("gzip", "deflate") and len(info["filters"]) == 2
    assert info["attributes"] == {"units": "mV", "offset": 3, "factors": [0.5, 1.5]}


def test_other_datasets(mount):
    assert {key: mount.info("plain.npy")[key] for key in ("dtype", "shape", "layout", "chunks", "filters")} == {
        "dtype": "<i2", "shape": [5], "layout": "contiguous", "chunks": None, "filters": []}
    assert mount.info("scalar.npy")["shape"] == []
    assert mount.info("text.npy")["dtype"] == "<U2"


def test_directories(mount):
    assert mount.info("g")["attributes"] == {"note": "größe"}
    assert mount.info("g")["left_out"] == []
    assert (mount.info()["kind"], mount.info()["path"]) == ("plain", "/")


@pytest.mark.parametrize("name", LEFT_OUT)
def test_left_out_with_a_reason(mount, name):
    assert len(reason_of(mount.info("odd"), name)) > 5
    assert not os.path.lexists(mount / f"odd/{name}.npy") and not os.path.lexists(mount / f"odd/{name}")


def test_what_is_left_out_is_all_that_is_missing(mount):
    assert os.listdir(mount / "odd") == ["fine.npy"]
    assert sorted(entry["name"] for entry in mount.info("odd")["left_out"]) == sorted(LEFT_OUT)
    assert (mount / "odd/fine.npy").read_bytes() == np_save(np.arange(3))


@pytest.mark.parametrize("path", ["", "g", "odd", "g/x.npy", "text.npy", "scalar.npy"])
def test_the_command_says_the_same(mount, path):
    done = npyfs("info", "--json", mount.store, *([path] if path else []), check=True)
    assert json.loads(done.stdout) == mount.info(path)


def test_for_humans(mount):
    shown = npyfs("info", mount.store, "g/x.npy", check=True).stdout
    for word in (">f4", "/g/x", "units", "mV", "store.h5"):
        assert word in shown
    with pytest.raises(json.JSONDecodeError):
        json.loads(shown)
    assert "sequences" in npyfs("info", mount.store, "odd", check=True).stdout


def test_the_status(mount):
    status = mount.status()
    assert {"cache", "version", "store", "pid"} <= set(status)
    assert {"bytes", "limit", "hits", "misses", "evictions", "decoded_bytes"} <= set(status["cache"])
    assert status["store"] == str(mount.store)
    assert status["version"] in npyfs("--version", check=True).stdout


@pytest.mark.parametrize("cache, kib", [("", 2048), ("cache_size=8m", 512), ("cache_size=1m", 128)])
def test_the_kernel_reads_ahead_what_the_cache_has_room_for(mount, cache, kib):
    with Mount(mount.store, cache) as other:
        said = other.status()["kernel_read_ahead"]
        device = os.stat(other.path).st_dev
        kernel = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
        if os.access(kernel, os.W_OK):
            assert said == {"kib": kib} and int(kernel.read_text()) == kib
        else:
            assert str(kernel) in said["not_raised"]


def test_a_missing_filter_is_named_where_the_read_fails(tmp_path):
    store = tmp_path / "filters.h5"
    with h5py.File(store, "w") as file:
        file.create_dataset("blosc2", data=np.arange(1000), chunks=(100,), **hdf5plugin.Blosc2())
        file.create_dataset("text", data=np.array(["a", "b"] * 500, object), dtype=h5py.string_dtype(), chunks=(100,), **hdf5plugin.BZip2())
        file.create_dataset("fixed", data=np.array([b"ab"] * 900).astype(h5py.string_dtype("utf-8", 2)), chunks=(100,), **hdf5plugin.BZip2())
        record = np.zeros(500, [("t", h5py.string_dtype()), ("n", "<i4")])
        record["t"] = "x"
        file.create_dataset("record", data=record, chunks=(100,), **hdf5plugin.BZip2())
        file.create_dataset("packed", data=np.arange(1000.0), chunks=(100,), shuffle=True, fletcher32=True, **hdf5plugin.Zfp())
        layout = h5py.VirtualLayout((1000,), "<i8")
        layout[:] = h5py.VirtualSource(file["blosc2"])
        file.create_virtual_dataset("virtual", layout)
    # Numbers that nobody has: what decodes bzip2 and Blosc2 is not asked.
    content = store.read_bytes()
    for number, name in ((307, b"bzip2"), (32026, b"blosc2")):
        old, new = number.to_bytes(2, "little"), (number + 1).to_bytes(2, "little")
        content, count = re.subn(re.escape(old) + rb"(?=.{6}" + name + rb"\0)", new, content, flags=re.DOTALL)
        assert count == {307: 3, 32026: 1}[number]
    store.write_bytes(content)
    names = {"blosc2": "blosc2", "text": "bzip2", "fixed": "bzip2", "record": "bzip2", "packed": "zfp", "virtual": "blosc2"}
    with Mount(store) as mount:
        for name, filter_name in names.items():
            with pytest.raises(OSError) as caught:
                (mount / f"{name}.npy").read_bytes()
            assert caught.value.errno == errno.EIO, name
            lines = [line for line in mount.errors() if f"{name}.npy" in line]
            assert lines and all(filter_name in line.lower() for line in lines), (name, mount.errors())
            done = npyfs("cat", store, f"{name}.npy")
            assert done.returncode == 3 and filter_name in done.stderr.lower() and f"{name}.npy" in done.stderr
            assert "shuffle" not in done.stderr and "fletcher" not in done.stderr
