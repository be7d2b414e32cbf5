"""Prefixes of buckets as directories: `npyfs mount s3://bucket/dir/ mnt`. The judges are h5py, and the directory that was uploaded, mounted
from disk."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import h5py
import numpy as np
import pytest
import test_arkouda
import zarr

from support import arkouda
from support.buckets import S3
from support.mount import Mount, reason_of, until
from support.process import npyfs, run
from support.remote_files import NAMES, same, write
from support.truth import assert_all

PAGE = b"<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n"
LONG = "x" * 300 + ".h5"
# Names that an object can have and a file cannot.
ODD = ["odd/fine.h5", "odd//nameless.h5", "odd/../above.h5", "odd/./here.h5", "odd/new\nline.h5", f"odd/{LONG}", "odd/both.h5", "odd/both.h5/x.h5", "odd/"]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Stores of several kinds in directories, and what the set among them shows."""
    top = tmp_path_factory.mktemp("folder") / "top"
    (top / "deep/er").mkdir(parents=True)
    first = write(top / "first.h5")
    for name in NAMES:
        shutil.copy(first, top / "deep" / name)
    write(top / "deep/er/last.h5ad", 1)
    (top / "deep/notes.txt").write_text("no store")
    with arkouda.Store(top / "deep", "set.h5", (3, 0, 4)) as store:
        shown = test_arkouda.put_everything(store)
    with arkouda.Store(top, "no-suffix", (1, 1)) as store:
        arkouda.put_array(store, "a", np.arange(10))
    shutil.copy(first, top / "plain_LOCALE0000.h5")
    return top, shown


@pytest.fixture(scope="module")
def s3(made):
    numbers = [f"many/{number:05}.h5" for number in range(10_000)]
    with S3(odd=ODD, numbers=numbers) as s3:
        s3.upload("data", "top/", made[0])
        yield s3


@pytest.fixture
def options(s3, monkeypatch):
    for name, value in s3.env.items():
        monkeypatch.setenv(name, value)
    return s3.options


def tree(path):
    found = []
    for folder, folders, files in os.walk(path):
        found += [os.path.relpath(os.path.join(folder, name), path) for name in [*folders, *files]]
        if ".npyfs" in folders:
            folders.remove(".npyfs")
    return sorted(found)


def test_checkouts_beside_a_store_are_not_shown(s3, options, tmp_path):
    for name in ("x.h5", "y.h5"):
        s3.put("apart", f"beside/{name}", write(tmp_path / name))
    with Mount("s3://apart/beside/x.h5", options, checkout="work") as mount:
        np.save(mount / "hidden.npy", np.arange(3))
    with Mount("s3://apart/beside/", options) as mount:
        assert sorted(os.listdir(mount.path)) == ["x.h5", "y.h5"]
        assert not (mount / "x.h5.checkouts").exists()
        assert json.loads((mount / ".npyfs/info.json").read_text())["entries"] == 2
    assert npyfs("find", "-o", options, "s3://apart/beside/", "hidden*", check=True).stdout == ""
    # By its own address everything is shown.
    assert npyfs("ls", "-o", options, "s3://apart/beside/x.h5.checkouts/", check=True).stdout == "work\n"


def test_a_prefix_shows_what_the_directory_shows(made, options):
    top, shown = made
    with Mount("s3://data/top/", options) as far, Mount(top) as near:
        assert tree(far.path) == tree(near.path)
        for path in near.files():
            assert (far / path).read_bytes() == (near / path).read_bytes(), path
        same(far / "first.h5", top / "first.h5")
        for name in NAMES:
            same(far / "deep" / name, top / "deep" / name)
        assert_all(far / "deep/set.h5", shown, at_least=100)
        assert os.readlink(far / "deep/set_LOCALE0002.h5") == "set.h5"
        assert far.errors() == []


