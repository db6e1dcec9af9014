"""The kinds of passes that are compiled: few, so that all are compiled after a short while."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from draftlens.models.onednn_linear import FEW

ANY = 0
"""In place of a size: any number from 2 on."""


@dataclass(frozen=True, order=True)
class PassShape:
    """A kind of pass.

    The numbers of cached tokens and of reserved tokens are variables of the compiled code, and so
    are rows and tokens from 2 on: a pass over one token of one row, which is most of plain decoding
    and of drafting, has simpler code.

    Args:
        rows: 1, or `ANY`.
        width: new tokens of each row: 1, or `ANY`.
        axes: sizes of the leading dimensions of the positions: empty, or the axes of M-RoPE.
        is_few: whether all rows together have two or three tokens, in a model of which such passes
            have code of their own (`models.onednn_linear`).
    """

    rows: int
    width: int
    axes: tuple[int, ...] = ()
    is_few: bool = False

    @classmethod
    def of(cls, position_ids: Tensor, few_apart: bool = False) -> PassShape:
        """The kind of a pass with positions int64 ``[..., B, T]``; `few_apart`: passes of two and
        three tokens have code of their own."""
        *axes, rows, width = position_ids.shape
        is_few = few_apart and 1 < rows * width <= FEW
        return cls(_kind(rows), _kind(width), tuple(axes), is_few)

    @property
    def is_single(self) -> bool:
        return (self.rows, self.width) == (1, 1)

    @property
    def name(self) -> str:
        """Such as ``1x1`` or ``1xN``, for files and for the user."""
        text = f"{_letter(self.rows)}x{_letter(self.width)}"
        if self.is_few:
            text += "-few"
        if self.axes:
            text += "-axes" + "x".join(map(str, self.axes))
        return text


def _kind(size: int) -> int:
    return 1 if size == 1 else ANY


def _letter(size: int) -> str:
    return "N" if size == ANY else str(size)
