"""Rows that leave a batch: the last row takes the place of the one that leaves."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

T = TypeVar("T")


def replace_by_last(table: list[T], row: int) -> None:
    """Remove an entry; the last entry takes its place."""
    last = table.pop()
    if row < len(table):
        table[row] = last


def without_row(table: Tensor, row: int) -> Tensor:
    """A table ``[..., B, 1]`` whose last row has taken the place of `row`, ``[..., B - 1, 1]``."""
    shorter = table[..., :-1, :].clone()
    if row < shorter.shape[-2]:
        shorter[..., row, :] = table[..., -1, :]
    return shorter
