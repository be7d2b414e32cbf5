"""The recipes of docs/cookbook run and print what their pages show, and the pages show their files as they are. Judges: h5py, NumPy
and Hangar's own samples, for every number that a recipe prints of a store."""

import os
import re
import shutil
import stat
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from support.documents import HANGAR, PAGES, ROOT, WIDTH, below, blocks, broken_links, guarded, judge, links
from support.process import CACHE, NPYFS, npyfs, run

COOKBOOK = ROOT / "docs/cookbook"
RECIPES = sorted(page.parent for page in COOKBOOK.glob("*/README.md"))
SNAKEMAKE = os.environ.get("NPYFS_SNAKEMAKE", "")
SYSTEM = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def has(module, python=sys.executable):
    return run([python, "-c", f"import {module}"]).returncode == 0


# Recipes for the system's Python, of whose PyTorch there is a package.
TORCH = ("pytorch", "pytorch-images")

# What a recipe needs beside npyfs, Python and NumPy, and how to see that it is there.
NEEDS = {
    "snakemake": ("Snakemake", lambda: SNAKEMAKE),
    "snakemake-cluster": ("Snakemake, or its plugin cluster-generic", lambda: SNAKEMAKE and has(
        "snakemake_executor_plugin_cluster_generic", Path(SNAKEMAKE).with_name("python"))),
    "r": ("R", lambda: shutil.which("Rscript", path=SYSTEM)),
    "rust": ("cargo", lambda: shutil.which("cargo")),
    "duckdb": ("duckdb", lambda: has("duckdb")),
    "polars": ("polars", lambda: has("polars")),
    "arrow": ("duckdb, pandas or pyarrow", lambda: has("duckdb, pandas, pyarrow")),
    "dask": ("dask", lambda: has("dask.array")),
    "dask-cluster": ("dask.distributed", lambda: has("distributed, zarr")),
    **dict.fromkeys(TORCH, ("PyTorch of the system's Python", lambda: has("torch, numpy", "/usr/bin/python3"))),
    "gnuplot": ("gnuplot", lambda: shutil.which("gnuplot", path=SYSTEM)),
}


def environment(recipe, folder):
    """As a user has it: the program, Python with NumPy, and the tools of the recipe."""
    python = [] if recipe.name in TORCH else [os.path.dirname(sys.executable)]
    others = [os.path.dirname(SNAKEMAKE)] if SNAKEMAKE else []
    cargo = [os.path.dirname(shutil.which("cargo"))] if shutil.which("cargo") else []
    keep = {name: os.environ[name] for name in ("CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN") if name in os.environ}
    if recipe.name == "rust":
        keep.setdefault("CARGO_HOME", str(Path.home() / ".cargo"))
        keep.setdefault("RUSTUP_HOME", str(Path.home() / ".rustup"))
        keep["CARGO_TARGET_DIR"] = f"{CACHE}/cookbook-target"
    return {**keep, "HOME": str(folder / "home"), "TMPDIR": str(folder / "temporary"), "LC_ALL": "C.UTF-8", "TZ": "UTC",
            "PATH": ":".join([os.path.dirname(NPYFS), *python, *cargo, SYSTEM, *others]), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT / "python")}


def console(recipe):
    """The one block of the page that shows what `run` prints."""
    [block] = [block for block in blocks((recipe / "README.md").read_text()) if block.language == "console"]
    [(command, printed)] = block.commands()
    assert command == "./run"
    return block.line, command, printed


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.sample("page", 5)
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_the_script_prints_what_the_page_shows(recipe):
    if recipe.name in NEEDS:
        what, there = NEEDS[recipe.name]
        if not there():
            pytest.skip(f"no {what}: the recipe is NOT run")
    # PyTorch's workers share memory by sockets in the temporary folder, whose paths have 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="npyfs-") as folder:
        try_recipe(recipe, Path(folder))


def try_recipe(recipe, folder):
    (folder / "home").mkdir()
    (folder / "temporary").mkdir()
    with guarded(folder, 350) as (name, _, value):
        done = run(["./run"], cwd=recipe, env={**environment(recipe, folder), name: value}, timeout=330)
        # Pages have no blanks at the ends of lines.
        said = "\n".join(line.rstrip() for line in (done.stdout + done.stderr).splitlines()).strip("\n")
        problems = judge(f"{said}\n\x010 {done.returncode}\x02\n", [console(recipe)])
        problems += [f"exit code {done.returncode}: {said}"] if done.returncode else []
        problems += [f"stays mounted: {point}" for point in below(folder)]
    assert not problems, "\n".join(problems)
    assert not list((folder / "temporary").iterdir())


@pytest.mark.fast
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_the_page_shows_every_file_as_it_is(recipe):
    shown = {block.note: "\n".join(block.body) + "\n" for block in blocks((recipe / "README.md").read_text()) if block.note}
    files = {path.relative_to(recipe).as_posix() for path in recipe.rglob("*") if path.is_file()}
    assert {name: (recipe / name).read_text() for name in shown} == shown
    assert files == {*shown, "README.md", "run"} | ({"Cargo.toml", "Cargo.lock"} if recipe.name == "rust" else set())


@pytest.mark.fast
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_scripts_are_alike(recipe):
    script = recipe / "run"
    lines = script.read_text().splitlines()
    assert stat.S_IMODE(script.stat().st_mode) & 0o111
    assert lines[1].startswith("# ") and lines[2].startswith("# Needs npyfs")
    assert "set -euo pipefail" in lines


@pytest.mark.fast
@pytest.mark.parametrize("page", [COOKBOOK / "README.md", *(recipe / "README.md" for recipe in RECIPES)], ids=lambda page: page.parent.name)
def test_pages_are_narrow_and_links_lead_somewhere(page):
    assert [line for line in page.read_text().splitlines() if len(line) > WIDTH] == []
    assert broken_links(page) == []


