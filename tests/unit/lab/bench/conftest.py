"""Fakes that tests may change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest

from tests.unit.lab.bench.fakes import Race


@pytest.fixture
def race(monkeypatch: pytest.MonkeyPatch) -> Race:
    """Without collecting garbage, which takes a second here and there is none."""
    monkeypatch.setattr(
        "draftlens_lab.bench.runner.gc", SimpleNamespace(collect=int, freeze=int, unfreeze=int)
    )
    return Race()


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Datasets are prepared in a folder of the test."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    shown = datasets.is_progress_bar_enabled()
    yield
    (datasets.enable_progress_bars if shown else datasets.disable_progress_bars)()
