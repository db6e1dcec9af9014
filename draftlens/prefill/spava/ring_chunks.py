"""Lengths that are given as numbers of tokens or as shares of the context."""

from __future__ import annotations

import re
from typing import Any

from draftlens.core.errors import ConfigError

Length = int | str
"""A number of tokens, or a share of the context such as ``"n/64"``."""

_SHARE = re.compile(r"n/([1-9][0-9]*)")


def check_length(option: str, value: Any) -> None:
    """Refuse what is neither a number of tokens nor a share.

    Raises:
        ConfigError: names the option and shows what it may be.
    """
    if type(value) is int and value >= 0:
        return
    if isinstance(value, str) and _SHARE.fullmatch(value):
        return
    raise ConfigError(
        f"{option} must be a number of tokens or a share such as 'n/64', not {value!r}"
    )


def tokens_of(length: Length, context: int) -> int:
    """The number of tokens of a length.

    Args:
        length: checked by `check_length`.
        context: n.

    Example:

        >>> tokens_of("n/64", 4097)
        64
    """
    return length if isinstance(length, int) else context // _denominator(length)


def vanishes(length: Length, context: int) -> bool:
    """Whether a share of the context is less than one token."""
    return isinstance(length, str) and context < _denominator(length)


def _denominator(share: str) -> int:
    return int(share.removeprefix("n/"))
