"""What is written over Arkouda's objects stays of their kind, and its members fit each other. Judge: h5py on the exported file."""

import errno
import json
import os
import re
import shutil

import h5py
import numpy as np
import pytest
from test_arkouda import BIG, TIMES

from support import arkouda
from support.mount import Mount
from support.process import npyfs, run

pytestmark = pytest.mark.fast

LABELS = [b"red", b"green", b"N/A"]
CODES = np.array([0, 1, 1, 0, 2, 0, 1])


@pytest.fixture
def store(tmp_path):
    with arkouda.Store(tmp_path, "a.h5", None) as store:
        arkouda.put_array(store, "ip", np.arange(7, dtype="<u8"), arkouda.IPV4)
        arkouda.put_array(store, "when", TIMES.astype("<M8[ns]"), arkouda.DATETIME)
        arkouda.put_array(store, "span", TIMES.astype("<m8[ns]"), arkouda.TIMEDELTA)
        arkouda.put_view(store, "view", np.arange(6.0).reshape(2, 3))
        arkouda.put_bigint(store, "bits", BIG, max_bits=70)
        arkouda.put_categorical(store, "colour", CODES, LABELS)
        arkouda.put_dataframe(store, "frame", {
            "ip": lambda s, p: arkouda.put_array(s, p, np.arange(7, dtype="<u8"), arkouda.IPV4),
            "colour": lambda s, p: arkouda.put_categorical(s, p, CODES, LABELS),
            "words": lambda s, p: arkouda.put_strings(s, p, [b"a"] * 7),
        }, np.arange(7))
    return tmp_path / "a.h5"


def export(store):
    npyfs("checkout", "export", store, "work", store.with_name("out.h5"), check=True)
    return h5py.File(store.with_name("out.h5"))


def refused(path, array):
    with pytest.raises(OSError) as caught, open(path, "wb") as file:
        np.save(file, array)
    assert caught.value.errno == errno.EINVAL


def words(group):
    return bytes(group["values"][()]).split(b"\0")[:-1]


def test_what_is_written_over_an_object_stays_of_its_kind(store):
    addresses, limbs = np.arange(3, dtype="<u8") + 5, np.array([[1, 2], [2**64 - 1, 63]], "<u8")
    labels = np.array([b"green", b"blue", b"N/A"])
    with Mount(store, checkout="work") as mount:
        np.save(mount / "ip.npy", addresses)
        np.save(mount / "when.npy", np.arange(4, dtype=">i8"))
        np.save(mount / "span.npy", np.array([5, "NaT"], "m8[s]"))
        np.save(mount / "view.npy", np.arange(4, dtype="i4").reshape(1, 4))
        np.save(mount / "bits.npy", limbs)
        refused(mount / "bits.npy", np.array([[0, 64]], "<u8"))
        np.save(mount / "colour.npy", labels)
        np.save(mount / "frame/ip.npy", np.arange(7, dtype="<u8") * 3)
        np.save(mount / "frame/colour.npy", np.array([b"blue"] * 7))
        os.utime(mount / "frame/words.npy")
        assert np.load(mount / "colour/codes.npy").tolist() == [1, 3, 2]
        assert np.load(mount / "frame/ip/IPv4.npy").tolist() == list(range(0, 21, 3))
    with export(store) as file:
        assert file["ip"].attrs["ObjType"] == arkouda.IPV4 and file["ip"][()].tolist() == addresses.tolist()
        assert file["when"].attrs["ObjType"] == arkouda.DATETIME and file["when"][()].tolist() == [0, 1, 2, 3]
        assert file["span"].attrs["ObjType"] == arkouda.TIMEDELTA and file["span"][()].tolist() == [5 * 10**9, -(2**63)]
        view = file["view"].attrs
        assert (view["ObjType"], view["Rank"], view["Shape"].tolist()) == (arkouda.ARRAYVIEW, 2, [1, 4])
        bits = file["bits"]
        assert (bits.attrs["isBigInt"], bits.attrs["MaxBits"], bits.attrs["NumLimbs"]) == (1, 70, 2)
        assert np.array_equal(np.stack([bits["Limb_0"], bits["Limb_1"]], 1), limbs)
        for colour, codes in ((file["colour"], [1, 3, 2]), (file["frame/colour"], [3] * 7)):
            assert colour.attrs["ObjType"] == arkouda.CATEGORICAL
            assert words(colour["categories"]) == [*LABELS, b"blue"] and colour["NA_Codes"][()].tolist() == [2]
            assert set(colour) == {"codes", "categories", "NA_Codes"} and colour["codes"][()].tolist() == codes
        frame = file["frame"]
        assert frame.attrs["NumCols"] == 3 and frame["ip"].attrs["ObjType"] == arkouda.IPV4 and frame["ip"][-1] == 18


