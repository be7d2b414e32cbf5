"""The view of a daf store as the files of daf's own reader: `.npyfs/daf` and `-o view=daf`. Judges: what real daf's reader was tried with
(the fixtures), and a reader of these files written after daf's source (support/daf_files.py), against what h5py put into the store."""

import csv
import errno
import io
import json
import os
import shutil

import h5py
import numpy as np
import pytest
import scipy.sparse
import yaml

from support import daf
from support.checkouts import checkout
from support.daf_files import FilesReader, same
from support.mount import Mount, until
from support.process import npyfs
from support.truth import sha256

pytestmark = pytest.mark.fast

VIEW = ".npyfs/daf"

MUTANTS = int(os.environ.get("NPYFS_VIEW_MUTANTS", 40))


def left_out(mount, group=""):
    """{name: reason} of what the view of a store leaves out."""
    listed = json.loads((mount / ".npyfs/info.daf.json" if not group else mount / f".npyfs/info.daf/{group}.json").read_bytes())["left_out"]
    return {entry["name"]: entry["reason"] for entry in listed}


def every_file(folder):
    """{name: bytes}; each as long as stat said before it was read."""
    sizes = {name: os.stat(folder / name).st_size for name in sorted(os.listdir(folder)) if not (folder / name).is_dir()}
    files = {name: (folder / name).read_bytes() for name in sizes}
    assert {name: len(data) for name, data in files.items()} == sizes
    return files


def judge(folder, items, axes, data):
    """Everything that a store holds, and nothing else, comes out of its view."""
    reader = FilesReader(folder)
    assert sorted(reader.items) == sorted(items)
    assert reader.axes == axes
    assert sorted(reader.data) == sorted(data)
    wrong = [name for name, truth in items.items() if repr(reader.item(name)) != repr(truth)]
    wrong += [name for name, truth in data.items() if not same(reader.get(name), truth)]
    assert not wrong, wrong


# Fixtures: what real daf reads.

@pytest.mark.parametrize("name", ["clean.h5df", "clean_gzip.h5df", "latest.h5df", "multi.h5fs"])
def test_the_files_that_real_daf_was_tried_with(name, shared, tmp_path):
    store = tmp_path / name
    shutil.copyfile(shared / "daf" / name, store)
    listed = "clean.files.json" if name == "clean_gzip.h5df" else name.rpartition(".")[0] + ".files.json"
    wrong, seen = [], 0
    with Mount(store) as mount:
        for group, files in json.loads((shared / "daf" / listed).read_text()).items():
            folder = mount / VIEW / group.strip("/")
            found = every_file(folder)
            assert sorted(found) == sorted(files), group
            for file, truth in files.items():
                seen += 1
                data = found[file]
                if "yaml" in truth:
                    value = yaml.safe_load(data)
                    good = value == truth["yaml"] or repr(value) == truth["yaml"]
                elif "csv" in truth:
                    good = list(csv.reader(io.StringIO(data.decode(), newline=""))) == truth["csv"]
                else:
                    good = (len(data), sha256(data)) == (truth["size"], truth["sha256"])
                if not good:
                    wrong.append((group, file, data[:200], truth))
            FilesReader(folder)
            assert all("not sorted" in why for why in left_out(mount, group.strip("/")).values())
    assert seen > 100 and not wrong, wrong


# Stores of our own.

def text(values):
    return [None if value == b"\x01" else value.decode() for value in np.asarray(values, "S").tolist()]


def truth_of(shown, matrices):
    """What `daf.write` put into a store, as the files must give it."""
    items = {name.removesuffix(".npy"): value.tolist() for name, value in shown.items() if "#" not in name}
    axes, data = {}, {}
    for name, value in shown.items():
        stem = name.removesuffix(".npy")
        if "#" not in name or "/" in name:
            continue
        if stem.endswith("#"):
            axes[stem[:-1]] = text(value)
        else:
            data[stem] = text(value) if value.dtype.kind == "S" else value
    data.update({name.removesuffix(".npz"): matrix.toarray() for name, matrix in matrices.items()})
    return items, axes, data


def test_every_type_in_every_form(tmp_path):
    with h5py.File(tmp_path / "own.h5df", "w") as file:
        truth = truth_of(*daf.write(file))
    with Mount(tmp_path / "own.h5df") as mount:
        judge(mount / VIEW, *truth)
        assert left_out(mount) == {}
        every_file(mount / VIEW)
    with Mount(tmp_path / "own.h5df", "view=daf,sep=@") as mount:  # names are literal
        judge(mount.path, *truth)
        every_file(mount.path)


