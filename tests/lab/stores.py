"""The stores that machines of the laboratory read and write, what must be read of them, and what is written: all of it by HDF5's own
libraries and NumPy on this machine."""

import io
import subprocess
import warnings

import h5py
import numpy as np


def npy(array):
    """The bytes of np.save."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def demo(program, folder):
    """daf, Arkouda, Hangar and plain HDF5 as `npyfs demo` makes them: their judges are the project's other tests."""
    subprocess.run([program, "demo", folder], check=True, stdin=subprocess.DEVNULL)


def plain(path):
    rng = np.random.default_rng(1)
    with h5py.File(path, "w") as file:
        file["pi"] = np.pi
        for name in ("i1", "u2", "i4", "u8", "f2", "f4", "f8", ">i4", ">f8", "c8", "?"):
            file[f"types/{name.strip('>?') or 'bool'}{'_big' if name[0] == '>' else ''}"] = (rng.random((5, 7)) * 100).astype(name)
        smooth = np.add.outer(np.arange(600), np.arange(700)).astype("f4")
        file.create_dataset("images/large", data=smooth, chunks=(64, 100), compression="gzip", compression_opts=1, shuffle=True, fletcher32=True)
        file.create_dataset("images/lzf", data=smooth[:100], chunks=(32, 700), compression="lzf")
        file.create_dataset("images/never", shape=(10, 10), dtype="i8", chunks=(5, 5), fillvalue=7)
        file["images/contiguous"] = rng.random((50, 60))
        file["empty"] = np.zeros((0, 3))


def netcdf(path):
    import h5netcdf
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"lat": 30, "lon": 40}
        file.create_variable("t", ("lat", "lon"), data=np.arange(1200, dtype="f4").reshape(30, 40))
        file.create_variable("lat", ("lat",), data=np.linspace(-90, 90, 30))
        file.create_variable("lon", ("lon",), data=np.linspace(0, 351, 40))


def annotated(path):
    import anndata
    import pandas
    made = anndata.AnnData(np.arange(84, dtype="f4").reshape(12, 7), obs=pandas.DataFrame({"n": np.arange(12.0)}, index=[f"c{i}" for i in range(12)]))
    made.obsm["place"] = np.arange(24.0).reshape(12, 2)
    made.write_h5ad(path)


def virtual(folder):
    folder.mkdir()
    data = np.arange(100, dtype="i4").reshape(4, 25)
    for n in range(4):
        with h5py.File(folder / f"part{n}.h5", "w") as file:
            file["d"] = data[n]
    layout = h5py.VirtualLayout(data.shape, data.dtype)
    for n in range(4):
        layout[n] = h5py.VirtualSource(f"part{n}.h5", "d", (25,))
    with h5py.File(folder / "virtual.h5", "w") as file:
        file.create_virtual_dataset("v", layout)
    (folder / "expected.npy").write_bytes(npy(data))


# Of each store: what is written over it, and where HDF5 has it.
CHANGES = {
    "plain.h5": {"primes.npy": np.array([2, 3, 5, 7]), "pi.npy": np.array(3.0), "types/f4.npy": np.ones((5, 7), "f4"),
                 "images/new.npy": np.arange(300_000).reshape(1000, 300)},
    "cells.h5df": {"cell#lab.npy": np.arange(1000.0), "cell#age.npy": np.full(1000, 3, "i8")},
    "weather.nc": {"t.npy": np.arange(1200, dtype="f4")[::-1].reshape(30, 40).copy(), "lat2.npy": np.arange(5.0)},
    "cells.h5ad": {"obsm/place.npy": np.ones((12, 2)), "obsm/lab.npy": np.arange(36.0).reshape(12, 3)},
}


def make(program, folder):
    """Makes everything in a folder: stores, virtual, changes."""
    stores = folder / "stores"
    demo(program, stores)
    (stores / "plain.h5").unlink()
    plain(stores / "plain.h5")
    netcdf(stores / "weather.nc")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        annotated(stores / "cells.h5ad")
    virtual(folder / "virtual")
    for store, changes in CHANGES.items():
        for path, array in changes.items():
            target = folder / "changes" / store / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(npy(array))


def judged(stores):
    """{visible path: bytes} of the arrays whose name in HDF5 is their path."""
    found = {}
    for store in ("plain.h5", "weather.nc", "cells.h5ad"):
        with h5py.File(stores / store, "r") as file:
            def visit(name, thing):
                if isinstance(thing, h5py.Dataset) and thing.dtype.kind in "iufcb":
                    found[f"{store}/{name}.npy"] = npy(thing[()])
            file.visititems(visit)
    return found


def wrong_in_export(path, store):
    """What is wrong in a file that a machine exported; None if it is what was written."""
    try:
        with h5py.File(path, "r") as file:
            names = {}
            file.visititems(lambda name, thing: names.__setitem__(name, thing) if isinstance(thing, h5py.Dataset) else None)
            for thing in names.values():
                thing[()]
            for name, array in CHANGES[store].items():
                there = names.get(name[:-4])
                if there is None or there.shape != array.shape or not (there[()] == array).all():
                    return f"{name} is not what was written"
    except OSError as problem:
        return str(problem)
    return None


def wrong_after_boot(path):
    """What is wrong in the export of the checkout that was written while its machine went down: `wN` is full of N."""
    try:
        with h5py.File(path, "r") as file:
            written = [name for name in file if name[0] == "w" and name[1:].isdigit()]
            wrong = [name for name in written if not (file[name][()] == int(name[1:])).all()]
            return f"not what was written: {wrong}" if wrong else None if len(written) >= 20 else f"{len(written)} arrays"
    except OSError as problem:
        return str(problem)