def test_commands_take_prefixes(made, options):
    url = "s3://data/top/"
    listed = npyfs("ls", "-o", options, url, check=True).stdout.splitlines()
    assert sorted(listed) == ["deep", "first.h5", "no-suffix", "plain_LOCALE0000.h5"]
    assert "deep/er/last.h5ad/group/small.npy" in npyfs("ls", "-R", "--json", "-o", options, url, check=True).stdout
    assert "small.npy" in npyfs("ls", "-o", options, f"{url}first.h5:/group", check=True).stdout
    assert "2000" in npyfs("info", "-o", options, url, "deep/100%.h5/gzip.npy", check=True).stdout
    assert "3.5" in npyfs("show", "-o", options, url, "first.h5/scalar.npy", check=True).stdout
    out = subprocess.run([os.environ["NPYFS_BIN"], "cat", "-o", options, url, "deep/set.h5/i8.npy"], capture_output=True, check=True).stdout
    assert out.endswith(test_arkouda.NUMBERS["i8"].tobytes())
    done = npyfs("verify", "-o", options, f"{url}deep/er/", timeout=200)
    assert done.returncode == 0, done
    assert npyfs("ls", "-o", options, f"{url}nothing/").returncode == 2


def test_the_bucket_itself(options):
    assert npyfs("ls", "-o", options, "s3://data/", check=True).stdout == "top\n"
    assert npyfs("ls", "-o", options, "s3://data", check=True).stdout == "top\n"


def test_ten_thousand_objects(s3, options):
    listed = npyfs("ls", "-o", options, "s3://numbers/many/", check=True, timeout=200).stdout.splitlines()
    assert listed == [f"{number:05}.h5" for number in range(10_000)]
    for name in ("01000.h5", "09998.h5"):
        s3.put("numbers", f"many/{name}", PAGE)
    with Mount("s3://numbers/many/", options) as mount:
        assert len(os.listdir(mount.path)) == 10_000
        assert (mount / "09999.h5").stat().st_mtime > 1.6e9
        # The last of so many is looked at when it is entered.
        with pytest.raises(OSError) as refused:
            os.listdir(mount / "09998.h5")
        assert refused.value.errno == 5
        assert any("09998.h5: a web page, not an HDF5 file" in line for line in mount.errors()), mount.errors()
        # From then on it is left out.
        assert "09998.h5" not in os.listdir(mount.path)
        until(lambda: not (mount / "09998.h5").exists(), "a name that leads nowhere")
        until(lambda: len(os.listdir(mount.path)) == 9_998, "what nobody enters", 120)
        for name in ("01000.h5", "09998.h5"):
            assert "web page" in reason_of(mount.info(), name)
            assert said_of(mount, f"{name}: left out") == 1


def said_of(mount, what):
    """How often the log says something."""
    said = 0
    for line in mount.errors():
        times = re.search(r" \(([0-9]+) times\)$", line)
        said += (what in line) * int(times[1] if times else 1)
    return said


@pytest.fixture(scope="module")
def impostors(tmp_path_factory):
    """Stores, and what is called so."""
    folder = tmp_path_factory.mktemp("impostors")
    for name, block in [("good.h5", 0), ("short-block.mat", 512), ("block.nc", 4096), ("long-block.h5", 16 << 10), ("huge-block.h5", 1 << 20)]:
        with h5py.File(folder / name, "w", userblock_size=block) as file:
            file["a"] = np.arange(1000)
    for name, content in [("page.h5", PAGE), ("classic.nc", b"CDF\x01" + bytes(100_000)), ("old.mat", b"MATLAB 5.0 MAT-file" + bytes(200)),
                          ("short.h5ad", b"\x89HD"), ("zeros.hdf5", bytes(70_000)), ("empty.h5", b""), (".hidden.h5", PAGE), ("notes.txt", PAGE)]:
        (folder / name).write_bytes(content)
    # Half of an upload: it begins as a store.
    (folder / "half.h5").write_bytes((folder / "good.h5").read_bytes()[:3000])
    return folder


def left_out(mount):
    return {entry["name"]: entry["reason"].replace("an empty object", "an empty file") for entry in mount.info()["left_out"]}


