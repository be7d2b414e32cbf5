"""Looking at stores: `npyfs show` of a store or a group is an overview, of a data frame its first rows; every reading command
takes a path in a mount, STORE:/path, a path that goes on into a store, patterns, and .npy and .npz files.
Judge: h5py, NumPy and anndata's own file layout; the bytes that the command gives for STORE and PATH."""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time

import h5py
import numpy as np
import pytest

from support import daf
from support.mount import Mount, clear
from support.process import NPYFS, npyfs, one_line
from support.truth import np_save

pytestmark = pytest.mark.fast
RANDOM = np.random.default_rng(3)
ROWS, GENES = 37, 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("look")
    with h5py.File(folder / "plain.h5", "w") as file:
        file["pi"] = np.float64(3.25)
        file["a/b/deep"] = np.arange(6, dtype="<i2").reshape(2, 3)
        file["a/x"] = np.arange(10.0)
        file["a/x"].attrs["units"] = "mV"
        file.create_dataset("a/zipped", data=np.zeros(100_000), chunks=(10_000,), compression="gzip")
        file["star*"] = np.arange(3)
    text = h5py.string_dtype()
    with h5py.File(folder / "cells.h5ad", "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        for name, rows in [("obs", ROWS), ("var", GENES)]:
            frame = file.create_group(name)
            frame.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": "_index"})
            index = frame.create_dataset("_index", data=[f"{name}{n}" for n in range(rows)], dtype=text)
            index.attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})
            column = frame.create_dataset("count", data=np.arange(rows) * 10)
            column.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
            kind = frame.create_group("kind")
            kind.attrs.update({"encoding-type": "categorical", "encoding-version": "0.2.0", "ordered": False})
            kind["categories"] = np.array(["ant", "bee"], dtype=text)
            kind["codes"] = np.arange(rows, dtype="i1") % 2
            frame.attrs.create("column-order", ["kind", "count"], dtype=text)
        matrix = file.create_dataset("X", data=RANDOM.normal(size=(ROWS, GENES)).astype("f4"))
        matrix.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
    with h5py.File(folder / "cells.h5df", "w") as file:
        daf.write(file, rows=4, columns=3)
    with h5py.File(folder / "wide.h5", "w") as file:
        for number in range(300):
            file[f"array{number:03}"] = np.arange(number)
    np.save(folder / "ages.npy", np.arange(12).reshape(3, 4))
    np.savez(folder / "pair.npz", one=np.arange(3), two=np.ones(2))
    (folder / "notes.txt").write_text("text")
    return folder


@pytest.fixture(scope="module")
def mount(folder):
    with Mount(folder) as mount:
        yield mount


def shown(*arguments, **keywords):
    done = npyfs(*arguments, **keywords)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout


def facts(text):
    """The lines at the top, by their names."""
    return dict(re.split(r"  +", line, maxsplit=1) for line in text.split("\n\n")[0].splitlines())


def tree(text):
    """The lines of the tree: what they say of each name, with blanks in front of what is in a directory."""
    lines = text.split("\n\n", 1)[1].splitlines()
    return {re.match(r" *\S+", line)[0]: line.split()[1:] for line in lines}


def test_a_store_is_shown_by_its_kind_its_axes_and_its_tree(folder):
    text = shown("show", folder / "cells.h5ad")
    assert facts(text)["kind"] == "anndata" and facts(text)["axes"] == f"n_obs {ROWS} × n_vars {GENES}"
    assert facts(text)["file"] == str(folder / "cells.h5ad")
    lines = tree(text)
    assert lines["X.npy"] == ["<f4", f"({ROWS},{GENES})", f"{ROWS * GENES * 4}", "bytes"]
    assert lines["obs/"] == [f"{ROWS}", "rows,", "4", "entries"] and lines["var/"][:2] == [f"{GENES}", "rows,"]
    assert lines["  count.npy"][:2] == ["<i8", f"({GENES},)"]  # of var, which comes last
    assert facts(shown("show", folder / "cells.h5df"))["axes"] == "cell 4, gene 3"


