"""The daemon stays under cache_size + 64 MiB where one Hangar sample is larger than that. Judges: the kernel's account of its peak
(VmHWM), and the bytes that NumPy wrote."""

import os
import shutil
import threading

import numpy as np
import pytest

from support import hangar
from support.mount import Mount
from test_hangar_commit import commit
from test_memory_chunks import MIB, PART, held

SIZE = 160 * MIB
CACHE = 8 * MIB
# What the first sample of a column begins with; Hangar stores equal ones once.
FIRST = {"blosc": 1, "lzf": 11, "numpy": 21}

pytestmark = pytest.mark.timeout(600)

# Hangar itself takes minutes to write such samples: it makes the columns.
COLUMNS = '''
path, size = sys.argv[1], int(sys.argv[2])
with contextlib.redirect_stdout(io.StringIO()):
    co = repository(path).checkout(write=True)
    co.add_ndarray_column("blosc", prototype=np.zeros(size // 4, "<i4"), backend="00")
    co.add_ndarray_column("lzf", prototype=np.zeros((size // 4096, 1024), "<i4"), backend="01",
                          backend_options={"complib": "lzf", "complevel": None, "shuffle": True})
    co.add_ndarray_column("numpy", prototype=np.zeros(size // 4, "<i4"), backend="10")
    co.add_ndarray_column("vary", prototype=np.zeros((size // 4096, 1024), "<i4"), backend="10", variable_shape=True)
    co.add_bytes_column("raw")
    co.commit("columns")
    co.close()
'''


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    path = folder / "repo"
    hangar.script(COLUMNS, path, str(SIZE))
    with Mount(path, checkout="work", limit=500) as m:
        for key in range(2):
            for name in FIRST:
                values = numbers(FIRST[name] + key)
                np.save(m / f"stage/{name}/{key}.npy", values.reshape(-1, 1024) if name == "lzf" else values)
        np.save(m / "stage/vary/0.npy", numbers(1).reshape(-1, 1024)[:30000, :1000])
        (m / "stage/raw/0.bin").write_bytes(numbers(1))
    commit(path, "large")
    yield path
    shutil.rmtree(folder)


def numbers(first):
    values = np.arange(SIZE // 4, dtype="<i4")
    values >>= 6
    values += first
    return values


def check(path, header, expected, offsets):
    handle = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
        assert os.fstat(handle).st_size == header + len(expected)
        for at in offsets:
            n = min(PART, len(expected) - at)
            assert os.pread(handle, n, header + at) == bytes(expected[at:at + n]), f"{path} at {at}"
    finally:
        os.close(handle)


def single(mount, name):
    expected = memoryview(numbers(FIRST[name] + 1)).cast("B")
    check(mount / f"branches/master/{name}/1.npy", 128, expected, [SIZE // 2 + 12345, *range(0, SIZE, PART)])


@pytest.mark.parametrize("name", ["blosc", "lzf", "numpy"])
def test_a_sample_larger_than_the_cache(repository, name):
    with Mount(repository, f"cache_size={CACHE}", limit=500) as m:
        single(m, name)
        assert m.errors() == []
        held(m, CACHE)


@pytest.mark.parametrize("name", ["blosc", "lzf", "numpy"])
def test_stacked_samples_larger_than_the_cache(repository, name):
    expected = memoryview(np.concatenate([numbers(FIRST[name]), numbers(FIRST[name] + 1)])).cast("B")
    with Mount(repository, f"cache_size={CACHE}", limit=500) as m:
        # Across the border between two rows, then all.
        check(m / f"branches/master/{name}.npy", 128, expected, [SIZE - PART // 2, *range(0, 2 * SIZE, PART)])
        assert m.errors() == []
        held(m, CACHE)


def test_a_part_of_a_row_and_bytes(repository):
    values = numbers(1)
    with Mount(repository, f"cache_size={CACHE}", limit=500) as m:
        part = np.ascontiguousarray(values.reshape(-1, 1024)[:30000, :1000])
        check(m / "branches/master/vary/0.npy", 128, memoryview(part).cast("B"), range(0, part.nbytes, PART))
        check(m / "branches/master/raw/0.bin", 0, memoryview(values).cast("B"), range(0, SIZE, PART))
        assert m.errors() == []
        held(m, CACHE)


def test_readers_of_several_samples_at_a_time(repository):
    """None waits for ever for room in the cache; some of the samples fit, one at a time."""
    cache, problems = 5 * SIZE, []

    def read(m, name):
        try:
            single(m, name)
        except (AssertionError, OSError) as problem:
            problems.append(f"{name}: {problem}")
    with Mount(repository, f"cache_size={cache}", limit=500) as m:
        readers = [threading.Thread(target=read, args=(m, name)) for name in ("blosc", "lzf", "numpy") * 2]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert not problems, problems
        held(m, cache)


def test_a_file_of_a_repository_by_itself(repository):
    [path] = (repository / ".hangar/data/01").glob("*.hdf5")
    with Mount(path.resolve(), f"cache_size={CACHE}", limit=500) as m:
        [name] = [name for name in m.files() if name.endswith("/1.npy") and not name.startswith(".")]
        check(m / name, 128, memoryview(numbers(FIRST["lzf"] + 1)).cast("B"), range(0, SIZE, PART))
        held(m, CACHE)


def test_without_room_on_the_disk_the_error_says_so(repository, tmp_path):
    gone = tmp_path / "gone"
    with Mount(repository, f"cache_size={CACHE}", env={"TMPDIR": str(gone)}, limit=500) as m:
        with pytest.raises(OSError):
            (m / "branches/master/blosc/1.npy").read_bytes()
        assert any(str(gone) in line for line in m.errors()), m.errors()


def test_a_damaged_large_sample_is_refused(repository):
    """The last test: it does harm."""
    with Mount(repository) as m:
        info = m.info("branches/master/numpy/0.npy")
    at = 128 + int(info["record"].split(":")[3]) * SIZE + SIZE // 2
    with open(info["file"], "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    with Mount(repository, f"cache_size={CACHE}", limit=500) as m:
        with pytest.raises(OSError):
            (m / "branches/master/numpy/0.npy").read_bytes()
        assert any("checksum" in line for line in m.errors()), m.errors()
        single(m, "blosc")