def test_what_is_called_as_a_store_and_is_none_is_left_out_as_on_a_disk(s3, options, impostors):
    s3.upload("data", "impostors/", impostors)
    with Mount("s3://data/impostors/", f"{options},check=0") as far, Mount(impostors) as near:
        for _ in range(3):
            assert sorted(os.listdir(far.path)) == sorted(os.listdir(near.path))
        assert left_out(far) == left_out(near) and len(left_out(far)) == 6
        for name in os.listdir(near.path):
            if name != "half.h5":
                assert (far / name / "a.npy").read_bytes() == (near / name / "a.npy").read_bytes()
        for name in [*left_out(far), ".hidden.h5", "notes.txt"]:
            for mount in (far, near):
                with pytest.raises(FileNotFoundError):
                    os.listdir(mount / name)
        for mount in (far, near):
            with pytest.raises(OSError) as failed:
                os.listdir(mount / "half.h5")
            assert failed.value.errno == 5
            assert "half.h5" in os.listdir(mount.path)
        # Once, however often it is listed.
        assert all(said_of(far, f"{name}: left out: ") == 1 for name in left_out(far)), far.errors()
        assert not said_of(far, "hidden")
        checks = [npyfs("verify", "-o", options, "s3://data/impostors/"), npyfs("verify", impostors)]
        counts = [next(word for word in check.stdout.replace(",", ";").split(";") if "damaged" in word) for check in checks]
        assert counts[0].strip().split()[0] == counts[1].strip().split()[0], checks
        # Each version is one of its own.
        s3.put("data", "impostors/page.h5", impostors / "good.h5")
        until(lambda: "page.h5" in os.listdir(far.path), "a store in its place")
        assert (far / "page.h5/a.npy").read_bytes() == (near / "good.h5/a.npy").read_bytes()
        s3.put("data", "impostors/page.h5", PAGE + b"again")
        until(lambda: "page.h5" not in os.listdir(far.path), "the damage")
        assert said_of(far, "page.h5: left out: ") == 2


def test_an_object_is_looked_at_once(s3, options, impostors):
    for number in range(20):
        s3.put("data", f"few/{number}.h5", impostors / "good.h5")
    s3.put("data", "few/page.h5", PAGE)
    with gate(s3.url, 1, "GET") as (url, passed), Mount("s3://data/few/", f"endpoint={url},check=60") as mount:
        for _ in range(3):
            assert len(os.listdir(mount.path)) == 20
        assert 21 <= len(passed) <= 30, len(passed)


def test_of_many_objects_none_is_waited_for_and_each_is_looked_at(s3, options, impostors):
    for number in range(200):
        s3.put("data", f"several/{number}.h5", impostors / "good.h5")
    bad = {"page.h5": PAGE, "classic.nc": b"CDF\x01" + bytes(100), "000.mat": b"MATLAB 5.0 MAT-file" + bytes(200)}
    for name, content in bad.items():
        s3.put("data", f"several/{name}", content)
    listed, looked = threading.Event(), []

    def weather(handler):
        if handler.path.endswith((".h5", ".nc", ".mat")):
            looked.append(handler.path)
            listed.wait(60)
        return False

    with gate(s3.url, 1, "GET", weather) as (url, _), Mount("s3://data/several/", f"endpoint={url},check=600,timeout=60") as mount:
        # No object is answered for yet.
        assert len(os.listdir(mount.path)) == 203
        listed.set()
        until(lambda: len(os.listdir(mount.path)) == 200, "the damage")
        assert not set(bad) & set(os.listdir(mount.path)) and set(left_out(mount)) == set(bad)
        assert all(said_of(mount, f"{name}: left out: ") == 1 for name in bad), mount.errors()
        until(lambda: len(set(looked)) == 203, "a look at each")
        for _ in range(3):
            os.listdir(mount.path)
        assert len(looked) == 203, sorted(path for path in set(looked) if looked.count(path) > 1)
    # A command lists once.
    done = npyfs("ls", "-o", options, "s3://data/several/", timeout=200)
    assert done.returncode == 3 and len(done.stdout.split()) == 200 and not set(bad) & set(done.stdout.split())
    assert all(f"left out: {name}: " in done.stderr for name in bad), done.stderr
    info = json.loads(npyfs("info", "--json", "-o", options, "s3://data/several/", check=True, timeout=200).stdout)
    assert set(bad) == {entry["name"] for entry in info["left_out"]}
    done = npyfs("verify", "-o", options, "s3://data/several/", timeout=200)
    assert done.returncode == 3 and "3 damaged" in done.stdout, done


