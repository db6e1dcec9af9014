"""Runs the calibration of `draftlens calibrate` and prints its outcome."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from draftlens.cli.progress import progress_bars
from draftlens.cli.show import console, print_json, say, table
from draftlens.engine import Engine
from draftlens.media.conversation import Conversation
from draftlens.methods.base import Method, resolve, to_dict, with_option
from draftlens_lab.bench.calibrate import (
    CalibratedOption,
    Calibration,
    calibrate,
    check_calibration,
)

BAR_WIDTH = 20
"""Characters of the longest bar; with its mark, the table fits into a terminal of 80 columns."""


def calibrate_with_bar(
    engine: Engine,
    chats: Sequence[Conversation],
    method: Method,
    subject: CalibratedOption,
    max_new_tokens: int,
    quiet: bool,
) -> Calibration:
    with progress_bars(quiet) as progress:
        task = progress.add_task("answering", total=len(subject.values) * len(chats))
        clips = [engine.process([chat]) for chat in chats]
        return calibrate(
            engine, clips, method, subject, max_new_tokens, lambda: progress.advance(task)
        )


def print_calibration(
    subject: CalibratedOption, calibration: Calibration, method: Method, as_json: bool
) -> None:
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
    options = to_dict(with_option(method, subject.option, value))
    used = {"method": options["method"], "pruner": options["pruner"]}
    return f"--speculative-config '{json.dumps(used)}'"


def _print_json(subject: CalibratedOption, calibration: Calibration, method: Method) -> None:
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
    say(message, on=console)


def check_method(method: Any, pruners: Sequence[str]) -> Method:
    resolved = resolve(method)
    check_calibration(resolved, pruners)
    return resolved