def test_years_and_months_begin_where_the_calendar_says(store):
    """Judge: NumPy, from the first month to the last that 64 bits of nanoseconds reach."""
    months = np.array(["1677-10", "1678-01", "1969-12", "1970-01", "2000-02", "2000-03", "2100-03", "2262-04", "NaT"], "M8[M]")
    years = np.array(["1678", "NaT", "2262"], ">M8[Y]")
    with Mount(store, checkout="work") as mount:
        for outside in (np.array(["1677-09"], "M8[M]"), np.array(["2262-05"], "M8[M]"), np.array([2263 - 1970], "M8[Y]")):
            refused(mount / "when.npy", outside)
        for times in (months, years):
            np.save(mount / "when.npy", times)
            want = times.astype("<M8[ns]").view("<i8").tolist()
            assert np.load(mount / "when.npy").view("<i8").tolist() == want
    with export(store) as file:
        assert file["when"].attrs["ObjType"] == arkouda.DATETIME and file["when"][()].tolist() == want


def test_both_forms_of_an_object_say_the_same(store):
    """The form that is written counts, not the one that was there; the same again changes nothing."""
    with Mount(store, checkout="work") as mount:
        data = (mount / "frame/colour.npy").read_bytes()
        (mount / "frame/colour.npy").write_bytes(data)
        (mount / "colour.npy").write_bytes((mount / "colour.npy").read_bytes())
        np.save(mount / "frame/words/segments.npy", np.arange(0, 21, 3))
        np.save(mount / "frame/words/values.npy", np.frombuffer(b"ab\0" * 7, "u1"))
        assert np.load(mount / "frame/words.npy").tolist() == [b"ab"] * 7
        assert npyfs("checkout", "diff", mount.path, check=True).stderr == ""
    with export(store) as file, h5py.File(store) as old:
        for name in ("colour", "frame/colour"):
            assert set(file[name]) == set(old[name])
            for member in ("codes", "permutation", "segments"):
                assert np.array_equal(file[name][member], old[name][member])
        assert words(file["frame/words"]) == [b"ab"] * 7


def test_codes_leave_no_stale_permutation_behind(store):
    same = CODES.copy()
    with Mount(store, checkout="work") as mount:
        np.save(mount / "colour/codes.npy", CODES[::-1])
        assert "permutation.npy" not in os.listdir(mount / "colour")
        np.save(mount / "frame/colour/codes.npy", (same + 1) % 3)  # the same groups under other numbers
        assert np.load(mount / "colour.npy").tolist() == [LABELS[code] for code in CODES[::-1]]
    with export(store) as file:
        assert set(file["colour"]) == {"codes", "categories", "NA_Codes"}
        assert set(file["frame/colour"]) == {"codes", "categories", "NA_Codes", "permutation", "segments"}


