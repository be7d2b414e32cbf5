"""What is wrong in an Arkouda file costs EIO on the object concerned, with a line that says what is wrong where; the rest of the
set stays readable. Each case differs from a good store in one thing. Judge: h5py makes the damage, NumPy knows the rest."""

import errno
import os
import shutil

import h5py
import numpy as np
import pytest

from support import arkouda as ak, mutants
from support.mount import Mount
from support.process import npyfs
from support.truth import assert_all

WORDS = [b"one", b"two", b"", b"four", b"5"]


def good(store):
    """Objects that every case has beside the one that is damaged; cut in two: three rows, then two."""
    return ak.put_array(store, "fine", np.arange(5)) | ak.put_strings(store, "text", WORDS)


def objects(store):
    """The objects that get damaged."""
    ak.put_strings(store, "s", WORDS)
    ak.put_segarray(store, "seg", [[1, 2], [3], [], [4], [5, 6, 7]], "<i8")
    ak.put_categorical(store, "cat", [0, 1, 1, 0, 1], [b"x", b"yz"])
    ak.put_groupby(store, "group", [lambda store, path: ak.put_array(store, path, np.arange(7))])
    ak.put_array(store, "n", np.arange(5.0))
    ak.put_array(store, "b", np.array([True, False, True, True, False]))
    ak.put_bigint(store, "big", [2**70, 1, 2, 3, 2**69])


def last(files, name):
    """The last file in which a dataset has elements."""
    return [file for file in files if len(file[name])][-1]


def write(name, values):
    """Overwrites the first elements of a dataset."""
    def damage(files):
        last(files, name)[name][:len(values)] = values
    return damage


def replace(name, array):
    def damage(files):
        file = last(files, name)
        attributes = dict(file[name].attrs)
        del file[name]
        file[name] = array
        file[name].attrs.update(attributes)
    return damage


def remove(name):
    def damage(files):
        for file in files:
            del file[name]
    return damage


def attribute(name, attribute, value, every=True):
    def damage(files):
        for file in files if every else files[-1:]:
            file[name].attrs[attribute] = value
    return damage


def truncate(name, by):
    def damage(files):
        replace(name, last(files, name)[name][:-by])(files)
    return damage


