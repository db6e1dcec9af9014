"""Commands of other packages, by the entry points `draftlens.commands`."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points

import typer

from draftlens.core.errors import ConfigError
from draftlens.core.names import LAB_INSTALLATION

GROUP = "draftlens.commands"
"""Entry points of this group are functions that add commands to the application."""

LAB_COMMANDS = (
    "bench",
    "calibrate",
    "evaluate",
    "explain",
    "lmms-task",
    "train-draft",
    "world",
)
"""Commands of the package `draftlens-lab`."""

_log = logging.getLogger("draftlens")


def add_commands(app: typer.Typer) -> None:
    """Add the commands of installed packages; those of a missing lab name its package."""
    for point in entry_points(group=GROUP):
        try:
            point.load()(app)
        except Exception as error:  # a foreign package may raise anything
            _log.warning("commands of %s are left out: %s", point.value, error)
    registered = {command.name for command in app.registered_commands}
    for name in LAB_COMMANDS:
        if name not in registered:
            _add_missing(app, name)


def _add_missing(app: typer.Typer, name: str) -> None:
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

    @app.command(name, hidden=True, context_settings=settings)
    def missing() -> None:
        raise ConfigError(
            f"the command {name!r} is part of the package draftlens-lab: {LAB_INSTALLATION}"
        )
