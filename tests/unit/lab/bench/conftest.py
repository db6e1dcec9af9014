"""Fakes that tests may change."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.unit.lab.bench.fakes import Race


@pytest.fixture
def race(monkeypatch: pytest.MonkeyPatch) -> Race:
    """Without collecting garbage, which takes a second here and there is none."""
    monkeypatch.setattr(
        "draftlens_lab.bench.runner.gc", SimpleNamespace(collect=int, freeze=int, unfreeze=int)
    )
    return Race()
