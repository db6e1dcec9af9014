"""The folder of a paper can be deleted alone: without it and the lines of registries that name it,
all other methods and prefills answer as stock `generate`."""

from __future__ import annotations

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
    "methods/lookup": ("methods/hsd",),
    "methods/hsd": (),
    "prefill/spava": (),
}
"""Folders, and those that stand on them: parallelvlm schedules specvlm, hsd is lookup in texts."""

ANSWERS = """
import importlib, pkgutil, sys
import torch
from PIL import Image
import draftlens
from draftlens.methods.base import METHODS
from draftlens.prefill.base import PREFILLS
from draftlens.verify import run_stock

torch.set_num_threads(1)
for module in pkgutil.walk_packages(draftlens.__path__, "draftlens."):
    if not module.name.endswith(("__main__", ".ray")):
        importlib.import_module(module.name)
engine = draftlens.load(device="cpu", calibrate=False)
picture = Image.new("RGB", (64, 64), "blue")
inputs = engine.read("Describe the image.", images=picture)
options = {"max_new_tokens": 12, "do_sample": False}
stock = run_stock(engine.target.backbone, inputs.target, **options).tokens
for name in METHODS:
    assert engine.answer(inputs, method=name, **options).run().tokens == stock, name
exact = [name for name in PREFILLS if name in ("full", "ring")]
for name in exact:
    assert engine.answer(inputs, prefill=name, **options).run().tokens == stock, name
print("methods", *METHODS)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("folder", PAPERS)
def test_a_paper_can_be_removed(folder: str, tmp_path: Path) -> None:
    gone = (folder, *PAPERS[folder])
    copy = tmp_path / "draftlens"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("embedded", "__pycache__"))
    (copy / "embedded").symlink_to(PACKAGE / "embedded")
    for path in gone:
        shutil.rmtree(copy / path)
    modules = "|".join(re.escape(f"draftlens.{path.replace('/', '.')}.") for path in gone)
    for registry in ("methods/base.py", "methods/parts.py", "prefill/base.py", "decoding/plan.py"):
        kept = [
            line
            for line in (copy / registry).read_text().splitlines(keepends=True)
            if not re.search(f'": "({modules})', line)
        ]
        (copy / registry).write_text("".join(kept))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", ANSWERS], env=environment, cwd=tmp_path, capture_output=True
    )
    assert ended.returncode == 0, ended.stderr.decode()[-2000:]
    names = set(ended.stdout.decode().split()[1:])
    left = {"plain", "speculative", "specvlm", "parallelvlm", "tabed", "lookup", "hsd"}
    assert names == left - {path.removeprefix("methods/") for path in gone}
