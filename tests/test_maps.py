"""Memory maps: what a program touches in them is what `np.save` would have written, however the kernel reads around it; and few
samples cost the decoding of few chunks. Judge: the real `.npy` file."""

import os
import random
import signal
import struct
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest

from support.mount import Mount, clear
from support.namespaces import Namespaces
from support.process import NPYFS, run
from support.web import Site

SAMPLE = (64, 64, 3)
ROWS = 600
STORED = {
    "gzip": dict(chunks=(1, *SAMPLE), compression="gzip"),
    "lzf": dict(chunks=(1, *SAMPLE), compression="lzf"),
    "many": dict(chunks=(64, *SAMPLE), compression="gzip"),
    "cut": dict(chunks=(3, 32, 16, 2), compression="gzip", shuffle=True),
    "chunked": dict(chunks=(1, *SAMPLE)),
    "contiguous": {},
}

# Touches parts of an array through a map, from several threads: argv[1] is the array, argv[2] the real one, argv[3] the seed. Prints nothing
# if all are equal. What one thread touches is what another one is given beside its own.
TOUCH = """
import random, sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np

def touch(seed):
    mapped, real = np.load(sys.argv[1], mmap_mode="r"), np.load(sys.argv[2], mmap_mode="r")
    assert mapped.shape == real.shape and mapped.dtype == real.dtype
    chosen, count = random.Random(seed), len(real)
    for _ in range(60):
        i, n = chosen.randrange(count), chosen.choice([1, 1, 1, 2, 8, 40])
        part = np.s_[i:i + n] if chosen.random() < 0.8 else np.s_[i:i + n, -1:]
        np.testing.assert_array_equal(mapped[part], real[part])
    # From the end on, row by row: what a reader goes on with lies in front of what it was given.
    end = chosen.randrange(count // 2, count)
    for i in range(end, end - count // 4, -1):
        np.testing.assert_array_equal(mapped[i], real[i])
    column = (slice(None, None, chosen.randrange(1, 9)), chosen.randrange(real.shape[1]))
    np.testing.assert_array_equal(mapped[column], real[column])

with ThreadPoolExecutor(3) as pool:
    list(pool.map(touch, range(int(sys.argv[3]), int(sys.argv[3]) + 3)))
"""


class AskedByPage(Namespaces):
    """A machine whose kernel reads ahead no more than it does for a user who is not root: the setting cannot be changed."""

    name = "pages"

    def prepare(self):
        return ["mount -o remount,ro,bind /sys"]

    def __call__(self, *command):
        return run(["nsenter", f"--target={self.init}", "--mount", "--pid", "--", *command], timeout=120, check=True)


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """(store, folder of the real files)"""
    folder = tmp_path_factory.mktemp("maps")
    noise = np.random.default_rng(5)
    pictures = (np.arange(ROWS, dtype="u1")[:, None, None, None] + noise.integers(0, 7, (ROWS, *SAMPLE))).astype("u1")
    table = noise.normal(size=(3000, 300)).astype("<f4")
    with h5py.File(folder / "x.h5", "w") as file:
        for name, how in STORED.items():
            file.create_dataset(name, data=pictures, **how)
            np.save(folder / f"{name}.npy", pictures)
        file.create_dataset("table", data=table, chunks=True, compression="gzip")
        np.save(folder / "table.npy", table)
    return folder / "x.h5", folder


def touch(processes, path, real):
    command = [sys.executable, "-c", TOUCH, path, real]
    running = [subprocess.Popen([*command, str(10 * number)], stderr=subprocess.PIPE, text=True) for number in range(processes)]
    for process in running:
        try:
            _, said = process.communicate(timeout=100)
        finally:
            process.kill()
        assert process.returncode == 0, said


@pytest.mark.parametrize("name", [*STORED, "table"])
def test_what_is_touched(arrays, name):
    store, folder = arrays
    with Mount(store) as mount:
        for _ in range(2):
            touch(3, mount / f"{name}.npy", folder / f"{name}.npy")
        assert mount.errors() == []
        assert (mount / f"{name}.npy").read_bytes() == (folder / f"{name}.npy").read_bytes()


def test_what_is_touched_where_the_kernel_asks_by_page(arrays, root_only):
    store, folder = arrays
    with AskedByPage(200) as machine:
        point = machine.folder / "mnt"
        point.mkdir()
        machine(NPYFS, "mount", store, point)
        assert "not_raised" in machine("cat", point / ".npyfs/status.json").stdout
        for name in [*STORED, "table"]:
            machine(sys.executable, "-c", TOUCH, point / f"{name}.npy", folder / f"{name}.npy", "7")
            machine("cmp", point / f"{name}.npy", folder / f"{name}.npy")
        assert machine("cat", point / ".npyfs/errors.log").stdout == ""
        machine(NPYFS, "umount", point)


