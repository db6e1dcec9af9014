"""The commands of the laboratory."""

from __future__ import annotations

import typer

from draftlens.cli.help import example
from draftlens.cli.model_options import takes_models
from draftlens.cli.option_groups import takes_groups
from draftlens_lab.cli.bench import bench
from draftlens_lab.cli.calibrate import calibrate_command
from draftlens_lab.cli.evaluate import evaluate
from draftlens_lab.cli.explain import explain
from draftlens_lab.cli.train_draft import add_train_draft
from draftlens_lab.cli.world import lmms_task, world_command


def register(app: typer.Typer) -> None:
    """Add them to `draftlens`."""
    add_train_draft(app)
    app.command("evaluate", **example("evaluate --clips 10"))(takes_models(evaluate))
    app.command("calibrate", **example("calibrate shapes.mp4 drift.mp4"))(
        takes_models(calibrate_command)
    )
    app.command("explain", **example("explain shapes.mp4"))(takes_models(explain))
    app.command("bench", **example("bench --workload FOLDER"))(takes_models(takes_groups(bench)))
    app.command("world", **example("world OUT"))(takes_groups(world_command))
    app.command("lmms-task", **example("lmms-task OUT"))(takes_groups(lmms_task))
