"""HDF5 files that go through storage layouts, chunk indexes, filters and maximum shapes. Written by h5py."""

import itertools
import zlib

import h5py
import hdf5plugin
import numpy as np

from .sweep_types import CHUNKS, SHAPES, numbers

SHAPE = [None, (11,), (7, 5), (5, 4, 3), (4, 3, 3, 2)]
CHUNK = [None, (4,), (3, 2), (2, 3, 2), (3, 2, 2, 1)]
EARLY, LATE, INCREMENTAL = h5py.h5d.ALLOC_TIME_EARLY, h5py.h5d.ALLOC_TIME_LATE, h5py.h5d.ALLOC_TIME_INCR


def properties(**what):
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    for name, arguments in what.items():
        getattr(plist, f"set_{name}")(*arguments)
    return plist


def corner(shape):
    """A box that covers part of the array and cuts through chunks."""
    return tuple(slice(size // 3, max(1, size * 2 // 3)) for size in shape)


def write_filters(path):
    """numeric type × filter pipeline × rank."""
    gzip, szip = {"compression": "gzip", "compression_opts": 6}, {"compression": "szip"}
    pipelines = {
        "gzip9": {"compression": "gzip", "compression_opts": 9}, "shuffle": {"shuffle": True},
        "shuffle_gzip": {**gzip, "shuffle": True}, "fletcher": {"fletcher32": True},
        "shuffle_gzip_fletcher": {**gzip, "shuffle": True, "fletcher32": True},
        "lzf": {"compression": "lzf"}, "shuffle_lzf": {"compression": "lzf", "shuffle": True},
        "shuffle_lzf_fletcher": {"compression": "lzf", "shuffle": True, "fletcher32": True},
    }
    for name in ["blosclz", "lz4", "lz4hc", "zlib", "zstd"]:
        for label, shuffle in {"plain": hdf5plugin.Blosc.NOSHUFFLE, "bytes": hdf5plugin.Blosc.SHUFFLE, "bits": hdf5plugin.Blosc.BITSHUFFLE}.items():
            pipelines[f"blosc_{name}_{label}"] = {"compression": hdf5plugin.Blosc(cname=name, clevel=5, shuffle=shuffle)}
    with h5py.File(path, "w") as file:
        for label, keywords in pipelines.items():
            for code in ["|i1", "<i2", ">i2", "<i4", "<u8", "<f4", ">f4", "<f8", ">f8", "<c16"]:
                for rank in range(1, 5):
                    name = f"{label}/{code[1:]}_{'be' if code[0] == '>' else 'le'}_{rank}"
                    smooth = np.arange(np.prod(SHAPES[rank])).reshape(SHAPES[rank]) % 11
                    file.create_dataset(name, data=smooth.astype(code), chunks=CHUNKS[rank], **keywords)
        # chunks big enough that each compressor really compresses, in several of its blocks
        for label, keywords in pipelines.items():
            ramp = (np.arange(300 * 1000) // 7 % 1000).astype("<f4").reshape(300, 1000)
            file.create_dataset(f"large/{label}", data=ramp, chunks=(128, 700), **keywords)
            noise = numbers("<i2", 70_000)  # incompressible: compressors store it, libhdf5 may skip the filter
            file.create_dataset(f"noise/{label}", data=noise, chunks=(33_000,), **keywords)
        for pixels in [2, 8, 32]:
            for coding in ["ec", "nn"]:
                for code in ["|u1", "<i2", ">i4", "<f8"]:
                    file.create_dataset(f"szip/{coding}{pixels}_{code[1:]}", data=(np.arange(4000) // 9 % 100).astype(code).reshape(50, 80),
                                        chunks=(16, 64), **szip, compression_opts=(coding, pixels))


def write_packed(path):
    """nbit and scaleoffset, whole and partly written, and per-chunk filter masks."""
    with h5py.File(path, "w") as file:
        for code, bits in {"<i4": 19, "<u2": 9, ">i4": 17, "<i8": 40, "|u1": 5, "<u4": 32}.items():
            kind = h5py.h5t.py_create(np.dtype(code)).copy()
            kind.set_precision(bits)
            for rank in range(1, 5):
                values = (np.arange(np.prod(SHAPE[rank])) % (1 << min(bits - 1, 7))).astype(code).reshape(SHAPE[rank])
                plist = properties(chunk=[CHUNK[rank]], filter=[h5py.h5z.FILTER_NBIT, 0, ()])
                dataset = h5py.Dataset(h5py.h5d.create(file.id, f"nbit_{code[1:]}_{bits}_{code[0] == '>'}_{rank}".encode(), kind,
                                                       h5py.h5s.create_simple(SHAPE[rank]), plist))
                dataset[()] = values
        for code in ["|i1", "<i2", "<i4", ">i4", "<u2", "<u4", "<i8"]:
            for rank in range(1, 5):
                values = (np.arange(np.prod(SHAPE[rank])) * 3 % 101).astype(code).reshape(SHAPE[rank])
                name = f"{code[1:]}_{'be' if code[0] == '>' else 'le'}_{rank}"
                file.create_dataset(f"scaleoffset/auto_{name}", data=values, chunks=CHUNK[rank], scaleoffset=0)
                file.create_dataset(f"scaleoffset/bits_{name}", data=values, chunks=CHUNK[rank], scaleoffset=7)
                part = file.create_dataset(f"scaleoffset/partly_{name}", SHAPE[rank], code, chunks=CHUNK[rank], scaleoffset=0, fillvalue=9)
                part[corner(SHAPE[rank])] = 5
        for code in ["<f4", "<f8", ">f4"]:  # loses digits: the truth is what h5py reads back
            values = np.linspace(-40, 90, 77).astype(code)
            file.create_dataset(f"scaleoffset/float_{code[1:]}_{code[0] == '>'}", data=values, chunks=(16,), scaleoffset=2)
        for libver_free, chunks in {"some": 6, "all": 1}.items():
            mask = file.create_dataset(f"masks/{libver_free}", (chunks * 10,), "<i4", chunks=(10,), shuffle=True, compression="gzip")
            for i in range(chunks):
                values = np.arange(i, i + 10, dtype="<i4")
                shuffled = np.frombuffer(values.tobytes(), "u1").reshape(10, 4).T.tobytes()
                skip = i % 4 if chunks > 1 else 3  # bit 0: no shuffle, bit 1: no gzip
                stored = values.tobytes() if skip & 1 else shuffled
                mask.id.write_direct_chunk((i * 10,), stored if skip & 2 else zlib.compress(stored), skip)


def write_storage(path, libver):
    """Compact, contiguous and every chunk index; written, partly written, never written, resized; with fill values."""
    with h5py.File(path, "w", libver=libver) as file:
        for rank in range(1, 5):
            shape, chunk, open_all = SHAPE[rank], CHUNK[rank], (None,) * rank
            indexes = {  # the names of the indexes hold for libver latest; the oldest format always has a v1 B-tree
                "single": (shape, shape, {}), "implicit": (chunk, shape, {"alloc_time": [EARLY]}), "fixed": (chunk, shape, {}),
                "extensible": (chunk, (*shape[:-1], None), {}), "extensible_first": (chunk, (None, *shape[1:]), {}), "btree2": (chunk, open_all, {}),
            }
            for fill in (None, 7):
                end = f"{rank}_{fill}"
                for when, label in {EARLY: "early", LATE: "late", INCREMENTAL: "incremental"}.items():
                    file.create_dataset(f"contiguous/never_{label}_{end}", shape, ">f4", fillvalue=fill,
                                        dcpl=properties(alloc_time=[when]))
                    if when != LATE or rank != 1:
                        part = file.create_dataset(f"contiguous/part_{label}_{end}", shape, "<i2", fillvalue=fill, dcpl=properties(alloc_time=[when]))
                        part[corner(shape)] = 3
                file.create_dataset(f"compact/never_{end}", shape, "<f8", fillvalue=fill, dcpl=properties(layout=[h5py.h5d.COMPACT]))
                file.create_dataset(f"contiguous/no_fill_{end}", data=numbers("<u4", int(np.prod(shape))).reshape(shape), fillvalue=fill,
                                    fill_time="never")
                for label, (chunks, limit, what) in indexes.items():
                    for filtered, keywords in {"raw": {}, "gzip": {"compression": "gzip"}, "checked": {"fletcher32": True}}.items():
                        if what and keywords:
                            continue  # an implicit index holds only without filters
                        def new(state, size=shape):
                            return file.create_dataset(f"{label}/{filtered}_{state}_{end}", size, "<i4", chunks=chunks, maxshape=limit,
                                                       fillvalue=fill, dcpl=properties(**what), **keywords)
                        new("full")[()] = numbers("<i4", int(np.prod(shape))).reshape(shape)
                        new("part")[corner(shape)] = 5
                        new("never")
                        shrunk = new("shrunk")
                        shrunk[()] = numbers("<i4", int(np.prod(shape))).reshape(shape)
                        shrunk.resize(tuple(max(1, size - 2) for size in shape))
        for fill in [b"ab", b""]:
            file.create_dataset(f"fill/S4_{len(fill)}", (5,), "S4", chunks=(2,), fillvalue=fill)
        file.create_dataset("fill/bool", (5,), "?", fillvalue=True)
        file.create_dataset("fill/complex", (5,), "<c8", fillvalue=1 + 2j)
        file.create_dataset("fill/f2", (3, 3), ">f2", chunks=(2, 2), fillvalue=-1.5)
        attributed = file.create_dataset("fill/attribute_is_not_it", (5,), "<i4")
        attributed.attrs["_FillValue"] = np.int32(5)  # netCDF's, which libhdf5 does not know


def write_maximum_shapes(path, libver):
    """rank 1–4 × equal, larger or unlimited maximum per dimension × filter × written, partly written, resized.

    In rank 4 filter and state take turns, all lower ranks are complete: 39*2*3 + 81 = 315 datasets a file."""
    states, turn = ["full", "part", "resized"], itertools.count()
    with h5py.File(path, "w", libver=libver) as file:
        for rank in range(1, 5):
            for choice in itertools.product("elu", repeat=rank):
                shape, chunk = SHAPE[rank], CHUNK[rank]
                limit = tuple({"e": size, "l": size + 9, "u": None}[kind] for size, kind in zip(shape, choice))
                cells = list(itertools.product(["raw", "gzip"], states))
                if rank == 4:
                    cells = [cells[next(turn) % len(cells)]]
                for filtered, state in cells:
                    dataset = file.create_dataset(f"{rank}{''.join(choice)}/{filtered}_{state}", shape, "<i4", chunks=chunk, maxshape=limit,
                                                  fillvalue=7, compression="gzip" if filtered == "gzip" else None)
                    if state == "part":
                        dataset[corner(shape)] = np.arange(dataset[corner(shape)].size).reshape(dataset[corner(shape)].shape)
                    else:
                        dataset[()] = np.arange(np.prod(shape)).reshape(shape)
                    if state == "resized":
                        grown = tuple(size - 1 if kind == "e" else size + 5 for size, kind in zip(shape, choice))
                        dataset.resize(grown)
                        dataset[tuple(slice(size - 1, None) for size in grown)] = -1


def write_virtual(path):
    """Virtual datasets whose sources are in the same file, under its own name and under "."."""
    with h5py.File(path, "w", libver="latest") as file:
        for i in range(3):
            file[f"source_{i}"] = np.arange(i * 100, i * 100 + 12, dtype="<i4")
        file.create_dataset("growing", (4, 6), "<f8", maxshape=(None, 6), chunks=(2, 3))[()] = np.arange(24.0).reshape(4, 6)
        for label, where in {"dot": ".", "name": path.name}.items():
            layout = h5py.VirtualLayout((3, 12), "<i4")
            for i in range(3):
                layout[i] = h5py.VirtualSource(where, f"source_{i}", (12,), "<i4")
            file.create_virtual_dataset(f"stacked_{label}", layout)
        layout = h5py.VirtualLayout((4, 12), "<i4")
        layout[1, 2:8] = h5py.VirtualSource(".", "source_1", (12,), "<i4")[3:9]
        layout[3, ::3] = h5py.VirtualSource(".", "source_2", (12,), "<i4")[::3]
        file.create_virtual_dataset("holes", layout, fillvalue=-9)
        layout = h5py.VirtualLayout((2, 12), ">f4")  # another type: libhdf5 converts
        layout[0] = h5py.VirtualSource(".", "source_0", (12,), "<i4")
        layout[1] = h5py.VirtualSource(".", "absent", (12,), "<i4")
        file.create_virtual_dataset("converted", layout, fillvalue=0.5)
        layout = h5py.VirtualLayout((4, 6), "<f8", maxshape=(None, 6))
        layout[slice(0, h5py.h5s.UNLIMITED), :] = h5py.VirtualSource(
            ".", "growing", (4, 6), "<f8", maxshape=(None, 6))[slice(0, h5py.h5s.UNLIMITED), :]
        file.create_virtual_dataset("unlimited", layout)
        layout = h5py.VirtualLayout((2, 12), "<i4")  # virtual over virtual
        layout[:] = h5py.VirtualSource(".", "stacked_dot", (3, 12), "<i4")[1:3]
        file.create_virtual_dataset("nested", layout)
        file["growing"].resize((7, 6))
        file["growing"][4:] = 99
