"""Compounds of all that other programs put into them: text that ends in NUL beside bitfields, gaps, text of variable
length, references; and opaque types that h5py has marked. Judge: h5py, and np.save of what it reads."""

import errno

import h5py
import numpy as np
import pytest
from h5py import h5d, h5s, h5t

from support import arkouda as ak
from support.mount import Mount, reason_of
from support.truth import assert_all, np_save, visible_array, walk


def compound(members, size=None):
    """A compound of (name, offset, type)."""
    end = max(offset + kind.get_size() for _, offset, kind in members)
    made = h5t.create(h5t.COMPOUND, size or end)
    for name, offset, kind in members:
        made.insert(name, offset, kind)
    return made


def packed(*members):
    at, placed = 0, []
    for name, kind in members:
        placed.append((name, at, kind))
        at += kind.get_size()
    return compound(placed)


def string(size, padding=h5t.STR_NULLTERM, utf8=False):
    kind = h5t.C_S1.copy()
    kind.set_size(size)
    kind.set_strpad(padding)
    if utf8:
        kind.set_cset(h5t.CSET_UTF8)
    return kind


def enum(base, **values):
    kind = h5t.enum_create(base)
    for name, value in values.items():
        kind.enum_insert(name.encode(), value)
    return kind


def opaque(size, tag):
    kind = h5t.create(h5t.OPAQUE, size)
    kind.set_tag(tag)
    return kind


def bfloat16():
    kind = h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_size(2)
    kind.set_ebias(127)
    return kind


def precision(kind, bits):
    kind = kind.copy()
    kind.set_precision(bits)
    return kind


FLOATS = packed((b"r", h5t.IEEE_F32LE), (b"i", h5t.IEEE_F32LE))
MEMBERS = {
    "nullterm": string(4), "spacepad": string(4, h5t.STR_SPACEPAD), "nullpad": string(4, h5t.STR_NULLPAD), "utf8": string(4, utf8=True), "utf8_nullpad": string(4, h5t.STR_NULLPAD, utf8=True),
    "int": h5t.STD_I32BE, "precise": precision(h5t.STD_I32LE, 20), "bfloat": bfloat16(), "double": h5t.IEEE_F64BE,
    **{f"bits{n}{order}": getattr(h5t, f"STD_B{n}{order}") for n in (8, 16, 32, 64) for order in ("LE", "BE")},
    "bool": enum(h5t.STD_I8LE, FALSE=0, TRUE=1), "bool4": enum(h5t.STD_I32LE, FALSE=0, TRUE=1), "enum": enum(h5t.STD_I16BE, A=0, B=1),
    "complex": FLOATS, "imaginary_first": compound([(b"r", 4, h5t.IEEE_F32LE), (b"i", 0, h5t.IEEE_F32LE)]),
    "complex_gap": compound([(b"r", 0, h5t.IEEE_F64LE), (b"i", 12, h5t.IEEE_F64LE)], 24), "pair_of_strings": packed((b"r", string(3)), (b"i", string(3))),
    "int_array": h5t.array_create(h5t.STD_I16LE, (2, 2)),
    "nullterm_array": h5t.array_create(string(3), (2,)), "bits_array": h5t.array_create(h5t.STD_B16LE, (3,)),
}
OPAQUE = {"time": opaque(8, b"NUMPY:<M8[s]"), "opaque_text": opaque(8, b"NUMPY:<U2"), "opaque": opaque(3, b"whatever")}


def raw_values(kind, count=5):
    """Bytes that are right for every type: small numbers, and texts that end."""
    return np.tile(np.arange(1, kind.get_size() + 1, dtype="u1") % 2, count)


