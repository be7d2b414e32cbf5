"""`npyfs show`: the ends of any array as NumPy prints them, statistics in one pass, histograms, pictures on terminals and in files.
Judge: NumPy's own printing, nanmin, nanmax, mean and histogram of the same array; h5py's bytes."""

import json
import math
import os
import re
import struct
import sys
import zlib
from collections import Counter

import h5py
import numpy as np
import pytest
import scipy.sparse

from support import daf, hangar
from support.mount import Mount
from support.process import NPYFS, npyfs, one_line, run

pytestmark = pytest.mark.fast
RANDOM = np.random.default_rng(7)


def of_bits(dtype, count):
    """Floats of any bits, but for NaN, of which there is only one kind."""
    size = np.dtype(dtype).itemsize
    bits = RANDOM.integers(0, 256, count * size, "u1").view(dtype)
    return np.where(np.isnan(bits), np.array(1, dtype), bits)


RECORD = np.dtype([("a", "<i4"), ("b", "<f8"), ("c", "S3"), ("d", "<f4", (2, 2)), ("e", [("x", "?"), ("y", "<c8")])])


def arrays():
    """Arrays of all kinds by name."""
    record = np.zeros(5, RECORD)
    record["a"], record["b"], record["c"] = [1, -20, 3, 4, 5], [0.5, 1e10, np.nan, 2, 3], [b"a", b"it's", b"", b"\xff", b"\n"]
    record["d"], record["e"]["x"], record["e"]["y"] = RANDOM.normal(size=(5, 2, 2)), [0, 1, 0, 1, 1], 1 - 2.5j
    yield "record", record
    yield "record_alone", record[1]
    yield "one_member", np.zeros(3, [("n", "<i2")])
    yield "large_member", np.arange(4000, dtype="<i4").view([("m", "<i4", (2, 1000))])
    yield "member_of_100", np.arange(300, dtype="<i4").view([("m", "<i4", (10, 10))])
    for shape in [(), (0,), (1,), (3, 0), (10,), (100,), (101,), (5, 20), (20, 26), (2, 3, 4), (11, 10, 10), (3, 2, 7, 90), (2, 7), (7,) * 5, (2000, 1)]:
        name = "x".join(map(str, shape)) or "alone"
        yield f"i8_{name}", RANDOM.integers(-2000, 2000, shape)
        yield f"f8_{name}", RANDOM.normal(size=shape)
    for dtype in ["i1", "u1", "<i2", ">i2", "<u4", ">i8", "<u8"]:
        ends = np.iinfo(dtype)
        yield f"ends_{dtype}", np.array([ends.min, 0, 5, ends.max], dtype)
    for dtype in ["<f2", ">f2", "<f4", ">f4", "<f8", ">f8"]:
        for number in range(4):
            yield f"bits{number}_{dtype}", of_bits(dtype, 7)
        yield f"plain_{dtype}", RANDOM.normal(size=50).astype(dtype)
        yield f"whole_{dtype}", np.arange(30).astype(dtype)
        yield f"tenths_{dtype}", (np.arange(30) / 10).astype(dtype)
        yield f"odd_{dtype}", np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1.5], dtype)
        yield f"none_{dtype}", np.array([np.nan, np.nan], dtype)
        yield f"small_{dtype}", np.array([1e-4, 1.5e-5, 3], dtype)
        yield f"wide_{dtype}", np.array([1, 1001], dtype)
        yield f"large_{dtype}", np.array([999, 1000, 999_999, 1e6, 99_999_999, 1e8][:2 if dtype[1:] == "f2" else 6], dtype)
        for value in [0.1, 1e-5, 999, 1000, 123456.789, 1e6, 1e16, 65504, 1e-4, np.nan, -np.inf, 1 / 3, 1e15]:
            with np.errstate(over="ignore"):
                yield f"alone_{value}_{dtype}", np.array(value, dtype)
    with np.errstate(invalid="ignore"):
        for dtype in ["<c8", ">c16"]:
            yield f"complex_{dtype}", (RANDOM.normal(size=9) + 1j * RANDOM.normal(size=9)).astype(dtype)
            yield f"complex_odd_{dtype}", np.array([1 + 2j, complex(np.nan, 0), complex(-np.inf, np.inf), -0.5j], dtype)
            yield f"complex_large_{dtype}", np.array([1e10 + 2j, 3 - 1e-9j], dtype)
            for value in [1 + 2j, 2j, -0.5, complex(np.nan, np.inf), 1e20 + 1e-7j]:
                yield f"complex_alone_{value}_{dtype}", np.array(value, dtype)
    yield "bools", RANDOM.integers(0, 2, (4, 40)).astype(bool)
    yield "bool_alone", np.array(True)
    yield "bytes", np.array([b"abc", b"", b"it's", b'"both\'', b"\\\t\r\n\0x\x7f\xe9"])
    yield "bytes_alone", np.array(b"it's")
    yield "many_bytes", np.array([b"%d" % n for n in range(3000)])
    yield "text", np.array(["größe", "", "it's", "\u202e\u200b", "\U0001F600", "α\nβ", "a\\b", "\u00a0", "\ud800"])
    yield "text_alone", np.array("größe")
    yield "long_text", np.array(["x" * 100, "y" * 70, "z"])