def test_stores_below_each_other_and_in_a_directory(tmp_path):
    folder = tmp_path / "stores"
    folder.mkdir()
    truths = {}
    with h5py.File(folder / "own.h5fs", "w", libver="latest") as file:
        for i, name in enumerate(["a", "b/c", "b/c/inner"]):
            truths[f"own.h5fs/{name}"] = truth_of(*daf.write(file.create_group(name), rows=4 + i, seed=i))
        file["b/plain"] = np.arange(3)
        file["hard"] = file["a"]
    with h5py.File(folder / "own.h5df", "w") as file:
        truths["own.h5df"] = truth_of(*daf.write(file))
    with h5py.File(folder / "other.h5", "w") as file:
        file["x"] = np.arange(3)
    with Mount(folder) as mount:
        for path, truth in truths.items():
            judge(mount / VIEW / path, *truth)
        assert sorted(os.listdir(mount / VIEW)) == ["other.h5", "own.h5df", "own.h5fs"]
        assert sorted(os.listdir(mount / VIEW / "own.h5fs")) == ["a", "b", "hard"]
        assert os.listdir(mount / VIEW / "own.h5fs/b") == ["c"]
        assert "inner" in os.listdir(mount / VIEW / "own.h5fs/b/c")
        assert os.listdir(mount / VIEW / "other.h5") == []
        judge(mount / VIEW / "own.h5fs/hard", *truths["own.h5fs/a"])
    with Mount(f"{folder}/own.h5fs:/b/c", "view=daf") as mount:
        judge(mount.path, *truths["own.h5fs/b/c"])
        judge(mount / "inner", *truths["own.h5fs/b/c/inner"])


ODD = ["plain", "", "with, comma", 'qu"ote', "line\nbreak", "re\rturn", " spaces ", "NA", "nan", "001", "1.0", "tab\there", "#c", "'"]


def store_strings(group, name, values):
    """Fixed-width ASCII, None as daf stores it."""
    group[name] = np.array([b"\x01" if value is None else value.encode() for value in values], f"S{max([len(v or '') for v in values] + [1])}")


def test_text_comes_back_letter_by_letter(tmp_path):
    utf8 = ["größe", "\U0001f600", "\u2028", "a", "\ufeff"] + ODD[5:]
    with h5py.File(tmp_path / "text.h5df", "w") as file:
        daf.start(file)
        values = [None if i % 3 == 2 else text for i, text in enumerate(reversed(ODD))]
        store_strings(file, "odd#", ODD)
        store_strings(file, "odd#odd", values)
        store_strings(file, "odd#none", [None] * len(ODD))
        store_strings(file, 'odd#q"u,o#t e.d ü', ODD)
        file.create_dataset("unicode#", data=utf8, dtype=h5py.string_dtype())
        file.create_dataset("unicode#same", data=utf8, dtype=h5py.string_dtype())
        store_strings(file, "a,b#", ["x"])  # fine by itself
        store_strings(file, 'q"#', ["x", "y"])
        store_strings(file, 'q"#v', ["1", None])
        file['q"#n'] = np.array([1, 2])
        store_strings(file, "empty#", [""])
        store_strings(file, "empty#e", [""])
    data = {"odd#odd": values, "odd#none": [None] * len(ODD), 'odd#q"u,o#t e.d ü': ODD, "unicode#same": utf8,
            'q"#v': ["1", None], 'q"#n': np.array([1, 2]), "empty#e": [""]}
    with Mount(tmp_path / "text.h5df") as mount:
        judge(mount / VIEW, {}, {"odd": ODD, "unicode": utf8, "a,b": ["x"], 'q"': ["x", "y"], "empty": [""]}, data)
        assert left_out(mount) == {}
        assert (mount / VIEW / "empty#.csv").read_bytes() == b'empty\n""\n'


def test_long_text_has_the_size_that_is_said_first(tmp_path):
    entries = [f'entry "{i}"' for i in range(50_000)]
    values = [None if i % 7 == 0 else "v" * (i % 50) for i in range(50_000)]
    with h5py.File(tmp_path / "long.h5df", "w") as file:
        daf.start(file)
        for name, texts in {"row#": entries, "row#v": values}.items():
            array = np.array([b"\x01" if text is None else text.encode() for text in texts])
            file.create_dataset(name, data=array, chunks=(1000,), compression="gzip")
    with Mount(tmp_path / "long.h5df") as mount:
        judge(mount / VIEW, {}, {"row": entries}, {"row#v": values})
        files = every_file(mount / VIEW)
        with open(mount / VIEW / "row#v.csv", "rb") as file:
            for start in [0, 1, 99_999, 300_000, len(files["row#v.csv"]) - 10]:
                file.seek(start)
                assert file.read(70_000) == files["row#v.csv"][start:start + 70_000]


