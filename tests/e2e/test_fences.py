"""The Python of README and docs runs as it is printed: the snippets of a page one after the other,
with the embedded pair in place of models of the Hub. Each recipe runs in a process of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from draftlens_lab.bench.workloads import WORKLOADS
from transformers import AutoModelForImageTextToText, AutoProcessor, dynamic_module_utils

import draftlens
from draftlens.models.known_pairs import path_of
from draftlens.serve.options import ServeOptions
from tests.e2e.conftest import CLIPS
from tests.e2e.serve.running import serving

ROOT = Path(__file__).resolve().parents[2]
GENERATED = "cli.md"
RECIPES = ROOT / "docs/recipes.md"
TARGET = "Qwen/Qwen2.5-VL-7B-Instruct"
DRAFT = "Qwen/Qwen2.5-VL-3B-Instruct"

ELSEWHERE = {
    ("compiled.md", 0): "compiles for a minute; tests/exact/test_compiled.py does it",
    ("explain.md", 0): "tests/e2e/test_docs.py runs it and looks at the result",
    ("folders.md", 1): "starts ray; tests/e2e/test_ray.py runs its class",
    ("hsd.md", 0): "tests/e2e/test_docs.py runs it with fixed costs",
    ("lmms-eval.md", 0): "tests/e2e/lab/test_lmms.py runs it without VLMEvalKit",
    (
        "document-models.md",
        0,
    ): "tests/e2e/test_docs.py runs all of the page on documents of its own",
    ("document-models.md", 1): "as the first one",
    ("parse.md", 0): "tests/e2e/test_docs.py runs it on documents of its own",
    ("serve.md", 0): "needs a server; tests/e2e/serve asks one",
    ("serve.md", 1): "needs Docling; tests/e2e/serve/test_document_clients.py sends its requests",
    ("structure.md", 0): "tests/e2e/test_docs.py runs it and looks at the result",
    ("training.md", 0): "tests/e2e/lab/test_train_draft.py runs all of the page",
    ("training.md", 1): "as the first one",
    ("world.md", 2): "reads a folder that draftlens world wrote",
}
"""Snippets that are not run here, by page and number. Their names are checked as those of others
are."""


def fences(page: Path) -> list[str]:
    """The Python snippets of a page."""
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


PAGES = [
    page
    for page in [ROOT / "README.md", ROOT / "hub/README.md", *sorted(ROOT.glob("docs/*.md"))]
    if page.name != GENERATED and fences(page)
]
RUN_HERE = [
    page
    for page in PAGES
    if page != RECIPES
    and any((page.name, number) not in ELSEWHERE for number in range(len(fences(page))))
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a reader: the repository's package, clips and pictures."""
    (tmp_path / "draftlens").symlink_to(ROOT / "draftlens")
    (tmp_path / "hub").symlink_to(ROOT / "hub")
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("clip.mp4", "shapes.mp4"):
        shutil.copy(CLIPS / "shapes.mp4", tmp_path / name)
    for name in ("shapes.png", "a.png", "b.png", "photo.jpg"):
        shutil.copy(CLIPS / "shapes.png", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def _hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of Qwen's models stand for the embedded pair, in float32."""
    load = draftlens.load

    def load_here(target: str = "embedded", *words: Any, **options: Any) -> draftlens.Engine:
        if target == TARGET:
            options.pop("dtype", None)
            target = "embedded"
        return load(target, *words, **options)

    monkeypatch.setattr(draftlens, "load", load_here)
    folders = {TARGET: path_of("embedded", "target"), DRAFT: path_of("embedded", "draft")}
    for kind in (AutoModelForImageTextToText, AutoProcessor):
        from_pretrained = kind.from_pretrained

        def of_folder(name: str, *words: Any, _from: Any = from_pretrained, **options: Any) -> Any:
            return _from(folders.get(name, name), *words, **options)

        monkeypatch.setattr(kind, "from_pretrained", of_folder)
    monkeypatch.setattr(WORKLOADS, "_builtin", dict(WORKLOADS._builtin))


@pytest.mark.filterwarnings(
    "ignore:The image decoding and encoding:DeprecationWarning"
)  # transformers
@pytest.mark.usefixtures("folder", "_hub")
@pytest.mark.parametrize("page", RUN_HERE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_snippets_of_a_page_run_as_they_are_printed(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    printing = False
    for number, code in enumerate(fences(page)):
        if (page.name, number) in ELSEWHERE:
            continue
        exec(compile(code, f"{page.name}[{number}]", "exec"), names)
        printing = printing or "print(" in code
    assert bool(capsys.readouterr().out.strip()) == printing
    result = names.get("result")
    assert result is None or result.lossless == (page.name != "spava.md")
    if "custom" in names:  # the caller's own generate has the tokens of draftlens.generate
        assert names["custom"].last.tokens == result.tokens


def test_all_names_of_the_snippets_are_defined(tmp_path: Path) -> None:
    """In each snippet by itself, as it is pasted."""
    for page in PAGES:
        for number, code in enumerate(fences(page)):
            name = f"{page.parent.name}_{page.stem}_{number}.py"
            (tmp_path / name).write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "."]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_what_is_not_run_here_is_on_its_page() -> None:
    for name, number in ELSEWHERE:
        page = next(page for page in PAGES if page.name == name)
        assert number < len(fences(page)), name


FORKS = """
import json, os, shlex, sys

import av, openai, PIL, pypdfium2, torch, transformers

from transformers import AutoModelForImageTextToText, AutoProcessor

import draftlens
from draftlens.cli import main

AutoModelForImageTextToText.from_pretrained("draftlens/embedded/target")
AutoProcessor.from_pretrained("draftlens/embedded/target")
draftlens.Engine, draftlens.parse


def paste(language, text):
    if language == "python":
        exec(compile(text, "recipe", "exec"), {"__name__": "__main__"})
        return
    for line in text.splitlines():
        sys.argv = shlex.split(line)
        try:
            main()
        except SystemExit as end:
            assert not end.code, line


for number, (language, text) in enumerate(json.loads(sys.stdin.read())):
    if not (child := os.fork()):
        out = os.open(f"{number}.out", os.O_CREAT | os.O_WRONLY)
        os.dup2(out, 1)
        os.dup2(out, 2)
        paste(language, text)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, open(f"{number}.out").read()
"""
"""Runs snippets in processes that have imported libraries, but loaded no model by draftlens."""

SLOW = ("draftlens doctor --target", "draftlens bench")
"""Commands that measure, which tests/e2e/test_cli.py and tests/e2e/lab/test_bench.py run."""


def recipes() -> list[tuple[str, str, str]]:
    """The language of each recipe, its text, and what it prints."""
    fence = r"```(python|bash)\n(.*?)```\n.*?```text\n(.*?)```"
    return re.findall(fence, RECIPES.read_text(encoding="utf-8"), re.DOTALL)


def test_each_recipe_runs_alone_and_prints_what_is_shown(
    folder: Path, engine: draftlens.Engine
) -> None:
    """In a process of its own. Numbers vary with measured costs, and what `...` stands for is not
    compared."""
    pdfs = pytest.importorskip("pdfs")
    (folder / "photos").mkdir()
    (folder / "papers").mkdir()
    for name in ("first", "second"):
        shutil.copy(CLIPS / "shapes.png", folder / "photos" / f"{name}.png")
        pdfs.write(folder / "papers" / f"{name}.pdf", [pdfs.columns])
    shutil.copy(CLIPS / "shapes.png", folder / "photo.png")
    pasted = [
        (language, "".join(line for line in text.splitlines(True) if not line.startswith(SLOW)))
        for language, text, _ in recipes()
    ]
    with serving(engine, ServeOptions()) as server:
        address = {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "none"}
        run = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", FORKS],
            input=json.dumps(pasted),
            env={**os.environ, **address},
            capture_output=True,
            text=True,
            check=False,
        )
    assert run.returncode == 0, run.stderr
    for number, (_, text, shown) in enumerate(recipes()):
        if any(name in text for name in SLOW):
            continue
        printed = without_numbers((folder / f"{number}.out").read_text(encoding="utf-8"))
        for line in shown.splitlines():
            assert without_numbers(line.removesuffix("...")) in printed


def without_numbers(text: str) -> str:
    return re.sub(r"\d+(\.\d+)?", "0", " ".join(text.split()))


def test_there_are_ten_recipes() -> None:
    """Those without a snippet lead to one."""
    sections = RECIPES.read_text(encoding="utf-8").split("\n## ")[1:]
    assert len(sections) == 10
    assert len(recipes()) == 8
    assert all("](" in section for section in sections)
