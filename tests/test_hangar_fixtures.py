"""A repository that real Hangar wrote, with what Hangar reads from it: every sample of every commit, both branches, the stage."""

import json
import tarfile

import pytest

from support import hangar
from support.mount import Mount


@pytest.fixture
def small(shared, tmp_path):
    with tarfile.open(shared / "hangar/small.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "small", json.loads((shared / "hangar/small.manifest.json").read_text())


def test_every_sample_of_every_commit_branch_and_the_stage(small):
    repository, manifest = small
    before = hangar.state(repository)
    with Mount(repository) as m:
        assert sorted(p.name for p in m.path.iterdir()) == ["branches", "commits", "records", "remotes", "stage"]
        assert sorted(p.name for p in (m / "branches").iterdir()) == sorted(manifest["branches"])
        assert sorted(p.name for p in (m / "commits").iterdir()) == sorted(manifest["commits"])
        samples = 0
        for branch, digest in manifest["branches"].items():
            samples += hangar.check(m / "branches" / branch, manifest["commits"][digest])
        for digest, columns in manifest["commits"].items():
            samples += hangar.check(m / "commits" / digest, columns)
        samples += hangar.check(m / "stage", manifest["stage"])
        assert samples > 300
        assert m.errors() == []
    assert hangar.state(repository) == before, "a read-only mount changed the repository"
