"""Arkouda's own rules: `verify` names every object that breaks one, `commit` and `export` refuse to make one. Judge: the same rules
by h5py (support/arkouda.py), which must see each damage too."""

import h5py
import numpy as np
import pytest

from support import arkouda, daf
from support.judge import faults_of
from support.mount import Mount
from support.process import npyfs

CODES = np.array([0, 1, 1, 0, 2, 0, 1])
LABELS = [b"red", b"green", b"N/A"]


def write(path):
    """One object of every kind."""
    with arkouda.Store(path.parent, path.name, None) as store:
        put = arkouda.put_array
        put(store, "plain", np.arange(7))
        put(store, "flags", np.arange(7) % 2 == 1)
        put(store, "ip", np.arange(7, dtype="<u8"), arkouda.IPV4)
        put(store, "when", np.arange(7).astype("<M8[ns]"), arkouda.DATETIME)
        put(store, "span", np.arange(7).astype("<m8[ns]"), arkouda.TIMEDELTA)
        arkouda.put_view(store, "view", np.arange(6.0).reshape(2, 3))
        arkouda.put_bigint(store, "bits", [2**65, 3, 5], max_bits=70)
        arkouda.put_strings(store, "words", [b"one", b"", b"three"])
        arkouda.put_strings(store, "bare", [b"one", b"", b"three"], offsets=False)
        arkouda.put_segarray(store, "rows", [[1, 2], [], [3]], "i8")
        arkouda.put_segarray(store, "texts", [[b"a", b"bc"], [], [b""]], "strings")
        arkouda.put_categorical(store, "colour", CODES, LABELS)
        arkouda.put_groupby(store, "group", [lambda s, p: put(s, p, np.array([2, 0, 2, 1, 0, 2, 2])),
                                             lambda s, p: arkouda.put_strings(s, p, [b"c", b"a", b"c", b"b", b"a", b"c", b"c"])])
        arkouda.put_index(store, "index", [lambda s, p: arkouda.put_index_array(s, p, np.arange(4))])
        arkouda.put_index(store, "levels", [lambda s, p: put(s, p, np.arange(4)), lambda s, p: arkouda.put_strings(s, p, [b"x"] * 4)])
        arkouda.put_dataframe(store, "frame", {
            "colour": lambda s, p: arkouda.put_categorical(s, p, CODES, LABELS),
            "words": lambda s, p: arkouda.put_strings(s, p, [b"a"] * 7),
            "rows": lambda s, p: arkouda.put_segarray(s, p, [[1]] * 7, "i8"),
        }, np.arange(7))


def replace(name, array):
    """Another dataset in the place of one, with its attributes."""
    def damage(file):
        attributes = dict(file[name].attrs)
        del file[name]
        file[name] = array
        for key, value in attributes.items():
            file[name].attrs[key] = value
    return damage


def put(name, at, value):
    return lambda file: file[name].__setitem__(at, value)


def attribute(name, key, value):
    return lambda file: file[name].attrs.__setitem__(key, np.int64(value) if np.ndim(value) == 0 else np.array(value, "i8"))


def remove(name):
    return lambda file: file.__delitem__(name)


