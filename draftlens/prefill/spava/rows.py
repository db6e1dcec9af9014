"""Which rows of a prompt are read in blocks, and why others are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftlens.models.prompt import Prompt
from draftlens.prefill.spava.blocks import Blocks, divide
from draftlens.prefill.spava.ring_chunks import Length, tokens_of, vanishes


@dataclass(frozen=True)
class Division:
    """How rows are divided, whatever their lengths.

    Args:
        blocks: number of blocks behind the anchor.
        anchor: l_a.
        passing: l_p.
    """

    blocks: int
    anchor: Length
    passing: Length


@dataclass(frozen=True)
class Row:
    """How one row is read.

    Args:
        blocks: its division; None if it is read exactly.
        note: why it is read exactly, in words for the user; empty if it is not.
    """

    blocks: Blocks | None
    note: str = ""


def rows_of(prompt: Prompt, division: Division) -> list[Row]:
    """How each row of a prompt is read.

    The context is everything up to the last visual token, and the query what lies behind. The last
    token of a prompt always belongs to the query. A row is read exactly if

    - it shows nothing,
    - its query is longer than its context,
    - a share of its context is less than one token, or
    - its context without the anchor has fewer tokens than there are blocks.

    Args:
        prompt: of all rows.
        division: of all rows.
    """
    rows = []
    for row, length in enumerate(prompt.lengths):
        visual = prompt.visual[row].nonzero()
        last_visual = int(visual[-1]) if len(visual) else -1
        rows.append(_row(division, length, last_visual))
    return rows


def _row(division: Division, length: int, last_visual: int) -> Row:
    """One row.

    Args:
        division: of all rows.
        length: tokens of the prompt.
        last_visual: place of the last visual token; -1 for none.
    """
    if last_visual < 0:
        return Row(None, "it shows neither a picture nor a clip")
    context = min(last_visual + 1, length - 1)
    if length - context > context:
        return Row(
            None,
            f"the {length - context} tokens behind the last visual one are more than the "
            f"{context} up to it",
        )
    anchor = tokens_of(division.anchor, context)
    passing = tokens_of(division.passing, context)
    too_small = vanishes(division.anchor, context) or vanishes(division.passing, context)
    if too_small or context - anchor < division.blocks:
        return Row(
            None,
            f"the {context} tokens up to the last visual one are too few for {division.blocks} "
            f"blocks, anchor {division.anchor} and passing {division.passing}",
        )
    return Row(divide(length, context, anchor, passing, division.blocks))


def notes_of(rows: Sequence[Row]) -> dict[int, str]:
    """What the user is told about rows that are read exactly, by row."""
    return {row: f"read exactly: {one.note}" for row, one in enumerate(rows) if one.note}
