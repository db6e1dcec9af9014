"""Models and data that drafts are trained from."""

from __future__ import annotations

from pathlib import Path

import pytest
from families import FAMILIES

from tests.unit.lab.train.drafts import save_model, write_data


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny LLaVA with its processor."""
    return save_model(FAMILIES[0], tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five entries: four with an image, one of text alone."""
    return write_data(tmp_path_factory.mktemp("data"), 5)
