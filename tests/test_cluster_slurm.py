"""Prolog and epilog of docs/cookbook/slurm on a machine with users: whose mounts they are, and what is left when something goes wrong.
Judges: findmnt, the users themselves, and h5py on an export."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from support.host import ANN, BOB, Host
from support.process import npyfs

RECIPE = Path(__file__).resolve().parent.parent / "docs/cookbook/slurm"
PASSWD = f"root:x:0:0::/root:/bin/sh\nann:x:{ANN}:{ANN}::FOLDER/ann:/bin/sh\nbob:x:{BOB}:{BOB}::FOLDER:/bin/sh\n"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200), pytest.mark.sample("cluster", 2, together=True)]


@pytest.fixture
def node(root_only):
    """A node with a store of Ann's that nobody else may read."""
    with Host(files={"/etc/passwd": PASSWD}, limit=180) as host:
        store = host.folder / "ann/x.h5"
        store.parent.mkdir()
        with h5py.File(store, "w") as file:
            file["x"] = np.arange(10.0)
        for path in (store, store.parent):
            path.chmod(0o700)
            host("chown", f"{ANN}:{ANN}", path)
        host.conf = host.folder / "slurm.conf"
        host.conf.write_text(f"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin\nMOUNTS={host.folder}/mounts\n"
                             f'STORES=("gone /nowhere.h5" "x {store} --checkout JOB")\n')
        for name in ("prolog", "epilog"):
            host.install(RECIPE / name, name)
        host.store = store
        yield host


def slurm(node, script, job, user=ANN, name="ann"):
    """As slurmd calls it: as root, with these variables and without a PATH."""
    node("env", "-i", f"SLURM_JOB_ID={job}", f"SLURM_JOB_UID={user}", f"SLURM_JOB_USER={name}", "SLURMD_NODENAME=n1", f"NPYFS_SLURM={node.conf}",
         node.folder / script)


def point(node, job):
    return node.folder / f"mounts/{job}/x"


def save(node, job, value, **keywords):
    """The user of the job writes an array, by cp."""
    array = node.folder / "array.npy"
    np.save(array, np.full(3, value))
    array.chmod(0o644)
    return node("cp", array, point(node, job) / "y.npy", user=ANN, **keywords)


def test_a_job_has_mounts_of_its_users_own(node):
    slurm(node, "prolog", 7)
    kind, source, options = node.mounted(point(node, 7))
    assert kind == "fuse.npyfs" and str(node.store) in source and f"user_id={ANN}" in options
    assert node.files_in(point(node, 7), user=ANN) == ["x.npy"]
    # Not even root.
    for user in (BOB, None):
        assert node("ls", point(node, 7), user=user, code=None).returncode != 0
    assert node("ls", "-A", node.folder / "mounts/7/gone", user=ANN).stdout == ""
    save(node, 7, 1.5)
    slurm(node, "epilog", 7)
    assert node.mounted(point(node, 7)) is None and list((node.folder / "mounts").iterdir()) == []
    assert node.daemons() == []
    # All is stored, and nothing committed.
    assert "y.npy" in node("npyfs", "checkout", "diff", node.store, "job-7-n1", user=ANN).stdout
    assert node("npyfs", "ls", node.store, user=ANN).stdout.split() == ["x.npy"]
    node("npyfs", "checkout", "commit", node.store, "job-7-n1", user=ANN)
    out = node.folder / "out.h5"
    npyfs("checkout", "export", node.store, out, check=True)
    with h5py.File(out) as file:
        assert file["y"][()].tolist() == [1.5] * 3 and file["x"][()].tolist() == list(range(10))


def test_jobs_at_a_time_have_a_checkout_each(node):
    for job in (1, 2):
        slurm(node, "prolog", job)
    for job in (1, 2):
        save(node, job, float(job))
    slurm(node, "epilog", 1)
    assert node.mounted(point(node, 1)) is None and node.mounted(point(node, 2))
    slurm(node, "epilog", 2)
    for job in (1, 2):
        assert "y.npy" in node("npyfs", "checkout", "diff", node.store, f"job-{job}-n1", user=ANN).stdout


def test_the_epilog_takes_dead_mounts_away(node):
    slurm(node, "prolog", 7)
    save(node, 7, 2.5)
    node("sync", point(node, 7) / "y.npy", user=ANN)
    for line in node.daemons():
        node("kill", "-KILL", line.split()[0])
    slurm(node, "epilog", 7)
    assert node.mounted(point(node, 7)) is None and list((node.folder / "mounts").iterdir()) == []
    assert "y.npy" in node("npyfs", "checkout", "diff", node.store, "job-7-n1", user=ANN).stdout


def test_the_store_decides_who_reads_it(node):
    slurm(node, "prolog", 8, BOB, "bob")
    assert node.mounted(point(node, 8)) is None and node.files_in(point(node, 8), user=BOB) == []
    slurm(node, "epilog", 8, BOB, "bob")
    assert list((node.folder / "mounts").iterdir()) == []
