"""`draftlens calibrate`: finds the attention mass (λ) or layer (L) of a pruner, or the best pruner,
for a pair of models and a task."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftlens.cli import options as opt
from draftlens.cli.model_options import PLAIN, Loading
from draftlens.core.names import AUTO, EMBEDDED

if TYPE_CHECKING:
    from draftlens.methods.base import Method
    from draftlens_lab.bench.calibrate import CalibratedOption, Calibration

BAR_WIDTH = 20
"""Characters of the longest bar; with its mark, the table fits into a terminal of 80 columns."""


def calibrate_command(
    media: Annotated[
        list[str], typer.Argument(help="Two to four video files, or images with --images.")
    ],
    images: Annotated[
        bool,
        typer.Option("--images", help="Read the files as images, each with a prompt of its own."),
    ] = False,
    target: opt.Target = EMBEDDED,
    draft: opt.Draft = AUTO,
    speculative_config: opt.SpeculativeConfig = None,
    pruners: Annotated[
        str,
        typer.Option(
            help="Compare these pruners instead, such as `specvlm,uv,uniform`, each with its "
            "default options.",
            autocompletion=opt.complete_pruners,
        ),
    ] = "",
    frames: opt.Frames = 8,
    prompt: opt.MediaPrompt = "",
    max_new_tokens: opt.MaxNewTokens = 256,
    loading: Loading = PLAIN,
    limits: opt.MediaLimits = None,
    as_json: opt.AsJson = False,
) -> None:
    """Find the best attention_mass of method specvlm, the best layer of pruner uv, or the best
    pruner.

    The attention_mass (λ) of pruner specvlm is the share of attention that the most attended of
    the kept tokens hold; values from 0 to 1 are tried in steps of 0.1. The layer (L) of pruner uv
    is the one behind which the target's hidden states are compared; 5, 10, 15 and 20 are tried, as
    far as the target is deep enough. All clips are answered with every value. The best value has
    the longest mean acceptance length.
    """
    opt.check_media(media, opt.parse_limits(limits))
    from draftlens.cli.loading import load_engine, read_files
    from draftlens.cli.progress import progress_bars
    from draftlens_lab.bench.calibrate import calibrate as run
    from draftlens_lab.bench.calibrate import subject_of

    names = [name.strip() for name in pruners.split(",") if name.strip()]
    method = _check_method(opt.parse_method("specvlm", speculative_config), names)
    text = opt.prompt_or_default(prompt, images)
    chats = [read_files(as_json, limits, text, frames, [file], images) for file in media]
    engine = load_engine(target, draft, method, loading, as_json, calibrate=False)
    subject = subject_of(method, engine.target.backbone.text_config.num_hidden_layers, names)
    with progress_bars(as_json) as progress:
        task = progress.add_task("answering", total=len(subject.values) * len(media))
        clips = [engine.process([chat]) for chat in chats]
        calibration = run(
            engine, clips, method, subject, max_new_tokens, lambda: progress.advance(task)
        )
    if as_json:
        _print_json(subject, calibration, method)
    else:
        _show(subject, calibration, method)


def best_value(calibration: Calibration) -> Any:
    """Return the best value, or None if all values are equally good."""
    curve = calibration.curve
    return calibration.best if min(curve) < max(curve) else None


def command_of(method: Method, subject: CalibratedOption, value: Any) -> str:
    """The options of the command line that use a value."""
    from draftlens.methods.base import to_dict, with_option

    options = to_dict(with_option(method, subject.option, value))
    used = {"method": options["method"], "pruner": options["pruner"]}
    return f"--speculative-config '{json.dumps(used)}'"


def _print_json(subject: CalibratedOption, calibration: Calibration, method: Method) -> None:
    from draftlens.cli.show import print_json

    best = best_value(calibration)
    print_json(
        {
            subject.name: best,
            subject.plural: calibration.values,
            "mean_acceptance_length": calibration.curve,
            "interval": [list(interval) for interval in calibration.intervals],
            "clear": best is not None and calibration.is_clear,
            "use": None if best is None else command_of(method, subject, best),
        }
    )


def _show(subject: CalibratedOption, calibration: Calibration, method: Method) -> None:
    from draftlens.cli.show import console, table

    best = best_value(calibration)
    curve = calibration.curve
    longest = max(curve) or 1.0  # 0 if all answers have a single token
    rows = []
    for value, length in zip(calibration.values, curve, strict=True):
        bar = "#" * round(BAR_WIDTH * length / longest)
        mark = " <" if value == best else ""
        rows.append([str(value), f"{length:.2f}", bar + mark])
    columns = [subject.name, "mean acceptance length", ""]
    if calibration.intervals:
        columns.insert(2, "95% interval")
        for row, (low, high) in zip(rows, calibration.intervals, strict=True):
            row.insert(2, f"{low:.2f} to {high:.2f}")
    table("", columns, rows)
    if best is not None:
        message = f"{subject.name} {best}: {command_of(method, subject, best)}"
        if not calibration.is_clear:
            message += "; the clips do not show that it is better than the others"
    elif any(curve):
        message = f"no {subject.name} is best: all did equally well"
    else:
        message = (
            f"no {subject.name} is best: the answers ended with their first token, so nothing was "
            "drafted"
        )
    console.print(message, markup=False, soft_wrap=True)


def _check_method(method: Any, pruners: Sequence[str]) -> Method:
    from draftlens.methods.base import resolve
    from draftlens_lab.bench.calibrate import check_calibration

    resolved = resolve(method, True)
    check_calibration(resolved, pruners)
    return resolved
