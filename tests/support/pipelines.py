"""HDF5 files with filters in every order, as h5py and hdf5plugin write them.

Each dataset has a chunk that shrinks, one of noise (optional filters are then left out of that chunk by its mask), a
chunk of zeros and a part of one at the edge."""

import ctypes
import itertools
import zlib

import h5py
import hdf5plugin
import numpy as np

OPTIONAL = h5py.h5z.FLAG_OPTIONAL
LENGTH, CHUNK = 1010, 300
BEHIND = {"o": "s0", "p": "s0", "n": ""}  # these read as many elements as a chunk has, whatever they get
DONT_FILTER_PARTIAL_CHUNKS = 2


def is_safe(order):
    """Whether the encoders survive: others read behind the end of what they are given, and corrupt the memory of the tests.
    Of two bitshuffles the first gets the parameters of both, which is no pipeline of anybody's."""
    if "bb" in order or sum(order.count(letter) for letter in "BZ0") > 1:
        return False
    return all(set(order[:i]) <= set(BEHIND.get(letter, FILTERS)) for i, letter in enumerate(order))


def plugin(kind):
    return lambda plist: plist.set_filter(kind.filter_id, OPTIONAL, tuple(kind.filter_options))


FILTERS = {  # letter: what adds the filter to a property list
    # set_deflate and the like change a filter that is there already
    "d": lambda plist: plist.set_filter(h5py.h5z.FILTER_DEFLATE, OPTIONAL, (4,)),
    "s": lambda plist: plist.set_filter(h5py.h5z.FILTER_SHUFFLE, OPTIONAL, ()),
    "f": lambda plist: plist.set_filter(h5py.h5z.FILTER_FLETCHER32, h5py.h5z.FLAG_MANDATORY, ()),
    "l": lambda plist: plist.set_filter(h5py.h5z.FILTER_LZF, OPTIONAL, ()),
    "b": plugin(hdf5plugin.Blosc()),
    "4": plugin(hdf5plugin.LZ4()),
    "z": plugin(hdf5plugin.Zstd()),
    "B": plugin(hdf5plugin.Bitshuffle(cname="lz4")),
    "Z": plugin(hdf5plugin.Bitshuffle(cname="zstd")),
    "0": plugin(hdf5plugin.Bitshuffle(cname="none")),
    "o": lambda plist: plist.set_scaleoffset(h5py.h5z.SO_INT, 0),
    "n": lambda plist: plist.set_filter(h5py.h5z.FILTER_NBIT, OPTIONAL, ()),
    "p": lambda plist: plist.set_szip(h5py.h5z.SZIP_NN_OPTION_MASK, 8),
}


def values(dtype):
    dtype = np.dtype(dtype)
    smooth = (np.arange(LENGTH) // 3 % 101).astype("<i8")
    noise = np.random.default_rng(5)
    if dtype.kind == "S":
        array = smooth.astype(dtype)
        array[CHUNK:2 * CHUNK] = np.frombuffer(noise.integers(1, 255, CHUNK * dtype.itemsize, "u1").tobytes(), dtype)
    else:
        array = smooth.astype(dtype)
        array[CHUNK:2 * CHUNK] = np.frombuffer(noise.bytes(CHUNK * dtype.itemsize), dtype)
    array[2 * CHUNK:3 * CHUNK] = np.zeros((), dtype)
    return array


def library():
    """The libhdf5 that h5py itself is linked with: netCDF4 and PyTables bring their own into the same process."""
    return ctypes.CDLL(h5py.h5p.__file__)


def plist_of(order, edges_unfiltered=False):
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((CHUNK,))
    for letter in order:
        FILTERS[letter](plist)
    if edges_unfiltered:
        assert library().H5Pset_chunk_opts(ctypes.c_int64(plist.id), ctypes.c_uint(DONT_FILTER_PARTIAL_CHUNKS)) >= 0
    return plist


def write(file, order, dtype, group="", edges_unfiltered=False):
    """Whether h5py could write the dataset, and reads it again."""
    name = f"{group}{order}_{np.dtype(dtype).str[1:]}".encode()
    try:
        kind, space = h5py.h5t.py_create(np.dtype(dtype)), h5py.h5s.create_simple((LENGTH,))
        plist = plist_of(order, edges_unfiltered)
        lcpl = h5py.h5p.create(h5py.h5p.LINK_CREATE)
        lcpl.set_create_intermediate_group(True)
        dataset = h5py.h5d.create(file.id, name, kind, space, plist, lcpl)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, values(dtype))
    except (OSError, ValueError, RuntimeError):
        return False
    return True


def write_orders(path, length, dtypes, libver="earliest", edges_unfiltered=False):
    """Every order of `length` filters, each as often as it likes for two, once for more. Returns the orders written."""
    orders = itertools.product(FILTERS, repeat=length) if length < 3 else itertools.permutations(FILTERS, length)
    done = []
    with h5py.File(path, "w", libver=libver) as file:
        for order in map("".join, orders):
            if not is_safe(order):
                continue
            for dtype in dtypes:
                if write(file, order, dtype, edges_unfiltered=edges_unfiltered):
                    done.append(order)
    return done


def write_masks(path):
    """Chunks stored by hand in each way that a mask can say, for orders of shuffle and deflate."""
    chunk = np.arange(CHUNK, dtype="<i4") * 7
    plain = chunk.tobytes()

    def shuffle(data):
        whole = len(data) // 4 * 4
        return np.frombuffer(data[:whole], "u1").reshape(-1, 4).T.tobytes() + data[whole:]

    steps = {"s": shuffle, "d": zlib.compress}
    with h5py.File(path, "w") as file:
        for order in map("".join, itertools.chain(itertools.permutations("sd", 2), ["dsd", "dds"])):
            dataset = h5py.Dataset(h5py.h5d.create(file.id, order.encode(), h5py.h5t.STD_I32LE,
                                                   h5py.h5s.create_simple(((1 << len(order)) * CHUNK - 100,)), plist_of(order)))
            for mask in range(1 << len(order)):
                data = plain
                for i, letter in enumerate(order):
                    if not mask >> i & 1:
                        data = steps[letter](data)
                dataset.id.write_direct_chunk((mask * CHUNK,), data, mask)