def write_raw(file, name, kind, count=5):
    # Compact and in chunks as well: each is read in a way of its own.
    for layout, plist in {"": None, "_compact": h5d.COMPACT, "_chunked": h5d.CHUNKED}.items():
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if plist is not None:
            properties.set_layout(plist)
        if plist == h5d.CHUNKED:
            properties.set_chunk((3,))
            properties.set_deflate(1)
        dataset = h5d.create(file.id, f"{name}{layout}".encode(), kind, h5s.create_simple((count,)), properties)
        raw = np.frombuffer(raw_values(kind, count).tobytes(), f"V{kind.get_size()}")
        dataset.write(h5s.ALL, h5s.ALL, raw, mtype=kind)
    h5d.create(file.id, f"{name}_never".encode(), kind, h5s.create_simple((count,)))


def gapped(*kinds):
    """A compound of these with gaps before, between and behind."""
    at, members = 3, []
    for i, kind in enumerate(kinds):
        members.append((f"m{i}".encode(), at, kind))
        at += kind.get_size() + 2 + i
    return compound(members, at + 5)


def as_integers(kind):
    """The same type with unsigned integers in the place of bitfields, which h5py cannot always convert."""
    if isinstance(kind, h5t.TypeBitfieldID):
        order = {h5t.ORDER_BE: "BE"}.get(kind.get_order(), "LE")
        return getattr(h5t, f"STD_U{8 * kind.get_size()}{order}")
    if isinstance(kind, h5t.TypeArrayID):
        return h5t.array_create(as_integers(kind.get_super()), kind.get_array_dims())
    if isinstance(kind, h5t.TypeCompoundID):
        members = range(kind.get_nmembers())
        return compound([(kind.get_member_name(i), kind.get_member_offset(i), as_integers(kind.get_member_type(i))) for i in members], kind.get_size())
    return kind


def truths_of(store):
    """What h5py reads; where it has no way from a bitfield, what it reads of the same bytes as integers."""
    truths = {}
    with h5py.File(store, "r") as file, h5py.File("twins", "w", driver="core", backing_store=False) as twins:
        for name, dataset in file.items():
            try:
                truths[f"{name}.npy"] = visible_array(dataset)
            except OSError:
                kind, twin = dataset.id.get_type(), as_integers(dataset.id.get_type())
                raw = np.empty(dataset.shape, f"V{kind.get_size()}")
                dataset.id.read(h5s.ALL, h5s.ALL, raw, mtype=kind)
                made = h5d.create(twins.id, name.encode(), twin, h5s.create_simple(dataset.shape))
                made.write(h5s.ALL, h5s.ALL, raw, mtype=twin)
                truths[f"{name}.npy"] = visible_array(twins[name])
    return truths


def check(store, at_least):
    with Mount(store) as mount:
        assert_all(mount.path, truths_of(store), at_least=at_least)
        assert mount.errors() == []


def test_every_member_beside_a_terminated_string_and_a_bitfield(tmp_path):
    store = tmp_path / "pairs.h5"
    with h5py.File(store, "w") as file:
        for name, kind in MEMBERS.items():
            write_raw(file, f"first_{name}", packed((b"x", kind), (b"s", string(4)), (b"b", h5t.STD_B8LE)) if name != "bfloat"
                      else gapped(kind, string(4), h5t.STD_B8LE))
    check(store, 4 * len(MEMBERS))


def test_gaps_stay_where_they_are(tmp_path):
    store = tmp_path / "gaps.h5"
    with h5py.File(store, "w") as file:
        for name, kind in MEMBERS.items():
            write_raw(file, f"alone_{name}", gapped(kind))
            write_raw(file, f"between_{name}", gapped(h5t.STD_I8LE, kind, h5t.STD_I16BE))
            write_raw(file, f"nested_{name}", gapped(gapped(kind, h5t.STD_U8LE), string(2)))
            write_raw(file, f"array_{name}", gapped(h5t.array_create(gapped(string(3), kind), (2,)), h5t.STD_B32LE))
        for name in ("time", "opaque_text"):  # h5py reads no other tags
            kind = OPAQUE[name]
            write_raw(file, f"alone_{name}", gapped(kind))
            write_raw(file, f"between_{name}", gapped(h5t.STD_I8LE, kind, h5t.STD_I16BE))
        write_raw(file, "turned", compound([(b"b", 4, string(4)), (b"a", 0, h5t.STD_I32LE)]))
        whole = np.zeros(4, {"names": ["a", "b"], "formats": ["S3", "<f8"], "offsets": [2, 8], "itemsize": 20})
        whole["a"], whole["b"] = b"xy", 2.5
        for where, keywords in {"": {}, "_chunked": {"chunks": (3,)}}.items():
            filled = file.create_dataset(f"filled{where}", (7,), whole.dtype, fillvalue=whole[0], **keywords)
            if where:
                filled[:3] = whole[:3]
    check(store, 16 * len(MEMBERS) + 16 + 6)


