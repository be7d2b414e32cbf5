"""No input ends a thread: odd values through the options of all commands. What they are is read from the help, so that a new option is tried,
too. Each value is refused in words or taken: nothing panics, dies of a signal or hangs."""

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.mount import Mount
from support.process import NPYFS, npyfs
from support.sampling import Sample, is_whole

# All of them are some 16 000 runs of the program.
pytestmark = pytest.mark.timeout(1800 if is_whole("option") else 240)
SAMPLE = Sample(__file__, "option")

# Nothing leaves this machine: what is a host is this one, or goes to a proxy at a port at which nobody listens.
HOSTS = ["127.0.0.1", "localhost", "[::1]", "x.invalid", "127.1", "0x7f000001", "[::1", "::1", "a..b", "-", "_", ".", "xn--a", "\u00e9.invalid", "h\"{}", "h h",
         "%", "%41", "127.0.0.1:", "127.0.0.1:1", "127.0.0.1:0", "127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1:x", "me@127.0.0.1:1", "me:w@127.0.0.1:1",
         "me:w/@127.0.0.1:1", ":@127.0.0.1:1", "a" * 300 + ".invalid"]
TAILS = ["", "/", "/a b", "/%", "/?", "/?a=b", "/#", "/..", "//", "/\u00e9", "/<", "/{}", "/\\"]
ADDRESSES = [*(f"{scheme}{host}" for host in HOSTS for scheme in ("", "http://", "https://")),
             *(f"http://127.0.0.1:1{tail}" for tail in TAILS), *(f"127.0.0.1:1{tail}" for tail in TAILS),
             "http:", "http:/", "http://", "http:///", "http:127.0.0.1", "http:\\\\127.0.0.1", "HTTP://127.0.0.1:1", " http://127.0.0.1:1", "http://127.0.0.1:1 ",
             "ftp://127.0.0.1", "file:///", "file://x/y", "unix:///x", "data:,x", "javascript:1", "s3://", "s3://x", "://", ":", "//127.0.0.1:1", "@", "http://@",
             "http://?", "http://#", "http://[", "http://]", "http://[]", "http://%00", "http://127.0.0.1:1/" + "a" * 70_000]
NUMBERS = ["0", "-0", "-1", "+1", "1", "00", "1e3", "1.5", ".5", "0x10", "1_000", " 1", "1 ", "255", "256", "65536", "2147483647", "2147483648", "4294967295",
           "4294967296", "3153600000", "9223372036", "9223372037", "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616",
           "9" * 40, "\u0663", "NaN", "inf", "1K", "1k", "0T", "16777215T", "16777216T", "1KiBs", "99999999999T", "1s", "99999999999999d", "30500568904943w"]
TEXTS = ["", " ", ".", "..", "/", "//", "-", "--", "=", "a=b", ",", "\\", "\\,", '"', '"a', "'", "%", "%00", "%zz", "#", "~", "~root", "*", "?", "[", "]", "{}", "{0}", "$HOME",
         "`x`", "a/b", "../..", "/nonexistent/x", "/dev/null", "@", "@/dev/null", "@/", "@nothing", "\t", "\n", "a\nb", "\r\n", "\x01", "\x1b[31m", "\x7f", "\u00e9", "\u202e",
         "\u2028", "\U0001f642", "e\u0301", "\ufeff", "\ufffd", "a" * 255, "a" * 256, "a" * 5000, "/" * 5000, "a/" * 2500, "x:y", "x:/y", "STORE:/", "True", "auto", "off", "none",
         "null", "deny", "allow", "zarr", "time", "gzip:99", "gzip:-1", "blosc:", "blosc:zstd:x", "off:1", ":", "::", ";", "&", "|", "<", ">", "!", "(", ")", "|S4", "<f8", "1,2",
         "1,,2", ",1", "-1,2", "99999999999999999999,2", "=x.npy", "x=", "x=y=z", b"\xff", b"\xc3\x28", b"a\xffb", b"\xed\xa0\x80", b"\xf8"]
# Some commands write, or remove, where they are told: below a directory of the test, from which no `..` leads out.
TEXTS = [text for text in TEXTS if text == "/dev/null" or not os.fsencode(text).startswith(b"/")]
VALUES = [*NUMBERS, *TEXTS]
CWD = "cwd/a/b/c/d"
OF_ADDRESS = ["endpoint", "checkouts"]

OPTION = re.compile(r"^ +(?:(-\w)(?:, )?)?(--[\w-]+)?(?: (<[^>]+>|\[<[^>]+>\.*\]))?", re.M)