# name: (damage, visible paths that must say EIO, words of the message)
CASES = {
    "segments_decrease": (write("s/segments", [0, -1]), ["s.npy", "s/segments.npy"], ["segment 1 is -1"]),
    "segments_equal": (write("s/segments", [0, 0]), ["s.npy", "s/segments.npy"], ["both 0"]),
    "segments_past_the_values": (write("s/segments", [0, 999]), ["s.npy", "s/segments.npy"], ["segment 1 is 999"]),
    "segments_huge": (write("s/segments", [2**62, -(2**62)]), ["s.npy", "s/segments.npy"], ["segment 0 is"]),
    "segments_of_floats": (replace("s/segments", np.zeros(2)), ["s.npy"], ["segments are no 1-D integers"]),
    "segments_of_two_dimensions": (replace("s/segments", np.zeros((2, 1), "<i8")), ["s.npy"], ["segments are no 1-D integers"]),
    "values_of_int64": (replace("s/values", np.arange(6)), ["s.npy"], ["values are no 1-D bytes"]),
    "values_without_the_last_zero": (truncate("s/values", 1), ["s.npy"], ["no zero byte"]),
    "a_string_without_its_zero": (write("s/segments", [0, 2]), ["s.npy"], ["no zero byte behind string 0"]),
    "no_values": (remove("s/values"), ["s.npy"], ["no values"]),
    "values_and_no_segments_of_them": (replace("s/segments", np.zeros(0, "<i8")), ["s.npy"], ["no segments"]),
    "seg_decrease": (write("seg/segments", [1, 0]), ["seg/segments.npy"], ["segment 1 is 0"]),
    "seg_past_the_values": (write("seg/segments", [0, 99]), ["seg/segments.npy"], ["segment 1 is 99, there are"]),
    "seg_negative": (write("seg/segments", [-1]), ["seg/segments.npy"], ["segment 0 is -1"]),
    "seg_without_values": (remove("seg/values"), ["seg/values.npy", "seg/segments.npy"], ["values"]),
    "seg_without_segments": (remove("seg/segments"), ["seg/segments.npy"], ["segments"]),
    "code_too_large": (write("cat/codes", [2]), ["cat.npy"], ["outside the 2 categories in row"]),
    "code_negative": (write("cat/codes", [-1]), ["cat.npy"], ["outside the 2 categories in row"]),
    "codes_of_floats": (replace("cat/codes", np.zeros(2)), ["cat.npy"], ["codes"]),
    "no_codes": (remove("cat/codes"), ["cat.npy", "cat/codes.npy"], ["codes"]),
    "no_categories": (remove("cat/categories"), ["cat.npy", "cat/categories.npy"], ["categories"]),
    "no_NA_codes": (remove("cat/NA_Codes"), ["cat/NA_Codes.npy"], ["NA_Codes"]),
    "categories_cut_off": (truncate("cat/categories/values", 1), ["cat.npy", "cat/categories.npy"], ["no zero byte"]),
    "no_permutation": (remove("group/permutation"), ["group/permutation.npy"], ["permutation"]),
    "no_key": (remove("group/KEY_0"), ["group/KEY_0.npy"], ["KEY_0"]),
    "more_keys_than_there_are": (attribute("group", "NumKeys", 2), ["group/KEY_1.npy"], ["KEY_1"]),
    "group_segments_past_the_rows": (write("group/segments", [99]), ["group/segments.npy"], ["99"]),
    "unknown_type": (attribute("n", "ObjType", 77), ["n.npy"], ["ObjType 77"]),
    "type_minus_one": (attribute("n", "ObjType", -1), ["n.npy"], ["ObjType -1"]),
    "type_is_text": (attribute("n", "ObjType", "pdarray"), ["n.npy"], ["ObjType"]),
    "type_of_a_group_on_a_dataset": (attribute("n", "ObjType", 2), ["n.npy"], ["ObjType 2"]),
    "bool_on_floats": (attribute("n", "isBool", 1), ["n.npy"], ["isBool on <f8"]),
    "time_of_floats": (attribute("n", "ObjType", 7), ["n.npy"], ["<f8"]),
    "limbs_of_unequal_length": (truncate("big/Limb_1", 1), ["big.npy"], ["Limb_1"]),
    "limbs_of_floats": (replace("big/Limb_0", np.zeros(2)), ["big.npy"], ["Limb_0"]),
    "a_limb_is_missing": (remove("big/Limb_0"), ["big.npy"], ["Limb_0"]),
}
# The same, only where there are several parts.
PARTS = {
    "parts_of_different_type": (replace("n", np.arange(2)), ["n.npy"], ["parts of different type", "<f8", "<i8"]),
    "parts_of_different_object_type": (attribute("n", "ObjType", 7, every=False), ["n.npy"], ["parts of different type", "pdarray", "Datetime"]),
    "a_part_of_two_dimensions": (replace("n", np.zeros((2, 2))), ["n.npy"], ["not 1-D"]),
    "a_group_in_one_part": (lambda files: (files[-1].__delitem__("n"), files[-1].create_group("n").attrs.create("ObjType", 2)), ["n.npy"], ["parts of different type"]),
    "an_object_missing_in_one_part": (lambda files: files[-1].__delitem__("n"), ["n.npy"], ["missing in", "LOCALE0001"]),
    "an_object_in_one_part_only": (lambda files: files[-1].create_dataset("extra", data=[1]), ["extra.npy"], ["missing in", "LOCALE0000"]),
    "a_member_missing_in_one_part": (lambda files: files[-1].__delitem__("cat/codes"), ["cat.npy", "cat/codes.npy"], ["codes"]),
    "another_version": (attribute("n", "arkouda_version", np.bytes_("v2020")), ["n.npy"], None),
    "a_stale_version": (attribute("n", "arkouda_version", np.bytes_("v2020"), every=False), ["n.npy"], ["arkouda_version", "stale"]),
    "bits_that_differ": (attribute("big", "MaxBits", 70, every=False), ["big.npy"], ["MaxBits"]),
}
ALL = {("two", name): case for name, case in {**CASES, **PARTS}.items()} | {("single", name): case for name, case in CASES.items()}


