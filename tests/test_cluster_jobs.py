"""Job scripts of the cookbook that fail, or are ended: nothing stays mounted, nothing half is committed. Judges: the kernel's table of mounts, and
h5py on an export."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.documents import below, guarded
from support.mount import until
from support.process import NPYFS, npyfs

COOKBOOK = Path(__file__).resolve().parent.parent / "docs/cookbook"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200), pytest.mark.sample("cluster", 1)]

# Writes two arrays, tells, and waits or fails between them. MNT names the mount, or the first argument does.
WORK = """
import os, sys, time
import numpy as np
mnt = os.environ.get("MNT") or sys.argv[1]
np.save(f"{mnt}/one.npy", np.ones(3))
open("begun", "w").close()
how = open("how").read()
if how == "wait":
    time.sleep(100)
if how == "fail":
    sys.exit(7)
np.save(f"{mnt}/two.npy", np.full(3, 2.0))
"""


@pytest.fixture(params=["in-checkout", "trap.sbatch"])
def job(request, tmp_path):
    """Starts a job that does `how` between its arrays."""
    store = tmp_path / "store.h5"
    with h5py.File(store, "w") as file:
        file["x"] = np.arange(10.0)
    (tmp_path / "mean.py").write_text(WORK)
    (tmp_path / "temporary").mkdir()
    path = f"{os.path.dirname(NPYFS)}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    scripts = {"in-checkout": [COOKBOOK / "snakemake-cluster/in-checkout", store, "python3", "mean.py"], "trap.sbatch": [COOKBOOK / "slurm/trap.sbatch"]}
    with guarded(tmp_path, 180) as (name, _, value):
        def start(how):
            (tmp_path / "how").write_text(how)
            (tmp_path / "begun").unlink(missing_ok=True)
            env = {**os.environ, "PATH": path, "TMPDIR": str(tmp_path / "temporary"), "STORE": str(store), "SLURM_ARRAY_JOB_ID": "5",
                   "SLURM_ARRAY_TASK_ID": "1", name: value}
            process = subprocess.Popen(scripts[request.param], cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL, start_new_session=True)
            until((tmp_path / "begun").exists, "the job's first array")
            return process

        start.store, start.folder = store, tmp_path
        yield start


def left(job):
    return below(job.folder), list((job.folder / "temporary").iterdir())


def committed(job):
    out = job.folder / "out.h5"
    npyfs("checkout", "export", job.store, out, check=True)
    with h5py.File(out) as file:
        return {name: item[()].tolist() for name, item in file.items() if name != "x"}


def test_a_job_that_is_done_is_committed(job):
    assert job("go on").wait(60) == 0
    assert left(job) == ([], [])
    assert committed(job) == {"one": [1.0] * 3, "two": [2.0] * 3}


def test_a_job_that_fails_commits_nothing(job):
    assert job("fail").wait(60) == 7
    assert left(job) == ([], [])
    assert committed(job) == {}


def test_a_job_that_is_told_to_end_unmounts(job):
    process = job("wait")
    assert below(job.folder)
    # To the script alone, as Slurm does with B:TERM.
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert left(job) == ([], [])
    assert committed(job) == {}