@pytest.mark.parametrize("status", [503, 500, 403, 404, 200, None])
def test_a_network_that_fails_is_no_damage(s3, options, impostors, status):
    """An object that could not be looked at is listed. `None`: no answer comes; 200: a page of a proxy's."""
    for name in ("good.h5", "page.h5"):
        s3.put("data", f"weather{status}/{name}", impostors / name)
    bad, met = threading.Event(), []
    bad.set()

    def weather(handler):
        if handler.command != "GET" or not handler.path.endswith(".h5") or not bad.is_set():
            return False
        met.append(handler.path)
        if status is None:
            time.sleep(4)
        handler.send_response(status or 503)
        handler.send_header("Content-Length", str(len(PAGE)))
        handler.end_headers()
        handler.wfile.write(PAGE)
        return True

    with gate(s3.url, 1, "GET", weather) as (url, _), Mount(f"s3://data/weather{status}/", f"endpoint={url},check=0,timeout=2") as mount:
        for _ in range(2):
            assert sorted(run(["ls", mount.path], check=True, timeout=30).stdout.split()) == ["good.h5", "page.h5"]
        assert met and not left_out(mount) and not said_of(mount, "left out")
        bad.clear()
        until(lambda: run(["ls", mount / "good.h5"], timeout=30).stdout == "a.npy\n", "the store")
        # What is opened is judged.
        until(lambda: run(["ls", mount / "page.h5"], timeout=30).returncode and left_out(mount), "the damage")
        assert os.listdir(mount.path) == ["good.h5"]


def test_names_that_no_file_has_are_left_out(options):
    with Mount("s3://odd/odd/", options) as mount:
        assert sorted(os.listdir(mount.path)) == ["both.h5", "fine.h5"]
        assert os.listdir(mount / "both.h5") == ["x.h5"]
        info = mount.info()
        assert "a directory" in reason_of(info, "both.h5")
        left_out = {entry["name"]: entry["reason"] for entry in info["left_out"]}
        assert {"/", "../", "./", "new\nline.h5", LONG} <= set(left_out)
        assert "control" in left_out["new\nline.h5"] and "255" in left_out[LONG]


def test_what_comes_and_goes(s3, made, options, tmp_path):
    first, other = made[0] / "first.h5", write(tmp_path / "other.h5", 7)
    s3.put("data", "live/a.h5", first)
    with Mount("s3://data/live/", f"{options},check=0") as mount:
        assert os.listdir(mount.path) == ["a.h5"]
        s3.put("data", "live/b.h5", first)
        s3.put("data", "live/below/c.h5", other)
        assert sorted(os.listdir(mount.path)) == ["a.h5", "b.h5", "below"]
        same(mount / "below/c.h5", other)
        s3.put("data", "live/a.h5", other)
        same(mount / "a.h5", other)
        s3.delete("data", "live/below/c.h5")
        s3.delete("data", "live/b.h5")
        until(lambda: os.listdir(mount.path) == ["a.h5"], "the list without them")
        until(lambda: not (mount / "b.h5").exists(), "a name that leads nowhere")
    with Mount("s3://data/live/", f"{options},check=1") as mount:
        assert os.listdir(mount.path) == ["a.h5"]
        s3.put("data", "live/d.h5", first)
        until(lambda: (mount / "d.h5").exists(), "the new object")
        same(mount / "d.h5", first)


def test_a_set_follows_its_objects(s3, options, tmp_path):
    def make(name, weights):
        with arkouda.Store(tmp_path, name, weights) as store:
            return store.paths, arkouda.put_array(store, "a", np.arange(30) * len(weights))

    paths, shown = make("s.h5", (1, 2))
    for path in paths:
        s3.put("data", f"sets/{path.name}", path)
    with Mount("s3://data/sets/", f"{options},check=0") as mount:
        assert_all(mount / "s.h5", shown, at_least=1)
        assert len(mount.info("s.h5/a.npy")["locales"]) == 2
        paths, shown = make("s.h5", (1, 1, 4))
        for path in paths:
            s3.put("data", f"sets/{path.name}", path)
        assert_all(mount / "s.h5", shown, at_least=1)
        s3.delete("data", "sets/s_LOCALE0001.h5")
        with pytest.raises(OSError):
            (mount / "s.h5/a.npy").read_bytes()
        assert any("s_LOCALE0001.h5" in line for line in mount.errors())