ITEMS = {
    "yes": "yes", "time": "12:30:00", "day": "2022-01-01", "tilde": "~", "hash": "#c", "ten": "1_0", "nothing": "", "quote": 'a"b\\c', "emoji": "Größe 😀",
    "controls": "\x01\t\n\r\x1f\x7f\x85\x9f\u2028\u2029\ufeff\ufffe\uffff", "spaces": "  a  ", "colon": "a: b", "null": "null",
    "int": np.int8(-5), "large": np.uint64(2**64 - 1), "true": True, "false": False, "float": 0.1, "exponent": 1e22, "small": 1e-7, "tiny": 5e-324,
    "nan": float("nan"), "inf": float("inf"), "minus": float("-inf"), "zero": -0.0, "half": np.float16(0.1), "single": np.float32(0.1),
    "ints": np.arange(3, dtype=">i2"), "table": np.arange(6.0).reshape(2, 3), "flags": np.array([True, False]), "none": np.zeros(0), "texts": ["a", "bü", ""],
    "a.b": 1, "a,b": 2, "with space": 3, "ümlaut": 4, "x.npy": 5, "x.yaml": 6, ".": 7, "..": 8, ".hidden": 9, "%41": 10,
}


def plain(value):
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def test_items_keep_type_and_value(tmp_path):
    with h5py.File(tmp_path / "items.h5df", "w") as file:
        attributes = daf.start(file)
        for name, value in ITEMS.items():
            attributes[name] = value
        attributes["bytes"] = np.bytes_(b"fixed")
    with Mount(tmp_path / "items.h5df") as mount:
        judge(mount / VIEW, {**{name: plain(value) for name, value in ITEMS.items()}, "bytes": "fixed"}, {}, {})
        assert left_out(mount) == {}


def test_what_would_stop_daf_or_come_back_wrong_is_left_out(tmp_path):
    long = "n" * 252
    with h5py.File(tmp_path / "odd.h5df", "w") as file:
        attributes = daf.start(file)
        attributes["title"] = "x"
        attributes["a#b"] = attributes["a/b"] = attributes["complex"] = 1 + 2j
        attributes["raw"] = np.bytes_(b"\xff\xfe")
        attributes[long] = 1
        attributes["reference"] = file.ref
        attributes["record"] = np.array((1, 2), "i4,i4")
        file["plain"] = np.arange(3)
        store_strings(file, "cell#", ["c", "b", "a"])
        store_strings(file, "gene#", ["x", "y"])
        store_strings(file, "twice#", ["x", "y", "x"])
        store_strings(file, "nul#", ["x", "a\0b"])
        store_strings(file, "void#", [])
        file["number#"] = np.arange(2)
        file["table#"] = np.array([[b"a"]])
        file["latin#"] = np.array([b"\xe9"])
        file["cell#age"] = np.arange(3)
        file["number#age"] = file["table#age"] = np.arange(2)
        file["nothing#age"] = file["cell,nothing#age"] = file["#age"] = np.arange(2)
        file["cell#short"] = np.arange(2)
        file["cell#square"] = np.ones((3, 3))
        file["cell#complex"] = np.ones(3, "c8")
        file["cell#long double"] = np.ones(3, "g")
        file["cell#record"] = np.zeros(3, "i4,i4")
        store_strings(file, "cell#nul", ["x", "a\0b", ""])
        file["cell#latin"] = np.array([b"a", b"\xe9", b""])
        file["twice#age"] = np.arange(3)
        store_strings(file, "twice#text", ["x", "y", "z"])
        file["nul#age"] = np.arange(2)
        file["void#age"] = np.zeros(0)
        file.create_dataset("void#text", data=np.zeros(0, "S3"))
        file["cell,gene,twice#cube"] = np.ones((3, 2, 3))
        file["cell,gene#one"] = np.ones(2)
        file["cell,void#m"] = np.zeros((3, 0))
        file["cell#" + "v" * 245] = np.arange(3)
        store_strings(file, "cell#" + "t" * 245, ["1", "2", "3"])
        file["cell,gene#label"] = np.array([[b"1", b"2"]] * 3)
        group = file.create_group("cell#group")
        group["x"] = np.arange(3)
        file.create_group("taken.yaml")["x"] = np.arange(3)
        file.create_group("mirrored")["x"] = np.arange(3)
        attributes["mirrored"] = 4
    reasons = {
        "a#b": "no axis a", "a/b": "/", "complex": "c16", "raw": "UTF-8", "reference": "", "record": "", "plain": "no item", "nul#": "NUL", "number#": "vector of text",
        "table#": "vector of text", "latin#": "UTF-8", "number#age": "its axis number is left out", "table#age": "its axis table is left out",
        "nothing#age": "no axis nothing", "cell,nothing#age": "no axis nothing", "#age": "no axis", "cell#short": "[2]", "cell#square": "[3, 3]",
        "cell#complex": "c8", "cell#long double": "f16", "cell#record": "V8", "cell#nul": "NUL", "cell#latin": "UTF-8", "twice#text": '"x" (number 0) is there twice', "nul#age": "its axis",
        "void#age": "without elements", "void#text": "without elements", "cell,gene,twice#cube": "more than two", "cell,gene#one": "[2]",
        "cell,void#m": "without elements", "cell#" + "v" * 245: "longer than 255", "cell,gene#label": "permute", "taken.yaml": "for a file",
    }
    with Mount(tmp_path / "odd.h5df") as mount:
        judge(mount / VIEW, {"title": "x", "mirrored": 4}, {"cell": ["c", "b", "a"], "gene": ["x", "y"], "twice": ["x", "y", "x"], "void": []},
              {"cell#age": np.arange(3), "twice#age": np.arange(3), "cell#" + "t" * 245: ["1", "2", "3"]})
        found = left_out(mount)
        too_long = [name for name in found if name.startswith("nnn")]
        assert len(too_long) == 1 and "too long" in found.pop(too_long[0])
        assert {name: why for name, why in found.items() if reasons.get(name) is None or reasons[name] not in why} == {}
        assert set(found) == set(reasons)
        assert (mount / VIEW / "mirrored").is_dir() and "mirrored" in os.listdir(mount / VIEW) and "taken.yaml" not in os.listdir(mount / VIEW)
        assert json.loads((mount / ".npyfs/info.daf/cell,gene#label.json").read_bytes())["left_out"] == found["cell,gene#label"]
        for name in ["cell#short.yaml", "cell#short.array", "cell#age.csv", "cell#age.data", "plain.yaml", "cell,gene#label.csv", "taken.yaml"]:
            assert not (mount / VIEW / name).exists(), name


