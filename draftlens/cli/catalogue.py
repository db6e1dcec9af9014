"""Names and options of methods and of their parts, without an import of torch.

Those of draftlens are in `catalogue.json`, which `python -m draftlens.cli.catalogue` writes and a
test compares with the classes. Where another package adds some, all are read from the classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftlens.core.registry import Entry, Registry

Listed = Mapping[str, list[dict[str, Any]]]
"""By kind, every entry with its name, location, package, error, and the defaults of its options."""

GROUPS = ("methods", "pruners", "views", "weights")
"""Kinds that other packages can add to, by the entry points `draftlens.methods` and so on."""

REQUIRED = "required"
"""Stands for the default of an option that has none."""


def listed() -> Listed:
    """All methods, pruners, views, weights and prefills."""
    if any(entry_points(group=f"draftlens.{group}") for group in GROUPS):
        return from_classes()
    return _stored()


def names(kind: str) -> list[str]:
    """The names of one kind; nothing is imported for those of other packages."""
    others = entry_points(group=f"draftlens.{kind}")
    return sorted({row["name"] for row in _stored()[kind]} | {point.name for point in others})


def from_classes() -> Listed:
    """The same as `listed`, read from the classes."""
    from draftlens.draft.views import VIEWS
    from draftlens.draft.weights import WEIGHTS
    from draftlens.methods import METHODS
    from draftlens.prefill import PREFILLS
    from draftlens.prune import PRUNERS

    return {
        "methods": _rows(METHODS),
        "pruners": _rows(PRUNERS),
        "views": _rows(VIEWS),
        "weights": _rows(WEIGHTS),
        "prefills": _rows(PREFILLS),
    }


def _rows(registry: Registry) -> list[dict[str, Any]]:
    return [
        {**asdict(entry), "options": {} if entry.error else _options(registry, entry)}
        for entry in registry.entries()
    ]


def _options(registry: Registry, entry: Entry) -> dict[str, Any]:
    """The defaults of the options; a broken entry has none."""
    options = {}
    for field in fields(registry[entry.name]):
        if not field.init or not field.metadata.get("option", True):
            continue
        value = field.default
        if field.default_factory is not MISSING:
            value = field.default_factory()
        options[field.name] = REQUIRED if value is MISSING else _plain(value)
    return options


def _plain(value: Any) -> Any:
    """A default as a JSON value."""
    return json.loads(json.dumps(value, default=str))


@cache
def _stored() -> Listed:
    text = (files("draftlens.cli") / "catalogue.json").read_text(encoding="utf-8")
    stored: Listed = json.loads(text)
    return stored


if __name__ == "__main__":
    from draftlens.cli.show import readable_json

    path = Path(__file__).with_name("catalogue.json")
    path.write_text(readable_json(from_classes()) + "\n", encoding="utf-8")
