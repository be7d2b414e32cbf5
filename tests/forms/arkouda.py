"""Arkouda: what its reader asks for (src/HDF5Msg.chpl, lines 3150 to 3838), checked with h5py."""

import errno

import h5py
import numpy as np
from cases import Cases, same, shown

cases = Cases()
rng = np.random.default_rng(6)


def marked(thing, object_type, **more):
    attrs = thing.attrs
    names = {"ObjType", "file_version", "arkouda_version", *more}
    assert set(attrs) == names, (set(attrs), names)
    for name, value in {"ObjType": object_type, **more}.items():
        same(attrs[name], np.asarray(value, np.int64)[()])
    same(attrs["file_version"], np.float32(2))
    version = attrs.get_id("arkouda_version").get_type()
    assert version.get_strpad() == h5py.h5t.STR_NULLTERM and not version.is_variable_str()
    assert version.get_size() == len(attrs["arkouda_version"]) + 1


def whole(file, key):
    same(file.attrs["File_Format"], np.int64(0))
    assert set(file.attrs) == {"File_Format", "npyfs_time"}
    first = key.split("/")[0]
    assert list(file) == [first]
    return file[key]


def numbers(dataset):
    """As Arkouda reads a pdarray: one dimension, integers or floats."""
    assert len(dataset.shape) == 1
    kind = dataset.id.get_type().get_class()
    assert kind in (h5py.h5t.INTEGER, h5py.h5t.FLOAT), kind
    return dataset[:]


def strings(group, is_marked=True):
    if is_marked:
        marked(group, 2)
    values, segments = numbers(group["values"]), numbers(group["segments"])
    assert values.dtype == np.uint8 and segments.dtype == np.int64
    ends = [*segments[1:], len(values)] if len(segments) else []
    assert all(values[end - 1] == 0 for end in ends) if len(segments) else not len(values)
    return [bytes(values[a : b - 1]).decode() for a, b in zip(segments, ends, strict=True)]


def pdarray(key, want, object_type=1, stored=None, **more):
    def check(file):
        dataset = whole(file, key)
        marked(dataset, object_type, **more)
        same(numbers(dataset), np.asarray(want if stored is None else stored).ravel())
        back = shown(file, key + ".npy")
        same(back, np.ascontiguousarray(want).reshape(np.shape(want)))

    return check


for dtype in ("<i8", "<u8", "<f8", "<i4", "i1", "u1", "<f4", "<f2", ">i4", ">f8"):
    for array in (np.arange(5).astype(dtype), np.zeros(0, dtype)):
        cases.add("g/a", array, pdarray("g/a", array))
flags = np.array([True, False, True])
cases.add("b", flags, pdarray("b", flags, stored=flags.astype("u1"), isBool=1))
odd = np.array([2, 0, 255], "u1").view("?")
cases.add("b", odd, pdarray("b", flags, stored=flags.astype("u1"), isBool=1))
for shape in ((2, 3), (2, 3, 4), (3, 0), ()):
    array = rng.random(shape)
    check = pdarray("n", array, Rank=len(shape), Shape=np.array(shape, np.int64)[()])
    cases.add("n", np.asfortranarray(array) if shape else array, check)
matrix = np.array([[True, False], [False, True]])
cases.add("n", matrix, pdarray("n", matrix, stored=matrix.astype("u1"), isBool=1, Rank=2, Shape=[2, 2]))

days = np.array(["1969-12-31", "NaT", "2024-02-29", "1677-09-22"], "M8[D]")
for unit in ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "25s"):
    some = days.astype(f"M8[{unit}]")
    if unit in "YMW":
        some = some[:3]
    want = some.astype("M8[ns]")
    cases.add("t", some, pdarray("t", want, 7, stored=want.view("<i8")))
    cases.add("t", some.astype(some.dtype.newbyteorder(">")), pdarray("t", want, 7, stored=want.view("<i8")))
late = np.array(["2262-04-12"], "M8[D]")
cases.add("t", late, (errno.EINVAL, "out of the range"))
cases.add("t", np.array([300], "M8[Y]"), (errno.EINVAL, "out of the range"))
cases.add("t", np.array([1], "M8[ps]"), (errno.EINVAL, "nanoseconds"))
deltas = np.array([1, -5, "NaT"], "m8[us]")
want = deltas.astype("m8[ns]")
cases.add("d", deltas, pdarray("d", want, 8, stored=want.view("<i8")))
cases.add("d", np.array([1], "m8[Y]"), (errno.EINVAL, "nanoseconds"))


def text(key, want):
    def check(file):
        group = whole(file, key)
        assert set(group) == {"values", "segments"}
        assert strings(group) == want
        marked(group["values"], 1)
        marked(group["segments"], 1)
        back = shown(file, key + ".npy")
        assert [b.decode() for b in back.tolist()] == want

    return check


