import dask.array as da
import numpy as np

# The map is not read here: each task touches its rows, and npyfs decodes these.
score = np.load("mnt/cell,gene#score.npy", mmap_mode="r")
score = da.from_array(score, chunks=(250, -1))

print(score.shape, "in", score.npartitions, "parts")
mean = score.mean(axis=0).compute(scheduler="threads", num_workers=4)
names = np.load("mnt/gene#.npy")
print("highest mean:", names[mean.argmax()].decode())