def test_text_along_two_axes(tmp_path):
    sorted_rows, sorted_columns = ["A", "B", "Z", "a", "é"], ["x", "y"]
    full = [[f"{r}{c}" if (r + c) % 2 else None for c in range(2)] for r in range(5)]
    with h5py.File(tmp_path / "labels.h5df", "w") as file:
        daf.start(file)
        file.create_dataset("r#", data=sorted_rows, dtype=h5py.string_dtype())
        store_strings(file, "c#", sorted_columns)
        store_strings(file, "u#", ["y", "x"])

        def put(name, values):
            file[name] = np.array([[b"\x01" if value is None else value.encode() for value in row] for row in values], "S4")
        put("r,c#full", full)
        put("r,c#r", full)  # the property is called as an axis
        put("c,c#both", [["a", "b"], ["", "d"]])
        put("c,c#c.row", [["a", "b"], ["", "d"]])
        put("r,c#row", [[None, None], *full[1:]])
        put("r,c#column", [["a", None]] * 5)
        put("r,c#none", [[None] * 2] * 5)
        put("r,u#unsorted", full)
        put("u,c#unsorted", [["1", "2"], ["3", "4"]])
    with Mount(tmp_path / "labels.h5df") as mount:
        both = [["a", "b"], ["", "d"]]
        judge(mount / VIEW, {}, {"r": sorted_rows, "c": sorted_columns, "u": ["y", "x"]},
              {"r,c#full": full, "r,c#r": full, "c,c#both": both, "c,c#c.row": both})
        found = left_out(mount)
        assert set(found) == {"r,c#row", "r,c#column", "r,c#none", "r,u#unsorted", "u,c#unsorted"}
        assert "row 0" in found["r,c#row"] and "column 1" in found["r,c#column"] and "permute" in found["u,c#unsorted"]


