"""What a store says about other files is believed only as far as `external` allows; what is denied reads as EACCES, stands in
the info with a reason, and nothing of it ever appears. Judge: the bytes put into each file here, and a marker that every
file outside carries, searched for in everything the mount and the commands show."""

import errno
import os
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from support.mount import Mount, reason_of
from support.process import npyfs, one_line, run
from support.truth import np_save, read

pytestmark = pytest.mark.fast

MARK = b"SECRET-OUTSIDE-%d-"
SECRET = np.frombuffer(b"".join(MARK % i for i in range(20))[:256], "u1")
INSIDE = np.arange(256, dtype="u1")
HALF = 128


def virtual(group, name, *sources, fill=0):
    layout = h5py.VirtualLayout((len(sources), 256), "u1")
    for i, (path, dataset) in enumerate(sources):
        layout[i] = h5py.VirtualSource(path, dataset, (256,), "u1")
    group.create_virtual_dataset(name, layout, fillvalue=fill)


def raw(group, name, *parts):
    group.create_dataset(name, (sum(size for _, _, size in parts),), "u1", external=list(parts))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    top = tmp_path_factory.mktemp("external")
    inside, outside = top / "in", top / "out"
    inside.mkdir(), outside.mkdir()
    (outside / "secret.bin").write_bytes(SECRET.tobytes())
    (inside / "raw.bin").write_bytes(INSIDE.tobytes())
    with h5py.File(outside / "secret.h5", "w") as file:
        file["d"] = SECRET
        file["g/d"] = SECRET
    os.symlink("../out/secret.bin", inside / "link.bin")
    os.symlink("../out/secret.h5", inside / "peerlink.h5")
    os.symlink("../out", inside / "linkdir")
    os.mkfifo(inside / "fifo")
    with h5py.File(inside / "peer.h5", "w", libver="latest") as file:
        file["d"] = INSIDE
        file["g/d"] = INSIDE
        raw(file, "ext", ("../out/secret.bin", 0, 256))
        virtual(file, "vds", ("../out/secret.h5", "d"))
        file["link"] = h5py.ExternalLink("../out/secret.h5", "/d")
        file["outgroup"] = h5py.ExternalLink("../out/secret.h5", "/g")
    with h5py.File(inside / "store.h5", "w", libver="latest") as file:
        file["own"] = INSIDE
        file["sub/own"] = INSIDE
        raw(file, "raw_same", ("raw.bin", 0, 256))
        raw(file, "raw_same_parts", ("raw.bin", HALF, HALF), ("raw.bin", 0, HALF))
        raw(file, "raw_parent", ("../out/secret.bin", 0, 256))
        raw(file, "raw_absolute", (os.fspath(outside / "secret.bin"), 0, 256))
        raw(file, "raw_dots", ("./../in/../out/secret.bin", 0, 256))
        raw(file, "raw_symlink", ("link.bin", 0, 256))
        raw(file, "raw_symlinked_folder", ("linkdir/secret.bin", 0, 256))
        raw(file, "raw_second_part", ("raw.bin", 0, HALF), ("../out/secret.bin", 0, HALF))
        raw(file, "sub/raw_parent", ("../out/secret.bin", 0, 256))
        virtual(file, "vds_same", ("peer.h5", "d"), ("peer.h5", "g/d"))
        virtual(file, "vds_own_file", ("store.h5", "own"), (".", "sub/own"))
        virtual(file, "vds_missing", ("nothing.h5", "d"), fill=9)
        virtual(file, "vds_parent", ("../out/secret.h5", "d"))
        virtual(file, "vds_absolute", (os.fspath(outside / "secret.h5"), "d"))
        virtual(file, "vds_symlink", ("peerlink.h5", "d"))
        virtual(file, "vds_symlinked_folder", ("linkdir/secret.h5", "d"))
        virtual(file, "vds_mixed", (".", "own"), ("../out/secret.h5", "d"))
        virtual(file, "vds_nested_raw", ("peer.h5", "ext"))
        virtual(file, "vds_nested_vds", ("peer.h5", "vds"))
        virtual(file, "vds_nested_link", ("peer.h5", "link"))
        virtual(file, "vds_own_link", (".", "link_out_group/d"))
        virtual(file, "vds_own_raw", (".", "raw_parent"))
        for name, (path, target) in {
                "link_same": ("peer.h5", "/d"), "link_same_group": ("peer.h5", "/g"), "link_parent": ("../out/secret.h5", "/d"),
                "link_out_group": ("../out/secret.h5", "/g"), "link_absolute": (os.fspath(outside / "secret.h5"), "/d"), "link_symlink": ("peerlink.h5", "/d"),
                "link_symlinked_folder": ("linkdir/secret.h5", "/d"), "link_nested": ("peer.h5", "/link"), "link_nested_group": ("peer.h5", "/outgroup/d"),
                "link_to_raw": ("peer.h5", "/ext"), "link_to_vds": ("peer.h5", "/vds")}.items():
            file[name] = h5py.ExternalLink(path, target)
        file["soft_to_denied"] = h5py.SoftLink("/link_parent")
        file["soft_through_denied"] = h5py.SoftLink("/link_out_group/d")
        raw(file, "raw_fifo", ("fifo", 0, 256))
        raw(file, "raw_device", ("/dev/zero", 0, 256))
    return SimpleNamespace(store=inside / "store.h5", inside=inside)