def test_the_axes_of_daf_are_known_with_another_sign(folder):
    assert facts(shown("show", "-o", "sep=@", folder / "cells.h5df"))["axes"] == "cell 4, gene 3"


def test_the_dimensions_of_netcdf_are_its_axes(tmp_path):
    with h5py.File(tmp_path / "x.nc", "w") as file:
        file.attrs["_NCProperties"] = "version=2"
        for name, count in [("lat", 7), ("time", 3)]:
            file[name] = np.arange(count)
            file[name].make_scale(name)
        file["t2m"] = np.zeros((3, 7))
        file["t2m"].dims[0].attach_scale(file["time"])
        file["t2m"].attrs["units"] = "K"
    text = shown("show", tmp_path / "x.nc")
    assert facts(text)["axes"] == "lat 7, time 3" and tree(text)["t2m.npy"][-1] == "K"


def test_info_begins_with_the_same_facts(folder):
    for store in ("cells.h5ad", "cells.h5df", "plain.h5"):
        described = shown("info", folder / store).splitlines()
        overview = facts(shown("show", folder / store))
        assert described[0].split() == ["kind", overview["kind"]]
        begins = dict(re.split(r"  +", line, maxsplit=1) for line in described[: len(overview)])
        assert begins == overview


def test_the_tree_is_as_deep_as_there_is_room(folder):
    lines = tree(shown("show", folder / "plain.h5"))
    with h5py.File(folder / "plain.h5") as file:
        stored = file["a/zipped"].id.get_storage_size()
    assert lines["    deep.npy"] == ["<i2", "(2,3)", "12", "bytes"] and lines["  x.npy"] == ["<f8", "(10,)", "80", "bytes", "mV"]
    assert lines["  zipped.npy"] == ["<f8", "(100000,)", str(stored), "bytes"] and stored < 1024
    # Three levels do not fit on a screen of 24 lines, and 300 arrays on one level do not.
    wide = shown("show", folder / "wide.h5").splitlines()
    assert len(wide) <= 23 and wide[-1] == f"... and {300 - (len(wide) - 5)} more; --all shows all"
    assert len(tree(shown("show", "--all", folder / "wide.h5"))) == 300 == len(tree(shown("show", "--depth", "1", folder / "wide.h5")))
    assert set(tree(shown("show", "--depth", "1", folder / "plain.h5"))) == {"a/", "pi.npy", "star*.npy"}
    assert "  b/" in tree(shown("show", "--depth", "2", folder / "plain.h5"))
    assert "    deep.npy" not in tree(shown("show", "--depth", "2", folder / "plain.h5"))


def test_a_large_terminal_shows_more(folder):
    main, side = pty.openpty()
    import fcntl
    import struct
    import termios
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 400, 100, 0, 0))
    process = subprocess.Popen([NPYFS, "show", folder / "wide.h5"], stdout=side, stderr=side, stdin=subprocess.DEVNULL, env={**os.environ, "TERM": "dumb"})
    os.close(side)
    text, until = b"", time.monotonic() + 30
    while time.monotonic() < until:
        if select.select([main], [], [], 1)[0]:
            try:
                text += os.read(main, 65536)
            except OSError:
                break
        elif process.poll() is not None:
            break
    assert process.wait(10) == 0
    os.close(main)
    assert b"array299.npy" in text and b"--all" not in text


def test_a_group_is_shown_as_the_store_is(folder):
    for place in ([folder / "plain.h5", "a"], [f"{folder}/plain.h5:/a"], [f"{folder}/plain.h5/a"]):
        text = shown("show", *place)
        assert facts(text)["path"] == "/a" and tree(text)["x.npy"][-1] == "mV"


