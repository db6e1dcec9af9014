"""What users may import: exactly this, all of it documented."""

from __future__ import annotations

import inspect

import pytest

import draftlens

PUBLIC = [
    "Chunk",
    "ConfigError",
    "DraftlensError",
    "Engine",
    "HostError",
    "IncompatiblePairError",
    "InputError",
    "Inputs",
    "Lookup",
    "MediaError",
    "ParallelVLM",
    "PlainDecoding",
    "Result",
    "SpecVLM",
    "SpeculativeDecoding",
    "SpeculativeGenerate",
    "Stream",
    "TABED",
    "TrainingDataError",
    "UnsupportedModelError",
    "ViewMemory",
    "from_dict",
    "generate",
    "load",
    "stream",
]


def test_all_is_frozen() -> None:
    assert sorted(draftlens.__all__) == PUBLIC == sorted(PUBLIC)


def test_all_is_exactly_what_is_there() -> None:
    names = {
        name
        for name, value in vars(draftlens).items()
        if name[0] != "_" and not inspect.ismodule(value)
    }
    assert names == set(PUBLIC)


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
