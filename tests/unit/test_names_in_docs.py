"""Backticked paths and dotted names in README, docs, CONTRIBUTING and docstrings exist."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = "cli.md"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted(ROOT.glob("docs/*.md")) if page.name != GENERATED),
]
PACKAGES = {"draftlens": ROOT, "draftlens_lab": ROOT / "lab"}
TREES = (
    "benchmarks",
    "containers",
    "docs",
    "draftlens",
    "hub",
    "lab",
    "notebooks",
    "recipes",
    "tests",
)
MODULES = [path for name, home in PACKAGES.items() for path in sorted((home / name).rglob("*.py"))]

SUFFIXES = ("py", "md", "json", "jsonl", "toml", "pdf", "png", "mp4", "html", "txt")
PATH = re.compile(rf"[\w.-]+(/[\w.-]+)*/|[\w.-]+(/[\w.-]+)+|[\w-][\w.-]*\.({'|'.join(SUFFIXES)})")
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")

ELSEWHERE = {
    "Qwen/Qwen2.5-VL-7B-Instruct": "a model of the Hub",
    "sy1998/MLVU_dev": "a dataset of the Hub",
    "acceptance_by_FIELD.png": "output of draftlens bench",
    "acceptance_by_depth.png": "output of draftlens evaluate",
    "accuracy.png": "output of draftlens evaluate",
    "acceptance_by_gamma.png": "output of draftlens evaluate",
    "acceptance_by_prune_ratio.png": "output of draftlens bench",
    "breakdown.png": "output of draftlens bench",
    "config.json": "of a model",
    "dist/": "output of the build",
    "dist/requirements-serve.txt": "output of `make sbom`",
    "dist/requirements-all.txt": "output of `make sbom`",
    "dist/sbom-all.json": "output of `make sbom`",
    "dist/sbom.json": "output of `make sbom`",
    "docs/repetition.md": "written by the reader of CONTRIBUTING",
    "document_profile.json": "of a reader of documents",
    "draft_step_by_context.png": "output of draftlens bench",
    "draftlens/compiled": "below the cache folder of the user",
    "draftlens/costs": "below the cache folder of the user",
    "draftlens/methods/NAME.py": "written by the reader of CONTRIBUTING",
    "draftlens/methods/repetition.py": "written by the reader of CONTRIBUTING",
    "equal.py": "of Spec-Bench",
    "evaluation/speed.py": "of Spec-Bench",
    "images/": "output of draftlens world",
    "letters/may.pdf": "an input in an example",
    "loss.json": "output of draftlens train-draft",
    "loss.png": "output of draftlens train-draft",
    "measurements.jsonl": "output of draftlens bench",
    "methods/tabed/leader.py": "written by the reader of CONTRIBUTING",
    "out/data/may.pdf.pages": "output of draftlens parse",
    "out/letters/may.pdf.pages": "output of draftlens parse",
    "FILE.json": "output of Docling or MinerU",
    "FOLDER/": "output of Docling or MinerU",
    "NAME.json": "output of Docling",
    "NAME_0_res.json": "output of PP-StructureV3",
    "NAME_1_res.json": "output of PP-StructureV3",
    "NAME_content_list.json": "output of MinerU",
    "NAME_middle.json": "output of MinerU",
    "documents.jsonl": "output of draftlens parse",
    "PAPER.pdf.md": "output of draftlens parse",
    "report.md": "output of draftlens bench",
    "run.json": "output of draftlens bench",
    "my_run.py": "of the reader of lmms-eval's page",
    "new.mp4": "of the user",
    "new.pdf": "of the user",
    "old.mp4": "of the user",
    "old.pdf": "of the user",
    "release.json": "output of `make release`",
    "recipes/reader/checkpoints": "in an earlier commit, which its command names",
    "run.py": "of VLMEvalKit",
    "spec_bench/METHOD.jsonl": "output of draftlens bench",
    "speedup.png": "output of draftlens bench",
    "summary.json": "output of draftlens bench",
    "test.json": "output of draftlens world",
    "train.json": "output of draftlens world",
    "utils.py": "of a task of lmms-eval",
    "videos/": "output of draftlens world",
}
"""Paths that are outside of the checkout, and whose they are."""
OUTPUT_FOLDERS = (".venv/", "OUT/", "dist/", "runs/")

OBJECTS = {
    "batch": "Batch",
    "backbone": "Backbone",
    "cache": "PromptCache",
    "chat": "Chat",
    "engine": "Engine",
    "at": "RoundState",
    "method": "Method",
    "model": "LlavaForConditionalGeneration",
    "pruner": "SpecVLMPruner",
    "recall": "Recall",
    "result": "Result",
    "self": "",
    "source": "Source",
    "stats": "Stats",
    "target_model": "LlavaForConditionalGeneration",
}
"""Variables of examples, and their classes."""


def spans_of(text: str) -> Iterator[str]:
    """The backticked spans of a text without its code blocks."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text):
        yield " ".join(span.split())


def docstrings(path: Path) -> str:
    """The docstrings of a module, its classes, functions and constants."""
    found = [
        node.value.value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str)
    ]
    return "\n\n".join(found)