SAME = {  # names that stay in the directory -> their arrays
    "raw_same": INSIDE, "raw_same_parts": np.concatenate([INSIDE[HALF:], INSIDE[:HALF]]), "vds_same": np.stack([INSIDE, INSIDE]),
    "vds_missing": np.full((1, 256), 9, "u1"), "link_same": INSIDE,
}
OUTSIDE = {  # names that lead out -> their arrays where everything is allowed
    **dict.fromkeys(["raw_parent", "raw_absolute", "raw_dots", "raw_symlink", "raw_symlinked_folder", "sub/raw_parent", "link_parent", "link_absolute",
                     "link_symlink", "link_symlinked_folder", "link_nested", "link_nested_group", "link_to_raw"], SECRET),
    **dict.fromkeys(["vds_parent", "vds_absolute", "vds_symlink", "vds_symlinked_folder", "vds_nested_raw", "vds_nested_vds", "vds_nested_link",
                     "vds_own_link", "vds_own_raw", "link_to_vds"], SECRET.reshape(1, 256)),
    "raw_second_part": np.concatenate([INSIDE[:HALF], SECRET[:HALF]]), "vds_mixed": np.stack([INSIDE, SECRET]),
}
OWN = {"own": INSIDE, "sub/own": INSIDE, "vds_own_file": np.stack([INSIDE, INSIDE])}
SAME_GROUPS, OUTSIDE_GROUPS = ["link_same_group"], ["link_out_group"]
NO_FILES = ["raw_fifo", "raw_device"]  # nothing to wait for and nothing endless, under any policy


@pytest.fixture(scope="module", params=["", "external=deny", "external=same-dir", "external=allow"])
def case(request, place):
    policy = request.param.removeprefix("external=") or "deny"
    allowed = {"deny": OWN, "same-dir": OWN | SAME, "allow": OWN | SAME | OUTSIDE}[policy]
    groups = {"deny": [], "same-dir": SAME_GROUPS, "allow": SAME_GROUPS + OUTSIDE_GROUPS}[policy]
    denied = [name for name in [*SAME, *OUTSIDE] if name not in allowed] + [name for name in SAME_GROUPS + OUTSIDE_GROUPS if name not in groups]
    with Mount(place.store, request.param) as mount:
        yield SimpleNamespace(mount=mount, policy=policy, allowed=allowed, groups=groups, denied=denied)


def test_what_is_allowed_reads(case):
    wrong = {}
    for name, array in case.allowed.items():
        try:
            data = read(case.mount / f"{name}.npy")
            if data != np_save(array):
                wrong[name] = data[:200]
        except OSError as problem:
            wrong[name] = str(problem)
    assert not wrong
    for name in case.groups:
        array = INSIDE if name in SAME_GROUPS else SECRET
        assert read(case.mount / name / "d.npy") == np_save(array), name