WORDS = ["one", "", "x\u00e9\u20ac", "four"]
for words in (WORDS, ["", ""], ["a"]):
    array = np.array(words)
    cases.add("s", array, text("s", words))
    cases.add("s", np.char.encode(array, "utf-8"), text("s", words))
cases.add("s", np.zeros(0, "S4"), text("s", []))
cases.add("s", np.array(["a\0b"]), (errno.EINVAL, "NUL"))
cases.add("s", np.array([["a"]]), (errno.EOPNOTSUPP, "one dimension"))
cases.add("c", np.zeros(3, "c16"), (errno.EOPNOTSUPP, "c16"))
cases.add("c", np.zeros(3, "i4,f4"), (errno.EOPNOTSUPP, "V8"))


def members(**arrays):
    return {(name.replace("__", "/"), ".npy"): np.asarray(value) for name, value in arrays.items()}


def split(words):
    encoded = [word.encode() + b"\0" for word in words]
    starts = np.cumsum([0] + [len(word) for word in encoded])[:-1].astype("<i8")
    return np.frombuffer(b"".join(encoded), "u1"), starts


values, segments = split(WORDS)
cases.add("s", members(values=values, segments=segments), text("s", WORDS))
cases.add("s", members(values=values), ["segments"])
cases.add("s", members(values=values[:-1], segments=segments), (errno.EINVAL, "NUL"))
cases.add("s", members(values=values, segments=segments + 1), (errno.EINVAL, "segment 0 is 1"))
cases.add("s", members(values=values, segments=segments[:3]), (errno.EINVAL, "more NULs"))


def segarray(values_of, want_values, want_segments, **more):
    def check(file):
        group = whole(file, "seg")
        marked(group, 3, **more)
        assert set(group) == {"values", "segments"}
        got = values_of(group["values"])
        if isinstance(got, list):
            assert got == want_values
        else:
            same(got, want_values)
        starts = numbers(group["segments"])
        assert starts.dtype == np.int64 and starts.tolist() == list(want_segments)
        assert shown(file, "seg/segments.npy").tolist() == list(want_segments)

    return check


def plain(dataset):
    marked(dataset, 1)
    return numbers(dataset)


def flagged(dataset):
    marked(dataset, 1, isBool=1)
    return numbers(dataset)


def limbs(group):
    count = len(list(group))
    marked(group, 1, isBigInt=1, MaxBits=-1, NumLimbs=count)
    return np.stack([numbers(group[f"Limb_{i}"]) for i in range(count)], 1)


starts = np.array([0, 2, 2, 5])
cases.add("seg", members(values=np.arange(7), segments=starts), segarray(plain, np.arange(7), starts))
cases.add("seg", members(values=np.arange(7), segments=starts.astype(">u2")), segarray(plain, np.arange(7), starts))
cases.add(
    "seg",
    members(values=flags, segments=[0, 1]),
    segarray(flagged, flags.astype("u1"), [0, 1], isBool=1),
)
cases.add("seg", members(values=np.array(WORDS), segments=[0, 1, 4]), segarray(strings, WORDS, [0, 1, 4]))
cases.add(
    "seg",
    members(values__values=values, values__segments=segments, segments=[0, 1, 4]),
    segarray(strings, WORDS, [0, 1, 4]),
)
low, high = np.array([1, 2, 3], "u8"), np.array([0, 2**63, 5], "u8")
cases.add(
    "seg",
    members(values__Limb_0=low, values__Limb_1=high, segments=[0, 2]),
    segarray(limbs, np.stack([low, high], 1), [0, 2]),
)
cases.add("seg", members(segments=[0, 2]), ["values"])
cases.add("seg", members(values__values=values, segments=[0, 2]), ["values/segments"])
cases.add("seg", members(values=np.arange(3), segments=[0, 4]), (errno.EINVAL, "segment 1 is 4"))
cases.add("seg", members(values=np.arange(3), segments=[2, 1]), (errno.EINVAL, "segment 1 is 1"))
cases.add("seg", members(values=np.arange(3), segments=[0.5]), (errno.EINVAL, "vector of integers"))
cases.add("seg", members(values=np.arange(3), segments=[0], extra=[1]), (errno.EINVAL, "extra"))


def bigint(file):
    same(limbs(whole(file, "big")), np.stack([low, high], 1))
    same(shown(file, "big.npy"), np.stack([low, high], 1))


cases.add("big", members(Limb_0=low, Limb_1=high), bigint)
cases.add("big", members(Limb_1=high), ["Limb_0"])
cases.add("big", members(Limb_0=low, Limb_1=high[:2]), (errno.EINVAL, "another length"))
cases.add("big", members(Limb_0=low.astype("i8")), (errno.EINVAL, "<u8"))


def categorical(extra):
    def check(file):
        group = whole(file, "cat")
        marked(group, 4)
        assert set(group) == {"codes", "categories", "NA_Codes", *extra}
        assert strings(group["categories"]) == WORDS
        for name in ("codes", "NA_Codes", *extra):
            assert numbers(group[name]).dtype == np.int64
            marked(group[name], 1)
        assert numbers(group["codes"]).tolist() == [0, 3, 3, 1]
        assert shown(file, "cat.npy").tolist() == [WORDS[i].encode() for i in (0, 3, 3, 1)]

    return check


