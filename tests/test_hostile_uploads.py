"""Headers and archives that claim far more than was sent. Each is refused with a reason, the daemon takes no memory for it, and the mount
works afterwards: judged by what the kernel says of the daemon (VmHWM) and by NumPy and h5py on what is written next."""

import contextlib
import errno
import io
import os
import struct
import zipfile

import h5py
import numpy as np
import pytest
import scipy.sparse

from support import daf, hangar
from support.arkouda import Store
from support.mount import Mount
from support.process import peak_memory
from test_hangar_commit import STAGE

HUGE = 10**12
TARGETS = ["plain", "daf", "arkouda", "hangar"]


def header(descr, shape, fortran=False):
    """A whole .npy file, if its elements have no bytes."""
    text = repr({"descr": descr, "fortran_order": fortran, "shape": tuple(shape)}).encode() + b"\n"
    version, length = (1, "<H") if len(text) < 1 << 16 else (2, "<I")
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack(length, len(text)) + text


@contextlib.contextmanager
def writable(target, tmp_path):
    """A mount, the directory in it to write to, and names of arrays that the target treats each in a way of its own."""
    path = tmp_path / "store.h5"
    folder, names = "", ["x.npy"]
    if target == "plain":
        with h5py.File(path, "w") as file:
            file["a"] = np.arange(4)
    elif target == "daf":
        with h5py.File(path, "w") as file:
            daf.write(file)
        names = ["new#.npy", "cell#x.npy", "cell,gene#x.npy", "item.npy", "cell,gene#s/data.npy"]
    elif target == "arkouda":
        with Store(tmp_path, "store.h5") as store:
            store.files[0].create_dataset("a", data=np.arange(4))
        names = ["x.npy", "s/values.npy", "s/segments.npy", "c/codes.npy"]
    else:
        path = tmp_path / "repo"
        hangar.script(STAGE, path, "0")
        folder, names = "stage", ["a/x.npy", "vary/x.npy", "new/x.npy"]
    with Mount(path, checkout="c", limit=100) as mount:
        yield mount, mount / folder, names