@pytest.mark.fast
def test_the_index_has_every_recipe_and_is_reached():
    targets = {target for _, target in links((COOKBOOK / "README.md").read_text())}
    assert targets >= {f"{recipe.name}/README.md" for recipe in RECIPES}
    assert len(RECIPES) == 16
    assert any(target == "docs/cookbook/README.md" for page in PAGES for _, target in links(page.read_text()))


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cookbook") / "stores"
    npyfs("demo", folder, check=True)
    return folder


def shown(name):
    return "\n".join(console(COOKBOOK / name)[2])


def test_what_the_pages_show_is_what_h5py_reads(demo):
    with h5py.File(demo / "cells.h5df") as file:
        score, age = file["cell,gene#score"][()], file["cell#age"][()].astype("f8")
        genes, marker = file["gene#"].asstr()[()], file["gene#is_marker"][()].astype(bool)
    cells = len(age)

    assert f"{score.shape[0]} x {score.shape[1]}, mean of column 7: {score[:, 7].mean(dtype='f8'):.6f}" in shown("c")
    assert f"{cells} cells, mean age {age.mean():.3f}" in shown("rust")
    assert float(re.search(r"mean of gene 7: (\S+)", shown("rust"))[1]) == pytest.approx(score[:, 7].mean(dtype="f8"), rel=1e-5)
    assert f"highest mean: {genes[score.mean(axis=0).argmax()]}" in shown("dask")
    assert f"mean of all: {score.mean(dtype='f8'):.6f}" in shown("dask-cluster")
    with h5py.File(demo / "plain.h5") as file:
        images = file["images/stack"][()]
    assert shown("pytorch-images").count(f"{len(images)} images, mean {images.mean() / 255:.6f}") == 2
    with h5py.File(demo / "cells.h5df") as file:
        batch = file["cell#batch"].asstr()[()]
    means = [f"{score[batch == name].mean(dtype='f8'):.6f}" for name in ("first", "second")]
    assert f"means of the batches: {' '.join(means)}" in shown("snakemake-cluster")
    assert f"mean score of marker genes: {score[:, marker].mean(dtype='f8'):.6g}" in shown("r")
    summary = [float(word) for word in shown("r").splitlines()[1].split()]
    wanted = [age.min(), *np.quantile(age, [0.25, 0.5]), age.mean(), np.quantile(age, 0.75), age.max()]
    assert summary == pytest.approx(wanted, abs=0.01)


def test_what_duckdb_says_is_what_numpy_counts(demo):
    parts = [h5py.File(path) for path in sorted(demo.glob("trips_LOCALE*.h5"))]
    distance = np.concatenate([part["distance"][()] for part in parts])
    # A categorical: its categories are divided among the files as its codes are.
    categories = b"".join(part["carrier/categories/values"][()].tobytes() for part in parts).split(b"\0")[:-1]
    carrier = np.array([text.decode() for text in categories])[np.concatenate([part["carrier/codes"][()] for part in parts])]
    assert len(carrier) == len(distance)
    miles = sorted(((distance[carrier == name].mean(), name, (carrier == name).sum()) for name in set(carrier)), reverse=True)
    lines = shown("duckdb").splitlines()
    for (mean, name, count), line in zip(miles[:3], lines):
        assert line.split()[:3] == [name, str(count), str(float(round(mean)))]
    assert f"long.parquet: {(distance > 1000).sum()} rows" in lines


def test_what_polars_says_is_what_numpy_counts(demo):
    parts = [h5py.File(path) for path in sorted(demo.glob("trips_LOCALE*.h5"))]
    distance, departure = (np.concatenate([part[name][()] for part in parts]) for name in ("distance", "departure"))
    carrier = np.concatenate([part["carrier/codes"][()] for part in parts])
    far = distance > 1000
    lines = [line.split() for line in shown("polars").splitlines()[:3]]
    wanted = []
    for code, name in enumerate(["Adler", "Bussard", "Möwe"]):
        own = far & (carrier == code)
        last = departure[own].max().astype("M8[ns]").astype("M8[D]")
        wanted.append([name, str(own.sum()), str(float(round(distance[own].mean()))), str(last)])
    assert lines == sorted(wanted, key=lambda line: -float(line[2]))


def test_what_is_said_of_a_data_frame_is_what_h5py_reads(demo):
    with h5py.File(demo / "cells.h5ad") as file:
        genes, codes = file["obs/n_genes"][()], file["obs/cell_type/codes"][()]
        kinds = file["obs/cell_type/categories"].asstr()[()]
    lines = shown("arrow").splitlines()
    many = genes > 5
    wanted = [f"{kind} {(many & (codes == code)).sum()} {genes[many & (codes == code)].mean():.2f}" for code, kind in enumerate(kinds)]
    assert [" ".join([*words[:-1], f"{float(words[-1]):.2f}"]) for words in map(str.split, lines[:-1])] == sorted(wanted)
    assert lines[-1] == str({str(kind): int(genes[codes == code].max()) for code, kind in enumerate(kinds)})


@pytest.mark.skipif(not HANGAR, reason="NPYFS_HANGAR_PYTHON names no Python with Hangar: the number of samples is NOT judged")
def test_the_number_of_samples_is_hangars(demo):
    count = run([HANGAR, "-c", "import sys, warnings; warnings.simplefilter('ignore'); from hangar import Repository; "
                 "print(len(Repository(sys.argv[1], exists=True).checkout(branch='master')['digits']))", demo / "digits"], check=True).stdout
    assert f"one epoch: {count.split()[-1]} samples" in shown("pytorch")
