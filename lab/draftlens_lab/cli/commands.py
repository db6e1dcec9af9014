"""The commands of the laboratory."""

from __future__ import annotations

import typer

from draftlens.cli.help import example, takes_options
from draftlens_lab.cli.bench import bench
from draftlens_lab.cli.calibrate import calibrate_command
from draftlens_lab.cli.evaluate import evaluate
from draftlens_lab.cli.explain import explain
from draftlens_lab.cli.train_draft import add_train_draft
from draftlens_lab.cli.world import lmms_task, world_command


def register(app: typer.Typer) -> None:
    """Add them to `draftlens`."""
    add_train_draft(app)
    app.command("evaluate", **example("evaluate --clips 10"))(takes_options(evaluate))
    app.command("calibrate", **example("calibrate shapes.mp4 drift.mp4"))(
        takes_options(calibrate_command)
    )
    app.command("explain", **example("explain shapes.mp4"))(takes_options(explain))
    app.command("bench", **example("bench --workload FOLDER"))(takes_options(bench))
    app.command("world", **example("world OUT"))(takes_options(world_command))
    app.command("lmms-task", **example("lmms-task OUT"))(takes_options(lmms_task))
