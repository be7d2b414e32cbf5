"""Small HDF5 files of every structure that npyfs or libhdf5 parses, and damaged copies of them. Deterministic."""

import h5py
import hdf5plugin
import numpy as np

from . import daf
from .sweep_layouts import EARLY, properties
from .sweep_types import numbers, record, words

# What the structures of the format begin with (format specification, section III).
SIGNATURES = [b"\x89HDF", b"TREE", b"HEAP", b"SNOD", b"OHDR", b"OCHK", b"GCOL", b"FRHP", b"FHDB", b"FHIB", b"FSHD", b"BTHD", b"BTLF",
              b"BTIN", b"FAHD", b"FADB", b"EAHD", b"EAIB", b"EASB", b"EADB", b"SMTB", b"SMLI"]


def write_groups(file):
    for i in range(12):
        file[f"g{i % 3}/h/d{i}"] = np.arange(i + 1)
    file["soft"] = h5py.SoftLink("/g1/h/d1")
    file["out"] = h5py.ExternalLink("other.h5", "/x")
    file["again"] = file["g2"]


def write_dense(file):
    group = file.create_group("many", track_order=True)
    for i in range(40):
        group[f"member_{i:02}"] = np.int32(i)
    for i in range(20):
        group.attrs[f"attribute_{i}"] = np.arange(i + 1)


def write_chunks(file):
    """Version 1 B-tree in the oldest format; single, implicit, fixed, extensible and version 2 B-tree in the latest."""
    shape, chunk = (9, 8), (4, 3)
    limits = {"single": (shape, shape), "fixed": (shape, chunk), "extensible": ((9, None), chunk), "btree2": ((None, None), chunk)}
    for name, (limit, chunks) in limits.items():
        for filtered, what in {"raw": {}, "gzip": {"compression": "gzip", "shuffle": True, "fletcher32": True}}.items():
            file.create_dataset(f"{name}_{filtered}", data=np.arange(72).reshape(shape), chunks=chunks, maxshape=limit, **what)
    file.create_dataset("implicit", data=np.arange(72).reshape(shape), chunks=chunk, dcpl=properties(alloc_time=[EARLY]))


def write_filters(file):
    values = (np.arange(600) // 5 % 90).astype("<i4")
    for name, what in {"lzf": {"compression": "lzf", "shuffle": True}, "szip": {"compression": "szip"}, "scale": {"scaleoffset": 0},
                       "lz4": hdf5plugin.LZ4(), "zstd": hdf5plugin.Zstd(), "bits": hdf5plugin.Bitshuffle()}.items():
        file.create_dataset(name, data=values, chunks=(200,), **what)
    for codec in ["blosclz", "lz4", "zlib", "zstd"]:
        file.create_dataset(f"blosc_{codec}", data=values, chunks=(200,), **hdf5plugin.Blosc(cname=codec))
    kind = h5py.h5t.py_create(np.dtype("<i4")).copy()
    kind.set_precision(19)
    plist = properties(chunk=[(200,)], filter=[h5py.h5z.FILTER_NBIT, 0, ()])
    h5py.Dataset(h5py.h5d.create(file.id, b"nbit", kind, h5py.h5s.create_simple((600,)), plist))[()] = values


def write_types(file):
    for code in ["|i1", ">i2", "<u8", "<f2", ">f4", "<c16", "bool", "longdouble"]:
        file[f"n_{np.dtype(code).str[1:]}"] = numbers(code, 20)
    file["enum"] = np.array([0, 1], h5py.enum_dtype({"NO": 0, "YES": 1}, basetype="i2"))
    file["opaque"] = np.array([b"abc", b"def"], "V3")
    file["reference"] = np.array([file["enum"].ref], h5py.ref_dtype)
    file["array"] = np.zeros(3, np.dtype(("<f4", (2, 3))))
    file["scalar"], file["null"] = 7.5, h5py.Empty("f8")
    file.create_dataset("filled", (20,), "<i4", fillvalue=5)
    file.create_dataset("compact", data=np.arange(9), dcpl=properties(layout=[h5py.h5d.COMPACT]))


def write_text(file):
    file["variable"] = np.array(words(40, "abcß", 30), object)
    file.create_dataset("chunked", data=np.array(words(40, "xyz", 9), object), chunks=(7,), compression="gzip")
    file["fixed"] = np.array([word.encode() for word in words(30, "abc", 12)], "S12")
    sequences = file.create_dataset("sequences", (5,), h5py.vlen_dtype("i4"))
    for i in range(5):
        sequences[i] = np.arange(i)
    file.attrs["text"] = "größer"


def write_compound(file):
    kind = np.dtype([("a", "<i4"), ("b", ">f8"), ("c", "S5"), ("d", [("e", "<u2"), ("f", "<f4", (3,))])])
    file["plain"] = record(kind, 30)
    file.create_dataset("chunked", data=record(kind, 30), chunks=(8,), compression="gzip")
    file["mixed"] = np.array([(1, "x"), (2, "yy")], [("n", "i4"), ("s", h5py.string_dtype())])
    file["mixed"].attrs["record"] = record(kind, 2)


def write_external(file):
    file.create_dataset("raw", (50,), "<i4", external=[("raw.bin", 0, 100), ("raw.bin", 100, h5py.h5f.UNLIMITED)])


def write_virtual(file):
    for i in range(3):
        file[f"source_{i}"] = np.arange(i, i + 12)
    layout = h5py.VirtualLayout((3, 12), "<i8")
    for i in range(3):
        layout[i] = h5py.VirtualSource(".", f"source_{i}", (12,), "<i8")
    file.create_virtual_dataset("stacked", layout, fillvalue=-1)


WRITERS = {"groups": write_groups, "dense": write_dense, "chunks": write_chunks, "filters": write_filters, "types": write_types,
           "text": write_text, "compound": write_compound, "external": write_external, "virtual": write_virtual, "daf": daf.write}


def write_seeds(folder):
    """One file of each kind in the oldest and in the latest format, 0.5 to 50 KB each, and raw.bin. Returns the files' paths."""
    (folder / "raw.bin").write_bytes(np.arange(50, dtype="<i4").tobytes())
    paths = []
    for name, write in WRITERS.items():
        for libver in ("earliest", "latest"):
            path = folder / f"{name}_{libver}.h5"
            with h5py.File(path, "w", libver=libver) as file:
                write(file)
            paths.append(path)
    return paths


def mutant(data, random):
    """A damaged copy: 12 % are cut; the others have 1 to 32 bytes changed, 3 of 5 in or behind the signature of a structure."""
    if random.random() < 0.12:
        return data[:random.integers(1, len(data))]
    places = [at for signature in SIGNATURES for at in positions(data, signature)]
    changed = bytearray(data)
    for _ in range(random.integers(1, 33)):
        at = random.choice(places) + random.integers(0, 64) if random.random() < 0.6 else random.integers(0, len(data))
        changed[min(at, len(data) - 1)] = random.integers(0, 256)
    return bytes(changed)


def positions(data, signature):
    at = data.find(signature)
    while at >= 0:
        yield at
        at = data.find(signature, at + 1)
