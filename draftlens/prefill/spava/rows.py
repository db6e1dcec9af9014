"""Which rows of a prompt are read in blocks, and why others are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftlens.models.prompt import Prompt
from draftlens.prefill.spava.blocks import Blocks, divide
from draftlens.prefill.spava.ring_chunks import Length, tokens_of, vanishes


@dataclass(frozen=True)
class Division:
    """How rows of any length are divided: the number of blocks after the anchor, l_a and l_p, and
    the tokens at the end of a row without visual tokens that are its query (None: such rows are
    read exactly)."""

    blocks: int
    anchor: Length
    passing: Length
    query_tokens: int | None = None


@dataclass(frozen=True)
class PromptRow:
    """How one row is read: its division, or None and a note to the user why it is read exactly."""

    blocks: Blocks | None
    note: str = ""


def prompt_rows(prompt: Prompt, division: Division) -> list[PromptRow]:
    """How each row of a prompt is read.

    The context is everything up to the last visual token, and the query what follows. The last
    token of a prompt always belongs to the query. The query of a row without visual tokens is its
    last `query_tokens` tokens. A row is read exactly if

    - it has no visual tokens, and `query_tokens` is None,
    - its query is longer than its context,
    - a share of its context is less than one token, or
    - its context without the anchor has fewer tokens than there are blocks.
    """
    rows = []
    for row, length in enumerate(prompt.lengths):
        visual = prompt.visual[row].nonzero()
        last_visual = int(visual[-1]) if len(visual) else -1
        rows.append(_row(division, length, last_visual))
    return rows


def _row(division: Division, length: int, last_visual: int) -> PromptRow:
    """One row; `last_visual` is the index of the last visual token, -1 for none."""
    if last_visual >= 0:
        context, end = min(last_visual + 1, length - 1), "the last visual one"
    elif division.query_tokens is not None:
        context, end = max(length - division.query_tokens, 0), "the query"
    else:
        return PromptRow(None, "it shows neither a picture nor a clip")
    if length - context > context:
        query = f"{length - context} tokens after the last visual one"
        if last_visual < 0:
            query = f"{length - context} tokens of the query"
        return PromptRow(None, f"the {query} are more than the {context} up to it")
    anchor = tokens_of(division.anchor, context)
    passing = tokens_of(division.passing, context)
    too_small = vanishes(division.anchor, context) or vanishes(division.passing, context)
    if too_small or context - anchor < division.blocks:
        return PromptRow(
            None,
            f"the {context} tokens up to {end} are too few for {division.blocks} blocks, "
            f"anchor {division.anchor} and passing {division.passing}",
        )
    return PromptRow(divide(length, context, anchor, passing, division.blocks))


def notes_of(rows: Sequence[PromptRow]) -> dict[int, str]:
    """Messages to the user about rows that are read exactly, by row."""
    return {
        row: f"read exactly: {prompt_row.note}"
        for row, prompt_row in enumerate(rows)
        if prompt_row.note
    }
