"""A Snakemake workflow whose inputs and outputs are in a checkout: it runs once, then does nothing, and after a change of one input
makes anew exactly what depends on it. Judges: what Snakemake says that it runs, and NumPy and h5py on what is there then."""

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.mount import Mount

SNAKEMAKE = os.environ.get("NPYFS_SNAKEMAKE", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not SNAKEMAKE, reason="NPYFS_SNAKEMAKE names no snakemake: workflows are NOT tested (tests/run installs it)"),
]

WORKFLOW = """
SAMPLES = ["a", "b", "c"]

rule all:
    input: "MNT/total.npy"

rule double:
    input: "MNT/in_{sample}.npy"
    output: "MNT/doubled/{sample}.npy"
    shell: "PYTHON -c 'import sys, numpy as np; np.save(sys.argv[2], 2 * np.load(sys.argv[1]))' {input} {output}; echo double {wildcards.sample} >> LOG"

rule total:
    input: expand("MNT/doubled/{sample}.npy", sample=SAMPLES)
    output: "MNT/total.npy"
    shell: "PYTHON -c 'import sys, numpy as np; np.save(sys.argv[-1], sum(map(np.load, sys.argv[1:-1])))' {input} {output}; echo total >> LOG"
"""


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "store.h5"
    with h5py.File(path, "w") as file:
        for k, name in enumerate("abc"):
            file[f"in_{name}"] = np.arange(4.0) + k
    return path


@pytest.fixture
def run(tmp_path):
    """Runs the workflow in a mount; the jobs that it did."""
    log = tmp_path / "log"
    (tmp_path / "work").mkdir()

    def workflow(mount):
        text = WORKFLOW.replace("MNT", str(mount)).replace("PYTHON", sys.executable).replace("LOG", str(log))
        (tmp_path / "work" / "Snakefile").write_text(text)
        log.write_text("")
        # The working directory of Snakemake itself is a real one: it keeps databases there.
        done = subprocess.run([SNAKEMAKE, "--cores", "2", "--quiet", "all", "--rerun-triggers", "mtime"], cwd=tmp_path / "work",
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=150,
                              env={**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")})
        assert done.returncode == 0, done.stdout + done.stderr
        return sorted(log.read_text().splitlines())

    return workflow


def test_a_workflow_makes_what_is_missing_or_older_than_its_inputs(store, run, tmp_path):
    point = tmp_path / "mnt"
    point.mkdir()
    with Mount(store, checkout="flow", point=point, limit=380) as m:
        assert run(m.path) == ["double a", "double b", "double c", "total"]
        np.testing.assert_array_equal(np.load(m / "total.npy"), 2 * (3 * np.arange(4.0) + 3))
        assert run(m.path) == []
    with Mount(store, checkout="flow", point=point, limit=380) as m:
        assert run(m.path) == [], "the times are others after the next mount"
        np.save(m / "in_b.npy", np.full(4, 10.0))
        assert run(m.path) == ["double b", "total"]
        want = 2 * (np.arange(4.0) + 10 + np.arange(4.0) + 2)
        np.testing.assert_array_equal(np.load(m / "total.npy"), want)
        assert run(m.path) == []
    stored = {}
    for path in Path(f"{store}.checkouts").rglob("*.h5"):
        with h5py.File(path) as file:
            file.visititems(lambda name, item: stored.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    np.testing.assert_array_equal(stored["total"], want)
    assert set(stored) == {"in_b", "doubled/a", "doubled/b", "doubled/c", "total"}
