"""`npyfs verify` finds what is damaged, tells it from what this build or its options do not read, and reads nothing that was never
written. Judges: h5py, which reads what verify says of it, and the bytes that verify reports."""

import json
import os

import h5py
import numpy as np
import pytest

from support.mount import Mount
from support.process import npyfs

pytestmark = pytest.mark.fast


def write_damaged_group(path):
    """A group of many members whose table of names is damaged: h5py cannot list it to the end."""
    with h5py.File(path, "w") as file:
        for i in range(40):
            file[f"many/d{i:02}"] = np.arange(i)
    data = bytearray(path.read_bytes())
    nodes = [at for at in range(len(data)) if data[at:at + 4] == b"SNOD"]
    assert len(nodes) > 2
    data[nodes[-1]] ^= 0xFF
    path.write_bytes(data)
    with h5py.File(path, "r") as file:
        try:
            complete = len(list(file["many"])) == 40
        except RuntimeError:
            complete = False
    assert not complete


def test_a_group_that_cannot_be_listed_is_damage(tmp_path):
    path = tmp_path / "g.h5"
    write_damaged_group(path)
    said = npyfs("verify", path)
    assert said.returncode == 3 and "1 damaged" in said.stdout and "/many" in said.stderr
    listed = npyfs("ls", path, "many")
    assert listed.returncode == 3 and "many" in listed.stderr
    assert 0 < len(listed.stdout.splitlines()) < 40  # the rest is listed all the same
    with Mount(path) as mount:
        assert len(os.listdir(mount / "many")) < 40
        assert any("damaged" in line for line in mount.errors())


def test_missing_filters_and_refused_data_are_no_damage(tmp_path):
    path = tmp_path / "s.h5"
    with h5py.File(path, "w") as file:
        foreign = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        foreign.set_chunk((100,))
        foreign.set_filter(32999, h5py.h5z.FLAG_OPTIONAL, ())  # a filter that nobody has
        dataset = file.create_dataset("strange", (100,), "u1", dcpl=foreign, allow_unknown_filter=True)
        dataset.id.write_direct_chunk((0,), b"whatever this means", 0)
        file.create_dataset("elsewhere", (4,), "u1", external=[(str(tmp_path / "raw.bin"), 0, 4)])
        file["good"] = np.arange(5)
    (tmp_path / "raw.bin").write_bytes(b"abcd")
    said = npyfs("verify", path, check=True)
    assert "nothing is damaged" in said.stdout and "all is well" not in said.stdout
    lines = (said.stdout + said.stderr).splitlines()
    assert any("strange.npy" in line and "32999" in line for line in lines)
    assert any("elsewhere.npy" in line for line in lines)
    assert sum(line.startswith("1 not checked") for line in lines) == 2
    allowed = npyfs("verify", "-o", "external=same-dir", path, check=True)
    assert "elsewhere" not in allowed.stdout + allowed.stderr
    # Damage beside them still counts.
    with h5py.File(path, "r+") as file:
        file.create_dataset("bad", data=np.arange(50), chunks=(50,), fletcher32=True)
        place = file["bad"].id.get_chunk_info(0).byte_offset
    with open(path, "r+b") as stream:
        stream.seek(place)
        stream.write(b"\xff")
    said = npyfs("verify", path)
    assert said.returncode == 3 and "1 damaged" in said.stdout


def test_what_was_never_written_is_not_read(tmp_path):
    """2^50 bytes: reading them would take days, and the time limit of the command a minute."""
    path = tmp_path / "u.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("contiguous", (1 << 47,), "i8")
        file.create_dataset("chunked", (1 << 47,), "i8", chunks=(1 << 20,), fillvalue=3)
        part = file.create_dataset("part", (1 << 20, 1 << 20), "i8", chunks=(4, 1 << 20))
        part[5:6, :10] = 1
        file.create_dataset("text", (1 << 40,), h5py.string_dtype())
    said = npyfs("verify", path, timeout=60, check=True)
    assert "all is well" in said.stdout and "4 files" in said.stdout


def test_the_fixtures_are_told_apart(shared):
    said = npyfs("verify", shared / "defects/g2.h5")
    assert said.returncode == 3
    npyfs("verify", shared / "defects/u.h5", timeout=60, check=True)


@pytest.mark.fast
@pytest.mark.parametrize("of", ["/", "g", "g/x"])
def test_attributes_are_read_too(tmp_path, of):
    """The type of an attribute is damaged: verify counts it, and a view does without by name. h5py fails at the same place."""
    store = tmp_path / "store.h5"
    with h5py.File(store, "w") as file:
        file["g/x"] = np.arange(5.0)
        file["y"] = np.arange(3.0)
        file[of].attrs["marked"] = 7
    data = store.read_bytes()
    at = data.index(b"marked\0\0") + 8
    assert data.count(b"marked\0") == 1 and data[at] == 0x10
    store.write_bytes(data[:at] + b"\xff" + data[at + 1:])
    with h5py.File(store) as file, pytest.raises((OSError, KeyError, RuntimeError)):
        dict(file[of].attrs)
    done = npyfs("verify", store)
    assert done.returncode == 3 and "1 damaged" in done.stdout, done
    assert "attributes" in done.stderr and (of == "/" or of in done.stderr), done
    with Mount(store) as mount:
        np.testing.assert_array_equal(np.load(mount / "g/x.npy"), np.arange(5.0))
        zarr = mount / ".npyfs/zarr"
        assert {"g", "y"} <= {entry.name for entry in zarr.iterdir()}
        whole = json.loads((zarr / ".zmetadata").read_text())["metadata"]
        assert "y/.zarray" in whole
        # An array without its attributes would be another one: scale_factor may be among them.
        assert ("g/x/.zarray" in whole) == (of != "g/x")
        name = {"/": "info.zarr.json", "g": "info.zarr/g.json", "g/x": "info.zarr.json"}[of]
        left_out = json.loads((mount / ".npyfs" / name).read_text())["zarr"]["left_out"]
        assert [entry.get("attribute") or entry["array"] for entry in left_out] == ["g/x" if of == "g/x" else "*"]
        assert any("attribute" in line for line in mount.errors()), mount.errors()
