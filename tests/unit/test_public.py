"""What users may import: exactly this, all of it documented."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path

import public_interface
import pytest
from packaging.requirements import Requirement

import draftlens

PUBLIC = [
    "Automatic",
    "Chat",
    "Chunk",
    "ConfigError",
    "DocumentParser",
    "DraftlensError",
    "Engine",
    "Form",
    "HSD",
    "HostError",
    "IncompatiblePairError",
    "InputError",
    "Inputs",
    "Lookup",
    "MediaError",
    "Mixed",
    "ParallelVLM",
    "ParseSettings",
    "ParsedPage",
    "PlainDecoding",
    "PromptCache",
    "Result",
    "SpecVLM",
    "SpeculativeDecoding",
    "SpeculativeGenerate",
    "Stream",
    "TABED",
    "TokenLogprob",
    "TrainingDataError",
    "UnsupportedModelError",
    "from_dict",
    "generate",
    "load",
    "parse",
    "stream",
]


def test_all_is_frozen() -> None:
    assert sorted(draftlens.__all__) == PUBLIC == sorted(PUBLIC)


def test_all_is_exactly_what_is_there() -> None:
    """Public names are imported on first use; `dir` names them before."""
    found = {name: getattr(draftlens, name) for name in dir(draftlens) if name[0] != "_"}
    helpers = {"Any", "TYPE_CHECKING", "import_module"}
    names = {name for name, value in found.items() if not inspect.ismodule(value)}
    assert names - helpers == set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_and_their_methods_are_documented(name: str) -> None:
    value = getattr(draftlens, name)
    assert value.__doc__
    for member, method in (
        inspect.getmembers(value, inspect.isfunction) if inspect.isclass(value) else []
    ):
        if member[0] != "_" and method.__module__.startswith("draftlens"):
            assert method.__doc__, f"{name}.{member}"


def test_a_star_import_gives_what_all_names() -> None:
    names: dict[str, object] = {}
    exec("from draftlens import *", names)
    assert sorted(names.keys() - {"__builtins__"}) == PUBLIC


def test_version() -> None:
    assert draftlens.__version__.count(".") == 2


def test_ray_is_recent_enough_for_the_router_of_the_server() -> None:
    """`ConsistentHashRouter` is in Ray 2.56 and later (`draftlens.serve.ray`)."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    (ray,) = map(Requirement, project["project"]["optional-dependencies"]["ray"])
    assert not ray.specifier.contains("2.55.1")
    assert ray.specifier.contains("2.56.0")


def test_the_interface_is_the_recorded_one() -> None:
    """A change is made on purpose: `PYTHONPATH=tests python tests/public_interface.py --write`, and
    a line in the changelog."""
    found = public_interface.lines()
    recorded = public_interface.FILE.read_text(encoding="utf-8").splitlines()
    assert sorted(set(found) ^ set(recorded)) == []
    assert found == recorded


def test_the_interface_shows_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    before = public_interface.lines()

    def load(target: str = "embedded", *, new: int = 1) -> None: ...

    monkeypatch.setattr(draftlens, "load", load)
    changed = set(public_interface.lines()) - set(before)
    assert changed == {"load(target: 'str' = 'embedded', *, new: 'int' = 1) -> 'None'"}