def test_a_data_frame_shows_its_head(folder):
    table = shown("show", folder / "cells.h5ad", "obs").split("\n\n")[1].splitlines()
    assert table[0].split() == ["_index", "kind", "count"]
    for row in range(10):
        assert table[1 + row].split() == [f"obs{row}", ["ant", "bee"][row % 2], str(row * 10)]
    assert table[11:] == [f"... and {ROWS - 10} rows more"]
    small = shown("show", folder / "cells.h5ad", "var").split("\n\n")[1].splitlines()
    assert len(small) == 1 + GENES
    assert "count.npy" in tree(shown("show", "--all", folder / "cells.h5ad", "obs"))
    # Where columns are no files, what there is.
    assert "count/" in tree(shown("show", "-o", "view=zarr", folder / "cells.h5ad", "obs"))


def test_what_a_mount_reports_itself_is_shown(folder):
    with Mount(folder / "cells.h5ad") as mount:
        assert "obs.arrow" in tree(shown("show", mount / ".npyfs/arrow"))
        assert "status.json" in tree(shown("show", mount / ".npyfs"))


def test_the_overview_as_json(folder):
    found = json.loads(shown("show", "--json", folder / "cells.h5ad"))
    assert found["kind"] == "anndata" and found["axes"] == [{"name": "n_obs", "len": ROWS}, {"name": "n_vars", "len": GENES}]
    assert found["size"] == (folder / "cells.h5ad").stat().st_size
    entries = {entry["name"]: entry for entry in found["entries"]}
    assert set(entries) == {"X.npy", "obs", "var"} and entries["obs"] == {"name": "obs", "kind": "directory", "rows": ROWS, "entries": 4}
    all = {entry["name"]: entry for entry in json.loads(shown("show", "--json", "--all", folder / "plain.h5"))["entries"]}
    assert all["a/x.npy"] == {"name": "a/x.npy", "kind": "file", "dtype": "<f8", "shape": [10], "stored_size": 80, "units": "mV"}
    assert "a/b/deep.npy" in all


# Every way to name one array, below a directory with a store and a mount.
def spellings(folder, mount):
    yield [folder / "plain.h5", "a/x.npy"]
    yield [f"{folder}/plain.h5:/a/x.npy"]
    yield [f"{folder}/plain.h5:/a", "x.npy"]
    yield [f"{folder}/plain.h5/a/x.npy"]
    yield [f"{folder}/plain.h5/a/x*"]
    yield [f"{folder}/plain.h5", "[a]/?.npy"]
    yield [mount / "plain.h5/a/x.npy"]
    yield [mount / "plain.h5", "a/x.npy"]
    yield [f"{mount.path}/plain.h5:/a/x.npy"]
    yield [f"{mount.path}/plain.h5/*/x.npy"]
    yield [f"{folder}/plain.h5", "**/x.npy"]
    yield [f"{folder}/plain.h5/a/**/x.npy"]
    yield [f"{mount.path}/plain.h5/**/x.npy"]


def test_every_reading_command_takes_every_spelling(folder, mount):
    first, *others = spellings(folder, mount)
    assert npyfs("cat", *first, text=False).stdout == np_save(np.arange(10.0))
    for command in (["show"], ["info"], ["info", "--json"], ["show", "--json"]):
        wanted = shown(*command, *first)
        for other in others:
            assert shown(*command, *other) == wanted, other
    for other in others:
        assert npyfs("cat", *other, text=False).stdout == np_save(np.arange(10.0)), other
        listed = [line.split() for line in shown("ls", "-l", *other).splitlines()]
        assert [line[1] for line in listed] == ["208"] and listed[0][-1].endswith("x.npy"), other
    assert shown("bench", *first) and shown("bench", *others[0])


def test_two_stars_are_any_directories(folder):
    with h5py.File(folder / "plain.h5") as file:
        below = []
        file["a"].visit(lambda name: below.append(f"a/{name}" + ".npy" * isinstance(file["a"][name], h5py.Dataset)))
    for pattern, wanted in [("a/**", below), ("**/deep.npy", ["a/b/deep.npy"]), ("**/**/pi.npy", ["pi.npy"]), ("**/b/**/*.npy", ["a/b/deep.npy"])]:
        listed = shown("ls", "-0", folder / "plain.h5", pattern).split("\0")[:-1]
        if len(wanted) > 1:  # of directories what is in them
            wanted = [path for path in wanted if path != "a/b"] + ["a/b/deep.npy"]
            assert set(listed) == set(wanted)
        else:
            assert [name.rpartition("/")[2] for name in listed] == [name.rpartition("/")[2] for name in wanted]