@pytest.fixture(scope="module")
def mount(tmp_path_factory):
    folder, fine = tmp_path_factory.mktemp("bad"), {}
    for layout, weights in (("two", [3, 2]), ("single", None)):
        (folder / "good").mkdir()
        with ak.Store(folder / "good", "x.h5", weights) as store:
            truth = good(store)
            objects(store)
        for (where, name), (damage, _, _) in ALL.items():
            if where != layout:
                continue
            place = folder / layout / name
            shutil.copytree(folder / "good", place)
            files = [h5py.File(path, "r+") for path in sorted(place.iterdir())]
            damage(files)
            for file in files:
                file.close()
            fine |= {f"{layout}/{name}/x.h5/{path}": array for path, array in truth.items()}
        shutil.rmtree(folder / "good")
    with Mount(folder) as mount:
        yield mount, fine


def failure(path):
    with pytest.raises(OSError) as caught:
        path.read_bytes()
    return caught.value.errno


@pytest.mark.parametrize("layout, name", ALL)
def test_the_object_says_EIO_and_what_is_wrong(mount, layout, name):
    mount, _ = mount
    _, paths, words = ALL[layout, name]
    if words is None:  # one release wrote all parts: nothing is wrong
        assert (mount / layout / name / "x.h5" / paths[0]).read_bytes()
        return
    said = ""
    for path in paths:
        path = f"{layout}/{name}/x.h5/{path}"
        assert failure(mount / path) == errno.EIO, path
        lines = [line for line in mount.errors() if path in line or f"{layout}/{name}/" in line]
        assert lines, (path, mount.errors())
        said += " ".join(lines) + str(mount.info(path))
    missing = [word for word in words if word not in said]
    assert not missing, (missing, said)


def test_the_rest_stays_readable(mount):
    mount, fine = mount
    assert_all(mount.path, fine, at_least=4 * len(ALL))


def test_nothing_else_fails(mount):
    """Every other file of a damaged store can still be read."""
    mount, _ = mount
    for (layout, name), (_, paths, words) in ALL.items():
        expected = set(paths) if words else set()
        root = mount / layout / name / "x.h5"
        failed = set()
        for folder, _, files in os.walk(root):
            for file in files:
                path = os.path.relpath(os.path.join(folder, file), root)
                try:
                    np.load(root / path)
                except OSError:
                    failed.add(path)
        # Raw members of an object that cannot be joined may fail with it.
        extra = {path for path in failed - expected if not any(path.startswith(each.removesuffix(".npy") + "/") for each in expected)}
        assert not extra, (layout, name, extra)


def broken_set(folder, change):
    with ak.Store(folder, "x.h5", [1, 1, 1]) as store:
        good(store)
    change([path for path in store.paths])
    return folder


SETS = {
    "a_gap": (lambda paths: paths[1].unlink(), "x_LOCALE0001.h5"),
    "no_first_part": (lambda paths: paths[0].unlink(), "x_LOCALE0000.h5"),
    "two_of_one_number": (lambda paths: shutil.copy(paths[1], paths[1].with_name("x_LOCALE1.h5")), "locale 1 has 2 files"),
    "an_empty_file": (lambda paths: paths[2].write_bytes(b""), "x_LOCALE0002.h5"),
    "a_truncated_file": (lambda paths: paths[2].write_bytes(paths[2].read_bytes()[:1000]), "x_LOCALE0002.h5"),
    "a_foreign_file": (lambda paths: paths[1].write_bytes(b"no HDF5 at all" * 100), "x_LOCALE0001.h5"),
}


@pytest.mark.parametrize("name", SETS)
def test_a_set_with_a_part_missing(tmp_path, name):
    """Never half the data: every object says EIO, info and errors.log say which part."""
    change, word = SETS[name]
    with Mount(broken_set(tmp_path, change)) as mount:
        assert sorted(os.listdir(mount.path)) == ["x.h5"]
        assert sorted(os.listdir(mount / "x.h5")) == ["fine.npy", "text.npy"]
        for path in ("x.h5/fine.npy", "x.h5/text.npy"):
            assert failure(mount / path) == errno.EIO
            assert word in mount.info(path)["error"]
        assert word in str(mount.info("x.h5")["notes"]) and any(word in line for line in mount.errors())
        done = npyfs("cat", mount.store, "x.h5/fine.npy")
        assert done.returncode == 3 and word in done.stderr


