"""References: texts that an answer is expected to repeat, which drafters copy from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from draftlens.core.errors import InputError
from draftlens.core.options import shown
from draftlens.core.text import tokenizer_of

Text = str | tuple[int, ...]

GivenText = str | Sequence[int]
"""One reference as callers pass it; a one-dimensional tensor or array of ids works, too."""

GivenReferences = Sequence[Sequence[GivenText]] | Sequence[GivenText]
"""A sequence of references for each row; of a single row, the references themselves."""

FORM = (
    "references are one list for each row (of a single row the list itself), and each reference in "
    "it is a text or a list of token ids"
)


@dataclass(frozen=True)
class References:
    """References by row in the expected order, empty for none; texts need `tokenizer`."""

    rows: tuple[tuple[Text, ...], ...] = ()
    tokenizer: Any = None

    def __bool__(self) -> bool:
        return any(self.rows)

    def of_row(self, row: int) -> tuple[Text, ...]:
        return self.rows[row] if self.rows else ()


NO_REFERENCES = References()


def references_of(given: GivenReferences, num_rows: int, tokenizer: Any = None) -> References:
    """The references of a call from the forms that callers may pass; raises InputError for others.

    Example:

        >>> references_of([[5, 6, 7], [8, 9]], num_rows=1).rows
        (((5, 6, 7), (8, 9)),)
        >>> references_of([[[5, 6, 7]], []], num_rows=2).rows
        (((5, 6, 7),), ())
    """
    per_row = _per_row(given, num_rows)
    if len(per_row) != num_rows:
        raise InputError(f"{len(per_row)} lists of references are given for {num_rows} rows")
    rows = tuple(tuple(_text(text) for text in row) for row in per_row)
    tokenizer = tokenizer_of(tokenizer)
    has_texts = any(isinstance(text, str) for row in rows for text in row)
    if has_texts and tokenizer is None:
        raise InputError(
            "references that are texts need the target's tokenizer: give tokenizer=, or give the "
            "references as token ids"
        )
    return References(rows, tokenizer)


def _per_row(given: GivenReferences, num_rows: int) -> list[Any]:
    items = _listed(given)
    if not any(_is_text(item) for item in items):
        return [_listed(item) for item in items] if items else [[]] * num_rows
    if num_rows != 1:
        raise InputError(f"{FORM}; texts without such lists are given for {num_rows} rows")
    return [items]


def _is_text(item: Any) -> bool:
    """Whether it is one reference rather than a list of them; an empty list is not."""
    if isinstance(item, str):
        return True
    members = _listed(item)
    return bool(members) and hasattr(members[0], "__index__")


def _text(given: Any) -> Text:
    if isinstance(given, str):
        return given
    try:
        return tuple(index(token) for token in _listed(given))
    except TypeError:
        raise InputError(f"{FORM}; not {shown(given)}") from None


def _listed(value: Any) -> list[Any]:
    if isinstance(value, (str, bytes)):
        raise InputError(f"{FORM}; not {shown(value)}")
    value = getattr(value, "tolist", lambda: value)()
    try:
        return list(value)
    except TypeError:
        raise InputError(f"{FORM}; not {shown(value)}") from None
