"""Removal of rows from a batch: the last row takes the removed row's place."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

T = TypeVar("T")


def replace_by_last(table: list[T], row: int) -> None:
    last = table.pop()
    if row < len(table):
        table[row] = last


def without_row(table: Tensor, row: int) -> Tensor:
    """``[..., B, 1]`` to ``[..., B - 1, 1]``: the last row takes the place of `row`."""
    shorter = table[..., :-1, :].clone()
    if row < shorter.shape[-2]:
        shorter[..., row, :] = table[..., -1, :]
    return shorter
