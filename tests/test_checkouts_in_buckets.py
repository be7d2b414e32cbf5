"""Checkouts in buckets (`--checkouts s3://bucket/prefix/`): written by one host, seen and carried on by others, whatever answers are
lost and whoever is killed. The services are moto and Azurite; judges are NumPy through mounts of other hosts, and h5py on the objects."""

import io
import itertools
import json
import os
import re
import signal
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest

from support import hosts as hosts_of_another_time
from support.buckets import S3, Azure
from support.checkouts import write_plain
from support.lossy import Lossy
from support.mount import Mount, until
from support.process import npyfs, one_line, signal_all, workers
from support.sampling import Sample
from support.weather import closed_port

SAMPLE = Sample(__file__, "bucket")
ROUNDS = SAMPLE.count(3, 20)
NO_STORE, REFUSED = 2, 3


class S3Place(S3):
    """A bucket of S3, as hosts see it: `place.url` is that of checkouts in it."""

    checkouts = "s3://data/dir/x.checkouts/"

    def variables(self, url):
        return {**self.env, "AWS_ENDPOINT_URL": url}

    def begin(self):
        self.put("data", "other", b"1")

    def objects(self, below="dir/x.checkouts/"):
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket="data", Prefix=below)
        keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
        return {key.removeprefix(below): key for key in keys}

    def read(self, key):
        return self.client.get_object(Bucket="data", Key=key)["Body"].read()


class AzurePlace(Azure):
    """A container of Azure, as `S3Place`."""

    checkouts = "az://data/dir/x.checkouts/"

    def variables(self, url):
        return {**self.env, "AZURE_STORAGE_ENDPOINT": url, "AZURE_ENDPOINT": url}

    def begin(self):
        self.put("data", "other", b"1")

    def objects(self, below="dir/x.checkouts/"):
        text = self.ask("GET", "data", {"restype": "container", "comp": "list", "prefix": below}).decode()
        keys = [part.split("</Name>")[0] for part in text.split("<Name>")[1:]]
        return {key.removeprefix(below): key for key in keys}

    def read(self, key):
        return self.ask("GET", f"data/{key}")


@pytest.fixture(params=[S3Place, AzurePlace], ids=["s3", "azure"])
def place(request):
    with request.param() as place:
        place.begin()
        yield place


@pytest.fixture
def s3():
    with S3Place() as place:
        place.begin()
        yield place


@pytest.fixture
def store(tmp_path):
    write_plain(tmp_path / "x.h5")
    return tmp_path / "x.h5"


class Host:
    """What one host knows: `host.mount(...)`, `host.checkout(command, ...)`. Hosts share nothing but the store and the bucket."""

    def __init__(self, folder, place, store, url=None):
        folder.mkdir(parents=True, exist_ok=True)
        self.place, self.store = place, store
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "AZURE_"))}
        self.options = "endpoint=" + (url or place.url)
        self.env = {**clean, **place.variables(url or place.url), "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"),
                    "XDG_CACHE_HOME": str(folder / "cache"), "AWS_EC2_METADATA_DISABLED": "true"}

    def mount(self, checkout=None, options="", **more):
        options = ",".join(filter(None, [self.options, options]))
        return Mount(self.store, options, checkout=checkout, checkouts=self.place.checkouts, env=self.env, **more)

    def checkout(self, command, *arguments, code=0, timeout=90):
        done = npyfs("checkout", command, "-o", self.options, "--checkouts", self.place.checkouts, *arguments, env=self.env, timeout=timeout)
        assert code is None or done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
        return done

    def commit(self, name, **more):
        return self.checkout("commit", self.store, name, **more)

    def shown(self):
        """The arrays that a mount of this host shows, by name."""
        with self.mount() as mount:
            return {path.stem: np.load(path) for path in sorted(mount.path.glob("*.npy")) if path.stem not in "ab"}


@pytest.fixture
def hosts(tmp_path, store, request):
    place = request.getfixturevalue("place" if "place" in request.fixturenames else "s3")
    return [Host(tmp_path / name, place, store) for name in ("one", "two", "three")]