SEVEN = np.arange(7)
GROUPBY = {"KEY_1": SEVEN, "permutation": SEVEN, "segments": np.array([0, 3]), "unique_key_idx": np.array([0, 3]), "KEY_0": SEVEN}
COLOUR = {"codes": np.zeros(7, "i8"), "categories": np.array([b"x"]), "NA_Codes": np.array([0])}
WRONG = {
    "KEY_1": GROUPBY | {"KEY_1": SEVEN[:5]}, "KEY_0": GROUPBY | {"KEY_0": np.array([b"x"] * 8)}, "unique_key_idx": GROUPBY | {"unique_key_idx": np.array([0, 7])},
    "permutation": {"permutation": SEVEN[:6], "segments": np.array([0]), **COLOUR}, "segment 1": {"permutation": SEVEN, "segments": np.array([0, 8]), **COLOUR},
    "number 6": {"permutation": SEVEN + 1, "segments": np.array([0]), **COLOUR}, "IDX_1": {"IDX_1": SEVEN[:2], "IDX_0": SEVEN},
    "a has 6 rows": {"a": SEVEN[:6], "Index": SEVEN}, "Limb_1": {"Limb_1": np.zeros(2, "<u8"), "Limb_0": np.zeros(3, "<u8")},
    "MaxBits": {"MaxBits": np.array(0), "Limb_0": np.zeros(3, "<u8")}, "IPv4": {"IPv4": np.zeros(3)},
}


@pytest.mark.parametrize("reason", WRONG)
def test_a_member_that_does_not_fit_is_refused_and_named(store, reason):
    *first, last = WRONG[reason].items()
    with Mount(store, checkout="work") as mount:
        os.mkdir(mount / "new")
        for name, array in first:
            np.save(mount / f"new/{name}.npy", array)
        refused(mount / f"new/{last[0]}.npy", last[1])
        assert any(reason in line for line in mount.errors()), mount.errors()


COMPOSITES = ["ip", "view", "bits", "colour", "words", "numbers", "texts", "large", "group", "index", "levels", "frame"]


ROWS = np.array([2, 0, 2, 1, 0, 2, 2])


def put_group(store):
    """Keys that are grouped as `put_groupby` says."""
    texts = [[b"a", b"b", b"c"][row] for row in ROWS]
    arkouda.put_groupby(store, "group", [lambda s, p: arkouda.put_array(s, p, ROWS), lambda s, p: arkouda.put_strings(s, p, texts),
                                         lambda s, p: arkouda.put_categorical(s, p, ROWS, LABELS)])


@pytest.fixture
def everything(tmp_path):
    array, words = (lambda s, p: arkouda.put_array(s, p, np.arange(7))), (lambda s, p: arkouda.put_strings(s, p, [b"a"] * 7))
    colour, ip = (lambda s, p: arkouda.put_categorical(s, p, CODES, LABELS)), (lambda s, p: arkouda.put_array(s, p, np.arange(7, dtype="<u8"), arkouda.IPV4))
    with arkouda.Store(tmp_path, "a.h5", None) as store:
        arkouda.put_array(store, "stays", np.arange(3))
        arkouda.put_view(store, "view", np.arange(6.0).reshape(2, 3))
        arkouda.put_bigint(store, "bits", BIG, max_bits=70)
        for name, put in {"ip": ip, "colour": colour, "words": words}.items():
            put(store, name)
        arkouda.put_segarray(store, "numbers", [[1, 2], [3]], "<i8")
        arkouda.put_segarray(store, "texts", [[b"a"], [b"b", b""]], "strings")
        arkouda.put_segarray(store, "large", [[2**70], [1]], "bigint")
        put_group(store)
        arkouda.put_index(store, "index", [words])
        arkouda.put_index(store, "levels", [array, words, colour])
        arkouda.put_dataframe(store, "frame", {"a": array, "b": words, "c": colour, "d": ip}, np.arange(7))
        arkouda.put_array(store, "nested/deep/x", np.arange(3))
    return tmp_path / "a.h5"


