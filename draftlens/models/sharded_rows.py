"""The location of a row's tokens if several ranks hold its prompt."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from draftlens.core.process_group import Hosts


class SpreadRow:
    """One row on rank 0; other ranks keep their part under `number` (`Hosts.kept`) while this
    lives. `places` has per rank the prompt indices of its tokens, int64 rising; empty if rank 0 has
    all."""

    def __init__(self, hosts: Hosts) -> None:
        self.number = hosts.new_number()
        self.places: tuple[Tensor, ...] = ()
        weakref.finalize(self, hosts.forget, self.number)

    @property
    def is_spread(self) -> bool:
        return any(len(places) for places in self.places[1:])

    def find(self, slots: Tensor, rank: int) -> tuple[Tensor, Tensor]:
        """Which of the prompt indices `slots` (int64 ``[K]``) a rank holds, and where the rank
        holds them, both int64 ``[n]``."""
        if not self.places:
            which = torch.arange(len(slots) if rank == 0 else 0)
            return which, slots.cpu()[which]
        places = self.places[rank]
        which = torch.isin(slots.cpu(), places).nonzero()[:, 0]
        return which, torch.searchsorted(places, slots.cpu()[which])