def test_sparse_matrices_of_all_kinds(tmp_path):
    def csr(dense, data="f4", indices="i4", indptr="i4"):
        matrix = scipy.sparse.csr_matrix(np.asarray(dense))
        return {"data": matrix.data.astype(data), "indices": matrix.indices.astype(indices), "indptr": matrix.indptr.astype(indptr)}

    wide = np.zeros((2, 200))
    wide[0, 3] = 1
    dense = np.array([[0, 1, 0], [2, 0, 3]])
    last_empty = np.array([[0, 1, 0], [2, 0, 0]])
    first_empty = np.array([[0, 0, 0], [2, 0, 0]])
    good = {
        "r,c#plain": (csr(dense), dense, "f4"), "r,c#wide": (csr(dense, "u8", "i8", "i8"), dense, "u8"), "r,c#big": (csr(dense, ">f8", ">i4", ">i8"), dense, "f8"),
        "r,c#half": (csr(dense, "f2"), dense, "f2"), "r,c#bool": (csr(dense > 0, "bool"), dense > 0, "bool"), "r,c#bytes": (csr(dense, "i1", "u1", "u2"), dense, "i1"),
        "r,c#last": (csr(last_empty), last_empty, "f4"), "r,c#last big": (csr(last_empty, ">i2", ">i2", ">i2"), last_empty, "i2"),
        "r,c#first": (csr(first_empty, "bool"), first_empty > 0, "bool"), "r,c#nothing": (csr(dense * 0, "i8"), dense * 0, "i8"),
        "r,w#wide": (csr(wide, indices="u1"), wide, "f4"),
    }
    bad = {
        "r,c#unsorted": ({"data": [1, 2], "indices": [2, 0], "indptr": [0, 2, 2]}, "sorted"),
        "r,c#twice": ({"data": [1, 2], "indices": [2, 2], "indptr": [0, 2, 2]}, "twice"),
        "r,c#outside": ({"data": [1], "indices": [3], "indptr": [0, 1, 1]}, "3 columns"),
        "r,c#negative": ({"data": [1], "indices": [-1], "indptr": [0, 1, 1]}, "-1"),
        "r,c#complex": ({"data": [1j], "indices": [1], "indptr": [0, 1, 1]}, "c16"),
        "r,c#floats": ({"data": [1], "indices": [1.0], "indptr": [0, 1, 1]}, "integers"),
        "r,c#falls": ({"data": [1, 2], "indices": [0, 1], "indptr": [0, 3, 2]}, "row pointer"),
        "r,c#ends": ({"data": [1, 2], "indices": [0, 1], "indptr": [0, 1, 1]}, "row pointers end"),
        "r,c#rows": ({"data": [1, 2], "indices": [0, 1], "indptr": [0, 1, 2, 2]}, "row pointers"),
        "r,c#lengths": ({"data": [1, 2], "indices": [0], "indptr": [0, 1, 1]}, ""),
        "r,w#narrow": (csr(wide, indices="i1"), "no room"),
        "r,c#lacks": ({"data": [1], "indices": [0]}, "indptr"),
        "r,z#zero": ({"data": np.zeros(0), "indices": np.zeros(0, "i4"), "indptr": [0, 0, 0]}, "without elements"),
    }
    shapes = {"c": 3, "w": 200, "z": 0}
    with h5py.File(tmp_path / "sparse.h5df", "w") as file:
        daf.start(file)
        axes = {"r": ["r1", "r2"], "c": ["a", "b", "c"], "w": [f"w{i}" for i in range(200)], "z": []}
        for axis, entries in axes.items():
            store_strings(file, f"{axis}#", entries)
        for name, (parts, *_) in {**good, **bad}.items():
            group = file.create_group(name)
            group.attrs["shape"] = np.array([2, shapes[name[2]]])
            for part, values in parts.items():
                values = np.asarray(values)
                group.create_dataset(part, data=values, **({"chunks": True, "compression": "gzip"} if len(values) and name < "r,c#n" else {}))
        other = file.create_group("r,c#shape")
        other.attrs["shape"] = np.array([3, 3])
        for part, values in csr(dense).items():
            other[part] = values
    with Mount(tmp_path / "sparse.h5df") as mount:
        judge(mount / VIEW, {}, axes, {name: np.asarray(dense).astype(dtype) for name, (_, dense, dtype) in good.items()})
        found = left_out(mount)
        assert set(found) == {*bad, "r,c#shape"}
        assert {name: found[name] for name, (_, why) in bad.items() if why not in found[name]} == {}
        assert "shape" in found["r,c#shape"]
        # Only what needs it has one element more.
        about = yaml.safe_load((mount / VIEW / "r,c#plain.yaml").read_bytes())
        assert about == {"data_dtype": "float32", "indices_dtype": "int32", "indptr_dtype": "int32", "nnz": 3, "shape": [2, 3], "version": [1, 0]}
        assert yaml.safe_load((mount / VIEW / "r,c#last.yaml").read_bytes())["nnz"] == 3
        assert (mount / VIEW / "r,c#plain.data").read_bytes() == good["r,c#plain"][0]["data"].tobytes()