ARRAYS = dict(arrays())


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """All arrays, as opaque bytes where HDF5 has no such type: h5py notes NumPy's type."""
    path = tmp_path_factory.mktemp("show") / "store.h5"
    with h5py.File(path, "w") as file:
        for name, array in ARRAYS.items():
            array = np.asarray(array)
            if array.dtype.kind == "U":
                size = max(1, max(len(t.encode("utf-8", "surrogatepass")) for t in array.reshape(-1).tolist()))
                array = np.char.encode(array, "utf-8", "surrogatepass").astype(h5py.string_dtype("utf-8", size))
            file[name] = array
    return path


def shown(store, name, *options):
    return npyfs("show", *options, store, f"{name}.npy", check=True).stdout


def told(store, name, *options):
    return json.loads(shown(store, name, "--json", *options))


def held(store, name):
    """The array as the mount has it."""
    import io
    return np.load(io.BytesIO(npyfs("cat", store, f"{name}.npy", text=False, check=True).stdout))


def printed(array):
    """What Python prints of an array, summarized from 101 elements on; whatever this process has set. Of bytes without axes
    Python's own form, which NumPy puts into `np.bytes_()`."""
    if array.dtype.kind == "S" and array.ndim == 0:
        return repr(array.item())
    with np.printoptions(threshold=100, edgeitems=3, precision=8, suppress=False, linewidth=75, legacy=False):
        return str(array)


@pytest.mark.parametrize("name", ARRAYS)
def test_the_ends_are_those_that_numpy_prints(store, name):
    array = held(store, name)
    assert told(store, name, "--no-stats")["printed"] == printed(array)


def test_every_half_float_is_printed_as_numpy_prints_it(tmp_path):
    every = np.arange(1 << 16, dtype="u2").view("f2")
    finite = every[np.isfinite(every)]
    pieces = [finite[start:start + 100] for start in range(0, len(finite), 100)]
    record = np.zeros(1, [(f"m{at}", "<f2", (100,)) for at in range(len(pieces))])
    for at, piece in enumerate(pieces):
        record[f"m{at}"][0, :len(piece)] = piece
    with h5py.File(tmp_path / "h.h5", "w") as file:
        file["x"] = record
    assert told(tmp_path / "h.h5", "x", "--no-stats")["printed"] == printed(record)


TIMES = {"D": "2020-02-29", "Y": "1969", "M": "2000-12", "W": "2020-01-02", "h": "2020-01-01T05", "m": "1969-12-31T23:59", "s": "2262-04-11T23:47:16",
         "ms": "1970-01-01T00:00:00.001", "us": "1900-03-01T00:00:00.000001", "ns": "2020-01-01T00:00:00.123456789", "25s": "2020-01-01T00:00:25"}


@pytest.mark.parametrize("unit", TIMES)
def test_times_are_printed_as_numpy_prints_them(tmp_path, unit):
    times = np.array([TIMES[unit], "NaT", 0, -5, 100_000], f"M8[{unit}]")
    spans = np.array([5, "NaT", -100], f"m8[{unit}]")
    with h5py.File(tmp_path / "t.h5", "w") as file:
        for name, array in {"times": times, "spans": spans, "alone": np.array(TIMES[unit], times.dtype), "none": times[1:2], "nothing": np.array("NaT", times.dtype)}.items():
            file.create_dataset(name, data=array.astype(h5py.opaque_dtype(array.dtype)))
    for name in ("times", "spans", "alone", "none", "nothing"):
        array = held(tmp_path / "t.h5", name)
        assert array.dtype.kind in "mM"
        assert told(tmp_path / "t.h5", name, "--no-stats")["printed"] == printed(array), name
    facts = told(tmp_path / "t.h5", "times")["statistics"]
    assert (facts["min"], facts["max"], facts["nat"]) == (str(np.nanmin(times)), str(np.nanmax(times)), 1)


