"""npyfs checkout export --single and --locales: a store of Arkouda in another number of files, and new objects of a set in its parts.
Judges: h5py on each file, against files that the test support cuts by Arkouda's block rule; what mounts show before and after."""

import os

import h5py
import numpy as np
import pytest

from support import arkouda, judge
from support.mount import Mount
from support.process import npyfs
from support.truth import read

pytestmark = pytest.mark.fast

WORDS = [b"a", b"", b"bcd", "naïve".encode(), b"x" * 300, b"", b"end"]


def export(*arguments, code=0):
    done = npyfs("checkout", "export", *arguments)
    assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def fill(store):
    """One object of every kind, each of another length."""
    rng = np.random.default_rng(7)
    put = arkouda.put_array
    put(store, "ints", np.arange(1000))
    put(store, "few", np.array([1.5, np.nan]))
    put(store, "none", np.zeros(0, "u8"))
    put(store, "flags", rng.integers(0, 2, 11).astype(bool))
    put(store, "when", np.arange(5).astype("M8[ns]"), arkouda.DATETIME)
    put(store, "addresses", np.arange(4, dtype="u8"), arkouda.IPV4)
    arkouda.put_view(store, "grid", np.arange(12).reshape(3, 4))
    arkouda.put_bigint(store, "big", [1 << 70, 5, 3 << 64, 0, 1], 100)
    arkouda.put_strings(store, "words", WORDS)
    arkouda.put_strings(store, "silent", [])
    arkouda.put_strings(store, "empties", [b""] * 4)
    arkouda.put_segarray(store, "rows", [np.arange(3), [], np.arange(5), [], []], "<i8")
    arkouda.put_segarray(store, "bits", [[True], [False, True]], bool)
    arkouda.put_segarray(store, "texts", [[b"one", b""], [], [b"three"], [], [b"5", b"6"]], "strings")
    arkouda.put_categorical(store, "kinds", [0, 2, 1, 0, 0], [b"red", b"blue", b"N/A"])
    keys = [lambda s, p: put(s, p, np.array(arkouda.GROUPS)), lambda s, p: arkouda.put_strings(s, p, [b"abc"[i:i + 1] for i in arkouda.GROUPS])]
    arkouda.put_groupby(store, "groups", keys)
    arkouda.put_index(store, "index", [lambda s, p: put(s, p, np.arange(7)), lambda s, p: arkouda.put_strings(s, p, WORDS)])
    columns = {"x": lambda s, p: put(s, p, np.arange(7.0)), "name": lambda s, p: arkouda.put_strings(s, p, WORDS)}
    arkouda.put_dataframe(store, "frame", columns, np.arange(7))


def write(folder, weights, more=lambda store: None):
    folder.mkdir()
    with arkouda.Store(folder, "s.h5", weights) as store:
        fill(store)
        more(store)
    return store.paths


def tree(path):
    """{path: (type or "group", attributes, elements)} of a file; an empty dataset has neither type nor attributes."""
    def said(item):
        attributes = {name: value.tolist() for name, value in item.attrs.items() if not name.startswith("npyfs_")}
        if isinstance(item, h5py.Group):
            return "group", attributes, None
        return (str(item.dtype), attributes, item[()].tobytes()) if len(item) else ("empty",)

    found = {}
    with h5py.File(path) as file:
        found["/"] = int(file.attrs["File_Format"])
        file.visititems(lambda path, item: found.update({path: said(item)}))
    return found


def same_shown(one, other):
    assert one.files() == other.files()
    for name in one.files():
        assert read(one / name) == read(other / name), name


@pytest.mark.parametrize("locales", [1, 2, 3, 6])
@pytest.mark.parametrize("weights", [[4, 3, 2], [1, 0, 0, 5], [1]], ids=str)
def test_a_set_becomes_what_arkouda_writes_on_so_many_locales(tmp_path, weights, locales):
    old = write(tmp_path / "old", weights)
    wanted = write(tmp_path / "wanted", [1] * locales)
    (tmp_path / "new").mkdir()
    said = export("--locales", str(locales), old[0], tmp_path / "new/s.h5")
    new = sorted((tmp_path / "new").iterdir())
    assert [path.name for path in new] == [path.name for path in wanted]
    assert said.startswith(f"{tmp_path}/new/s.h5: {locales} file")
    for mine, theirs in zip(new, wanted):
        assert tree(mine) == tree(theirs)
    with Mount(old[0]) as before, Mount(new[0]) as after:
        same_shown(before, after)
    judge.judge(tmp_path / "new/s.h5", lambda path: npyfs("verify", path))


