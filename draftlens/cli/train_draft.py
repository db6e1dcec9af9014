"""`draftlens train-draft`: options from the fields of `DraftTraining`, a plan before, a summary
behind."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from transformers.utils import logging as transformers_logging

from draftlens.cli.show import console, errors, print_json, table

if TYPE_CHECKING:
    from draftlens.train.report import Plan, Trained


def train_draft(**options: Any) -> None:
    """Train a small draft for a target on LLaVA-style data, or go on where an interrupted run left
    off."""
    from draftlens.train import DraftTraining  # takes seconds to import
    from draftlens.train import train_draft as train
    from draftlens.train.report import LossLines

    transformers_logging.disable_progress_bar()
    quiet = options.pop("as_json")
    bars = errors.is_terminal and not quiet
    lines = [] if bars or quiet else [LossLines(lambda line: errors.print(line, markup=False))]
    try:
        trained = train(
            DraftTraining(**options),
            on_plan=None if quiet else show_plan,
            callbacks=lines,
            progress=bars,
        )
    except KeyboardInterrupt as stop:
        if str(stop):
            errors.print(f"\n{stop}", markup=False, soft_wrap=True)
        raise
    if trained.main:
        show_trained(trained, quiet)


def signature() -> inspect.Signature:
    """An argument or option for each field of `DraftTraining`, and `--json`."""
    from draftlens.train.options import DraftTraining

    hints = get_type_hints(DraftTraining, include_extras=True)
    parameters = []
    for item in fields(DraftTraining):
        kind, help = get_args(hints[item.name])
        # Options are named, so that a switch gets no --no-... beside it.
        option = (
            typer.Argument(help=help)
            if item.name == "data"
            else typer.Option(f"--{item.name.replace('_', '-')}", help=help)
        )
        default = inspect.Parameter.empty if item.default is MISSING else item.default
        parameters.append((item.name, Annotated[kind, option], default))
    parameters.append(
        ("as_json", Annotated[bool, typer.Option("--json", help="Print one JSON object.")], False)
    )
    return inspect.Signature(
        [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
            for name, annotation, default in parameters
        ]
    )


def register(app: typer.Typer) -> None:
    """Add the command; its options are those of the dataclass."""
    train_draft.__signature__ = signature()  # type: ignore[attr-defined]
    app.command("train-draft")(train_draft)


def show_plan(plan: Plan) -> None:
    """Print what will be trained."""
    parts = ", ".join(f"{part} {count / 1e6:.2f}M" for part, count in plan.parameters.items())
    console.print(f"{plan.model}: {parts}", soft_wrap=True, markup=False)
    where = f"{plan.processes} x {plan.device}" if plan.processes > 1 else plan.device
    console.print(f"{plan.precision} on {where}, {plan.media} media files", soft_wrap=True)
    rows = [
        [
            stage.name,
            f"{stage.trained / 1e6:.2f}M",
            str(stage.entries)
            + (f" ({stage.skipped} of text alone left out)" if stage.skipped else ""),
            f"~{stage.tokens}",
            f"~{stage.answer_tokens}",
            str(stage.batch),
            str(stage.device_batch),
            str(stage.steps),
        ]
        for stage in plan.stages
    ]
    columns = ["stage", "trains", "entries", "tokens", "answer tokens", "batch", "at once", "steps"]
    table("to be trained", columns, rows)


def show_trained(trained: Trained, as_json: bool) -> None:
    """Print what was trained."""
    if as_json:
        losses = trained.losses
        report = {
            "folder": str(trained.folder),
            "seconds": trained.seconds,
            "resumed": trained.resumed,
        }
        print_json(
            {**report, "steps": {s.name: s.steps for s in trained.plan.stages}, "losses": losses}
        )
        return
    rows = []
    for stage in trained.plan.stages:
        points = trained.losses[stage.name]
        first, last = (f"{points[index]['loss']:.3f}" for index in (0, -1)) if points else ("", "")
        rows.append(
            [stage.name, str(stage.steps), str(trained.resumed[stage.name] or ""), first, last]
        )
    table("trained", ["stage", "steps", "went on from", "first loss", "last loss"], rows)
    plot = "" if trained.plotted else " (no loss.png: matplotlib is not installed)"
    console.print(
        f"{trained.folder} holds the draft, after {trained.seconds:.0f} s{plot}",
        soft_wrap=True,
        markup=False,
    )
    console.print(f'draftlens.load(target, draft="{trained.folder}")', soft_wrap=True, markup=False)