def test_what_is_denied_is_a_file_that_cannot_be_opened(case):
    wrong = {}
    for name in case.denied:
        path = case.mount / f"{name}.npy"
        try:
            assert path.is_file() and not path.is_symlink(), f"{name} is no regular file"
            os.close(os.open(path, os.O_RDONLY))
            wrong[name] = "opened"
        except OSError as problem:
            if problem.errno != errno.EACCES:
                wrong[name] = str(problem)
        if not path.name.startswith(".") and path.name not in os.listdir(path.parent):
            wrong[name] = "not listed"
    assert not wrong
    assert len(case.denied) == {"deny": 32, "same-dir": 26, "allow": 0}[case.policy]


def test_what_is_denied_has_a_reason(case):
    for name in case.denied:
        folder, _, own = name.rpartition("/")
        assert "external" in reason_of(case.mount.info(folder), own).lower(), name


@pytest.mark.parametrize("name", NO_FILES)
def test_pipes_and_devices_are_never_read(case, name):
    with pytest.raises(OSError) as problem:
        read(case.mount / f"{name}.npy")
    assert problem.value.errno in (errno.EACCES, errno.EIO)


def test_soft_links_do_not_go_around_the_policy(case):
    for name in ("soft_to_denied", "soft_through_denied"):
        if case.policy == "allow":
            assert read(case.mount / f"{name}.npy") == np_save(SECRET)
        else:
            with pytest.raises(OSError) as problem:
                found = [path for path in (case.mount / f"{name}.npy", case.mount / name) if os.path.lexists(path)]
                assert len(found) == 1
                read(found[0])
            assert problem.value.errno in (errno.EACCES, errno.ENOENT, errno.ENOTDIR)


def test_nothing_from_outside_appears(case):
    """In file contents, the info files, the log, and the names."""
    if case.policy == "allow":
        marks = sum(MARK % 3 in read(case.mount / f"{name}.npy") for name in OUTSIDE)
        assert marks == len(OUTSIDE)  # the search does find what there is to find
        return
    seen, searched = [], 0
    for top in (case.mount.path, case.mount / ".npyfs"):
        for folder, folders, files in os.walk(top):
            for name in files:
                path = os.path.join(folder, name)
                try:
                    data = read(path)
                except OSError:
                    continue
                searched += 1
                if b"SECRET" in data + os.fsencode(path):
                    seen.append(path)
    assert searched >= len(case.allowed) * 2 and not seen


def test_the_commands_deny_too(place):
    listed = npyfs("ls", "-lR", place.store, check=True).stdout
    assert "SECRET" not in listed and "raw_parent.npy" in listed
    for name in ("raw_parent", "vds_mixed", "link_parent", "raw_same", "sub/raw_parent", "vds_own_link"):
        done = npyfs("cat", place.store, f"{name}.npy")
        assert done.returncode == 3 and done.stdout == "", name
        one_line(done.stderr)
    assert npyfs("cat", place.store, "own.npy", text=False).stdout == np_save(INSIDE)


def test_an_unknown_policy_is_refused(place, tmp_path):
    done = npyfs("mount", "-o", "external=perhaps", place.store, tmp_path)
    assert done.returncode == 1 and "perhaps" in one_line(done.stderr)


def test_others_are_shown_foreign_files_only_where_that_is_said(place, root_only, tmp_path):
    """With allow_other whoever mounts reads for everybody; the permissions that others are held to are those of the store."""
    point = tmp_path / "mnt"
    point.mkdir()
    refused = npyfs("mount", "-o", "external=allow,allow_other", place.store, point)
    assert refused.returncode == 1 and "allow-for-others" in one_line(refused.stderr)
    assert not os.path.ismount(point)
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", "cat"]
    secret = place.inside.parent / "out/secret.bin"
    mode = secret.stat().st_mode
    secret.chmod(0o600)
    try:
        with Mount(place.store, "external=same-dir,allow_other") as mount:
            assert run([*as_nobody, mount / "own.npy"], text=False).stdout == np_save(INSIDE)
            denied = run([*as_nobody, mount / "raw_parent.npy"], text=False)
            assert denied.returncode and b"Permission denied" in denied.stderr and b"SECRET" not in denied.stdout
        with Mount(place.store, "external=allow-for-others,allow_other") as mount:
            assert run([*as_nobody, mount / "raw_parent.npy"], text=False).stdout == np_save(SECRET)
    finally:
        secret.chmod(mode)