@cache
def tails() -> frozenset[str]:
    """Every path of the checkout, from each of its components on."""
    found = set()
    for tree in TREES:
        for path in (ROOT / tree).rglob("*"):
            parts = path.relative_to(ROOT).parts
            if "__pycache__" not in parts:
                found |= {"/".join(parts[first:]) for first in range(len(parts))}
    return frozenset(found | {path.name for path in ROOT.iterdir()})


def missing_paths(span: str) -> Iterator[str]:
    for word in re.sub(r"--(out|keep|rows) \S+", "", span).split():
        if not PATH.fullmatch(word) or word in ELSEWHERE or word.startswith(OUTPUT_FOLDERS):
            continue
        if str(PurePosixPath(word)) not in tails():
            yield word


@cache
def modules_by_tail() -> dict[str, list[str]]:
    """`core.tree` and `tree` to `draftlens.core.tree`."""
    found = defaultdict(list)
    for path in MODULES:
        home = ROOT / "lab" if "draftlens_lab" in path.parts else ROOT
        parts = path.relative_to(home).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        for first in range(len(parts)):
            found[".".join(parts[first:])].append(".".join(parts))
    return found


@cache
def modules_by_class() -> dict[str, list[str]]:
    found = defaultdict(list)
    for path in MODULES:
        home = ROOT / "lab" if "draftlens_lab" in path.parts else ROOT
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                name = ".".join(path.relative_to(home).with_suffix("").parts)
                found[node.name].append(name.removesuffix(".__init__"))
    found["LlavaForConditionalGeneration"] = ["transformers"]
    return found


def has_path(value: object, names: list[str]) -> bool:
    """Whether an attribute path leads somewhere, fields and attributes of `__init__` included."""
    for name in names:
        if not hasattr(value, name):
            return inspect.isclass(value) and any(
                name in vars(kind).get("__annotations__", {})
                or re.search(rf"\bself\.{name}\b(:[^=]+)? = ", inspect.getsource(kind))
                for kind in value.__mro__
                if kind.__module__.startswith("draftlens")
            )
        value = getattr(value, name)
    return True


def imported(name: str) -> object:
    """A module; None where a library that it needs is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def exists(dotted: str, inside: Path | None = None) -> bool:
    """Whether a dotted name leads to an object of draftlens or of an installed package.

    It may begin with a module (`tree.chain`, `core.tree.chain`), a class (`Session.accept`), a
    variable of `OBJECTS`, or, in the docstrings of `inside`, `self`.
    """
    parts = dotted.split(".")
    if parts[0] == "self" and inside is not None:
        return re.search(rf"\bself\.{parts[1]}\b", inside.read_text(encoding="utf-8")) is not None
    for length in range(len(parts), 0, -1):
        for name in modules_by_tail().get(".".join(parts[:length]), []):
            if has_path(imported(name), parts[length:]):
                return True
    kind = OBJECTS.get(parts[0], parts[0])
    for name in modules_by_class().get(kind, []):
        if has_path(getattr(imported(name), kind, None), parts[1:]):
            return True
    if parts[0] in PACKAGES or find_spec(parts[0]) is None:
        return False
    for length in range(len(parts), 0, -1):
        try:
            return has_path(importlib.import_module(".".join(parts[:length])), parts[length:])
        except ImportError:
            continue
    return False


ENTRY_POINTS = re.compile(
    r"draftlens\.(commands|formats|layouts|methods|models|prefills|pruners|readers|views|weights)"
)
FOREIGN = {
    "AttentionInterface.register": "transformers",
    "AttentionMaskInterface.register": "transformers",
    "ProcessGroupGloo.create_device": "torch.distributed",
    "Dataset.map_batches": "ray.data",
    "example.com": "an address",
    "frame.rotation": "av",
    "lmms_eval.models": "a group of entry points",
    "openvino.convert_model": "openvino",
    "stream_options.include_usage": "the protocol of OpenAI",
    "usage.completion_tokens_details": "the protocol of OpenAI",
    "usage.prompt_tokens_details.cached_tokens": "the protocol of OpenAI",
    "v0.1.0": "a version",
}


def missing_names(span: str, inside: Path | None = None) -> Iterator[str]:
    dotted = span.split("(")[0]
    if not DOTTED.fullmatch(dotted) or dotted.rsplit(".", 1)[1] in SUFFIXES:
        return
    if dotted in FOREIGN or ENTRY_POINTS.fullmatch(dotted) or exists(dotted, inside):
        return
    yield dotted


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_and_names_of_a_page_exist(page: Path) -> None:
    spans = list(spans_of(page.read_text(encoding="utf-8")))
    assert [word for span in spans for word in missing_paths(span)] == []
    assert [name for span in spans for name in missing_names(span)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_paths_and_names_of_docstrings_exist(package: str) -> None:
    missing = []
    for path in MODULES:
        if package in path.parts:
            for span in spans_of(docstrings(path)):
                stale = [*missing_paths(span), *missing_names(span, path)]
                missing += [f"{path.relative_to(ROOT)}: {name}" for name in stale]
    assert missing == []
