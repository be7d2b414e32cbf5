"""Text past the limit on its expanded size stands as `values.npy` and `offsets.npy` in a directory; below it as one array.
Judge: the list of texts that h5py stored. (Text below the limit, in every layout and charset, is in test_sweep.py.)"""

import h5py
import numpy as np
import pytest

from support.mount import Mount
from support.truth import np_save, text_array

pytestmark = pytest.mark.fast

LONG = [f"{'ü' * (i % 50)}|{i}" for i in range(200)]  # 200 texts, expanded to 200 * 53 * 4 bytes
CASES = {  # name: (texts, shape, charset)
    "utf8": (LONG, (200,), "utf-8"),
    "matrix": (LONG, (20, 10), "utf-8"),
    "ascii": (["x" * (i % 90) for i in range(300)], (300,), "ascii"),
    "one_giant": (["", "y" * 100_000, "z"], (3,), "utf-8"),
    "scalar": (["w" * 50_000], (), "utf-8"),
}


@pytest.fixture(scope="module")
def mount(tmp_path_factory):
    store = tmp_path_factory.mktemp("text") / "text.h5"
    with h5py.File(store, "w") as file:
        for name, (texts, shape, charset) in CASES.items():
            for where, keywords in {"": {}, "_chunked": {"chunks": True, "compression": "gzip"}}.items():
                if shape or not where:
                    file.create_dataset(name + where, data=np.array(texts, object).reshape(shape), dtype=h5py.string_dtype(charset), **keywords)
        file.create_dataset("short", data=np.array(["a", "ö", ""], object), dtype=h5py.string_dtype())
        file.create_dataset("bad", data=np.array([b"\xff" * 9000, b"\xfe"], object), dtype=h5py.string_dtype())
    with Mount(store, "text_limit=8192") as mount:
        yield mount


@pytest.mark.parametrize("name", [f"{name}{where}" for name, case in CASES.items() for where in ["", "_chunked"] if case[1] or not where])
def test_past_the_limit_values_and_offsets(mount, name):
    texts, _, _ = CASES[name.removesuffix("_chunked")]
    folder, raw = mount / name, [text.encode() for text in texts]
    assert sorted(entry.name for entry in folder.iterdir()) == ["offsets.npy", "values.npy"]
    assert not (mount / f"{name}.npy").exists()
    assert (folder / "values.npy").read_bytes() == np_save(np.frombuffer(b"".join(raw), "u1"))
    offsets = np.array([0, *np.cumsum([len(text) for text in raw])], "<i8")
    assert (folder / "offsets.npy").read_bytes() == np_save(offsets)
    values = np.load(folder / "values.npy", mmap_mode="r")
    assert [bytes(values[a:b]).decode() for a, b in zip(offsets, offsets[1:])] == texts


def test_below_the_limit_one_array(mount):
    assert (mount / "short.npy").read_bytes() == np_save(np.array(["a", "ö", ""], "<U1"))


def test_bytes_that_are_not_utf8_keep_their_bytes(mount):
    assert (mount / "bad/values.npy").read_bytes() == np_save(np.frombuffer(b"\xff" * 9000 + b"\xfe", "u1"))


def test_a_larger_limit_shows_one_array(mount):
    with Mount(mount.store, "text_limit=1m") as large:
        texts, shape, _ = CASES["matrix"]
        assert (large / "matrix.npy").read_bytes() == np_save(text_array([text.encode() for text in texts], shape, True))
        assert not (large / "matrix").exists()
