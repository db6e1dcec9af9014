"""Objects from names and options and back, alike in Python, JSON and YAML."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from draftlens.core.checks import shown, wrong
from draftlens.core.errors import ConfigError
from draftlens.core.registry import Registry


def make(registry: Registry, choice: Any, method: str) -> Any:
    """An object from a registered name, from a mapping with `name` and options, or from itself.

    `registry` holds dataclasses with `method`; their fields are the options. Raises ConfigError for
    an unknown name or option and for an invalid value.

    Example:

        >>> from draftlens.pruning import PRUNERS
        >>> make(PRUNERS, {"name": "specvlm", "attention_mass": 0.2}, "select")
        SpecVLMPruner(attention_mass=0.2)
    """
    if isinstance(choice, str):
        return registry[choice]()
    if not isinstance(choice, Mapping):
        if isinstance(choice, type) or not callable(getattr(choice, method, None)):
            raise ConfigError(
                f"a {registry.kind} is a name, a mapping of its name and options, or an object, "
                f"not {shown(choice)}"
            )
        return choice
    options = dict(choice)
    if "name" not in options:
        raise ConfigError(f"the options of a {registry.kind} need its name: {dict(choice)!r}")
    name = options.pop("name")
    return build(registry, name, options)


def build(registry: Registry, name: Any, options: Mapping[str, Any]) -> Any:
    """An object of a registered dataclass; its `removed` explains options that no longer exist."""
    kind = registry[name]
    option_names = [field.name for field in dataclasses.fields(kind) if field.init]
    unknown = sorted(set(options) - set(option_names))
    for option in unknown:
        if option in getattr(kind, "removed", {}):
            raise ConfigError(
                f"{registry.kind} {name!r} has no option {option!r}: {kind.removed[option]}"
            )
    if unknown:
        names = ", ".join(option_names) or "none"
        raise ConfigError(
            f"{registry.kind} {name!r} has no option {', '.join(map(repr, unknown))}; "
            f"known: {names}"
        )
    for option, value in options.items():
        if getattr(value, "ndim", 0) > 0:  # every comparison with an array is an array, too
            raise wrong(option, value, "a value that is no array")
    return kind(**options)


def describe(registry: Registry, chosen: Any) -> dict[str, Any]:
    """Name and options of an object, from which `make` builds an equal one."""
    description = {"name": registry.name_of(type(chosen))}
    if dataclasses.is_dataclass(chosen):
        for field in dataclasses.fields(chosen):
            if field.init:
                description[field.name] = getattr(chosen, field.name)
    return description
