"""Blocks of printed lines, found without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from draftlens.documents.reading.geometry import Box, around
from draftlens.documents.reading.page import Piece

_GAP = 0.9
"""Lines of a block are at most this many line heights apart."""

_TALLER = 1.4
"""A line this many times as tall as the last one begins another block, such as a title."""

_WIDE_SPACE = 2.5
"""A space of this many line heights inside a line separates columns."""


def lines_of(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Pieces by their printed line, in the order of their first pieces."""
    lines: dict[int, list[Piece]] = {}
    for piece in pieces:
        lines.setdefault(piece.line, []).append(piece)
    return list(lines.values())


def with_blocks(pieces: Sequence[Piece]) -> list[Piece]:
    """Numbers blocks: a line continues the block of the previous line if it is right below or next
    to it and about as tall. Lines of several columns are split at wide spaces first."""
    lines = [part for line in lines_of(pieces) for part in split_columns(line)]
    numbered: list[Piece] = []
    block = -1
    previous: Box | None = None
    for number, line in enumerate(lines):
        box = around(piece.box for piece in line)
        if previous is None or not _continues(previous, box):
            block += 1
        numbered += [replace(piece, line=number, block=block) for piece in line]
        previous = box
    return numbered


def split_columns(line: Sequence[Piece]) -> list[list[Piece]]:
    """The parts of a printed line between wide spaces, and where it jumps back or up or down."""
    parts: list[list[Piece]] = []
    for piece in line:
        if parts and _is_next(parts[-1][-1].box, piece.box):
            parts[-1].append(piece)
        else:
            parts.append([piece])
    return parts


def _is_next(before: Box, box: Box) -> bool:
    """Whether a word continues the line of another word."""
    height = max(before.height, box.height)
    if abs(before.middle[1] - box.middle[1]) > height:
        return False
    space = box.left - before.right
    return -height <= space <= _WIDE_SPACE * height


def _continues(previous: Box, box: Box) -> bool:
    height = min(previous.height, box.height)
    if height <= 0 or max(previous.height, box.height) > _TALLER * height:
        return False
    gap = box.top - previous.bottom
    if not -1.5 * height <= gap <= _GAP * height:
        return False
    return box.left < previous.right and previous.left < box.right
