"""Filters in every order of two and three, as files have them that were written by others: each chunk is decoded as
libhdf5 decodes it. Judge: h5py with hdf5plugin."""

import os

import h5py

from support import pipelines
from support.mount import Mount
from support.truth import problems_of, visible_array


def judge(mount, path):
    """Each dataset is what h5py reads; where h5py fails, the mount fails as well or gives what was written. Returns how
    many h5py reads."""
    wrong, read = {}, 0
    with h5py.File(path, "r") as file:
        for name, dataset in file.items():
            shown = os.path.join(mount.path, f"{name}.npy")
            try:
                truth = visible_array(dataset)
            except OSError:
                found = problems_of(shown, pipelines.values(dataset.dtype))
                found = [] if found == ["OSError: Input/output error (errno 5)"] else found
            else:
                read += 1
                found = problems_of(shown, truth)
            if found:
                wrong[name] = found
    lines = [f"  {name}: {'; '.join(found)}" for name, found in list(wrong.items())[:30]]
    assert not wrong, "\n".join([f"{len(wrong)} of {read} wrong: {' '.join(wrong)}", *lines])
    return read


def test_every_order_of_two_filters(tmp_path):
    store = tmp_path / "two.h5"
    pipelines.write_orders(store, 2, ["<i8", ">u2", "u1", "S3", "S13", "<f4"])
    with Mount(store) as mount:
        read = judge(mount, store)
        assert read >= 600


def test_every_order_of_three_filters(tmp_path):
    store = tmp_path / "three.h5"
    pipelines.write_orders(store, 3, ["<i4"])
    with Mount(store) as mount:
        read = judge(mount, store)
        assert read >= 800


def test_edge_chunks_without_filters(tmp_path):
    store = tmp_path / "edges.h5"
    pipelines.write_orders(store, 2, ["<i4", "S3"], libver="latest", edges_unfiltered=True)
    with Mount(store) as mount:
        read = judge(mount, store)
        assert read >= 200


def test_masks_of_single_chunks(tmp_path):
    store = tmp_path / "masks.h5"
    pipelines.write_masks(store)
    with Mount(store) as mount:
        assert judge(mount, store) == 4