def test_opaque_bytes_beside_text_that_ends(tmp_path):
    """h5py itself has no way to read these."""
    store = tmp_path / "opaque.h5"
    with h5py.File(store, "w") as file:
        for name, kind in OPAQUE.items():
            write_raw(file, name, compound([(b"s", 2, string(2)), (b"o", 5, kind)], 15))
    dtypes = {"time": "<M8[s]", "opaque_text": "<U2", "opaque": "V3"}
    with Mount(store) as mount:
        for name, dtype in dtypes.items():
            shown = np.zeros(5, {"names": ["s", "o"], "formats": ["S2", dtype], "offsets": [2, 5], "itemsize": 15})
            stored = np.tile(np.arange(1, 16, dtype="u1") % 2, 5).reshape(5, 15)
            shown["s"] = stored[:, 2:4].copy().view("S2")[:, 0]
            shown["o"] = stored[:, 5:5 + shown["o"].itemsize].copy().view(dtype)[:, 0]
            for layout in ("", "_compact", "_chunked"):
                assert (mount / f"{name}{layout}.npy").read_bytes() == np_save(shown), name


def test_opaque_types_that_h5py_marks(tmp_path):
    store = tmp_path / "opaque.h5"
    kinds = ["<M8[ns]", ">M8[D]", "<m8[25us]", "|S4", "<U4", ">U2", "<f4", ">c16", "|b1", "|i1", "<u8", "|V6"]
    with h5py.File(store, "w") as file:
        for i, code in enumerate(kinds):
            file.create_dataset(f"t{i}", data=np.zeros(3, code).astype(h5py.opaque_dtype(np.dtype(code))))
        # tags that say no type, or one of another size
        for i, tag in enumerate([b"NUMPY:", b"NUMPY:<M8[x]", b"other", b"NUMPY:|O"]):
            h5d.create(file.id, f"bad{i}".encode(), opaque(8, tag), h5s.create_simple((2,)))
        h5d.create(file.id, b"bad4", opaque(5, b"NUMPY:<f8"), h5s.create_simple((2,)))
    with h5py.File(store, "r") as file, Mount(store) as mount:
        assert_all(mount.path, {f"t{i}.npy": visible_array(file[f"t{i}"]) for i in range(len(kinds))}, at_least=len(kinds))
        sizes = [8, 8, 8, 8, 5]
        for i, size in enumerate(sizes):
            assert (mount / f"bad{i}.npy").read_bytes() == np_save(np.zeros(2, f"V{size}"))


def texts(count, alphabet="aßω温"):
    return [alphabet[: i % 5] * (i % 3) + str(i) for i in range(count)]


def with_text(count, reference=None):
    """Compounds with text of variable length, as AnnData and others write them."""
    utf8, ascii_ = h5py.string_dtype(), h5py.string_dtype("ascii")
    inner = np.dtype([("deep", utf8), ("number", "<i2")])
    dtype = np.dtype([("name", utf8), ("score", ">f4"), ("code", ascii_), ("fixed", "S3"), ("inner", inner), ("pair", utf8, (2,)), ("flag", "?")])
    array = np.zeros(count, dtype)
    array["name"], array["code"] = texts(count), [text.encode() for text in texts(count, "abcd")]
    array["score"], array["fixed"], array["flag"] = np.arange(count), b"ab", np.arange(count) % 2 == 0
    array["inner"]["deep"], array["inner"]["number"] = texts(count, "xyü")[::-1], np.arange(count) - 5
    array["pair"] = np.array([texts(count), texts(count, "q")], object).T
    return array