def test_a_stale_part_of_an_earlier_run(tmp_path):
    """Four locales, then three of another release: the fourth file stays, and must not be joined."""
    with ak.Store(tmp_path, "x.h5", [1] * 4, version="v2024.01.01") as store:
        ak.put_array(store, "a", np.arange(8)), ak.put_array(store, "gone", np.arange(8))
    with ak.Store(tmp_path, "x.h5", [1] * 3) as store:
        ak.put_array(store, "a", np.arange(6))
    with Mount(tmp_path) as mount:
        for path in ("x.h5/a.npy", "x.h5/gone.npy"):
            assert failure(mount / path) == errno.EIO
            assert "x_LOCALE000" in mount.info(path)["error"]
        assert "stale" in mount.info("x.h5/a.npy")["error"] and any("stale" in line for line in mount.errors())


def test_a_shape_that_does_not_fit_is_shown_flat(tmp_path):
    with ak.Store(tmp_path, "x.h5", [1, 1]) as store:
        ak.put_view(store, "a", np.arange(6).reshape(2, 3))
        for file in store.files:
            file["a"].attrs["Shape"] = [2, 4]
    with Mount(tmp_path) as mount:
        assert_all(mount.path, {"x.h5/a.npy": np.arange(6)}, at_least=1)
        assert "[2, 4]" in mount.info("x.h5/a.npy")["note"]


def test_cycles_end(tmp_path):
    with ak.Store(tmp_path, "x.h5") as store:
        ak.put_array(store, "g/a", np.arange(3))
        file = store.files[0]
        file["g/self"], file["g/root"], file["soft"] = file["g"], file["/"], h5py.SoftLink("/g/a")
        file["s/values"] = file["g"]
    with Mount(tmp_path) as mount:
        assert mount.files() == ["x.h5/g/a.npy"]
        assert {entry["name"] for entry in mount.info("x.h5/g")["left_out"]} == {"self", "root"}
        assert "soft" in {entry["name"] for entry in mount.info("x.h5")["left_out"]}


def read_everything(root):
    """Reads all files below a folder; answers how many could be read, and how many not."""
    done = failed = 0
    for folder, _, files in os.walk(root):
        for file in files:
            try:
                with open(os.path.join(folder, file), "rb", buffering=0) as stream:
                    left = 16 << 20  # what claims to be large is not read to its end
                    while left > 0 and (data := stream.read(1 << 20)):
                        left -= len(data)
                done += 1
            except OSError:
                failed += 1
    return done, failed


@pytest.mark.parametrize("kind", ["auto", "arkouda"])
def test_damaged_copies(tmp_path, kind):
    """Single files, and sets of which one part is damaged: the daemon lives, and a healthy set beside them is right."""
    random = np.random.default_rng(20261121)
    (tmp_path / "good").mkdir()
    for name, weights in {"one.h5": None, "two.h5": [3, 2]}.items():
        with ak.Store(tmp_path / "good", name, weights) as store:
            truth = good(store)
            objects(store)
    seeds = {path.name: path.read_bytes() for path in (tmp_path / "good").iterdir()}
    for i in range(150):
        folder = tmp_path / f"bad{i:03}"
        folder.mkdir()
        damaged = sorted(seeds)[i % len(seeds)]
        for name, data in seeds.items():
            if name.split("_")[0] == damaged.split("_")[0]:
                (folder / name).write_bytes(mutants.mutant(data, random) if name == damaged else data)
    with Mount(tmp_path, f"kind={kind},cache_size=32M", limit=400) as mount:
        done, failed = read_everything(mount.path)
        assert done > 500 and failed > 100, (done, failed)
        assert_all(mount / "good/two.h5", truth, at_least=4)
        assert mount.peak_memory() < 256 << 20
