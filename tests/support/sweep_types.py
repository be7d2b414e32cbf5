"""HDF5 files with one dataset per cell of dtype × byte order × layout × rank. Deterministic; written by h5py."""

import h5py
import numpy as np

SHAPES = [(), (7,), (3, 5), (2, 3, 4), (2, 3, 2, 2)]
CHUNKS = [None, (3,), (2, 2), (1, 2, 3), (2, 2, 1, 2)]


def numbers(dtype, count, seed=1):
    """`count` values of any numeric, bool, complex or void dtype, from random bytes or normal floats."""
    dtype, random = np.dtype(dtype), np.random.default_rng(seed)
    if dtype.kind == "f":
        return random.normal(0, 1000, count).astype(dtype)
    if dtype.kind == "c":
        return (random.normal(0, 9, count) + 1j * random.normal(0, 9, count)).astype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, count).astype(bool)
    return np.frombuffer(random.bytes(count * dtype.itemsize), dtype).copy()


def words(count, alphabet, longest, seed=2):
    random = np.random.default_rng(seed)
    found = ["".join(random.choice(list(alphabet), random.integers(0, longest + 1))) for _ in range(count)]
    found[-1] = alphabet[-1] * longest  # the longest really occurs
    return found


def record(dtype, count, seed=3):
    """Values of a compound dtype, padding zero."""
    dtype = np.dtype(dtype)
    array = np.zeros(count, dtype)
    for i, name in enumerate(dtype.names):
        kind = dtype[name]
        if kind.names:
            array[name] = record(kind, count, seed + i)
        elif kind.subdtype:
            base, shape = kind.subdtype
            array[name] = numbers(base, count * int(np.prod(shape)), seed + i).reshape((count, *shape))
        elif kind.kind == "S":
            array[name] = np.array([f"w{i % 7}"[: kind.itemsize] for i in range(count)], kind)
        else:
            array[name] = numbers(kind, count, seed + i)
    return array


def orders(*codes):
    return [order + code for code in codes for order in "<>"]


def types():
    """{label: (HDF5 type for create_dataset, count -> values)}"""
    table = {}
    for code in ["|i1", "|u1", *orders("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")]:
        table[name_of(code)] = (np.dtype(code), lambda n, code=code: numbers(code, n))
    table["longdouble"] = (np.dtype("longdouble"), lambda n: numbers("longdouble", n))
    table["bool"] = (np.dtype(bool), lambda n: numbers("bool", n))
    for code in ["|i1", "<i2", ">i4"]:
        enum = h5py.enum_dtype({"NO": 0, "YES": 1, "PERHAPS": 5}, basetype=code)
        table[f"enum_{name_of(code)}"] = (enum, lambda n, code=code: np.resize([0, 1, 5, 1], n).astype(code))
    table["S1"] = (np.dtype("S1"), lambda n: np.array(words(n, "abc", 1), "S1"))
    table["S6"] = (np.dtype("S6"), lambda n: np.array(words(n, "abcXYZ", 6), "S6"))
    table["utf8_ascii"] = (h5py.string_dtype("utf-8", 8), lambda n: np.array(words(n, "abc", 8), "S8"))
    table["utf8_wide"] = (h5py.string_dtype("utf-8", 12), lambda n: encoded(words(n, "aß温😀", 3), 12))
    # the charset says UTF-8, the bytes are Latin-1: they are shown as they are
    table["utf8_lies"] = (h5py.string_dtype("utf-8", 3), lambda n: np.array([b"\xe9t\xe9"] * n, "S3"))
    table["ascii_lies"] = (h5py.string_dtype("ascii", 4), lambda n: encoded(["ßa"] * n, 4))
    table["vlen_utf8"] = (h5py.string_dtype(), lambda n: np.array(words(n, "aß温😀", 9), object))
    table["vlen_utf8_empty"] = (h5py.string_dtype(), lambda n: np.array([""] * n, object))
    table["vlen_ascii"] = (h5py.string_dtype("ascii"), lambda n: np.array([w.encode() for w in words(n, "abcd", 11)], object))
    table["vlen_ascii_lies"] = (h5py.string_dtype("ascii"), lambda n: np.array(["ßx".encode()] * n, object))
    table["vlen_utf8_invalid"] = (h5py.string_dtype(), lambda n: np.array([b"ok", b"\xff\xfe\xfd"] * n, object)[:n][::-1].copy())
    for label, fields in COMPOUNDS.items():
        table[label] = (np.dtype(fields), lambda n, fields=fields: record(fields, n))
    table["array_i4_2x3"] = (np.dtype(("<i4", (2, 3))), lambda n: numbers("<i4", n * 6).reshape(n, 2, 3))
    table["array_be_f8_4"] = (np.dtype((">f8", (4,))), lambda n: numbers(">f8", n * 4).reshape(n, 4))
    table["opaque_V5"] = (np.dtype("V5"), lambda n: numbers("V5", n))
    for code in ["<M8[ns]", "<M8[D]", "<m8[us]"]:
        table[f"opaque_{code[1:3]}_{code[4:-1]}"] = (
            h5py.opaque_dtype(np.dtype(code)), lambda n, code=code: np.arange(n, dtype="<i8").view(code) + np.timedelta64(12345, code[4:-1]))
    return table


