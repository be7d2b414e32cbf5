"""A damaged chunk index never reads as fill values: every byte of the structures around the chunks of a dataset is turned over, one
at a time, for every kind of index. Judge: h5py, reading the same damaged file. Where it reads, npyfs gives the same bytes or refuses;
where it refuses, npyfs gives the bytes of the whole file (it needs no keys of groups) or refuses. What npyfs refuses, `verify` names.
What was never written still reads as fill values."""

import errno
import os
import sys

import h5py
import numpy as np
import pytest

from support.mount import Mount
from support.process import npyfs, run
from support.sweep_layouts import EARLY, properties
from support.truth import np_save, read

MOST = 150  # damaged copies of each file
MANY = 30  # of one that libhdf5 reads for seconds once its table is refused

# Prints for each file whether h5py reads its dataset, after it wrote what it read beside it.
JUDGE = """
import os, sys
sys.path.insert(0, sys.argv[1])
import h5py
from support.truth import np_save, visible_array
for path in sys.argv[2:]:
    print(path, end=" ", flush=True)
    try:
        with h5py.File(path, "r") as file:
            saved = np_save(visible_array(file["x"]))
        with open(path + ".npy", "wb") as out:
            out.write(saved)
        print("read", flush=True)
    except Exception as problem:
        print("refused", flush=True)
"""


def judge(paths):
    """{path: bytes or None}. A file that kills the judge or takes it a minute counts as refused."""
    said, left = {}, list(paths)
    while left:
        done = run([sys.executable, "-c", JUDGE, os.path.dirname(__file__), *left], timeout=300)
        lines = [line.split(" ") for line in done.stdout.splitlines()]
        said |= {path: words[0] if words else "" for path, *words in lines}
        left = [path for path in left if os.fspath(path) not in said]
    found = {}
    for path in paths:
        saved = path.with_name(path.name + ".npy")
        found[path.name] = saved.read_bytes() if said[os.fspath(path)] == "read" else None
        saved.unlink(missing_ok=True)
    return found


def write(path, libver, shape, chunk, limit=None, **what):
    with h5py.File(path, "w", libver=libver) as file:
        values = np.arange(1, np.prod(shape) + 1).reshape(shape)
        file.create_dataset("x", data=values, chunks=chunk, maxshape=limit, **what)


GZIP = {"compression": "gzip", "fletcher32": True}
KINDS = {
    "btree1": ("earliest", (30,), (3,), None, {}),
    "btree1_gzip": ("earliest", (8, 9), (2, 3), None, GZIP),
    "btree1_deep": ("earliest", (150, 4), (1, 3), None, {}),
    "single": ("latest", (30,), (30,), None, {}),
    "single_gzip": ("latest", (30,), (30,), None, GZIP),
    "implicit": ("latest", (30,), (7,), None, {"dcpl": properties(alloc_time=[EARLY])}),
    "fixed": ("latest", (30,), (3,), None, {}),
    "fixed_gzip": ("latest", (8, 9), (2, 3), None, GZIP),
    "fixed_paged": ("latest", (1300,), (1,), None, {}),
    "extensible": ("latest", (30,), (3,), (None,), {}),
    "extensible_gzip": ("latest", (8, 9), (2, 3), (8, None), GZIP),
    "extensible_deep": ("latest", (900,), (1,), (None,), {}),
    "btree2": ("latest", (8, 9), (2, 3), (None, None), {}),
    "btree2_gzip": ("latest", (8, 9), (2, 3), (None, None), GZIP),
    "btree2_deep": ("latest", (50, 20), (1, 1), (None, None), {}),
    # So many chunks that they are looked up.
    "btree1_many": ("earliest", (17_000,), (1,), None, {}),
    "fixed_many": ("latest", (17_000,), (1,), None, {}),
    "extensible_many": ("latest", (130, 131), (1, 1), (130, None), {}),
    "btree2_many": ("latest", (130, 131), (1, 1), (None, None), {}),
}


