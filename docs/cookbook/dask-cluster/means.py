import sys

import dask.array as da
import numpy as np
import zarr
from distributed import Client, get_worker
from npyfs_dask import Npyfs, commit, view


def mean_of_rows(path, first):
    """Reads rows from the Zarr view, and writes their mean into this worker's checkout."""
    rows = zarr.open_array(path, mode="r")[first:first + 125]
    out, checkout = get_worker().plugins["npyfs"].out()
    np.save(out / f"gene#mean_{first:03}.npy", rows.mean(axis=0, dtype="f8"))
    return checkout


scheduler, store = sys.argv[1:]
with Client(scheduler_file=scheduler, timeout=60) as client, view(store) as mount:
    client.register_plugin(Npyfs(store))
    path = mount.point / "cell,gene#score"

    print("mean of all: %.6f" % da.from_zarr(path).mean(dtype="f8").compute())

    tasks = client.map(mean_of_rows, [path] * 8, range(0, 1000, 125), pure=False, retries=2)
    checkouts = client.gather(tasks)
    commit(client, "means of 125 cells each", checkouts)
    print(len(checkouts), "tasks are done and committed")