# What is damaged, how, and what is said of it.
DAMAGES = {
    "kind": ("plain", attribute("plain", "ObjType", 2), "ObjType 2"),
    "two dimensions": ("plain", replace("plain", np.zeros((2, 3))), "2 dimensions"),
    "elements": ("plain", replace("plain", np.zeros(3, "c16")), "elements of type"),
    "address": ("ip", replace("ip", np.arange(3, dtype="i4")), "IPv4 is a vector of <u8"),
    "time": ("when", replace("when", np.arange(3.0)), "should be"),
    "span": ("span", replace("span", np.arange(3, dtype="i2")), "should be"),
    "shape": ("view", attribute("view", "Shape", [2, 4]), "Shape"),
    "rank": ("view", attribute("view", "Rank", 3), "Rank and Shape"),
    "limb": ("bits", replace("bits/Limb_1", np.zeros(2, "u8")), "Limb_1 has 2 elements, Limb_0 3"),
    "limbs": ("bits", attribute("bits", "NumLimbs", 3), "NumLimbs is 3"),
    "bigint": ("bits", lambda file: file["bits"].attrs.__delitem__("isBigInt"), "isBigInt"),
    "string end": ("words", put("words/values", -1, 7), "zero byte"),
    "string start": ("words", put("words/segments", 0, 1), "segment 0 is 1"),
    "string order": ("words", put("words/segments", 1, 6), "segment"),
    "string outside": ("words", put("words/segments", 2, 99), "segment 2 is 99"),
    "string between": ("words", put("words/segments", 1, 3), "segment 1 is 3, string 0 ends before 4"),
    "string lost": ("words", replace("words/segments", np.array([0, 4])), "2 segments, values hold the ends of 3"),
    "bytes": ("words", replace("words/values", np.zeros(11, "i4")), "no 1-D bytes"),
    "no end": ("bare", put("bare/values", -1, 7), "zero byte"),
    "segment start": ("rows", put("rows/segments", 0, 1), "segment 0 is 1"),
    "segment outside": ("rows", put("rows/segments", 2, 4), "segment 2 is 4, there are 3"),
    "segment order": ("texts", put("texts/segments", 1, 3), "segment 2 is 2, the one before it 3"),
    "segments": ("rows", remove("rows/segments"), "there is none"),
    "segments only": ("rows", replace("rows/segments", np.zeros(0, "i8")), "3 values and no segments"),
    "segarray": ("rows", lambda file: file["rows"].attrs.__delitem__("ObjType"), "no ObjType"),
    "code": ("colour", put("colour/codes", 3, 3), "a code outside the 3 categories"),
    "code below": ("colour", put("colour/codes", 3, -1), "a code outside the 3 categories"),
    "categories": ("colour", remove("colour/categories"), "categories"),
    "NA_Codes": ("colour", remove("colour/NA_Codes"), "NA_Codes"),
    "permutation": ("colour", replace("colour/permutation", np.arange(6)), "permutation has 6 elements, codes 7"),
    "permutation outside": ("colour", put("colour/permutation", 2, 7), "permutation: number 2 is 7"),
    "key": ("group", replace("group/KEY_0", np.arange(6)), "KEY_1 has 7 elements, KEY_0 6"),
    "keys": ("group", attribute("group", "NumKeys", 1), "NumKeys is 1, there are 2"),
    "missing key": ("group", remove("group/KEY_1"), "KEY_1"),
    "no count": ("group", lambda file: file["group"].attrs.__delitem__("NumKeys"), "no attribute NumKeys"),
    "unique": ("group", replace("group/unique_key_idx", np.array([1, 3])), "3 segments and 2 unique keys"),
    "unique outside": ("group", put("group/unique_key_idx", 1, 7), "unique_key_idx: number 1 is 7"),
    "group order": ("group", replace("group/permutation", np.arange(5)), "permutation has 5 elements"),
    "level": ("levels", replace("levels/IDX_0", np.arange(3)), "IDX_1 has 4 elements, IDX_0 3"),
    "levels": ("levels", attribute("levels", "NumIdx", 1), "NumIdx is 1, there are 2"),
    "no level": ("index", remove("index/IDX_0"), "IDX_0"),
    "index": ("frame", replace("frame/Index", np.arange(6)), "Index 6"),
    "no index": ("frame", remove("frame/Index"), "Index"),
    "columns": ("frame", remove("frame/words"), "NumCols is 3, there are 2"),
    "column": ("frame", replace("frame/colour/codes", CODES[:5]), "colour has 5 rows, Index 7"),
    "in a column": ("frame", put("frame/words/segments", 0, 1), "segment 0 is 1"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "all.h5"
    write(path)
    return path


def test_a_store_that_keeps_the_rules_is_well(whole):
    assert faults_of(whole) == []
    assert "all is well" in npyfs("verify", whole, check=True).stdout


def test_verify_names_each_object_that_breaks_a_rule(whole, tmp_path):
    """In a mounted directory of stores, each with one damage: file, object and reason; and no other file."""
    names = {}
    for i, (what, (_, damage, _)) in enumerate(DAMAGES.items()):
        names[what] = f"f{i:02}.h5"
        path = tmp_path / names[what]
        path.write_bytes(whole.read_bytes())
        with h5py.File(path, "r+") as file:
            damage(file)
        try:
            seen = faults_of(path)
        except KeyError:  # a member that h5py is asked for and that is gone
            seen = True
        assert seen or what in ("segarray", "elements"), what
    (tmp_path / "whole.h5").write_bytes(whole.read_bytes())
    told = npyfs("verify", tmp_path, timeout=300)
    assert told.returncode == 3
    lines = (told.stdout + told.stderr).splitlines()
    missed = {}
    for what, (name, _, why) in DAMAGES.items():
        own = [line for line in lines if f"/{names[what]}/" in line]
        if not own or not all(f"/{names[what]}/{name}" in line for line in own) or not any(why in line for line in own):
            missed[what] = own
    assert not missed, missed
    assert not any("/whole.h5/" in line for line in lines)


def test_verify_knows_the_rules_over_several_files(tmp_path):
    """A set of files is well, also with locales that have nothing, and damage in it is told."""
    with arkouda.Store(tmp_path, "set.h5", (4, 0, 3, 2)) as store:
        arkouda.put_array(store, "few", np.arange(1))
        arkouda.put_strings(store, "words", [b"one", b"", b"three", b"4", b"five"])
        arkouda.put_strings(store, "none", [])
        for dtype, rows in {"i8": [[1, 2], [], [3]], "bigint": [[2**65], [], [1]], "strings": [[b"a", b""], [], [b"c"]]}.items():
            arkouda.put_segarray(store, f"rows_{dtype}", rows, dtype)
            arkouda.put_segarray(store, f"none_{dtype}", [], dtype)
        arkouda.put_bigint(store, "bits", [2**65, 3, 5, 1, 1], max_bits=70)
        arkouda.put_categorical(store, "colour", CODES, LABELS)
        arkouda.put_groupby(store, "group", [lambda s, p: arkouda.put_array(s, p, np.array([2, 0, 2, 1, 0, 2, 2]))])
        arkouda.put_index(store, "levels", [lambda s, p: arkouda.put_array(s, p, np.arange(4)),
                                            lambda s, p: arkouda.put_strings(s, p, [b"x"] * 4)])
        arkouda.put_dataframe(store, "frame", {"words": lambda s, p: arkouda.put_strings(s, p, [b"a"] * 7)}, np.arange(7))
    told = npyfs("verify", tmp_path / "set_LOCALE0000.h5")
    assert told.returncode == 0 and "all is well" in told.stdout, told.stdout + told.stderr
    with h5py.File(tmp_path / "set_LOCALE0002.h5", "r+") as file:
        replace("levels/IDX_0", np.arange(3))(file)
    told = npyfs("verify", tmp_path / "set_LOCALE0000.h5")
    assert told.returncode == 3 and "levels: IDX_1 has 4 elements, IDX_0 " in told.stderr


@pytest.mark.parametrize("what", ["level", "key", "string start"])
def test_commit_and_export_refuse_what_breaks_the_rules(whole, tmp_path, what):
    """A checkout whose own object was damaged after it was written. What it does not concern is none of its business."""
    name, damage, why = DAMAGES[what]
    store = tmp_path / "s.h5"
    store.write_bytes(whole.read_bytes())
    with h5py.File(store, "r+") as file:
        DAMAGES["columns"][1](file)  # in the store, not in what is written
    with Mount(store, checkout="c") as mount:
        np.save(mount / "new.npy", np.arange(3))
        for folder in (name,):
            for path in sorted((mount / folder).glob("*.npy")):
                np.save(path, np.load(path))
    layers = [path for path in (tmp_path / "s.h5.checkouts").rglob("*.h5") if holds(path, name)]
    assert len(layers) == 1, layers
    with h5py.File(layers[0], "r+") as file:
        damage(file)
    for command in (["commit", store, "c"], ["export", store, "c", tmp_path / "out.h5"]):
        told = npyfs("checkout", *command)
        assert told.returncode == 3 and f"{name}: " in told.stderr and why in told.stderr, told.stderr
        assert "new" not in told.stderr and "frame" not in told.stderr
    assert not (tmp_path / "out.h5").exists()


def holds(path, name):
    with h5py.File(path) as file:
        return name in file


def test_the_judge_of_exports_sees_what_breaks_the_rules_of_daf(tmp_path):
    """Each damage is seen by h5py; `verify` has a test of its own."""
    def short(file):
        file["cell#short"] = np.arange(3)

    def twice(file):
        file["twice#"] = np.array([b"a", b"a"])

    def lost(file):
        file["lost#size"] = np.arange(2)

    def outside(file):
        file["cell,gene#s_i8/indices"][0] = 99

    for damage in (short, twice, lost, outside):
        path = tmp_path / f"{damage.__name__}.h5df"
        with h5py.File(path, "w") as file:
            daf.write(file)
        assert faults_of(path) == []
        with h5py.File(path, "r+") as file:
            damage(file)
        assert len(faults_of(path)) == 1, damage
