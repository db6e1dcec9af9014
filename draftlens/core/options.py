"""Values from users: checks, registries of names, and dataclasses whose fields are options."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from math import inf, isinf
from numbers import Real
from operator import index
from reprlib import Repr
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens.core.names import LAB_INSTALLATION

Check = Callable[[str, Any], Any]
"""Maps an argument's name and value to the value that is used. Raises `ConfigError`."""

MOST_SHOWN = 60
"""Approximate maximum length, in characters, of a value in a message."""


def shown(value: object) -> str:
    short = Repr()
    short.maxstring = short.maxother = MOST_SHOWN
    return " ".join(short.repr(value).split())


def wrong(name: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(f"{name} must be {allowed}, not {shown(value)}")


def whole(least: int | None = None, most: int | None = None) -> Check:
    """Accepts whole numbers from `least` to `most`, also those of numpy and torch, and 3.0.

    Example:

        >>> whole(1)("max_new_tokens", 3.0)
        3
    """
    allowed = "a whole number"
    if most is not None:
        allowed += f" from {least} to {most}"
    elif least is not None:
        allowed += f" of at least {least}"

    def check(name: str, value: Any) -> int:
        number = as_whole(value)
        if number is None or (least is not None and number < least):
            raise wrong(name, value, allowed)
        if most is not None and number > most:
            raise wrong(name, value, allowed)
        return number

    return check


def as_whole(value: Any) -> int | None:
    """A value as an int; None if it is not a whole number, or is a bool."""
    if isinstance(value, bool) or getattr(value, "ndim", 0) > 0:
        return None
    if isinstance(value, Real) and not hasattr(value, "__index__"):
        number = float(value)
        return int(number) if number.is_integer() else None
    try:
        return index(value)
    except TypeError:
        return None


def real(
    least: float = -inf, most: float = inf, *, above: bool = False, endless: bool = False
) -> Check:
    """Accepts numbers from `least` to `most`, also those of numpy and torch.

    `above` refuses `least` itself (without `most` only for `least` = 0); `endless` admits infinity.
    """
    if most < inf and above:
        allowed = f"a number above {least:g} and up to {most:g}"
    elif most < inf:
        allowed = f"a number from {least:g} to {most:g}"
    elif least > -inf:
        allowed = "a positive number" if above else f"a number of at least {least:g}"
    else:
        allowed = "a number"

    def check(name: str, value: Any) -> float:
        number = as_real(value)
        if number is None or not least <= number <= most or (above and number == least):
            raise wrong(name, value, allowed)
        if isinf(number) and not endless:
            raise wrong(name, value, f"{allowed} that is finite")
        return number

    return check


def as_real(value: Any) -> float | None:
    """A value as a float; None if it is not a number, or is a bool."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return inf if value > 0 else -inf  # type: ignore[operator]


def switch(name: str, value: Any) -> bool:
    """Accepts true and false, also those of numpy, and 1 and 0."""
    if as_real(value) in (0.0, 1.0) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise wrong(name, value, "true or false")


def suggestion(name: str, known: Iterable[str], synonyms: Iterable[tuple[str, str]] = ()) -> str:
    """A question that follows an unknown name; empty if no known name is similar.

    `synonyms` are pairs of a foreign name and the known name of the same meaning.

    Example:

        >>> suggestion("max_new_token", ["max_new_tokens", "top_k"])
        ": did you mean 'max_new_tokens'?"
    """
    names = list(known)
    meant = [right for synonym, right in synonyms if synonym == name and right in names]
    meant = meant or get_close_matches(name, names, n=1, cutoff=0.75)
    return f": did you mean {meant[0]!r}?" if meant else ""


PACKAGE = "draftlens"


@dataclass(frozen=True)
class Entry:
    """A name, its location ``"module:attribute"``, its distribution, and why it cannot be used."""

    name: str
    location: str
    package: str = PACKAGE
    error: str | None = None


class Registry:
    """Maps a name to ``"module:attribute"``, imported on first use.

    Other packages add names by the entry point `group`; draftlens' own names take precedence.
    Broken entry points are skipped with a warning. `kind` is the word for an entry in messages;
    `lab` are names that the package draftlens-lab adds, for the error where it is missing.

    Example:

        >>> from draftlens.pruning import PRUNERS
        >>> "uniform" in PRUNERS
        True
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, str],
        group: str | None = None,
        lab: Sequence[str] = (),
    ) -> None:
        self.kind = kind
        self.group = group
        self._lab = tuple(lab)
        self._builtin = dict(entries)
        self._loaded: dict[str, Any] = {}

    def register(self, name: str, location: str) -> None:
        self._builtin[name] = location
        self._loaded.pop(name, None)

    def refresh(self) -> None:
        self.__dict__.pop("_points", None)
        self._loaded.clear()

    @cached_property
    def _points(self) -> dict[str, EntryPoint]:
        if self.group is None:
            return {}
        return {point.name: point for point in entry_points(group=self.group)}

    def __getitem__(self, name: str) -> Any:
        """The implementation; raises ConfigError for an unknown name and for a failing import."""
        if not isinstance(name, str) or name not in self:
            if name in self._lab:
                raise ConfigError(
                    f"the {self.kind} {name!r} is part of the package draftlens-lab: "
                    f"{LAB_INSTALLATION}"
                )
            names = ", ".join(sorted({*self._builtin, *self._points}))
            raise ConfigError(f"unknown {self.kind} {shown(name)}; known: {names}")
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> Any:
        if name in self._builtin:
            module, _, attribute = self._builtin[name].partition(":")
            return getattr(import_module(module), attribute)
        point = self._points[name]
        try:
            return point.load()
        except Exception as error:  # a foreign package may raise anything when it is imported
            raise ConfigError(
                f"{self.kind} {name!r} of package {_package(point)} cannot be loaded: "
                f"{type(error).__name__}: {error}"
            ) from error

    def name_of(self, implementation: object) -> str:
        """The registered name, else the own name, of a class or function; imports nothing."""
        module = getattr(implementation, "__module__", "")
        qualified = f"{module}:{getattr(implementation, '__qualname__', '')}"
        for name, location in self._locations().items():
            if location == qualified or self._loaded.get(name) is implementation:
                return name
        return str(getattr(implementation, "__name__", implementation))

    def entries(self) -> list[Entry]:
        """All names, sorted; broken ones carry their error."""
        entries = [Entry(name, location) for name, location in self._builtin.items()]
        for name, point in self._points.items():
            if name in self._builtin:
                continue
            error = None
            try:
                self[name]
            except ConfigError as failure:
                error = str(failure)
            entries.append(Entry(name, point.value, _package(point), error))
        return sorted(entries, key=lambda entry: entry.name)

    def _locations(self) -> dict[str, str]:
        foreign = {name: point.value for name, point in self._points.items()}
        return {**foreign, **self._builtin}

    def __iter__(self) -> Iterator[str]:
        """The usable names, sorted; a warning lists the others."""
        for entry in self.entries():
            if entry.error is None:
                yield entry.name
            else:
                warnings.warn(f"skipped: {entry.error}", stacklevel=2)

    def __contains__(self, name: object) -> bool:
        return name in self._builtin or name in self._points


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "unknown"


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
    """An object of a registered dataclass; its `removed` explains options that no longer exist, and
    its `former` has former names of others."""
    kind = registry[name]
    option_names = [field.name for field in dataclasses.fields(kind) if field.init]
    unknown = sorted(set(options).difference(option_names, getattr(kind, "former", ())))
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
    fields = dataclasses.fields(chosen) if dataclasses.is_dataclass(chosen) else ()
    options = {field.name: getattr(chosen, field.name) for field in fields if field.init}
    return {"name": registry.name_of(type(chosen)), **options}