def options_of(*command):
    """(option, whether it takes a value) as the help of a command has them."""
    text = npyfs(*command, "--help", judged=False).stdout.partition("\nOptions:\n")[2].partition("\nMount options")[0]
    found = OPTION.findall("\n".join(line for line in text.splitlines() if re.match(r" {2,6}-", line)))
    return {long or short: bool(value) for short, long, value in found if (long or short) not in ("", "-h", "--help", "-V", "--version")}


def mount_options():
    """{name: whether it takes a value} of all mount options."""
    section = npyfs("mount", "--help").stdout.partition("\nMount options")[2]
    found = re.findall(r"^  (\w+)(=\S+)? ", section, re.M)
    return {name: bool(value) for name, value in found}


def commands(text):
    return [name for name in re.findall(r"^  ([a-z]+) ", text.partition("\nCommands:\n")[2].partition("\nOptions:\n")[0], re.M) if name != "help"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("odd")
    with h5py.File(place / "x.h5", "w") as file:
        file["a"] = np.arange(10)
    (place / CWD).mkdir(parents=True)
    return place


@pytest.fixture
def away(place):
    """The environment of what runs: nothing of this user, and a proxy that nobody is."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "AZURE_", "GOOGLE_", "XDG_")) and "proxy" not in name.lower()}
    nobody = {f"{name}_proxy": "http://127.0.0.1:9" for name in ("http", "https", "all")}
    return kept | nobody | {"HOME": str(place), "XDG_CACHE_HOME": str(place / "cache"), "AWS_EC2_METADATA_DISABLED": "true", "TMPDIR": str(place),
                            "AZURE_STORAGE_ACCOUNT_NAME": "account"}


def tried(arguments, env, place):
    """What is wrong with how a command ended; None if nothing is."""
    arguments = [os.fsencode(part) for part in arguments]
    try:
        done = subprocess.run([NPYFS, *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=30, env=env, cwd=place / CWD)
    except subprocess.TimeoutExpired as late:
        return f"{arguments}: not finished: {late.stderr}"
    if done.returncode < 0 or done.returncode > 32 or b"panicked" in done.stderr + done.stdout:
        return f"{arguments}: {done.returncode}: {done.stderr[:2000]!r}"
    return None


def try_all(runs, env, place, at_once=4):
    with ThreadPoolExecutor(at_once) as pool:
        problems = [problem for problem in pool.map(lambda run: tried(run, env, place), runs) if problem]
    assert not problems, f"{len(problems)} of {len(runs)} runs: " + "\n".join(problems[:10])


def sample(what, values, count):
    """Some of the values."""
    return SAMPLE.choose(values, count, "odd values", what)


def written(name, value):
    """A mount option, whatever is in its value."""
    value = os.fsencode(value)
    return name.encode() + b"=" + value.replace(b"\\", b"\\\\").replace(b",", b"\\,")


def test_there_are_enough_odd_values():
    assert len({os.fsencode(value) for value in [*ADDRESSES, *VALUES]}) >= 200


@pytest.mark.parametrize("scheme", ["s3", "az", "gs"])
def test_addresses_are_judged_when_they_are_read(place, away, scheme):
    """All of them, as the address of a service: no scheme, no host, what no request can be made of."""
    rest = "timeout=1,anonymous,nopack,disk_cache=0"
    try_all([["ls", "-o", written("endpoint", value) + f",{rest}".encode(), f"{scheme}://bucket/x.h5"] for value in ADDRESSES], away, place)
    refused = npyfs("ls", "-o", f"endpoint=127.0.0.1:5599,{rest}", f"{scheme}://bucket/x.h5", env=away)
    assert refused.returncode == 1 and refused.stderr == "npyfs: option endpoint: expected http(s)://HOST\n"


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "AZURE_STORAGE_ENDPOINT",
                                  "STORAGE_EMULATOR_HOST"])
def test_addresses_of_the_environment_are_judged_too(place, away, name):
    scheme = {"AZ": "az", "ST": "gs"}.get(name[:2], "s3")
    arguments = ["ls", "-o", "timeout=1,nopack,disk_cache=0,anonymous", f"{scheme}://bucket/x.h5"]
    for value in sample(name, [value for value in ADDRESSES if value], 16):
        problem = tried(arguments, away | {name: value}, place)
        assert problem is None, (name, value, problem)


def test_stores_with_odd_addresses(place, away):
    names = [*(f"{scheme}://{host}{tail}" for scheme in ("s3", "az", "gs", "abfss", "http", "https") for host in HOSTS for tail in ("/x.h5", "/")), *ADDRESSES]
    rest = "timeout=1,anonymous,nopack,disk_cache=0,endpoint=http://127.0.0.1:1"
    try_all([["ls", "-o", rest, "--", name] for name in sample("stores", names, 60)], away, place)


@pytest.mark.slow
def test_mount_options_take_odd_values_or_refuse_them(place, away):
    """Through `ls`, which opens the store as a mount does; `-o` is the same for all commands."""
    runs = []
    for name, has_value in mount_options().items():
        values = [*VALUES, *(ADDRESSES if name in OF_ADDRESS else [])]
        for value in sample(f"-o {name}", values, 3) if has_value else ["", "1"]:
            for store in (place / "x.h5", "s3://bucket/x.h5"):
                rest = b"" if store == place / "x.h5" else b"timeout=1,anonymous,endpoint=http://127.0.0.1:1,"
                runs.append(["ls", "-o", rest + written(name, value), store])
    assert len(runs) > (500 if SAMPLE.is_whole else 150)
    try_all(runs, away, place)


@pytest.mark.slow
def test_options_of_all_commands_take_odd_values_or_refuse_them(place, away):
    store, new = place / "x.h5", place / CWD / "new.h5"
    # What each is called with beside the option.
    arguments = {"find": [store, "a*"], "mount": [store, place / "none"], "umount": [place / "none"], "log": [place / "none"], "ls": [store], "cat": [store, "a.npy"], "info": [store, "a.npy"],
                 "show": [store, "a.npy"], "hash": [store, "a.npy"], "bench": [store, "none.npy"], "verify": [store], "cache ls": [], "cache clear": [], "keep": [store, "a.npy"],
                 "pack": [store, place / CWD / "pack"], "column create": [store, "x"], "new": ["daf", new], "convert": [store, new], "demo": ["/dev/null/x"],
                 "setup": [], "status": [], "man": ["/dev/null/x"], "completions": ["bash"],
                 "checkout sync": [place / "none"], "checkout reset": [store], "checkout status": [store], "checkout revert": [store, "0"],
                 "checkout export": [store, new], "checkout publish": [store, new], "checkout restore": [store, "a.npy"],
                 "attr ls": [store, "a.npy"], "attr get": [store, "a.npy", "x"], "attr set": [store, "a.npy", "x=1"], "attr rm": [store, "a.npy", "x"],
                 "attr dims": [store, "a.npy", "x"]}
    for name in ("ls", "log", "diff", "commit", "discard", "gc"):
        arguments[f"checkout {name}"] = [store]
    top = npyfs("--help").stdout
    inner = {command: commands(npyfs(command, "--help").stdout) for command in ("attr", "cache", "checkout", "column")}
    there = {name for command in commands(top) for name in ([f"{command} {sub}" for sub in inner[command]] if command in inner else [command])}
    assert there | {"man", "completions"} == set(arguments), there ^ set(arguments)
    runs, tried_options = [], 0
    for command, rest in arguments.items():
        for option, has_value in options_of(*command.split()).items():
            # Those of a mount have a test of their own; nothing is installed.
            if not has_value or option in ("-o", "--install", "--remove"):
                continue
            tried_options += 1
            for value in sample(f"{command} {option}", VALUES, 6):
                runs.append([*command.split(), *([b"%s=%s" % (option.encode(), os.fsencode(value))] if option.startswith("--") else [option, value]), *rest])
    assert tried_options > 40
    try_all(runs, away, place)
    # Odd words in the places of arguments, too.
    try_all([[*command.split(), "--", *([value] * max(1, len(rest)))] for command, rest in arguments.items() if command not in ("demo", "man", "mount", "new")
             for value in sample(command, TEXTS, 3)], away, place)


def test_mounts_with_odd_values_serve(place, tmp_path):
    """What is accepted is mounted: the values go to the kernel, too."""
    taken = {"fsname": ["a b", "\u00e9", "a,b", "\\", "a" * 255, "#", "-", "%", '"'], "sep": ["@", "\\", "~", "-"], "umask": ["0", "777"], "uid": ["0", "4294967294"],
             "cache_size": ["0", "1", "16777215T"], "keep": ["0", "16777215T"], "follow": ["1", "3153600000"], "text_limit": ["0", "16777215T"],
             "timeout": ["3153600000"], "check": ["0", "3153600000"], "locales": ["1", "18446744073709551615"], "subpath": [".", "/"]}
    for turn in range(max(map(len, taken.values()))):
        chosen = {name: values[turn % len(values)] for name, values in taken.items()}
        log = tmp_path / f"log{turn}"
        with Mount(place / "x.h5", os.fsdecode(b",".join(written(name, value) for name, value in chosen.items())), log=log) as mount:
            assert [name for name in os.listdir(mount.path) if name == "a.npy"], chosen
            if chosen["umask"] == "0" or os.getuid() == 0:
                assert len((mount / "a.npy").read_bytes()) == 128 + 80
        assert "panicked" not in Path(log).read_text("utf-8", "replace"), chosen