def test_a_raw_file_that_is_too_short_reads_as_zeros_and_says_so(tmp_path):
    (tmp_path / "raw.bin").write_bytes(bytes(range(1, 101)))
    path = tmp_path / "s.h5"
    with h5py.File(path, "w") as file:
        raw(file, "short", ("raw.bin", 10, 256))
        raw(file, "long", ("raw.bin", 0, 100))
    wanted = np.frombuffer(bytes(range(11, 101)).ljust(256, b"\0"), "u1")
    with Mount(path, "external=same-dir") as mount:
        assert read(mount / "short.npy") == np_save(wanted)
        assert read(mount / "long.npy") == np_save(np.arange(1, 101, dtype="u1"))
        lines = mount.errors()
        assert len(lines) == 1 and "raw.bin" in lines[0] and "166" in lines[0] and "/short" in lines[0]
    said = npyfs("info", "-o", "external=same-dir", path, "short.npy", check=True).stdout
    assert "raw.bin" in said and "166 of 256" in said
    assert "166" not in npyfs("info", "-o", "external=same-dir", path, "long.npy", check=True).stdout


@pytest.fixture
def detector(tmp_path):
    """A master file as detectors of synchrotrons write it, and beside it what must not be reached."""
    top = tmp_path / "scan"
    (top / "deep").mkdir(parents=True)
    frames = np.arange(24, dtype="u2").reshape(2, 3, 4)
    for i, frame in enumerate(frames):
        with h5py.File(top / f"data_{i}.h5", "w", libver="latest") as file:
            file["entry/data"] = frame
    with h5py.File(tmp_path / "outside.h5", "w") as file:
        file["entry/data"] = np.full((3, 4), 999, "u2")
    os.symlink("../outside.h5", top / "link.h5")
    os.symlink("..", top / "up")
    with h5py.File(top / "hop.h5", "w") as file:
        file["on"] = h5py.ExternalLink("data_0.h5", "/entry/data")
        file["out"] = h5py.ExternalLink("../outside.h5", "/entry/data")
        file["round"] = h5py.ExternalLink("hop.h5", "/round")
    links = {"good": ["data_0.h5", "data_1.h5"], "parent": ["../outside.h5", "data_1.h5"], "symlink": ["link.h5", "data_1.h5"],
             "way": ["up/outside.h5", "data_1.h5"], "absolute": [str(tmp_path / "outside.h5"), "data_1.h5"]}
    chains = {"chain": "/on", "chain_out": "/out", "chain_round": "/round"}
    with h5py.File(top / "master.h5", "w", libver="latest") as file:
        for name, targets in links.items():
            layout = h5py.VirtualLayout((2, 3, 4), "u2")
            for i, target in enumerate(targets):
                file[f"{name}_{i}"] = h5py.ExternalLink(target, "/entry/data")
                layout[i] = h5py.VirtualSource(".", f"{name}_{i}", (3, 4), "u2")
            file.create_virtual_dataset(name, layout)
        for name, target in chains.items():
            layout = h5py.VirtualLayout((1, 3, 4), "u2")
            file[f"{name}_0"] = h5py.ExternalLink("hop.h5", target)
            layout[0] = h5py.VirtualSource(".", f"{name}_0", (3, 4), "u2")
            file.create_virtual_dataset(name, layout)
    return top / "master.h5", frames


def test_a_virtual_dataset_reaches_its_own_directory_through_external_links(detector):
    path, frames = detector
    with Mount(path, "external=same-dir") as mount:
        assert read(mount / "good.npy") == np_save(frames)
        assert read(mount / "chain.npy") == np_save(frames[:1])
        for name in ("parent", "symlink", "way", "absolute", "chain_out"):
            with pytest.raises(OSError) as problem:
                read(mount / f"{name}.npy")
            assert problem.value.errno == errno.EACCES, name
        with pytest.raises(OSError):
            read(mount / "chain_round.npy")
        assert mount.alive()
    with Mount(path) as mount:
        with pytest.raises(OSError) as problem:
            read(mount / "good.npy")
        assert problem.value.errno == errno.EACCES