@pytest.mark.parametrize("how", ["rm -r", "rm -rf", "rmtree", "rsync"])
def test_every_object_can_be_deleted_as_a_directory(everything, tmp_path, how):
    with Mount(everything, checkout="work") as mount:
        for name in COMPOSITES:
            if how == "rmtree":
                shutil.rmtree(mount / name)
            elif how == "rsync":
                (tmp_path / "empty").mkdir(exist_ok=True)
                run(["rsync", "-r", "--delete", f"{tmp_path}/empty/", f"{mount / name}/"], check=True)
                os.rmdir(mount / name)
            else:
                run([*how.split(), mount / name], check=True)
            assert name not in os.listdir(mount.path)
        assert sorted(os.listdir(mount.path)) == ["nested", "stays.npy"]
    with Mount(everything, checkout="work") as mount:
        assert sorted(os.listdir(mount.path)) == ["nested", "stays.npy"]
    with export(everything) as file:
        assert set(file) == {"stays", "nested"}


GONE = {"words/values": "words", "texts/values/values": "texts", "large/values/Limb_0": "large", "group/KEY_1": "group", "levels/IDX_1/values": "levels",
        "colour/categories/values": "colour", "ip/IPv4": "ip", "view/ArrayView": "view", "bits/Limb_0": "bits", "frame/Index": "frame"}


def test_what_a_member_leaves_behind_when_it_is_deleted(everything):
    with h5py.File(everything) as file:
        before = set(file)
    with Mount(everything, checkout="gone") as mount:
        for member in GONE:
            os.remove(mount / f"{member}.npy")
    with Mount(everything, checkout="gone") as mount:
        assert {name.split("/")[0].removesuffix(".npy") for name in mount.files()} == before - set(GONE.values())
    with Mount(everything, checkout="work") as mount:
        os.remove(mount / "bits/MaxBits.npy")
        os.remove(mount / "colour/permutation.npy")
        for name in ("c.npy", "b/values.npy", "d.npy"):
            os.remove(mount / "frame" / name)
        np.save(mount / "frame/e.npy", np.arange(7.0))  # what is left of the others is no part of it
        with pytest.raises(OSError) as caught:
            os.remove(mount / "nested/deep/x.npy")
        assert caught.value.errno == errno.EPERM
    with Mount(everything, checkout="work") as mount:
        assert sorted(os.listdir(mount / "frame")) == ["Index.npy", "a.npy", "e.npy"]
    with export(everything) as file:
        assert set(file["frame"]) == {"Index", "a", "e"} and file["frame"].attrs["NumCols"] == 2
        assert file["bits"].attrs["MaxBits"] == -1 and set(file["colour"]) == {"codes", "categories", "NA_Codes", "segments"}
        assert file["nested/deep/x"][()].tolist() == [0, 1, 2]


@pytest.mark.parametrize("how", ["closed late", "open", "timed"])
def test_a_member_that_is_open_and_unchanged_is_part_of_what_is_stored(store, how):
    """As one is that was closed: the kernel tells later that a descriptor was the last one."""
    with Mount(store, checkout="work") as mount:
        with open(mount / "frame/one.npy", "wb") as file:
            np.save(file, np.arange(7))
            file.flush()
            late = os.dup(file.fileno())
        if how == "open":
            os.close(late)
            late = os.open(mount / "frame/one.npy", os.O_RDWR)
        if how == "timed":
            os.utime(late)
        np.save(mount / "frame/two.npy", np.arange(7) * 2)
        assert mount.status()["checkout"]["waiting"] == []
        os.close(late)
    with Mount(store, checkout="work") as mount:
        assert {"one.npy", "two.npy"} < set(os.listdir(mount / "frame"))
    with export(store) as file:
        frame = file["frame"]
        assert frame.attrs["NumCols"] == 5
        assert frame["one"][()].tolist() == list(range(7)) and frame["two"][()].tolist() == list(range(0, 14, 2))


