"""The packages of `tests/plugin` for the time of a test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from draftlens.core.options import Registry

PLUGIN = str(Path(__file__).resolve().parents[1] / "plugin")


@contextmanager
def installed(
    monkeypatch: pytest.MonkeyPatch, package: str, *registries: Registry
) -> Iterator[None]:
    """A package lies in a folder of the import path, with the metadata of an installed one."""
    monkeypatch.syspath_prepend(PLUGIN)
    for registry in registries:
        registry.refresh()
    yield
    monkeypatch.undo()
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
    for registry in registries:
        registry.refresh()
