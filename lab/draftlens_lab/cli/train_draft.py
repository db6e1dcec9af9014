"""`draftlens train-draft`: its options are the fields of `DraftTraining`."""

from __future__ import annotations

import inspect
import os
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from draftlens.cli.help import example, takes_options

if TYPE_CHECKING:
    from draftlens_lab.train.report import StagePlan, Trained, TrainingPlan


def train_draft_command(**options: Any) -> None:
    """Train a small draft for a target.

    The data are conversations in the layout of LLaVA. A run that was interrupted is resumed from
    its last checkpoint.
    """
    from transformers.utils import logging as transformers_logging

    from draftlens.cli.show import error_console, is_quiet, say
    from draftlens_lab.train import DraftTraining
    from draftlens_lab.train import train_draft as train
    from draftlens_lab.train.report import LossLines
    from draftlens_lab.train.termination import SaveAtTermination

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    quiet = options.pop("as_json")
    bars = error_console.is_terminal and not quiet
    callbacks: list[Any] = []
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        callbacks.append(SaveAtTermination())
    if not (bars or quiet or is_quiet()):
        callbacks.append(LossLines(lambda line: error_console.print(line, markup=False)))
    try:
        trained = train(
            DraftTraining(**options),
            on_plan=None if quiet else show_plan,
            callbacks=callbacks,
            progress=bars,
        )
    except KeyboardInterrupt as interrupt:
        if str(interrupt):
            say(f"\n{interrupt}")
        raise
    if not trained.main:
        return
    if quiet:
        _print_json(trained)
    else:
        show_trained(trained)


def signature() -> inspect.Signature:
    """Return a signature with an option for each field of `DraftTraining`, and `--json`."""
    from draftlens_lab.train.options import DraftTraining

    hints = get_type_hints(DraftTraining, include_extras=True)
    parameters = []
    for item in fields(DraftTraining):
        kind, help_text = get_args(hints[item.name])
        if item.name == "data":
            option = typer.Argument(help=help_text)
        else:
            # With a name, a switch has no --no-... beside it.
            option = typer.Option(f"--{item.name.replace('_', '-')}", help=help_text)
        default = inspect.Parameter.empty if item.default is MISSING else item.default
        parameters.append(_parameter(item.name, Annotated[kind, option], default))
    parameters.append(_parameter("as_json", bool, False))
    return inspect.Signature(parameters)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def add_train_draft(app: typer.Typer) -> None:
    """Add the command with the options of `DraftTraining`."""
    train_draft_command.__signature__ = signature()  # type: ignore[attr-defined]
    app.command("train-draft", **example("train-draft data.json --draft NAME --out OUT"))(
        takes_options(train_draft_command)
    )


def show_plan(plan: TrainingPlan) -> None:
    from draftlens.cli.show import console, say, table

    parts = [f"{part} {count / 1e6:.2f}M" for part, count in plan.parameters.items()]
    say(f"{plan.model}: {', '.join(parts)}", on=console)
    device = f"{plan.processes} x {plan.device}" if plan.processes > 1 else plan.device
    console.print(f"{plan.precision} on {device}, {plan.media} media files", soft_wrap=True)
    columns = ["stage", "trained", "entries", "tokens", "answer tokens"]
    columns += ["batch", "device batch", "steps"]
    table("to be trained", columns, [_plan_row(stage) for stage in plan.stages])


def _plan_row(stage: StagePlan) -> list[str]:
    entries = str(stage.entries)
    if stage.skipped:
        entries += f" ({stage.skipped} without media left out)"
    return [
        stage.name,
        f"{stage.trained / 1e6:.2f}M",
        entries,
        f"~{stage.tokens}",
        f"~{stage.answer_tokens}",
        str(stage.batch),
        str(stage.device_batch),
        str(stage.steps),
    ]


def _print_json(trained: Trained) -> None:
    from draftlens.cli.show import print_json

    print_json(
        {
            "folder": str(trained.folder),
            "seconds": trained.seconds,
            "resumed": trained.resumed,
            "steps": {stage.name: stage.steps for stage in trained.plan.stages},
            "losses": trained.losses,
        }
    )


def show_trained(trained: Trained) -> None:
    """Print what was trained and where the draft is."""
    from draftlens.cli.show import console, say, table

    columns = ["stage", "steps", "resumed from step", "first loss", "last loss"]
    table("trained", columns, [_trained_row(trained, stage) for stage in trained.plan.stages])
    plot = "" if trained.plotted else " (no loss.png: matplotlib is not installed)"
    say(f"{trained.folder} holds the draft, after {trained.seconds:.0f} s{plot}", on=console)
    say(f'draftlens.load(target, draft="{trained.folder}")', on=console)


def _trained_row(trained: Trained, stage: StagePlan) -> list[str]:
    losses = [f"{point['loss']:.3f}" for point in trained.losses[stage.name]]
    resumed = trained.resumed[stage.name]
    return [
        stage.name,
        str(stage.steps),
        str(resumed) if resumed else "",
        losses[0] if losses else "",
        losses[-1] if losses else "",
    ]