def test_a_member_of_another_kind_begins_another_object(store):
    """Nothing of the old object is part of the new one, which waits until it is complete."""
    with Mount(store, checkout="work") as mount:
        np.save(mount / "colour.npy", np.array([b"red", b"N/A"]))
        np.save(mount / "late.npy", np.array([b"x", b"y", b"x"]))
        np.save(mount / "late/codes.npy", np.array([0, 1, 0]))
        assert "late: categories, NA_Codes missing" in npyfs("checkout", "diff", mount.path, check=True).stderr
        assert np.load(mount / "late.npy").tolist() == [b"x", b"y", b"x"]
        np.save(mount / "late/categories.npy", np.array([b"p", b"q"]))
        np.save(mount / "late/NA_Codes.npy", np.array([1]))
        assert np.load(mount / "late.npy").tolist() == [b"p", b"q", b"p"]
    with export(store) as file:
        assert set(file["late"]) == {"codes", "categories", "NA_Codes"}


def test_a_listing_knows_the_length_of_flat_numbers(tmp_path):
    """The index has the size of what is shown as it is stored, and of nothing else. Judge: np.save."""
    with arkouda.Store(tmp_path, "x.h5", None) as store:
        arkouda.put_array(store, "there", np.arange(3))
        arkouda.put_array(store, "ip", np.arange(3, dtype="<u8"), arkouda.IPV4)
    known = {"i": np.arange(5), "f": np.ones(3, "f4"), "empty": np.zeros(0), "there": np.arange(4, dtype="<u2")}
    others = {"flags": np.array([True, False]), "when": np.arange(3).astype("M8[ns]"), "flat": np.ones((2, 3)), "text": np.array([b"a"]),
              "scalar": np.array(3), "ip": np.arange(4, dtype="<u8")}
    with Mount(tmp_path / "x.h5", checkout="c") as mount:
        for name, array in {**known, **others}.items():
            np.save(mount / f"{name}.npy", array)
    index = (tmp_path / "x.h5.checkouts/c/index").read_text().splitlines()[1:]
    sizes = {record["path"]: record["stored"].get("size") for line in index if "path" in (record := json.loads(line[9:]))}
    with Mount(tmp_path / "x.h5", checkout="c") as mount:
        for name, array in {**known, **others}.items():
            size = os.stat(mount / f"{name}.npy").st_size
            assert sizes[name] == (size if name in known else None), name
            np.testing.assert_array_equal(np.load(mount / f"{name}.npy"), array)
            assert size == len((mount / f"{name}.npy").read_bytes())


def grouping_of(rows):
    order = np.argsort(rows, kind="stable")
    starts = np.unique(rows[order], return_index=True)[1]
    return {"permutation": order, "segments": starts, "unique_key_idx": order[starts]}


def sync(path):
    with open(path, "r+b") as file:
        os.fsync(file.fileno())


