"""`draftlens evaluate`: measures models on held-out scenes, with a report and plots."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from draftlens.cli.options import PLAIN, Loading
from draftlens.core.errors import ConfigError
from draftlens.core.names import AUTO, EMBEDDED


def evaluate(
    *,
    target: str = EMBEDDED,
    draft: str = AUTO,
    clips: Annotated[int, typer.Option(min=1)] = 100,
    frames: str = "8,64,256",
    out: Path = Path("runs/evaluate"),
    plots: Annotated[bool, typer.Option("--plots/--no-plots")] = True,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    loading: Loading = PLAIN,
    as_json: bool = False,
) -> None:
    """Measure the accuracy of a model on held-out scenes.

    The scenes are those of the procedural world. With a draft, the agreement between the draft and
    the target is measured too.

    Args:
        clips: Number of held-out clips, of held-out pictures, and of questions of each family.
        frames: Numbers of frames of a clip: the usual one, then those of long input, separated by
            commas.
        out: Folder for the report and the plots.
        plots: Draw plots of the results.
        seed: Seed of the held-out scenes.
    """
    lengths = parse_frames(frames)
    _check_matplotlib()
    from draftlens_lab.cli.evaluate_run import evaluate_models, show_report
    from draftlens_lab.evaluate import EvaluationOptions

    options = EvaluationOptions(clips, lengths, seed)
    report = evaluate_models((target, draft, loading), options, out, as_json)
    show_report(report, out, plots, as_json)


def parse_frames(text: str) -> tuple[int, ...]:
    """Return the numbers of frames from the value of `--frames`, in its order."""
    words = [word.strip() for word in text.split(",")]
    numbers = [int(word) for word in words if word.isascii() and word.isdigit()]
    is_valid = len(numbers) == len(words) == len(set(numbers)) and min(numbers) >= 1
    if not is_valid:
        raise ConfigError(f"--frames needs different numbers such as 8,64,256, not {text!r}")
    return tuple(numbers)


def _check_matplotlib() -> None:
    """Raise `ConfigError` without matplotlib.

    It is needed even without plots, because the letters in the clips are drawn in its fonts.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError("evaluate draws clips and plots with matplotlib: pip install matplotlib")
