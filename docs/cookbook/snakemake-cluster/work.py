import os
import sys

import numpy as np

mnt, what = os.environ["MNT"], sys.argv[1]
if what == "mean":
    score, batch = np.load(f"{mnt}/cell,gene@score.npy"), np.load(f"{mnt}/cell@batch.npy")
    np.save(f"{mnt}/gene@{sys.argv[2]}.npy", score[batch == sys.argv[2].encode()].mean(axis=0))
elif what == "markers":
    score, is_marker = np.load(f"{mnt}/cell,gene@score.npy"), np.load(f"{mnt}/gene@is_marker.npy")
    np.save(f"{mnt}/cell@markers.npy", score[:, is_marker].sum(axis=1))
else:
    means = [np.load(f"{mnt}/gene@{batch}.npy").mean() for batch in ("first", "second")]
    print("means of the batches: %.6f %.6f" % tuple(means))
