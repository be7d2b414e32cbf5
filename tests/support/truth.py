"""What a virtual file must contain, said by h5py and NumPy alone."""

import hashlib
import io
import os
import warnings

import h5py
import numpy as np


def np_save(array):
    """The bytes of np.save."""
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # np.save says when it chooses format 2.0 or 3.0
        np.save(stream, array, allow_pickle=False)
    return stream.getvalue()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def without_metadata(dtype):
    """The same dtype without the remarks h5py hangs on it (enum, string and opaque tags)."""
    if dtype.subdtype:
        return np.dtype((without_metadata(dtype.subdtype[0]), dtype.subdtype[1]))
    if dtype.names:
        fields = [dtype.fields[name] for name in dtype.names]
        return np.dtype({"names": list(dtype.names), "formats": [without_metadata(field[0]) for field in fields],
                         "offsets": [field[1] for field in fields], "itemsize": dtype.itemsize})
    return np.dtype(dtype.str) if dtype.metadata else dtype


def text_array(values, shape, utf8):
    """Variable-length texts (a flat list of bytes) at the smallest fixed width: the rules of docs/reading.md."""
    if utf8:
        try:
            texts = [value.decode("utf-8") for value in values]
        except UnicodeDecodeError:
            pass
        else:
            return np.array(texts, dtype=f"<U{max([1, *map(len, texts)])}").reshape(shape)
    return np.array(values, dtype=f"|S{max([1, *map(len, values)])}").reshape(shape)


def in_order(dtype):
    """The same dtype with its members in the order in which they lie, as np.save demands."""
    if dtype.subdtype:
        return np.dtype((in_order(dtype.subdtype[0]), dtype.subdtype[1]))
    if not dtype.names:
        return dtype
    names = sorted(dtype.names, key=lambda name: dtype.fields[name][1])
    return np.dtype({"names": names, "formats": [in_order(dtype.fields[name][0]) for name in names],
                     "offsets": [dtype.fields[name][1] for name in names], "itemsize": dtype.itemsize})


def visible_members(array):
    """What h5py reads of a compound, texts at a fixed width and without what .npy cannot hold: packed if that changes
    anything. None: nothing of it can be shown."""
    if not array.dtype.names:
        if not array.dtype.hasobject:
            return array
        text = h5py.check_string_dtype(array.dtype)
        if text is None:
            return None  # references, sequences
        flat = [value if isinstance(value, bytes) else (value or "").encode("utf-8", "surrogateescape") for value in array.ravel()]
        return text_array(flat, array.shape, text.encoding == "utf-8")
    if not array.dtype.hasobject:
        return array
    columns = {name: visible_members(array[name]) for name in in_order(array.dtype).names}
    columns = {name: column for name, column in columns.items() if column is not None}
    if not columns:
        return None
    shown = np.zeros(array.shape, [(name, column.dtype, column.shape[array.ndim:]) for name, column in columns.items()])
    for name, column in columns.items():
        shown[name] = column
    return shown


def visible_array(dataset):
    """The array that a dataset shows as, read by h5py; None if nothing of it can be shown."""
    text = h5py.check_string_dtype(dataset.dtype)
    if text is None:
        array = np.asarray(dataset[...])
        if array.dtype.hasobject and not array.dtype.names:  # h5py forgets what the objects are
            array = array.astype(dataset.dtype.base)
        array = visible_members(array)
        if array is None:
            return None
        return np.ascontiguousarray(array).reshape(array.shape).view(in_order(without_metadata(array.dtype)))
    utf8 = text.encoding == "utf-8"
    if text.length is None:
        values = np.asarray(dataset[()], dtype=object)
        flat = [value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape") for value in values.ravel()]
        return text_array(flat, values.shape, utf8)
    array = np.asarray(dataset[...], dtype=f"|S{text.length}")
    values = array.ravel().tolist()  # without the padding
    if utf8 and any(not value.isascii() for value in values):
        shown = text_array(values, array.shape, True)
        return shown if shown.dtype.kind == "U" else array
    return array


def walk(path):
    """{visible path: array} of a plain store whose names need no escapes and that has no links."""
    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            found[f"{name}.npy"] = visible_array(item)

    with h5py.File(path, "r") as file:
        file.visititems(visit)
    return found


def read(path):
    with open(path, "rb", buffering=0) as stream:
        return stream.readall()


def problems_of(path, truth):
    """Everything in which the file at `path` differs from np.save of `truth`; an empty list is right."""
    expected = np_save(truth)
    found = []
    try:
        size = os.stat(path).st_size
        if size != len(expected):
            found.append(f"size {size}, np.save writes {len(expected)}")
        data = read(path)
        if data != expected:
            differs = next((i for i, (a, b) in enumerate(zip(data, expected)) if a != b), min(len(data), len(expected)))
            found.append(f"bytes differ at {differs} of {len(expected)}: {data[differs:differs + 16]!r}, "
                         f"np.save has {expected[differs:differs + 16]!r}; header {data[:128]!r}")
        found += loading_problems(path, truth)
    except OSError as problem:
        found.append(f"{type(problem).__name__}: {problem.strerror} (errno {problem.errno})")
    return found


def loading_problems(path, truth):
    found = []
    # NumPy cannot map an array without bytes: "cannot mmap an empty file"
    for mode in (None, "r") if truth.size else (None,):
        try:
            loaded = np.load(path, mmap_mode=mode, max_header_size=1 << 20)
        except (ValueError, EOFError, Warning) as problem:  # warnings are errors here: pytest.ini
            found.append(f"np.load(mmap_mode={mode!r}): {problem}")
            continue
        if (loaded.dtype, loaded.shape) != (truth.dtype, truth.shape):
            found.append(f"np.load(mmap_mode={mode!r}): {loaded.dtype} {loaded.shape}, not {truth.dtype} {truth.shape}")
        elif loaded.tobytes() != truth.tobytes():
            found.append(f"np.load(mmap_mode={mode!r}): other values")
        del loaded
    return found


def assert_all(folder, truths, *, at_least):
    """Every entry of `truths` under `folder` is right; one message names all that are not."""
    assert len(truths) >= at_least, f"the generator made {len(truths)} datasets, meant were {at_least} or more"
    wrong = {name: found for name, truth in truths.items() if (found := problems_of(os.path.join(folder, name), truth))}
    lines = [f"  {name}: {'; '.join(found)}" for name, found in list(wrong.items())[:40]]
    assert not wrong, "\n".join([f"{len(wrong)} of {len(truths)} files are wrong", *lines])
