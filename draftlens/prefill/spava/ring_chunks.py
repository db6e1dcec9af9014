"""Lengths that are given as numbers of tokens or as shares of the context."""

from __future__ import annotations

import re
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens.core.options import shown

Length = int | str
"""A number of tokens, or a share of the context such as ``"n/64"``."""

_SHARE = re.compile(r"n/([1-9][0-9]*)")


def check_ring_length(option: str, value: Any) -> None:
    """Raise `ConfigError`, which names the option, unless it is a number of tokens or a share."""
    if type(value) is int and value >= 0:
        return
    if isinstance(value, str) and _SHARE.fullmatch(value):
        return
    raise ConfigError(
        f"{option} must be a number of tokens or a share such as 'n/64', not {shown(value)}"
    )


def tokens_of(length: Length, context: int) -> int:
    """The number of tokens of a checked length in a context of n tokens.

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