def test_a_service_that_is_not_there_is_said_in_words(tmp_path, store, s3):
    host = Host(tmp_path / "one", s3, store, url=f"http://127.0.0.1:{closed_port()}")
    done = npyfs("checkout", "ls", "-o", f"{host.options},timeout=2", "--checkouts", s3.checkouts, store, env=host.env)
    said = one_line(done.stderr)
    assert done.returncode in (NO_STORE, REFUSED) and "s3://data/dir/x.checkouts/" in said and "Connection refused" in said, said
    assert not any(word in said for word in ("Generic", "performing", "µs", "ms -", "http://")), said


def save(mount, name, array):
    """Writes an array, and returns once it would survive the loss of the host."""
    np.save(mount / f"{name}.npy", array)
    handle = os.open(mount / f"{name}.npy", os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@pytest.mark.parametrize("name", ["work/lease.", "work/part.", "commits/00000000000000000001.json"])
def test_what_a_newer_version_wrote_is_refused_by_name_and_stays(s3, hosts, store, name):
    one, two, _ = hosts
    with one.mount("first") as mount:
        save(mount, "n0", np.arange(2))
    one.commit("first")
    with one.mount("work") as mount:
        save(mount, "n1", np.arange(3))
    key = max(key for found, key in s3.objects().items() if found.startswith(name))
    text = s3.read(key)
    newer = re.sub(rb"npyfs (lease|part|commit) 1", rb"npyfs \1 2", text, count=1)
    assert newer != text and newer.index(b"2") < 30
    s3.put("data", key, newer)
    before = {key: s3.read(key) for key in s3.objects().values()}
    for refused in (two.commit("work", code=REFUSED), two.checkout("discard", store, "work", code=None)):
        assert refused.returncode and key in refused.stderr and "written by a newer npyfs: form 2" in refused.stderr, refused
        assert {key: s3.read(key) for key in s3.objects().values()} == before


def test_a_copy_of_a_newer_version_is_refused_by_name_and_stays(s3, hosts, store):
    one, two, _ = hosts
    with one.mount("work") as mount:
        save(mount, "n1", np.arange(3))
    [address] = Path(one.env["XDG_STATE_HOME"]).rglob(".address")
    address.write_text(address.read_text().replace("npyfs copy 1", "npyfs copy 2", 1))
    before = {path: path.read_bytes() for path in address.parent.rglob("*") if path.is_file()}
    objects = s3.objects()
    for refused in (one.commit("work", code=REFUSED), one.checkout("ls", store, code=None)):
        assert refused.returncode and "/.address: written by a newer npyfs: form 2" in refused.stderr, refused
        assert {path: path.read_bytes() for path in address.parent.rglob("*") if path.is_file()} == before and s3.objects() == objects
    # Another host has its own.
    two.commit("work")


@pytest.mark.timeout(120)
def test_what_one_host_writes_others_see_and_carry_on(place, hosts, store):
    one, two, three = hosts
    with one.mount("work") as mount:
        save(mount, "n1", np.arange(10))
        # What `fsync` has answered is there, as an HDF5 file that anybody reads.
        [key] = [key for name, key in place.objects().items() if name.endswith(".h5")]
        with h5py.File(io.BytesIO(place.read(key))) as file:
            assert np.array_equal(file["n1"], np.arange(10))
        # Two hosts cannot write in one checkout; the second is told of the first.
        assert "npyfs mount at" in two.checkout("ls", store).stdout
        assert "writes in this checkout" in one_line(two.commit("work", code=REFUSED).stderr)
        refused = npyfs("mount", "-o", two.options, "--checkouts", place.checkouts, "--checkout", "work", store, mount.path.parent, env=two.env)
        assert refused.returncode == NO_STORE and "writes in this checkout" in refused.stderr
    with two.mount("work") as mount:
        assert np.array_equal(np.load(mount / "n1.npy"), np.arange(10))
        save(mount, "n2", np.arange(300000.0).reshape(3, -1))
        os.remove(mount / "a.npy")
    # The first has an old copy.
    with one.mount("work") as mount:
        assert np.load(mount / "n2.npy").shape == (3, 100000) and not (mount / "a.npy").exists()
    assert "commit 1: 3 changes" in three.commit("work").stdout
    for host in hosts:
        shown = host.shown()
        assert np.array_equal(shown["n1"], np.arange(10)) and np.array_equal(shown["n2"], np.arange(300000.0).reshape(3, -1))
        with host.mount() as mount:
            assert not (mount / "a.npy").exists()
    out = store.with_name("out.h5")
    two.checkout("export", store, out)
    with h5py.File(out) as file:
        assert sorted(file) == ["b", "g", "n1", "n2"]
    one.checkout("revert", store, json.loads(place.read(place.objects()["commits/00000000000000000001.json"]))["id"])
    assert three.shown() == {}


@pytest.mark.timeout(120)
def test_names_are_never_used_again(s3, hosts, store):
    one, two, _ = hosts
    for host, value in [(one, 1), (two, 2), (one, 3)]:
        with host.mount("work") as mount:
            save(mount, "n", np.full(5, value))
        before = {name for name in s3.objects() if name.endswith(".h5")}
        host.checkout("discard", store, "work")
        assert not {name for name in s3.objects() if name.endswith(".h5")}
        assert len(before) == 1
        with host.mount("work") as mount:
            assert not (mount / "n.npy").exists()
            save(mount, "n", np.full(5, -value))
        after = {name for name in s3.objects() if name.endswith(".h5")}
        assert after and not before & after
        with (two if host is one else one).mount("work", options="ro") as mount:
            assert np.array_equal(np.load(mount / "n.npy"), np.full(5, -value))
        host.checkout("discard", store, "work")


@pytest.mark.timeout(120)
def test_what_a_host_that_died_had_not_uploaded_comes_later(s3, hosts, store, tmp_path):
    def stored():
        return len([name for name in s3.objects() if name.endswith(".h5")])

    with Lossy(s3.url) as lossy:
        host = Host(tmp_path / "four", s3, store, lossy.url)
        with host.mount("work") as mount:
            save(mount, "n1", np.full(3, 1))
            lossy.fault = lambda method, path: "refused" if method == "PUT" and ".h5" in path else None
            np.save(mount / "n2.npy", np.full(3, 2))
            until(lambda: lossy.fates.get("refused"), "an upload that is refused")
            mount.expect_dead = True
            os.kill(mount.pid, signal.SIGKILL)
            until(lambda: not mount.alive(), "the end")
        assert stored() == 1
        # Others must wait until it is known to be dead; on the same host it goes on at once.
        assert "if it is dead" in hosts[1].commit("work", code=REFUSED).stderr
        lossy.fault = lambda method, path: None
        with host.mount("work") as mount:
            until(lambda: stored() == 2, "the upload of what was left")
            assert np.array_equal(np.load(mount / "n2.npy"), np.full(3, 2))
    hosts[1].commit("work")
    assert {name: value[0] for name, value in hosts[2].shown().items()} == {"n1": 1, "n2": 2}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("fate", ["refused", "failed"])
def test_a_bucket_that_does_not_answer_for_long_is_told_and_waited_for(s3, hosts, store, tmp_path, fate):
    with Lossy(s3.url) as lossy:
        host = Host(tmp_path / "four", s3, store, lossy.url)
        with host.mount("work", options="timeout=1") as mount:
            save(mount, "n1", np.full(3, 1))
            # Longer than it is asked again: whether the part was made is known to nobody here.
            lossy.fault = lambda method, path: fate if "/part." in path else None
            with pytest.raises(OSError):
                save(mount, "n2", np.full(3, 2))
            lossy.fault = lambda method, path: None
            save(mount, "n3", np.full(3, 3))
            with hosts[1].mount("work", options="ro") as other:
                assert {path.stem: np.load(path)[0] for path in other.path.glob("n*.npy")} == {"n1": 1, "n2": 2, "n3": 3}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_checkout_of_a_dead_host_is_free_after_a_while(s3, hosts, store):
    one, two, _ = hosts
    with one.mount("work") as mount:
        save(mount, "n1", np.full(3, 1))
        mount.expect_dead = True
        os.kill(mount.pid, signal.SIGSTOP)
        try:
            assert "if it is dead" in two.commit("work", code=REFUSED).stderr
            until(lambda: two.checkout("ls", store).stdout.count("in use") == 0, "the end of the lease", seconds=100)
            with two.mount("work") as other:
                assert np.array_equal(np.load(other / "n1.npy"), np.full(3, 1))
                save(other, "n2", np.full(3, 2))
                # The first wakes up, and knows nothing of it.
                os.kill(mount.pid, signal.SIGCONT)
                np.save(mount / "n3.npy", np.full(3, 3))
                handle = os.open(mount / "n3.npy", os.O_RDONLY)
                with pytest.raises(OSError):
                    os.fsync(handle)
                os.close(handle)
                # As long as it slept, and not since it woke up and wrote its lease again.
                said = lambda: re.findall("heard nothing of this host for ([0-9]+) s", "\n".join(mount.errors()))
                until(said, "the line in the log")
                assert min(map(int, said())) >= 40, mount.errors()
        finally:
            os.kill(mount.pid, signal.SIGCONT)
            os.kill(mount.pid, signal.SIGKILL)
            until(lambda: not mount.alive(), "the end")
    two.commit("work")
    assert {name: value[0] for name, value in hosts[2].shown().items()} == {"n1": 1, "n2": 2}
    # What was not uploaded is not lost either: it is set aside where it was written.
    with one.mount("work") as mount:
        assert sorted(path.name for path in mount.path.glob("n*")) == ["n1.npy", "n2.npy"]


def fates(seed, share):
    """A fault that loses a share of all requests, at random; the ways to lose them take turns."""
    chance = SAMPLE.random(f"fates {seed}")
    ways = itertools.cycle(chance.sample(["refused", "failed", "lost"], 3))
    lock = threading.Lock()

    def fault(method, path):
        with lock:
            return next(ways) if chance.random() < share else None
    return fault


@pytest.mark.slow
@pytest.mark.timeout(60 + 15 * ROUNDS)
def test_whatever_answers_are_lost_nothing_is(s3, store, tmp_path):
    model, committed = {}, 0
    with Lossy(s3.url) as lossy:
        host = Host(tmp_path / "one", s3, store, lossy.url)
        for seed in range(ROUNDS):
            lossy.fault = fates(seed, 0.15)
            with host.mount(f"w{seed}") as mount:
                for number in range(3):
                    save(mount, f"n{(seed + number) % 7}", np.full(4, seed))
                    model[f"n{(seed + number) % 7}"] = seed
            host.commit(f"w{seed}")
            committed += 1
    assert {"refused", "failed", "lost"} <= set(lossy.fates), lossy.fates
    reader = Host(tmp_path / "two", s3, store)
    assert {name: value.tolist() for name, value in reader.shown().items()} == {name: [seed] * 4 for name, seed in model.items()}
    commits = [name for name in s3.objects() if name.startswith("commits/") and name.endswith(".json")]
    assert len(commits) == committed


@pytest.mark.slow
@pytest.mark.timeout(60 + 15 * ROUNDS)
def test_whenever_a_writer_is_killed_what_was_synced_is_there(s3, store, tmp_path):
    host = Host(tmp_path / "one", s3, store)
    other = Host(tmp_path / "two", s3, store)
    model, tried, chance = {}, [], SAMPLE.random()
    for round in range(ROUNDS):
        synced = dict(model)
        with host.mount("work") as mount:
            timer = threading.Timer(chance.uniform(0.02, 0.6), os.kill, (mount.pid, signal.SIGKILL))
            mount.expect_dead = True
            timer.start()
            try:
                for number in range(200):
                    name = f"n{number % 9}"
                    tried.append((name, 1000 * round + number))
                    save(mount, name, np.full(6, 1000 * round + number))
                    synced[name] = 1000 * round + number
            except OSError:
                pass
            timer.join()
            until(lambda: not mount.alive(), "the end")
        # Another host sees what was synced, or what was written after it.
        with other.mount("work", options="ro") as mount:
            there = {path.stem: np.load(path) for path in mount.path.glob("n*.npy")}
        for name, value in synced.items():
            allowed = {value, *(later for own, later in tried if own == name and later > value)}
            assert len(set(there[name].tolist())) == 1 and there[name][0] in allowed, (round, name, there.get(name), allowed)
        model = {name: int(value[0]) for name, value in there.items()}
    host.commit("work")
    assert set(other.shown()) >= set(model)


@pytest.mark.timeout(120)
def test_a_mount_follows_what_others_commit(s3, hosts, store):
    one, two, _ = hosts
    with two.mount(options="follow=1") as mount:
        for number in range(3):
            with one.mount(f"w{number}") as writer:
                save(writer, "n", np.full(5, number))
            before = open(mount / "n.npy", "rb") if number else None
            one.commit(f"w{number}")
            until(lambda: (mount / "n.npy").exists() and np.load(mount / "n.npy")[0] == number, f"commit {number + 1}")
            if before:
                with before:
                    assert np.array_equal(np.load(before), np.full(5, number - 1))


@pytest.mark.timeout(120)
def test_gc_removes_what_nobody_names(s3, hosts, store):
    one, two, three = hosts
    with one.mount("work") as mount:
        for value in range(4):
            save(mount, "n", np.full(5, value))
        save(mount, "m", np.arange(7))
        # What is written is left to its writer.
        assert "work: a process writes in it" in two.checkout("gc", "--older-than", "0s", store).stderr
        assert len([name for name in s3.objects() if name.endswith(".h5")]) == 5
    before = s3.objects()
    told = two.checkout("gc", "--dry-run", "--older-than", "0s", store).stdout
    assert told.count(".h5") == 3 and s3.objects() == before
    assert not two.checkout("gc", "--older-than", "1h", store).stdout.count(".h5") or s3.objects() == before
    two.checkout("gc", "--older-than", "0s", store)
    assert len([name for name in s3.objects() if name.endswith(".h5")]) == 2
    with one.mount("work") as mount:
        assert np.array_equal(np.load(mount / "n.npy"), np.full(5, 3))
        save(mount, "n", np.full(5, 9))
    three.commit("work")
    two.checkout("gc", "--older-than", "0s", store)
    left = [name for name in s3.objects() if name.startswith("work/") and "lease." not in name]
    assert len(left) == 2 and all(name.endswith(".h5") for name in left), left
    for host in (*hosts, Host(store.parent / "new", s3, store)):
        shown = host.shown()
        assert np.array_equal(shown["n"], np.full(5, 9)) and np.array_equal(shown["m"], np.arange(7))


@pytest.mark.timeout(120)
def test_who_loses_the_checkout_while_others_commit_commits_nothing(s3, hosts, store, tmp_path):
    one, two, _ = hosts
    for host, name in ((one, "work"), (two, "other")):
        with host.mount(name) as mount:
            save(mount, name, np.arange(3))

    def fault(method, path):
        """Before the first attempt another checkout is committed, and another host takes this one: a lease of it is over, as far as anybody knows."""
        if method == "PUT" and path.endswith("commits/00000000000000000001.json"):
            lossy.fault = lambda method, path: None
            two.commit("other")
            newest = max(key for name, key in s3.objects().items() if name.startswith("work/lease."))
            record = json.loads(s3.read(newest)) | {"mirror": "two", "who": "host two", "write": "two"}
            number = int(newest.rpartition(".")[2])
            s3.put("data", f"{newest.rpartition('.')[0]}.{number + 1:06}", json.dumps(record, separators=(",", ":")).encode())

    with Lossy(s3.url) as lossy:
        lossy.fault = fault
        host = Host(tmp_path / "one", s3, store, lossy.url)
        assert "host two has taken the checkout over" in one_line(host.commit("work", code=REFUSED).stderr)
    assert sorted(hosts[2].shown()) == ["other"]


# With the histories, by hand: on a busy machine the commit once did not come to its request within a minute, which is not understood.
if os.environ.get("NPYFS_HISTORIES"):
    @pytest.mark.timeout(120)
    def test_a_commit_that_arrives_after_the_checkout_was_taken_is_there_once(s3, hosts, store, tmp_path):
        """Between the last look at the lease and the commit lies a request, which may take longer than a lease lasts."""
        one, two, three = hosts
        with one.mount("work") as mount:
            save(mount, "n1", np.arange(3))
        held, go = threading.Event(), threading.Event()

        def fault(method, path):
            if method == "PUT" and path.endswith("commits/00000000000000000001.json"):
                held.set()
                go.wait(60)

        told = []
        with Lossy(s3.url) as lossy:
            lossy.fault = fault
            late = Host(tmp_path / "one", s3, store, lossy.url)
            thread = threading.Thread(target=lambda: told.append(late.commit("work", code=None)))
            thread.start()
            try:
                assert held.wait(60)
                # As if it were over.
                newest = max(key for name, key in s3.objects().items() if name.startswith("work/lease."))
                s3.put("data", newest, s3.read(newest).replace(b'"held"', b'"free"'))
                with two.mount("work") as mount:
                    save(mount, "n2", np.arange(4))
                    go.set()
                    thread.join(60)
                    assert "commit 1: 1 changes" in told[0].stdout, told
                    refused = npyfs("checkout", "commit", "--ours", mount.path, env=two.env)
                    assert refused.returncode == REFUSED and "committed by another process meanwhile" in refused.stderr, refused
                    # What is committed is not written any more, and that is told.
                    with pytest.raises(OSError):
                        save(mount, "n3", np.arange(5))
                    mount.expect_dead = True
                    os.kill(mount.pid, signal.SIGKILL)
                    until(lambda: not mount.alive(), "the end")
            finally:
                go.set()
                thread.join(60)
        assert sorted(three.shown()) == ["n1"]
        layers = [json.loads(s3.read(key))["layer"] for name, key in s3.objects().items() if name.startswith("commits/0") and name.endswith(".json")]
        assert layers == ["work"]


@pytest.mark.timeout(120)
def test_clocks_may_disagree(s3, hosts, store, tmp_path):
    library = hosts_of_another_time.build(tmp_path)
    for number, (host, hours) in enumerate(zip(hosts, (5, -7, 0))):
        host.env |= {"LD_PRELOAD": str(library), "NPYFS_CLOCK": str(3600 * hours), "NPYFS_LOST": "0"}
        with host.mount("work") as mount:
            save(mount, "n", np.full(5, number))
            for other in hosts:
                if other is not host:
                    assert "writes in this checkout" in other.commit("work", code=REFUSED).stderr
    hosts[0].commit("work")
    for number, host in enumerate(hosts):
        with host.mount(f"w{number}") as mount:
            save(mount, f"m{number}", np.full(5, number))
        host.commit(f"w{number}")
    assert {name: value[0] for name, value in hosts[1].shown().items()} == {"n": 2, "m0": 0, "m1": 1, "m2": 2}
    times = [json.loads(s3.read(key))["time"] for name, key in sorted(s3.objects().items()) if name.endswith(".json")]
    assert len(times) == 4 and times == sorted(set(times))


@pytest.mark.timeout(120)
def test_damage_is_named(s3, hosts, store):
    one, two, three = hosts
    for number in range(3):
        with one.mount(f"w{number}") as mount:
            save(mount, f"n{number}", np.arange(2000) + number)
        one.commit(f"w{number}")
    keys = s3.objects()
    whole = {name: s3.read(key) for name, key in keys.items()}
    file = next(name for name in keys if name.startswith("w1/") and name.endswith(".h5"))

    def mend(name):
        s3.put("data", keys[name], whole[name])

    # A file with other bytes than its checksum says, and one that is gone: the others are read.
    for damage, why in [(lambda: s3.put("data", keys[file], bytes(len(whole[file]))), "checksum"), (lambda: s3.delete("data", keys[file]), "gone")]:
        damage()
        with two.mount() as mount:
            assert np.array_equal(np.load(mount / "n0.npy"), np.arange(2000))
            with pytest.raises(OSError):
                np.load(mount / "n1.npy")
            assert file in (log := npyfs("log", mount.path).stdout) and why in log, log
            mend(file)
            assert np.array_equal(np.load(mount / "n1.npy"), np.arange(2000) + 1)
        [copy] = Path(two.env["XDG_STATE_HOME"]).rglob(file)
        copy.unlink()
    # A commit that was changed, and one that is gone: nothing is shown that may be wrong.
    second = "commits/00000000000000000002.json"
    s3.put("data", keys[second], whole[second].replace(b'"w1"', b'"w7"'))
    done = three.checkout("log", store, code=None)
    assert done.returncode and second in done.stderr and "not what its id says" in done.stderr
    s3.delete("data", keys[second])
    done = three.checkout("log", store, code=None)
    assert done.returncode and second in done.stderr and "gone" in done.stderr
    mend(second)
    assert three.checkout("log", store).stdout.count("1 written") == 3


@pytest.mark.timeout(120)
def test_a_bucket_that_is_only_read_shows_what_is_there(s3, hosts, store, tmp_path):
    one, *_ = hosts
    with one.mount("work") as mount:
        save(mount, "n", np.arange(5))
    one.commit("work")
    s3.lock()
    reader = Host(tmp_path / "reader", s3, store)
    assert np.array_equal(reader.shown()["n"], np.arange(5))
    done = npyfs("mount", "-o", reader.options, "--checkouts", s3.checkouts, "--checkout", "more", store, tmp_path / "one", env=reader.env)
    assert done.returncode == NO_STORE and s3.checkouts.rstrip("/") in done.stderr, done.stderr
    assert "denied" in done.stderr.lower() or "403" in done.stderr, done.stderr


@pytest.mark.timeout(120)
def test_a_service_that_ignores_the_condition_is_refused(s3, store, tmp_path):
    with Lossy(s3.url) as lossy:
        host = Host(tmp_path / "one", s3, store, lossy.url)
        with host.mount("work") as mount:
            save(mount, "n", np.arange(5))
        handler = lossy.server.RequestHandlerClass
        plain = handler.answer

        def careless(self):
            del self.headers["If-None-Match"]
            return plain(self)
        handler.do_PUT = careless
        done = host.commit("work", code=None)
        assert done.returncode and "create only what is not there" in done.stderr, done.stderr
        assert not [name for name in s3.objects() if name.endswith(".json")]


@pytest.mark.timeout(120)
def test_a_mount_commits_and_goes_on(place, hosts, store):
    one, two, _ = hosts
    with one.mount("work") as mount:
        save(mount, "n1", np.arange(10))
        np.save(mount / "n2.npy", np.arange(20))
        assert one.checkout("commit", mount.path).stdout.startswith("commit 1: 2 changes")
        assert {name: list(array) for name, array in two.shown().items()} == {"n1": list(range(10)), "n2": list(range(20))}
        save(mount, "n1", np.arange(3))
        np.save(mount / "n3.npy", np.arange(4))
        # Another host has not got the checkout, and commits its own.
        refused = two.commit("work", code=3)
        assert "writes in this checkout" in one_line(refused.stderr), refused
        with two.mount("own") as other:
            save(other, "n4", np.arange(5))
        two.commit("own")
        assert one.commit("work").stdout.startswith("commit 3: 2 changes")
        want = {"n1": 3, "n2": 20, "n3": 4, "n4": 5}
        assert {name: len(array) for name, array in two.shown().items()} == want
        assert {path.stem: len(np.load(path)) for path in mount.path.glob("n?.npy")} == want
        np.save(mount / "n5.npy", np.arange(6))
        assert mount.errors() == []
    # The next host carries the checkout on.
    with two.mount("work") as mount:
        np.testing.assert_array_equal(np.load(mount / "n5.npy"), np.arange(6))
    two.commit("work")
    assert {name: len(array) for name, array in one.shown().items()} == {**want, "n5": 6}


@pytest.mark.timeout(180)
def test_gc_removes_the_empty_checkout_of_a_mount_that_was_killed_after_its_commit(s3, hosts, store):
    one, two, _ = hosts
    with one.mount("work") as mount:
        mount.expect_dead = True
        save(mount, "n", np.arange(4))
        assert one.checkout("commit", mount.path).stdout.startswith("commit 1: 1 changes")
        assert "work~2: a process writes in it" in two.checkout("gc", "--older-than", "0s", store).stderr
        assert [(item["name"], bool(item["in_use"])) for item in json.loads(two.checkout("ls", "--json", store).stdout)] == [("work", False), ("work", True)]
        pid = mount.status()["pid"]
        signal_all([pid, *workers(pid)], signal.SIGKILL)
    # The host may say so at once; others wait until its lease is over.
    until(lambda: [item["name"] for item in json.loads(one.checkout("ls", "--json", store).stdout)] == ["work"], "it is listed no more", 120)
    until(lambda: one.checkout("gc", "--older-than", "0s", store).stdout.startswith("removed"), "it is older than the clock of the bucket tells")
    left = [name for name in s3.objects() if name.startswith("work%7E2/") and "lease." not in name]
    assert left == [] and "nothing" in one.checkout("gc", "--older-than", "0s", store).stdout, left
    for host in (one, two):
        assert [item["name"] for item in json.loads(host.checkout("ls", "--json", store).stdout)] == ["work"]
    with two.mount("work") as mount:
        np.testing.assert_array_equal(np.load(mount / "n.npy"), np.arange(4))
        save(mount, "m", np.arange(5))
    two.commit("work")
    assert {name: len(array) for name, array in one.shown().items()} == {"n": 4, "m": 5}