def around_chunks(path, most=MOST):
    """Places of all bytes that are neither elements nor the superblock, those of signatures first; a dense sample."""
    with h5py.File(path, "r") as file:
        chunks = []
        file["x"].id.chunk_iter(chunks.append)
    data = path.read_bytes()
    free = bytearray(len(data))
    for chunk in chunks:
        free[chunk.byte_offset:chunk.byte_offset + chunk.size] = b"\1" * chunk.size
    places = [at for at in range(100, len(data)) if not free[at]]
    signatures = [b"TREE", b"FAHD", b"FADB", b"EAHD", b"EAIB", b"EASB", b"EADB", b"BTHD", b"BTIN", b"BTLF"]
    first = [at + 1 for at in places if data[at:at + 4] in signatures]
    used = [at for at in places if data[at] != 0 or any(data[max(0, at - 8):at + 8])]
    signatures = most // 7
    return sorted({*first[:signatures], *used[::max(1, len(used) // (most - signatures))]})


def samples(path, either):
    """Looks chunks up all over an array; those that are like neither of the whole ones."""
    wrong = []
    for at in range(200, len(either[1]) - 8, 9001):
        try:
            handle = os.open(path, os.O_RDONLY)
        except OSError:
            return wrong
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
            found = os.pread(handle, 8, at)
            if found not in [whole[at:at + 8] for whole in either if whole]:
                wrong.append((path, at))
        except OSError as problem:
            assert problem.errno == errno.EIO, problem
        finally:
            os.close(handle)
    return wrong


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.sample("damage", 3)
@pytest.mark.parametrize("kind", KINDS)
def test_no_damaged_index_reads_as_other_bytes(tmp_path, kind):
    libver, shape, chunk, limit, what = KINDS[kind]
    seed, tree = tmp_path / "seed.h5", tmp_path / "tree"
    write(seed, libver, shape, chunk, limit, **what)
    tree.mkdir()
    data = seed.read_bytes()
    for at in around_chunks(seed, MANY if kind.endswith("_many") else MOST):
        (tree / f"m{at:06}.h5").write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1:])
    (tree / "whole.h5").write_bytes(data)
    expected = judge(sorted(tree.iterdir()))
    assert expected["whole.h5"] is not None
    assert sum(saved is None for saved in expected.values()) >= 3, "hardly anything was damaged"
    wrong, refused = [], []
    with Mount(tree, limit=600) as mount:
        for name, saved in expected.items():
            if kind.endswith("_many"):
                wrong += samples(mount / name / "x.npy", [saved, expected["whole.h5"]])
            try:
                found = read(mount / name / "x.npy")
            except OSError as problem:
                assert problem.errno in (errno.EIO, errno.ENOENT, errno.ENOTDIR), (name, problem)
                # Not under its name, but whole: the byte was one of the name.
                others = os.listdir(mount / name) if problem.errno == errno.ENOENT and (mount / name).is_dir() else []
                if [read(mount / name / other) for other in others] != [expected["whole.h5"]]:
                    refused.append(name)
            else:
                if found != (saved or expected["whole.h5"]):
                    wrong.append(name)
        assert mount.alive()
        assert read(mount / "whole.h5/x.npy") == expected["whole.h5"]
    assert not wrong, f"h5py refuses or reads other data, of {len(expected)} files: {wrong}"
    assert "whole.h5" not in refused
    said = npyfs("verify", tree, timeout=300)
    assert said.returncode != 0
    quiet = [name for name in refused if name not in said.stdout and name not in said.stderr]
    assert not quiet, f"verify does not mention {quiet}"


@pytest.mark.parametrize("name, dataset", [("vl2.h5", "i"), ("eoa.h5", "a")])
def test_the_fixtures_of_damaged_indexes_are_refused(shared, name, dataset):
    path = shared / "defects" / name
    with h5py.File(path, "r") as file, pytest.raises((OSError, RuntimeError, KeyError)):
        file[dataset][()]
    with Mount(path) as mount:
        with pytest.raises(OSError) as problem:
            read(mount / f"{dataset}.npy")
        assert problem.value.errno == errno.EIO
        assert any(dataset in line for line in mount.errors())
    said = npyfs("verify", path)
    assert said.returncode != 0 and f"{dataset}.npy" in said.stderr


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("block", [0, 512])
def test_what_was_never_written_reads_as_fill_values(tmp_path, libver, block):
    path = tmp_path / "u.h5"
    with h5py.File(path, "w", libver=libver, userblock_size=block) as file:
        file.create_dataset("contiguous", (5,), "i4", fillvalue=7)
        file.create_dataset("text", (5,), h5py.string_dtype())
        for name, limit in {"fixed": (9, 9), "extensible": (9, None), "btree": (None, None)}.items():
            file.create_dataset(name, (9, 9), "i4", chunks=(2, 3), maxshape=limit, fillvalue=7)
            part = file.create_dataset(f"part_{name}", (9, 9), "i4", chunks=(2, 3), maxshape=limit, fillvalue=7)
            part[4:6] = 1
            file.create_dataset(f"shrunk_{name}", data=np.ones((9, 9), "i4"), chunks=(2, 3), maxshape=limit).resize((1, 1))
        file.create_dataset("huge", (1 << 40,), "i8", chunks=(1 << 10,), maxshape=(None,), fillvalue=7)
    with h5py.File(path, "r") as file, Mount(path) as mount:
        for name in file:
            if name == "huge":
                with open(mount / "huge.npy", "rb", buffering=0) as stream:
                    assert os.pread(stream.fileno(), 800, 128 + (8 << 35)) == np.full(100, 7).tobytes()
            elif name == "text":
                assert np.load(mount / "text.npy").tolist() == [""] * 5
            else:
                assert read(mount / f"{name}.npy") == np_save(file[name][()]), name
        assert mount.errors() == []
