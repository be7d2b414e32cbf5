"""Arkouda's objects written with h5py as its own HDF5 code writes them (src/HDF5Msg.chpl): one file, or one per locale, each with
its own part of every component. Every `put_*` returns {visible path: array} as NumPy computes it."""

from itertools import accumulate
from pathlib import Path

import h5py
import numpy as np

VERSION = "v2025.12.16"
(ARRAYVIEW, PDARRAY, STRINGS, SEGARRAY, CATEGORICAL, GROUPBY, DATAFRAME, DATETIME, TIMEDELTA, IPV4) = range(10)
INDEX, MULTIINDEX = 12, 13


def mark(item, object_type, version=VERSION, **more):
    """The attributes of an object; integers are int64 scalars, the version a string of fixed length."""
    for name, value in {"ObjType": object_type, **more}.items():
        item.attrs.create(name, value, dtype="<i8")
    if version is not None:
        item.attrs.create("file_version", 2.0, dtype="<f4")
        item.attrs.create("arkouda_version", np.bytes_(version), dtype=f"S{len(version) + 1}")


class Store:
    """The files of one store. `weights` says how much each locale gets; None is a single file."""

    def __init__(self, folder, name, weights=None, version=VERSION):
        self.weights, self.version = weights, version
        folder = Path(folder)
        stem, dot, extension = name.rpartition(".")
        if not dot:
            stem, extension = name, ""
        count = 1 if weights is None else len(weights)
        names = [name] if weights is None else [f"{stem}_LOCALE{i:04}{dot}{extension}" for i in range(count)]
        self.visible, self.paths = name, [folder / each for each in names]
        self.files = [h5py.File(path, "w") for path in self.paths]
        for file in self.files:
            file.attrs.create("File_Format", int(weights is not None), dtype="<i8")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for file in self.files:
            file.close()

    @property
    def single(self):
        return self.weights is None

    def cut(self, n):
        """[(start, stop)] of each locale. Equal weights give Chapel's block rule: ceil(n*i/L)."""
        weights = [1] if self.single else self.weights
        total = sum(weights)
        ends = [-(-n * part // total) for part in accumulate(weights)]
        return list(zip([0, *ends], ends))

    def groups(self, path, object_type, **more):
        made = [file.create_group(path) for file in self.files]
        for group in made:
            mark(group, object_type, self.version, **more)
        return made

    def plain(self, path, array, marked=True, object_type=PDARRAY, **more):
        """One dataset per file, cut by its own length."""
        for file, (start, stop) in zip(self.files, self.cut(len(array))):
            dataset = file.create_dataset(path, data=array[start:stop])
            if marked:
                mark(dataset, object_type, self.version, **more)


def as_bool(array):
    """How a bool array is stored: bytes, and an attribute."""
    return (array.astype("u1"), {"isBool": 1}) if array.dtype == bool else (array, {})


def put_array(store, path, array, object_type=PDARRAY):
    stored, more = as_bool(array)
    stored = stored.view("<i8") if array.dtype.kind in "mM" else stored
    store.plain(path, stored, object_type=object_type, **more)
    return {f"{path}.npy": array} | ({f"{path}/IPv4.npy": array} if object_type == IPV4 else {})


def put_view(store, path, array):
    """An n-d array as older releases wrote it: flat, with its shape in attributes."""
    store.plain(path, array.ravel(), object_type=ARRAYVIEW, Rank=array.ndim, Shape=array.shape)
    return {f"{path}.npy": array, f"{path}/ArrayView.npy": array}


def limbs_of(numbers, count=None):
    numbers = [int(number) for number in numbers]
    if count is None:
        count = max([1, *(-(-number.bit_length() // 64) for number in numbers)])
    return np.array([[number >> 64 * k & (1 << 64) - 1 for k in range(count)] for number in numbers], "<u8").reshape(len(numbers), count)


def write_limbs(group, limbs, version, max_bits):
    mark(group, PDARRAY, version, isBigInt=1, MaxBits=max_bits, NumLimbs=limbs.shape[1])
    for k in range(limbs.shape[1]):
        mark(group.create_dataset(f"Limb_{k}", data=np.ascontiguousarray(limbs[:, k])), PDARRAY, version)


def shown_limbs(path, limbs, max_bits):
    """The members of a large number: all bits that are stored."""
    shown = {f"{path}/Limb_{k}.npy": np.ascontiguousarray(limbs[:, k]) for k in range(limbs.shape[1])}
    return shown | ({f"{path}/MaxBits.npy": np.array(max_bits, "<i8")} if max_bits >= 0 else {})


def put_bigint(store, path, numbers, max_bits=-1):
    limbs = limbs_of(numbers)
    for file, (start, stop) in zip(store.files, store.cut(len(numbers))):
        write_limbs(file.create_group(path), limbs[start:stop], store.version, max_bits)
    shown = limbs_of([number & (1 << max_bits) - 1 for number in numbers], limbs.shape[1]) if max_bits > 0 else limbs
    return {f"{path}.npy": shown} | shown_limbs(path, limbs, max_bits)


def flat(strings):
    """The bytes of strings with a zero behind each, and where they start."""
    ends = np.cumsum([len(text) + 1 for text in strings], dtype="<i8")
    values = np.frombuffer(b"".join(text + b"\0" for text in strings), "u1")
    return values, np.concatenate([[0], ends[:-1]]).astype("<i8") if len(strings) else ends


def fixed(strings):
    return np.array(strings, dtype=f"S{max([1, *map(len, strings)])}")


def write_empty(group, dtype="u1"):
    """What an empty locale holds in the place of any `values` and `segments`."""
    for name, stored in {"values": dtype, "segments": "<i8"}.items():
        mark(group.create_dataset(name, shape=(0,), dtype=stored), PDARRAY, None)


def write_strings(group, strings, version, offsets=True):
    values, segments = flat(strings)
    mark(group.create_dataset("values", data=values), PDARRAY, version)
    if offsets:
        mark(group.create_dataset("segments", data=segments), PDARRAY, version)


def shown_strings(path, strings):
    values, segments = flat(strings)
    return {f"{path}.npy": fixed(strings), f"{path}/values.npy": values, f"{path}/segments.npy": segments}


def put_strings(store, path, strings, offsets=True, object_type=STRINGS):
    for file, (start, stop) in zip(store.files, store.cut(len(strings))):
        group = file.create_group(path)
        if object_type is not None:
            mark(group, object_type, store.version)
        if start == stop and not store.single:
            write_empty(group)
        else:
            write_strings(group, strings[start:stop], store.version, offsets)
    return shown_strings(path, strings)


def put_segarray(store, path, rows, dtype=None):
    """Rows of numbers (dtype), of Python integers ("bigint") or of byte strings ("strings")."""
    more = {"isBool": 1} if dtype == bool else {}
    empty = np.dtype({"bigint": "<u8", "strings": "u1", bool: "u1"}.get(dtype, dtype))
    for file, (start, stop) in zip(store.files, store.cut(len(rows))):
        group, here = file.create_group(path), rows[start:stop]
        mark(group, SEGARRAY, store.version, **more)
        if not here and not store.single:
            write_empty(group, empty)
            continue
        starts = np.array([0, *accumulate(map(len, here))][:-1], "<i8")
        mark(group.create_dataset("segments", data=starts), PDARRAY, store.version)
        values = [value for row in here for value in row]
        if not values and not store.single:
            if dtype == "bigint":  # the empty limb goes by a wrong name
                inner = group.create_group("values")
                mark(inner, PDARRAY, store.version, isBigInt=1, MaxBits=-1, NumLimbs=1)
                mark(inner.create_dataset("values", shape=(0,), dtype="<u8"), PDARRAY, None)
            else:
                mark(group.create_dataset("values", shape=(0,), dtype=empty), PDARRAY, None)
        elif dtype == "bigint":
            write_limbs(group.create_group("values"), limbs_of(values), store.version, -1)
        elif dtype == "strings":
            write_strings(group.create_group("values"), values, store.version)  # which has no attributes itself
        else:
            stored, attributes = as_bool(np.array(values, dtype))
            mark(group.create_dataset("values", data=stored), PDARRAY, store.version, **attributes)
    values = [value for row in rows for value in row]
    shown = {f"{path}/segments.npy": np.array([0, *accumulate(map(len, rows))][:-1] if rows else [], "<i8")}
    if not rows and not store.single and dtype in ("bigint", "strings"):  # no file says what the values would be
        return shown | {f"{path}/values.npy": np.zeros(0, empty)}
    if dtype == "bigint":
        return shown | {f"{path}/values.npy": limbs_of(values)} | shown_limbs(f"{path}/values", limbs_of(values), -1)
    if dtype == "strings":
        return shown | shown_strings(f"{path}/values", values)
    return shown | {f"{path}/values.npy": np.array(values, dtype)}


def put_categorical(store, path, codes, categories, grouped=True):
    """`NA_Codes` is the number of the last category. Single files leave the inner attributes out."""
    codes = np.asarray(codes, "<i8")
    store.groups(path, CATEGORICAL)
    inner = f"{path}/categories"
    shown = put_strings(store, inner, categories, object_type=None if store.single else STRINGS)
    parts = {"codes": codes, "NA_Codes": np.array([len(categories) - 1], "<i8")}
    if grouped:
        order = np.argsort(codes, kind="stable").astype("<i8")
        parts |= {"permutation": order, "segments": np.searchsorted(codes[order], np.unique(codes)).astype("<i8")}
    for name, array in parts.items():
        store.plain(f"{path}/{name}", array, marked=not store.single)
        shown[f"{path}/{name}.npy"] = array
    return shown | {f"{path}.npy": fixed(categories)[codes] if len(codes) else np.zeros(0, fixed(categories).dtype)}


GROUPS = [2, 0, 2, 1, 0, 2, 2]  # of the seven rows of each GroupBy


def put_groupby(store, path, keys):
    """`keys`: [function(store, path) -> shown], all of seven rows with the same three groups."""
    store.groups(path, GROUPBY, NumKeys=len(keys))
    shown = {}
    parts = {"permutation": [1, 4, 3, 0, 2, 5, 6], "segments": [0, 2, 3], "unique_key_idx": [1, 3, 0]}  # GROUPS
    for name, numbers in parts.items():
        array = np.array(numbers, "<i8")
        store.plain(f"{path}/{name}", array)
        shown[f"{path}/{name}.npy"] = array
    for i, put in enumerate(keys):
        shown |= put(store, f"{path}/KEY_{i}")
    return shown


def put_index(store, path, levels):
    store.groups(path, MULTIINDEX if len(levels) > 1 else INDEX, NumIdx=len(levels))
    shown = {}
    for i, put in enumerate(levels):
        shown |= put(store, f"{path}/IDX_{i}")
    return shown


def put_index_array(store, path, array):
    """A level of numbers. A single file has neither ObjType nor isBool on it: bools come back as bytes."""
    stored, more = as_bool(array)
    store.plain(path, stored, marked=not store.single, **more)
    return {f"{path}.npy": stored if store.single else array}


def put_dataframe(store, path, columns, index):
    """`columns`: {name: function(store, path) -> shown}, as ak.snapshot writes them."""
    store.groups(path, DATAFRAME, NumCols=len(columns))
    shown = put_array(store, f"{path}/Index", index)
    for name, put in columns.items():
        shown |= put(store, f"{path}/{name}")
    return shown


def faults(file):
    """What breaks Arkouda's rules in one file, by h5py. A file of several holds slices of objects: of these it tells only what
    concerns each dataset by itself."""
    found = []
    alone = int(file.attrs["File_Format"]) == 0

    def wrong(item, why):
        found.append(f"{item.name}: {why}")

    def starts(item, segments, count):
        values = segments[()].tolist()
        if values and values[0] != 0 or values != sorted(values) or any(start > count for start in values) or count and not values:
            wrong(item, f"segments {values[:9]} of {count} values")

    def vector(item, name):
        if not isinstance(item.get(name), h5py.Dataset) or item[name].ndim != 1:
            wrong(item, f"{name} is no vector")
            return np.zeros(0, "i8")
        return item[name][()]

    def same(item, lengths):
        if alone and len(set(lengths.values())) > 1:
            wrong(item, f"lengths differ: {lengths}")

    def inside(item, name, values, count):
        if alone and len(values) and not (0 <= values.min() and values.max() < count):
            wrong(item, f"{name} outside of {count}")

    def grouping(item, count):
        order, first = vector(item, "permutation"), vector(item, "segments")
        if alone:
            same(item, {"permutation": len(order), "elements": count})
            inside(item, "permutation", order, count)
            starts(item, first, len(order)) if len(order) else None
        return first

    def strings(item):
        values = vector(item, "values")
        ends = (np.flatnonzero(values == 0) + 1).tolist()
        if values.dtype != "u1" and len(values) or len(values) and values[-1] != 0:
            wrong(item, "values are no bytes that end in a zero")
        if "segments" in item and item["segments"][()].tolist() != ([0, *ends])[:len(ends)]:
            wrong(item, "segments are not where strings begin")
        return len(ends)

    def numbered(item, prefix, count):
        names = [name for name in item if name.startswith(prefix)]
        if int(item.attrs.get(count, -1)) != len(names) or {*names} != {f"{prefix}{i}" for i in range(len(names))} or not names:
            wrong(item, f"{count} is {item.attrs.get(count)}, there are {names}")
        rows = {name: length(item[name]) for name in names}
        same(item, rows)
        return next(iter(rows.values()), 0)

    def length(item):
        """Checks an object; how many elements it has."""
        kind = item.attrs.get("ObjType")
        if isinstance(item, h5py.Dataset):
            kind = PDARRAY if kind is None else int(kind)
            if kind not in (ARRAYVIEW, PDARRAY, DATETIME, TIMEDELTA, IPV4):
                wrong(item, f"ObjType {kind} of a dataset")
            if item.ndim != 1 or item.dtype.kind not in "iuf":
                wrong(item, f"{item.dtype} of shape {item.shape}")
            if kind in (DATETIME, TIMEDELTA) and item.dtype != "i8" or kind == IPV4 and item.dtype != "u8":
                wrong(item, f"{item.dtype} for ObjType {kind}")
            if kind == ARRAYVIEW or "Shape" in item.attrs:
                shape = np.atleast_1d(item.attrs.get("Shape", [-1]))
                if len(shape) != item.attrs.get("Rank") or alone and np.prod(shape, dtype=object) != item.size:
                    wrong(item, f"Shape {shape}, Rank {item.attrs.get('Rank')}, {item.size} elements")
            return item.size
        if kind is None and "values" in item:
            kind = STRINGS
        if kind is None:
            for member in item.values():
                length(member)
            return 0
        if kind == STRINGS:
            return strings(item)
        if kind == PDARRAY:
            limbs = [item[name] for name in item]
            if {*item} != {f"Limb_{i}" for i in range(len(limbs))} or any(limb.dtype != "u8" for limb in limbs):
                wrong(item, f"limbs {[*item]}")
            same(item, {limb.name: limb.size for limb in limbs})
            if not {"isBigInt", "MaxBits"} <= {*item.attrs} or item.attrs.get("NumLimbs") != len(limbs):
                wrong(item, f"{dict(item.attrs)} of {len(limbs)} limbs")
            return limbs[0].size if limbs else 0
        if kind == SEGARRAY:
            count = length(item["values"])
            starts(item, item["segments"], count)
            return item["segments"].size
        if kind == CATEGORICAL:
            count, codes = length(item["categories"]), vector(item, "codes")
            vector(item, "NA_Codes")
            inside(item, "codes", codes, count)
            if "permutation" in item and "segments" in item:
                grouping(item, len(codes))
            return len(codes)
        if kind == GROUPBY:
            rows = numbered(item, "KEY_", "NumKeys")
            first, unique = grouping(item, rows), vector(item, "unique_key_idx")
            inside(item, "unique_key_idx", unique, rows)
            same(item, {"segments": len(first), "unique_key_idx": len(unique)})
            return rows
        if kind in (INDEX, MULTIINDEX):
            return numbered(item, "IDX_", "NumIdx")
        if kind == DATAFRAME:
            columns = {name: length(item[name]) for name in item}
            if "Index" not in columns or int(item.attrs.get("NumCols", -1)) != len(columns) - 1:
                wrong(item, f"NumCols {item.attrs.get('NumCols')} of {[*columns]}")
            same(item, columns)
            return columns.get("Index", 0)
        wrong(item, f"ObjType {kind} of a group")
        return 0

    for name, member in file.items():
        if name != "_arkouda_metadata" and (alone or isinstance(member, h5py.Dataset)):
            length(member)
    return found