def test_a_single_file_becomes_a_set_and_a_set_one_file(tmp_path):
    [old] = write(tmp_path / "old", None)
    export("--locales", "3", old, tmp_path / "s.h5")
    parts = sorted(tmp_path.glob("s_LOCALE*"))
    sizes = [[h5py.File(path)[name].shape[0] for path in parts] for name in ("ints", "few", "none", "words/segments", "texts/segments")]
    assert sizes == [[334, 333, 333], [1, 1, 0], [0, 0, 0], [3, 2, 2], [2, 2, 1]]
    # Each file's own starts begin at 0.
    assert [h5py.File(path)["words/segments"][()].tolist() for path in parts] == [[0, 2, 3], [0, 7], [0, 1]]
    export("--single", parts[1], tmp_path / "one.h5")
    was, now = tree(old), tree(tmp_path / "one.h5")
    assert {name: said[2] for name, said in was.items() if len(said if isinstance(said, tuple) else ()) == 3} == \
        {name: said[2] for name, said in now.items() if len(said if isinstance(said, tuple) else ()) == 3}
    assert now["/"] == 0 and set(now) == set(was)
    with Mount(old) as before, Mount(parts[0]) as between, Mount(tmp_path / "one.h5") as after:
        same_shown(before, between)
        same_shown(before, after)
    judge.judge(tmp_path / "one.h5", lambda path: npyfs("verify", path))


