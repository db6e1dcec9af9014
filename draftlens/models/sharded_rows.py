"""Where the tokens of a row are whose prompt several hosts hold."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from draftlens.core.process_group import Hosts


class SpreadRow:
    """One row, as rank 0 knows it. The other ranks keep their part of it while this object lives.

    Args:
        hosts: the group.

    Attributes:
        number: under which ranks above 0 keep their part (`Hosts.kept`).
        places: of each rank, which tokens of the prompt it holds, int64 rising; empty while rank 0
            holds all.
    """

    def __init__(self, hosts: Hosts) -> None:
        self.number = hosts.new_number()
        self.places: tuple[Tensor, ...] = ()
        weakref.finalize(self, hosts.forget, self.number)

    @property
    def is_spread(self) -> bool:
        """Whether a rank above 0 holds tokens of the row."""
        return any(len(places) for places in self.places[1:])

    def find(self, slots: Tensor, rank: int) -> tuple[Tensor, Tensor]:
        """Which of some tokens a rank holds.

        Args:
            slots: places in the prompt, int64 ``[K]``.
            rank: any.

        Returns:
            Which of the slots these are, and where the rank holds them, both int64 ``[n]``.
        """
        if not self.places:
            which = torch.arange(len(slots) if rank == 0 else 0)
            return which, slots.cpu()[which]
        held = self.places[rank]
        which = torch.isin(slots.cpu(), held).nonzero()[:, 0]
        return which, torch.searchsorted(held, slots.cpu()[which])