def test_a_header_decodes_the_chunks_of_one_request(arrays, root_only):
    """The kernel's first request is of 16 KiB: two chunks, not the block of many that a reader in order is given."""
    store, folder = arrays
    size = int(np.prod(SAMPLE))
    with Mount(store) as mount:
        before = mount.status()["cache"]["decoded_bytes"]
        with open(mount / "gzip.npy", "rb") as header, open(folder / "gzip.npy", "rb") as real:
            assert header.read(128) == real.read(128)
        assert mount.status()["cache"]["decoded_bytes"] - before <= 3 * size


def test_samples_decode_their_own_chunks(arrays, root_only):
    """And those of the samples beside them, with which they share a page; and some at the header."""
    store, folder = arrays
    size = int(np.prod(SAMPLE))
    with Mount(store) as mount:
        before = mount.status()["cache"]["decoded_bytes"]
        touched = run([sys.executable, "-c", f"""
import numpy as np
array = np.load({str(mount / "gzip.npy")!r}, mmap_mode="r")
print(sum(int(array[i].sum()) for i in range(0, {ROWS}, 10)))"""], check=True).stdout
        assert int(touched) == int(np.load(folder / "gzip.npy")[::10].sum())
        decoded = mount.status()["cache"]["decoded_bytes"] - before
        assert ROWS // 10 * size <= decoded <= ROWS // 10 * 3 * size + (512 << 10), decoded


def test_aligned_samples_decode_their_own_chunks_alone(arrays, root_only):
    """`-o aligned`: the header fills a page, so a sample of whole pages shares none. And some beside the header."""
    store, folder = arrays
    size, chosen = int(np.prod(SAMPLE)), range(0, ROWS, 10)
    with Mount(store, "aligned,keep=1G") as mount, Mount(store, "keep=1G") as other:
        before = mount.status()["cache"]["decoded_bytes"]
        touched = run([sys.executable, "-c", f"""
import numpy as np
array = np.load({str(mount / "gzip.npy")!r}, mmap_mode="r")
assert array.offset == 4096
print(sum(int(array[i].sum()) for i in range(0, {ROWS}, 10)))"""], check=True).stdout
        assert int(touched) == int(np.load(folder / "gzip.npy")[::10].sum())
        assert mount.status()["cache"]["decoded_bytes"] - before <= len(chosen) * size + (512 << 10)
        # What is kept of one is not shown by the other.
        for _ in range(3):
            for point, length in ((mount, 4096), (other, 128)):
                whole = (point / "lzf.npy").read_bytes()
                assert whole[length:] == (folder / "lzf.npy").read_bytes()[128:] and len(whole) == length + ROWS * size
        np.testing.assert_array_equal(np.load(mount / "table.npy"), np.load(folder / "table.npy"))
        assert mount.status()["options"]["aligned"] and mount.errors() == []
    refused = run([NPYFS, "mount", "--checkout", "work", "-o", "aligned", store, folder])
    assert refused.returncode == 1 and "aligned is for mounts that are only read" in refused.stderr


def test_samples_that_were_loaded_once_are_not_decoded_again(arrays, root_only):
    """As data loaders do: each sample by a new map of the file."""
    store, folder = arrays
    epochs = """
import sys
import time
import numpy as np
for epoch in range(2):
    print(sum(int(np.load(sys.argv[1], mmap_mode="r")[i].sum()) for i in range(0, 200, 7)), flush=True)
    sys.stdin.readline()
"""
    real = int(np.load(folder / "gzip.npy")[:200:7].sum())
    with Mount(store) as mount, subprocess.Popen([sys.executable, "-c", epochs, mount / "gzip.npy"], stdin=subprocess.PIPE,
                                                 stdout=subprocess.PIPE, text=True) as process:
        served = []
        for _ in range(2):
            assert int(process.stdout.readline()) == real
            cache = mount.status()["cache"]
            served.append(cache["hits"] + cache["misses"])
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.wait(60) == 0
        assert served[1] == served[0] > 0, served


READ = """
import os, random, sys
path, rng = sys.argv[1], random.Random(sys.argv[2])
while True:
    # Opened for the header and again, as by np.load for a map: the kernel asks for the pages of the second handle one by one.
    with open(path, "rb", buffering=0) as file:
        file.read(128)
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        for _ in range(8):
            os.pread(file.fileno(), rng.choice([10, 5000, 100_000, 1 << 20]), rng.randrange(size))
"""