def refusal(path, data, size=None):
    """The errno with which a file is refused, at whatever call; None if it was stored."""
    path.parent.mkdir(exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.write(handle, data)
        if size is not None:
            os.ftruncate(handle, size)
    finally:
        try:
            os.close(handle)
        except OSError as problem:
            return problem.errno
    return None


CLAIMS = {
    "bytes_of_no_width": header("|S0", [HUGE]),
    "text_of_no_width": header("<U0", [HUGE]),
    "raw_of_no_width": header("|V0", [HUGE]),
    "two_axes": header("|S0", [10**6, 10**6]),
    "fortran": header("|S0", [10**6, 10**6], fortran=True),
    "past_64_bits": header("|S0", [2**62, 2**62]),
    "members_of_no_width": header([("a", "|S0"), ("b", "<U0")], [HUGE]),
    "subarrays_without_elements": header([("a", "<i4", (0,))], [HUGE]),
    "axes_with_none_past_64_bits": header("<f8", [0, 2**62, 2**62]),
    "one_axis_past_63_bits": header("<f8", [0, 2**64 - 1]),
    "wide_bytes": header("|S1000000000000", [0]),
    "wide_text": header("<U1000000000000", [0]),
    "wide_members": header([("a", "<f8", (2**20, 2**20))], [0]),
    "thousands_of_members": header([(f"m{i}", "<i4") for i in range(5000)], [0]),
    "tens_of_thousands_of_members": header([(f"m{i}", "<i4") for i in range(40000)], [0]),
}


@pytest.mark.parametrize("target", TARGETS)
def test_a_header_that_claims_more_than_was_sent(target, tmp_path):
    with writable(target, tmp_path) as (mount, folder, names):
        before = peak_memory(mount.pid)
        for what, data in CLAIMS.items():
            for name in names:
                got = refusal(folder / name, data)
                # A member of an object of several files waits for the others.
                waits = got is None and target != "hangar" and "/" in name
                assert waits or got in (errno.EINVAL, errno.EFBIG, errno.EOPNOTSUPP), (what, name, got)
                assert mount.alive()
        assert peak_memory(mount.pid) - before < 64 << 20
        said = mount.errors()
        assert said and all(len(line) < 3000 for line in said)
        assert any("members" in line for line in said) and any("elements of no bytes" in line for line in said)


def test_thousands_of_members_are_refused_with_the_reason_and_hundreds_are_stored(tmp_path):
    with writable("plain", tmp_path) as (mount, folder, _):
        for count in (4000, 5000, 8000):
            assert refusal(folder / "x.npy", header([(f"m{i}", "<i4") for i in range(count)], [0])) == errno.EINVAL, count
            assert any("members" in line for line in mount.errors())
        for count in (600, 3000):
            few = np.zeros(3, [(f"m{i}", "<i4") for i in range(count)])
            few["m7"] = 7
            np.save(folder / "x.npy", few)
            np.testing.assert_array_equal(np.load(folder / "x.npy", max_header_size=1 << 20), few)


def test_few_elements_of_no_bytes_and_long_empty_axes_are_arrays(tmp_path):
    with writable("plain", tmp_path) as (mount, folder, _):
        for dtype, shape in (("S0", (3,)), ("<f8", (0, HUGE)), ("S5", (HUGE, 0)), ("<f8", (10**9, 0, 3))):
            array = np.empty(shape, dtype)
            np.save(folder / "x.npy", array)
            assert np.load(folder / "x.npy").shape == shape


@pytest.mark.parametrize("target", ["plain", "daf", "arkouda"])
def test_holes_cost_no_memory(target, tmp_path):
    """Two GiB of an element, and 10^9 elements, of which nothing but the header was sent."""
    with writable(target, tmp_path) as (mount, folder, names):
        before = peak_memory(mount.pid)
        for name in names[:1]:
            text = header("<U500000000", [1])
            assert refusal(folder / name, text, len(text) + 2_000_000_000) == errno.EINVAL, name
        if target == "daf":
            axis = header("|S16", [10**9])
            assert refusal(folder / "new#.npy", axis, len(axis) + 16 * 10**9) == errno.EINVAL
            assert any("twice" in line for line in mount.errors())
        assert peak_memory(mount.pid) - before < 200 << 20


def archive(members, compression=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as file:
        for name, data in members:
            file.writestr(name, data)
    return out.getvalue()


def test_archives_that_hold_more_than_they_say(tmp_path):
    matrix = scipy.sparse.csr_matrix(np.eye(12, 5))
    parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr, "shape": np.array(matrix.shape)}
    good = {}
    for name, array in parts.items():
        out = io.BytesIO()
        np.save(out, array)
        good[f"{name}.npy"] = out.getvalue()
    zeros = bytes(100 << 20)
    bomb = archive([*((n, d) for n, d in good.items() if n != "data.npy"), ("data.npy", good["data.npy"] + zeros)])
    unread = archive([*good.items(), ("extra.npy", zeros)])
    many = archive([(f"m{i}.npy", b"") for i in range(3000)])
    long = archive([("x" * 60000 + str(i), b"") for i in range(100)], zipfile.ZIP_STORED)
    with writable("daf", tmp_path) as (mount, folder, _):
        before = peak_memory(mount.pid)
        assert refusal(folder / "cell,gene#bomb.npz", bomb) == errno.EINVAL
        # The disk was not filled with what the member holds behind its array.
        assert any("data: " in line and "asks for" in line for line in mount.errors()), mount.errors()
        for number, (data, why) in enumerate([(many, "64 members"), (long, "too long")]):
            assert refusal(folder / f"cell,gene#list{number}.npz", data) == errno.EINVAL
            assert any(why in line for line in mount.errors()), (why, mount.errors())
        path = folder / "cell,gene#good.npz"
        assert refusal(path, unread) is None, mount.errors()
        stored = scipy.sparse.load_npz(path)
        assert (stored != matrix).nnz == 0
        assert peak_memory(mount.pid) - before < 64 << 20
