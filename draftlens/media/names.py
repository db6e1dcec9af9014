"""Names of files and addresses, for messages."""

from __future__ import annotations

import re
from os import PathLike
from typing import Any

_DATA = "data:"
_PREFIXES = ("http://", "https://", _DATA)

# The user and password of an address; of an address whose port is no number, all up to the last @,
# because a password may hold a slash.
_LOGIN = re.compile(r"(?<=//)(?:[^/?#]*@|[^/?#@]*:(?!\d*(?:[/?#]|$)).*@)", re.DOTALL)


def is_url(source: Any) -> bool:
    """Whether a source is an address rather than a path."""
    return isinstance(source, str) and source.lower().startswith(_PREFIXES)


def is_data(source: Any) -> bool:
    """Whether a source is an address that holds its data."""
    return isinstance(source, str) and source.lower().startswith(_DATA)


def display_name(source: str | PathLike[str]) -> str:
    """A path or address for messages: without its password, and without the data of `data:`.

    Example:

        >>> display_name("https://anna:secret@example.com/clip.mp4")
        'https://***@example.com/clip.mp4'
    """
    name = str(source)
    if is_data(name):
        return f"{name.partition(',')[0]:.80},..."
    return _LOGIN.sub("***@", name) if is_url(name) else name