@contextlib.contextmanager
def gate(url, count, of, weather=lambda handler: False):
    """A server before another one, which lets requests of a method through when so many wait; yields its address and the times that so many did.
    `weather` returns true if it answered itself."""
    barrier, passed = threading.Barrier(count), []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def forward(self):
            if weather(self):
                return
            if self.command == of:
                with contextlib.suppress(threading.BrokenBarrierError):
                    passed.append(barrier.wait(10))
            request = urllib.request.Request(url + self.path, headers=dict(self.headers), method=self.command)
            try:
                answer = urllib.request.urlopen(request, timeout=30)
            except urllib.error.HTTPError as refused:
                answer = refused
            with answer:
                data = answer.read()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                        self.send_header(name, value)
                length = answer.headers.get("Content-Length", len(data)) if self.command == "HEAD" else len(data)
                self.send_header("Content-Length", length)
                self.end_headers()
                self.wfile.write(data)

        do_GET = do_HEAD = forward

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", passed
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_parts_of_a_set_are_looked_at_together(s3, options, tmp_path):
    with arkouda.Store(tmp_path, "s.h5", (1, 2, 3, 4)) as store:
        arkouda.put_array(store, "a", np.arange(30))
    for path in store.paths:
        s3.put("data", f"together/{path.name}", path)
    with gate(s3.url, 4, "HEAD") as (url, passed), Mount("s3://data/together/", f"endpoint={url},check=1") as mount:
        # By another process: this one answers.
        listed = run(["ls", mount / "s.h5"], check=True).stdout.split()
        assert listed == ["a.npy"]
        time.sleep(1.1)
        run(["ls", mount / "s.h5"], check=True)
        until(lambda: len(passed) >= 4, "four requests at a time")


def test_stores_below_a_prefix_are_joined(s3, options, tmp_path):
    data = np.arange(4 * 3 * 100, dtype="f4").reshape(12, 100)
    for number in range(4):
        with h5py.File(tmp_path / "part.h5", "w") as file:
            part = file.create_dataset("v", data=data[3 * number:3 * number + 3], chunks=(3, 100), compression="gzip")
            part.dims[0].label = "t"
        s3.put("data", f"join/{number}.h5", tmp_path / "part.h5")
    with Mount("s3://data/join/", f"{options},join=t,view=zarr") as mount:
        np.testing.assert_array_equal(zarr.open_group(mount.path, mode="r")["v"][:], data)


def test_a_join_of_a_prefix_follows_its_objects(s3, options, tmp_path):
    """An object that is replaced is seen, and one that is no store fails the join by name, as on a disk."""
    def put(number, first, steps):
        with h5py.File(tmp_path / "part.h5", "w") as file:
            part = file.create_dataset("v", data=np.arange(first, first + steps, dtype="f8")[:, None] + np.zeros(50), chunks=(1, 50))
            part.dims[0].label = "t"
        s3.put("data", f"follow/{number}.h5", tmp_path / "part.h5")

    def first_column(mount):
        try:
            return zarr.open_group(mount / ".npyfs/zarr", mode="r")["v"][:, 0].tolist()
        except (OSError, ValueError):  # Metadata of one version, chunks of the next.
            return None

    for number in range(3):
        put(number, 2 * number, 2)
    with Mount("s3://data/follow/", f"{options},check=1,join=t") as mount:
        assert first_column(mount) == [0, 1, 2, 3, 4, 5]
        for first, steps in [(20, 2), (30, 5), (40, 1)]:
            put(1, first, steps)
            until(lambda: first_column(mount) == [0, 1, *range(first, first + steps), 4, 5], f"the object of {steps} steps", 20)

        def has_failed():
            try:
                os.listdir(mount / ".npyfs/zarr")
            except OSError:
                return True
            return False

        for number, damage in enumerate([b"", PAGE, b"CDF\x01" + bytes(9000)]):
            s3.put("data", "follow/1.h5", damage)
            until(has_failed, "the damage", 20)
            until(lambda: "1.h5" in left_out(mount), "the reason")
            done = npyfs("verify", "-o", options, "s3://data/follow/")
            assert done.returncode == 3 and "1 damaged" in done.stdout and "1.h5" in done.stderr, done
            put(1, 50 + number, 1)
            until(lambda number=number: first_column(mount) == [0, 1, 50 + number, 4, 5], "the object that is whole again", 20)