def test_a_tree_of_names(folder, mount):
    lines = shown("ls", "--tree", folder / "plain.h5").splitlines()
    assert lines == ["a/", "  b/", "    deep.npy", "  x.npy", "  zipped.npy", "pi.npy", "star*.npy"]
    assert shown("ls", "--tree", mount / "plain.h5").splitlines() == lines
    long = shown("ls", "-l", "--tree", folder / "plain.h5").splitlines()
    assert [line[-len(name):] for line, name in zip(long, lines, strict=True)] == lines and "(2,3)" in long[2]
    paths = shown("ls", "-0", "--tree", folder / "plain.h5")
    assert paths == shown("ls", "-0", "-R", folder / "plain.h5")
    entries = json.loads(shown("ls", "--json", "--tree", folder / "plain.h5"))
    assert [entry["name"] for entry in entries] == paths.split("\0")[:-1]
    assert npyfs("ls", "--tree", "-R", folder / "plain.h5").returncode == 1


def test_a_file_is_opened_once(folder, tmp_path):
    """STORE:/x.npy starts as many processes as STORE and x.npy."""
    strace = shutil.which("strace")
    if not strace or subprocess.run([strace, "-f", "-o", tmp_path / "probe", "true"], capture_output=True).returncode:
        pytest.skip("no strace here")

    def started(*place):
        command = [strace, "-f", "-o", tmp_path / "calls", "-e", "trace=execve", NPYFS, "cat", *place]
        done = subprocess.run(command, capture_output=True, check=True)
        assert done.stdout == np_save(np.arange(10.0))
        return (tmp_path / "calls").read_text().count("execve(")

    assert started(f"{folder}/plain.h5:/a/x.npy") == started(folder / "plain.h5", "a/x.npy") == started(f"{folder}/plain.h5/a/?.npy")


def test_verify_takes_every_spelling(folder, mount):
    first, *others = spellings(folder, mount)
    assert shown("verify", *first) == "1 files (208 bytes)\nall is well\n"
    for other in others:
        assert shown("verify", *other) == shown("verify", *first), other
    whole = shown("verify", folder / "plain.h5")
    assert shown("verify", mount / "plain.h5") == whole == shown("verify", f"{folder}/plain.h5:/")
    assert shown("verify", folder / "ages.npy").endswith("all is well\n")
    found = json.loads(shown("verify", "--json", folder / "plain.h5", "a/x.npy", "pi.npy"))
    assert found == {"absent": {}, "bytes": 208 + 136, "checked": {}, "damaged": 0, "failed": 0, "files": 2, "findings": [],
                     "left_out": 0, "no_filter": 0, "not_allowed": 0}


