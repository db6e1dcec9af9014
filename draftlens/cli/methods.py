"""`draftlens methods`: lists decoding methods and their parts, also those of other packages."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from draftlens.cli.options import AsJson
from draftlens.core.registry import Entry, Registry


def methods(as_json: AsJson = False) -> None:
    """List the decoding methods, the pruners, and the views and weights of `tabed`, with their
    options and where they come from.

    Other packages add some by the entry points `draftlens.methods`, `draftlens.pruners`,
    `draftlens.views` and `draftlens.weights`. An entry that cannot be imported is listed with its
    error.
    """
    from draftlens.cli.show import print_json, table
    from draftlens.draft.views import VIEWS
    from draftlens.draft.weights import WEIGHTS
    from draftlens.methods import METHODS
    from draftlens.prune import PRUNERS

    listed = {
        "methods": rows_of(METHODS),
        "pruners": rows_of(PRUNERS),
        "views": rows_of(VIEWS),
        "weights": rows_of(WEIGHTS),
    }
    if as_json:
        print_json(listed)
        return
    for title, rows in listed.items():
        cells = [
            (row["name"], row["package"], row["error"] or ", ".join(row["options"]) or "none")
            for row in rows
        ]
        table(title, ("name", "package", "options"), cells)


def rows_of(registry: Registry) -> list[dict[str, Any]]:
    """Every entry of a registry with the names of its options; broken entries have none."""
    return [
        {**asdict(entry), "options": [] if entry.error else _options(registry, entry)}
        for entry in registry.entries()
    ]


def _options(registry: Registry, entry: Entry) -> list[str]:
    return [field.name for field in fields(registry[entry.name]) if field.init]