def test_order_layout_and_links(tmp_path):
    random = np.random.default_rng(1)
    big, large = random.integers(0, 2**40, 7).astype(">u8"), random.normal(size=(300, 200))
    with h5py.File(tmp_path / "forms.h5df", "w", userblock_size=512) as file:
        daf.start(file)
        store_strings(file, "a#", [f"{i}" for i in range(7)])
        store_strings(file, "r#", [f"{i}" for i in range(300)])
        store_strings(file, "c#", [f"{i}" for i in range(200)])
        file["a#big"] = big
        file["a#float"] = random.normal(size=7).astype(">f4")
        file.create_dataset("a#filled", shape=7, dtype="i4", fillvalue=9)
        file.create_dataset("r,c#gzip", data=large, chunks=(64, 64), compression="gzip", shuffle=True)
        file.create_dataset("r,c#big", data=large.astype(">f2"), chunks=(64, 64), compression="lzf")
        file["a#soft"] = h5py.SoftLink("/a#big")
        file["soft#"] = h5py.SoftLink("a#")
        file["soft#v"] = np.arange(7)
        file["a#dangling"] = h5py.SoftLink("/nowhere")
        file["a#loop"] = h5py.SoftLink("/a#loop")
        file["top"] = h5py.SoftLink("/")
        file["a#hard"] = file["a#big"]
        data = {name: file[name][()].astype(file[name].dtype.newbyteorder("<")) for name in ["a#big", "a#float", "a#filled", "r,c#gzip", "r,c#big", "soft#v"]}
    data |= {"a#soft": data["a#big"], "a#hard": data["a#big"]}
    with Mount(tmp_path / "forms.h5df") as mount:
        entries = {"a": 7, "r": 300, "c": 200, "soft": 7}
        judge(mount / VIEW, {}, {axis: [f"{i}" for i in range(n)] for axis, n in entries.items()}, data)
        matrix = np.memmap(mount / VIEW / "r,c#gzip.array", "f8", "r", shape=(300, 200))
        assert np.array_equal(matrix, large)
        del matrix


def test_a_damaged_axis_takes_its_data_along(tmp_path):
    path = tmp_path / "damaged.h5df"
    with h5py.File(path, "w") as file:
        daf.start(file)
        for axis in ["good", "bad"]:
            file.create_dataset(f"{axis}#", data=np.array([b"x" * 100, b"y" * 100] * 50 + [axis.encode()]), chunks=(101,), compression="gzip")
            file[f"{axis}#v"] = np.arange(101)
        file["good#t"] = np.array([b"t"] * 101)
        offset = file["bad#"].id.get_chunk_info(0).byte_offset
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 20)
    with Mount(path) as mount:
        reader = FilesReader(mount / VIEW)
        assert set(reader.axes) == {"good"} and set(reader.data) == {"good#v"}
        assert set(left_out(mount)) == {"bad#", "bad#v", "good#t"}  # its entries are there twice


def test_daf_opens_damaged_stores(tmp_path):
    """Whatever is wrong in a store, daf opens what the view has, and each datum is there or cannot be read: nothing has another shape,
    or lacks a part."""
    folder = tmp_path / "damaged"
    folder.mkdir()
    seeds = []
    for version in ["earliest", "latest"]:
        with h5py.File(tmp_path / version, "w", libver=version) as file:
            daf.write(file, rows=6, columns=3)
            axis = file["cell#"][()]
            del file["cell#"]
            file.create_dataset("cell#", data=axis, chunks=(2,), compression="gzip")
        seeds.append((tmp_path / version).read_bytes())
    random = np.random.default_rng(MUTANTS)
    for number in range(MUTANTS):
        data = bytearray(seeds[number % 2])
        for place in random.integers(0, len(data), 1 + number % 12):
            data[place] = random.integers(256)
        (folder / f"{number}.h5df").write_bytes(data)
    opened, read, unreadable = 0, 0, 0
    with Mount(folder, limit=600) as mount:
        for store in sorted(os.listdir(mount / VIEW)):
            try:
                if "__daf__.yaml" not in os.listdir(mount / VIEW / store):
                    continue
            except OSError:
                continue
            reader = FilesReader(mount / VIEW / store)
            opened += 1
            for get, names in [(reader.item, reader.items), (reader.get, reader.data)]:
                for name in names:
                    try:
                        get(name)
                        read += 1
                    except OSError as error:
                        assert error.errno in (errno.EIO, errno.EACCES), (store, name, error)
                        unreadable += 1
    assert opened > MUTANTS / 4 and read > 50 * opened / 2, (opened, read, unreadable)


