"""What programs write into a mount of a plain store with --checkout: every tool real, and the judges are NumPy, cmp and h5py
on the files of the layer. The store itself is compared byte for byte after each test."""

import errno
import os
import shutil
import subprocess
import time

import h5py
import numpy as np
import pytest

from support.mount import Mount, until
from support.process import npyfs, run

pytestmark = pytest.mark.fast

NANOSECOND = 1_000_000_000


@pytest.fixture
def store(tmp_path):
    """A plain store; it is as it was when the test is over."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(10.0)
        file["g/y"] = np.arange(6, dtype="<i2").reshape(2, 3)
        file["g/z"] = np.arange(4)
    before = path.read_bytes()
    yield path
    assert path.read_bytes() == before, "the store was written to"


@pytest.fixture
def arrays(tmp_path):
    """Files to copy from: a.npy, b.npy, large.npy."""
    folder = tmp_path / "arrays"
    folder.mkdir()
    np.save(folder / "a.npy", np.arange(1000.0))
    np.save(folder / "b.npy", np.ones((3, 4), "<i4"))
    np.save(folder / "large.npy", np.arange(3_000_000).reshape(3000, 1000))
    return folder


def open_checkout(store, **keywords):
    return Mount(store, checkout="c", **keywords)


def layer(store):
    return store.with_name(store.name + ".checkouts") / "c"


def stored(store, name):
    """What h5py finds at `name` in the newest file of the layer that has it."""
    for path in sorted(layer(store).glob("*.h5"), reverse=True):
        with h5py.File(path) as file:
            if name in file:
                return file[name][()]
    raise AssertionError(f"{name} is in no file of {layer(store)}")


def same(got, want):
    np.testing.assert_array_equal(np.load(got), want)


def one_error(mount, name):
    """The lines of errors.log about a file that was refused: waits for one."""
    lines = []

    def found():
        lines[:] = [line for line in mount.errors() if f" {name}: " in line]
        return lines
    until(found, f"a line about {name}")
    return lines


def test_without_a_checkout_every_write_says_erofs(store, arrays):
    with Mount(store) as m:
        for attempt in (lambda: open(m / "new.npy", "wb"), lambda: open(m / "x.npy", "r+b"), lambda: os.unlink(m / "x.npy"),
                        lambda: os.mkdir(m / "d"), lambda: os.rename(m / "x.npy", m / "v.npy"), lambda: os.utime(m / "x.npy")):
            with pytest.raises(OSError) as refused:
                attempt()
            assert refused.value.errno == errno.EROFS


def test_cp_lands_in_a_file_that_h5py_opens(store, arrays):
    with open_checkout(store) as m:
        run(["cp", arrays / "a.npy", m.path], check=True)
        run(["cmp", arrays / "a.npy", m / "a.npy"], check=True)
        run(["cp", arrays / "b.npy", m / "g/y.npy"], check=True)
        run(["cmp", arrays / "b.npy", m / "g/y.npy"], check=True)
        assert sorted(os.listdir(m.path)) == ["a.npy", "g", "x.npy"]
        assert m.info("a.npy")["checkout"] == "c" and "checkout" not in m.info("x.npy")
        same(m / "x.npy", np.arange(10.0))
        assert m.status()["checkout"]["name"] == "c"
    np.testing.assert_array_equal(stored(store, "a"), np.arange(1000.0))
    np.testing.assert_array_equal(stored(store, "g/y"), np.ones((3, 4)))
    with open_checkout(store) as m:
        run(["cmp", arrays / "a.npy", m / "a.npy"], check=True)
        run(["cmp", arrays / "b.npy", m / "g/y.npy"], check=True)
    with Mount(store) as m:
        assert sorted(os.listdir(m.path)) == ["g", "x.npy"], "a mount without the checkout sees it"


def test_two_checkouts_do_not_see_each_other_and_one_has_one_writer(store, arrays, tmp_path):
    with open_checkout(store) as m, Mount(store, checkout="other") as n:
        shutil.copyfile(arrays / "a.npy", m / "a.npy")
        shutil.copyfile(arrays / "b.npy", n / "x.npy")
        same(m / "x.npy", np.arange(10.0))
        assert not os.path.exists(n / "a.npy")
        point = tmp_path / "point"
        point.mkdir()
        refused = npyfs("mount", "--checkout", "c", store, point)
        assert refused.returncode and f"process {m.pid} " in refused.stderr, refused.stderr


def test_who_has_the_old_version_open_keeps_it(store, arrays):
    with open_checkout(store) as m:
        shutil.copyfile(arrays / "large.npy", m / "x.npy")
        old = np.load(m / "x.npy", mmap_mode="r")
        with open(m / "x.npy", "rb") as first:
            head = first.read(100_000)
            shutil.copyfile(arrays / "a.npy", m / "x.npy")
            run(["cmp", arrays / "a.npy", m / "x.npy"], check=True)
            assert head + first.read() == (arrays / "large.npy").read_bytes()
        np.testing.assert_array_equal(old, np.arange(3_000_000).reshape(3000, 1000))
        same(m / "x.npy", np.arange(1000.0))
        del old
        # the same for who opened it while it was being written, changed or not
        for name, want in (("x.npy", arrays / "b.npy"), ("g/z.npy", None)):
            want = want and want.read_bytes() or (m / name).read_bytes()
            with open(m / name, "r+b") as writer:
                if name == "x.npy":
                    writer.truncate(0)
                    writer.write(want)
                    writer.flush()
                reader = open(m / name, "rb")
                head = reader.read(50)
            until(lambda: m.status()["checkout"]["scratch_files"] == 0, "the end of writing")
            shutil.copyfile(arrays / "large.npy", m / name)
            assert os.fstat(reader.fileno()).st_size == len(want)
            assert head + reader.read() == want
            reader.close()


@pytest.mark.parametrize("flags", [["-a"], ["-a", "--inplace"], ["-a", "--checksum"]])
def test_rsync_the_second_transfers_nothing(store, arrays, flags):
    with open_checkout(store) as m:
        command = ["rsync", *flags, "--out-format=%i %n", "--exclude=large.npy", f"{arrays}/", f"{m / 'g'}/"]
        first = run(command, check=True)
        assert len([line for line in first.stdout.splitlines() if line.startswith(">f")]) == 2
        second = run(command, check=True)
        assert not [line for line in second.stdout.splitlines() if line.startswith((">", "<", "c"))], second.stdout
        for name in ("a.npy", "b.npy"):
            run(["cmp", arrays / name, m / "g" / name], check=True)
            assert os.stat(m / "g" / name).st_mtime_ns == os.stat(arrays / name).st_mtime_ns
    with open_checkout(store) as m:
        third = run([*command[:-1], f"{m / 'g'}/"], check=True)
        assert not [line for line in third.stdout.splitlines() if line.startswith((">", "<", "c"))], third.stdout


def test_dd_truncate_and_append_change_a_part(store, arrays):
    with open_checkout(store) as m:
        raw = np.arange(10.0)
        raw[4:6] = [40, 50]
        part = arrays / "part"
        part.write_bytes(raw[4:6].tobytes())
        run(["dd", f"if={part}", f"of={m / 'x.npy'}", "bs=8", "seek=20", "conv=notrunc"], check=True)
        same(m / "x.npy", raw)
        with open(m / "x.npy", "r+b") as file:
            file.seek(128)
            file.write(np.float64(-1).tobytes())
            file.flush()
            file.seek(128)
            assert np.frombuffer(file.read(8))[0] == -1
        raw[0] = -1
        same(m / "x.npy", raw)
        # whatever does not fit the header is refused, and the old content stays
        assert run(["truncate", "-s", "150", m / "x.npy"]).returncode in (0, 1)
        until(lambda: os.stat(m / "x.npy").st_size == 208, "the old content")
        with pytest.raises(OSError), open(m / "x.npy", "ab") as file:
            file.write(b"more")
        until(lambda: os.stat(m / "x.npy").st_size == 208, "the old content")
        same(m / "x.npy", raw)
        # truncate and write again through one descriptor
        with open(m / "x.npy", "r+b") as file:
            file.truncate(0)
            np.save(file, np.arange(3))
        same(m / "x.npy", np.arange(3))
    np.testing.assert_array_equal(stored(store, "x"), np.arange(3))


def test_touch_sets_times_and_nothing_else(store, arrays):
    with open_checkout(store) as m:
        os.utime(m / "x.npy", ns=(5 * NANOSECOND, 1_234_567_890_123_456_789))
        assert os.stat(m / "x.npy").st_mtime_ns == 1_234_567_890_123_456_789
        run(["touch", "-d", "2001-02-03T04:05:06.789Z", m / "g/y.npy"], check=True)
        run(["cp", "-p", arrays / "a.npy", m / "a.npy"], check=True)
        before = time.time_ns()
        run(["touch", m / "g/z.npy", m / "new.npy"], check=True)
        assert os.stat(m / "g/z.npy").st_mtime_ns >= before - NANOSECOND
        assert os.stat(m / "new.npy").st_size == 0
        times = {name: os.stat(m / name).st_mtime_ns for name in m.files() if name != "new.npy"}
        same(m / "g/y.npy", np.arange(6).reshape(2, 3))
        os.unlink(m / "new.npy")  # the unmount would tell
    assert times["g/y.npy"] == 981_173_106_789_000_000
    assert times["a.npy"] == os.stat(arrays / "a.npy").st_mtime_ns
    with open_checkout(store) as m:
        assert {name: os.stat(m / name).st_mtime_ns for name in m.files()} == times
        same(m / "x.npy", np.arange(10.0))


def test_a_time_is_set_while_others_write(store, arrays):
    with open_checkout(store) as m:
        old = os.open(m / "x.npy", os.O_RDONLY)
        writers = [os.open(m / "x.npy", os.O_WRONLY | os.O_TRUNC) for _ in range(2)]
        for descriptor in writers:
            os.write(descriptor, b"not yet an array")
            for what in (old, m / "x.npy", descriptor):
                os.utime(what, ns=(5, 1_234_567_890_123_456_789))
        assert os.stat(m / "x.npy").st_mtime_ns == 1_234_567_890_123_456_789
        os.ftruncate(writers[0], 0)
        os.pwrite(writers[0], (arrays / "a.npy").read_bytes(), 0)
        for descriptor in (*writers, old):
            os.close(descriptor)
        same(m / "x.npy", np.arange(1000.0))
        assert not [line for line in m.errors() if "setattr" in line]


def test_np_save_and_open_memmap(store):
    with open_checkout(store) as m:
        np.save(m / "x.npy", np.arange(4))
        same(m / "x.npy", np.arange(4))
        np.save(m / "large.npy", np.arange(4_000_000.0))  # NumPy asks for room first
        with open(m / "twice.npy", "wb") as file:
            np.save(file, np.arange(5))
            os.fsync(file.fileno())
            same(m / "twice.npy", np.arange(5))
        # the descriptor is closed before the first element is written
        array = np.lib.format.open_memmap(m / "m.npy", "w+", dtype="<f4", shape=(1000, 100))
        array[:] = 7
        array[3, 5] = 9
        same(m / "m.npy", np.where(np.arange(100_000).reshape(1000, 100) == 305, 9, 7))
        del array
        changed = np.lib.format.open_memmap(m / "m.npy", "r+")
        changed[0, 0] = 1
        changed.flush()
        del changed
        assert np.load(m / "m.npy")[0, 0] == 1 and np.load(m / "m.npy").sum() == 700_000 - 6 + 2
    with open_checkout(store) as m:
        array = np.load(m / "m.npy", mmap_mode="r")
        assert array[0, 0] == 1 and array[3, 5] == 9 and array.sum() == 700_000 - 6 + 2
        del array
        same(m / "large.npy", np.arange(4_000_000.0))
    np.testing.assert_array_equal(stored(store, "x"), np.arange(4))


def test_install_vim_and_sed(store, arrays):
    with open_checkout(store) as m:
        run(["install", "-m", "644", arrays / "b.npy", m / "i.npy"], check=True)
        run(["cmp", arrays / "b.npy", m / "i.npy"], check=True)
        (m / "notes.txt~").write_text("one\n")
        run(["sed", "-i", "s/one/two/", m / "notes.txt~"], check=True)
        assert (m / "notes.txt~").read_text() == "two\n"
        for backup in ("yes", "no", "auto"):
            np.save(m / "x.npy", np.array([b"one", b"six"]))
            vim = ["vim", "-N", "-u", "NONE", "-i", "NONE", "-es", "-b", "-c", f"set backup backupcopy={backup}",
                   "-c", "%s/one/two/", "-c", "wq!", m / "x.npy"]
            run(vim, timeout=60, check=True)
            same(m / "x.npy", np.array([b"two", b"six"]))
    np.testing.assert_array_equal(stored(store, "x"), [b"two", b"six"])


def test_directories(store, arrays, tmp_path):
    source = tmp_path / "tree"
    (source / "deep/er").mkdir(parents=True)
    shutil.copy(arrays / "a.npy", source / "deep/a.npy")
    shutil.copy(arrays / "b.npy", source / "deep/er/b.npy")
    run(["tar", "-C", source, "-cf", tmp_path / "t.tar", "deep"], check=True)
    with open_checkout(store) as m:
        run(["cp", "-r", source / "deep", m.path], check=True)
        run(["diff", "-r", source / "deep", m / "deep"], check=True)
        run(["cp", "-a", source / "deep", m / "g/copy"], check=True)
        run(["tar", "-C", m / "g", "-xf", tmp_path / "t.tar"], check=True)
        run(["diff", "-r", source / "deep", m / "g/deep"], check=True)
        run(["mv", m / "g/deep", m / "moved"], check=True)
        run(["diff", "-r", source / "deep", m / "moved"], check=True)
        assert not os.path.exists(m / "g/deep")
        with pytest.raises(OSError) as refused:
            os.rmdir(m / "moved")
        assert refused.value.errno == errno.ENOTEMPTY
        run(["rm", "-r", m / "g"], check=True)
        assert sorted(os.listdir(m.path)) == ["deep", "moved", "x.npy"]
        os.mkdir(m / "g")
        assert os.listdir(m / "g") == []
        shutil.copyfile(arrays / "a.npy", m / "g/new.npy")
        assert os.listdir(m / "g") == ["new.npy"]
    with open_checkout(store) as m:
        assert sorted(m.files()) == ["deep/a.npy", "deep/er/b.npy", "g/new.npy", "moved/a.npy", "moved/er/b.npy", "x.npy"]
        run(["diff", "-r", source / "deep", m / "deep"], check=True)
        run(["rm", "-r", m / "deep"], check=True)
    with open_checkout(store) as m:
        assert sorted(m.files()) == ["g/new.npy", "moved/a.npy", "moved/er/b.npy", "x.npy"]


def test_deleted_is_deleted(store, arrays):
    with open_checkout(store) as m:
        run(["rm", m / "x.npy", m / "g/y.npy"], check=True)
        assert m.files() == ["g/z.npy"]
        with pytest.raises(FileNotFoundError):
            os.unlink(m / "x.npy")
        with open(m / "u.npy", "w+b") as file:
            np.save(file, np.arange(3))
            os.unlink(m / "u.npy")
            file.seek(0)
            np.testing.assert_array_equal(np.load(file), np.arange(3))
        assert not os.path.exists(m / "u.npy")
    with open_checkout(store) as m:
        assert m.files() == ["g/z.npy"]
        shutil.copyfile(arrays / "a.npy", m / "x.npy")
        run(["cmp", arrays / "a.npy", m / "x.npy"], check=True)


def write_badly(path, data):
    with pytest.raises(OSError) as refused:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
    return refused.value.errno


def saved(array, tmp_path, **keywords):
    np.save(tmp_path / "saved.npy", array, **keywords)
    return (tmp_path / "saved.npy").read_bytes()


@pytest.mark.parametrize("name", ["x.npy", "new.npy"])
def test_bad_input_is_told_and_the_old_content_stays(store, tmp_path, name):
    good = saved(np.arange(100), tmp_path)
    objects = saved(np.array([{}, None], object), tmp_path, allow_pickle=True)
    bad = {"no npy": (b"some text\n", errno.EINVAL), "pickled": (objects, errno.EOPNOTSUPP), "cut off": (good[:500], errno.EINVAL),
           "too long": (good + b"x", errno.EINVAL), "no header": (good[:50], errno.EINVAL)}
    for what, (data, want) in bad.items():
        with open_checkout(store) as m:
            assert write_badly(m / name, data) == want, what
            # close() has told; the kernel lets go of the file a moment later.
            until(lambda: os.path.getsize(m / "x.npy") == 128 + 80 and not os.path.exists(m / "new.npy"), "the old content")
            same(m / "x.npy", np.arange(10.0))
            assert len(one_error(m, name)) in (1, 2), m.errors()
            assert m.alive()


def test_text_as_python_objects_is_refused_with_what_works(store, tmp_path):
    """What pandas gives for a column of text."""
    texts = np.array(["a", "b\u00e9"], object)
    with open_checkout(store) as m:
        assert write_badly(m / "text.npy", saved(texts, tmp_path, allow_pickle=True)) == errno.EOPNOTSUPP
        assert "np.save(path, array.astype(str))" in one_error(m, "text.npy")[0]
        np.save(m / "text.npy", texts.astype(str))
        same(m / "text.npy", texts.astype(str))


def test_fortran_order_is_turned(store):
    array = np.arange(24.0).reshape(2, 3, 4)
    with open_checkout(store) as m:
        np.save(m / "f.npy", np.asfortranarray(array))
        same(m / "f.npy", array)
        assert np.load(m / "f.npy").flags.c_contiguous
    np.testing.assert_array_equal(stored(store, "f"), array)


def test_names_that_nobody_can_store(store):
    with open_checkout(store) as m:
        with pytest.raises(OSError):
            open(os.fsencode(m.path) + b"/\xff.npy", "wb")
        with pytest.raises(OSError), open(m / "a%2Fb.npy", "wb") as file:
            np.save(file, np.arange(3))
        with pytest.raises(OSError):
            open(m / ".npyfs/x.npy", "wb")
        for attempt in (lambda: os.symlink("x.npy", m / "l.npy"), lambda: os.link(m / "x.npy", m / "l.npy"), lambda: os.mkfifo(m / "p")):
            with pytest.raises(OSError) as refused:
                attempt()
            assert refused.value.errno == errno.EPERM
        until(lambda: m.files() == ["g/y.npy", "g/z.npy", "x.npy"], "the end of what was refused")


def test_scratch_files_are_files_and_directories_say_so(store):
    """What pjdfstest asks for, in short; the rest is in test_checkout_posix.py."""
    with open_checkout(store) as m:
        for attempt in (lambda: open(m / ("x" * 256), "wb"), lambda: os.stat(m / ("x" * 256)), lambda: os.mkdir(m / ("x" * 256))):
            with pytest.raises(OSError) as refused:
                attempt()
            assert refused.value.errno == errno.ENAMETOOLONG
        (m / ("x" * 255)).touch()
        before = os.stat(m / "g").st_mtime_ns
        time.sleep(0.02)
        (m / "g/s.tmp").touch()
        after = os.stat(m / "g").st_mtime_ns
        assert after > before
        for mode in (0o600, 0o444, 0o751):
            os.chmod(m / "g/s.tmp", mode)
            assert os.stat(m / "g/s.tmp").st_mode & 0o7777 == mode
        time.sleep(0.02)
        os.rename(m / "g/s.tmp", m / "s.tmp")
        assert os.stat(m / "g").st_mtime_ns > after and os.stat(m.path).st_mtime_ns > after
        os.mkdir(m / "one")
        os.mkdir(m / "two")
        (m / "two/s.tmp").touch()
        for to, want in (("two", errno.ENOTEMPTY), ("three", errno.EXDEV), ("x.npy", errno.ENOTDIR)):
            with pytest.raises(OSError) as refused:
                os.rename(m / "one", m / to)
            assert refused.value.errno == want
        assert m.errors() == []


def test_shell_redirection_and_pipes(store, arrays):
    with open_checkout(store) as m:
        run(["sh", "-c", f"cat '{arrays / 'large.npy'}' > '{m / 'x.npy'}'"], check=True)
        run(["cmp", arrays / "large.npy", m / "x.npy"], check=True)
        run(["sh", "-c", f"(head -c 100; cat) < '{arrays / 'a.npy'}' > '{m / 'x.npy'}'"], check=True)
        run(["cmp", arrays / "a.npy", m / "x.npy"], check=True)
        assert m.errors() == []


def test_many_writers_at_once(store, arrays):
    with open_checkout(store) as m:
        shutil.copyfile(arrays / "b.npy", m / "shared.npy")
        children = [subprocess.Popen(["sh", "-c", f"for i in 1 2 3 4 5 6; do cp '{arrays / 'a.npy'}' '{m.path}'/{n}_$i.npy "
                                      f"&& cp '{arrays / 'b.npy'}' '{m.path}'/shared.npy || exit 1; done"]) for n in range(6)]
        assert [child.wait(100) for child in children] == [0] * 6
        for n in range(6):
            for i in range(1, 7):
                run(["cmp", arrays / "a.npy", m / f"{n}_{i}.npy"], check=True)
        run(["cmp", arrays / "b.npy", m / "shared.npy"], check=True)


def test_a_file_that_many_write_is_refused_to_none(store, arrays):
    """Every writer is done at its last close, though another writer had just emptied the file."""
    with open_checkout(store) as m:
        shutil.copyfile(arrays / "b.npy", m / "shared.npy")
        copies = f"for i in $(seq 150); do cp '{arrays / 'a.npy'}' '{m.path}'/$$.npy && cp '{arrays / 'b.npy'}' '{m.path}'/shared.npy || exit 1; done"
        children = [subprocess.Popen(["sh", "-c", copies]) for _ in range(6)]
        assert [child.wait(100) for child in children] == [0] * 6
        run(["cmp", arrays / "b.npy", m / "shared.npy"], check=True)


def test_a_directory_of_stores(tmp_path, arrays):
    folder = tmp_path / "stores"
    (folder / "sub").mkdir(parents=True)
    for path in (folder / "a.h5", folder / "sub/b.h5"):
        with h5py.File(path, "w") as file:
            file["x"] = np.arange(3)
            file["g/y"] = np.arange(4)
    with open_checkout(folder) as m:
        shutil.copyfile(arrays / "a.npy", m / "sub/b.h5/g/y.npy")
        shutil.copyfile(arrays / "b.npy", m / "a.h5/new.npy")
        run(["cmp", arrays / "a.npy", m / "sub/b.h5/g/y.npy"], check=True)
        with pytest.raises(PermissionError):
            open(m / "new.npy", "wb")
        with pytest.raises(PermissionError):
            os.mkdir(m / "sub/dir")
    np.testing.assert_array_equal(stored(folder, "g/y"), np.arange(1000.0))
    with open_checkout(folder) as m:
        run(["cmp", arrays / "a.npy", m / "sub/b.h5/g/y.npy"], check=True)
        assert m.files() == ["a.h5/g/y.npy", "a.h5/new.npy", "a.h5/x.npy", "sub/b.h5/g/y.npy", "sub/b.h5/x.npy"]


def test_checkouts_elsewhere_and_space(store, arrays, tmp_path):
    with open_checkout(store, checkouts=tmp_path / "elsewhere") as m:
        shutil.copyfile(arrays / "a.npy", m / "x.npy")
        run(["cmp", arrays / "a.npy", m / "x.npy"], check=True)
        assert os.statvfs(m.path).f_blocks == os.statvfs(tmp_path).f_blocks
    assert not layer(store).exists() and list((tmp_path / "elsewhere/x.h5.checkouts/c").glob("*.h5"))


def test_a_time_that_is_set_at_once_is_not_lost(store):
    with open_checkout(store) as m:
        for n in range(1, 40):
            np.save(m / "x.npy", np.arange(n))
            os.utime(m / "x.npy", ns=(0, n * NANOSECOND))
            assert os.stat(m / "x.npy").st_mtime_ns == n * NANOSECOND
        until(lambda: m.status()["checkout"]["scratch_files"] == 0, "the end of writing")
        assert os.stat(m / "x.npy").st_mtime_ns == 39 * NANOSECOND