def judge_histogram(facts, finite):
    edges, counts = facts["histogram"]["edges"], facts["histogram"]["counts"]
    assert 1 < len(counts) <= 24 and counts[0] and counts[-1] and len(edges) == len(counts) + 1
    # NumPy's last bin has its right edge, which is above the greatest number here.
    assert edges[0] <= finite.min() and finite.max() < edges[-1]
    assert counts == np.histogram(finite, np.array(edges))[0].tolist()
    widths = {b - a for a, b in zip(edges, edges[1:])}
    assert len(widths) == 1 and math.log2(widths.pop()).is_integer()


@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8"])
@pytest.mark.parametrize("odd", [False, True])
def test_statistics_of_floats(tmp_path, dtype, odd):
    array = RANDOM.normal(3, 10, 300_000).astype(dtype)
    if odd:
        array[::1000], array[5:50], array[60:70], array[80] = np.nan, 0, np.inf, -np.inf
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("x", data=array, chunks=(7000,), compression="gzip")
    facts = told(tmp_path / "f.h5", "x")["statistics"]
    finite = array[np.isfinite(array)].astype("f8")
    counts = (np.isnan(array).sum(), np.isinf(array).sum(), (array == 0).sum())
    assert (facts["nan"], facts["inf"], facts["zeros"]) == counts
    if odd:
        assert (facts["min"], facts["max"], facts["mean"]) == ("-inf", "inf", "NaN")
    else:
        assert (facts["min"], facts["max"]) == (float(array.min()), float(array.max()))
        exact = math.fsum(finite) / len(finite)
        assert abs(facts["mean"] - exact) <= 1e-14 * abs(exact)
        assert abs(facts["mean"] - np.mean(array, dtype="f8")) <= 1e-12 * abs(exact)
    judge_histogram(facts, finite)