def test_text_beyond_the_limit_is_left_out(tmp_path):
    with h5py.File(tmp_path / "wide.h5df", "w") as file:
        daf.start(file)
        entries = [f"c{i}" for i in range(100)]
        store_strings(file, "cell#", entries)
        store_strings(file, "cell#wide", ["w" * 200] * 100)
        file.create_dataset("cell#long", data=["l" * 200] * 100, dtype=h5py.string_dtype())  # values and offsets, in a mount
        file.create_dataset("long#", data=["l" * 200] * 100, dtype=h5py.string_dtype())
        file["long#v"] = np.arange(100)
    with Mount(tmp_path / "wide.h5df", "text_limit=10000") as mount:
        judge(mount / VIEW, {}, {"cell": entries}, {})
        found = left_out(mount)
        assert set(found) == {"cell#wide", "cell#long", "long#", "long#v"} and all("text_limit" in why for why in found.values())
        assert not (mount / VIEW / "cell#long").exists()


# Changes.

@pytest.fixture
def live(tmp_path):
    store = tmp_path / "cells.h5df"
    with h5py.File(store, "w") as file:
        daf.start(file)["title"] = "x"
        store_strings(file, "cell#", ["a", "b", "c"])
        store_strings(file, "gene#", ["x", "y"])
        file["cell#age"] = np.array([4, 5, 6])
        store_strings(file, "cell#type", ["T", None, "B"])
    return store


def names(folder, stem):
    return sorted(name for name in os.listdir(folder) if name.startswith(stem) and name[len(stem):] in (".csv", ".yaml", ".array", ".data", ".indices", ".indptr"))


def test_a_checkout_shows_at_once_what_is_written(live):
    with Mount(live, checkout="c") as mount:
        view = mount / VIEW

        def value(name):
            return FilesReader(view).get(name)

        assert not (view / "cell#new.array").exists()
        np.save(mount / "cell#new.npy", np.array([1.5, 2.5, 3.5], "f4"))
        assert same(value("cell#new"), np.array([1.5, 2.5, 3.5], "f4"))
        np.save(mount / "cell#new.npy", np.array([7, 8, 9], "i2"))
        assert same(value("cell#new"), np.array([7, 8, 9], "i2"))
        assert (view / "cell#new.array").read_bytes() == np.array([7, 8, 9], "<i2").tobytes()
        # Text in the place of numbers, and back.
        np.save(mount / "cell#new.npy", np.array(["u", "v", "w,"]))
        assert names(view, "cell#new") == ["cell#new.csv"] and not (view / "cell#new.array").exists()
        assert value("cell#new") == ["u", "v", "w,"]
        np.save(mount / "cell#new.npy", np.array([True, False, True]))
        assert names(view, "cell#new") == ["cell#new.array", "cell#new.yaml"]
        assert same(value("cell#new"), np.array([True, False, True]))
        os.remove(mount / "cell#new.npy")
        assert names(view, "cell#new") == [] and not (view / "cell#new.yaml").exists()
        # What the store has, as well.
        np.save(mount / "cell#age.npy", np.array(["4", "5", "6"]))
        assert value("cell#age") == ["4", "5", "6"] and names(view, "cell#age") == ["cell#age.csv"]
        os.remove(mount / "cell#type.npy")
        assert names(view, "cell#type") == []
        np.save(mount / "title.npy", np.int64(3))
        assert FilesReader(view).item("title") == 3
        # Sparse, dense, text, nothing.
        matrix = scipy.sparse.csr_matrix(np.array([[0, 1], [2, 0], [3, 0]]))
        scipy.sparse.save_npz(mount / "cell,gene#m.npz", matrix)
        assert same(value("cell,gene#m"), matrix.toarray())
        np.save(mount / "cell,gene#m.npy", np.ones((3, 2)))
        assert names(view, "cell,gene#m") == ["cell,gene#m.array", "cell,gene#m.yaml"] and same(value("cell,gene#m"), np.ones((3, 2)))
        np.save(mount / "cell,gene#m.npy", np.array([["a", "b"], ["c", "d"], ["e", "f"]]))
        assert value("cell,gene#m") == [["a", "b"], ["c", "d"], ["e", "f"]]
        os.remove(mount / "cell,gene#m.npy")
        assert names(view, "cell,gene#m") == []
        # A new axis, and what waits for it.
        np.save(mount / "batch#n.npy", np.arange(2))
        assert names(view, "batch#n") == []
        np.save(mount / "batch#.npy", np.array(["b1", "b2"]))
        until(lambda: names(view, "batch#n"), "the vector")
        assert same(value("batch#n"), np.arange(2)) and FilesReader(view).axes["batch"] == ["b1", "b2"]
    with Mount(live, "view=daf,ro", checkout="c") as mount:
        reader = FilesReader(mount.path)
        assert same(reader.get("batch#n"), np.arange(2)) and reader.get("cell#age") == ["4", "5", "6"]
        assert "cell#type" not in reader.data