@pytest.fixture(scope="module")
def text_store(tmp_path_factory):
    store = tmp_path_factory.mktemp("texts") / "texts.h5"
    array = with_text(20_000)
    with h5py.File(store, "w") as file:
        file["contiguous"] = array
        file.create_dataset("chunked", data=array, chunks=(777,), compression="gzip", shuffle=True)
        file.create_dataset("square", data=array[:600].reshape(20, 30), chunks=(7, 11))
        file["scalar"] = array[17]
        file.create_dataset("empty", (0,), array.dtype)
        file.create_dataset("never", (1 << 20, 3), array.dtype, chunks=(1000, 3))
        file.create_dataset("lies", data=np.array([(b"\xff\xfe", 1)], [("t", h5py.string_dtype()), ("n", "<i4")]))
        arrays = file.create_dataset("arrays", (50,), np.dtype((h5py.string_dtype(), (3,))))
        arrays[...] = np.array(texts(150), object).reshape(50, 3)
        file["name"] = np.zeros(3, "<i4")
        file["name"].attrs["record"] = array[:2]
    return store


@pytest.mark.slow
def test_text_of_variable_length_in_compounds(text_store):
    with Mount(text_store) as mount:
        truths = walk(text_store)
        assert truths["contiguous.npy"].dtype["name"].kind == "U" and truths["lies.npy"].dtype["t"] == "S2"
        never = truths.pop("never.npy")
        assert_all(mount.path, truths, at_least=8)
        shown = np.load(mount / "never.npy", mmap_mode="r")
        assert (shown.dtype, shown.shape) == (never.dtype, never.shape)
        assert shown[-1].tobytes() == never[-1].tobytes()
        del shown
        # reads in the middle, across blocks
        whole = np_save(truths["contiguous.npy"])
        with open(mount / "contiguous.npy", "rb", buffering=0) as file:
            for at in (1, 65_000, len(whole) // 2 - 7, len(whole) - 100):
                file.seek(at)
                assert file.read(70_001) == whole[at:at + 70_001][: len(whole) - at]
        record = mount.info("name.npy")["attributes"]["record"]
        assert [entry["name"] for entry in record] == texts(2) and record[1]["pair"] == [texts(2)[1], "q1"]


def test_text_in_compounds_past_the_limit_is_refused_by_name(text_store):
    with Mount(text_store, "text_limit=64k") as mount:
        with pytest.raises(OSError):
            (mount / "contiguous.npy").read_bytes()
        assert any("contiguous" in line and "text_limit" in line for line in mount.errors())
        assert (mount / "lies.npy").read_bytes() == np_save(np.array([(b"\xff\xfe", 1)], [("t", "S2"), ("n", "<i4")]))


def test_members_that_npy_cannot_hold_are_left_out_by_name(tmp_path):
    store = tmp_path / "references.h5"
    reference, sequence = h5py.ref_dtype, h5py.vlen_dtype("<i4")
    with h5py.File(store, "w") as file:
        file["target"] = np.arange(3)
        dtype = np.dtype([("at", "<i8"), ("where", reference), ("region", h5py.regionref_dtype), ("many", sequence), ("name", "S5"),
                          ("inner", [("to", reference), ("x", "<f4")]), ("only", [("to", reference)])])
        for name, keywords in {"plain": {}, "chunked": {"chunks": (2,), "compression": "gzip"}}.items():
            dataset = file.create_dataset(name, (5,), dtype, **keywords)
            for i in range(5):
                target = file["target"]
                dataset[i] = (i, target.ref, target.regionref[:2], np.arange(i), b"n%d" % i, (target.ref, i / 2), (target.ref,))
        text = np.dtype([("where", reference), ("name", h5py.string_dtype())])
        file.create_dataset("text", (2,), text)[0] = (file["target"].ref, "größe")
        file.create_dataset("nothing", (2,), np.dtype([("a", reference), ("b", reference)]))
        file.create_dataset("just_references", (2,), reference)
    shown = np.zeros(5, [("at", "<i8"), ("name", "S5"), ("inner", [("x", "<f4")])])
    shown["at"], shown["name"], shown["inner"]["x"] = np.arange(5), [b"n%d" % i for i in range(5)], np.arange(5) / 2
    with Mount(store) as mount:
        truths = {"plain.npy": shown, "chunked.npy": shown, "text.npy": np.array([("größe",), ("",)], [("name", "<U5")])}
        assert_all(mount.path, truths, at_least=3)
        with h5py.File(store, "r") as file:  # h5py's own word on what is left: packed
            fields = file["plain"].fields(["at", "name"])[...]
            assert np_save(fields) == np_save(np.load(mount / "plain.npy")[["at", "name"]].astype(fields.dtype))
        assert [entry["name"] for entry in mount.info("plain.npy")["left_out"]] == ["where", "region", "many", "inner.to", "only"]
        assert all(entry["reason"] for entry in mount.info("plain.npy")["left_out"])
        assert "left_out" not in mount.info("target.npy")
        assert not (mount / "nothing.npy").exists()
        assert "reference" in reason_of(mount.info(), "nothing") and "reference" in reason_of(mount.info(), "just_references")


def test_members_that_grow_into_one_another_are_packed(tmp_path):
    store = tmp_path / "grown.h5"
    with h5py.File(store, "w") as file:
        kind = packed((b"a", bfloat16()), (b"b", h5t.STD_I16LE))
        raw = np.array([(0x3FC0, 7), (0xC000, -1)], [("a", "<u2"), ("b", "<i2")])
        h5d.create(file.id, b"tight", kind, h5s.create_simple((2,))).write(h5s.ALL, h5s.ALL, raw.view("V4"), mtype=kind)
    with Mount(store) as mount:
        assert (mount / "tight.npy").read_bytes() == np_save(np.array([(1.5, 7), (-2, -1)], [("a", "<f4"), ("b", "<i2")]))


def test_text_in_virtual_datasets_within_the_file(tmp_path):
    store, other = tmp_path / "virtual.h5", tmp_path / "other.h5"
    record = with_text(40)
    with h5py.File(other, "w") as file:
        file.create_dataset("text", data=np.array(texts(30), object))
    with h5py.File(store, "w", libver="latest") as file:
        file.create_dataset("parts/text", data=np.array(texts(30), object), chunks=(7,))
        file.create_dataset("parts/fixed", data=np.array([b"\xc3\xa4%d" % i for i in range(30)]).astype(h5py.string_dtype("utf-8", 4)))
        file.create_dataset("parts/record", data=record, chunks=(9,))
        for name in ("text", "fixed", "record"):
            source = file[f"parts/{name}"]
            layout = h5py.VirtualLayout((len(source) + 5,), source.dtype)
            layout[:20] = h5py.VirtualSource(source)[10:30]
            layout[23:len(source)] = h5py.VirtualSource(source)[: len(source) - 23]
            file.create_virtual_dataset(name, layout)
        layout = h5py.VirtualLayout((30,), h5py.string_dtype())
        layout[:] = h5py.VirtualSource("other.h5", "text", (30,))
        file.create_virtual_dataset("outside", layout)
    truths = walk(store)
    truths.pop("outside.npy")
    for options in ("", "external=same-dir"):
        with Mount(store, options) as mount:
            assert_all(mount.path, truths, at_least=6)
            with pytest.raises(OSError) as caught:
                (mount / "outside.npy").read_bytes()
            assert caught.value.errno == (errno.EIO if options else errno.EACCES)
            assert any("outside.npy" in line for line in mount.errors())


def test_compounds_with_text_beside_arkoudas_objects(tmp_path):
    with ak.Store(tmp_path, "one.h5") as store:
        ak.put_array(store, "numbers", np.arange(5))
        store.files[0]["record"] = with_text(30)
        path = store.paths[0]
    with Mount(path) as mount:
        assert_all(mount.path, {"record.npy": walk(path)["record.npy"]}, at_least=1)
