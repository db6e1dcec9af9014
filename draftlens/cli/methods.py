"""`draftlens methods`: lists decoding methods and their parts, also those of other packages."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from draftlens.cli.options import AsJson
from draftlens.core.registry import Entry, Registry


def methods(as_json: AsJson = False) -> None:
    """List the decoding methods, the pruners, and the views and weights of `tabed`, with their
    options, the defaults of these, and where they come from.

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
            (row["name"], row["package"], row["error"] or _options_and_defaults(row) or "none")
            for row in rows
        ]
        table(title, ("name", "package", "options"), cells)


def rows_of(registry: Registry) -> list[dict[str, Any]]:
    """Every entry of a registry with its options and their defaults; broken entries have none.

    The default of an option that must be given is None.
    """
    return [_row(registry, entry) for entry in registry.entries()]


def _row(registry: Registry, entry: Entry) -> dict[str, Any]:
    defaults = {} if entry.error else _defaults(registry[entry.name])
    return {**asdict(entry), "options": list(defaults), "defaults": defaults}


def _defaults(kind: Any) -> dict[str, Any]:
    """The options of a dataclass with the values that an object without options has, such as the
    length of a chain that is named nowhere."""
    from draftlens.methods.base import described

    try:
        made = kind()
    except TypeError:  # an option must be given
        made = None
    defaults = {
        field.name: None if made is None else described(field.name, getattr(made, field.name))
        for field in fields(kind)
        if field.init and field.metadata.get("option", True)
    }
    as_json: dict[str, Any] = json.loads(json.dumps(defaults, default=str))
    return as_json


def _options_and_defaults(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in row["defaults"].items())


def _short(value: Any) -> str:
    """A default as it is written on the command line: a part without further options by its
    name."""
    if isinstance(value, dict) and "name" in value:
        return str(value["name"])
    if isinstance(value, list):
        return "[" + ", ".join(map(_short, value)) + "]"
    return json.dumps(value, ensure_ascii=False).strip('"')