def test_entries_of_an_axis_that_change_change_its_text(live):
    with Mount(live, checkout="c") as mount:
        assert FilesReader(mount / VIEW).get("cell#type") == ["T", None, "B"]
        np.save(mount / "cell#.npy", np.array([b"k", b"l", b"m"]))
        reader = FilesReader(mount / VIEW)
        assert reader.axes["cell"] == ["k", "l", "m"]
        assert reader.data.keys() <= {"cell#age", "cell#type"}
        for name in reader.data:
            reader.get(name)


def test_nothing_is_shown_of_a_file_that_is_being_written(live):
    with Mount(live, checkout="c") as mount:
        with open(mount / "cell#age.npy", "r+b") as file:
            file.seek(0, os.SEEK_END)
            file.write(b"")
            file.seek(-8, os.SEEK_END)
            file.write(np.int64(60).tobytes())
            assert names(mount / VIEW, "cell#age") == [] or same(FilesReader(mount / VIEW).get("cell#age"), np.array([4, 5, 6]))
        assert same(FilesReader(mount / VIEW).get("cell#age"), np.array([4, 5, 60]))


def test_views_are_not_written(live):
    with Mount(live, checkout="c") as mount:
        for act in [lambda path: open(path, "wb"), lambda path: open(path, "r+b"), os.remove, lambda path: os.rename(path, mount / "x.npy"),
                    lambda path: open(f"{path}.new.yaml", "wb"), lambda path: os.mkdir(f"{path}d")]:
            with pytest.raises(OSError):
                act(str(mount / VIEW / "cell#age.array"))
        assert same(FilesReader(mount / VIEW).get("cell#age"), np.array([4, 5, 6]))


def test_a_commit_reaches_who_only_reads(live):
    with Mount(live) as reader, Mount(live, "view=daf") as other:
        assert not (reader / VIEW / "cell#new.yaml").exists() and not (other / "cell#new.yaml").exists()
        with Mount(live, checkout="c") as mount:
            np.save(mount / "cell#new.npy", np.array([1, 2, 3]))
        checkout("commit", live, "c")
        with Mount(live) as mount:
            assert same(FilesReader(mount / VIEW).get("cell#new"), np.array([1, 2, 3]))


def test_another_version_of_the_store(live):
    with Mount(live) as mount:
        view = mount / VIEW
        assert same(FilesReader(view).get("cell#age"), np.array([4, 5, 6]))
        with h5py.File(live.with_suffix(".new"), "w") as file:
            daf.start(file)
            store_strings(file, "cell#", ["p", "q"])
            store_strings(file, "cell#age", ["old", None])
        os.replace(live.with_suffix(".new"), live)
        until(lambda: names(view, "cell#age") == ["cell#age.csv"], "the new version")
        reader = FilesReader(view)
        assert reader.axes == {"cell": ["p", "q"]} and reader.get("cell#age") == ["old", None]


# Commands.

def test_commands_show_the_view(live):
    done = npyfs("ls", "-o", "view=daf", live, check=True)
    listed = done.stdout.split()
    assert {"__daf__.yaml", "cell#.csv", "cell#age.array", "cell#age.yaml", "cell#type.csv", "title.yaml"} <= set(listed), done.stdout
    assert npyfs("cat", "-o", "view=daf", live, "cell#type.csv", check=True).stdout == "cell,type\na,T\nc,B\n"
    assert npyfs("cat", "-o", "view=daf", live, "cell#age.array", text=False).stdout == np.array([4, 5, 6]).tobytes()
    with h5py.File(live, "r+") as file:
        file["cell,gene#label"] = np.array([[b"1", b"2"]] * 3)
        store_strings(file, "late#", ["y", "x"])
        file["late,gene#label"] = np.array([[b"1", b"2"]] * 2)
    about = json.loads(npyfs("info", "--json", "-o", "view=daf", live, check=True).stdout)
    assert [entry["name"] for entry in about["left_out"]] == ["late,gene#label"] and about["view"] == "daf"
    about = json.loads(npyfs("info", "--json", "-o", "view=daf", live, "cell,gene#label.csv", check=True).stdout)
    assert about["datum"] == "matrix"
