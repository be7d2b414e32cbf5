"""What Hangar staged, committed and taken back by npyfs; Hangar itself judges each result."""

import os

import pytest

from support import hangar
from support.process import npyfs, one_line
from support.sampling import Sample

# Starts a repository with a commit, or goes on from there, and leaves changes staged.
TURNS = Sample(__file__, "hangar").count(4, 10, "turns of Hangar and npyfs")

STAGE = '''
path, number = sys.argv[1], int(sys.argv[2])
repo = repository(path, user="Ann \\u00c9", email="ann@example.com")
rng = np.random.default_rng(number)
with contextlib.redirect_stdout(io.StringIO()):
    co = repo.checkout(write=True)
    if number == 0:
        co.add_ndarray_column("a", prototype=np.zeros((5, 4), "f4"))
        co.add_ndarray_column("flat", prototype=np.zeros(7, "i2"))
        co.add_ndarray_column("vary", prototype=np.zeros((9, 9), "u1"), variable_shape=True)
        co.add_ndarray_column("deep", prototype=np.zeros((2, 2), "i8"), contains_subsamples=True)
        co.add_str_column("text")
        co.add_bytes_column("raw")
    for i in range(5):
        key = number * 10 + i
        co["a"][key] = rng.random((5, 4)).astype("f4")
        co["flat"][f"k{key}"] = rng.integers(0, 1000, 7).astype("i2")
        co["vary"][key] = rng.integers(0, 255, (i + 1, 9)).astype("u1")
        co["deep"][key] = {"x": rng.integers(0, 9999, (2, 2)), 5: rng.integers(0, 9999, (2, 2))}
        co["text"][key] = f"text {key}"
        co["raw"][key] = f"bytes {key}".encode()
    if number:
        del co["a"][(number - 1) * 10]
        co["text"][(number - 1) * 10 + 1] = f"changed by {number}"
    co.close()
'''

# What Hangar thinks of a repository.
JUDGE = '''
path = sys.argv[1]
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    repo = Repository(path)
    told = tell(path)
    head = told["branches"]["master"]
    log = repo.log(branch="master", return_contents=True) if head else None
    locked = repo.writer_lock_held
    co = repo.checkout(write=True)
    status = co.diff.status()
    staged = columns(co)
    co.close()
    # Hangar cannot verify a repository in which something is staged.
    verified = repo.verify_repo_integrity() if head and status == "CLEAN" else None
print(json.dumps({"told": told, "head": head, "status": status, "staged": staged, "verified": verified, "locked": locked,
                  "log": log and {"order": log["order"], "specs": {k: v for k, v in log["specs"].items()},
                                  "ancestors": log["ancestors"]}}, default=str))
'''


def judge(path):
    return hangar.script(JUDGE, path)


def commit(path, message, *more):
    done = npyfs("checkout", "commit", "-m", message, *more, path, check=True)
    return done.stdout.strip()


def files(path):
    """Data files, committed and staged ones, by their markers."""
    found = {}
    for kind in ("data", "store_data", "stage_data"):
        top = path / ".hangar" / kind
        found[kind] = {f"{backend.name}/{entry.name.split('.')[0]}" for backend in top.iterdir() if backend.is_dir() for entry in backend.iterdir()}
    return found


@pytest.mark.slow
def test_hangar_takes_a_commit_of_ours_for_one_of_its_own(tmp_path):
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    before = judge(path)
    assert (before["status"], before["head"]) == ("DIRTY", "")
    message = 'first: "quoted" \u00e9 \U0001f600\n\nand more'
    first = commit(path, message, "--branch", "master")
    after = judge(path)
    assert after["status"] == "CLEAN" and after["verified"] is True and not after["locked"]
    assert after["head"] == first and after["log"]["order"] == [first]
    spec = after["log"]["specs"][first]
    assert (spec["commit_message"], spec["commit_user"], spec["commit_email"]) == (message, "Ann \u00c9", "ann@example.com")
    assert after["staged"] == before["staged"] == after["told"]["commits"][first]
    found = files(path)
    assert found["data"] == found["store_data"] and not found["stage_data"]
    # Hangar commits on top, then npyfs again, in turns.
    order = [first]
    for number in range(1, TURNS + 1):
        hangar.script(STAGE, path, str(number))
        staged = judge(path)
        assert staged["status"] == "DIRTY"
        if number % 2:
            order.insert(0, commit(path, f"commit {number}"))
        else:
            order.insert(0, hangar.script('''
with contextlib.redirect_stdout(io.StringIO()):
    co = Repository(sys.argv[1]).checkout(write=True)
    digest = co.commit(sys.argv[2])
    co.close()
print(json.dumps(digest))
''', path, f"commit {number}"))
        now = judge(path)
        assert now["status"] == "CLEAN" and now["verified"] is True and now["log"]["order"] == order
        assert now["log"]["ancestors"][order[0]] == [order[1]]
        assert now["told"]["commits"][order[0]] == staged["staged"]
    verified = npyfs("verify", path, check=True).stdout
    assert f"{TURNS + 1} commits" in verified and "all is well" in verified