category = dict(codes=[0, 3, 3, 1], categories=np.array(WORDS), NA_Codes=[3])
cases.add("cat", members(**category), categorical([]))
more = dict(permutation=[0, 3, 1, 2], segments=[0, 1, 2, 2])
cases.add("cat", members(**category, **more), categorical(["permutation", "segments"]))
cases.add("cat", members(**category, permutation=[0, 1, 2, 3]), ["segments"])
cases.add("cat", members(codes=[0]), ["categories", "NA_Codes"])
cases.add("cat", members(**{**category, "codes": [4]}), (errno.EINVAL, "code 0 is 4"))
# The object's other form is there as well, from before.
cases.add("cat", {("", ".npy"): np.array(["x"]), **members(**category)}, categorical([]))


def grouped(file):
    group = whole(file, "by")
    marked(group, 5, NumKeys=2)
    assert set(group) == {"segments", "permutation", "unique_key_idx", "KEY_0", "KEY_1"}
    for name in ("segments", "permutation", "unique_key_idx"):
        assert numbers(group[name]).dtype == np.int64
    assert strings(group["KEY_1"]) == WORDS
    marked(group["KEY_0"], 1)
    assert shown(file, "by/permutation.npy").tolist() == [3, 2, 1, 0]


keys = dict(segments=[0, 1, 2, 3], permutation=[3, 2, 1, 0], unique_key_idx=[3, 2, 1, 0])
cases.add("by", members(**keys, KEY_0=[1, 1, 2, 2], KEY_1=np.array(WORDS)), grouped)
cases.add("by", members(**keys, KEY_1=[1, 1, 2, 2]), ["KEY_0"])
cases.add("by", members(KEY_0=[1]), ["segments", "permutation", "unique_key_idx"])
cases.add("by", members(**{**keys, "segments": [0, 9, 9, 9]}, KEY_0=[1, 1, 2, 2]), (errno.EINVAL, "segment 1 is 9"))
cases.add("by", members(**{**keys, "segments": [0]}, KEY_0=[1, 1, 2, 2]), (errno.EINVAL, "unique keys"))
cases.add("by", members(**keys, KEY_0=[1]), (errno.EINVAL, "KEY_0 has 1 elements, permutation 4"))


def index(object_type, count):
    def check(file):
        group = whole(file, "idx")
        marked(group, object_type, NumIdx=count)
        assert set(group) == {f"IDX_{i}" for i in range(count)}
        same(shown(file, "idx/IDX_0.npy"), np.arange(4))
        if count > 1:
            assert strings(group["IDX_1"]) == WORDS
            marked(group["IDX_2"], 4)

    return check


cases.add("idx", members(IDX_0=np.arange(4)), index(12, 1))
labels = {f"IDX_2__{name}": value for name, value in category.items()}
cases.add("idx", members(IDX_0=np.arange(4), IDX_1=np.array(WORDS), **labels), index(13, 3))
cases.add("idx", members(IDX_1=np.arange(4)), ["IDX_0"])
cases.add("idx", members(IDX_0=np.arange(4), other=[1]), (errno.EINVAL, "other"))


def frame(columns, words=False):
    def check(file):
        group = whole(file, "df")
        marked(group, 6, NumCols=len(columns))
        assert set(group) == {"Index", *columns}
        if words:
            assert strings(group["Index"]) == WORDS
        else:
            marked(group["Index"], 1)
            same(shown(file, "df/Index.npy"), np.arange(4))
        for name, object_type in columns.items():
            assert group[name].attrs["ObjType"] == object_type
        if "when" in columns:
            same(shown(file, "df/when.npy"), np.array([1, 2, 3, 4], "M8[ns]"))

    return check


rows = np.arange(4)
when = np.array([1, 2, 3, 4], "M8[ns]")
cases.add("df", members(Index=rows), frame({}))
cases.add("df", members(Index=rows, x=rows * 0.5, when=when, w=np.array(WORDS)), frame({"x": 1, "when": 7, "w": 2}))
labels = {f"kind__{name}": value for name, value in category.items()}
runs = dict(runs__values=np.arange(9), runs__segments=[0, 1, 1, 5])
cases.add("df", members(Index=np.array(WORDS), values=rows, **labels, **runs), frame({"values": 1, "kind": 4, "runs": 3}, words=True))
cases.add("df", members(x=rows, y=rows), ["Index"])
cases.add("df", members(Index=rows, runs__values=np.arange(9)), ["runs/segments"])
cases.add("df", members(Index=rows, x=rows[:3]), (errno.EINVAL, "x has 3 rows, Index 4"))
cases.add("df", members(Index=when, x=rows), (errno.EINVAL, "numbers or strings"))
cases.run()
