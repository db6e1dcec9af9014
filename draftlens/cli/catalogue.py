"""Names and options of methods and of their parts, without an import of torch.

Those of draftlens and draftlens-lab are in `catalogue.json`, which `python -m
draftlens.cli.catalogue` writes where both are installed, and a test compares with the classes.
Where another package adds some, all are read from the classes.
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
    from draftlens.core.options import Entry, Registry

Listed = Mapping[str, list[dict[str, Any]]]
"""By kind, every entry with its name, location, package, error, and the defaults of its options."""

GROUPS = ("methods", "pruners", "prefills", "views", "weights", "passes")
"""Kinds that other packages can add to, by the entry points `draftlens.methods` and so on."""

LAB = "draftlens-lab"

REQUIRED = "required"
"""Shown as the default of an option that has none."""


def listed() -> Listed:
    """All methods, pruners, views, weights, prefills, schedules and engines of passes."""
    packages = {
        None if point.dist is None else point.dist.name
        for group in GROUPS
        for point in entry_points(group=f"draftlens.{group}")
    }
    if packages - {LAB}:
        return from_classes()
    return _stored() if packages else rows_of(_stored(), "draftlens")


def names(kind: str) -> list[str]:
    """The names of one kind; nothing is imported for those of other packages."""
    plugins = entry_points(group=f"draftlens.{kind}")
    return sorted({*own_names(kind), *(point.name for point in plugins)})


def own_names(kind: str) -> list[str]:
    """The names of one kind in draftlens itself."""
    return [row["name"] for row in rows_of(_stored(), "draftlens")[kind]]


def from_classes() -> Listed:
    """The same as `listed`, read from the classes."""
    from draftlens.decoding.plan import SCHEDULES
    from draftlens.methods.base import METHODS
    from draftlens.passes import PASSES
    from draftlens.prefill.base import PREFILLS
    from draftlens.pruning import PRUNERS

    registries = {"methods": METHODS, "pruners": PRUNERS}
    for entry in METHODS.entries():
        parts = {} if entry.error else getattr(METHODS[entry.name], "parts", {})
        # The methods that a method is made of are listed as methods.
        registries |= {
            kind: registry for kind, registry in parts.items() if registry is not METHODS
        }
    registries |= {"prefills": PREFILLS, "schedules": SCHEDULES, "passes": PASSES}
    return {kind: _rows(registry) for kind, registry in registries.items()}


def rows_of(rows: Listed, *packages: str) -> Listed:
    """The rows of some packages."""
    return {
        kind: [row for row in of_kind if row["package"] in packages]
        for kind, of_kind in rows.items()
    }


def _rows(registry: Registry) -> list[dict[str, Any]]:
    return [
        {**asdict(entry), "options": {} if entry.error else _options(registry, entry)}
        for entry in registry.entries()
    ]


def _options(registry: Registry, entry: Entry) -> dict[str, Any]:
    """The options and their default values."""
    from draftlens.methods.base import described, parts_of

    kind = registry[entry.name]
    if not isinstance(kind, type):
        return {}  # a schedule is a function
    parts = parts_of(kind)
    inits = [f for f in fields(kind) if f.init]
    if any(f.default is MISSING and f.default_factory is MISSING for f in inits):
        return dict.fromkeys((f.name for f in inits), REQUIRED)
    default = kind()
    return {f.name: _plain(described(f.name, getattr(default, f.name), parts)) for f in inits}


def _plain(value: Any) -> Any:
    """A default as a JSON value, a part by its name."""
    if isinstance(value, Mapping) and "name" in value:
        return value["name"]
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return json.loads(json.dumps(value, default=str))


@cache
def _stored() -> Listed:
    text = (files("draftlens.cli") / "catalogue.json").read_text(encoding="utf-8")
    stored: Listed = json.loads(text)
    return stored


if __name__ == "__main__":
    from draftlens.cli.show import readable_json

    path = Path(__file__).with_name("catalogue.json")
    path.write_text(
        readable_json(rows_of(from_classes(), "draftlens", LAB)) + "\n", encoding="utf-8"
    )
