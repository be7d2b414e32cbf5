"""Names on the terminal and for programs: nothing in a store reaches a terminal as it is that the terminal would act upon or not show, in any
command; -0 and --json give names as they are. Judge: Unicode's categories as Python knows them, and the names written here."""

import json
import os
import unicodedata

import h5py
import numpy as np
import pytest

from support import hangar
from support.mount import Mount
from support.process import npyfs

pytestmark = pytest.mark.fast

HOSTILE = ["esc\x1b[31m", "c1\u009b31m", "bidi\u202etxt", "isolate\u2066", "zero\u200bwidth", "joiner\u200d", "bom\ufeff", "soft\u00ad", "line\u2028",
           "back\\slash", "filler\u3164", "selector\ufe0f", "tag\U000e0041", "private\ue000", "plain", "größe 😀"]


def is_clean(text):
    hidden = {"\u3164", "\ufe0f"}
    return not any(c != "\n" and (unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") or c in hidden) for c in text)


def spelled(name):
    return "".join("\\\\" if c == "\\" else c if is_clean(c) else f"\\u{{{ord(c):x}}}" for c in name)


def visible(name):
    """The escapes of file names: %XX for control characters of ASCII."""
    return "".join(f"%{ord(c):02X}" if ord(c) < 32 else c for c in name)


@pytest.fixture
def store(tmp_path):
    """A directory whose files have hostile names, with objects of hostile names and types in them."""
    top = tmp_path / "stores"
    top.mkdir()
    for name in HOSTILE:
        with h5py.File(top / f"{name}.h5", "w") as file:
            file["x"] = np.arange(2)
    with h5py.File(top / "names", "w") as file:
        for name in HOSTILE:
            file[name] = np.arange(3)
            file[name].attrs[f"attribute {name}"] = f"value {name}"
        file["link"] = h5py.SoftLink("/bidi\u202etxt")
        file["types"] = np.zeros(2, [("member\u202e", "<i4")])
    os.rename(top / "plain.h5", os.fsencode(top) + b"/latin\xe9.h5")
    return top


def said(*arguments, code=0):
    done = npyfs(*arguments, text=False)
    assert done.returncode == code, done
    out, err = done.stdout.decode(), done.stderr.decode()
    assert is_clean(out) and is_clean(err), (arguments, out, err)
    return out, err


def test_every_command_spells_out_what_a_terminal_would_act_upon(store):
    shown, _ = said("ls", store)
    want = {*(spelled(f"{name}.h5") for name in HOSTILE if name != "plain"), "latin\\xe9.h5", "names"}
    assert set(shown.splitlines()) == want
    names, _ = said("ls", store / "names")
    assert set(names.splitlines()) == {*(spelled(visible(name)) + ".npy" for name in HOSTILE), "link.npy", "types.npy"}
    said("ls", "-l", store / "names")
    said("ls", "-lR", store)
    said("info", store)
    for name in [*HOSTILE, "types"]:
        said("info", store / "names", f"{visible(name)}.npy")
    said("verify", store)
    said("cat", store / "names", "no\u202esuch\x1b.npy", code=3)
    said("ls", store, "no\u202esuch\x1b", code=3)
    said("ls", store / "no\u202esuch\x1b", code=2)
    said("ls", "-o", "external=\u202e\x1b", store, code=1)
    said("checkout", "ls", "--checkouts", store / "none", store / "names")


def test_programs_get_names_as_they_are(store):
    listed = npyfs("ls", "-0", store, text=False).stdout.split(b"\0")
    assert listed.pop() == b"" and set(listed) == set(os.listdir(os.fsencode(store)))
    whole = npyfs("ls", "-0R", store, text=False).stdout.split(b"\0")[:-1]
    with Mount(store) as mount:
        top = os.fsencode(mount.path)
        found = {os.path.relpath(os.path.join(above, name), top) for above, dirs, files in os.walk(top) for name in dirs + files}
    assert set(whole) == found and len(whole) == len(found)
    entries = json.loads(npyfs("ls", "--json", "-R", store).stdout)
    assert {bytes.fromhex(e["name_hex"]) if "name_hex" in e else e["name"].encode() for e in entries} == found
    by_name = {e["name"]: e for e in entries}
    file = by_name["names/bidi\u202etxt.npy"]
    assert file["kind"] == "file" and file["size"] == 128 + 24 and file["time"].endswith("Z") and "target" not in file
    assert by_name["names"]["kind"] == "directory"
    assert [e["target"] for e in entries if e["kind"] == "link"] == ["bidi\u202etxt.npy"]
    assert sum("name_hex" in e for e in entries) == 2
    for options in (["-0", "--json"], ["-l", "-0"]):
        assert npyfs("ls", *options, store).returncode == 1


def test_checkouts_are_listed_for_people_and_programs(store, tmp_path):
    path = store / "names"
    with Mount(path, checkout="work", log=tmp_path / "log") as mount:
        np.save(mount / "new\u202e.npy", np.arange(3))
        np.save(mount / "back\\slash.npy", np.arange(2))
        os.unlink(mount / "plain.npy")
        with pytest.raises(OSError):
            (mount / "wrong\u202e\u200b.npy").write_bytes(b"no array")
        log = mount.errors()
        assert log and all(is_clean(line) and "wrong\\u{202e}\\u{200b}" in line for line in log)
        said("checkout", "ls", path)
        in_use, = json.loads(npyfs("checkout", "ls", "--json", path).stdout)
        assert in_use["in_use"] and in_use["commit"] is None
    assert is_clean((tmp_path / "log").read_text())
    out, err = said("checkout", "diff", path, "work")
    assert sorted(line.split("  ")[0] for line in out.splitlines()) == ["A new\\u{202e}.npy", "D plain.npy", "M back\\\\slash.npy"]
    raw = npyfs("checkout", "diff", "-0", path, "work", text=False).stdout.split(b"\0")
    assert sorted(raw) == [b"", "A new\u202e.npy".encode(), b"D plain.npy", b"M back\\slash.npy"]
    told = json.loads(npyfs("checkout", "diff", "--json", path, "work").stdout)
    assert sorted((c["change"], c["name"]) for c in told["changes"]) == [("added", "new\u202e.npy"), ("deleted", "plain.npy"), ("modified", "back\\slash.npy")]
    assert {c["name"]: c.get("description") for c in told["changes"]}["new\u202e.npy"] == "<i8 (3,)" and told["incomplete"] == []
    assert npyfs("checkout", "ls", "-0", path, text=False).stdout == b"work\0"
    listed, = json.loads(npyfs("checkout", "ls", "--json", path).stdout)
    assert (listed["name"], listed["objects"], listed["deleted"], listed["in_use"]) == ("work", 2, 1, None)
    said("checkout", "commit", path, "work")
    said("checkout", "export", path, tmp_path / "out\u202e")
    committed, = json.loads(npyfs("checkout", "ls", "--json", path).stdout)
    assert committed["commit"] == 1 and committed["committed"].endswith("Z")


def test_staged_changes_are_listed_for_programs(tmp_path):
    path = tmp_path / "repo"
    hangar.script("repository(sys.argv[1])", path)
    with Mount(path, checkout="c") as mount:
        (mount / "stage/text").mkdir()
        (mount / "stage/text/1.txt").write_text("one")
    assert sorted(npyfs("checkout", "diff", "-0", path, text=False).stdout.split(b"\0")) == [b"", b"A text/", b"A text/1.txt"]
    told = json.loads(npyfs("checkout", "diff", "--json", path).stdout)
    assert sorted(change["name"] for change in told["changes"]) == ["text/", "text/1.txt"] and told["changes"][0]["change"] == "added"
    said("checkout", "diff", path)
    said("checkout", "status", path)