def test_damage_is_found_by_every_spelling(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["good"] = np.arange(5)
        file.create_dataset("g/bad", data=np.arange(50), chunks=(50,), fletcher32=True)
        place = file["g/bad"].id.get_chunk_info(0).byte_offset
    with open(tmp_path / "x.h5", "r+b") as stream:
        stream.seek(place)
        stream.write(b"\xff")
    with Mount(tmp_path / "x.h5") as mount:
        for bad in ([tmp_path / "x.h5"], [mount.path], [mount / "g"], [mount / "g/bad.npy"], [f"{tmp_path}/x.h5/g"], [tmp_path / "x.h5", "g/*"]):
            done = npyfs("verify", "--json", *bad)
            found = json.loads(done.stdout)
            assert done.returncode == 3 and found["damaged"] == 1 and "bad.npy" in found["findings"][0], bad
        assert npyfs("verify", mount / "good.npy").returncode == 0


def test_a_mount_is_verified_with_its_own_checkout(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"] = np.arange(5)
    with Mount(tmp_path / "x.h5", checkout="work", checkouts=tmp_path / "elsewhere") as mount:
        np.save(mount / "b.npy", np.arange(7))
        # A mount that is written is read as it is.
        assert shown("verify", mount.path).startswith("2 files")
    with Mount(tmp_path / "x.h5", "ro", checkout="work", checkouts=tmp_path / "elsewhere") as mount:
        assert shown("verify", mount.path).startswith("2 files") and shown("verify", mount / "b.npy").startswith("1 files")
        shown("convert", mount.path, tmp_path / "new.h5")
        with h5py.File(tmp_path / "new.h5") as file:
            assert sorted(file) == ["a", "b"]
    assert shown("verify", tmp_path / "x.h5").startswith("1 files")
    done = npyfs("verify", "--checkout", "work", tmp_path / "new.h5")
    assert done.returncode == 2


def test_convert_takes_every_spelling(folder, mount, tmp_path):
    for number, source in enumerate([f"{folder}/plain.h5:/a", f"{folder}/plain.h5/a", mount / "plain.h5/a"]):
        npyfs("convert", source, tmp_path / f"{number}.h5", check=True)
        with h5py.File(tmp_path / f"{number}.h5") as file:
            assert sorted(file) == ["b", "x", "zipped"] and (file["x"][:] == np.arange(10.0)).all()
    shown("convert", mount / "cells.h5ad", tmp_path / "whole.h5")
    with h5py.File(tmp_path / "whole.h5") as file:
        assert set(file) == {"X", "obs", "var"}
    assert "is a file" in one_line(npyfs("convert", f"{folder}/plain.h5/a/x.npy", tmp_path / "file.h5").stderr)
    assert not (tmp_path / "file.h5").exists()


def test_keep_takes_every_spelling(folder, mount, tmp_path):
    def keep(*arguments):
        done = npyfs("keep", "--json", "-o", f"cache_dir={tmp_path}", *arguments)
        return done.returncode, json.loads(done.stdout) if done.stdout else one_line(done.stderr)

    first, *others = spellings(folder, mount)
    assert keep(*first) == (0, {"before": 0, "bytes": 208, "failed": 0, "kept": 1})
    for other in others:
        assert keep(*other) == (0, {"before": 1, "bytes": 0, "failed": 0, "kept": 0}), other
    code, why = keep(folder / "plain.h5")
    assert code == 1 and "/ behind it" in why
    assert keep(folder / "plain.h5", "/")[1]["before"] == 1
    assert "not known" in one_line(npyfs("keep", folder / "ages.npy").stderr.splitlines()[0])


def test_paths_in_a_mount_from_within(folder, mount):
    assert "mV" in shown("info", "x.npy", cwd=mount / "plain.h5/a")
    assert facts(shown("show", ".", cwd=mount / "cells.h5ad"))["axes"] == f"n_obs {ROWS} × n_vars {GENES}"
    assert shown("show", ".", cwd=mount / "cells.h5ad/obs") == shown("show", folder / "cells.h5ad", "obs")
    assert shown("ls", mount.path) == "".join(f"{name}\n" for name in sorted(os.listdir(mount.path)))


def test_several_paths(folder, mount):
    both = npyfs("cat", folder / "plain.h5", "pi.npy", "a/x.npy", text=False).stdout
    assert both == np_save(np.float64(3.25)) + np_save(np.arange(10.0))
    assert npyfs("cat", mount / "plain.h5/pi.npy", folder / "ages.npy", text=False).stdout == np_save(np.float64(3.25)) + (folder / "ages.npy").read_bytes()
    text = shown("show", "--no-stats", folder / "plain.h5", "pi.npy", "a/x.npy")
    assert text.startswith("pi.npy:\n<f8 ()") and "\n\na/x.npy:\n<f8 (10,)" in text
    assert [one["shape"] for one in json.loads(shown("show", "--json", folder / "plain.h5", "pi.npy", "a/x.npy"))] == [[], [10]]
    assert [one["path"] for one in json.loads(shown("info", "--json", folder / "plain.h5", "pi.npy", "a"))] == ["/pi", "/a"]
    assert shown("ls", folder / "plain.h5", "pi.npy", "a") == "pi.npy\n\na:\nb\nx.npy\nzipped.npy\n"
    assert shown("ls", "-0", folder / "plain.h5", "pi.npy", "a").split("\0")[:2] == ["pi.npy", "a/b"]


def test_a_name_with_a_wildcard_is_itself(folder):
    assert "shape" in shown("info", "--json", folder / "plain.h5", "star*.npy")


def test_files_of_arrays(folder):
    text = shown("show", folder / "ages.npy")
    assert text.startswith("<i8 (3,4), 12 elements") and str(np.load(folder / "ages.npy")) in text
    assert "one.npy: <i8 (3,)" in shown("show", folder / "pair.npz")
    assert json.loads(shown("info", "--json", folder / "ages.npy"))["shape"] == [3, 4]
    assert npyfs("cat", folder / "ages.npy", text=False).stdout == (folder / "ages.npy").read_bytes()
    assert shown("ls", folder / "ages.npy") == "ages.npy\n"
    # Another archive is none of arrays.
    (folder / "other.zip").write_bytes((folder / "pair.npz").read_bytes())
    assert npyfs("show", folder / "other.zip").returncode == 2
    assert '"cache"' in shown("show", f"{folder}/plain.h5:/.npyfs/status.json")
    os.symlink("ages.npy", folder / "link.npy")
    assert shown("show", folder / "link.npy") == text


def test_what_is_wrong_is_said_in_one_line(folder, mount, tmp_path):
    def refused(code, *arguments):
        done = npyfs(*arguments)
        assert done.returncode == code and done.stdout == ""
        return one_line(done.stderr)

    assert f"did you mean {mount / 'plain.h5/pi.npy'}?" in refused(3, "show", mount / "plain.h5/pii.npy")
    assert "did you mean /pi.npy?" in refused(2, "show", folder / "plain.h5/pii.npy")
    assert "nothing is called so" in refused(3, "show", folder / "plain.h5", "nope*")
    assert "own options" in refused(1, "show", "--checkout", "x", mount / "plain.h5")
    assert "own options" in refused(1, "ls", "-o", "sep=@", mount / "plain.h5")
    assert "is no store" in refused(1, "ls", "--at", "1", folder / "ages.npy")
    assert "is a directory" in refused(3, "cat", folder / "plain.h5")
    assert refused(2, "show", folder / "notes.txt") and refused(2, "show", tmp_path / "none.h5")
    assert "no picture" in refused(1, "show", "--image", folder / "plain.h5")
    assert "--png" in refused(1, "show", "--png", tmp_path / "p.png", folder / "plain.h5", "pi.npy", "a/x.npy")
    (tmp_path / "cut.npy").write_bytes((folder / "ages.npy").read_bytes()[:-1])
    assert "bytes" in shown("show", tmp_path / "cut.npy")
    os.mkfifo(tmp_path / "pipe.npy")
    assert refused(2, "show", tmp_path / "pipe.npy")


def test_a_dead_mount_is_named(folder):
    with Mount(folder / "plain.h5") as mount:
        mount.expect_dead = True
        os.kill(json.loads((mount / ".npyfs/status.json").read_text())["pid"], signal.SIGKILL)
        time.sleep(0.5)
        for place in (mount.path, mount / "pi.npy"):
            done = npyfs("show", place)
            assert done.returncode == 32 and "npyfs umount" in one_line(done.stderr)
        for command in (["diff"], ["commit"], ["ls"]):
            assert "npyfs umount" in one_line(npyfs("checkout", *command, mount.path).stderr)
        clear(mount.path)


def test_the_reason_of_a_failed_read_in_a_mount_is_told(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=np.arange(100_000), chunks=(1000,), compression="gzip")
        where = file["x"].id.get_chunk_info(50)
    with open(tmp_path / "x.h5", "r+b") as file:
        file.seek(where.byte_offset)
        file.write(b"\xff" * where.size)
    with Mount(tmp_path / "x.h5") as mount:
        done = npyfs("cat", mount / "x.npy", text=False)
        line = one_line(done.stderr.decode())
        assert done.returncode == 3 and "x.npy" in line and "os error" not in line