def test_new_objects_of_a_set_are_divided_among_its_parts(tmp_path):
    old = write(tmp_path / "old", [4, 3, 2])
    with Mount(old[0], checkout="work") as mount:
        np.save(mount / "ints.npy", np.arange(7.0))
        np.save(mount / "new.npy", np.arange(20))
        np.save(mount / "words.npy", np.array(WORDS[::-1]))
        os.mkdir(mount / "runs")
        np.save(mount / "runs/values.npy", np.array([True, True, False]))
        np.save(mount / "runs/segments.npy", np.array([0, 1, 1]))
        os.unlink(mount / "few.npy")
    for flags, count in ([], 3), (["--locales", "2"], 2), (["--single"], 1), (["--locales", "5", "--compress", "gzip"], 5):
        out = tmp_path / f"{count}.h5"
        export(*flags, old[0], "work", out)
        files = [out] if count == 1 else sorted(tmp_path.glob(f"{count}_LOCALE*"))
        assert len(files) == count
        whole = {name: [] for name in ("ints", "new", "words/segments", "words/values", "runs/segments", "runs/values")}
        for i, path in enumerate(files):
            def share(rows):
                return slice(-(-rows * i // count), -(-rows * (i + 1) // count))
            with h5py.File(path) as file:
                assert file["ints"][()].tolist() == np.arange(7.0)[share(7)].tolist() and "few" not in file
                assert file["new"][()].tolist() == list(range(20))[share(20)]
                values, starts = arkouda.flat(WORDS[::-1][share(7)])
                assert file["words/values"][()].tolist() == values.tolist() and file["words/segments"][()].tolist() == starts.tolist()
                assert file["runs"].attrs["ObjType"] == arkouda.SEGARRAY and file["runs/values"].attrs["isBool"] == 1
                assert len(file["runs/segments"]) == len(range(3)[share(3)])
                for name in whole:
                    whole[name].append(file[name][()])
        assert np.concatenate(whole["runs/values"]).tolist() == [1, 1, 0]
        with Mount(old[0], checkout="work") as before, Mount(files[0]) as after:
            same_shown(before, after)
        judge.judge(out, lambda path: npyfs("verify", path))


def test_limbs_that_some_parts_lack_are_zero(tmp_path):
    old = write(tmp_path / "old", [1, 1, 1], lambda store: arkouda.put_segarray(store, "large", [[1 << 130, 2], [], [3], [1 << 70]], "bigint"))
    export("--single", old[0], tmp_path / "one.h5")
    with h5py.File(tmp_path / "one.h5") as file:
        assert [file[f"large/values/Limb_{i}"][()].tolist() for i in range(3)] == [[0, 2, 3, 0], [0, 0, 0, 64], [4, 0, 0, 0]]
        assert file["large/values"].attrs["NumLimbs"] == 3
    export("--locales", "4", old[0], tmp_path / "four.h5")
    with Mount(old[0]) as before, Mount(tmp_path / "one.h5") as one, Mount(tmp_path / "four_LOCALE0000.h5") as four:
        same_shown(before, one)
        same_shown(before, four)


def test_strings_without_segments_stay_so(tmp_path):
    old = write(tmp_path / "old", None, lambda store: arkouda.put_strings(store, "bare", WORDS, offsets=False))
    export("--locales", "2", old[0], tmp_path / "two.h5")
    for path, want in zip(sorted(tmp_path.glob("two_*")), (WORDS[:4], WORDS[4:])):
        with h5py.File(path) as file:
            assert list(file["bare"]) == ["values"] and file["bare/values"][()].tobytes() == b"".join(word + b"\0" for word in want)


def test_what_cannot_be_divided_is_told(tmp_path):
    old = write(tmp_path / "old", None, lambda store: store.files[0].create_dataset("matrix", data=np.ones((2, 3))))
    said = export("--locales", "2", old[0], tmp_path / "two.h5", code=3)
    assert "npyfs: matrix: " in said and "--leave-out" in said and not list(tmp_path.glob("two*")) + list(tmp_path.glob(".npyfs*"))
    export("--leave-out", "--locales", "2", old[0], tmp_path / "two.h5")
    with h5py.File(tmp_path / "two_LOCALE0001.h5") as file:
        assert "matrix" not in file and "ints" in file


def test_segments_that_lead_nowhere_are_told(tmp_path):
    def damaged(store):
        arkouda.put_strings(store, "bad", WORDS)
        store.files[0]["bad/segments"][3] = 1 << 40
    [old] = write(tmp_path / "old", None, damaged)
    assert "npyfs: bad: " in export("--locales", "2", old, tmp_path / "two.h5", code=3)


def test_other_stores_and_directories_are_refused(tmp_path):
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file["x"] = np.arange(3)
    assert "Arkouda" in export("--locales", "2", tmp_path / "plain.h5", tmp_path / "out.h5", code=1)
    assert "directory" in export("--single", tmp_path, tmp_path.parent / "out-of-all", code=1)
    assert "cannot be used with" in export("--single", "--locales", "2", tmp_path / "plain.h5", tmp_path / "out.h5", code=1)
    export("--locales", "0", tmp_path / "plain.h5", tmp_path / "out.h5", code=1)
    # One file that is to be one is copied.
    export("--single", tmp_path / "plain.h5", tmp_path / "out.h5")
    assert h5py.File(tmp_path / "out.h5")["x"][()].tolist() == [0, 1, 2]


def old_strings(file, name, words):
    """Strings as Arkouda's older documentation has them."""
    values, segments = arkouda.flat(words)
    file[f"{name}_values"], file[f"{name}_segments"] = values, segments


def version_one(file):
    file.create_group("_arkouda_metadata").attrs["arkouda_version"] = np.bytes_("v2021.10.07")


def old_set(folder, count):
    folder.mkdir(exist_ok=True)
    paths = [folder / (f"old_LOCALE{i:04}.h5" if count > 1 else "old.h5") for i in range(count)]
    for i, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            version_one(file)
            share = slice(-(-7 * i // count), -(-7 * (i + 1) // count))
            old_strings(file, "words", WORDS[share])
            old_strings(file, "frame/text", WORDS[share])
            group = file.create_group("inner")
            old_strings(group, "inner", WORDS[share])
            # Arrays of their own: no partner, of another type, marked, or with an object of that name.
            file["alone_values"] = np.arange(3, dtype="u1")
            file["wide_values"], file["wide_segments"] = np.arange(3), np.arange(3)
            for name in ("marked_values", "marked_segments"):
                file[name] = np.arange(3, dtype="u1" if "values" in name else "i8")
                arkouda.mark(file[name], arkouda.PDARRAY)
            file["both"] = np.arange(3)
            old_strings(file, "both", [b"x"])
    return paths


OWN = ["alone_values", "both", "both_segments", "both_values", "marked_segments", "marked_values", "wide_segments", "wide_values"]


@pytest.mark.parametrize("count", [1, 3])
def test_strings_side_by_side_are_one_object(tmp_path, count):
    paths = old_set(tmp_path, count)
    with Mount(paths[0]) as mount:
        assert sorted(os.listdir(mount.path)) == sorted(["frame", "inner", "inner.npy", "words", "words.npy", *(f"{name}.npy" for name in OWN)])
        values, segments = arkouda.flat(WORDS)
        for name in ("words", "frame/text", "inner"):
            assert np.load(mount / f"{name}.npy").tolist() == WORDS
            assert np.load(mount / f"{name}/values.npy").tolist() == values.tolist()
            assert np.load(mount / f"{name}/segments.npy").tolist() == segments.tolist()


@pytest.mark.parametrize("count", [1, 3])
def test_strings_side_by_side_are_written_deleted_and_divided_as_one(tmp_path, count):
    paths = old_set(tmp_path / "old", count)
    with Mount(paths[0], checkout="work") as mount:
        np.save(mount / "words.npy", np.array([b"new", b"words"]))
        os.unlink(mount / "inner.npy")
        np.save(mount / "wide_values.npy", np.arange(5))
    for flags, files in ([], count), (["--locales", "2"], 2), (["--single"], 1):
        out = tmp_path / f"out{files}{len(flags)}.h5"
        export(*flags, paths[0], "work", out)
        made = [out] if out.exists() else sorted(tmp_path.glob(f"{out.stem}_LOCALE*"))
        assert len(made) == files
        found = []
        for path in made:
            with h5py.File(path) as file:
                assert not {"words_values", "words_segments", "inner", "inner_values"} & set(file)
                assert list(file["words"]) == ["segments", "values"] and file["words"].attrs["ObjType"] == arkouda.STRINGS
                found += file["words/values"][()].tobytes().split(b"\0")[:-1]
        assert found == [b"new", b"words"]
        with Mount(paths[0], checkout="work") as before, Mount(made[0]) as after:
            same_shown(before, after)
            assert np.load(after / "frame/text.npy").tolist() == WORDS


def test_an_array_in_the_place_of_a_part_of_strings_is_told(tmp_path):
    [path] = old_set(tmp_path, 1)
    with Mount(path, checkout="work") as mount:
        np.save(mount / "words_values.npy", np.arange(5))
    said = export(path, "work", tmp_path / "out.h5", code=3)
    assert "npyfs: words_values: " in said and not (tmp_path / "out.h5").exists()
    export("--leave-out", path, "work", tmp_path / "out.h5")
    with Mount(tmp_path / "out.h5") as mount:
        assert np.load(mount / "words.npy").tolist() == WORDS


def test_a_set_has_as_many_files_as_locales_says(tmp_path):
    old = write(tmp_path / "old", [1, 1, 1])
    old[2].rename(tmp_path / "kept")
    with Mount(old[0]) as mount:
        assert len(np.load(mount / "ints.npy")) == 667
    for options, why in (("locales=3", "not there: s_LOCALE0002.h5 of locales=3"), ("ro,locales=8", "not there: s_LOCALE0002.h5, s_LOCALE0003.h5, s_LOCALE0004.h5, ..."),
                         ("locales=1", "s_LOCALE0001.h5 is one more than locales=1")):
        with Mount(old[0], options=options) as mount:
            with pytest.raises(OSError):
                read(mount / "ints.npy")
            assert why in (mount / ".npyfs/errors.log").read_text()
    with Mount(old[0], options="locales=2") as mount:
        assert len(np.load(mount / "ints.npy")) == 667
    (tmp_path / "kept").rename(old[2])
    with Mount(old[0], options="locales=3") as mount:
        assert len(np.load(mount / "ints.npy")) == 1000
    told = npyfs("cat", "-o", "locales=4", tmp_path / "old", "s.h5/ints.npy")
    assert told.returncode == 3 and "s_LOCALE0003.h5 of locales=4" in told.stderr
    assert "locales" in npyfs("ls", "-o", "locales=0", tmp_path / "old").stderr