def test_hangar_merges_a_commit_of_ours(tmp_path):
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    base = commit(path, "base")
    hangar.script('''
with contextlib.redirect_stdout(io.StringIO()):
    repo = Repository(sys.argv[1])
    repo.create_branch("side")
    co = repo.checkout(write=True, branch="side")
    co["text"]["side"] = "of the side"
    co.close()
''', path)
    refused = npyfs("checkout", "commit", "-m", "x", "--branch", "master", path)
    assert refused.returncode == 3 and "belongs to branch side" in one_line(refused.stderr)
    side = commit(path, "on the side", "--branch", "side")
    hangar.script('''
with contextlib.redirect_stdout(io.StringIO()):
    co = Repository(sys.argv[1]).checkout(write=True, branch="master")
    co["text"]["master"] = "of master"
    co.close()
''', path)
    master = commit(path, "on master")
    merged = hangar.script('''
with contextlib.redirect_stdout(io.StringIO()):
    co = Repository(sys.argv[1]).checkout(write=True, branch="master")
    digest = co.merge("merged", "side")
    co.close()
print(json.dumps(digest))
''', path)
    now = judge(path)
    assert now["verified"] is True and now["status"] == "CLEAN"
    assert now["log"]["ancestors"] == {merged: [master, side], master: [base], side: [base], base: [""]}
    texts = {tuple(keys[0].items()) for *keys, _ in now["told"]["commits"][merged]["text"]["samples"]}
    assert (("str", "side"),) in texts and (("str", "master"),) in texts


def test_reset_takes_back_what_hangar_staged(tmp_path):
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    first = commit(path, "first")
    clean = judge(path)
    kept = files(path)
    hangar.script(STAGE, path, "1")
    assert judge(path)["status"] == "DIRTY" and files(path)["stage_data"]
    said = npyfs("checkout", "reset", path, check=True).stdout
    assert "samples" in said
    now = judge(path)
    assert now["status"] == "CLEAN" and now["verified"] is True and now["head"] == first
    assert now["staged"] == clean["staged"]
    assert files(path) == kept
    # Again is no error, and Hangar goes on from here.
    npyfs("checkout", "reset", path, check=True)
    hangar.script(STAGE, path, "1")
    commit(path, "second")
    assert judge(path)["verified"] is True


def test_reset_before_the_first_commit(tmp_path):
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    npyfs("checkout", "reset", path, check=True)
    now = judge(path)
    assert now["status"] == "CLEAN" and now["staged"] == {}
    assert files(path)["data"] == set()


def test_reset_keeps_what_is_committed(tmp_path):
    """Hangar moves the branch before it forgets which samples are new: here it died in between."""
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    hangar.script('''
from hangar.records import hashs
hashs.clear_stage_hash_records = lambda env: os._exit(0)
co = Repository(sys.argv[1]).checkout(write=True)
co.commit("interrupted")
''', path)
    hangar.script("Repository(sys.argv[1]).force_release_writer_lock()", path)
    npyfs("checkout", "reset", path, check=True)
    now = judge(path)
    assert now["status"] == "CLEAN" and now["verified"] is True and now["head"]


def test_status_and_diff(tmp_path):
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    first = commit(path, "first")
    assert npyfs("checkout", "status", path, check=True).stdout == f"branch master, {first}\nnothing is staged\n"
    assert npyfs("checkout", "diff", path, check=True).stdout == ""
    refused = npyfs("checkout", "revert", path, first)
    assert refused.returncode == 1 and "a branch of its own" in refused.stderr and "npyfs checkout reset" in refused.stderr
    hangar.script('''
with contextlib.redirect_stdout(io.StringIO()):
    co = Repository(sys.argv[1]).checkout(write=True)
    co["a"]["5"] = np.ones((5, 4), "f4")
    co["a"][1] = np.ones((5, 4), "f4")
    del co["text"][3]
    del co["deep"][2]["x"]
    co.add_str_column("more")["k"] = "v"
    co.delete("raw") if hasattr(co, "delete") else co.columns.delete("raw")
    co.close()
''', path)
    status = npyfs("checkout", "status", path, check=True).stdout.splitlines()
    assert status[0] == f"branch master, {first}"
    assert status[1:] == ["a: 1 added, 1 modified, 0 deleted", "deep: 0 added, 0 modified, 1 deleted", "more: 1 added, 0 modified, 0 deleted",
                          "raw: 0 added, 0 modified, 5 deleted", "text: 0 added, 0 modified, 1 deleted"]
    diff = npyfs("checkout", "diff", path, check=True).stdout.splitlines()
    assert sorted(diff) == sorted(["M a/1.npy", "A a/%35.npy", "D deep/2/x.npy", "A more/", "A more/k.txt", "D raw/", "D text/3.txt",
                                   *(f"D raw/{i}.bin" for i in range(5))])


