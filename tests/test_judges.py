"""The judges of this suite judged: what compares, converts and watches here does notice what is wrong. No npyfs needed but for
the last two. Judge: values written out by hand."""

import errno
import os
import signal

import h5py
import numpy as np
import pytest

from support.mount import Mount, mounted, until
from support.process import one_line, run
from support.truth import assert_all, np_save, problems_of, visible_array, walk

TRUTH = np.arange(6, dtype="<i4").reshape(2, 3)
TAMPERED = {
    "one byte of the data": lambda data: data[:-1] + b"\x01", "cut": lambda data: data[:-1], "longer": lambda data: data + b"\0",
    "shape": lambda data: data.replace(b"(2, 3)", b"(3, 2)"), "order of bytes": lambda data: data.replace(b"<i4", b">i4"), "padding": lambda data: data.replace(b" \n", b"\n "),
    "version": lambda data: data[:6] + b"\x02" + data[7:], "empty": lambda data: b"",
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_wrong_file_is_noticed(tmp_path, what):
    path, data = tmp_path / "a.npy", TAMPERED[what](np_save(TRUTH))
    assert data != np_save(TRUTH)
    path.write_bytes(data)
    assert problems_of(path, TRUTH)


def test_a_right_file_is_right_and_a_missing_one_is_not(tmp_path):
    (tmp_path / "a.npy").write_bytes(np_save(TRUTH))
    assert problems_of(tmp_path / "a.npy", TRUTH) == []
    assert problems_of(tmp_path / "b.npy", TRUTH)
    with pytest.raises(AssertionError, match="1 of 2 files"):
        assert_all(tmp_path, {"a.npy": TRUTH, "b.npy": TRUTH}, at_least=2)
    with pytest.raises(AssertionError, match="meant were 3"):
        assert_all(tmp_path, {"a.npy": TRUTH}, at_least=3)


def test_the_rules_of_text(tmp_path):
    utf8, ascii_ = h5py.string_dtype(), h5py.string_dtype("ascii")
    cases = {  # name: (values, HDF5 type, the dtype that shows, the first element)
        "fixed": (np.array([b"ab", b"c"]), np.dtype("S5"), "|S5", b"ab"), "fixed_utf8_ascii": (np.array([b"ab"]), h5py.string_dtype("utf-8", 4), "|S4", b"ab"),
        "fixed_utf8": (np.array(["äb€".encode(), b"c"]), h5py.string_dtype("utf-8", 9), "<U3", "äb€"), "vlen": (["abc", "ä"], utf8, "<U3", "abc"),
        "fixed_ascii_lies": (np.array(["ä".encode()]), np.dtype("S3"), "|S3", "ä".encode()), "vlen_empty": (["", ""], utf8, "<U1", ""),
        "vlen_ascii": ([b"abcd", b""], ascii_, "|S4", b"abcd"), "vlen_ascii_empty": ([b""], ascii_, "|S1", b""), "vlen_invalid": ([b"\xff\xfe", b"a"], utf8, "|S2", b"\xff\xfe"),
    }
    with h5py.File(tmp_path / "t.h5", "w") as file:
        for name, (values, kind, _, _) in cases.items():
            array = np.array(values, object) if isinstance(values, list) else values.astype(kind)
            file.create_dataset(name, data=array, dtype=kind)
    with h5py.File(tmp_path / "t.h5", "r") as file:
        shown = {name: (visible_array(file[name]).dtype.str, visible_array(file[name])[0]) for name in cases}
    assert shown == {name: (dtype, first) for name, (_, _, dtype, first) in cases.items()}
    assert set(walk(tmp_path / "t.h5")) == {f"{name}.npy" for name in cases}


def test_one_line_wants_one_line():
    assert one_line("npyfs: no\n") == "npyfs: no"
    for text in ("", "npyfs: \n", "no\n", "npyfs: a\nnpyfs: b\n", "thread 'main' panicked\n"):
        with pytest.raises(AssertionError):
            one_line(text)


def test_a_program_that_hangs_is_ended():
    with pytest.raises(AssertionError, match="not finished"):
        run(["sleep", "60"], timeout=0.2)


def test_a_daemon_that_dies_fails_the_test(session_store):
    point = None
    with pytest.raises(AssertionError, match="died"):
        with Mount(session_store) as mount:
            point = mount.path
            os.kill(mount.pid, signal.SIGKILL)
            until(lambda: not mount.alive(), "the daemon's death")
    assert not mounted(point)


def test_the_guard_ends_a_mount_that_lives_too_long(session_store):
    with pytest.raises(AssertionError, match="longer than its limit"):
        with Mount(session_store, limit=1) as mount:
            held = os.open(mount.path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                until(lambda: not mount.alive(), "the guard")
                with pytest.raises(OSError) as problem:
                    os.stat("never looked up", dir_fd=held)
            finally:
                os.close(held)
            assert problem.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
            until(lambda: not mounted(mount.path), "the guard's unmount")
    assert not mounted(mount.path)
