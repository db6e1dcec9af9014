"""Checks of arguments; every message names the argument, its value and what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from math import inf, isinf, isnan
from numbers import Real
from operator import index
from reprlib import Repr
from typing import Any

from draftlens.core.errors import ConfigError

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
        if number is None or isnan(number) or not least <= number <= most:
            raise wrong(name, value, allowed)
        if above and number == least:
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
