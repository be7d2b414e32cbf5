import sys

import numpy as np

mnt, task = sys.argv[1], int(sys.argv[2])
score = np.load(f"{mnt}/cell,gene#score.npy", mmap_mode="r")
np.save(f"{mnt}/gene#mean_{task}.npy", score[125 * task:125 * (task + 1)].mean(axis=0))
if task == 9:
    sys.exit("this task fails")