@pytest.mark.parametrize("dtype", ["i1", "u1", ">i2", "<u2", "<i4", ">u4", "<i8", ">u8"])
def test_statistics_of_integers(tmp_path, dtype):
    ends = np.iinfo(dtype)
    arrays = {"few": RANDOM.integers(0, 9, 5000).astype(dtype), "all": RANDOM.integers(ends.min, ends.max, 50_000, ends.dtype.newbyteorder("="), endpoint=True).astype(dtype),
              "high": np.array([ends.max, ends.max - 1, ends.max - 40], dtype)}
    with h5py.File(tmp_path / "i.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = array
    for name, array in arrays.items():
        facts = told(tmp_path / "i.h5", name)["statistics"]
        mean = sum(array.tolist()) / len(array)
        assert (facts["min"], facts["max"], facts["zeros"]) == (int(array.min()), int(array.max()), int((array == 0).sum()))
        assert abs(facts["mean"] - mean) <= 1e-12 * max(abs(mean), 1e-300)
        edges, counts = facts["histogram"]["edges"], facts["histogram"]["counts"]
        assert counts == [sum(a <= value < b for value in array.tolist()) for a, b in zip(edges, edges[1:])]
    assert told(tmp_path / "i.h5", "few")["statistics"]["histogram"]["edges"] == list(range(10))


def test_statistics_of_other_kinds(store):
    bools = ARRAYS["bools"]
    assert told(store, "bools")["statistics"] == {"true": int(bools.sum()), "false": int((~bools).sum())}
    numbers = ARRAYS["complex_<c8"].astype("c16")
    facts = told(store, "complex_<c8")["statistics"]
    assert np.allclose([facts["min_abs"], facts["max_abs"]], [abs(numbers).min(), abs(numbers).max()], rtol=1e-12)
    assert np.allclose(facts["mean"], [numbers.real.mean(), numbers.imag.mean()], rtol=1e-12)
    members = told(store, "record")["members"]
    record = ARRAYS["record"]
    assert list(members) == sorted(["a", "b", "c", "d", "e.x", "e.y"])
    assert (members["a"]["min"], members["a"]["max"]) == (-20, 5) and members["b"]["nan"] == 1
    assert np.isclose(members["d"]["mean"], record["d"].astype("f8").mean(), rtol=1e-12)
    assert members["e.x"] == {"true": 3, "false": 2} and members["c"]["distinct"] == 5
    assert "statistics" not in told(store, "f8_10", "--no-stats")


def test_the_values_of_text_are_counted(tmp_path):
    words = np.array(["t cell", "b cell", "größe", ""])[RANDOM.integers(0, 4, 100_000) % RANDOM.integers(1, 5, 100_000)]
    many = np.array([b"%d" % n for n in range(30_000)])
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["words"] = words.astype(object)
        file["many"] = many
    facts = told(tmp_path / "t.h5", "words")["statistics"]
    counted = sorted(Counter(words.tolist()).items(), key=lambda entry: -entry[1])
    assert facts["distinct"] == 4 and facts["more"] is False
    assert [(entry["value"], entry["count"]) for entry in facts["most_frequent"]] == counted
    assert (told(tmp_path / "t.h5", "many")["statistics"]["distinct"], told(tmp_path / "t.h5", "many")["statistics"]["more"]) == (10_000, True)
    text = shown(tmp_path / "t.h5", "words")
    assert "distinct  4" in text and f"'t cell'  {counted[0][1]}  █" in text
    assert "more than 10000" in shown(tmp_path / "t.h5", "many")


def test_what_people_see(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.array([0, 1, 1, 3], "u1")
    assert shown(tmp_path / "a.h5", "x") == """|u1 (4,), 4 elements, 4 bytes

[0 1 1 3]

min    0
max    3
mean   1.25
zeros  1 (25%)

0  1  ████████████████████
1  2  ████████████████████████████████████████
2  0
3  1  ████████████████████
4
"""
    assert shown(tmp_path / "a.h5", "x", "--no-stats") == "|u1 (4,), 4 elements, 4 bytes\n\n[0 1 1 3]\n"


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    """Arrays that would take days to read, of which hardly anything was written."""
    path = tmp_path_factory.mktemp("sparse") / "s.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("never", (1 << 40, 1 << 20), "i1")
        file.create_dataset("filled", (1 << 47,), "<f8", chunks=(1 << 20,), fillvalue=2.5)
        part = file.create_dataset("part", (1 << 20, 1 << 20), "<i8", chunks=(4, 1 << 20), fillvalue=-1)
        part[5:6, :10] = np.arange(10)
        axes = file.create_dataset("axes", (7,) * 15, "u1", chunks=(7,) * 15)
        assert axes.size > 1 << 40
        file.create_dataset("text", (1 << 40,), "S8")
    return path


def test_what_was_never_written_is_not_read(sparse):
    never = told(sparse, "never")
    count = 1 << 60
    assert never["statistics"] == {"min": 0, "max": 0, "mean": 0.0, "zeros": count} and never["elements"] == count
    assert never["printed"].startswith("[[0 0 0 ... 0 0 0]\n [0")
    filled = told(sparse, "filled")["statistics"]
    assert (filled["min"], filled["max"], filled["mean"], filled["nan"]) == (2.5, 2.5, 2.5, 0)
    part = told(sparse, "part")["statistics"]
    assert (part["min"], part["max"], part["zeros"]) == (-1, 9, 1)
    assert sum(part["histogram"]["counts"]) == 1 << 40 and part["histogram"]["counts"][0] == (1 << 40) - 10
    assert told(sparse, "axes")["printed"] == "(15 axes: not printed)"
    text = told(sparse, "text")["statistics"]
    assert text["distinct"] == 1 and text["most_frequent"] == [{"value": "", "count": 1 << 40}]


def peak(command):
    """The most memory, in bytes, that a command took. Asked by a small program: what its parent took before counts as well."""
    asks = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True); "
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
    return int(run([sys.executable, "-c", asks, *command], check=True).stdout) * 1024


def test_memory_does_not_depend_on_the_array(tmp_path, sparse):
    with h5py.File(tmp_path / "m.h5", "w") as file:
        big = file.create_dataset("x", (400 << 17,), "<f8", chunks=(1 << 17,), compression="lzf")
        block = RANDOM.integers(0, 9, 1 << 17).astype("f8")
        for start in range(0, big.shape[0], 1 << 17):
            big[start:start + (1 << 17)] = block
    for store, name in [(tmp_path / "m.h5", "x.npy"), (sparse, "part.npy"), (sparse, "never.npy")]:
        assert peak([NPYFS, "show", "-o", "cache_size=32m", store, name]) < (32 + 64) << 20, name


# Pictures

def png(path):
    """Width, height and the red, green, blue and opacity of each pixel."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, parts = 8, {}
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length:at + 12 + length])[0] == zlib.crc32(kind + body)
        parts[kind] = parts.get(kind, b"") + body
        at += 12 + length
    width, height, depth, colour = struct.unpack(">IIBB", parts[b"IHDR"][:10])
    assert (depth, colour) == (8, 6)
    raw = np.frombuffer(zlib.decompress(parts[b"IDAT"]), "u1").reshape(height, 1 + 4 * width).astype(int)
    rows = np.zeros((height, width, 4), int)
    for y, (kind, row) in enumerate(zip(raw[:, 0], raw[:, 1:].reshape(height, width, 4))):
        for x in range(width):
            left = rows[y, x - 1] if x else np.zeros(4, int)
            up = rows[y - 1, x] if y else np.zeros(4, int)
            corner = rows[y - 1, x - 1] if x and y else np.zeros(4, int)
            guess = left + up - corner
            distances = [abs(guess - left), abs(guess - up), abs(guess - corner)]
            paeth = np.where((distances[0] <= distances[1]) & (distances[0] <= distances[2]), left, np.where(distances[1] <= distances[2], up, corner))
            rows[y, x] = (row[x] + [0 * left, left, up, (left + up) // 2, paeth][kind]) % 256
    return rows


def test_a_picture_in_a_file(tmp_path):
    matrix = np.add.outer(np.arange(40.0), np.arange(60.0))
    matrix[0, 0] = np.nan
    with h5py.File(tmp_path / "p.h5", "w") as file:
        file["m"] = matrix
        file["stack"] = np.arange(2 * 3 * 4).reshape(2, 3, 4)
        file["line"] = np.arange(5)
        file["text"] = np.array([[b"a", b"b"]])
    npyfs("show", "--png", tmp_path / "m.png", tmp_path / "p.h5", "m.npy", check=True)
    pixels = png(tmp_path / "m.png")
    assert pixels.shape == (40, 60, 4)
    assert pixels[0, 0].tolist() == [0, 0, 0, 0] and pixels[0, 1].tolist() == [68, 1, 84, 255] and pixels[-1, -1].tolist() == [253, 231, 37, 255]
    # Equal numbers have one colour, and different ones, far from each other, another.
    assert (pixels[10, 20] == pixels[20, 10]).all() and (pixels[5, 5] != pixels[30, 50]).any()
    npyfs("show", "--no-stats", "--png", tmp_path / "s.png", tmp_path / "p.h5", "stack.npy", check=True)
    assert png(tmp_path / "s.png").shape == (3, 4, 4)
    assert os.stat(tmp_path / "s.png").st_mode == os.stat(tmp_path / "p.h5").st_mode  # as the umask says
    for name in ("line", "text"):
        for option in (["--png", tmp_path / "none.png"], ["--image"]):
            done = npyfs("show", *option, tmp_path / "p.h5", f"{name}.npy")
            assert done.returncode == 1 and "picture" in one_line(done.stderr)
    assert not (tmp_path / "none.png").exists() and len(list(tmp_path.iterdir())) == 3
    done = npyfs("show", "--png", tmp_path / "no/such/folder.png", tmp_path / "p.h5", "m.npy")
    assert done.returncode == 3 and one_line(done.stderr).endswith("folder.png: No such file or directory (os error 2)")
    assert f"{tmp_path / 'p.h5'}: no picture" in one_line(npyfs("show", "--png", tmp_path / "m.png", tmp_path / "p.h5").stderr)


def on_terminal(*arguments, **environment):
    command = " ".join(f"'{part}'" for part in (NPYFS, *arguments))
    done = run(["script", "-qec", f"stty rows 24 columns 80; {command}", "/dev/null"], env={**os.environ, "TERM": "xterm", "NO_COLOR": "", "COLORTERM": "", **environment}, check=True)
    return done.stdout.replace("\r", "")


def test_a_picture_on_a_terminal(tmp_path):
    with h5py.File(tmp_path / "p.h5", "w") as file:
        file["m"] = np.repeat([[0.0], [1.0]], 400, axis=0).repeat(500, axis=1)
        file["small"] = np.array([[0, 1], [1, 0]], "u1")
        file.create_dataset("never", (1 << 20, 1 << 40), "i1")
    path = tmp_path / "p.h5"
    true = on_terminal("show", path, "m.npy", COLORTERM="truecolor")
    lines = [line for line in true.splitlines() if "▀" in line]
    assert 10 <= len(lines) <= 24 and all(10 < line.count("▀") <= 80 for line in lines)
    assert "\x1b[38;2;68;1;84m" in lines[0] and "\x1b[48;2;253;231;37m" in lines[-1] and "dark 0 to bright 1; a pixel is the mean of" in true
    cube = on_terminal("show", path, "m.npy")
    assert re.search(r"\x1b\[38;5;\d+m", cube) and "38;2" not in cube
    for options in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "▀" not in on_terminal("show", path, "m.npy", **options)
    assert "▀" not in shown(path, "m") and "\x1b" not in shown(path, "m")
    assert shown(path, "small", "--no-stats", "--image").endswith("\n▒▒\ndark 0 to bright 1\n")
    assert "▀" in on_terminal("show", path, "never.npy")
    assert "\x1b" not in shown(path, "m", "--image") and "█" in shown(path, "m", "--no-stats", "--image")


# Files that are no arrays, and what cannot be read

def test_other_files(tmp_path):
    path = tmp_path / "cells.h5df"
    with h5py.File(path, "w") as file:
        daf.write(file, rows=3, columns=2)
    names = npyfs("ls", path, check=True).stdout.splitlines()
    archive = next(name for name in names if name.endswith(".npz"))
    text = npyfs("show", path, archive, check=True).stdout
    (tmp_path / "a.npz").write_bytes(npyfs("cat", path, archive, text=False, check=True).stdout)
    with np.load(tmp_path / "a.npz") as loaded:
        for name in loaded.files:
            array = loaded[name]
            shape = str(array.shape).replace(" ", "")
            assert f"{name}.npy: {array.dtype.str} {shape}, " in text and printed(array) in text
    told = json.loads(npyfs("show", "--json", path, archive, check=True).stdout)
    assert {member["name"] for member in told["members"]} == {f"{name}.npy" for name in loaded.files}
    assert scipy.sparse.load_npz(tmp_path / "a.npz").shape
    status = npyfs("show", path, ".npyfs/info.json", check=True).stdout
    assert status.startswith("text, ") and '"kind"' in status
    done = npyfs("show", path, ".npyfs")
    assert done.returncode == 0 and "info.json" in done.stdout


def test_samples_of_text_and_bytes(tmp_path):
    path = tmp_path / "repo"
    hangar.script("repository(sys.argv[1])", path)
    with Mount(path, checkout="c") as mount:
        (mount / "stage/text").mkdir()
        (mount / "stage/text/1.txt").write_text("one\ntwo\x1b")
    assert npyfs("show", path, "stage/text/1.txt", check=True).stdout == "text, 8 bytes\n\none\ntwo\\u{1b}\n"
    assert json.loads(npyfs("show", "--json", path, "stage/text/1.txt", check=True).stdout)["head"] == "one\ntwo\x1b"


def test_it_takes_checkouts_and_says_what_is_wrong(tmp_path, store):
    assert npyfs("show", "--checkout", "none", store, "f8_10.npy").returncode == 2
    done = npyfs("show", store, "f8_1000.npy")
    assert done.returncode == 3 and "did you mean" in one_line(done.stderr)
    path = tmp_path / "bad.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(10_000), chunks=(1000,), fletcher32=True)
        place = file["x"].id.get_chunk_info(5).byte_offset
    with open(path, "r+b") as stream:
        stream.seek(place)
        stream.write(b"\xff\xff")
    assert told(path, "x", "--no-stats")["printed"] == printed(np.arange(10_000))
    done = npyfs("show", path, "x.npy")
    assert done.returncode == 3 and done.stdout == "" and "x.npy" in one_line(done.stderr)


def test_what_a_terminal_would_act_upon_is_spelled_out(tmp_path):
    hostile = ["esc\x1b[31m", "bidi\u202e", "\u3164filler", "\ufe0f"]
    record = np.zeros(2, [("member\u202e", "<i4")])
    with h5py.File(tmp_path / "h.h5", "w") as file:
        file["text"] = np.array(hostile, object)
        file["bytes"] = np.array([text.encode() for text in hostile])
        file["alone"] = hostile[0]
        file["record"] = record
    for name in ("text", "bytes", "alone", "record"):
        for options in ((), ("--no-stats",)):
            text = shown(tmp_path / "h.h5", name, *options)
            assert not set(text) & set("\x1b\u202e\u3164\ufe0f"), name
