"""The help of a command: its options in groups, and one example."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

MODELS = "Models and method"
ANSWER = "Answer"
MANY_FILES = "Many files"
SERVER = "Server"
CLIENTS = "What clients may send"
LOADING = "How models are loaded"

_ORDER = ("Arguments", "Options", MODELS, ANSWER, MANY_FILES, SERVER, CLIENTS, LOADING)


class GroupedCommand(TyperCommand):
    """A command with one section of its help for each group of options.

    An option names its group by `rich_help_panel`, which typer shows only where rich draws the
    help; rich takes longer to import than the help to print.
    """

    def get_short_help_str(self, limit: int = 45) -> str:
        """The first sentence of the help, whole: click would cut it at `limit` characters."""
        paragraph = " ".join((self.help or "").partition("\n\n")[0].split())
        return re.split(r"(?<=\.) ", paragraph)[0]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options by group."""
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in _ORDER}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            title = getattr(parameter, "rich_help_panel", None) or "Options"
            if parameter.param_type_name == "argument":
                title = "Arguments"
            sections[title].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def example(words: str) -> dict[str, Any]:
    """Arguments of `typer.Typer.command` for a command with this example below its help."""
    return {"cls": GroupedCommand, "epilog": f"Example: draftlens {words}"}