def test_a_killed_daemon_leaves_nobody_waiting(arrays):
    """What puts pages beside those that were asked for waits for none that are being read: nothing would answer for them."""
    store, _ = arrays
    rng = random.Random(os.environ.get("NPYFS_SEED"))
    # Far away, where reads take long.
    with Site(store.parent, latency=0.02) as site:
        for number in range(12):
            with Mount(site.url(store.name)) as mount:
                mount.expect_dead = True
                readers = [subprocess.Popen([sys.executable, "-c", READ, mount / "gzip.npy", f"{number}-{reader}"], stderr=subprocess.DEVNULL)
                           for reader in range(2)]
                time.sleep(0.3 + rng.random() * 0.5)
                os.kill(mount.pid, signal.SIGKILL)
                for reader in readers:
                    assert reader.wait(60) == 1
                clear(mount.path)


def test_a_sample_beside_a_damaged_one(arrays, tmp_path):
    """What is read along with it is not asked for: a failure there is none of it."""
    store, folder = arrays
    damaged = tmp_path / "damaged.h5"
    damaged.write_bytes(store.read_bytes())
    with h5py.File(damaged) as file:
        chunk = file["gzip"].id.get_chunk_info_by_coord((100, 0, 0, 0))
    with open(damaged, "r+b") as stream:
        stream.seek(chunk.byte_offset + 8)
        stream.write(b"\xff" * 64)
    real = np.load(folder / "gzip.npy", mmap_mode="r")
    # Pages that hold bytes of the damaged sample cannot be read: the ends of both beside it.
    look = """
import sys
import time
import numpy as np
array = np.load(sys.argv[1], mmap_mode="r")
inner = array.reshape(len(array), -1)[[99, 101], 4096:8192]
sys.stdout.buffer.write(inner.tobytes())
"""
    with Mount(damaged) as mount:
        got = subprocess.run([sys.executable, "-c", look, mount / "gzip.npy"], capture_output=True, timeout=60, check=True).stdout
        assert got == real.reshape(ROWS, -1)[[99, 101], 4096:8192].tobytes()
        failed = subprocess.run([sys.executable, "-c", look.replace("[99, 101]", "[100]"), mount / "gzip.npy"], capture_output=True, timeout=60)
        assert failed.returncode == -7, failed  # SIGBUS: a read that fails behind a map
        assert any("gzip.npy: read" in line for line in mount.errors())


@pytest.mark.parametrize("claimed", [80_000, 1 << 28])
def test_a_chunk_that_claims_more_than_it_has(tmp_path, claimed):
    """A size that could be is read, one that cannot be makes libhdf5 read the array: neither harms the samples beside. Judges: h5py, and
    `Mount` of the memory."""
    path, count = tmp_path / "x.h5", 200
    values = np.random.default_rng(3).integers(0, 9, (count, 12_288)).astype("u1")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=values, chunks=(1, 12_288), compression="gzip")
        file["behind"] = np.zeros(1 << 17, "u1")
    with h5py.File(path) as file:
        last = max((file["x"].id.get_chunk_info(i) for i in range(count)), key=lambda chunk: chunk.byte_offset)
    data = bytearray(path.read_bytes())
    # A key of the B-tree has the size, a filter mask, three offsets, and then the address.
    size, key = struct.pack("<I", last.size), data.find(struct.pack("<Q", last.byte_offset)) - 32
    assert data[key:key + 4] == size
    data[key:key + 4] = struct.pack("<I", claimed)
    end = struct.pack("<Q", len(data))
    # The end of the file in the superblock: the chunk lies within the file.
    data = data.replace(end, struct.pack("<Q", 1 << 30), 1)
    path.write_bytes(data)
    os.truncate(path, 1 << 30)
    number = last.chunk_offset[0]
    with h5py.File(path) as file:
        try:
            truth = file["x"][number].tobytes()
        except OSError:
            truth = None
    look = "import sys; import numpy as np; sys.stdout.buffer.write(np.load(sys.argv[1], mmap_mode='r')[int(sys.argv[2])].tobytes())"
    with Mount(path) as mount:
        for sample in (number, number - 2, number):
            got = subprocess.run([sys.executable, "-c", look, mount / "x.npy", str(sample)], capture_output=True, timeout=100)
            if sample == number:
                # A file that says so is damaged: h5py ignores what follows the stream.
                assert got.returncode == -signal.SIGBUS or got.stdout == truth, got
            else:
                assert got.stdout == values[sample].tobytes(), got
