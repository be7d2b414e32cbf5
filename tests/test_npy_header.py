"""Headers of np.save, byte for byte, for shapes that no array in memory could have; exact sizes; no memory used.
Judge: numpy.lib.format, which writes the header from a shape alone. The datasets were never written, so they cost nothing."""

import io
import os

import h5py
import numpy as np
import pytest

from support.mount import Mount
from support.truth import np_save

pytestmark = pytest.mark.fast

SHAPES = [(), (0,), (1,), (9,), (10,), (99,), (10**5,), (10**9,), (10**12,), (2**53 + 1,), (0, 0), (1, 1), (10**6, 3), (3, 10**6), (5, 0, 7),
          (2**40, 2**10), (1, 2, 3, 4, 5), (1,) * 12, (2,) * 32, tuple(range(1, 17)), (10**17,), (4, 2**40)]
TYPES = ["|u1", "<i2", ">f4", "<f8", "<c16", "|b1", "|S17", "|V3"]
HUGE = {"u1_contiguous": ("|u1", (2**60,), None), "i4_contiguous": ("<i4", (2**60,), None), "u1_chunked": ("|u1", (2**60,), (2**20,)),
        "i2_matrix": ("<i2", (2**30, 2**30), (1024, 1024))}


@pytest.fixture(scope="module")
def mount(tmp_path_factory):
    store = tmp_path_factory.mktemp("headers") / "headers.h5"
    with h5py.File(store, "w", libver="latest") as file:
        for t, code in enumerate(TYPES):
            for s, shape in enumerate(SHAPES):
                if size_of(code, shape) < 2**62:
                    file.create_dataset(f"d{t}_{s}", shape, code)
        for name, (code, shape, chunks) in HUGE.items():
            file.create_dataset(name, shape, code, chunks=chunks, fillvalue=3)
        file.create_dataset("past_the_largest_file", (2**60,), "<f8")  # 2^63 bytes: no file can be that large
        file["small"] = np.arange(4)
    with Mount(store) as mount:
        yield mount


def size_of(code, shape):
    size = np.dtype(code).itemsize
    for extent in shape:
        size *= extent
    return size


def header_of(code, shape):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": code, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def test_headers_and_sizes(mount):
    wrong, seen = [], 0
    for t, code in enumerate(TYPES):
        for s, shape in enumerate(SHAPES):
            if size_of(code, shape) >= 2**62:
                continue
            seen += 1
            path, header = mount / f"d{t}_{s}.npy", header_of(code, shape)
            with open(path, "rb", buffering=0) as stream:
                start = stream.read(len(header))
            size = os.stat(path).st_size
            if start != header or size != len(header) + size_of(code, shape):
                wrong.append(f"{code} {shape}: size {size}, {start!r} instead of {header!r}")
    assert seen > 150
    assert not wrong, "\n".join(wrong)


def test_the_header_writer_agrees_with_np_save():
    """The judge of this file against the judge of all others."""
    for code in TYPES:
        for shape in [(), (0,), (3,), (2, 5), (0, 4)]:
            assert np_save(np.zeros(shape, code)).startswith(header_of(code, shape))


def test_two_to_the_sixty_elements_cost_no_memory(mount):
    for name, (code, shape, _) in HUGE.items():
        path, header = mount / f"{name}.npy", header_of(code, shape)
        assert os.stat(path).st_size == len(header) + size_of(code, shape), name
        item = np.array(3, code).tobytes()
        with open(path, "rb", buffering=0) as stream:
            assert stream.read(len(header)) == header, name
            for position in (0, 2**31, 2**40, size_of(code, shape) // 2, size_of(code, shape) - 4096):
                assert os.pread(stream.fileno(), 4096, len(header) + position) == item * (4096 // len(item)), (name, position)
            assert os.pread(stream.fileno(), 4096, len(header) + size_of(code, shape) - 6) == (item * 6)[-6:], name
    assert mount.peak_memory() < 300 << 20


def test_a_size_no_file_can_have_is_refused_with_a_reason(mount):
    """2^63 bytes and a header do not fit st_size: the object is left out, or it stands there and cannot be read."""
    name = "past_the_largest_file"
    if (mount / f"{name}.npy").exists():
        assert os.stat(mount / f"{name}.npy").st_size == 0
        with pytest.raises(OSError):
            (mount / f"{name}.npy").read_bytes()
    else:
        assert any(entry["name"] == name and entry["reason"] for entry in mount.info()["left_out"])
    assert np.load(mount / "small.npy").tolist() == [0, 1, 2, 3]