COMPOUNDS = {
    "compound_plain": [("a", "<i4"), ("b", "<f8")],
    "compound_big": [("a", ">i2"), ("b", ">f4"), ("c", "|u1")],
    "compound_padded": {"names": ["a", "b"], "formats": ["|i1", "<f8"], "offsets": [0, 8], "itemsize": 24},
    "compound_first_padded": {"names": ["a"], "formats": ["<i2"], "offsets": [6], "itemsize": 8},
    "compound_nested": [("id", "<u4"), ("at", [("x", "<f4"), ("y", "<f4")]), ("deep", [("q", [("r", "|i1")])])],
    "compound_subarray": [("m", "<f4", (2, 2)), ("v", ">i2", (3,)), ("s", "S4")],
    "compound_bool": [("flag", "?"), ("z", "<c8")],
    "compound_latin1": [("größe", "<f4"), ("é", "<i2")],          # still npy 1.0: the header is Latin-1
    "compound_unicode": [("温度", "<f4"), ("圧力", ">f8")],         # npy 3.0: the header is UTF-8
    "compound_quotes": [("it's", "<f4"), ('say "x"', "<i2"), ("a\\b", "|u1"), ("tab\there", "|i1")],
}


def encoded(texts, size):
    return np.array([text.encode() for text in texts], f"S{size}")


def name_of(code):
    return {"|": "", "<": "le_", ">": "be_"}[code[0]] + code[1:]


def layouts(rank, variable):
    """{label: create_dataset keywords}; HDF5 allows no checksum over text of variable length."""
    compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    compact.set_layout(h5py.h5d.COMPACT)
    table = {"compact": {"dcpl": compact}, "contiguous": {}}
    if rank:
        chunks = {"chunks": CHUNKS[rank]}
        table["chunked"] = chunks
        table["gzip"] = {**chunks, "compression": "gzip"}
        table["shuffle_gzip"] = {**chunks, "compression": "gzip", "shuffle": True, "fletcher32": not variable}
    return table


def write_types(path, libver="earliest"):
    """Every type in every layout and rank: `label/layout_rank`."""
    with h5py.File(path, "w", libver=libver) as file:
        for label, (kind, make) in types().items():
            for rank, shape in enumerate(SHAPES):
                values = make(max(1, int(np.prod(shape))))
                if kind.metadata:  # HDF5 converts neither integers to enums nor one charset to another
                    values = values.astype(kind)
                for layout, keywords in layouts(rank, label.startswith("vlen")).items():
                    dataset = file.create_dataset(f"{label}/{layout}_{rank}", shape, kind, **keywords)
                    dataset[()] = values.reshape(shape + values.shape[1:])


def write_odd_types(path):
    """Types that need the low-level interface, and the largest header."""
    with h5py.File(path, "w", libver="latest") as file:
        for label, kind in {"bitfield_le": h5py.h5t.STD_B16LE, "bitfield_be": h5py.h5t.STD_B16BE}.items():
            values = np.arange(1, 9, dtype="<u2" if label.endswith("le") else ">u2")
            low_level(file, label, kind, values.shape).write(h5py.h5s.ALL, h5py.h5s.ALL, values, mtype=kind)
        native = {"complex_f4": ("COMPLEX_IEEE_F32LE", "<c8"), "complex_f8": ("COMPLEX_IEEE_F64LE", "<c16")}
        for label, (kind, code) in native.items():  # the complex class of HDF5 2.0
            kind, values = getattr(h5py.h5t, kind), numbers(code, 6)
            low_level(file, label, kind, (6,)).write(h5py.h5s.ALL, h5py.h5s.ALL, values, mtype=kind)
        many = np.dtype([(f"f{i:04}", "S1000" if i < 20 else "S4") for i in range(3700)])
        values = np.zeros(2, many)
        values["f0000"], values["f3699"] = b"first", b"last"
        file["header_over_64k"] = values  # npy 2.0
        for shape in [(0,), (3, 0), (0, 3, 2)]:
            label = "x".join(map(str, shape))
            file.create_dataset(f"zero/contiguous_{label}", shape, "<f8")
            file.create_dataset(f"zero/chunked_{label}", shape, ">i4", chunks=tuple(2 for _ in shape),
                                maxshape=tuple(None for _ in shape), compression="gzip")
            file.create_dataset(f"zero/text_{label}", shape, h5py.string_dtype())
            file.create_dataset(f"zero/ascii_{label}", shape, h5py.string_dtype("ascii"))
        file.create_dataset("never_written/text", (4,), h5py.string_dtype())
        file.create_dataset("never_written/text_chunked", (4,), h5py.string_dtype(), chunks=(2,))
        file.create_dataset("never_written/S5", (4,), "S5", fillvalue=b"none")
        file.create_dataset("never_written/compound", (4,), COMPOUNDS["compound_plain"])


def low_level(file, name, kind, shape):
    return h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple(shape))
