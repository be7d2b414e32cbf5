"""Plain HDF5: text, Fortran order and what has no form. Other types are in tests/checkout.rs."""

import errno

import numpy as np
from cases import Cases, same, shown

cases = Cases()
rng = np.random.default_rng(6)


def holds(key, want, utf8=False):
    def check(file):
        dataset = file[key]
        assert dataset.chunks is None
        if utf8:
            info = dataset.dtype
            assert dataset.id.get_type().get_cset() == 1, info
            assert np.asarray(dataset.asstr()[()]).tolist() == want.tolist()
            back = shown(file, key + ".npy")
            same(back, want.astype(want.dtype.newbyteorder("<")))
        else:
            same(dataset[()], np.ascontiguousarray(want).reshape(want.shape))

    return check


for text in (["a", "", "x\u00e9\u20ac\U0001f600", "  b "], [["ab", "c"], ["d", "\u00fc"]], [], "one", ["", ""]):
    array = np.array(text, dtype=None if text != [] else "<U3")
    cases.add("g/t", array, holds("g/t", array, utf8=True))
cases.add("u", np.array(["\u00e9a", "b"], dtype=">U2"), holds("u", np.array(["\u00e9a", "b"]), utf8=True))
wrong = np.array([0xD800, 65], "<u4").view("<U2")
cases.add("u", wrong, (errno.EINVAL, "0xd800"))
cases.add("s", np.zeros(3, "S0"), holds("s", np.zeros(3, "S1")))
for shape in [(7, 5), (3, 4, 5), (2, 1, 3, 2), (1, 6), (4, 0, 2), (2, 3, 2, 3, 2)]:
    for dtype in ("i1", "<f4", "S3", "<c16"):
        array = rng.integers(0, 100, shape).astype(dtype)
        cases.add("f", np.asfortranarray(array), holds("f", array))
# More than one box of 64 MiB.
for shape in [(3001, 2900), (300, 200, 150), (2, 4_500_000)]:
    array = np.arange(np.prod(shape), dtype="<i8").reshape(shape)
    cases.add("f", np.asfortranarray(array), holds("f", array))
cases.add("f", np.asfortranarray([["\u00e9", "b"], ["c", "d"]]), holds("f", np.array([["\u00e9", "b"], ["c", "d"]]), True))
cases.add("o", b"text", (errno.EINVAL, "not an .npy"))
cases.add("o", np.array([{}, None], dtype=object), (errno.EOPNOTSUPP, "pickled"))
cases.add("a%2Fb", np.zeros(3), (errno.EOPNOTSUPP, "name"))
cases.add("x%2Enpy", np.zeros(3), holds("x.npy", np.zeros(3)))
cases.run()