def test_new_keys_wait_for_their_grouping(tmp_path):
    """The old grouping does not say how other keys are grouped: the object waits, by name, until segments, permutation and
    unique_key_idx of the new keys are there. Judge: NumPy's grouping of the exported keys."""
    with arkouda.Store(tmp_path, "a.h5", None) as store:
        put_group(store)
    store, new = tmp_path / "a.h5", np.array([5, 5, 5, 7, 5, 7, 9])
    with Mount(store, checkout="work") as mount:
        # The same groups under other names are grouped as they were.
        np.save(mount / "group/KEY_0.npy", ROWS * 10.5)
        assert npyfs("checkout", "diff", mount.path, check=True).stderr == ""
        np.save(mount / "group/KEY_1.npy", np.array([b"x", b"y", b"z"])[ROWS])
        np.save(mount / "group/KEY_0.npy", new)
        sync(mount / "group/KEY_0.npy")
        assert any("group: its parts do not fit each other: row" in line and "another key" in line for line in mount.errors()), mount.errors()
        assert "another key" in npyfs("checkout", "diff", mount.path).stderr
    refused = npyfs("checkout", "commit", store, "work")
    assert refused.returncode and "group: its parts do not fit each other: row" in refused.stderr, refused.stderr
    with Mount(store, checkout="work") as mount:
        assert "group: its parts do not fit each other: row" in npyfs("checkout", "diff", mount.path).stderr
        for number, key in enumerate([np.array([b"q"] * 7), np.array([b"red"] * 7)]):
            np.save(mount / f"group/KEY_{number + 1}.npy", key)
        for name, array in grouping_of(new).items():
            np.save(mount / f"group/{name}.npy", array)
        assert npyfs("checkout", "diff", mount.path, check=True).stderr == ""
    with export(store) as file:
        group = file["group"]
        keys = group["KEY_0"][()]
        assert keys.tolist() == new.tolist() and not arkouda.faults(file)
        parts = np.split(keys[group["permutation"][()]], group["segments"][1:])
        assert [np.unique(part).tolist() for part in parts] == [[5], [7], [9]]
        assert keys[group["unique_key_idx"][()]].tolist() == [5, 7, 9]


@pytest.mark.parametrize("name, value, why", [
    ("permutation", [1, 4, 3, 0, 2, 5, 5], "row 5 twice"),
    ("permutation", [0, 4, 3, 1, 2, 5, 6], "another key"),
    ("segments", [0, 2, 4], "two groups have the same key|another key"),
    ("unique_key_idx", [1, 3, 4], "a row of another group"),
])
def test_a_new_grouping_must_be_that_of_the_keys(tmp_path, name, value, why):
    members = {"KEY_0": ROWS, **grouping_of(ROWS), name: np.array(value)}
    with arkouda.Store(tmp_path, "a.h5", None) as store:
        arkouda.put_array(store, "there", np.arange(3))
    with Mount(tmp_path / "a.h5", checkout="work") as mount:
        os.mkdir(mount / "new")
        *first, last = members.items()
        for member, array in first:
            np.save(mount / f"new/{member}.npy", array)
        refused(mount / f"new/{last[0]}.npy", last[1])
        assert any(re.search(why, line) for line in mount.errors()), mount.errors()
        for member in (name, last[0]):
            right = {"KEY_0": ROWS, **grouping_of(ROWS)}[member]
            np.save(mount / f"new/{member}.npy", right)
    with export(tmp_path / "a.h5") as file:
        assert file["new/permutation"][()].tolist() == grouping_of(ROWS)["permutation"].tolist()


def test_what_does_not_fit_a_stored_object_waits_by_name(tmp_path):
    """The log, status.json, diff and commit say which member is wrong, over a remount, too."""
    with arkouda.Store(tmp_path, "a.h5", None) as store:
        arkouda.put_categorical(store, "colour", CODES, LABELS)
    store, why = tmp_path / "a.h5", "colour: its parts do not fit each other: code 1 is 9, there are 3 categories"
    with Mount(store, checkout="work") as mount:
        np.save(mount / "colour/codes.npy", np.array([0, 9]))
        assert not any(why in line for line in mount.errors()), "members that are replaced one after the other are no error"
        sync(mount / "colour/codes.npy")
        assert sum(why in line for line in mount.errors()) == 1
        assert why in npyfs("checkout", "diff", mount.path).stderr
        assert why in json.dumps(mount.status())
    for command in ("diff", "commit"):
        assert why in npyfs("checkout", command, store, "work").stderr
    with Mount(store, checkout="work") as mount:
        assert why in json.dumps(mount.status())
        np.save(mount / "colour/codes.npy", np.array([0, 2]))
        assert np.load(mount / "colour.npy").tolist() == [LABELS[0], LABELS[2]]
    assert npyfs("checkout", "commit", store, "work").returncode == 0
