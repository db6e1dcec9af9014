"""The folder of a paper can be deleted alone: without it and the lines of registries that name it,
all other methods and prefills answer as stock `generate`. So can the file or folder of an engine of
passes."""

from __future__ import annotations

import compileall
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import draftlens

PACKAGE = Path(draftlens.__file__).parent

PAPERS = {
    "methods/specvlm": ("methods/parallelvlm",),
    "methods/parallelvlm": (),
    "methods/tabed": (),
    "methods/lookup": ("methods/hsd", "methods/mixed"),
    "methods/hsd": (),
    "methods/mixed": (),
    "prefill/spava": (),
}
"""Folders, and those that stand on them: parallelvlm schedules specvlm, hsd is lookup in texts,
mixed copies by lookup."""

ENGINES = ("passes/openvino.py", "passes/inductor")

ANSWERS = """
import gc, importlib, os, pkgutil, sys, traceback
from importlib.metadata import entry_points
import av, fastapi, pikepdf, prometheus_client, pypdfium2, rapid_layout, rich.progress, rich.table
import torch, torchvision, transformers.generation, transformers.modeling_utils, typer, uvicorn
from PIL import Image
from transformers import LlavaOnevisionForConditionalGeneration, LlavaOnevisionProcessor
from transformers import Qwen2ForCausalLM, SiglipVisionModel

torch.set_num_threads(1)

def answer():
    import draftlens
    from draftlens.methods.base import METHODS
    from draftlens.passes import PASSES
    from draftlens.prefill.base import PREFILLS
    from draftlens.verify import run_stock

    for module in pkgutil.walk_packages(draftlens.__path__, "draftlens."):
        if not module.name.endswith(("__main__", ".ray")):
            importlib.import_module(module.name)
    engine = draftlens.load(device="cpu", calibrate=False)
    picture = Image.new("RGB", (64, 64), "blue")
    inputs = engine.read("Describe the image.", images=picture)
    options = {"max_new_tokens": 8, "do_sample": False}
    stock = run_stock(engine.target.backbone, inputs.target, **options).tokens
    exact = [name for name in PREFILLS if name in ("full", "ring")]
    for name in exact:
        assert engine.answer(inputs, prefill=name, **options).run().tokens == stock, name
    plugins = {point.name for point in entry_points(group="draftlens.methods")}
    methods = [name for name in METHODS if name not in plugins]
    # On one core parallelvlm starts no process, which would load the libraries once more.
    cores = os.sched_getaffinity(0)
    for name in methods:
        os.sched_setaffinity(0, {min(cores)} if name == "parallelvlm" else cores)
        assert engine.answer(inputs, method=name, **options).run().tokens == stock, name
    if not {"inductor", "openvino"} <= set(PASSES):
        engine.compile("auto")
        assert engine.answer(inputs, **options).run().tokens == stock, "auto"
    assert draftlens.__file__.startswith(os.getcwd())
    print("methods", *methods)

gc.freeze()
for folder in sys.argv[1:]:
    fork = os.fork()
    if not fork:
        os.chdir(folder)
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = folder
        for name, descriptor in (("out", 1), ("err", 2)):
            with open(name, "w") as file:
                os.dup2(file.fileno(), descriptor)
        try:
            answer()
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # an orderly end frees all libraries one by one
    os.waitpid(fork, 0)
"""
"""Answers with each of several copies of the package, each in a fork of one process that has loaded
the libraries; what it prints is in files of the copy's folder."""


REGISTRIES = (
    *("methods/base.py", "methods/parts.py", "prefill/base.py", "decoding/plan.py"),
    "passes/base.py",
)


def without(folder: str, place: Path, package: Path = PACKAGE) -> Path:
    """A folder with a copy of the package that lacks a paper, or an engine of passes."""
    copy = place / "draftlens"
    # With the bytecode, which goes with the times and sizes of files that are not changed below.
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("embedded"))
    (copy / "embedded").symlink_to(PACKAGE / "embedded")
    gone = (folder, *PAPERS.get(folder, ()))
    for path in gone:
        if path.endswith(".py"):
            (copy / path).unlink()
        else:
            shutil.rmtree(copy / path)
    names = [path.removesuffix(".py").replace("/", ".") for path in gone]
    modules = "|".join(rf"{re.escape(f'draftlens.{name}')}[.:]" for name in names)
    for registry in REGISTRIES:
        kept = [
            line
            for line in (copy / registry).read_text().splitlines(keepends=True)
            if not re.search(f'": "({modules})', line)
        ]
        (copy / registry).write_text("".join(kept))
    return place


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of each copy, once all have answered."""
    package = tmp_path_factory.mktemp("compiled") / "draftlens"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("embedded"))
    compileall.compile_dir(package, quiet=1)
    made = {
        folder: without(folder, tmp_path_factory.mktemp("copy"), package)
        for folder in (*PAPERS, *ENGINES)
    }
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [sys.executable, "-c", ANSWERS, *map(str, made.values())],
        env={**environment, "OMP_NUM_THREADS": "1"},
        cwd=next(iter(made.values())),
        check=True,
    )
    return made


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("folder", PAPERS)
def test_a_paper_can_be_removed(folder: str, places: dict[str, Path]) -> None:
    gone = (folder, *PAPERS[folder])
    printed = (places[folder] / "out").read_text()
    assert printed, (places[folder] / "err").read_text()[-2000:]
    names = set(printed.split()[1:])
    left = {"auto", "plain", "speculative", "specvlm", "parallelvlm", "tabed"}
    left |= {"lookup", "hsd", "mixed"}
    assert names == left - {path.removeprefix("methods/") for path in gone}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_of_passes_can_be_removed(engine: str, places: dict[str, Path]) -> None:
    printed = (places[engine] / "out").read_text()
    assert printed, (places[engine] / "err").read_text()[-2000:]


LEFTOVERS = {
    "prefill/spava": r"spava(?!-ablation)|\bring\b|\bhosts\b|torchrun|sharded|process_group",
}
"""Words that belong to a paper; `spava-ablation` is a prefill of the laboratory."""

OTHER_HOSTS = ("media/", "serve/", "cli/serve.py")
"""Where hosts are those of addresses."""


@pytest.mark.parametrize("folder", LEFTOVERS)
def test_nothing_of_a_removed_paper_is_left(folder: str, tmp_path: Path) -> None:
    """Outside of its folder a paper has its lines in registries and the exceptions of the public
    tree, and nothing else."""
    copy = without(folder, tmp_path) / "draftlens"
    found = [
        f"{path.relative_to(copy)}:{number}: {line.strip()}"
        for path in sorted(copy.rglob("*.py"))
        if not str(path.relative_to(copy)).startswith(OTHER_HOSTS)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(LEFTOVERS[folder], line, re.IGNORECASE)
    ]
    assert found == []