def test_refusals(tmp_path):
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    commit(path, "first")
    before = hangar.state(path / ".hangar")

    def refused(*arguments, code=3):
        done = npyfs("checkout", *arguments)
        assert done.returncode == code, done
        return one_line(done.stderr)

    assert "nothing is staged" in refused("commit", "-m", "again", path)
    hangar.script(STAGE, path, "1")
    assert "message" in refused("commit", "-m", "", path)
    assert "no Hangar repository" in refused("status", tmp_path, code=2)
    for flag in ("--ours", "--theirs", "--leave-out"):
        assert "not for a Hangar" in refused("commit", "-m", "x", flag, path, code=1)
    config = path / ".hangar/config_user.ini"
    text = config.read_text()
    config.write_text("[USER]\nname = x\n")
    assert "config_user.ini" in refused("commit", "-m", "x", path)
    config.write_text(text)
    assert before.keys() >= {"branch.lmdb"}
    commit(path, "second")
    assert judge(path)["verified"] is True


def test_a_commit_is_refused_when_the_branch_moved_or_is_another(tmp_path):
    """Who asks for a branch and a commit gets them or nothing: here Hangar commits in between."""
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    first = commit(path, "first")
    seen = npyfs("checkout", "status", path, check=True).stdout.splitlines()[0]
    assert seen == f"branch master, {first}"
    hangar.script("""
with contextlib.redirect_stdout(io.StringIO()):
    co = Repository(sys.argv[1]).checkout(write=True)
    co["text"]["other"] = "of another program"
    co.commit("in between")
    co.close()
""", path)
    hangar.script(STAGE, path, "1")
    before = judge(path)
    for arguments, reason in ((["--head", first], "branch master moved"), (["--branch", "side"], "belongs to branch master")):
        refused = npyfs("checkout", "commit", "-m", "mine", *arguments, path)
        assert refused.returncode == 3 and reason in one_line(refused.stderr), refused
    assert judge(path) == before
    second = before["head"]
    third = commit(path, "mine", "--branch", "master", "--head", second)
    now = judge(path)
    assert now["head"] == third and now["verified"] is True and now["log"]["ancestors"][third] == [second]


def test_the_lock_of_a_writer_of_hangar_is_respected(tmp_path):
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    commit(path, "first")
    hangar.script(STAGE, path, "1")
    writer = hangar.start('''
with contextlib.redirect_stdout(io.StringIO()):
    co = Repository(sys.argv[1]).checkout(write=True)
print(co._writer_lock, flush=True)
sys.stdin.readline()
with contextlib.redirect_stdout(io.StringIO()):
    co["text"]["late"] = "late"
    co.close()
''', path)
    try:
        lock = writer.stdout.readline().strip()
        for command in (["commit", "-m", "x"], ["reset"]):
            done = npyfs("checkout", *command, path)
            assert done.returncode == 3 and lock in one_line(done.stderr)
        assert lock in npyfs("checkout", "status", path, check=True).stdout
        writer.stdin.write("\n")
        writer.stdin.flush()
        assert writer.wait(60) == 0
    finally:
        writer.kill()
        writer.wait(20)
        writer.stdin.close()
        writer.stdout.close()
    commit(path, "second")
    now = judge(path)
    assert now["verified"] is True and not now["locked"]
    # A writer that was killed keeps the lock; only the user takes it away.
    hangar.script("co = Repository(sys.argv[1]).checkout(write=True); co['text']['k'] = 'v'; os._exit(0)", path)
    done = npyfs("checkout", "commit", "-m", "x", path)
    assert done.returncode == 3 and "force-release" in one_line(done.stderr)


def test_a_lock_that_npyfs_left_is_taken_away(tmp_path):
    path = tmp_path / "repo"
    hangar.script(STAGE, path, "0")
    host = os.uname().nodename
    left = '''
import lmdb
env = lmdb.open(sys.argv[1] + "/.hangar/branch.lmdb", subdir=False, lock=False, map_size=50_000_000_000)
with env.begin(write=True) as txn:
    txn.put(b"writerlock:", sys.argv[2].encode())
'''
    hangar.script(left, path, "npyfs:other-host-x:1:0123456789abcdef")
    done = npyfs("checkout", "commit", "-m", "x", path)
    assert done.returncode == 3 and "npyfs on host other-host-x, process 1" in one_line(done.stderr)
    hangar.script(left, path, f"npyfs:{host}:1:0123456789abcdef")
    commit(path, "first")
    now = judge(path)
    assert now["verified"] is True and not now["locked"]
