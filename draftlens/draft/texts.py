"""References as token ids."""

from __future__ import annotations

from typing import Any

from draftlens.core.references import References, Text


def ids_of(text: Text, tokenizer: Any) -> list[int]:
    """The token ids of a reference, without special tokens around them.

    Args:
        text: a text, or ids, which are returned as they are.
        tokenizer: of the target; not needed for ids.
    """
    if not isinstance(text, str):
        return list(text)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def all_ids(references: References, row: int) -> list[list[int]]:
    """The token ids of all references of a row."""
    return [ids_of(text, references.tokenizer) for text in references.of_row(row)]
