"""Sums of a few numbers a position, over all positions or the last ones."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError


def check_window(window: Any) -> None:
    """Refuse a window that is neither None nor a number of positions.

    Raises:
        ConfigError: as said.
    """
    if window is not None and (type(window) is not int or window < 1):
        raise ConfigError(f"window is a number of positions from 1 on, or None, not {window!r}")


class WindowSums:
    """Sums over the last `window` positions.

    Nothing else of a position is kept, in particular no distribution.

    Args:
        size: K, numbers a position.
        window: h; None for all positions.

    Attributes:
        is_empty: whether nothing was added yet.
    """

    def __init__(self, size: int, window: int | None) -> None:
        self.size = size
        self.is_empty = True
        self._all = torch.zeros(size, dtype=torch.float64)
        self._latest: deque[Tensor] | None = None if window is None else deque(maxlen=window)

    @property
    def total(self) -> Tensor:
        """The sums, float64 ``[K]``."""
        if self._latest is None:
            return self._all
        if not self._latest:
            return torch.zeros(self.size, dtype=torch.float64)
        return torch.stack(tuple(self._latest)).sum(0)

    def add(self, values: Tensor) -> None:
        """Add the numbers of a position, ``[K]``."""
        self.is_empty = False
        if self._latest is None:
            self._all = self._all + values
        else:
            self._latest.append(values)
